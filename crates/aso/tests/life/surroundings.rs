//! What the sweep has to know of inline resources.

use serde_json::Value;
use slipway_apiserver_sim::Kinds;
use slipway_azure::reconcile::records;
use slipway_kit::azure::{self, AzureProvider, Controllers};

use super::world::{controllers, kinds, unreachable};

pub struct Aso;

pub type Life = azure::Life<Aso>;

impl AzureProvider for Aso {
    const CONTROL_PLANE: &'static str = "AzureASOManagedControlPlane";
    const POOL: &'static str = "AzureASOManagedMachinePool";

    fn kinds() -> &'static Kinds {
        kinds()
    }

    fn controllers() -> Controllers {
        controllers(unreachable())
    }

    /// Each resource is in a record of its own. Node pools, nodes and what AKS makes for itself go with the cluster.
    fn orphan<'a>(objects: &[Value], there: &[&'a str]) -> Option<&'a str> {
        let held: Vec<&str> = objects
            .iter()
            .filter(|object| {
                let kind = object["kind"].as_str();
                kind.is_some_and(|kind| kind.starts_with("AzureASO"))
                    && !object["metadata"]["finalizers"].is_null()
            })
            .filter_map(|object| object["metadata"]["annotations"][records::ANNOTATION].as_str())
            .collect();
        let is_held = |id: &str| {
            let of_cluster = id.split_once("/managedclusters/").map(|(before, after)| {
                let name = after.split('/').next().unwrap_or_default();
                format!("{before}/managedclusters/{name}")
            });
            let id = of_cluster.as_deref().unwrap_or(id);
            held.iter().any(|record| record.contains(&format!("\"{id}\"")))
        };
        let mut ours = there.iter().filter(|id| !id.contains("/resourcegroups/mc_"));
        ours.find(|id| !is_held(id)).copied()
    }

    fn has_endpoint(control_plane: &Value) -> bool {
        !control_plane["status"]["controlPlaneEndpoint"].is_null()
    }
}
