//! Cluster API's proposal for managed Kubernetes (docs/proposals/20220725-managed-kubernetes.md and the contract that
//! followed it), recommendation by recommendation.

use std::fmt::Write as _;

struct Row {
    recommends: &'static str,
    here: &'static str,
    /// Why it is otherwise; nothing where it is not.
    departs: Option<&'static str>,
    shown_by: &'static str,
}

const ROWS: &[Row] = &[
    Row {
        recommends: "Two kinds, and never one kind for both the control plane and the infrastructure",
        here: "AzureManagedControlPlane and AzureManagedCluster",
        departs: None,
        shown_by: "the_provider_brings_its_kinds_and_a_webhook_for_each",
    },
    Row {
        recommends: "Option 3, for new implementations: the infrastructure kind holds what is not the service itself (resource group, network, location), the control plane kind only the service",
        here: "Option 1: AzureManagedControlPlane holds the resource group, the network and AKS; AzureManagedCluster passes the endpoint on",
        departs: Some(
            "Manifests of CAPZ apply unchanged. The proposal asks nothing of implementations that exist, and moving eighty fields between two kinds would break every manifest, template and ClusterClass patch there is for no gain in Azure. What would be gained, infrastructure of its own lifecycle, is there by other means: a network and groups that are brought are used and never changed",
        ),
        shown_by: "every_leaf_of_the_definitions_of_capz_is_ours_too, the_published_templates_are_let_in, what_is_brought_and_what_is_others_stays",
    },
    Row {
        recommends: "The infrastructure is provisioned before the control plane is started",
        here: "AzureManagedCluster says provisioned when the control plane's API server has an address",
        departs: Some(
            "The address is AKS's to give: saying so earlier would be saying something that is not true. Cluster API waits for neither to start the other, because the control plane does not wait for the infrastructure",
        ),
        shown_by: "nothing_is_ready_before_aks_has_answered, a_cluster_lives",
    },
    Row {
        recommends: "Option 2, where nothing else is to be set up: no infrastructure kind, the endpoint is told by the control plane",
        here: "The control plane tells its endpoint in spec.controlPlaneEndpoint; AzureManagedCluster repeats it",
        departs: Some(
            "AKS needs a resource group, so there is something to set up; and Clusters that name an AzureManagedCluster are everywhere. It also carries defaultPoolTemplate, which the control plane's kind has no place for without changing CAPZ's schema",
        ),
        shown_by: "a_cluster_lives, the_first_pool_comes_from_the_template_or_after_a_while_from_nobody",
    },
    Row {
        recommends: "The infrastructure kind may be left out of a Cluster where the control plane tells the endpoint",
        here: "Works: nothing of the control plane waits for an AzureManagedCluster",
        departs: None,
        shown_by: "the_first_pool_comes_from_where_it_is_described",
    },
    Row {
        recommends: "Control planes that run elsewhere say status.externalManagedControlPlane",
        here: "Always true",
        departs: None,
        shown_by: "versions_tell_the_truth_and_what_is_initialized_stays_so",
    },
    Row {
        recommends: "Managed groups of nodes are MachinePools",
        here: "AzureManagedMachinePool",
        departs: None,
        shown_by: "the_plan_of_a_pool",
    },
    Row {
        recommends: "A pool's bounds for the service's own autoscaler are in the provider's pool, and its count follows the service",
        here: "spec.scaling; the MachinePool is marked replicas-managed-by and carries AKS's count",
        departs: None,
        shown_by: "aks_scales_a_pool_and_its_machine_pool_follows",
    },
    Row {
        recommends: "The version of a pool is a field of the provider's pool (in the proposal's example)",
        here: "The MachinePool's spec.template.spec.version",
        departs: Some(
            "Cluster API has the field and its ClusterClass and upgrade planning write it there; a second one could only disagree",
        ),
        shown_by: "the_plan_of_a_pool, versions_are_never_fought",
    },
    Row {
        recommends: "The control plane exists before, and without, any node",
        here: "AKS is created together with its system pools",
        departs: Some(
            "AKS cannot exist without a node pool with a node in it. Nothing is called ready until AKS has answered; a first pool nobody described is adopted by the pool object that later asks for it",
        ),
        shown_by: "a_cluster_is_created_with_its_pools_in_order, the_first_pool_comes_from_the_template_or_after_a_while_from_nobody",
    },
    Row {
        recommends: "Pools are created and deleted independently of the control plane",
        here: "All but the last system pool, and the last node in it",
        departs: Some(
            "AKS refuses to be without one. The pool's object waits, with a condition that says for what, and goes with its Cluster",
        ),
        shown_by: "a_pool_goes_and_the_last_system_pool_waits_for_another, the_plan_of_a_pool",
    },
    Row {
        recommends: "ClusterClass works: templates for both kinds and for pools, immutability held back for dry runs",
        here: "Templates of all three kinds with metadata; dry runs of the topology controller pass",
        departs: None,
        shown_by: "topology_dry_runs_pass_immutability_and_nothing_else",
    },
    Row {
        recommends: "clusterctl is given one provider of each type (core, bootstrap, control plane, infrastructure)",
        here: "One infrastructure provider, which brings the control plane's kind as well; no bootstrap provider",
        departs: Some(
            "CAPZ's name and shape, so that clusterctl upgrades and moves as before. AKS bootstraps its nodes itself: a MachinePool says bootstrap.dataSecretName: \"\"",
        ),
        shown_by: "the_published_templates_are_let_in",
    },
    Row {
        recommends: "Add-ons of the service may be switched on or off, beside Cluster API's own add-on orchestration",
        here: "spec.addonProfiles and spec.extensions; Cluster API's are not touched",
        departs: None,
        shown_by: "fleet_extension_and_endpoint_come_and_go_with_the_spec",
    },
    Row {
        recommends: "Nodes that are not the service's own can join a managed cluster",
        here: "The Secret <cluster>-ca and, where the cluster is reached, its cluster-info serve kubeadm's join",
        departs: None,
        shown_by: "what_joining_nodes_need_is_there",
    },
];

#[test]
fn the_page_tells_every_departure_from_the_proposal() {
    super::check_evidence("proposal.md", ROWS.iter().map(|row| row.shown_by));
    let departures = ROWS.iter().filter(|row| row.departs.is_some()).count();
    let mut page = format!(
        "# Cluster API's proposal for managed Kubernetes\n\nRendered from `crates/aks/tests/graduation/proposal.rs`; a test keeps them equal, and checks that the tests it names are\n\
         there. The proposal is Cluster API's `docs/proposals/20220725-managed-kubernetes.md` with the contract that followed\n\
         it. {} recommendations, {departures} departures.\n\n## Departures\n",
        ROWS.len()
    );
    for row in ROWS {
        if let Some(why) = row.departs {
            let _ = write!(
                page,
                "\n**{}.**\nHere: {}.\nWhy: {why}.\nShown by `{}`.\n",
                row.recommends,
                row.here,
                row.shown_by.replace(", ", "`, `")
            );
        }
    }
    page.push_str("\n## Followed\n\n| the proposal | here | shown by |\n|---|---|---|\n");
    for row in ROWS.iter().filter(|row| row.departs.is_none()) {
        let _ = writeln!(
            page,
            "| {} | {} | `{}` |",
            row.recommends,
            row.here,
            row.shown_by.replace(", ", "`, `")
        );
    }
    crate::pages::check("proposal.md", &page);
}
