//! Cluster API's objects and the claims on them, as the caches show them: the objects of a NodeClass described, the Machines and
//! claims of one object, the Machine and Node of a claim. Reads only.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap, core::v1::Node};
use kube::{
    ResourceExt,
    api::{ApiResource, DynamicObject},
};
use slipway_capi::{
    names, owner, reference,
    view::{Cluster, Machine, MachineDeployment, MachinePool, MachineSet, ObjectReference},
};
use slipway_packing::model::Overhead;
use slipway_runtime::{Context, Informer, ObjectKey, Scope, informer::Index};

use crate::{
    api::{
        ClusterAPINodeClass, ConfigMapKey, NodeClaim,
        names::{annotation, label},
    },
    group::Scalable,
    instances::{
        Finding, Infrastructure, LiveNode, PriceList, Reference, Refused, Settings, Shape, Source,
        SourceKind, admits, describe,
    },
    memory::Memory,
    options::Options,
    read, safety,
};

/// How long the first list of a kind that is learnt while reading may take, before it is read as if there were none.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// The objects of one NodeClass.
#[derive(Clone, Debug, Default)]
pub struct Described {
    /// Objects that are taken, whether or not they could be described.
    pub taken: usize,
    pub shapes: Vec<Shape>,
    pub findings: Vec<Finding>,
    /// Objects of the type that are not taken, and why.
    pub refused: Vec<(Reference, Refused)>,
    /// The type is a kind of templates that is not installed, or cannot be listed yet.
    pub is_unknown: bool,
    /// What is wrong with the price list that the class names.
    pub price_problems: Vec<String>,
}

/// Where the price list of a class is.
pub fn price_list(class: &ClusterAPINodeClass) -> Option<&ConfigMapKey> {
    class.spec.price.as_ref()?.config_map.as_ref()
}

/// Only the ConfigMap of a price list is watched, not every one of its namespace.
pub fn price_scope(key: &ConfigMapKey) -> Scope {
    Scope::namespace(&key.namespace).fields(format!("metadata.name={}", key.name))
}

/// The prices in a ConfigMap, and what its user has to mend.
pub fn read_prices(key: &ConfigMapKey, found: Option<&ConfigMap>) -> (PriceList, Vec<String>) {
    let named = format!("ConfigMap {}/{}", key.namespace, key.name);
    let Some(map) = found else {
        return (PriceList::default(), vec![format!("there is no {named}")]);
    };
    let Some(text) = map.data.as_ref().and_then(|data| data.get(&key.key)) else {
        return (
            PriceList::default(),
            vec![format!("{named} has no key {:?}", key.key)],
        );
    };
    let (list, errors) = PriceList::parse(text);
    let problems = errors.iter().map(|error| format!("{named}: {error}")).collect();
    (list, problems)
}

/// Reads the caches of one manager.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    context: &'a Context,
    memory: &'a Memory,
}

impl<'a> Reader<'a> {
    pub fn new(context: &'a Context, memory: &'a Memory) -> Self {
        Reader { context, memory }
    }

    fn informer<K>(&self) -> Informer<K>
    where
        K: slipway_runtime::informer::Object + kube::Resource<DynamicType = ()>,
    {
        self.context
            .informers
            .get(Scope::of_namespace(&self.context.settings))
    }

    pub fn claims(&self) -> Informer<NodeClaim> {
        self.informer()
    }

    pub fn claim_of_uid(&self, uid: &str) -> Option<Arc<NodeClaim>> {
        let by_uid: Index<NodeClaim> = self
            .claims()
            .index("autoscaler/uid", |claim| claim.uid().into_iter().collect());
        by_uid.get(uid).into_iter().next()
    }

    /// The claims that are assigned to an object.
    pub fn claims_of(&self, object: &Reference) -> Vec<Arc<NodeClaim>> {
        let by_object: Index<NodeClaim> = self.claims().index("autoscaler/scalable-resource", |claim| {
            let assigned = claim.annotations().get(annotation::SCALABLE_RESOURCE);
            assigned.cloned().into_iter().collect()
        });
        by_object.get(&object.to_string())
    }

