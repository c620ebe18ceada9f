//! How a store keeps an object: as it is, or as text that is read again by whoever asks. Text takes less than half the
//! room, because most of a Kubernetes type's fields are empty most of the time.

use std::{fmt, sync::Arc};

use serde::{Serialize, de::DeserializeOwned};

/// How objects of a kind become text and come back.
pub(super) struct Packing<K> {
    pack: fn(&K) -> Option<Box<[u8]>>,
    unpack: fn(&[u8]) -> Option<K>,
}

impl<K> Clone for Packing<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Packing<K> {}

impl<K: Serialize + DeserializeOwned> Packing<K> {
    pub fn json() -> Self {
        Self {
            pack: |object| serde_json::to_vec(object).ok().map(Vec::into_boxed_slice),
            unpack: |text| serde_json::from_slice(text).ok(),
        }
    }
}

/// An object in a store.
pub(super) enum Kept<K> {
    Whole(Arc<K>),
    Packed {
        text: Box<[u8]>,
        unpack: fn(&[u8]) -> Option<K>,
    },
}

impl<K> Kept<K> {
    /// What cannot be read again as it was written stays whole.
    pub fn new(object: &Arc<K>, packing: Option<Packing<K>>) -> Self {
        let packed = packing.and_then(|Packing { pack, unpack }| {
            let text = pack(object)?;
            unpack(&text).map(|_| Self::Packed { text, unpack })
        });
        packed.unwrap_or_else(|| Self::Whole(Arc::clone(object)))
    }

    pub fn object(&self) -> Arc<K> {
        match self {
            Self::Whole(object) => Arc::clone(object),
            Self::Packed { text, unpack } => {
                Arc::new(unpack(text).expect("it was read when it was packed, and has not changed"))
            }
        }
    }
}

impl<K> fmt::Debug for Kept<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Whole(_) => "Whole",
            Self::Packed { .. } => "Packed",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Lossless {
        name: String,
    }

    /// Refuses what it writes itself.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Lopsided {
        #[serde(rename(serialize = "written", deserialize = "read"))]
        name: String,
    }

    #[test]
    fn a_packed_object_comes_back_as_it_was() {
        let object = Arc::new(Lossless { name: "a".to_owned() });
        let kept = Kept::new(&object, Some(Packing::json()));
        assert!(matches!(kept, Kept::Packed { .. }));
        assert_eq!(kept.object(), object);
        let whole = Kept::new(&object, None);
        assert!(Arc::ptr_eq(&whole.object(), &object));
    }

    #[test]
    fn what_does_not_read_what_it_writes_is_kept_whole() {
        let object = Arc::new(Lopsided { name: "a".to_owned() });
        let kept = Kept::new(&object, Some(Packing::json()));
        assert!(Arc::ptr_eq(&kept.object(), &object));
    }
}
