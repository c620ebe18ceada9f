//! Admission: defaulting and validation as pure functions over (old, new), wrapped so that the HTTPS server
//! can call them. A handler never panics the server and never sees an object it cannot read: that is a
//! refusal with a message.

pub mod field;

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use self::field::FieldError;

/// What the apiserver is about to do with the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// One admission request, reduced to what handlers decide by.
#[derive(Clone, Debug)]
pub struct Request {
    pub operation: Operation,
    pub group: String,
    pub version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub dry_run: bool,
    /// The user the apiserver authenticated.
    pub user: String,
    /// Absent on delete.
    pub object: Option<Value>,
    /// Present on update and delete.
    pub old_object: Option<Value>,
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Accepted, with warnings the client shows its user.
    Allowed { warnings: Vec<String> },
    /// Accepted with the object changed to this.
    Changed { object: Value, warnings: Vec<String> },
    /// Refused: the apiserver answers 422 Invalid, worded as it words its own field errors.
    Invalid {
        errors: Vec<FieldError>,
        warnings: Vec<String>,
    },
    /// Refused for a reason that is not a field: 403 Forbidden.
    Forbidden { message: String },
    /// The object cannot be read as its kind: 400 Bad Request.
    Unreadable { message: String },
}

impl Verdict {
    pub fn allowed() -> Self {
        Self::Allowed { warnings: Vec::new() }
    }

    /// Allowed if there are no errors.
    pub fn from_errors(errors: Vec<FieldError>, warnings: Vec<String>) -> Self {
        if errors.is_empty() {
            Self::Allowed { warnings }
        } else {
            Self::Invalid { errors, warnings }
        }
    }
}

/// Whether a handler may change the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Mutating,
    Validating,
}

pub type Handler = Arc<dyn Fn(Request, kube::Client) -> BoxFuture<'static, Verdict> + Send + Sync>;

/// One webhook: what it is called for, and the function that answers.
#[derive(Clone)]
pub struct Admission {
    pub phase: Phase,
    pub group: String,
    pub version: String,
    pub kind: String,
    pub plural: String,
    pub operations: Vec<Operation>,
    pub handler: Handler,
}

impl fmt::Debug for Admission {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Admission")
            .field("name", &self.name())
            .field("operations", &self.operations)
            .finish_non_exhaustive()
    }
}

impl Admission {
    /// Defaults an object of kind `K` on create and update. The function sees the old object on update.
    pub fn defaulting<K>(default: fn(&mut K, Option<&K>)) -> Self
    where
        K: kube::Resource<DynamicType = ()> + Serialize + DeserializeOwned + 'static,
    {
        let handler: Handler =
            Arc::new(move |request, _client| Box::pin(std::future::ready(run_defaulting(&request, default))));
        Self::for_kind::<K>(
            Phase::Mutating,
            vec![Operation::Create, Operation::Update],
            handler,
        )
    }

    /// Validates an object of kind `K` by a pure function.
    pub fn validating<K>(operations: &[Operation], validate: fn(&Change<K>) -> Verdict) -> Self
    where
        K: kube::Resource<DynamicType = ()> + DeserializeOwned + 'static,
    {
        let handler: Handler = Arc::new(move |request, _client| {
            Box::pin(std::future::ready(match Change::read(&request) {
                Ok(change) => validate(&change),
                Err(message) => Verdict::Unreadable { message },
            }))
        });
        Self::for_kind::<K>(Phase::Validating, operations.to_vec(), handler)
    }

    /// A webhook whose handler needs the apiserver, or works on raw JSON.
    pub fn for_kind<K>(phase: Phase, operations: Vec<Operation>, handler: Handler) -> Self
    where
        K: kube::Resource<DynamicType = ()>,
    {
        Self {
            phase,
            group: K::group(&()).into_owned(),
            version: K::version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            plural: K::plural(&()).into_owned(),
            operations,
            handler,
        }
    }

    /// The HTTP path, in controller-runtime's form: `/validate-<group>-<version>-<kind>`.
    pub fn path(&self) -> String {
        let verb = match self.phase {
            Phase::Mutating => "mutate",
            Phase::Validating => "validate",
        };
        format!(
            "/{verb}-{}-{}-{}",
            self.group.replace('.', "-"),
            self.version,
            self.kind.to_lowercase()
        )
    }

    /// The webhook's name in its configuration, unique per phase, group, version and kind.
    pub fn name(&self) -> String {
        let phase = match self.phase {
            Phase::Mutating => "default",
            Phase::Validating => "validation",
        };
        format!(
            "{phase}.{}.{}.{}",
            self.kind.to_lowercase(),
            self.version,
            self.group
        )
    }
}

/// A typed view of one request.
#[derive(Clone, Debug)]
pub struct Change<K> {
    pub operation: Operation,
    pub dry_run: bool,
    pub user: String,
    pub old: Option<K>,
    pub new: Option<K>,
}

impl<K: DeserializeOwned> Change<K> {
    pub fn read(request: &Request) -> Result<Self, String> {
        let read = |value: &Option<Value>| -> Result<Option<K>, String> {
            value
                .as_ref()
                .map(|object| read_object(request, object))
                .transpose()
        };
        Ok(Self {
            operation: request.operation,
            dry_run: request.dry_run,
            user: request.user.clone(),
            old: read(&request.old_object)?,
            new: read(&request.object)?,
        })
    }
}

