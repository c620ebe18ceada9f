//! How K3s clusters are shown to people, and what the reasons in their conditions mean.

use slipway_insight::{Actor, Insight, Kind, Link, Part, Reason};

const MACHINES: Link = Link::Owned {
    group: "cluster.x-k8s.io",
    kind: "Machine",
};
const OLDER_TEMPLATE: Link = Link::Reference("/spec/machineTemplate/infrastructureRef");
const NEWER_TEMPLATE: Link = Link::Reference("/spec/machineTemplate/spec/infrastructureRef");
const TEMPLATE: &[Link] = &[OLDER_TEMPLATE, NEWER_TEMPLATE];
const BELOW: &[Link] = &[MACHINES, OLDER_TEMPLATE, NEWER_TEMPLATE];
const CONTROL_PLANE: &[&str] = &["KThreesControlPlane"];
const CONFIG: &[&str] = &["KThreesConfig"];
const MACHINE: &[&str] = &["Machine"];

const KINDS: &[Kind] = &[
    Kind::new(
        "controlplane.cluster.x-k8s.io",
        "KThreesControlPlane",
        Part::ControlPlane,
    )
    .children(BELOW),
    Kind::new("bootstrap.cluster.x-k8s.io", "KThreesConfig", Part::Detail),
];

const REASONS: &[Reason] = &[
    // What a control plane says of itself.
    Reason::follows("WaitingForKthreesServer", "its first server has not answered", &[MACHINES]).of(CONTROL_PLANE),
    Reason::follows("RollingUpdateInProgress", "servers are replaced or updated one after the other", &[MACHINES]),
    Reason::stuck(
        "CertificatesCorrupted",
        "the Secret of a certificate authority is missing or cannot be used; after initialisation none is made again",
        Actor::Operator,
        "restore that Secret from a backup; a new CA would be another cluster",
    )
    .command("kubectl -n {namespace} get secrets --selector=cluster.x-k8s.io/cluster-name={cluster}"),
    Reason::stuck(
        "TokenGenerationFailed",
        "the Secret of the token that servers join with is missing",
        Actor::Operator,
        "restore that Secret from a backup",
    )
    .command("kubectl -n {namespace} get secrets --selector=cluster.x-k8s.io/cluster-name={cluster}"),
    Reason::follows("ControlPlaneComponentsUnhealthy", "k3s does not run on one of its machines", &[MACHINES]),
    Reason::follows("ControlPlaneComponentsUnknown", "of k3s on its machines nothing is known", &[MACHINES]),
    Reason::follows("EtcdClusterUnhealthy", "a machine has no voting member of etcd, or etcd has one too many", &[MACHINES]),
    Reason::follows("EtcdClusterUnknown", "of etcd's members nothing is known", &[MACHINES]),
    Reason::stuck(
        "MixedOwnership",
        "another controller owns control plane Machines of this Cluster",
        Actor::Operator,
        "stop the other controller, or delete its Machines; nothing is done beside it",
    ),
    Reason::stuck(
        "AdoptionRefused",
        "a control plane Machine of the Cluster belongs to nobody and cannot be adopted",
        Actor::Operator,
        "the message says why; delete that Machine if it is not needed",
    ),
    // What its messages name.
    Reason::stuck(
        "",
        "the Cluster has no address for its API server, and its infrastructure names none",
        Actor::Author,
        "write `spec.controlPlaneEndpoint` of the Cluster, or of its infrastructure",
    )
    .says("waiting for Cluster.spec.controlPlaneEndpoint")
    .of(CONTROL_PLANE),
    Reason::working("", "a member of etcd is a learner still; k3s promotes it, or gives it up")
        .says("is still a learner")
        .of(CONTROL_PLANE),
    Reason::stuck(
        "",
        "a member of etcd has raised an alarm; rollouts wait for it, healing does not",
        Actor::Site,
        "free space, or raise etcd's quota, on the host that the message names",
    )
    .says("has raised an alarm")
    .of(CONTROL_PLANE),
    Reason::stuck(
        "",
        "a machine keeps its host, because a member of etcd cannot leave while the API server does not answer",
        Actor::Site,
        "bring the API server back",
    )
    .says("keeps its host: the workload cluster does not answer")
    .of(CONTROL_PLANE),
    Reason::stuck(
        "",
        "a machine keeps its host, because etcd would lose its quorum without it",
        Actor::Site,
        "bring another server back first; then this one goes",
    )
    .says("keeps its host: without its member")
    .of(CONTROL_PLANE),
    Reason::stuck(
        "",
        "a server cannot join without a Secret that is missing",
        Actor::Operator,
        "restore that Secret from a backup",
    )
    .says("a server cannot join without")
    .of(CONTROL_PLANE),
    Reason::working("", "the version is on its way from the Cluster's topology")
        .says("to be propagated from Cluster.spec.topology")
        .of(CONTROL_PLANE),
    Reason::stuck(
        "",
        "another controller owns control plane Machines of this Cluster",
        Actor::Operator,
        "stop the other controller; nothing is done beside it",
    )
    .says("refusing to work beside another owner")
    .of(CONTROL_PLANE),
    Reason::stuck(
        "",
        "the kind of infrastructure that its machines are to have is not installed",
        Actor::Operator,
        "correct the kind, or install the provider that has it",
    )
    .says("is not installed; see spec.machineTemplate")
    .of(CONTROL_PLANE),
    Reason::stuck(
        "",
        "the template that its machines are made from does not exist",
        Actor::Author,
        "create the template, or correct the reference",
    )
    .says("does not exist; see spec.machineTemplate")
    .elsewhere(TEMPLATE)
    .of(CONTROL_PLANE),
    Reason::stuck(
        "",
        "a Secret of the cluster, of which a certificate or key is taken, is incomplete",
        Actor::Author,
        "put into the Secret what the message says is missing, or delete it if one is to be made",
    )
    .says("cannot be used: it has no data under the key")
    .of(CONTROL_PLANE),
    // Of a configuration.
    Reason::follows(
        "WaitingForClusterInfrastructure",
        "the infrastructure of its Cluster is not ready",
        &[Link::OfCluster("/spec/infrastructureRef")],
    )
    .of(CONFIG),
    Reason::follows(
        "WaitingForControlPlaneAvailable",
        "the first server of the control plane does not answer yet",
        &[Link::OfCluster("/spec/controlPlaneRef")],
    )
    .of(CONFIG),
    Reason::stuck(
        "DataSecretGenerationFailed",
        "its bootstrap data cannot be made",
        Actor::Author,
        "the message says what to mend; it goes on by itself",
    ),
    // Of a Machine.
    Reason::waiting("PodFailed", "k3s does not run on its node")
        .of(MACHINE)
        .advice("look at k3s' log on the host"),
    Reason::waiting("EtcdMemberUnhealthy", "its member of etcd does not vote or does not answer")
        .of(MACHINE)
        .advice("look at k3s' log on the host"),
];

pub fn insight() -> Insight {
    slipway_capi::insight::with(KINDS, REASONS)
}
