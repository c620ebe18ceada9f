//! One value that Cluster API decides, and how it goes into a manifest.

use std::fmt;

use serde_json::Value;

use crate::inline::{Problem, spec_member};

/// A value that was set, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub path: String,
    pub value: Value,
    /// Reads on after "because".
    pub reason: String,
}

impl fmt::Display for Setting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} is {} because {}",
            self.path, self.value, self.reason
        )
    }
}

impl Setting {
    /// Sets a member of the manifest's spec, unless the user wrote another value there.
    pub(super) fn apply(
        manifest: &mut Value,
        at: &str,
        names: &[&str],
        value: Value,
        reason: String,
    ) -> Result<Self, Problem> {
        let path = format!("{at}.spec.{}", names.join("."));
        let Some(place) = spec_member(manifest, names) else {
            return Err(Problem::Malformed {
                path,
                expected: "what it stands in must be an object",
            });
        };
        if !place.is_null() && *place != value {
            return Err(Problem::Incompatible {
                path,
                written: place.clone(),
                value,
                reason,
            });
        }
        place.clone_from(&value);
        Ok(Self { path, value, reason })
    }
}
