//! The kubeconfig Secrets of an AKS cluster: whether one is as it should be (pure), and what is put into it. A token is
//! renewed at half its life; nothing of a kubeconfig appears in an error.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use slipway_capi::{
    names::label,
    secret::{self, Purpose, certificate},
};

use super::stored::{MISSING, StoredSecret, UNLABELLED, Verdict};
use crate::{Answer, ArmError, ResourceId, reconcile::Error, session::Session};

/// The API server the kubeconfig was fetched for: when AKS shows another, it is fetched again.
const ENDPOINT: &str = "slipway.dev/aks-endpoint";
/// When the token in it is renewed.
const RENEW: &str = "slipway.dev/renew-after";
/// A client certificate is fetched again this long before it ends.
const CERTIFICATE_MARGIN: Duration = Duration::from_hours(30 * 24);
/// A token is used no longer than this, however long Entra would let it live.
const LONGEST_TOKEN: jiff::SignedDuration = jiff::SignedDuration::from_mins(30);
/// The Entra application that every AKS API server trusts.
const SERVER_SCOPE: &str = "6dae42f8-4368-4678-94ff-3960e28e3630/.default";

/// Which of a cluster's kubeconfigs it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KubeconfigKind {
    Administrator,
    /// People who sign in with Entra.
    User,
}

impl KubeconfigKind {
    pub fn secret_name(self, cluster: &str) -> String {
        let name = Purpose::Kubeconfig.secret_name(cluster);
        match self {
            Self::Administrator => name,
            Self::User => format!("{name}-user"),
        }
    }
}

/// When the token in a Secret is renewed, if it holds one.
pub fn renewal(stored: &StoredSecret) -> Option<Timestamp> {
    stored.annotation(RENEW).and_then(|text| text.parse().ok())
}

/// Judges a Secret against the API server that AKS shows now.
pub fn judge(
    found: Option<&StoredSecret>,
    plane: &ObjectMeta,
    cluster: &str,
    endpoint: &str,
    now: Timestamp,
) -> Verdict {
    let Some(stored) = found else {
        return Verdict::Write(MISSING);
    };
    if let Some(verdict) = stored.judge_owner(plane) {
        return verdict;
    }
    let renew = renewal(stored);
    let is_outlived = stored.annotation(RENEW).is_some() && renew.is_none_or(|renew| renew <= now);
    let ends_soon = |ends| certificate::is_within(ends, CERTIFICATE_MARGIN, now);
    if !stored.is_labelled(cluster) {
        Verdict::Write(UNLABELLED)
    } else if !stored.is_readable {
        Verdict::Write("it holds no kubeconfig that can be read")
    } else if stored.ends.is_some_and(ends_soon) {
        Verdict::Write("its client certificate ends soon")
    } else if is_outlived {
        Verdict::Write("the token in it is renewed at half its life")
    } else if stored.annotation(ENDPOINT) != Some(endpoint) {
        Verdict::Write("AKS shows another API server")
    } else {
        Verdict::Good(renew)
    }
}

/// A token and when it ends.
pub struct Token {
    secret: SecretString,
    expires: Timestamp,
}

/// Where a kubeconfig is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretEntry<'a> {
    pub namespace: &'a str,
    /// The name of the Cluster it is of.
    pub cluster: &'a str,
    pub secret: &'a str,
    pub key: &'a str,
}

/// The Secret for what AKS handed out, with a token in place of the sign-in where there is one.
pub fn make(
    place: &SecretEntry<'_>,
    controller: OwnerReference,
    endpoint: &str,
    text: &str,
    token: Option<(&Token, Timestamp)>,
) -> Option<Secret> {
    let (text, renew) = match token {
        None => (text.to_owned(), None),
        Some((token, now)) => {
            let half = (token.expires.duration_since(now) / 2).min(LONGEST_TOKEN);
            (signed_in(text, token)?, now.checked_add(half).ok())
        }
    };
    let mut made = secret::cluster_secret(place.namespace, place.cluster, place.secret, Some(controller), []);
    made.data = Some([(place.key.to_owned(), ByteString(text.into_bytes()))].into());
    let mut annotations = vec![(ENDPOINT.to_owned(), endpoint.to_owned())];
    annotations.extend(renew.map(|renew| (RENEW.to_owned(), renew.to_string())));
    made.metadata.annotations = Some(annotations.into_iter().collect());
    Some(made)
}

