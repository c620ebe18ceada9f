//! Updates in place, executed: the controller asks a runtime extension over HTTPS, starts the update with the annotations,
//! field managers and order of KubeadmControlPlane, and core's part (played here) calls the extension until it is done.

use std::{collections::BTreeSet, time::Duration};

use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use slipway_capi::hook::{
    HookClient, registry,
    types::{MachineObjects, UpdateMachineRequest},
};
use slipway_kit::core::{PENDING_HOOKS, UPDATE_IN_PROGRESS};

use super::{
    driver::{Driver, NEW, OLD},
    environment::{all, change, condition, is_absent},
    extension::{EVERYTHING, Extension, extension_configs, register},
};

/// Core's part: while a machine's update is pending it calls the extension; once that is done the host runs what its
/// machine says, and the marks go.
async fn core_updates(driver: &Driver) {
    for machine in driver.servers().await {
        let name = machine.name_any();
        if !machine.annotations().contains_key(PENDING_HOOKS) {
            continue;
        }
        let config = driver.configs().get(&name).await.expect("a config");
        let host = driver.infra_machines().get(&name).await.expect("a host");
        assert!(
            config.annotations().contains_key(UPDATE_IN_PROGRESS)
                && host.annotations().contains_key(UPDATE_IN_PROGRESS)
                && machine.annotations().contains_key(UPDATE_IN_PROGRESS),
            "S-38: the hook is asked for last, when all three carry the mark"
        );
        let client = driver.management.client();
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
            driver.model.lock().upgrade(&name, version);
            driver.finish_update(&machine).await;
        }
    }
}

