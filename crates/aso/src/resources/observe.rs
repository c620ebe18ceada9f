//! Every read for the inline resources of an object: what they refer to from the caches, their states from the subscription's
//! view, Secrets and ConfigMaps when a watch shows that they changed or there is none.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use secrecy::SecretString;
use serde_json::Value;
use slipway_azure::{
    ArmError, Priority, ResourceId, Urgency,
    ownership::judge,
    reconcile::{
        Absence, Error, Records, ResourceState,
        planning::{Problem, Unknown},
        records::Entry,
        state_of,
        step::read_age,
    },
    resource::{Need, Reference},
    takeover::Takeover,
};
use slipway_capi::{condition, names::condition::READY};
use slipway_runtime::{Classified, Context, ObjectKey, SecretFacts};

use super::{Engine, Held, Resource, StoredExport, held::noted_credential};
use crate::{
    access::{Access, Choices, Chosen},
    api::{ResourceName, ResourceStatus},
    caches::{Caches, Holder, claim},
    inline::{self, Catalog, Export, Inline, Inventory, Lookup, Policy, Source, Store, exports, order},
};

/// The data of a Secret that a resource refers to.
pub type SecretData = BTreeMap<String, SecretString>;

/// What observing needs besides the object.
pub struct Sources<'a> {
    pub access: &'a Access,
    pub caches: &'a Caches,
    pub takeover: &'a Takeover,
    pub data: &'a SecretFacts<SecretData>,
    pub stored: &'a SecretFacts<StoredExport>,
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
    engine: Engine,
    held: Held,
    catalog: Catalog,
    /// Resources of other objects that are referred to: whether they are there.
    elsewhere: BTreeMap<Reference, bool>,
    visited: BTreeSet<Reference>,
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
    let mut observer = Observer {
        standing,
        sources,
        context,
        user: user::<K>(&key),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        choices: Choices::default(),
        engine: Engine {
            max_age: read_age(metadata),
            ..Engine::default()
        },
        held: Held {
            object: format!("{} {key}", K::kind(&())),
            metadata: metadata.clone(),
            cluster_name: standing.cluster_name.to_owned(),
            records: Records::of(metadata),
            before: standing.lines.to_vec(),
            ..Held::default()
        },
        catalog: Catalog::default(),
        elsewhere: BTreeMap::new(),
        visited: BTreeSet::new(),
    };
    observer.run(mutate).await?;
    Ok((observer.held, observer.engine))
}

