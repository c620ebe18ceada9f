//! From what packing asks for to a NodeClaim on an object: each claim is assigned to the object that its machine will come from, so
//! that nothing has to be chosen later. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use slipway_packing::{
    labels::is_well_known,
    model::NewClaim,
    requirement::{Operator, RequirementSpec},
};

use crate::{
    api::{
        NodeClaim, NodeClaimSpec, NodePool, Resources,
        names::{NODE_CLASS_GROUP, TERMINATION_FINALIZER, annotation, label},
    },
    hash,
    instances::{Demand, Reference, Shape, choose},
    watched::Observed,
};

/// A claim to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Creation {
    /// Without its name, which nobody can know before.
    pub claim: NodeClaim,
    pub pool: String,
    pub object: Reference,
    pub instance_type: String,
    pub price: f64,
    /// Why this object.
    pub why: String,
    /// `namespace/name` of the pods it is made for.
    pub pods: Vec<String>,
}

/// Makes claims one after the other: each takes room that the next no longer has.
pub struct Maker<'a> {
    observed: &'a Observed,
    shapes: BTreeMap<String, Vec<Shape>>,
    zones: BTreeMap<String, usize>,
    /// How many claims a NodePool may still get whose machines keep failing, and why.
    allowed: BTreeMap<&'a str, (usize, &'a str)>,
}

impl<'a> Maker<'a> {
    pub fn new(observed: &'a Observed) -> Self {
        Maker {
            observed,
            shapes: observed.shapes.clone(),
            zones: observed.zones.clone(),
            allowed: observed
                .breakers
                .iter()
                .map(|(pool, (left, why))| (pool.as_str(), (*left, why.as_str())))
                .collect(),
        }
    }

    /// The claim and its object, or why there is none. A NodePool that is gone gets nothing, and nobody is told.
    pub fn make(&mut self, new: &NewClaim) -> Result<Option<Creation>, String> {
        let Some(pool) = self.observed.pools.get(&new.node_pool) else {
            return Ok(None);
        };
        if let Some((left, why)) = self.allowed.get_mut(new.node_pool.as_str()) {
            if *left == 0 {
                return Err(format!(
                    "NodePool {} makes one machine at a time: {why}",
                    new.node_pool
                ));
            }
            *left -= 1;
        }
        let claim = claim(pool, new);
        let demand = Demand {
            requirements: claim.spec.requirements.clone(),
            requests: new.requests.clone(),
            taints: claim
                .spec
                .taints
                .iter()
                .chain(&claim.spec.startup_taints)
                .cloned()
                .collect(),
        };
        let of_pool = self.shapes.get(&new.node_pool).map_or(&[][..], Vec::as_slice);
        let (chosen, why) = match choose(&demand, of_pool, &self.zones) {
            Ok(choice) => (choice.shape.clone(), choice.why),
            Err(none) => return Err(none.to_string()),
        };
        take_room(&mut self.shapes, &chosen);
        if !chosen.zone.is_empty() {
            *self.zones.entry(chosen.zone.clone()).or_default() += 1;
        }
        Ok(Some(Creation {
            claim: assigned(claim, &chosen),
            pool: new.node_pool.clone(),
            object: chosen.reference.clone(),
            instance_type: chosen.instance_type.clone(),
            price: chosen.price.value(),
            why,
            pods: new.pods.clone(),
        }))
    }
}

/// One more claim is on the object, in whichever NodePools it is.
fn take_room(shapes: &mut BTreeMap<String, Vec<Shape>>, chosen: &Shape) {
    for shape in shapes.values_mut().flatten() {
        if shape.reference == chosen.reference {
            shape.replicas += 1;
            if let Some(most) = shape.max_size.filter(|most| shape.replicas >= *most) {
                shape.unavailable = Some(format!("it has {} of at most {most} replicas", shape.replicas));
            }
        }
    }
}

fn assigned(mut claim: NodeClaim, shape: &Shape) -> NodeClaim {
    claim.labels_mut().extend(shape.claim_labels());
    claim.annotations_mut().insert(
        annotation::SCALABLE_RESOURCE.to_owned(),
        shape.reference.to_string(),
    );
    claim
}

/// The claim that a NodePool's template and the pods' needs make.
fn claim(pool: &NodePool, new: &NewClaim) -> NodeClaim {
    let template = &pool.spec.template;
    let class = &template.spec.node_class_ref;
    let requirements = requirements(new);
    let mut labels = template.metadata.labels.clone();
    for one in &requirements {
        if let (Operator::In, [value]) = (one.operator, &one.values[..])
            && !is_well_known(&one.key, &[])
        {
            labels.insert(one.key.clone(), value.clone());
        }
    }
    labels.insert(label::NODE_POOL.to_owned(), pool.name_any());
    labels.insert(
        format!("{NODE_CLASS_GROUP}/{}", class.kind.to_lowercase()),
        class.name.clone(),
    );
    let mut annotations = template.metadata.annotations.clone();
    annotations.insert(annotation::NODE_POOL_HASH.to_owned(), hash::hash(template));
    annotations.insert(
        annotation::NODE_POOL_HASH_VERSION.to_owned(),
        hash::VERSION.to_owned(),
    );
    if new.min_values_relaxed {
        annotations.insert(annotation::MIN_VALUES_RELAXED.to_owned(), "true".to_owned());
    }
    let owner = OwnerReference {
        api_version: NodePool::api_version(&()).into_owned(),
        kind: NodePool::kind(&()).into_owned(),
        name: pool.name_any(),
        uid: pool.uid().unwrap_or_default(),
        block_owner_deletion: Some(true),
        controller: None,
    };
    NodeClaim {
        metadata: ObjectMeta {
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            // Stored with it: nothing is made that could be left behind.
            finalizers: Some(vec![TERMINATION_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: NodeClaimSpec {
            taints: template.spec.taints.clone(),
            startup_taints: template.spec.startup_taints.clone(),
            requirements,
            resources: Some(Resources {
                requests: new.requests.clone(),
            }),
            node_class_ref: class.clone(),
            termination_grace_period: template.spec.termination_grace_period.clone(),
            expire_after: template.spec.expire_after.clone(),
        },
        status: None,
    }
}

/// What packing asks for, and which types are left. A type that shares its name with others is told apart by its object here,
/// which no label says.
fn requirements(new: &NewClaim) -> Vec<RequirementSpec> {
    let is_own = |key: &str| key == label::INSTANCE_TYPE || key == label::HOSTNAME;
    let mut requirements: Vec<RequirementSpec> = new
        .requirements
        .iter()
        .filter(|one| !is_own(&one.key))
        .cloned()
        .collect();
    let mut names: Vec<String> = new
        .instance_types
        .iter()
        .map(|name| name.split('@').next().unwrap_or_default().to_owned())
        .collect();
    names.sort();
    names.dedup();
    let known = new
        .requirements
        .iter()
        .find(|one| one.key == label::INSTANCE_TYPE);
    requirements.push(RequirementSpec {
        key: label::INSTANCE_TYPE.to_owned(),
        operator: Operator::In,
        values: names,
        min_values: known.and_then(|known| known.min_values),
    });
    requirements
}
