//! One look at one resource in Azure, and one step towards it: what both controllers share. A look never fails: what
//! went wrong is part of what was seen.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::Value;
use slipway_azure::{
    Arm, ArmError, Desired, Ensured, ResourceId, Tuning,
    engine::Observation,
    resource::{AsoObject, Put, Reference, Resolver, to_arm},
    tuning::READ_AGE_ANNOTATION,
};
use slipway_runtime::{Next, Outcome};

use crate::{
    error::Error,
    plan::{Part, Sight},
    records::Records,
    status::Step,
};

/// What is under way with a resource.
#[derive(Debug)]
pub enum Motion {
    /// An operation runs, or the budget is spent: nothing is asked before that is over.
    Busy {
        progress: Option<String>,
        outcome: Outcome,
    },
    /// The operation we started failed, or Azure could not be asked.
    Failed(Error),
}

/// What was seen of all resources of an object, by id in lower case.
#[derive(Debug, Default)]
pub struct Seen {
    pub sights: BTreeMap<String, Sight>,
    motions: BTreeMap<String, Motion>,
}

/// How sure absence has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// A list of the last minutes is enough.
    Listed,
    /// Asked just now: something is to be made, or left behind.
    Certain,
}

fn sight(body: Option<&Arc<Value>>) -> Sight {
    body.map_or(Sight::Absent, |body| Sight::Present(Value::clone(body)))
}

impl Seen {
    /// Looks at one resource.
    pub async fn look(
        &mut self,
        arm: &Arm,
        id: &str,
        api_version: &str,
        absence: Absence,
        max_age: Option<Duration>,
    ) {
        let key = id.to_lowercase();
        if self.sights.contains_key(&key) {
            return;
        }
        let id = match ResourceId::parse(id) {
            Ok(id) => id,
            Err(error) => {
                self.sights.insert(key.clone(), Sight::Unknown);
                self.motions
                    .insert(key, Motion::Failed(ArmError::from(error).into()));
                return;
            }
        };
        let mut observation = arm.observe(&id, api_version, max_age).await;
        if let Err(error @ ArmError::Refused { .. }) = observation {
            // The operation is over; what it left behind is still to be seen.
            self.motions.insert(key.clone(), Motion::Failed(error.into()));
            observation = arm.observe(&id, api_version, max_age).await;
        }
        let absent = |observation: &Observation| observation.outcome.is_done() && observation.body.is_none();
        if absence == Absence::Certain && observation.as_ref().is_ok_and(absent) {
            observation = arm.look(&id, api_version).await;
        }
        match observation {
            Ok(Observation {
                body,
                progress,
                outcome,
            }) => {
                let seen = if outcome.is_done() || body.is_some() {
                    sight(body.as_ref())
                } else {
                    Sight::Unknown
                };
                self.sights.insert(key.clone(), seen);
                if !outcome.is_done() {
                    self.motions
                        .entry(key)
                        .or_insert(Motion::Busy { progress, outcome });
                }
            }
            Err(error) => {
                self.sights.insert(key.clone(), Sight::Unknown);
                self.motions
                    .entry(key)
                    .or_insert_with(|| Motion::Failed(error.into()));
            }
        }
    }

    pub fn sight(&self, id: &str) -> &Sight {
        crate::plan::sight(&self.sights, id)
    }

    /// What is under way with a resource; told once, because an error is not told twice.
    pub fn take_motion(&mut self, id: &str) -> Option<Motion> {
        self.motions.remove(&id.to_lowercase())
    }
}

/// What a step came to, for the status and for the queue.
#[derive(Debug)]
pub struct Taken {
    pub step: Step,
    pub outcome: Outcome,
    pub error: Option<Error>,
    /// What was sent, and why; empty if nothing was.
    pub sent: Option<String>,
}

impl Taken {
    pub fn failed(error: Error) -> Self {
        Self {
            step: error.step(),
            outcome: Outcome::Done,
            error: Some(error),
            sent: None,
        }
    }

    pub fn done(step: Step) -> Self {
        Self {
            step,
            outcome: Outcome::Done,
            error: None,
            sent: None,
        }
    }

    pub fn waiting(step: Step, outcome: Outcome) -> Self {
        Self {
            step,
            outcome,
            error: None,
            sent: None,
        }
    }

    pub fn is_done(&self) -> bool {
        self.error.is_none() && self.outcome.is_done()
    }
}

/// The words for something under way.
fn moving(sight: &Sight, progress: Option<String>, outcome: Outcome) -> Step {
    let text = progress
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| match outcome {
            Outcome::Throttled(after) => {
                format!(
                    "Azure's request limit is reached: asking again in {} s",
                    after.as_secs()
                )
            }
            _ => sight.provisioning_state().unwrap_or("Accepted").to_owned(),
        });
    match sight.provisioning_state() {
        Some("Deleting" | "Leaving") => Step::Deleting(text),
        None | Some("Creating" | "Joining") => Step::Creating(text),
        Some(_) => Step::Updating(text),
    }
}

struct Ids<'a>(&'a str);

impl Resolver for Ids<'_> {
    fn subscription(&self) -> &str {
        self.0
    }

    /// Our manifests name resources by ARM id alone; a patch that names an object is told so.
    fn resource(&self, _reference: &Reference) -> Option<String> {
        None
    }
}

/// The request that a manifest stands for.
pub fn put(manifest: &Value, subscription: &str) -> Result<Put, Error> {
    Ok(to_arm(&AsoObject::parse(manifest)?, &Ids(subscription))?)
}

