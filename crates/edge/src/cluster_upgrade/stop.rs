//! Which version is taken next, and by whom: pure. The way is the policy's; a stop that was asked for is finished before the next one.

use super::facts::{Asked, ClusterFacts, Facts, MachinesFacts};
use crate::{
    upgrade_policy::path::{self, Journey},
    version::Version,
};

/// Who takes a version now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Workers may skip it.
    ControlPlane,
    /// The control plane is there.
    Workers,
    /// The version stays and the image changes.
    Everybody,
}

/// The version that is to be taken now, with its image. `None`: all have been.
pub(super) fn stop(facts: &Facts, cluster: &ClusterFacts) -> Result<Option<(Who, Asked)>, String> {
    let parse = |text: &str| {
        text.parse::<Version>()
            .map_err(|error| format!("{text:?}: {error}"))
    };
    let to = parse(&facts.spec.version)?;
    let image_of = |version: &Version| -> Result<Asked, String> {
        let found = facts
            .spec
            .images
            .iter()
            .find(|image| image.version == version.to_string());
        let found = found.ok_or_else(|| {
            format!("spec.images has no image of {version}, which is on the way to {to}: add it")
        })?;
        Ok(Asked {
            version: found.version.clone(),
            image: Some(found.image.clone()),
        })
    };
    let oldest_of = |machines: &MachinesFacts| match machines.oldest() {
        Some(version) => Ok(version),
        None => parse(&machines.asked.version),
    };
    // A stop that was asked for is finished before the next one.
    let under_way = match &cluster.topology {
        Some(topology) => topology.clone(),
        None => cluster.control_plane.asked.clone(),
    };
    let control_plane = oldest_of(&cluster.control_plane)?;
    let mut workers: Option<Version> = None;
    for deployment in cluster
        .deployments
        .iter()
        .filter(|deployment| deployment.replicas > 0)
    {
        let version = oldest_of(deployment)?;
        if workers
            .as_ref()
            .is_none_or(|known| version.compare(known).is_lt())
        {
            workers = Some(version);
        }
    }
    let asked = parse(&under_way.version)?;
    let is_under_way =
        facts.spec.images.iter().any(|image| {
            image.version == under_way.version && Some(&image.image) == under_way.image.as_ref()
        });
    // A topology takes its workers along, and is not told of the next version before they are there.
    let is_settled = match &cluster.topology {
        Some(topology) => cluster
            .everybody()
            .all(|machines| machines.is_at(topology) && machines.is_settled()),
        None => cluster.control_plane.is_settled(),
    };
    if is_under_way && !is_settled {
        return Ok(Some((Who::ControlPlane, image_of(&asked)?)));
    }
    let known: Vec<Version> = facts
        .spec
        .images
        .iter()
        .map(|image| image.version.as_str())
        .chain(facts.policy.known_versions.iter().map(String::as_str))
        .filter_map(|version| version.parse().ok())
        .collect();
    let mandatory: Vec<Version> = facts
        .policy
        .mandatory_versions
        .iter()
        .filter_map(|version| version.parse().ok())
        .collect();
    let path = path::plan(&Journey {
        control_plane: &control_plane,
        workers: workers.as_ref(),
        to: &to,
        mandatory: &mandatory,
        known: &known,
    })
    .map_err(|error| error.to_string())?;
    // Workers that have to follow before the control plane goes on.
    let behind = path
        .workers
        .iter()
        .find(|version| version.compare(&control_plane).is_le());
    if let Some(version) = behind {
        return Ok(Some((Who::Workers, image_of(version)?)));
    }
    match path.control_plane.first() {
        Some(version) => Ok(Some((Who::ControlPlane, image_of(version)?))),
        // The same version with another image is an upgrade as well.
        None => {
            let last = image_of(&to)?;
            let is_done = cluster
                .everybody()
                .all(|machines| machines.is_at(&last) && machines.is_settled());
            Ok((!is_done).then_some((Who::Everybody, last)))
        }
    }
}
