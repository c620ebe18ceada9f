//! The table: per kind and version the ARM type, api-version, scope and owner, and per field its place in the body.
//! Loaded on first use.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ResourceError;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let raw: Raw = serde_json::from_str(include_str!("table.json")).expect("the committed table is JSON");
    Table {
        kinds: raw.kinds,
        structs: raw.structs.into_iter().map(Struct::from).collect(),
        source: format!("{}@{}", raw.module, raw.version),
    }
});

#[derive(Deserialize)]
struct Raw {
    module: String,
    version: String,
    kinds: BTreeMap<String, BTreeMap<String, Kind>>,
    structs: Vec<RawStruct>,
}

#[derive(Deserialize)]
struct RawStruct {
    f: Vec<Vec<Value>>,
    p: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    arm_type: String,
    scope: Scope,
    owner: Option<String>,
    name: Option<String>,
    versions: BTreeMap<String, Version>,
}

#[derive(Debug, Deserialize)]
struct Version {
    api: String,
    spec: usize,
    status: usize,
}

/// What a resource stands below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Scope {
    /// The subscription itself: a resource group.
    Subscription,
    /// A resource group or a resource in one.
    ResourceGroup,
    /// Any resource.
    Extension,
    Tenant,
}

/// What sort of value a field holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    Plain,
    Enum(Vec<String>),
    Struct(usize),
    List(Box<Self>),
    Map(Box<Self>),
    /// `{group, kind, name}` or `{armId}`, sent as an ARM id.
    Reference,
    /// `{name, key}` of a Secret, sent as its value.
    Secret,
    /// `{name}` of a Secret, sent as a map.
    SecretMap,
    /// `{name, key}` of a ConfigMap, sent as its value.
    Config,
    /// A list of `{reference}`, sent as a map from ARM id to `{}`.
    Identities,
}

#[derive(Debug)]
pub(super) struct Field {
    pub name: String,
    /// Its name in the body.
    pub target: String,
    /// Whether it stands below the struct's `properties`.
    pub nested: bool,
    pub form: Form,
    /// Whether an empty collection must be sent to empty it.
    pub explicit_empty: bool,
}

#[derive(Debug)]
pub(super) struct Struct {
    /// By name, in order.
    pub fields: Vec<Field>,
    /// The body's member that holds nested fields.
    pub properties: Option<String>,
}

impl Struct {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields
            .binary_search_by(|field| field.name.as_str().cmp(name))
            .ok()
            .map(|index| &self.fields[index])
    }
}

impl From<RawStruct> for Struct {
    fn from(raw: RawStruct) -> Self {
        let mut fields: Vec<Field> = raw
            .f
            .iter()
            .map(|entry| {
                let name = entry[0].as_str().unwrap_or_default().to_owned();
                let path = entry.get(1).and_then(Value::as_str).unwrap_or(&name);
                let below = raw
                    .p
                    .as_ref()
                    .and_then(|properties| path.strip_prefix(properties.as_str()))
                    .and_then(|rest| rest.strip_prefix('.'));
                Field {
                    target: below.unwrap_or(path).to_owned(),
                    nested: below.is_some(),
                    form: form(entry.get(2).unwrap_or(&Value::Null)),
                    explicit_empty: entry.get(3).is_some(),
                    name,
                }
            })
            .collect();
        fields.sort_by(|left, right| left.name.cmp(&right.name));
        Self {
            fields,
            properties: raw.p,
        }
    }
}

fn form(value: &Value) -> Form {
    let inner = |list: &Vec<Value>| Box::new(form(list.get(1).unwrap_or(&Value::Null)));
    match value {
        Value::Number(index) => Form::Struct(index.as_u64().unwrap_or_default() as usize),
        Value::String(name) => match name.as_str() {
            "reference" => Form::Reference,
            "secret" => Form::Secret,
            "secrets" => Form::SecretMap,
            "config" => Form::Config,
            "identities" => Form::Identities,
            _ => Form::Plain,
        },
        Value::Array(list) => match list.first().and_then(Value::as_str) {
            Some("list") => Form::List(inner(list)),
            Some("map") => Form::Map(inner(list)),
            Some("enum") => Form::Enum(
                list[1..]
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
            ),
            _ => Form::Plain,
        },
        _ => Form::Plain,
    }
}