/// The version of Azure's API a manifest speaks.
pub fn api_version(manifest: &Value) -> Result<String, Error> {
    Ok(AsoObject::parse(manifest)?.mapping.api_version)
}

/// The read age an object asks for by annotation; one that cannot be read is none.
pub fn read_age(metadata: &kube::api::ObjectMeta) -> Option<Duration> {
    let text = metadata.annotations.as_ref()?.get(READ_AGE_ANNOTATION)?;
    Tuning::read_age_of(text).ok()
}

/// When to look again at an object with which all is well: who asks for fresher reads is looked at as often, since
/// nothing is read for an object that nobody looks at.
pub fn look_again(metadata: &kube::api::ObjectMeta) -> Next {
    const MOST_OFTEN: Duration = Duration::from_secs(1);
    read_age(metadata).map_or(Next::OnChange, |age| Next::After(age.max(MOST_OFTEN)))
}

/// One step towards a resource as it should be.
pub async fn ensure(
    arm: &Arm,
    id: &str,
    manifest: &Value,
    seen: &mut Seen,
    records: &mut Records,
    max_age: Option<Duration>,
) -> Taken {
    let found = seen.sight(id).clone();
    match seen.take_motion(id) {
        Some(Motion::Busy { progress, outcome }) => {
            return Taken::waiting(moving(&found, progress, outcome), outcome);
        }
        Some(Motion::Failed(error)) => return Taken::failed(error),
        None => {}
    }
    let put = match put(manifest, arm.subscription()) {
        Ok(put) => put,
        Err(error) => return Taken::failed(error),
    };
    let mut desired = Desired::new(&put, records.record(id));
    desired.max_read_age = max_age;
    let Ensured {
        outcome,
        body,
        progress,
        differences,
        record,
    } = match arm.ensure(&desired).await {
        Ok(ensured) => ensured,
        Err(error) => return Taken::failed(error.into()),
    };
    let sent = (!differences.is_empty() || (found.is_absent() && record.is_some())).then(|| {
        differences
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    });
    if let Some(record) = record {
        records.keep(id, record);
    }
    let now = body.as_ref().map_or(found, |body| sight(Some(body)));
    let step = if outcome.is_done() {
        Step::Done
    } else {
        moving(&now, progress, outcome)
    };
    seen.sights.insert(id.to_lowercase(), now);
    Taken {
        step,
        outcome,
        error: None,
        sent,
    }
}

/// One step towards a resource being gone.
pub async fn delete(arm: &Arm, id: &str, api_version: &str, seen: &mut Seen, records: &mut Records) -> Taken {
    if let Some(Motion::Busy { progress, outcome }) = seen.take_motion(id) {
        let text = progress.unwrap_or_default();
        return Taken::waiting(Step::Deleting(text), outcome);
    }
    let parsed = match ResourceId::parse(id) {
        Ok(parsed) => parsed,
        Err(error) => return Taken::failed(ArmError::from(error).into()),
    };
    match arm.delete(&parsed, api_version).await {
        Ok(ensured) if ensured.outcome.is_done() => {
            records.forget(id);
            seen.sights.insert(id.to_lowercase(), Sight::Absent);
            Taken::done(Step::Deleted)
        }
        Ok(ensured) => Taken::waiting(
            Step::Deleting(ensured.progress.unwrap_or_default()),
            ensured.outcome,
        ),
        Err(error) => Taken::failed(error.into()),
    }
}

/// The part a resource of ours is, by its type.
pub fn part_of(id: &str) -> Option<Part> {
    let id = ResourceId::parse(id).ok()?;
    Some(match id.resource_type().to_ascii_lowercase().as_str() {
        "microsoft.resources/resourcegroups" => Part::ResourceGroup,
        "microsoft.network/virtualnetworks" => Part::VirtualNetwork,
        "microsoft.network/virtualnetworks/subnets" => Part::Subnet,
        "microsoft.network/privateendpoints" => Part::PrivateEndpoint,
        "microsoft.containerservice/managedclusters" => Part::ManagedCluster,
        "microsoft.containerservice/managedclusters/agentpools" => Part::AgentPool,
        "microsoft.containerservice/fleets/members" => Part::FleetMember,
        "microsoft.kubernetesconfiguration/extensions" => Part::Extension,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_told_by_its_id() {
        let group = "/subscriptions/s/resourceGroups/g";
        let cluster = format!("{group}/providers/Microsoft.ContainerService/managedClusters/c");
        for (id, part) in [
            (group.to_owned(), Some(Part::ResourceGroup)),
            (
                format!("{group}/providers/Microsoft.Network/virtualNetworks/v"),
                Some(Part::VirtualNetwork),
            ),
            (
                format!("{group}/providers/Microsoft.Network/virtualNetworks/v/subnets/n").to_lowercase(),
                Some(Part::Subnet),
            ),
            (
                format!("{group}/providers/Microsoft.Network/privateEndpoints/e"),
                Some(Part::PrivateEndpoint),
            ),
            (cluster.clone(), Some(Part::ManagedCluster)),
            (format!("{cluster}/agentPools/p"), Some(Part::AgentPool)),
            (
                format!("{group}/providers/Microsoft.ContainerService/fleets/f/members/m"),
                Some(Part::FleetMember),
            ),
            (
                format!("{cluster}/providers/Microsoft.KubernetesConfiguration/extensions/x"),
                Some(Part::Extension),
            ),
            (
                format!("{group}/providers/Microsoft.Storage/storageAccounts/a"),
                None,
            ),
            ("nonsense".to_owned(), None),
        ] {
            assert_eq!(part_of(&id), part, "{id}");
        }
    }
}
