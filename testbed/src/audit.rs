//! Reads the API server's audit log: who wrote what, in order, and of some users everything they asked for.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::{Value, json};

/// Writes only, without bodies; leases are written all the time and say nothing. Of the users in `watched` everything is
/// kept: reads too, and watches from their start, because a test may not wait for their end.
pub(crate) fn policy(watched: &[String]) -> Value {
    let leases = json!({"group": "coordination.k8s.io", "resources": ["leases"]});
    let events = json!([{"group": "", "resources": ["events"]}, {"group": "events.k8s.io"}]);
    let mut rules = vec![
        json!({"level": "None", "verbs": READS}),
        json!({"level": "None", "resources": [leases]}),
        json!({"level": "None", "resources": events}),
        json!({"level": "Metadata", "omitStages": ["ResponseStarted"]}),
    ];
    if !watched.is_empty() {
        rules.insert(0, json!({"level": "Metadata", "users": watched}));
    }
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": rules,
    })
}

const READS: [&str; 3] = ["get", "list", "watch"];

/// The audit log of a cluster.
#[derive(Clone, Debug)]
pub struct AuditLog {
    path: PathBuf,
}

/// A place in the log: what comes after it happened after it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(usize);

/// One request, whatever came of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
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
    #[serde(default)]
    annotations: BTreeMap<String, String>,
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

impl Request {
    /// The user whose rights counted.
    pub fn username(&self) -> &str {
        self.impersonated_user
            .as_ref()
            .map_or(&self.user.username, |user| &user.username)
    }

    pub fn is_write(&self) -> bool {
        !READS.contains(&self.verb.as_str())
    }

    /// Refused for want of a right. A webhook's refusal may have the same code and is none.
    pub fn was_denied(&self) -> bool {
        self.annotations
            .get("authorization.k8s.io/decision")
            .is_some_and(|decision| decision == "forbid")
    }

    /// The resource as a role names it: `fleets/status`.
    pub fn resource(&self) -> String {
        match self.object.subresource.as_str() {
            "" => self.object.resource.clone(),
            subresource => format!("{}/{subresource}", self.object.resource),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} {}.{} {}/{} ({})",
            self.verb,
            self.resource(),
            self.object.api_group,
            self.object.namespace,
            self.object.name,
            self.response.code
        )
    }
}

impl AuditLog {
    pub fn new(path: impl Into<PathBuf>) -> AuditLog {
        AuditLog { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the log ends now.
    pub fn mark(&self) -> io::Result<Mark> {
        Ok(Mark(complete(&fs::read_to_string(&self.path)?).len()))
    }

    /// Everything in the log after a mark (or all of it) that `desired` accepts, oldest first.
    pub fn requests(
        &self,
        since: Option<Mark>,
        desired: impl Fn(&Request) -> bool,
    ) -> io::Result<Vec<Request>> {
        let text = fs::read_to_string(&self.path)?;
        complete(&text)
            .get(since.map_or(0, |mark| mark.0)..)
            .ok_or_else(|| io::Error::other("the audit log is shorter than at the mark: it was begun again"))?
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_str::<Request>(line).map_err(io::Error::other))
            .filter(|request| request.as_ref().map_or(true, &desired))
            .collect()
    }

    /// Every write so far that `desired` accepts, oldest first.
    pub fn writes(&self, desired: impl Fn(&Request) -> bool) -> io::Result<Vec<Request>> {
        self.requests(None, |request| request.is_write() && desired(request))
    }

    /// What a user wrote after a mark, but for leases: at rest that is nothing. The API server answers a request only
    /// after it has logged it, so what was answered before this call is seen by it.
    pub fn writes_at_rest(&self, user: &str, since: Mark) -> io::Result<Vec<Request>> {
        self.requests(Some(since), |request| {
            request.is_write() && request.username() == user && request.object.resource != "leases"
        })
    }

    pub fn writes_by_user(&self, user: &str) -> io::Result<Vec<Request>> {
        self.writes(|write| write.username() == user)
    }

    pub fn writes_by_agent(&self, agent: &str) -> io::Result<Vec<Request>> {
        self.writes(|write| write.user_agent.contains(agent))
    }
}

/// The last line may still be in the making.
fn complete(text: &str) -> &str {
    text.rfind('\n').map_or("", |end| &text[..=end])
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

    #[test]
    fn a_log_that_was_begun_anew_is_said_to_be() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(
            file,
            r#"{{"verb":"get","user":{{"username":"a"}},"requestURI":"/api"}}"#
        )
        .unwrap();
        let log = AuditLog::new(file.path());
        let mark = log.mark().unwrap();
        assert!(log.requests(Some(mark), |_| true).unwrap().is_empty());
        file.as_file().set_len(0).unwrap();
        let error = log.requests(Some(mark), |_| true).unwrap_err();
        assert!(error.to_string().contains("begun again"), "{error}");
    }

    #[test]
    fn at_rest_only_a_lease_is_written_after_the_mark() {
        fn line(mut file: &fs::File, verb: &str, user: &str, resource: &str) {
            let line = json!({"verb": verb, "user": {"username": user}, "objectRef": {"resource": resource},
                "requestURI": "/"});
            writeln!(file, "{line}").unwrap();
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = AuditLog::new(file.path());
        line(file.as_file(), "patch", "manager", "fleets");
        let mark = log.mark().unwrap();
        line(file.as_file(), "update", "manager", "leases");
        line(file.as_file(), "list", "manager", "fleets");
        line(file.as_file(), "patch", "somebody", "fleets");
        assert!(log.writes_at_rest("manager", mark).unwrap().is_empty());
        line(file.as_file(), "patch", "manager", "vessels");
        let writes = log.writes_at_rest("manager", mark).unwrap();
        assert_eq!(writes.len(), 1);
        assert_eq!(writes[0].object.resource, "vessels");
    }
}
