//! Versions of Kubernetes (`v1.34.1`, `v1.34.1+k3s1`) and what may follow what: Kubernetes' rules on version skew, checked before
//! a host is armed, because a slot that was switched is late to find out.

use std::{cmp::Ordering, fmt, str::FromStr};

/// One version. Builds of one release (`+k3s1`, `+k3s2`) are neither older nor newer than each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(semver::Version);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a version of Kubernetes with a leading v, e.g. v1.34.1 or v1.34.1+k3s1")]
pub struct Malformed;

impl FromStr for Version {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let rest = text.strip_prefix('v').ok_or(Malformed)?;
        semver::Version::parse(rest).map(Self).map_err(|_| Malformed)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "v{}", self.0)
    }
}

impl Version {
    pub fn minor(&self) -> u64 {
        self.0.minor
    }

    /// Older, newer, or a build of the same release.
    pub fn compare(&self, other: &Self) -> Ordering {
        self.0.cmp_precedence(&other.0)
    }

    /// How many minor versions `other` is ahead of this one.
    pub fn minors_to(&self, other: &Self) -> i64 {
        (other.0.major as i64 - self.0.major as i64) * 1000 + (other.0.minor as i64 - self.0.minor as i64)
    }

    /// The minor version, as in a sentence.
    pub fn series(&self) -> String {
        format!("v{}.{}", self.0.major, self.0.minor)
    }
}

/// The most minor versions a kubelet may be behind its apiserver.
pub const KUBELET_BEHIND: i64 = 3;

/// Which node is upgraded, and what is around it.
#[derive(Clone, Debug)]
pub struct Skew<'a> {
    pub from: Option<&'a Version>,
    pub to: &'a Version,
    pub is_control_plane: bool,
    /// The oldest apiserver there is, as far as it is known.
    pub control_plane: Option<&'a Version>,
    /// The oldest kubelet among the workers.
    pub oldest_worker: Option<&'a Version>,
    pub allow_downgrade: bool,
}

/// Why a node must not be brought to a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SkewProblem {
    #[error(
        "{to} is older than {from}, and etcd and the apiserver cannot read what a newer minor version wrote: choose {from} or newer"
    )]
    MinorDowngrade { from: String, to: String },
    #[error("{to} is older than {from}: set allowDowngrade if that is meant")]
    Downgrade { from: String, to: String },
    #[error("{from} cannot become {to} in one go: control planes go one minor version at a time")]
    SkipsMinors { from: String, to: String },
    #[error("{to} is newer than the control plane ({control_plane}): upgrade the control plane first")]
    AheadOfControlPlane { to: String, control_plane: String },
    #[error(
        "the control plane cannot become {to} while a worker runs {worker}: kubelets may be at most three minor versions behind"
    )]
    WorkerTooOld { to: String, worker: String },
}

/// Whether the version may be taken, by Kubernetes' rules.
pub fn check(skew: &Skew<'_>) -> Result<(), SkewProblem> {
    let to = skew.to.to_string();
    if let Some(from) = skew.from {
        let minors = from.minors_to(skew.to);
        if minors < 0 && skew.is_control_plane {
            return Err(SkewProblem::MinorDowngrade {
                from: from.to_string(),
                to,
            });
        }
        if skew.to.compare(from) == Ordering::Less && !skew.allow_downgrade {
            return Err(SkewProblem::Downgrade {
                from: from.to_string(),
                to,
            });
        }
        if minors > 1 && skew.is_control_plane {
            return Err(SkewProblem::SkipsMinors {
                from: from.to_string(),
                to,
            });
        }
    }
    if skew.is_control_plane {
        if let Some(worker) = skew.oldest_worker
            && worker.minors_to(skew.to) > KUBELET_BEHIND
        {
            return Err(SkewProblem::WorkerTooOld {
                to,
                worker: worker.to_string(),
            });
        }
    } else if let Some(control_plane) = skew.control_plane
        && control_plane.minors_to(skew.to) > 0
    {
        return Err(SkewProblem::AheadOfControlPlane {
            to,
            control_plane: control_plane.to_string(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Around the node: the control plane's version and the oldest worker's, if they are known.
    type Around<'a> = (Option<&'a str>, Option<&'a str>);

    fn checked(is_control_plane: bool, from: &str, to: &str, around: Around<'_>, allow: bool) -> String {
        let (control_plane, oldest_worker) = (around.0.map(version), around.1.map(version));
        let checked = check(&Skew {
            from: Some(&version(from)),
            to: &version(to),
            is_control_plane,
            control_plane: control_plane.as_ref(),
            oldest_worker: oldest_worker.as_ref(),
            allow_downgrade: allow,
        });
        checked.map_or_else(|error| error.to_string(), |()| "fine".to_owned())
    }

    #[test]
    fn control_planes_go_one_minor_at_a_time_and_never_back() {
        let server = |from: &str, to: &str, allow| checked(true, from, to, (None, None), allow);
        assert_eq!(server("v1.34.1+k3s1", "v1.34.1+k3s2", false), "fine");
        assert_eq!(server("v1.34.1", "v1.35.0", false), "fine");
        assert_eq!(
            server("v1.33.1", "v1.35.0", false),
            "v1.33.1 cannot become v1.35.0 in one go: control planes go one minor version at a time"
        );
        assert_eq!(
            server("v1.34.2", "v1.34.1", false),
            "v1.34.1 is older than v1.34.2: set allowDowngrade if that is meant"
        );
        assert_eq!(server("v1.34.2", "v1.34.1", true), "fine");
        // A minor version back is refused whatever is allowed.
        assert!(server("v1.35.0", "v1.34.1", true).contains("newer minor version"));
    }

    #[test]
    fn workers_stay_behind_their_control_plane_and_not_too_far() {
        let worker =
            |to: &str, control_plane: &str| checked(false, "v1.33.0", to, (Some(control_plane), None), false);
        assert_eq!(
            worker("v1.36.0", "v1.36.0"),
            "fine",
            "kubelets may skip minor versions"
        );
        assert_eq!(
            worker("v1.35.0", "v1.34.0"),
            "v1.35.0 is newer than the control plane (v1.34.0): upgrade the control plane first"
        );
        assert_eq!(
            worker("v1.34.9", "v1.34.0"),
            "fine",
            "patch versions may be ahead"
        );
        let server = |from: &str, to: &str| checked(true, from, to, (None, Some("v1.33.4")), false);
        assert_eq!(
            server("v1.36.0", "v1.37.0"),
            "the control plane cannot become v1.37.0 while a worker runs v1.33.4: kubelets may be at most three minor versions behind"
        );
        assert_eq!(server("v1.35.0", "v1.36.0"), "fine");
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for text in [
            "",
            "v",
            "1.34.1",
            "v1.34",
            "v1.34.1 ",
            "latest",
            "v1.34.1.2",
            "v01.34.1",
        ] {
            assert!(text.parse::<Version>().is_err(), "{text:?}");
        }
        assert_eq!(version("v1.34.1-rc.1+k3s1").to_string(), "v1.34.1-rc.1+k3s1");
        assert_eq!(version("v1.34.1").series(), "v1.34");
    }
}
