//! The fleet's Secrets as data: the CA and the records of join tokens. Pure. A record holds nothing from which its token could be made again.

use std::{collections::BTreeMap, str::FromStr};

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use slipway_agent_api::{ca::CaPem, token::TokenRecord};
use slipway_slots::Digest;

/// The fleet's name in certificates. Fleets are told apart by their CAs.
pub const FLEET: &str = "edge";
/// The Secret with the CA that hosts and managers trust.
pub const CA_SECRET: &str = "slipway-edge-ca";
/// What records of join tokens are found by.
pub const TOKEN_LABEL: &str = "edge.slipway.dev/join-token";

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

pub fn token_secret(id: &str) -> String {
    format!("slipway-edge-token-{id}")
}

fn secret(namespace: &str, name: String, fields: &[(&str, String)]) -> Secret {
    let data = |(key, value): &(&str, String)| ((*key).to_owned(), ByteString(value.clone().into_bytes()));
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some(fields.iter().map(data).collect()),
        ..Secret::default()
    }
}

fn field(secret: &Secret, key: &str) -> Option<String> {
    let value = secret.data.as_ref()?.get(key)?;
    String::from_utf8(value.0.clone()).ok()
}

pub fn ca_secret(namespace: &str, pem: &CaPem) -> Secret {
    let fields = [(CERTIFICATE, pem.certificate.clone()), (KEY, pem.key.clone())];
    Secret {
        type_: Some("kubernetes.io/tls".to_owned()),
        ..secret(namespace, CA_SECRET.to_owned(), &fields)
    }
}

pub fn ca(secret: &Secret) -> Option<CaPem> {
    Some(CaPem {
        certificate: field(secret, CERTIFICATE)?,
        key: field(secret, KEY)?,
    })
}

pub fn token_record(namespace: &str, record: &TokenRecord) -> Secret {
    let mut fields = vec![
        ("host", record.host.clone()),
        ("secret", record.secret.to_string()),
        ("expires", record.expires.to_string()),
    ];
    fields.extend(record.used_by.map(|key| ("usedBy", key.to_string())));
    let mut secret = secret(namespace, token_secret(&record.id), &fields);
    secret.metadata.labels = Some(BTreeMap::from([(TOKEN_LABEL.to_owned(), String::new())]));
    secret
}

/// `None`: it is no record of a join token.
pub fn read_record(id: &str, secret: &Secret) -> Option<TokenRecord> {
    let digest = |key: &str| field(secret, key).map(|text| Digest::from_str(&text));
    let used_by = match digest("usedBy") {
        None => None,
        Some(key) => Some(key.ok()?),
    };
    Some(TokenRecord {
        id: id.to_owned(),
        host: field(secret, "host")?,
        secret: digest("secret")?.ok()?,
        expires: field(secret, "expires")?.parse::<Timestamp>().ok()?,
        used_by,
    })
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use slipway_agent_api::token::JoinToken;

    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_holds_no_token() {
        let now: Timestamp = "2026-11-18T02:00:00Z".parse().expect("a time");
        let ca = Digest::of(b"a ca");
        let (token, mut record) = JoinToken::issue("box-1", ca, now, SignedDuration::from_hours(1));
        for used_by in [None, Some(Digest::of(b"a key"))] {
            record.used_by = used_by;
            let stored = token_record("slipway-system", &record);
            assert_eq!(read_record(&record.id, &stored), Some(record.clone()));
            let told = token.reveal();
            let secret = told.split('.').nth(2).expect("the token's secret");
            let text: String = stored
                .data
                .iter()
                .flatten()
                .map(|(_, value)| String::from_utf8_lossy(&value.0).into_owned())
                .collect();
            assert!(!text.contains(secret));
        }
        // A record that somebody has changed is none: nobody joins with it.
        let mut broken = token_record("slipway-system", &record);
        broken
            .data
            .as_mut()
            .expect("data")
            .insert("usedBy".to_owned(), ByteString(b"me".to_vec()));
        assert_eq!(read_record(&record.id, &broken), None);
    }
}
