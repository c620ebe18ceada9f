//! The fleet that is looked at: K3s clusters on edge hosts as they stand in an API server, with nobody behind them. Each has a control
//! plane, a MachineDeployment and three Machines with their configurations and infrastructure.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slipway_testbed::{Cluster, Manifest, install};
use tokio::process::Command;

pub const NAMESPACE: &str = "fleet";
const CORE: &str = "cluster.x-k8s.io/v1beta2";
const CONTROL_PLANE: &str = "controlplane.cluster.x-k8s.io/v1beta2";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io/v1beta2";
const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io/v1alpha1";
const VERSION: &str = "v1.34.2+k3s1";
const MACHINES: usize = 3;
/// Objects of one cluster.
pub const OBJECTS: usize = 5 + MACHINES * 3;
/// Clusters that are made at a time.
const AT_A_TIME: usize = 16;

/// The kinds, and nobody behind them.
pub async fn install(cluster: &Cluster, slipway: &Path) -> Result<()> {
    let mut all = cluster.parts().manifest(Manifest::ClusterApi)?;
    let rendered = Command::new(slipway)
        .args(["manifests", "--crds"])
        .output()
        .await?;
    ensure!(
        rendered.status.success(),
        "{}",
        String::from_utf8_lossy(&rendered.stderr)
    );
    all.extend(install::parse(std::str::from_utf8(&rendered.stdout)?)?);
    all.retain(|object| object["kind"] == "CustomResourceDefinition");
    for definition in &mut all {
        definition["spec"]["conversion"] = json!({"strategy": "None"});
    }
    install::install(&cluster.client(), &all).await?;
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    Ok(())
}

pub fn name(number: usize) -> String {
    format!("store-{number:04}")
}

pub async fn create(client: &Client, clusters: usize) -> Result<()> {
    stream::iter((0..clusters).map(Ok))
        .try_for_each_concurrent(AT_A_TIME, |number| one(client, number))
        .await
}

pub fn api(client: &Client, api_version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), NAMESPACE, &resource)
}

pub fn clusters(client: &Client) -> Api<DynamicObject> {
    api(client, CORE, "Cluster")
}

