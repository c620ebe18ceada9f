//! How this process reaches Azure: the tuning, and a cloud of one's own where flags or the environment describe one.
//! One engine for each cloud, so that requests of all providers share budgets, views and tokens.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use slipway_runtime::{Clock, Settings, metrics::Metrics};

use crate::{
    cloud::{Cloud, CloudError},
    engine::{Azure, SetupError},
    metrics::AzureMetrics,
    tuning::{self, Tuning, TuningError},
};

const ENDPOINT: &str = "azure-resource-manager-endpoint";
const AUDIENCE: &str = "azure-resource-manager-audience";
const AUTHORITY: &str = "azure-authority-host";
const AUTHORITIES: &str = "azure-certificate-authorities";

/// The environment variable that stands for a flag; the first three are the names other tools read.
fn variable(flag: &str) -> &'static str {
    match flag {
        ENDPOINT => "AZURE_RESOURCE_MANAGER_ENDPOINT",
        AUDIENCE => "AZURE_RESOURCE_MANAGER_AUDIENCE",
        AUTHORITY => "AZURE_AUTHORITY_HOST",
        _ => "AZURE_CERTIFICATE_AUTHORITIES",
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error(transparent)]
    Tuning(#[from] TuningError),
    #[error(transparent)]
    Cloud(#[from] CloudError),
    #[error("--{AUTHORITIES}={path}: the file cannot be read: {reason}")]
    Authorities { path: String, reason: String },
    #[error("--{ENDPOINT} and --{AUTHORITY} describe a cloud together: --{missing} is not set")]
    Half { missing: &'static str },
    #[error(transparent)]
    Setup(#[from] SetupError),
}

/// The flags of `slipway manager` that say how Azure is reached and how hard it is asked.
pub fn flags() -> Vec<clap::Arg> {
    let flag =
        |name: &'static str, help: &'static str| clap::Arg::new(name).long(name).num_args(1).help(help);
    let mut flags = tuning::flags();
    flags.extend([
        flag(ENDPOINT, "Resource Manager of a cloud of one's own, an https URL"),
        flag(AUDIENCE, "What its tokens are for; its endpoint if absent"),
        flag(AUTHORITY, "Where its logins go, an https URL"),
        flag(
            AUTHORITIES,
            "A PEM file of certificate authorities to trust besides the system's",
        ),
    ]);
    flags
}

/// The engines of this process, one for each cloud; made when first asked for. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Clouds {
    engines: Arc<Mutex<HashMap<String, Azure>>>,
    metrics: AzureMetrics,
    /// Whether the one engine of a test shows what it counts.
    shown: Arc<OnceLock<()>>,
}

impl Clouds {
    /// Every cloud is answered by this engine: a test's, or a simulator's.
    pub fn only(azure: Azure) -> Self {
        let clouds = Self::default();
        clouds.engines.lock().insert(String::new(), azure);
        clouds
    }

    /// What the flags and the environment say, or what is wrong with it.
    pub fn check(settings: &Settings) -> Result<(), ConfigurationError> {
        read_tuning(settings)?;
        custom(settings, |name| std::env::var(name).ok())?;
        Ok(())
    }

    /// The engine of the cloud that an object's `azureEnvironment` names. A cloud of one's own stands for all names.
    pub fn engine(
        &self,
        environment: &str,
        settings: &Settings,
        clock: Clock,
        metrics: &Metrics,
    ) -> Result<Azure, ConfigurationError> {
        let mut engines = self.engines.lock();
        if let Some(only) = engines.get("") {
            self.shown.get_or_init(|| only.show_metrics(metrics));
            return Ok(only.clone());
        }
        let cloud = match custom(settings, |name| std::env::var(name).ok())? {
            Some(custom) => custom,
            None => Cloud::by_name(environment)?,
        };
        if let Some(engine) = engines.get(cloud.name()) {
            return Ok(engine.clone());
        }
        let name = cloud.name().to_owned();
        let engine = Azure::new(cloud, read_tuning(settings)?, clock)?.counted_in(self.metrics.clone());
        engine.show_metrics(metrics);
        engines.insert(name, engine.clone());
        Ok(engine)
    }
}

impl Clouds {
    /// How many entries are held in memory towards all clouds, by what they are.
    pub fn held(&self) -> Vec<(&'static str, usize)> {
        let mut all: Vec<(&'static str, usize)> = Vec::new();
        for engine in self.engines.lock().values() {
            for (name, count) in engine.held() {
                match all.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, total)) => *total += count,
                    None => all.push((name, count)),
                }
            }
        }
        all
    }
}