    /// The claims of a NodePool.
    pub fn claims_of_pool(&self, pool: &str) -> Vec<Arc<NodeClaim>> {
        let by_pool: Index<NodeClaim> = self.claims().index("autoscaler/node-pool", |claim| {
            claim
                .labels()
                .get(label::NODE_POOL)
                .cloned()
                .into_iter()
                .collect()
        });
        by_pool.get(pool)
    }

    /// The Machines that an object made.
    pub fn machines_of(&self, object: &Reference) -> Vec<Arc<Machine>> {
        let by_object: Index<Machine> = self
            .informer::<Machine>()
            .index("autoscaler/scalable-resource", made_by);
        by_object.get(&object.to_string())
    }

    /// The Machines that carry a claim's uid.
    pub fn machines_of_claim(&self, uid: &str) -> Vec<Arc<Machine>> {
        let by_claim: Index<Machine> = self.informer::<Machine>().index("autoscaler/claim", |machine| {
            machine.labels().get(label::CLAIM).cloned().into_iter().collect()
        });
        by_claim.get(uid)
    }

    /// The claim of a Node, by way of its Machine.
    pub fn claim_of_node(&self, node: &str, provider_id: Option<&str>) -> Option<Arc<NodeClaim>> {
        let machine = self.claimed_machine_of_node(node, provider_id)?;
        self.claim_of_machine(&machine)
    }

    /// The claim whose uid a Machine carries.
    pub fn claim_of_machine(&self, machine: &Machine) -> Option<Arc<NodeClaim>> {
        self.claim_of_uid(machine.labels().get(label::CLAIM)?)
    }

    /// The Machine of a Node, if it carries a claim's uid.
    pub fn claimed_machine_of_node(&self, node: &str, provider_id: Option<&str>) -> Option<Arc<Machine>> {
        let machines = self.informer::<Machine>();
        let by_node: Index<Machine> = machines.index("autoscaler/node", |machine| {
            machine.node_name().map(str::to_owned).into_iter().collect()
        });
        let by_provider: Index<Machine> = machines.index("autoscaler/provider-id", |machine| {
            let id = &machine.spec.provider_id;
            (!id.is_empty()).then(|| id.clone()).into_iter().collect()
        });
        let of_id = provider_id
            .filter(|id| !id.is_empty())
            .map(|id| by_provider.get(id));
        by_node
            .get(node)
            .into_iter()
            .chain(of_id.into_iter().flatten())
            .find(|machine| machine.labels().contains_key(label::CLAIM))
    }

