//! Create, read, update and delete of every primitive of AKS: enforced by this provider, or left to whom.

use std::{collections::BTreeSet, fmt::Write as _};

use slipway_azure::reconcile::ResourceKind;

struct Primitive {
    name: &'static str,
    /// The kind of our plans it is, if it is one.
    kind: Option<ResourceKind>,
    create: &'static str,
    read: &'static str,
    update: &'static str,
    delete: &'static str,
    shown_by: &'static str,
}

const PRIMITIVES: &[Primitive] = &[
    Primitive {
        name: "resource group",
        kind: Some(ResourceKind::ResourceGroup),
        create: "enforced",
        read: "one LIST",
        update: "enforced: tags, if tagged as ours",
        delete: "enforced, last, if tagged as ours and no other AKS cluster is in it; else left to its owner",
        shown_by: "a_resource_group_that_holds_another_cluster_stays, what_is_brought_and_what_is_others_stays",
    },
    Primitive {
        name: "virtual network",
        kind: Some(ResourceKind::VirtualNetwork),
        create: "enforced",
        read: "one LIST",
        update: "enforced if tagged as ours; a brought one is left to its owner",
        delete: "enforced if tagged as ours",
        shown_by: "what_is_brought_and_what_is_others_stays, the_plan_of_a_control_plane",
    },
    Primitive {
        name: "subnet",
        kind: Some(ResourceKind::Subnet),
        create: "enforced, also in a brought network",
        read: "from the network's LIST",
        update: "enforced if we made it: service endpoints",
        delete: "enforced if we made it, or with its network",
        shown_by: "what_is_brought_and_what_is_others_stays, the_plan_of_a_control_plane",
    },
    Primitive {
        name: "managed cluster",
        kind: Some(ResourceKind::ManagedCluster),
        create: "enforced, with the system pools there are; one that exists is adopted",
        read: "one LIST",
        update: "enforced field by field; what nobody names stays as it is",
        delete: "enforced",
        shown_by: "a_cluster_lives, what_another_changes_in_azure_is_put_right_and_what_another_adds_stays, a_cluster_can_be_deleted_at_every_stage_of_its_creation",
    },
    Primitive {
        name: "Kubernetes version of the control plane",
        kind: None,
        create: "enforced",
        read: "status.version is what AKS runs",
        update: "enforced upwards; delegated to AKS where its automatic upgrade went further",
        delete: "-",
        shown_by: "versions_are_never_fought, versions_tell_the_truth_and_what_is_initialized_stays_so",
    },
    Primitive {
        name: "node pool",
        kind: Some(ResourceKind::AgentPool),
        create: "enforced; one that exists under the name is adopted",
        read: "from the cluster's LIST",
        update: "enforced field by field",
        delete: "enforced, but for the last system pool; with its Cluster it is delegated to AKS",
        shown_by: "a_pool_goes_and_the_last_system_pool_waits_for_another, the_plan_of_a_pool",
    },
    Primitive {
        name: "node count",
        kind: None,
        create: "enforced: the MachinePool's replicas",
        read: "status.replicas",
        update: "enforced without scaling; with scaling delegated to AKS's autoscaler, which the MachinePool follows; never below one in a system pool",
        delete: "-",
        shown_by: "aks_scales_a_pool_and_its_machine_pool_follows, aks_owns_the_count_of_a_pool_that_scales",
    },
    Primitive {
        name: "node (virtual machine)",
        kind: None,
        create: "delegated to AKS",
        read: "Nodes of the workload cluster by a watch; its scale sets where it is not reached",
        update: "delegated to AKS (image upgrades, repair)",
        delete: "delegated to AKS; Cluster API's MachinePool removes Nodes that are no longer listed",
        shown_by: "nodes_that_can_be_watched_are_told_as_they_come_and_go",
    },
    Primitive {
        name: "node resource group",
        kind: None,
        create: "delegated to AKS; its name is enforced at creation",
        read: "AKS names it",
        update: "delegated to AKS",
        delete: "delegated to AKS, with the cluster",
        shown_by: "a_cluster_lives",
    },
    Primitive {
        name: "private endpoint",
        kind: Some(ResourceKind::PrivateEndpoint),
        create: "enforced",
        read: "one LIST",
        update: "enforced if tagged as ours",
        delete: "enforced if we made it: when the spec no longer names it, and with the cluster",
        shown_by: "fleet_extension_and_endpoint_come_and_go_with_the_spec",
    },
    Primitive {
        name: "fleet",
        kind: None,
        create: "delegated to its owner",
        read: "-",
        update: "delegated to its owner",
        delete: "delegated to its owner",
        shown_by: "fleet_extension_and_endpoint_come_and_go_with_the_spec",
    },
    Primitive {
        name: "fleet membership",
        kind: Some(ResourceKind::FleetMember),
        create: "enforced",
        read: "one GET per --azure-child-read-age",
        update: "enforced: group; another fleet is another membership",
        delete: "enforced, before the cluster",
        shown_by: "fleet_extension_and_endpoint_come_and_go_with_the_spec, the_fleet_member_points_at_the_aks_cluster",
    },
    Primitive {
        name: "extension",
        kind: Some(ResourceKind::Extension),
        create: "enforced",
        read: "one GET per --azure-child-read-age",
        update: "enforced; its version is delegated to Azure with autoUpgradeMinorVersion",
        delete: "enforced if we made it; others' extensions are left alone",
        shown_by: "fleet_extension_and_endpoint_come_and_go_with_the_spec, an_extension_has_its_scope_and_plan",
    },
    Primitive {
        name: "add-on",
        kind: None,
        create: "enforced: spec.addonProfiles",
        read: "with the cluster",
        update: "enforced",
        delete: "refused: it is disabled instead",
        shown_by: "plain_fields_of_a_control_plane",
    },
    Primitive {
        name: "credentials of the cluster",
        kind: None,
        create: "delegated to AKS (certificates) and Entra (tokens); written to Secrets",
        read: "one POST when a Secret has to be written",
        update: "enforced: another API server, a certificate near its end, a token at half its life",
        delete: "with the control plane, by its owner reference",
        shown_by: "without_local_accounts_the_kubeconfig_holds_a_token_that_is_renewed_in_time, people_who_sign_in_with_entra_have_a_kubeconfig_of_their_own",
    },
    Primitive {
        name: "identities, role assignments, key vaults, public addresses, DNS zones",
        kind: None,
        create: "delegated to their owner, and named by id",
        read: "-",
        update: "delegated to their owner",
        delete: "delegated to their owner",
        shown_by: "every_manifest_can_be_sent",
    },
    Primitive {
        name: "maintenance windows, snapshots, trusted access",
        kind: None,
        create: "delegated: Azure's own tools, or the kinds of Azure Service Operator",
        read: "-",
        update: "delegated",
        delete: "with the cluster, by AKS",
        shown_by: "",
    },
];

