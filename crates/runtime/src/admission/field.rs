//! Field errors, worded as the apiserver words its own, so that a user sees one style of message.

use std::fmt;

use serde_json::Value;

/// A path to a field: `spec.pools[2].name`, `metadata.labels[a/b]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(String);

impl Path {
    pub fn new(root: &str) -> Self {
        Self(root.to_owned())
    }

    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() {
            Self::new(name)
        } else {
            Self(format!("{}.{name}", self.0))
        }
    }

    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    Invalid,
    Required,
    NotSupported,
    Forbidden,
    Duplicate,
    NotFound,
    TooLong,
    TooMany,
    Internal,
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: FieldErrorKind,
    pub path: Path,
    /// The offending value, where showing it helps. Never a secret.
    pub value: Value,
    pub detail: String,
}

impl FieldError {
    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self {
            kind: FieldErrorKind::Invalid,
            path: path.clone(),
            value: value.into(),
            detail: detail.into(),
        }
    }

    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self {
            kind: FieldErrorKind::Required,
            path: path.clone(),
            value: Value::Null,
            detail: detail.into(),
        }
    }

    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self {
            kind: FieldErrorKind::Forbidden,
            path: path.clone(),
            value: Value::Null,
            detail: detail.into(),
        }
    }

    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        Self {
            kind: FieldErrorKind::Duplicate,
            path: path.clone(),
            value: value.into(),
            detail: String::new(),
        }
    }

    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        Self {
            kind: FieldErrorKind::NotFound,
            path: path.clone(),
            value: value.into(),
            detail: String::new(),
        }
    }

    /// `Too many: 3: must have at most 1 item`.
    pub fn too_many(path: &Path, found: usize, most: usize) -> Self {
        let items = if most == 1 { "item" } else { "items" };
        Self {
            kind: FieldErrorKind::TooMany,
            path: path.clone(),
            value: found.into(),
            detail: format!("must have at most {most} {items}"),
        }
    }

    pub fn internal(path: &Path, detail: impl Into<String>) -> Self {
        Self {
            kind: FieldErrorKind::Internal,
            path: path.clone(),
            value: Value::Null,
            detail: detail.into(),
        }
    }

    /// `Unsupported value: "x": supported values: "a", "b"`.
    pub fn not_supported(path: &Path, value: impl Into<Value>, supported: &[&str]) -> Self {
        let quoted: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        Self {
            kind: FieldErrorKind::NotSupported,
            path: path.clone(),
            value: value.into(),
            detail,
        }
    }

    /// The `reason` of the cause in an apiserver's Status.
    pub fn cause(&self) -> &'static str {
        match self.kind {
            FieldErrorKind::Invalid => "FieldValueInvalid",
            FieldErrorKind::Required => "FieldValueRequired",
            FieldErrorKind::NotSupported => "FieldValueNotSupported",
            FieldErrorKind::Forbidden => "FieldValueForbidden",
            FieldErrorKind::Duplicate => "FieldValueDuplicate",
            FieldErrorKind::NotFound => "FieldValueNotFound",
            FieldErrorKind::TooLong => "FieldValueTooLong",
            FieldErrorKind::TooMany => "FieldValueTooMany",
            FieldErrorKind::Internal => "InternalError",
        }
    }

    /// The message without the path, as it stands in a Status cause.
    pub fn body(&self) -> String {
        let head = match self.kind {
            FieldErrorKind::Invalid => "Invalid value",
            FieldErrorKind::Required => "Required value",
            FieldErrorKind::NotSupported => "Unsupported value",
            FieldErrorKind::Forbidden => "Forbidden",
            FieldErrorKind::Duplicate => "Duplicate value",
            FieldErrorKind::NotFound => "Not found",
            FieldErrorKind::TooLong => "Too long",
            FieldErrorKind::TooMany => "Too many",
            FieldErrorKind::Internal => "Internal error",
        };
        let shows_value = matches!(
            self.kind,
            FieldErrorKind::Invalid
                | FieldErrorKind::NotSupported
                | FieldErrorKind::Duplicate
                | FieldErrorKind::NotFound
                | FieldErrorKind::TooMany
        );
        let mut body = head.to_owned();
        if shows_value {
            // serde_json prints a string quoted and escaped, an absent value as `null`: as the apiserver does.
            body.push_str(": ");
            body.push_str(&self.value.to_string());
        }
        if !self.detail.is_empty() {
            body.push_str(": ");
            body.push_str(&self.detail);
        }
        body
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.body())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_like_the_apiservers() {
        let path = Path::new("spec").child("pools").index(2).child("mode");
        assert_eq!(
            FieldError::invalid(&path, "Users", "must be one of User, System").to_string(),
            "spec.pools[2].mode: Invalid value: \"Users\": must be one of User, System"
        );
        assert_eq!(
            FieldError::not_supported(&path, "x", &["User", "System"]).to_string(),
            "spec.pools[2].mode: Unsupported value: \"x\": supported values: \"User\", \"System\""
        );
        assert_eq!(
            FieldError::required(&path, "set it").to_string(),
            "spec.pools[2].mode: Required value: set it"
        );
        assert_eq!(
            FieldError::forbidden(&path, "no").to_string(),
            "spec.pools[2].mode: Forbidden: no"
        );
        assert_eq!(
            FieldError::too_many(&path, 3, 1).to_string(),
            "spec.pools[2].mode: Too many: 3: must have at most 1 item"
        );
        assert_eq!(
            Path::new("metadata").child("labels").key("a/b").to_string(),
            "metadata.labels[a/b]"
        );
    }
}