    /// The Nodes that say they are a Machine: by its reference, and by its provider id.
    pub fn nodes_of(&self, machine: &Machine) -> Vec<Arc<Node>> {
        let nodes = self.informer::<Node>();
        let by_provider: Index<Node> = nodes.index("autoscaler/provider-id", |node| {
            let id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone());
            id.filter(|id| !id.is_empty()).into_iter().collect()
        });
        let mut found: Vec<Arc<Node>> = Vec::new();
        let named = machine
            .node_name()
            .and_then(|name| nodes.get(&ObjectKey::cluster_scoped(name)));
        let of_id =
            (!machine.spec.provider_id.is_empty()).then(|| by_provider.get(&machine.spec.provider_id));
        for node in named.into_iter().chain(of_id.into_iter().flatten()) {
            if !found.iter().any(|known| known.name_any() == node.name_any()) {
                found.push(node);
            }
        }
        found
    }

    pub fn cluster(&self, namespace: &str, name: &str) -> Option<Arc<Cluster>> {
        self.informer::<Cluster>()
            .get(&ObjectKey::namespaced(namespace, name))
    }

    /// One object, if the cache has it. A template is of the Cluster that its NodeClass names.
    pub async fn source(
        &self,
        object: &Reference,
        class: Option<&ClusterAPINodeClass>,
        options: &Options,
    ) -> Option<Source> {
        let key = ObjectKey::namespaced(&object.namespace, &object.name);
        match object.kind {
            SourceKind::MachineDeployment => {
                let found = self.informer::<MachineDeployment>().get(&key)?;
                Some(self.of_deployment(&found).await)
            }
            SourceKind::MachineSet => {
                let found = self.informer::<MachineSet>().get(&key)?;
                Some(self.of_set(&found).await)
            }
            SourceKind::MachinePool => {
                let found = self.informer::<MachinePool>().get(&key)?;
                Some(self.of_pool(&found).await)
            }
            SourceKind::Template(_) => {
                let (kind, group) = object.kind.template()?;
                let found = self.templates(group, kind).await?.get(&key)?;
                self.of_template(&object.kind, &found, &cluster_name(class, options))
            }
        }
    }

    /// One template, with a Node that came from it.
    fn of_template(&self, kind: &SourceKind, object: &DynamicObject, cluster_name: &str) -> Option<Source> {
        let value = serde_json::to_value(object).ok()?;
        let cluster = self.cluster_of(object, cluster_name);
        let mut source = read::machine_template(kind, &value, cluster_name, cluster.as_deref())?;
        let claims = self.claims_of(&source.reference);
        let machines = claims
            .iter()
            .flat_map(|claim| self.machines_of_claim(&claim.uid().unwrap_or_default()));
        source.live = self.live_node(machines);
        Some(source)
    }

    /// A ready Node of one of these Machines.
    fn live_node(&self, machines: impl IntoIterator<Item = Arc<Machine>>) -> Option<LiveNode> {
        let nodes = self.informer::<Node>();
        machines
            .into_iter()
            .filter(|machine| !machine.is_deleting())
            .filter_map(|machine| machine.node_name().map(ObjectKey::cluster_scoped))
            .filter_map(|node| nodes.get(&node))
            .find_map(|node| read::live_node(&node))
    }

    pub async fn of_deployment(&self, object: &MachineDeployment) -> Source {
        let cluster = self.cluster_of(object, &object.spec.cluster_name);
        let source = read::machine_deployment(object, cluster.as_deref());
        self.completed(source, &object.spec.template.spec.infrastructure_ref)
            .await
    }

    pub async fn of_set(&self, object: &MachineSet) -> Source {
        let cluster = self.cluster_of(object, &object.spec.cluster_name);
        let source = read::machine_set(object, cluster.as_deref());
        self.completed(source, &object.spec.template.spec.infrastructure_ref)
            .await
    }

    pub async fn of_pool(&self, object: &MachinePool) -> Source {
        let cluster = self.cluster_of(object, &object.spec.cluster_name);
        let source = read::machine_pool(object, cluster.as_deref());
        self.completed(source, &object.spec.template.spec.infrastructure_ref)
            .await
    }

    fn cluster_of(&self, object: &impl kube::ResourceExt, name: &str) -> Option<Arc<Cluster>> {
        self.cluster(&object.namespace().unwrap_or_default(), name)
    }

    /// Adds what the object itself does not say: its template's status, and a Node that came from it.
    async fn completed(&self, mut source: Source, template: &ObjectReference) -> Source {
        if let Some(found) = self.infrastructure(&source.reference.namespace, template).await {
            source.infrastructure = found;
        }
        source.live = self.live_node(self.machines_of(&source.reference));
        source
    }

    async fn infrastructure(&self, namespace: &str, template: &ObjectReference) -> Option<Infrastructure> {
        if template.name.is_empty() {
            return None;
        }
        let templates = self.templates(&template.api_group, &template.kind).await?;
        let found = templates.get(&ObjectKey::namespaced(namespace, &template.name))?;
        let value = serde_json::to_value(found.as_ref()).ok()?;
        Some(read::infrastructure(&value))
    }

    /// The templates of a kind. None where the kind is not installed, or cannot be listed yet.
    pub async fn templates(&self, group: &str, kind: &str) -> Option<Informer<DynamicObject>> {
        let key = (group.to_owned(), kind.to_owned());
        let known = self.memory.templates.lock().get(&key).cloned();
        let informer = if let Some((_, informer)) = known {
            informer
        } else {
            let resolved = reference::resolve_kind(&self.context.client, group, kind).await;
            let (resource, _) = resolved
                .map_err(|error| tracing::debug!(%error, group, kind, "Machine templates cannot be read"))
                .ok()?;
            let scope = Scope::of_namespace(&self.context.settings);
            let informer = self.context.informers.get_dynamic(&resource, scope);
            let learnt = (resource, informer.clone());
            self.memory.templates.lock().insert(key, learnt);
            informer
        };
        let synced = tokio::time::timeout(FIRST_LIST, informer.synced()).await;
        synced.ok().map(|()| informer)
    }

    /// The kind of templates that a NodeClass names, once it was read.
    pub fn template_kind(&self, class: &ClusterAPINodeClass) -> Option<ApiResource> {
        let resource = class.spec.scalable_resource.clone()?;
        let known = self.memory.templates.lock();
        let (kind, _) = known.get(&(resource.group, resource.kind))?;
        Some(kind.clone())
    }

    /// The object that made the Machine which a claim names, as it was handed over by karpenter-provider-cluster-api.
    pub fn handed_over(&self, claim: &NodeClaim) -> Option<(Arc<Machine>, String)> {
        let (namespace, name) = claim.annotations().get(annotation::MACHINE)?.split_once('/')?;
        let machine = self
            .informer::<Machine>()
            .get(&ObjectKey::namespaced(namespace, name))?;
        let object = made_by(&machine).into_iter().next()?;
        Some((machine, object))
    }

    /// The objects of the type that a NodeClass names.
    async fn sources(&self, class: &ClusterAPINodeClass, options: &Options) -> Vec<Source> {
        let resource = class.spec.scalable_resource.clone().unwrap_or_default();
        let mut sources = Vec::new();
        let kind = SourceKind::of_type(&resource);
        match kind {
            SourceKind::MachineDeployment => {
                for object in self.informer::<MachineDeployment>().list() {
                    sources.push(self.of_deployment(&object).await);
                }
            }
            SourceKind::MachineSet => {
                for object in self.informer::<MachineSet>().list() {
                    sources.push(self.of_set(&object).await);
                }
            }
            SourceKind::MachinePool => {
                for object in self.informer::<MachinePool>().list() {
                    sources.push(self.of_pool(&object).await);
                }
            }
            SourceKind::Template(_) => {
                let templates = self.templates(&resource.group, &resource.kind).await;
                let cluster = cluster_name(Some(class), options);
                for object in templates.iter().flat_map(Informer::list) {
                    sources.extend(self.of_template(&kind, &object, &cluster));
                }
            }
        }
        sources
    }

    /// Everything a NodeClass can give, at this moment.
    pub async fn describe(
        &self,
        class: &ClusterAPINodeClass,
        options: &Options,
        now: Timestamp,
    ) -> Described {
        let (settings, price_problems) = self.settings(class, options).await;
        let mut result = Described {
            price_problems,
            ..Described::default()
        };
        for mut source in self.sources(class, options).await {
            if let Err(refused) = admits(&class.spec, &options.scope, &options.group, &source) {
                result.refused.push((source.reference, refused));
                continue;
            }
            result.taken += 1;
            // Claims that nothing was scaled for yet take room too.
            let claims = self.claims_of(&source.reference);
            let staying = claims
                .iter()
                .filter(|claim| claim.metadata.deletion_timestamp.is_none())
                .count();
            source.replicas = source.replicas.max(i32::try_from(staying).unwrap_or(i32::MAX));
            let (shape, findings) = describe(&source, &settings);
            result.findings.extend(findings);
            if let Some(mut shape) = shape {
                shape.unavailable = shape
                    .unavailable
                    .take()
                    .or_else(|| self.memory.unavailable(&source.reference, now));
                result.shapes.push(shape);
            }
        }
        let resource = class.spec.scalable_resource.clone().unwrap_or_default();
        result.is_unknown =
            SourceKind::of_type(&resource).template().is_some() && self.template_kind(class).is_none();
        result
    }

    /// What a NodeClass sets, and what is wrong with the price list it names.
    pub async fn settings(&self, class: &ClusterAPINodeClass, options: &Options) -> (Settings, Vec<String>) {
        let overhead = class.spec.overhead.clone().unwrap_or_default();
        let (prices, problems) = match price_list(class) {
            Some(key) => self.prices(key).await,
            None => (PriceList::default(), Vec::new()),
        };
        let settings = Settings {
            group: options.group.clone(),
            default_architecture: options.default_architecture.clone(),
            prices,
            learn_overhead: overhead.learn != Some(false),
            startup_taints: options.startup_taints.clone(),
            overhead: Overhead {
                kube_reserved: overhead.kube_reserved,
                system_reserved: overhead.system_reserved,
                eviction_threshold: overhead.eviction_threshold,
            },
        };
        (settings, problems)
    }

    async fn prices(&self, key: &ConfigMapKey) -> (PriceList, Vec<String>) {
        let informer = {
            let mut known = self.memory.prices.lock();
            let found = known.iter().find(|(other, _)| other == key);
            if let Some((_, informer)) = found {
                informer.clone()
            } else {
                let informer: Informer<ConfigMap> = self.context.informers.get(price_scope(key));
                known.push((key.clone(), informer.clone()));
                informer
            }
        };
        let _ = tokio::time::timeout(FIRST_LIST, informer.synced()).await;
        let found = informer.get(&ObjectKey::namespaced(&key.namespace, &key.name));
        read_prices(key, found.as_deref())
    }

    /// The revision that an object's new Machines are made of, and why it makes none although it has too few.
    fn progress(&self, object: &Reference) -> Option<(String, Option<String>)> {
        let key = ObjectKey::namespaced(&object.namespace, &object.name);
        match object.kind {
            SourceKind::MachineDeployment => {
                Some(self.informer::<MachineDeployment>().get(&key)?.progress(self))
            }
            SourceKind::MachineSet => Some(self.informer::<MachineSet>().get(&key)?.progress(self)),
            SourceKind::MachinePool | SourceKind::Template(_) => None,
        }
    }

    /// Why an object makes no Machines although it has too few.
    pub fn stuck(&self, object: &Reference) -> Option<String> {
        self.progress(object)?.1
    }

    /// The revision that an object's new Machines are made of.
    pub fn revision(&self, object: &Reference) -> Option<String> {
        Some(self.progress(object)?.0)
    }

    /// The MachineSets of a MachineDeployment.
    pub fn sets_of(&self, deployment: &MachineDeployment) -> Vec<Arc<MachineSet>> {
        let by_deployment: Index<MachineSet> =
            self.informer::<MachineSet>()
                .index("autoscaler/deployment", |set| {
                    let name = set.labels().get(names::label::MACHINE_DEPLOYMENT_NAME);
                    name.map(|name| format!("{}/{name}", set.namespace().unwrap_or_default()))
                        .into_iter()
                        .collect()
                });
        let key = ObjectKey::of(deployment).to_string();
        let mut sets = by_deployment.get(&key);
        sets.retain(|set| owner::is_controlled_by(&set.metadata, &deployment.metadata));
        sets
    }

    /// Another autoscaler that is at work in this cluster.
    pub fn rival(&self, now: Timestamp) -> Option<safety::Rival> {
        let leases: Vec<safety::Lease> = safety::LEASES
            .iter()
            .flat_map(|(name, _)| self.context.informers.get::<Lease>(lease_scope(name)).list())
            .map(|lease| read::lease(&lease))
            .collect();
        safety::rival(&leases, self.context.identity.as_deref(), now)
    }
}

