//! What Cluster API's own kinds and the reasons in their conditions say to people: the tree that a Cluster is, and where the cause
//! of a reason is looked for.

use slipway_insight::{Actor, Insight, Kind, Link, Numbers, Part, Reason};

use crate::names::{GROUP, label};

const CONTROL_PLANE_GROUP: &str = "controlplane.cluster.x-k8s.io";
const BOOTSTRAP_GROUP: &str = "bootstrap.cluster.x-k8s.io";

/// What a Machine of any kind has below it.
const OF_MACHINE: &[Link] = &[
    Link::Reference("/spec/bootstrap/configRef"),
    Link::Reference("/spec/infrastructureRef"),
];

const fn owned(group: &'static str, kind: &'static str) -> Link {
    Link::Owned { group, kind }
}

const fn of_cluster(group: &'static str, kind: &'static str) -> Link {
    Link::Labelled {
        group,
        kind,
        label: label::CLUSTER_NAME,
    }
}

/// What a Machine repeats.
const MIRRORS: &[(&str, Link)] = &[
    (
        "BootstrapConfigReady",
        Link::Reference("/spec/bootstrap/configRef"),
    ),
    ("InfrastructureReady", Link::Reference("/spec/infrastructureRef")),
];

/// Of the control plane and of the workers together.
const OF_BOTH: Numbers = Numbers {
    desired: "/status/*/desiredReplicas",
    current: "/status/*/replicas",
    ready: "/status/*/readyReplicas",
    available: "/status/*/availableReplicas",
    up_to_date: "/status/*/upToDateReplicas",
};

const CLUSTER: Kind = Kind::new(GROUP, "Cluster", Part::Cluster)
    .children(&[
        Link::Reference("/spec/infrastructureRef"),
        Link::Reference("/spec/controlPlaneRef"),
        of_cluster(GROUP, "MachineDeployment"),
        of_cluster(GROUP, "MachinePool"),
        Link::Naming {
            group: GROUP,
            kind: "MachineDeployment",
            at: "/spec/clusterName",
        },
        Link::Naming {
            group: GROUP,
            kind: "MachinePool",
            at: "/spec/clusterName",
        },
        of_cluster(GROUP, "MachineSet"),
        of_cluster(GROUP, "Machine"),
        Link::Naming {
            group: GROUP,
            kind: "Machine",
            at: "/spec/clusterName",
        },
        Link::Naming {
            group: GROUP,
            kind: "MachineHealthCheck",
            at: "/spec/clusterName",
        },
    ])
    .needs(&[Link::Reference("/spec/topology/classRef")])
    .mirrors(&[
        ("InfrastructureReady", Link::Reference("/spec/infrastructureRef")),
        ("ControlPlaneAvailable", Link::Reference("/spec/controlPlaneRef")),
        (
            "ControlPlaneInitialized",
            Link::Reference("/spec/controlPlaneRef"),
        ),
    ])
    .summaries(&["TopologyReconciled"])
    .counting("machines", OF_BOTH)
    .facts(&[
        ("phase", "/status/phase"),
        ("class", "/spec/topology/classRef/name"),
    ]);

const WORKERS: Kind = Kind::new(GROUP, "MachineDeployment", Part::Workers)
    .children(&[
        owned(GROUP, "MachineSet"),
        owned(GROUP, "Machine"),
        Link::Reference("/spec/template/spec/bootstrap/configRef"),
        Link::Reference("/spec/template/spec/infrastructureRef"),
    ])
    .versions(&[], &["/spec/template/spec/version"]);

const KINDS: &[Kind] = &[
    CLUSTER,
    WORKERS,
    Kind::new(GROUP, "MachineSet", Part::Between)
        .children(&[
            owned(GROUP, "Machine"),
            Link::Reference("/spec/template/spec/bootstrap/configRef"),
            Link::Reference("/spec/template/spec/infrastructureRef"),
        ])
        .versions(&[], &["/spec/template/spec/version"]),
    Kind::new(GROUP, "MachinePool", Part::Workers)
        .children(&[
            Link::Reference("/spec/template/spec/bootstrap/configRef"),
            Link::Reference("/spec/template/spec/infrastructureRef"),
            owned(GROUP, "Machine"),
        ])
        .versions(&[], &["/spec/template/spec/version"])
        .counting("nodes", Numbers::CLUSTER_API),
    Kind::new(GROUP, "Machine", Part::Machine)
        .children(OF_MACHINE)
        .mirrors(MIRRORS)
        .versions(&["/status/nodeInfo/kubeletVersion"], &["/spec/version"])
        .facts(&[("phase", "/status/phase"), ("node", "/status/nodeRef/name")]),
    Kind::new(GROUP, "MachineHealthCheck", Part::Detail).counting(
        "machines",
        Numbers {
            desired: "/status/expectedMachines",
            current: "/status/expectedMachines",
            ready: "/status/currentHealthy",
            available: "/status/currentHealthy",
            up_to_date: "",
        },
    ),
    Kind::new(GROUP, "ClusterClass", Part::Detail),
    Kind::new(CONTROL_PLANE_GROUP, "KubeadmControlPlane", Part::ControlPlane).children(&[
        owned(GROUP, "Machine"),
        Link::Reference("/spec/machineTemplate/spec/infrastructureRef"),
    ]),
    Kind::new(BOOTSTRAP_GROUP, "KubeadmConfig", Part::Detail).needs(&[Link::Owner]),
];

