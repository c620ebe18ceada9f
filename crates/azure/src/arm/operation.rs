//! Long-running operations as single questions: given one answer, is it still running, done or failed? Pure; nobody
//! waits in here. An operation's address is only a hint: what counts after a restart is `provisioningState`.

use std::time::Duration;

use serde_json::Value;

use super::{error::ErrorResponse, id::ResourceId, reply::Reply};

/// How an accepted change is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracking {
    /// `Azure-AsyncOperation`: the answer's `status` tells.
    Status,
    /// `Location`: 202 is running, anything else that succeeds is done.
    Location,
    /// Neither: the resource's own `provisioningState` tells.
    Resource,
}

/// One accepted change that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub resource: ResourceId,
    pub tracking: Tracking,
    /// Where to ask, query string and all. For [`Tracking::Resource`] the resource's own address.
    pub address: String,
}

/// What one question about an operation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll {
    Running {
        /// Azure's word for what it is doing, e.g. `CreatingAgentPool: 1/3 nodes completed`.
        progress: String,
        after: Duration,
    },
    /// Done; `remark` is an error Azure attached to a success.
    Succeeded {
        remark: Option<ErrorResponse>,
    },
    Failed(ErrorResponse),
    Canceled,
    /// Azure no longer knows the operation: the resource itself has to be asked.
    Forgotten,
}

/// How long to leave between two questions where Azure names no time: AKS never does, and its operations run minutes.
const BETWEEN: Duration = Duration::from_secs(10);

impl Operation {
    /// Finds out from an answer how its change is followed; `None` if the change is complete.
    pub fn from_reply(resource: &ResourceId, address: &str, reply: &Reply) -> Option<Self> {
        let operation = |tracking, address: &str| Self {
            resource: resource.clone(),
            tracking,
            address: address.to_owned(),
        };
        if let Some(at) = reply.header("azure-asyncoperation") {
            return Some(operation(Tracking::Status, at));
        }
        // A provider that answers 200 or 201 and still names a Location has finished unless the resource says otherwise.
        if reply.status == 202
            && let Some(at) = reply.header("location")
        {
            return Some(operation(Tracking::Location, at));
        }
        match resource_state(&reply.body) {
            State::Moving(_) => Some(operation(Tracking::Resource, address)),
            _ if reply.status == 202 => Some(operation(Tracking::Resource, address)),
            _ => None,
        }
    }

    /// Reads the answer to one question.
    pub fn read(&self, reply: &Reply) -> Poll {
        let after = reply.retry_after.unwrap_or(BETWEEN);
        if reply.status == 404 {
            return Poll::Forgotten;
        }
        if reply.status >= 400 {
            return Poll::Failed(reply.refusal());
        }
        match self.tracking {
            Tracking::Status => read_status(&reply.body, reply.status, after),
            Tracking::Location if reply.status == 202 => Poll::Running {
                progress: reply
                    .body
                    .get("status")
                    .and_then(Value::as_str)
                    .or_else(|| provisioning_state(&reply.body))
                    .unwrap_or("InProgress")
                    .to_owned(),
                after,
            },
            Tracking::Location => Poll::Succeeded { remark: None },
            Tracking::Resource => match resource_state(&reply.body) {
                State::Settled => Poll::Succeeded { remark: None },
                State::Moving(progress) => Poll::Running {
                    progress: progress.to_owned(),
                    after,
                },
                State::Failed => Poll::Failed(failure(&reply.body)),
                State::Canceled => Poll::Canceled,
            },
        }
    }
}

fn read_status(body: &Value, http_status: u16, after: Duration) -> Poll {
    let Some(status) = body.get("status").and_then(Value::as_str) else {
        // 204, or a body without a status: the operation is over unless the answer says "accepted".
        return if http_status == 202 {
            Poll::Running {
                progress: "InProgress".to_owned(),
                after,
            }
        } else {
            Poll::Succeeded { remark: None }
        };
    };
    let error = body.get("error").filter(|error| error.is_object());
    match status.to_ascii_lowercase().as_str() {
        "succeeded" | "completed" => Poll::Succeeded {
            remark: error.map(|error| ErrorResponse::from_error(200, None, error)),
        },
        "failed" => Poll::Failed(failure(body)),
        "canceled" | "cancelled" => Poll::Canceled,
        _ => Poll::Running {
            progress: status.to_owned(),
            after,
        },
    }
}

fn failure(body: &Value) -> ErrorResponse {
    let error = body
        .get("error")
        .or_else(|| body.pointer("/properties/status/provisioningError"))
        .or_else(|| body.pointer("/properties/statusMessage/error"))
        .unwrap_or(&Value::Null);
    let mut refusal = ErrorResponse::from_error(0, None, error);
    if refusal.code == "HTTP0" {
        "OperationFailed".clone_into(&mut refusal.code);
        "Azure reports that the operation failed and gives no reason".clone_into(&mut refusal.message);
    }
    refusal
}

