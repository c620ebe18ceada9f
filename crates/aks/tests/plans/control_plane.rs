//! Control planes: the plans of many situations in a golden file, where the first pool comes from, and what the status says.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};
use slipway_aks::{
    control_plane::{
        plan::{Action, Identity, Observed, PoolObject, endpoint, follow_up, plan, unconfirmed_groups},
        status::{Steps, after, status},
    },
    planning::{Problem, Unknown, Waiting, words},
};
use slipway_azure::{
    diff::Record,
    ownership::Foreign,
    reconcile::{Error, ResourceKind, ResourceState, StepStatus, step},
    workload::stored::StoredSecret,
};
use slipway_capi::frame::{Attempt, Plan, Progress};
use slipway_runtime::{Class, ObjectKey, Outcome};

use super::{CLUSTER, GROUP, NETWORK, golden, machine_pool, now, plane, pool};

const SUBNET: &str = "/subscriptions/sub/resourceGroups/group/providers/Microsoft.Network/virtualNetworks/network/subnets/nodes";
const OWNED: &str = "sigs.k8s.io_cluster-api-provider-azure_cluster_fleet";

fn owned() -> Value {
    json!({"tags": {(OWNED): "owned"}})
}

fn observed(states: &[(&str, Option<Value>)]) -> Observed {
    let mut all: BTreeMap<String, ResourceState> = [GROUP, NETWORK, SUBNET, CLUSTER]
        .iter()
        .map(|id| (id.to_lowercase(), ResourceState::Absent))
        .collect();
    for (id, body) in states {
        all.insert(
            id.to_lowercase(),
            body.clone().map_or(ResourceState::Absent, ResourceState::Present),
        );
    }
    let mut observed = Observed {
        plane: plane(&json!({"uid": "plane"}), &json!({}), &Value::Null),
        cluster_name: "fleet".into(),
        subscription: "sub".into(),
        pools: vec![PoolObject {
            pool: pool(&json!({}), &json!({})),
            machine_pool: Some(machine_pool(&json!({}))),
        }],
        states: all,
        pool_timeout: Duration::from_mins(5),
        ..Observed::default()
    };
    observed.had_come_up = observed.has_come_up();
    observed
}

/// As `observed`, changed.
fn with(states: &[(&str, Option<Value>)], change: impl FnOnce(&mut Observed)) -> Observed {
    let mut observed = observed(states);
    change(&mut observed);
    observed
}

fn running() -> Value {
    json!({"properties": {"fqdn": "plane.hcp", "currentKubernetesVersion": "1.31.0", "provisioningState": "Succeeded"}, "tags": {"theirs": "1"}})
}

/// What is planned when everything that is asked for was sent, and Azure shows just that.
fn settle(observed: &mut Observed) {
    observed.records.ensure_mark(|| "mark".to_owned());
    let desired: Vec<_> = plan(observed, now())
        .actions()
        .filter_map(|action| match action {
            Action::Ensure(desired) => Some(desired.clone()),
            _ => None,
        })
        .collect();
    for resource in desired {
        let version = step::api_version(&resource.manifest).expect("a version");
        let put = step::put(&resource.manifest, "sub").expect("a request");
        let mut body = put.body.clone();
        body["properties"]["provisioningState"] = json!("Succeeded");
        if resource.kind == ResourceKind::ManagedCluster {
            json_patch::merge(&mut body, &running());
        } else {
            json_patch::merge(&mut body, &owned());
        }
        observed
            .records
            .intend(&resource.id, &version, &ResourceState::Absent, now());
        let record = Record::sent(&put.body, &[]).settle(&put.mapping, &body);
        observed.records.keep(&resource.id, record);
        let id = resource.id.to_lowercase();
        observed.states.insert(id, ResourceState::Present(body));
    }
    observed.records.stored();
    observed.had_come_up = observed.has_come_up();
}

fn standing() -> Observed {
    let mut observed = observed(&[]);
    settle(&mut observed);
    // The cluster is rendered without its pools once it is there.
    settle(&mut observed);
    observed
}

