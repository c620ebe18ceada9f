//! What the fleet writes: its CA, once, and who has used which join token.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use slipway_agent_api::{
    ca::{Ca, CaPem},
    token::{JoinToken, TokenRecord},
};
use slipway_slots::Digest;

use super::{
    Error,
    record::{self, CA_SECRET, FLEET},
};

/// The fleet's CA. Of several managers that find none, one makes it.
pub async fn ensure_ca(client: &Client, namespace: &str, now: Timestamp) -> Result<CaPem, Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let doing = || format!("reading Secret {namespace}/{CA_SECRET}");
    if let Some(found) = secrets.get_opt(CA_SECRET).await.map_err(Error::api(doing()))? {
        return record::ca(&found).ok_or_else(|| Error::NoCa {
            namespace: namespace.to_owned(),
        });
    }
    let made = Ca::generate(FLEET, now)?;
    let stored = record::ca_secret(namespace, &made);
    match secrets.create(&PostParams::default(), &stored).await {
        Ok(_) => Ok(made),
        Err(kube::Error::Api(status)) if status.is_already_exists() => {
            let found = secrets.get(CA_SECRET).await.map_err(Error::api(doing()))?;
            record::ca(&found).ok_or_else(|| Error::NoCa {
                namespace: namespace.to_owned(),
            })
        }
        Err(error) => Err(Error::api(format!("creating Secret {namespace}/{CA_SECRET}"))(
            error,
        )),
    }
}

/// Issues a join token for a host: it is told once, and only its record is kept.
pub async fn issue_token(
    client: &Client,
    namespace: &str,
    host: &str,
    valid: SignedDuration,
    now: Timestamp,
) -> Result<JoinToken, Error> {
    let pem = ensure_ca(client, namespace, now).await?;
    let ca = super::open(&pem)?;
    let (token, issued) = JoinToken::issue(host, ca.digest(), now, valid);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    secrets
        .create(&PostParams::default(), &record::token_record(namespace, &issued))
        .await
        .map_err(Error::api(format!(
            "storing the record of a join token for host {host}"
        )))?;
    Ok(token)
}

/// Notes who uses a token, over the version that was read. `false`: somebody was first.
pub async fn claim_token(
    client: &Client,
    namespace: &str,
    token: &TokenRecord,
    key: Digest,
) -> Result<bool, Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let name = record::token_secret(&token.id);
    let doing = || format!("noting who uses join token {}", token.id);
    let Some(found) = secrets.get_opt(&name).await.map_err(Error::api(doing()))? else {
        return Ok(false);
    };
    if record::read_record(&token.id, &found).is_none_or(|record| record.used_by.is_some()) {
        return Ok(false);
    }
    let patch = json!({
        "metadata": {"resourceVersion": found.metadata.resource_version},
        "data": {"usedBy": ByteString(key.to_string().into_bytes())},
    });
    match secrets
        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(Error::api(doing())(error)),
    }
}
