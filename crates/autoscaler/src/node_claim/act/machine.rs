//! The Machine of a claim on an infrastructure machine template: one claim, one Machine, of the claim's name. Like core it makes the
//! bootstrap configuration and the infrastructure first and the Machine last; whatever is there already is left as it is, so a crash
//! between any two of them is made good by doing it again.

use kube::{
    Api, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};
use slipway_capi::{
    names, owner, reference,
    template::{self, NewObject},
    view::{Cluster, Machine, ObjectReference},
};
use slipway_runtime::Context;

use crate::{
    Error,
    api::{ClusterAPINodeClass, NodeClaim, names::annotation, names::label},
    instances::Reference,
    node_claim::observe::{Observed, Part},
};

/// Makes what is missing of the Machine.
pub(super) async fn make(object: &Reference, observed: &Observed, context: &Context) -> Result<(), Error> {
    let claim = &observed.claim;
    let refused = |why: &str| Error::Template {
        object: object.to_string(),
        why: why.to_owned(),
    };
    let class = observed
        .class
        .as_deref()
        .ok_or_else(|| refused("its ClusterAPINodeClass is gone"))?;
    let from = class
        .spec
        .machine_template
        .as_ref()
        .ok_or_else(|| refused("its ClusterAPINodeClass has no machineTemplate"))?;
    let cluster_name = class
        .spec
        .cluster_name
        .as_deref()
        .ok_or_else(|| refused("its ClusterAPINodeClass names no Cluster"))?;
    let clusters: Api<Cluster> = Api::namespaced(context.client.clone(), &object.namespace);
    let cluster = clusters
        .get_opt(cluster_name)
        .await
        .map_err(Error::api(format!("reading Cluster {cluster_name}")))?
        .ok_or_else(|| refused("its Cluster does not exist"))?;
    let new = NewObject {
        name: claim.name_any(),
        namespace: object.namespace.clone(),
        cluster_name: cluster_name.to_owned(),
        // Until the Machine becomes their owner they are the Cluster's.
        owner: owner::controller_reference(&cluster).map(|mut owner| {
            owner.controller = None;
            owner.block_owner_deletion = None;
            owner
        }),
        labels: [(label::CLAIM.to_owned(), claim.uid().unwrap_or_default())].into(),
        annotations: [(annotation::SCALABLE_RESOURCE.to_owned(), object.to_string())].into(),
    };
    let (kind, group) = object.kind.template().unwrap_or_default();
    let infrastructure_template = ObjectReference {
        api_group: group.to_owned(),
        kind: kind.to_owned(),
        name: object.name.clone(),
    };
    let bootstrap = part(&from.bootstrap_ref, &new, context).await?;
    let infrastructure = part(&infrastructure_template, &new, context).await?;
    let machine = machine(claim, class, &new, &from.version, (&bootstrap, &infrastructure));
    let resource = ApiResource::erase::<Machine>(&());
    create(&resource, &machine, context).await
}

/// Clones a template, if that was not done before; answers with a reference to the clone.
async fn part(
    template: &ObjectReference,
    new: &NewObject,
    context: &Context,
) -> Result<ObjectReference, Error> {
    let found = reference::get(&context.client, &new.namespace, template).await?;
    let found = found.ok_or_else(|| Error::Template {
        object: format!("{} {}/{}", template.kind, new.namespace, template.name),
        why: "it does not exist".to_owned(),
    })?;
    let mut value = serde_json::to_value(&found).unwrap_or_default();
    let (resource, _) = reference::resolve(&context.client, template).await?;
    value["apiVersion"] = json!(resource.api_version);
    value["kind"] = json!(resource.kind);
    let clone = template::clone(&value, new)?;
    let text = |field: &str| clone[field].as_str().unwrap_or_default().to_owned();
    let kind = text("kind");
    let resource = resource_of(&text("apiVersion"), &kind);
    create(&resource, &clone, context).await?;
    Ok(ObjectReference {
        api_group: template.api_group.clone(),
        kind,
        name: new.name.clone(),
    })
}

fn resource_of(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let gvk = GroupVersionKind::gvk(group, version, kind);
    ApiResource::from_gvk_with_plural(&gvk, &names::plural(&kind.to_lowercase()))
}

fn machine(
    claim: &NodeClaim,
    class: &ClusterAPINodeClass,
    new: &NewObject,
    version: &str,
    (bootstrap, infrastructure): (&ObjectReference, &ObjectReference),
) -> Value {
    let mut labels = new.labels.clone();
    labels.insert(names::label::CLUSTER_NAME.to_owned(), new.cluster_name.clone());
    let mut annotations = new.annotations.clone();
    annotations.insert(
        format!("{}/nodeclass", crate::api::names::NODE_CLASS_GROUP),
        class.name_any(),
    );
    json!({
        "apiVersion": Machine::api_version(&()),
        "kind": Machine::kind(&()),
        "metadata": {"name": claim.name_any(), "namespace": new.namespace, "labels": labels, "annotations": annotations},
        "spec": {
            "clusterName": new.cluster_name,
            "version": version,
            "bootstrap": {"configRef": bootstrap},
            "infrastructureRef": infrastructure,
        },
    })
}

/// One that is there already is the one that was made before: nobody else has the claim's name.
async fn create(resource: &ApiResource, object: &Value, context: &Context) -> Result<(), Error> {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    let doing = format!("creating {} {namespace}/{name}", resource.kind);
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, resource);
    let object: DynamicObject = serde_json::from_value(object.clone())
        .map_err(|error| Error::api(doing.clone())(kube::Error::SerdeError(error)))?;
    match api.create(&PostParams::default(), &object).await {
        Ok(written) => {
            context.writes().saw_dynamic(&written, resource, None);
            Ok(())
        }
        // Not every 409: a quota that changed meanwhile answers with one too, and then nothing was made.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(Error::api(doing)(error)),
    }
}

/// Deletes the Machine: its node is drained, so Cluster API need not do it again.
pub(super) async fn delete(machine: &Machine, context: &Context) -> Result<(), Error> {
    let name = machine.name_any();
    let metadata = json!({"resourceVersion": machine.resource_version(), "annotations": {
        names::annotation::EXCLUDE_NODE_DRAINING: "karpenter",
        names::annotation::EXCLUDE_WAIT_FOR_VOLUME_DETACH: "karpenter",
    }});
    let marked = context
        .patch_dynamic(machine, &(), &json!({ "metadata": metadata }))
        .await
        .map_err(Error::api(format!("writing to Machine {name}")))?;
    context
        .delete_dynamic(&marked, &())
        .await
        .map_err(Error::api(format!("deleting Machine {name}")))
}

/// Deletes what was made for a Machine that never came.
pub(super) async fn delete_parts(parts: &[Part], context: &Context) -> Result<(), Error> {
    for part in parts {
        let doing = format!("deleting {} {}", part.resource.kind, part.object.name_any());
        context
            .delete_dynamic(&part.object, &part.resource)
            .await
            .map_err(Error::api(doing))?;
    }
    Ok(())
}
