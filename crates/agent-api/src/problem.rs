//! The error model: a class that decides what the caller does next, a word for programs, a sentence for people. It
//! travels in the details of a gRPC status, so that no caller reads messages.

use std::fmt;

use prost::Message;
use tonic::{Code, Status};

use crate::proto;

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Something else is under way, or was faster: read again, then decide.
    Conflict,
    /// Later.
    Throttled,
    /// The same again may succeed.
    Transient,
    /// Something has to change first.
    Terminal,
    /// Not for this caller.
    Denied,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Problem {
    pub class: Class,
    pub reason: String,
    pub message: String,
}

impl Problem {
    pub fn new(class: Class, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class,
            reason: reason.into(),
            message: message.into(),
        }
    }

    pub fn to_proto(&self) -> proto::Problem {
        let class = match self.class {
            Class::Conflict => proto::ProblemClass::Conflict,
            Class::Throttled => proto::ProblemClass::Throttled,
            Class::Transient => proto::ProblemClass::Transient,
            Class::Terminal => proto::ProblemClass::Terminal,
            Class::Denied => proto::ProblemClass::Denied,
        };
        proto::Problem {
            class: class.into(),
            reason: self.reason.clone(),
            message: self.message.clone(),
        }
    }

    pub fn from_proto(problem: &proto::Problem) -> Self {
        let class = match problem.class() {
            proto::ProblemClass::Conflict => Class::Conflict,
            proto::ProblemClass::Throttled => Class::Throttled,
            proto::ProblemClass::Terminal => Class::Terminal,
            proto::ProblemClass::Denied => Class::Denied,
            // A class of a later version: trying again does no harm, every order is idempotent.
            proto::ProblemClass::Transient | proto::ProblemClass::Unspecified => Class::Transient,
        };
        Self::new(class, &problem.reason, &problem.message)
    }

    pub fn to_status(&self) -> Status {
        let code = match self.class {
            Class::Conflict => Code::FailedPrecondition,
            Class::Throttled => Code::ResourceExhausted,
            Class::Transient => Code::Unavailable,
            Class::Terminal => Code::InvalidArgument,
            Class::Denied => Code::PermissionDenied,
        };
        Status::with_details(code, &self.message, self.to_proto().encode_to_vec().into())
    }

    /// Also of a status that carries no details: of the transport, or of a proxy.
    pub fn from_status(status: &Status) -> Self {
        match proto::Problem::decode(status.details()) {
            Ok(problem) if !problem.reason.is_empty() => Self::from_proto(&problem),
            _ => {
                let class = match status.code() {
                    Code::FailedPrecondition | Code::Aborted | Code::AlreadyExists => Class::Conflict,
                    Code::ResourceExhausted => Class::Throttled,
                    Code::InvalidArgument | Code::NotFound | Code::OutOfRange | Code::Unimplemented => {
                        Class::Terminal
                    }
                    Code::PermissionDenied | Code::Unauthenticated => Class::Denied,
                    _ => Class::Transient,
                };
                Self::new(class, format!("{:?}", status.code()), status.message())
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.reason)
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.class)
    }
}

impl std::error::Error for Problem {}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Self {
        problem.to_status()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_problem_survives_the_way(class in 0..5_usize, reason in "[A-Z][a-z]{1,12}", message in ".{0,60}") {
            let class = [Class::Conflict, Class::Throttled, Class::Transient, Class::Terminal, Class::Denied][class];
            let problem = Problem::new(class, reason, message);
            prop_assert_eq!(Problem::from_status(&problem.to_status()), problem);
        }

        #[test]
        fn whatever_details_are_sent_there_is_an_answer(code in 1..17_i32, details in proptest::collection::vec(any::<u8>(), 0..60)) {
            let status = Status::with_details(Code::from_i32(code), "no", details.into());
            prop_assert!(!Problem::from_status(&status).reason.is_empty());
        }
    }
}
