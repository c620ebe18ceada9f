//! The simulated Azure as a state machine: a request and the time go in, a response comes out. It touches no
//! socket, no file and no clock of its own.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    aks, arm,
    entra::{Application, Directory},
    fault::{Fault, FaultPlan},
    kinds, kubernetes_authorization, metadata_service,
    operation::Operation,
    settings::Settings,
    store::Store,
    throttle::Throttle,
    wire::{Delivery, Request, Response},
};

/// The key in [`State::backing`] of the API server behind every cluster without one of its own.
const EVERY_CLUSTER: &str = "*";

/// What changed in a cluster's nodes, for whoever mirrors them into a real Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterChange {
    /// Lower-case id of the managed cluster.
    pub cluster: String,
}

/// One request as it was remembered.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedRequest {
    pub at: Timestamp,
    pub method: String,
    pub host: String,
    pub path: String,
    pub query: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    /// The tenants whose tokens were shown beside the caller's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub auxiliary_tenants: Vec<String>,
    /// The JSON body of a write to ARM; sign-in bodies carry secrets and are never kept.
    #[serde(skip)]
    pub body: Bytes,
    pub status: u16,
}

impl RecordedRequest {
    pub fn body_json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// The part that survives a restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    pub resources: Store,
    pub operations: BTreeMap<String, Operation>,
    pub counter: u64,
    pub providers: BTreeMap<String, String>,
    pub directory: Directory,
    /// Kubeconfigs of real API servers by lower-case cluster id; `*` is for all others.
    #[serde(default)]
    pub backing: BTreeMap<String, String>,
}

pub struct Azure {
    pub settings: Settings,
    pub(crate) state: State,
    /// Operations that still have to end, soonest first.
    pub(crate) pending: BTreeSet<(Timestamp, String)>,
    pub(crate) throttle: Throttle,
    pub(crate) faults: FaultPlan,
    requests: VecDeque<RecordedRequest>,
    changes: Vec<ClusterChange>,
    /// How long the next operation takes, in place of what settings say.
    pub(crate) next_duration: Option<Duration>,
    /// Grows with every change of [`State`].
    revision: u64,
}

impl Azure {
    pub fn new(settings: Settings) -> Self {
        Self::with_state(settings, State::default())
    }

    /// Goes on from a saved state.
    pub fn with_state(settings: Settings, state: State) -> Self {
        let pending = state
            .operations
            .values()
            .filter(|operation| !operation.finished)
            .map(|operation| (operation.ends, operation.id.clone()))
            .collect();
        Self {
            settings,
            state,
            pending,
            throttle: Throttle::default(),
            faults: FaultPlan::default(),
            requests: VecDeque::new(),
            changes: Vec::new(),
            next_duration: None,
            revision: 0,
        }
    }

    /// Answers one request at the given time. Time never has to pass for the state to move on: whatever was due
    /// by `now` has happened before the request is looked at.
    pub fn handle(&mut self, request: &Request, now: Timestamp) -> Response {
        self.settle(now);
        let fault = self.faults.matching(request);
        let mut response = match &fault {
            Some(fault) if fault.before_commit() => fault.response(),
            _ => self.route(request, now),
        };
        if let Some(fault) = fault {
            response.delivery = Delivery {
                delay: Duration::from_millis(fault.delay_milliseconds),
                dropped: fault.drop_connection,
            };
            if let Some(error) = &fault.operation_error {
                self.spoil_operation(&response, error, fault.operation_succeeds);
            }
        }
        self.settle(now);
        response = self.with_common_headers(request, response);
        self.remember(request, &response, now);
        response
    }

    fn route(&mut self, request: &Request, now: Timestamp) -> Response {
        if crate::entra::is_login_host(&request.host) || crate::entra::is_login_path(&request.path) {
            return self.sign_in(request, now);
        }
        if request.path.starts_with("/metadata/") || request.host == "169.254.169.254" {
            return metadata_service::answer(self, request, now);
        }
        if request.path.starts_with("/kubernetes/authorize/") {
            return kubernetes_authorization::answer(self, request);
        }
        arm::answer(self, request, now)
    }

    fn sign_in(&mut self, request: &Request, now: Timestamp) -> Response {
        let identity = self.identity_of(request);
        let response = self
            .state
            .directory
            .answer(request, identity.as_ref(), now, &self.settings);
        self.revision += 1;
        response
    }

