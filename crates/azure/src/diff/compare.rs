//! Desired against observed, modulo what Azure fills in, with the last record as the third side.

use std::fmt;

use serde_json::Value;
use slipway_capi::frame::without_credentials;

use super::{
    element_key,
    equal::{added_by_azure, is_id, is_ordered, never_shown, scalar},
    is_empty, is_keyed, member,
    record::{Record, masked},
};
use crate::resource::{Mapping, Shape};

/// What is to be done about one place in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// It is not there.
    Add,
    /// It is something else.
    Update,
    /// It is there because we once set it, and is no longer desired.
    Remove,
}

/// One difference between desired and observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where, as `properties.networkProfile.podCidr`.
    pub path: String,
    pub change: Edit,
    /// What was found and what is desired, for people; empty for secrets.
    pub explanation: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.change {
            Edit::Add => "add",
            Edit::Update => "update",
            Edit::Remove => "remove",
        };
        write!(formatter, "{word} {}", self.path)?;
        if !self.explanation.is_empty() {
            write!(formatter, " ({})", without_credentials(&self.explanation))?;
        }
        Ok(())
    }
}

/// What `observed` lacks to be as `desired`. Nothing: no request is needed.
pub fn differences(
    mapping: &Mapping,
    desired: &Value,
    observed: &Value,
    record: Option<&Record>,
    secrets: &[String],
) -> Vec<Difference> {
    let desired = masked(desired, secrets);
    let mut walk = Walk {
        arm_type: &mapping.arm_type,
        record,
        secrets,
        found: Vec::new(),
        seen: Vec::new(),
    };
    let place = Location {
        path: String::new(),
        pointer: String::new(),
        key: "",
        shape: Shape::spec(mapping),
        siblings: None,
    };
    walk.value(
        &place,
        &desired,
        Some(observed),
        record.map(|record| &record.sent),
    );
    walk.found
}

/// The places where the observed body differs from what was sent though nothing is under way: Azure's own spelling.
pub(super) fn settle(mapping: &Mapping, record: &Record, observed: &Value) -> Record {
    let mut settled = Record {
        sent: record.sent.clone(),
        accepted: std::collections::BTreeMap::new(),
        settled: true,
    };
    let mut walk = Walk {
        arm_type: &mapping.arm_type,
        record: None,
        secrets: &[],
        found: Vec::new(),
        seen: Vec::new(),
    };
    let place = Location {
        path: String::new(),
        pointer: String::new(),
        key: "",
        shape: Shape::spec(mapping),
        siblings: None,
    };
    walk.value(&place, &record.sent, Some(observed), None);
    settled.accepted = walk.seen.into_iter().collect();
    settled
}

impl Record {
    /// The change was seen through: what Azure made of it is remembered as accepted.
    #[must_use]
    pub fn settle(&self, mapping: &Mapping, observed: &Value) -> Self {
        settle(mapping, self, observed)
    }
}

struct Location<'a> {
    path: String,
    pointer: String,
    key: &'a str,
    shape: Shape,
    /// The observed object the value stands in.
    siblings: Option<&'a Value>,
}

impl Location<'_> {
    fn below<'a>(&self, key: &'a str, shape: Shape, siblings: Option<&'a Value>) -> Location<'a> {
        Location {
            path: if self.path.is_empty() {
                key.to_owned()
            } else {
                format!("{}.{key}", self.path)
            },
            pointer: format!("{}/{}", self.pointer, key.replace('~', "~0").replace('/', "~1")),
            key,
            shape,
            siblings,
        }
    }
}

struct Walk<'a> {
    arm_type: &'a str,
    record: Option<&'a Record>,
    secrets: &'a [String],
    found: Vec<Difference>,
    /// What was observed where a difference was found, by pointer.
    seen: Vec<(String, Value)>,
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 60 {
        format!("{}…", text.chars().take(60).collect::<String>())
    } else {
        text
    }
}

