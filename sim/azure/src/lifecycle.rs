//! Saving resources, starting operations on them, and what happens to them when an operation is over.

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::{
    aks,
    arm::Context,
    arm_id::ArmId,
    azure::Azure,
    error_response::ErrorResponse,
    kinds::{self, Acceptance, Child, Kind, View},
    operation::{Links, Operation, Style, end_of},
    settings::recorded_duration,
    store::Resource,
    wire::Response,
};

/// Finished operations can be asked about for a day.
const KEPT: jiff::SignedDuration = jiff::SignedDuration::from_hours(24);

impl Azure {
    #[expect(
        clippy::too_many_arguments,
        reason = "one call site, and each is a part of the resource"
    )]
    pub(crate) fn save(
        &mut self,
        id: &ArmId,
        kind: &Kind,
        old: Option<&Resource>,
        document: Map<String, Value>,
        hidden: Map<String, Value>,
        state: &str,
        now: Timestamp,
        keep_etag: bool,
    ) {
        // AKS gives a new etag even to a write that changes nothing.
        let etag = match old {
            Some(old) if keep_etag && !kind.exclusive => old.etag.clone(),
            _ => self.fresh_uuid().to_string(),
        };
        let order = old.map_or(self.state.counter, |old| old.order);
        let resource = Resource {
            id: old.map_or_else(|| id.to_string(), |old| old.id.clone()),
            kind: kinds::canonical(&id.type_path()),
            state: state.to_owned(),
            document,
            hidden,
            operation: old.and_then(|old| old.operation.clone()),
            order,
            etag,
            created: old.map_or(now, |old| old.created),
            changed: now,
        };
        self.state.resources.insert(id, resource);
        self.touch();
    }

    pub(crate) fn save_child(&mut self, (id, path, document, hidden): Child, state: &str, now: Timestamp) {
        let old = self.state.resources.get(&id).cloned();
        let same = old.as_ref().is_some_and(|old| old.document == document);
        let kind = kinds::find(path);
        self.save(&id, kind, old.as_ref(), document, hidden, state, now, same);
    }

    /// Children that a full list in the parent's body no longer names go away.
    pub(crate) fn remove_embedded(&mut self, kind: &Kind, id: &ArmId, kept: &[Child]) {
        let gone: Vec<String> = kind
            .embedded
            .iter()
            .flat_map(|(_, path)| self.state.resources.of_kind(&id.key(), path))
            .map(|resource| resource.id.to_ascii_lowercase())
            .filter(|key| !kept.iter().any(|(child, ..)| child.key() == *key))
            .collect();
        for key in gone {
            self.remove(&key);
        }
    }

    pub(crate) fn set_state(&mut self, id: &ArmId, state: &str, now: Timestamp) {
        if let Some(resource) = self.state.resources.get_mut(id) {
            state.clone_into(&mut resource.state);
            resource.changed = now;
        }
        self.touch();
    }

    pub(crate) fn remove(&mut self, key: &str) {
        for gone in self.state.resources.remove(key) {
            if gone.kind == aks::CLUSTER {
                self.note_change(gone.id.to_ascii_lowercase());
                aks::remove_node_group(self, &gone);
            }
            if gone.kind == aks::POOL
                && let Some(cluster) = gone.arm_id().parent()
            {
                self.note_change(cluster.key());
            }
            for interface in kinds::interfaces_of(&gone) {
                self.remove(&interface.to_ascii_lowercase());
            }
        }
        self.touch();
    }

    /// Starts an operation when the write runs on; gives it with the location its URLs name.
    pub(crate) fn start(
        &mut self,
        kind: &'static Kind,
        id: &ArmId,
        acceptance: Acceptance,
        verb: &str,
        nodes: u64,
        context: &Context<'_>,
    ) -> Option<(Operation, String)> {
        let key = id.key();
        let cluster = if key.contains("/managedclusters/") {
            aks::cluster_of(id).map(|cluster| cluster.key())
        } else {
            None
        };
        if let Some(cluster) = cluster {
            self.note_change(cluster);
        }
        if !acceptance.runs {
            return None;
        }
        aks::joining(self, id, verb);
        aks::surging(self, id, verb);
        let duration = self.next_duration.take().unwrap_or_else(|| {
            let recorded = recorded_duration(&self.settings, kind.short_name(), verb);
            self.settings.speed.scale(recorded)
        });
        let name = if kind.style == Style::ResourceGroups {
            crate::job_name::of_group_deletion(id.name(), self.fresh_uuid())
        } else {
            self.fresh_uuid().to_string()
        };
        let operation = Operation {
            id: name,
            style: kind.style,
            verb: verb.to_owned(),
            target: key.clone(),
            target_id: id.to_string(),
            kind: kind.short_name().to_owned(),
            api_version: context.api.clone(),
            started: context.now,
            ends: end_of(context.now, duration),
            failure: None,
            note: None,
            nodes,
            finished: false,
        };
        if let Some(resource) = self.state.resources.by_key_mut(&key) {
            resource.operation = Some(operation.id.clone());
            resource
                .hidden
                .insert("lastOperationId".to_owned(), operation.id.clone().into());
        }
        let location = self.location_of(id);
        self.pending.insert((operation.ends, operation.id.clone()));
        self.state
            .operations
            .insert(operation.id.clone(), operation.clone());
        self.touch();
        Some((operation, location))
    }

    /// The location of a resource or of the nearest one above it that has one.
    pub(crate) fn location_of(&self, id: &ArmId) -> String {
        let mut next = Some(id.clone());
        while let Some(id) = next {
            let found = self
                .state
                .resources
                .get(&id)
                .map(Resource::location)
                .filter(|location| !location.is_empty());
            if let Some(location) = found {
                return location.to_owned();
            }
            next = id.parent().or_else(|| id.scope());
        }
        "westus3".to_owned()
    }

    /// The answer to a poll; `None` when the path is not one of an operation.
    pub(crate) fn poll(&self, id: &ArmId, context: &Context<'_>) -> Result<Option<Response>, ErrorResponse> {
        let Some((_, pairs)) = id.providers.last() else {
            return Ok(None);
        };
        let Some((word, name)) = pairs.last() else {
            return Ok(None);
        };
        let is_result = [
            "operationresults",
            "asyncoperations",
            "privatednsoperationresults",
        ]
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known));
        let is_status = [
            "operations",
            "privatednsoperationstatuses",
            "workspaceoperationsstatus",
        ]
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known));
        if !is_result && !is_status {
            return Ok(None);
        }
        let known = self.state.operations.get(name).or_else(|| {
            self.state
                .operations
                .values()
                .find(|operation| operation.id.eq_ignore_ascii_case(name))
        });
        let Some(operation) = known else {
            if id.key().contains("/microsoft.network/") {
                return Ok(Some(Response::json(
                    200,
                    &serde_json::json!({"status": "Succeeded"}),
                )));
            }
            return Err(ErrorResponse::new(
                404,
                "OperationNotFound",
                format!("The operation '{name}' could not be found."),
            ));
        };
        if !context.request.query.contains(&operation.signature()) {
            return Err(ErrorResponse::gateway(
                403,
                "InvalidOperationSignature",
                "The query of an operation URL was not sent back as it was given.",
            ));
        }
        let target = ArmId::parse(&operation.target_id).unwrap_or_else(|| id.clone());
        let over = operation.is_over(context.now);
        let (authority, location) = (&context.request.authority, self.location_of(&target));
        if operation.style == Style::Storage
            && over
            && let Some(resource) = self.state.resources.get(&target)
        {
            let view = View {
                api: &context.api,
                now: context.now,
                written: false,
            };
            let kind = kinds::find(&resource.kind);
            return Ok(Some(Response::json(200, &kind.show(self, resource, &view))));
        }
        if is_result {
            return Ok(Some(operation.result(context.now, authority, &location)));
        }
        let response = operation.status(context.now);
        Ok(Some(if operation.style == Style::PrivateDns && !over {
            let links = Links {
                asynchronous: true,
                location: true,
                retry_after: Some(30),
                ..Links::default()
            };
            let response = Response {
                status: 202,
                ..response
            };
            operation.announce(response, links, authority, &location)
        } else {
            response
        }))
    }

    /// Lets everything happen that is due by now.
    pub fn settle(&mut self, now: Timestamp) {
        while let Some((ends, id)) = self.pending.first().cloned() {
            if ends > now {
                break;
            }
            self.pending.pop_first();
            let Some(operation) = self.state.operations.get_mut(&id) else {
                continue;
            };
            operation.finished = true;
            let operation = operation.clone();
            self.end(&operation);
            self.touch();
        }
        if self.state.operations.len() > 2_000 {
            self.state
                .operations
                .retain(|_, operation| !operation.finished || now.duration_since(operation.ends) < KEPT);
        }
    }

    fn end(&mut self, operation: &Operation) {
        if operation.verb == "delete" && operation.failure.is_none() {
            self.remove(&operation.target);
            return;
        }
        let Some(resource) = self.state.resources.by_key_mut(&operation.target) else {
            return;
        };
        if resource.operation.as_deref() == Some(operation.id.as_str()) {
            resource.operation = None;
        } else if resource.operation.is_some() {
            // A later operation took over; it will set the state.
            return;
        }
        let failed = operation.failure.is_some();
        let aborted = operation.verb == "abort";
        let state = match (failed, aborted) {
            (true, _) => "Failed",
            (false, true) => "Canceled",
            (false, false) => "Succeeded",
        };
        state.clone_into(&mut resource.state);
        resource.changed = operation.ends;
        let kind = kinds::find(&resource.kind.clone());
        if !failed && !aborted {
            (kind.finish)(resource);
        }
        let children: Vec<String> = match kind.path {
            aks::CLUSTER => vec![aks::POOL],
            _ => kind.embedded.iter().map(|(_, path)| *path).collect(),
        }
        .into_iter()
        .flat_map(|path| self.state.resources.of_kind(&operation.target, path))
        .filter(|child| child.operation.is_none())
        .map(|child| child.id.to_ascii_lowercase())
        .collect();
        for key in children {
            if let Some(child) = self.state.resources.by_key_mut(&key) {
                state.clone_into(&mut child.state);
            }
        }
        aks::ended(self, operation);
        aks::joined(self, operation);
        if let Some(cluster) = ArmId::parse(&operation.target_id).and_then(|id| aks::cluster_of(&id)) {
            self.note_change(cluster.key());
        }
    }

    /// Stops the running operation of a resource where it is.
    /// False when nothing runs.
    pub(crate) fn abort(&mut self, id: &ArmId, now: Timestamp) -> bool {
        let Some(running) = self
            .state
            .resources
            .get_mut(id)
            .and_then(|resource| resource.operation.take())
        else {
            return false;
        };
        if let Some(operation) = self.state.operations.get_mut(&running) {
            self.pending.remove(&(operation.ends, running));
            operation.ends = now;
            operation.finished = true;
            operation.failure = Some(serde_json::json!({
                "code": "OperationAborted",
                "message": "The operation was aborted by a later request.",
            }));
        }
        self.set_state(id, "Canceling", now);
        true
    }

    /// Makes the operation an answer announced fail, or carry an error and succeed.
    pub(crate) fn spoil_operation(&mut self, response: &Response, error: &Value, succeeds: bool) {
        let Some(operation) = response
            .header_text("x-ms-operation-identifier")
            .and_then(|id| self.state.operations.get_mut(id))
        else {
            return;
        };
        if succeeds {
            operation.note = Some(error.clone());
        } else {
            operation.failure = Some(error.clone());
        }
        self.touch();
    }
}
