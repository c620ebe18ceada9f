//! What an AKS cluster's own Kubernetes needs from us and tells us: kubeconfig Secrets and their tokens, what foreign
//! nodes need to join, and the nodes of its pools.

pub mod cluster_info;
pub mod joining;
pub mod kubeconfig;
pub mod machines;
pub mod nodes;
pub mod stored;