    /// The user-assigned identity a sign-in names, with the federated credentials ARM holds for it.
    fn identity_of(&self, request: &Request) -> Option<Application> {
        let (_, client) = url::form_urlencoded::parse(&request.body).find(|(key, _)| key == "client_id")?;
        let identity = self.state.resources.iter().find(|resource| {
            resource.kind == kinds::IDENTITY && resource.text("clientId").eq_ignore_ascii_case(&client)
        })?;
        let mut application = Application {
            object_id: identity.text("principalId").to_owned(),
            ..Application::new(&client)
        };
        let credentials = self
            .state
            .resources
            .of_kind(&identity.id.to_ascii_lowercase(), kinds::FEDERATED);
        for credential in credentials {
            for audience in credential.properties()["audiences"]
                .as_array()
                .into_iter()
                .flatten()
            {
                application = application.federated(
                    credential.text("issuer"),
                    credential.text("subject"),
                    audience.as_str().unwrap_or_default(),
                );
            }
        }
        Some(application)
    }

    fn with_common_headers(&mut self, request: &Request, response: Response) -> Response {
        let mut response = response
            .with("cache-control", "no-cache")
            .with("pragma", "no-cache")
            .with("expires", "-1")
            .with("strict-transport-security", "max-age=31536000; includeSubDomains")
            .with("x-content-type-options", "nosniff");
        let id = self.fresh_uuid().to_string();
        response = response
            .with("x-ms-request-id", &id)
            .with("x-ms-correlation-request-id", &id);
        // A client may ask to have its own id echoed.
        if let Some(client) = request.header_text("x-ms-client-request-id") {
            response = response.with("x-ms-client-request-id", client);
        }
        response
    }

    fn remember(&mut self, request: &Request, response: &Response, now: Timestamp) {
        let is_write = matches!(request.method, Method::PUT | Method::PATCH | Method::POST);
        let keeps_body = is_write && !crate::entra::is_login_path(&request.path);
        if self.settings.requests_kept == 0 {
            return;
        }
        while self.requests.len() >= self.settings.requests_kept {
            self.requests.pop_front();
        }
        let auxiliary_tenants = self.auxiliary_tenants(request, now);
        self.requests.push_back(RecordedRequest {
            at: now,
            method: request.method.to_string(),
            host: request.host.clone(),
            path: request.path.clone(),
            query: request.query.clone(),
            user_agent: request.header_text("user-agent").map(str::to_owned),
            auxiliary_tenants,
            body: if keeps_body {
                request.body.clone()
            } else {
                Bytes::new()
            },
            status: response.status,
        });
    }

    /// An id that is unique in this simulator and the same in every run.
    pub(crate) fn fresh_uuid(&mut self) -> Uuid {
        self.state.counter += 1;
        Uuid::new_v5(&Uuid::NAMESPACE_OID, &self.state.counter.to_be_bytes())
    }

    pub(crate) fn touch(&mut self) {
        self.revision += 1;
    }

    pub(crate) fn note_change(&mut self, cluster: String) {
        self.changes.push(ClusterChange { cluster });
    }

    // What tests and the admin port use.

    pub fn requests(&self) -> impl Iterator<Item = &RecordedRequest> {
        self.requests.iter()
    }

    /// How many remembered requests have this method and a path containing `part`, without case.
    pub fn count(&self, method: &str, part: &str) -> usize {
        let part = part.to_ascii_lowercase();
        self.requests
            .iter()
            .filter(|request| request.method == method && request.path.to_ascii_lowercase().contains(&part))
            .count()
    }

    /// Those of the tokens that this directory has issued.
    fn auxiliary_tenants(&self, request: &Request, now: Timestamp) -> Vec<String> {
        let header = request.header_text("x-ms-authorization-auxiliary");
        header
            .unwrap_or_default()
            .split(", ")
            .filter_map(|one| {
                let token = one.strip_prefix("Bearer ")?;
                let claims = self.state.directory.read_token(token, now).ok()?;
                Some(claims.tenant)
            })
            .collect()
    }

    pub fn forget_requests(&mut self) {
        self.requests.clear();
    }

    pub fn add_fault(&mut self, fault: Fault) {
        self.faults.add(fault);
    }

    pub fn faults(&self) -> &[Fault] {
        self.faults.all()
    }

    pub fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// The operation that starts next takes this long, whatever the settings say.
    pub fn next_operation_lasts(&mut self, duration: Option<Duration>) {
        self.next_duration = duration;
    }

