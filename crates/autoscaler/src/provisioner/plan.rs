//! From a snapshot and pods that wait to the claims to make: pure but for the thread that the planning runs on. Each claim is
//! assigned to the object that its machine will come from, so that nothing has to be chosen later.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt};
use slipway_packing::{
    labels::is_well_known,
    model::{NewClaim, Plan as Packed, PodRefusal},
    requirement::{Operator, RequirementSpec},
    schedule,
};

use super::observe::Observed;
use crate::{
    api::{
        NodeClaim, NodeClaimSpec, NodePool, Resources,
        names::{NODE_CLASS_GROUP, TERMINATION_FINALIZER, annotation, label},
    },
    hash,
    instances::{Demand, Reference, Shape, choose},
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

/// What one round comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Why nothing is done at all.
    pub waits: Option<String>,
    pub creations: Vec<Creation>,
    /// Pods that will find a place on nodes that are there or on their way: node or claim, and pods.
    pub placed: Vec<(String, Vec<String>)>,
    pub refused: Vec<PodRefusal>,
}

impl Plan {
    pub fn creates(&self) -> bool {
        !self.creations.is_empty()
    }

    /// What the new machines cost together, per hour.
    pub fn price(&self) -> f64 {
        self.creations.iter().map(|creation| creation.price).sum()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.waits {
            return writeln!(formatter, "wait: {why}");
        }
        let is_empty = self.creations.is_empty() && self.placed.is_empty() && self.refused.is_empty();
        if is_empty {
            writeln!(formatter, "nothing to do")?;
        }
        for creation in &self.creations {
            writeln!(
                formatter,
                "create a claim of NodePool {} on {}, {} at {} per hour: for {}",
                creation.pool,
                creation.object,
                creation.instance_type,
                creation.price,
                some(&creation.pods)
            )?;
        }
        for (node, pods) in &self.placed {
            writeln!(formatter, "nothing for {}: there is room on {node}", some(pods))?;
        }
        for refusal in &self.refused {
            writeln!(formatter, "nothing for {}: {}", refusal.pod, refusal.message)?;
        }
        Ok(())
    }
}

/// The first few pods, and how many more there are.
fn some(pods: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text = pods[..pods.len().min(SHOWN)].join(", ");
    if pods.len() > SHOWN {
        text = format!("{text} and {} more", pods.len() - SHOWN);
    }
    text
}

/// Plans, on a thread that may take its time.
pub async fn decide(observed: Observed, now: Timestamp) -> Plan {
    let planned = tokio::task::spawn_blocking(move || plan(&observed, now)).await;
    planned.unwrap_or_else(|error| Plan {
        waits: Some(format!("planning failed: {error}")),
        ..Plan::default()
    })
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    if let Some(rival) = observed.rival.as_ref().filter(|rival| rival.until > now) {
        return Plan {
            waits: Some(rival.to_string()),
            ..Plan::default()
        };
    }
    if observed.pods.is_empty() {
        return Plan::default();
    }
    let packed = schedule(&observed.snapshot, &observed.pods);
    assign(observed, packed)
}

/// Chooses the object of each claim. Each choice takes room that the next no longer has.
fn assign(observed: &Observed, packed: Packed) -> Plan {
    let mut result = Plan {
        placed: packed
            .existing
            .into_iter()
            .map(|node| (node.node, node.pods))
            .collect(),
        refused: packed.unschedulable,
        ..Plan::default()
    };
    let mut shapes = observed.shapes.clone();
    let mut zones = observed.zones.clone();
    let mut allowed: BTreeMap<&str, (usize, &str)> = observed
        .breakers
        .iter()
        .map(|(pool, (left, why))| (pool.as_str(), (*left, why.as_str())))
        .collect();
    for new in packed.new_claims {
        let refuse = |why: String| {
            new.pods.iter().map(move |pod| PodRefusal {
                pod: pod.clone(),
                uid: String::new(),
                reason: slipway_packing::model::RefusalReason::Unschedulable,
                message: why.clone(),
                candidates: Vec::new(),
            })
        };
        let Some(pool) = observed.pools.get(&new.node_pool) else {
            continue;
        };
        if let Some((left, why)) = allowed.get_mut(new.node_pool.as_str()) {
            if *left == 0 {
                result.refused.extend(refuse(format!(
                    "NodePool {} makes one machine at a time: {why}",
                    new.node_pool
                )));
                continue;
            }
            *left -= 1;
        }
        let claim = claim(pool, &new);
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
        let of_pool = shapes.get(&new.node_pool).map_or(&[][..], Vec::as_slice);
        let (chosen, why) = match choose(&demand, of_pool, &zones) {
            Ok(choice) => (choice.shape.clone(), choice.why),
            Err(none) => {
                result.refused.extend(refuse(none.to_string()));
                continue;
            }
        };
        take_room(&mut shapes, &chosen);
        if !chosen.zone.is_empty() {
            *zones.entry(chosen.zone.clone()).or_default() += 1;
        }
        result.creations.push(Creation {
            claim: assigned(claim, &chosen),
            pool: new.node_pool.clone(),
            object: chosen.reference.clone(),
            instance_type: chosen.instance_type.clone(),
            price: chosen.price.value(),
            why,
            pods: new.pods.clone(),
        });
    }
    result
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
