//! What the controllers of all three kinds hold while the manager runs.

use slipway_azure::takeover::Takeover;
use slipway_runtime::{Metrics, ObjectKey, SecretFacts};

use crate::{
    access::Access,
    caches::{Caches, Holder},
    engine::Operators,
    resources::{Asked, SecretData, Sources, StoredExport, user},
};

/// Clients and what was read of Secrets. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Shared {
    pub access: Access,
    pub caches: Caches,
    takeover: Takeover,
    data: SecretFacts<SecretData>,
    stored: SecretFacts<StoredExport>,
    asked: Asked,
    pub operators: Operators,
}

impl Shared {
    pub fn new(access: Access) -> Self {
        Self {
            access,
            ..Self::default()
        }
    }

    pub fn sources(&self) -> Sources<'_> {
        Sources {
            access: &self.access,
            caches: &self.caches,
            takeover: &self.takeover,
            data: &self.data,
            stored: &self.stored,
            asked: &self.asked,
            operators: &self.operators,
        }
    }

    /// Counts what is held in memory for the objects of a kind.
    pub fn count_held(&self, kind: &str, metrics: &Metrics) {
        let (data, stored, asked) = (self.data.clone(), self.stored.clone(), self.asked.clone());
        let operators = self.operators.clone();
        metrics.count_held(&format!("{kind}_secrets"), move || {
            data.len() + stored.len() + asked.count() + operators.count()
        });
    }

    /// The object is gone: what is held for it ends.
    pub fn forget<K: Holder>(&self, key: &ObjectKey) {
        let user = user::<K>(key);
        self.access.forget(&user);
        self.data.forget(&user);
        self.stored.forget(&user);
        self.asked.forget(&user);
        self.operators.forget(&user);
    }
}
