//! Every read of the control plane controller: the objects of the Cluster from the caches, its resources from the
//! subscription's view, its kubeconfig Secrets from the apiserver when the watch shows that they changed.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;
use slipway_azure::{
    ArmError, Priority, ResourceId, Urgency,
    adopted::adopted,
    caches::claim,
    ownership,
    reconcile::{
        Absence, Error, Observations, Records, StepStatus,
        records::Entry,
        step::{self, read_age},
    },
    session::Session,
    takeover::Takeover,
    workload::{kubeconfig::KubeconfigKind, stored::StoredSecret},
};
use slipway_capi::{finalizer, frame::Subject, secret::Purpose, view::Cluster};
use slipway_runtime::{Context, ObjectKey, SecretFacts};

use super::plan::{Identity, Observed, id_of, resources, sign_in};
use crate::{
    access::{Access, identity_finalizer, subscription},
    api::{AzureClusterIdentity, AzureManagedCluster, AzureManagedControlPlane},
    caches::{Caches, plane_claims, pool_objects},
    planning::{Problem, Unknown},
    render::{self, ids},
};

/// Everything a reconcile works with.
pub struct ReconcileContext {
    pub observed: Observed,
    pub observations: Observations,
    /// `None`: nothing is asked of Azure in this state.
    pub session: Option<Session>,
    /// The version of Azure's API for each resource, by id in lower case.
    pub api_versions: BTreeMap<String, String>,
    pub max_age: Option<Duration>,
    /// How the steps in Azure went in this reconcile, by id in lower case.
    pub steps: BTreeMap<String, StepStatus>,
}

/// What observing needs besides the object.
pub struct Sources<'a> {
    pub access: &'a Access,
    pub caches: &'a Caches,
    pub takeover: &'a Takeover,
    pub secrets: &'a SecretFacts<StoredSecret>,
    pub pool_timeout: Duration,
}

pub async fn observe(
    subject: &Subject<AzureManagedControlPlane>,
    sources: &Sources<'_>,
    context: &Context,
) -> Result<ReconcileContext, Error> {
    let plane = subject.object.as_ref();
    let identity = Access::identity(plane, context).await?;
    let mut reconcile = ReconcileContext {
        observed: known(subject, sources, context),
        observations: Observations::default(),
        session: None,
        api_versions: BTreeMap::new(),
        max_age: read_age(&plane.metadata),
        steps: BTreeMap::new(),
    };
    reconcile.observed.identity = identity.as_ref().map(|found| Identity {
        key: ObjectKey::of(found),
        is_held: finalizer::has(&found.metadata, &identity_finalizer(plane)),
    });
    if !reconcile.observed.must_detach
        && let Err(error) = ask(&mut reconcile, identity.as_ref(), sources, context).await
    {
        reconcile.observed.problem = Some(Problem::of(&error));
    }
    let observed = &mut reconcile.observed;
    observed.had_come_up = observed.has_come_up();
    if observed.had_come_up && !subject.is_deleting() {
        read_secrets(observed, sources, context).await?;
    }
    Ok(reconcile)
}

/// What is known without asking Azure.
fn known(subject: &Subject<AzureManagedControlPlane>, sources: &Sources<'_>, context: &Context) -> Observed {
    let (plane, cluster) = (subject.object.as_ref(), subject.cluster.as_deref());
    let cluster_name = subject.cluster_name.clone().unwrap_or_default();
    let infrastructure =
        cluster.and_then(|cluster| sources.caches.infrastructure(&context.informers, cluster));
    let ranges = |pick: fn(&Cluster) -> &Vec<String>| cluster.map(pick).cloned().unwrap_or_default();
    let key = ObjectKey::new(plane.metadata.namespace.as_deref(), &cluster_name);
    Observed {
        services: ranges(|cluster| &cluster.spec.cluster_network.services.cidr_blocks),
        pods: ranges(|cluster| &cluster.spec.cluster_network.pods.cidr_blocks),
        infrastructure: infrastructure.map(|found| AzureManagedCluster::clone(&found)),
        pools: pool_objects(sources.caches, context, &key),
        records: Records::of(&plane.metadata),
        must_detach: !sources.takeover.is_free(&plane.metadata),
        pool_timeout: sources.pool_timeout,
        plane: plane.clone(),
        cluster_name,
        ..Observed::default()
    }
}