/// The Cluster that Machines of a template belong to.
pub fn cluster_name(class: Option<&ClusterAPINodeClass>, options: &Options) -> String {
    let named = class.and_then(|class| class.spec.cluster_name.as_ref());
    named
        .or(options.scope.cluster_name.as_ref())
        .cloned()
        .unwrap_or_default()
}

/// Leases of this name, in every namespace.
pub fn lease_scope(name: &str) -> Scope {
    Scope::all().fields(format!("metadata.name={name}"))
}

/// The objects that a Machine's labels say it was made by, as claims name them.
pub fn made_by(machine: &Machine) -> Vec<String> {
    let namespace = machine.namespace().unwrap_or_default();
    let named = |key: &str, kind: &str| {
        let name = machine.labels().get(key)?;
        Some(Reference::new(kind, &namespace, name).to_string())
    };
    [
        named(names::label::MACHINE_DEPLOYMENT_NAME, "MachineDeployment"),
        named(names::label::MACHINE_SET_NAME, "MachineSet"),
        named(names::label::MACHINE_POOL_NAME, "MachinePool"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// How many Nodes stand in each zone.
pub fn nodes_by_zone<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> BTreeMap<String, usize> {
    let mut zones = BTreeMap::new();
    for node in nodes {
        if let Some(zone) = node.labels().get(label::ZONE) {
            *zones.entry(zone.clone()).or_default() += 1;
        }
    }
    zones
}
