//! An ASO-shaped object and what it refers to, read narrowly from its manifest. Pure.

use serde_json::{Map, Value};
use uuid::Uuid;

use super::{
    error::ResourceError,
    table::{Mapping, Table},
};

/// A reference to another resource: by Kubernetes name, or by ARM id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    pub group: String,
    pub kind: String,
    pub name: String,
    pub arm_id: Option<String>,
}

impl std::fmt::Display for Reference {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.arm_id {
            Some(id) => formatter.write_str(id),
            None => write!(formatter, "{} {:?}", self.kind, self.name),
        }
    }
}

/// An object in the form Azure Service Operator defines, of any kind.
#[derive(Clone, Debug, PartialEq)]
pub struct AsoObject {
    pub mapping: Mapping,
    pub namespace: String,
    pub name: String,
    pub spec: Map<String, Value>,
}

/// Azure Service Operator derives names of role assignments in this namespace; adopting them needs the same.
const NAMES: Uuid = Uuid::from_u128(0x9a32_9043_7ad7_4b1c_812f_9c7a_93d6_392a);

impl AsoObject {
    pub fn parse(manifest: &Value) -> Result<Self, ResourceError> {
        let text = |pointer: &str| {
            manifest
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (api_version, kind) = (text("/apiVersion"), text("/kind"));
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let mapping = Table::get().lookup(group, kind, version)?;
        let name = text("/metadata/name").to_owned();
        let object = format!("{kind} {name}");
        if name.is_empty() {
            return Err(ResourceError::Missing {
                object,
                path: "metadata.name",
            });
        }
        let spec = match manifest.get("spec") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(spec)) => spec.clone(),
            Some(_) => {
                return Err(ResourceError::WrongType {
                    object,
                    path: "spec".to_owned(),
                    expected: "an object",
                });
            }
        };
        Ok(Self {
            mapping,
            namespace: text("/metadata/namespace").to_owned(),
            name,
            spec,
        })
    }

    /// How the object is called in errors.
    pub fn display(&self) -> String {
        format!("{} {}", self.mapping.kind, self.name)
    }

    /// Name and key of the ConfigMap that its name in Azure is to come from, while it has none.
    pub fn name_from_config(&self) -> Option<(String, String)> {
        let named = self.spec.get("azureName").and_then(Value::as_str);
        if named.is_some_and(|name| !name.is_empty()) {
            return None;
        }
        let from = self.spec.get("azureNameFromConfig")?;
        Some((
            from["name"].as_str()?.to_owned(),
            from["key"].as_str()?.to_owned(),
        ))
    }

    /// The resource's name in Azure.
    pub fn azure_name(&self) -> String {
        if let Some(name) = self.mapping.fixed_name {
            return name.to_owned();
        }
        match self.spec.get("azureName").and_then(Value::as_str) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ if self.mapping.group == "authorization.azure.com" => self.derived_name(),
            _ => self.name.clone(),
        }
    }

    /// Role assignments and definitions are named by UUID; the same object gets the same one everywhere.
    fn derived_name(&self) -> String {
        if Uuid::parse_str(&self.name).is_ok() {
            return self.name.clone();
        }
        let owner = self.owner().map(|owner| {
            format!(
                "{}/{}:{}/{}:",
                owner.group, owner.kind, self.namespace, owner.name
            )
        });
        let unique = format!(
            "{}{}/{}:{}/{}",
            owner.unwrap_or_default(),
            self.mapping.kind,
            self.mapping.group,
            self.namespace,
            self.name
        );
        Uuid::new_v5(&NAMES, unique.as_bytes()).to_string()
    }

    /// What the resource stands below, if the object says so.
    pub fn owner(&self) -> Option<Reference> {
        let owner = self.spec.get("owner")?;
        let mut reference = reference(owner)?;
        if reference.kind.is_empty()
            && let Some((group, kind)) = self.mapping.owner
        {
            group.clone_into(&mut reference.group);
            kind.clone_into(&mut reference.kind);
        }
        Some(reference)
    }
}

pub(super) fn reference(value: &Value) -> Option<Reference> {
    let text = |key: &str| {
        value
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let arm_id = ["armId", "armID"]
        .iter()
        .find_map(|key| value.get(*key).and_then(Value::as_str))
        .filter(|id| !id.is_empty())
        .map(str::to_owned);
    let found = Reference {
        group: text("group"),
        kind: text("kind"),
        name: text("name"),
        arm_id,
    };
    (found.arm_id.is_some() || !found.name.is_empty()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_role_assignment_is_named_as_the_operator_names_it() {
        let object = |extra: Value| {
            let mut spec =
                json!({"owner": {"name": "rg", "group": "resources.azure.com", "kind": "ResourceGroup"}});
            spec.as_object_mut()
                .unwrap()
                .extend(extra.as_object().unwrap().clone());
            AsoObject::parse(&json!({
                "apiVersion": "authorization.azure.com/v1api20220401",
                "kind": "RoleAssignment",
                "metadata": {"name": "pull", "namespace": "default"},
                "spec": spec,
            }))
            .unwrap()
        };
        let expected = Uuid::new_v5(
            &Uuid::parse_str("9a329043-7ad7-4b1c-812f-9c7a93d6392a").unwrap(),
            b"resources.azure.com/ResourceGroup:default/rg:RoleAssignment/authorization.azure.com:default/pull",
        );
        assert_eq!(object(json!({})).azure_name(), expected.to_string());
        assert_eq!(object(json!({"azureName": "n"})).azure_name(), "n");
    }

    #[test]
    fn a_manifest_without_a_name_is_refused() {
        let error = AsoObject::parse(
            &json!({"apiVersion": "resources.azure.com/v1api20200601", "kind": "ResourceGroup"}),
        );
        assert!(matches!(
            error,
            Err(ResourceError::Missing {
                path: "metadata.name",
                ..
            })
        ));
    }
}
