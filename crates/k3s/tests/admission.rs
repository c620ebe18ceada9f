//! Every bad spec gets a message with the field and the rule; what was accepted once stays editable.

use proptest::prelude::*;
use serde_json::{Value, json};
use slipway_k3s::{
    api::{KThreesConfig, KThreesConfigTemplate, KThreesControlPlane, KThreesControlPlaneTemplate},
    bootstrap::admit as config_admit,
    control_plane::admit,
};
use slipway_runtime::admission::{Change, Operation, Verdict};

fn control_plane(change: &Value) -> KThreesControlPlane {
    let mut object = json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KThreesControlPlane",
        "metadata": {"name": "a", "namespace": "n"},
        "spec": {
            "replicas": 3, "version": "v1.34.1+k3s1",
            "machineTemplate": {"infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "HostTemplate", "name": "t"}},
        },
    });
    json_merge(&mut object, change);
    serde_json::from_value(object).expect("a control plane")
}

fn json_merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(key);
                } else {
                    json_merge(target.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

fn judge(old: Option<&Value>, new: &Value) -> Verdict {
    admit::validate_control_plane(&Change {
        operation: if old.is_some() {
            Operation::Update
        } else {
            Operation::Create
        },
        dry_run: false,
        user: "somebody".into(),
        old: old.map(control_plane),
        new: Some(control_plane(new)),
    })
}

fn messages(verdict: &Verdict) -> Vec<String> {
    match verdict {
        Verdict::Invalid { errors, .. } => errors.iter().map(ToString::to_string).collect(),
        Verdict::Allowed { .. } => Vec::new(),
        other => panic!("{other:?}"),
    }
}

/// S-25, S-27, S-30: what a spec may not say, with the field and the rule.
#[test]
fn bad_specs_are_refused_with_field_and_rule() {
    let table = [
        (
            json!({"spec": {"replicas": 0}}),
            "spec.replicas: Invalid value: 0: must be at least 1",
        ),
        (
            json!({"spec": {"replicas": 4}}),
            "spec.replicas: Invalid value: 4: must be odd with embedded etcd",
        ),
        (
            json!({"spec": {"version": "1.34.1"}}),
            "spec.version: Invalid value: \"1.34.1\": must be a k3s version with a leading v",
        ),
        (
            json!({"spec": {"version": "v1.34"}}),
            "spec.version: Invalid value: \"v1.34\"",
        ),
        (
            json!({"spec": {"kthreesConfigSpec": {"version": "v1.33.1+k3s1"}}}),
            "spec.kthreesConfigSpec.version: Invalid value: \"v1.33.1+k3s1\": must be absent or equal to spec.version (v1.34.1+k3s1)",
        ),
        (
            json!({"spec": {"replicas": 1, "rolloutStrategy": {"rollingUpdate": {"maxSurge": 0}}}}),
            "spec.rolloutStrategy.rollingUpdate.maxSurge: Invalid value: 0: needs at least 3 replicas",
        ),
        (
            json!({"spec": {"rolloutStrategy": {"rollingUpdate": {"maxSurge": "25%"}}}}),
            "spec.rolloutStrategy.rollingUpdate.maxSurge: Invalid value: \"25%\": must be 0 or 1",
        ),
        (
            json!({"spec": {"rolloutBefore": {"certificatesExpiryDays": 6}}}),
            "spec.rolloutBefore.certificatesExpiryDays: Invalid value: 6: must be at least 7",
        ),
        (
            json!({"spec": {"remediationStrategy": {"maxRetry": -1, "retryPeriod": "soon"}}}),
            "spec.remediationStrategy.retryPeriod: Invalid value: \"soon\": must be a duration",
        ),
        (
            json!({"spec": {"machineTemplate": {"nodeDrainTimeout": "5"}}}),
            "spec.machineTemplate.nodeDrainTimeout: Invalid value: \"5\": must be a duration",
        ),
        (
            json!({"spec": {"machineTemplate": {"infrastructureRef": null}}}),
            "spec.machineTemplate.infrastructureRef: Required value: names the infrastructure template",
        ),
        (
            json!({"spec": {"machineTemplate": {"infrastructureRef": {"namespace": "other"}}}}),
            "spec.machineTemplate.infrastructureRef.namespace: Invalid value: \"other\": must be the namespace of the control plane (n)",
        ),
        (
            json!({"spec": {"kthreesConfigSpec": {"serverConfig": {"clusterDNS": "10.99.0.10"}}}}),
            "spec.kthreesConfigSpec.serverConfig.clusterDNS: Invalid value: \"10.99.0.10\": must lie in the service range",
        ),
        (
            json!({"spec": {"kthreesConfigSpec": {"serverConfig": {"clusterCidr": "10.42.0.0"}}}}),
            "spec.kthreesConfigSpec.serverConfig.clusterCidr: Invalid value: \"10.42.0.0\": must be a range",
        ),
        (
            json!({"spec": {"kthreesConfigSpec": {"serverConfig": {"httpsListenPort": "70000"}}}}),
            "spec.kthreesConfigSpec.serverConfig.httpsListenPort: Invalid value: \"70000\": must be a port",
        ),
        (
            json!({"spec": {"kthreesConfigSpec": {"files": [{"path": "etc/motd"}]}}}),
            "spec.kthreesConfigSpec.files[0].path: Invalid value: \"etc/motd\": must be a full path",
        ),
        (
            json!({"spec": {"kthreesConfigSpec": {"files": [{"path": "/a", "permissions": "rw"}]}}}),
            "spec.kthreesConfigSpec.files[0].permissions: Invalid value: \"rw\": must be three or four octal digits",
        ),
        (
            json!({"spec": {"kthreesConfigSpec": {"files": [{"path": "/a", "content": "secret", "contentFrom": {"secret": {"name": "s", "key": ""}}}]}}}),
            "spec.kthreesConfigSpec.files[0].contentFrom.secret.key: Required value",
        ),
        (
            json!({"spec": {"kthreesConfigSpec": {"agentConfig": {"nodeTaints": ["a=b"]}}}}),
            "spec.kthreesConfigSpec.agentConfig.nodeTaints[0]: Invalid value: \"a=b\": must be key=value:Effect",
        ),
        (
            json!({"spec": {"kthreesConfigSpec": {"agentConfig": {"providerID": "a", "kubeletArgs": ["provider-id=b"]}}}}),
            "spec.kthreesConfigSpec.agentConfig.providerID: Forbidden: kubeletArgs already holds provider-id",
        ),
    ];
    for (change, expected) in table {
        let found = messages(&judge(None, &change));
        assert!(
            found.iter().any(|message| message.starts_with(expected)),
            "{change}: {found:?}"
        );
        assert!(
            !found.iter().any(|message| message.contains("\"secret\"")),
            "a file's content is shown: {found:?}"
        );
    }
    assert_eq!(judge(None, &json!({})), Verdict::allowed());
    let external = json!({"spec": {"replicas": 2, "kthreesConfigSpec": {"serverConfig": {"datastore": {"endpointFrom": {"secret": {"name": "a", "key": "b"}}}}}}});
    assert_eq!(
        judge(None, &external),
        Verdict::allowed(),
        "an external datastore needs no odd number"
    );
    let in_place = json!({"spec": {"replicas": 1, "rolloutStrategy": {"type": "InPlace", "rollingUpdate": {"maxSurge": 0}}}});
    assert_eq!(judge(None, &in_place), Verdict::allowed());
}

/// S-27, S-35: versions may not skip a minor or go back one, but may go back to what a server still runs.
#[test]
fn versions_move_by_one_minor_and_back_only_to_what_still_runs() {
    let at = |version: &str, running: &[&str]| {
        let versions: Vec<Value> = running
            .iter()
            .map(|version| json!({"version": version, "replicas": 1}))
            .collect();
        json!({"spec": {"version": version}, "status": {"initialized": true, "replicas": 3, "versions": versions, "ready": true}})
    };
    let to = |version: &str| json!({"spec": {"version": version}});
    let refused = |old: &Value, version: &str| messages(&judge(Some(old), &to(version)));

    let settled = at("v1.33.4+k3s1", &["v1.33.4+k3s1"]);
    assert!(refused(&settled, "v1.34.1+k3s1").is_empty());
    assert!(
        refused(&settled, "v1.33.3+k3s1").is_empty(),
        "a patch may go back"
    );
    assert!(
        refused(&settled, "v1.35.0+k3s1")[0]
            .contains("skips a minor version: servers run v1.33.4+k3s1, go to v1.34 first")
    );
    assert!(refused(&settled, "v1.32.9+k3s1")[0].contains("is a minor version below v1.33.4+k3s1"));

    let halfway = at("v1.34.1+k3s1", &["v1.33.4+k3s1", "v1.34.1+k3s1"]);
    assert!(
        refused(&halfway, "v1.33.4+k3s1").is_empty(),
        "the way out of an upgrade that does not work"
    );
    assert!(refused(&halfway, "v1.33.5+k3s1")[0].contains("no server runs it"));
    assert!(refused(&halfway, "v1.35.0+k3s1")[0].contains("servers run v1.33.4+k3s1"));
}

/// S-28: what k3s requires to be equal on all servers cannot change under them.
#[test]
fn critical_values_cannot_change_while_servers_exist() {
    let server = |change: Value| json!({"spec": {"kthreesConfigSpec": {"serverConfig": change}}});
    let running = |change: Value| {
        let mut object = server(change);
        object["status"] = json!({"initialized": true, "replicas": 3, "ready": true});
        object
    };
    let changes = [
        ("clusterCidr", json!({"clusterCidr": "10.52.0.0/16"})),
        ("serviceCidr", json!({"serviceCidr": "10.53.0.0/16"})),
        ("clusterDNS", json!({"clusterDNS": "10.43.0.11"})),
        ("clusterDomain", json!({"clusterDomain": "a.b"})),
        ("disableCloudController", json!({"disableCloudController": false})),
        ("disableComponents", json!({"disableComponents": ["servicelb"]})),
        ("agentToken", json!({"agentToken": "Separate"})),
        (
            "datastore",
            json!({"datastore": {"endpointFrom": {"secret": {"name": "a", "key": "b"}}}}),
        ),
    ];
    for (field, change) in changes {
        let found = messages(&judge(Some(&running(json!({}))), &server(change.clone())));
        assert_eq!(found.len(), 1, "{field}: {found:?}");
        assert!(
            found[0].starts_with(&format!(
                "spec.kthreesConfigSpec.serverConfig.{field}: Forbidden: "
            )),
            "{found:?}"
        );
        assert!(
            messages(&judge(Some(&server(json!({}))), &server(change))).is_empty(),
            "{field} before the first server"
        );
    }
    let harmless = json!({"disableComponents": ["traefik"], "disableCloudController": true, "clusterDomain": "", "agentToken": "Shared"});
    assert!(messages(&judge(Some(&running(json!({}))), &server(harmless))).is_empty());
}

/// Only changes are judged: an object cluster-api-k3s accepted stays editable.
#[test]
fn what_was_accepted_once_stays_editable() {
    let odd = json!({"spec": {"replicas": 2, "kthreesConfigSpec": {"version": "v1.30.0+k3s1", "files": [{"path": "relative"}]}}});
    let mut edited = odd.clone();
    edited["metadata"] = json!({"labels": {"a": "b"}});
    assert!(messages(&judge(Some(&odd), &edited)).is_empty());
    edited["spec"]["replicas"] = 4.into();
    assert_eq!(
        messages(&judge(Some(&odd), &edited)).len(),
        1,
        "a new mistake is still one"
    );
}

/// Defaults are cluster-api-k3s', and nothing else is touched.
#[test]
fn defaults_are_the_peers() {
    let mut object = control_plane(&json!({"spec": {"replicas": null}}));
    admit::default_control_plane(&mut object, None);
    let spec = serde_json::to_value(&object.spec).expect("JSON");
    assert_eq!(spec["replicas"], 1);
    assert_eq!(spec["machineTemplate"]["infrastructureRef"]["namespace"], "n");
    assert_eq!(
        spec["kthreesConfigSpec"],
        json!({"serverConfig": {"cloudProviderName": "external", "disableCloudController": true}})
    );
    let mut kept = control_plane(
        &json!({"spec": {"kthreesConfigSpec": {"serverConfig": {"cloudProviderName": "", "disableCloudController": false}}}}),
    );
    let before = kept.spec.kthrees_config_spec.clone();
    admit::default_control_plane(&mut kept, None);
    assert_eq!(kept.spec.kthrees_config_spec, before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("SLIPWAY_TEST_FULL").is_some() { 50_000 } else { 2_000 }, ..ProptestConfig::default() })]

    #[test]
    fn admission_never_panics(old in super::conversion::arbitrary_json(), new in super::conversion::arbitrary_json(), replicas in any::<i32>(), version in ".{0,20}") {
        fn change<K: serde::de::DeserializeOwned>(old: &Value, new: &Value) -> Option<Change<K>> {
            Some(Change {
                operation: Operation::Update,
                dry_run: false,
                user: String::new(),
                old: serde_json::from_value(old.clone()).ok(),
                new: Some(serde_json::from_value(new.clone()).ok()?),
            })
        }
        let mut wrapped = json!({"metadata": {}, "spec": new});
        for (name, value) in [("replicas", Value::from(replicas)), ("version", Value::from(version.clone()))] {
            if let Some(spec) = wrapped["spec"].as_object_mut() {
                spec.insert(name.into(), value);
            }
        }
        let old = json!({"metadata": {}, "spec": old});
        if let Some(change) = change::<KThreesControlPlane>(&old, &wrapped) {
            let _ = admit::validate_control_plane(&change);
            let mut object = change.new.expect("just read");
            admit::default_control_plane(&mut object, None);
        }
        if let Some(change) = change::<KThreesConfig>(&old, &wrapped) {
            let _ = config_admit::validate_config(&change);
        }
        if let Some(change) = change::<KThreesConfigTemplate>(&old, &json!({"metadata": {}, "spec": {"template": wrapped}})) {
            let _ = config_admit::validate_config_template(&change);
        }
        if let Some(change) = change::<KThreesControlPlaneTemplate>(&old, &json!({"metadata": {}, "spec": {"template": wrapped}})) {
            let _ = admit::validate_control_plane_template(&change);
        }
    }
}

