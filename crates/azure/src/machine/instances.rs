//! The VMs that Azure lists in a pool's scale sets, read no more often than they are needed: one LIST for each scale set and read
//! age, and one of the scale sets where they are not known.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use slipway_runtime::ObjectKey;
use tokio::time::Instant;

use super::vm::Instance;
use crate::{
    Arm, ArmError, Priority, ResourceId,
    reconcile::{Error, ResourceState},
    workload::{
        machines::machines_key,
        nodes::{COMPUTE, is_of_pool, provider_id},
    },
};

/// How the VMs of a pool are read again while Azure and the workload cluster say different things.
const DIFFERING: Duration = Duration::from_secs(15);
/// Nothing is looked at more often.
const SOONEST: Duration = Duration::from_secs(1);

/// A pool whose VMs are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The object that stands for the pool.
    pub object: &'a ObjectKey,
    /// The pool's name in AKS.
    pub name: &'a str,
    /// The resource group of the cluster's nodes.
    pub group: &'a str,
    /// The pool as AKS shows it.
    pub state: &'a ResourceState,
    /// How old the answer may be where nothing says that it is outdated.
    pub max_age: Duration,
}

/// What Azure listed.
#[derive(Clone, Debug)]
pub struct Listing {
    pub instances: Vec<Instance>,
    /// The scale sets of the pool: what provider ids in them begin with, in lower case.
    pub sets: BTreeSet<String>,
    names: Vec<String>,
    state: Option<String>,
    at: Instant,
    /// Since when the Nodes say something else.
    differs: Option<Instant>,
}

impl Listing {
    /// For how long the listing counts.
    fn look_again(&self, max_age: Duration) -> Duration {
        self.differs.map_or(max_age, |since| {
            // A VM that never becomes a node is looked at less and less often.
            (since.elapsed() / 2).clamp(DIFFERING, max_age.max(DIFFERING))
        })
    }
}

/// The last listing of each pool. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Instances(Arc<Mutex<HashMap<ObjectKey, Listing>>>);

impl Instances {
    /// The VMs of a pool. What was listed before counts unless the pool has changed or the listing is too old; `now`: it never does.
    pub async fn of_pool(&self, arm: &Arm, question: &Question<'_>, now: bool) -> Result<Listing, Error> {
        let known = self.0.lock().get(question.object).cloned();
        let state = machines_key(question.state);
        if let Some(listing) = &known
            && !now
            && listing.state == state
            && listing.at.elapsed() < listing.look_again(question.max_age)
        {
            return Ok(listing.clone());
        }
        let at = Instant::now();
        // Scale sets are looked for again when the pool may have others.
        let names = known
            .as_ref()
            .filter(|listing| !listing.names.is_empty() && !listing.instances.is_empty())
            .map(|listing| listing.names.clone());
        let mut found = match names {
            Some(names) => list(arm, question.group, names).await,
            None => list(arm, question.group, sets_of(arm, question).await?).await,
        };
        if found.as_ref().is_err_and(is_not_found) {
            found = list(arm, question.group, sets_of(arm, question).await?).await;
        }
        let (instances, names) = found?;
        let listing = Listing {
            sets: names
                .iter()
                .map(|name| prefix(arm, question.group, name))
                .collect(),
            instances,
            names,
            state,
            at,
            differs: known.and_then(|listing| listing.differs),
        };
        self.0.lock().insert(question.object.clone(), listing.clone());
        Ok(listing)
    }

    /// Whether the Nodes of the workload cluster say the same as the last listing.
    pub fn compared(&self, object: &ObjectKey, agree: bool) {
        if let Some(listing) = self.0.lock().get_mut(object) {
            if agree {
                listing.differs = None;
            } else if listing.differs.is_none() {
                listing.differs = Some(Instant::now());
            }
        }
    }

    /// When to look at a pool's VMs again: nobody tells of those.
    pub fn look_again(&self, object: &ObjectKey, max_age: Duration) -> Duration {
        let known = self.0.lock();
        known.get(object).map_or(max_age, |listing| {
            let left = listing.look_again(max_age).saturating_sub(listing.at.elapsed());
            left.max(SOONEST)
        })
    }

    /// The pool is gone.
    pub fn forget(&self, object: &ObjectKey) {
        self.0.lock().remove(object);
    }

    /// For how many pools a listing is kept.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Azure(ArmError::Refused { refusal, .. }) if refusal.status == 404)
}

fn scale_sets(arm: &Arm, group: &str) -> String {
    let subscription = arm.subscription();
    format!(
        "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute/virtualMachineScaleSets"
    )
}

/// What provider ids of a scale set begin with.
fn prefix(arm: &Arm, group: &str, name: &str) -> String {
    provider_id(&format!("{}/{name}", scale_sets(arm, group))).to_lowercase()
}

fn scope(arm: &Arm, group: &str) -> Result<ResourceId, Error> {
    let scope = ResourceId::resource_group(arm.subscription(), group)
        .and_then(|group| group.provided("Microsoft.Compute/virtualMachineScaleSets", "all"));
    Ok(scope.map_err(ArmError::from)?)
}

async fn sets_of(arm: &Arm, question: &Question<'_>) -> Result<Vec<String>, Error> {
    let path = scale_sets(arm, question.group);
    let scope = scope(arm, question.group)?;
    let all = arm
        .client()
        .list(&scope, &path, COMPUTE, Priority::Refresh)
        .await?;
    let own = all.iter().filter(|set| is_of_pool(set, question.name));
    Ok(own
        .filter_map(|set| set["name"].as_str().map(str::to_owned))
        .collect())
}

async fn list(arm: &Arm, group: &str, names: Vec<String>) -> Result<(Vec<Instance>, Vec<String>), Error> {
    let (path, scope) = (scale_sets(arm, group), scope(arm, group)?);
    let mut instances = Vec::new();
    for name in &names {
        // With the view of the instance, which has the power state.
        let machines = format!("{path}/{name}/virtualMachines?$expand=instanceView");
        let read = |machine| instances.extend(Instance::read(&machine));
        let client = arm.client();
        client
            .list_each(&scope, &machines, COMPUTE, Priority::Refresh, read)
            .await?;
    }
    Ok((instances, names))
}
