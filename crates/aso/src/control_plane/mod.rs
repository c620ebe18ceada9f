//! AzureASOManagedControlPlane: an AKS cluster as inline Azure resources.

pub mod api;
