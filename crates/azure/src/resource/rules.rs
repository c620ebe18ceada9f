//! Kinds and fields that are newer than the table, by the rules that Azure Service Operator's types follow: a reference becomes
//! an id, a list of identities a map, a value from a ConfigMap or a Secret that value, and what is no part of every resource
//! stands below `properties`. Pure.

use serde_json::Value;

use super::{
    error::ResourceError,
    object::reference,
    structs::{Field, Form, Struct},
    table::{Mapping, Scope},
};

/// What stands beside `properties` in the body of any resource.
const BESIDE: [&str; 10] = [
    "etag",
    "extendedLocation",
    "identity",
    "kind",
    "location",
    "managedBy",
    "plan",
    "sku",
    "tags",
    "zones",
];

/// The spec of a kind that is not in the table.
pub(super) fn structure() -> Struct {
    let field = |name: &&str| Field {
        name: (*name).to_owned(),
        target: (*name).to_owned(),
        below: None,
        form: Form::ByRule,
        explicit_empty: false,
    };
    Struct {
        fields: BESIDE.iter().map(field).collect(),
        properties: Some("properties".to_owned()),
        is_union: false,
    }
}

/// What an unknown field is sent as.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rule {
    /// As it is, with what stands in it by rule.
    Same,
    Form {
        target: String,
        form: Form,
    },
}

/// The rule for a field by its name and its value.
pub(super) fn rule(name: &str, value: &Value) -> Rule {
    let as_form = |target: String, form| Rule::Form { target, form };
    let is_reference = |value: &Value| value.is_object() && reference(value).is_some();
    let is_chosen = value["name"].is_string() && value["key"].is_string();
    let references = value
        .as_array()
        .is_some_and(|items| !items.is_empty() && items.iter().all(is_reference));
    let identities = name == "userAssignedIdentities" && value.is_array();
    if identities {
        return as_form(name.to_owned(), Form::Identities);
    }
    if name == "reference" && is_reference(value) {
        return as_form("id".to_owned(), Form::Reference);
    }
    let stem = |suffix: &str| name.strip_suffix(suffix).filter(|stem| !stem.is_empty());
    if let Some(stem) = stem("Reference").filter(|_| is_reference(value)) {
        return as_form(format!("{stem}Id"), Form::Reference);
    }
    if let Some(stem) = stem("References").filter(|_| references) {
        return as_form(format!("{stem}Ids"), Form::List(Box::new(Form::Reference)));
    }
    if let Some(stem) = stem("FromConfig").filter(|_| is_chosen) {
        return as_form(stem.to_owned(), Form::Config);
    }
    if let Some(stem) = stem("FromSecret").filter(|_| is_chosen) {
        return as_form(stem.to_owned(), Form::Secret);
    }
    Rule::Same
}

/// How a kind that is not in the table maps to ARM: the provider is that of its group's other kinds, and a name that begins
/// with another kind's type is a child of it. `siblings` are those kinds and their types.
pub(super) fn mapping(
    group: &'static str,
    kind: &str,
    version: &str,
    api_version: String,
    siblings: impl Iterator<Item = (&'static str, &'static str)> + Clone,
) -> Result<Mapping, ResourceError> {
    let unknown = |similar: String| ResourceError::UnknownKind {
        group: group.to_owned(),
        kind: kind.to_owned(),
        similar,
    };
    let is_name = kind.starts_with(|first: char| first.is_ascii_uppercase())
        && kind.chars().all(|one| one.is_ascii_alphanumeric());
    if !is_name {
        return Err(unknown(
            siblings.map(|(kind, _)| kind).collect::<Vec<_>>().join(", "),
        ));
    }
    // What differs by a letter is a slip, and no kind that is new.
    if let Some((similar, _)) = siblings.clone().find(|(known, _)| distance(known, kind) <= 1) {
        return Err(unknown(similar.to_owned()));
    }
    let parent = siblings
        .clone()
        .filter_map(|(known, arm_type)| {
            let rest = kind.strip_prefix(pascal(arm_type.rsplit('/').next()?).as_str())?;
            let is_word = rest.starts_with(|first: char| first.is_ascii_uppercase());
            is_word.then(|| (known, arm_type, rest.to_owned()))
        })
        .max_by_key(|(_, arm_type, rest)| (kind.len() - rest.len(), arm_type.len()));
    let provider = siblings
        .clone()
        .find_map(|(_, arm_type)| arm_type.split('/').next())
        .ok_or_else(|| unknown(String::new()))?;
    let (arm_type, owner) = match parent {
        Some((known, arm_type, rest)) => (format!("{arm_type}/{}", plural(&camel(&rest))), (group, known)),
        None => (
            format!("{provider}/{}", plural(&camel(kind))),
            ("resources.azure.com", "ResourceGroup"),
        ),
    };
    Ok(Mapping {
        group: group.to_owned(),
        kind: kind.to_owned(),
        version: version.to_owned(),
        arm_type: arm_type.into(),
        api_version,
        scope: Scope::ResourceGroup,
        owner: Some(owner),
        fixed_name: None,
        spec: 0,
        status: 0,
        exact: false,
    })
}

