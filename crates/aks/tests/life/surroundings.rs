//! What the sweep has to know of AKS.

use serde_json::Value;
use slipway_apiserver_sim::Kinds;
use slipway_kit::azure::{self, AzureProvider, Controllers};

use super::world::{controllers, kinds, unreachable};

const FINALIZER: &str = "azuremanagedcontrolplane.infrastructure.cluster.x-k8s.io";

pub struct Aks;

pub type Life = azure::Life<Aks>;

impl AzureProvider for Aks {
    const CONTROL_PLANE: &'static str = "AzureManagedControlPlane";
    const POOL: &'static str = "AzureManagedMachinePool";

    fn kinds() -> &'static Kinds {
        kinds()
    }

    fn controllers() -> Controllers {
        controllers(unreachable())
    }

    fn orphan<'a>(objects: &[Value], there: &[&'a str]) -> Option<&'a str> {
        let held = objects.iter().any(|object| {
            object["kind"] == Self::CONTROL_PLANE
                && object["metadata"]["finalizers"]
                    .as_array()
                    .is_some_and(|list| list.iter().any(|one| one == FINALIZER))
        });
        there.first().copied().filter(|_| !held)
    }

    fn has_endpoint(plane: &Value) -> bool {
        !plane["spec"]["controlPlaneEndpoint"].is_null()
    }
}