fn secret(value: &Value) -> Secret {
    let mut secret = json!({"metadata": {"name": "fleet-kubeconfig", "uid": "secret",
            "labels": {"cluster.x-k8s.io/cluster-name": "fleet"},
            "annotations": {"slipway.dev/aks-endpoint": "plane.hcp:443"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "k", "name": "plane", "uid": "plane", "controller": true}]},
        "type": "cluster.x-k8s.io/secret"});
    json_patch::merge(&mut secret, value);
    serde_json::from_value(secret).expect("a Secret")
}

/// A kubeconfig Secret as it should be.
fn kubeconfig(patch: &Value) -> StoredSecret {
    StoredSecret {
        is_readable: true,
        ca: Some(b"CA".to_vec()),
        ..StoredSecret::kubeconfig(&secret(patch))
    }
}

fn ca(ca: &[u8]) -> StoredSecret {
    StoredSecret {
        ca: Some(ca.to_vec()),
        ..StoredSecret::ca(&secret(&json!({})))
    }
}

/// A cluster at rest, with its endpoint and Secrets.
fn connected() -> Observed {
    let mut observed = standing();
    observed.plane.spec.control_plane_endpoint = Some(slipway_aks::api::Endpoint {
        host: "plane.hcp".into(),
        port: 443,
    });
    observed.administrator = Some(kubeconfig(&json!({})));
    observed.ca = Some(ca(b"CA"));
    observed
}

fn changed(mut observed: Observed, change: impl FnOnce(&mut Observed)) -> Observed {
    change(&mut observed);
    observed
}

fn property(observed: &mut Observed, id: &str, patch: &Value) {
    let state = observed.states.get_mut(&id.to_lowercase());
    if let Some(ResourceState::Present(body)) = state {
        json_patch::merge(body, patch);
    }
}

fn denied() -> Problem {
    Problem {
        code: "AuthorizationFailed".to_owned(),
        message: "the identity may not read".to_owned(),
        class: Class::Denied,
    }
}

fn identity(is_held: bool) -> Identity {
    Identity {
        key: ObjectKey::namespaced("default", "login"),
        is_held,
    }
}

fn delete(observed: &mut Observed) {
    observed.plane.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:59:30Z")).expect("a time");
}

fn extension(name: &str) -> String {
    format!("{CLUSTER}/providers/Microsoft.KubernetesConfiguration/extensions/{name}")
}

fn cluster_manifest(observed: &Observed) -> Option<Value> {
    plan(observed, now()).actions().find_map(|action| match action {
        Action::Ensure(desired) if desired.kind == ResourceKind::ManagedCluster => {
            Some(desired.manifest.clone())
        }
        _ => None,
    })
}

#[test]
fn the_plan_of_a_control_plane() {
    let situations = [creating(), connecting(), changing(), deleting()].concat();
    let situations = situations
        .into_iter()
        .map(|(title, observed)| (title, plan(&observed, now()).to_string()))
        .collect();
    golden("control_plane.golden", situations);
}

fn creating() -> Vec<(&'static str, Observed)> {
    vec![
        (
            "objects of another installation may be there",
            with(&[], |observed| {
                observed.must_detach = true;
                observed.identity = Some(identity(false));
            }),
        ),
        (
            "the identity may not read",
            with(&[], |observed| observed.problem = Some(denied())),
        ),
        (
            "a new cluster",
            with(&[], |observed| observed.identity = Some(identity(false))),
        ),
        (
            "group, network and subnet are brought",
            observed(&[
                (GROUP, Some(json!({}))),
                (NETWORK, Some(json!({"tags": {"a": "b"}}))),
                (SUBNET, Some(json!({}))),
            ]),
        ),
        (
            "Azure has not told about the group",
            with(&[], |observed| {
                observed.states.remove(&GROUP.to_lowercase());
            }),
        ),
        (
            "the request limit is reached",
            with(&[], |observed| {
                observed.states.remove(&GROUP.to_lowercase());
                let unknown = Unknown::Throttled(Duration::from_secs(30));
                observed.unknown.insert(GROUP.to_lowercase(), unknown);
            }),
        ),
        ("no system pool yet", with(&[], |observed| observed.pools.clear())),
        (
            "a range that is none",
            with(&[], |observed| observed.services = vec!["nonsense".into()]),
        ),
        (
            "another owns the AKS cluster",
            with(&[(CLUSTER, Some(running()))], |observed| {
                let object = "AzureManagedControlPlane other/plane".to_owned();
                let foreign = Foreign::Marked { object };
                observed.foreign.insert(CLUSTER.to_lowercase(), foreign);
            }),
        ),
        (
            "the AKS cluster is being created",
            changed(standing(), |observed| {
                property(
                    observed,
                    CLUSTER,
                    &json!({"properties": {"provisioningState": "Creating"}}),
                );
                observed.had_come_up = false;
            }),
        ),
    ]
}

