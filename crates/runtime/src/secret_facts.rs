//! What was read out of Secrets, kept by the version it was read from. The watch on their metadata tells when one is
//! another, so at rest no Secret is read, and what is kept of one is what its reader makes of it, not its content.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ApiResource};
use parking_lot::Mutex;

use crate::{Context, ObjectKey, Scope};

struct Known<T> {
    version: String,
    facts: Arc<T>,
}

/// By who reads, and by the Secret.
type ByReader<T> = HashMap<ObjectKey, HashMap<ObjectKey, Known<T>>>;

/// Facts of Secrets, kept for the objects that asked for them. Clones share them.
pub struct SecretFacts<T> {
    known: Arc<Mutex<ByReader<T>>>,
}

impl<T> Default for SecretFacts<T> {
    fn default() -> Self {
        Self {
            known: Arc::default(),
        }
    }
}

impl<T> Clone for SecretFacts<T> {
    fn clone(&self) -> Self {
        Self {
            known: Arc::clone(&self.known),
        }
    }
}

impl<T> std::fmt::Debug for SecretFacts<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SecretFacts").finish_non_exhaustive()
    }
}

/// What the watch on metadata shows of a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// It is not watched, or not listed yet: it has to be asked for.
    Unknown,
    Absent,
    Version(String),
}

/// The version of a Secret as the watch on metadata shows it.
pub fn watched_version(key: &ObjectKey, context: &Context) -> Watched {
    let scope = Scope::of_namespace(&context.settings);
    if scope.namespace.is_some() && scope.namespace.as_deref() != key.namespace() {
        return Watched::Unknown;
    }
    let secrets = context
        .informers
        .get_metadata(&ApiResource::erase::<Secret>(&()), scope);
    if !secrets.is_synced() {
        return Watched::Unknown;
    }
    let version = secrets
        .get(key)
        .and_then(|found| found.metadata.resource_version.clone());
    version.map_or(Watched::Absent, Watched::Version)
}

impl<T> SecretFacts<T> {
    /// What `derive` makes of a Secret, for an object that is told with [`SecretFacts::forget`] when it is gone.
    pub async fn get(
        &self,
        key: &ObjectKey,
        reader: &ObjectKey,
        context: &Context,
        derive: impl FnOnce(&Secret) -> T,
    ) -> Result<Option<Arc<T>>, kube::Error> {
        // What is not shown is asked for: a watch that lags must not make anybody replace a Secret.
        if let Watched::Version(version) = watched_version(key, context) {
            let known = self.known.lock();
            let known = known.get(reader).and_then(|known| known.get(key));
            if let Some(known) = known.filter(|known| known.version == version) {
                return Ok(Some(Arc::clone(&known.facts)));
            }
        }
        let api: Api<Secret> = Api::namespaced(context.client.clone(), key.namespace().unwrap_or_default());
        let Some(secret) = api.get_opt(key.name()).await? else {
            self.drop_one(key, reader);
            return Ok(None);
        };
        let facts = Arc::new(derive(&secret));
        let version = secret.metadata.resource_version.unwrap_or_default();
        let known = Known {
            version,
            facts: Arc::clone(&facts),
        };
        let mut all = self.known.lock();
        all.entry(reader.clone()).or_default().insert(key.clone(), known);
        Ok(Some(facts))
    }

    /// The same of a Secret that this manager only reads: one that the watch does not show is not there. Nobody replaces it, and
    /// its coming is a change like any other, so at rest nothing is asked.
    pub async fn get_watched(
        &self,
        key: &ObjectKey,
        reader: &ObjectKey,
        context: &Context,
        derive: impl FnOnce(&Secret) -> T,
    ) -> Result<Option<Arc<T>>, kube::Error> {
        if watched_version(key, context) == Watched::Absent {
            self.drop_one(key, reader);
            return Ok(None);
        }
        self.get(key, reader, context, derive).await
    }

    fn drop_one(&self, key: &ObjectKey, reader: &ObjectKey) {
        let mut all = self.known.lock();
        if let Some(known) = all.get_mut(reader) {
            known.remove(key);
            if known.is_empty() {
                all.remove(reader);
            }
        }
    }

    /// The object is gone.
    pub fn forget(&self, reader: &ObjectKey) {
        self.known.lock().remove(reader);
    }

    /// For how many Secrets something is kept.
    pub fn len(&self) -> usize {
        self.known.lock().values().map(HashMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
