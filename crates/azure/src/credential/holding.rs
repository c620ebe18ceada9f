//! How a control plane keeps the identity that it signs in with: a finalizer of its own on it. Pure.

use std::fmt::Write;

use sha2::{Digest, Sha224};

/// What such finalizers begin with. The name is the one that identities in use already carry.
const PREFIX: &str = "azuremanagedcontrolplane.infrastructure.cluster.x-k8s.io";

/// Keeps an AzureClusterIdentity while this control plane needs it.
pub fn identity_finalizer(namespace: &str, plane: &str) -> String {
    let mut name = format!("{PREFIX}/");
    for byte in Sha224::digest(format!("{namespace}-{plane}").as_bytes()) {
        let _ = write!(name, "{byte:02x}");
    }
    name
}
