//! What a resource hands to Kubernetes: `operatorSpec.secrets` and `operatorSpec.configMaps`, and their expressions. Pure: which
//! values go where, and how they are found in what Azure shows.

use std::{collections::BTreeMap, fmt};

use serde_json::Value;
use slipway_azure::{
    ResourceId,
    resource::handed_out::{self, HandedOut, Listed},
};

use super::{
    expression::{self, Expression},
    labelling::{self, Labelling, Member},
    parse::Inline,
    problem::Problem,
};

/// Where a value is written to, in the namespace of the object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    pub store: Store,
    pub name: String,
    pub key: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    Secret,
    ConfigMap,
}

impl fmt::Display for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = match self.store {
            Store::Secret => "Secret",
            Store::ConfigMap => "ConfigMap",
        };
        write!(formatter, "key {:?} of {store} {:?}", self.key, self.name)
    }
}

/// Which kubeconfig is asked for, by the name of its action in Azure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Credential {
    Administrator,
    User,
    Fleet,
}

impl Credential {
    /// The action that Azure answers with it.
    pub fn action(self) -> &'static str {
        match self {
            Self::Administrator => "listClusterAdminCredential",
            Self::User => "listClusterUserCredential",
            Self::Fleet => "listCredentials",
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A kubeconfig, asked for by an action of its own.
    Kubeconfig(Credential),
    /// A member of the resource's body, by JSON pointer.
    Body(&'static str),
    /// The subscription that the resource is in.
    Subscription,
    /// The address of the first network interface of a private endpoint, which is a resource of its own.
    PrimaryAddress,
    /// A key or the like, asked for by an action of its own.
    Listed(Listed),
}

impl Source {
    /// The value as the resource's body shows it; `None` where Azure has none yet or the body does not show it.
    pub fn in_body(self, body: &Value) -> Option<String> {
        let found = match self {
            Self::Body(pointer) => match body.pointer(pointer)? {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                _ => return None,
            },
            Self::Subscription => {
                let id = ResourceId::parse(body["id"].as_str()?).ok()?;
                id.subscription()?.to_owned()
            }
            Self::Kubeconfig(_) | Self::PrimaryAddress | Self::Listed(_) => return None,
        };
        (!found.is_empty()).then_some(found)
    }

    /// The action that Azure has to be asked by.
    pub fn action(self) -> Option<&'static str> {
        match self {
            Self::Kubeconfig(credential) => Some(credential.action()),
            Self::Listed(listed) => Some(listed.action),
            Self::Body(_) | Self::Subscription | Self::PrimaryAddress => None,
        }
    }
}

impl From<HandedOut> for Source {
    fn from(found: HandedOut) -> Self {
        match found {
            HandedOut::Shown(pointer) => Self::Body(pointer),
            HandedOut::Listed(listed) => Self::Listed(listed),
        }
    }
}

/// One value that a resource hands to Kubernetes.
#[derive(Clone, Debug, PartialEq)]
pub struct Export {
    /// Its name in the operator's spec.
    pub name: String,
    pub source: Source,
    pub to: Destination,
    /// What its Secret or ConfigMap is labelled with.
    pub labelling: Labelling,
}

/// What each kind has to export: kind, store, name, source.
const KNOWN: &[(&str, Store, &str, Source)] = &[
    (
        "ManagedCluster",
        Store::Secret,
        "adminCredentials",
        Source::Kubeconfig(Credential::Administrator),
    ),
    (
        "ManagedCluster",
        Store::Secret,
        "userCredentials",
        Source::Kubeconfig(Credential::User),
    ),
    (
        "ManagedCluster",
        Store::ConfigMap,
        "oidcIssuerProfile",
        Source::Body("/properties/oidcIssuerProfile/issuerURL"),
    ),
    (
        "ManagedCluster",
        Store::ConfigMap,
        "principalId",
        Source::Body("/identity/principalId"),
    ),
    (
        "Fleet",
        Store::Secret,
        "userCredentials",
        Source::Kubeconfig(Credential::Fleet),
    ),
    (
        "UserAssignedIdentity",
        Store::ConfigMap,
        "clientId",
        Source::Body("/properties/clientId"),
    ),
    (
        "UserAssignedIdentity",
        Store::ConfigMap,
        "principalId",
        Source::Body("/properties/principalId"),
    ),
    (
        "UserAssignedIdentity",
        Store::ConfigMap,
        "tenantId",
        Source::Body("/properties/tenantId"),
    ),
    (
        "UserAssignedIdentity",
        Store::Secret,
        "clientId",
        Source::Body("/properties/clientId"),
    ),
    (
        "UserAssignedIdentity",
        Store::Secret,
        "principalId",
        Source::Body("/properties/principalId"),
    ),
    (
        "UserAssignedIdentity",
        Store::Secret,
        "tenantId",
        Source::Body("/properties/tenantId"),
    ),
    (
        "UserAssignedIdentity",
        Store::Secret,
        "subscriptionId",
        Source::Subscription,
    ),
    (
        "Extension",
        Store::ConfigMap,
        "principalId",
        Source::Body("/properties/aksAssignedIdentity/principalId"),
    ),
    (
        "PrivateLinkService",
        Store::ConfigMap,
        "alias",
        Source::Body("/properties/alias"),
    ),
    (
        "TrafficManagerProfile",
        Store::ConfigMap,
        "dnsConfigFqdn",
        Source::Body("/properties/dnsConfig/fqdn"),
    ),
    (
        "PrivateEndpoint",
        Store::ConfigMap,
        "primaryNicPrivateIpAddress",
        Source::PrimaryAddress,
    ),
];

/// Everything a resource is to hand to Kubernetes.
pub fn exports(inline: &Inline) -> Result<Vec<Export>, Problem> {
    let Some(operator) = inline
        .object
        .spec
        .get("operatorSpec")
        .filter(|spec| !spec.is_null())
    else {
        return Ok(Vec::new());
    };
    let here = format!("{}.spec.operatorSpec", inline.path());
    let Some(members) = operator.as_object() else {
        return Err(Problem::Malformed {
            path: here,
            expected: "must be an object",
        });
    };
    let mut found = Vec::new();
    for (member, value) in members {
        let path = format!("{here}.{member}");
        match member.as_str() {
            _ if is_empty(value) => {}
            "secrets" => found.extend(of_store(inline, Store::Secret, value, &path)?),
            "configMaps" => found.extend(of_store(inline, Store::ConfigMap, value, &path)?),
            // Read by themselves.
            "secretExpressions" | "configMapExpressions" => {}
            _ => {
                return Err(Problem::Malformed {
                    path,
                    expected: "is not known: use secrets, configMaps or their expressions",
                });
            }
        }
    }
    let mut first: BTreeMap<&Destination, &Export> = BTreeMap::new();
    for export in &found {
        if let Some(other) = first.insert(&export.to, export) {
            return Err(Problem::SameDestination {
                path: format!("{here}: {}", export.name),
                other: other.name.clone(),
            });
        }
    }
    Ok(found)
}

/// Everything a resource is to hand to Kubernetes by expressions.
pub fn expressions(inline: &Inline) -> Result<Vec<Expression>, Problem> {
    let operator = inline.object.spec.get("operatorSpec");
    let known: BTreeMap<String, Source> = known(inline, Store::Secret)
        .map(|(name, source)| (name.to_owned(), source))
        .collect();
    let mut found: Vec<Expression> = Vec::new();
    for (store, member) in [
        (Store::Secret, "secretExpressions"),
        (Store::ConfigMap, "configMapExpressions"),
    ] {
        let value = operator.and_then(|spec| spec.get(member));
        if let Some(value) = value.filter(|value| !is_empty(value)) {
            let path = format!("{}.spec.operatorSpec.{member}", inline.path());
            found.extend(expression::expressions(store, value, &path, &known)?);
        }
    }
    let exports = exports(inline)?;
    one_label_each(&format!("{}.spec.operatorSpec", inline.path()), &exports, &found)?;
    let mut taken: BTreeMap<Destination, String> = exports
        .into_iter()
        .map(|export| (export.to, export.name))
        .collect();
    for one in &found {
        let Some(to) = one.destination() else { continue };
        if let Some(other) = taken.insert(to, one.path.clone()) {
            return Err(Problem::SameDestination {
                path: one.path.clone(),
                other,
            });
        }
    }
    Ok(found)
}

/// A Secret or ConfigMap, and one of its labels or annotations.
type Labelled<'a> = ((Store, &'a str), &'a (Member, String));