const CONTROL_PLANE: &[Link] = &[Link::OfCluster("/spec/controlPlaneRef")];
const INFRASTRUCTURE: &[Link] = &[Link::OfCluster("/spec/infrastructureRef")];
const LOGS: &str = "kubectl get deployments --all-namespaces --selector=clusterctl.cluster.x-k8s.io";

const REASONS: &[Reason] = &[
    // Of anything that sums up, or that copies what another says.
    Reason::follows("NotReady", "something that it is made of is not ready", &[]),
    Reason::follows(
        "NotAvailable",
        "something that it is made of is not available",
        &[],
    ),
    Reason::follows(
        "ReadyUnknown",
        "of something that it is made of it is not known whether it is ready",
        &[],
    ),
    Reason::follows(
        "AvailableUnknown",
        "of something that it is made of it is not known whether it is available",
        &[],
    ),
    Reason::follows(
        "UpToDateUnknown",
        "of something that it is made of it is not known whether it is up to date",
        &[],
    ),
    Reason::follows(
        "RollingOutUnknown",
        "not every control plane and pool has said whether it is rolling out",
        &[],
    ),
    Reason::follows(
        "ScalingUpUnknown",
        "not every control plane and pool has said whether it is scaling",
        &[],
    ),
    Reason::follows(
        "ScalingDownUnknown",
        "not every control plane and pool has said whether it is scaling",
        &[],
    ),
    Reason::follows(
        "NotInitialized",
        "the first server of its control plane does not answer yet",
        CONTROL_PLANE,
    )
    .of(&["Cluster"]),
    Reason::follows("NotProvisioned", "it is not provisioned yet", &[]),
    Reason::working("NotUpToDate", "something of it is older than what is asked for").elsewhere(&[]),
    Reason::working(
        "RollingOut",
        "machines are replaced or updated one after the other",
    )
    .elsewhere(&[]),
    Reason::working("ScalingUp", "there are fewer machines than asked for").elsewhere(&[]),
    Reason::working("ScalingDown", "there are more machines than asked for").elsewhere(&[]),
    Reason::working("Updating", "it is being updated in place").elsewhere(&[]),
    Reason::working("InPlaceUpdating", "it is being updated in place").elsewhere(&[]),
    Reason::working(
        "Remediating",
        "a machine that failed a health check is being replaced",
    )
    .elsewhere(&[]),
    Reason::good("NoReplicas", "no machine is asked for"),
    Reason::good("NoWorkers", "no workers are asked for"),
    // Waits, with what is waited for.
    Reason::follows(
        "WaitingForClusterInfrastructureReady",
        "the infrastructure of its Cluster is not ready",
        INFRASTRUCTURE,
    ),
    Reason::follows(
        "WaitingForControlPlaneInitialized",
        "the first server of the control plane does not answer yet",
        CONTROL_PLANE,
    ),
    Reason::follows(
        "WaitingForBootstrapData",
        "its bootstrap data is not there yet",
        &[Link::Reference("/spec/bootstrap/configRef"), Link::Owner],
    ),
    Reason::follows(
        "WaitingForReplicasSet",
        "nobody has set its number of machines yet",
        &[Link::Cluster],
    ),
    Reason::follows(
        "WaitingForAvailableReplicasSet",
        "its machines were not counted yet",
        &[],
    ),
    Reason::waiting(
        "WaitingForMinReadySeconds",
        "it is ready, and has to stay so for a while",
    )
    .usually(120),
    Reason::waiting(
        "WaitingForRemediation",
        "it failed a health check, and waits for its owner to replace it",
    ),
    Reason::follows(
        "InspectionFailed",
        "its workload cluster could not be asked",
        CONTROL_PLANE,
    ),
    Reason::follows(
        "ConnectionDown",
        "the API server of its workload cluster does not answer",
        CONTROL_PLANE,
    ),
    Reason::follows(
        "ProbeFailed",
        "the API server of the workload cluster does not answer the management cluster",
        CONTROL_PLANE,
    )
    .of(&["Cluster"]),
    // Of nodes.
    Reason::waiting("NodeDoesNotExist", "its Node has not joined the workload cluster")
        .elsewhere(&[Link::Reference("/spec/infrastructureRef")])
        .usually(600)
        .advice("if the host runs, look at its console and at cloud-init's log"),
    Reason::stuck(
        "NodeDeleted",
        "its Node was there and was deleted",
        Actor::Operator,
        "delete the Machine, so that another is made, or restart the kubelet so that the Node comes back",
    ),
    Reason::waiting(
        "NodeNotReady",
        "its Node is not ready: the kubelet has stopped or a network plugin is missing",
    )
    .usually(300)
    .advice("look at the Node's conditions in the workload cluster"),
    Reason::waiting("NodeReadyUnknown", "its Node's kubelet has not been heard of")
        .usually(120)
        .advice("check that the host runs and reaches the API server"),
    Reason::waiting("NodeNotHealthy", "its Node has a problem, or has not joined")
        .elsewhere(&[Link::Reference("/spec/infrastructureRef")])
        .usually(300),
    Reason::waiting("NodeHealthyUnknown", "its Node's state is not known"),
    Reason::waiting("UnhealthyNode", "a MachineHealthCheck found its Node unhealthy"),
    Reason::waiting("UnhealthyMachine", "a MachineHealthCheck found it unhealthy"),
    Reason::waiting(
        "NodeStartupTimeout",
        "its Node did not join in the time that the MachineHealthCheck allows",
    ),
    Reason::working("HasRemediateAnnotation", "somebody asked for its replacement"),
    Reason::stuck(
        "TooManyUnhealthy",
        "more machines are unhealthy than the MachineHealthCheck may replace",
        Actor::Operator,
        "find what the machines have in common; raise the limit of the MachineHealthCheck only if they are to be replaced all the same",
    ),
    Reason::stuck(
        "CannotBeRemediated",
        "it failed a health check, and replacing it would endanger the control plane or is not allowed",
        Actor::Operator,
        "the message says why; mend the host, or delete the Machine by hand once that is safe",
    ),
    Reason::waiting(
        "RemediationDeferred",
        "it failed a health check, and is replaced when that is safe",
    ),
    // What is referred to.
    Reason::stuck(
        "ObjectDoesNotExist",
        "the object that it refers to does not exist",
        Actor::Author,
        "create it, or correct the reference",
    )
    .elsewhere(&[]),
    Reason::stuck(
        "ObjectDeleted",
        "the object that it refers to was deleted while it is still needed",
        Actor::Operator,
        "delete this one too; what was provisioned cannot be taken over by a new object",
    ),
    Reason::stuck(
        "InvalidConditionReported",
        "the provider of what it refers to writes a condition that cannot be read",
        Actor::Operator,
        "report it to the provider",
    ),
    Reason::stuck(
        "InternalError",
        "a controller of Cluster API failed",
        Actor::Operator,
        "look at its log",
    )
    .command(LOGS),
    // Topologies.
    Reason::stuck(
        "ReconcileFailed",
        "what its class and variables ask for could not be applied",
        Actor::Author,
        "the message says which object or patch; correct the Cluster's topology or its ClusterClass",
    )
    .of(&["Cluster"]),
    Reason::follows(
        "ClusterClassNotReconciled",
        "its ClusterClass is not reconciled",
        &[Link::Reference("/spec/topology/classRef")],
    ),
    Reason::stuck(
        "VariableDiscoveryFailed",
        "a runtime extension did not tell the variables of the class",
        Actor::Operator,
        "check the extension and its ExtensionConfig",
    ),
    Reason::stuck(
        "RefVersionsNotUpToDate",
        "the class names templates by an older API version",
        Actor::Author,
        "write the newest version of each reference in the class",
    ),
    Reason::waiting("LifecycleHookBlocking", "a runtime extension holds it up")
        .advice("the message names the hook; ask whoever runs the extension"),
    Reason::working("ClusterCreating", "it is being created from its class").elsewhere(&[]),
    Reason::working(
        "ClusterUpgrading",
        "the version of its topology is on its way to all its objects",
    )
    .elsewhere(&[]),
    Reason::follows(
        "ControlPlaneUpgradePending",
        "the control plane takes the version when it can",
        CONTROL_PLANE,
    ),
    Reason::follows(
        "MachineDeploymentsCreatePending",
        "workers are made when the control plane is done",
        CONTROL_PLANE,
    ),
    Reason::follows(
        "MachineDeploymentsUpgradePending",
        "workers are upgraded when the control plane is done",
        &[],
    ),
    Reason::waiting(
        "MachineDeploymentsUpgradeDeferred",
        "somebody has put off the upgrade of workers by an annotation",
    ),
    Reason::follows(
        "MachinePoolsCreatePending",
        "pools are made when the control plane is done",
        CONTROL_PLANE,
    ),
    Reason::follows(
        "MachinePoolsUpgradePending",
        "pools are upgraded when the control plane is done",
        &[],
    ),
    Reason::waiting(
        "MachinePoolsUpgradeDeferred",
        "somebody has put off the upgrade of pools by an annotation",
    ),
    // Deletion.
    Reason::working(
        "WaitingForBeforeDeleteHook",
        "a runtime extension holds the deletion up",
    ),
    Reason::working("WaitingForWorkersDeletion", "its workers go first").elsewhere(&[]),
    Reason::working("WaitingForControlPlaneDeletion", "its control plane goes first").elsewhere(&[]),
    Reason::working(
        "WaitingForInfrastructureDeletion",
        "its infrastructure goes first",
    )
    .elsewhere(&[]),
    Reason::working("WaitingForMachineDeletion", "its machines go first").elsewhere(&[]),
    Reason::working(
        "WaitingForBootstrapDeletion",
        "its bootstrap configuration goes first",
    )
    .elsewhere(&[]),
    Reason::working(
        "WaitingForPreDrainHook",
        "somebody's annotation holds it before its Node is drained",
    ),
    Reason::working(
        "WaitingForPreTerminateHook",
        "somebody's annotation holds it before its infrastructure goes",
    )
    .elsewhere(&[Link::Owner]),
    Reason::working("DrainingNode", "pods are leaving its Node")
        .usually(600)
        .advice("the message names the pods that stay; a PodDisruptionBudget may forbid that they go"),
    Reason::working("WaitingForVolumeDetach", "volumes are detached from its Node")
        .usually(300)
        .advice("the message names them"),
    Reason::working("DeletingNode", "its Node is deleted from the workload cluster"),
    Reason::working("DeletionCompleted", "nothing is left of it"),
    Reason::waiting(
        "",
        "machines are not made before the control plane is stable and of the version asked for",
    )
    .says("preflight check failed")
    .of(&["MachineDeployment", "MachineSet"])
    .elsewhere(CONTROL_PLANE),
    // Of MachineSets, in the form before v1beta2.
    Reason::stuck(
        "PreflightCheckFailed",
        "machines are not made before the control plane is stable and of the version asked for",
        Actor::Nobody,
        "",
    )
    .elsewhere(CONTROL_PLANE),
    Reason::stuck(
        "MachineCreationFailed",
        "a Machine could not be made",
        Actor::Author,
        "the message is the API server's: correct the template that it names",
    ),
    Reason::stuck(
        "BootstrapTemplateCloningFailed",
        "the template of its bootstrap configuration could not be used",
        Actor::Author,
        "create the template, or correct the reference",
    )
    .elsewhere(&[]),
    Reason::stuck(
        "InfrastructureTemplateCloningFailed",
        "the template of its infrastructure could not be used",
        Actor::Author,
        "create the template, or correct the reference",
    )
    .elsewhere(&[]),
    Reason::follows("WaitingForInfrastructure", "its infrastructure is not ready", &[]),
    Reason::follows("WaitingForDataSecret", "its bootstrap data is not there yet", &[]),
    Reason::follows(
        "WaitingForControlPlane",
        "the control plane is not there yet",
        CONTROL_PLANE,
    ),
    Reason::follows("WaitingForNodeRef", "its Nodes have not joined", &[]).usually(600),
    Reason::follows(
        "WaitingForControlPlaneAvailable",
        "the first server of the control plane does not answer yet",
        CONTROL_PLANE,
    ),
    Reason::follows("WaitingForReplicasReady", "not all of its nodes are ready", &[]),
    // Of kubeadm's control plane.
    Reason::follows(
        "NotHealthy",
        "a component on one of its machines is not healthy",
        &[owned(GROUP, "Machine")],
    ),
    Reason::follows(
        "HealthUnknown",
        "of a component on one of its machines nothing is known",
        &[owned(GROUP, "Machine")],
    ),
];

/// Cluster API's own kinds, and kubeadm's, with those of a provider.
pub fn with(kinds: &[Kind], reasons: &[Reason]) -> Insight {
    Insight {
        kinds: [KINDS, kinds].concat(),
        reasons: [REASONS, reasons].concat(),
    }
}
