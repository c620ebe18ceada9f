//! What we applied to Azure, kept on the object it belongs to: which resources we made, and the body sent last, from
//! which a removed field is noticed. An annotation, so that it survives a restart and goes along in a move.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{Read, Write},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slipway_capi::annotations;

use super::state::ResourceState;
use crate::{
    diff::Record,
    ownership::{Claim, ClaimRecord},
};

/// The mark of resources that an object without a mark of its own takes on: how a cluster that was given up is adopted.
pub const ADOPT: &str = "slipway.dev/adopt";

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
    /// Since when it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
    /// What its provider notes beside it, for when the spec no longer says so.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub notes: BTreeMap<String, String>,
}

impl Entry {
    /// Whether a change of ours was seen through to its end: then the resource existed.
    pub fn existed(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.settled)
    }
}

/// As it stands in the annotation. Ids begin with a slash, so the mark is never one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mark: Option<String>,
    /// Namespace and name of the object it was written for: a move keeps them, a copy under another name does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    #[serde(flatten)]
    entries: BTreeMap<String, Entry>,
}

/// All annotations of an object together may have 256 KiB, and the manifest that kubectl keeps is among them.
const LONGEST_PLAIN: usize = 32 * 1024;
/// What a compressed record begins with. JSON never does.
const COMPRESSED: &str = "gzip:";

/// As it is stored: a long text is compressed.
fn compressed(text: String) -> String {
    if text.len() <= LONGEST_PLAIN {
        return text;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let compressed = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    compressed.map_or(text, |bytes| format!("{COMPRESSED}{}", STANDARD.encode(bytes)))
}

/// The JSON in an annotation; `None` for something else under our name.
fn decompressed(text: &str) -> Option<Cow<'_, str>> {
    let Some(encoded) = text.strip_prefix(COMPRESSED) else {
        return Some(Cow::Borrowed(text));
    };
    let bytes = STANDARD.decode(encoded).ok()?;
    let mut text = String::new();
    let limit = 64 * 1024 * 1024;
    GzDecoder::new(bytes.as_slice())
        .take(limit)
        .read_to_string(&mut text)
        .ok()?;
    Some(Cow::Owned(text))
}

/// What is known of all resources of an object, by id in lower case.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    current: Stored,
    /// As it was read, so that nothing is written that is there already.
    stored: Stored,
    /// Namespace and name of the object that carries it.
    object: Option<String>,
}

impl Records {
    /// What an object carries. Something else under our name is no record: everything is compared with Azure again.
    pub fn of(metadata: &ObjectMeta) -> Self {
        let annotation = |name: &str| metadata.annotations.as_ref()?.get(name);
        let stored: Stored = annotation(ANNOTATION)
            .and_then(|text| serde_json::from_str(&decompressed(text)?).ok())
            .unwrap_or_default();
        let object = metadata.name.as_ref().map(|name| {
            let namespace = metadata.namespace.as_deref().unwrap_or_default();
            format!("{namespace}/{name}")
        });
        // What was written for another object came with a copied manifest: it owns nothing here.
        let is_copied = stored.object.is_some() && stored.object != object;
        let mut current = if is_copied {
            Stored::default()
        } else {
            stored.clone()
        };
        if current.mark.is_none() {
            current.mark = annotation(ADOPT).filter(|mark| !mark.is_empty()).cloned();
        }
        Self {
            current,
            stored,
            object,
        }
    }

    pub fn get(&self, id: &str) -> Option<&Entry> {
        self.current.entries.get(&id.to_lowercase())
    }

    pub fn record(&self, id: &str) -> Option<&Record> {
        self.get(id).and_then(|entry| entry.record.as_ref())
    }

    /// Every resource that we made, with the version of the API it was made with.
    pub fn made(&self) -> impl Iterator<Item = (&str, &str)> {
        self.current
            .entries
            .iter()
            .filter(|(_, entry)| entry.made)
            .map(|(id, entry)| (id.as_str(), entry.api_version.as_str()))
    }

    /// Every resource that Azure has taken a body for.
    pub fn sent(&self) -> impl Iterator<Item = &str> {
        self.current
            .entries
            .iter()
            .filter(|(_, entry)| entry.record.is_some())
            .map(|(id, _)| id.as_str())
    }

    /// A resource is about to be asked for. Where Azure did not tell whether it is there, nothing is asked and nothing
    /// noted: a guess would stay for good, and what we make later would never be ours to delete.
    pub fn intend(&mut self, id: &str, api_version: &str, state: &ResourceState, now: Timestamp) {
        if *state == ResourceState::Unknown {
            return;
        }
        let entry = self
            .current
            .entries
            .entry(id.to_lowercase())
            .or_insert_with(|| Entry {
                made: state.is_absent(),
                since: Some(now),
                ..Entry::default()
            });
        api_version.clone_into(&mut entry.api_version);
    }