fn connecting() -> Vec<(&'static str, Observed)> {
    vec![
        ("the cluster has come up", standing()),
        ("at rest", connected()),
        (
            "the kubeconfig is of another API server, and the CA is another",
            changed(connected(), |observed| {
                let elsewhere = json!({"metadata": {"annotations": {"slipway.dev/aks-endpoint": "old:443"}}});
                observed.administrator = Some(kubeconfig(&elsewhere));
                observed.ca = Some(ca(b"other"));
            }),
        ),
        (
            "the CA is another",
            changed(connected(), |observed| observed.ca = Some(ca(b"other"))),
        ),
        (
            "the kubeconfig is somebody else's",
            changed(connected(), |observed| {
                observed.administrator = Some(kubeconfig(&json!({"metadata": {"ownerReferences": null}})));
                observed.ca = None;
            }),
        ),
        (
            "the kubeconfig is of another type",
            changed(connected(), |observed| {
                observed.administrator = Some(kubeconfig(&json!({"type": "Opaque"})));
            }),
        ),
        (
            "everybody signs in with Entra, and a token lives",
            changed(connected(), |observed| {
                let entra =
                    json!({"properties": {"aadProfile": {"managed": true}, "disableLocalAccounts": true}});
                property(observed, CLUSTER, &entra);
                let renew =
                    json!({"metadata": {"annotations": {"slipway.dev/renew-after": "2026-01-01T01:30:00Z"}}});
                observed.administrator = Some(kubeconfig(&renew));
            }),
        ),
    ]
}

