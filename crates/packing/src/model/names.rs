//! A list of names that many claims share: hundreds of claims may list the same hundreds of types.

use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names(Arc<[String]>);

impl Default for Names {
    fn default() -> Self {
        Names(Arc::new([]))
    }
}

impl Deref for Names {
    type Target = [String];

    fn deref(&self) -> &[String] {
        &self.0
    }
}

impl From<Vec<String>> for Names {
    fn from(names: Vec<String>) -> Self {
        Names(names.into())
    }
}

impl FromIterator<String> for Names {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        Names(names.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Names {
    type Item = &'a String;
    type IntoIter = std::slice::Iter<'a, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T> PartialEq<T> for Names
where
    T: AsRef<[&'static str]>,
{
    fn eq(&self, other: &T) -> bool {
        self.0.iter().eq(other.as_ref())
    }
}

impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Names::from(Vec::deserialize(deserializer)?))
    }
}