impl Walk<'_> {
    fn push(&mut self, place: &Location<'_>, change: Edit, explanation: String, observed: Option<&Value>) {
        self.seen
            .push((place.pointer.clone(), observed.cloned().unwrap_or(Value::Null)));
        self.found.push(Difference {
            path: place.path.clone(),
            change,
            explanation,
        });
    }

    fn is_secret(&self, place: &Location<'_>) -> bool {
        self.secrets.contains(&place.pointer)
    }

    /// Whether Azure already turned this very value into what it shows.
    fn accepted(
        &self,
        place: &Location<'_>,
        desired: &Value,
        observed: Option<&Value>,
        sent: Option<&Value>,
    ) -> bool {
        let Some(record) = self.record else {
            return false;
        };
        record.settled
            && sent == Some(desired)
            && record
                .accepted
                .get(&place.pointer)
                .is_some_and(|accepted| *accepted == *observed.unwrap_or(&Value::Null))
    }

    fn value(
        &mut self,
        place: &Location<'_>,
        desired: &Value,
        observed: Option<&Value>,
        sent: Option<&Value>,
    ) {
        if self.is_secret(place) {
            // Azure never shows a secret: only the record can tell whether it changed.
            if sent != Some(desired) {
                self.push(place, Edit::Update, String::new(), None);
            }
            return;
        }
        match desired {
            Value::Null => self.removed(place, observed, sent),
            Value::Object(_) => self.object(place, desired, observed, sent),
            Value::Array(list) => self.list(place, list, observed, sent, desired),
            _ => {
                let observed = observed.filter(|observed| !observed.is_null());
                let hidden = observed.is_none_or(is_empty) && never_shown(self.arm_type, &place.pointer);
                if hidden && sent.is_none_or(|sent| sent == desired) {
                    return;
                }
                match observed {
                    None if desired == &Value::Bool(false) || is_empty(desired) => {}
                    None if self.accepted(place, desired, None, sent) => {}
                    None => self.push(place, Edit::Add, short(desired), None),
                    Some(observed) => {
                        if !scalar(place.key, desired, observed, place.siblings, place.shape)
                            && !self.accepted(place, desired, Some(observed), sent)
                        {
                            self.push(
                                place,
                                Edit::Update,
                                format!("{} to {}", short(observed), short(desired)),
                                Some(observed),
                            );
                        }
                    }
                }
            }
        }
    }

    fn object(
        &mut self,
        place: &Location<'_>,
        desired: &Value,
        observed: Option<&Value>,
        sent: Option<&Value>,
    ) {
        let members = desired.as_object().expect("an object");
        let scaled = autoscaled(desired, observed);
        for (key, value) in members {
            if scaled && key == "count" {
                continue;
            }
            // An identity map's values are Azure's.
            if place.shape.is_identities() {
                if observed.is_none_or(|observed| member(observed, key).is_none()) {
                    self.push(
                        &place.below(key, Shape::Unknown, observed),
                        Edit::Add,
                        String::new(),
                        None,
                    );
                }
                continue;
            }
            let below = place.below(key, place.shape.child(key), observed);
            let found = observed.and_then(|observed| member(observed, key));
            self.value(&below, value, found, sent.and_then(|sent| member(sent, key)));
        }
        if place.shape.is_identities()
            && let Some(Value::Object(found)) = observed
        {
            for key in found.keys() {
                if member(desired, key).is_none() && is_id(key) {
                    self.push(
                        &place.below(key, Shape::Unknown, observed),
                        Edit::Remove,
                        String::new(),
                        None,
                    );
                }
            }
            return;
        }
        if let Some(Value::Object(before)) = sent {
            for (key, value) in before {
                if member(desired, key).is_none() {
                    let below = place.below(key, place.shape.child(key), observed);
                    let found = observed.and_then(|observed| member(observed, key));
                    self.removed(&below, found, Some(value));
                }
            }
        }
    }

    /// A value that is no longer desired: a difference if it still is what we once made it.
    fn removed(&mut self, place: &Location<'_>, observed: Option<&Value>, sent: Option<&Value>) {
        let (Some(observed), Some(sent)) = (observed, sent) else {
            return;
        };
        if is_empty(observed) || is_empty(sent) {
            return;
        }
        match (sent, observed) {
            (Value::Object(sent), Value::Object(_)) => {
                for (key, value) in sent {
                    let below = place.below(key, place.shape.child(key), Some(observed));
                    self.removed(&below, member(observed, key), Some(value));
                }
            }
            (Value::Array(before), Value::Array(found)) => {
                let ours = |element: &Value| {
                    before.iter().any(|other| {
                        other == element
                            || (element_key(other).is_some() && element_key(other) == element_key(element))
                    })
                };
                if found.iter().any(ours) {
                    self.push(place, Edit::Remove, String::new(), Some(observed));
                }
            }
            _ if scalar(place.key, sent, observed, place.siblings, place.shape) => {
                self.push(place, Edit::Remove, short(observed), Some(observed));
            }
            _ => {}
        }
    }

    fn list(
        &mut self,
        place: &Location<'_>,
        elements: &[Value],
        observed: Option<&Value>,
        sent: Option<&Value>,
        desired: &Value,
    ) {
        let none = Vec::new();
        let found = observed.and_then(Value::as_array).unwrap_or(&none);
        let before = sent.and_then(Value::as_array).unwrap_or(&none);
        if self.accepted(place, desired, observed, sent) {
            return;
        }
        let element_shape = place.shape.element();
        if is_keyed(elements) && (found.is_empty() || is_keyed(found)) {
            let find = |list: &'_ [Value], key: &str| {
                list.iter()
                    .position(|element| element_key(element).as_deref() == Some(key))
            };
            for element in elements {
                let key = element_key(element).expect("a keyed list");
                let below = place.below(&key, element_shape, observed);
                let below = Location { key: "", ..below };
                match find(found, &key) {
                    None if self.accepted(&below, element, None, sent_element(before, &key)) => {}
                    None => self.push(&below, Edit::Add, String::new(), None),
                    Some(index) => self.value(&below, element, found.get(index), sent_element(before, &key)),
                }
            }
            for element in before {
                let Some(key) = element_key(element) else { continue };
                if find(elements, &key).is_none() && find(found, &key).is_some() {
                    self.push(
                        &place.below(&key, element_shape, observed),
                        Edit::Remove,
                        String::new(),
                        None,
                    );
                }
            }
            return;
        }
        if elements.is_empty() && before.is_empty() && is_keyed(found) {
            // An empty list of children says nothing about children that others own.
            return;
        }
        let found: Vec<&Value> = found
            .iter()
            .filter(|element| !added_by_azure(place.key, element) || elements.contains(element))
            .collect();
        let same = elements.len() == found.len()
            && if is_ordered(place.key) {
                elements
                    .iter()
                    .zip(&found)
                    .all(|(element, found)| matches(place, element_shape, element, found))
            } else {
                pair_up(elements, &found, |element, found| {
                    matches(place, element_shape, element, found)
                })
            };
        if !same {
            let change = if found.is_empty() { Edit::Add } else { Edit::Update };
            self.push(place, change, String::new(), observed);
        }
    }
}

