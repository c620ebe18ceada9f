//! What is to be done about the operator's object for a resource of an object that stays. Pure.

use jiff::Timestamp;
use slipway_azure::reconcile::{
    ResourceState,
    planning::{ASK_AGAIN, OWNED_BY_ANOTHER, OWNER_CHECK, occupied},
};
use slipway_runtime::Class;

use super::{
    AzureEngine, FOUND, Operated, QUIET, Standing, Told,
    manifest::{Application, FieldChange, Terms, desired, differences},
    object::OperatedObject,
};
use crate::{
    inline::Policy,
    resources::{Held, Resource, Waiting},
};

/// The reason of a resource whose engine is being switched.
const SWITCHING: &str = "SwitchingEngine";
/// The reason of a resource that the operator finds elsewhere than we do.
const ELSEWHERE: &str = "SubscriptionMismatch";

/// What is to be done about an object of the operator.
#[derive(Clone, Debug)]
pub enum EngineStep {
    Rest,
    Wait(Waiting),
    /// What is noted of the resource on its holder is another now; nothing else is done before that is stored.
    Note,
    /// The operator is given its object, and what differs in it.
    Give {
        application: Box<Application>,
        why: String,
        changes: Vec<FieldChange>,
        event: &'static str,
    },
    /// The operator is told to leave the resource alone.
    Quiet(Box<Operated>),
    /// The operator's object goes, and nothing in Azure. `release`: there is no operator to let go of it.
    Remove {
        operated: Box<Operated>,
        release: bool,
    },
}

impl Held {
    /// The operator's object for a resource.
    pub fn operated(&self, resource: &Resource) -> Option<&Operated> {
        self.operated.get(&super::observe::key(&resource.name))
    }

    /// The operator's object for a resource that is not the operator's to write: it goes, or stays quiet while others need it.
    pub fn left_object(&self, resource: &Resource) -> Option<&Operated> {
        let found = self.operated(resource)?;
        let is_ours = found.live.is_controlled_by(&self.metadata);
        (is_ours && !resource.choice.is_operated()).then_some(found)
    }

    /// What the operator's object for a resource is to be.
    fn application(
        &self,
        resource: &Resource,
        state: &ResourceState,
    ) -> Option<(Application, Vec<FieldChange>)> {
        let (inline, api) = (resource.inline.as_ref()?, resource.api.clone()?);
        let found = self.operated(resource).map(|one| &one.live);
        let looks_first = state.body().is_some() && found.and_then(OperatedObject::id).is_none();
        let is_found = resource.engine_notes.contains_key(FOUND);
        let policy = (is_found && inline.policy == Policy::Manage).then_some("detach-on-delete");
        let terms = Terms {
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            cluster: self.cluster_name.clone(),
            controller: self.controller.clone(),
            mark: self.records.mark().map(str::to_owned),
            policy,
            // What it sees has to be what we see.
            looks: looks_first,
            elsewhere: resource.elsewhere.clone(),
        };
        let body = desired(&resource.manifest, inline, &terms, found);
        let asked = body["metadata"]["annotations"][super::act::POLICY].as_str();
        let resumes = found
            .and_then(OperatedObject::policy_before)
            .filter(|_| !looks_first)
            .map(|_| asked.map(str::to_owned));
        let changes = match found {
            None => Some(Vec::new()),
            Some(live) => differences(live, &body),
        };
        let changes = changes.or_else(|| resumes.is_some().then(Vec::new))?;
        let application = Application {
            api,
            namespace: terms.namespace,
            name: inline.object.name.clone(),
            body,
            resumes,
        };
        Some((application, changes))
    }
}

fn waiting(reason: &str, message: impl Into<String>) -> Waiting {
    Waiting::new(reason, message).again(OWNER_CHECK)
}

