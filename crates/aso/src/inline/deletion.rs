//! What becomes of resources in Azure when their object is deleted, or when they are taken out of it. Pure.

use std::fmt;

use slipway_azure::ResourceId;

use super::policy::Policy;

/// A resource that is to go, as it was recorded when it was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaving {
    pub id: ResourceId,
    pub policy: Policy,
    pub protected: bool,
}

/// What becomes of a resource.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// It is deleted.
    Delete,
    /// It goes with a resource above it that is deleted.
    WithParent(ResourceId),
    /// It stays, because its policy says so.
    Stays(Policy),
    /// It is protected: its object stays too, until the protection is taken away.
    Protected,
    /// A protected resource stands below it: deleting it would delete that one.
    Holds(ResourceId),
}

impl Fate {
    /// Whether the object has to stay because of it.
    pub fn holds_back(&self) -> bool {
        matches!(self, Self::Protected | Self::Holds(_))
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delete => formatter.write_str("it is deleted"),
            Self::WithParent(id) => write!(formatter, "it is deleted with {id}", id = id.as_str()),
            Self::Stays(policy) => write!(formatter, "it stays in Azure: its reconcile-policy is {policy}"),
            Self::Protected => write!(
                formatter,
                "it is protected against deletion: remove the annotation {} to delete it",
                super::PROTECTION
            ),
            Self::Holds(id) => write!(
                formatter,
                "{} below it is protected against deletion, and would be deleted with it",
                id.as_str()
            ),
        }
    }
}

fn is_below(id: &ResourceId, above: &ResourceId) -> bool {
    id.key()
        .strip_prefix(above.key())
        .is_some_and(|rest| rest.starts_with('/'))
}

/// What becomes of each, in the order given. `leaving` is in the order of making; deletion goes the other way.
pub fn fates(leaving: &[Leaving]) -> Vec<Fate> {
    let own = |one: &Leaving| {
        if one.protected {
            return Fate::Protected;
        }
        if !one.policy.deletes() {
            return Fate::Stays(one.policy);
        }
        let held = leaving
            .iter()
            .find(|other| other.protected && is_below(&other.id, &one.id));
        held.map_or(Fate::Delete, |held| Fate::Holds(held.id.clone()))
    };
    leaving
        .iter()
        .map(|one| match own(one) {
            Fate::Delete | Fate::Stays(_) => {
                // The outermost resource that is deleted takes everything below it along in one operation, also what
                // would stay if it stood elsewhere.
                let above = leaving
                    .iter()
                    .filter(|other| is_below(&one.id, &other.id) && own(other) == Fate::Delete)
                    .min_by_key(|other| other.id.key().len());
                above.map_or_else(|| own(one), |above| Fate::WithParent(above.id.clone()))
            }
            other => other,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: &str = "/subscriptions/s/resourceGroups/g";

    fn leaving(id: &str, policy: Policy, protected: bool) -> Leaving {
        Leaving {
            id: ResourceId::parse(&format!("{GROUP}{id}")).unwrap(),
            policy,
            protected,
        }
    }

    fn told(all: &[Leaving]) -> Vec<String> {
        fates(all).iter().map(ToString::to_string).collect()
    }

    const NETWORK: &str = "/providers/Microsoft.Network/virtualNetworks/n";
    const SUBNET: &str = "/providers/Microsoft.Network/virtualNetworks/n/subnets/s";

    #[test]
    fn what_stands_below_something_that_is_deleted_goes_with_it() {
        let all = [
            leaving("", Policy::Manage, false),
            leaving(NETWORK, Policy::Manage, false),
            leaving(SUBNET, Policy::DetachOnDelete, false),
        ];
        assert_eq!(
            told(&all),
            [
                "it is deleted",
                "it is deleted with /subscriptions/s/resourceGroups/g",
                "it is deleted with /subscriptions/s/resourceGroups/g",
            ]
        );
    }

    #[test]
    fn a_group_that_stays_leaves_what_is_in_it_to_be_deleted() {
        let all = [
            leaving("", Policy::Skip, false),
            leaving(NETWORK, Policy::Manage, false),
            leaving(SUBNET, Policy::Manage, false),
        ];
        assert_eq!(
            fates(&all)[0].to_string(),
            "it stays in Azure: its reconcile-policy is skip"
        );
        assert_eq!(fates(&all)[1], Fate::Delete);
        assert_eq!(fates(&all)[2], Fate::WithParent(all[1].id.clone()));
    }

    #[test]
    fn a_protected_resource_holds_everything_above_it() {
        let other = "/providers/Microsoft.Network/virtualNetworks/n2";
        let all = [
            leaving("", Policy::Manage, false),
            leaving(NETWORK, Policy::Manage, false),
            leaving(SUBNET, Policy::Manage, true),
            leaving(other, Policy::Manage, false),
        ];
        let fates = fates(&all);
        assert_eq!(fates[0], Fate::Holds(all[2].id.clone()));
        assert_eq!(fates[1], Fate::Holds(all[2].id.clone()));
        assert_eq!(fates[2], Fate::Protected);
        assert_eq!(fates[3], Fate::Delete);
        let held: Vec<bool> = fates.iter().map(Fate::holds_back).collect();
        assert_eq!(held, [true, true, true, false]);
    }
}
