//! Updates in place: the marks on a Machine and its objects, and the writes that start one, in the order that
//! Cluster API's own control plane uses. The order matters: the first mark commits to the update, the last one lets
//! the Machine controller call the extension, and every write in between can be repeated after a crash.

pub mod objects;

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use crate::{
    Error, annotations,
    apply::{self, FieldManagers, spec_intent},
    hook::types::MachineObjects,
    names::annotation,
};

/// The hook that performs an update.
pub const UPDATE_MACHINE: &str = "UpdateMachine";

/// Whether an update was decided, or is about to be performed: such a Machine is neither up to date nor available,
/// and no other one is touched.
pub fn is_update_in_progress(metadata: &ObjectMeta) -> bool {
    annotations::has_annotation(metadata, annotation::UPDATE_IN_PROGRESS)
        || is_pending(metadata, UPDATE_MACHINE)
}

/// Whether an update was decided but its start was interrupted: it is always continued, never undone.
pub fn is_half_triggered(metadata: &ObjectMeta) -> bool {
    annotations::has_annotation(metadata, annotation::UPDATE_IN_PROGRESS)
        && !is_pending(metadata, UPDATE_MACHINE)
}

fn pending(metadata: &ObjectMeta) -> BTreeSet<&str> {
    metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(annotation::PENDING_HOOKS))
        .into_iter()
        .flat_map(|list| list.split(','))
        .filter(|hook| !hook.is_empty())
        .collect()
}

/// Whether a hook is to be called for the object.
pub fn is_pending(metadata: &ObjectMeta, hook: &str) -> bool {
    pending(metadata).contains(hook)
}

/// The merge patch that asks for a hook to be called. `None` if it has been asked for.
pub fn mark_pending(metadata: &ObjectMeta, hook: &str) -> Option<Value> {
    let mut hooks = pending(metadata);
    hooks.insert(hook).then(|| {
        let list: Vec<_> = hooks.into_iter().collect();
        annotations::set_annotation(annotation::PENDING_HOOKS, Some(&list.join(",")))
    })
}

/// The merge patch after a hook was called. `None` if it was not asked for.
pub fn mark_done(metadata: &ObjectMeta, hook: &str) -> Option<Value> {
    let mut hooks = pending(metadata);
    hooks.remove(hook).then(|| {
        let list = hooks.into_iter().collect::<Vec<_>>().join(",");
        annotations::set_annotation(
            annotation::PENDING_HOOKS,
            Some(list.as_str()).filter(|list| !list.is_empty()),
        )
    })
}

/// One write on the way to an update.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// A merge patch: used where others race for the same annotation, which server-side apply would give to one.
    Merge { target: Target, patch: Value },
    /// An apply with force by this manager.
    Apply {
        target: Target,
        manager: &'static str,
        intent: Value,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Machine,
    InfrastructureMachine,
    BootstrapConfig,
}

/// The writes that are left to start the update of a Machine. Done in order and each at least once, they can be
/// computed again after any of them: what is there already is not written again or is written the same.
pub fn trigger(machine: &ObjectMeta, desired: &MachineObjects, managers: FieldManagers) -> Vec<Write> {
    let mut writes = Vec::new();
    if !annotations::has_annotation(machine, annotation::UPDATE_IN_PROGRESS) {
        writes.push(Write::Merge {
            target: Target::Machine,
            patch: annotations::set_annotation(annotation::UPDATE_IN_PROGRESS, Some("")),
        });
    }
    writes.push(Write::Apply {
        target: Target::InfrastructureMachine,
        manager: managers.spec,
        intent: marked(
            &desired.infrastructure_machine,
            &[annotation::CLONED_FROM_NAME, annotation::CLONED_FROM_GROUP_KIND],
        ),
    });
    if let Some(config) = &desired.bootstrap_config {
        // Only one that was cloned says from what.
        writes.push(Write::Apply {
            target: Target::BootstrapConfig,
            manager: managers.spec,
            intent: marked(
                config,
                &[annotation::CLONED_FROM_NAME, annotation::CLONED_FROM_GROUP_KIND],
            ),
        });
    }
    writes.push(Write::Apply {
        target: Target::Machine,
        manager: managers.spec,
        intent: spec_intent(&desired.machine),
    });
    if let Some(patch) = mark_pending(machine, UPDATE_MACHINE) {
        writes.push(Write::Merge {
            target: Target::Machine,
            patch,
        });
    }
    writes
}

/// The resources of a Machine and its objects, at the versions they are written in.
#[derive(Clone, Debug)]
pub struct Resources {
    pub machine: ApiResource,
    pub infrastructure_machine: ApiResource,
    pub bootstrap_config: Option<ApiResource>,
}

/// Does the writes in order, and stops at the first that fails. Returns the Machine as it was written last: the next
/// reconcile must not start before it has seen this version.
pub async fn perform(
    client: &Client,
    resources: &Resources,
    machine: &ObjectMeta,
    writes: &[Write],
) -> Result<Option<DynamicObject>, Error> {
    let namespace = machine.namespace.as_deref().unwrap_or_default();
    let name = machine.name.as_deref().unwrap_or_default();
    let mut written = None;
    for write in writes {
        let resource = |target: &Target| match target {
            Target::Machine => Some(&resources.machine),
            Target::InfrastructureMachine => Some(&resources.infrastructure_machine),
            Target::BootstrapConfig => resources.bootstrap_config.as_ref(),
        };
        let (target, stored) = match write {
            Write::Merge { target, patch } => {
                let Some(resource) = resource(target) else {
                    continue;
                };
                (
                    target,
                    apply::merge(client, resource, namespace, name, patch).await?,
                )
            }
            Write::Apply {
                target,
                manager,
                intent,
            } => {
                let Some(resource) = resource(target) else {
                    continue;
                };
                (
                    target,
                    apply::apply(client, resource, manager, intent, false).await?,
                )
            }
        };
        if *target == Target::Machine {
            written = Some(stored);
        }
    }
    Ok(written)
}

