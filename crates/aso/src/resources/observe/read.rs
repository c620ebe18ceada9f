//! Reads of Secrets, ConfigMaps and objects of others beside the resources.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use secrecy::SecretString;
use serde_json::Value;
use slipway_azure::{ResourceId, reconcile::Error, resource::Need};
use slipway_runtime::ObjectKey;

use super::{Observer, SecretData};
use crate::{
    api::ResourceName,
    caches::Holder,
    inline::{Export, Inline, Lookup, Source, Store},
    resources::StoredExport,
};

impl<K: Holder> Observer<'_, K> {
    /// Reads the Secrets and ConfigMaps that a resource refers to.
    pub(super) async fn lookup<'s>(
        &mut self,
        inline: &Inline,
        subscription: &'s str,
    ) -> Result<Lookup<'s>, Error> {
        let mut lookup = Lookup {
            subscription,
            ..Lookup::default()
        };
        for need in inline.needs() {
            match need {
                Need::Secret { name, .. } | Need::SecretMap { name } => {
                    if let Some(data) = self.secret_data(name).await? {
                        lookup.secrets.insert(name.clone(), data);
                    }
                }
                Need::ConfigMap { name, .. } => {
                    if let Some(map) = self.config_map(name).await? {
                        lookup.configs.insert(name.clone(), map.data.unwrap_or_default());
                    }
                }
                Need::Owner(_) | Need::Resource(_) => {}
            }
        }
        Ok(lookup)
    }

    /// Gives a resource the name that a ConfigMap holds, where it says so.
    pub(super) async fn name_from_config(&self, manifest: &mut Value) -> Result<(), Error> {
        let spec = &manifest["spec"];
        let from = &spec["azureNameFromConfig"];
        let (Some(name), Some(key)) = (from["name"].as_str(), from["key"].as_str()) else {
            return Ok(());
        };
        if spec["azureName"].as_str().is_some_and(|name| !name.is_empty()) {
            return Ok(());
        }
        let map = self.config_map(name).await?;
        let found = map
            .and_then(|map| map.data?.remove(key))
            .filter(|name| !name.is_empty());
        if let Some(found) = found {
            manifest["spec"]["azureName"] = Value::String(found);
        }
        Ok(())
    }

    async fn secret_data(&self, name: &str) -> Result<Option<SecretData>, Error> {
        let key = ObjectKey::namespaced(&self.namespace, name);
        let derive = |secret: &Secret| {
            let data = secret.data.iter().flatten();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            data.map(|(key, value)| (key.clone(), SecretString::from(text(&value.0))))
                .collect::<SecretData>()
        };
        let found = self
            .sources
            .data
            .get(&key, &self.user, self.context, derive)
            .await;
        let found = found.map_err(Error::api(format!("reading Secret {name}")))?;
        Ok(found.as_deref().cloned())
    }

    pub(super) async fn config_map(&self, name: &str) -> Result<Option<ConfigMap>, Error> {
        Api::<ConfigMap>::namespaced(self.context.client.clone(), &self.namespace)
            .get_opt(name)
            .await
            .map_err(Error::api(format!("reading ConfigMap {name}")))
    }

    /// Looks for objects of a running Azure Service Operator that stand for the same resources.
    pub(super) async fn look_for_operator(&mut self) -> Result<(), Error> {
        if !self.sources.operators.is_installed(self.context).await? {
            return Ok(());
        }
        let kinds: BTreeSet<&str> = self
            .held
            .resources
            .iter()
            .map(|resource| resource.name.kind.as_str())
            .collect();
        let living = self.sources.takeover.living(&kinds, self.context).await?;
        for resource in &mut self.held.resources {
            let id = resource.id.as_ref().map(ResourceId::key);
            let ResourceName {
                group, kind, name, ..
            } = &resource.name;
            let object = ObjectKey::namespaced(&self.namespace, name);
            let key = (group.clone(), kind.clone(), name.clone());
            let own = self.held.operated.get(&key);
            let is_ours = own.is_some_and(|one| one.live.is_controlled_by(&self.held.metadata));
            if is_ours || resource.choice.is_operated() {
                continue;
            }
            resource.operated_by = living
                .iter()
                .find(|one| one.is(group, kind, &object, id))
                .map(|one| {
                    let holder = own.and_then(|own| own.live.other_controller(&self.held.metadata));
                    let holder = holder.map_or_else(String::new, |holder| format!(" for {holder}"));
                    format!("{one} of Azure Service Operator{holder}")
                });
        }
        Ok(())
    }

    /// Reads the Secrets and ConfigMaps that values go to.
    pub(super) async fn read_destinations(&mut self) -> Result<(), Error> {
        let exported = |export: &Export| (export.to.store, export.to.name.clone());
        let mut places: BTreeSet<(Store, String)> = self
            .held
            .resources
            .iter()
            .filter(|resource| {
                let id = resource.id.as_ref();
                id.is_some_and(|id| self.held.state(id).body().is_some())
            })
            .flat_map(|resource| {
                let expressed = resource.expressions.iter();
                let expressed = expressed.map(|one| (one.store, one.name.clone()));
                resource.exports.iter().map(exported).chain(expressed)
            })
            .collect();
        let beside = self.standing.secrets.iter();
        places.extend(beside.map(|name| (Store::Secret, name.clone())));
        for (store, name) in places {
            let found = match store {
                Store::Secret => {
                    let key = ObjectKey::namespaced(&self.namespace, &name);
                    let derive = StoredExport::of_secret;
                    let found = self
                        .sources
                        .stored
                        .get(&key, &self.user, self.context, derive)
                        .await;
                    let found = found.map_err(Error::api(format!("reading Secret {name}")))?;
                    found.as_deref().cloned()
                }
                Store::ConfigMap => {
                    let found = self.config_map(&name).await?;
                    found.as_ref().map(StoredExport::of_config_map)
                }
            };
            if let Some(found) = found {
                self.held.stored.insert((store, name), found);
            }
        }
        Ok(())
    }

    /// Reads the address of the network interface of a private endpoint, where it is exported.
    pub(super) async fn read_addresses(&mut self) {
        const NETWORK: &str = "2024-03-01";
        let mut pending = Vec::new();
        for resource in &self.held.resources {
            let Some(id) = &resource.id else { continue };
            let export = resource
                .exports
                .iter()
                .find(|one| one.source == Source::PrimaryAddress);
            let interface = self
                .held
                .state(id)
                .body()
                .and_then(|body| body.pointer("/properties/networkInterfaces/0/id")?.as_str());
            if let (Some(export), Some(interface)) = (export, interface)
                && let Ok(interface) = ResourceId::parse(interface)
            {
                pending.push((id.clone(), export.name.clone(), interface));
            }
        }
        for (id, name, interface) in pending {
            let Some(session) = self.engine.session(&id) else {
                continue;
            };
            let max_age = self.engine.max_age;
            let observed = session.arm.observe(&interface, NETWORK, max_age).await;
            let body = observed.ok().and_then(|observed| observed.body);
            let address = body.as_deref().and_then(|body| {
                let pointer = "/properties/ipConfigurations/0/properties/privateIPAddress";
                body.pointer(pointer)?.as_str().map(str::to_owned)
            });
            if let Some(address) = address {
                self.held.values.insert((id.key().to_owned(), name), address);
            }
        }
    }
}
