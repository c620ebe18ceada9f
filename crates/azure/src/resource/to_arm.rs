//! From an ASO-shaped object to the request that makes it so. Pure: what has to be looked up is listed by [`needs`]
//! and answered by a [`Resolver`].

use std::{collections::BTreeMap, fmt};

use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value, json};

use super::{
    error::ResourceError,
    object::{AsoObject, Reference, reference},
    rules::{Rule, rule},
    structs::{Form, Struct},
    table::{Mapping, Scope, Table},
};
use crate::arm::ResourceId;

/// Something an object refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Need {
    Owner(Reference),
    Resource(Reference),
    Secret { name: String, key: String },
    SecretMap { name: String },
    ConfigMap { name: String, key: String },
}

/// Answers what an object refers to.
pub trait Resolver {
    fn subscription(&self) -> &str;

    /// The ARM id of a resource named by its Kubernetes object.
    fn resource(&self, reference: &Reference) -> Option<String>;

    fn secret(&self, _name: &str, _key: &str) -> Option<SecretString> {
        None
    }

    fn secret_map(&self, _name: &str) -> Option<BTreeMap<String, SecretString>> {
        None
    }

    fn config(&self, _name: &str, _key: &str) -> Option<String> {
        None
    }
}

/// The request an object stands for.
#[derive(Clone)]
pub struct Put {
    pub id: ResourceId,
    pub mapping: Mapping,
    pub body: Value,
    /// JSON pointers of the body's secrets.
    pub secrets: Vec<String>,
}

impl fmt::Debug for Put {
    /// The body may hold secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Put")
            .field("id", &self.id)
            .field("api_version", &self.mapping.api_version)
            .finish_non_exhaustive()
    }
}

/// Members of a spec that steer the operator and have no place in a body.
pub(super) const NOT_SENT: &[&str] = &[
    "azureName",
    "azureNameFromConfig",
    "owner",
    "operatorSpec",
    "originalVersion",
];

/// The ARM id of an object, given its owner's.
pub fn id_of(
    object: &AsoObject,
    owner: Option<&ResourceId>,
    subscription: &str,
) -> Result<ResourceId, ResourceError> {
    let mapping = &object.mapping;
    if let Some((name, key)) = object.name_from_config() {
        return Err(ResourceError::ConfigMapNotFound {
            object: object.display(),
            path: "spec.azureNameFromConfig".to_owned(),
            name,
            key,
        });
    }
    let name = object.azure_name();
    let need_owner = || {
        owner.ok_or_else(|| ResourceError::Missing {
            object: object.display(),
            path: "spec.owner",
        })
    };
    Ok(match mapping.scope {
        Scope::Subscription => ResourceId::resource_group(subscription, &name)?,
        Scope::Tenant => ResourceId::parse(&format!("/providers/{}/{name}", mapping.arm_type))?,
        Scope::Extension => need_owner()?.provided(&mapping.arm_type, &name)?,
        Scope::ResourceGroup => {
            let owner = need_owner()?;
            // A child's type names its parents': only the last part is new.
            match mapping.arm_type.split('/').count() {
                0..=2 => owner.provided(&mapping.arm_type, &name)?,
                _ => owner.child(mapping.arm_type.rsplit('/').next().unwrap_or_default(), &name)?,
            }
        }
    })
}

/// Everything the object refers to that has to be looked up.
pub fn needs(object: &AsoObject) -> Result<Vec<Need>, ResourceError> {
    let mut found = Vec::new();
    if let Some(owner) = object.owner()
        && owner.arm_id.is_none()
    {
        found.push(Need::Owner(owner));
    }
    let mut walk = Walk {
        object,
        resolve: &mut |_, need| {
            let placeholder = match &need {
                Need::SecretMap { .. } => json!({}),
                _ => Value::String(String::new()),
            };
            if !matches!(&need, Need::Resource(Reference { arm_id: Some(_), .. })) {
                found.push(need);
            }
            Ok(placeholder)
        },
        secrets: Vec::new(),
    };
    walk.spec()?;
    found.sort();
    found.dedup();
    Ok(found)
}

