//! What is to be done about one inline resource, and why. Pure.

use std::time::Duration;

use jiff::Timestamp;
use slipway_azure::{
    ResourceId,
    engine::throttled,
    reconcile::{
        ResourceState, StepStatus, THROTTLED,
        planning::{
            ASK_AGAIN, Comparison, OWNED_BY_ANOTHER, OWNER_CHECK, Problem, RECREATE, Unknown, VANISHED,
            WAITING_FOR_AZURE, compare, is_stopped, occupied,
        },
        step::under_way,
    },
};
use slipway_runtime::Class;

use super::{Held, Resource};
use crate::{engine, inline::Policy};

/// The reason of a resource that a running Azure Service Operator writes.
pub const OPERATED: &str = "ManagedByAzureServiceOperator";
/// The reasons of Azure Service Operator for what is not there.
const NOT_FOUND: &str = "AzureResourceNotFound";
const WAITING_FOR_OWNER: &str = "WaitingForOwner";
/// The reason of a resource that was made under another name, or elsewhere, than the spec says now.
const NAME_CHANGED: &str = "AzureNameChanged";

/// What is to be done about a resource.
pub enum Verdict {
    /// It is as it should be, and that was noted.
    Rest,
    Wait(Waiting),
    /// It was there and is gone: that is reported, and it is made again.
    Vanished,
    /// Compare with Azure once more and send what differs.
    Ensure(Comparison),
    /// It is Azure Service Operator's, or becomes so, or no longer is.
    Operated(engine::EngineStep),
}

/// Why nothing is done.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
    /// Nothing tells when it is over: the object is reconciled again after this.
    pub again: Option<Duration>,
    /// It is an error, of this class.
    pub class: Option<Class>,
}

impl Waiting {
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.to_owned(),
            message: message.into(),
            again: None,
            class: None,
        }
    }

    pub fn again(mut self, after: Duration) -> Self {
        self.again = Some(after);
        self
    }

    /// It is an error, of this class.
    pub fn failed(reason: &str, message: impl Into<String>, class: Class) -> Self {
        Self {
            class: Some(class),
            ..Self::new(reason, message)
        }
    }

    /// Nothing is known of a resource. `existed`: Azure has made it once.
    pub fn unknown(id: &ResourceId, why: Option<&Unknown>, existed: bool, now: Timestamp) -> Self {
        unknown(id, why, existed, now)
    }

    /// What somebody else has to bring is waited for, and looked for now and then: it may stand in an object that nothing here
    /// watches for. Everything else is an error.
    fn of(problem: &Problem) -> Self {
        let waiting = Self::new(&problem.code, problem.message.clone());
        match problem.class {
            Class::Transient if is_missing(&problem.code) => waiting.again(OWNER_CHECK),
            class => Self {
                class: Some(class),
                ..waiting
            },
        }
    }

    /// How it is shown.
    pub fn status(&self) -> StepStatus {
        match self.class {
            None | Some(Class::Throttled(_)) => StepStatus::Waiting {
                reason: self.reason.clone().into(),
                message: self.message.clone(),
            },
            Some(class) => StepStatus::Failed {
                code: self.reason.clone(),
                message: self.message.clone(),
                terminal: matches!(class, Class::Terminal | Class::Denied),
            },
        }
    }
}

fn is_missing(code: &str) -> bool {
    [
        WAITING_FOR_OWNER,
        "ReferenceNotFound",
        "SecretNotFound",
        "ConfigMapNotFound",
    ]
    .contains(&code)
}

/// Nothing is made under the new name, and nothing under the old one is deleted. The name may come from a ConfigMap, which nothing here
/// watches.
fn name_changed(there: &ResourceId) -> Waiting {
    let message = format!(
        "in Azure it is {}, and nothing in Azure changes its name or its owner: set azureName (or the ConfigMap that it \
         comes from) and owner back. To replace it, give the resource another metadata.name: it is made under that, \
         and the old one is deleted",
        there.as_str()
    );
    Waiting {
        class: Some(Class::Terminal),
        ..Waiting::new(NAME_CHANGED, message).again(OWNER_CHECK)
    }
}

/// Why nothing is known of a resource. `existed`: Azure has made it once.
fn unknown(id: &ResourceId, why: Option<&Unknown>, existed: bool, now: Timestamp) -> Waiting {
    match why {
        None | Some(Unknown::Silent) => {
            let message = format!("Azure has not answered yet about {}", id.as_str());
            Waiting::new(WAITING_FOR_AZURE, message).again(ASK_AGAIN)
        }
        Some(Unknown::Busy { progress, after }) => {
            let (reason, verb) = if existed {
                ("Updating", "updating")
            } else {
                ("Creating", "creating")
            };
            Waiting::new(reason, under_way(verb, id.as_str(), progress)).again(*after)
        }
        Some(Unknown::Throttled(after)) => Waiting {
            class: Some(Class::Throttled(*after)),
            ..Waiting::new(THROTTLED, throttled(*after, now))
        },
        Some(Unknown::Failed(problem)) => Waiting::of(problem),
    }
}

