//! The actions for a pool's machines in Kubernetes and in Azure: each is one idempotent call.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};
use slipway_capi::{
    names::{annotation, finalizer, label},
    view::Machine,
};
use slipway_runtime::{Context, ObjectKey};

use super::{
    Fleet, PoolMachine,
    fleet::{Action, HOOK},
    kind::objects,
    observe::pool_label,
};
use crate::{
    Arm,
    reconcile::{Error, StepResult, step},
};

/// AKS deletes machines by name in this version and those after it.
const DELETE_MACHINES: &str = "2025-03-01";

/// Whose machines are acted on.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a, P> {
    pub pool: &'a P,
    /// The pool's id in Azure.
    pub id: &'a str,
    pub cluster: &'a str,
    pub machine_pool: &'a str,
    pub fleet: &'a Fleet,
    pub arm: Option<&'a Arm>,
}

/// Takes one action. What AKS is asked for ends in a step of the pool, everything else in nothing to say.
pub async fn act<M: PoolMachine>(
    action: &Action,
    owner: &Owner<'_, M::Pool>,
    context: &Context,
) -> Result<Option<StepResult>, Error> {
    let namespace = owner.pool.meta().namespace.clone().unwrap_or_default();
    let machines = Machines {
        api: Api::namespaced(context.client.clone(), &namespace),
        fleet: owner.fleet,
        context,
    };
    match action {
        Action::Show { name, provider_id } => {
            show::<M>(name, provider_id, owner, context).await?;
        }
        Action::Hide { name } => {
            let key = ObjectKey::namespaced(&namespace, name);
            if let Some(object) = objects::<M>(context).get(&key) {
                let doing = format!("deleting {} {name}", M::kind(&()));
                let deleted = context.delete(object.as_ref()).await;
                deleted.map_err(Error::api(doing))?;
            }
        }
        Action::DeleteMachine { name } => {
            machines.delete(name).await?;
        }
        Action::DeleteVms { machines } => {
            let Some(arm) = owner.arm else { return Ok(None) };
            let body = json!({ "machineNames": machines });
            let asked = step::ask(arm, owner.id, "deleteMachines", DELETE_MACHINES, &body).await;
            return Ok(Some(asked));
        }
        Action::Hold { machine } => machines.annotate(machine, HOOK, Some("slipway")).await?,
        Action::LetGo { machine } => machines.annotate(machine, HOOK, None).await?,
        Action::Pause { machine } => machines.annotate(machine, annotation::PAUSED, Some("")).await?,
        Action::Drop { machine } => machines.drop(machine).await?,
    }
    Ok(None)
}

/// Makes the object that shows a VM. Core becomes its controller through the Machine that it makes of it; until then, and when that
/// is gone, it is the pool's.
async fn show<M: PoolMachine>(
    name: &str,
    provider_id: &str,
    owner: &Owner<'_, M::Pool>,
    context: &Context,
) -> Result<(), Error> {
    let pool = owner.pool.meta();
    let mut object = M::showing(name, provider_id);
    let metadata = object.meta_mut();
    metadata.namespace.clone_from(&pool.namespace);
    metadata.finalizers = Some(vec![M::FINALIZER.to_owned()]);
    let mut labels = std::collections::BTreeMap::from([
        (label::CLUSTER_NAME.to_owned(), owner.cluster.to_owned()),
        (
            label::MACHINE_POOL_NAME.to_owned(),
            pool_label(owner.machine_pool),
        ),
    ]);
    // Who looks after the pool looks after its machines.
    if let Some(filter) = pool.labels.as_ref().and_then(|all| all.get(label::WATCH_FILTER)) {
        labels.insert(label::WATCH_FILTER.to_owned(), filter.clone());
    }
    metadata.labels = Some(labels);
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: M::Pool::api_version(&()).into_owned(),
        kind: M::Pool::kind(&()).into_owned(),
        name: pool.name.clone().unwrap_or_default(),
        uid: pool.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }]);
    let doing = format!("creating {} {name}", M::kind(&()));
    context.create(&object).await.map_err(Error::api(doing))?;
    Ok(())
}

/// Core's Machines: read in a narrow view, and changed by patches.
struct Machines<'a> {
    api: Api<Machine>,
    fleet: &'a Fleet,
    context: &'a Context,
}

impl Machines<'_> {
    /// Deletes this very Machine. What is left of it has finalizers.
    async fn delete(&self, name: &str) -> Result<Option<Machine>, Error> {
        let known = self.fleet.machines.iter().find(|machine| machine.name == name);
        let parameters = DeleteParams {
            preconditions: known
                .and_then(|machine| machine.uid.clone())
                .map(|uid| Preconditions {
                    uid: Some(uid),
                    resource_version: None,
                }),
            ..DeleteParams::background()
        };
        match self.api.delete(name, &parameters).await {
            Ok(answer) => {
                let left = answer.left();
                if let Some(left) = &left {
                    self.context.writes().saw(left);
                }
                Ok(left)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(Error::api(format!("deleting Machine {name}"))(error)),
        }
    }

    async fn annotate(&self, name: &str, key: &str, value: Option<&str>) -> Result<(), Error> {
        let patch = json!({"metadata": {"annotations": {(key): value}}});
        self.patch(name, &patch, "annotating").await
    }

    async fn patch(&self, name: &str, patch: &Value, doing: &str) -> Result<(), Error> {
        let parameters = PatchParams::default();
        match self.api.patch(name, &parameters, &Patch::Merge(patch)).await {
            Ok(stored) => {
                self.context.writes().saw(&stored);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(Error::api(format!("{doing} Machine {name}"))(error)),
        }
    }

    /// Deletes a paused Machine and takes core's finalizer off it. Finalizers of others hold it as long as they want.
    async fn drop(&self, name: &str) -> Result<(), Error> {
        let Some(left) = self.delete(name).await? else {
            return Ok(());
        };
        let mut finalizers = left.finalizers().to_vec();
        finalizers.retain(|one| one != finalizer::MACHINE);
        let version = left.resource_version();
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
        self.patch(name, &patch, "letting go of").await
    }
}
