//! Faults on demand: a status at the n-th matching call, an answer that is late or lost after the work was done,
//! an operation that fails in the end.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::wire::{Request, Response};

/// One rule. It counts the calls it matches and acts on calls `first` to `first + times - 1`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Fault {
    /// Matches any method when empty.
    pub method: String,
    /// Part of the path, compared without case; matches any path when empty.
    pub path: String,
    /// The first matching call that is hit, counted from 1.
    pub first: u64,
    /// How many matching calls are hit; 0 is all of them.
    pub times: u64,
    /// Answer with this status instead of doing the work.
    pub status: Option<u16>,
    pub code: String,
    pub message: String,
    /// A whole body in place of code and message.
    pub body: Option<Value>,
    pub retry_after: Option<u64>,
    /// Do the work, then close the connection without an answer.
    pub drop_connection: bool,
    pub delay_milliseconds: u64,
    /// The operation the call starts ends with this error.
    pub operation_error: Option<Value>,
    /// The operation carries the error and succeeds all the same, as AKS does when it was preempted.
    pub operation_succeeds: bool,
    /// Matching calls so far.
    #[serde(skip_deserializing)]
    pub seen: u64,
}

impl Default for Fault {
    fn default() -> Self {
        Self {
            method: String::new(),
            path: String::new(),
            first: 1,
            times: 1,
            status: None,
            code: "InternalServerError".to_owned(),
            message: "The request was refused because the simulator was told to.".to_owned(),
            body: None,
            retry_after: None,
            drop_connection: false,
            delay_milliseconds: 0,
            operation_error: None,
            operation_succeeds: false,
            seen: 0,
        }
    }
}

impl Fault {
    pub fn before_commit(&self) -> bool {
        self.status.is_some()
    }

    pub fn response(&self) -> Response {
        let body = self
            .body
            .clone()
            .unwrap_or_else(|| json!({"error": {"code": self.code, "message": self.message}}));
        let mut response = Response::json(self.status.unwrap_or(500), &body);
        if let Some(seconds) = self.retry_after {
            response = response.with("retry-after", &seconds.to_string());
        }
        response
    }

    fn matches(&self, request: &Request) -> bool {
        (self.method.is_empty() || self.method.eq_ignore_ascii_case(request.method.as_str()))
            && request
                .path
                .to_ascii_lowercase()
                .contains(&self.path.to_ascii_lowercase())
    }
}

#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    faults: Vec<Fault>,
}

impl FaultPlan {
    pub fn add(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub fn all(&self) -> &[Fault] {
        &self.faults
    }

    pub fn clear(&mut self) {
        self.faults.clear();
    }

    /// The fault that hits this call. Every rule counts the call, the first that is due acts.
    pub fn matching(&mut self, request: &Request) -> Option<Fault> {
        let mut due = None;
        for fault in self.faults.iter_mut().filter(|fault| fault.matches(request)) {
            fault.seen += 1;
            let is_due =
                fault.seen >= fault.first && (fault.times == 0 || fault.seen < fault.first + fault.times);
            if is_due && due.is_none() {
                due = Some(fault.clone());
            }
        }
        due
    }
}
