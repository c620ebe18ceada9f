//! Whether an Azure Service Operator serves a kind: its definitions, and the lease that it renews while it runs. Asked for now and
//! then: a lease is renewed every two seconds, and definitions hardly ever change.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::Lease,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ApiResource, GroupVersionKind, ListParams},
};
use parking_lot::Mutex;
use slipway_azure::reconcile::{Error, planning::later};
use slipway_runtime::{Context, ObjectKey};
use tokio::time::Instant;

use super::choice::Standing;
use crate::{
    api::ResourceName,
    mutators::{CONTAINER_SERVICE, MANAGED_CLUSTER},
};

/// The lease that every Azure Service Operator has.
const LEASE: &str = "controllers-leader-election-azinfra-generated";
/// A kind that is installed, or taken away, is noticed within this time, which is that of a resync.
const LOOK_FOR_KINDS: Duration = Duration::from_mins(10);
/// The lease is looked at no more often.
const LOOK_AT_LEASE: Duration = Duration::from_secs(30);
/// An operator that misses a few renewals, or whose clock is behind, runs all the same.
const GRACE: Duration = Duration::from_mins(1);

/// A kind as the apiserver has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    plural: String,
    served: Vec<String>,
    stored: String,
}

impl Definition {
    pub fn serves(&self, version: &str) -> bool {
        self.served.iter().any(|served| served == version)
    }

    /// Where its objects are, in this version if it is served.
    pub fn resource(&self, group: &str, kind: &str, version: &str) -> ApiResource {
        let version = if self.serves(version) {
            version
        } else {
            &self.stored
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), &self.plural)
    }
}

/// What the lease says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    Never,
    Last(Timestamp, Duration),
}

#[derive(Debug, Default)]
struct Known {
    kinds: HashMap<(String, String), (Instant, Option<Definition>)>,
    lease: Option<(Instant, Renewal)>,
    /// The version of each of the operator's objects at which Azure was last looked at, by who looked.
    seen: HashMap<ObjectKey, BTreeMap<String, String>>,
    /// Holders whose objects were listed once.
    listed: HashSet<ObjectKey>,
}

/// What this process knows of the operator. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Operators(Arc<Mutex<Known>>);

impl Operators {
    /// Whether any operator is installed: then the kind of AKS clusters is there.
    pub async fn is_installed(&self, context: &Context) -> Result<bool, Error> {
        let found = self.look_up(CONTAINER_SERVICE, MANAGED_CLUSTER, context).await?;
        Ok(found.is_some())
    }

    /// The definition of a kind, if it is installed.
    pub async fn definition(
        &self,
        group: &str,
        kind: &str,
        context: &Context,
    ) -> Result<Option<Definition>, Error> {
        if !self.is_installed(context).await? {
            return Ok(None);
        }
        self.look_up(group, kind, context).await
    }

