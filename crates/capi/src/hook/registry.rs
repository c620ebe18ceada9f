//! Which extension handles a hook. We only read ExtensionConfigs: Cluster API's core discovers the handlers and
//! writes them into the status; one that it has not discovered at its current generation is not used.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::ListParams,
    core::{Selector, SelectorExt},
};

use super::{GROUP, HookError};
use crate::{
    Error,
    names::condition,
    owner,
    view::{ClientConfig, Conditions, ExtensionConfig, FailurePolicy},
};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// One handler of one extension.
#[derive(Clone, Debug)]
pub struct Registration {
    /// `<handler>.<ExtensionConfig>`.
    pub name: String,
    pub config: String,
    pub hook: String,
    /// The version of the hook that the extension speaks.
    pub version: String,
    pub namespaces: Selector,
    pub client_config: ClientConfig,
    pub timeout: Duration,
    pub failure_policy: FailurePolicy,
    pub settings: BTreeMap<String, String>,
}

impl Registration {
    /// The handler's name as the extension knows it.
    pub fn handler(&self) -> &str {
        self.name
            .strip_suffix(&self.config)
            .and_then(|name| name.strip_suffix('.'))
            .unwrap_or(&self.name)
    }
}

/// All handlers that can be called now.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    registrations: Vec<Registration>,
    /// ExtensionConfigs that are not used, and why.
    pub unused: BTreeMap<String, String>,
}

impl Registry {
    pub fn new<'a>(configs: impl IntoIterator<Item = &'a ExtensionConfig>) -> Self {
        let mut registry = Self::default();
        for config in configs {
            let name = config.metadata.name.clone().unwrap_or_default();
            match registrations(&name, config) {
                Ok(found) => registry.registrations.extend(found),
                Err(reason) => {
                    registry.unused.insert(name, reason);
                }
            }
        }
        registry
            .registrations
            .sort_by(|left, right| left.name.cmp(&right.name));
        registry
    }

    /// The handlers of a hook for objects in a namespace with these labels.
    pub fn handlers(&self, hook: &str, namespace_labels: &BTreeMap<String, String>) -> Vec<&Registration> {
        self.registrations
            .iter()
            .filter(|registration| {
                registration.hook == hook && registration.namespaces.matches(namespace_labels)
            })
            .collect()
    }

    /// The one handler of a hook, if there is any. Cluster API takes two for a mistake, and so do we.
    pub fn handler(
        &self,
        hook: &str,
        namespace_labels: &BTreeMap<String, String>,
    ) -> Result<Option<&Registration>, HookError> {
        match self.handlers(hook, namespace_labels).as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            many => Err(HookError::TooManyHandlers {
                hook: hook.to_owned(),
                handlers: many
                    .iter()
                    .map(|registration| registration.name.clone())
                    .collect(),
            }),
        }
    }
}

/// The registry as it is now. A controller that asks often keeps an informer of ExtensionConfigs instead.
pub async fn load(client: &Client) -> Result<Registry, Error> {
    let configs = Api::<ExtensionConfig>::all(client.clone())
        .list(&ListParams::default())
        .await
        .map_err(Error::api("listing ExtensionConfigs"))?;
    Ok(Registry::new(&configs.items))
}

/// The labels by which extensions select a namespace.
pub async fn namespace_labels(client: &Client, namespace: &str) -> Result<BTreeMap<String, String>, Error> {
    let found = Api::<Namespace>::all(client.clone())
        .get_metadata(namespace)
        .await
        .map_err(Error::api(format!("reading Namespace {namespace}")))?;
    Ok(found.metadata.labels.unwrap_or_default())
}

fn registrations(name: &str, config: &ExtensionConfig) -> Result<Vec<Registration>, String> {
    usable(config)?;
    let namespaces: Selector = config
        .spec
        .namespace_selector
        .clone()
        .unwrap_or_default()
        .try_into()
        .map_err(|error| format!("its namespaceSelector cannot be read: {error}"))?;
    Ok(config
        .status
        .handlers
        .iter()
        .filter(|handler| owner::group_of(&handler.request_hook.api_version) == GROUP)
        .map(|handler| Registration {
            name: handler.name.clone(),
            config: name.to_owned(),
            hook: handler.request_hook.hook.clone(),
            version: handler
                .request_hook
                .api_version
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned(),
            namespaces: namespaces.clone(),
            client_config: config.spec.client_config.clone(),
            timeout: match u64::try_from(handler.timeout_seconds) {
                Ok(seconds @ 1..) => Duration::from_secs(seconds),
                _ => DEFAULT_TIMEOUT,
            },
            failure_policy: handler.failure_policy,
            settings: config.spec.settings.clone(),
        })
        .collect())
}