/// A plane that is up, and an extension that covers these kinds.
async fn ready(replicas: i32, strategy: &str, covers: &[&'static str]) -> (Driver, Extension) {
    let spec = json!({"rolloutStrategy": {"type": strategy}});
    let mut driver = Driver::with(replicas, OLD, spec).await;
    driver.real_time = true;
    driver.core.settings.lock().leaves_updates = true;
    let extension = Extension::start(covers).await;
    register(&driver, &extension.client_config()).await;
    let servers = usize::try_from(replicas).unwrap_or_default();
    driver.until_settled(servers, OLD).await;
    (driver, extension)
}

async fn rounds(driver: &mut Driver, count: usize, until: impl Fn(&Driver) -> bool) -> bool {
    for _ in 0..count {
        driver.round().await;
        core_updates(driver).await;
        if until(driver) {
            return true;
        }
    }
    false
}

fn all_run(driver: &Driver, version: &str) -> bool {
    let model = driver.model.lock();
    model.hosts.values().all(|host| host.version == version)
}

/// S-38: three servers are updated in place, one at a time, none replaced; then a config and a template change are too.
/// Bootstrap data is not made again, and fields that left the spec leave the objects.
#[tokio::test]
async fn servers_are_updated_through_the_extension_and_none_is_replaced() {
    let (mut driver, extension) = ready(3, "InPlace", EVERYTHING).await;
    let names = driver.names().await;
    let before = driver.secret_contents().await;

    extension.script.lock().takes = 2;
    let patch = json!({"spec": {"version": NEW, "kthreesConfigSpec": {"preK3sCommands": ["echo before"]}}});
    driver.patch_plane(patch).await.expect("it is changed");
    let done = rounds(&mut driver, 60, |driver| all_run(driver, NEW)).await;
    assert!(done, "{:?}", driver.plane_condition("RollingOut").await);
    rounds(&mut driver, 4, |_| false).await;
    assert_eq!(driver.names().await, names, "no machine is replaced");
    assert_eq!(
        driver.secret_contents().await,
        before,
        "bootstrap data is not made again"
    );
    for machine in driver.servers().await {
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
    for config in all(&driver.configs()).await {
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
    driver.create_template("larger", "large").await;
    let patch = json!({"spec": {"kthreesConfigSpec": {"preK3sCommands": null},
        "machineTemplate": {"infrastructureRef": {"name": "larger"}}}});
    driver.patch_plane(patch).await.expect("it is changed");
    for _ in 0..60 {
        rounds(&mut driver, 1, |_| false).await;
        let hosts = all(&driver.infra_machines()).await;
        if hosts.iter().all(|host| host.data["spec"]["size"] == "large") {
            break;
        }
    }
    rounds(&mut driver, 4, |_| false).await;
    assert_eq!(driver.names().await, names, "no machine is replaced");
    for config in all(&driver.configs()).await {
        assert_eq!(config.spec.pre_k3s_commands, None, "what left the spec is gone");
    }
    for host in all(&driver.infra_machines()).await {
        assert_eq!(host.data["spec"]["size"], "large");
        assert_eq!(host.annotations()["cluster.x-k8s.io/cloned-from-name"], "larger");
    }
}

/// S-38, S-36: a single server is updated without a spare machine.
#[tokio::test]
async fn a_single_server_is_updated_without_a_spare() {
    let (mut driver, _extension) = ready(1, "InPlace", EVERYTHING).await;
    let names = driver.names().await;
    driver.change_plane(json!({"version": NEW})).await;
    let mut most = 0;
    for _ in 0..40 {
        rounds(&mut driver, 1, |_| false).await;
        most = most.max(driver.servers().await.len());
        if all_run(&driver, NEW) {
            break;
        }
    }
    assert!(all_run(&driver, NEW));
    assert_eq!((most, driver.names().await), (1, names));
}

/// Core writes to a Machine as soon as it is there, so whoever made it may come too late to let go of its labels and annotations. An update
/// in place does not take them away.
#[tokio::test]
async fn labels_that_their_maker_could_not_let_go_of_stay_through_an_update() {
    let (mut driver, _extension) = ready(1, "InPlace", EVERYTHING).await;
    let name = driver.names().await.remove(0);
    let made = driver.machine(&name).await;
    // As a creation leaves it whose second write met a conflict.
    let intent = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": name, "namespace": made.namespace(), "labels": made.labels(), "annotations": made.annotations(),
            "ownerReferences": made.owner_references()},
        "spec": made.data["spec"]});
    let maker = PatchParams::apply("capi-kthreescontrolplane").force();
    driver
        .machines()
        .patch(&name, &maker, &Patch::Apply(&intent))
        .await
        .expect("applied");
    driver.change_plane(json!({"version": NEW})).await;
    assert!(rounds(&mut driver, 40, |driver| all_run(driver, NEW)).await);
    let updated = driver.machine(&name).await;
    assert_eq!(updated.data["spec"]["version"], NEW);
    assert_eq!(updated.labels(), made.labels());
    for annotation in made.annotations().keys() {
        assert!(
            updated.annotations().contains_key(annotation),
            "{annotation} is gone"
        );
    }
}

/// S-38: what the extension does not cover is replaced under InPlace, and blocks with the list of fields under External.
#[tokio::test]
async fn what_is_not_covered_is_replaced_or_blocks() {
    let (mut driver, extension) = ready(1, "InPlace", &["Machine"]).await;
    let names = driver.names().await;
    let change = json!({"spec": {"version": NEW, "kthreesConfigSpec": {"postK3sCommands": ["echo after"]}}});
    driver.patch_plane(change.clone()).await.expect("it is changed");
    driver.until_settled(1, NEW).await;
    assert_ne!(driver.names().await, names, "the server is replaced");
    assert!(extension.calls("CanUpdateMachine") >= 1);
    assert_eq!(extension.calls("UpdateMachine"), 0);

    let (mut driver, extension) = ready(1, "External", &["Machine"]).await;
    let names = driver.names().await;
    driver.patch_plane(change).await.expect("it is changed");
    rounds(&mut driver, 8, |_| false).await;
    assert_eq!(driver.names().await, names, "nothing is replaced");
    assert!(all_run(&driver, OLD), "and nothing is updated");
    let told = driver.plane_condition("RollingOut").await;
    let message = told["message"].as_str().unwrap_or_default().to_owned();
    assert!(
        message.contains("KThreesConfig /spec/postK3sCommands") && message.contains("External"),
        "{message}"
    );
    // Once the extension covers it, it goes on by itself.
    extension.script.lock().covers = EVERYTHING.iter().copied().collect();
    assert!(
        rounds(&mut driver, 40, |driver| all_run(driver, NEW)).await,
        "{message}"
    );
    assert_eq!(driver.names().await, names);
}

