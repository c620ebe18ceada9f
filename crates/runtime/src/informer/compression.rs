//! How a store keeps an object: as it is, or as text that is read again by whoever asks. Text takes less than half the
//! room, because most of a Kubernetes type's fields are empty most of the time; and objects of one kind are so much alike
//! that each is kept as its difference from a sample of its kind, which takes a fraction of that.

use std::{fmt, sync::Arc};

use lz4_flex::block::{compress_with_dict, decompress_with_dict};
use serde::{Serialize, de::DeserializeOwned};

/// A kind's objects change their look together: a status comes, a field is added. After so many a new sample is taken.
const SAMPLE_SERVES: u32 = 256;

/// More than this of a sample costs more time than it saves room.
const LONGEST_SAMPLE: usize = 8 * 1024;

/// How objects of a kind become text and come back.
pub(super) struct Encoding<K> {
    encode: fn(&K) -> Option<Vec<u8>>,
    decode: fn(&[u8]) -> Option<K>,
}

impl<K> Clone for Encoding<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Encoding<K> {}

impl<K: Serialize + DeserializeOwned> Encoding<K> {
    pub fn json() -> Self {
        Self {
            encode: |object| serde_json::to_vec(object).ok(),
            decode: |text| serde_json::from_slice(text).ok(),
        }
    }
}

/// Compresses the objects of one store.
pub(super) struct Compressor<K> {
    encoding: Encoding<K>,
    sample: Option<Arc<Sample<K>>>,
    /// How many objects were compressed by the sample.
    served: u32,
}

/// What many objects share. It lives as long as any of them is kept by it.
struct Sample<K> {
    text: Box<[u8]>,
    decode: fn(&[u8]) -> Option<K>,
}

impl<K> Compressor<K> {
    pub fn new(encoding: Encoding<K>) -> Self {
        Self {
            encoding,
            sample: None,
            served: 0,
        }
    }

    /// Nothing if the object cannot be read again from what it is written as.
    fn encode(&mut self, object: &K) -> Option<Compressed<K>> {
        let text = (self.encoding.encode)(object)?;
        let sample = match &self.sample {
            Some(sample) if self.served < SAMPLE_SERVES => Arc::clone(sample),
            _ => {
                let sample = Arc::new(Sample {
                    text: text[..text.len().min(LONGEST_SAMPLE)].into(),
                    decode: self.encoding.decode,
                });
                self.served = 0;
                Arc::clone(self.sample.insert(sample))
            }
        };
        self.served += 1;
        let compressed = Compressed {
            difference: compress_with_dict(&text, &sample.text).into_boxed_slice(),
            length: u32::try_from(text.len()).ok()?,
            sample,
        };
        compressed.decode().is_some().then_some(compressed)
    }
}

/// An object as its difference from a sample.
pub(super) struct Compressed<K> {
    difference: Box<[u8]>,
    /// Of the text.
    length: u32,
    sample: Arc<Sample<K>>,
}

impl<K> Compressed<K> {
    fn decode(&self) -> Option<K> {
        let text = decompress_with_dict(&self.difference, self.length as usize, &self.sample.text).ok()?;
        (self.sample.decode)(&text)
    }
}

/// An object in a store.
pub(super) enum StoredObject<K> {
    Whole(Arc<K>),
    Compressed(Compressed<K>),
}

impl<K> StoredObject<K> {
    /// What cannot be read again as it was written stays whole.
    pub fn new(object: &Arc<K>, compressor: Option<&mut Compressor<K>>) -> Self {
        let compressed = compressor.and_then(|compressor| compressor.encode(object));
        compressed.map_or_else(|| Self::Whole(Arc::clone(object)), Self::Compressed)
    }

    pub fn object(&self) -> Arc<K> {
        match self {
            Self::Whole(object) => Arc::clone(object),
            Self::Compressed(compressed) => {
                let object = compressed.decode();
                Arc::new(object.expect("it was read when it was compressed, and has not changed"))
            }
        }
    }
}