    async fn look_up(&self, group: &str, kind: &str, context: &Context) -> Result<Option<Definition>, Error> {
        let key = (group.to_owned(), kind.to_owned());
        if let Some((at, known)) = self.0.lock().kinds.get(&key)
            && at.elapsed() < LOOK_FOR_KINDS
        {
            return Ok(known.clone());
        }
        let plural = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind)).plural;
        let name = format!("{plural}.{group}");
        let found = Api::<CustomResourceDefinition>::all(context.client.clone())
            .get_opt(&name)
            .await
            .map_err(Error::api(format!("reading CustomResourceDefinition {name}")))?;
        let found = found.filter(|found| found.metadata.deletion_timestamp.is_none());
        let definition = found.map(|found| Definition {
            plural: found.spec.names.plural,
            stored: found
                .spec
                .versions
                .iter()
                .find(|version| version.storage)
                .map(|version| version.name.clone())
                .unwrap_or_default(),
            served: found
                .spec
                .versions
                .into_iter()
                .filter(|version| version.served)
                .map(|version| version.name)
                .collect(),
        });
        self.0
            .lock()
            .kinds
            .insert(key, (Instant::now(), definition.clone()));
        Ok(definition)
    }

    /// Whether an operator runs.
    pub async fn standing(&self, context: &Context) -> Result<Standing, Error> {
        let known = self.0.lock().lease;
        let renewal = match known {
            Some((at, renewal)) if at.elapsed() < LOOK_AT_LEASE => renewal,
            _ => {
                let renewal = look_at_lease(context).await?;
                self.0.lock().lease = Some((Instant::now(), renewal));
                renewal
            }
        };
        Ok(standing(renewal, context.clock.now()))
    }

    /// Whether the operator has touched its object since Azure was last looked at for it; from now on it has been.
    pub fn is_news(&self, holder: &ObjectKey, id: &str, version: &str) -> bool {
        let mut known = self.0.lock();
        let seen = known.seen.entry(holder.clone()).or_default();
        seen.insert(id.to_owned(), version.to_owned()).as_deref() != Some(version)
    }

    /// Whether the objects of a holder are to be listed: once in a process.
    pub fn is_first_look(&self, holder: &ObjectKey) -> bool {
        !self.0.lock().listed.contains(holder)
    }

    pub fn looked(&self, holder: &ObjectKey) {
        self.0.lock().listed.insert(holder.clone());
    }

    /// Where the operator's object for a resource is, as far as that was looked up.
    pub fn known(&self, name: &ResourceName) -> Option<ApiResource> {
        let known = self.0.lock();
        let (_, definition) = known.kinds.get(&(name.group.clone(), name.kind.clone()))?;
        let definition = definition.as_ref()?;
        Some(definition.resource(&name.group, &name.kind, &name.version))
    }

    /// The holder is gone.
    pub fn forget(&self, holder: &ObjectKey) {
        let mut known = self.0.lock();
        known.seen.remove(holder);
        known.listed.remove(holder);
    }

    /// How many entries are held for holders.
    pub fn count(&self) -> usize {
        let known = self.0.lock();
        known.seen.values().map(BTreeMap::len).sum::<usize>() + known.listed.len()
    }
}

/// The latest renewal of any operator's lease, wherever it is installed.
async fn look_at_lease(context: &Context) -> Result<Renewal, Error> {
    let leases: Api<Lease> = Api::all(context.client.clone());
    let named = ListParams::default().fields(&format!("metadata.name={LEASE}"));
    let listed = leases.list(&named).await;
    let listed = listed.map_err(Error::api("listing the leases of Azure Service Operator"))?;
    let renewals = listed.items.into_iter().filter_map(|lease| {
        let spec = lease.spec?;
        // A lease that was given back has no holder.
        spec.holder_identity.filter(|holder| !holder.is_empty())?;
        let lasts = u64::try_from(spec.lease_duration_seconds.unwrap_or(15)).unwrap_or(15);
        Some((spec.renew_time?.0, Duration::from_secs(lasts)))
    });
    let latest = renewals.max_by_key(|(at, _)| *at);
    Ok(latest.map_or(Renewal::Never, |(at, lasts)| Renewal::Last(at, lasts)))
}

fn standing(renewal: Renewal, now: Timestamp) -> Standing {
    match renewal {
        Renewal::Never => Standing::NoLease,
        Renewal::Last(at, lasts) if later(at, lasts + GRACE) < now => Standing::Stopped(at),
        Renewal::Last(..) => Standing::Running,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_not_renewed_is_nobodys() {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let at = |seconds: i64| {
            Renewal::Last(
                now - jiff::SignedDuration::from_secs(seconds),
                Duration::from_secs(15),
            )
        };
        assert_eq!(standing(Renewal::Never, now), Standing::NoLease);
        assert_eq!(standing(at(2), now), Standing::Running);
        assert_eq!(standing(at(75), now), Standing::Running);
        assert_eq!(standing(at(-30), now), Standing::Running, "its clock is ahead");
        assert!(matches!(standing(at(76), now), Standing::Stopped(_)));
    }

    #[test]
    fn objects_are_asked_for_in_the_version_of_the_manifest_where_it_is_served() {
        let definition = Definition {
            plural: "managedclusters".to_owned(),
            served: vec!["v1api20240901".to_owned()],
            stored: "v1api20240901storage".to_owned(),
        };
        let version = |asked: &str| definition.resource("g", "ManagedCluster", asked).version;
        assert_eq!(version("v1api20240901"), "v1api20240901");
        assert_eq!(version("v1api20990101"), "v1api20240901storage");
    }
}
