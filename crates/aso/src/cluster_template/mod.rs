//! AzureASOManagedClusterTemplate: what a ClusterClass makes AzureASOManagedClusters from.

pub mod api;