/// The request the object stands for.
pub fn to_arm(object: &AsoObject, resolver: &dyn Resolver) -> Result<Put, ResourceError> {
    let owner = match object.owner() {
        None => None,
        Some(Reference { arm_id: Some(id), .. }) => Some(ResourceId::parse(&id)?),
        Some(named) => match resolver.resource(&named) {
            Some(id) => Some(ResourceId::parse(&id)?),
            None => {
                return Err(ResourceError::WaitingForOwner {
                    object: object.display(),
                    owner: named.to_string(),
                });
            }
        },
    };
    let id = id_of(object, owner.as_ref(), resolver.subscription())?;
    let mut resolve = |path: &str, need: Need| resolved(object, resolver, path, need);
    let mut walk = Walk {
        object,
        resolve: &mut resolve,
        secrets: Vec::new(),
    };
    let mut body = walk.spec()?;
    let secrets = walk.secrets;
    body.insert("name".to_owned(), Value::String(object.azure_name()));
    create_mode(&object.mapping, &mut body);
    Ok(Put {
        id,
        mapping: object.mapping.clone(),
        body: Value::Object(body),
        secrets,
    })
}

/// Ways to create a vault that Azure does not know: the operator looks for a deleted one of the same name. It is created here, and
/// where there is a deleted one Azure says so and what to do.
fn create_mode(mapping: &Mapping, body: &mut Map<String, Value>) {
    const OPERATORS: [&str; 2] = ["createOrRecover", "purgeThenCreate"];
    if !mapping.arm_type.eq_ignore_ascii_case("Microsoft.KeyVault/vaults") {
        return;
    }
    let mode = body
        .get_mut("properties")
        .and_then(|properties| properties.get_mut("createMode"));
    if let Some(mode) = mode
        && OPERATORS.iter().any(|known| *mode == *known)
    {
        *mode = Value::String("default".to_owned());
    }
}

fn resolved(
    object: &AsoObject,
    resolver: &dyn Resolver,
    path: &str,
    need: Need,
) -> Result<Value, ResourceError> {
    let object = object.display();
    let path = path.to_owned();
    match need {
        Need::Owner(reference) | Need::Resource(reference) => match &reference.arm_id {
            Some(id) => Ok(Value::String(id.clone())),
            None => resolver.resource(&reference).map(Value::String).ok_or_else(|| {
                ResourceError::ReferenceNotFound {
                    object,
                    path,
                    target: reference.to_string(),
                }
            }),
        },
        Need::Secret { name, key } => match resolver.secret(&name, &key) {
            Some(secret) => Ok(Value::String(secret.expose_secret().to_owned())),
            None => Err(ResourceError::SecretNotFound {
                object,
                path,
                name,
                key,
            }),
        },
        Need::SecretMap { name } => match resolver.secret_map(&name) {
            Some(map) => Ok(map
                .into_iter()
                .map(|(key, secret)| (key, Value::String(secret.expose_secret().to_owned())))
                .collect::<Map<_, _>>()
                .into()),
            None => Err(ResourceError::SecretNotFound {
                object,
                path,
                name,
                key: "*".to_owned(),
            }),
        },
        Need::ConfigMap { name, key } => {
            resolver
                .config(&name, &key)
                .map(Value::String)
                .ok_or(ResourceError::ConfigMapNotFound {
                    object,
                    path,
                    name,
                    key,
                })
        }
    }
}

type Resolve<'a> = dyn FnMut(&str, Need) -> Result<Value, ResourceError> + 'a;

/// One pass over a spec. `path` is where we are in the object, `pointer` where in the body.
struct Walk<'a> {
    object: &'a AsoObject,
    resolve: &'a mut Resolve<'a>,
    secrets: Vec<String>,
}

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