/// What is to be done about a resource that the operator writes.
pub fn step(held: &Held, resource: &Resource, now: Timestamp) -> EngineStep {
    let Some(id) = &resource.id else {
        return EngineStep::Wait(waiting(
            "WaitingForOwner",
            format!("it is not known where {} is in Azure", resource.display()),
        ));
    };
    let state = held.state(id);
    let found = held.operated(resource);
    if let Some(found) = found
        && let Some(other) = found.live.other_controller(&held.metadata)
    {
        let namespace = held.metadata.namespace.as_deref().unwrap_or_default();
        let message = format!(
            "the {} {namespace}/{} of Azure Service Operator belongs to {other}: nothing is written. Remove the resource \
             from one of them",
            resource.name.kind, resource.name.name
        );
        return EngineStep::Wait(waiting(OWNED_BY_ANOTHER, message));
    }
    if matches!(
        resource.standing,
        Standing::NotInstalled | Standing::VersionNotServed(_) | Standing::Forbidden(_)
    ) {
        let message = format!(
            "{}, and {}: install it, or annotate the object with {}: native",
            resource.choice.why,
            resource.standing,
            super::ANNOTATION
        );
        return EngineStep::Wait(waiting("AzureServiceOperatorUnavailable", message));
    }
    if found.is_none() && *state == ResourceState::Unknown {
        let why = held.unknown(id);
        return EngineStep::Wait(Waiting::unknown(id, why, held.has_existed(id), now));
    }
    if resource.choice.from == Some(AzureEngine::Native)
        && let Some(why) = occupied(state, held.unknown(id))
    {
        let message =
            format!("it is handed to Azure Service Operator as soon as Azure is done with it: {why}");
        return EngineStep::Wait(Waiting::new(SWITCHING, message).again(ASK_AGAIN));
    }
    if !held.is_noted(resource) {
        return EngineStep::Note;
    }
    if let Some(seen) = found.and_then(|found| found.live.id())
        && seen != id.key()
    {
        let message = format!(
            "Azure Service Operator takes it for {seen}, and it is {}: let its credential be of the same subscription, and \
             delete its object while its reconcile-policy is skip",
            id.as_str()
        );
        return EngineStep::Wait(Waiting::failed(ELSEWHERE, message, Class::Terminal));
    }
    if let Some((application, changes)) = held.application(resource, state) {
        if let Some(obstacle) = held.obstacle(resource, id, state) {
            return EngineStep::Wait(obstacle);
        }
        let (why, event) = match found {
            None if state.body().is_some() => ("Azure Service Operator takes it over", "HandingOver"),
            None => ("Azure Service Operator has no object for it", "Creating"),
            Some(_) if application.resumes.is_some() => {
                ("Azure Service Operator may write it again", "Updating")
            }
            Some(_) => ("it differs from what is desired", "Updating"),
        };
        let why = format!("{why}: {}", resource.choice.why);
        return EngineStep::Give {
            application: Box::new(application),
            why,
            changes,
            event,
        };
    }
    let Some(found) = found else {
        return EngineStep::Rest;
    };
    told(resource, found)
}

/// What the operator says of its object.
fn told(resource: &Resource, found: &Operated) -> EngineStep {
    let absent = if resource.standing == Standing::Running {
        String::new()
    } else {
        format!(" ({})", resource.standing)
    };
    match found.live.told() {
        Told::Ready => EngineStep::Rest,
        Told::Waiting { reason, message } => {
            EngineStep::Wait(Waiting::new(&reason, format!("{message}{absent}")))
        }
        Told::Failed {
            reason,
            message,
            terminal,
        } => {
            let class = if terminal {
                Class::Terminal
            } else {
                Class::Transient
            };
            let message = format!("{message}{absent}");
            // The operator tries again by itself, and its object tells.
            EngineStep::Wait(if terminal {
                Waiting::failed(&reason, message, class)
            } else {
                Waiting::new(&reason, message)
            })
        }
    }
}

/// What is to be done about the operator's object for a resource that we write, or are to write. `None`: it keeps us from nothing.
pub fn leaving(held: &Held, resource: &Resource) -> Option<EngineStep> {
    let found = held.left_object(resource)?;
    let id = resource.id.as_ref()?;
    if found.live.is_deleting() {
        let message = "the object of Azure Service Operator goes before anything is written here";
        let release = found.live.is_quiet() && resource.standing != Standing::Running;
        return Some(if release {
            remove(found, true)
        } else {
            EngineStep::Wait(Waiting::new(SWITCHING, message).again(ASK_AGAIN))
        });
    }
    if !held.is_noted(resource) {
        return Some(EngineStep::Note);
    }
    if !found.live.is_quiet() {
        return Some(EngineStep::Quiet(Box::new(found.clone())));
    }
    let state = held.state(id);
    let is_busy = resource.standing == Standing::Running && found.live.is_busy();
    let working = occupied(state, held.unknown(id))
        .or_else(|| is_busy.then(|| "its operator is at work on it".to_owned()));
    if let Some(why) = working {
        let message = format!("Azure Service Operator lets go of it as soon as Azure is done with it: {why}");
        return Some(EngineStep::Wait(
            Waiting::new(SWITCHING, message).again(ASK_AGAIN),
        ));
    }
    // Quiet, it keeps nobody from writing, and others of the operator's objects stand in it.
    if resource
        .engine_notes
        .get(super::NOTE)
        .is_some_and(|note| *note == QUIET)
        && held.is_needed(resource)
    {
        return None;
    }
    Some(remove(found, resource.standing != Standing::Running))
}

fn remove(found: &Operated, release: bool) -> EngineStep {
    EngineStep::Remove {
        operated: Box::new(found.clone()),
        release,
    }
}
