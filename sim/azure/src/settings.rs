//! What a user of the simulator can choose: speed, versions, limits, quotas and who may sign in.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    pub tenant: String,
    /// Subscriptions that are listed before they hold anything.
    pub subscriptions: Vec<String>,
    /// Whether every other subscription id works all the same.
    pub any_subscription: bool,
    pub speed: Speed,
    /// Seconds an operation takes at recorded speed, by `type/verb` (`managedClusters/create`). What is not
    /// listed takes the recorded time.
    pub durations: BTreeMap<String, f64>,
    /// Every Kubernetes version on offer, as `major.minor.patch`.
    pub kubernetes_versions: Vec<String>,
    /// The minor version a cluster gets that asks for none.
    pub default_kubernetes_version: String,
    /// Items on one page of a LIST answer.
    pub page_size: usize,
    /// Whether requests are counted against ARM's and the providers' limits.
    pub throttling: bool,
    pub limits: Limits,
    /// vCPUs left by location; a location that is not listed has no limit.
    pub cpu_quota: BTreeMap<String, u64>,
    /// Whether ARM wants a bearer token that this simulator issued.
    pub require_token: bool,
    /// Whether a client id that was never registered may sign in with any credential.
    pub open_sign_in: bool,
    /// Whether role assignments decide what a caller may do.
    pub enforce_roles: bool,
    /// The `iss` of tokens, for API servers that check them; Entra's own when not set.
    pub token_issuer: Option<String>,
    /// Seconds an issued token lives.
    pub token_lifetime: u64,
    /// How many requests are remembered for counting.
    pub requests_kept: usize,
}

/// Sustained rates with their bursts, as Azure documents or shows them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    pub subscription_reads: Bucket,
    pub subscription_writes: Bucket,
    pub subscription_deletes: Bucket,
    /// PUT of one managed cluster or of one agent pool.
    pub aks_put: Bucket,
    pub aks_get: Bucket,
    pub aks_list: Bucket,
    pub aks_operation: Bucket,
    /// Listing scale sets and their machines.
    pub compute_get: Bucket,
}

/// A token bucket: `burst` requests at once, `per_second` after that.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Bucket {
    pub burst: f64,
    pub per_second: f64,
}

/// How fast long-running operations go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Speed {
    /// Done at the first poll.
    Instant,
    /// As long as recorded.
    #[default]
    Recorded,
    /// So many times faster than recorded.
    Times(f64),
}

impl Speed {
    pub fn scale(self, recorded: Duration) -> Duration {
        match self {
            Self::Instant => Duration::ZERO,
            Self::Times(factor) if factor > 0.0 => recorded.div_f64(factor),
            Self::Recorded | Self::Times(_) => recorded,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tenant: "11111111-1111-1111-1111-111111111111".to_owned(),
            subscriptions: vec!["00000000-0000-0000-0000-000000000001".to_owned()],
            any_subscription: true,
            speed: Speed::default(),
            durations: BTreeMap::new(),
            kubernetes_versions: [
                "1.31.11", "1.31.13", "1.32.9", "1.32.10", "1.33.3", "1.33.5", "1.34.1", "1.34.2", "1.35.0",
            ]
            .map(str::to_owned)
            .to_vec(),
            default_kubernetes_version: "1.33".to_owned(),
            page_size: 100,
            throttling: true,
            limits: Limits::default(),
            cpu_quota: BTreeMap::new(),
            require_token: true,
            open_sign_in: true,
            enforce_roles: false,
            token_issuer: None,
            token_lifetime: 3599,
            requests_kept: 100_000,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let bucket = |burst, per_second| Bucket { burst, per_second };
        Self {
            subscription_reads: bucket(16_500.0, 1_650.0 / 60.0),
            subscription_writes: bucket(12_000.0, 1_200.0 / 60.0),
            subscription_deletes: bucket(12_000.0, 1_200.0 / 60.0),
            aks_put: bucket(20.0, 1.0 / 60.0),
            aks_get: bucket(60.0, 1.0),
            aks_list: bucket(500.0, 1.0),
            aks_operation: bucket(200.0, 2.0),
            compute_get: bucket(900.0, 0.5),
        }
    }
}

/// Seconds that recorded operations took, by `type/verb`.
const RECORDED: &[(&str, f64)] = &[
    ("resourceGroups/delete", 45.0),
    ("managedClusters/create", 265.0),
    ("managedClusters/update", 140.0),
    ("managedClusters/upgrade", 420.0),
    ("managedClusters/delete", 220.0),
    ("managedClusters/start", 180.0),
    ("managedClusters/stop", 180.0),
    ("managedClusters/rotateClusterCertificates", 300.0),
    ("managedClusters/rotateServiceAccountSigningKeys", 300.0),
    ("managedClusters/runCommand", 20.0),
    ("managedClusters/abort", 20.0),
    ("agentPools/create", 165.0),
    ("agentPools/update", 28.0),
    ("agentPools/scale", 90.0),
    ("agentPools/upgrade", 300.0),
    ("agentPools/delete", 60.0),
    ("agentPools/deleteMachines", 60.0),
    ("trustedAccessRoleBindings/create", 10.0),
    ("trustedAccessRoleBindings/delete", 10.0),
    ("fleets/create", 249.0),
    ("fleets/update", 128.0),
    ("fleets/delete", 370.0),
    ("members/create", 128.0),
    ("members/update", 20.0),
    ("members/delete", 128.0),
    ("extensions/create", 395.0),
    ("extensions/update", 120.0),
    ("extensions/delete", 139.0),
    ("fluxConfigurations/create", 60.0),
    ("fluxConfigurations/delete", 60.0),
    ("bastionHosts/create", 330.0),
    ("bastionHosts/delete", 240.0),
    ("privateEndpoints/create", 35.0),
    ("vaults/create", 16.0),
    ("storageAccounts/create", 20.0),
    ("privateDnsZones/create", 30.0),
    ("virtualNetworkLinks/create", 30.0),
];

/// How long `type/verb` takes at recorded speed.
pub fn recorded_duration(settings: &Settings, kind: &str, verb: &str) -> Duration {
    let name = format!("{kind}/{verb}");
    let seconds = settings.durations.get(&name).copied().or_else(|| {
        RECORDED
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, seconds)| *seconds)
    });
    Duration::from_secs_f64(seconds.unwrap_or(5.0).clamp(0.0, 1e7))
}
