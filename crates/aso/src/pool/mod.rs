//! AzureASOManagedMachinePool: a node pool of an AKS cluster as inline Azure resources.

pub mod api;
