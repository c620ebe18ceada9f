//! Who writes each resource, and what Azure Service Operator has of it.

use std::collections::BTreeMap;

use kube::{
    api::{DynamicObject, PartialObjectMeta},
    core::Resource as _,
};
use slipway_azure::{
    ResourceId,
    reconcile::{Error, planning::Problem, records::Entry},
    resource::Reference,
};
use slipway_capi::owner;
use slipway_runtime::{Class, ObjectKey, Scope};

use super::Observer;
use crate::{
    api::ResourceName,
    caches::{self, Holder},
    engine::{self, AzureEngine, Choice, Facts, Look, Operated, Standing, Wanted},
    inline::Inline,
    resources::Resource,
};

/// What was chosen for a resource.
#[derive(Clone, Default)]
pub(super) struct Chosen {
    choice: Choice,
    standing: Standing,
    problem: Option<Problem>,
}

/// Who has written what is recorded.
fn recorded(entry: &Entry) -> AzureEngine {
    match entry.notes.get(engine::NOTE).map(String::as_str) {
        Some(engine::BY_OPERATOR) => AzureEngine::Aso,
        _ => AzureEngine::Native,
    }
}

/// What the notes of a recorded resource call it.
fn noted(entry: &Entry) -> ResourceName {
    let note = |name: &str| entry.notes.get(name).cloned().unwrap_or_default();
    ResourceName {
        group: note("group"),
        version: note("version"),
        kind: note("kind"),
        name: note("name"),
    }
}

