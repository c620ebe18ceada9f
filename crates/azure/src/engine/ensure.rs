//! Making a resource as desired: read, compare, and only if something differs send one PUT.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use slipway_runtime::Outcome;

use tokio::time::Instant;

use super::{Arm, Followed, moving, writes::Content};
use crate::{
    arm::{Answer, ArmError, ResourceId, State, Verb, resource_state},
    budget::Priority,
    diff::{Difference, Edit, Record, differences, merge, without_children},
    ownership::{self, mark_of},
    reconcile::state::tags_of,
    resource::{Put, Shape},
    view::Read,
};

/// A resource as it should be.
#[derive(Clone, Debug)]
pub struct Desired<'a> {
    pub put: &'a Put,
    /// What was applied last, as an earlier [`Ensured`] returned it.
    pub record: Option<&'a Record>,
    /// How old a read may be for this object, if not what the tuning says.
    pub max_read_age: Option<Duration>,
    /// The mark of the object that owns the resource: it goes along with whatever is written anyway, and nothing is
    /// written over another's.
    pub owner: Option<&'a str>,
}

impl<'a> Desired<'a> {
    pub fn new(put: &'a Put, record: Option<&'a Record>) -> Self {
        Self {
            put,
            record,
            max_read_age: None,
            owner: None,
        }
    }

    /// What would be sent because of what Azure shows. Pure.
    pub fn differences(&self, observed: &Value) -> Vec<Difference> {
        judge(self, observed).differences
    }

    /// Whether there is nothing to send, and nothing to learn from what Azure shows. Pure.
    pub fn is_at_rest(&self, observed: &Value) -> bool {
        let judged = judge(self, observed);
        judged.differences.is_empty() && judged.settled.is_none()
    }
}

/// What one step came to.
#[derive(Debug)]
pub struct Ensured {
    pub outcome: Outcome,
    /// The resource as Azure shows it, as far as it was seen in this step.
    pub body: Option<Arc<Value>>,
    /// Azure's word for what is under way, or what we wait for.
    pub progress: Option<String>,
    /// What differed, if something was sent because of it.
    pub differences: Vec<Difference>,
    /// To be kept with the object, if it changed.
    pub record: Option<Record>,
}

impl Ensured {
    pub(super) fn done(body: Option<Arc<Value>>) -> Self {
        Self {
            outcome: Outcome::Done,
            body,
            progress: None,
            differences: Vec::new(),
            record: None,
        }
    }

    pub(super) fn waiting(outcome: Outcome, progress: Option<String>) -> Self {
        Self {
            outcome,
            body: None,
            progress: progress.filter(|progress| !progress.is_empty()),
            differences: Vec::new(),
            record: None,
        }
    }
}

/// What differs, and whether what Azure shows counts as what was sent.
struct Judged {
    differences: Vec<Difference>,
    /// Azure made of our last body what it shows: remember its spelling.
    settled: Option<Record>,
}

/// What is kept of a body that was sent: all but the children that have requests of their own from then on.
fn record_of(put: &Put) -> Record {
    Record::sent(&without_children(&put.mapping, &put.body), &put.secrets)
}

fn judge(desired: &Desired<'_>, observed: &Value) -> Judged {
    let put = desired.put;
    let mut found = differences(&put.mapping, &put.body, observed, desired.record, &put.secrets);
    let state = resource_state(observed);
    if matches!(state, State::Failed | State::Canceled) {
        found.push(Difference {
            path: "properties.provisioningState".to_owned(),
            change: Edit::Update,
            explanation: "the last change failed".to_owned(),
        });
        return Judged {
            differences: found,
            settled: None,
        };
    }
    let sent = record_of(put);
    let settled = match desired.record {
        // It was accepted, it is over and it succeeded: what still differs is Azure's own spelling.
        Some(record) if record.sent == sent.sent && !record.settled => {
            Some(record.settle(&put.mapping, observed))
        }
        // Never sent by us, and already as desired: nothing to learn, but a later removal must be seen.
        None if found.is_empty() => Some(sent.settle(&put.mapping, observed)),
        Some(record) if found.is_empty() && record.sent != sent.sent => {
            Some(sent.settle(&put.mapping, observed))
        }
        _ => None,
    };
    if desired
        .record
        .is_some_and(|record| record.sent == sent.sent && !record.settled)
    {
        found.clear();
    }
    Judged {
        differences: found,
        settled,
    }
}

