//! The writes of a NodePool: hashes.

use kube::ResourceExt;
use serde_json::{Value, json};
use slipway_runtime::{Context, Outcome};

use super::{Action, Observed};
use crate::{Error, api::names::annotation, hash};

pub(super) async fn act(action: &Action, observed: &Observed, context: &Context) -> Result<Outcome, Error> {
    match action {
        Action::StampPool { hash } => {
            let pool = &observed.pool;
            let doing = format!("writing the hash to NodePool {}", pool.name_any());
            context
                .patch(pool, &stamp(hash, pool.resource_version().as_deref()))
                .await
                .map_err(Error::api(doing))?;
        }
        Action::StampClaim { claim, hash } => {
            let Some(found) = observed.claims.iter().find(|one| one.name_any() == *claim) else {
                return Ok(Outcome::Done);
            };
            context
                .patch(found.as_ref(), &stamp(hash, found.resource_version().as_deref()))
                .await
                .map_err(Error::api(format!("writing the hash to NodeClaim {claim}")))?;
        }
    }
    Ok(Outcome::Done)
}

fn stamp(hash: &str, version: Option<&str>) -> Value {
    json!({"metadata": {"resourceVersion": version, "annotations": {
        annotation::NODE_POOL_HASH: hash,
        annotation::NODE_POOL_HASH_VERSION: hash::VERSION,
    }}})
}
