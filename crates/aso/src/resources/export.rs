//! What of inline resources goes to Secrets and ConfigMaps now. A destination that another controls is left alone, and told.
//! Pure.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use slipway_azure::{
    ResourceId,
    reconcile::planning::{OWNER_CHECK, later},
    resource::from_arm,
    workload::{
        kubeconfig::{self, KubeconfigKind},
        stored::{StoredSecret, Verdict},
    },
};
use slipway_capi::{frame::Plan, owner};

use super::{
    Action, Held, Resource,
    fetched::{Fetch, credentials, is_key},
    labels::relabelled,
};
use crate::inline::{Credential, Destination, Expression, Labelling, Source, Store, Texts};

/// The reason of Azure Service Operator for values that cannot be written.
pub const NOT_WRITTEN: &str = "FailedWritingAdditionalKubernetesObjects";

/// A Secret or ConfigMap that values go to, as it is stored: enough to judge it, and nothing of what is in it.
#[derive(Clone, Debug, Default)]
pub struct StoredExport {
    pub metadata: ObjectMeta,
    digests: BTreeMap<String, [u8; 32]>,
    /// The kubeconfigs in it, by key.
    kubeconfigs: BTreeMap<String, StoredSecret>,
    /// As a Secret with a CA.
    ca: StoredSecret,
}

fn digest(value: &[u8]) -> [u8; 32] {
    Sha256::digest(value).into()
}

fn about(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        managed_fields: None,
        ..metadata.clone()
    }
}

impl StoredExport {
    pub fn of_secret(secret: &Secret) -> Self {
        let data = secret.data.iter().flatten();
        Self {
            metadata: about(&secret.metadata),
            digests: data
                .clone()
                .map(|(key, value)| (key.clone(), digest(&value.0)))
                .collect(),
            kubeconfigs: data
                .map(|(key, _)| (key.clone(), StoredSecret::kubeconfig_under(secret, key)))
                .collect(),
            ca: StoredSecret::ca(secret),
        }
    }

    pub fn of_config_map(map: &ConfigMap) -> Self {
        let data = map.data.iter().flatten();
        Self {
            metadata: about(&map.metadata),
            digests: data
                .map(|(key, value)| (key.clone(), digest(value.as_bytes())))
                .collect(),
            ..Self::default()
        }
    }

    /// As a Secret with a CA.
    pub fn ca(&self) -> StoredSecret {
        self.ca.clone()
    }

    pub(super) fn has(&self, key: &str, value: &str) -> bool {
        self.digests.get(key) == Some(&digest(value.as_bytes()))
    }

    /// The digest of what a key holds.
    pub fn digest(&self, key: &str) -> Option<&[u8; 32]> {
        self.digests.get(key)
    }

    /// The same with other values under these keys.
    pub fn with(&self, values: &BTreeMap<String, String>) -> Self {
        let mut changed = self.clone();
        let digests = values
            .iter()
            .map(|(key, value)| (key.clone(), digest(value.as_bytes())));
        changed.digests.extend(digests);
        changed
    }

    /// The kubeconfig under a key; a key that is not there holds none that can be read.
    pub fn kubeconfig(&self, key: &str) -> StoredSecret {
        self.kubeconfigs
            .get(key)
            .cloned()
            .unwrap_or_else(|| StoredSecret {
                metadata: self.metadata.clone(),
                type_: self.kubeconfigs.values().next().and_then(|one| one.type_.clone()),
                ..StoredSecret::default()
            })
    }
}

/// The CA of an AKS cluster, for its Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ca {
    pub name: String,
    pub pem: Vec<u8>,
    /// What is stored cannot be changed: it is deleted and created.
    pub replace: bool,
}

impl fmt::Display for Ca {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.replace { "replace" } else { "write" };
        write!(formatter, "{verb} the CA in Secret {}", self.name)
    }
}

/// Values for one Secret or ConfigMap.
#[derive(Clone)]
pub struct Values {
    pub store: Store,
    pub name: String,
    pub values: BTreeMap<String, SecretString>,
    /// What of its labels and annotations is another, as a patch of its metadata.
    pub metadata: Option<Value>,
    /// Whether there is none yet.
    pub is_new: bool,
}

