//! The actions of a ClusterUpgrade: each is one idempotent write, or a template and the reference to it. The only place that writes.

use kube::{ResourceExt, api::DynamicObject};
use serde_json::{Value, json};
use slipway_runtime::{Context, Outcome};
use slipway_slots::Digest;

use super::{
    observe::{Observed, image_variable, of_core, template_of},
    plan::Action,
};
use crate::{
    api::{EdgeMachineTemplate, Image},
    error::Error,
};

/// The template that somebody wrote and this one was made from.
pub const MADE_FROM: &str = "edge.slipway.dev/made-from";
/// How long the name of a template may be that more is appended to.
const LONGEST_NAME: usize = 200;

pub async fn act(action: &Action, observed: &Observed, context: &Context) -> Result<Outcome, Error> {
    match action {
        Action::WriteTopology { version, image } => write_topology(version, image, observed, context).await,
        Action::WriteControlPlane { version, image } => {
            write_control_plane(version, image, observed, context).await
        }
        Action::WriteDeployment { name, version, image } => {
            write_deployment(name, version, image, observed, context).await
        }
    }
}

/// Variables are a list, which is written whole: over the version that was read.
async fn write_topology(
    version: &str,
    image: &Image,
    observed: &Observed,
    context: &Context,
) -> Result<Outcome, Error> {
    let Some(cluster) = &observed.topology else {
        return Ok(Outcome::Done);
    };
    let name = image_variable(&observed.facts.spec);
    let mut variables = cluster.data["spec"]["topology"]["variables"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    match variables.iter_mut().find(|one| one["name"] == name) {
        Some(variable) => variable["value"] = json!(image),
        None => variables.push(json!({"name": name, "value": image})),
    }
    let patch = json!({
        "metadata": {"resourceVersion": cluster.metadata.resource_version},
        "spec": {"topology": {"version": version, "variables": variables}},
    });
    let doing = format!("writing the topology of Cluster {}", cluster.name_any());
    context
        .patch_dynamic(cluster, &of_core("Cluster"), &patch)
        .await
        .map_err(Error::api(doing))?;
    Ok(Outcome::Done)
}

async fn write_control_plane(
    version: &str,
    image: &Image,
    observed: &Observed,
    context: &Context,
) -> Result<Outcome, Error> {
    let Some((control_plane, resource)) = &observed.control_plane else {
        return Ok(Outcome::Done);
    };
    let mut patch = json!({"spec": {"version": version}});
    if let Some((pointer, template)) = template_of(&control_plane.data) {
        let made = ensure_template(template, image, observed, context).await?;
        put(&mut patch, &format!("{pointer}/name"), Value::from(made));
    }
    let doing = format!("writing {} {}", resource.kind, control_plane.name_any());
    context
        .patch_dynamic(control_plane, resource, &patch)
        .await
        .map_err(Error::api(doing))?;
    Ok(Outcome::Done)
}

async fn write_deployment(
    name: &str,
    version: &str,
    image: &Image,
    observed: &Observed,
    context: &Context,
) -> Result<Outcome, Error> {
    let found = observed
        .deployments
        .iter()
        .find(|one| one.metadata.name.as_deref() == Some(name));
    let Some(deployment) = found else {
        return Ok(Outcome::Done);
    };
    let template = &deployment.spec.template.spec.infrastructure_ref.name;
    let made = ensure_template(template, image, observed, context).await?;
    let patch =
        json!({"spec": {"template": {"spec": {"version": version, "infrastructureRef": {"name": made}}}}});
    let resource = of_core("MachineDeployment");
    let mut written = DynamicObject::new(name, &resource);
    written.metadata = deployment.metadata.clone();
    let doing = format!("writing MachineDeployment {name}");
    context
        .patch_dynamic(&written, &resource, &patch)
        .await
        .map_err(Error::api(doing))?;
    Ok(Outcome::Done)
}

fn put(object: &mut Value, pointer: &str, value: Value) {
    let slot = pointer
        .split('/')
        .skip(1)
        .fold(object, |slot, key| &mut slot[key]);
    *slot = value;
}

/// A template like the named one, with the image, and its name. Templates never change, so its name follows from what it says.
async fn ensure_template(
    name: &str,
    image: &Image,
    observed: &Observed,
    context: &Context,
) -> Result<String, Error> {
    let Some(current) = observed.templates.get(name) else {
        return Err(Error::NoTemplate {
            name: name.to_owned(),
        });
    };
    let made = with_image(current, image);
    let name = made.name_any();
    if observed.templates.contains_key(&name) {
        return Ok(name);
    }
    match context.create(&made).await {
        Ok(_) => Ok(name),
        // An earlier try made it.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(name),
        Err(error) => Err(Error::api(format!("creating EdgeMachineTemplate {name}"))(error)),
    }
}

pub fn with_image(current: &EdgeMachineTemplate, image: &Image) -> EdgeMachineTemplate {
    let mut spec = current.spec.clone();
    spec.template.spec.image = Some(image.clone());
    let origin = current
        .annotations()
        .get(MADE_FROM)
        .cloned()
        .unwrap_or_else(|| current.name_any());
    let said = serde_json::to_string(&spec).unwrap_or_default();
    let base: String = origin.chars().take(LONGEST_NAME).collect();
    let own = Digest::of(said.as_bytes()).short();
    let name = format!(
        "{}-{}",
        base.trim_end_matches(['-', '.']),
        &own[..10.min(own.len())]
    );
    let mut made = EdgeMachineTemplate::new(&name, spec);
    made.metadata.namespace = current.namespace();
    made.metadata.labels.clone_from(&current.metadata.labels);
    made.metadata.annotations = Some([(MADE_FROM.to_owned(), origin)].into());
    // Core makes the Cluster its owner when a MachineDeployment or control plane refers to it.
    made
}