/// The patch that makes a stored Secret what was made.
pub fn patch(made: &Secret, cluster: &str) -> Value {
    let mut annotations = json!({(RENEW): null});
    for (name, value) in made.metadata.annotations.iter().flatten() {
        annotations[name] = value.as_str().into();
    }
    json!({
        "metadata": {"labels": {(label::CLUSTER_NAME): cluster}, "annotations": annotations},
        "data": made.data,
    })
}

/// A kubeconfig as AKS handed it out, with the token to put into it where nothing else signs in.
pub struct Fetched {
    pub text: String,
    pub token: Option<Token>,
}

/// Asks AKS for a kubeconfig, and Entra for a token where nothing else signs in.
pub async fn fetch(
    session: &Session,
    cluster: &str,
    api_version: &str,
    kind: KubeconfigKind,
    with_token: bool,
) -> Result<Fetched, Error> {
    let action = if kind == KubeconfigKind::Administrator && !with_token {
        "listClusterAdminCredential"
    } else {
        "listClusterUserCredential"
    };
    let text = list(session, cluster, api_version, action).await?;
    let token = if with_token {
        Some(whole_token(session).await?)
    } else {
        None
    };
    Ok(Fetched { text, token })
}

/// The kubeconfig that an action of a resource answers with.
pub async fn list(
    session: &Session,
    id: &str,
    api_version: &str,
    action: &'static str,
) -> Result<String, Error> {
    let answer = ask(session, id, api_version, action).await?;
    from_answer(&answer.unwrap_or_default(), action)
}

/// What an action of a resource answers with; `None`: there is no such resource.
pub async fn ask(
    session: &Session,
    id: &str,
    api_version: &str,
    action: &str,
) -> Result<Option<Value>, Error> {
    let parsed = ResourceId::parse(id).map_err(ArmError::from)?;
    let asked = session.arm.client().post(&parsed, action, api_version, None);
    match asked.await? {
        Answer::Done(answer) => Ok(Some(answer)),
        Answer::NotFound => Ok(None),
        Answer::Throttled(after) | Answer::Busy { after, .. } | Answer::Accepted { after, .. } => {
            Err(ArmError::Budget {
                doing: "asking",
                target: id.to_owned(),
                after,
            }
            .into())
        }
    }
}

/// A token that has its whole life before it.
async fn whole_token(session: &Session) -> Result<Token, Error> {
    let tokens = session.tokens(SERVER_SCOPE)?;
    tokens.refused();
    let token = tokens.token().await?;
    Ok(Token {
        secret: SecretString::clone(&token.secret),
        expires: token.expires,
    })
}

/// The kubeconfig out of AKS's answer.
fn from_answer(answer: &Value, action: &'static str) -> Result<String, Error> {
    answer
        .pointer("/kubeconfigs/0/value")
        .and_then(Value::as_str)
        .and_then(|text| STANDARD.decode(text).ok())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or(Error::NoKubeconfig { action })
}

