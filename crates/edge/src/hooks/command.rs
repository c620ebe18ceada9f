//! `slipway upgrade explain`: what a change would do to machines.

use std::{
    io::Read,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Arg, ArgMatches, Command, value_parser};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};
use serde_json::Value;
use slipway_capi::{names, reference, view::ObjectReference};
use slipway_runtime::provider::Subcommand;

use super::explain::{Explained, OWNERS, Objects, REFERENCES};

/// Something would be replaced, or refused.
const NOT_IN_PLACE: u8 = 2;

pub fn subcommand() -> Subcommand {
    let file = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help(help)
    };
    let explain = Command::new("explain")
        .about("Say what a change would do to machines: in place, replaced or refused, and why")
        .after_help(
            "Ends with 0 if every change is made in place, with 2 if machines would be replaced or the change is refused.",
        )
        .arg(file("file", "Manifests of the change; - is standard input").short('f').required(true))
        .arg(file("current", "The objects as they are; they are read from the cluster if absent"))
        .arg(file("kubeconfig", "The management cluster; the pod's own, or $KUBECONFIG, if absent"))
        .arg(
            Arg::new("namespace")
                .long("namespace")
                .short('n')
                .value_name("NAMESPACE")
                .default_value("default")
                .help("The namespace of objects that name none"),
        );
    Subcommand {
        command: Command::new("upgrade")
            .about("Upgrades of machines in place")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommand(explain),
        run: |matches| {
            let result = match matches.subcommand() {
                Some(("explain", matches)) => slipway_runtime::command::run(explained(matches)),
                _ => Err("there is explain".to_owned()),
            };
            match result {
                Ok(all) => {
                    for one in &all {
                        print!("{one}");
                    }
                    if all.iter().all(Explained::is_harmless) {
                        ExitCode::SUCCESS
                    } else {
                        ExitCode::from(NOT_IN_PLACE)
                    }
                }
                Err(message) => {
                    eprintln!("error: {message}");
                    ExitCode::FAILURE
                }
            }
        },
    }
}

async fn explained(matches: &ArgMatches) -> Result<Vec<Explained>, String> {
    let path = |name: &str| matches.get_one::<PathBuf>(name);
    let manifests = manifests(path("file").ok_or("--file is missing")?)?;
    let current = match path("current") {
        Some(path) => self::manifests(path)?,
        None => {
            let namespace = matches
                .get_one::<String>("namespace")
                .cloned()
                .unwrap_or_default();
            let client = slipway_runtime::command::client(path("kubeconfig")).await?;
            read_current(&client, &namespace, &manifests).await?
        }
    };
    let all = Objects::new(&manifests, current).explain();
    if all.is_empty() {
        return Err(format!("the file holds none of {}", OWNERS.join(", ")));
    }
    Ok(all)
}

/// The objects of a file, lists taken apart.
fn manifests(path: &Path) -> Result<Vec<Value>, String> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(|_| ())
    } else {
        std::fs::read_to_string(path).map(|read| text = read)
    };
    read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
        .map_err(|error| format!("{} is no YAML: {error}", path.display()))?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .flat_map(|document| match &document["items"] {
            Value::Array(items) => items.clone(),
            _ => vec![document],
        })
        .collect())
}

/// The owners of the file as they are, and every template that they name, or are to name.
async fn read_current(client: &Client, namespace: &str, manifests: &[Value]) -> Result<Vec<Value>, String> {
    let mut current = Vec::new();
    for owner in manifests {
        let text = |pointer: &str| owner.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        if !OWNERS.contains(&text("/kind")) {
            continue;
        }
        let namespace = match text("/metadata/namespace") {
            "" => namespace,
            named => named,
        };
        let (group, version) = text("/apiVersion")
            .split_once('/')
            .unwrap_or((names::GROUP, names::VERSION));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("/kind")));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let name = text("/metadata/name");
        let doing = format!("reading {} {namespace}/{name}", text("/kind"));
        let found = api
            .get_opt(name)
            .await
            .map_err(|error| format!("{doing}: {error}"))?;
        let Some(found) = found else { continue };
        let found = serde_json::to_value(found).map_err(|error| format!("{doing}: {error}"))?;
        let mut then = found.clone();
        json_patch::merge(&mut then, owner);
        let named = REFERENCES
            .iter()
            .flat_map(|pointer| [found.pointer(pointer), then.pointer(pointer)])
            .flatten();
        let mut templates: Vec<ObjectReference> = named
            .filter_map(|one| serde_json::from_value(one.clone()).ok())
            .collect();
        templates.dedup();
        for reference in templates
            .iter()
            .filter(|reference| !reference.api_group.is_empty())
        {
            let template = reference::get(client, namespace, reference).await;
            if let Some(template) = template.map_err(|error| error.to_string())? {
                current.push(serde_json::to_value(template).map_err(|error| format!("{doing}: {error}"))?);
            }
        }
        current.push(found);
    }
    Ok(current)
}
