//! What MOC says when it refuses: a code of its own in the details of a status, or only in an answer's text. The class decides what happens
//! next.

use prost::Message;
use slipway_agent_api::{Class, Problem};

use crate::wire::{CallStatus, Error as Wire};

/// The longest text of MOC's that is shown.
const LONGEST: usize = 300;
/// What goes into `Any` for an error.
pub const ERROR_TYPE: &str = "type.googleapis.com/moc.Error";

/// MOC's codes that something follows from, by their numbers on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Code {
    NotFound = 1,
    InvalidInput = 4,
    NotSupported = 6,
    AlreadyExists = 7,
    InUse = 8,
    Failed = 11,
    InvalidGroup = 12,
    InvalidVersion = 13,
    OldVersion = 14,
    OutOfCapacity = 15,
    OutOfNodeCapacity = 16,
    OutOfMemory = 17,
    InconsistentState = 24,
    PendingState = 25,
    PoolFull = 27,
    Expired = 29,
    Revoked = 30,
    Timeout = 31,
    RunCommandFailed = 32,
    InvalidToken = 33,
    DeletePending = 36,
    FileNotFound = 37,
    NotEnoughSpace = 39,
    AccessDenied = 40,
    NoAuthenticationInformation = 43,
    QuotaViolation = 45,
    ProviderNotReady = 51,
}

const ALL: [Code; 27] = [
    Code::NotFound,
    Code::InvalidInput,
    Code::NotSupported,
    Code::AlreadyExists,
    Code::InUse,
    Code::Failed,
    Code::InvalidGroup,
    Code::InvalidVersion,
    Code::OldVersion,
    Code::OutOfCapacity,
    Code::OutOfNodeCapacity,
    Code::OutOfMemory,
    Code::InconsistentState,
    Code::PendingState,
    Code::PoolFull,
    Code::Expired,
    Code::Revoked,
    Code::Timeout,
    Code::RunCommandFailed,
    Code::InvalidToken,
    Code::DeletePending,
    Code::FileNotFound,
    Code::NotEnoughSpace,
    Code::AccessDenied,
    Code::NoAuthenticationInformation,
    Code::QuotaViolation,
    Code::ProviderNotReady,
];

impl Code {
    pub fn of(number: u32) -> Option<Self> {
        ALL.into_iter().find(|code| *code as u32 == number)
    }

    pub fn class(self) -> Class {
        match self {
            // Somebody was faster, or something is under way: read again.
            Self::AlreadyExists
            | Self::InUse
            | Self::InvalidVersion
            | Self::OldVersion
            | Self::PendingState
            | Self::DeletePending => Class::Conflict,
            Self::OutOfCapacity
            | Self::OutOfNodeCapacity
            | Self::OutOfMemory
            | Self::PoolFull
            | Self::NotEnoughSpace
            | Self::QuotaViolation => Class::Throttled,
            Self::Failed
            | Self::InconsistentState
            | Self::Timeout
            | Self::RunCommandFailed
            | Self::ProviderNotReady => Class::Transient,
            Self::Expired
            | Self::Revoked
            | Self::InvalidToken
            | Self::AccessDenied
            | Self::NoAuthenticationInformation => Class::Denied,
            Self::NotFound
            | Self::InvalidInput
            | Self::NotSupported
            | Self::InvalidGroup
            | Self::FileNotFound => Class::Terminal,
        }
    }
}

/// A call that MOC refused, or that did not get there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{doing}: {message}")]
pub struct MocError {
    pub doing: String,
    pub code: Option<Code>,
    pub class: Class,
    pub message: String,
}

/// One line, and not too long.
fn plain(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .take(LONGEST)
        .collect()
}

impl MocError {
    /// Of an answer that says `result: false` with these words.
    pub fn told(doing: &str, words: &str) -> Self {
        Self {
            doing: doing.to_owned(),
            code: None,
            class: Class::Transient,
            message: if words.is_empty() {
                "it failed, and MOC does not say why".to_owned()
            } else {
                plain(words)
            },
        }
    }

    pub fn unreachable(doing: &str, why: &str) -> Self {
        Self {
            class: Class::Transient,
            message: plain(why),
            ..Self::told(doing, "")
        }
    }

    pub fn of_status(doing: &str, status: &tonic::Status) -> Self {
        let detail = CallStatus::decode(status.details()).unwrap_or_default();
        let mut details = detail.details.iter();
        let code = details
            .find(|detail| detail.type_url == ERROR_TYPE)
            .and_then(|detail| Wire::decode(detail.value.as_slice()).ok())
            .and_then(|error| Code::of(error.code));
        let code = code.or(match status.code() {
            tonic::Code::NotFound => Some(Code::NotFound),
            tonic::Code::AlreadyExists => Some(Code::AlreadyExists),
            _ => None,
        });
        let class = code.map_or_else(|| Problem::from_status(status).class, Code::class);
        Self {
            doing: doing.to_owned(),
            code,
            class,
            message: plain(status.message()),
        }
    }

    pub fn is(&self, code: Code) -> bool {
        self.code == Some(code)
    }

    /// As a host says it.
    pub fn problem(&self) -> Problem {
        let reason = self
            .code
            .map_or_else(|| "Moc".to_owned(), |code| format!("Moc{code:?}"));
        Problem::new(self.class, reason, self.to_string())
    }
}

/// A refusal as MOC's services send it.
pub fn refusal(code: Code, message: &str) -> tonic::Status {
    let grpc = match code {
        Code::NotFound => tonic::Code::NotFound,
        Code::AlreadyExists => tonic::Code::AlreadyExists,
        _ => tonic::Code::Unknown,
    };
    let error = Wire {
        message: message.to_owned(),
        code: code as u32,
    };
    let details = CallStatus {
        code: grpc as i32,
        message: message.to_owned(),
        details: vec![crate::wire::Detail {
            type_url: ERROR_TYPE.to_owned(),
            value: error.encode_to_vec(),
        }],
    };
    tonic::Status::with_details(grpc, message, details.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_survives_the_way_and_decides_the_class() {
        for code in ALL {
            let error = MocError::of_status("trying", &refusal(code, "no"));
            assert_eq!((error.code, error.class), (Some(code), code.class()), "{code:?}");
        }
        let proxy = MocError::of_status("trying", &tonic::Status::unavailable("no route"));
        assert_eq!((proxy.code, proxy.class), (None, Class::Transient));
        let odd = refusal(Code::InvalidInput, "a\nb");
        assert_eq!(MocError::of_status("trying", &odd).to_string(), "trying: a b");
    }
}
