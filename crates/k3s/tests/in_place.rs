//! Updates in place, executed: the controller asks a runtime extension over HTTPS, starts the update with the annotations,
//! field managers and order of KubeadmControlPlane, and core's part (played here) calls the extension until it is done.

use std::{collections::BTreeSet, time::Duration};

use kube::ResourceExt;
use serde_json::json;
use slipway_capi::hook::{
    HookClient, registry,
    types::{MachineObjects, UpdateMachineRequest},
};
use slipway_kit::core::{PENDING_HOOKS, UPDATE_IN_PROGRESS};

use super::{
    extension::{EVERYTHING, Extension, extension_configs},
    stage::{NEW, OLD, Stage},
    theatre::{all, change, condition, is_absent},
};

/// Core's part: while a machine's update is pending it calls the extension; once that is done the host runs what its
/// machine says, and the marks go.
async fn core_updates(stage: &Stage) {
    for machine in stage.servers().await {
        let name = machine.name_any();
        if !machine.annotations().contains_key(PENDING_HOOKS) {
            continue;
        }
        let config = stage.configs().get(&name).await.expect("a config");
        let host = stage.hosts().get(&name).await.expect("a host");
        assert!(
            config.annotations().contains_key(UPDATE_IN_PROGRESS)
                && host.annotations().contains_key(UPDATE_IN_PROGRESS)
                && machine.annotations().contains_key(UPDATE_IN_PROGRESS),
            "S-38: the hook is asked for last, when all three carry the mark"
        );
        let client = stage.management.client();
        let registered = registry::load(&client).await.expect("the registry");
        let handler = registered
            .handler("UpdateMachine", &std::collections::BTreeMap::new())
            .expect("one handler")
            .expect("a handler");
        let request = UpdateMachineRequest {
            desired: MachineObjects {
                machine: json!({"kind": "Machine", "spec": machine.data["spec"]}),
                infrastructure_machine: json!({"kind": "HostMachine", "spec": host.data["spec"]}),
                bootstrap_config: Some(json!({"kind": "KThreesConfig", "spec": config.spec})),
            },
        };
        let outcome = HookClient::new(None).call(handler, &request).await;
        if outcome.is_ok_and(|answer| answer.retry_after_seconds == 0) {
            let version = machine.data["spec"]["version"].as_str().unwrap_or_default();
            stage.model.lock().upgrade(&name, version);
            stage.finish_update(&machine).await;
        }
    }
}

