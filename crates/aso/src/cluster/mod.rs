//! AzureASOManagedCluster: the infrastructure of a Cluster beside its AKS cluster, as inline Azure resources.

pub mod api;
