//! Azure is asked how each resource stands, and whose it is.

use std::{collections::BTreeMap, time::Duration};

use slipway_azure::{
    ArmError, Priority, ResourceId, Urgency,
    caches::claim,
    ownership::judge,
    reconcile::{
        Absence, Error, ResourceState,
        planning::{Problem, Unknown},
        records::Entry,
    },
};
use slipway_capi::{condition, names::condition::READY};
use slipway_runtime::ObjectKey;

use super::Observer;
use crate::{
    caches::{Holder, claims},
    inline::{Inline, order},
    resources::held::noted_credential,
};

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
        for (id, api_version, credential) in asked {
            if let Err(problem) = self.ask_one(&id, &api_version, credential.as_deref()).await {
                self.held.sign_in_problems.insert(id.key().to_owned(), problem);
            }
        }
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
    pub(super) fn judge(&mut self) {
        let (caches, informers) = (self.sources.caches, &self.context.informers);
        let object = self.standing.object;
        for (id, state) in &self.engine.observations.states {
            let others = claims(caches, informers, object, id);
            let ownership = judge(&claim(object, id), &others, &state.tags());
            if let Some(foreign) = ownership.foreign() {
                self.held.foreign.insert(id.clone(), foreign.clone());
            }
            let unknown = Unknown::of(&self.engine.observations, id);
            self.held.unknown.insert(id.clone(), unknown);
        }
    }

    /// Asks who else has an AKS cluster in a resource group that is to go.
    pub(super) async fn list_others(&mut self) -> Result<(), Error> {
        const CLUSTERS: &str = "2024-09-01";
        let groups: Vec<ResourceId> = self
            .held
            .records
            .ids()
            .filter_map(|id| ResourceId::parse(id).ok())
            .filter(|id| id.resource_type() == "Microsoft.Resources/resourceGroups")
            .filter(|id| self.held.state(id).body().is_some() && self.held.is_ours(id))
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
