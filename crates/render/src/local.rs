//! What a cluster needs to work with a manager that runs outside it: CRDs and webhook configurations that call a URL.

use kube::api::DynamicObject;
use serde_json::{Value, json};
use slipway_runtime::Package;

use super::{Bundle, PROVIDER_LABEL, RenderError, webhooks};

/// CRDs first, then webhook configurations. `base` is like `https://127.0.0.1:9443`, `ca` a PEM certificate.
pub fn local_objects<'package>(
    packages: impl IntoIterator<Item = &'package Package>,
    base: &str,
    ca: &str,
) -> Result<Vec<DynamicObject>, RenderError> {
    let caller = webhooks::Caller::Url { base, ca };
    let mut crds = Vec::new();
    let mut configurations = Vec::new();
    for bundle in Bundle::join(packages)? {
        for (objects, mut rendered) in [
            (&mut crds, bundle.crds(caller)),
            (&mut configurations, webhooks::configurations(&bundle, caller)),
        ] {
            for object in &mut rendered {
                object["metadata"]["labels"][PROVIDER_LABEL] = json!(bundle.identity);
                // Without it `clusterctl move` does not look at the kind.
                object["metadata"]["labels"]["clusterctl.cluster.x-k8s.io"] = json!("");
            }
            objects.append(&mut rendered);
        }
    }
    crds.append(&mut configurations);
    crds.into_iter().map(dynamic).collect()
}

fn dynamic(value: Value) -> Result<DynamicObject, RenderError> {
    let what = value["metadata"]["name"].to_string();
    serde_json::from_value(value).map_err(|error| RenderError::Unwritable {
        what,
        reason: error.to_string(),
    })
}
