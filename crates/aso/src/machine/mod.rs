//! AzureASOManagedMachine: one VM of a node pool, where machines are switched on. What it does is every AKS provider's, in
//! `slipway_azure::machine`.

pub mod api;

use slipway_azure::machine::{self, Board, PoolMachine};
use slipway_runtime::controller::Registration;

use crate::api::{AzureASOManagedMachine, AzureASOManagedMachinePool, AzureASOManagedMachineSpec};

impl PoolMachine for AzureASOManagedMachine {
    type Pool = AzureASOManagedMachinePool;

    const FINALIZER: &'static str = "azureasomanagedmachine.infrastructure.cluster.x-k8s.io";
    const CONTROLLER: &'static str = "azureasomanagedmachine";

    fn showing(name: &str, provider_id: &str) -> Self {
        let spec = AzureASOManagedMachineSpec {
            provider_id: Some(provider_id.to_owned()),
        };
        Self::new(name, spec)
    }

    fn provider_id(&self) -> &str {
        self.spec.provider_id.as_deref().unwrap_or_default()
    }
}

pub fn registration(board: &Board) -> Registration {
    machine::registration::<AzureASOManagedMachine>(board)
}