impl Walk<'_> {
    fn spec(&mut self) -> Result<Map<String, Value>, ResourceError> {
        let structure = Table::get().structure(self.object.mapping.spec);
        let spec: Map<String, Value> = self
            .object
            .spec
            .iter()
            .filter(|(key, _)| !NOT_SENT.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        self.structure(structure, &spec, "spec", "")
    }

    fn wrong(&self, path: &str, expected: &'static str) -> ResourceError {
        ResourceError::WrongType {
            object: self.object.display(),
            path: path.to_owned(),
            expected,
        }
    }

    fn structure(
        &mut self,
        structure: &Struct,
        members: &Map<String, Value>,
        path: &str,
        pointer: &str,
    ) -> Result<Map<String, Value>, ResourceError> {
        if structure.is_union {
            return self.union(structure, members, path, pointer);
        }
        let mut body = Map::new();
        for (key, value) in members {
            if value.is_null() {
                continue;
            }
            let here = format!("{path}.{key}");
            let (target, below, form) = match structure.field(key) {
                Some(field) => (field.target.clone(), field.below.as_deref(), field.form.clone()),
                None if self.object.mapping.exact => {
                    return Err(ResourceError::UnknownField {
                        object: self.object.display(),
                        path: here,
                        version: self.object.mapping.version.clone(),
                    });
                }
                None => {
                    let (target, form) = match rule(key, value) {
                        Rule::Same => (key.clone(), Form::ByRule),
                        Rule::Form { target, form } => (target, form),
                    };
                    (target, structure.properties.as_deref(), form)
                }
            };
            let inside = match below {
                Some(below) => format!("{pointer}/{}/{}", escape(below), escape(&target)),
                None => format!("{pointer}/{}", escape(&target)),
            };
            let value = self.value(&form, value, &here, &inside)?;
            let place = match below {
                Some(below) => body.entry(below).or_insert_with(|| json!({})).as_object_mut(),
                None => Some(&mut body),
            };
            if let Some(place) = place {
                place.insert(target, value);
            }
        }
        Ok(body)
    }

    /// The body of the one member that is set.
    fn union(
        &mut self,
        structure: &Struct,
        members: &Map<String, Value>,
        path: &str,
        pointer: &str,
    ) -> Result<Map<String, Value>, ResourceError> {
        let mut set = members.iter().filter(|(_, value)| !value.is_null());
        let (Some((key, value)), None) = (set.next(), set.next()) else {
            return Err(self.wrong(path, "an object with exactly one member"));
        };
        let here = format!("{path}.{key}");
        let form = structure.field(key).map_or(&Form::ByRule, |field| &field.form);
        match self.value(form, value, &here, pointer)? {
            Value::Object(body) => Ok(body),
            _ => Err(self.wrong(&here, "an object")),
        }
    }

    /// What is not in the table, as it is but for what its names say.
    fn by_rule(&mut self, value: &Value, path: &str, pointer: &str) -> Result<Value, ResourceError> {
        Ok(match value {
            Value::Object(members) => {
                let mut body = Map::new();
                for (key, member) in members {
                    let here = format!("{path}.{key}");
                    let (target, form) = match rule(key, member) {
                        Rule::Same => (key.clone(), Form::ByRule),
                        Rule::Form { target, form } => (target, form),
                    };
                    let below = format!("{pointer}/{}", escape(&target));
                    body.insert(target, self.value(&form, member, &here, &below)?);
                }
                Value::Object(body)
            }
            Value::Array(items) => {
                let mut sent = Vec::new();
                for (index, item) in items.iter().enumerate() {
                    let (here, below) = (format!("{path}[{index}]"), format!("{pointer}/{index}"));
                    sent.push(self.by_rule(item, &here, &below)?);
                }
                Value::Array(sent)
            }
            _ => value.clone(),
        })
    }

    fn value(
        &mut self,
        form: &Form,
        value: &Value,
        path: &str,
        pointer: &str,
    ) -> Result<Value, ResourceError> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(match form {
            Form::Plain => value.clone(),
            Form::ByRule => self.by_rule(value, path, pointer)?,
            Form::WellKnown if text("wellKnownName").is_some_and(|name| !name.is_empty()) => {
                Value::String(text("wellKnownName").unwrap_or_default())
            }
            Form::Enum(_) => match value {
                Value::String(_) => value.clone(),
                _ => return Err(self.wrong(path, "text")),
            },
            Form::Struct(index) => match value {
                Value::Object(members) => {
                    Value::Object(self.structure(Table::get().structure(*index), members, path, pointer)?)
                }
                _ => return Err(self.wrong(path, "an object")),
            },
            Form::List(inner) => match value {
                Value::Array(items) => Value::Array(
                    items
                        .iter()
                        .enumerate()
                        .map(|(index, item)| {
                            self.value(
                                inner,
                                item,
                                &format!("{path}[{index}]"),
                                &format!("{pointer}/{index}"),
                            )
                        })
                        .collect::<Result<_, _>>()?,
                ),
                _ => return Err(self.wrong(path, "a list")),
            },
            Form::Map(inner) => match value {
                Value::Object(members) => Value::Object(
                    members
                        .iter()
                        .map(|(key, member)| {
                            let below = format!("{pointer}/{}", escape(key));
                            Ok((
                                key.clone(),
                                self.value(inner, member, &format!("{path}.{key}"), &below)?,
                            ))
                        })
                        .collect::<Result<_, ResourceError>>()?,
                ),
                _ => return Err(self.wrong(path, "an object")),
            },
            Form::Reference | Form::WellKnown => {
                let reference = reference(value)
                    .ok_or_else(|| self.wrong(path, "a reference: either group, kind and name, or armId"))?;
                (self.resolve)(path, Need::Resource(reference))?
            }
            Form::Secret | Form::Config => {
                let (Some(name), Some(key)) = (text("name"), text("key")) else {
                    return Err(self.wrong(path, "an object with name and key"));
                };
                if *form == Form::Secret {
                    self.secrets.push(pointer.to_owned());
                    (self.resolve)(path, Need::Secret { name, key })?
                } else {
                    (self.resolve)(path, Need::ConfigMap { name, key })?
                }
            }
            Form::SecretMap => {
                let Some(name) = text("name") else {
                    return Err(self.wrong(path, "an object with a name"));
                };
                self.secrets.push(pointer.to_owned());
                (self.resolve)(path, Need::SecretMap { name })?
            }
            Form::Identities => {
                let Value::Array(items) = value else {
                    return Err(self.wrong(path, "a list of references"));
                };
                let mut identities = Map::new();
                for (index, item) in items.iter().enumerate() {
                    let here = format!("{path}[{index}].reference");
                    let reference = item.get("reference").and_then(reference).ok_or_else(|| {
                        self.wrong(&here, "a reference: either group, kind and name, or armId")
                    })?;
                    if let Value::String(id) = (self.resolve)(&here, Need::Resource(reference))? {
                        identities.insert(id, json!({}));
                    }
                }
                Value::Object(identities)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::structs::Field, *};

    /// Answers every reference with its own name, so that it can be found in the body.
    struct Echo;

    impl Resolver for Echo {
        fn subscription(&self) -> &'static str {
            "s"
        }

        fn resource(&self, reference: &Reference) -> Option<String> {
            Some(format!("/subscriptions/s/resourceGroups/{}", reference.name))
        }

        fn secret(&self, name: &str, _: &str) -> Option<SecretString> {
            Some(SecretString::from(name.to_owned()))
        }

        fn secret_map(&self, name: &str) -> Option<BTreeMap<String, SecretString>> {
            Some([(name.to_owned(), SecretString::from(name.to_owned()))].into())
        }

        fn config(&self, name: &str, _: &str) -> Option<String> {
            Some(name.to_owned())
        }
    }

    /// A spec in which every leaf is set, each to a word of its own.
    struct Filled {
        next: usize,
        words: Vec<(String, String)>,
        /// Which member of a union is set, and how many the widest union has.
        pass: usize,
        widest: usize,
    }

    impl Filled {
        fn word(&mut self, path: &str) -> String {
            self.next += 1;
            let word = format!("w{:05}w", self.next);
            self.words.push((path.to_owned(), word.clone()));
            word
        }

        fn structure(&mut self, index: usize, path: &str) -> Value {
            let structure = Table::get().structure(index);
            let is_looked_up = |field: &Field| {
                matches!(
                    field.form,
                    Form::Config | Form::Secret | Form::Reference | Form::WellKnown
                )
            };
            // A value and what it may be looked up by instead end in the same place: one of them is enough.
            let mut fields: Vec<&Field> = structure
                .fields
                .iter()
                .filter(|field| {
                    let same = |other: &Field| (&other.below, &other.target) == (&field.below, &field.target);
                    let mut others = structure.fields.iter();
                    !is_looked_up(field) || !others.any(|other| !is_looked_up(other) && same(other))
                })
                .collect();
            if structure.is_union {
                self.widest = self.widest.max(fields.len());
                fields = vec![fields[self.pass % fields.len()]];
            }
            fields
                .into_iter()
                .map(|field| {
                    (
                        field.name.clone(),
                        self.value(&field.form, &format!("{path}.{}", field.name)),
                    )
                })
                .collect::<Map<_, _>>()
                .into()
        }

        fn value(&mut self, form: &Form, path: &str) -> Value {
            match form {
                Form::Plain | Form::Enum(_) | Form::ByRule => Value::String(self.word(path)),
                Form::Struct(index) => self.structure(*index, path),
                Form::List(inner) => json!([self.value(inner, path)]),
                Form::Map(inner) => json!({"key": self.value(inner, path)}),
                Form::Reference | Form::WellKnown => {
                    json!({"group": "g", "kind": "K", "name": self.word(path)})
                }
                Form::Secret | Form::Config => json!({"name": self.word(path), "key": "k"}),
                Form::SecretMap => json!({"name": self.word(path)}),
                Form::Identities => {
                    json!([{"reference": {"group": "g", "kind": "K", "name": self.word(path)}}])
                }
            }
        }
    }

    #[test]
    fn every_leaf_of_every_kind_and_version_reaches_the_body() {
        let mut leaves = 0;
        let mut lost = Vec::new();
        for mapping in Table::get().all() {
            let mut pass = 0;
            loop {
                let mut filled = Filled {
                    next: 0,
                    words: Vec::new(),
                    pass,
                    widest: 1,
                };
                let mut spec = filled.structure(mapping.spec, "spec");
                spec["owner"] = json!({"armId": "/subscriptions/s/resourceGroups/g"});
                let manifest = json!({
                    "apiVersion": format!("{}/{}", mapping.group, mapping.version),
                    "kind": mapping.kind, "metadata": {"name": "n", "namespace": "d"}, "spec": spec,
                });
                let object = AsoObject::parse(&manifest).unwrap();
                let put = to_arm(&object, &Echo).unwrap_or_else(|error| panic!("{}: {error}", mapping.kind));
                let body = put.body.to_string();
                for (path, word) in filled.words {
                    leaves += 1;
                    if !body.contains(&word) {
                        lost.push(format!("{} {}: {path}", mapping.kind, mapping.version));
                    }
                }
                for pointer in &put.secrets {
                    assert!(put.body.pointer(pointer).is_some(), "{} {pointer}", mapping.kind);
                }
                pass += 1;
                if pass >= filled.widest {
                    break;
                }
            }
        }
        println!(
            "report: azure mapper: {leaves} leaves of {} kinds and versions, {} lost",
            Table::get().all().count(),
            lost.len()
        );
        assert!(lost.is_empty(), "{}", lost.join("\n"));
    }

    #[test]
    fn what_a_version_does_not_know_is_refused_and_what_is_missing_is_named() {
        let pool = |version: &str, spec: Value| {
            let mut spec = spec;
            spec["owner"] = json!({"name": "c"});
            let manifest = json!({"apiVersion": format!("containerservice.azure.com/{version}"),
                "kind": "ManagedClustersAgentPool", "metadata": {"name": "p"}, "spec": spec});
            to_arm(&AsoObject::parse(&manifest).unwrap(), &Echo)
        };
        let error = pool("v1api20240901", json!({"cuont": 3})).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ManagedClustersAgentPool p: spec.cuont is not known in version v1api20240901"
        );
        let newer = pool(
            "v20250801",
            json!({"gatewayProfile": {"publicIPPrefixSize": 31}, "count": 1}),
        )
        .unwrap();
        assert_eq!(
            newer.body["properties"],
            json!({"gatewayProfile": {"publicIPPrefixSize": 31}, "count": 1})
        );
        let error = pool("v20250801", json!({"newReference": {"armId": "/x"}})).unwrap_err();
        assert!(matches!(error, ResourceError::UnknownField { .. }));
        let error = pool(
            "v1api20240901",
            json!({"count": 1, "vnetSubnetReference": {"group": "g"}}),
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "ManagedClustersAgentPool p: spec.vnetSubnetReference must be a reference: either group, kind and name, or armId"
        );
    }
}
