//! Pausing: by the Cluster or by an annotation on the object itself, and the `Paused` condition that tells it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    annotations,
    condition::{Report, Status},
    names::{annotation, condition, reason},
    view::Cluster,
};

/// Who paused the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paused {
    pub by_cluster: bool,
    pub by_annotation: bool,
}

/// Whether and by whom the object is paused. An object without a Cluster can still be paused by its annotation.
pub fn paused(cluster: Option<&Cluster>, metadata: &ObjectMeta) -> Paused {
    Paused {
        by_cluster: cluster.is_some_and(Cluster::is_paused),
        by_annotation: annotations::has_annotation(metadata, annotation::PAUSED),
    }
}

impl Paused {
    pub fn is_paused(self) -> bool {
        self.by_cluster || self.by_annotation
    }

    /// The `Paused` condition of an object of this kind.
    pub fn report(self, kind: &str) -> Report {
        if !self.is_paused() {
            return Report::new(condition::PAUSED, Status::False, reason::NOT_PAUSED, "");
        }
        let by_cluster = self
            .by_cluster
            .then(|| "Cluster spec.paused is set to true".to_owned());
        let by_annotation = self
            .by_annotation
            .then(|| format!("{kind} has the {} annotation", annotation::PAUSED));
        let message: Vec<_> = by_cluster.into_iter().chain(by_annotation).collect();
        Report::new(
            condition::PAUSED,
            Status::True,
            reason::PAUSED,
            message.join(", "),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(is_paused: bool) -> Cluster {
        let mut cluster = Cluster::default();
        cluster.spec.paused = Some(is_paused);
        cluster
    }

    fn annotated() -> ObjectMeta {
        ObjectMeta {
            annotations: Some([(annotation::PAUSED.to_owned(), String::new())].into()),
            ..Default::default()
        }
    }

    #[test]
    fn either_the_cluster_or_the_annotation_pauses() {
        let plain = ObjectMeta::default();
        for (cluster, metadata, status, message) in [
            (Some(cluster(false)), plain.clone(), Status::False, ""),
            (None, plain.clone(), Status::False, ""),
            (
                Some(cluster(true)),
                plain,
                Status::True,
                "Cluster spec.paused is set to true",
            ),
            (
                None,
                annotated(),
                Status::True,
                "EdgeMachine has the cluster.x-k8s.io/paused annotation",
            ),
            (
                Some(cluster(true)),
                annotated(),
                Status::True,
                "Cluster spec.paused is set to true, EdgeMachine has the cluster.x-k8s.io/paused annotation",
            ),
        ] {
            let report = paused(cluster.as_ref(), &metadata).report("EdgeMachine");
            assert_eq!((report.status, report.message.as_str()), (status, message));
        }
    }
}
