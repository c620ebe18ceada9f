//! Every sample manifest of the pinned module, whether or not its requests were recorded: it becomes a request, and what Azure would
//! show of that is what the sample says.

use std::collections::{BTreeMap, BTreeSet};

use secrecy::SecretString;
use serde_json::{Value, json};
use slipway_azure::resource::{AsoObject, Mapping, Reference, Resolver, Table, from_arm, to_arm};

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

/// Three samples have members that their types do not have, which an API server drops: a name in other letters, the location of a
/// child, a reference without its level. They are read as they are meant.
pub fn mended(manifest: &Value) -> Value {
    let mut manifest = manifest.clone();
    match manifest["kind"].as_str() {
        Some("SmartDetectorAlertRule") => {
            let text = manifest.to_string();
            let text = text
                .replace("\"ARMID\"", "\"armId\"")
                .replace("\"GroupReferences\"", "\"groupReferences\"");
            manifest = serde_json::from_str(&text).expect("a manifest");
        }
        Some("CustomCertificate" | "CustomDomain") => {
            if let Some(spec) = manifest["spec"].as_object_mut() {
                spec.remove("location");
                if let Some(reference) = spec.remove("customCertificate") {
                    spec.insert("customCertificate".to_owned(), json!({"reference": reference}));
                }
            }
        }
        _ => {}
    }
    manifest
}

/// What v2.13 has no sample of, in any folder.
const WITHOUT: &[&str] = &[
    "documentdb/v1api20240815 MongodbRoleDefinition",
    "network/v1api20240301 AzureFirewall",
    "network/v1api20240301 FirewallPoliciesRuleCollectionGroup",
    "network/v1api20240301 FirewallPolicy",
    "servicebus/v1api20221001preview Namespace",
    "servicebus/v1api20221001preview NamespacesAuthorizationRule",
    "servicebus/v1api20221001preview NamespacesQueue",
    "servicebus/v1api20221001preview NamespacesTopic",
    "servicebus/v1api20221001preview NamespacesTopicsSubscription",
    "servicebus/v1api20221001preview NamespacesTopicsSubscriptionsRule",
];

fn kind_version(mapping: &Mapping) -> String {
    let group = mapping.group.replace(".azure.com", "");
    format!("{group}/{} {}", mapping.version, mapping.kind)
}

#[test]
fn every_sample_becomes_a_request_and_comes_back() {
    let folder_of = |mapping: &Mapping| {
        let group = mapping.group.replace(".azure.com", "");
        recordings::MODULE.join("api").join(group).join(&mapping.version)
    };
    let known: BTreeSet<String> = Table::get()
        .all()
        .filter(|mapping| folder_of(mapping).is_dir())
        .map(|mapping| kind_version(&mapping))
        .collect();
    let mut covered = BTreeSet::new();
    let (mut samples, mut compared, mut refused) = (0, Compared::default(), Vec::new());
    for set in recordings::sets() {
        let mut objects = Vec::new();
        for manifest in &set.manifests {
            let (version, kind) = (manifest["apiVersion"].as_str(), manifest["kind"].as_str());
            let (version, kind) = (version.unwrap_or_default(), kind.unwrap_or_default());
            let name = format!("{} {kind}", version.replace(".azure.com", ""));
            match AsoObject::parse(&mended(manifest)) {
                Ok(object) => objects.push(object),
                Err(error) => assert!(!known.contains(&name), "{}: {name}: {error}", set.name),
            }
        }
        let all = Samples {
            objects,
            group: "samples".to_owned(),
            exchanges: &[],
        };
        for object in &all.objects {
            let name = format!("{} {}", set.name, object.display());
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
            covered.insert(kind_version(&object.mapping));
        }
    }
    let without: Vec<&String> = known.difference(&covered).collect();
    println!(
        "report: azure mapper: {} kinds and versions in the table, {} in v2.13, {samples} samples of {} of them, {} without, {} values come \
         back as they were said",
        Table::get().all().count(),
        known.len(),
        known.intersection(&covered).count(),
        without.len(),
        compared.equal
    );
    assert!(refused.is_empty(), "{refused:#?}");
    assert_eq!(without, WITHOUT, "what has no sample");
    assert!(compared.wrong.is_empty(), "{}", compared.wrong.join("\n"));
    assert!(compared.equal >= 1_800, "only {} values", compared.equal);
}
