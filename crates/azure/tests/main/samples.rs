//! Every sample manifest of the pinned module, whether or not its requests were recorded: it becomes a request, and what Azure would
//! show of that is what the sample says.

use std::collections::{BTreeMap, BTreeSet};

use secrecy::SecretString;
use serde_json::Value;
use slipway_azure::resource::{AsoObject, Reference, Resolver, Table, from_arm, to_arm};

use crate::{mapper::Samples, recordings};

/// Resolves among the samples of one group and version; what is elsewhere is somewhere.
struct Anywhere<'s>(&'s Samples<'s>);

impl Resolver for Anywhere<'_> {
    fn subscription(&self) -> &str {
        self.0.subscription()
    }

    fn resource(&self, reference: &Reference) -> Option<String> {
        self.0.resource(reference).or_else(|| {
            let group = format!("/subscriptions/{}/resourceGroups/samples", self.subscription());
            Some(format!(
                "{group}/providers/Microsoft.Elsewhere/{}/{}",
                reference.kind, reference.name
            ))
        })
    }

    fn secret(&self, name: &str, key: &str) -> Option<SecretString> {
        self.0.secret(name, key)
    }

    fn secret_map(&self, name: &str) -> Option<BTreeMap<String, SecretString>> {
        self.0.secret_map(name)
    }

    fn config(&self, _: &str, key: &str) -> Option<String> {
        Some(format!("what {key} holds"))
    }
}

/// What a sample says and what is shown of it: values at the same place in the same form are equal.
#[derive(Default)]
struct Compared {
    equal: usize,
    wrong: Vec<String>,
}

impl Compared {
    fn compare(&mut self, path: &str, said: &Value, shown: &Value) {
        match (said, shown) {
            (Value::Object(said), Value::Object(shown)) => {
                for (key, said) in said {
                    if let Some(shown) = shown.get(key) {
                        self.compare(&format!("{path}.{key}"), said, shown);
                    }
                }
            }
            (Value::Array(said), Value::Array(shown)) => {
                if said.len() != shown.len() {
                    self.wrong.push(format!(
                        "{path} has {} members, {} are shown",
                        said.len(),
                        shown.len()
                    ));
                }
                for (index, (said, shown)) in said.iter().zip(shown).enumerate() {
                    self.compare(&format!("{path}[{index}]"), said, shown);
                }
            }
            (said, shown) if said == shown => self.equal += 1,
            // The operator's own word: it looks for a vault that was deleted, and Azure is told one of two others.
            (said, _) if said == "createOrRecover" => {}
            // Lists of identities and references are shown in a form of their own.
            (Value::Object(_) | Value::Array(_), _) | (_, Value::Object(_) | Value::Array(_)) => {}
            (said, shown) => self.wrong.push(format!("{path} is {said}, and {shown} is shown")),
        }
    }
}

/// Samples with members that their types do not have: a reference that is written `ARMID`, the location of a child.
const REFUSED: &[&str] = &[
    "alertsmanagement/v1api20210401 SmartDetectorAlertRule ",
    "signalrservice/v1api20240301 CustomCertificate ",
    "signalrservice/v1api20240301 CustomDomain ",
];

#[test]
fn every_sample_becomes_a_request_and_comes_back() {
    let mut versions: BTreeSet<(String, String)> = BTreeSet::new();
    let mut left: BTreeSet<(String, String, String)> = BTreeSet::new();
    for mapping in Table::get().all() {
        let group = mapping.group.replace(".azure.com", "");
        if recordings::MODULE
            .join("api")
            .join(&group)
            .join(&mapping.version)
            .is_dir()
        {
            versions.insert((group.clone(), mapping.version.clone()));
            left.insert((group, mapping.version, mapping.kind));
        }
    }
    let known = left.len();
    let (mut samples, mut compared, mut refused) = (0, Compared::default(), Vec::new());
    for (group, version) in versions {
        let manifests = recordings::samples(&group, &version);
        let objects: Vec<AsoObject> = manifests
            .iter()
            .filter_map(|one| AsoObject::parse(one).ok())
            .collect();
        for manifest in &manifests {
            let kind = manifest["kind"].as_str().unwrap_or_default();
            let here = (group.clone(), version.clone(), kind.to_owned());
            let is_of_here = manifest["apiVersion"] == format!("{group}.azure.com/{version}");
            if is_of_here && left.contains(&here) {
                AsoObject::parse(manifest)
                    .unwrap_or_else(|error| panic!("{group}/{version} {kind}: {error}"));
            }
        }
        let all = Samples {
            objects,
            group: "samples".to_owned(),
            exchanges: &[],
        };
        for object in &all.objects {
            let name = format!("{group}/{version} {}", object.display());
            let put = match to_arm(object, &Anywhere(&all)) {
                Ok(put) => put,
                Err(error) => {
                    refused.push(format!("{name}: {error}"));
                    continue;
                }
            };
            assert!(!put.mapping.api_version.is_empty());
            let shown = from_arm(&put.mapping, &put.body);
            compared.compare(&name, &Value::Object(object.spec.clone()), &shown);
            samples += 1;
            let mapping = &object.mapping;
            left.remove(&(
                mapping.group.replace(".azure.com", ""),
                mapping.version.clone(),
                mapping.kind.clone(),
            ));
        }
    }
    println!(
        "report: azure mapper: {samples} samples, {} of {known} kinds and versions have one, {} values come back as they were said",
        known - left.len(),
        compared.equal
    );
    for (group, version, kind) in &left {
        println!("report: azure mapper: no sample: {group}/{version} {kind}");
    }
    let unexpected: Vec<&String> = refused
        .iter()
        .filter(|line| !REFUSED.iter().any(|known| line.starts_with(known)))
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    assert!(compared.wrong.is_empty(), "{}", compared.wrong.join("\n"));
    assert!(compared.equal >= 1_400, "only {} values", compared.equal);
    assert!(known - left.len() >= 318, "only {} kinds", known - left.len());
}
