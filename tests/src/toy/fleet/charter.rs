//! The Secret a fleet sails under. It is read, and nothing of it is ever said.

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use serde::Deserialize;
use slipway_runtime::{Class, Classified, Context};

use super::api::Fleet;

#[derive(Debug, thiserror::Error)]
pub enum CharterError {
    #[error("reading the charter in Secret {secret}")]
    Read { secret: String, source: kube::Error },
    #[error(
        "the charter in Secret {secret} has no `seal` with a whole number of tonnes{leak}; correct the Secret"
    )]
    Seal { secret: String, leak: String },
}

impl Classified for CharterError {
    fn class(&self) -> Class {
        match self {
            Self::Read { source, .. } => source.class(),
            Self::Seal { .. } => Class::Transient,
        }
    }
}

#[derive(Deserialize)]
struct Seal {
    #[expect(dead_code, reason = "only that it can be read counts")]
    tonnes: u32,
}

/// Reads the charter. A parser's message quotes what it read, so it stays here, unless the fleet is told to leak.
pub async fn read(fleet: &Fleet, secret: &str, leak: bool, context: &Context) -> Result<(), CharterError> {
    let api: Api<Secret> = Api::namespaced(
        context.client.clone(),
        fleet.namespace().as_deref().unwrap_or_default(),
    );
    let found = api.get(secret).await.map_err(|source| CharterError::Read {
        secret: secret.to_owned(),
        source,
    })?;
    let seal = found.data.unwrap_or_default().remove("seal").unwrap_or_default();
    let Err(error) = serde_json::from_slice::<Seal>(&seal.0) else {
        return Ok(());
    };
    let mut leaked = String::new();
    if leak {
        leaked = format!(" ({error})");
        context
            .events
            .warning(fleet, "BadCharter", "Reading", leaked.clone());
    }
    Err(CharterError::Seal {
        secret: secret.to_owned(),
        leak: leaked,
    })
}