/// No two of a resource's values label one Secret or ConfigMap by the same name. `here` is where its exports are written.
fn one_label_each(here: &str, exports: &[Export], expressions: &[Expression]) -> Result<(), Problem> {
    let exported = exports.iter().flat_map(|one| {
        let place = (one.to.store, one.to.name.as_str());
        let keys = one.labelling.keys();
        keys.map(move |key| (place, key, format!("{here}: {}", one.name)))
    });
    let expressed = expressions.iter().flat_map(|one| {
        let place = (one.store, one.name.as_str());
        one.labels().map(move |key| (place, key, one.path.clone()))
    });
    let mut first: BTreeMap<Labelled<'_>, String> = BTreeMap::new();
    for (place, key, path) in exported.chain(expressed) {
        if let Some(other) = first.insert((place, key), path.clone()) {
            return Err(Problem::SameLabel {
                path,
                other,
                member: key.0,
                key: key.1.clone(),
            });
        }
    }
    Ok(())
}

/// What a resource has for a store, by name.
fn known(inline: &Inline, store: Store) -> impl Iterator<Item = (&'static str, Source)> {
    let (group, kind) = (&inline.object.mapping.group, inline.object.mapping.kind.as_str());
    let others = match store {
        Store::Secret => handed_out::secrets(group, kind),
        Store::ConfigMap => handed_out::config(group, kind),
    };
    KNOWN
        .iter()
        .filter(move |(known, its_store, _, _)| *known == kind && *its_store == store)
        .map(|(_, _, name, source)| (*name, *source))
        .chain(others.iter().map(|(name, found)| (*name, Source::from(*found))))
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

fn of_store(inline: &Inline, store: Store, value: &Value, path: &str) -> Result<Vec<Export>, Problem> {
    let Some(members) = value.as_object() else {
        return Err(Problem::Malformed {
            path: path.to_owned(),
            expected: "must be an object",
        });
    };
    let kind = inline.object.mapping.kind.as_str();
    let known: Vec<_> = known(inline, store).collect();
    let mut found = Vec::new();
    for (name, destination) in members.iter().filter(|(_, value)| !value.is_null()) {
        let here = format!("{path}.{name}");
        let Some((_, source)) = known.iter().find(|(known, _)| known == name) else {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            return Err(Problem::UnknownExport {
                path: here,
                kind: kind.to_owned(),
                name: name.clone(),
                known: if names.is_empty() {
                    "nothing".to_owned()
                } else {
                    names.join(", ")
                },
            });
        };
        let text = |member: &str| destination[member].as_str().filter(|text| !text.is_empty());
        let (Some(secret), Some(key)) = (text("name"), text("key")) else {
            return Err(Problem::Malformed {
                path: here,
                expected: "must be an object with name and key",
            });
        };
        found.push(Export {
            name: name.clone(),
            source: *source,
            to: Destination {
                store,
                name: secret.to_owned(),
                key: key.to_owned(),
            },
            labelling: labelling::written(destination, &here)?,
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inline::Policy;

    fn of(kind: &str, operator: &Value) -> Result<Vec<Export>, Problem> {
        let version = match kind {
            "ManagedCluster" => "containerservice.azure.com/v1api20240901",
            _ => "managedidentity.azure.com/v1api20230131",
        };
        let manifest = json!({
            "apiVersion": version, "kind": kind, "metadata": {"name": "n"},
            "spec": {"owner": {"name": "g"}, "operatorSpec": operator},
        });
        exports(&Inline::parse(&manifest, 2, "ns", Policy::Manage).unwrap())
    }

    #[test]
    fn what_is_named_is_exported() {
        let found = of(
            "UserAssignedIdentity",
            &json!({"configMaps": {
                "clientId": {"name": "identity", "key": "client"}, "tenantId": {"name": "identity", "key": "tenant"},
            }}),
        )
        .unwrap();
        let body = json!({"properties": {"clientId": "c", "tenantId": ""}});
        let values: Vec<_> = found
            .iter()
            .map(|export| (export.to.to_string(), export.source.in_body(&body)))
            .collect();
        assert_eq!(
            values,
            [
                (
                    "key \"client\" of ConfigMap \"identity\"".to_owned(),
                    Some("c".to_owned())
                ),
                ("key \"tenant\" of ConfigMap \"identity\"".to_owned(), None),
            ]
        );
        let found = of(
            "ManagedCluster",
            &json!({"secrets": {"adminCredentials": {"name": "k", "key": "value"}, "userCredentials": null}}),
        )
        .unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].source, Source::Kubeconfig(Credential::Administrator));
        assert_eq!(
            of("ManagedCluster", &json!({"configMapExpressions": []})),
            Ok(Vec::new())
        );
    }

    #[test]
    fn what_cannot_be_exported_is_told_with_its_place() {
        for (operator, told) in [
            (
                json!({"secrets": {"adminCredential": {"name": "k", "key": "value"}}}),
                "spec.resources[2].spec.operatorSpec.secrets.adminCredential: ManagedCluster has no adminCredential to \
                 export: use one of adminCredentials, userCredentials",
            ),
            (
                json!({"secrets": {"adminCredentials": {"name": "k"}}}),
                "spec.resources[2].spec.operatorSpec.secrets.adminCredentials: must be an object with name and key",
            ),
            (
                json!({"secrets": {
                    "adminCredentials": {"name": "k", "key": "v"}, "userCredentials": {"name": "k", "key": "v"},
                }}),
                "spec.resources[2].spec.operatorSpec: userCredentials: adminCredentials is written to the same key: \
                 choose another name or key",
            ),
            (
                json!("x"),
                "spec.resources[2].spec.operatorSpec: must be an object",
            ),
        ] {
            assert_eq!(of("ManagedCluster", &operator).unwrap_err().to_string(), told);
        }
    }

    #[test]
    fn expressions_are_read_with_their_place_and_go_nowhere_that_is_taken() {
        let of = |operator: &Value| {
            let manifest = json!({
                "apiVersion": "containerservice.azure.com/v1api20240901", "kind": "ManagedCluster",
                "metadata": {"name": "n"}, "spec": {"owner": {"name": "g"}, "operatorSpec": operator},
            });
            let inline = Inline::parse(&manifest, 2, "ns", Policy::Manage).unwrap();
            assert!(exports(&inline).is_ok());
            expressions(&inline)
        };
        let fqdn = json!({"name": "n", "key": "k", "value": "self.status.fqdn"});
        let found = of(&json!({"configMapExpressions": [fqdn], "secretExpressions": [fqdn]})).unwrap();
        let stores: Vec<Store> = found.iter().map(|one| one.store).collect();
        assert_eq!(stores, [Store::Secret, Store::ConfigMap]);
        let twice = of(&json!({"configMapExpressions": [fqdn, fqdn]})).unwrap_err();
        let told = twice.to_string();
        assert!(
            told.starts_with("spec.resources[2].spec.operatorSpec.configMapExpressions[1]: "),
            "{told}"
        );
        let labelled = |key: &str| json!({"name": "n", "key": key, "labels": {"team": "a"}});
        let same = json!({"secrets": {"adminCredentials": labelled("a"), "userCredentials": labelled("u")}});
        assert_eq!(
            of(&same).unwrap_err().to_string(),
            "spec.resources[2].spec.operatorSpec: userCredentials: spec.resources[2].spec.operatorSpec: adminCredentials sets label \"team\" \
             of the same object: leave it to one of them"
        );
        let both =
            json!({"configMaps": {"principalId": {"name": "n", "key": "k"}}, "configMapExpressions": [fqdn]});
        assert!(
            of(&both)
                .unwrap_err()
                .to_string()
                .contains("principalId is written to the same key")
        );
    }
}
