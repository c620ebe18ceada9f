//! The chart in the hands of the real Helm: it renders to the objects that clusterctl installs, its values do what they
//! say, and it is installed, upgraded and uninstalled on a real apiserver. Building Helm takes minutes, so this is part of
//! the full run only; that the chart itself is what the code renders is checked in every run.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Namespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{ListParams, ObjectList},
};
use serde_json::{Value, json};
use slipway_testbed::{Cluster, ManagementCluster, install, wait::until_gone};

use crate::{clusterctl_repository::cert_manager_definitions, helm::helm, support::add_fake_host};

const KEEP: &str = "helm.sh/resource-policy";
const PROVIDER: &str = "cluster.x-k8s.io/provider";

/// What `slipway manifests` rendered: the project's own, or that of a release being packaged.
fn manifests() -> PathBuf {
    env::var_os("SLIPWAY_MANIFESTS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy"),
        PathBuf::from,
    )
}

/// The chart in it, or the archive of a release being packaged.
fn chart() -> Result<String> {
    let path = env::var_os("SLIPWAY_CHART").map_or_else(|| manifests().join("helm/slipway"), PathBuf::from);
    let path = path.canonicalize().context("finding the chart")?;
    path.into_os_string()
        .into_string()
        .ok()
        .context("a path that is text")
}

fn is_wanted() -> bool {
    let desired = env::var_os("SLIPWAY_TEST_FULL").is_some();
    if !desired {
        println!("report: the chart was not given to Helm; `cargo xtask package chart` does it");
    }
    desired
}

fn render(values: &Value) -> Result<Vec<Value>> {
    let file = values_file(values)?;
    let path = file.path().to_str().context("a path that is text")?;
    let chart = chart()?;
    let text = helm(
        None,
        &["template", "slipway", &chart, "--kube-version=1.36.3", "-f", path],
    )?;
    Ok(install::parse(&text)?)
}

fn values_file(values: &Value) -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), values.to_string())?;
    Ok(file)
}

#[test]
fn helm_chart_renders_to_what_clusterctl_installs() -> Result<()> {
    if !is_wanted() {
        return Ok(());
    }
    helm(None, &["lint", "--strict", &chart()?])?;
    // With what has to be asked for.
    let everything = json!({"packages": {"autoscaler": {"enabled": true}}});
    let (rendered, installed) = (named(render(&everything)?), named(components()?));
    for (name, object) in &installed {
        let found = rendered
            .get(name)
            .with_context(|| format!("the chart has no {name}"))?;
        assert_eq!(found, object, "{name}");
    }
    assert_eq!(rendered.len(), installed.len(), "the chart has nothing else");
    println!(
        "report: Helm renders the {} objects that clusterctl installs",
        installed.len()
    );
    Ok(())
}

