//! The chart, rendered by the real Helm: the same objects as clusterctl installs, and a real apiserver takes them.
//! Building Helm takes minutes, so this is part of the full run only; that the chart itself is what the code renders is
//! checked in every run.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use slipway_testbed::{ManagementCluster, install};

use crate::clusterctl_repository::cert_manager_definitions;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[tokio::test]
async fn helm_chart_renders_to_what_clusterctl_installs() -> Result<()> {
    if env::var_os("SLIPWAY_TEST_FULL").is_none() {
        println!("report: the chart was not rendered with Helm; `cargo xtask package chart` does it");
        return Ok(());
    }
    let helm = build()?;
    let chart = root().join("deploy/helm/slipway");
    run(&helm, &["lint", "--strict"], &chart)?;
    let rendered = install::parse(&run(
        &helm,
        &["template", "slipway", "--kube-version=1.36.3"],
        &chart,
    )?)?;
    let (rendered, installed) = (named(rendered), named(components()?));
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

    let cluster = ManagementCluster::builder().name("helm").start().await?;
    install::install(&cluster.client(), &cert_manager_definitions()?).await?;
    let namespaces: Vec<Value> = rendered
        .values()
        .filter(|object| object["kind"] == "Namespace")
        .cloned()
        .collect();
    install::install(&cluster.client(), &namespaces).await?;
    let file = tempfile::NamedTempFile::new()?;
    let documents: Vec<String> = rendered.values().map(Value::to_string).collect();
    fs::write(file.path(), documents.join("\n---\n"))?;
    let path = file.path().to_str().context("a path that is text")?;
    let accepted = cluster
        .kubectl(&["apply", "--server-side", "--dry-run=server", "-f", path])
        .await?;
    assert_eq!(accepted.lines().count(), rendered.len(), "{accepted}");
    cluster.stop();
    Ok(())
}

/// Builds Helm from its pinned module into the per-user cache.
fn build() -> Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME says where the cache is")?;
    let program = cache.join("slipway/helm");
    let status = Command::new("go")
        .current_dir(root().join("parts/helm"))
        .env("CGO_ENABLED", "0")
        .args([
            "build",
            "-p=2",
            "-trimpath",
            "-buildvcs=false",
            "-mod=readonly",
            "-ldflags=-s -w",
            "-o",
        ])
        .arg(&program)
        .arg("helm.sh/helm/v3/cmd/helm")
        .status()
        .context("running go; install Go 1.26 or newer")?;
    if !status.success() {
        bail!("Helm does not build; go's message is above");
    }
    Ok(program)
}

fn run(helm: &Path, arguments: &[&str], chart: &Path) -> Result<String> {
    let output = Command::new(helm).args(arguments).arg(chart).output()?;
    ensure!(
        output.status.success(),
        "helm {}: {}{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// What clusterctl would install from deploy/, with its variables at their defaults.
fn components() -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    let mut folders = vec![root().join("deploy/clusterctl"), root().join("deploy/components")];
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
                annotations.remove("helm.sh/resource-policy");
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
