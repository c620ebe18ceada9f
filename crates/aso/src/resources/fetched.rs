//! Expressions over credentials that Azure hands out for the asking. What they give is not known before Azure was asked, so each
//! Secret that one is written to carries a print of what it was made from, and when: Azure is asked again where that is another, and
//! after a while, because a key may have been rotated. Pure, but for the times in [`Asked`].

use std::{collections::BTreeMap, fmt, sync::Arc};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use slipway_azure::{ResourceId, reconcile::planning::later};
use slipway_runtime::ObjectKey;

use super::{Held, Outgoing, Resource, export::StoredExport};
use crate::inline::{Export, Expression, Secrets, Source, Store};

/// When Azure was last asked for what is in a Secret, by the annotation of its expression.
pub type Times = BTreeMap<(String, String), Timestamp>;

/// When Azure was last asked and nothing had to be written, by the object that asks. A time that matters to the next process stands
/// in the Secret, so that at rest nothing is written. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Asked(Arc<Mutex<BTreeMap<ObjectKey, Arc<Mutex<Times>>>>>);

impl Asked {
    /// The times of one object.
    pub fn of(&self, user: &ObjectKey) -> Arc<Mutex<Times>> {
        Arc::clone(self.0.lock().entry(user.clone()).or_default())
    }

    /// The object is gone.
    pub fn forget(&self, user: &ObjectKey) {
        self.0.lock().remove(user);
    }

    /// How many times are kept.
    pub fn count(&self) -> usize {
        self.0.lock().values().map(|times| times.lock().len()).sum()
    }
}

/// Begins the annotation of each expression on its Secret.
const ANNOTATION: &str = "slipway.dev/expression-";

/// An expression for whose value Azure has to be asked.
#[derive(Clone)]
pub struct Fetch {
    /// The resource that hands the credentials out.
    pub id: ResourceId,
    pub api_version: String,
    pub expression: Expression,
    /// Those that Azure is asked for, by name.
    pub credentials: BTreeMap<String, Source>,
    /// Those that the resource shows by itself.
    shown: Secrets,
    /// The resource as the expression sees it.
    object: Value,
}

impl fmt::Debug for Fetch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for Fetch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Expression { path, name, .. } = &self.expression;
        write!(formatter, "write what {path} gives to Secret {name}")
    }
}

/// What an expression was made from, and the keys it was written to.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Print {
    keys: Vec<String>,
    sha256: String,
    /// When Azure was asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<Timestamp>,
}

impl Fetch {
    /// The annotation of this expression on its Secret.
    pub fn annotation(&self) -> String {
        let mut hash = Sha256::new();
        for part in [self.id.key(), self.expression.source()] {
            hash.update(part);
            hash.update([0]);
        }
        hash.update(self.expression.key.as_deref().unwrap_or_default());
        format!("{ANNOTATION}{}", hex(&hash.finalize()[..8]))
    }

    /// By which the time is kept when Azure was asked for it.
    pub fn time_key(&self) -> (String, String) {
        (self.expression.name.clone(), self.annotation())
    }

    /// What stands in the annotation once these keys are stored so.
    pub fn print(&self, stored: &StoredExport, keys: &[String], now: Timestamp) -> Option<String> {
        let print = Print {
            sha256: self.hash(stored, keys)?,
            keys: keys.to_vec(),
            asked: Some(now),
        };
        serde_json::to_string(&print).ok()
    }

    /// A hash of what it is made from and what is stored. A value is in it with all the rest, never alone.
    fn hash(&self, stored: &StoredExport, keys: &[String]) -> Option<String> {
        let mut hash = Sha256::new();
        // An API server that moved has other credentials.
        for pointer in ["/status/fqdn", "/status/privateFQDN"] {
            let found = self.object.pointer(pointer).and_then(Value::as_str);
            hash.update(found.unwrap_or_default());
            hash.update([0]);
        }
        if self.expression.refers_to_object() {
            hash.update(self.object.to_string());
        }
        for (name, value) in &self.shown {
            hash.update(name);
            hash.update(value);
        }
        for key in keys {
            hash.update(stored.digest(key)?);
        }
        Some(hex(&hash.finalize()))
    }

