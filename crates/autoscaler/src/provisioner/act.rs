//! Makes the claims of a round, and tells the pods.

use futures::{StreamExt, TryStreamExt, stream};
use kube::{Resource, ResourceExt};
use slipway_runtime::Context;

use super::plan::{Creation, Plan};
use crate::{
    Error,
    api::{NodeClaim, names::annotation},
    memory::Memory,
    watched::Watched,
};

/// Claims that are made at the same time.
const AT_ONCE: usize = 10;
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

pub(super) async fn act(
    plan: &Plan,
    watched: &Watched,
    memory: &Memory,
    context: &Context,
) -> Result<(), Error> {
    let made = stream::iter(plan.creations.clone())
        .map(|creation| async {
            let claim = create(creation, context).await?;
            Ok::<_, Error>(claim.name_any())
        })
        .buffered(AT_ONCE);
    let names: Vec<String> = made.try_collect().await?;
    for (creation, name) in plan.creations.iter().zip(&names) {
        let is_relaxed = creation
            .claim
            .annotations()
            .contains_key(annotation::MIN_VALUES_RELAXED);
        memory.metrics.claim_created(&creation.claim, is_relaxed);
        tracing::info!(
            nodepool = creation.pool,
            nodeclaim = name,
            object = %creation.object,
            pods = creation.pods.len(),
            "Created a NodeClaim"
        );
        for pod in &creation.pods {
            tell(
                pod,
                false,
                "Nominated",
                &format!("Pod should schedule on: nodeclaim/{name}"),
                watched,
                memory,
                context,
            );
        }
    }
    for refusal in &plan.refused {
        let note = format!("Failed to schedule pod, {}", refusal.message);
        tell(
            &refusal.pod,
            true,
            "FailedScheduling",
            &note,
            watched,
            memory,
            context,
        );
    }
    if let Some(why) = &plan.waits {
        tracing::warn!(why, "Nothing is provisioned");
    }
    Ok(())
}

/// Makes a claim, under a name of its own.
pub(crate) async fn create(creation: Creation, context: &Context) -> Result<NodeClaim, Error> {
    let mut claim = creation.claim;
    let name = format!("{}-{}", creation.pool, suffix(context.random.next()));
    claim.metadata.name = Some(name.clone());
    let doing = format!("creating NodeClaim {name}");
    context.create(&claim).await.map_err(Error::api(doing))
}

/// Five letters, as Kubernetes' own generated names have.
fn suffix(number: u64) -> String {
    (0..5)
        .map(|place| char::from(LETTERS[usize::try_from((number >> (place * 5)) & 31).unwrap_or(0)]))
        .collect()
}

/// Tells a pod, once for each text.
fn tell(
    pod: &str,
    warning: bool,
    reason: &str,
    note: &str,
    watched: &Watched,
    memory: &Memory,
    context: &Context,
) {
    let found = pod
        .split_once('/')
        .and_then(|(namespace, name)| watched.pod(namespace, name));
    let Some(found) = found else { return };
    let uid = found.uid().unwrap_or_default();
    if memory.is_news(&uid, note) {
        memory.note_reported(&uid, note);
        let regarding = found.object_ref(&());
        context
            .events
            .record(regarding, warning, reason, "Provision", note.to_owned());
    }
}
