//! AzureASOManagedMachinePoolTemplate: what a ClusterClass makes AzureASOManagedMachinePools from.

pub mod api;
