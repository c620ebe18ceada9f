//! How clusters of inline Azure resources are shown to people, and what the reasons in their conditions mean.

use slipway_insight::{Actor, Inline, Insight, Kind, Link, Numbers, Part, Reason};

const GROUP: &str = "infrastructure.cluster.x-k8s.io";
const CONTROL_PLANE: &[Link] = &[Link::OfCluster("/spec/controlPlaneRef")];

const RESOURCES: Inline = Inline {
    at: "/status/resources/*",
    resource: "/resource",
    ready: "/ready",
    reason: "/state",
    message: "/message",
    since: "/since",
};

const KINDS: &[Kind] = &[
    Kind::new(GROUP, "AzureASOManagedCluster", Part::Infrastructure)
        .holding(RESOURCES)
        .needs(CONTROL_PLANE),
    Kind::new(GROUP, "AzureASOManagedControlPlane", Part::ControlPlane).holding(RESOURCES),
    Kind::new(GROUP, "AzureASOManagedMachinePool", Part::Detail)
        .holding(RESOURCES)
        .needs(CONTROL_PLANE)
        .counting(
            "nodes",
            Numbers {
                desired: "",
                current: "/status/replicas",
                ready: "/status/replicas",
                available: "",
                up_to_date: "",
            },
        ),
];

const REASONS: &[Reason] = &[
    Reason::working("Reconciling", "Azure has not confirmed it yet").usually(900),
    Reason::stuck(
        "InvalidResource",
        "the manifest of an inline resource cannot be read",
        Actor::Author,
        "the message has the path",
    ),
    Reason::stuck(
        "KindNotServed",
        "this kind of resource is not known",
        Actor::Author,
        "use a kind and version that the message names",
    ),
    Reason::stuck(
        "VersionNotServed",
        "this version of the resource is not known",
        Actor::Author,
        "use a version that the message names",
    ),
    Reason::stuck(
        "DuplicateResource",
        "one resource is written twice",
        Actor::Author,
        "keep one of them",
    ),
    Reason::stuck(
        "CyclicReferences",
        "resources refer to each other in a circle",
        Actor::Author,
        "break the circle that the message names",
    ),
    Reason::stuck(
        "IncompatibleValue",
        "Cluster API decides this value otherwise",
        Actor::Author,
        "leave it out, or make it the same",
    ),
    Reason::waiting(
        "WaitingForOwner",
        "the resource that it stands in is not there yet",
    ),
    Reason::stuck(
        "ReferenceNotFound",
        "a resource that it refers to is not there",
        Actor::Author,
        "create it, or correct the reference",
    ),
    Reason::follows(
        "WaitingForMachinePools",
        "no MachinePool of the Cluster is there yet",
        &[Link::Cluster],
    )
    .advice("create a MachinePool with a System agent pool"),
    Reason::stuck(
        "MachinePoolsNotReconciled",
        "Cluster API has not reconciled the MachinePools",
        Actor::Operator,
        "switch core's feature gate MachinePool on",
    )
    .command("kubectl get deployments --all-namespaces --selector=cluster.x-k8s.io/provider=cluster-api"),
    Reason::stuck(
        "NamespaceNotServed",
        "the operator's settings leave this namespace out",
        Actor::Operator,
        "add it to the namespaces in `aso-controller-settings`",
    ),
    Reason::stuck(
        "SubscriptionMismatch",
        "its owner is of another subscription than its credential",
        Actor::Author,
        "name a credential of the owner's subscription",
    ),
    Reason::stuck(
        "ManagedByAzureServiceOperator",
        "an object of a running Azure Service Operator stands for it: nothing is written beside it",
        Actor::Operator,
        "give that object `reconcile-policy: skip`",
    ),
    Reason::stuck(
        "AzureServiceOperatorUnavailable",
        "Azure Service Operator is to write it, and is not there",
        Actor::Operator,
        "install and start it, or annotate the object with `slipway.dev/azure-engine: native`",
    ),
    Reason::stuck(
        "NotInstalled",
        "the kind of Azure Service Operator for the resource is not installed",
        Actor::Operator,
        "install it, or annotate the object with `slipway.dev/azure-engine: native`",
    ),
    Reason::stuck(
        "NotRunning",
        "no Azure Service Operator renews its lease",
        Actor::Operator,
        "start it, or annotate the object with `slipway.dev/azure-engine: native`",
    ),
    Reason::stuck(
        "Forbidden",
        "the manager has no right to this kind of Azure Service Operator",
        Actor::Operator,
        "label a ClusterRole with `cluster.x-k8s.io/aggregate-to-capz-manager: \"true\"`",
    ),
    Reason::stuck(
        "InvalidEngine",
        "the annotation `slipway.dev/azure-engine` names no engine",
        Actor::Author,
        "write `auto`, `native` or `aso`",
    ),
    Reason::working(
        "SwitchingEngine",
        "one engine lets go of it before the other begins",
    )
    .usually(900),
    Reason::stuck(
        "AzureNameChanged",
        "its `azureName` or `owner` says otherwise than when it was made",
        Actor::Author,
        "set it back; to replace the resource, give it another `metadata.name`",
    ),
    Reason::stuck(
        "AzureResourceNotFound",
        "its policy is `skip`, and it does not exist in Azure",
        Actor::Cloud,
        "create it in Azure, or change the policy",
    ),
    Reason::stuck(
        "StillInUse",
        "it is to go, and something in Azure still uses it",
        Actor::Author,
        "the message names what",
    ),
    Reason::stuck(
        "DeletionProtected",
        "`slipway.dev/deletion-protection` forbids that it is deleted",
        Actor::Author,
        "remove the annotation",
    ),
    Reason::stuck(
        "ResourceGroupInUse",
        "the resource group has resources of others in it",
        Actor::Cloud,
        "move or delete what the message names",
    ),
    Reason::stuck(
        "FailedWritingAdditionalKubernetesObjects",
        "a Secret or ConfigMap that a value goes to is somebody else's",
        Actor::Author,
        "name another one",
    ),
    Reason::stuck(
        "CredentialsNotUsable",
        "the kubeconfig that is asked for cannot be used",
        Actor::Author,
        "the message says why",
    ),
    Reason::stuck(
        "UnsupportedControlPlane",
        "the Cluster names a control plane of another kind beside this one",
        Actor::Author,
        "name an AzureASOManagedControlPlane",
    ),
    Reason::stuck(
        "UnsupportedInfrastructure",
        "the Cluster names infrastructure of another kind beside this one",
        Actor::Author,
        "name an AzureASOManagedCluster",
    ),
    Reason::working("WaitingForResources", "resources that stand in it go first").usually(900),
    Reason::working(
        "WaitingForDeletion",
        "Azure has not confirmed yet that it is gone",
    )
    .usually(900),
];

pub fn insight() -> Insight {
    slipway_capi::insight::with(KINDS, &[slipway_azure::insight::REASONS, REASONS].concat())
}
