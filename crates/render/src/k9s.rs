//! Plugins of k9s: `slipway why`, `plan` and `describe` on what is selected there.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde_json::{Value, json};
use slipway_runtime::Provider;

use super::yaml;

/// Cluster API's own, as k9s calls them.
const CORE: [&str; 6] = [
    "clusters",
    "kubeadmcontrolplanes",
    "machinedeployments",
    "machinepools",
    "machines",
    "machinesets",
];

/// The file under `deploy/`: to be copied to `~/.config/k9s/plugins.yaml`, or merged into it.
pub fn k9s(providers: &[Provider]) -> BTreeMap<PathBuf, String> {
    let crds = providers
        .iter()
        .flat_map(|provider| &provider.packages)
        .flat_map(|package| &package.crds);
    let ours: BTreeSet<&str> = crds.map(|crd| crd.spec.names.plural.as_str()).collect();
    if ours.is_empty() {
        return BTreeMap::new();
    }
    let planned: Vec<&str> = ours
        .iter()
        .copied()
        .filter(|plural| !plural.ends_with("templates"))
        .collect();
    let mut explained: Vec<&str> = CORE.into_iter().chain(planned.iter().copied()).collect();
    explained.push("pods");
    explained.sort_unstable();
    let plugins = json!({"plugins": {
        "slipway-why": plugin("Shift-W", "Why is it so?", &explained, "why \"$RESOURCE_NAME/$NAME\" --namespace \"$NAMESPACE\""),
        "slipway-plan": plugin("Shift-P", "What would be done?", &planned, "plan \"$RESOURCE_NAME.$RESOURCE_GROUP/$NAME\" --namespace \"$NAMESPACE\""),
        "slipway-describe": plugin("Shift-D", "Its tree", &["clusters"], "describe \"$NAME\" --namespace \"$NAMESPACE\""),
    }});
    [(PathBuf::from("k9s/plugins.yaml"), yaml::document(&plugins))].into()
}

/// Runs the command line in the context that is looked at, and waits until it was read.
fn plugin(key: &str, says: &str, scopes: &[&str], command: &str) -> Value {
    json!({
        "shortCut": key,
        "description": says,
        "scopes": scopes,
        "command": "sh",
        "background": false,
        "args": ["-c", format!("slipway {command} --context \"$CONTEXT\" --wide 2>&1 | less -R")],
    })
}
