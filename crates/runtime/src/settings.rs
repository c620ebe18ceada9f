//! What the user set for the controllers: the part of the manager's flags that a controller may read. The rest
//! (addresses, certificates, leadership) is the manager's own.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{
    duration,
    provider::{Gate, Stage},
};

/// Objects one controller works on at the same time, unless `--<controller>-concurrency` says otherwise.
pub const DEFAULT_CONCURRENCY: usize = 10;

/// Settings every controller shares.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Only objects of this namespace (`--namespace`); all namespaces if absent.
    pub namespace: Option<String>,
    /// Only objects whose label `cluster.x-k8s.io/watch-filter` has this value (`--watch-filter`).
    pub watch_filter: Option<String>,
    /// Every object is reconciled again at least this often (`--sync-period`).
    pub sync_period: Duration,
    /// By controller name (`--<controller>-concurrency`).
    pub concurrency: BTreeMap<String, usize>,
    pub gates: Gates,
    /// Values of the flags that providers registered.
    pub flags: Flags,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: None,
            watch_filter: None,
            sync_period: Duration::from_mins(10),
            concurrency: BTreeMap::new(),
            gates: Gates::default(),
            flags: Flags::default(),
        }
    }
}

impl Settings {
    pub fn concurrency(&self, controller: &str) -> usize {
        self.concurrency
            .get(controller)
            .copied()
            .unwrap_or(DEFAULT_CONCURRENCY)
    }
}

/// Which features are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    enabled: BTreeMap<String, bool>,
}

/// What is wrong with the value of `--feature-gates`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGate {
    #[error("missing bool value for {entry}: write {entry}=true or {entry}=false")]
    NoValue { entry: String },
    #[error("invalid value of {name}={value}: write true or false")]
    NotABoolean { name: String, value: String },
    #[error("unrecognized feature gate: {name}; {known}")]
    Unknown { name: String, known: String },
    #[error("cannot set feature gate {name} to {value}: the feature is stable and locked to {locked}")]
    Locked { name: String, value: bool, locked: bool },
}

impl Gates {
    /// The defaults of the registered gates.
    pub fn new(registered: &[Gate]) -> Self {
        Self {
            enabled: registered
                .iter()
                .map(|gate| (gate.name.to_owned(), gate.enabled_by_default))
                .collect(),
        }
    }

    /// Reads `Name=true,Other=false` over the defaults, by Kubernetes' rules: `AllAlpha` and `AllBeta` set every
    /// gate of that stage that is not named itself, and a stable feature cannot be changed.
    pub fn parse(text: &str, registered: &[Gate]) -> Result<Self, InvalidGate> {
        Ok(Self::parse_among(text, registered, &[])?.0)
    }

    /// The same, and which of the gates that belong to somebody else (`foreign`) were named: they switch nothing.
    pub fn parse_among(
        text: &str,
        registered: &[Gate],
        foreign: &[&str],
    ) -> Result<(Self, Vec<String>), InvalidGate> {
        let mut ignored = Vec::new();
        let mut gates = Self::new(registered);
        let mut named = Vec::new();
        let mut stages = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let Some((name, value)) = entry.split_once('=') else {
                return Err(InvalidGate::NoValue {
                    entry: entry.to_owned(),
                });
            };
            let (name, value) = (name.trim(), value.trim());
            let value = parse_boolean(value).ok_or_else(|| InvalidGate::NotABoolean {
                name: name.to_owned(),
                value: value.to_owned(),
            })?;
            match name {
                "AllAlpha" => stages.push((Stage::Alpha, value)),
                "AllBeta" => stages.push((Stage::Beta, value)),
                _ => named.push((name, value)),
            }
        }
        for (stage, value) in stages {
            for gate in registered.iter().filter(|gate| gate.stage == stage) {
                gates.enabled.insert(gate.name.to_owned(), value);
            }
        }
        for (name, value) in named {
            let Some(gate) = registered.iter().find(|gate| gate.name == name) else {
                if foreign.contains(&name) {
                    ignored.push(name.to_owned());
                    continue;
                }
                let mut known: Vec<&str> = registered.iter().map(|gate| gate.name).collect();
                known.sort_unstable();
                return Err(InvalidGate::Unknown {
                    name: name.to_owned(),
                    known: if known.is_empty() {
                        "no provider registers one".to_owned()
                    } else {
                        format!("known gates: {}", known.join(", "))
                    },
                });
            };
            if gate.stage == Stage::Stable && value != gate.enabled_by_default {
                return Err(InvalidGate::Locked {
                    name: name.to_owned(),
                    value,
                    locked: gate.enabled_by_default,
                });
            }
            gates.enabled.insert(name.to_owned(), value);
        }
        Ok((gates, ignored))
    }

    /// Whether a feature is on. A gate that nobody registered is off.
    pub fn enabled(&self, name: &str) -> bool {
        self.enabled.get(name).copied().unwrap_or(false)
    }

    /// For tests and embedding: the same gates with one set.
    pub fn with(mut self, name: &str, enabled: bool) -> Self {
        self.enabled.insert(name.to_owned(), enabled);
        self
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, bool)> {
        self.enabled
            .iter()
            .map(|(name, enabled)| (name.as_str(), *enabled))
    }
}