/// Reads every resource of the cluster in Azure.
async fn ask(
    reconcile: &mut ReconcileContext,
    identity: Option<&AzureClusterIdentity>,
    sources: &Sources<'_>,
    context: &Context,
) -> Result<(), Error> {
    let observed = &mut reconcile.observed;
    observed.subscription = subscription(&observed.plane)?;
    let mut session = sources
        .access
        .open_as(identity, &observed.plane, &observed.cluster_name, context)
        .await?;
    let told = observed.plane.status.as_ref();
    session.arm = session.arm.urgent(Urgency::of(
        told.and_then(|status| status.ready),
        told.and_then(|status| status.observed_generation),
        &observed.plane.metadata,
    ));
    let deleting = observed.plane.metadata.deletion_timestamp.is_some();
    for (id, api_version) in asked_for(observed)? {
        // What is to be made must not be somebody's already, nothing is to be left behind, and what existed has not
        // vanished because a list is old.
        let absence = if deleting || observed.records.get(&id).is_none_or(Entry::existed) {
            Absence::Certain
        } else {
            Absence::Listed
        };
        reconcile
            .observations
            .observe(&session.arm, &id, &api_version, absence, reconcile.max_age)
            .await;
        let key = id.to_lowercase();
        reconcile.api_versions.entry(key).or_insert(api_version);
    }
    for (id, state) in &reconcile.observations.states {
        let others = plane_claims(sources.caches, &context.informers, &observed.plane, id);
        let ownership = ownership::judge(&claim(&observed.plane, id), &others, &state.tags());
        if let Some(foreign) = ownership.foreign() {
            observed.foreign.insert(id.clone(), foreign.clone());
        }
        let unknown = Unknown::of(&reconcile.observations, id);
        observed.unknown.insert(id.clone(), unknown);
    }
    if deleting {
        let adopted = adopted(observed.plane.metadata.uid.as_deref(), context).await?;
        let states = &reconcile.observations.states;
        observed
            .foreign
            .extend(adopted.into_iter().filter(|(id, _)| states.contains_key(id)));
    }
    observed.states = reconcile.observations.states.clone();
    reconcile.session = Some(session);
    Ok(())
}

/// Every resource that is asked about, with the version of Azure's API.
fn asked_for(observed: &Observed) -> Result<Vec<(String, String)>, Error> {
    let facts = observed.facts();
    let mut all: Vec<(String, String)> = Vec::new();
    for (_, manifest) in resources(&facts) {
        all.push((id_of(&facts, &manifest), step::api_version(&manifest)?));
    }
    let cluster = json!({
        "apiVersion": render::api_version(&observed.plane),
        "kind": "ManagedCluster",
        "metadata": {"name": observed.plane.name_any()},
    });
    all.push((ids::managed_cluster(&facts), step::api_version(&cluster)?));
    let made = observed.records.made();
    all.extend(made.map(|(id, api_version)| (id.to_owned(), api_version.to_owned())));
    Ok(all)
}

async fn read_secrets(
    observed: &mut Observed,
    sources: &Sources<'_>,
    context: &Context,
) -> Result<(), Error> {
    let plane = ObjectKey::of(&observed.plane);
    let namespace = observed.plane.namespace().unwrap_or_default();
    let read = async |name: String, derive: fn(&Secret) -> StoredSecret| {
        let key = ObjectKey::namespaced(&namespace, &name);
        let found = sources.secrets.get(&key, &plane, context, derive).await;
        let found = found.map_err(Error::api(format!("reading Secret {name}")))?;
        Ok::<_, Error>(found.as_deref().cloned())
    };
    let cluster = observed.cluster_name.clone();
    let name = |kind: KubeconfigKind| kind.secret_name(&cluster);
    observed.administrator = read(name(KubeconfigKind::Administrator), StoredSecret::kubeconfig).await?;
    if sign_in(observed.cluster_state()).0 {
        observed.user = read(name(KubeconfigKind::User), StoredSecret::kubeconfig).await?;
    }
    observed.ca = read(Purpose::ClusterCa.secret_name(&cluster), StoredSecret::ca).await?;
    Ok(())
}

/// Asks who else has an AKS cluster in a resource group: by the time the group goes, ours is gone.
pub async fn list_others(reconcile: &mut ReconcileContext, group: &str) -> Result<(), Error> {
    let Some(session) = &reconcile.session else {
        return Ok(());
    };
    let cluster = ids::managed_cluster(&reconcile.observed.facts());
    let api_version = reconcile.api_versions.get(&cluster.to_lowercase());
    let path = format!("{group}/providers/Microsoft.ContainerService/managedClusters");
    let scope = ResourceId::parse(&cluster).map_err(ArmError::from)?;
    let listed = session
        .arm
        .client()
        .list(
            &scope,
            &path,
            api_version.map_or("", String::as_str),
            Priority::Change,
        )
        .await;
    let found = match listed {
        Err(ArmError::Refused { refusal, .. }) if refusal.status == 404 => Vec::new(),
        other => other?,
    };
    let others = found
        .iter()
        .filter_map(|item| item["id"].as_str())
        .filter(|id| !id.eq_ignore_ascii_case(&cluster))
        .map(str::to_owned)
        .collect();
    let others_in_groups = &mut reconcile.observed.others_in_groups;
    others_in_groups.insert(group.to_lowercase(), others);
    Ok(())
}