fn read_object<K: DeserializeOwned>(request: &Request, object: &Value) -> Result<K, String> {
    K::deserialize(object).map_err(|error| {
        format!(
            "{} {} cannot be read: {}",
            request.kind,
            request.name,
            readable(&error)
        )
    })
}

/// What is wrong with an object, without the words of a parser.
fn readable(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if let Some(field) = text
        .strip_prefix("missing field `")
        .and_then(|rest| rest.split('`').next())
    {
        return format!("the required field {field} is not set");
    }
    let plain = text.replace('`', "");
    match plain
        .strip_prefix("invalid type: ")
        .or_else(|| plain.strip_prefix("invalid value: "))
    {
        Some(rest) => format!("a field has a value of the wrong kind: {rest}"),
        None => plain,
    }
}

/// Applies a typed defaulting function and keeps everything of the object that the type does not model: the
/// difference it made is carried over as a merge patch.
fn run_defaulting<K>(request: &Request, default: fn(&mut K, Option<&K>)) -> Verdict
where
    K: Serialize + DeserializeOwned,
{
    let Some(original) = &request.object else {
        return Verdict::allowed();
    };
    let result = (|| -> Result<Option<Value>, String> {
        let old = match &request.old_object {
            Some(old) => Some(read_object::<K>(request, old)?),
            None => None,
        };
        let before: K = read_object(request, original)?;
        let before_json = serde_json::to_value(&before).map_err(|error| error.to_string())?;
        let mut after = before;
        default(&mut after, old.as_ref());
        let after_json = serde_json::to_value(&after).map_err(|error| error.to_string())?;
        let mut changed = original.clone();
        apply_difference(&mut changed, &before_json, &after_json);
        Ok((changed != *original).then_some(changed))
    })();
    match result {
        Ok(Some(object)) => Verdict::Changed {
            object,
            warnings: Vec::new(),
        },
        // Of what cannot be read, the schema, which is asked after defaulting, says what is wrong in words made for it;
        // what it lets through, validation refuses.
        Ok(None) | Err(_) => Verdict::allowed(),
    }
}

/// Changes `target` the way `before` became `after`. Objects are followed key by key; anything else that
/// differs is replaced whole.
fn apply_difference(target: &mut Value, before: &Value, after: &Value) {
    let (Value::Object(before_map), Value::Object(after_map)) = (before, after) else {
        if before != after {
            *target = after.clone();
        }
        return;
    };
    if !target.is_object() {
        if before != after {
            *target = after.clone();
        }
        return;
    }
    let Value::Object(target_map) = target else { return };
    for (key, after_value) in after_map {
        match before_map.get(key) {
            Some(before_value) if before_value == after_value => {}
            Some(before_value) => match target_map.get_mut(key) {
                Some(slot) => apply_difference(slot, before_value, after_value),
                None => {
                    target_map.insert(key.clone(), after_value.clone());
                }
            },
            None => {
                target_map.insert(key.clone(), after_value.clone());
            }
        }
    }
    for key in before_map.keys().filter(|key| !after_map.contains_key(*key)) {
        target_map.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(object: Value) -> Request {
        Request {
            operation: Operation::Create,
            group: "example.dev".into(),
            version: "v1".into(),
            kind: "Boat".into(),
            namespace: "default".into(),
            name: "skiff".into(),
            dry_run: false,
            user: "somebody".into(),
            object: Some(object),
            old_object: None,
        }
    }

    #[derive(Serialize, serde::Deserialize)]
    struct Boat {
        #[serde(default)]
        spec: BoatSpec,
    }

    #[derive(Default, Serialize, serde::Deserialize)]
    struct BoatSpec {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sails: Option<u32>,
    }

    fn two_sails(boat: &mut Boat, _old: Option<&Boat>) {
        boat.spec.sails.get_or_insert(2);
    }

    #[test]
    fn defaulting_keeps_fields_the_type_does_not_model() {
        let verdict = run_defaulting(
            &request(json!({"kind": "Boat", "spec": {"keel": "long"}})),
            two_sails,
        );
        let Verdict::Changed { object, .. } = verdict else {
            panic!("{verdict:?}")
        };
        assert_eq!(
            object,
            json!({"kind": "Boat", "spec": {"keel": "long", "sails": 2}})
        );
    }

    #[test]
    fn defaulting_that_changes_nothing_sends_no_patch() {
        assert_eq!(
            run_defaulting(&request(json!({"spec": {"sails": 1}})), two_sails),
            Verdict::allowed()
        );
    }

    #[test]
    fn an_object_that_cannot_be_read_is_left_to_the_schema_by_defaulting_and_refused_by_validation() {
        let request = request(json!({"spec": {"sails": "many"}}));
        assert_eq!(run_defaulting(&request, two_sails), Verdict::allowed());
        let message = Change::<Boat>::read(&request).err().expect("it cannot be read");
        assert!(
            message.starts_with(
                "Boat skiff cannot be read: a field has a value of the wrong kind: string \"many\""
            ),
            "{message}"
        );
    }
}
