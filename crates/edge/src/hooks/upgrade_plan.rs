//! The answer to `GenerateUpgradePlan`: the versions that a topology's control plane and workers take one after the other. Pure, from
//! the request and the policy.

use serde::Deserialize;
use serde_json::{Value, json};
use slipway_capi::hook::types::SUCCESS;

use super::can_update::{failure, read};
use crate::{
    upgrade_policy::{
        api::UpgradePolicySpec,
        path::{self, Journey},
    },
    version::Version,
};

pub const HOOK: &str = "GenerateUpgradePlan";

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Request {
    from_control_plane_kubernetes_version: String,
    from_workers_kubernetes_version: String,
    to_kubernetes_version: String,
}

pub fn answer(request: &Value, policy: &UpgradePolicySpec) -> Value {
    let asked: Request = match read(request, HOOK) {
        Ok(asked) => asked,
        Err(answer) => return answer,
    };
    match plan(&asked, policy) {
        Ok(path) => {
            let steps = |versions: &[Version]| -> Vec<Value> {
                versions
                    .iter()
                    .map(|version| json!({"version": version.to_string()}))
                    .collect()
            };
            json!({
                "status": SUCCESS,
                "controlPlaneUpgrades": steps(&path.control_plane),
                "workersUpgrades": steps(&path.workers),
            })
        }
        Err(message) => failure(message),
    }
}

fn plan(asked: &Request, policy: &UpgradePolicySpec) -> Result<path::Path, String> {
    let version = |name: &str, text: &str| {
        text.parse::<Version>()
            .map_err(|error| format!("{name} {text:?}: {error}"))
    };
    let list = |versions: &[String]| -> Vec<Version> {
        versions
            .iter()
            .filter_map(|version| version.parse().ok())
            .collect()
    };
    let control_plane = version(
        "fromControlPlaneKubernetesVersion",
        &asked.from_control_plane_kubernetes_version,
    )?;
    let workers = match asked.from_workers_kubernetes_version.as_str() {
        "" => None,
        text => Some(version("fromWorkersKubernetesVersion", text)?),
    };
    path::plan(&Journey {
        control_plane: &control_plane,
        workers: workers.as_ref(),
        to: &version("toKubernetesVersion", &asked.to_kubernetes_version)?,
        mandatory: &list(&policy.mandatory_versions),
        known: &list(&policy.known_versions),
    })
    .map_err(|error| error.to_string())
}
