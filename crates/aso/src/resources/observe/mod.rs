//! Every read for the inline resources of an object: what they refer to from the caches, their states from the subscription's
//! view, Secrets and ConfigMaps when a watch shows that they changed or there is none.

mod ask;
mod describe;
mod operate;
mod read;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use secrecy::SecretString;
use serde_json::Value;
use slipway_azure::{
    ResourceId,
    reconcile::{Error, Records, ResourceState, planning::Problem, state_of, step::read_age},
    resource::Reference,
    takeover::Takeover,
};
use slipway_capi::condition;
use slipway_runtime::{Classified, Context, ObjectKey, SecretFacts};

use super::{Asked, Engine, Held, StoredExport};
use crate::{
    access::{Access, Choices, Chosen},
    api::ResourceStatus,
    caches::{self, Caches, Holder},
    engine::Operators,
    inline::{self, Catalog, Inline, Inventory, Policy},
};

/// Keys are not asked for more often, however fresh an object asks to be.
const SHORTEST_KEY_AGE: Duration = Duration::from_mins(1);

/// The data of a Secret that a resource refers to.
pub type SecretData = BTreeMap<String, SecretString>;

/// What observing needs besides the object.
pub struct Sources<'a> {
    pub access: &'a Access,
    pub caches: &'a Caches,
    pub takeover: &'a Takeover,
    pub data: &'a SecretFacts<SecretData>,
    pub stored: &'a SecretFacts<StoredExport>,
    pub asked: &'a Asked,
    pub operators: &'a Operators,
}

/// An object and what its status says.
pub struct Standing<'a, K> {
    pub object: &'a K,
    pub cluster_name: &'a str,
    pub ready: Option<bool>,
    pub conditions: &'a [condition::Condition],
    pub lines: &'a [ResourceStatus],
    /// Secrets that are looked at beside those that resources export to.
    pub secrets: Vec<String>,
}

/// What is known when Cluster API's decisions are made.
pub struct Facts<'a> {
    pub items: &'a [Inline],
    ids: &'a BTreeMap<usize, ResourceId>,
    states: &'a BTreeMap<String, ResourceState>,
}

impl Facts<'_> {
    pub fn first(&self, group: &str, kind: &str) -> Option<&Inline> {
        self.items.iter().find(|inline| inline.is(group, kind))
    }

    /// The state of the first resource of a kind.
    pub fn state(&self, group: &str, kind: &str) -> &ResourceState {
        static UNKNOWN: ResourceState = ResourceState::Unknown;
        let id = self
            .first(group, kind)
            .and_then(|inline| self.ids.get(&inline.index));
        id.map_or(&UNKNOWN, |id| state_of(self.states, id.key()))
    }
}

/// What came of Cluster API's decisions.
#[derive(Debug, Default)]
pub struct Mutation {
    /// A decision that conflicts with the manifest, and the index of the resource; none: with the object.
    pub problem: Option<(Option<usize>, inline::Problem)>,
    /// Something has to come first, by the resource's index: reason and message.
    pub wait: Option<(usize, String, String)>,
}

fn problem_of(problem: &inline::Problem) -> Problem {
    Problem {
        code: problem.reason().to_owned(),
        message: problem.to_string(),
        class: problem.class(),
    }
}

/// The name under which an object of a kind signs in.
pub fn user<K: Holder>(key: &ObjectKey) -> ObjectKey {
    key.sibling(&format!("{}/{}", K::kind(&()), key.name()))
}

struct Observer<'a, K> {
    standing: &'a Standing<'a, K>,
    sources: &'a Sources<'a>,
    context: &'a Context,
    user: ObjectKey,
    namespace: String,
    choices: Choices,
    /// The policy of a resource that names none.
    default_policy: Policy,
    engine: Engine,
    held: Held,
    catalog: Catalog,
    /// Resources of other objects that are referred to: whether they are there.
    elsewhere: BTreeMap<Reference, bool>,
    visited: BTreeSet<Reference>,
    /// Those of them that Azure Service Operator has an object for.
    operated_elsewhere: BTreeSet<Reference>,
    /// As decided, in the order of the spec.
    manifests: Vec<Value>,
    /// By the index of the resource.
    chosen_engines: BTreeMap<usize, operate::Chosen>,
    /// What the operator has touched since Azure was last looked at, by id in lower case.
    fresh: BTreeSet<String>,
}

