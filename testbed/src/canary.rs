//! Canary secrets: values that are planted where a manager reads secrets, and looked for in everything it says. Logs,
//! metrics, events, objects: none may show one, not even in base64.

use std::{collections::BTreeSet, fmt, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams},
    core::GroupVersionKind,
};
use rand::Rng;

/// Shorter values are found by chance.
const SHORTEST: usize = 16;

/// An API server that puts a list off more often than this is not well.
const LONGEST_WAITS: usize = 30;

/// The planted values.
#[derive(Clone, Default)]
pub struct Canaries {
    planted: Vec<Planted>,
}

#[derive(Clone)]
struct Planted {
    name: String,
    /// The value and its other writings.
    writings: Vec<String>,
}

/// Where a planted value was seen. It does not repeat the value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sighting {
    pub canary: String,
    /// A log file, a page, an object.
    pub place: String,
    /// Counted from one.
    pub line: usize,
}

impl fmt::Display for Sighting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "the secret {:?} is in {}, line {}",
            self.canary, self.place, self.line
        )
    }
}

impl fmt::Debug for Canaries {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.planted.iter().map(|planted| planted.name.as_str()).collect();
        formatter
            .debug_struct("Canaries")
            .field("planted", &names)
            .finish()
    }
}

impl Canaries {
    /// A new value to plant; `name` says which it is when it is seen.
    pub fn hatch(&mut self, name: &str) -> String {
        let value = format!("canary-{}", hex::encode(rand::rng().random::<[u8; 16]>()));
        self.add(name, &value);
        value
    }

    /// A value that is a secret already, such as a private key. Of several lines each counts: a log would break them.
    ///
    /// # Panics
    /// If the value has no line long enough to be told from chance.
    pub fn add(&mut self, name: &str, value: &str) {
        let lines: Vec<&str> = value
            .lines()
            .map(str::trim)
            .filter(|line| line.len() >= SHORTEST && !line.starts_with("-----"))
            .collect();
        assert!(
            !lines.is_empty(),
            "the canary {name:?} is too short to be looked for"
        );
        let writings = lines
            .iter()
            .flat_map(|line| in_base64(line).into_iter().chain([(*line).to_owned()]))
            .collect();
        self.planted.push(Planted {
            name: name.to_owned(),
            writings,
        });
    }

    /// Looks through a text.
    pub fn sightings(&self, place: &str, text: &str) -> Vec<Sighting> {
        let mut seen = Vec::new();
        for (index, line) in text.lines().enumerate() {
            for planted in &self.planted {
                if planted
                    .writings
                    .iter()
                    .any(|writing| line.contains(writing.as_str()))
                {
                    seen.push(Sighting {
                        canary: planted.name.clone(),
                        place: place.to_owned(),
                        line: index + 1,
                    });
                }
            }
        }
        seen
    }

    /// Looks through every event of a cluster and every object of its custom kinds, with their statuses. The Secrets
    /// themselves are where the values belong.
    pub async fn sightings_in_cluster(&self, client: &Client) -> Result<Vec<Sighting>, kube::Error> {
        let of_core = |kind: &str, plural: &str| (String::new(), "v1".into(), kind.into(), plural.into());
        let mut resources: BTreeSet<(String, String, String, String)> =
            BTreeSet::from([of_core("Event", "events"), of_core("ConfigMap", "configmaps")]);
        let crds = Api::<CustomResourceDefinition>::all(client.clone())
            .list(&ListParams::default())
            .await?;
        for crd in crds {
            let stored = crd.spec.versions.iter().find(|version| version.storage);
            if let Some(version) = stored {
                let names = &crd.spec.names;
                resources.insert((
                    crd.spec.group.clone(),
                    version.name.clone(),
                    names.kind.clone(),
                    names.plural.clone(),
                ));
            }
        }
        let mut seen = Vec::new();
        for (group, version, kind, plural) in resources {
            let gvk = GroupVersionKind::gvk(&group, &version, &kind);
            let api: Api<DynamicObject> =
                Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, &plural));
            for object in list(&api).await? {
                let place = format!(
                    "{kind} {}/{}",
                    object.metadata.namespace.as_deref().unwrap_or_default(),
                    object.metadata.name.as_deref().unwrap_or_default()
                );
                let text = serde_json::to_string(&object).map_err(kube::Error::SerdeError)?;
                seen.extend(self.sightings(&place, &text));
            }
        }
        Ok(seen)
    }
}

/// Lists, and waits as it is told to: the API server makes a kind's cache when it is first asked for.
async fn list(api: &Api<DynamicObject>) -> Result<Vec<DynamicObject>, kube::Error> {
    let mut waits = 0;
    loop {
        match api.list(&ListParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 429 && waits < LONGEST_WAITS => {
                waits += 1;
                let seconds = status
                    .details
                    .as_ref()
                    .map_or(1, |details| details.retry_after_seconds);
                tokio::time::sleep(Duration::from_secs(u64::from(seconds))).await;
            }
            other => return other.map(|found| found.items),
        }
    }
}

/// The value in base64 as part of a longer text: it may begin at any of three places in a group. The letters at both
/// ends depend on the neighbours and are left out.
fn in_base64(value: &str) -> Vec<String> {
    (0..3)
        .map(|before| {
            let mut bytes = vec![0; before];
            bytes.extend_from_slice(value.as_bytes());
            let first = (before * 8).div_ceil(6);
            let whole = bytes.len() * 8 / 6;
            BASE64_STANDARD.encode(&bytes)[first..whole].to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_seen_in_any_line_and_nothing_else_is() {
        let mut canaries = Canaries::default();
        let token = canaries.hatch("token");
        let page = format!("# HELP calls\ncalls{{url=\"https://x?sig={token}&a\"}} 3\nothers 4\n");
        let seen = canaries.sightings("metrics", &page);
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].to_string(), "the secret \"token\" is in metrics, line 2");
        assert!(canaries.sightings("metrics", "calls 3\ncanary-no\n").is_empty());
        assert!(!format!("{canaries:?} {seen:?}").contains(&token));
    }

    #[test]
    fn base64_hides_nothing_wherever_the_value_begins() {
        let mut canaries = Canaries::default();
        let token = canaries.hatch("token");
        for before in ["", "a", "ab", "abc"] {
            for after in ["", "z", "yz"] {
                let text = BASE64_STANDARD.encode(format!("{before}{token}{after}"));
                assert_eq!(canaries.sightings("log", &text).len(), 1, "{before:?} {after:?}");
            }
        }
    }

    #[test]
    fn each_line_of_a_key_counts() {
        let mut canaries = Canaries::default();
        canaries.add(
            "key",
            "-----BEGIN KEY-----\nAAAABBBBCCCCDDDDEEEE\nFFFFGGGGHHHHIIIIJJJJ\n-----END KEY-----\n",
        );
        assert_eq!(canaries.sightings("log", "it is FFFFGGGGHHHHIIIIJJJJ").len(), 1);
        assert!(canaries.sightings("log", "-----BEGIN KEY-----").is_empty());
    }
}