fn pascal(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn camel(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

fn plural(name: &str) -> String {
    let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
    if ends(&["s"]) && !ends(&["ss", "us"]) {
        return name.to_owned();
    }
    if let Some(stem) = name
        .strip_suffix('y')
        .filter(|_| !ends(&["ay", "ey", "oy", "uy"]))
    {
        return format!("{stem}ies");
    }
    if ends(&["ss", "us", "x", "ch", "sh"]) {
        return format!("{name}es");
    }
    format!("{name}s")
}

/// How many letters differ between two names.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, letter) in left.chars().enumerate() {
        let mut before = row[0];
        row[0] = line + 1;
        for (column, other) in right.iter().enumerate() {
            let kept = before + usize::from(letter != *other);
            before = row[column + 1];
            row[column + 1] = kept.min(before + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::table::Table, *};

    #[test]
    fn a_kind_that_is_newer_than_the_table_is_named_by_its_group() {
        let of = |group: &str, kind: &str| {
            let found = Table::get().lookup(group, kind, "v20990101");
            found
                .map(|found| format!("{} below {}", found.arm_type, found.owner.unwrap().1))
                .map_err(|error| error.to_string())
        };
        let aks = "containerservice.azure.com";
        assert_eq!(
            of(aks, "ManagedClustersMachine").unwrap(),
            "Microsoft.ContainerService/managedClusters/machines below ManagedCluster"
        );
        assert_eq!(
            of(aks, "FleetsGate").unwrap(),
            "Microsoft.ContainerService/fleets/gates below Fleet"
        );
        assert_eq!(
            of("network.azure.com", "IpamRegistry").unwrap(),
            "Microsoft.Network/ipamRegistries below ResourceGroup"
        );
        let slip = of(aks, "ManagedClustr").unwrap_err();
        assert!(slip.ends_with("did you mean ManagedCluster?"), "{slip}");
        assert!(of(aks, "not a kind").is_err());
    }

    /// What the table knows is the measure of the rules: how many of its kinds they would have found.
    #[test]
    fn most_kinds_of_the_table_would_have_been_found() {
        let table = Table::get();
        let (mut all, mut found, mut others) = (0, 0, Vec::new());
        for (group, kind, arm_type) in table.kinds() {
            let siblings: Vec<_> = table
                .kinds()
                .filter(|(other, name, _)| *other == group && *name != kind)
                .map(|(_, name, arm_type)| (name, arm_type))
                .collect();
            all += 1;
            let by_rule = mapping(group, kind, "v1", String::new(), siblings.into_iter());
            match by_rule {
                Ok(rule) if rule.arm_type.eq_ignore_ascii_case(arm_type) => found += 1,
                Ok(rule) => others.push(format!("{kind} is {arm_type} and not {}", rule.arm_type)),
                Err(error) => others.push(error.to_string()),
            }
        }
        println!("report: azure mapper: {found} of {all} kinds would have been found by rule");
        assert!(found * 2 >= all, "{found} of {all}: {}", others.join("\n"));
    }

    #[test]
    fn fields_follow_their_names() {
        let reference = json!({"group": "g", "kind": "K", "name": "n"});
        let form = |name: &str, value: &Value| match rule(name, value) {
            Rule::Same => "same".to_owned(),
            Rule::Form { target, form } => format!("{target} {form:?}"),
        };
        assert_eq!(form("subnetReference", &reference), "subnetId Reference");
        assert_eq!(form("reference", &json!({"armId": "/x"})), "id Reference");
        assert_eq!(
            form("subnetReferences", &json!([reference])),
            "subnetIds List(Reference)"
        );
        assert_eq!(
            form("userAssignedIdentities", &json!([])),
            "userAssignedIdentities Identities"
        );
        assert_eq!(
            form("principalIdFromConfig", &json!({"name": "n", "key": "k"})),
            "principalId Config"
        );
        assert_eq!(
            form("passwordFromSecret", &json!({"name": "n", "key": "k"})),
            "password Secret"
        );
        assert_eq!(form("subnetReference", &json!("text")), "same");
        assert_eq!(form("size", &json!(3)), "same");
    }
}