impl Held {
    /// What is to be done about a resource of an object that stays.
    pub fn verdict(&self, resource: &Resource, now: Timestamp) -> Verdict {
        if let Some(object) = &resource.operated_by {
            let message = format!(
                "{object} writes it: nothing is written here while it is there and not told \
                 to leave the resource alone (serviceoperator.azure.com/reconcile-policy: skip)"
            );
            return Verdict::Wait(Waiting::new(OPERATED, message).again(OWNER_CHECK));
        }
        if let Some(problem) = &resource.problem {
            return Verdict::Wait(Waiting::of(problem));
        }
        let Some(id) = &resource.id else {
            let message = format!("it is not known where {} is in Azure", resource.display());
            return Verdict::Wait(Waiting::new(WAITING_FOR_OWNER, message).again(OWNER_CHECK));
        };
        if let Some(there) = self.stands_elsewhere(resource) {
            return Verdict::Wait(name_changed(&there));
        }
        let state = self.state(id);
        if resource.choice.is_operated() {
            return self.verdict_of_operated(resource, id, now);
        }
        if let Some(step) = engine::leaving(self, resource) {
            return Verdict::Operated(step);
        }
        if resource.policy() == Policy::Skip {
            return self.verdict_of_skipped(id, state, now);
        }
        if let Some(foreign) = self.foreign(id) {
            let message = format!("nothing is written to {}: {foreign}", id.as_str());
            return Verdict::Wait(Waiting::new(OWNED_BY_ANOTHER, message).again(OWNER_CHECK));
        }
        if let Some((reason, message)) = &resource.wait {
            return Verdict::Wait(Waiting::new(reason, message.clone()));
        }
        if *state == ResourceState::Unknown {
            return Verdict::Wait(unknown(id, self.unknown(id), self.has_existed(id), now));
        }
        if self.is_vanished(id) {
            return self.verdict_of_vanished(resource, id);
        }
        let record = self.records.record(id.key());
        let Some(comparison) = compare(resource.put.as_ref(), state, self.unknown(id), record) else {
            return Verdict::Rest;
        };
        // Only what is written waits: what is there already is left as it is.
        if comparison.event.is_some()
            && let Some(waiting) = self.obstacle(resource, id, state)
        {
            return Verdict::Wait(waiting);
        }
        Verdict::Ensure(comparison)
    }

    fn verdict_of_operated(&self, resource: &Resource, id: &ResourceId, now: Timestamp) -> Verdict {
        if let Some(foreign) = self.foreign(id) {
            let message = format!("nothing is written to {}: {foreign}", id.as_str());
            return Verdict::Wait(Waiting::new(OWNED_BY_ANOTHER, message).again(OWNER_CHECK));
        }
        if let Some((reason, message)) = &resource.wait {
            return Verdict::Wait(Waiting::new(reason, message.clone()));
        }
        Verdict::Operated(engine::step(self, resource, now))
    }

    fn verdict_of_skipped(&self, id: &ResourceId, state: &ResourceState, now: Timestamp) -> Verdict {
        match state {
            ResourceState::Unknown => Verdict::Wait(unknown(id, self.unknown(id), true, now)),
            ResourceState::Absent => {
                let message = format!(
                    "{} does not exist, and is not made because its reconcile-policy is skip",
                    id.as_str()
                );
                Verdict::Wait(Waiting::new(NOT_FOUND, message).again(OWNER_CHECK))
            }
            ResourceState::Present(_) => match occupied(state, self.unknown(id)) {
                Some(why) => Verdict::Wait(Waiting::new("Reconciling", why).again(ASK_AGAIN)),
                None => Verdict::Rest,
            },
        }
    }

    /// An AKS cluster that is gone is not made again by itself, because it would be empty.
    fn verdict_of_vanished(&self, resource: &Resource, id: &ResourceId) -> Verdict {
        if !resource.is_managed_cluster() || self.recreates() {
            return Verdict::Vanished;
        }
        let kind = self.object.split(' ').next().unwrap_or_default();
        let message = format!(
            "{} is gone, and nothing here deleted it. It is not created again by itself, because it would be empty: \
             annotate the {kind} with {RECREATE}: \"true\" to create it, or delete the Cluster",
            id.as_str()
        );
        Verdict::Wait(Waiting::new(VANISHED, message).again(OWNER_CHECK))
    }

    /// What has to come before a resource is written.
    pub fn obstacle(&self, resource: &Resource, id: &ResourceId, state: &ResourceState) -> Option<Waiting> {
        let own = resource
            .after
            .iter()
            .filter_map(|&place| self.resources.get(place))
            .filter(|other| !self.is_there(other))
            .map(Resource::display);
        let missing: Vec<String> = own.chain(resource.missing.iter().cloned()).collect();
        if !missing.is_empty() {
            let message = format!("it waits for {}", missing.join(", "));
            let waiting = Waiting::new(WAITING_FOR_OWNER, message);
            return Some(if resource.missing.is_empty() {
                waiting
            } else {
                waiting.again(OWNER_CHECK)
            });
        }
        let is_below = |above: &ResourceId| {
            let rest = id.key().strip_prefix(above.key());
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        let stopped = if resource.is_managed_cluster() && is_stopped(state) {
            Some(id)
        } else {
            self.stopped.as_ref().filter(|above| is_below(above))
        };
        stopped.map(|stopped| {
            let message = format!(
                "{} is stopped, and AKS takes no changes: what differs is sent when it is started",
                stopped.as_str()
            );
            Waiting::new("Stopped", message).again(OWNER_CHECK)
        })
    }
}