/// Observes an object's resources. `mutate` sets what Cluster API decides, once it is known what is in Azure.
pub async fn observe<K: Holder>(
    standing: &Standing<'_, K>,
    sources: &Sources<'_>,
    mutate: impl FnOnce(&mut [Value], &Facts<'_>) -> Mutation,
    context: &Context,
) -> Result<(Held, Engine), Error> {
    let metadata = standing.object.meta();
    let key = ObjectKey::of(standing.object);
    let user = user::<K>(&key);
    let asked = sources.asked.of(&user);
    let times = asked.lock().clone();
    let mut observer = Observer {
        standing,
        sources,
        context,
        user,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        choices: Choices::default(),
        default_policy: Policy::default(),
        engine: Engine {
            max_age: read_age(metadata),
            asked,
            ..Engine::default()
        },
        held: Held {
            object: format!("{} {key}", K::kind(&())),
            metadata: metadata.clone(),
            cluster_name: standing.cluster_name.to_owned(),
            records: Records::of(metadata),
            before: standing.lines.to_vec(),
            asked: times,
            ..Held::default()
        },
        catalog: Catalog::default(),
        elsewhere: BTreeMap::new(),
        visited: BTreeSet::new(),
        operated_elsewhere: BTreeSet::new(),
        manifests: Vec::new(),
        chosen_engines: BTreeMap::new(),
        fresh: BTreeSet::new(),
    };
    observer.run(mutate).await?;
    Ok((observer.held, observer.engine))
}

impl<K: Holder> Observer<'_, K> {
    async fn run(&mut self, mutate: impl FnOnce(&mut [Value], &Facts<'_>) -> Mutation) -> Result<(), Error> {
        let settings = self.sources.access.settings(&self.user, self.context).await?;
        self.default_policy = settings.default_policy;
        let mut manifests = self.standing.object.resources().to_vec();
        for manifest in &mut manifests {
            self.name_from_config(manifest).await?;
        }
        let written = Inventory::read(&manifests, &self.namespace, self.default_policy);
        self.gather(&written.items).await;
        let mut ids = BTreeMap::new();
        for inline in &written.items {
            if let Ok(chosen) = self.chosen(inline).await
                && let Ok(id) = self.catalog.id_of(inline, &chosen.subscription)
            {
                ids.insert(inline.index, id);
            }
        }
        self.choose_engines(&written.items, &ids).await?;
        self.ask(&written.items, &ids).await;
        let facts = Facts {
            items: &written.items,
            ids: &ids,
            states: &self.engine.observations.states,
        };
        let mutation = mutate(&mut manifests, &facts);
        let decided = Inventory::read(&manifests, &self.namespace, self.default_policy);
        self.gather(&decided.items).await;
        self.manifests = manifests;
        self.describe(decided, mutation).await?;
        self.judge();
        self.held.states = self.engine.observations.states.clone();
        self.settle_engines();
        if self.held.is_deleting() {
            return self.list_others().await;
        }
        self.look_for_operator().await?;
        self.read_destinations().await?;
        self.read_addresses().await;
        let ages = self.engine.sessions.values().map(|one| one.arm.child_read_age());
        let age = self.engine.max_age.or(ages.min()).unwrap_or_default();
        self.held.key_read_age = age.max(SHORTEST_KEY_AGE);
        Ok(())
    }

    async fn chosen(&mut self, inline: &Inline) -> Result<Chosen, Problem> {
        let named = inline.credential.as_deref();
        let (access, user, context) = (self.sources.access, self.user.clone(), self.context);
        self.choices.of(named, access, &user, context).await
    }

    /// Puts everything that can be referred to into the catalog: own resources, and what they refer to in other objects.
    async fn gather(&mut self, items: &[Inline]) {
        let mut pending: Vec<Reference> = Vec::new();
        for inline in items {
            if let Ok(chosen) = self.chosen(inline).await {
                self.catalog.add(&inline.object, &chosen.subscription);
            }
            let foreign = inline
                .references()
                .filter(|reference| !items.iter().any(|other| other.is_meant_by(reference)));
            pending.extend(foreign.cloned());
        }
        // A ring of owners ends, because nothing is visited twice.
        while let Some(reference) = pending.pop() {
            if !self.visited.insert(reference.clone()) {
                continue;
            }
            let (caches, informers) = (self.sources.caches, &self.context.informers);
            let Some(mut found) = caches::find(caches, informers, &self.namespace, &reference) else {
                self.elsewhere.insert(reference, false);
                continue;
            };
            // Without its name its id is not known, and it counts as not there.
            let _ = self.name_from_config(&mut found.manifest).await;
            let parsed = Inline::parse(&found.manifest, 0, &self.namespace, self.default_policy);
            let Ok(inline) = parsed else {
                self.elsewhere.insert(reference, false);
                continue;
            };
            if let Ok(chosen) = self.chosen(&inline).await {
                self.catalog.add(&inline.object, &chosen.subscription);
            }
            let owner = inline.object.owner().filter(|owner| owner.arm_id.is_none());
            pending.extend(owner);
            self.elsewhere.insert(reference, found.ready);
        }
        // The id of something may depend on an owner that was visited after it.
        let known: Vec<Reference> = self.elsewhere.keys().cloned().collect();
        for reference in known {
            let (caches, informers) = (self.sources.caches, &self.context.informers);
            let Some(found) = caches::find(caches, informers, &self.namespace, &reference) else {
                continue;
            };
            let id = self.catalog.id(&reference);
            if found.operated {
                self.operated_elsewhere.insert(reference.clone());
            }
            let existed = id.is_some_and(|id| found.existed.iter().any(|known| known == id.key()));
            self.elsewhere.insert(reference, existed || found.ready);
        }
    }
}
