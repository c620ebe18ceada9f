//! The roles that a provider declares, bound to the user its manager runs as in a test.

use anyhow::Result;
use serde_json::{Value, json};
use slipway_render::{Bundle, Release};
use slipway_runtime::Package;
use slipway_testbed::{Cluster, install};

/// The roles, and the namespaces they are in, as they are declared.
pub fn declared(packages: &[Package]) -> Result<Vec<Value>> {
    let release = Release {
        version: "v0.1.0".into(),
        image: "none".into(),
    };
    let bundles = Bundle::join(packages)?;
    Ok(bundles
        .iter()
        .flat_map(|bundle| bundle.objects(&release))
        .filter(|object| {
            let kind = object["kind"].as_str().unwrap_or_default();
            kind == "Namespace" || kind.contains("Role")
        })
        .collect())
}

/// Installs them for a user in place of their service accounts. What is granted to a group stays the group's.
pub async fn install(cluster: &Cluster, packages: &[Package], user: &str) -> Result<()> {
    let mut roles = declared(packages)?;
    for object in &mut roles {
        if object["subjects"][0]["kind"] == "ServiceAccount" {
            object["subjects"] =
                json!([{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]);
        }
    }
    install::install(&cluster.client(), &roles).await?;
    Ok(())
}
