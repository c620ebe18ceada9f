//! Requests, read from their method, path and query.

use std::collections::HashMap;

use http::Method;

use crate::failure::{Answer, Failure};

/// One request, understood.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: Method,
    pub group: String,
    pub version: String,
    pub plural: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
    pub query: HashMap<String, String>,
    pub content_type: String,
    pub user_agent: String,
}

impl Call {
    pub fn flag(&self, name: &str) -> bool {
        self.query
            .get(name)
            .is_some_and(|value| value == "true" || value == "1")
    }

    pub fn is_watch(&self) -> bool {
        self.method == Method::GET && self.flag("watch")
    }

    pub fn is_dry_run(&self) -> bool {
        self.query.get("dryRun").is_some_and(|value| value == "All")
    }

    /// `plural.group`, or the plural alone for the core group.
    pub fn resource(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// `GET`, `LIST`, `WATCH`, `CREATE`, `UPDATE`, `PATCH`, `DELETE`.
    pub fn verb(&self) -> &'static str {
        match (self.method.as_str(), self.name.is_some()) {
            ("GET", _) if self.is_watch() => "WATCH",
            ("GET", true) => "GET",
            ("GET", false) => "LIST",
            ("POST", _) => "CREATE",
            ("PUT", _) => "UPDATE",
            ("PATCH", _) => "PATCH",
            ("DELETE", _) => "DELETE",
            _ => "OTHER",
        }
    }
}

/// What a path asks for.
pub enum Route {
    Resource(Box<Call>),
    /// Discovery documents and the server's version.
    Discovery(String),
}

pub fn route(request: &http::request::Parts) -> Answer<Route> {
    let path = request.uri.path();
    let query: HashMap<String, String> =
        url::form_urlencoded::parse(request.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let header = |name: http::HeaderName| {
        request
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let (group, version, rest) = match segments.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
        ["api" | "apis" | "version" | "healthz" | "readyz" | "livez", ..] => {
            return Ok(Route::Discovery(path.to_owned()));
        }
        _ => return Err(Failure::no_such_path()),
    };
    let (namespace, rest) = match rest {
        // `namespaces/x` alone is the Namespace itself.
        ["namespaces", namespace, plural, rest @ ..] if *plural != "status" && *plural != "finalize" => {
            (Some((*namespace).to_owned()), [&[*plural], rest].concat())
        }
        rest => (None, rest.to_vec()),
    };
    let (plural, name, subresource) = match rest.as_slice() {
        [plural] => (*plural, None, None),
        [plural, name] => (*plural, Some(*name), None),
        [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
        _ => return Err(Failure::no_such_path()),
    };
    Ok(Route::Resource(Box::new(Call {
        method: request.method.clone(),
        group: group.to_owned(),
        version: version.to_owned(),
        plural: plural.to_owned(),
        namespace,
        name: name.map(str::to_owned),
        subresource: subresource.map(str::to_owned),
        query,
        content_type: header(http::header::CONTENT_TYPE),
        user_agent: header(http::header::USER_AGENT),
    })))
}
