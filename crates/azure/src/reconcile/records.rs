//! What we applied to Azure, kept on the object it belongs to: which resources we made, and the body sent last, from
//! which a removed field is noticed. An annotation, so that it survives a restart and goes along in a move.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slipway_capi::marks;

use super::state::ResourceState;
use crate::diff::Record;

/// Where it is kept.
pub const ANNOTATION: &str = "slipway.dev/azure-applied";

/// What is known of one resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// The version of Azure's API it was made with.
    pub api_version: String,
    /// Whether it was absent when we first asked for it: then it is ours to delete.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub made: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
}

/// What is known of all resources of an object, by id in lower case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    entries: BTreeMap<String, Entry>,
    /// As it was read, so that nothing is written that is there already.
    stored: BTreeMap<String, Entry>,
}

impl Records {
    /// What an object carries. Something else under our name is no record: everything is compared with Azure again.
    pub fn of(metadata: &ObjectMeta) -> Self {
        let entries: BTreeMap<String, Entry> = metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(ANNOTATION))
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        Self {
            stored: entries.clone(),
            entries,
        }
    }

    pub fn get(&self, id: &str) -> Option<&Entry> {
        self.entries.get(&id.to_lowercase())
    }

    pub fn record(&self, id: &str) -> Option<&Record> {
        self.get(id).and_then(|entry| entry.record.as_ref())
    }

    /// Every resource that we made, with the version of the API it was made with.
    pub fn made(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries
            .iter()
            .filter(|(_, entry)| entry.made)
            .map(|(id, entry)| (id.as_str(), entry.api_version.as_str()))
    }

    /// A resource is about to be asked for. Where Azure did not tell whether it is there, nothing is asked and nothing
    /// noted: a guess would stay for good, and what we make later would never be ours to delete.
    pub fn intend(&mut self, id: &str, api_version: &str, state: &ResourceState) {
        if *state == ResourceState::Unknown {
            return;
        }
        let entry = self.entries.entry(id.to_lowercase()).or_insert_with(|| Entry {
            made: state.is_absent(),
            ..Entry::default()
        });
        api_version.clone_into(&mut entry.api_version);
    }

    /// A body was sent, or seen through.
    pub fn keep(&mut self, id: &str, record: Record) {
        self.entries.entry(id.to_lowercase()).or_default().record = Some(record);
    }

    /// The resource is gone.
    pub fn forget(&mut self, id: &str) {
        self.entries.remove(&id.to_lowercase());
    }

    /// The patch that stores it, if it is not stored as it is.
    pub fn patch(&self) -> Option<Value> {
        if self.entries == self.stored {
            return None;
        }
        let text = serde_json::to_string(&self.entries).ok()?;
        let value = (!self.entries.is_empty()).then_some(text.as_str());
        Some(marks::set_annotation(ANNOTATION, value))
    }

    /// What was patched is stored.
    pub fn stored(&mut self) {
        self.stored = self.entries.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn holding(text: &str) -> ObjectMeta {
        ObjectMeta {
            annotations: Some([(ANNOTATION.to_owned(), text.to_owned())].into()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn what_is_kept_is_read_again_and_written_only_when_it_changed() {
        let mut records = Records::of(&ObjectMeta::default());
        assert_eq!(records.patch(), None);
        records.intend("/Subscriptions/S", "2024-01-01", &ResourceState::Absent);
        records.keep("/subscriptions/s", Record::sent(&json!({"a": 1}), &[]));
        let patch = records.patch().unwrap();
        records.stored();
        assert_eq!(records.patch(), None);
        let text = patch["metadata"]["annotations"][ANNOTATION].as_str().unwrap();
        let mut again = Records::of(&holding(text));
        assert_eq!(again.patch(), None);
        assert_eq!(
            again.made().collect::<Vec<_>>(),
            [("/subscriptions/s", "2024-01-01")]
        );
        assert_eq!(again.record("/SUBSCRIPTIONS/S").unwrap().sent, json!({"a": 1}));
        again.forget("/subscriptions/S");
        assert_eq!(
            again.patch().unwrap()["metadata"]["annotations"][ANNOTATION],
            json!(null)
        );
    }

    #[test]
    fn what_was_there_before_is_not_ours_and_does_not_become_so() {
        let mut records = Records::default();
        records.intend("/a", "1", &ResourceState::Present(json!({})));
        records.intend("/a", "2", &ResourceState::Absent);
        assert_eq!(records.made().count(), 0);
        assert_eq!(records.get("/a").unwrap().api_version, "2");
    }

    #[test]
    fn what_could_not_be_seen_is_not_taken_for_somebody_elses() {
        let mut records = Records::default();
        records.intend("/a", "1", &ResourceState::Unknown);
        assert_eq!(records.get("/a"), None);
        records.intend("/a", "1", &ResourceState::Absent);
        assert_eq!(records.made().count(), 1);
    }

    #[test]
    fn nonsense_is_no_record() {
        for text in ["", "no", "[]", "{\"/a\": 7}"] {
            assert_eq!(Records::of(&holding(text)), Records::default(), "{text}");
        }
    }
}