/// A condition as it was before the measurement began.
pub fn condition(name: &str, is_well: bool, reason: &str, message: &str) -> Value {
    let status = if is_well { "True" } else { "False" };
    json!({"type": name, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

async fn put(
    client: &Client,
    mut object: Value,
    of: &str,
    owner: Option<&Value>,
    status: Value,
) -> Result<Value> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind, name) = (
        text(&object["apiVersion"]),
        text(&object["kind"]),
        text(&object["metadata"]["name"]),
    );
    object["metadata"]["labels"] = json!({"cluster.x-k8s.io/cluster-name": of});
    if let Some(owner) = owner {
        object["metadata"]["ownerReferences"] = json!([owner]);
    }
    let api = api(client, &version, &kind);
    let made = api
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await
        .with_context(|| format!("creating {kind} {name}"))?;
    api.patch_status(
        &name,
        &PatchParams::default(),
        &Patch::Merge(json!({ "status": status })),
    )
    .await
    .with_context(|| format!("writing the status of {kind} {name}"))?;
    Ok(
        json!({"apiVersion": version, "kind": kind, "name": name, "uid": made.metadata.uid, "controller": true}),
    )
}

async fn one(client: &Client, number: usize) -> Result<()> {
    let name = name(number);
    let object = |version: &str, kind: &str, called: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": called, "namespace": NAMESPACE}, "spec": spec});
    let refers = |version: &str, kind: &str, called: &str| {
        let group = version.split('/').next().unwrap_or_default();
        json!({"apiGroup": group, "kind": kind, "name": called})
    };
    let ready = || json!({"conditions": [condition("Ready", true, "Ready", "")]});
    let replicas = json!({"replicas": MACHINES, "readyReplicas": MACHINES, "availableReplicas": MACHINES, "upToDateReplicas": MACHINES});
    let counted = |conditions: Value| {
        let mut status = replicas.clone();
        status["conditions"] = conditions;
        status
    };
    let spec = json!({
        "controlPlaneEndpoint": {"host": "192.0.2.1", "port": 6443},
        "infrastructureRef": refers(INFRASTRUCTURE, "EdgeCluster", &name),
        "controlPlaneRef": refers(CONTROL_PLANE, "KThreesControlPlane", &name),
    });
    // One in a hundred wants somebody.
    let available = match number % 100 {
        0 => condition(
            "Available",
            false,
            "NotAvailable",
            "* WorkersAvailable: 2 of 3 machines",
        ),
        _ => condition("Available", true, "Available", ""),
    };
    let status = json!({"phase": "Provisioned", "conditions": [available]});
    let cluster = put(client, object(CORE, "Cluster", &name, spec), &name, None, status).await?;
    let spec = json!({"controlPlaneEndpoint": {"host": "192.0.2.1", "port": 6443}});
    put(
        client,
        object(INFRASTRUCTURE, "EdgeCluster", &name, spec),
        &name,
        Some(&cluster),
        ready(),
    )
    .await?;
    let template = refers(INFRASTRUCTURE, "EdgeMachineTemplate", "stores");
    let spec = json!({"replicas": 1, "version": VERSION, "machineTemplate": {"infrastructureRef": {
        "apiVersion": INFRASTRUCTURE, "kind": template["kind"], "name": template["name"]}}});
    let mut status = json!({"replicas": 1, "readyReplicas": 1, "version": VERSION});
    status["conditions"] = json!([
        condition("Ready", true, "Ready", ""),
        condition("Available", true, "Available", "")
    ]);
    put(
        client,
        object(CONTROL_PLANE, "KThreesControlPlane", &name, spec),
        &name,
        Some(&cluster),
        status,
    )
    .await?;
    let machine = json!({"clusterName": name, "version": VERSION, "bootstrap": {"configRef": refers(BOOTSTRAP, "KThreesConfigTemplate", "stores")},
        "infrastructureRef": template});
    let selector = json!({"matchLabels": {"store": name}});
    let spec = json!({"clusterName": name, "replicas": MACHINES, "selector": selector,
        "template": {"metadata": {"labels": {"store": name}}, "spec": machine}});
    let status = counted(json!([condition("Available", true, "Available", "")]));
    let deployment = put(
        client,
        object(CORE, "MachineDeployment", &name, spec.clone()),
        &name,
        Some(&cluster),
        status.clone(),
    )
    .await?;
    let set = put(
        client,
        object(CORE, "MachineSet", &name, spec),
        &name,
        Some(&deployment),
        status,
    )
    .await?;
    for machine in 0..MACHINES {
        let called = format!("{name}-{machine}");
        let spec = json!({"clusterName": name, "version": VERSION,
            "bootstrap": {"configRef": refers(BOOTSTRAP, "KThreesConfig", &called)},
            "infrastructureRef": refers(INFRASTRUCTURE, "EdgeMachine", &called)});
        let status = json!({"phase": "Running", "nodeRef": {"name": called}, "conditions": [
            condition("Available", true, "Available", ""), condition("Ready", true, "Ready", ""), condition("UpToDate", true, "UpToDate", "")]});
        let owner = put(
            client,
            object(CORE, "Machine", &called, spec),
            &name,
            Some(&set),
            status,
        )
        .await?;
        put(
            client,
            object(BOOTSTRAP, "KThreesConfig", &called, json!({})),
            &name,
            Some(&owner),
            ready(),
        )
        .await?;
        put(
            client,
            object(INFRASTRUCTURE, "EdgeMachine", &called, json!({})),
            &name,
            Some(&owner),
            ready(),
        )
        .await?;
    }
    Ok(())
}

/// Something new to see of the first cluster.
pub async fn change(client: &Client, number: usize) -> Result<()> {
    let said = condition("Available", false, "NotAvailable", &format!("tick-{number}."));
    let patch = Patch::Merge(json!({"status": {"conditions": [said]}}));
    clusters(client)
        .patch_status(&name(0), &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// Runs one after the other, and answers with how long each took, in milliseconds.
pub async fn timed<Answer: Future<Output = Result<()>>>(
    times: usize,
    run: impl Fn() -> Answer,
) -> Result<Vec<f64>> {
    let taken = stream::iter(0..times).then(|_| async {
        let began = tokio::time::Instant::now();
        run().await?;
        Ok(began.elapsed().as_secs_f64() * 1000.0)
    });
    taken.try_collect().await
}
