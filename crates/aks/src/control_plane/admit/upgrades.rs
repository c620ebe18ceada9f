//! What is known of the versions that AKS upgrades to, said as a warning when another one is asked for: only AKS
//! knows the list for sure, and what it says to a request can be taken back.

use crate::{
    api::AzureManagedControlPlane,
    version::{self, without_v},
};

const LIST: &str = "Available upgrades: [";

/// The list as AKS gave it with its last refusal.
fn offered(plane: &AzureManagedControlPlane) -> Option<Vec<String>> {
    let conditions = &plane.status.as_ref()?.conditions;
    conditions.iter().find_map(|condition| {
        let (_, rest) = condition.message.split_once(LIST)?;
        let (list, _) = rest.split_once(']')?;
        Some(list.split_whitespace().map(str::to_owned).collect())
    })
}

/// What to tell somebody who asks for another version.
pub fn warning(old: &AzureManagedControlPlane, new: &AzureManagedControlPlane) -> Option<String> {
    let desired = new.spec.class.version.as_str();
    if desired == old.spec.class.version {
        return None;
    }
    let running = old
        .status
        .as_ref()?
        .version
        .as_deref()
        .filter(|version| !version.is_empty())?;
    let (current, next) = (version::parse(running)?, version::parse(desired)?);
    if next == current {
        return None;
    }
    match offered(old) {
        Some(list) if !list.iter().any(|version| version == without_v(desired)) => Some(format!(
            "spec.version: AKS offered {} as upgrades from {running} when it was last asked, and not {desired}",
            list.join(", ")
        )),
        None if (next.major, next.minor) > (current.major, current.minor + 1) => Some(format!(
            "spec.version: AKS upgrades one minor version at a time, and the cluster runs {running}: it refuses {desired}. `az aks get-upgrades` lists what it takes"
        )),
        _ => None,
    }
}
