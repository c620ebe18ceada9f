//! What Cluster API is answered: on the wire to the byte, and by properties over changes of any kind.

use proptest::prelude::*;
use serde_json::{Value, json};
use slipway_edge::{
    hooks::{
        can_update::{self, STRATEGY},
        update::{self, Known, KnownUpgrade},
    },
    node_upgrade::api::{Distribution, Phase, Role},
};

const OLD: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";
const NEW: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000bb";

fn image(digest: &str) -> Value {
    json!({"reference": "registry.example.com/nodes/k3s", "digest": digest})
}

/// The objects of one machine. `strategy`: the annotation.
fn objects(version: &str, digest: &str, strategy: Option<&str>) -> Value {
    let annotations = strategy.map_or(json!({}), |strategy| json!({(STRATEGY): strategy}));
    json!({
        "machine": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": "m-1", "namespace": "default", "labels": {}, "annotations": annotations},
            "spec": {"clusterName": "edge", "version": version, "providerID": "edge://default/box-1/uid"}},
        "infrastructureMachine": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "EdgeMachine",
            "metadata": {"name": "m-1", "namespace": "default"}, "spec": {"image": image(digest), "minimum": {"processors": 4}}},
        "bootstrapConfig": {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KThreesConfig",
            "metadata": {"name": "m-1", "namespace": "default"}, "spec": {"version": version}},
    })
}

fn can_update(current: &Value, desired: &Value) -> Value {
    json!({
        "kind": "CanUpdateMachineRequest", "apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1",
        "current": current, "desired": desired, "somethingLater": {"versions": "send"},
    })
}

/// Both changes that an upgrade makes.
fn upgraded(strategy: Option<&str>) -> (Value, Value) {
    (
        objects("v1.34.2+k3s1", OLD, strategy),
        objects("v1.34.3+k3s1", NEW, strategy),
    )
}

#[test]
fn e3_unknown_fields_are_ignored_and_requests_of_other_kinds_fail() {
    let (current, desired) = upgraded(None);
    let mut request = can_update(&current, &desired);
    assert_eq!(can_update::machine(&request), json!({"status": "Success"}));
    request["kind"] = json!("UpdateMachineRequest");
    assert_eq!(
        can_update::machine(&request),
        json!({"status": "Failure", "message": "\"UpdateMachineRequest\" is asked of the handler of CanUpdateMachine"})
    );
}

#[test]
fn e4_what_cannot_be_read_fails_with_a_stable_message() {
    for broken in [
        json!({}),
        json!(null),
        json!([1]),
        json!({"current": 1, "desired": 2}),
    ] {
        for answer in [
            can_update::machine(&broken),
            can_update::machine_set(&broken),
            update::target(&broken).expect_err("no target"),
        ] {
            assert_eq!(answer["status"], "Failure", "{broken}");
            assert!(
                answer["message"]
                    .as_str()
                    .is_some_and(|message| message.contains("cannot be read")),
                "{answer}"
            );
        }
        assert_eq!(can_update::machine(&broken), can_update::machine(&broken));
    }
}

#[test]
fn e6_a_change_that_can_be_made_is_answered_with_patches() {
    let (current, desired) = upgraded(Some("External"));
    let answer = can_update::machine(&can_update(&current, &desired));
    assert_eq!(answer["status"], "Success");
    // A host that reboots is away, and it must be said.
    assert_eq!(answer["affectsAvailability"], true);
    assert_eq!(patched(&current, &answer), specs(&desired));
}