impl<K> fmt::Debug for StoredObject<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Whole(_) => "Whole",
            Self::Compressed { .. } => "Compressed",
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    /// Refuses what it writes itself.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Lopsided {
        #[serde(rename(serialize = "written", deserialize = "read"))]
        name: String,
    }

    /// Nodes are alike, and after a while all of them have a status.
    fn node(number: usize, has_status: bool) -> Arc<Node> {
        let conditions = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(|kind| {
            json!({
                "type": kind,
                "status": "True",
                "reason": format!("Kubelet{kind}"),
                "message": format!("the kubelet of machine-{number} tells {kind}"),
                "lastHeartbeatTime": format!("2026-11-16T05:{:02}:{:02}Z", number / 60 % 60, number % 60),
            })
        });
        let mut node = json!({
            "metadata": {
                "name": format!("machine-{number}"),
                "uid": format!("{:08x}-0000-4000-8000-{:012x}", number * 40503, number * 977),
                "resourceVersion": (number * 3).to_string(),
                "labels": {
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/hostname": format!("machine-{number}"),
                    "node.kubernetes.io/instance-type": "Standard_D4s_v5",
                    "topology.kubernetes.io/zone": format!("westeurope-{}", number % 3),
                },
            },
        });
        if has_status {
            node["status"] = json!({"conditions": conditions});
        }
        Arc::new(serde_json::from_value(node).expect("it is a node"))
    }

    #[test]
    fn packed_objects_come_back_as_they_were_whatever_the_sample() {
        let mut compressor = Compressor::new(Encoding::json());
        let nodes: Vec<Arc<Node>> = (0..1000).map(|number| node(number, number >= 400)).collect();
        let kept: Vec<StoredObject<Node>> = nodes
            .iter()
            .map(|node| StoredObject::new(node, Some(&mut compressor)))
            .collect();
        for (kept, node) in kept.iter().zip(&nodes) {
            assert!(matches!(kept, StoredObject::Compressed { .. }));
            assert_eq!(kept.object(), *node);
        }
        let whole = StoredObject::new(&nodes[0], None);
        assert!(Arc::ptr_eq(&whole.object(), &nodes[0]));
    }

    #[test]
    fn objects_that_are_alike_take_a_third_of_their_text_also_when_their_kind_changes() {
        let mut compressor = Compressor::new(Encoding::json());
        let mut room = |from: usize, has_status: bool| -> (usize, usize) {
            let nodes = (from..from + 4096).map(|number| node(number, has_status));
            nodes.fold((0, 0), |(text, kept), node| {
                let StoredObject::Compressed(compressed) = StoredObject::new(&node, Some(&mut compressor))
                else {
                    panic!("it is compressed")
                };
                (
                    text + compressed.length as usize,
                    kept + compressed.difference.len(),
                )
            })
        };
        for has_status in [false, true] {
            let (text, kept) = room(0, has_status);
            assert!(kept * 3 < text, "{kept} of {text}");
        }
    }

    #[test]
    fn an_object_longer_than_any_sample_comes_back_too() {
        let mut compressor = Compressor::new(Encoding::json());
        for length in [LONGEST_SAMPLE * 9, 1, LONGEST_SAMPLE * 20] {
            let object = Arc::new("a long story; ".repeat(length / 14 + 1));
            let kept = StoredObject::new(&object, Some(&mut compressor));
            assert!(matches!(kept, StoredObject::Compressed { .. }));
            assert_eq!(kept.object(), object);
        }
    }

    #[test]
    fn what_does_not_read_what_it_writes_is_kept_whole() {
        let object = Arc::new(Lopsided { name: "a".to_owned() });
        let kept = StoredObject::new(&object, Some(&mut Compressor::new(Encoding::json())));
        assert!(Arc::ptr_eq(&kept.object(), &object));
    }
}