fn sent_element<'v>(before: &'v [Value], key: &str) -> Option<&'v Value> {
    before
        .iter()
        .find(|element| element_key(element).as_deref() == Some(key))
}

/// Whether each desired element has an observed one of its own.
fn pair_up(desired: &[Value], found: &[&Value], same: impl Fn(&Value, &Value) -> bool) -> bool {
    let mut free: Vec<&Value> = found.to_vec();
    desired.iter().all(|desired| {
        free.iter()
            .position(|found| same(desired, found))
            .map(|index| free.swap_remove(index))
            .is_some()
    })
}

fn matches(place: &Location<'_>, shape: Shape, desired: &Value, found: &Value) -> bool {
    if desired.is_object() || desired.is_array() {
        let mut walk = Walk {
            arm_type: "",
            record: None,
            secrets: &[],
            found: Vec::new(),
            seen: Vec::new(),
        };
        let below = Location {
            path: String::new(),
            pointer: String::new(),
            key: place.key,
            shape,
            siblings: None,
        };
        walk.value(&below, desired, Some(found), None);
        walk.found.is_empty()
    } else {
        scalar(place.key, desired, found, None, shape)
    }
}

/// A pool whose autoscaler is on has the count the autoscaler gave it, as long as it stays within its bounds.
fn autoscaled(desired: &Value, observed: Option<&Value>) -> bool {
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_i64);
    if desired.get("enableAutoScaling") != Some(&Value::Bool(true)) {
        return false;
    }
    let Some(observed) = observed else { return false };
    let Some(count) = number(observed, "count") else {
        return false;
    };
    observed.get("enableAutoScaling") == Some(&Value::Bool(true))
        && number(desired, "minCount").is_none_or(|minimum| count >= minimum)
        && number(desired, "maxCount").is_none_or(|maximum| count <= maximum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxys_password_is_printed_nowhere() {
        let difference = Difference {
            path: "properties.httpProxyConfig.httpProxy".to_owned(),
            change: Edit::Update,
            explanation: "http://ann:s3cret@proxy:3128 -> http://ann:s4cret@proxy:3128".to_owned(),
        };
        let text = difference.to_string();
        assert!(
            text.contains("http://…@proxy:3128 -> http://…@proxy:3128"),
            "{text}"
        );
        assert!(!text.contains("cret"), "{text}");
    }
}