/// The kubeadm control plane adds this feature gate from v1.31 on and leaves it out from v1.36 on; other fields of its config are refused.
#[test]
fn e6_a_feature_gate_that_comes_and_goes_with_the_version_is_taken_over() {
    let etcd = json!({"external": {"endpoints": ["https://127.0.0.1:2379"]}});
    let gate = json!({"ControlPlaneKubeletLocalMode": true});
    let both = json!({"ControlPlaneKubeletLocalMode": true, "Own": true});
    let of = |version: &str, digest: &str, gates: Option<&Value>| {
        let mut objects = objects(version, digest, Some("External"));
        let mut cluster = json!({"etcd": etcd});
        if let Some(gates) = gates {
            cluster["featureGates"] = gates.clone();
        }
        objects["bootstrapConfig"]["kind"] = json!("KubeadmConfig");
        objects["bootstrapConfig"]["spec"] = json!({"clusterConfiguration": cluster});
        objects
    };
    let own = json!({"Own": true});
    for (before, after) in [
        (Some(&gate), None),
        (None, Some(&gate)),
        (Some(&both), Some(&own)),
        (None, None),
    ] {
        let (current, desired) = (of("v1.35.4", OLD, before), of("v1.36.3", NEW, after));
        let answer = can_update::machine(&can_update(&current, &desired));
        assert_eq!(answer["status"], "Success", "{answer}");
        assert_eq!(
            patched(&current, &answer),
            specs(&desired),
            "{before:?} to {after:?}"
        );
    }
    let (current, desired) = (of("v1.35.4", OLD, Some(&both)), of("v1.36.3", NEW, None));
    let answer = can_update::machine(&can_update(&current, &desired));
    let said =
        "external strategy: cannot update in place: KubeadmConfig /spec/clusterConfiguration/featureGates";
    assert!(
        answer["message"]
            .as_str()
            .is_some_and(|message| message.starts_with(said)),
        "{answer}"
    );
}

#[test]
fn e7_external_fails_closed_and_names_every_field() {
    let (current, mut desired) = upgraded(Some("External"));
    desired["infrastructureMachine"]["spec"]["minimum"]["processors"] = json!(8);
    desired["bootstrapConfig"]["spec"]["agentConfig"] = json!({"nodeLabels": ["a=b"]});
    assert_eq!(
        can_update::machine(&can_update(&current, &desired)),
        json!({"status": "Failure", "message":
            "external strategy: cannot update in place: EdgeMachine /spec/minimum/processors, KThreesConfig /spec/agentConfig"})
    );
    // The same change with in place where possible is a replacement.
    desired["machine"]["metadata"]["annotations"][STRATEGY] = json!("InPlace");
    assert_eq!(
        can_update::machine(&can_update(&current, &desired)),
        json!({"status": "Success"})
    );
    // A version comes with an image.
    let (current, _) = upgraded(Some("External"));
    let alone = objects("v1.34.3+k3s1", OLD, Some("External"));
    assert_eq!(
        can_update::machine(&can_update(&current, &alone))["message"],
        "external strategy: cannot update in place: KThreesConfig /spec/version, Machine /spec/version (a version comes with an \
         image: change the image of the EdgeMachine together with it)"
    );
    // And machines of others are not ours to update.
    let (mut current, mut desired) = upgraded(Some("External"));
    for objects in [&mut current, &mut desired] {
        objects["infrastructureMachine"]["kind"] = json!("AzureManagedMachine");
    }
    let answer = can_update::machine(&can_update(&current, &desired));
    assert!(
        answer["message"]
            .as_str()
            .is_some_and(|text| text.contains("AzureManagedMachine /spec/image/digest")),
        "{answer}"
    );
}

#[test]
fn e8_without_the_strategy_machines_are_replaced_as_ever() {
    for strategy in [None, Some("RollingUpdate")] {
        let (current, desired) = upgraded(strategy);
        assert_eq!(
            can_update::machine(&can_update(&current, &desired)),
            json!({"status": "Success"})
        );
    }
    let (current, desired) = upgraded(Some("Extrenal"));
    assert_eq!(
        can_update::machine(&can_update(&current, &desired))["message"],
        "annotation slipway.dev/update-strategy: \"Extrenal\" is none of External, InPlace and RollingUpdate"
    );
    // A control plane of ours asks by itself, and only when its own strategy is not to replace.
    let (current, mut desired) = upgraded(None);
    desired["machine"]["metadata"]["labels"]["cluster.x-k8s.io/control-plane"] = json!("");
    assert!(
        can_update::machine(&can_update(&current, &desired))
            .get("machinePatch")
            .is_some()
    );
}

