//! How hosts, their machines and their upgrades are shown to people, and what the reasons in their conditions mean.

use slipway_insight::{Actor, Insight, Kind, Link, Numbers, Part, Reason, Steps};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
const EDGE: &str = "edge.slipway.dev";
const CORE: &str = "cluster.x-k8s.io";

const HOST: &[Link] = &[Link::Name {
    group: EDGE,
    kind: "EdgeHost",
    at: "/spec/hostName",
}];
const POLICY: &[Link] = &[Link::Name {
    group: EDGE,
    kind: "UpgradePolicy",
    at: "/spec/policyName",
}];
const OF_CLUSTER: &[Link] = &[Link::Name {
    group: CORE,
    kind: "Cluster",
    at: "/spec/clusterName",
}];
const MACHINE: &[&str] = &["EdgeMachine"];
const HOSTS: &[&str] = &["EdgeHost"];
const IMAGE: &[&str] = &["HostImage"];
const NODE_UPGRADE: &[&str] = &["NodeUpgrade"];
const CLUSTER_UPGRADE: &[&str] = &["ClusterUpgrade"];

const fn counted(desired: &'static str, ready: &'static str) -> Numbers {
    Numbers {
        desired,
        current: desired,
        ready,
        available: "",
        up_to_date: "",
    }
}

const KINDS: &[Kind] = &[
    Kind::new(INFRASTRUCTURE, "EdgeCluster", Part::Infrastructure),
    Kind::new(INFRASTRUCTURE, "EdgeMachine", Part::Detail)
        .children(&[
            Link::Name {
                group: EDGE,
                kind: "EdgeHost",
                at: "/spec/hostName",
            },
            Link::Naming {
                group: EDGE,
                kind: "NodeUpgrade",
                at: "/spec/machineName",
            },
        ])
        .facts(&[("host", "/spec/hostName")]),
    Kind::new(EDGE, "EdgeHost", Part::Host)
        .versions(&["/status/kubeletVersion"], &[])
        .facts(&[("slot", "/status/bootedSlot"), ("agent", "/status/agentVersion")])
        .standing_alone(),
    Kind::new(EDGE, "HostImage", Part::Upgrade)
        .counting("hosts", counted("/status/hosts", "/status/complete"))
        .versions(&[], &[])
        .standing_alone(),
    Kind::new(EDGE, "ClusterUpgrade", Part::Upgrade)
        .needs(&[
            Link::Name {
                group: EDGE,
                kind: "UpgradePolicy",
                at: "/spec/policyName",
            },
            Link::Name {
                group: CORE,
                kind: "Cluster",
                at: "/spec/clusterName",
            },
        ])
        .alarms(&["Halted"])
        .counting("machines", counted("/status/machines", "/status/upToDate"))
        .versions(&[], &["/spec/version"])
        .facts(&[("phase", "/status/phase"), ("stop", "/status/stop")]),
    Kind::new(EDGE, "NodeUpgrade", Part::Upgrade)
        .needs(HOST)
        .versions(&[], &["/spec/version"])
        .steps(Steps {
            at: "/status/phase",
            order: &[
                "Pending",
                "Caching",
                "Preparing",
                "Prepared",
                "Draining",
                "Rebooting",
                "Verifying",
                "Done",
            ],
            percent: "/status/percent",
        })
        .facts(&[
            ("machine", "/spec/machineName"),
            ("host", "/spec/hostName"),
            ("phase", "/status/phase"),
        ]),
    Kind::new(EDGE, "UpgradePolicy", Part::Detail).standing_alone(),
];

