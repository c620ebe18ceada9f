//! Stories: a user's journey from manifest to working cluster and back to nothing, with Cluster API and kwok as real
//! processes. One file a story; each keeps to its own namespace.

mod aks_changes;
mod aks_clusters;
mod aks_features;
mod aks_handover;
mod aks_joining;
mod aks_manager;
mod aks_pools;
mod aks_takeover;
mod aks_templates;
mod aks_world;
mod azure_upstream;
mod clusterctl;
mod clusterctl_repository;
mod guides;
mod helm;
mod helm_chart;
mod installed_guides;
mod k3s_class;
mod k3s_fleet;
mod k3s_healing;
mod k3s_lifecycle;
mod k3s_manager;
mod k3s_move;
mod k3s_takeover;
mod packaged_manager;
mod real_k3s;
mod real_k3s_quorum;
mod real_k3s_reading;
mod real_k3s_unkind;
mod stock_kubeadm_control_plane;
mod stock_machine_deployment;
mod support;
mod toy_provider;
mod up;
mod upstream_world;
