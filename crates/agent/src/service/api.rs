//! The `Agent` service: requests in, the host's answers out.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::Stream;
use jiff::Timestamp;
use slipway_agent_api::proto::{self, Operation, OperationState, agent_server::Agent};
use slipway_agent_api::{Class, Identity, Problem, client::has_ended};
use slipway_slots::Digest;
use slipway_slots::boot::SlotBoot;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::Host;
use super::maintenance::Maintenance;
use super::shown::{Shown, withhold_output};
use crate::cache::{ImageRecord, KeepReason};

pub(super) struct Api(pub Arc<Host>);

type Answer<T> = Result<Response<T>, Status>;

fn is_operator<T>(request: &Request<T>) -> bool {
    matches!(
        request.extensions().get::<Identity>(),
        Some(Identity::Operator { .. })
    )
}

pub(super) fn unknown(id: &str) -> Problem {
    Problem::new(
        Class::Terminal,
        "UnknownOperation",
        format!(
            "operation {} is not known here: it was never accepted, or is long over",
            id.chars().take(130).collect::<String>()
        ),
    )
}

fn millis(time: Option<Timestamp>) -> i64 {
    time.map_or(0, Timestamp::as_millisecond)
}

impl Host {
    fn image(record: &ImageRecord, kept: Option<&KeepReason>) -> proto::Image {
        let mut users: Vec<_> = record
            .pins
            .iter()
            .map(|(owner, until)| proto::ImageUser {
                kind: "pin".to_owned(),
                name: owner.clone(),
                until: millis(*until),
            })
            .collect();
        let other = match kept {
            Some(KeepReason::InUse) => Some(("lease", "an operation")),
            Some(KeepReason::Slot(slot)) => Some(("slot", slot.as_str())),
            _ => None,
        };
        users.extend(other.map(|(kind, name)| proto::ImageUser {
            kind: kind.to_owned(),
            name: name.to_owned(),
            until: 0,
        }));
        proto::Image {
            digest: record.digest.to_string(),
            names: record.names.keys().cloned().collect(),
            size_bytes: record.size(),
            kind: record.kind.name().to_owned(),
            users,
            last_used_at: record.last_used.as_millisecond(),
            expires_at: millis(record.expires()),
            slot_image: record
                .slot_image
                .map(|image| image.to_string())
                .unwrap_or_default(),
        }
    }

    fn cache_use(&self) -> proto::CacheUse {
        let (used, reserved) = self.cache.used();
        proto::CacheUse {
            used_bytes: used,
            quota_bytes: self.cache.quota(),
            reserved_bytes: reserved,
        }
    }

    pub(super) fn shown_images(&self) -> Vec<proto::Image> {
        let images = self.cache.list();
        images
            .iter()
            .map(|(record, kept)| Self::image(record, kept.as_ref()))
            .collect()
    }

    /// What the machine has of its own: an address that it holds for others goes to another host with them.
    fn own_addresses(&self) -> Vec<String> {
        let held = self.addresses.list();
        let is_held = |address: &String| held.iter().any(|held| held.split('/').next() == Some(address));
        let found = self
            .machine
            .addresses()
            .into_iter()
            .map(|address| address.to_string());
        found.filter(|address| !is_held(address)).collect()
    }

    pub(super) fn inventory(&self) -> proto::Host {
        let status = self.slots.as_ref().and_then(super::Slots::status);
        let slots = status
            .iter()
            .flat_map(|status| &status.slots)
            .map(|slot| proto::Slot {
                name: slot.slot.to_string(),
                boot: match slot.boot {
                    SlotBoot::Good => "good",
                    SlotBoot::Trial { .. } => "trial",
                    SlotBoot::Unbootable => "unbootable",
                }
                .to_owned(),
                image: slot.image.map(|image| image.to_string()).unwrap_or_default(),
                version: slot.version.clone().unwrap_or_default(),
                kubelet_version: slot.kubelet_version.clone().unwrap_or_default(),
                digests: slot
                    .image
                    .map(|image| self.digests_of(&image))
                    .unwrap_or_default(),
            });
        let running = self.operations.list();
        let running = running.iter().filter(|operation| !has_ended(operation));
        let mut problems = self.cache.problems().to_vec();
        problems.extend(status.iter().flat_map(|status| status.problems.clone()));
        let quarantined = status.iter().flat_map(|status| &status.quarantined);
        let quarantined = quarantined
            .map(|(digest, reason)| proto::QuarantinedImage {
                digest: digest.to_string(),
                reason: reason.clone(),
                digests: self.digests_of(digest),
            })
            .collect();
        proto::Host {
            name: self.name.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: self.machine.boot_id(),
            generation: self.operations.generation(),
            maintenance: Maintenance::read(&self.state).map(|held| proto::Maintenance {
                by: held.by,
                reason: held.reason,
                since: held.since.as_millisecond(),
            }),
            hardware: Some(self.machine.hardware()),
            disks: self.machine.disks(),
            slots: slots.collect(),
            booted_slot: status
                .as_ref()
                .and_then(|status| status.booted)
                .map(|slot| slot.to_string())
                .unwrap_or_default(),
            standing: status.map(|status| status.standing).unwrap_or_default(),
            cache: Some(self.cache_use()),
            held_addresses: self.addresses.list(),
            running_operations: running.map(|operation| operation.id.clone()).collect(),
            problems,
            upgrades: self
                .slots
                .iter()
                .flat_map(super::Slots::upgrades)
                .map(|upgrade| self.with_digests(upgrade))
                .collect(),
            quarantined,
            addresses: self.own_addresses(),
        }
    }
}

