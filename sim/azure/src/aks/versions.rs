//! Kubernetes versions: what `1.33` means, and which upgrades are allowed.

use crate::{error_response::ErrorResponse, settings::Settings};

/// Major, minor and patch; a missing patch is `None`.
pub fn parse(text: &str) -> Option<(u32, u32, Option<u32>)> {
    let mut parts = text.trim_start_matches('v').split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?.parse().ok()?;
    let patch = match parts.next() {
        None => None,
        Some(patch) => Some(patch.parse().ok()?),
    };
    parts.next().is_none().then_some((major, minor, patch))
}

fn full(text: &str) -> (u32, u32, u32) {
    parse(text).map_or((0, 0, 0), |(major, minor, patch)| {
        (major, minor, patch.unwrap_or(0))
    })
}

/// All versions on offer, oldest first.
pub fn offered(settings: &Settings) -> Vec<String> {
    let mut versions = settings.kubernetes_versions.clone();
    versions.sort_by_key(|version| full(version));
    versions
}

/// The patch version a request means: the one named, or the newest of a minor.
pub fn resolve(settings: &Settings, desired: &str, name: &str) -> Result<String, ErrorResponse> {
    let unsupported = || {
        ErrorResponse::aks(
            400,
            "K8sVersionNotSupported",
            format!(
                "Managed cluster {name} is on version {desired}, which is not supported in this region. Please use [az aks get-versions] command to get the supported version list in this region. For more information, please check https://aka.ms/supported-version-list"
            ),
        )
    };
    let (major, minor, patch) = parse(desired).ok_or_else(unsupported)?;
    offered(settings)
        .into_iter()
        .rfind(|version| {
            let (own_major, own_minor, own_patch) = full(version);
            (own_major, own_minor) == (major, minor) && patch.is_none_or(|patch| patch == own_patch)
        })
        .ok_or_else(unsupported)
}

/// Versions a control plane can go to: newer patches, and the next minor.
pub fn upgrades(settings: &Settings, current: &str) -> Vec<String> {
    let (major, minor, patch) = full(current);
    offered(settings)
        .into_iter()
        .filter(|version| {
            let (own_major, own_minor, own_patch) = full(version);
            own_major == major && ((own_minor == minor && own_patch > patch) || own_minor == minor + 1)
        })
        .collect()
}

/// Where a cluster on `current` ends up when `desired` is asked for.
pub fn target(
    settings: &Settings,
    current: &str,
    desired: &str,
    name: &str,
) -> Result<String, ErrorResponse> {
    let same_minor = parse(desired).is_some_and(|(major, minor, patch)| {
        patch.is_none() && (major, minor) == (full(current).0, full(current).1)
    });
    if same_minor || desired == current {
        return Ok(current.to_owned());
    }
    let resolved = resolve(settings, desired, name)?;
    let available = upgrades(settings, current);
    if !available.contains(&resolved) {
        return Err(ErrorResponse::aks(
            400,
            "OperationNotAllowed",
            format!(
                "Operation is not allowed: Upgrading Kubernetes version {current} to {resolved} is not allowed. Available upgrades: [{}]. Please see https://aka.ms/aks-supported-k8s-ver for version details.",
                available.join(" ")
            ),
        ));
    }
    Ok(resolved)
}

/// A pool is never newer than its control plane and at most three minors older.
pub fn check_skew(pool: &str, control_plane: &str) -> Result<(), ErrorResponse> {
    let (own, above) = (full(pool), full(control_plane));
    let problem = if own > above {
        format!(
            "Node pool version {pool} and control plane version {control_plane} are incompatible. Node pool version cannot be newer than the control plane's version."
        )
    } else if above.1 > own.1 + 3 {
        format!(
            "Node pool version {pool} and control plane version {control_plane} are incompatible. Minor version of node pool cannot be more than 3 versions less than control plane's version. Minor version of node pool is {} and control plane is {}.",
            own.1, above.1
        )
    } else {
        return Ok(());
    };
    Err(ErrorResponse::aks(
        400,
        "NodePoolMcVersionIncompatible",
        format!("{problem} For more information, please check https://aka.ms/aks/UpgradeVersionRules"),
    )
    .target("orchestratorVersion"))
}

/// `1.33.5` -> `1.33`.
pub fn minor(version: &str) -> String {
    let (major, minor, _) = full(version);
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minor_means_its_newest_patch_unless_the_cluster_is_already_there() {
        let settings = Settings::default();
        assert_eq!(resolve(&settings, "1.33", "c").expect("offered"), "1.33.5");
        assert_eq!(
            target(&settings, "1.33.3", "1.33", "c").expect("no change"),
            "1.33.3"
        );
        assert_eq!(
            target(&settings, "1.33.3", "1.34", "c").expect("next minor"),
            "1.34.2"
        );
    }

    #[test]
    fn minors_are_not_skipped_and_versions_do_not_go_back() {
        let settings = Settings::default();
        for (current, desired) in [("1.31.13", "1.33"), ("1.34.2", "1.33.5"), ("1.34.2", "1.34.1")] {
            let refusal = target(&settings, current, desired, "c").expect_err("refused");
            assert_eq!(
                refusal.body["code"], "OperationNotAllowed",
                "{current} -> {desired}"
            );
        }
        assert_eq!(
            resolve(&settings, "1.12", "c").expect_err("long gone").body["code"],
            "K8sVersionNotSupported"
        );
    }

    #[test]
    fn pools_stay_close_behind_their_control_plane() {
        assert!(check_skew("1.31.13", "1.34.1").is_ok());
        assert!(check_skew("1.30.1", "1.34.1").is_err());
        assert!(check_skew("1.34.2", "1.34.1").is_err());
    }
}
