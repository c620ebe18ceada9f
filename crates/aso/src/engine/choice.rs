//! Which engine writes a resource, and why. Pure.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use slipway_runtime::Settings;

/// Names the engine of an object's resources.
pub const ANNOTATION: &str = "slipway.dev/azure-engine";
/// Names the engine of objects that do not say so themselves.
pub const FLAG: &str = "azure-engine";

/// Who writes a resource in Azure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AzureEngine {
    /// This manager.
    #[default]
    Native,
    /// A running Azure Service Operator.
    Aso,
}

impl fmt::Display for AzureEngine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Native => "native",
            Self::Aso => "aso",
        })
    }
}

/// What the user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// Azure Service Operator where it runs; what one engine has written stays with it.
    #[default]
    Auto,
    Only(AzureEngine),
}

impl Wanted {
    pub const NAMES: [&str; 3] = ["auto", "native", "aso"];

    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "auto" => Self::Auto,
            "native" => Self::Only(AzureEngine::Native),
            "aso" => Self::Only(AzureEngine::Aso),
            _ => return None,
        })
    }

    /// What an object asks for, else what the flag says. A word that means nothing is told, with the value.
    pub fn of(metadata: &ObjectMeta, settings: &Settings) -> Result<Self, String> {
        let annotation = metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
        match annotation {
            Some(name) => Self::by_name(name).ok_or_else(|| name.clone()),
            None => {
                let flag = settings.flags.get(FLAG).and_then(Self::by_name);
                Ok(flag.unwrap_or_default())
            }
        }
    }
}

/// How the operator stands to a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Its definition of the kind is not installed.
    #[default]
    NotInstalled,
    /// It is installed without the version that the manifest is written in.
    VersionNotServed(String),
    /// The manager may not look at its objects of this kind.
    Forbidden(String),
    /// The kind is installed, and no operator holds the lease.
    NoLease,
    /// Whoever held the lease last renewed it then.
    Stopped(Timestamp),
    Running,
}

impl Standing {
    /// A word for a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NotInstalled => "NotInstalled",
            Self::VersionNotServed(_) => "VersionNotServed",
            Self::Forbidden(_) => "Forbidden",
            Self::NoLease | Self::Stopped(_) => "NotRunning",
            Self::Running => "Running",
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotInstalled => formatter.write_str("Azure Service Operator has not installed its kind"),
            Self::VersionNotServed(version) => {
                write!(
                    formatter,
                    "Azure Service Operator does not serve its version {version}"
                )
            }
            Self::Forbidden(group) => write!(
                formatter,
                "the manager has no right to its kind: label a ClusterRole with get, list, watch, create, patch and delete \
                 for it in {group} with cluster.x-k8s.io/aggregate-to-capz-manager: \"true\""
            ),
            Self::NoLease => {
                formatter.write_str("its kind is installed, and no Azure Service Operator holds its lease")
            }
            Self::Stopped(since) => write!(
                formatter,
                "its kind is installed, and no Azure Service Operator has renewed its lease since {since:.0}"
            ),
            Self::Running => formatter.write_str("Azure Service Operator is installed and running"),
        }
    }
}

/// What is known of a resource when its engine is chosen.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    pub asked: Wanted,
    /// Who has written it so far, as the record on the object says.
    pub recorded: Option<AzureEngine>,
    /// Whether the operator has an object for it that is ours, or nobody's and not told to leave it alone.
    pub has_object: bool,
    pub standing: &'a Standing,
}

/// Which engine writes a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    pub engine: AzureEngine,
    /// The engine that lets go of it first.
    pub from: Option<AzureEngine>,
    pub why: String,
    /// Why a switch that is asked for does not begin.
    pub held_up: Option<String>,
}

impl Choice {
    fn new(engine: AzureEngine, why: impl Into<String>) -> Self {
        Self {
            engine,
            why: why.into(),
            ..Self::default()
        }
    }

    fn from(mut self, engine: AzureEngine) -> Self {
        self.from = Some(engine);
        self
    }

    pub fn is_operated(&self) -> bool {
        self.engine == AzureEngine::Aso
    }

    /// Whether the operator is being told to let go of it.
    pub fn leaves_operator(&self) -> bool {
        self.from == Some(AzureEngine::Aso)
    }
}