fn changing() -> Vec<(&'static str, Observed)> {
    vec![
        (
            "a new version",
            changed(connected(), |observed| {
                observed.plane.spec.class.version = "v1.32.0".into();
            }),
        ),
        (
            "the network vanished",
            changed(connected(), |observed| {
                observed
                    .states
                    .insert(NETWORK.to_lowercase(), ResourceState::Absent);
            }),
        ),
        (
            "the AKS cluster vanished",
            changed(connected(), |observed| {
                observed
                    .states
                    .insert(CLUSTER.to_lowercase(), ResourceState::Absent);
            }),
        ),
        (
            "the AKS cluster vanished, and that was said",
            changed(connected(), |observed| {
                observed
                    .states
                    .insert(CLUSTER.to_lowercase(), ResourceState::Absent);
                let told = json!({"v1beta2": {"conditions": [{"type": "ManagedClusterRunning", "status": "False",
                    "reason": "Vanished", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
                observed.plane.status = serde_json::from_value(told).expect("a status");
            }),
        ),
        (
            "of three extensions we made one is still named, and one is gone",
            changed(connected(), |observed| {
                let kept = json!([{"name": "kept", "extensionType": "t"}]);
                observed.plane.spec.class.extensions = serde_json::from_value(kept).expect("extensions");
                for name in ["ours", "kept", "gone"] {
                    let id = extension(name);
                    observed
                        .records
                        .intend(&id, "2024-11-01", &ResourceState::Absent, now());
                    observed
                        .states
                        .insert(id.to_lowercase(), ResourceState::Present(json!({})));
                }
                observed
                    .states
                    .insert(extension("gone").to_lowercase(), ResourceState::Absent);
                observed.states.insert(
                    extension("theirs").to_lowercase(),
                    ResourceState::Present(json!({})),
                );
            }),
        ),
    ]
}

fn deleting() -> Vec<(&'static str, Observed)> {
    let gone = |ids: &[&str]| {
        changed(connected(), |observed| {
            delete(observed);
            observed.identity = Some(identity(true));
            for id in ids {
                observed.states.insert(id.to_lowercase(), ResourceState::Absent);
            }
        })
    };
    vec![
        (
            "deleted, with a fleet and an extension",
            changed(connected(), |observed| {
                delete(observed);
                observed.identity = Some(identity(true));
                let spec = json!({
                    "fleetsMember": {"name": "m", "managerName": "f", "managerResourceGroup": "fg"},
                    "extensions": [{"name": "e", "extensionType": "t"}]
                });
                observed.plane = plane(
                    &json!({"deletionTimestamp": "2026-01-01T00:59:30Z"}),
                    &spec,
                    &Value::Null,
                );
                let member = "/subscriptions/sub/resourceGroups/fg/providers/Microsoft.ContainerService/fleets/f/members/m";
                for id in [extension("e"), member.to_owned()] {
                    observed
                        .states
                        .insert(id.to_lowercase(), ResourceState::Present(json!({})));
                }
            }),
        ),
        ("deleted: the group is left", gone(&[CLUSTER, SUBNET, NETWORK])),
        (
            "deleted: others are in the group",
            changed(gone(&[CLUSTER, SUBNET, NETWORK]), |observed| {
                let others = vec!["another cluster".to_owned()];
                observed.others_in_groups.insert(GROUP.to_lowercase(), others);
            }),
        ),
        (
            "deleted: nothing is left",
            gone(&[CLUSTER, SUBNET, NETWORK, GROUP]),
        ),
        (
            "deleted: all but the cluster is brought",
            with(
                &[
                    (GROUP, Some(json!({}))),
                    (NETWORK, Some(json!({}))),
                    (SUBNET, Some(json!({}))),
                    (CLUSTER, Some(running())),
                ],
                delete,
            ),
        ),
        (
            "deleted: Azure has not told about the cluster",
            changed(gone(&[SUBNET, NETWORK, GROUP]), |observed| {
                observed.states.remove(&CLUSTER.to_lowercase());
            }),
        ),
        (
            "deleted: nobody signs in, and nothing was made",
            with(&[], |observed| {
                delete(observed);
                observed.problem = Some(denied());
            }),
        ),
        (
            "deleted: nobody signs in",
            changed(gone(&[]), |observed| observed.problem = Some(denied())),
        ),
        (
            "deleted: nobody signs in, and what remains is let go",
            changed(gone(&[]), |observed| {
                observed.problem = Some(denied());
                observed.plane.metadata.annotations =
                    Some([("slipway.dev/orphan".to_owned(), "true".to_owned())].into());
            }),
        ),
    ]
}

#[test]
fn the_cluster_is_asked_for_with_its_pools_until_it_came_up() {
    let manifest = cluster_manifest(&observed(&[])).expect("a cluster");
    assert_eq!(manifest["spec"]["agentPoolProfiles"][0]["name"], "pool");
    assert_eq!(manifest["spec"]["agentPoolProfiles"][0]["count"], 3);
    let mut failed = running();
    failed["properties"]["provisioningState"] = json!("Failed");
    let never = observed(&[(CLUSTER, Some(failed.clone()))]);
    let manifest = cluster_manifest(&never).expect("a cluster");
    assert_eq!(manifest["spec"]["agentPoolProfiles"][0]["name"], "pool");
    let writes = |observed: &Observed| plan(observed, now()).to_string().contains("write the kubeconfig");
    assert!(!writes(&never));
    let once = changed(observed(&[(CLUSTER, Some(failed))]), |observed| {
        let endpoint = json!({"controlPlaneEndpoint": {"host": "plane.hcp", "port": 443}});
        observed.plane = plane(&json!({}), &endpoint, &Value::Null);
    });
    let manifest = cluster_manifest(&once).expect("a cluster");
    assert_eq!(manifest["spec"].get("agentPoolProfiles"), None);
    assert!(writes(&once), "who uses the cluster keeps its kubeconfig");
}

#[test]
fn a_group_is_not_deleted_before_it_is_known_who_else_is_in_it() {
    let (_, mut left) = deleting().swap_remove(1);
    let planned = plan(&left, now());
    assert_eq!(unconfirmed_groups(&left, &planned), [GROUP.to_owned()]);
    left.others_in_groups.insert(GROUP.to_lowercase(), Vec::new());
    assert_eq!(
        unconfirmed_groups(&left, &plan(&left, now())),
        Vec::<String>::new()
    );
    let (_, whole) = deleting().swap_remove(0);
    assert_eq!(
        unconfirmed_groups(&whole, &plan(&whole, now())),
        Vec::<String>::new()
    );
}

/// A plan whose entries all came to the same.
fn came_to(planned: Plan<Action>, outcome: Outcome) -> Progress<Action, Error> {
    let mut progress = Progress::new(planned);
    for index in 0..progress.plan().entries.len() {
        progress.note(index, Attempt::Came(outcome));
    }
    progress
}

#[test]
fn the_ca_follows_from_a_kubeconfig_that_was_written() {
    let mut observed = standing();
    let progress = came_to(plan(&observed, now()), Outcome::Done);
    assert_eq!(follow_up(&observed, &progress).to_string(), "nothing to do\n");
    observed.administrator = Some(kubeconfig(&json!({})));
    assert_eq!(
        follow_up(&observed, &progress).to_string(),
        "-  write the CA: there is no such Secret\n"
    );
    observed.records.keep("/a", Record::sent(&json!({}), &[]));
    observed.had_come_up = false;
    assert_eq!(
        follow_up(&observed, &progress).to_string(),
        "1. store what was applied: a field that is removed later is found by it\n\
         -  write the CA: there is no such Secret\n\
         again in 50ms: the cluster has come up: its endpoint and kubeconfigs are next\n"
    );
}

/// Why, the pool objects, the infrastructure, when, and the pools of the cluster or what is waited for.
type Row = (
    &'static str,
    Vec<PoolObject>,
    Value,
    &'static str,
    Result<Vec<&'static str>, Waiting>,
);

#[test]
fn the_first_pool_comes_from_where_it_is_described() {
    let user = PoolObject {
        pool: pool(&json!({}), &json!({"mode": "User", "name": "user"})),
        machine_pool: Some(machine_pool(&json!({}))),
    };
    let lonely = PoolObject {
        pool: pool(&json!({}), &json!({})),
        machine_pool: None,
    };
    let leaving = PoolObject {
        pool: pool(&json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), &json!({})),
        machine_pool: Some(machine_pool(&json!({}))),
    };
    let inline = json!({"spec": {"defaultPoolTemplate": {"replicas": 2, "spec": {"mode": "System", "sku": "large", "name": "first"}}}});
    let reference = json!({"spec": {"defaultPoolTemplate": {"machinePoolRef": {"name": "later"}}}});
    let until = "2026-01-01T01:04:00Z".parse().expect("a time");
    let pools_of = |manifest: &Value| -> Vec<String> {
        manifest["spec"]["agentPoolProfiles"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pool| format!("{} {} {}", pool["name"], pool["count"], pool["vmSize"]))
            .collect()
    };
    let rows: Vec<Row> = vec![
        (
            "pool without MachinePool",
            vec![lonely],
            json!({}),
            "2026-01-01T02:00:00Z",
            Err(Waiting::ForMachinePool { pool: "pool".into() }),
        ),
        (
            "none yet",
            vec![],
            json!({}),
            "2026-01-01T01:00:00Z",
            Err(Waiting::ForSystemPool { until }),
        ),
        (
            "user pools only",
            vec![user.clone()],
            json!({}),
            "2026-01-01T01:00:00Z",
            Err(Waiting::ForSystemPool { until }),
        ),
        (
            "leaving pools do not count",
            vec![leaving],
            json!({}),
            "2026-01-01T01:00:00Z",
            Err(Waiting::ForSystemPool { until }),
        ),
        (
            "default after the wait",
            vec![],
            json!({}),
            "2026-01-01T01:04:00Z",
            Ok(vec![r#""default" 1 "Standard_D2s_v3""#]),
        ),
        (
            "default beside user pools",
            vec![user],
            json!({}),
            "2026-01-01T01:04:00Z",
            Ok(vec![r#""default" 1 "Standard_D2s_v3""#, r#""user" 3 "small""#]),
        ),
        (
            "inline at once",
            vec![],
            inline,
            "2026-01-01T01:00:00Z",
            Ok(vec![r#""first" 2 "large""#]),
        ),
        (
            "reference",
            vec![],
            reference,
            "2026-01-01T09:00:00Z",
            Err(Waiting::ForReferencedPool { pool: "later".into() }),
        ),
    ];
    for (why, pools, infrastructure, at, expected) in rows {
        let mut observed = observed(&[]);
        observed.pools = pools;
        let mut object = json!({"metadata": {"name": "infra"}, "spec": {}});
        json_patch::merge(&mut object, &infrastructure);
        observed.infrastructure = Some(serde_json::from_value(object).expect("an AzureManagedCluster"));
        let at = at.parse().expect("a time");
        let actions = plan(&observed, at);
        match expected {
            Err(waiting) => {
                let (wait, message) = actions.waits().last().expect(why);
                assert_eq!(
                    (wait.reason.clone(), message.to_owned()),
                    words(&waiting),
                    "{why}"
                );
            }
            Ok(pools) => {
                let manifest = actions.actions().find_map(|action| match action {
                    Action::Ensure(desired) if desired.kind == ResourceKind::ManagedCluster => {
                        Some(&desired.manifest)
                    }
                    _ => None,
                });
                assert_eq!(pools_of(manifest.expect(why)), pools, "{why}");
            }
        }
    }
}

#[test]
fn the_endpoint_is_private_where_there_is_no_public_one() {
    let both = ResourceState::Present(json!({"properties": {"fqdn": "public", "privateFQDN": "private"}}));
    for (profile, expected) in [
        (json!(null), "public"),
        (json!({"enablePrivateCluster": true}), "private"),
        (
            json!({"enablePrivateCluster": true, "enablePrivateClusterPublicFQDN": true}),
            "public",
        ),
    ] {
        let plane = plane(
            &json!({}),
            &json!({"apiServerAccessProfile": profile}),
            &Value::Null,
        );
        assert_eq!(endpoint(&plane, &both), Some((expected.to_owned(), 443)));
    }
    let plane = plane(&json!({}), &json!({}), &Value::Null);
    assert_eq!(endpoint(&plane, &ResourceState::Absent), None);
}

#[test]
fn nothing_is_ready_before_aks_has_answered() {
    let made = |endpoint: bool, body: Option<Value>, written: bool, step: StepStatus| {
        let mut observed = observed(&[(CLUSTER, body)]);
        if endpoint {
            observed.plane.spec.control_plane_endpoint = Some(slipway_aks::api::Endpoint {
                host: "plane.hcp".into(),
                port: 443,
            });
        }
        let progress = Steps {
            steps: BTreeMap::from([(ResourceKind::ManagedCluster, step)]),
            kubeconfig_written: written,
        };
        status(&observed, &progress, now())
    };
    let creating = made(
        false,
        None,
        false,
        StepStatus::Creating("ProvisioningControlPlane".into()),
    );
    assert_eq!(
        (creating.ready, creating.initialized, creating.version.as_deref()),
        (Some(false), Some(false), None)
    );
    let condition = creating
        .conditions
        .iter()
        .find(|condition| condition.type_ == "ManagedClusterRunning")
        .expect("a condition");
    assert_eq!(
        (condition.reason.as_str(), condition.message.as_str()),
        (
            "Creating",
            "ProvisioningControlPlane (since 2026-01-01T01:00:00Z)"
        )
    );
    for (endpoint, written) in [(false, true), (true, false)] {
        let partly = made(endpoint, Some(running()), written, StepStatus::Done);
        assert_eq!((partly.ready, partly.initialized), (Some(false), Some(false)));
    }
    let done = made(true, Some(running()), true, StepStatus::Done);
    assert_eq!(
        (done.ready, done.initialized, done.version.as_deref()),
        (Some(true), Some(true), Some("v1.31.0"))
    );
    assert_eq!(
        done.initialization
            .as_ref()
            .and_then(|done| done.control_plane_initialized),
        Some(true)
    );
    assert_eq!(done.external_managed_control_plane, Some(true));
    assert_eq!(done.auto_upgrade_version, None);
    let ready = &done.v1beta2.as_ref().expect("conditions").conditions;
    assert!(
        ready
            .iter()
            .any(|condition| condition.type_ == "Available" && condition.status == "True")
    );
}

#[test]
fn versions_tell_the_truth_and_what_is_initialized_stays_so() {
    let mut observed = observed(&[(
        CLUSTER,
        Some(
            json!({"properties": {"currentKubernetesVersion": "1.32.4", "oidcIssuerProfile": {"issuerURL": "https://issuer"}}}),
        ),
    )]);
    observed.plane.status =
        Some(serde_json::from_value(json!({"initialized": true, "ready": true})).expect("a status"));
    let failed = StepStatus::Failed {
        code: "QuotaExceeded".into(),
        message: "no cores left".into(),
        terminal: true,
    };
    let progress = Steps {
        steps: BTreeMap::from([
            (ResourceKind::ManagedCluster, failed),
            (ResourceKind::ResourceGroup, StepStatus::Done),
        ]),
        kubeconfig_written: true,
    };
    let status = status(&observed, &progress, now());
    assert_eq!((status.ready, status.initialized), (Some(false), Some(true)));
    assert_eq!(status.version.as_deref(), Some("v1.32.4"));
    assert_eq!(status.auto_upgrade_version.as_deref(), Some("1.32.4"));
    assert_eq!(status.versions[0].version, "v1.32.4");
    assert_eq!(
        status
            .oidc_issuer_profile
            .and_then(|issuer| issuer.issuer_url)
            .as_deref(),
        Some("https://issuer")
    );
    assert_eq!(
        (
            status.conditions[0].type_.as_str(),
            status.conditions[0].reason.as_str(),
            status.conditions[0].message.as_str()
        ),
        ("Ready", "QuotaExceeded", "no cores left")
    );
    let v1beta2 = status.v1beta2.expect("conditions").conditions;
    let available = v1beta2
        .iter()
        .find(|one| one.type_ == "Available")
        .expect("Available");
    assert_eq!(
        (
            available.status.as_str(),
            available.reason.as_str(),
            available.message.as_str()
        ),
        ("False", "QuotaExceeded", "ManagedClusterRunning: no cores left"),
        "clusterctl describe shows the first reason"
    );
    assert_eq!(status.observed_generation, Some(3));
}

/// What went last is not told to be going for ever, though the status of that round was lost; what is still named is.
#[test]
fn a_condition_of_what_is_gone_does_not_stay() {
    let told = json!({"conditions": [{"type": "AKSExtensionsReady", "status": "False", "reason": "Deleting",
        "severity": "Info", "message": "Deleting", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let says = |extensions: Value| {
        let mut observed = observed(&[(CLUSTER, Some(json!({"properties": {}})))]);
        observed.plane.spec.class.extensions = serde_json::from_value(extensions).expect("extensions");
        observed.plane.status = Some(serde_json::from_value(told.clone()).expect("a status"));
        let status = status(&observed, &Steps::default(), now());
        let found = status
            .conditions
            .iter()
            .find(|one| one.type_ == "AKSExtensionsReady");
        found.expect("it is told").status.clone()
    };
    assert_eq!(says(json!([])), "True");
    assert_eq!(
        says(json!([{"name": "flux", "extensionType": "microsoft.flux"}])),
        "False"
    );
}

#[test]
fn what_is_at_rest_is_shown_and_what_is_held_up_is_not() {
    let shows =
        |observed: &Observed, progress: &Progress<Action, Error>, learnt: &BTreeMap<String, StepStatus>| {
            let status = after(observed, progress, learnt, now());
            let conditions = status.conditions.iter();
            conditions
                .map(|one| format!("{} {}", one.type_, one.status))
                .collect::<Vec<_>>()
        };
    let rest = connected();
    let progress = came_to(plan(&rest, now()), Outcome::Done);
    assert_eq!(
        shows(&rest, &progress, &BTreeMap::new()),
        [
            "Ready True",
            "ManagedClusterRunning True",
            "ResourceGroupReady True",
            "SubnetsReady True",
            "VNetReady True"
        ]
    );
    let new = observed(&[]);
    let mut progress: Progress<Action, Error> = Progress::new(plan(&new, now()));
    progress.note(0, Attempt::Came(Outcome::Done));
    progress.note(1, Attempt::Came(Outcome::InProgress(Duration::from_secs(5))));
    let learnt = BTreeMap::from([(GROUP.to_lowercase(), StepStatus::Creating(String::new()))]);
    assert_eq!(
        shows(&new, &progress, &learnt),
        ["Ready False", "ResourceGroupReady False"],
        "nothing is said of what waits for the group"
    );
    let unrecorded: Progress<Action, Error> = Progress::new(plan(&new, now()));
    assert_eq!(
        shows(&new, &unrecorded, &BTreeMap::new()),
        [""; 0],
        "nothing was learnt"
    );
}