    pub fn directory_mut(&mut self) -> &mut Directory {
        self.revision += 1;
        &mut self.state.directory
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Clusters whose nodes changed since the last call.
    pub fn take_changes(&mut self) -> Vec<ClusterChange> {
        std::mem::take(&mut self.changes)
    }

    /// Whether a principal is an identity or an application of this directory.
    pub(crate) fn knows_principal(&self, object_id: &str) -> bool {
        self.state.directory.has_object(object_id)
            || self.state.resources.iter().any(|resource| {
                let of_identity = resource.text("principalId");
                let of_cluster = resource
                    .document
                    .get("identity")
                    .and_then(|identity| identity["principalId"].as_str());
                resource.kind != "Microsoft.Authorization/roleAssignments"
                    && (of_identity.eq_ignore_ascii_case(object_id)
                        || of_cluster.is_some_and(|id| id.eq_ignore_ascii_case(object_id)))
            })
    }

    /// The nodes of a cluster, by its ARM id.
    pub fn nodes(&self, cluster: &str) -> Vec<aks::Node> {
        aks::nodes_of(self, cluster)
    }

    /// Scales a pool as the cluster autoscaler would: at once and without a request. False when there is no such
    /// pool.
    pub fn set_pool_count(&mut self, pool: &str, count: u64) -> bool {
        let changed = aks::set_count(self, pool, count);
        self.revision += 1;
        changed
    }

    /// Gives a machine of a pool another power state, as somebody who stops its VM. False when there is no such machine.
    pub fn set_machine_power(&mut self, pool: &str, instance: u64, power: &str) -> bool {
        let changed = aks::set_power(self, pool, instance, power);
        self.revision += 1;
        changed
    }

    /// Enables Azure Policy's add-on on a cluster, as an assignment in the subscription does by itself.
    pub fn enable_policy_addon(&mut self, cluster: &str) -> bool {
        let changed = aks::enable_addon(self, cluster);
        self.revision += 1;
        changed
    }

    /// Backs a cluster with a real API server: its kubeconfigs reach it from now on.
    pub fn back_cluster(&mut self, cluster: &str, kubeconfig: &str) {
        self.state
            .backing
            .insert(cluster.to_ascii_lowercase(), kubeconfig.to_owned());
        self.note_change(cluster.to_ascii_lowercase());
        self.revision += 1;
    }

    /// Backs every cluster that has no API server of its own with this one.
    pub fn back_all_clusters(&mut self, kubeconfig: &str) {
        let backing = &mut self.state.backing;
        backing.insert(EVERY_CLUSTER.to_owned(), kubeconfig.to_owned());
        for cluster in self.clusters() {
            self.note_change(cluster);
        }
        self.revision += 1;
    }

    /// The managed clusters there are, by lower-case id.
    pub(crate) fn clusters(&self) -> Vec<String> {
        self.state
            .resources
            .iter()
            .filter(|resource| resource.kind == aks::CLUSTER)
            .map(|resource| resource.id.to_ascii_lowercase())
            .collect()
    }

    /// The kubeconfig of the API server behind a cluster.
    pub(crate) fn backing_of(&self, cluster: &str) -> Option<&String> {
        let backing = &self.state.backing;
        backing
            .get(&cluster.to_ascii_lowercase())
            .or_else(|| backing.get(EVERY_CLUSTER))
    }

    /// Back to nothing: no resources, operations, faults or remembered requests. Settings stay.
    pub fn reset(&mut self) {
        let counter = self.state.counter;
        self.state = State {
            counter,
            ..State::default()
        };
        self.pending.clear();
        self.throttle = Throttle::default();
        self.faults.clear();
        self.requests.clear();
        self.revision += 1;
    }

    /// One subscription's resources gone; what other tests do elsewhere is untouched.
    pub fn reset_subscription(&mut self, subscription: &str) {
        let key = format!("/subscriptions/{}", subscription.to_ascii_lowercase());
        self.state.resources.remove(&key);
        let prefix = format!("{key}/");
        self.state
            .operations
            .retain(|_, operation| !operation.target.starts_with(&prefix));
        let operations = &self.state.operations;
        self.pending.retain(|(_, id)| operations.contains_key(id));
        self.throttle.forget(subscription);
        self.revision += 1;
    }

    /// A short count of what is there, for people.
    pub fn summary(&self) -> Value {
        let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
        for resource in self.state.resources.iter() {
            *kinds.entry(&resource.kind).or_default() += 1;
        }
        json!({
            "resources": kinds,
            "operationsRunning": self.pending.len(),
            "requestsRemembered": self.requests.len(),
        })
    }
}