/// What is to be in one Secret or ConfigMap.
#[derive(Default)]
struct Contents {
    values: BTreeMap<String, String>,
    labelling: Labelling,
}

impl fmt::Debug for Values {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for Values {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<&str> = self.values.keys().map(String::as_str).collect();
        let store = self.store.kind();
        if keys.is_empty() {
            return write!(formatter, "label {store} {}", self.name);
        }
        write!(formatter, "write {} to {store} {}", keys.join(", "), self.name)
    }
}

/// A kubeconfig for one key of one Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubeconfig {
    /// The resource that hands it out.
    pub id: ResourceId,
    pub api_version: String,
    pub credential: Credential,
    /// With a token in place of what signs in, because nobody signs in without Entra.
    pub with_token: bool,
    /// The API server it is for.
    pub endpoint: String,
    pub name: String,
    pub key: String,
    /// What is stored cannot be changed: it is deleted and created.
    pub replace: bool,
}

impl Kubeconfig {
    /// Which kubeconfig of an AKS cluster it is.
    pub fn kind(&self) -> KubeconfigKind {
        match self.credential {
            Credential::Administrator => KubeconfigKind::Administrator,
            Credential::User | Credential::Fleet if self.with_token => KubeconfigKind::Administrator,
            Credential::User | Credential::Fleet => KubeconfigKind::User,
        }
    }
}

impl fmt::Display for Kubeconfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.replace { "replace" } else { "write" };
        write!(
            formatter,
            "{verb} the kubeconfig in key {} of Secret {}",
            self.key, self.name
        )
    }
}