#[test]
fn the_page_tells_the_life_of_every_primitive() {
    super::check_evidence("lifecycle.md", PRIMITIVES.iter().map(|row| row.shown_by));
    let told: BTreeSet<ResourceKind> = PRIMITIVES.iter().filter_map(|row| row.kind).collect();
    let all = BTreeSet::from([
        ResourceKind::ResourceGroup,
        ResourceKind::VirtualNetwork,
        ResourceKind::Subnet,
        ResourceKind::ManagedCluster,
        ResourceKind::PrivateEndpoint,
        ResourceKind::FleetMember,
        ResourceKind::Extension,
        ResourceKind::AgentPool,
    ]);
    assert_eq!(told, all, "every kind of a plan is a primitive with a life");
    let mut page = String::from(
        "# Who enforces what\n\nRendered from `crates/aks/tests/graduation/lifecycle.rs`; a test keeps them equal, and checks that every kind of a plan is\n\
         here and that the tests it names are there. *Enforced*: this provider makes it so and puts it right. *Delegated*: who\n\
         else decides, and this provider does not fight it.\n\n\
         | primitive | create | read | update | delete | shown by |\n|---|---|---|---|---|---|\n",
    );
    for row in PRIMITIVES {
        let shown = if row.shown_by.is_empty() {
            "-".to_owned()
        } else {
            format!("`{}`", row.shown_by.replace(", ", "`, `"))
        };
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {shown} |",
            row.name, row.create, row.read, row.update, row.delete
        );
    }
    crate::pages::check("lifecycle.md", &page);
}