/// Nothing is written over another's mark, whatever was observed a moment ago.
pub(super) fn refuse_foreign(
    id: &ResourceId,
    observed: Option<&Value>,
    owner: Option<&str>,
) -> Result<(), ArmError> {
    let tags = observed.map(tags_of).unwrap_or_default();
    match mark_of(&tags) {
        Some(mark) if Some(mark) != owner => Err(ArmError::Foreign {
            target: id.to_string(),
            mark: mark.to_owned(),
        }),
        _ => Ok(()),
    }
}

impl Arm {
    /// One step towards the resource as desired. No difference, no request but the reads.
    pub async fn ensure(&self, desired: &Desired<'_>) -> Result<Ensured, ArmError> {
        let put = desired.put;
        let (id, api_version) = (&put.id, put.mapping.api_version.as_str());
        self.note(id);
        if let Followed::Running { progress, after } = self.follow(id).await? {
            return Ok(Ensured::waiting(Outcome::InProgress(after), Some(progress)));
        }
        let age = self.read_age(id, desired.max_read_age);
        let mut read = self
            .view
            .read(&self.client, id, api_version, age, self.urgency.priority())
            .await?;
        loop {
            let (body, fresh) = match read {
                Read::Throttled(after) => return Ok(Ensured::waiting(Outcome::Throttled(after), None)),
                Read::Absent { fresh } => (None, fresh),
                Read::Present { body, fresh } => (Some(body), fresh),
            };
            let mut differences = Vec::new();
            if let Some(body) = &body {
                if let Some(progress) = moving(body) {
                    let mut waiting =
                        Ensured::waiting(Outcome::InProgress(self.azure.tuning.requeue), Some(progress));
                    waiting.body = Some(Arc::clone(body));
                    return Ok(waiting);
                }
                let judged = judge(desired, body);
                if judged.differences.is_empty() {
                    let mut done = Ensured::done(Some(Arc::clone(body)));
                    done.record = judged.settled;
                    return Ok(done);
                }
                differences = judged.differences;
            }
            // What is not sent is not read for either.
            let content = self.content(desired);
            if let Some(held) = self.azure.writes.held(id, content, Instant::now()) {
                return held.ended("changing", id);
            }
            if let Err(error) = self.client.reserve(Verb::Put, id).await {
                return self.not_accepted("changing", id, content, Err(error));
            }
            if !fresh {
                // Never change what was not looked at just now.
                read = self
                    .view
                    .get(&self.client, id, api_version, Priority::Change)
                    .await?;
                continue;
            }
            return self.send(desired, body.as_deref(), differences).await;
        }
    }

    fn content(&self, desired: &Desired<'_>) -> Content {
        Content::of(desired.put.body.to_string().as_bytes(), &self.credential)
    }

    async fn send(
        &self,
        desired: &Desired<'_>,
        observed: Option<&Value>,
        differences: Vec<Difference>,
    ) -> Result<Ensured, ArmError> {
        let put = desired.put;
        let (id, api_version) = (&put.id, put.mapping.api_version.as_str());
        let content = self.content(desired);
        let mut body = merge(&put.mapping, &put.body, observed, desired.record);
        refuse_foreign(id, observed, desired.owner)?;
        if let Some(owner) = desired.owner
            && Shape::spec(&put.mapping).child("tags").is_map()
        {
            if !body["tags"].is_object() {
                body["tags"] = json!({});
            }
            body["tags"][ownership::TAG] = owner.into();
        }
        let etag = observed.and_then(|observed| {
            ["/etag", "/eTag", "/properties/eTag"]
                .iter()
                .find_map(|pointer| observed.pointer(pointer).and_then(Value::as_str))
        });
        tracing::info!(
            resource = %id,
            differences = differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            "Changing the resource in Azure"
        );
        let answer = self.client.put(id, api_version, &body, etag).await;
        self.view.touch(id);
        let record = record_of(put);
        match answer {
            Ok(Answer::Done(body)) => {
                self.azure.writes.succeeded(id, Instant::now());
                let settled = record.settle(&put.mapping, &body);
                let mut done = Ensured::done(Some(Arc::new(body)));
                done.differences = differences;
                done.record = Some(settled);
                Ok(done)
            }
            Ok(Answer::Accepted {
                operation,
                after,
                body,
            }) => {
                let progress = moving(&body);
                self.azure.writes.accepted(id, content, Instant::now());
                self.azure.operations.lock().insert(id.clone(), operation);
                let mut waiting = Ensured::waiting(Outcome::InProgress(after), progress);
                waiting.body = (!body.is_null()).then(|| Arc::new(body));
                waiting.differences = differences;
                waiting.record = Some(record);
                Ok(waiting)
            }
            other => self.not_accepted("changing", id, content, other),
        }
    }
}
