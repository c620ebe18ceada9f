//! How NodePools, NodeClaims and node classes are shown to people, and what the reasons in their conditions mean.

use slipway_insight::{Actor, Insight, Kind, Link, Numbers, Part, Reason};

use crate::api::names::{GROUP, NODE_CLASS_GROUP};

const CLASS: &[Link] = &[Link::Name {
    group: NODE_CLASS_GROUP,
    kind: "ClusterAPINodeClass",
    at: "/spec/template/spec/nodeClassRef",
}];
/// The Machine of a claim carries its name.
const MACHINE: Link = Link::Labelled {
    group: "cluster.x-k8s.io",
    kind: "Machine",
    label: "karpenter.cluster.x-k8s.io/nodeclaim",
};
const POOL: &[&str] = &["NodePool"];
const CLAIM: &[&str] = &["NodeClaim"];
const NODE_CLASS: &[&str] = &["ClusterAPINodeClass"];

const KINDS: &[Kind] = &[
    Kind::new(GROUP, "NodePool", Part::Autoscaling)
        .children(&[Link::Labelled {
            group: GROUP,
            kind: "NodeClaim",
            label: "karpenter.sh/nodepool",
        }])
        .needs(CLASS)
        .counting(
            "nodes",
            Numbers {
                desired: "/spec/replicas",
                current: "/status/nodes",
                ready: "/status/nodes",
                available: "",
                up_to_date: "",
            },
        )
        .facts(&[("class", "/spec/template/spec/nodeClassRef/name")])
        .standing_alone(),
    Kind::new(GROUP, "NodeClaim", Part::Machine)
        .needs(&[MACHINE])
        .facts(&[("node", "/status/nodeName")])
        .standing_alone(),
    Kind::new(NODE_CLASS_GROUP, "ClusterAPINodeClass", Part::Autoscaling)
        .facts(&[
            ("objects", "/status/scalableResources"),
            ("instance types", "/status/instanceTypes"),
        ])
        .standing_alone(),
];

const REASONS: &[Reason] = &[
    Reason::follows("UnhealthyDependents", "its node class is not ready", CLASS).of(POOL),
    Reason::stuck(
        "NodeClassNotFound",
        "its node class does not exist",
        Actor::Author,
        "create the ClusterAPINodeClass, or correct `nodeClassRef`",
    )
    .command("kubectl get clusterapinodeclasses"),
    Reason::follows("NodeClassNotReady", "its node class is not ready", CLASS),
    Reason::follows("NodeClassReadinessUnknown", "nothing is known of its node class yet", CLASS),
    Reason::stuck(
        "RegistrationFailed",
        "its last machines did not register, so one at a time is made",
        Actor::Operator,
        "look at a Machine of the pool and at its host: it boots and does not join",
    )
    .of(POOL),
    Reason::follows("ReconcilingDependents", "its machine, its node, or what the node is to have is not there yet", &[MACHINE]).of(CLAIM),
    Reason::follows("WaitingForMachine", "no Machine stands for it yet", &[MACHINE]).of(CLAIM).usually(60),
    Reason::follows("NotLaunched", "no Machine stands for it yet", &[MACHINE]).of(CLAIM),
    Reason::follows("NodeNotFound", "its Node has not joined yet", &[MACHINE]).of(CLAIM).usually(600),
    Reason::stuck(
        "MultipleNodesFound",
        "several Nodes have its provider id",
        Actor::Site,
        "delete the Node that no host stands behind",
    )
    .of(CLAIM),
    Reason::follows("NotRegistered", "its Node has not joined yet", &[MACHINE]).of(CLAIM),
    Reason::waiting("StartupTaintsExist", "a startup taint is still on its Node")
        .of(CLAIM)
        .advice("whoever the taint is for removes it; if nobody does, leave it out of the NodePool"),
    Reason::waiting("KnownEphemeralTaintsExist", "Kubernetes has not taken its taints off the new Node yet").of(CLAIM),
    Reason::waiting("ResourceNotRegistered", "the Node does not have all the resources that were expected of it")
        .of(CLAIM)
        .advice("check the device plugin that brings the resource"),
    Reason::waiting("ConsistencyCheckFailed", "its Node has less than its machine was said to have")
        .of(CLAIM)
        .advice("correct what the objects of the node class say of their machines"),
    Reason::working("Draining", "its pods are leaving")
        .of(CLAIM)
        .usually(600)
        .advice("the message names the pods that stay"),
    Reason::working("AwaitingVolumeDetachment", "its volumes are being detached").of(CLAIM),
    Reason::stuck(
        "NoScalableResources",
        "no object of Cluster API is in its selection",
        Actor::Author,
        "the message says which were looked at and why they are left out: correct the selection or the objects",
    )
    .of(NODE_CLASS),
    Reason::stuck(
        "NoInstanceTypes",
        "of none of its objects it is known what machines they make",
        Actor::Author,
        "write the capacity annotations that the message asks for",
    )
    .of(NODE_CLASS),
    Reason::stuck(
        "InvalidScalableResources",
        "objects are left out for what is written on them",
        Actor::Author,
        "correct what the message names",
    )
    .of(NODE_CLASS),
    Reason::stuck("InvalidPriceList", "prices are missing", Actor::Author, "correct the price list").of(NODE_CLASS),
    Reason::stuck(
        "AnotherAutoscaler",
        "another autoscaler holds its lease",
        Actor::Operator,
        "stop one of the two: they would undo each other's work",
    ),
];

pub fn insight() -> Insight {
    slipway_capi::insight::with(KINDS, REASONS)
}