#[test]
fn helm_chart_values_do_what_they_say() -> Result<()> {
    if !is_wanted() {
        return Ok(());
    }
    let defaults = &install::parse(&helm(None, &["show", "values", &chart()?])?)?[0];
    let names = |field: &str| -> Vec<String> {
        let map = defaults[field].as_object().into_iter().flatten();
        map.map(|(name, _)| name.clone()).collect()
    };
    let variables: BTreeMap<String, String> = names("variables")
        .into_iter()
        .map(|name| (name.clone(), format!("value-of-{name}")))
        .collect();
    ensure!(!variables.is_empty(), "the chart has variables");
    let per_package: serde_json::Map<String, Value> = names("packages")
        .into_iter()
        .map(|name| {
            let value = json!({
                "enabled": true,
                "replicas": 3,
                "extraArgs": ["--sync-period=1h"],
                "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example"}],
                "extraVolumes": [{"name": "extra", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
                "podLabels": {"team": "fleet"},
                "podAnnotations": {"note": "kept"},
                "serviceAccount": {"annotations": {"azure.workload.identity/client-id": "c"}},
            });
            (name, value)
        })
        .collect();
    let values = json!({
        "affinity": {"nodeAffinity": {}},
        "metrics": {"serviceMonitor": {"enabled": true, "interval": "15s", "labels": {"release": "prometheus"}}},
        "packages": per_package,
        "podDisruptionBudget": {"enabled": true},
        "tolerations": [{"key": "edge", "operator": "Exists"}],
        "image": {"repository": "registry.example/mirror/manager", "tag": "v9.9.9", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "keepResourceDefinitions": false,
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "resources": {"limits": {"memory": "256Mi"}},
        "variables": variables,
    });
    let rendered = render(&values)?;
    let text = Value::Array(rendered.clone()).to_string();
    for value in variables.values() {
        assert!(text.contains(value), "{value} is nowhere");
    }
    assert!(!text.contains(KEEP), "nothing is kept");
    let deployments: Vec<&Value> = rendered
        .iter()
        .filter(|object| object["kind"] == "Deployment")
        .collect();
    ensure!(!deployments.is_empty(), "there are managers");
    for deployment in deployments {
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(pod["imagePullSecrets"], values["imagePullSecrets"]);
        assert_eq!(pod["nodeSelector"], values["nodeSelector"]);
        let container = &pod["containers"][0];
        assert_eq!(container["image"], "registry.example/mirror/manager:v9.9.9");
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(container["resources"]["limits"]["memory"], "256Mi");
        assert_eq!(deployment["spec"]["replicas"], 3);
        assert_eq!(pod["affinity"], values["affinity"]);
        assert_eq!(pod["tolerations"], values["tolerations"]);
        let has = |list: &Value, item: Value| list.as_array().is_some_and(|list| list.contains(&item));
        assert!(has(&container["args"], json!("--sync-period=1h")), "{container}");
        assert!(
            has(
                &container["env"],
                json!({"name": "HTTPS_PROXY", "value": "http://proxy.example"})
            ),
            "{container}"
        );
        assert!(
            has(
                &container["volumeMounts"],
                json!({"name": "extra", "mountPath": "/extra"})
            ),
            "{container}"
        );
        assert!(
            has(&pod["volumes"], json!({"name": "extra", "emptyDir": {}})),
            "{pod}"
        );
        let metadata = &deployment["spec"]["template"]["metadata"];
        assert_eq!(metadata["labels"]["team"], "fleet");
        assert_eq!(metadata["annotations"]["note"], "kept");
    }
    let count = |kind: &str| rendered.iter().filter(|object| object["kind"] == kind).count();
    for kind in ["PodDisruptionBudget", "ServiceMonitor"] {
        assert_eq!(count(kind), names("packages").len(), "{kind}");
    }
    for monitor in rendered
        .iter()
        .filter(|object| object["kind"] == "ServiceMonitor")
    {
        assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        assert_eq!(monitor["spec"]["endpoints"][0]["interval"], "15s");
        let selector = &monitor["spec"]["selector"]["matchLabels"]["slipway.dev/metrics"];
        let is_it = |object: &&Value| {
            object["kind"] == "Service" && object["metadata"]["labels"]["slipway.dev/metrics"] == *selector
        };
        assert_eq!(rendered.iter().filter(is_it).count(), 1, "{monitor}");
    }
    for account in rendered
        .iter()
        .filter(|object| object["kind"] == "ServiceAccount")
    {
        assert_eq!(
            account["metadata"]["annotations"]["azure.workload.identity/client-id"],
            "c"
        );
    }
    for package in names("packages") {
        let rendered = render(&json!({"packages": {&package: {"enabled": false}}}))?;
        let left = rendered
            .iter()
            .filter(|object| object["metadata"]["labels"][PROVIDER] == package.as_str())
            .count();
        assert_eq!(left, 0, "{package} is switched off");
        assert_eq!(
            rendered.is_empty(),
            names("packages").len() == 1,
            "the others stay"
        );
    }
    Ok(())
}

/// A user's journey. kwok runs the pods that Helm waits for.
#[tokio::test]
async fn helm_chart_is_installed_upgraded_and_uninstalled() -> Result<()> {
    if !is_wanted() {
        return Ok(());
    }
    let cluster = ManagementCluster::builder()
        .name("helm")
        .cluster_api()
        .kwok()
        .start()
        .await?;
    add_fake_host(&cluster).await?;
    install::install(&cluster.client(), &cert_manager_definitions()?).await?;
    let rendered = render(&json!({}))?;

    change(&cluster, "install", &json!({}))?;
    all_are_there(&cluster, &rendered).await?;
    managers_are_available(&cluster, &rendered).await?;

    change(
        &cluster,
        "upgrade",
        &json!({"image": {"tag": "v9.9.9"}, "resources": {"limits": {"memory": "256Mi"}}}),
    )?;
    for deployment in managers_are_available(&cluster, &rendered).await? {
        let pod = deployment.spec.and_then(|spec| spec.template.spec);
        let container = &pod.context("a Deployment has a Pod")?.containers[0];
        let image = container.image.as_deref().unwrap_or_default();
        assert!(image.ends_with(":v9.9.9"), "{image}");
    }

    // What users made outlives the chart, unless they say otherwise.
    uninstall(&cluster, &rendered).await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client());
    for name in names_of(&rendered, "CustomResourceDefinition") {
        definitions
            .get(&name)
            .await
            .with_context(|| format!("{name} is kept"))?;
    }
    change(&cluster, "install", &json!({"keepResourceDefinitions": false}))?;
    all_are_there(&cluster, &rendered).await?;
    uninstall(&cluster, &rendered).await?;
    for name in names_of(&rendered, "CustomResourceDefinition") {
        until_gone(&definitions, &name).await?;
    }
    cluster.stop();
    println!(
        "report: Helm installs, upgrades and uninstalls the {} objects of the chart on a real apiserver",
        rendered.len()
    );
    Ok(())
}

