//! What the sweep has to know of inline resources.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use http::Method;
use serde_json::Value;
use slipway_apiserver_sim::Kinds;
use slipway_azure::reconcile::records;
use slipway_azure_sim::Request;
use slipway_kit::azure::{self, AzureProvider, Controllers, Sender};

use super::{
    operator::{Ask, FakeOperator},
    world::{controllers, kinds, kinds_with_operator, unreachable},
};

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

/// The same beside an Azure Service Operator.
pub struct Operated;

pub type OperatedLife = azure::Life<Operated>;

impl AzureProvider for Operated {
    const CONTROL_PLANE: &'static str = Aso::CONTROL_PLANE;
    const POOL: &'static str = Aso::POOL;

    fn kinds() -> &'static Kinds {
        kinds_with_operator()
    }

    fn controllers() -> Controllers {
        Aso::controllers()
    }

    fn orphan<'a>(objects: &[Value], there: &[&'a str]) -> Option<&'a str> {
        Aso::orphan(objects, there)
    }

    fn has_endpoint(control_plane: &Value) -> bool {
        Aso::has_endpoint(control_plane)
    }

    fn beside(life: &Arc<OperatedLife>) -> BoxFuture<'static, ()> {
        let server = life.server().clone();
        let life = Arc::downgrade(life);
        let ask: Ask = Arc::new(move |request| {
            let life = life.upgrade().expect("a world in which somebody asks");
            life.answer(request)
        });
        FakeOperator::new(server, ask).run().boxed()
    }

    /// There is never more than one writer: the operator writes what is noted as its own, and nobody else does while its object is
    /// there and not quiet.
    fn objection(objects: &[Value], request: &Request, by: Sender) -> Option<String> {
        let id = request.path.to_ascii_lowercase();
        let annotation = |object: &Value, name: &str| {
            object["metadata"]["annotations"][name]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        if by == Sender::Controllers {
            let theirs = objects.iter().find(|object| {
                annotation(object, "serviceoperator.azure.com/resource-id").to_ascii_lowercase() == id
                    && annotation(object, "serviceoperator.azure.com/reconcile-policy") != "skip"
            });
            return theirs.map(|object| format!("the operator writes it for {}", object["metadata"]["name"]));
        }
        let is_noted = objects.iter().any(|object| {
            let record = annotation(object, records::ANNOTATION);
            let record: Value = serde_json::from_str(&record).unwrap_or_default();
            record[&id]["notes"]["engine"] == "aso"
        });
        // A holder that is gone took its record along; the operator's objects went before it.
        (!is_noted && request.method == Method::PUT).then(|| "it is not noted as the operator's".to_owned())
    }
}
