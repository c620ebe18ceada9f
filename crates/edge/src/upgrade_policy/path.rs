//! Over which versions an upgrade goes: pure. Control planes take every minor version; nobody jumps over a mandatory version; workers go
//! as seldom as their distance to the control plane allows.

use std::{cmp::Ordering, fmt};

use crate::version::{KUBELET_BEHIND, Version};

/// What is planned for.
#[derive(Clone, Debug)]
pub struct Journey<'a> {
    pub control_plane: &'a Version,
    /// The oldest worker; `None`: there are no workers.
    pub workers: Option<&'a Version>,
    pub to: &'a Version,
    pub mandatory: &'a [Version],
    pub known: &'a [Version],
}

/// The versions that control plane and workers take one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path {
    pub control_plane: Vec<Version>,
    pub workers: Vec<Version>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPath {
    #[error("{to} is older than {from}: upgrades never go back")]
    Backwards { from: String, to: String },
    #[error(
        "no version of {series} is known on the way from {from} to {to}: add one to knownVersions of the UpgradePolicy, and its image"
    )]
    Gap {
        series: String,
        from: String,
        to: String,
    },
    #[error("workers run {workers}, which is newer than the control plane ({control_plane})")]
    WorkersAhead { workers: String, control_plane: String },
}

impl fmt::Display for Path {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |versions: &[Version]| {
            versions
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" -> ")
        };
        writeln!(formatter, "control plane: {}", told(&self.control_plane))?;
        writeln!(formatter, "workers: {}", told(&self.workers))
    }
}

/// Whether two versions are the same to the letter: builds of one release differ.
fn same(one: &Version, other: &Version) -> bool {
    one == other
}

pub fn plan(journey: &Journey<'_>) -> Result<Path, NoPath> {
    let (from, to) = (journey.control_plane, journey.to);
    if to.compare(from) == Ordering::Less {
        return Err(NoPath::Backwards {
            from: from.to_string(),
            to: to.to_string(),
        });
    }
    if let Some(workers) = journey.workers
        && from.minors_to(workers) > 0
    {
        return Err(NoPath::WorkersAhead {
            workers: workers.to_string(),
            control_plane: from.to_string(),
        });
    }
    let control_plane = control_plane_path(journey)?;
    let workers = match journey.workers {
        Some(workers) if !same(workers, to) => workers_path(journey, workers, &control_plane),
        _ => Vec::new(),
    };
    Ok(Path {
        control_plane,
        workers,
    })
}

/// Versions between the two, each newer than the first and older than the last.
fn between<'a>(
    versions: &'a [Version],
    from: &'a Version,
    to: &'a Version,
) -> impl Iterator<Item = &'a Version> {
    versions
        .iter()
        .filter(move |one| one.compare(from) == Ordering::Greater && one.compare(to) == Ordering::Less)
}

fn control_plane_path(journey: &Journey<'_>) -> Result<Vec<Version>, NoPath> {
    let (from, to) = (journey.control_plane, journey.to);
    if same(from, to) {
        return Ok(Vec::new());
    }
    let mut path: Vec<Version> = between(journey.mandatory, from, to).cloned().collect();
    // A minor version without a mandatory release is taken at the newest one that is known.
    for minors in 1..from.minors_to(to) {
        let minor = from.minor() + minors.unsigned_abs();
        if path.iter().any(|version| version.minor() == minor) {
            continue;
        }
        let newest = between(journey.known, from, to)
            .filter(|version| version.minor() == minor)
            .max_by(|one, other| one.compare(other));
        match newest {
            Some(version) => path.push(version.clone()),
            None => {
                let series = format!("v1.{minor}");
                return Err(NoPath::Gap {
                    series,
                    from: from.to_string(),
                    to: to.to_string(),
                });
            }
        }
    }
    path.sort_by(Version::compare);
    path.dedup_by(|one, other| one.compare(other) == Ordering::Equal);
    path.push(to.clone());
    Ok(path)
}

/// Workers take mandatory versions, and otherwise the farthest that their kubelets may go; the control plane is there before them.
fn workers_path(journey: &Journey<'_>, workers: &Version, control_plane: &[Version]) -> Vec<Version> {
    let mut stops: Vec<Version> = Vec::new();
    // Where the control plane stands is a stop as well: workers may be behind it.
    let available: Vec<&Version> = std::iter::once(journey.control_plane)
        .chain(control_plane)
        .filter(|version| version.compare(workers) == Ordering::Greater || same(version, journey.to))
        .collect();
    let mut at = workers.clone();
    for (index, version) in available.iter().enumerate() {
        let is_mandatory = journey
            .mandatory
            .iter()
            .any(|mandatory| mandatory.compare(version) == Ordering::Equal);
        // The control plane may go on only as far as the kubelets allow it.
        let next_is_too_far = available
            .get(index + 1)
            .is_some_and(|next| at.minors_to(next) > KUBELET_BEHIND);
        if is_mandatory || next_is_too_far || same(version, journey.to) {
            at = (*version).clone();
            stops.push(at.clone());
        }
    }
    stops
}