impl<K: Holder> Observer<'_, K> {
    async fn run(&mut self, mutate: impl FnOnce(&mut [Value], &Facts<'_>) -> Mutation) -> Result<(), Error> {
        let mut manifests = self.standing.object.resources().to_vec();
        let written = Inventory::read(&manifests, &self.namespace, Policy::default());
        self.gather(&written.items).await;
        let mut ids = BTreeMap::new();
        for inline in &written.items {
            if let Ok(chosen) = self.chosen(inline).await
                && let Ok(id) = self.catalog.id_of(inline, &chosen.subscription)
            {
                ids.insert(inline.index, id);
            }
        }
        self.ask(&written.items, &ids).await;
        let facts = Facts {
            items: &written.items,
            ids: &ids,
            states: &self.engine.observations.states,
        };
        let mutation = mutate(&mut manifests, &facts);
        let decided = Inventory::read(&manifests, &self.namespace, Policy::default());
        self.gather(&decided.items).await;
        self.describe(decided, mutation).await?;
        self.judge();
        self.held.states = self.engine.observations.states.clone();
        if self.held.is_deleting() {
            return self.list_others().await;
        }
        self.look_for_operator().await?;
        self.read_destinations().await?;
        self.read_addresses().await;
        Ok(())
    }

    async fn chosen(&mut self, inline: &Inline) -> Result<Chosen, Problem> {
        let named = inline.credential.as_deref();
        let (access, user, context) = (self.sources.access, self.user.clone(), self.context);
        self.choices.of(named, access, &user, context).await
    }

    /// Puts everything that can be referred to into the catalog: own resources, and what they refer to in other objects.
    async fn gather(&mut self, items: &[Inline]) {
        let mut wanted: Vec<Reference> = Vec::new();
        for inline in items {
            if let Ok(chosen) = self.chosen(inline).await {
                self.catalog.add(&inline.object, &chosen.subscription);
            }
            let foreign = inline
                .references()
                .filter(|reference| !items.iter().any(|other| other.is_meant_by(reference)));
            wanted.extend(foreign.cloned());
        }
        // A ring of owners ends, because nothing is visited twice.
        while let Some(reference) = wanted.pop() {
            if !self.visited.insert(reference.clone()) {
                continue;
            }
            let (caches, informers) = (self.sources.caches, &self.context.informers);
            let Some(found) = caches.find(informers, &self.namespace, &reference) else {
                self.elsewhere.insert(reference, false);
                continue;
            };
            let parsed = Inline::parse(&found.manifest, 0, &self.namespace, Policy::default());
            let Ok(inline) = parsed else {
                self.elsewhere.insert(reference, false);
                continue;
            };
            if let Ok(chosen) = self.chosen(&inline).await {
                self.catalog.add(&inline.object, &chosen.subscription);
            }
            let owner = inline.object.owner().filter(|owner| owner.arm_id.is_none());
            wanted.extend(owner);
            self.elsewhere.insert(reference, found.ready);
        }
        // The id of something may depend on an owner that was visited after it.
        let known: Vec<Reference> = self.elsewhere.keys().cloned().collect();
        for reference in known {
            let (caches, informers) = (self.sources.caches, &self.context.informers);
            let Some(found) = caches.find(informers, &self.namespace, &reference) else {
                continue;
            };
            let id = self.catalog.id(&reference);
            let existed = id.is_some_and(|id| found.existed.iter().any(|known| known == id.key()));
            self.elsewhere.insert(reference, existed || found.ready);
        }
    }

    /// Asks Azure about resources that are in the spec, and about what is recorded.
    async fn ask(&mut self, items: &[Inline], ids: &BTreeMap<usize, ResourceId>) {
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
        let max_age = self.engine.max_age;
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

    /// Every resource as it is to be, with what it waits for.
    async fn describe(&mut self, decided: Inventory, mutation: Mutation) -> Result<(), Error> {
        let (mut places, cycles) = order(&decided.items);
        let stuck: Vec<usize> = (0..decided.items.len())
            .filter(|place| !places.contains(place))
            .collect();
        places.extend(stuck);
        let mut first_of_id: BTreeMap<String, String> = BTreeMap::new();
        let mut resources = Vec::new();
        for &place in &places {
            let inline = &decided.items[place];
            let mut resource = self.resource(inline).await?;
            let same = resource.id.as_ref().and_then(|id| {
                let display = resource.display();
                let earlier = first_of_id.insert(id.key().to_owned(), display.clone())?;
                Some(inline::Problem::SameId {
                    path: inline.path(),
                    object: display,
                    other: earlier,
                    id: id.as_str().to_owned(),
                })
            });
            let cycle = cycles.iter().find(|(index, _)| *index == inline.index);
            if let Some(problem) = same.as_ref().or(cycle.map(|(_, problem)| problem)) {
                resource.problem = Some(problem_of(problem));
            }
            resource.after = inline
                .references()
                .filter_map(|reference| {
                    let meant = |&other: &usize| decided.items[other].is_meant_by(reference);
                    places.iter().position(meant)
                })
                .collect();
            resources.push(resource);
        }
        for (name, problem) in &decided.problems {
            resources.push(Resource {
                // After those that can be read.
                index: usize::MAX,
                name: name.clone(),
                problem: Some(problem_of(problem)),
                ..Resource::default()
            });
        }
        if let Some((index, problem)) = &mutation.problem {
            let found = index.and_then(|index| resources.iter_mut().find(|one| one.index == index));
            match found {
                Some(resource) => resource.problem = Some(problem_of(problem)),
                None => self.held.problem = Some(problem_of(problem)),
            }
        }
        if let Some((index, reason, message)) = mutation.wait
            && let Some(resource) = resources.iter_mut().find(|one| one.index == index)
        {
            resource.wait = Some((reason, message));
        }
        self.held.resources = resources;
        Ok(())
    }

    async fn resource(&mut self, inline: &Inline) -> Result<Resource, Error> {
        let mut resource = Resource {
            name: inline.name(),
            index: inline.index,
            inline: Some(inline.clone()),
            ..Resource::default()
        };
        let chosen = match self.chosen(inline).await {
            Ok(chosen) => chosen,
            Err(problem) => {
                resource.problem = Some(problem);
                return Ok(resource);
            }
        };
        match self.catalog.id_of(inline, &chosen.subscription) {
            Ok(id) => {
                let problem = self.held.sign_in_problems.get(id.key());
                resource.problem = problem.cloned();
                resource.id = Some(id);
            }
            Err(problem) => resource.problem = Some(problem_of(&problem)),
        }
        resource.missing = inline
            .references()
            .filter(|reference| self.elsewhere.get(*reference) == Some(&false))
            .map(ToString::to_string)
            .collect();
        resource.credential = Some(chosen.secret);
        match exports(inline) {
            Ok(exports) => resource.exports = exports,
            Err(problem) => resource.problem = Some(problem_of(&problem)),
        }
        if resource.problem.is_none() {
            let lookup = self.lookup(inline, &chosen.subscription).await?;
            match self.catalog.put(inline, &lookup) {
                Ok(put) => resource.put = Some(put),
                Err(problem) => resource.problem = Some(problem_of(&problem)),
            }
        }
        Ok(resource)
    }

    /// Reads the Secrets and ConfigMaps that a resource refers to.
    async fn lookup<'s>(&mut self, inline: &Inline, subscription: &'s str) -> Result<Lookup<'s>, Error> {
        let mut lookup = Lookup {
            subscription,
            ..Lookup::default()
        };
        for need in inline.needs() {
            match need {
                Need::Secret { name, .. } | Need::SecretMap { name } => {
                    if let Some(data) = self.secret_data(name).await? {
                        lookup.secrets.insert(name.clone(), data);
                    }
                }
                Need::ConfigMap { name, .. } => {
                    if let Some(map) = self.config_map(name).await? {
                        lookup.configs.insert(name.clone(), map.data.unwrap_or_default());
                    }
                }
                Need::Owner(_) | Need::Resource(_) => {}
            }
        }
        Ok(lookup)
    }

    async fn secret_data(&self, name: &str) -> Result<Option<SecretData>, Error> {
        let key = ObjectKey::namespaced(&self.namespace, name);
        let derive = |secret: &Secret| {
            let data = secret.data.iter().flatten();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            data.map(|(key, value)| (key.clone(), SecretString::from(text(&value.0))))
                .collect::<SecretData>()
        };
        let found = self
            .sources
            .data
            .get(&key, &self.user, self.context, derive)
            .await;
        let found = found.map_err(Error::api(format!("reading Secret {name}")))?;
        Ok(found.as_deref().cloned())
    }

    async fn config_map(&self, name: &str) -> Result<Option<ConfigMap>, Error> {
        Api::<ConfigMap>::namespaced(self.context.client.clone(), &self.namespace)
            .get_opt(name)
            .await
            .map_err(Error::api(format!("reading ConfigMap {name}")))
    }

    /// Whose each resource is, and why its state is not known.
    fn judge(&mut self) {
        let (caches, informers) = (self.sources.caches, &self.context.informers);
        let object = self.standing.object;
        for (id, state) in &self.engine.observations.states {
            let others = caches.claims(informers, object, id);
            let ownership = judge(&claim(object, id), &others, &state.tags());
            if let Some(foreign) = ownership.foreign() {
                self.held.foreign.insert(id.clone(), foreign.clone());
            }
            let unknown = Unknown::of(&self.engine.observations, id);
            self.held.unknown.insert(id.clone(), unknown);
        }
    }

    /// Looks for objects of a running Azure Service Operator that stand for the same resources.
    async fn look_for_operator(&mut self) -> Result<(), Error> {
        let kinds: BTreeSet<&str> = self
            .held
            .resources
            .iter()
            .map(|resource| resource.name.kind.as_str())
            .collect();
        let living = self.sources.takeover.living(&kinds, self.context).await?;
        for resource in &mut self.held.resources {
            let id = resource.id.as_ref().map(ResourceId::key);
            let ResourceName {
                group, kind, name, ..
            } = &resource.name;
            let object = ObjectKey::namespaced(&self.namespace, name);
            resource.operated_by = living
                .iter()
                .find(|one| one.is(group, kind, &object, id))
                .map(ToString::to_string);
        }
        Ok(())
    }

    /// Reads the Secrets and ConfigMaps that values go to.
    async fn read_destinations(&mut self) -> Result<(), Error> {
        let exported = |export: &Export| (export.to.store, export.to.name.clone());
        let mut places: BTreeSet<(Store, String)> = self
            .held
            .resources
            .iter()
            .filter(|resource| {
                let id = resource.id.as_ref();
                id.is_some_and(|id| self.held.state(id).body().is_some())
            })
            .flat_map(|resource| resource.exports.iter().map(exported))
            .collect();
        let beside = self.standing.secrets.iter();
        places.extend(beside.map(|name| (Store::Secret, name.clone())));
        for (store, name) in places {
            let found = match store {
                Store::Secret => {
                    let key = ObjectKey::namespaced(&self.namespace, &name);
                    let derive = StoredExport::of_secret;
                    let found = self
                        .sources
                        .stored
                        .get(&key, &self.user, self.context, derive)
                        .await;
                    let found = found.map_err(Error::api(format!("reading Secret {name}")))?;
                    found.as_deref().cloned()
                }
                Store::ConfigMap => {
                    let found = self.config_map(&name).await?;
                    found.as_ref().map(StoredExport::of_config_map)
                }
            };
            if let Some(found) = found {
                self.held.stored.insert((store, name), found);
            }
        }
        Ok(())
    }

    /// Reads the address of the network interface of a private endpoint, where it is exported.
    async fn read_addresses(&mut self) {
        const NETWORK: &str = "2024-03-01";
        let mut wanted = Vec::new();
        for resource in &self.held.resources {
            let Some(id) = &resource.id else { continue };
            let export = resource
                .exports
                .iter()
                .find(|one| one.source == Source::PrimaryAddress);
            let interface = self
                .held
                .state(id)
                .body()
                .and_then(|body| body.pointer("/properties/networkInterfaces/0/id")?.as_str());
            if let (Some(export), Some(interface)) = (export, interface)
                && let Ok(interface) = ResourceId::parse(interface)
            {
                wanted.push((id.clone(), export.name.clone(), interface));
            }
        }
        for (id, name, interface) in wanted {
            let Some(session) = self.engine.session(&id) else {
                continue;
            };
            let max_age = self.engine.max_age;
            let observed = session.arm.observe(&interface, NETWORK, max_age).await;
            let body = observed.ok().and_then(|observed| observed.body);
            let address = body.as_deref().and_then(|body| {
                let pointer = "/properties/ipConfigurations/0/properties/privateIPAddress";
                body.pointer(pointer)?.as_str().map(str::to_owned)
            });
            if let Some(address) = address {
                self.held.values.insert((id.key().to_owned(), name), address);
            }
        }
    }

    /// Asks who else has an AKS cluster in a resource group that is to go.
    async fn list_others(&mut self) -> Result<(), Error> {
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
