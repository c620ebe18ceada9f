//! Who owns an ARM id. The owner is an object of Kubernetes, known by a random mark: it stands in the object's record
//! annotation, which `clusterctl move` carries along, and in a tag of the resource from the first write on. Pure: record,
//! tags and claims in, an answer with its reason out.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;

use crate::reconcile::records::{ADOPT, ANNOTATION};

/// The tag that carries the owner's mark. Azure allows no slash in a tag's name.
pub const TAG: &str = "slipway.dev_owner";

/// Tags by which Cluster API's provider for Azure names the Cluster that a resource was made for.
const CLUSTER_TAG: &str = "sigs.k8s.io_cluster-api-provider-azure_cluster_";

/// One object's claim to a resource: its spec or its record names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// Kind, namespace and name, as a user reads it.
    pub object: String,
    pub mark: Option<String>,
    pub record: Option<ClaimRecord>,
    pub created: Option<Timestamp>,
}

/// What an object's record says of the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimRecord {
    /// The object made it.
    pub made: bool,
    /// Since when the record holds it; `None`: since before that was noted.
    pub since: Option<Timestamp>,
}

/// Whose a resource is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Our mark is on it.
    Ours,
    /// Nobody's mark is on it, and no other object has an older claim: ours to write.
    Unmarked,
    /// Another's: neither written nor deleted.
    Foreign(Foreign),
}

impl Ownership {
    pub fn foreign(&self) -> Option<&Foreign> {
        match self {
            Self::Foreign(foreign) => Some(foreign),
            _ => None,
        }
    }
}

/// Why a resource is another's, and whose as far as known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Another object of this management cluster has its mark on it.
    Marked { object: String },
    /// A mark that no object here knows: another management cluster's, or that of an object that is gone. The Cluster's
    /// name is the one that the resource's tags give.
    Unknown { mark: String, cluster: Option<String> },
    /// No mark is on it, and another object's record of it is older.
    OlderRecord { object: String },
    /// Another object carries the same mark and is older: one of the two is a copy.
    Copied { object: String },
    /// Another object stands for it too, and goes on when this one goes.
    Adopted { object: String },
}

impl fmt::Display for Foreign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Marked { object } => write!(formatter, "it belongs to {object}"),
            Self::Unknown { mark, cluster } => {
                formatter.write_str("it belongs to ")?;
                match cluster {
                    Some(cluster) => write!(formatter, "a Cluster {cluster} ")?,
                    None => formatter.write_str("an object ")?,
                }
                write!(
                    formatter,
                    "that this management cluster does not have (tag {TAG}: {mark}); if that one is gone for good, \
                     annotate this object with {ADOPT}: {mark}, or remove the tag from the resource in Azure"
                )
            }
            Self::OlderRecord { object } => {
                write!(formatter, "it belongs to {object}, which claimed it earlier")
            }
            Self::Adopted { object } => write!(formatter, "{object} stands for it too, and keeps it"),
            Self::Copied { object } => write!(
                formatter,
                "it belongs to {object}, of which this object is a copy: remove its annotation {ANNOTATION}"
            ),
        }
    }
}

impl Claim {
    /// The order of claims to a resource without a mark; the least wins.
    fn age(&self) -> impl Ord {
        (
            self.record.is_none(),
            !self.record.unwrap_or_default().made,
            self.record.unwrap_or_default().since,
            self.seniority(),
        )
    }

    fn seniority(&self) -> impl Ord {
        (self.created.is_none(), self.created, self.object.clone())
    }
}

/// The mark on a resource.
pub fn mark_of(tags: &BTreeMap<String, String>) -> Option<&str> {
    tags.iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(TAG))
        .map(|(_, mark)| mark.as_str())
        .filter(|mark| !mark.is_empty())
}