/// The rules by which Cluster API's own control plane provider decides.
fn usable(config: &ExtensionConfig) -> Result<(), String> {
    if config
        .spec
        .client_config
        .ca_bundle
        .as_ref()
        .is_none_or(String::is_empty)
    {
        return Err("caBundle is not set".to_owned());
    }
    let discovered = config
        .condition(condition::DISCOVERED)
        .ok_or_else(|| "the Discovered condition is not yet set".to_owned())?;
    if discovered.status != "True" {
        return Err(format!(
            "the Discovered condition must have status: True (instead it has: {})",
            discovered.status
        ));
    }
    let observed = discovered.observed_generation.unwrap_or_default();
    let generation = config.metadata.generation.unwrap_or_default();
    if observed != generation {
        return Err(format!(
            "the Discovered condition must have observedGeneration: {generation} (instead it has: {observed})"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn config(name: &str, change: impl FnOnce(&mut Value)) -> ExtensionConfig {
        let mut object = json!({
            "metadata": {"name": name, "generation": 2},
            "spec": {"clientConfig": {"url": "https://ext:9443", "caBundle": "QQ=="}, "settings": {"a": "b"}},
            "status": {
                "conditions": [{"type": "Discovered", "status": "True", "reason": "Discovered", "message": "",
                    "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "handlers": [
                    {"name": format!("update.{name}"), "timeoutSeconds": 7, "failurePolicy": "Ignore",
                        "requestHook": {"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "hook": "UpdateMachine"}},
                    {"name": format!("other.{name}"),
                        "requestHook": {"apiVersion": "elsewhere.dev/v1", "hook": "UpdateMachine"}},
                ],
            },
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_discovered_handler_is_found_with_its_settings() {
        let config = config("edge", |_| {});
        let registry = Registry::new([&config]);
        let handler = registry
            .handler("UpdateMachine", &BTreeMap::new())
            .unwrap()
            .unwrap();
        assert_eq!(handler.name, "update.edge");
        assert_eq!(handler.handler(), "update");
        assert_eq!(handler.version, "v1alpha1");
        assert_eq!(handler.timeout, Duration::from_secs(7));
        assert_eq!(handler.failure_policy, FailurePolicy::Ignore);
        assert_eq!(handler.settings["a"], "b");
        assert!(
            registry
                .handler("CanUpdateMachine", &BTreeMap::new())
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn namespaces_are_selected_by_their_labels() {
        let config = config("edge", |object| {
            object["spec"]["namespaceSelector"] =
                json!({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["edge"]}]});
        });
        let registry = Registry::new([&config]);
        let labels = |value: &str| [("tier".to_owned(), value.to_owned())].into();
        assert_eq!(registry.handlers("UpdateMachine", &labels("edge")).len(), 1);
        assert_eq!(registry.handlers("UpdateMachine", &labels("cloud")).len(), 0);
        assert_eq!(registry.handlers("UpdateMachine", &BTreeMap::new()).len(), 0);
    }

    #[test]
    fn two_handlers_are_an_error_that_names_both() {
        let (second, first) = (config("b", |_| {}), config("a", |_| {}));
        let registry = Registry::new([&second, &first]);
        assert_eq!(
            registry
                .handler("UpdateMachine", &BTreeMap::new())
                .unwrap_err()
                .to_string(),
            "found multiple UpdateMachine hooks (update.a,update.b): only one hook is supported"
        );
    }

    #[test]
    fn a_config_that_core_has_not_discovered_is_not_used_and_says_why() {
        type Edit = fn(&mut Value);
        let cases: [(Edit, &str); 4] = [
            (
                |object| object["spec"]["clientConfig"]["caBundle"] = json!(null),
                "caBundle is not set",
            ),
            (|object| object["status"]["conditions"] = json!([]), "not yet set"),
            (
                |object| object["status"]["conditions"][0]["status"] = json!("False"),
                "must have status: True (instead it has: False)",
            ),
            (
                |object| object["metadata"]["generation"] = json!(3),
                "must have observedGeneration: 3 (instead it has: 2)",
            ),
        ];
        for (change, expected) in cases {
            let config = config("edge", change);
            let registry = Registry::new([&config]);
            assert!(registry.handlers("UpdateMachine", &BTreeMap::new()).is_empty());
            assert!(
                registry.unused["edge"].contains(expected),
                "{:?}",
                registry.unused
            );
        }
    }
}
