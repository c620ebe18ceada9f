//! What objects of the other API for AKS clusters claim: a classic object and one of inline resources may name the same resource, and one
//! of them writes it. Each provider watches its own kinds alone. Those of the other are asked for where it matters: before a resource
//! is written for the first time, where a mark is nobody's, and before inline resources are deleted.

use std::{sync::Arc, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use parking_lot::Mutex;
use slipway_runtime::Context;
use tokio::time::Instant;

use crate::{
    ownership::Claim,
    reconcile::{Error, Records, records::ANNOTATION},
};

const GROUP: &str = "infrastructure.cluster.x-k8s.io";
/// As old as an answer may be where nothing was written yet: what is asked for at the same moment has its mark in Azure.
const FRESH: Duration = Duration::from_secs(5);
/// As old as an answer may be otherwise.
const RECENT: Duration = Duration::from_secs(30);

/// Kind and plural of the objects of an API that claim resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RivalKinds {
    Classic,
    Inline,
}

impl RivalKinds {
    pub fn all(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Classic => &[
                ("AzureManagedControlPlane", "azuremanagedcontrolplanes"),
                ("AzureManagedMachinePool", "azuremanagedmachinepools"),
            ],
            Self::Inline => &[
                ("AzureASOManagedCluster", "azureasomanagedclusters"),
                ("AzureASOManagedControlPlane", "azureasomanagedcontrolplanes"),
                ("AzureASOManagedMachinePool", "azureasomanagedmachinepools"),
            ],
        }
    }

    /// Where the objects of a kind are.
    pub(crate) fn resource(kind: &str, plural: &str) -> ApiResource {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1beta1", kind), plural)
    }
}

/// Why the others are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// Something is about to be written for the first time, or deleted.
    First,
    /// A mark is nobody's.
    Puzzled,
}

/// An object of the other API that does something in Azure.
#[derive(Clone, Debug)]
pub struct Rival {
    /// Kind, namespace and name, as a user reads it.
    object: String,
    metadata: ObjectMeta,
}

impl Rival {
    /// Its claim to a resource, if its record has it.
    pub fn claim(&self, id: &str) -> Option<Claim> {
        let id = id.to_lowercase();
        let text = self.metadata.annotations.as_ref()?.get(ANNOTATION)?;
        // A long record is compressed. Reading others takes longer than looking.
        if text.starts_with('{') && !text.contains(&id) {
            return None;
        }
        let records = Records::of(&self.metadata);
        records.get(&id)?;
        Some(records.claim(&id, self.object.clone(), &self.metadata))
    }
}

#[derive(Debug)]
struct Answer {
    at: Instant,
    kinds: RivalKinds,
    rivals: Arc<Vec<Rival>>,
}

/// What was answered last. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Rivals(Arc<Mutex<Option<Answer>>>);

impl Rivals {
    /// The objects of these kinds that do something in Azure: those without a finalizer do nothing.
    pub async fn of(
        &self,
        kinds: RivalKinds,
        occasion: Occasion,
        context: &Context,
    ) -> Result<Arc<Vec<Rival>>, Error> {
        let age = match occasion {
            Occasion::First => FRESH,
            Occasion::Puzzled => RECENT,
        };
        if let Some(answer) = &*self.0.lock()
            && answer.kinds == kinds
            && answer.at.elapsed() < age
        {
            return Ok(Arc::clone(&answer.rivals));
        }
        let at = Instant::now();
        let mut found = Vec::new();
        for (kind, plural) in kinds.all() {
            let resource = RivalKinds::resource(kind, plural);
            let api: Api<DynamicObject> = match &context.settings.namespace {
                Some(namespace) => Api::namespaced_with(context.client.clone(), namespace, &resource),
                None => Api::all_with(context.client.clone(), &resource),
            };
            let list = match api.list_metadata(&ListParams::default()).await {
                Ok(list) => list.items,
                // The kind is not installed.
                Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
                Err(error) => return Err(Error::api(format!("listing {kind}s"))(error)),
            };
            let acting = list.into_iter().map(|one| one.metadata).filter(|metadata| {
                metadata
                    .finalizers
                    .as_ref()
                    .is_some_and(|finalizers| !finalizers.is_empty())
            });
            found.extend(acting.map(|metadata| Rival {
                object: format!(
                    "{kind} {}/{}",
                    metadata.namespace.as_deref().unwrap_or_default(),
                    metadata.name.as_deref().unwrap_or_default()
                ),
                metadata,
            }));
        }
        let rivals = Arc::new(found);
        *self.0.lock() = Some(Answer {
            at,
            kinds,
            rivals: Arc::clone(&rivals),
        });
        Ok(rivals)
    }
}

/// The claims of all of them to a resource.
pub fn claims_of(rivals: &[Rival], id: &str) -> Vec<Claim> {
    rivals.iter().filter_map(|rival| rival.claim(id)).collect()
}