    /// The print of what is stored, if that was made from what is there now, and is as it was written.
    fn written(&self, stored: &StoredExport) -> Option<Print> {
        let annotations = stored.metadata.annotations.as_ref()?;
        let print: Print = serde_json::from_str(annotations.get(&self.annotation())?).ok()?;
        let is_same = self.hash(stored, &print.keys).as_ref() == Some(&print.sha256);
        (is_same && !print.keys.is_empty()).then_some(print)
    }

    /// Whether these values are what is stored already.
    pub fn is_stored(&self, stored: &StoredExport, values: &BTreeMap<String, String>) -> bool {
        let has_same = |print: Print| {
            print.keys.iter().eq(values.keys()) && values.iter().all(|(key, value)| stored.has(key, value))
        };
        self.written(stored).is_some_and(has_same)
    }

    /// What the expression gives with the credentials that Azure answered with.
    pub fn evaluate(&self, answered: Secrets) -> Result<BTreeMap<String, String>, String> {
        let mut all = self.shown.clone();
        all.extend(answered);
        self.expression.evaluate(&self.object, &all)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
    let digits = |byte: &u8| [digit(byte >> 4), digit(byte & 15)];
    bytes.iter().flat_map(digits).collect()
}

/// The credentials that a resource shows by itself, and those that Azure has to be asked for.
pub(super) fn credentials(expression: &Expression, body: &Value) -> (Secrets, BTreeMap<String, Source>) {
    let (mut shown, mut asked) = (Secrets::new(), BTreeMap::new());
    for (name, source) in &expression.secrets {
        if source.action().is_some() {
            asked.insert(name.clone(), *source);
        } else {
            shown.extend(source.in_body(body).map(|value| (name.clone(), value)));
        }
    }
    (shown, asked)
}

/// Whether a value is a key that Azure has to be asked for. Kubeconfigs have a way of their own.
pub(super) fn is_key(export: &Export) -> bool {
    matches!(export.source, Source::Listed(_))
}

/// The expression of a key that is exported as it is.
fn of_key(export: &Export) -> Option<Expression> {
    let path = format!("operatorSpec.secrets.{}", export.name);
    is_key(export)
        .then(|| Expression::of_credential(export, path))
        .flatten()
}

impl Held {
    /// The expression of a resource that Azure has to be asked for, where it has made the resource.
    pub(super) fn fetch(
        &self,
        resource: &Resource,
        expression: &Expression,
        object: &Value,
    ) -> Option<Fetch> {
        let id = resource.id.clone()?;
        let (shown, credentials) = credentials(expression, self.state(&id).body()?);
        (self.is_there(resource) && !credentials.is_empty()).then(|| Fetch {
            id,
            api_version: resource.api_version().to_owned(),
            expression: expression.clone(),
            credentials,
            shown,
            object: object.clone(),
        })
    }

    /// When Azure is asked again for what is stored as it was written.
    fn asks_again(&self, fetch: &Fetch, print: &Print) -> Option<Timestamp> {
        let last = self.asked.get(&fetch.time_key()).copied().max(print.asked)?;
        Some(later(last, self.key_read_age))
    }

    /// What is to be done about expressions for which Azure has to be asked.
    pub(super) fn outgoing_fetched(&self, now: Timestamp) -> Vec<Outgoing> {
        let mut found = Vec::new();
        for (resource, object) in self.expressing() {
            let keys = resource.exports.iter().filter_map(of_key);
            for expression in resource.expressions.iter().cloned().chain(keys) {
                let Some(fetch) = self.fetch(resource, &expression, &object) else {
                    continue;
                };
                let name = expression.name.clone();
                match self.stored.get(&(Store::Secret, name.clone())) {
                    Some(stored) if !self.is_controlled(stored) => {
                        let store = Store::Secret;
                        found.push(Outgoing::Foreign { store, name });
                    }
                    Some(stored) => {
                        let why = match fetch.written(stored).map(|print| self.asks_again(&fetch, &print)) {
                            Some(Some(then)) if then > now => {
                                found.push(Outgoing::AsksAgain(then));
                                continue;
                            }
                            Some(_) => "a key may have been rotated since Azure was asked",
                            None => "what it is made from, or what was written, is another now",
                        };
                        found.push(Outgoing::Fetch(Box::new(fetch), why));
                    }
                    None => found.push(Outgoing::Fetch(Box::new(fetch), "there is none yet")),
                }
            }
        }
        found
    }
}
