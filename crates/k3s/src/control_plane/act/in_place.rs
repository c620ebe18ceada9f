//! Updates in place through Cluster API's hooks: the question to the update extension, and the writes that start an
//! update, in KubeadmControlPlane's order.

use kube::{
    Api,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};
use slipway_capi::{
    hook::{
        CAN_UPDATE_MACHINE, coverage,
        prepare::{self, Prepared},
        registry,
        types::MachineObjects,
    },
    in_place::{self, Desired, Resources},
    names::annotation,
    owner, reference, template,
    view::Machine,
};

use super::{
    super::observed::InPlaceAnswer,
    Executor,
    create::{MANAGERS, propagated},
};
use crate::{api::KThreesConfig, error::Error};

/// A machine's objects as they are and as they should be.
struct Change {
    resources: Resources,
    current: MachineObjects,
    desired: MachineObjects,
}

impl Executor<'_> {
    /// Whether the update extension can bring the machine up to date. Its failure is an answer too.
    pub async fn ask_in_place(&self, machine: &str) -> Result<InPlaceAnswer, Error> {
        let namespace = self.object.metadata.namespace.clone().unwrap_or_default();
        let client = &self.context.client;
        let registry = match registry::load(client).await {
            Ok(registry) => registry,
            // Without the kind there is no extension.
            Err(slipway_capi::Error::Api {
                source: kube::Error::Api(status),
                ..
            }) if status.code == 404 => return Ok(InPlaceAnswer::Nobody),
            Err(error) => return Err(error.into()),
        };
        let labels = registry::namespace_labels(client, &namespace).await?;
        let handler = match registry.handler(CAN_UPDATE_MACHINE, &labels) {
            Ok(Some(handler)) => handler,
            Ok(None) => return Ok(InPlaceAnswer::Nobody),
            Err(error) => return Ok(InPlaceAnswer::Failed(error.to_string())),
        };
        let change = self.change(machine).await?;
        let prepared = prepare::can_update_machine(
            client,
            MANAGERS,
            &change.resources,
            &change.current,
            &change.desired,
        )
        .await?;
        let request = match prepared {
            Prepared::Cannot(why) => return Ok(InPlaceAnswer::Cannot(vec![why])),
            Prepared::Ask(request) => request,
        };
        let response = match self.hooks.call(handler, request.as_ref()).await {
            Ok(response) => response,
            Err(error) => return Ok(InPlaceAnswer::Failed(error.to_string())),
        };
        match coverage::uncovered_of_machine(&handler.name, &request, &response) {
            Err(error) => Ok(InPlaceAnswer::Failed(error.to_string())),
            Ok(left) if left.is_empty() => Ok(InPlaceAnswer::Can),
            Ok(left) => Ok(InPlaceAnswer::Cannot(
                left.iter().map(ToString::to_string).collect(),
            )),
        }
    }

    /// Starts an update, or carries a half-started one on.
    pub async fn update_in_place(&self, machine: &str) -> Result<(), Error> {
        let change = self.change(machine).await?;
        let Some(present) = self.snapshot.machines.get(machine) else {
            return Ok(());
        };
        let steps = in_place::trigger(
            &present.metadata,
            &Desired {
                machine: &change.desired.machine,
                infrastructure_machine: &change.desired.infrastructure_machine,
                bootstrap_config: change.desired.bootstrap_config.as_ref(),
            },
            MANAGERS,
        );
        in_place::perform(&self.context.client, &change.resources, &present.metadata, &steps).await?;
        self.context.events.normal(
            self.object,
            "SuccessfulStartInPlaceUpdate",
            "Update",
            format!("Machine {machine} starts in-place update"),
        );
        Ok(())
    }

    async fn change(&self, name: &str) -> Result<Change, Error> {
        let namespace = self.object.metadata.namespace.clone().unwrap_or_default();
        let unusable = |problem: String| Error::Unusable {
            doing: format!("preparing the update of Machine {name}"),
            problem,
        };
        let machine = self
            .snapshot
            .machines
            .get(name)
            .ok_or_else(|| unusable("it does not exist any more".into()))?;
        let machine_resource = ApiResource::erase::<Machine>(&());
        let config_resource = ApiResource::erase::<KThreesConfig>(&());
        let config_name = machine
            .spec
            .bootstrap
            .config_ref
            .as_ref()
            .map(|reference| reference.name.clone())
            .unwrap_or_default();
        let (host_resource, _) =
            reference::resolve(&self.context.client, &machine.spec.infrastructure_ref).await?;
        let read = |resource: ApiResource, name: String| {
            let namespace = namespace.clone();
            let client = self.context.client.clone();
            async move {
                let found = Api::<DynamicObject>::namespaced_with(client, &namespace, &resource)
                    .get(&name)
                    .await
                    .map_err(Error::api(format!("reading {} {name}", resource.kind)))?;
                let mut value = serde_json::to_value(&found).unwrap_or_default();
                value["apiVersion"] = resource.api_version.clone().into();
                value["kind"] = resource.kind.clone().into();
                Ok::<Value, Error>(value)
            }
        };
        let current_machine = read(machine_resource.clone(), name.to_owned()).await?;
        let current_config = read(config_resource.clone(), config_name.clone()).await?;
        let current_host = read(
            host_resource.clone(),
            machine.spec.infrastructure_ref.name.clone(),
        )
        .await?;

        let mut desired_machine = named(&current_machine);
        // Only what is ours to say: what core wrote into the spec stays core's.
        desired_machine["spec"] = json!({
            "clusterName": current_machine["spec"]["clusterName"],
            "bootstrap": {"configRef": current_machine["spec"]["bootstrap"]["configRef"]},
            "infrastructureRef": current_machine["spec"]["infrastructureRef"],
            "version": self.object.spec.version,
        });
        if let Some(domain) = current_machine["spec"].get("failureDomain") {
            desired_machine["spec"]["failureDomain"] = domain.clone();
        }
        for (field, value) in propagated(&self.object.spec.machines()) {
            desired_machine["spec"][field] = value;
        }
        if let Some(controller) = owner::controller_reference(self.object) {
            desired_machine["metadata"]["ownerReferences"] = json!([controller]);
        }
        let mut desired_config = named(&current_config);
        desired_config["spec"] = serde_json::to_value(&self.snapshot.config).unwrap_or_default();
        let source = reference::get(&self.context.client, &namespace, &self.snapshot.template)
            .await?
            .ok_or_else(|| unusable(format!("template {} does not exist", self.snapshot.template.name)))?;
        let mut desired_host = named(&current_host);
        desired_host["spec"] = source.data["spec"]["template"]["spec"].clone();
        // What the host's own controller has put into its spec stays.
        if let Some(id) = current_host["spec"].get("providerID") {
            desired_host["spec"]["providerID"] = id.clone();
        }
        let kind = template::group_kind(
            &format!("{}/v1", self.snapshot.template.api_group),
            &self.snapshot.template.kind,
        );
        desired_host["metadata"]["annotations"] = json!({
            annotation::CLONED_FROM_NAME: self.snapshot.template.name,
            annotation::CLONED_FROM_GROUP_KIND: kind,
        });
        Ok(Change {
            resources: Resources {
                machine: machine_resource,
                infrastructure_machine: host_resource,
                bootstrap_config: Some(config_resource),
            },
            current: MachineObjects {
                machine: current_machine,
                infrastructure_machine: current_host,
                bootstrap_config: Some(current_config),
            },
            desired: MachineObjects {
                machine: desired_machine,
                infrastructure_machine: desired_host,
                bootstrap_config: Some(desired_config),
            },
        })
    }
}

/// The same object with nothing but its name. The uid keeps an apply from making one anew that was deleted meanwhile.
fn named(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
    })
}