/// `helm install` or `helm upgrade`, until every manager is there.
fn change(cluster: &Cluster, verb: &str, values: &Value) -> Result<()> {
    let file = values_file(values)?;
    let path = file.path().to_str().context("a path that is text")?;
    let chart = chart()?;
    let mut arguments = vec![verb, "slipway", &chart, "--namespace=slipway", "-f", path];
    arguments.extend(["--wait", "--timeout=5m"]);
    if verb == "install" {
        arguments.push("--create-namespace");
    }
    helm(Some(cluster.kubeconfig()), &arguments).map(|_| ())
}

async fn uninstall(cluster: &Cluster, rendered: &[Value]) -> Result<()> {
    helm(
        Some(cluster.kubeconfig()),
        &[
            "uninstall",
            "slipway",
            "--namespace=slipway",
            "--wait",
            "--timeout=5m",
        ],
    )?;
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    for name in names_of(rendered, "Namespace") {
        until_gone(&namespaces, &name).await?;
    }
    Ok(())
}

/// The server has every object, and would change nothing in any if it were told to have it as rendered.
async fn all_are_there(cluster: &Cluster, rendered: &[Value]) -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let documents: Vec<String> = rendered.iter().map(Value::to_string).collect();
    fs::write(file.path(), documents.join("\n---\n"))?;
    let path = file.path().to_str().context("a path that is text")?;
    let found = cluster.kubectl(&["get", "-o", "name", "-f", path]).await?;
    assert_eq!(found.lines().count(), rendered.len(), "{found}");
    let accepted = cluster
        .kubectl(&[
            "apply",
            "--server-side",
            "--force-conflicts",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            path,
        ])
        .await?;
    assert_eq!(accepted.lines().count(), rendered.len(), "{accepted}");
    Ok(())
}

async fn managers_are_available(cluster: &Cluster, rendered: &[Value]) -> Result<ObjectList<Deployment>> {
    let deployments: Api<Deployment> = Api::all(cluster.client());
    let ours = ListParams::default().labels(PROVIDER);
    let found = deployments.list(&ours).await?;
    let mut names: Vec<&str> = found
        .iter()
        .filter_map(|deployment| deployment.metadata.name.as_deref())
        .collect();
    names.sort_unstable();
    let mut desired = names_of(rendered, "Deployment");
    desired.sort_unstable();
    assert_eq!(names, desired);
    for deployment in &found {
        let status = deployment.status.as_ref();
        assert!(
            status.is_some_and(|status| status.available_replicas >= Some(1)),
            "{deployment:?}"
        );
    }
    Ok(found)
}

fn names_of(rendered: &[Value], kind: &str) -> Vec<String> {
    let of_kind = rendered.iter().filter(|object| object["kind"] == kind);
    of_kind
        .filter_map(|object| object["metadata"]["name"].as_str())
        .map(str::to_owned)
        .collect()
}

/// What clusterctl would install, with its variables at their defaults.
fn components() -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    let mut folders = vec![manifests().join("clusterctl"), manifests().join("components")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with("-components.yaml") || folder.ends_with("components") {
                objects.extend(install::parse(&with_defaults(&fs::read_to_string(&path)?))?);
            }
        }
    }
    Ok(objects)
}

/// `${NAME:=default}` becomes its default.
fn with_defaults(text: &str) -> String {
    let mut parts = text.split("${");
    let mut done = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (variable, rest) = part.split_once('}').unwrap_or((part, ""));
        done.push_str(variable.split_once(":=").map_or("", |(_, default)| default));
        done.push_str(rest);
    }
    done
}

/// Objects by kind and name, without what is empty and without the chart's own annotation.
fn named(objects: Vec<Value>) -> BTreeMap<String, Value> {
    objects
        .into_iter()
        .map(|mut object| {
            if let Some(annotations) = object
                .pointer_mut("/metadata/annotations")
                .and_then(Value::as_object_mut)
            {
                annotations.remove(KEEP);
            }
            prune(&mut object);
            let metadata = &object["metadata"];
            let name = format!(
                "{} {} {}",
                object["kind"], metadata["namespace"], metadata["name"]
            );
            (name, object)
        })
        .collect()
}

fn prune(value: &mut Value) {
    let is_empty = |value: &Value| {
        value.as_object().is_some_and(serde_json::Map::is_empty)
            || value.as_array().is_some_and(Vec::is_empty)
    };
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(prune);
            map.retain(|_, value| !is_empty(value));
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        _ => {}
    }
}