/// Values of provider flags, by flag id, as they were written (or defaulted).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Flags {
    values: BTreeMap<String, Vec<String>>,
}

/// Without their values: one may be a token.
impl fmt::Debug for Flags {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.values.keys()).finish()
    }
}

impl Flags {
    /// Takes the values of these flags out of parsed arguments.
    pub fn read(arguments: &clap::ArgMatches, flags: &[clap::Arg]) -> Self {
        let values = flags
            .iter()
            .filter_map(|flag| {
                let id = flag.get_id().as_str();
                let raw = arguments.try_get_raw(id).ok()??;
                let values = raw.map(|value| value.to_string_lossy().into_owned()).collect();
                Some((id.to_owned(), values))
            })
            .collect();
        Self { values }
    }

    /// For tests and embedding: the same flags with one set.
    pub fn with(mut self, id: &str, value: impl Into<String>) -> Self {
        self.values.entry(id.to_owned()).or_default().push(value.into());
        self
    }

    /// The last value, as with a flag that is given twice.
    pub fn get(&self, id: &str) -> Option<&str> {
        self.all(id).last().map(String::as_str)
    }

    /// Every value, for a flag that may be repeated.
    pub fn all(&self, id: &str) -> &[String] {
        self.values.get(id).map_or(&[], Vec::as_slice)
    }

    pub fn is_true(&self, id: &str) -> bool {
        self.get(id).and_then(parse_boolean).unwrap_or(false)
    }

    pub fn duration(&self, id: &str) -> Option<Duration> {
        self.get(id).and_then(|text| duration::parse(text).ok())
    }
}

/// Booleans as Go's flags read them.
pub fn parse_boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATES: &[Gate] = &[
        Gate {
            name: "Hoist",
            stage: Stage::Alpha,
            enabled_by_default: false,
            help: "",
        },
        Gate {
            name: "Anchor",
            stage: Stage::Beta,
            enabled_by_default: true,
            help: "",
        },
        Gate {
            name: "Keel",
            stage: Stage::Stable,
            enabled_by_default: true,
            help: "",
        },
    ];

    #[test]
    fn gates_start_at_their_defaults_and_follow_the_flag() {
        let gates = Gates::parse("Hoist=true, Anchor=0", GATES).unwrap();
        assert!(gates.enabled("Hoist") && !gates.enabled("Anchor") && gates.enabled("Keel"));
        assert_eq!(Gates::parse("", GATES).unwrap(), Gates::new(GATES));
        assert!(!gates.enabled("Unheard"));
    }

    #[test]
    fn a_named_gate_beats_its_stage_in_any_order() {
        let gates = Gates::parse("Hoist=false,AllAlpha=true,AllBeta=false", GATES).unwrap();
        assert!(!gates.enabled("Hoist") && !gates.enabled("Anchor"));
    }

    #[test]
    fn wrong_gates_say_what_would_be_right() {
        let message = |text| Gates::parse(text, GATES).unwrap_err().to_string();
        assert_eq!(
            message("Hoits=true"),
            "unrecognized feature gate: Hoits; known gates: Anchor, Hoist, Keel"
        );
        assert_eq!(
            message("Hoist"),
            "missing bool value for Hoist: write Hoist=true or Hoist=false"
        );
        assert_eq!(
            message("Hoist=yes"),
            "invalid value of Hoist=yes: write true or false"
        );
        assert_eq!(
            message("Keel=false"),
            "cannot set feature gate Keel to false: the feature is stable and locked to true"
        );
    }

    #[test]
    fn provider_flags_keep_what_was_written_or_defaulted() {
        let flags = [
            clap::Arg::new("hull").long("hull").default_value("5s"),
            clap::Arg::new("mast")
                .long("mast")
                .action(clap::ArgAction::Append),
            clap::Arg::new("sail")
                .long("sail")
                .action(clap::ArgAction::SetTrue),
        ];
        let matches = clap::Command::new("boat").args(flags.clone()).get_matches_from([
            "boat",
            "--mast=fore",
            "--mast=main",
            "--sail",
        ]);
        let read = Flags::read(&matches, &flags);
        assert_eq!(read.duration("hull"), Some(Duration::from_secs(5)));
        assert_eq!(read.all("mast"), ["fore", "main"]);
        assert!(read.is_true("sail"));
        assert_eq!(read.get("rudder"), None);
    }

    #[test]
    fn concurrency_falls_back_to_the_default() {
        let settings = Settings {
            concurrency: BTreeMap::from([("fleet".to_owned(), 3)]),
            ..Settings::default()
        };
        assert_eq!(settings.concurrency("fleet"), 3);
        assert_eq!(settings.concurrency("vessel"), DEFAULT_CONCURRENCY);
    }
}