/// How objects of one kind and version map to ARM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub group: String,
    pub kind: String,
    pub version: String,
    pub arm_type: &'static str,
    pub api_version: String,
    pub scope: Scope,
    /// The group and kind of the owner; `None`: any resource, named in full by the object.
    pub owner: Option<(&'static str, &'static str)>,
    /// A name that cannot be chosen.
    pub fixed_name: Option<&'static str>,
    pub spec: usize,
    pub status: usize,
    /// Whether the version itself is in the table. If not, the nearest one serves, and fields it does not know are
    /// passed on as they are.
    pub exact: bool,
}

impl Mapping {
    /// A value as far as a field of this version's spec can hold it, and what of it was left out, by path. A version
    /// outside the table is taken to have every field.
    pub fn fit(&self, field: &str, value: &Value) -> (Value, Vec<String>) {
        let mut left_out = Vec::new();
        let known = Table::get().structure(self.spec).field(field);
        let fitted = match known {
            _ if !self.exact => value.clone(),
            Some(known) => fit(&known.form, value, field, &mut left_out),
            None => {
                left_out.push(field.to_owned());
                Value::Null
            }
        };
        (fitted, left_out)
    }
}

fn fit(form: &Form, value: &Value, path: &str, left_out: &mut Vec<String>) -> Value {
    match (form, value) {
        (Form::List(inner), Value::Array(items)) => items
            .iter()
            .enumerate()
            .map(|(index, item)| fit(inner, item, &format!("{path}[{index}]"), left_out))
            .collect(),
        (Form::Map(inner), Value::Object(members)) => members
            .iter()
            .map(|(key, member)| {
                (
                    key.clone(),
                    fit(inner, member, &format!("{path}.{key}"), left_out),
                )
            })
            .collect::<Map<_, _>>()
            .into(),
        (Form::Struct(index), Value::Object(members)) => {
            let structure = Table::get().structure(*index);
            let mut kept = Map::new();
            for (name, member) in members {
                let here = format!("{path}.{name}");
                match structure.field(name) {
                    Some(field) => {
                        kept.insert(name.clone(), fit(&field.form, member, &here, left_out));
                    }
                    None => left_out.push(here),
                }
            }
            Value::Object(kept)
        }
        _ => value.clone(),
    }
}

/// All kinds served.
#[derive(Debug)]
pub struct Table {
    kinds: BTreeMap<String, BTreeMap<String, Kind>>,
    structs: Vec<Struct>,
    source: String,
}

