//! What a node of a VM size has, as far as the size's name tells: for autoscalers that scale a pool from nothing. Pure. A size whose
//! name does not tell is left to annotations and to nodes that are there.

use std::collections::BTreeMap;

use super::NodeInfo;
use crate::reconcile::ResourceState;

/// Processors and memory of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub processors: u64,
    pub memory_mib: u64,
    pub is_arm: bool,
}

/// A size's name, taken apart: `Standard_E4-2ads_v5` is of family `E`, has 4 processors of which 2 are active, features `ads`, and
/// version 5.
struct Name<'a> {
    family: &'a str,
    number: u64,
    active: u64,
    features: &'a str,
    version: u64,
}

fn take(text: &str, is_part: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|character| !is_part(character)).unwrap_or(text.len());
    text.split_at(end)
}

fn parse(size: &str) -> Option<Name<'_>> {
    let rest = size
        .strip_prefix("Standard_")
        .or_else(|| size.strip_prefix("standard_"))?;
    let (family, rest) = take(rest, |one| one.is_ascii_uppercase());
    let (number, rest) = take(rest, |one| one.is_ascii_digit());
    let number = number.parse().ok()?;
    let (active, rest) = match rest.strip_prefix('-') {
        Some(rest) => {
            let (active, rest) = take(rest, |one| one.is_ascii_digit());
            (active.parse().ok()?, rest)
        }
        None => (number, rest),
    };
    let (features, rest) = take(rest, |one| one.is_ascii_lowercase());
    let version = match rest {
        "" => 1,
        rest => rest.strip_prefix("_v")?.parse().ok()?,
    };
    Some(Name {
        family,
        number,
        active,
        features,
        version,
    })
}

impl Size {
    /// Reads a size's name.
    pub fn of(size: &str) -> Option<Self> {
        const GIB: u64 = 1024;
        let name = parse(size)?;
        let has = |feature: char| name.features.contains(feature);
        let mib_per_processor = match (name.family, name.version) {
            ("D", 3..) | ("B", 2..) if has('l') => 2 * GIB,
            ("B", 2..) if has('t') => GIB / 2,
            ("D", 3..) | ("B", 2..) => 4 * GIB,
            // Larger ones have less than their family.
            ("E", 3..) if name.number > 48 => return None,
            ("E", 3..) | ("L", 2 | 3) => 8 * GIB,
            ("A", 2) if has('m') => 8 * GIB,
            ("B", 1) if name.features == "ms" && name.number > 1 => 4 * GIB,
            ("F", 1 | 2) if has('m') || has('l') => return None,
            ("B", 1) if !matches!((name.number, name.features), (1, "ms") | (2, "s")) => return None,
            ("F", 1 | 2) | ("B", 1) | ("A", 2) => 2 * GIB,
            _ => return None,
        };
        Some(Self {
            processors: name.active,
            memory_mib: name.number * mib_per_processor,
            is_arm: has('p'),
        })
    }

    /// What a node of a pool will have, as its status says it: the amounts by resource name, and its kind.
    pub fn of_pool(pool: &ResourceState) -> Option<(BTreeMap<String, String>, NodeInfo)> {
        let size = Self::of(pool.property("vmSize")?)?;
        let number = |name: &str| {
            let found = pool.body()?.get("properties")?.get(name)?.as_i64()?;
            i32::try_from(found).ok()
        };
        let capacity = size.capacity(number("osDiskSizeGB"), number("maxPods"));
        Some((capacity, size.node_info(pool.property("osType"))))
    }

    /// The amounts by resource name, as the status of a pool has them.
    pub fn capacity(self, disk_gib: Option<i32>, pods: Option<i32>) -> BTreeMap<String, String> {
        let mut capacity = BTreeMap::from([
            ("cpu".to_owned(), self.processors.to_string()),
            ("memory".to_owned(), format!("{}Mi", self.memory_mib)),
        ]);
        if let Some(disk) = disk_gib.filter(|disk| *disk > 0) {
            capacity.insert("ephemeral-storage".to_owned(), format!("{disk}Gi"));
        }
        if let Some(pods) = pods {
            capacity.insert("pods".to_owned(), pods.to_string());
        }
        capacity
    }

    pub fn node_info(self, os_type: Option<&str>) -> NodeInfo {
        NodeInfo {
            architecture: if self.is_arm { "arm64" } else { "amd64" }.to_owned(),
            operating_system: os_type.unwrap_or("linux").to_lowercase(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_tells_what_its_name_says_and_no_more() {
        for (name, expected) in [
            ("Standard_D2s_v3", Some((2, 8, false))),
            ("Standard_D8ds_v5", Some((8, 32, false))),
            ("Standard_D4pls_v5", Some((4, 8, true))),
            ("Standard_E4-2ads_v5", Some((2, 32, false))),
            ("Standard_E16ps_v5", Some((16, 128, true))),
            ("Standard_F8s_v2", Some((8, 16, false))),
            ("Standard_L8s_v3", Some((8, 64, false))),
            ("Standard_B2s", Some((2, 4, false))),
            ("Standard_B4ms", Some((4, 16, false))),
            ("Standard_B2als_v2", Some((2, 4, false))),
            ("Standard_A4m_v2", Some((4, 32, false))),
            // The number is no count of processors, or memory follows no rule.
            ("Standard_DS3_v2", None),
            ("Standard_E96s_v5", None),
            ("Standard_NC6s_v3", None),
            ("Standard_M128ms", None),
            ("D2s_v3", None),
            ("", None),
        ] {
            let size = Size::of(name);
            let told = size.map(|size| (size.processors, size.memory_mib / 1024, size.is_arm));
            assert_eq!(told, expected, "{name}");
        }
        let capacity = Size::of("Standard_D2s_v3").map(|size| size.capacity(Some(128), Some(110)));
        let expected = [
            ("cpu", "2"),
            ("ephemeral-storage", "128Gi"),
            ("memory", "8192Mi"),
            ("pods", "110"),
        ];
        let expected = expected.map(|(name, amount)| (name.to_owned(), amount.to_owned()));
        assert_eq!(capacity, Some(expected.into()));
    }
}