/// What a resource's body says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State<'a> {
    Settled,
    Moving(&'a str),
    Failed,
    Canceled,
}

pub fn provisioning_state(body: &Value) -> Option<&str> {
    body.pointer("/properties/provisioningState")
        .and_then(Value::as_str)
}

/// A resource without a `provisioningState` (role assignment, identity) is settled.
pub fn resource_state(body: &Value) -> State<'_> {
    match provisioning_state(body) {
        None | Some("") => State::Settled,
        Some(state) if state.eq_ignore_ascii_case("succeeded") => State::Settled,
        Some(state) if state.eq_ignore_ascii_case("failed") => State::Failed,
        Some(state) if state.eq_ignore_ascii_case("canceled") || state.eq_ignore_ascii_case("cancelled") => {
            State::Canceled
        }
        Some(state) => State::Moving(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn id() -> ResourceId {
        ResourceId::parse(
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/c",
        )
        .unwrap()
    }

    fn reply(status: u16, headers: &[(&'static str, &str)], body: Value) -> Reply {
        Reply::for_test(status, headers, body)
    }

    #[test]
    fn each_form_is_recognised() {
        let asynchronous =
            "https://management.azure.com/x/operations/1?api-version=2016-03-30&t=1&c=abc&s=%2b&h=z";
        let found = |reply: &Reply| Operation::from_reply(&id(), "https://m/c", reply);
        let both = reply(
            202,
            &[
                ("azure-asyncoperation", asynchronous),
                ("location", "https://m/results"),
            ],
            Value::Null,
        );
        let operation = found(&both).unwrap();
        assert_eq!(operation.tracking, Tracking::Status);
        assert_eq!(
            operation.address, asynchronous,
            "the opaque query is kept as it is"
        );
        let location = reply(202, &[("location", "https://m/results")], Value::Null);
        assert_eq!(found(&location).unwrap().tracking, Tracking::Location);
        let state = reply(201, &[], json!({"properties": {"provisioningState": "Creating"}}));
        assert_eq!(found(&state).unwrap().tracking, Tracking::Resource);
        let done = reply(
            200,
            &[("location", "https://m/results")],
            json!({"properties": {"provisioningState": "Succeeded"}}),
        );
        assert_eq!(found(&done), None);
        assert_eq!(found(&reply(201, &[], json!({"name": "role"}))), None);
    }

    #[test]
    fn free_text_is_progress_and_success_may_carry_an_error() {
        let operation = Operation {
            resource: id(),
            tracking: Tracking::Status,
            address: String::new(),
        };
        let read = |body| operation.read(&reply(200, &[], body));
        assert_eq!(
            read(json!({"status": "CreatingAgentPool: 1/3 nodes completed"})),
            Poll::Running {
                progress: "CreatingAgentPool: 1/3 nodes completed".into(),
                after: BETWEEN
            }
        );
        let Poll::Succeeded { remark: Some(remark) } =
            read(json!({"status": "Succeeded", "error": {"code": "NotLatestOperation", "message": "newer"}}))
        else {
            panic!("a success with a remark")
        };
        assert_eq!(remark.code, "NotLatestOperation");
        let Poll::Failed(refusal) =
            read(json!({"status": "Failed", "error": {"code": "QuotaExceeded", "message": "cores"}}))
        else {
            panic!("a failure")
        };
        assert_eq!(
            (refusal.code.as_str(), refusal.retry_policy),
            ("QuotaExceeded", super::super::RetryPolicy::Grant)
        );
        assert_eq!(read(json!({"status": "Canceled"})), Poll::Canceled);
        assert_eq!(operation.read(&reply(404, &[], Value::Null)), Poll::Forgotten);
        assert_eq!(
            operation.read(&reply(204, &[], Value::Null)),
            Poll::Succeeded { remark: None }
        );
    }

    #[test]
    fn a_named_wait_is_kept_to() {
        let operation = Operation {
            resource: id(),
            tracking: Tracking::Location,
            address: String::new(),
        };
        let running = operation.read(&reply(202, &[("retry-after", "15")], Value::Null));
        assert_eq!(
            running,
            Poll::Running {
                progress: "InProgress".into(),
                after: Duration::from_secs(15)
            }
        );
        assert_eq!(
            operation.read(&reply(204, &[], Value::Null)),
            Poll::Succeeded { remark: None }
        );
    }

    #[test]
    fn without_an_address_the_resource_tells() {
        let operation = Operation {
            resource: id(),
            tracking: Tracking::Resource,
            address: String::new(),
        };
        let read = |state: &str| {
            operation.read(&reply(
                200,
                &[],
                json!({"properties": {"provisioningState": state}}),
            ))
        };
        assert!(matches!(read("Upgrading"), Poll::Running { progress, .. } if progress == "Upgrading"));
        assert_eq!(read("succeeded"), Poll::Succeeded { remark: None });
        assert!(matches!(read("Failed"), Poll::Failed(refusal) if refusal.code == "OperationFailed"));
        assert_eq!(read("Canceled"), Poll::Canceled);
    }
}
