//! The table: per kind and version the ARM type, api-version, scope and owner, and per field its place in the body.

use std::{borrow::Cow, collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;

use super::{
    error::ResourceError,
    rules,
    structs::{Piece, Struct},
};

static TABLE: LazyLock<Table> = LazyLock::new(Table::read);

#[derive(Deserialize)]
struct Raw {
    modules: Vec<String>,
    kinds: BTreeMap<String, BTreeMap<String, RawKind>>,
    others: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct RawKind {
    #[serde(flatten)]
    kind: Kind,
    at: usize,
    size: usize,
    structs: usize,
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

/// How objects of one kind and version map to ARM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub group: String,
    pub kind: String,
    pub version: String,
    pub arm_type: Cow<'static, str>,
    pub api_version: String,
    pub scope: Scope,
    /// The group and kind of the owner; `None`: any resource, named in full by the object.
    pub owner: Option<(&'static str, &'static str)>,
    /// A name that cannot be chosen.
    pub fixed_name: Option<&'static str>,
    pub spec: usize,
    pub status: usize,
    /// Whether kind and version are in the table. If not, the nearest version serves, and what it does not know is sent by
    /// rule.
    pub exact: bool,
}

/// All kinds served.
#[derive(Debug)]
pub struct Table {
    kinds: BTreeMap<String, BTreeMap<String, Kind>>,
    /// Kinds of Azure Service Operator that are not of Resource Manager, by group.
    others: BTreeMap<String, Vec<String>>,
    pieces: Vec<Piece>,
    modules: Vec<String>,
}

impl Table {
    pub fn get() -> &'static Self {
        &TABLE
    }

    fn read() -> Self {
        let raw: Raw =
            serde_json::from_str(include_str!("table/kinds.json")).expect("the committed table is JSON");
        Self::new(raw, include_bytes!("table/structs.bin"))
    }

    fn new(raw: Raw, packed: &'static [u8]) -> Self {
        // What a kind outside the table is sent with comes first.
        let mut pieces = vec![Piece::ready(vec![rules::structure()])];
        let mut first = pieces[0].length;
        let mut kinds: BTreeMap<String, BTreeMap<String, Kind>> = BTreeMap::new();
        for (group, named) in raw.kinds {
            for (
                name,
                RawKind {
                    mut kind,
                    at,
                    size,
                    structs,
                },
            ) in named
            {
                for version in kind.versions.values_mut() {
                    version.spec += first;
                    version.status += first;
                }
                pieces.push(Piece::new(first, structs, &packed[at..at + size]));
                first += structs;
                kinds.entry(group.clone()).or_default().insert(name, kind);
            }
        }
        Self {
            kinds,
            others: raw.others,
            pieces,
            modules: raw.modules,
        }
    }

    /// The versions of Azure Service Operator that the table was made from.
    pub fn modules(&self) -> &[String] {
        &self.modules
    }

    /// How many kinds there are, and how many of them were unpacked.
    pub fn unpacked(&self) -> (usize, usize) {
        let unpacked = self.pieces.iter().skip(1).filter(|piece| piece.is_unpacked());
        (self.pieces.len() - 1, unpacked.count())
    }

    pub(super) fn structure(&self, index: usize) -> &Struct {
        let place = self.pieces.partition_point(|piece| piece.first <= index) - 1;
        let piece = &self.pieces[place];
        &piece.structs()[index - piece.first]
    }

    /// Group, name and ARM type of every kind in the table.
    pub fn kinds(&'static self) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        self.kinds.iter().flat_map(|(group, kinds)| {
            let named = kinds.iter();
            named.map(move |(name, kind)| (group.as_str(), name.as_str(), kind.arm_type.as_str()))
        })
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

    /// A kind in its newest version that is no preview.
    pub fn newest(&'static self, group: &str, kind: &str) -> Option<Mapping> {
        let versions = &self.kinds.get(group)?.get(kind)?.versions;
        let stable = versions
            .iter()
            .filter(|(_, version)| !version.api.contains("preview"));
        let (name, _) = stable.max_by(|(_, left), (_, right)| left.api.cmp(&right.api))?;
        self.lookup(group, kind, name).ok()
    }

    /// The mapping of an ARM type at an api-version, as far as the table has it.
    pub fn by_arm_type(&'static self, arm_type: &str, api_version: &str) -> Option<Mapping> {
        self.all().find(|mapping| {
            mapping.arm_type.eq_ignore_ascii_case(arm_type) && mapping.api_version == api_version
        })
    }

    pub fn lookup(&'static self, group: &str, kind: &str, version: &str) -> Result<Mapping, ResourceError> {
        let unknown_version = || ResourceError::UnknownVersion {
            kind: kind.to_owned(),
            version: version.to_owned(),
        };
        let Some((group, kinds)) = self.kinds.get_key_value(group) else {
            return Err(ResourceError::UnknownGroup {
                group: group.to_owned(),
                kind: kind.to_owned(),
            });
        };
        let others = self.others.get(group);
        if others.is_some_and(|others| others.iter().any(|other| other == kind)) {
            return Err(ResourceError::NotOfResourceManager {
                group: group.to_owned(),
                kind: kind.to_owned(),
            });
        }
        let asked = api_version(version).ok_or_else(unknown_version)?;
        let Some(entry) = kinds.get(kind) else {
            let siblings = kinds
                .iter()
                .map(|(name, kind)| (name.as_str(), kind.arm_type.as_str()));
            return rules::mapping(group, kind, version, asked, siblings);
        };
        let found = entry.versions.values().find(|known| known.api == asked);
        // Dates sort as text. The newest version not after the one asked for, else the oldest there is.
        let nearest = || {
            let (all, older) = (entry.versions.values(), entry.versions.values());
            older
                .filter(|known| known.api <= asked)
                .max_by(|left, right| left.api.cmp(&right.api))
                .or_else(|| all.min_by(|left, right| left.api.cmp(&right.api)))
        };
        let facts = found.or_else(nearest).ok_or_else(unknown_version)?;
        Ok(Mapping {
            group: group.to_owned(),
            kind: kind.to_owned(),
            version: version.to_owned(),
            arm_type: entry.arm_type.as_str().into(),
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
    use serde_json::{Value, json};

    use super::{super::structs::Form, *};

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
        assert!(
            lookup("v20250801").exact,
            "the spelling of the version does not matter"
        );
        let newer = lookup("v20250901");
        assert_eq!((newer.api_version.as_str(), newer.exact), ("2025-09-01", false));
        assert_eq!(newer.spec, lookup("v1api20250801").spec);
        let preview = lookup("v1api20251002preview");
        assert_eq!(
            (preview.api_version.as_str(), preview.exact),
            ("2025-10-02-preview", true)
        );
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

    /// What the structs of these pieces take, as far as their texts and lists tell.
    fn bytes<'p>(pieces: impl Iterator<Item = &'p Piece>) -> usize {
        fn of(form: &Form) -> usize {
            size_of::<Form>()
                + match form {
                    Form::Enum(names) => names
                        .iter()
                        .map(|name| name.capacity() + size_of::<String>())
                        .sum(),
                    Form::List(inner) | Form::Map(inner) => of(inner),
                    _ => 0,
                }
        }
        let fields = pieces.flat_map(Piece::structs).flat_map(|one| &one.fields);
        fields
            .map(|field| {
                let below = field.below.as_ref().map_or(0, String::capacity);
                size_of_val(field) + field.name.capacity() + field.target.capacity() + below + of(&field.form)
            })
            .sum()
    }

    #[test]
    fn only_kinds_that_are_met_are_unpacked() {
        let table: &'static Table = Box::leak(Box::new(Table::read()));
        let aks = "containerservice.azure.com";
        let mapping = table.lookup(aks, "ManagedCluster", "v1api20240901").unwrap();
        assert_eq!(table.unpacked().1, 0, "a lookup needs no structs");
        table.structure(mapping.spec);
        table.structure(mapping.status);
        assert_eq!(table.unpacked().1, 1);
        let packed: usize = table.pieces.iter().map(Piece::size).sum();
        let met = bytes(table.pieces.iter().filter(|piece| piece.is_unpacked()));
        let all = bytes(table.pieces.iter());
        println!(
            "report: azure table: {} kinds, {} kinds and versions, {packed} bytes packed, {met} of ManagedCluster unpacked, \
             {all} if all were",
            table.unpacked().0,
            table.all().count(),
        );
        assert!(met < 2_000_000 && all < 64_000_000, "{met} {all}");
    }

    #[test]
    fn what_is_not_of_resource_manager_is_named() {
        let lookup = |group, kind, version| Table::get().lookup(group, kind, version).unwrap_err();
        let user = lookup("sql.azure.com", "User", "v1");
        assert_eq!(user.reason(), "KindNotServed");
        assert!(
            user.to_string()
                .contains("not a resource of Azure Resource Manager"),
            "{user}"
        );
        assert_eq!(
            lookup("nothing.azure.com", "Thing", "v20250101").reason(),
            "KindNotServed"
        );
        for version in ["", "v1", "v1api2024", "v1api20240901storage", "vöööööööö"] {
            assert!(matches!(
                Table::get().lookup("resources.azure.com", "ResourceGroup", version),
                Err(ResourceError::UnknownVersion { .. })
            ));
        }
    }
}