impl Table {
    pub fn get() -> &'static Self {
        &TABLE
    }

    /// The module the table was made from.
    pub fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn structure(&self, index: usize) -> &Struct {
        &self.structs[index]
    }

    /// Every kind and version in the table.
    pub fn all(&'static self) -> impl Iterator<Item = Mapping> {
        self.kinds.iter().flat_map(move |(group, kinds)| {
            kinds.iter().flat_map(move |(kind, entry)| {
                entry
                    .versions
                    .keys()
                    .filter_map(move |version| self.lookup(group, kind, version).ok())
            })
        })
    }

    /// The mapping of an ARM type at an api-version, as far as the table has it.
    pub fn by_arm_type(&'static self, arm_type: &str, api_version: &str) -> Option<Mapping> {
        self.all().find(|mapping| {
            mapping.arm_type.eq_ignore_ascii_case(arm_type) && mapping.api_version == api_version
        })
    }

    pub fn lookup(&'static self, group: &str, kind: &str, version: &str) -> Result<Mapping, ResourceError> {
        let entry = self
            .kinds
            .get(group)
            .and_then(|kinds| kinds.get(kind))
            .ok_or_else(|| ResourceError::UnknownKind {
                group: group.to_owned(),
                kind: kind.to_owned(),
                known: self.kinds.get(group).map_or_else(
                    || self.kinds.keys().cloned().collect::<Vec<_>>().join(", "),
                    |kinds| kinds.keys().cloned().collect::<Vec<_>>().join(", "),
                ),
            })?;
        let asked = api_version(version).ok_or_else(|| ResourceError::UnknownVersion {
            kind: kind.to_owned(),
            version: version.to_owned(),
        })?;
        let found = entry.versions.values().find(|known| known.api == asked);
        // Dates sort as text. The newest version not after the one asked for, else the oldest there is.
        let nearest = || {
            entry
                .versions
                .values()
                .filter(|known| known.api <= asked)
                .max_by(|left, right| left.api.cmp(&right.api))
                .or_else(|| {
                    entry
                        .versions
                        .values()
                        .min_by(|left, right| left.api.cmp(&right.api))
                })
        };
        let facts = found
            .or_else(nearest)
            .ok_or_else(|| ResourceError::UnknownVersion {
                kind: kind.to_owned(),
                version: version.to_owned(),
            })?;
        Ok(Mapping {
            group: group.to_owned(),
            kind: kind.to_owned(),
            version: version.to_owned(),
            arm_type: &entry.arm_type,
            api_version: asked,
            scope: entry.scope,
            owner: entry.owner.as_deref().and_then(|owner| owner.split_once('/')),
            fixed_name: entry.name.as_deref(),
            spec: facts.spec,
            status: facts.status,
            exact: found.is_some(),
        })
    }
}

