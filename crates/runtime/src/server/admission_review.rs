//! AdmissionReview v1 on the wire: reading the request, and wording the answer as the apiserver words its own.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    admission::{Operation, Request, Verdict, field::FieldError},
    duration,
};

/// Two copies of the largest object etcd takes, and the envelope.
pub const LIMIT: usize = 7 * 1024 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<Wire>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    uid: String,
    kind: WireKind,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    operation: String,
    #[serde(default)]
    user_info: UserInfo,
    #[serde(default)]
    object: Option<Value>,
    #[serde(default)]
    old_object: Option<Value>,
    #[serde(default)]
    dry_run: Option<bool>,
}

#[derive(Deserialize)]
struct WireKind {
    #[serde(default)]
    group: String,
    version: String,
    kind: String,
}

#[derive(Default, Deserialize)]
struct UserInfo {
    #[serde(default)]
    username: String,
}

/// What an answer speaks about.
#[derive(Clone, Debug)]
pub struct Subject {
    pub group: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl Subject {
    pub fn of(request: &Request) -> Self {
        Self {
            group: request.group.clone(),
            kind: request.kind.clone(),
            namespace: request.namespace.clone(),
            name: request.name.clone(),
        }
    }
}

/// Reads a request: its uid, and what handlers decide by.
pub fn read(bytes: &[u8]) -> Result<(String, Request), String> {
    let review: Review = serde_json::from_slice(bytes).map_err(|error| {
        if bytes.is_empty() {
            "the body is empty".to_owned()
        } else {
            error.to_string()
        }
    })?;
    if review.kind != "AdmissionReview" || review.api_version != "admission.k8s.io/v1" {
        return Err(format!(
            "expected an admission.k8s.io/v1 AdmissionReview, got {:?} of {:?}",
            review.kind, review.api_version
        ));
    }
    let wire = review.request.ok_or("it has no request")?;
    let operation = match wire.operation.as_str() {
        "CREATE" => Operation::Create,
        "UPDATE" => Operation::Update,
        "DELETE" => Operation::Delete,
        other => return Err(format!("operation {other:?} is not CREATE, UPDATE or DELETE")),
    };
    let present = |object: Option<Value>| object.filter(|object| !object.is_null());
    let object = present(wire.object);
    // With generateName the apiserver has chosen no name yet; the object may still carry one.
    let name = if wire.name.is_empty() {
        object
            .as_ref()
            .and_then(|object| object.pointer("/metadata/name")?.as_str())
            .unwrap_or_default()
            .to_owned()
    } else {
        wire.name
    };
    Ok((
        wire.uid,
        Request {
            operation,
            group: wire.kind.group,
            version: wire.kind.version,
            kind: wire.kind.kind,
            namespace: wire.namespace,
            name,
            dry_run: wire.dry_run.unwrap_or(false),
            user: wire.user_info.username,
            object,
            old_object: present(wire.old_object),
        },
    ))
}

fn review(response: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

fn refuse(uid: &str, status: &Value, warnings: &[String]) -> Value {
    let mut response = json!({"uid": uid, "allowed": false, "status": status});
    if !warnings.is_empty() {
        response["warnings"] = json!(warnings);
    }
    review(&response)
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"status": "Failure", "code": code, "reason": reason, "message": message})
}

/// The answer to a verdict.
pub fn respond(uid: &str, subject: &Subject, original: Option<&Value>, verdict: Verdict) -> Value {
    match verdict {
        Verdict::Allowed { warnings } => {
            let mut response = json!({"uid": uid, "allowed": true});
            if !warnings.is_empty() {
                response["warnings"] = json!(warnings);
            }
            review(&response)
        }
        Verdict::Changed { object, warnings } => {
            let patch = json_patch::diff(original.unwrap_or(&Value::Null), &object);
            let mut response = json!({"uid": uid, "allowed": true});
            if !patch.0.is_empty() {
                let text = serde_json::to_vec(&patch).expect("a JSON patch is JSON");
                response["patchType"] = json!("JSONPatch");
                response["patch"] = json!(STANDARD.encode(text));
            }
            if !warnings.is_empty() {
                response["warnings"] = json!(warnings);
            }
            review(&response)
        }
        Verdict::Invalid { errors, warnings } => refuse(uid, &invalid(subject, &errors), &warnings),
        Verdict::Forbidden { message } => refuse(uid, &status(403, "Forbidden", &message), &[]),
        Verdict::Unreadable { message } => refuse(uid, &status(400, "BadRequest", &message), &[]),
    }
}

/// A Status as the apiserver's own validation makes it: `Kind.group "name" is invalid: [a, b]`, with its causes.
pub fn invalid(subject: &Subject, errors: &[FieldError]) -> Value {
    let qualified = if subject.group.is_empty() {
        subject.kind.clone()
    } else {
        format!("{}.{}", subject.kind, subject.group)
    };
    let mut messages: Vec<String> = Vec::new();
    for error in errors {
        let message = error.to_string();
        // The apiserver's aggregate names the same error once.
        if !messages.contains(&message) {
            messages.push(message);
        }
    }
    let joined = match messages.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    let causes: Vec<Value> = errors
        .iter()
        .map(|error| {
            json!({"reason": error.cause(), "message": error.body(), "field": error.path.to_string()})
        })
        .collect();
    let mut status = status(
        422,
        "Invalid",
        &format!("{qualified} {:?} is invalid: {joined}", subject.name),
    );
    status["details"] =
        json!({"name": subject.name, "group": subject.group, "kind": subject.kind, "causes": causes});
    status
}

/// The answer when a handler panicked. What it panicked with is in the log, not here.
pub fn internal_error(uid: &str, webhook: &str) -> Value {
    refuse(
        uid,
        &status(
            500,
            "InternalError",
            &format!("internal error in webhook {webhook}: see the manager's logs"),
        ),
        &[],
    )
}

pub fn timed_out(uid: &str, webhook: &str, timeout: Duration) -> Value {
    refuse(
        uid,
        &status(
            504,
            "Timeout",
            &format!(
                "webhook {webhook} did not finish within {}",
                duration::format(timeout)
            ),
        ),
        &[],
    )
}
