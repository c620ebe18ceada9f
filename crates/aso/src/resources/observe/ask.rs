//! Azure is asked how each resource stands, and whose it is.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use slipway_azure::{
    ArmError, Priority, ResourceId, Urgency,
    caches::claim,
    ownership::{judge_beside, mark_of},
    reconcile::{
        Absence, Error, ResourceState,
        planning::{Problem, Unknown},
        records::{ADOPT, Entry},
    },
    rivals::{Occasion, Rival, RivalKinds, claims_of},
};
use slipway_capi::{condition, names::condition::READY};
use slipway_runtime::ObjectKey;

use super::Observer;
use crate::{
    caches::{Holder, claims},
    inline::{CREDENTIAL_FROM, Inline, order},
    resources::{Resource, held::noted_credential},
};

/// The mark of whoever an object is to take over from.
fn adopts<K: Holder>(object: &K) -> Option<&str> {
    let annotations = object.meta().annotations.as_ref()?;
    annotations.get(ADOPT).map(String::as_str)
}

impl<K: Holder> Observer<'_, K> {
    /// Asks Azure about resources that are in the spec, and about what is recorded.
    pub(super) async fn ask(&mut self, items: &[Inline], ids: &BTreeMap<usize, ResourceId>) {
        let deleting = self.held.is_deleting();
        let mut asked: Vec<(ResourceId, String, Option<String>)> = Vec::new();
        let (order, _) = order(items);
        if !deleting {
            for &place in &order {
                let inline = &items[place];
                if let Some(id) = ids.get(&inline.index) {
                    let version = inline.object.mapping.api_version.clone();
                    asked.push((id.clone(), version, inline.credential.clone()));
                }
            }
        }
        let recorded = self.held.records.entries().filter_map(|(key, entry)| {
            // A resource of the spec signs in as it says now.
            let named = items
                .iter()
                .find(|inline| ids.get(&inline.index).is_some_and(|id| id.key() == key));
            let credential = match named {
                Some(inline) => inline.credential.clone(),
                None => noted_credential(entry).map(str::to_owned),
            };
            Some((
                ResourceId::parse(key).ok()?,
                entry.api_version.clone(),
                credential,
            ))
        });
        let recorded: Vec<_> = recorded.collect();
        for one in recorded {
            if !asked.iter().any(|(id, ..)| *id == one.0) {
                asked.push(one);
            }
        }
        for group in self.operated_groups() {
            if !asked.iter().any(|(id, ..)| *id == group.0) {
                asked.push(group);
            }
        }
        for (id, api_version, credential) in asked {
            if let Err(problem) = self.ask_one(&id, &api_version, credential.as_deref()).await {
                self.held.sign_in_problems.insert(id.key().to_owned(), problem);
            }
        }
    }

    /// The resource groups that the operator has objects for, as they are asked about: they may go before anything is recorded.
    fn operated_groups(&self) -> Vec<(ResourceId, String, Option<String>)> {
        const GROUPS: &str = "2020-06-01";
        let metadata = &self.held.metadata;
        let ours = self
            .held
            .operated
            .values()
            .filter(|one| one.live.is_controlled_by(metadata));
        ours.filter_map(|one| {
            let id = ResourceId::parse(&one.live.id()?).ok()?;
            let annotations = one.live.metadata().annotations.as_ref();
            let credential = annotations.and_then(|all| all.get(CREDENTIAL_FROM)).cloned();
            id.is_resource_group()
                .then(|| (id, GROUPS.to_owned(), credential))
        })
        .collect()
    }

    async fn ask_one(
        &mut self,
        id: &ResourceId,
        api_version: &str,
        credential: Option<&str>,
    ) -> Result<(), Problem> {
        let (access, user, context) = (self.sources.access, self.user.clone(), self.context);
        let chosen = self.choices.of(credential, access, &user, context).await?;
        let secret = chosen.secret.to_string();
        if !self.engine.sessions.contains_key(&secret) {
            let share = ObjectKey::namespaced(&self.namespace, self.standing.cluster_name).to_string();
            let opened = access.open(&chosen.secret, &user, &share, context).await;
            let mut session = opened.map_err(|error| Problem::of(&error))?;
            session.arm = session.arm.urgent(self.urgency());
            self.engine.sessions.insert(secret.clone(), session);
        }
        self.engine.secrets.insert(id.key().to_owned(), secret.clone());
        let arm = self.engine.sessions[&secret].arm.clone();
        let entry = self.held.records.get(id.key());
        // A child of something that is not there is not there either.
        let parent = id.parent().filter(|_| entry.is_none());
        let orphaned =
            parent.is_some_and(|parent| self.engine.observations.state_of(parent.key()).is_absent());
        if orphaned {
            let states = &mut self.engine.observations.states;
            states.entry(id.key().to_owned()).or_insert(ResourceState::Absent);
            return Ok(());
        }
        // What is to be made must not be somebody's already, nothing is to be left behind, and what existed has not
        // vanished because a list is old.
        let absence = if self.held.is_deleting() || entry.is_none_or(Entry::existed) {
            Absence::Certain
        } else {
            Absence::Listed
        };
        // A list may be older than what the operator has just done.
        let is_fresh = self.fresh.contains(id.key());
        let max_age = self
            .engine
            .max_age
            .filter(|_| !is_fresh)
            .or(is_fresh.then_some(Duration::ZERO));
        let observations = &mut self.engine.observations;
        observations
            .observe(&arm, id.as_str(), api_version, absence, max_age)
            .await;
        Ok(())
    }

    fn urgency(&self) -> Urgency {
        let ready = condition::find(self.standing.conditions, READY);
        let generation = ready.and_then(|ready| ready.observed_generation);
        Urgency::of(self.standing.ready, generation, self.standing.object.meta())
    }

    /// Whose each resource is, and why its state is not known.
    pub(super) async fn judge(&mut self) -> Result<(), Error> {
        let rivals = self.rivals().await?;
        let (caches, informers) = (self.sources.caches, &self.context.informers);
        let object = self.standing.object;
        let adopts = adopts(object);
        for (id, state) in &self.engine.observations.states {
            let others = claims(caches, informers, object, id);
            let beside = claims_of(&rivals, id);
            let ownership = judge_beside(&claim(object, id), adopts, &others, &beside, &state.tags());
            if let Some(foreign) = ownership.foreign() {
                self.held.foreign.insert(id.clone(), foreign.clone());
            }
            let unknown = Unknown::of(&self.engine.observations, id);
            self.held.unknown.insert(id.clone(), unknown);
        }
        Ok(())
    }

    /// The objects of the classic API, where it matters whether one of them has a resource of this object.
    async fn rivals(&self) -> Result<Arc<Vec<Rival>>, Error> {
        // What would change once it is its own.
        if self.standing.unheld {
            return Ok(Arc::default());
        }
        let records = &self.held.records;
        let is_first = |resource: &Resource| {
            let Some(id) = resource.id.as_ref().filter(|_| resource.policy().writes()) else {
                return false;
            };
            let operated = self.held.operated(resource);
            let is_operators = operated.is_some_and(|one| !one.live.is_quiet());
            records.record(id.key()).is_none() && !is_operators
        };
        let is_puzzling = |state: &ResourceState| {
            let tags = state.tags();
            mark_of(&tags).is_some_and(|mark| Some(mark) != records.mark())
        };
        let mut states = self.engine.observations.states.values();
        let occasion = if self.held.is_deleting() || self.held.resources.iter().any(is_first) {
            Occasion::First
        } else if states.any(is_puzzling) {
            Occasion::Puzzled
        } else {
            return Ok(Arc::default());
        };
        let asked = self
            .sources
            .rivals
            .of(RivalKinds::Classic, occasion, self.context);
        asked.await
    }

    /// The resource groups that may go: all of an object that is deleted, else what the spec no longer names.
    fn leaving_groups(&self) -> Vec<ResourceId> {
        let named = |id: &ResourceId| {
            let mut resources = self.held.resources.iter();
            resources.any(|resource| resource.id.as_ref() == Some(id))
        };
        let recorded = self
            .held
            .records
            .ids()
            .filter_map(|id| ResourceId::parse(id).ok());
        let operated = self
            .held
            .operated
            .values()
            .filter(|one| one.live.is_controlled_by(&self.held.metadata))
            .filter_map(|one| ResourceId::parse(&one.live.id()?).ok());
        let groups: BTreeSet<String> = recorded
            .chain(operated)
            .filter(ResourceId::is_resource_group)
            .filter(|id| self.held.is_deleting() || !named(id))
            .map(|id| id.key().to_owned())
            .collect();
        let parsed = groups.iter().filter_map(|id| ResourceId::parse(id).ok());
        parsed.collect()
    }

    /// Asks who else has an AKS cluster in a resource group that is to go.
    pub(super) async fn list_others(&mut self) -> Result<(), Error> {
        const CLUSTERS: &str = "2024-09-01";
        let groups: Vec<ResourceId> = self
            .leaving_groups()
            .into_iter()
            .filter(|id| self.held.state(id).body().is_some())
            .filter(|id| self.held.is_ours(id) || self.held.is_operated(id))
            .collect();
        for group in groups {
            let Some(session) = self.engine.session(&group) else {
                continue;
            };
            let path = format!(
                "{}/providers/Microsoft.ContainerService/managedClusters",
                group.as_str()
            );
            let client = session.arm.client();
            let listed = match client.list(&group, &path, CLUSTERS, Priority::Change).await {
                Err(ArmError::Refused { refusal, .. }) if refusal.status == 404 => Vec::new(),
                Err(error) => {
                    // Not knowing is not having: it is asked again before anything goes.
                    let problem = Problem::of(&error.into());
                    self.held
                        .unknown
                        .insert(group.key().to_owned(), Unknown::Failed(problem));
                    self.held
                        .states
                        .insert(group.key().to_owned(), ResourceState::Unknown);
                    continue;
                }
                Ok(listed) => listed,
            };
            let others = listed
                .iter()
                .filter_map(|item| item["id"].as_str())
                .filter(|id| self.held.records.get(id).is_none())
                .map(str::to_owned)
                .collect();
            self.held.others_in_groups.insert(group.key().to_owned(), others);
        }
        Ok(())
    }
}
