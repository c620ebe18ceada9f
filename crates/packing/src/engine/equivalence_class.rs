//! Pods that ask for the same are one class: what was learnt about one of them holds for all.

use std::sync::Arc;

use smallvec::SmallVec;

use super::intern::ReqVec;
use crate::bits::{BitSet, WideSet};
use crate::host_ports::HostPort;
use crate::model::{Affinity, Pod, ResourceList, StringMap, Toleration, TopologySpreadConstraint};
use crate::resources::{Amounts, ONE, PODS, pod_requests};
use crate::storage::Volumes;

/// Everything about a pod that scheduling can see.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct ClassKey<'a> {
    pub namespace: &'a str,
    /// Only labels that some selector mentions.
    pub labels: SmallVec<[(&'a str, &'a str); 4]>,
    pub node_selector: &'a StringMap,
    pub affinity: Option<&'a Affinity>,
    pub tolerations: &'a [Toleration],
    pub spread: &'a [TopologySpreadConstraint],
    pub requests: Amounts,
    pub host_ports: Vec<HostPort>,
    /// Claims by name: pods with volumes are alike only if they mount the same.
    pub volumes: Vec<String>,
    pub waits: bool,
}

pub(crate) type ClassId = usize;
pub(crate) type GroupId = usize;

/// What is remembered about a variant and a pool.
#[derive(Clone, Debug)]
pub(crate) enum PoolAnswer {
    /// Never, whatever else is placed.
    Never,
    /// The pod wants a label of which the pool says nothing: no new claim, but one that got the label meanwhile.
    LabelMissing,
    /// The pool's requirements narrowed by the pod's, by volume alternative, and the types that leaves.
    Maybe(Vec<(ReqVec, BitSet)>),
}

/// All that an answer depends on, for pods without ports and volumes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AnswerKey {
    pub pool: usize,
    pub requirements: ReqVec,
    pub tolerations: Vec<Toleration>,
    pub requests: Amounts,
}

/// A class with some preferences given up.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub requirements: ReqVec,
    pub strict: ReqVec,
    pub tolerations: Vec<Toleration>,
    pub groups: Vec<GroupId>,
    /// Nodes that refuse it whatever is placed elsewhere.
    pub dead_nodes: WideSet,
    /// The same, but only for the run under way.
    pub dead_nodes_now: WideSet,
    /// Claims of the run under way that refuse it for good.
    pub dead_claims: WideSet,
    pub pools: Vec<Option<Arc<PoolAnswer>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct EquivalenceClass<'a> {
    pub example: &'a Pod,
    pub requests: Amounts,
    pub host_ports: Vec<HostPort>,
    pub volumes: Volumes,
    /// Places its volumes can be attached in; empty means anywhere.
    pub volume_places: Vec<ReqVec>,
    pub variants: Vec<Variant>,
    /// Groups that count its pods.
    pub counted_by: Vec<GroupId>,
    /// Anti-affinity of others that keeps its pods away.
    pub kept_away_by: Vec<GroupId>,
    /// Its own required anti-affinity, as it keeps others away.
    pub keeps_away: Vec<GroupId>,
    /// May go to nodes that have been busy lately.
    pub waits: bool,
    /// It failed when this many pods had been placed, and nothing has been placed since.
    pub failed_at: Option<u64>,
}

impl EquivalenceClass<'_> {
    /// What its pods ask for, by name.
    pub fn request_list(&self) -> ResourceList {
        let mut list = pod_requests(self.example);
        list.insert(PODS.to_owned(), ONE);
        list
    }
}