/// A version that no release of k3s has is allowed, because other builds exist, and warned about.
#[test]
fn a_version_without_a_revision_of_k3s_is_warned_about() {
    let warnings = |version: &str| match judge(None, &json!({"spec": {"version": version}})) {
        Verdict::Allowed { warnings, .. } => warnings,
        other => panic!("{other:?}"),
    };
    let found = warnings("v1.35.2");
    assert!(
        found.iter().any(|warning| warning.contains("v1.35.2+k3s1")),
        "{found:?}"
    );
    assert_eq!(warnings("v1.35.2+k3s1"), Vec::<String>::new());
}

/// The manifest of docs/k3s.md is admitted as it stands, and as the page says for a single server.
#[test]
fn the_manifest_of_the_page_is_admitted() {
    let page = include_str!("../../../docs/k3s.md");
    let manifest = page
        .split("```yaml")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let planes: Vec<Value> = manifest
        .expect("a manifest")
        .split("---\n")
        .map(|document| serde_saphyr::from_str::<Value>(document).expect("YAML"))
        .filter(|object| object["kind"] == "KThreesControlPlane")
        .collect();
    let [plane] = &planes[..] else {
        panic!("one control plane: {planes:?}")
    };
    for replicas in [3, 1] {
        let mut plane = plane.clone();
        plane["spec"]["replicas"] = replicas.into();
        let new = serde_json::from_value(plane).expect("a control plane");
        let verdict = admit::validate_control_plane(&Change {
            operation: Operation::Create,
            dry_run: false,
            user: "somebody".into(),
            old: None,
            new: Some(new),
        });
        assert_eq!(messages(&verdict), Vec::<String>::new());
        assert!(
            matches!(&verdict, Verdict::Allowed { warnings, .. } if warnings.is_empty()),
            "{verdict:?}"
        );
    }
}
