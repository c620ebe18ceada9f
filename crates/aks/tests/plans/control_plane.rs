//! Control planes.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use slipway_aks::{
    plan::{
        Action, Waiting,
        control_plane::{Observed, PoolObject, endpoint, plan},
    },
    render::RenderError,
    status::control_plane::{Progress, status},
};
use slipway_azure::reconcile::{ResourceKind, ResourceState, StepStatus};

use super::{CLUSTER, GROUP, NETWORK, machine_pool, now, plane, pool, printed};

const SUBNET: &str = "/subscriptions/sub/resourceGroups/group/providers/Microsoft.Network/virtualNetworks/network/subnets/nodes";

fn owned() -> Value {
    json!({"tags": {"sigs.k8s.io_cluster-api-provider-azure_cluster_fleet": "owned"}})
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
    Observed {
        plane: plane(&json!({}), &json!({}), &Value::Null),
        cluster_name: "fleet".into(),
        subscription: "sub".into(),
        pools: vec![PoolObject {
            pool: pool(&json!({}), &json!({})),
            machine_pool: Some(machine_pool(&json!({}))),
        }],
        states: all,
        pool_timeout: Duration::from_mins(5),
        ..Observed::default()
    }
}

fn running() -> Value {
    json!({"properties": {"fqdn": "plane.hcp", "currentKubernetesVersion": "1.31.0", "provisioningState": "Succeeded"}, "tags": {"theirs": "1"}})
}

fn cluster_manifest(observed: &Observed) -> Option<Value> {
    plan(observed, now()).into_iter().find_map(|action| match action {
        Action::Ensure(desired) if desired.kind == ResourceKind::ManagedCluster => Some(desired.manifest),
        _ => None,
    })
}

#[test]
fn a_cluster_is_made_in_order_with_its_pools() {
    let observed = observed(&[]);
    assert_eq!(
        printed(&plan(&observed, now())),
        [
            format!("ensure ResourceGroup {GROUP}"),
            format!("ensure VirtualNetwork {NETWORK}"),
            format!("ensure Subnet {SUBNET}"),
            format!("ensure ManagedCluster {CLUSTER}"),
        ]
    );
    let manifest = cluster_manifest(&observed).expect("a cluster");
    assert_eq!(manifest["spec"]["agentPoolProfiles"][0]["name"], "pool");
    assert_eq!(manifest["spec"]["agentPoolProfiles"][0]["count"], 3);
}

#[test]
fn an_existing_cluster_is_updated_without_pools_and_its_strangers_tags() {
    let observed = observed(&[
        (GROUP, Some(owned())),
        (NETWORK, Some(owned())),
        (SUBNET, Some(json!({}))),
        (CLUSTER, Some(running())),
    ]);
    assert_eq!(
        printed(&plan(&observed, now())),
        [
            "set endpoint plane.hcp:443".to_owned(),
            "write kubeconfigs".to_owned(),
            format!("ensure ResourceGroup {GROUP}"),
            format!("ensure VirtualNetwork {NETWORK}"),
            format!("ensure Subnet {SUBNET}"),
            format!("ensure ManagedCluster {CLUSTER}"),
        ]
    );
    let manifest = cluster_manifest(&observed).expect("a cluster");
    assert_eq!(manifest["spec"].get("agentPoolProfiles"), None);
}

#[test]
fn a_cluster_that_never_came_up_is_asked_for_with_its_pools_again() {
    let mut failed = running();
    failed["properties"]["provisioningState"] = json!("Failed");
    let never = observed(&[(CLUSTER, Some(failed.clone()))]);
    let manifest = cluster_manifest(&never).expect("a cluster");
    assert_eq!(manifest["spec"]["agentPoolProfiles"][0]["name"], "pool");
    assert!(!printed(&plan(&never, now())).contains(&"write kubeconfigs".to_owned()));
    let mut once = observed(&[(CLUSTER, Some(failed))]);
    once.plane = plane(
        &json!({}),
        &json!({"controlPlaneEndpoint": {"host": "plane.hcp", "port": 443}}),
        &Value::Null,
    );
    let manifest = cluster_manifest(&once).expect("a cluster");
    assert_eq!(manifest["spec"].get("agentPoolProfiles"), None);
    assert!(
        printed(&plan(&once, now())).contains(&"write kubeconfigs".to_owned()),
        "who uses the cluster keeps its kubeconfig"
    );
}