#[test]
fn updates_in_place_can_be_switched_off() {
    for (strategy, status) in [("External", "Failure"), ("InPlace", "Success")] {
        let (current, desired) = upgraded(Some(strategy));
        let mut request = can_update(&current, &desired);
        request["settings"] = json!({"disableInPlaceUpdates": "true"});
        let answer = can_update::machine(&request);
        assert_eq!(
            (&answer["status"], answer.get("machinePatch")),
            (&json!(status), None)
        );
    }
}

fn set(version: &str, digest: &str, strategy: &str) -> Value {
    json!({
        "machineSet": {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineSet",
            "metadata": {"name": "workers-1", "namespace": "default", "annotations": {(STRATEGY): strategy}},
            "spec": {"template": {"spec": {"clusterName": "edge", "version": version}}}},
        "infrastructureMachineTemplate": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "EdgeMachineTemplate",
            "metadata": {"name": "workers", "namespace": "default"}, "spec": {"template": {"spec": {"image": image(digest)}}}},
    })
}

#[test]
fn e6_machine_sets_are_answered_by_their_templates() {
    let request = |strategy: &str, digest: &str| {
        json!({
            "kind": "CanUpdateMachineSetRequest",
            "current": set("v1.34.2+k3s1", OLD, strategy), "desired": set("v1.34.3+k3s1", digest, strategy),
        })
    };
    let answer = can_update::machine_set(&request("External", NEW));
    assert_eq!(
        (&answer["status"], &answer["affectsAvailability"]),
        (&json!("Success"), &json!(true))
    );
    assert_eq!(
        decoded(&answer["machineSetPatch"]),
        json!([{"op": "replace", "path": "/spec/template/spec/version", "value": "v1.34.3+k3s1"}])
    );
    assert_eq!(
        decoded(&answer["infrastructureMachineTemplatePatch"]),
        json!([{"op": "replace", "path": "/spec/template/spec/image/digest", "value": NEW}])
    );
    assert_eq!(
        can_update::machine_set(&request("External", OLD))["message"],
        "external strategy: cannot update in place: MachineSet /spec/template/spec/version (a version comes with an image: change \
         the image of the EdgeMachine together with it)"
    );
}

// ---- An engine of our own for RFC 6902, as far as answers use it: what we sent is applied by somebody else.

fn decoded(patch: &Value) -> Value {
    let Some(text) = patch.get("patch").and_then(Value::as_str) else {
        return json!([]);
    };
    assert_eq!(patch["patchType"], "JSONPatch");
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let value = alphabet
            .iter()
            .position(|known| *known == letter)
            .expect("base64");
        bits = (bits << 6 | value as u32) & 0xFF_FFFF;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xFF) as u8);
        }
    }
    serde_json::from_slice(&bytes).expect("a patch is JSON")
}

fn apply(object: &mut Value, operations: &Value) {
    for operation in operations.as_array().expect("a list") {
        let path = operation["path"].as_str().expect("a path");
        let (parent, key) = path.rsplit_once('/').expect("a pointer");
        let key = key.replace("~1", "/").replace("~0", "~");
        let parent = object.pointer_mut(parent).expect("the parent is there");
        match (operation["op"].as_str().expect("an operation"), parent) {
            ("remove", Value::Object(map)) => drop(map.remove(&key).expect("it is there")),
            ("add", Value::Object(map)) => drop(map.insert(key, operation["value"].clone())),
            ("replace", Value::Object(map)) => {
                assert!(map.contains_key(&key), "only what is there is replaced");
                map.insert(key, operation["value"].clone());
            }
            (other, parent) => panic!("{other} in {parent}"),
        }
    }
}

const PATCHES: [(&str, &str); 3] = [
    ("machine", "machinePatch"),
    ("infrastructureMachine", "infrastructureMachinePatch"),
    ("bootstrapConfig", "bootstrapConfigPatch"),
];

