//! Join tokens: what a person carries to a new host, and what is kept of it. A token is for one host, for one key, and
//! for a short time. Pure: whoever keeps the records is behind [`TokenStore`].

use std::{fmt, str::FromStr};

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use rand::RngCore;
use slipway_slots::Digest;

use crate::problem::{Class, Problem};

const PREFIX: &str = "slipway1";

/// What the new host gets: the record's id, a secret, and the CA by which it knows the manager.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub id: String,
    secret: [u8; 32],
    /// Digest of the CA's certificate.
    pub ca: Digest,
}

/// What is kept: nothing from which the token could be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    pub id: String,
    pub host: String,
    pub secret: Digest,
    pub expires: Timestamp,
    /// Digest of the public key that used it. The same key may ask again, because an answer can be lost.
    pub used_by: Option<Digest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// To be recorded before anything is signed.
    First,
    /// By the same key.
    Again,
}

/// Where the records are kept.
#[async_trait]
pub trait TokenStore: Send + Sync {
    async fn get(&self, id: &str) -> Result<Option<TokenRecord>, Problem>;
    /// Records the key if nobody was first; false when somebody was. Durable when it returns.
    async fn claim(&self, record: &TokenRecord, key: Digest) -> Result<bool, Problem>;
}

impl JoinToken {
    pub fn issue(host: &str, ca: Digest, now: Timestamp, valid: SignedDuration) -> (Self, TokenRecord) {
        let mut random = rand::rng();
        let (mut id, mut secret) = ([0; 9], [0; 32]);
        random.fill_bytes(&mut id);
        random.fill_bytes(&mut secret);
        let token = Self {
            id: hex::encode(id),
            secret,
            ca,
        };
        let record = TokenRecord {
            id: token.id.clone(),
            host: host.to_owned(),
            secret: Digest::of(&secret),
            expires: now.saturating_add(valid).unwrap_or(now),
            used_by: None,
        };
        (token, record)
    }

    /// The token as text, for the person who carries it.
    pub fn reveal(&self) -> String {
        let encode = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        format!(
            "{PREFIX}.{}.{}.{}",
            self.id,
            encode(&self.secret),
            encode(&self.ca.0)
        )
    }
}

impl TokenRecord {
    /// Whether `token` lets `host` join with this key. Who does not have the secret learns nothing else.
    pub fn check(
        &self,
        token: &JoinToken,
        host: &str,
        key: Digest,
        now: Timestamp,
    ) -> Result<Claim, Problem> {
        if Digest::of(&token.secret) != self.secret {
            return Err(unknown());
        }
        let refused = |message: String| Problem::new(Class::Denied, "TokenRefused", message);
        if host != self.host {
            return Err(refused(format!(
                "the join token is for host {}: make one for {host}",
                self.host
            )));
        }
        if now >= self.expires {
            return Err(refused(format!(
                "the join token was valid until {}: make a new one",
                self.expires
            )));
        }
        match self.used_by {
            None => Ok(Claim::First),
            Some(user) if user == key => Ok(Claim::Again),
            Some(_) => Err(used()),
        }
    }
}

/// Also the answer for an id that nobody knows.
pub(crate) fn unknown() -> Problem {
    Problem::new(
        Class::Denied,
        "TokenRefused",
        "the join token is not known here: make a new one",
    )
}

pub(crate) fn used() -> Problem {
    Problem::new(
        Class::Denied,
        "TokenRefused",
        "the join token was used already: make a new one",
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a join token: it must be {PREFIX} and three parts with dots between")]
pub struct NotAToken;

impl FromStr for JoinToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let parts: Vec<_> = text.trim().split('.').collect();
        let [PREFIX, id, secret, ca] = parts.as_slice() else {
            return Err(NotAToken);
        };
        if id.len() != 18 || !id.bytes().all(|byte| b"0123456789abcdef".contains(&byte)) {
            return Err(NotAToken);
        }
        let decode = |text: &str| -> Result<[u8; 32], NotAToken> {
            let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| NotAToken)?;
            bytes.try_into().map_err(|_| NotAToken)
        };
        Ok(Self {
            id: (*id).to_owned(),
            secret: decode(secret)?,
            ca: Digest(decode(ca)?),
        })
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({}, …)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn noon() -> Timestamp {
        "2026-06-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_token_is_for_one_host_one_key_and_a_short_time() {
        let hour = SignedDuration::from_hours(1);
        let (token, mut record) = JoinToken::issue("box-1", Digest::of(b"ca"), noon(), hour);
        let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
        let said = |result: Result<Claim, Problem>| result.unwrap_err().message;
        assert_eq!(record.check(&token, "box-1", one, noon()), Ok(Claim::First));
        assert_eq!(
            said(record.check(&token, "box-2", one, noon())),
            "the join token is for host box-1: make one for box-2"
        );
        assert_eq!(
            said(record.check(&token, "box-1", one, noon() + hour)),
            "the join token was valid until 2026-06-01T13:00:00Z: make a new one"
        );
        record.used_by = Some(one);
        assert_eq!(record.check(&token, "box-1", one, noon()), Ok(Claim::Again));
        assert_eq!(
            said(record.check(&token, "box-1", other, noon())),
            "the join token was used already: make a new one"
        );
        // Somebody who guessed the id learns neither the host nor that it was used.
        let (mut foreign, _) = JoinToken::issue("box-1", Digest::of(b"ca"), noon(), hour);
        foreign.id = token.id.clone();
        assert_eq!(
            said(record.check(&foreign, "box-2", other, noon())),
            "the join token is not known here: make a new one"
        );
    }

    #[test]
    fn a_token_shows_its_secret_only_when_it_is_revealed() {
        let (token, record) =
            JoinToken::issue("box-1", Digest::of(b"ca"), noon(), SignedDuration::from_hours(1));
        let text = token.reveal();
        assert_eq!(text.parse::<JoinToken>(), Ok(token.clone()));
        let secret = text.split('.').nth(2).unwrap();
        for shown in [format!("{token:?}"), format!("{record:?}")] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_typed_is_a_token_or_not(text in ".{0,160}") {
            if let Ok(token) = text.parse::<JoinToken>() {
                prop_assert_eq!(token.reveal(), text.trim());
            }
        }

        #[test]
        fn a_changed_character_is_another_token(at in 0..110_usize, to in "[a-zA-Z0-9._-]") {
            let (token, record) = JoinToken::issue("box-1", Digest::of(b"ca"), noon(), SignedDuration::from_hours(1));
            let mut text = token.reveal();
            let at = at % text.len();
            prop_assume!(text[at..=at] != to);
            text.replace_range(at..=at, &to);
            if let Ok(changed) = text.parse::<JoinToken>() {
                let accepted = record.check(&changed, "box-1", Digest::of(b"key"), noon()).is_ok();
                prop_assert!(!accepted || changed.id != record.id || changed.ca != token.ca, "{}", text);
            }
        }
    }
}