#[test]
fn what_the_spec_no_longer_names_goes_if_we_made_it() {
    let extension =
        |name: &str| format!("{CLUSTER}/providers/Microsoft.KubernetesConfiguration/extensions/{name}");
    let (ours, kept, gone) = (extension("ours"), extension("kept"), extension("gone"));
    let mut observed = observed(&[
        (CLUSTER, Some(running())),
        (ours.as_str(), Some(json!({}))),
        (kept.as_str(), Some(json!({}))),
        (extension("theirs").as_str(), Some(json!({}))),
    ]);
    observed.states.insert(gone.to_lowercase(), ResourceState::Absent);
    observed.plane = plane(
        &json!({}),
        &json!({"extensions": [{"name": "kept", "extensionType": "t"}]}),
        &Value::Null,
    );
    observed.made = [&ours, &kept, &gone]
        .map(|id| (id.to_lowercase(), ResourceKind::Extension))
        .into();
    observed
        .made
        .insert(GROUP.to_lowercase(), ResourceKind::ResourceGroup);
    let deletions: Vec<String> = printed(&plan(&observed, now()))
        .into_iter()
        .filter(|line| line.starts_with("delete"))
        .collect();
    assert_eq!(
        deletions,
        [
            format!("delete Extension {}", gone.to_lowercase()),
            format!("delete Extension {}", ours.to_lowercase()),
        ]
    );
}

#[test]
fn what_is_brought_is_left_alone() {
    let observed = observed(&[
        (GROUP, Some(json!({}))),
        (NETWORK, Some(json!({"tags": {"a": "b"}}))),
        (SUBNET, Some(json!({}))),
    ]);
    assert_eq!(
        printed(&plan(&observed, now())),
        [format!("ensure ManagedCluster {CLUSTER}")]
    );
}

#[test]
fn nothing_is_made_while_azure_does_not_tell() {
    let mut observed = observed(&[]);
    observed.states.remove(&GROUP.to_lowercase());
    let first = plan(&observed, now()).into_iter().next();
    assert_eq!(first, Some(Action::Wait(Waiting::ForAzure { id: GROUP.into() })));
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
            Err(waiting) => assert_eq!(actions.last(), Some(&Action::Wait(waiting)), "{why}"),
            Ok(pools) => {
                let manifest = actions.iter().find_map(|action| match action {
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
fn what_only_the_user_can_mend_is_said() {
    let mut observed = observed(&[]);
    observed.services = vec!["nonsense".into()];
    let last = plan(&observed, now()).pop();
    assert_eq!(
        last,
        Some(Action::Wait(Waiting::ForTheUser(RenderError::ServiceRange(
            "nonsense".into()
        ))))
    );
}

#[test]
fn deletion_goes_the_other_way_and_spares_what_is_brought() {
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:59:30Z"});
    let spec = json!({
        "fleetsMember": {"name": "m", "managerName": "f", "managerResourceGroup": "fg"},
        "extensions": [{"name": "e", "extensionType": "t"}]
    });
    let extension = format!("{CLUSTER}/providers/Microsoft.KubernetesConfiguration/extensions/e");
    let member =
        "/subscriptions/sub/resourceGroups/fg/providers/Microsoft.ContainerService/fleets/f/members/m";
    let all = [
        (GROUP, Some(owned())),
        (NETWORK, Some(owned())),
        (SUBNET, Some(json!({}))),
        (CLUSTER, Some(running())),
        (extension.as_str(), Some(json!({}))),
        (member, Some(json!({}))),
    ];
    let mut everything = observed(&all);
    everything.plane = plane(&deleted, &spec, &Value::Null);
    assert_eq!(
        printed(&plan(&everything, now())),
        [
            format!("delete Extension {extension}"),
            format!("delete FleetMember {member}"),
            format!("delete ManagedCluster {CLUSTER}"),
            format!("delete Subnet {SUBNET}"),
            format!("delete VirtualNetwork {NETWORK}"),
            format!("delete ResourceGroup {GROUP}"),
        ]
    );
    let mut brought = observed(&[
        (GROUP, Some(json!({}))),
        (NETWORK, Some(json!({}))),
        (SUBNET, Some(json!({}))),
        (CLUSTER, Some(running())),
    ]);
    brought.plane = plane(&deleted, &json!({}), &Value::Null);
    assert_eq!(
        printed(&plan(&brought, now())),
        [format!("delete ManagedCluster {CLUSTER}")]
    );
    let mut gone = observed(&[]);
    gone.plane = plane(&deleted, &json!({}), &Value::Null);
    assert_eq!(printed(&plan(&gone, now())), ["remove finalizer"]);
    let mut unknown = observed(&[]);
    unknown.plane = plane(&deleted, &json!({}), &Value::Null);
    unknown.states.remove(&CLUSTER.to_lowercase());
    assert_eq!(
        plan(&unknown, now()),
        [Action::Wait(Waiting::ForAzure { id: CLUSTER.into() })],
        "the finalizer stays until Azure has told"
    );
    let mut moved = observed(&all);
    moved.plane = plane(
        &json!({"deletionTimestamp": "2026-01-01T00:59:30Z", "annotations": {"clusterctl.cluster.x-k8s.io/delete-for-move": ""}}),
        &json!({}),
        &Value::Null,
    );
    assert_eq!(
        printed(&plan(&moved, now())),
        ["remove finalizer"],
        "a move touches nothing in Azure"
    );
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
        let progress = Progress {
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
        ("Creating", "ProvisioningControlPlane")
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
    let ready = &done.newer.as_ref().expect("conditions").conditions;
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
    let progress = Progress {
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
    let newer = status.newer.expect("conditions").conditions;
    let available = newer
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
        let status = status(&observed, &Progress::default(), now());
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
