//! What the reasons mean that every Azure provider gives: signing in, Azure's own error codes, and resources that something
//! holds up.

use slipway_insight::{Actor, Link, Reason};

use crate::{
    reconcile::{
        planning::{LAST_SYSTEM_POOL, OWNED_BY_ANOTHER, VANISHED, WAITING_FOR_AZURE},
        step::THROTTLED,
    },
    workload::machines::NODES_FORBIDDEN,
};

const KINDS: &[&str] = &[
    "AzureManagedCluster",
    "AzureManagedControlPlane",
    "AzureManagedMachinePool",
    "AzureASOManagedCluster",
    "AzureASOManagedControlPlane",
    "AzureASOManagedMachinePool",
];

/// Of every Azure provider.
pub const REASONS: &[Reason] = &[
    Reason::good("Succeeded", "Azure is done with it"),
    Reason::working("Creating", "Azure creates it").usually(600),
    Reason::working("Updating", "Azure changes it").of(KINDS)
    .usually(900),
    Reason::working("Deleting", "Azure deletes it").of(KINDS)
    .usually(900),
    Reason::working("Deleted", "it is gone in Azure"),
    Reason::waiting(WAITING_FOR_AZURE, "Azure has not answered what is there, and nothing is assumed")
        .advice("if it stays, check the network and the identity's rights")
        .usually(120),
    Reason::stuck(
        LAST_SYSTEM_POOL,
        "deleting it would leave AKS without a system pool",
        Actor::Author,
        "add another system pool, or delete the Cluster",
    ),
    Reason::stuck(
        OWNED_BY_ANOTHER,
        "another object owns the resource in Azure: nothing is written to it or deleted",
        Actor::Author,
        "use another name or resource group, or adopt it as the message says",
    ),
    Reason::stuck(
        VANISHED,
        "it was there and is gone, and nothing here deleted it; all but the AKS cluster is made again by itself",
        Actor::Operator,
        "annotate the control plane with `slipway.dev/recreate: \"true\"` to create an empty AKS cluster, or delete the Cluster",
    )
    .command("kubectl -n {namespace} annotate {resource} {name} slipway.dev/recreate=true"),
    Reason::stuck(
        "Stopped",
        "the AKS cluster is stopped, and AKS takes no changes",
        Actor::Cloud,
        "start it; what differs is sent then",
    )
    .command("az aks start --name {name} --resource-group <resource group>"),
    Reason::stuck(
        "InvalidSpec",
        "the objects ask for something that cannot be made",
        Actor::Author,
        "the message says what to change",
    ),
    // Signing in.
    Reason::stuck(
        "IdentityNotFound",
        "`identityRef` names an AzureClusterIdentity that does not exist",
        Actor::Author,
        "create the AzureClusterIdentity; a Cluster that made nothing in Azure can be deleted without it, another says what \
         remains and is let go with `slipway.dev/orphan: \"true\"`",
    )
    .elsewhere(&[])
    .command("kubectl get azureclusteridentities --all-namespaces"),
    Reason::stuck(
        "NamespaceNotAllowedByIdentity",
        "the identity is not for this namespace",
        Actor::Operator,
        "add the namespace to `spec.allowedNamespaces` of the identity",
    )
    .command("kubectl get azureclusteridentities --all-namespaces"),
    Reason::stuck(
        "InvalidIdentity",
        "the identity is incomplete, or its selector cannot be read",
        Actor::Author,
        "mend it as the message says",
    )
    .command("kubectl get azureclusteridentities --all-namespaces"),
    Reason::stuck(
        "SecretNotFound",
        "a Secret that is named, or the key in it, is not there",
        Actor::Author,
        "create it; nothing has to be restarted",
    )
    .command("kubectl -n {namespace} get secrets"),
    Reason::stuck(
        "ConfigMapNotFound",
        "a ConfigMap that is named, or the key in it, is not there",
        Actor::Author,
        "create it; nothing has to be restarted",
    )
    .command("kubectl -n {namespace} get configmaps"),
    Reason::stuck("InvalidCertificate", "the certificate it signs in with cannot be used", Actor::Author, "replace it"),
    Reason::stuck("CertificateExpired", "the certificate it signs in with has run out", Actor::Author, "replace it"),
    Reason::stuck(
        "CredentialFileUnreadable",
        "a file that the identity names cannot be read by the manager",
        Actor::Operator,
        "mount it into the manager's Pod",
    ),
    Reason::stuck(
        "ServiceAccountTokenFailed",
        "the manager got no token of its service account to sign in with",
        Actor::Operator,
        "mount the projected token, and check the federated credential",
    ),
    Reason::stuck(
        "ManagedIdentityUnavailable",
        "no managed identity answers where the manager runs",
        Actor::Operator,
        "run it on a host with that identity, or use another kind of identity",
    ),
    Reason::stuck(
        "IdentityNotOfNamespace",
        "a Secret asks for an identity that is the manager's, not its namespace's",
        Actor::Operator,
        "give the namespace an identity of its own, or allow that it borrows the manager's",
    ),
    Reason::stuck(
        "LoginRefused",
        "Microsoft Entra refused the login",
        Actor::Author,
        "write the right credential into the identity's Secret; nothing has to be restarted",
    )
    .command("kubectl -n {namespace} describe {resource} {name}"),
    Reason::waiting("EntraUnreachable", "Microsoft Entra does not answer")
        .advice("check network and proxy; it is tried again"),
    Reason::waiting("AzureUnreachable", "Azure does not answer")
        .advice("check network and proxy; it is tried again"),
    Reason::stuck(
        "NoSubscription",
        "neither `subscriptionID` nor AZURE_SUBSCRIPTION_ID says which subscription",
        Actor::Author,
        "set `spec.subscriptionID`",
    ),
    Reason::stuck(
        "InvalidConfiguration",
        "the manager's flags for a cloud of one's own do not fit together",
        Actor::Operator,
        "mend them",
    ),
    Reason::stuck("InvalidResourceId", "an id in the spec cannot be read", Actor::Author, "mend it"),
    Reason::waiting(THROTTLED, "the request budget is spent, or Azure said 429; the message says until when")
        .advice("if it is often so, see `--azure-request-budget`"),
    Reason::stuck(
        "UnexpectedAnswer",
        "Azure, or something in between, answered what it should not",
        Actor::Operator,
        "look at what stands in between",
    ),
    Reason::stuck(
        "ForeignAddress",
        "an answer leads to an address that is not Azure's",
        Actor::Operator,
        "look at what stands in between",
    ),
    Reason::stuck(
        "KubernetesError",
        "the API server of the management cluster refused a write",
        Actor::Operator,
        "the message is its own; often rights are missing",
    ),
    // Azure's own codes, those that people meet.
    Reason::stuck(
        "AuthorizationFailed",
        "the identity lacks a role in Azure",
        Actor::Cloud,
        "give the identity the role on what the message names",
    ),
    Reason::stuck(
        "LinkedAuthorizationFailed",
        "the identity lacks a role on another resource that this one uses",
        Actor::Cloud,
        "give the identity the role on what the message names",
    ),
    Reason::stuck("QuotaExceeded", "a quota in Azure is full", Actor::Cloud, "raise the quota, or scale something down")
        .command("az vm list-usage --location <location> --output table"),
    Reason::stuck(
        "ErrCode_InsufficientVCPUQuota",
        "the quota of cores is full",
        Actor::Cloud,
        "raise the quota, or scale something down",
    )
    .command("az vm list-usage --location <location> --output table"),
    Reason::stuck(
        "SkuNotAvailable",
        "Azure does not offer this size there",
        Actor::Author,
        "choose another size, zone or location",
    ),
    Reason::waiting("AllocationFailed", "Azure has no machine of this size free just now")
        .advice("it is tried again; another size or zone may be free"),
    Reason::waiting("ZonalAllocationFailed", "Azure has no machine of this size free in the zone just now")
        .advice("it is tried again; another size or zone may be free"),
    Reason::stuck(
        "RequestDisallowedByPolicy",
        "a policy in Azure forbids it",
        Actor::Cloud,
        "the message names the policy: meet it, or have an exemption made",
    ),
    Reason::stuck("ScopeLocked", "a lock in Azure forbids it", Actor::Cloud, "remove the lock that the message names"),
    Reason::stuck(
        "PropertyChangeNotAllowed",
        "Azure does not change this property of what exists",
        Actor::Author,
        "set it back, or make the resource again under another name",
    ),
    Reason::stuck(
        "K8sVersionNotSupported",
        "AKS does not offer this version there",
        Actor::Author,
        "write a version that AKS offers",
    )
    .command("az aks get-versions --location <location> --output table"),
    Reason::waiting("ServerBusy", "Azure is busy"),
    Reason::waiting("InternalServerError", "Azure failed; it is tried again"),
    // Workload clusters.
    Reason::stuck(
        NODES_FORBIDDEN,
        "the workload cluster answers, and its kubeconfig may not list nodes",
        Actor::Cloud,
        "assign the identity the role Azure Kubernetes Service RBAC Cluster Admin",
    ),
    Reason::follows(
        "WaitingForControlPlane",
        "the AKS cluster is not there yet",
        &[Link::OfCluster("/spec/controlPlaneRef")],
    )
    .of(KINDS),
    Reason::stuck(
        "WaitingForMachinePool",
        "no MachinePool refers to it",
        Actor::Author,
        "create the MachinePool whose `infrastructureRef` names it",
    )
    .of(KINDS),
    Reason::follows("WaitingForNodes", "its nodes have not joined yet", &[]).usually(600),
];
