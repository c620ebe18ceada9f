//! Updates in place through Cluster API's hooks: the question to the update extension, and the writes that start an
//! update, in KubeadmControlPlane's order.

use kube::api::ApiResource;
use serde_json::{Map, Value};
use slipway_capi::{
    hook::{
        CAN_UPDATE_MACHINE, coverage,
        prepare::{self, Prepared},
        registry,
        types::MachineObjects,
    },
    in_place::{
        self, Resources,
        objects::{self, Changes},
    },
    owner, reference,
};

use super::{
    super::observed::InPlaceAnswer,
    Executor,
    create::{MANAGERS, propagated},
};
use crate::{api::KThreesConfig, error::Error};

/// A machine's objects as they are and as they should be.
struct Update {
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
        let update = self.update(machine).await?;
        let prepared = prepare::can_update_machine(
            client,
            MANAGERS,
            &update.resources,
            &update.current,
            &update.desired,
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
        let update = self.update(machine).await?;
        let Some(present) = self.snapshot.machines.get(machine) else {
            return Ok(());
        };
        let writes = in_place::trigger(&present.metadata, &update.desired, MANAGERS);
        in_place::perform(
            &self.context.client,
            &update.resources,
            &present.metadata,
            &writes,
        )
        .await?;
        Ok(())
    }

    async fn update(&self, name: &str) -> Result<Update, Error> {
        let unusable = |problem: String| Error::Unusable {
            doing: format!("preparing the update of Machine {name}"),
            problem,
        };
        let machine = self
            .snapshot
            .machines
            .get(name)
            .ok_or_else(|| unusable("it does not exist any more".into()))?;
        let client = &self.context.client;
        let config = ApiResource::erase::<KThreesConfig>(&());
        let (resources, current) = objects::read(client, machine, config).await?;
        let template = &self.snapshot.template;
        let source = reference::get(client, &self.namespace(), template)
            .await?
            .ok_or_else(|| unusable(format!("template {} does not exist", template.name)))?;
        let mut fields: Map<String, Value> = propagated(&self.object.spec.machines())
            .into_iter()
            .map(|(field, value)| (field.to_owned(), value))
            .collect();
        fields.insert("version".to_owned(), self.object.spec.version.clone().into());
        let changes = Changes {
            controller: owner::controller_reference(self.object),
            machine: fields,
            bootstrap_config: serde_json::to_value(&self.snapshot.config).unwrap_or_default(),
            infrastructure_template: &serde_json::to_value(&source).unwrap_or_default(),
        };
        let desired = objects::desired(&current, &changes);
        Ok(Update {
            resources,
            current,
            desired,
        })
    }
}
