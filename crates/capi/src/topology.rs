//! ClusterClass: its server-side-apply dry runs must pass immutability checks, so that a changed template is
//! replaced instead of being refused.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use slipway_runtime::admission::Request;

use crate::names::annotation;

/// Whether the request is a dry run by Cluster API's topology controller. Both marks are needed: an annotation that
/// a user left on an object must not open a real write.
pub fn is_dry_run(request: &Request) -> bool {
    request.dry_run
        && request
            .object
            .as_ref()
            .is_some_and(|object| object["metadata"]["annotations"][annotation::TOPOLOGY_DRY_RUN].is_string())
}

/// The same of an object that was read already.
pub fn is_dry_run_of(dry_run: bool, metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    dry_run && annotations.is_some_and(|annotations| annotations.contains_key(annotation::TOPOLOGY_DRY_RUN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use slipway_runtime::admission::Operation;

    fn request(dry_run: bool, object: Option<Value>) -> Request {
        Request {
            operation: Operation::Update,
            group: String::new(),
            version: String::new(),
            kind: String::new(),
            namespace: String::new(),
            name: String::new(),
            dry_run,
            user: String::new(),
            object,
            old_object: None,
        }
    }

    #[test]
    fn both_the_annotation_and_the_dry_run_are_needed() {
        let annotated = Some(json!({"metadata": {"annotations": {"topology.cluster.x-k8s.io/dry-run": ""}}}));
        assert!(is_dry_run(&request(true, annotated.clone())));
        assert!(!is_dry_run(&request(false, annotated)));
        assert!(!is_dry_run(&request(true, Some(json!({"metadata": {}})))));
        assert!(!is_dry_run(&request(true, None)));
    }
}
