//! When the autoscaler must not act: another autoscaler holds its lease in the cluster, or a NodePool's machines keep failing to
//! register. Pure; leases and outcomes are given.

use std::{collections::VecDeque, fmt, time::Duration};

use jiff::{SignedDuration, Timestamp};

pub use slipway_runtime::manager::IDENTITY_PREFIX;

/// The leases by which others say that they scale this cluster.
pub const LEASES: [(&str, &str); 2] = [
    ("cluster-autoscaler", "Cluster Autoscaler"),
    ("karpenter-leader-election", "Karpenter"),
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub namespace: String,
    pub name: String,
    pub holder: String,
    /// Since when its holder has it.
    pub acquired: Option<Timestamp>,
    pub renewed: Option<Timestamp>,
    pub lasts: Duration,
}

impl Lease {
    /// Until when it is held; it may be renewed.
    fn ends(&self) -> Option<Timestamp> {
        let lasts = SignedDuration::try_from(self.lasts).ok()?;
        self.renewed?.checked_add(lasts).ok()
    }
}

/// Who else scales the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    pub who: &'static str,
    pub lease: String,
    pub holder: String,
    /// When its lease ends unless it is renewed.
    pub until: Timestamp,
}

impl fmt::Display for Rival {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} scales this cluster: {} holds Lease {} until {}; stop it, and nothing is written before its lease has ended",
            self.who, self.holder, self.lease, self.until
        )
    }
}

/// Another autoscaler that is at work, if there is one. Ours may hold Karpenter's lease: it goes by that name too. Of two Slipways
/// that hold it in two namespaces, the one that has held it longer goes on.
pub fn rival(leases: &[Lease], me: Option<&str>, now: Timestamp) -> Option<Rival> {
    let mine = leases.iter().find(|lease| Some(lease.holder.as_str()) == me);
    let is_elder = |lease: &Lease| {
        let age = |lease: &Lease| (lease.acquired, lease.namespace.clone());
        mine.is_none_or(|mine| age(lease) < age(mine))
    };
    leases.iter().find_map(|lease| {
        let (_, who) = LEASES.iter().find(|(name, _)| *name == lease.name)?;
        let until = lease.ends().filter(|end| *end > now)?;
        let is_slipway = lease.holder.starts_with(IDENTITY_PREFIX);
        let is_other = match &lease.holder {
            holder if holder.is_empty() || Some(holder.as_str()) == me => false,
            // Without a lease of its own a manager cannot know which of them is itself.
            _ if is_slipway => me.is_some() && is_elder(lease),
            _ => true,
        };
        is_other.then(|| Rival {
            who: if is_slipway { "Another Slipway" } else { who },
            lease: format!("{}/{}", lease.namespace, lease.name),
            holder: lease.holder.clone(),
            until,
        })
    })
}

/// How many of a NodePool's last machines count, as Karpenter has it.
const REMEMBERED: usize = 4;

/// Stops a NodePool whose machines keep failing to register: each would cost money and come to nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
    outcomes: VecDeque<bool>,
}

impl Breaker {
    /// A machine registered, or was given up.
    pub fn add(&mut self, registered: bool) {
        if self.outcomes.len() == REMEMBERED {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back(registered);
    }

    /// Why no machine is made for the pool, except one at a time to see whether it works again.
    pub fn open(&self) -> Option<String> {
        let failed = self.outcomes.iter().filter(|registered| !**registered).count();
        let is_open = self.outcomes.len() == REMEMBERED && failed * 2 >= REMEMBERED;
        is_open.then(|| format!("{failed} of its last {REMEMBERED} machines did not register"))
    }

    /// How many machines may be on their way for the pool at once.
    pub fn at_most(&self) -> Option<usize> {
        self.open().map(|_| 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(name: &str, holder: &str, renewed: Option<i64>) -> Lease {
        Lease {
            namespace: "kube-system".to_owned(),
            name: name.to_owned(),
            holder: holder.to_owned(),
            acquired: Some(Timestamp::UNIX_EPOCH),
            renewed: renewed.map(|seconds| Timestamp::from_second(seconds).expect("a moment")),
            lasts: Duration::from_secs(15),
        }
    }

    #[test]
    fn another_autoscaler_is_one_whose_lease_is_held_by_a_stranger() {
        let now = Timestamp::from_second(100).expect("a moment");
        let rows = [
            (lease("cluster-autoscaler", "ca-1", Some(90)), true),
            (
                lease("karpenter-leader-election", "karpenter-7f_1", Some(99)),
                true,
            ),
            (
                lease("karpenter-leader-election", "slipway-7f_1", Some(99)),
                false,
            ),
            (lease("cluster-autoscaler", "ca-1", Some(85)), false),
            (lease("cluster-autoscaler", "", Some(90)), false),
            (lease("cluster-autoscaler", "ca-1", None), false),
            (lease("kube-scheduler", "host", Some(99)), false),
        ];
        for (lease, is_rival) in rows {
            let found = rival(std::slice::from_ref(&lease), Some("slipway-7f_1"), now);
            assert_eq!(found.is_some(), is_rival, "{lease:?}");
        }
        let found = rival(&[lease("cluster-autoscaler", "ca-1", Some(90))], None, now).expect("a rival");
        assert_eq!(
            found.to_string(),
            "Cluster Autoscaler scales this cluster: ca-1 holds Lease kube-system/cluster-autoscaler until 1970-01-01T00:01:45Z; \
             stop it, and nothing is written before its lease has ended"
        );
    }

    #[test]
    fn of_two_slipways_the_elder_goes_on() {
        let now = Timestamp::from_second(100).expect("a moment");
        let held = |namespace: &str, holder: &str, acquired: i64| Lease {
            namespace: namespace.to_owned(),
            acquired: Some(Timestamp::from_second(acquired).expect("a moment")),
            ..lease("karpenter-leader-election", holder, Some(95))
        };
        let both = [held("a", "slipway_one", 20), held("b", "slipway_two", 10)];
        let found = |me: &str| rival(&both, Some(me), now).map(|rival| rival.holder);
        assert_eq!(found("slipway_one").as_deref(), Some("slipway_two"));
        assert_eq!(found("slipway_two"), None);
        let same = [held("a", "slipway_one", 10), held("b", "slipway_two", 10)];
        let found = |me: &str| rival(&same, Some(me), now).map(|rival| rival.holder);
        assert_eq!(
            (found("slipway_one"), found("slipway_two").as_deref()),
            (None, Some("slipway_one"))
        );
        // One that runs with other providers holds their lease, and yields.
        assert!(rival(&both[..1], Some("slipway_three"), now).is_some());
    }

    #[test]
    fn half_of_the_last_four_opens_the_breaker_and_successes_close_it() {
        let mut breaker = Breaker::default();
        for registered in [false, false, false] {
            breaker.add(registered);
            assert_eq!(breaker.open(), None, "too few to tell");
        }
        breaker.add(true);
        assert_eq!(
            breaker.open().as_deref(),
            Some("3 of its last 4 machines did not register")
        );
        assert_eq!(breaker.at_most(), Some(1));
        breaker.add(true);
        assert!(breaker.open().is_some(), "two of four");
        breaker.add(true);
        assert_eq!((breaker.open(), breaker.at_most()), (None, None));
    }
}