/// A plane that is up, and an extension that covers these kinds.
async fn ready(replicas: i32, strategy: &str, covers: &[&'static str]) -> (Stage, Extension) {
    let spec = json!({"rolloutStrategy": {"type": strategy}});
    let mut stage = Stage::with(replicas, OLD, spec).await;
    stage.real_time = true;
    stage.core.settings.lock().leaves_updates = true;
    let extension = Extension::start(covers).await;
    extension.register(&stage).await;
    let servers = usize::try_from(replicas).unwrap_or_default();
    stage.until_settled(servers, OLD).await;
    (stage, extension)
}

async fn rounds(stage: &mut Stage, count: usize, until: impl Fn(&Stage) -> bool) -> bool {
    for _ in 0..count {
        stage.round().await;
        core_updates(stage).await;
        if until(stage) {
            return true;
        }
    }
    false
}

fn all_run(stage: &Stage, version: &str) -> bool {
    let model = stage.model.lock();
    model.hosts.values().all(|host| host.version == version)
}

/// S-38: three servers are updated in place, one at a time, none replaced; then a config and a template change are too.
/// Bootstrap data is not made again, and fields that left the spec leave the objects.
#[tokio::test]
async fn servers_are_updated_through_the_extension_and_none_is_replaced() {
    let (mut stage, extension) = ready(3, "InPlace", EVERYTHING).await;
    let names = stage.names().await;
    let before = stage.secret_contents().await;

    extension.script.lock().takes = 2;
    let patch = json!({"spec": {"version": NEW, "kthreesConfigSpec": {"preK3sCommands": ["echo before"]}}});
    stage.patch_plane(patch).await.expect("it is changed");
    let done = rounds(&mut stage, 60, |stage| all_run(stage, NEW)).await;
    assert!(done, "{:?}", stage.plane_condition("RollingOut").await);
    rounds(&mut stage, 4, |_| false).await;
    assert_eq!(stage.names().await, names, "no machine is replaced");
    assert_eq!(
        stage.secret_contents().await,
        before,
        "bootstrap data is not made again"
    );
    for machine in stage.servers().await {
        assert_eq!(machine.data["spec"]["version"], NEW);
        assert_eq!(condition(&machine, "UpToDate")["status"], "True");
        assert!(!machine.annotations().contains_key(UPDATE_IN_PROGRESS));
        assert!(
            machine
                .owner_references()
                .iter()
                .any(|owner| owner.controller == Some(true))
        );
    }
    for config in all(&stage.configs()).await {
        assert_eq!(config.spec.pre_k3s_commands, Some(vec!["echo before".to_owned()]));
        let managers: BTreeSet<String> = config
            .managed_fields()
            .iter()
            .filter(|entry| entry.operation.as_deref() == Some("Apply"))
            .filter_map(|entry| entry.manager.clone())
            .collect();
        assert!(managers.contains("capi-kthreescontrolplane"), "{managers:?}");
    }
    assert_eq!(extension.calls("CanUpdateMachine"), 3);
    assert_eq!(
        extension.calls("UpdateMachine"),
        3 + 2,
        "two answers said: not yet"
    );

    // A field that leaves the spec leaves the objects, and another template reaches the hosts.
    stage.create_template("larger", "large").await;
    let patch = json!({"spec": {"kthreesConfigSpec": {"preK3sCommands": null},
        "machineTemplate": {"infrastructureRef": {"name": "larger"}}}});
    stage.patch_plane(patch).await.expect("it is changed");
    for _ in 0..60 {
        rounds(&mut stage, 1, |_| false).await;
        let hosts = all(&stage.hosts()).await;
        if hosts.iter().all(|host| host.data["spec"]["size"] == "large") {
            break;
        }
    }
    rounds(&mut stage, 4, |_| false).await;
    assert_eq!(stage.names().await, names, "no machine is replaced");
    for config in all(&stage.configs()).await {
        assert_eq!(config.spec.pre_k3s_commands, None, "what left the spec is gone");
    }
    for host in all(&stage.hosts()).await {
        assert_eq!(host.data["spec"]["size"], "large");
        assert_eq!(host.annotations()["cluster.x-k8s.io/cloned-from-name"], "larger");
    }
}

/// S-38, S-36: a single server is updated without a spare machine.
#[tokio::test]
async fn a_single_server_is_updated_without_a_spare() {
    let (mut stage, _extension) = ready(1, "InPlace", EVERYTHING).await;
    let names = stage.names().await;
    stage.change_plane(json!({"version": NEW})).await;
    let mut most = 0;
    for _ in 0..40 {
        rounds(&mut stage, 1, |_| false).await;
        most = most.max(stage.servers().await.len());
        if all_run(&stage, NEW) {
            break;
        }
    }
    assert!(all_run(&stage, NEW));
    assert_eq!((most, stage.names().await), (1, names));
}

/// S-38: what the extension does not cover is replaced under InPlace, and blocks with the list of fields under External.
#[tokio::test]
async fn what_is_not_covered_is_replaced_or_blocks() {
    let (mut stage, extension) = ready(1, "InPlace", &["Machine"]).await;
    let names = stage.names().await;
    let change = json!({"spec": {"version": NEW, "kthreesConfigSpec": {"postK3sCommands": ["echo after"]}}});
    stage.patch_plane(change.clone()).await.expect("it is changed");
    stage.until_settled(1, NEW).await;
    assert_ne!(stage.names().await, names, "the server is replaced");
    assert!(extension.calls("CanUpdateMachine") >= 1);
    assert_eq!(extension.calls("UpdateMachine"), 0);

    let (mut stage, extension) = ready(1, "External", &["Machine"]).await;
    let names = stage.names().await;
    stage.patch_plane(change).await.expect("it is changed");
    rounds(&mut stage, 8, |_| false).await;
    assert_eq!(stage.names().await, names, "nothing is replaced");
    assert!(all_run(&stage, OLD), "and nothing is updated");
    let told = stage.plane_condition("RollingOut").await;
    let message = told["message"].as_str().unwrap_or_default().to_owned();
    assert!(
        message.contains("KThreesConfig /spec/postK3sCommands") && message.contains("External"),
        "{message}"
    );
    // Once the extension covers it, it goes on by itself.
    extension.script.lock().covers = EVERYTHING.iter().copied().collect();
    assert!(
        rounds(&mut stage, 40, |stage| all_run(stage, NEW)).await,
        "{message}"
    );
    assert_eq!(stage.names().await, names);
}

/// S-38: no extension: External waits and says so, nothing is replaced; a failing one decides nothing either way.
#[tokio::test]
async fn without_an_answer_nothing_is_decided() {
    let (mut stage, extension) = ready(1, "InPlace", EVERYTHING).await;
    let names = stage.names().await;
    extension.script.lock().fails = Some("the disk is busy".into());
    stage.change_plane(json!({"version": NEW})).await;
    rounds(&mut stage, 6, |_| false).await;
    assert_eq!(stage.names().await, names, "a failure is no refusal");
    let told = stage.plane_condition("RollingOut").await;
    assert!(told.to_string().contains("the disk is busy"), "{told}");
    extension.script.lock().fails = None;
    assert!(rounds(&mut stage, 40, |stage| all_run(stage, NEW)).await);
    assert_eq!(stage.names().await, names);

    let (mut stage, _extension) = ready(1, "External", EVERYTHING).await;
    let names = stage.names().await;
    extension_configs(&stage)
        .delete("updates", &kube::api::DeleteParams::default())
        .await
        .expect("it is unregistered");
    stage.change_plane(json!({"version": NEW})).await;
    rounds(&mut stage, 6, |_| false).await;
    assert_eq!(stage.names().await, names);
    let told = stage.plane_condition("RollingOut").await;
    assert!(
        told.to_string().contains("waits for an update extension"),
        "{told}"
    );
}

/// S-38: an update whose start was interrupted after its first mark is carried on by the next process, and one that
/// never ends can be remediated.
#[tokio::test]
async fn an_interrupted_start_goes_on_and_a_stuck_update_is_remediated() {
    let (mut stage, extension) = ready(3, "InPlace", EVERYTHING).await;
    let names = stage.names().await;
    stage.change_plane(json!({"version": NEW})).await;
    // As a process leaves it that stops after its first write.
    let mark = json!({"metadata": {"annotations": {UPDATE_IN_PROGRESS: ""}}});
    change(&stage.machines(), &names[1], &mark).await;
    stage.restart();
    extension.script.lock().takes = usize::MAX;
    rounds(&mut stage, 3, |_| false).await;
    let machine = stage.machine(&names[1]).await;
    assert_eq!(machine.annotations()[PENDING_HOOKS], "UpdateMachine");
    assert_eq!(machine.data["spec"]["version"], NEW);
    assert_eq!(
        extension.calls("CanUpdateMachine"),
        0,
        "what is begun is not asked again"
    );
    for name in [&names[0], &names[2]] {
        assert_eq!(
            stage.machine(name).await.data["spec"]["version"],
            OLD,
            "one at a time"
        );
    }
    // The update never ends, and the host is dead: the health check hands it over.
    stage.model.lock().kill(&names[1]);
    stage.core.settings.lock().health_check_after = Some(Duration::from_mins(2));
    for _ in 0..60 {
        rounds(&mut stage, 1, |_| false).await;
        if is_absent(&stage.machines(), &names[1]).await {
            break;
        }
    }
    assert!(
        is_absent(&stage.machines(), &names[1]).await,
        "a stuck update is replaced"
    );
    extension.script.lock().takes = 0;
    assert!(
        rounds(&mut stage, 80, |stage| all_run(stage, NEW)
            && stage.settled(3, NEW))
        .await
    );
}