/// The intent for an object that is updated: its spec and the mark. Labels and all other annotations belong to the
/// metadata manager and are left out, so that the spec manager does not take them over.
fn marked(object: &Value, keep: &[&str]) -> Value {
    let mut intent = spec_intent(object);
    let mut annotations = json!({ (annotation::UPDATE_IN_PROGRESS): "" });
    for key in keep {
        let value = &object["metadata"]["annotations"][key];
        if !value.is_null() {
            annotations[key] = value.clone();
        }
    }
    if let Some(metadata) = intent["metadata"].as_object_mut() {
        metadata.remove("labels");
        metadata.insert("annotations".to_owned(), annotations);
    }
    intent
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGERS: FieldManagers = FieldManagers {
        spec: "spec-manager",
        metadata: "metadata-manager",
    };

    fn annotated(pairs: &[(&str, &str)]) -> ObjectMeta {
        ObjectMeta {
            annotations: Some(
                pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            ),
            ..Default::default()
        }
    }

    #[test]
    fn pending_hooks_are_a_sorted_list() {
        let none = ObjectMeta::default();
        let list = |patch: &Value| patch["metadata"]["annotations"][annotation::PENDING_HOOKS].clone();
        assert_eq!(
            list(&mark_pending(&none, UPDATE_MACHINE).unwrap()),
            "UpdateMachine"
        );
        let other = annotated(&[(annotation::PENDING_HOOKS, "Zoo,AfterClusterUpgrade")]);
        assert_eq!(
            list(&mark_pending(&other, UPDATE_MACHINE).unwrap()),
            "AfterClusterUpgrade,UpdateMachine,Zoo"
        );
        let both = annotated(&[(annotation::PENDING_HOOKS, "UpdateMachine,Zoo")]);
        assert_eq!(mark_pending(&both, UPDATE_MACHINE), None);
        assert_eq!(list(&mark_done(&both, UPDATE_MACHINE).unwrap()), "Zoo");
        let last = annotated(&[(annotation::PENDING_HOOKS, "UpdateMachine")]);
        assert_eq!(list(&mark_done(&last, UPDATE_MACHINE).unwrap()), Value::Null);
        assert_eq!(mark_done(&none, UPDATE_MACHINE), None);
    }

    #[test]
    fn a_mark_counts_whatever_its_value() {
        assert!(!is_update_in_progress(&ObjectMeta::default()));
        let marked = annotated(&[(annotation::UPDATE_IN_PROGRESS, "{\"affectsAvailability\":true}")]);
        assert!(is_update_in_progress(&marked) && is_half_triggered(&marked));
        let called = annotated(&[
            (annotation::UPDATE_IN_PROGRESS, ""),
            (annotation::PENDING_HOOKS, UPDATE_MACHINE),
        ]);
        assert!(is_update_in_progress(&called) && !is_half_triggered(&called));
    }

    fn names(writes: &[Write]) -> Vec<(&'static str, Target)> {
        writes
            .iter()
            .map(|write| match write {
                Write::Merge { target, .. } => ("merge", *target),
                Write::Apply { target, .. } => ("apply", *target),
            })
            .collect()
    }

    #[test]
    fn an_update_starts_in_the_order_of_cluster_api_and_goes_on_after_a_crash() {
        use Target::{BootstrapConfig, InfrastructureMachine, Machine};
        let object = |kind: &str| {
            json!({"apiVersion": "a/v1", "kind": kind, "metadata": {"name": "m", "namespace": "n",
                "labels": {"l": "1"}, "annotations": {"cluster.x-k8s.io/cloned-from-name": "t", "other": "x"}},
                "spec": {"image": 2}, "status": {"x": 1}})
        };
        let desired = MachineObjects {
            machine: object("Machine"),
            infrastructure_machine: object("EdgeMachine"),
            bootstrap_config: Some(object("KThreesConfig")),
        };
        let writes = trigger(&ObjectMeta::default(), &desired, MANAGERS);
        assert_eq!(
            names(&writes),
            [
                ("merge", Machine),
                ("apply", InfrastructureMachine),
                ("apply", BootstrapConfig),
                ("apply", Machine),
                ("merge", Machine)
            ]
        );
        let Write::Apply { intent, manager, .. } = &writes[1] else {
            panic!("{writes:?}")
        };
        assert_eq!(*manager, "spec-manager");
        assert_eq!(
            *intent,
            json!({"apiVersion": "a/v1", "kind": "EdgeMachine",
                "metadata": {"name": "m", "namespace": "n", "annotations": {
                    "cluster.x-k8s.io/cloned-from-name": "t",
                    "in-place-updates.internal.cluster.x-k8s.io/update-in-progress": ""}},
                "spec": {"image": 2}})
        );

        let half = annotated(&[(annotation::UPDATE_IN_PROGRESS, "")]);
        assert_eq!(names(&trigger(&half, &desired, MANAGERS)).len(), 4);
        assert_eq!(
            names(&trigger(&half, &desired, MANAGERS))[0],
            ("apply", InfrastructureMachine)
        );
    }
}