/// The same kubeconfig with a token in place of whatever signed its users in.
fn signed_in(text: &str, token: &Token) -> Option<String> {
    let mut document: Value = serde_saphyr::from_str(text).ok()?;
    for user in document.get_mut("users")?.as_array_mut()? {
        user["user"] = json!({"token": token.secret.expose_secret()});
    }
    serde_saphyr::to_string(&document).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: 'https://a:443'}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\nusers:\n- name: u\n  user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: kubelogin}}\n";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn plane() -> ObjectMeta {
        ObjectMeta {
            uid: Some("plane".into()),
            ..ObjectMeta::default()
        }
    }

    fn made(token: Option<(&Token, Timestamp)>) -> Secret {
        let controller = OwnerReference {
            uid: "plane".into(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        let place = SecretEntry {
            namespace: "team",
            cluster: "fleet",
            secret: &KubeconfigKind::Administrator.secret_name("fleet"),
            key: "value",
        };
        make(&place, controller, "a:443", TEXT, token).unwrap()
    }

    fn judged(secret: &Secret, endpoint: &str, now: &str) -> Verdict {
        let stored = StoredSecret::kubeconfig(secret);
        judge(Some(&stored), &plane(), "fleet", endpoint, at(now))
    }

    #[test]
    fn a_secret_is_written_when_it_is_missing_or_no_longer_fits() {
        let now = "2026-01-01T00:00:00Z";
        let missing = judge(None, &plane(), "fleet", "a:443", at(now));
        assert_eq!(missing, Verdict::Write(MISSING));
        let good = made(None);
        assert_eq!(good.metadata.name.as_deref(), Some("fleet-kubeconfig"));
        assert_eq!(judged(&good, "a:443", now), Verdict::Good(None));
        let moved = Verdict::Write("AKS shows another API server");
        assert_eq!(judged(&good, "b:443", now), moved);
        let mut unlabelled = good.clone();
        unlabelled.metadata.labels = None;
        assert_eq!(judged(&unlabelled, "a:443", now), Verdict::Write(UNLABELLED));
        let mut empty = good.clone();
        empty.data = None;
        let unreadable = Verdict::Write("it holds no kubeconfig that can be read");
        assert_eq!(judged(&empty, "a:443", now), unreadable);
        let mut opaque = good.clone();
        opaque.type_ = Some("Opaque".into());
        assert!(matches!(judged(&opaque, "a:443", now), Verdict::Replace(_)));
        let mut foreign = good;
        foreign.metadata.owner_references = None;
        assert_eq!(judged(&foreign, "a:443", now), Verdict::Foreign);
    }

    #[test]
    fn a_token_is_renewed_at_half_its_life() {
        let token = Token {
            secret: SecretString::from("hunter2".to_owned()),
            expires: at("2026-01-01T01:00:00Z"),
        };
        let secret = made(Some((&token, at("2026-01-01T00:00:00Z"))));
        let half = at("2026-01-01T00:30:00Z");
        assert_eq!(
            judged(&secret, "a:443", "2026-01-01T00:29:59Z"),
            Verdict::Good(Some(half))
        );
        let outlived = Verdict::Write("the token in it is renewed at half its life");
        assert_eq!(judged(&secret, "a:443", "2026-01-01T00:30:00Z"), outlived);
        let read = secret::kubeconfig::read(&secret).unwrap();
        let user = read.auth_infos[0].auth_info.as_ref().unwrap();
        assert!(user.exec.is_none(), "nothing is run for it");
        assert_eq!(user.token.as_ref().unwrap().expose_secret(), "hunter2");
        let mut odd = secret;
        odd.metadata
            .annotations
            .as_mut()
            .unwrap()
            .insert(RENEW.into(), "soon".into());
        assert_eq!(judged(&odd, "a:443", "2026-01-01T00:00:00Z"), outlived);
    }

    #[test]
    fn an_answer_without_a_kubeconfig_is_an_error_that_quotes_nothing() {
        for answer in [
            json!({}),
            json!({"kubeconfigs": []}),
            json!({"kubeconfigs": [{"value": "hunter2!"}]}),
        ] {
            let error = from_answer(&answer, "listClusterAdminCredential")
                .unwrap_err()
                .to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        let answer = json!({"kubeconfigs": [{"value": STANDARD.encode(TEXT)}]});
        assert_eq!(from_answer(&answer, "x").unwrap(), TEXT);
    }
}