/// Whose a resource is: `ours` is the claim of the object that asks, `others` are the claims of all other objects of this
/// management cluster to the same id, `tags` are what Azure shows (none where the resource is absent).
pub fn judge(ours: &Claim, others: &[Claim], tags: &BTreeMap<String, String>) -> Ownership {
    let Some(mark) = mark_of(tags) else {
        let older = others.iter().filter(|other| other.age() < ours.age());
        return match older.min_by_key(|other| other.age()) {
            Some(other) => Ownership::Foreign(Foreign::OlderRecord {
                object: other.object.clone(),
            }),
            None => Ownership::Unmarked,
        };
    };
    let mut holders = others.iter().filter(|other| other.mark.as_deref() == Some(mark));
    if ours.mark.as_deref() == Some(mark) {
        return match holders.find(|other| other.seniority() < ours.seniority()) {
            Some(other) => Ownership::Foreign(Foreign::Copied {
                object: other.object.clone(),
            }),
            None => Ownership::Ours,
        };
    }
    Ownership::Foreign(match holders.next() {
        Some(other) => Foreign::Marked {
            object: other.object.clone(),
        },
        None => Foreign::Unknown {
            mark: mark.to_owned(),
            cluster: tags
                .iter()
                .find(|(_, lifecycle)| *lifecycle == "owned")
                .and_then(|(name, _)| name.strip_prefix(CLUSTER_TAG))
                .map(str::to_owned),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(object: &str, mark: Option<&str>, record: Option<(bool, i64)>, created: i64) -> Claim {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        Claim {
            object: object.to_owned(),
            mark: mark.map(str::to_owned),
            record: record.map(|(made, since)| ClaimRecord {
                made,
                since: (since > 0).then(|| at(since)),
            }),
            created: Some(at(created)),
        }
    }

    fn tags(mark: &str) -> BTreeMap<String, String> {
        [
            ("Slipway.dev_Owner", mark),
            ("sigs.k8s.io_cluster-api-provider-azure_cluster_shop", "owned"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    fn none() -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn object(ownership: &Ownership) -> &str {
        match ownership {
            Ownership::Foreign(
                Foreign::Marked { object } | Foreign::OlderRecord { object } | Foreign::Copied { object },
            ) => object,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_mark_decides_whatever_the_records_say() {
        let ours = claim("a", Some("m1"), None, 9);
        assert_eq!(judge(&ours, &[], &tags("m1")), Ownership::Ours);
        let older = claim("b", Some("m2"), Some((true, 1)), 1);
        assert_eq!(
            judge(&ours, std::slice::from_ref(&older), &tags("m1")),
            Ownership::Ours
        );
        let foreign = judge(&ours, &[older], &tags("m2"));
        assert_eq!(
            foreign,
            Ownership::Foreign(Foreign::Marked { object: "b".into() })
        );
    }

    #[test]
    fn a_mark_nobody_here_knows_is_another_management_clusters() {
        let ours = claim("a", Some("m1"), Some((true, 1)), 1);
        let Ownership::Foreign(foreign) = judge(&ours, &[], &tags("m9")) else {
            panic!("ours")
        };
        let text = foreign.to_string();
        assert!(text.contains("Cluster shop") && text.contains("m9"), "{text}");
        assert!(
            text.contains("slipway.dev/adopt: m9") && text.contains("remove the tag"),
            "{text}"
        );
        // An object that never wrote anything has no mark of its own.
        let fresh = claim("a", None, None, 1);
        assert!(judge(&fresh, &[], &tags("m9")).foreign().is_some());
    }

    #[test]
    fn without_a_mark_the_older_record_wins() {
        let table: &[(&str, Claim, Claim)] = &[
            (
                "a record beats none",
                claim("a", None, Some((false, 5)), 9),
                claim("b", None, None, 1),
            ),
            (
                "whoever made it beats whoever found it",
                claim("a", None, Some((true, 7)), 9),
                claim("b", None, Some((false, 5)), 1),
            ),
            (
                "the earlier record",
                claim("a", None, Some((false, 5)), 9),
                claim("b", None, Some((false, 6)), 1),
            ),
            (
                "a record from before times were noted",
                claim("a", None, Some((false, 0)), 9),
                claim("b", None, Some((false, 6)), 1),
            ),
            (
                "the older object",
                claim("a", None, Some((false, 5)), 1),
                claim("b", None, Some((false, 5)), 9),
            ),
            (
                "the first by name",
                claim("a", None, None, 1),
                claim("b", None, None, 1),
            ),
        ];
        for (what, winner, loser) in table {
            let ours = judge(winner, std::slice::from_ref(loser), &none());
            assert_eq!(ours, Ownership::Unmarked, "{what}");
            let theirs = judge(loser, std::slice::from_ref(winner), &none());
            assert_eq!(object(&theirs), "a", "{what}");
        }
    }

    #[test]
    fn a_copy_of_an_object_does_not_own_what_the_original_owns() {
        let original = claim("a", Some("m1"), Some((true, 5)), 5);
        let copy = claim("b", Some("m1"), Some((true, 5)), 50);
        assert_eq!(
            judge(&original, std::slice::from_ref(&copy), &tags("m1")),
            Ownership::Ours
        );
        assert_eq!(
            object(&judge(&copy, std::slice::from_ref(&original), &tags("m1"))),
            "a"
        );
        // A moved object carries its mark and is alone: clusterctl takes the original away.
        assert_eq!(judge(&copy, &[], &tags("m1")), Ownership::Ours);
    }

    #[test]
    fn of_any_claims_exactly_one_may_write() {
        let mut claims = Vec::new();
        for (mark, name) in [
            (None, "x"),
            (Some("m1"), "y"),
            (Some("m2"), "z"),
            (Some("m1"), "w"),
        ] {
            for record in [None, Some((false, 0)), Some((true, 3)), Some((false, 8))] {
                for created in [1, 2] {
                    claims.push(claim(
                        &format!("{name}{}{created}", claims.len()),
                        mark,
                        record,
                        created,
                    ));
                }
            }
        }
        for left in &claims {
            for right in claims.iter().filter(|right| right.object != left.object) {
                for tags in [none(), tags("m1"), tags("m2"), tags("m3")] {
                    let may = |one: &Claim, other: &Claim| {
                        judge(one, std::slice::from_ref(other), &tags).foreign().is_none()
                    };
                    assert!(
                        !(may(left, right) && may(right, left)),
                        "{left:?} and {right:?} both write to {tags:?}"
                    );
                    if mark_of(&tags).is_none() {
                        assert!(may(left, right) || may(right, left), "nobody writes");
                    }
                }
            }
        }
    }
}