/// S-38: no extension: External waits and says so, nothing is replaced; a failing one decides nothing either way.
#[tokio::test]
async fn without_an_answer_nothing_is_decided() {
    let (mut driver, extension) = ready(1, "InPlace", EVERYTHING).await;
    let names = driver.names().await;
    extension.script.lock().fails = Some("the disk is busy".into());
    driver.change_plane(json!({"version": NEW})).await;
    rounds(&mut driver, 6, |_| false).await;
    assert_eq!(driver.names().await, names, "a failure is no refusal");
    let told = driver.plane_condition("RollingOut").await;
    assert!(told.to_string().contains("the disk is busy"), "{told}");
    extension.script.lock().fails = None;
    assert!(rounds(&mut driver, 40, |driver| all_run(driver, NEW)).await);
    assert_eq!(driver.names().await, names);

    let (mut driver, _extension) = ready(1, "External", EVERYTHING).await;
    let names = driver.names().await;
    extension_configs(&driver)
        .delete("updates", &kube::api::DeleteParams::default())
        .await
        .expect("it is unregistered");
    driver.change_plane(json!({"version": NEW})).await;
    rounds(&mut driver, 6, |_| false).await;
    assert_eq!(driver.names().await, names);
    let told = driver.plane_condition("RollingOut").await;
    assert!(
        told.to_string().contains("waits for an update extension"),
        "{told}"
    );
    // And says nothing else at the next reconcile: what is written again and again wakes whoever writes it.
    for _ in 0..4 {
        rounds(&mut driver, 1, |_| false).await;
        assert_eq!(driver.plane_condition("RollingOut").await, told);
    }
}

/// S-38: an update whose start was interrupted after its first mark is carried on by the next process, and one that
/// never ends can be remediated.
#[tokio::test]
async fn an_interrupted_start_goes_on_and_a_stuck_update_is_remediated() {
    let (mut driver, extension) = ready(3, "InPlace", EVERYTHING).await;
    let names = driver.names().await;
    driver.change_plane(json!({"version": NEW})).await;
    // As a process leaves it that stops after its first write.
    let mark = json!({"metadata": {"annotations": {UPDATE_IN_PROGRESS: ""}}});
    change(&driver.machines(), &names[1], &mark).await;
    driver.restart();
    extension.script.lock().takes = usize::MAX;
    rounds(&mut driver, 3, |_| false).await;
    let machine = driver.machine(&names[1]).await;
    assert_eq!(machine.annotations()[PENDING_HOOKS], "UpdateMachine");
    assert_eq!(machine.data["spec"]["version"], NEW);
    assert_eq!(
        extension.calls("CanUpdateMachine"),
        0,
        "what is begun is not asked again"
    );
    for name in [&names[0], &names[2]] {
        assert_eq!(
            driver.machine(name).await.data["spec"]["version"],
            OLD,
            "one at a time"
        );
    }
    // The update never ends, and the host is dead: the health check hands it over.
    driver.model.lock().kill(&names[1]);
    driver.core.settings.lock().health_check_after = Some(Duration::from_mins(2));
    for _ in 0..60 {
        rounds(&mut driver, 1, |_| false).await;
        if is_absent(&driver.machines(), &names[1]).await {
            break;
        }
    }
    assert!(
        is_absent(&driver.machines(), &names[1]).await,
        "a stuck update is replaced"
    );
    extension.script.lock().takes = 0;
    assert!(
        rounds(&mut driver, 80, |driver| all_run(driver, NEW)
            && driver.settled(3, NEW))
        .await
    );
}