const REASONS: &[Reason] = &[
    // Machines and their hosts.
    Reason::follows("WaitingForOwner", "no Machine owns it yet", &[Link::Owner]).of(MACHINE),
    Reason::stuck(
        "NoHost",
        "no host is free that has what it asks for",
        Actor::Site,
        "let another host join, or widen `hostSelector` and `minimum`; the message counts why hosts do not fit",
    )
    .of(MACHINE)
    .command("kubectl -n {namespace} get edgehosts"),
    Reason::stuck(
        "HostLost",
        "its host is not there any more",
        Actor::Site,
        "bring the host back, or delete the Machine",
    )
    .elsewhere(HOST)
    .of(MACHINE),
    Reason::waiting("HostUnreachable", "the agent of its host does not answer").elsewhere(HOST),
    Reason::working("Bootstrapping", "its host runs its bootstrap data").of(MACHINE).usually(600),
    Reason::working("Wiping", "its host is wiped").usually(600),
    Reason::stuck(
        "Unreachable",
        "the host's agent does not answer",
        Actor::Site,
        "check that the host runs, that its network reaches the manager, and `slipway-agent status` on it",
    )
    .of(HOSTS),
    Reason::good("Free", "no EdgeMachine has it").of(HOSTS),
    Reason::waiting("NoInventory", "the host has not said yet what it is").of(HOSTS).usually(60),
    Reason::stuck(
        "Maintenance",
        "somebody works on the host",
        Actor::Site,
        "end the maintenance: remove `spec.maintenance`, or the lock on the host",
    ),
    Reason::stuck(
        "NameTaken",
        "an older EdgeHost of this name in another namespace has the host",
        Actor::Author,
        "delete one of the two",
    )
    .of(HOSTS),
    Reason::stuck(
        "ClaimantMissing",
        "the EdgeMachine that has the host is not there and has not let go of it",
        Actor::Operator,
        "bring the EdgeMachine back, or take `spec.claim` off the host once nothing on it is needed",
    )
    .of(HOSTS),
    Reason::working("Claimed", "an EdgeMachine has it, and goes first").of(HOSTS),
    Reason::stuck("WipeFailed", "the host could not be wiped", Actor::Site, "the message says why; wipe it by hand").of(HOSTS),
    // Clusters.
    Reason::stuck(
        "VirtualAddressNotServed",
        "agents do not hold addresses for the control plane",
        Actor::Author,
        "write the endpoint of a load balancer into `spec.controlPlaneEndpoint`, and leave `virtualAddress` out",
    ),
    Reason::stuck(
        "NoEndpoint",
        "nothing says where the API server of the cluster is to be found",
        Actor::Author,
        "write the endpoint of a load balancer into `spec.controlPlaneEndpoint`",
    ),
    // Images on hosts.
    Reason::working("Fetching", "hosts fetch the image").of(IMAGE),
    Reason::waiting("Retrying", "a host failed, and is tried again"),
    Reason::stuck("Failed", "hosts failed; `status.failures` says what failed where", Actor::Site, "mend what the message says").of(IMAGE),
    Reason::waiting("HostsAway", "hosts that are selected do not answer").of(IMAGE).advice("make them answer again, or take them out of the selector"),
    // Upgrades of nodes, and what they wait for.
    Reason::waiting("InLine", "others of the policy are upgraded before it"),
    Reason::waiting("OutsideWindow", "no window of the policy is open; the message says when the next one is"),
    Reason::waiting("WaitingForWave", "its wave comes after another"),
    Reason::waiting("Soaking", "the wave before it is being watched for a while"),
    Reason::stuck(
        "Halted",
        "machines that went back from an image stop everything that goes by the policy",
        Actor::Operator,
        "find out why they went back; give another image, or delete the NodeUpgrade that went back",
    )
    .command("kubectl -n {namespace} get nodeupgrades"),
    Reason::stuck(
        "NotInFleet",
        "no wave of the policy has the machine",
        Actor::Author,
        "widen a wave's selector, or add a wave",
    ),
    Reason::stuck("PolicyMissing", "the UpgradePolicy that it names does not exist", Actor::Author, "create it"),
    Reason::stuck("Invalid", "a field of it cannot be used", Actor::Author, "the message names each field and what it has to be")
        .of(&["UpgradePolicy"]),
    Reason::waiting("VersionSkew", "the node would be too far from its control plane, or from another version")
        .of(NODE_UPGRADE)
        .advice("upgrade the control plane first"),
    Reason::stuck("NodeUnknown", "the node of the machine cannot be told", Actor::Operator, "look at the Machine's `nodeRef`").of(NODE_UPGRADE),
    Reason::working("Ordered", "its host was told what comes next").of(NODE_UPGRADE).elsewhere(HOST),
    Reason::working("Running", "its host is at work").of(NODE_UPGRADE).elsewhere(HOST),
    Reason::working("Interrupted", "its host was interrupted, and is told again").of(NODE_UPGRADE).elsewhere(HOST),
    Reason::stuck(
        "OrderFailed",
        "its host could not do what it was told",
        Actor::Site,
        "the message is the host's; mend it, and delete the NodeUpgrade for another try",
    )
    .of(NODE_UPGRADE),
    Reason::stuck(
        "Quarantined",
        "this image was given up on this host before",
        Actor::Site,
        "give another image; to try this one again, take it out of the host's quarantine",
    )
    .of(NODE_UPGRADE),
    Reason::stuck("SlotGivenUp", "the host gave the slot up", Actor::Site, "the message says why; give another image").of(NODE_UPGRADE),
    Reason::working("Draining", "pods are leaving the node")
        .of(NODE_UPGRADE)
        .advice("the message names the pods that stay"),
    Reason::stuck(
        "DrainTimedOut",
        "pods did not leave the node in time; it is tried again later",
        Actor::Operator,
        "the message names the pods: raise their PodDisruptionBudget, or set `drain.onTimeout: Reboot`",
    )
    .of(NODE_UPGRADE),
    Reason::stuck("NoSnapshot", "no snapshot of etcd could be taken before the reboot", Actor::Operator, "the message says why").of(NODE_UPGRADE),
    Reason::working("Arming", "the host is to start from the other slot").of(NODE_UPGRADE),
    Reason::working("Rebooting", "the host starts again").of(NODE_UPGRADE).usually(600),
    Reason::waiting("Overdue", "the host has not come back in time").of(NODE_UPGRADE).advice("look at the host's console"),
    Reason::working("Verifying", "the new slot is up, and its node is watched").of(NODE_UPGRADE).usually(600),
    Reason::working("RollingBack", "the host goes back to the slot that worked").of(NODE_UPGRADE),
    Reason::stuck(
        "RolledBack",
        "the host went back to the image that worked",
        Actor::Operator,
        "the message says why it went back: give another image, or delete the NodeUpgrade for another try",
    )
    .of(&["NodeUpgrade", "ClusterUpgrade"]),
    Reason::stuck("NotVerified", "the node was not ready in time, and there is no way back", Actor::Site, "look at the host").of(NODE_UPGRADE),
    Reason::stuck("NotRolledBack", "the host could not go back", Actor::Site, "look at the host's console").of(NODE_UPGRADE),
    Reason::good("Upgraded", "the host runs the image").of(NODE_UPGRADE),
    Reason::working("MachineGone", "its Machine is gone, and it is cancelled").of(NODE_UPGRADE),
    Reason::working("MachineDeleted", "its Machine is deleted, and it is cancelled").of(NODE_UPGRADE),
    Reason::working("Superseded", "a newer upgrade of the machine has taken its place").of(NODE_UPGRADE),
    Reason::working("UnderWay", "it has not ended").of(NODE_UPGRADE),
    Reason::working("TakingBack", "what is left of it is taken back").of(NODE_UPGRADE),
    // Upgrades of clusters.
    Reason::stuck("NoCluster", "the Cluster that it names does not exist", Actor::Author, "create it, or correct `clusterName`")
        .of(CLUSTER_UPGRADE)
        .elsewhere(OF_CLUSTER),
    Reason::stuck("NoPolicy", "the UpgradePolicy that it names does not exist", Actor::Author, "create it, or correct `policyName`")
        .of(CLUSTER_UPGRADE)
        .elsewhere(POLICY),
    Reason::stuck(
        "NoControlPlane",
        "the Cluster has no control plane that can be upgraded in place",
        Actor::Author,
        "the message says why",
    )
    .of(CLUSTER_UPGRADE),
    Reason::stuck("NoPath", "no way leads from the version that runs to the one asked for", Actor::Author, "add the images of the versions between")
        .of(CLUSTER_UPGRADE),
    Reason::stuck("NoImage", "the next version has no image", Actor::Author, "add it to `spec.images`").of(CLUSTER_UPGRADE),
    Reason::working("Upgrading", "it is on its way").of(CLUSTER_UPGRADE),
    Reason::waiting("NotYetSeen", "what was asked for has not been taken up yet").of(CLUSTER_UPGRADE).elsewhere(OF_CLUSTER),
    Reason::stuck("Failed", "a write was refused", Actor::Operator, "the message is the API server's").of(CLUSTER_UPGRADE),
];

pub fn insight() -> Insight {
    slipway_capi::insight::with(KINDS, REASONS)
}
