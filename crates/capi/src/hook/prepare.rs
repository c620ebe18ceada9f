//! What an extension is asked before an update: the objects as they are and as they would be stored. Both go through
//! dry runs of the same apply that would write them, so that defaults and other managers' fields do not look like
//! changes.

use kube::{
    Client,
    api::{ApiResource, DynamicObject},
};
use serde_json::Value;

use super::types::{CanUpdateMachineRequest, MachineObjects};
use crate::{
    Error,
    apply::{self, FieldManagers, for_hook, spec_intent},
    in_place::Resources,
};

/// The question, or why it need not be asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Prepared {
    Ask(Box<CanUpdateMachineRequest>),
    /// The apiserver would refuse the change: the machine has to be replaced.
    Cannot(String),
}

/// Prepares the question whether a machine can be updated from `current` to `desired`, given as full objects.
pub async fn can_update_machine(
    client: &Client,
    managers: FieldManagers,
    resources: &Resources,
    current: &MachineObjects,
    desired: &MachineObjects,
) -> Result<Prepared, Error> {
    let machine = run(client, &resources.machine, managers, &desired.machine).await?;
    let mut request = CanUpdateMachineRequest {
        current: MachineObjects {
            machine: for_hook(&current.machine),
            ..MachineObjects::default()
        },
        desired: MachineObjects {
            machine: for_hook(&machine),
            ..MachineObjects::default()
        },
    };

    let resource = &resources.infrastructure_machine;
    let (now, then) = (&current.infrastructure_machine, &desired.infrastructure_machine);
    match both(client, resource, managers, now, then, "InfraMachine").await? {
        Ok((now, then)) => {
            request.current.infrastructure_machine = now;
            request.desired.infrastructure_machine = then;
        }
        Err(reason) => return Ok(Prepared::Cannot(reason)),
    }
    if let (Some(resource), Some(now), Some(then)) = (
        &resources.bootstrap_config,
        &current.bootstrap_config,
        &desired.bootstrap_config,
    ) {
        match both(client, resource, managers, now, then, "BootstrapConfig").await? {
            Ok((now, then)) => {
                request.current.bootstrap_config = Some(now);
                request.desired.bootstrap_config = Some(then);
            }
            Err(reason) => return Ok(Prepared::Cannot(reason)),
        }
    }
    Ok(Prepared::Ask(Box::new(request)))
}

/// Current and desired as they would be stored; the reason if the apiserver refuses one of them.
async fn both(
    client: &Client,
    resource: &ApiResource,
    managers: FieldManagers,
    current: &Value,
    desired: &Value,
    what: &str,
) -> Result<Result<(Value, Value), String>, Error> {
    let mut current = current.clone();
    // Labels and annotations are synced anyway: they must not make a difference.
    for key in ["labels", "annotations"] {
        current["metadata"][key] = desired["metadata"][key].clone();
    }
    let mut results = Vec::new();
    for (which, object) in [("current", &current), ("desired", desired)] {
        match run(client, resource, managers, object).await {
            Ok(stored) => results.push(for_hook(&stored)),
            Err(Error::Api {
                source: kube::Error::Api(status),
                ..
            }) if status.code == 422 || status.code == 403 => {
                return Ok(Err(format!(
                    "server side apply dry-run for {which} {what} failed: {}",
                    status.message
                )));
            }
            Err(error) => return Err(error),
        }
    }
    let desired = results.pop().unwrap_or_default();
    let current = results.pop().unwrap_or_default();
    Ok(Ok((current, desired)))
}

async fn run(
    client: &Client,
    resource: &ApiResource,
    managers: FieldManagers,
    object: &Value,
) -> Result<Value, Error> {
    let stored: DynamicObject =
        apply::apply(client, resource, managers.spec, &spec_intent(object), true).await?;
    let mut value = stored.data;
    value["apiVersion"] = resource.api_version.clone().into();
    value["kind"] = resource.kind.clone().into();
    value["metadata"] = serde_json::to_value(&stored.metadata).unwrap_or_default();
    Ok(value)
}