fn specs(objects: &Value) -> Vec<Value> {
    PATCHES
        .iter()
        .map(|(object, _)| objects[*object]["spec"].clone())
        .collect()
}

fn patched(current: &Value, answer: &Value) -> Vec<Value> {
    PATCHES
        .iter()
        .map(|(object, patch)| {
            let mut copy = current[*object].clone();
            apply(&mut copy, &decoded(&answer[*patch]));
            copy["spec"].clone()
        })
        .collect()
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(1)),
        Just(json!("a")),
        Just(json!({"x": 1})),
        Just(json!([1, 2]))
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A yes covers the whole change, a failure says that it does not, and the same question has the same answer to the byte.
    #[test]
    fn e6_e9_a_yes_makes_current_desired_and_answers_never_vary(
        versions in (0..3_u8, 0..3_u8),
        digests in (0..2_u8, 0..2_u8),
        extra in proptest::collection::vec(("[a-z]{1,3}", 0..3_usize, leaf(), any::<bool>()), 0..4),
        strategy in proptest::sample::select(vec!["External", "InPlace"]),
    ) {
        let digest = |number: u8| if number == 0 { OLD } else { NEW };
        let mut current = objects(&format!("v1.34.{}", versions.0), digest(digests.0), Some(strategy));
        let mut desired = objects(&format!("v1.34.{}", versions.1), digest(digests.1), Some(strategy));
        for (key, which, value, only_desired) in &extra {
            let object = PATCHES[*which].0;
            desired[object]["spec"][format!("extra-{key}")] = value.clone();
            if !only_desired {
                current[object]["spec"][format!("extra-{key}")] = value.clone();
            }
        }
        let request = can_update(&current, &desired);
        let answer = can_update::machine(&request);
        prop_assert_eq!(answer.to_string(), can_update::machine(&request).to_string());
        let differs = specs(&current) != specs(&desired);
        match answer["status"].as_str() {
            Some("Success") if answer.get("affectsAvailability").is_some() => {
                prop_assert_eq!(patched(&current, &answer), specs(&desired));
                // A change may never be told as one that nobody notices.
                prop_assert_eq!(&answer["affectsAvailability"], &json!(differs));
            }
            Some("Success") => prop_assert!(strategy == "InPlace" && differs, "{answer}"),
            _ => prop_assert!(strategy == "External" && differs, "{answer}"),
        }
    }
}

// ---- UpdateMachine.

fn target() -> update::Target {
    let request = json!({"kind": "UpdateMachineRequest", "desired": objects("v1.34.3+k3s1", NEW, None)});
    update::target(&request).expect("a target")
}

fn known(upgrades: Vec<KnownUpgrade>) -> Known {
    Known {
        machine_uid: "uid-1".to_owned(),
        has_node: true,
        host: Some("box-1".to_owned()),
        upgrades,
        ..Known::default()
    }
}

fn upgrade(phase: Phase, message: &str, percent: Option<u32>) -> KnownUpgrade {
    KnownUpgrade {
        name: "m-1-x".to_owned(),
        machine_uid: "uid-1".to_owned(),
        hash: target().hash,
        phase,
        message: message.to_owned(),
        percent,
    }
}

#[test]
fn e11_however_often_it_is_called_one_upgrade_is_asked_for() {
    let asked = update::answer(&target(), &known(Vec::new()));
    let (name, spec) = asked.ensure.create.clone().expect("one is made");
    assert_eq!(
        asked.response,
        json!({"status": "Success", "message": "the upgrade begins", "retryAfterSeconds": 15})
    );
    assert_eq!((spec.role, spec.distribution), (Role::Worker, Distribution::K3s));
    assert_eq!(
        (spec.host_name.as_str(), spec.image.digest.as_str()),
        ("box-1", NEW)
    );
    for _ in 0..1_000 {
        let again = update::answer(&target(), &known(Vec::new()));
        assert_eq!(again.ensure.create.expect("the same").0, name);
    }
    // Another machine of the same name is another upgrade.
    let other = Known {
        machine_uid: "uid-2".to_owned(),
        ..known(Vec::new())
    };
    assert_ne!(
        update::answer(&target(), &other).ensure.create.expect("one").0,
        name
    );
}