/// What is to be done about one destination.
pub enum Outgoing {
    Values(Values, String),
    Kubeconfig(Kubeconfig, &'static str),
    /// Azure has to be asked for what an expression gives.
    Fetch(Box<Fetch>, &'static str),
    /// The token in it is renewed then.
    Renews(Timestamp),
    /// Azure is asked again then.
    AsksAgain(Timestamp),
    /// Another controls it.
    Foreign {
        store: Store,
        name: String,
    },
}

impl Held {
    pub(super) fn is_controlled(&self, stored: &StoredExport) -> bool {
        owner::is_controlled_by(&stored.metadata, &self.metadata)
    }

    /// A resource as expressions see it: as it is written, with the status that Azure shows.
    fn object_of(&self, resource: &Resource, body: &Value) -> Option<Value> {
        let object = &resource.inline.as_ref()?.object;
        Some(json!({
            "kind": object.mapping.kind,
            "metadata": {"name": object.name, "namespace": self.metadata.namespace},
            "spec": object.spec,
            "status": from_arm(&object.mapping, body),
        }))
    }

    /// The resources that Azure has whose expressions are ours to evaluate, each as they see it.
    pub(super) fn expressing(&self) -> Vec<(&Resource, Value)> {
        let mut all = Vec::new();
        for resource in self.resources.iter().filter(|one| one.operated_by.is_none()) {
            let body = resource.id.as_ref().and_then(|id| self.state(id).body());
            let object = body
                .filter(|_| !resource.expressions.is_empty() || resource.exports.iter().any(is_key))
                .and_then(|body| self.object_of(resource, body));
            all.extend(object.map(|object| (resource, object)));
        }
        all
    }

    /// What expressions come to for which Azure need not be asked, each with whose it is. One that refers to a credential which
    /// its resource does not show yet waits for it.
    fn expressed(&self) -> Vec<(&Resource, &Expression, Texts)> {
        let mut all = Vec::new();
        for (resource, object) in self.expressing() {
            let body = resource.id.as_ref().and_then(|id| self.state(id).body());
            let Some(body) = body else { continue };
            for one in &resource.expressions {
                let (shown, asked) = credentials(one, body);
                if asked.is_empty() && shown.len() == one.secrets.len() {
                    all.push((resource, one, one.evaluate(&object, &shown)));
                }
            }
        }
        all
    }

    /// The labels and annotations that expressions come to, each with whose it is.
    fn labelled(&self) -> Vec<(&Resource, &Expression, Result<Labelling, String>)> {
        let mut all = Vec::new();
        for (resource, object) in self.expressing() {
            let found = resource.expressions.iter();
            all.extend(found.map(|one| (resource, one, one.labelling(&object))));
        }
        all
    }

    /// Expressions that give nothing to write: whose they are, and why.
    pub fn unexpressed(&self) -> Vec<(String, String)> {
        let values = self.expressed().into_iter();
        let values = values.map(|(resource, one, found)| (resource, one, found.err()));
        let labels = self.labelled().into_iter();
        let labels = labels.map(|(resource, one, found)| (resource, one, found.err()));
        values
            .chain(labels)
            .filter_map(|(resource, one, error)| {
                Some((resource.display(), format!("{} {}", one.path, error?)))
            })
            .collect()
    }

    /// The values that resources show now and the labels that go with them, by where they go. Those that Azure has to be asked
    /// for are not among the values, and their labels are.
    fn contents(&self) -> BTreeMap<(Store, String), Contents> {
        let mut all: BTreeMap<(Store, String), Contents> = BTreeMap::new();
        for resource in self.resources.iter().filter(|one| one.operated_by.is_none()) {
            let Some(id) = &resource.id else { continue };
            let Some(body) = self.state(id).body() else {
                continue;
            };
            for export in &resource.exports {
                let value = match export.source {
                    Source::PrimaryAddress => {
                        let key = (id.key().to_owned(), export.name.clone());
                        self.values.get(&key).cloned()
                    }
                    source => source.in_body(body),
                };
                let place = (export.to.store, export.to.name.clone());
                let contents = all.entry(place).or_default();
                contents.labelling.extend(export.labelling.clone());
                contents
                    .values
                    .extend(value.map(|value| (export.to.key.clone(), value)));
            }
        }
        for (_, one, found) in self.expressed() {
            let contents = all.entry((one.store, one.name.clone())).or_default();
            contents.values.extend(found.unwrap_or_default());
        }
        for (_, one, found) in self.labelled() {
            let contents = all.entry((one.store, one.name.clone())).or_default();
            contents.labelling.extend(found.unwrap_or_default());
        }
        all
    }

    /// What is to be written to Secrets and ConfigMaps, kubeconfigs aside.
    pub fn outgoing_values(&self) -> Vec<Outgoing> {
        let mut found = Vec::new();
        for ((store, name), contents) in self.contents() {
            let Contents { values, labelling } = contents;
            let stored = self.stored.get(&(store, name.clone()));
            if stored.is_some_and(|stored| !self.is_controlled(stored)) {
                // What Azure has to be asked for is told by itself.
                if !values.is_empty() {
                    found.push(Outgoing::Foreign { store, name });
                }
                continue;
            }
            let metadata = relabelled(&labelling, stored.map(|stored| &stored.metadata));
            let changed: BTreeMap<String, SecretString> = values
                .into_iter()
                .filter(|(key, value)| !stored.is_some_and(|stored| stored.has(key, value)))
                .map(|(key, value)| (key, SecretString::from(value)))
                .collect();
            let why = match stored {
                // Whoever asks Azure makes it.
                None if changed.is_empty() => continue,
                None => "there is none yet",
                Some(_) if !changed.is_empty() => "Azure shows other values",
                Some(_) if metadata.is_some() => "it is labelled otherwise",
                Some(_) => continue,
            };
            let values = Values {
                store,
                name,
                values: changed,
                metadata,
                is_new: stored.is_none(),
            };
            found.push(Outgoing::Values(values, why.to_owned()));
        }
        found
    }

    /// What is to be done about one kubeconfig of a resource.
    pub fn outgoing_kubeconfig(
        &self,
        resource: &Resource,
        (credential, with_token): (Credential, bool),
        to: &Destination,
        endpoint: &str,
        now: Timestamp,
    ) -> Option<Outgoing> {
        let id = resource.id.clone()?;
        let stored = self.stored.get(&(Store::Secret, to.name.clone()));
        let found = stored.map(|stored| stored.kubeconfig(&to.key));
        let verdict = kubeconfig::judge(found.as_ref(), &self.metadata, &self.cluster_name, endpoint, now);
        let (why, replace) = match verdict {
            Verdict::Good(renew) => return renew.map(Outgoing::Renews),
            Verdict::Foreign => {
                return Some(Outgoing::Foreign {
                    store: Store::Secret,
                    name: to.name.clone(),
                });
            }
            Verdict::Write(why) => (why, false),
            Verdict::Replace(why) => (why, true),
        };
        let kubeconfig = Kubeconfig {
            id,
            api_version: resource.api_version().to_owned(),
            credential,
            with_token,
            endpoint: endpoint.to_owned(),
            name: to.name.clone(),
            key: to.key.clone(),
            replace,
        };
        Some(Outgoing::Kubeconfig(kubeconfig, why))
    }

    /// The kubeconfigs of fleets, which have no object of Cluster API that knows them.
    fn outgoing_of_fleets(&self, now: Timestamp) -> Vec<Outgoing> {
        let mut found = Vec::new();
        for resource in self.resources.iter().filter(|one| one.operated_by.is_none()) {
            let Some(id) = &resource.id else { continue };
            if self.state(id).provisioning_state() != Some("Succeeded") {
                continue;
            }
            for export in &resource.exports {
                if export.source == Source::Kubeconfig(Credential::Fleet) {
                    let as_given = (Credential::Fleet, false);
                    found.extend(self.outgoing_kubeconfig(resource, as_given, &export.to, id.as_str(), now));
                }
            }
        }
        found
    }

    /// Everything that is to be done about destinations that no kind of its own knows.
    pub fn outgoing(&self, now: Timestamp) -> Vec<Outgoing> {
        let mut all = self.outgoing_values();
        all.extend(self.outgoing_of_fleets(now));
        all.extend(self.outgoing_fetched(now));
        all
    }
}

impl Store {
    /// The kind of Kubernetes object.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }
}

/// What is said of a destination that another controls.
pub fn foreign(store: Store, name: &str) -> String {
    format!(
        "{} {name} is somebody else's and stays as it is: delete it, or choose another name in operatorSpec",
        store.kind()
    )
}

pub(super) fn plan_exports<A: From<Action>>(held: &Held, plan: &mut Plan<A>, now: Timestamp) {
    for outgoing in held.outgoing(now) {
        push(plan, outgoing, now);
    }
}

/// Plans one of them; nothing waits for it and it waits for nothing.
pub fn push<A: From<Action>>(plan: &mut Plan<A>, outgoing: Outgoing, now: Timestamp) {
    match outgoing {
        Outgoing::Values(values, why) => {
            plan.regardless(Action::Export(values).into(), why);
        }
        Outgoing::Kubeconfig(kubeconfig, why) => {
            plan.regardless(Action::WriteKubeconfig(kubeconfig).into(), why);
        }
        Outgoing::Fetch(fetch, why) => {
            plan.regardless(Action::WriteFetched(fetch).into(), why);
        }
        // Nobody tells when half the life of a token is over.
        Outgoing::Renews(renew) => {
            let entry = plan.wait("TokenRenewal", "the token in the kubeconfig is renewed then");
            entry.until(renew).group = None;
        }
        // Nobody tells when a key is rotated.
        Outgoing::AsksAgain(then) => {
            let entry = plan.wait("KeysReadAgain", "Azure is asked for keys again then");
            entry.until(then).group = None;
        }
        // It is not watched: it is not ours.
        Outgoing::Foreign { store, name } => {
            let entry = plan.wait(NOT_WRITTEN, foreign(store, &name));
            entry.until(later(now, OWNER_CHECK)).group = None;
        }
    }
}

impl Values {
    /// The data, in the clear.
    pub fn plain(&self) -> BTreeMap<String, String> {
        self.values
            .iter()
            .map(|(key, value)| (key.clone(), value.expose_secret().to_owned()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destination_is_judged_by_its_digests() {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": "s", "managedFields": []}, "data": {"a": "eA=="},
        }))
        .unwrap();
        let stored = StoredExport::of_secret(&secret);
        assert!(stored.has("a", "x") && !stored.has("a", "y") && !stored.has("b", "x"));
        assert!(!format!("{stored:?}").contains("eA"));
        assert!(!stored.kubeconfig("a").is_readable && !stored.kubeconfig("b").is_readable);
        let values = Values {
            store: Store::Secret,
            name: "s".to_owned(),
            values: [("a".to_owned(), SecretString::from("hunter2".to_owned()))].into(),
            metadata: None,
            is_new: true,
        };
        assert_eq!(format!("{values:?}"), "write a to Secret s");
    }
}
