//! Reads the API server's audit log: who wrote what, in order.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// Writes only, without bodies; leases are written all the time and say nothing.
pub(crate) const POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived", "ResponseStarted"],
  "rules": [
    {"level": "None", "verbs": ["get", "list", "watch"]},
    {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
    {"level": "None", "resources": [{"group": "", "resources": ["events"]}, {"group": "events.k8s.io"}]},
    {"level": "Metadata"}
  ]
}"#;

/// The audit log of a cluster.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
}

/// One request that wrote, or tried to.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Write {
    pub verb: String,
    pub user: User,
    /// Who the request was made for, when it was made for someone else.
    pub impersonated_user: Option<User>,
    #[serde(default)]
    pub user_agent: String,
    #[serde(default, rename = "objectRef")]
    pub object: Object,
    #[serde(default, rename = "responseStatus")]
    pub response: Response,
    #[serde(rename = "requestURI")]
    pub request: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct User {
    #[serde(default)]
    pub username: String,
    #[serde(default)]
    pub groups: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Object {
    pub api_group: String,
    pub api_version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Response {
    pub code: u16,
}

impl Write {
    /// The user whose rights counted.
    pub fn username(&self) -> &str {
        self.impersonated_user
            .as_ref()
            .map_or(&self.user.username, |user| &user.username)
    }

    pub fn was_dry_run(&self) -> bool {
        self.request.contains("dryRun=All")
    }
}

impl AuditLog {
    pub fn new(path: impl Into<PathBuf>) -> AuditLog {
        AuditLog { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every write so far that `wanted` accepts, oldest first.
    pub fn writes(&self, wanted: impl Fn(&Write) -> bool) -> io::Result<Vec<Write>> {
        let text = fs::read_to_string(&self.path)?;
        // The last line may still be in the making.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_str::<Write>(line).map_err(io::Error::other))
            .filter(|write| write.as_ref().map_or(true, &wanted))
            .collect()
    }

    pub fn writes_by_user(&self, user: &str) -> io::Result<Vec<Write>> {
        self.writes(|write| write.username() == user)
    }

    pub fn writes_by_agent(&self, agent: &str) -> io::Result<Vec<Write>> {
        self.writes(|write| write.user_agent.contains(agent))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn writes_are_told_apart_by_the_user_whose_rights_counted() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for (user, impersonated) in [
            ("admin", ""),
            ("admin", r#","impersonatedUser":{"username":"eve"}"#),
        ] {
            writeln!(
                file,
                r#"{{"verb":"create","user":{{"username":"{user}"}}{impersonated},"requestURI":"/api","userAgent":"a/1"}}"#
            )
            .unwrap();
        }
        write!(file, r#"{{"verb":"unfinis"#).unwrap();
        let log = AuditLog::new(file.path());
        assert_eq!(log.writes_by_user("eve").unwrap().len(), 1);
        assert_eq!(log.writes_by_user("admin").unwrap().len(), 1);
        assert_eq!(log.writes_by_agent("a/1").unwrap().len(), 2);
    }
}