#[async_trait]
impl Agent for Api {
    async fn get_host(&self, _: Request<proto::GetHostRequest>) -> Answer<proto::Host> {
        Ok(Response::new(self.0.inventory()))
    }

    async fn list_images(&self, _: Request<proto::ListImagesRequest>) -> Answer<proto::ListImagesResponse> {
        Ok(Response::new(proto::ListImagesResponse {
            images: self.0.shown_images(),
            r#use: Some(self.0.cache_use()),
        }))
    }

    async fn wait_for_image(
        &self,
        request: Request<proto::WaitForImageRequest>,
    ) -> Answer<proto::WaitForImageResponse> {
        let request = request.into_inner();
        let digest: Digest = request
            .digest
            .parse()
            .map_err(|error| Problem::new(Class::Terminal, "InvalidRequest", format!("{error}")))?;
        let limit = Duration::from_secs(request.time_limit_seconds.min(300).into());
        let mut changes = self.0.cache.changes();
        let waiting = async {
            loop {
                changes.borrow_and_update();
                if let Some(record) = self.0.cache.image(&digest) {
                    return record;
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let found = tokio::time::timeout(limit, waiting).await.ok();
        Ok(Response::new(proto::WaitForImageResponse {
            usable: found.is_some(),
            image: found.map(|record| Host::image(&record, None)),
        }))
    }

    async fn start(&self, request: Request<proto::StartRequest>) -> Answer<Operation> {
        Ok(Response::new(self.0.start(&request.into_inner())?))
    }

    async fn cancel_operation(&self, request: Request<proto::CancelOperationRequest>) -> Answer<Operation> {
        let request = request.into_inner();
        Ok(Response::new(
            self.0.cancel(&request.operation_id, request.generation).await?,
        ))
    }

    async fn get_operation(&self, request: Request<proto::GetOperationRequest>) -> Answer<Operation> {
        let operator = is_operator(&request);
        let id = request.into_inner().operation_id;
        let operation = self.0.operations.get(&id).ok_or_else(|| unknown(&id))?;
        Ok(Response::new(if operator {
            operation
        } else {
            withhold_output(operation)
        }))
    }

    async fn list_operations(
        &self,
        _: Request<proto::ListOperationsRequest>,
    ) -> Answer<proto::ListOperationsResponse> {
        // Output is had one by one: a list with all of it would not fit into a message.
        let operations = self.0.operations.list().into_iter().map(withhold_output);
        Ok(Response::new(proto::ListOperationsResponse {
            operations: operations.collect(),
        }))
    }

    type WatchOperationStream = Pin<Box<dyn Stream<Item = Result<Operation, Status>> + Send>>;

    async fn watch_operation(
        &self,
        request: Request<proto::WatchOperationRequest>,
    ) -> Answer<Self::WatchOperationStream> {
        let operator = is_operator(&request);
        let request = request.into_inner();
        let id = request.operation_id;
        let receiver = self.0.operations.watch(&id).ok_or_else(|| unknown(&id))?;
        let watching = Watching {
            receiver,
            operator,
            output_from: request.output_from,
            first: true,
            ended: false,
        };
        let stream = futures::stream::unfold(watching, |mut watching| async move {
            let operation = watching.next().await?;
            Some((Ok(operation), watching))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// One watch of an operation.
struct Watching {
    receiver: watch::Receiver<Shown>,
    operator: bool,
    /// Bytes of output that its reader has.
    output_from: u64,
    first: bool,
    ended: bool,
}

impl Watching {
    /// The operation when it has changed, with what was said meanwhile; nothing after its end.
    async fn next(&mut self) -> Option<Operation> {
        if self.ended || (!self.first && self.receiver.changed().await.is_err()) {
            return None;
        }
        self.first = false;
        let shown = self.receiver.borrow_and_update();
        let mut operation = shown.operation.clone();
        // An interrupted one that is ordered again goes on: whoever watches it then asks again.
        self.ended = has_ended(&operation) || operation.state() == OperationState::Unspecified;
        if !self.operator {
            return Some(withhold_output(operation));
        }
        operation.output = shown.said.after(self.output_from);
        if let Some(output) = &operation.output {
            self.output_from = output.offset + output.data.len() as u64;
        }
        Some(operation)
    }
}
