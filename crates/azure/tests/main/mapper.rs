//! The mapper's bodies against recorded ones, and recorded PUTs against the GETs that follow.

use std::collections::{BTreeMap, BTreeSet};

use secrecy::SecretString;
use serde_json::{Map, Value, json};
use slipway_azure::{
    arm::ResourceId,
    diff::{Record, differences, merge},
    resource::{AsoObject, Mapping, Reference, Resolver, Table, from_arm, id_of, needs, to_arm},
};

use crate::{
    recordings::{self, Exchange},
    samples,
};

const SUBSCRIPTION: &str = "00000000-0000-0000-0000-000000000000";

/// A body without nulls and empties, which the operator sends and Azure ignores.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(key, member)| (key.clone(), bare(member)))
                .filter(|(_, member)| !hollow(member))
                .collect::<Map<_, _>>(),
        ),
        Value::Array(list) => Value::Array(list.iter().map(bare).collect()),
        other => other.clone(),
    }
}

fn hollow(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

/// Resolves among the objects of one set of samples.
pub struct Samples<'e> {
    pub objects: Vec<AsoObject>,
    pub group: String,
    pub exchanges: &'e [Exchange],
}

impl Samples<'_> {
    fn id(&self, object: &AsoObject) -> Option<ResourceId> {
        let owner = match object.owner() {
            None => None,
            Some(owner) => Some(ResourceId::parse(&self.resource(&owner)?).ok()?),
        };
        id_of(object, owner.as_ref(), SUBSCRIPTION).ok()
    }
}

impl Resolver for Samples<'_> {
    fn subscription(&self) -> &str {
        SUBSCRIPTION
    }

    fn resource(&self, reference: &Reference) -> Option<String> {
        if let Some(id) = &reference.arm_id {
            return Some(id.clone());
        }
        if reference.kind == "ResourceGroup" {
            return Some(format!(
                "/subscriptions/{SUBSCRIPTION}/resourceGroups/{}",
                self.group
            ));
        }
        let ours = self
            .objects
            .iter()
            .find(|object| object.mapping.kind == reference.kind && object.name == reference.name);
        match ours {
            Some(object) => self.id(object).map(|id| id.to_string()),
            // A kind outside the table: the recording knows where it was created.
            None => self
                .exchanges
                .iter()
                .find(|exchange| {
                    exchange.method == "PUT" && exchange.path.ends_with(&format!("/{}", reference.name))
                })
                .map(|exchange| exchange.path.clone()),
        }
    }

    fn secret(&self, _: &str, _: &str) -> Option<SecretString> {
        Some(SecretString::from("a secret"))
    }

    fn secret_map(&self, _: &str) -> Option<BTreeMap<String, SecretString>> {
        Some(BTreeMap::new())
    }

    /// ConfigMaps of samples are exports of an identity: the recording has what it exported.
    fn config(&self, _: &str, key: &str) -> Option<String> {
        self.exchanges
            .iter()
            .filter(|exchange| exchange.path.contains("userAssignedIdentities"))
            .find_map(|exchange| exchange.answer.pointer(&format!("/properties/{key}"))?.as_str())
            .map(str::to_owned)
    }
}

impl Samples<'_> {
    /// Some samples were recorded under random names: where there is one recorded request of a kind and one object,
    /// the object takes that name.
    fn rename(&mut self) {
        for index in 0..self.objects.len() {
            let object = &self.objects[index];
            let known = self.id(object).is_some_and(|id| {
                self.exchanges.iter().any(|exchange| {
                    exchange.method == "PUT" && exchange.path.eq_ignore_ascii_case(id.as_str())
                })
            });
            let alone = self
                .objects
                .iter()
                .filter(|other| other.mapping.arm_type == object.mapping.arm_type)
                .count()
                == 1;
            if known || !alone {
                continue;
            }
            let mut names: Vec<String> = self
                .exchanges
                .iter()
                .filter(|exchange| exchange.method == "PUT")
                .filter_map(|exchange| ResourceId::parse(&exchange.path).ok())
                .filter(|id| id.resource_type().eq_ignore_ascii_case(&object.mapping.arm_type))
                .map(|id| id.name().to_owned())
                .collect();
            names.dedup();
            if let [name] = names.as_slice() {
                let name = Value::String(name.clone());
                self.objects[index].spec.insert("azureName".to_owned(), name);
            }
        }
    }
}