    /// Somebody said that a resource which was there before is ours now, to delete as well.
    pub fn adopt(&mut self, id: &str, api_version: &str, now: Timestamp) {
        let entry = self.current.entries.entry(id.to_lowercase()).or_default();
        entry.made = true;
        entry.since.get_or_insert(now);
        if entry.api_version.is_empty() {
            api_version.clone_into(&mut entry.api_version);
        }
    }

    /// Notes something beside a resource that is recorded.
    pub fn note(&mut self, id: &str, notes: BTreeMap<String, String>) {
        if let Some(entry) = self.current.entries.get_mut(&id.to_lowercase()) {
            entry.notes = notes;
        }
    }

    /// Everything that is recorded, by id in lower case.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.current
            .entries
            .iter()
            .map(|(id, entry)| (id.as_str(), entry))
    }

    /// The mark by which this object owns what it writes.
    pub fn mark(&self) -> Option<&str> {
        self.current.mark.as_deref()
    }

    /// The mark, made up where there is none yet. It is stored before the first write to Azure.
    pub fn ensure_mark(&mut self, make: impl FnOnce() -> String) -> &str {
        self.current.mark.get_or_insert_with(make)
    }

    /// Every resource that is recorded, by id in lower case.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.current.entries.keys().map(String::as_str)
    }

    /// What is left in Azure if the object goes now: what it made, and what it applied something to.
    pub fn remaining(&self) -> impl Iterator<Item = &str> {
        self.current
            .entries
            .iter()
            .filter(|(_, entry)| entry.made || entry.record.is_some())
            .map(|(id, _)| id.as_str())
    }

    /// The resource vanished: it is asked for again as if for the first time.
    pub fn vanished(&mut self, id: &str) {
        if let Some(entry) = self.current.entries.get_mut(&id.to_lowercase()) {
            entry.record = None;
        }
    }

    /// An object's claim to a resource.
    pub fn claim(&self, id: &str, object: String, metadata: &ObjectMeta) -> Claim {
        Claim {
            object,
            mark: self.current.mark.clone(),
            record: self.get(id).map(|entry| ClaimRecord {
                made: entry.made,
                since: entry.since,
            }),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
        }
    }

    /// A body was sent, or seen through.
    pub fn keep(&mut self, id: &str, record: Record) {
        self.current.entries.entry(id.to_lowercase()).or_default().record = Some(record);
    }

    /// The resource is gone.
    pub fn forget(&mut self, id: &str) {
        self.current.entries.remove(&id.to_lowercase());
    }

    /// The patch that stores it, if it is not stored as it is.
    pub fn patch(&self) -> Option<Value> {
        if self.current == self.stored {
            return None;
        }
        let is_empty = self.current.mark.is_none() && self.current.entries.is_empty();
        let text = compressed(
            serde_json::to_string(&Stored {
                object: self.object.clone(),
                ..self.current.clone()
            })
            .ok()?,
        );
        let value = (!is_empty).then_some(text.as_str());
        Some(annotations::set_annotation(ANNOTATION, value))
    }

    /// What was patched is stored.
    pub fn stored(&mut self) {
        self.current.object.clone_from(&self.object);
        self.stored = self.current.clone();
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
        records.intend(
            "/Subscriptions/S",
            "2024-01-01",
            &ResourceState::Absent,
            Timestamp::UNIX_EPOCH,
        );
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
        records.intend(
            "/a",
            "1",
            &ResourceState::Present(json!({})),
            Timestamp::UNIX_EPOCH,
        );
        records.intend("/a", "2", &ResourceState::Absent, Timestamp::UNIX_EPOCH);
        assert_eq!(records.made().count(), 0);
        assert_eq!(records.get("/a").unwrap().api_version, "2");
    }

    #[test]
    fn what_could_not_be_seen_is_not_taken_for_somebody_elses() {
        let mut records = Records::default();
        records.intend("/a", "1", &ResourceState::Unknown, Timestamp::UNIX_EPOCH);
        assert_eq!(records.get("/a"), None);
        records.intend("/a", "1", &ResourceState::Absent, Timestamp::UNIX_EPOCH);
        assert_eq!(records.made().count(), 1);
    }

    #[test]
    fn the_mark_is_made_up_once_and_stays() {
        let mut records = Records::of(&ObjectMeta::default());
        assert_eq!(records.mark(), None);
        assert_eq!(records.ensure_mark(|| "m1".to_owned()), "m1");
        let patch = records.patch().unwrap();
        let text = patch["metadata"]["annotations"][ANNOTATION].as_str().unwrap();
        let mut again = Records::of(&holding(text));
        assert_eq!(again.ensure_mark(|| "m2".to_owned()), "m1");
        assert_eq!(again.patch(), None);
        let claim = again.claim("/a", "object".to_owned(), &ObjectMeta::default());
        assert_eq!((claim.mark.as_deref(), claim.record), (Some("m1"), None));
        let adopting = ObjectMeta {
            annotations: Some([(ADOPT.to_owned(), "m3".to_owned())].into()),
            ..ObjectMeta::default()
        };
        assert_eq!(Records::of(&adopting).mark(), Some("m3"));
        assert!(Records::of(&adopting).patch().is_some(), "it is stored");
        // What was stored before there were marks is read as it is.
        let before = Records::of(&holding(r#"{"/a": {"apiVersion": "1", "made": true}}"#));
        assert_eq!((before.mark(), before.made().count()), (None, 1));
    }

    fn named(namespace: &str, name: &str, text: &str) -> ObjectMeta {
        ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..holding(text)
        }
    }

    #[test]
    fn a_record_that_came_with_a_copied_manifest_is_none() {
        let mut records = Records::of(&named("default", "shop", ""));
        records.ensure_mark(|| "m1".to_owned());
        records.intend("/a", "1", &ResourceState::Absent, Timestamp::UNIX_EPOCH);
        let patch = records.patch().unwrap();
        let text = patch["metadata"]["annotations"][ANNOTATION].as_str().unwrap();
        // Moved to another management cluster: as it was.
        let moved = Records::of(&named("default", "shop", text));
        assert_eq!(
            (moved.mark(), moved.made().count(), moved.patch()),
            (Some("m1"), 1, None)
        );
        for (namespace, name) in [("bad", "shop"), ("default", "shop2")] {
            let copy = Records::of(&named(namespace, name, text));
            assert_eq!(copy.mark(), None, "{namespace}/{name}");
            assert_eq!(copy.made().count() + copy.remaining().count(), 0);
            let removed = &copy.patch().unwrap()["metadata"]["annotations"][ANNOTATION];
            assert_eq!(*removed, json!(null), "the copy lets go of it");
        }
        // From before objects were noted: as it is, and noted with the next change.
        let old = r#"{"mark": "m1", "/a": {"apiVersion": "1", "made": true}}"#;
        let mut before = Records::of(&named("default", "shop", old));
        assert_eq!((before.mark(), before.patch()), (Some("m1"), None));
        before.forget("/a");
        let patch = before.patch().unwrap();
        let text = patch["metadata"]["annotations"][ANNOTATION].as_str().unwrap();
        assert_eq!(Records::of(&named("bad", "shop", text)).mark(), None);
    }

    #[test]
    fn what_was_only_found_does_not_remain() {
        let mut records = Records::default();
        records.intend(
            "/found",
            "1",
            &ResourceState::Present(json!({})),
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(records.remaining().count(), 0);
        records.intend("/made", "1", &ResourceState::Absent, Timestamp::UNIX_EPOCH);
        records.intend(
            "/adopted",
            "1",
            &ResourceState::Present(json!({})),
            Timestamp::UNIX_EPOCH,
        );
        records.keep("/adopted", Record::sent(&json!({}), &[]));
        assert_eq!(records.remaining().collect::<Vec<_>>(), ["/adopted", "/made"]);
    }

    #[test]
    fn a_long_record_is_compressed_and_read_again() {
        let mut records = Records::default();
        let labels: BTreeMap<String, String> = (0..5_000)
            .map(|number| (format!("label-{number}"), format!("value-{}", number * 7919)))
            .collect();
        records.intend("/a", "1", &ResourceState::Absent, Timestamp::UNIX_EPOCH);
        records.keep(
            "/a",
            Record::sent(&json!({"properties": {"nodeLabels": labels}}), &[]),
        );
        let patch = records.patch().unwrap();
        let text = patch["metadata"]["annotations"][ANNOTATION].as_str().unwrap();
        let plain = serde_json::to_string(&records.current).unwrap().len();
        assert!(
            plain > 100_000 && text.len() < 60_000,
            "{plain} -> {}",
            text.len()
        );
        let again = Records::of(&holding(text));
        assert_eq!(
            again.record("/a").unwrap().sent["properties"]["nodeLabels"],
            json!(labels)
        );
        assert_eq!(again.patch(), None);
    }

    #[test]
    fn nonsense_is_no_record() {
        for text in [
            "",
            "no",
            "[]",
            "{\"/a\": 7}",
            "gzip:",
            "gzip:bm9uc2Vuc2U=",
            "gzip:%",
        ] {
            assert_eq!(Records::of(&holding(text)), Records::default(), "{text}");
        }
    }
}
