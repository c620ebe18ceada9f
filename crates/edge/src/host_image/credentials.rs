//! The credentials of a registry out of a Secret: pure. Never printed.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;
use slipway_agent_api::proto::RegistryCredentials;

/// Why a Secret has none for an image. Never repeats the Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCredentials;

impl fmt::Display for NoCredentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .write_str("has neither username and password nor a .dockerconfigjson with the image's registry")
    }
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let value = secret.data.as_ref()?.get(key)?;
    String::from_utf8(value.0.clone()).ok()
}

/// From `username` and `password`, or from what `kubectl create secret docker-registry` writes.
pub fn of(secret: &Secret, reference: &str) -> Result<RegistryCredentials, NoCredentials> {
    if let (Some(username), Some(password)) = (text(secret, "username"), text(secret, "password")) {
        return Ok(RegistryCredentials { username, password });
    }
    let written = text(secret, ".dockerconfigjson").ok_or(NoCredentials)?;
    let written: Value = serde_json::from_str(&written).map_err(|_| NoCredentials)?;
    let registry = reference.split('/').next().unwrap_or_default();
    let auths = written["auths"].as_object().ok_or(NoCredentials)?;
    let (_, found) = auths
        .iter()
        .find(|(name, _)| host(name) == registry)
        .ok_or(NoCredentials)?;
    if let (Some(username), Some(password)) = (found["username"].as_str(), found["password"].as_str()) {
        return Ok(RegistryCredentials {
            username: username.to_owned(),
            password: password.to_owned(),
        });
    }
    let both = found["auth"].as_str().and_then(|auth| STANDARD.decode(auth).ok());
    let both = both
        .and_then(|both| String::from_utf8(both).ok())
        .ok_or(NoCredentials)?;
    let (username, password) = both.split_once(':').ok_or(NoCredentials)?;
    Ok(RegistryCredentials {
        username: username.to_owned(),
        password: password.to_owned(),
    })
}

/// A registry is named as a host or as a URL.
fn host(name: &str) -> &str {
    let rest = name.split_once("://").map_or(name, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn secret(data: &Value) -> Secret {
        serde_json::from_value(json!({"stringData": {}, "data": data})).expect("a secret")
    }

    fn encoded(text: &str) -> String {
        STANDARD.encode(text)
    }

    #[test]
    fn credentials_are_had_from_both_kinds_of_secrets() {
        let plain = secret(&json!({"username": encoded("ada"), "password": encoded("canary")}));
        let docker = |auth: Value| {
            let config = json!({"auths": {"https://registry.example.com/v1/": auth}}).to_string();
            secret(&json!({".dockerconfigjson": encoded(&config)}))
        };
        for given in [
            plain,
            docker(json!({"username": "ada", "password": "canary"})),
            docker(json!({"auth": encoded("ada:canary")})),
        ] {
            let found = of(&given, "registry.example.com/nodes/k3s").expect("credentials");
            assert_eq!(
                (found.username.as_str(), found.password.as_str()),
                ("ada", "canary")
            );
        }
        let elsewhere = docker(json!({"auth": encoded("ada:canary")}));
        let missing = of(&elsewhere, "other.example.com/nodes/k3s").expect_err("another registry");
        assert!(!missing.to_string().contains("canary"));
        assert_eq!(
            of(&Secret::default(), "registry.example.com/a"),
            Err(NoCredentials)
        );
    }
}
