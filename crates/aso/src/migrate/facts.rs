//! What is known of a Cluster that is migrated. Read-only views on its objects. Pure.

use serde_json::{Value, json};
use slipway_capi::names::annotation;
use slipway_runtime::ObjectKey;

use super::{MIGRATED_FROM, MIGRATION, PAUSED_BY};
use crate::{
    adopt::ADOPTED_POLICY,
    command::objects::{
        CLASSIC_CLUSTER, CLASSIC_PLANE, CLASSIC_POOL, INLINE_CLUSTER, INLINE_PLANE, INLINE_POOL, KindName,
    },
};

const PAUSED: &str = "cluster.x-k8s.io/paused";
const BLOCK_MOVE: &str = "clusterctl.cluster.x-k8s.io/block-move";

/// An object, classic or inline.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    pub kind: KindName,
    pub value: Value,
}

impl Object {
    pub fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.value["metadata"]["namespace"].as_str(), self.name())
    }

    pub fn display(&self) -> String {
        format!("{} {}", self.kind.kind, self.name())
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.value["metadata"]["annotations"][name].as_str()
    }

    pub fn is_deleting(&self) -> bool {
        !self.value["metadata"]["deletionTimestamp"].is_null()
    }

    pub fn has_finalizers(&self) -> bool {
        let finalizers = self.value["metadata"]["finalizers"].as_array();
        finalizers.is_some_and(|finalizers| !finalizers.is_empty())
    }

    /// Whether it may go, and what it stands for lives on: nobody holds it, and admission knows.
    pub fn is_let_go(&self) -> bool {
        !self.has_finalizers() && self.annotation(annotation::DELETE_FOR_MOVE).is_some()
    }

    pub fn blocks_move(&self) -> bool {
        self.annotation(BLOCK_MOVE).is_some()
    }

    /// Whether its controller leaves it alone, whoever resumes the Cluster.
    pub fn is_disarmed(&self) -> bool {
        self.annotation(PAUSED).is_some()
    }

    /// Whether the pause is ours to take away.
    pub fn is_disarmed_by_us(&self) -> bool {
        self.annotation(PAUSED) == Some(PAUSED_BY)
    }

    pub fn is_migrated(&self) -> bool {
        self.annotation(MIGRATED_FROM).is_some()
    }

    /// Whether something of it waits to be managed.
    pub fn awaits_confirmation(&self) -> bool {
        let mut resources = self.value["spec"]["resources"].as_array().into_iter().flatten();
        resources.any(|one| one["metadata"]["annotations"].get(ADOPTED_POLICY).is_some())
    }

    pub fn uid(&self) -> &str {
        self.value["metadata"]["uid"].as_str().unwrap_or_default()
    }
}

/// One role in a Cluster: the object that it had, and the one that it gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pair {
    pub classic: Option<Object>,
    pub inline: Option<Object>,
    /// The kind that is referred to.
    pub refers_to: Option<KindName>,
    /// The name that both have.
    pub name: String,
}

/// A MachinePool with its pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    pub machine_pool: Value,
    pub pair: Pair,
}

impl Pool {
    pub fn machine_pool_name(&self) -> &str {
        self.machine_pool["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// A Secret whose owner changes with the control plane.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldSecret {
    pub name: String,
    /// The kind of its controller.
    pub owner: String,
}

/// What the annotation on the Cluster says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Whether the Cluster was paused before.
    pub was_paused: bool,
    pub confirmed: bool,
}

impl Mark {
    pub fn text(self) -> String {
        json!({"wasPaused": self.was_paused, "confirmed": self.confirmed}).to_string()
    }

    fn read(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        Self {
            was_paused: value["wasPaused"] == true,
            confirmed: value["confirmed"] == true,
        }
    }
}

/// Everything that a plan is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    pub cluster: Value,
    pub infrastructure: Pair,
    pub plane: Pair,
    pub pools: Vec<Pool>,
    /// Classic pools of the Cluster without a MachinePool.
    pub stray: Vec<Object>,
    pub secrets: Vec<HeldSecret>,
    /// The Secret that inline resources sign in with is there.
    pub has_credential: bool,
    /// How the classic control plane signs in.
    pub identity: Option<Value>,
    /// The identity carries the finalizer of the classic control plane.
    pub identity_is_held: bool,
    /// Objects of a running Azure Service Operator that belong to the classic ones.
    pub operated: Vec<String>,
}

impl Facts {
    pub fn name(&self) -> &str {
        self.cluster["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.cluster["metadata"]["namespace"].as_str(), self.name())
    }

    pub fn is_paused(&self) -> bool {
        self.cluster["spec"]["paused"] == true
    }

    pub fn mark(&self) -> Option<Mark> {
        self.cluster["metadata"]["annotations"][MIGRATION]
            .as_str()
            .map(Mark::read)
    }

    pub fn is_topology(&self) -> bool {
        !self.cluster["spec"]["topology"].is_null()
    }

    /// The name of the Secret that the inline resources sign in with.
    pub fn credential_name(&self) -> String {
        format!("{}-sign-in", self.name())
    }

    fn pairs(&self) -> impl Iterator<Item = &Pair> {
        [&self.infrastructure, &self.plane]
            .into_iter()
            .chain(self.pools.iter().map(|pool| &pool.pair))
    }

    /// What is deleted last comes last.
    pub fn classic(&self) -> impl Iterator<Item = &Object> {
        let pools = self.pools.iter().filter_map(|pool| pool.pair.classic.as_ref());
        let rest = [&self.plane, &self.infrastructure]
            .into_iter()
            .filter_map(|pair| pair.classic.as_ref());
        pools.chain(rest)
    }

    pub fn inline(&self) -> impl Iterator<Item = &Object> {
        let pools = self.pools.iter().filter_map(|pool| pool.pair.inline.as_ref());
        let rest = [&self.plane, &self.infrastructure]
            .into_iter()
            .filter_map(|pair| pair.inline.as_ref());
        pools.chain(rest)
    }

    /// Whether every role refers to inline resources.
    pub fn is_swapped(&self) -> bool {
        let inline = [INLINE_CLUSTER, INLINE_PLANE, INLINE_POOL];
        self.pairs()
            .all(|pair| pair.refers_to.is_some_and(|kind| inline.contains(&kind)))
    }

    /// Whether no role refers to inline resources.
    pub fn is_classic(&self) -> bool {
        let classic = [CLASSIC_CLUSTER, CLASSIC_PLANE, CLASSIC_POOL];
        self.pairs()
            .all(|pair| pair.refers_to.is_some_and(|kind| classic.contains(&kind)))
    }

    /// Roles without the inline object that they are to have.
    pub fn missing(&self) -> Vec<String> {
        let kinds = [
            (&self.infrastructure, INLINE_CLUSTER),
            (&self.plane, INLINE_PLANE),
        ];
        let pools = self.pools.iter().map(|pool| (&pool.pair, INLINE_POOL));
        let missing = kinds
            .into_iter()
            .chain(pools)
            .filter(|(pair, _)| pair.inline.is_none());
        missing
            .map(|(pair, kind)| format!("{} {}", kind.kind, pair.name))
            .collect()
    }
}