/// `v1api20240901preview`, `v1beta20240901`, `v20240901` → `2024-09-01[-preview]`.
fn api_version(version: &str) -> Option<String> {
    let rest = ["v1api", "v1beta", "v"]
        .iter()
        .find_map(|prefix| version.strip_prefix(prefix))?;
    if rest.len() < 8 || !rest.is_char_boundary(8) {
        return None;
    }
    let (date, suffix) = rest.split_at(8);
    if !date.chars().all(|character| character.is_ascii_digit())
        || !matches!(suffix, "" | "preview" | "beta" | "alpha")
    {
        return None;
    }
    let dash = if suffix.is_empty() { "" } else { "-" };
    Some(format!(
        "{}-{}-{}{dash}{suffix}",
        &date[..4],
        &date[4..6],
        &date[6..]
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_kinds_managed_clusters_need_are_served() {
        let table = Table::get();
        for (group, kind, version, arm_type) in [
            (
                "resources.azure.com",
                "ResourceGroup",
                "v1api20200601",
                "Microsoft.Resources/resourceGroups",
            ),
            (
                "network.azure.com",
                "VirtualNetwork",
                "v1api20201101",
                "Microsoft.Network/virtualNetworks",
            ),
            (
                "network.azure.com",
                "VirtualNetworksSubnet",
                "v1api20240301",
                "Microsoft.Network/virtualNetworks/subnets",
            ),
            (
                "network.azure.com",
                "RouteTable",
                "v1api20240301",
                "Microsoft.Network/routeTables",
            ),
            (
                "network.azure.com",
                "NetworkSecurityGroup",
                "v1api20201101",
                "Microsoft.Network/networkSecurityGroups",
            ),
            (
                "network.azure.com",
                "NatGateway",
                "v1api20220701",
                "Microsoft.Network/natGateways",
            ),
            (
                "network.azure.com",
                "PublicIPAddress",
                "v1api20201101",
                "Microsoft.Network/publicIPAddresses",
            ),
            (
                "network.azure.com",
                "PublicIPPrefix",
                "v1api20220701",
                "Microsoft.Network/publicIPPrefixes",
            ),
            (
                "network.azure.com",
                "PrivateEndpoint",
                "v1api20220701",
                "Microsoft.Network/privateEndpoints",
            ),
            (
                "network.azure.com",
                "BastionHost",
                "v1api20220701",
                "Microsoft.Network/bastionHosts",
            ),
            (
                "managedidentity.azure.com",
                "UserAssignedIdentity",
                "v1api20230131",
                "Microsoft.ManagedIdentity/userAssignedIdentities",
            ),
            (
                "managedidentity.azure.com",
                "FederatedIdentityCredential",
                "v1api20230131",
                "Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials",
            ),
            (
                "authorization.azure.com",
                "RoleAssignment",
                "v1api20220401",
                "Microsoft.Authorization/roleAssignments",
            ),
            (
                "containerservice.azure.com",
                "ManagedCluster",
                "v1api20231001",
                "Microsoft.ContainerService/managedClusters",
            ),
            (
                "containerservice.azure.com",
                "ManagedClustersAgentPool",
                "v1api20240901",
                "Microsoft.ContainerService/managedClusters/agentPools",
            ),
            (
                "containerservice.azure.com",
                "MaintenanceConfiguration",
                "v1api20240901",
                "Microsoft.ContainerService/managedClusters/maintenanceConfigurations",
            ),
            (
                "containerservice.azure.com",
                "TrustedAccessRoleBinding",
                "v1api20240901",
                "Microsoft.ContainerService/managedClusters/trustedAccessRoleBindings",
            ),
            (
                "containerservice.azure.com",
                "Fleet",
                "v1api20230315preview",
                "Microsoft.ContainerService/fleets",
            ),
            (
                "containerservice.azure.com",
                "FleetsMember",
                "v1api20230315preview",
                "Microsoft.ContainerService/fleets/members",
            ),
            (
                "kubernetesconfiguration.azure.com",
                "Extension",
                "v1api20230501",
                "Microsoft.KubernetesConfiguration/extensions",
            ),
        ] {
            let mapping = table.lookup(group, kind, version).unwrap();
            assert_eq!(mapping.arm_type, arm_type);
            assert!(mapping.exact, "{kind} {version}");
        }
    }

    #[test]
    fn another_version_is_served_by_its_nearest_neighbour() {
        let lookup = |version| {
            Table::get()
                .lookup("containerservice.azure.com", "ManagedCluster", version)
                .unwrap()
        };
        let newer = lookup("v20250801");
        assert_eq!((newer.api_version.as_str(), newer.exact), ("2025-08-01", false));
        assert_eq!(newer.spec, lookup("v1api20240901").spec);
        let preview = lookup("v1api20251002preview");
        assert_eq!(preview.api_version, "2025-10-02-preview");
        assert_eq!(lookup("v1api20200101").spec, lookup("v1api20210501").spec);
    }

    #[test]
    fn a_value_is_fitted_to_what_a_version_knows() {
        let fit = |version: &str, field: &str, value: &Value| {
            let found = Table::get().lookup("containerservice.azure.com", "ManagedCluster", version);
            found.unwrap().fit(field, value)
        };
        let pools =
            json!([{"name": "a", "nodeLabels": {"any": "label"}, "securityProfile": {"enableVTPM": true}}]);
        assert_eq!(
            fit("v1api20240901", "agentPoolProfiles", &pools),
            (pools.clone(), Vec::new())
        );
        assert_eq!(
            fit("v1api20231001", "agentPoolProfiles", &pools),
            (
                json!([{"name": "a", "nodeLabels": {"any": "label"}}]),
                vec!["agentPoolProfiles[0].securityProfile".to_owned()]
            )
        );
        assert_eq!(
            fit("v20990101", "agentPoolProfiles", &pools),
            (pools.clone(), Vec::new()),
            "a version that nobody knows yet"
        );
        assert_eq!(
            fit("v1api20240901", "pools", &pools),
            (Value::Null, vec!["pools".to_owned()])
        );
    }

    #[test]
    fn what_is_not_in_the_table_is_named() {
        let error = Table::get()
            .lookup("sql.azure.com", "Server", "v1api20211101")
            .unwrap_err();
        assert_eq!(error.reason(), "KindNotServed");
        for version in ["", "v1", "v1api2024", "v1api20240901storage", "vöööööööö"] {
            assert!(matches!(
                Table::get().lookup("resources.azure.com", "ResourceGroup", version),
                Err(ResourceError::UnknownVersion { .. })
            ));
        }
    }
}
