//! Reads of the operator's objects: those of the resources in the spec, and those that are left of others.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use slipway_azure::reconcile::Error;
use slipway_runtime::Context;

use super::{Key, Operators, choice::Standing, object::OperatedObject};
use crate::api::ResourceName;

/// An object of the operator that is there.
#[derive(Clone, Debug)]
pub struct Operated {
    pub name: ResourceName,
    pub api: ApiResource,
    pub live: OperatedObject,
}

impl Operated {
    pub fn new(name: ResourceName, api: ApiResource, object: DynamicObject) -> Self {
        Self {
            name,
            api,
            live: OperatedObject(object),
        }
    }

    pub fn key(&self) -> Key {
        key(&self.name)
    }

    /// How it is called in messages.
    pub fn display(&self) -> String {
        format!("{} {}", self.name.kind, self.name.name)
    }
}

/// What a resource is known by among the operator's objects.
pub fn key(name: &ResourceName) -> Key {
    (name.group.clone(), name.kind.clone(), name.name.clone())
}

/// Where to look.
pub struct Look<'a> {
    pub namespace: &'a str,
    pub operators: &'a Operators,
    pub context: &'a Context,
}

impl Look<'_> {
    /// How the operator stands to a kind, and its object of this name.
    pub async fn at(&self, name: &ResourceName) -> Result<(Standing, Option<Operated>), Error> {
        let (standing, api) = self.kind(name).await?;
        let Some(api) = api else {
            return Ok((standing, None));
        };
        let objects: Api<DynamicObject> =
            Api::namespaced_with(self.context.client.clone(), self.namespace, &api);
        let found = match objects.get_opt(&name.name).await {
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Ok((Standing::Forbidden(name.group.clone()), None));
            }
            other => other.map_err(Error::api(format!("reading {} {}", name.kind, name.name)))?,
        };
        let found = found.map(|object| Operated {
            name: name.clone(),
            api,
            live: OperatedObject(object),
        });
        Ok((standing, found))
    }

    /// How the operator stands to a kind, and where its objects are.
    pub async fn kind(&self, name: &ResourceName) -> Result<(Standing, Option<ApiResource>), Error> {
        let (operators, context) = (self.operators, self.context);
        let found = operators.definition(&name.group, &name.kind, context).await?;
        let Some(definition) = found else {
            return Ok((Standing::NotInstalled, None));
        };
        let api = definition.resource(&name.group, &name.kind, &name.version);
        let standing = if name.version.is_empty() || definition.serves(&name.version) {
            operators.standing(context).await?
        } else {
            Standing::VersionNotServed(name.version.clone())
        };
        Ok((standing, Some(api)))
    }

    /// The objects of a kind that a holder controls.
    pub async fn all(&self, of: &ResourceName, holder: &ObjectMeta) -> Result<Vec<Operated>, Error> {
        let (_, Some(api)) = self.kind(of).await? else {
            return Ok(Vec::new());
        };
        let objects: Api<DynamicObject> =
            Api::namespaced_with(self.context.client.clone(), self.namespace, &api);
        let listed = objects.list(&ListParams::default()).await;
        let listed = listed.map_err(Error::api(format!(
            "listing {} of Azure Service Operator",
            of.kind
        )))?;
        let named = |object: DynamicObject| Operated {
            name: ResourceName {
                name: object.name_any(),
                ..of.clone()
            },
            api: api.clone(),
            live: OperatedObject(object),
        };
        let found = listed.items.into_iter().map(named);
        Ok(found.filter(|one| one.live.is_controlled_by(holder)).collect())
    }
}