#[test]
fn e12_e14_progress_is_the_same_from_every_replica_and_changes_in_steps() {
    let messages: Vec<String> = (0..=100)
        .map(|percent| {
            let known = known(vec![upgrade(Phase::Preparing, "", Some(percent))]);
            let answer = update::answer(&target(), &known);
            assert_eq!(answer, update::answer(&target(), &known), "two replicas agree");
            assert_eq!(answer.response["retryAfterSeconds"], 15);
            answer.response["message"].as_str().expect("a message").to_owned()
        })
        .collect();
    let mut different = messages.clone();
    different.dedup();
    assert_eq!(different.len(), 21, "every twentieth");
    assert_eq!(
        (messages[0].as_str(), messages[43].as_str()),
        ("writing the new slot 0 %", "writing the new slot 40 %")
    );
}

#[test]
fn e13_what_is_done_stays_done_and_another_target_begins_again() {
    let done = known(vec![upgrade(Phase::Done, "", None)]);
    for _ in 0..3 {
        let answer = update::answer(&target(), &done);
        assert_eq!(
            answer.response,
            json!({"status": "Success", "message": "", "retryAfterSeconds": 0})
        );
        assert_eq!(answer.ensure, update::Ensure::default());
    }
    let other = update::target(&json!({"desired": objects("v1.34.4+k3s1", OLD, None)})).expect("a target");
    let begins = update::answer(&other, &done);
    assert!(begins.ensure.create.is_some());
    // The one that was done goes: what it says would not hold any more.
    assert_eq!(begins.ensure.delete, ["m-1-x"]);
    // One that failed is superseded by the new one, and stays to say why it failed.
    let failed = known(vec![upgrade(Phase::RolledBack, "slot B did not come up", None)]);
    let begins = update::answer(&other, &failed);
    assert!(begins.ensure.create.is_some() && begins.ensure.delete.is_empty());
    // One that was called off is made again when it is asked for again.
    let called_off = update::answer(&target(), &known(vec![upgrade(Phase::Superseded, "", None)]));
    assert_eq!(
        (called_off.ensure.create, called_off.ensure.delete),
        (None, vec!["m-1-x".to_owned()])
    );
}

#[test]
fn e15_what_passes_is_waited_for_and_what_does_not_is_a_failure() {
    let says = |phase, message: &str| {
        update::answer(&target(), &known(vec![upgrade(phase, message, None)])).response
    };
    assert_eq!(
        says(Phase::Rebooting, "host box-1 does not answer: no route"),
        json!({"status": "Success", "message": "rebooting: host box-1 does not answer: no route", "retryAfterSeconds": 15})
    );
    assert_eq!(
        says(Phase::Prepared, "the next window opens at 02:00"),
        json!({"status": "Success", "message": "prepared: the next window opens at 02:00", "retryAfterSeconds": 15})
    );
    assert_eq!(
        says(Phase::RolledBack, "slot B did not come up"),
        json!({"status": "Failure", "message": "rolled back: slot B did not come up", "retryAfterSeconds": 0})
    );
    assert_eq!(says(Phase::Failed, "it does not fit")["status"], "Failure");
    for waiting in [
        Known {
            host: None,
            ..known(Vec::new())
        },
        Known {
            has_node: false,
            ..known(Vec::new())
        },
    ] {
        let answer = update::answer(&target(), &waiting);
        assert_eq!(
            (answer.ensure.create, &answer.response["status"]),
            (None, &json!("Success"))
        );
    }
}

#[test]
fn machines_of_others_are_refused() {
    let mut desired = objects("v1.34.3+k3s1", NEW, None);
    desired["infrastructureMachine"]["kind"] = json!("DockerMachine");
    assert_eq!(
        update::target(&json!({"desired": desired})).expect_err("not ours")["message"],
        "Machine m-1 is on a DockerMachine, and only EdgeMachines are updated in place by this extension"
    );
}