fn read_tuning(settings: &Settings) -> Result<Tuning, TuningError> {
    Tuning::from_flags(|flag| settings.flags.get(flag))
}

fn custom(
    settings: &Settings,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<Cloud>, ConfigurationError> {
    let value = |flag: &str| {
        settings
            .flags
            .get(flag)
            .map(str::to_owned)
            .or_else(|| environment(variable(flag)))
            .filter(|value| !value.is_empty())
    };
    let Some(endpoint) = value(ENDPOINT) else {
        return match settings.flags.get(AUTHORITY) {
            Some(_) => Err(ConfigurationError::Half { missing: ENDPOINT }),
            // The variable alone is what workload identity webhooks put into every pod.
            None => Ok(None),
        };
    };
    let authority = value(AUTHORITY).ok_or(ConfigurationError::Half { missing: AUTHORITY })?;
    let cloud = Cloud::custom(&authority, &endpoint, &value(AUDIENCE).unwrap_or_default())?;
    Ok(Some(match value(AUTHORITIES) {
        None => cloud,
        Some(path) => {
            cloud.trusting(
                std::fs::read(&path).map_err(|error| ConfigurationError::Authorities {
                    path,
                    reason: error.kind().to_string(),
                })?,
            )
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(flags: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        for (flag, value) in flags {
            settings.flags = settings.flags.with(flag, *value);
        }
        settings
    }

    fn read(flags: &[(&str, &str)], variables: &[(&str, &str)]) -> Result<Option<Cloud>, String> {
        let find = |name: &str| {
            variables
                .iter()
                .find(|(variable, _)| *variable == name)
                .map(|(_, value)| (*value).to_owned())
        };
        custom(&with(flags), find).map_err(|error| error.to_string())
    }

    #[test]
    fn a_cloud_of_ones_own_is_described_by_flags_or_by_the_environment() {
        assert_eq!(read(&[], &[]), Ok(None));
        assert_eq!(
            read(
                &[],
                &[("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.com/")]
            ),
            Ok(None)
        );
        let cloud = Cloud::custom("https://login.sim/", "https://arm.sim/", "").unwrap();
        let flags = [(ENDPOINT, "https://arm.sim/"), (AUTHORITY, "https://login.sim/")];
        assert_eq!(read(&flags, &[]), Ok(Some(cloud.clone())));
        let variables = [
            ("AZURE_RESOURCE_MANAGER_ENDPOINT", "https://arm.sim/"),
            ("AZURE_AUTHORITY_HOST", "https://login.sim/"),
        ];
        assert_eq!(read(&[], &variables), Ok(Some(cloud)));
    }

    #[test]
    fn what_is_wrong_with_it_is_named() {
        assert_eq!(
            read(&[(ENDPOINT, "https://arm.sim/")], &[]),
            Err(
                "--azure-resource-manager-endpoint and --azure-authority-host describe a cloud together: \
                 --azure-authority-host is not set"
                    .to_owned()
            )
        );
        let plain = read(
            &[(ENDPOINT, "http://arm.sim/"), (AUTHORITY, "https://login.sim/")],
            &[],
        );
        assert!(plain.unwrap_err().contains("tokens are never sent without TLS"));
        let unread = [
            (ENDPOINT, "https://arm.sim/"),
            (AUTHORITY, "https://login.sim/"),
            (AUTHORITIES, "/nowhere/authorities.pem"),
        ];
        assert_eq!(
            read(&unread, &[]),
            Err(
                "--azure-certificate-authorities=/nowhere/authorities.pem: the file cannot be read: \
                 entity not found"
                    .to_owned()
            )
        );
    }
}