impl<K: Holder> Observer<'_, K> {
    /// Chooses an engine for each resource, and reads the operator's objects for them.
    pub(super) async fn choose_engines(
        &mut self,
        items: &[Inline],
        ids: &BTreeMap<usize, ResourceId>,
    ) -> Result<(), Error> {
        let context = self.context;
        let holder = self.standing.object.meta();
        let asked = Wanted::of(holder, &context.settings);
        let namespace = self.namespace.clone();
        let look = Look {
            namespace: &namespace,
            operators: self.sources.operators,
            context,
        };
        self.held.controller = owner::controller_reference(self.standing.object);
        for inline in items {
            let name = inline.name();
            let (standing, found) = look.at(&name).await?;
            let entry = ids
                .get(&inline.index)
                .and_then(|id| self.held.records.get(id.key()));
            let has_object = found.as_ref().is_some_and(|found| {
                let is_nobodys = found.live.other_controller(holder).is_none();
                found.live.is_controlled_by(holder)
                    || (is_nobodys && !found.live.is_quiet() && standing == Standing::Running)
            });
            let choice = engine::choose(&Facts {
                // Nothing begins before the word is put right.
                asked: asked.clone().unwrap_or_default(),
                recorded: entry.map(recorded),
                has_object,
                standing: &standing,
            });
            let problem = asked.as_ref().err().map(|name| Problem {
                code: "InvalidEngine".to_owned(),
                message: format!(
                    "the annotation {} is {name:?}: it is one of {}",
                    engine::ANNOTATION,
                    Wanted::NAMES.join(", ")
                ),
                class: Class::Terminal,
            });
            self.note_standing(&standing);
            if let Some(found) = found {
                self.found(found);
            }
            let chosen = Chosen {
                choice,
                standing,
                problem,
            };
            self.chosen_engines.insert(inline.index, chosen);
        }
        self.find_leftovers(&look).await?;
        self.watch_operated();
        for (id, version) in self.seen_by_operator(items, ids) {
            if self.sources.operators.is_news(&self.user, id.key(), &version) {
                self.fresh.insert(id.key().to_owned());
            }
        }
        Ok(())
    }

    fn note_standing(&mut self, standing: &Standing) {
        let counts = matches!(
            standing,
            Standing::Running | Standing::NoLease | Standing::Stopped(_)
        );
        if counts {
            self.held.operator = standing.clone();
        }
    }

    fn found(&mut self, found: Operated) {
        self.held.operated.insert(found.key(), found);
    }

    /// The operator's objects for what the spec no longer names: those that are recorded, and once, and before everything goes, all of
    /// the kinds that whoever was here before has noted.
    async fn find_leftovers(&mut self, look: &Look<'_>) -> Result<(), Error> {
        let names: Vec<(String, ResourceName)> = self
            .held
            .records
            .entries()
            .filter(|(_, entry)| entry.notes.contains_key(engine::NOTE))
            .map(|(id, entry)| (id.to_owned(), noted(entry)))
            .filter(|(_, name)| !self.held.operated.contains_key(&engine::key(name)))
            .collect();
        for (id, name) in names {
            let (standing, found) = look.at(&name).await?;
            self.note_standing(&standing);
            // Nothing is done to what the operator may still have an object for.
            if matches!(standing, Standing::Forbidden(_)) {
                let problem = Problem {
                    code: standing.reason().to_owned(),
                    message: format!("{} {}: {standing}", name.kind, name.name),
                    class: Class::Denied,
                };
                self.held.sign_in_problems.insert(id, problem);
            }
            if let Some(found) = found {
                self.found(found);
            }
        }
        let holder = self.standing.object.meta();
        let operators = self.sources.operators;
        if !self.held.is_deleting() && !operators.is_first_look(&self.user) {
            return Ok(());
        }
        for of in caches::owned_kinds(holder) {
            let (standing, _) = look.kind(&of).await?;
            self.note_standing(&standing);
            for found in look.all(&of, holder).await? {
                self.held.operated.entry(found.key()).or_insert(found);
            }
        }
        operators.looked(&self.user);
        Ok(())
    }

    /// A change of an object of the operator brings its holder back.
    fn watch_operated(&self) {
        let scope = Scope::of_namespace(&self.context.settings);
        for operated in self.held.operated.values() {
            self.watch(&operated.api, &scope);
        }
    }

    pub(super) fn watch(&self, api: &kube::api::ApiResource, scope: &Scope) {
        self.context
            .watch::<PartialObjectMeta<DynamicObject>>(api, scope.clone(), |object| {
                let metadata = object.meta();
                let holder = owner::controller_of(metadata).filter(|owner| owner.kind == K::kind(&()));
                let key = holder.map(|owner| ObjectKey::new(metadata.namespace.as_deref(), &owner.name));
                key.into_iter().collect()
            });
    }

    /// The resources that the operator has objects for, with the versions of those.
    fn seen_by_operator(
        &self,
        items: &[Inline],
        ids: &BTreeMap<usize, ResourceId>,
    ) -> Vec<(ResourceId, String)> {
        let of_spec = items.iter().filter_map(|inline| {
            let found = self.held.operated.get(&engine::key(&inline.name()))?;
            Some((ids.get(&inline.index)?.clone(), found))
        });
        let of_records = self.held.records.entries().filter_map(|(id, entry)| {
            let found = self.held.operated.get(&engine::key(&noted(entry)))?;
            Some((ResourceId::parse(id).ok()?, found))
        });
        let version = |found: &Operated| found.live.metadata().resource_version.clone().unwrap_or_default();
        of_spec
            .chain(of_records)
            .map(|(id, found)| (id, version(found)))
            .collect()
    }

    /// What describes a resource to either engine.
    pub(super) fn operate(&self, resource: &mut Resource, inline: &Inline) {
        let chosen = self
            .chosen_engines
            .get(&inline.index)
            .cloned()
            .unwrap_or_default();
        resource.choice = chosen.choice;
        resource.standing = chosen.standing;
        if let Some(problem) = chosen.problem {
            resource.problem = Some(problem);
        }
        resource.api = self
            .held
            .operated
            .get(&engine::key(&resource.name))
            .map(|found| found.api.clone())
            .or_else(|| self.sources.operators.known(&resource.name));
        resource.manifest = self.manifests.get(inline.index).cloned().unwrap_or_default();
        if resource.choice.is_operated() {
            // The operator hands out what it is asked for.
            resource.delivered = std::mem::take(&mut resource.exports);
            resource.expressions.clear();
        }
    }

    /// What is noted of the engines, and what each refers to that the operator has no object for. After it is known whose what is.
    pub(super) fn settle_engines(&mut self) {
        let is_leaving = |resource: &Resource| self.held.left_object(resource).is_some();
        if self.held.resources.iter().any(is_leaving) {
            let (caches, informers) = (self.sources.caches, &self.context.informers);
            self.held.needed = caches::operated_references(caches, informers, &self.namespace);
        }
        let notes: Vec<_> = self
            .held
            .resources
            .iter()
            .map(|one| self.engine_notes(one))
            .collect();
        let elsewhere: Vec<_> = self
            .held
            .resources
            .iter()
            .map(|one| self.elsewhere_of(one))
            .collect();
        let scope = Scope::of_namespace(&self.context.settings);
        for ((resource, notes), elsewhere) in self.held.resources.iter_mut().zip(notes).zip(elsewhere) {
            let is_operated = notes.contains_key(engine::NOTE);
            resource.owned = is_operated && !notes.contains_key(engine::FOUND) && resource.policy().deletes();
            resource.engine_notes = notes;
            resource.elsewhere = elsewhere;
        }
        let apis: Vec<_> = self
            .held
            .resources
            .iter()
            .filter(|one| one.choice.is_operated())
            .filter_map(|one| one.api.clone())
            .collect();
        for api in apis {
            self.watch(&api, &scope);
        }
    }

    fn engine_notes(&self, resource: &Resource) -> BTreeMap<&'static str, &'static str> {
        let mut notes = BTreeMap::new();
        let Some(id) = &resource.id else { return notes };
        let entry = self.held.records.get(id.key());
        let left = self.held.left_object(resource);
        let note = match left {
            _ if resource.choice.is_operated() => Some(engine::BY_OPERATOR),
            None => None,
            // Quiet and at rest, it stays for others; until then it is the operator's.
            Some(found) => {
                let is_quiet = found.live.is_quiet() && !found.live.is_busy();
                let stays = !resource.choice.leaves_operator() || self.held.is_needed(resource);
                Some(if is_quiet && stays {
                    engine::QUIET
                } else {
                    engine::BY_OPERATOR
                })
            }
        };
        let Some(note) = note else { return notes };
        notes.insert(engine::NOTE, note);
        let was_found = entry.is_some_and(|entry| entry.notes.contains_key(engine::FOUND));
        // What we only found is not the operator's to delete either.
        let is_found =
            resource.choice.from == Some(AzureEngine::Native) && entry.is_some() && !self.held.is_ours(id);
        if was_found || is_found {
            notes.insert(engine::FOUND, "true");
        }
        notes
    }

    fn elsewhere_of(&self, resource: &Resource) -> Vec<(Reference, ResourceId)> {
        let Some(inline) = resource.inline.as_ref().filter(|_| resource.choice.is_operated()) else {
            return Vec::new();
        };
        let has_object = |reference: &Reference| {
            let own = self.held.resources.iter().find(|one| {
                one.inline
                    .as_ref()
                    .is_some_and(|inline| inline.is_meant_by(reference))
            });
            match own {
                Some(own) => own.choice.is_operated() || self.held.left_object(own).is_some(),
                None => self.operated_elsewhere.contains(reference),
            }
        };
        inline
            .references()
            .filter(|reference| reference.arm_id.is_none() && !has_object(reference))
            .filter_map(|reference| Some((reference.clone(), self.catalog.id(reference)?)))
            .collect()
    }
}