/// The tester of the module points armIds of samples into its own resource group.
fn localise(value: &mut Value, group: &str) {
    match value {
        Value::Object(members) => {
            for (key, member) in members.iter_mut() {
                if key.eq_ignore_ascii_case("armId")
                    && let Value::String(id) = member
                {
                    let parts: Vec<&str> = id.split('/').collect();
                    let rewritten: Vec<String> = parts
                        .iter()
                        .enumerate()
                        .map(|(index, part)| {
                            if index > 0 && parts[index - 1].eq_ignore_ascii_case("resourceGroups") {
                                group.to_owned()
                            } else {
                                (*part).to_owned()
                            }
                        })
                        .collect();
                    *id = rewritten.join("/");
                } else {
                    localise(member, group);
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|item| localise(item, group)),
        _ => {}
    }
}

const CHILDREN: &[&str] = &[
    "subnets",
    "virtualNetworkPeerings",
    "routes",
    "securityRules",
    "inboundNatRules",
];

fn names(list: &Value) -> Vec<&str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(|child| child["name"].as_str())
        .collect()
}

#[test]
fn put_bodies_equal_the_recorded_ones() {
    let mut compared = 0;
    let mut equal = 0;
    let mut kinds = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut absent = Vec::new();
    for set in recordings::sets() {
        let Some(exchanges) = set.exchanges() else {
            continue;
        };
        let folder = &set.name;
        let Some(resource_group) = exchanges.iter().find_map(|exchange| {
            ResourceId::parse(&exchange.path)
                .ok()?
                .resource_group_name()
                .map(str::to_owned)
        }) else {
            continue;
        };
        let objects: Vec<AsoObject> = set
            .manifests
            .iter()
            .filter_map(|manifest| {
                let mut manifest = samples::mended(manifest);
                localise(&mut manifest, &resource_group);
                let parsed = AsoObject::parse(&manifest);
                if let Err(error) = &parsed
                    && manifest["kind"] != "Secret"
                    && manifest["kind"] != "ConfigMap"
                {
                    absent.push(format!("{folder}: {error}"));
                }
                parsed.ok()
            })
            .collect();
        let mut samples = Samples {
            objects,
            group: resource_group,
            exchanges: &exchanges,
        };
        samples.rename();
        samples.rename();
        for object in &samples.objects {
            let put = match to_arm(object, &samples) {
                Ok(put) => put,
                Err(error) => {
                    absent.push(format!("{folder} {}: {error}", object.display()));
                    continue;
                }
            };
            assert!(needs(object).is_ok());
            let is_put = |exchange: &Exchange| {
                exchange.method == "PUT" && exchange.path.eq_ignore_ascii_case(put.id.as_str())
            };
            // One folder may have a resource in two versions.
            let found = exchanges
                .iter()
                .position(|exchange| is_put(exchange) && exchange.api_version == put.mapping.api_version);
            let Some(position) = found else {
                let other = exchanges.iter().find(|exchange| is_put(exchange));
                assert!(other.is_none(), "{}: {other:?}", object.display());
                absent.push(format!("{folder} {}: not in the recording", object.display()));
                continue;
            };
            let recorded = &exchanges[position];
            compared += 1;
            let mut ours = put.body.clone();
            let mut theirs = recorded.sent.clone();
            for pointer in &put.secrets {
                for body in [&mut ours, &mut theirs] {
                    if let Some(place) = body.pointer_mut(pointer) {
                        *place = Value::Null;
                    }
                }
            }
            // A parent that was already there is sent with the children it has.
            let observed = exchanges[..position].iter().rev().find(|exchange| {
                exchange.method == "GET"
                    && exchange.status == 200
                    && exchange.path.eq_ignore_ascii_case(put.id.as_str())
            });
            if let Some(observed) = observed {
                let merged = merge(&put.mapping, &put.body, Some(&observed.answer), None);
                for list in CHILDREN {
                    let pointer = format!("/properties/{list}");
                    if let Some(children) = merged.pointer(&pointer)
                        && ours.pointer(&pointer).is_none()
                        && theirs.pointer(&pointer).is_some()
                    {
                        assert_eq!(
                            names(children),
                            names(theirs.pointer(&pointer).unwrap()),
                            "{}",
                            object.display()
                        );
                        theirs["properties"].as_object_mut().unwrap().remove(*list);
                    }
                }
            }
            // A vault of that name had been deleted: the operator looked for it, and recovered it.
            let mode = "/properties/createMode";
            if theirs.pointer(mode).is_some_and(|mode| mode == "recover") {
                theirs["properties"]["createMode"] = "default".into();
            }
            let (ours, theirs) = (bare(&ours), bare(&theirs));
            if ours == theirs {
                equal += 1;
                kinds.insert((
                    put.mapping.arm_type.to_lowercase(),
                    put.mapping.api_version.clone(),
                ));
            } else {
                wrong.push(format!(
                    "{folder} {}\n  ours   {ours}\n  theirs {theirs}",
                    object.display()
                ));
            }
        }
    }
    println!(
        "report: azure mapper: {compared} recorded PUTs of samples, {equal} equal, {} kinds and versions",
        kinds.len()
    );
    for line in &absent {
        println!("report: azure mapper: not compared: {line}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared >= 380, "only {compared} bodies could be compared");
}

fn followed(exchanges: &[Exchange], index: usize) -> Option<&Exchange> {
    let path = &exchanges[index].path;
    exchanges[index + 1..]
        .iter()
        .take_while(|exchange| {
            !(exchange.path.eq_ignore_ascii_case(path)
                && matches!(exchange.method.as_str(), "PUT" | "DELETE"))
        })
        .filter(|exchange| {
            exchange.method == "GET" && exchange.status == 200 && exchange.path.eq_ignore_ascii_case(path)
        })
        .filter(|exchange| {
            exchange
                .answer
                .pointer("/properties/provisioningState")
                .is_none_or(|state| state == "Succeeded")
        })
        .last()
}

/// The groups whose kinds are compared with what Azure shows without a word from the record: those that clusters are made of. What
/// Azure spells otherwise in the others is noted after our own change, and not fought.
const COMPARED: &[&str] = &[
    "authorization.azure.com",
    "containerservice.azure.com",
    "kubernetesconfiguration.azure.com",
    "managedidentity.azure.com",
    "network.azure.com",
    "resources.azure.com",
];

/// What Azure made of our own change is noted and differs no more, in every kind. What somebody makes of it afterwards does.
fn assert_record_settles(name: &str, mapping: &Mapping, sent: &Value, shown: &Value) {
    let record = Record::sent(sent, &[]).settle(mapping, shown);
    let left = differences(mapping, sent, shown, Some(&record), &[]);
    let left: Vec<String> = left.iter().map(ToString::to_string).collect();
    assert_eq!(left, Vec::<String>::new(), "{name}: {}", mapping.kind);
    for pointer in record.accepted.keys() {
        let mut meddled = shown.clone();
        let Some(place) = meddled.pointer_mut(pointer).filter(|place| place.is_string()) else {
            continue;
        };
        *place = json!("meddled with");
        let found = differences(mapping, sent, &meddled, Some(&record), &[]);
        assert!(!found.is_empty(), "{name}: {} {pointer}", mapping.kind);
    }
}

#[test]
fn a_recorded_put_and_the_get_after_it_show_no_difference() {
    let mut compared = 0;
    let (mut spurious, mut remembered) = (Vec::new(), 0);
    let mut statuses = 0;
    for (name, exchanges) in recordings::named(&[
        "AKS",
        "Containerservice",
        "KubernetesConf",
        "Kubernetesconf",
        "Network",
        "ManagedIdentity",
        "Managedidentity",
        "Authorization",
        "ResourceGroup",
        "Resources",
        "OwnerIsARMID",
    ]) {
        for (index, put) in exchanges.iter().enumerate() {
            if put.method != "PUT" || put.status >= 300 {
                continue;
            }
            let Ok(id) = ResourceId::parse(&put.path) else {
                continue;
            };
            let Some(mapping) = Table::get().by_arm_type(&id.resource_type(), &put.api_version) else {
                continue;
            };
            let Some(get) = followed(&exchanges, index) else {
                continue;
            };
            compared += 1;
            let found = differences(&mapping, &put.sent, &get.answer, None, &[]);
            assert_record_settles(&name, &mapping, &put.sent, &get.answer);
            for difference in found {
                if COMPARED.contains(&mapping.group.as_str()) {
                    spurious.push(format!("{name}: {}: {difference}", mapping.kind));
                } else {
                    remembered += 1;
                }
            }
            let status = from_arm(&mapping, &get.answer);
            assert_eq!(status.get("id"), get.answer.get("id"), "{name}: {}", mapping.kind);
            statuses += 1;
        }
    }
    println!(
        "report: azure diff: {compared} recorded PUTs followed by a GET, {} spurious differences, {remembered} in kinds that only the \
         record settles, {statuses} statuses read",
        spurious.len()
    );
    spurious.sort();
    spurious.dedup();
    assert!(spurious.is_empty(), "{}", spurious.join("\n"));
    assert!(compared >= 100, "only {compared} pairs found");
}

#[test]
fn the_table_is_what_the_pinned_modules_say() {
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/src/resource/table");
    let generator = concat!(env!("CARGO_MANIFEST_DIR"), "/../../parts/aso-table");
    let output = std::process::Command::new("go")
        .args(["run", ".", "-check", table])
        .current_dir(generator)
        .output()
        .expect("go is installed");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