/// Chooses the engine of a resource. What one engine has written stays with it until a switch is asked for, and a switch begins
/// only where the other engine is there to go on.
pub fn choose(facts: &Facts<'_>) -> Choice {
    use AzureEngine::{Aso, Native};
    let runs = *facts.standing == Standing::Running;
    match (facts.asked, facts.recorded) {
        (Wanted::Only(Native), recorded) => {
            let choice = Choice::new(Native, "native is asked for");
            if facts.has_object && recorded != Some(Native) {
                choice.from(Aso)
            } else {
                choice
            }
        }
        (_, Some(Aso)) => Choice::new(Aso, "it was handed to Azure Service Operator, and stays with it"),
        (Wanted::Only(Aso), Some(Native)) if runs => Choice::new(Aso, "aso is asked for").from(Native),
        (Wanted::Only(Aso), Some(Native)) => Choice {
            held_up: Some(facts.standing.to_string()),
            ..Choice::new(
                Native,
                "it was written natively, and stays so until Azure Service Operator runs",
            )
        },
        (Wanted::Auto, Some(Native)) => Choice::new(Native, "it was written natively, and stays so"),
        (_, None) if facts.has_object => Choice::new(Aso, "Azure Service Operator has an object for it"),
        (Wanted::Only(Aso), None) => Choice::new(Aso, "aso is asked for"),
        (Wanted::Auto, None) if runs => Choice::new(Aso, facts.standing.to_string()),
        (Wanted::Auto, None) => Choice::new(Native, facts.standing.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(asked: &str, recorded: Option<AzureEngine>, has_object: bool, standing: &Standing) -> String {
        let choice = choose(&Facts {
            asked: Wanted::by_name(asked).unwrap(),
            recorded,
            has_object,
            standing,
        });
        let from = choice.from.map_or(String::new(), |from| format!(" from {from}"));
        let held_up = choice
            .held_up
            .map_or(String::new(), |why| format!(" (held up: {why})"));
        format!("{}{from}: {}{held_up}", choice.engine, choice.why)
    }

    #[test]
    fn what_one_engine_wrote_stays_with_it_until_a_switch_is_asked_for() {
        use AzureEngine::{Aso, Native};
        let stopped = Standing::Stopped("2026-01-01T00:00:00Z".parse().unwrap());
        let standings = [
            Standing::NotInstalled,
            Standing::NoLease,
            stopped,
            Standing::Running,
        ];
        for standing in &standings {
            for has_object in [false, true] {
                let of = |asked, recorded| row(asked, recorded, has_object, standing);
                for asked in ["auto", "aso"] {
                    assert!(
                        of(asked, Some(Aso)).starts_with("aso: it was handed"),
                        "{asked} {standing}"
                    );
                }
                assert_eq!(
                    of("auto", Some(Native)),
                    "native: it was written natively, and stays so"
                );
                assert_eq!(of("native", Some(Native)), "native: native is asked for");
                let left = if has_object { "native from aso" } else { "native" };
                assert_eq!(of("native", Some(Aso)), format!("{left}: native is asked for"));
            }
        }
    }

    #[test]
    fn what_nobody_wrote_goes_to_the_operator_where_it_runs() {
        let new = |asked, standing: &Standing| row(asked, None, false, standing);
        assert_eq!(
            new("auto", &Standing::Running),
            "aso: Azure Service Operator is installed and running"
        );
        assert_eq!(
            new("auto", &Standing::NotInstalled),
            "native: Azure Service Operator has not installed its kind"
        );
        assert!(new("auto", &Standing::NoLease).starts_with("native: its kind is installed, and no"));
        assert_eq!(new("native", &Standing::Running), "native: native is asked for");
        // What is asked for by name is waited for.
        assert_eq!(new("aso", &Standing::NotInstalled), "aso: aso is asked for");
        // Its object counts, whether it runs or not.
        assert_eq!(
            row("auto", None, true, &Standing::NoLease),
            "aso: Azure Service Operator has an object for it"
        );
        assert_eq!(
            row("native", None, true, &Standing::Running),
            "native from aso: native is asked for"
        );
    }

    #[test]
    fn a_switch_to_the_operator_waits_until_it_runs() {
        let native = Some(AzureEngine::Native);
        assert_eq!(
            row("aso", native, false, &Standing::Running),
            "aso from native: aso is asked for"
        );
        assert_eq!(
            row("aso", native, false, &Standing::NotInstalled),
            "native: it was written natively, and stays so until Azure Service Operator runs (held up: Azure Service \
             Operator has not installed its kind)"
        );
    }
}
