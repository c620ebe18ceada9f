//! v1beta1 and v1beta2 into each other and back, with nothing lost.

use proptest::prelude::*;
use serde_json::{Value, json};
use slipway_k3s::conversion::convert;

fn text() -> impl Strategy<Value = Value> {
    "[a-z0-9./=:-]{1,12}".prop_map(Value::from)
}

fn texts() -> impl Strategy<Value = Value> {
    prop::collection::vec(text(), 1..3).prop_map(Value::from)
}

/// An object with some of the given fields.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let optional: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| prop::option::of(value).prop_map(move |value| value.map(|value| (name, value))))
        .collect();
    optional
        .prop_map(|fields| {
            Value::Object(
                fields
                    .into_iter()
                    .flatten()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect(),
            )
        })
        .boxed()
}

fn config_spec(v1beta2: bool) -> BoxedStrategy<Value> {
    let mut server = vec![
        ("kubeAPIServerArg", texts().boxed()),
        ("tlsSan", texts().boxed()),
        ("clusterCidr", text().boxed()),
        ("httpsListenPort", text().boxed()),
        ("disableComponents", texts().boxed()),
        (
            "disableExternalCloudProvider",
            any::<bool>().prop_map(Value::from).boxed(),
        ),
    ];
    let mut agent = vec![
        ("nodeLabels", texts().boxed()),
        ("nodeName", text().boxed()),
        ("airGapped", any::<bool>().prop_map(Value::from).boxed()),
    ];
    if v1beta2 {
        server.extend([
            (
                "disableCloudController",
                any::<bool>().prop_map(Value::from).boxed(),
            ),
            (
                "cloudProviderName",
                prop_oneof![text(), Just(Value::from(""))].boxed(),
            ),
            ("systemDefaultRegistry", text().boxed()),
            ("etcdProxyImage", text().boxed()),
            ("agentToken", Just(Value::from("Separate")).boxed()),
            (
                "datastore",
                Just(json!({"endpointFrom": {"secret": {"name": "a", "key": "b"}}})).boxed(),
            ),
        ]);
        agent.extend([
            ("airGappedInstallScriptPath", text().boxed()),
            ("providerID", text().boxed()),
        ]);
    }
    let nonempty = |strategy: BoxedStrategy<Value>| {
        strategy
            .prop_filter("an empty object says nothing", |value| {
                value.as_object().is_some_and(|map| !map.is_empty())
            })
            .boxed()
    };
    object(vec![
        (
            "files",
            Just(json!([{"path": "/a", "content": "b"}, {"path": "/c", "contentFrom": {"secret": {"name": "d", "key": "e"}}}]))
                .boxed(),
        ),
        ("preK3sCommands", texts().boxed()),
        ("version", text().boxed()),
        ("serverConfig", nonempty(object(server))),
        ("agentConfig", nonempty(object(agent))),
    ])
}

fn metadata() -> Value {
    json!({"name": "a", "namespace": "b", "uid": "c", "annotations": {"keep": "me"}})
}

fn newer_objects() -> impl Strategy<Value = Value> {
    let reference =
        || Just(json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "T", "name": "t"}));
    let machine = object(vec![
        ("metadata", Just(json!({"labels": {"a": "b"}})).boxed()),
        ("infrastructureRef", reference().boxed()),
        ("nodeDrainTimeout", text().boxed()),
        ("nodeVolumeDetachTimeout", text().boxed()),
        ("nodeDeletionTimeout", text().boxed()),
        (
            "spec",
            Just(json!({"infrastructureRef": {"apiGroup": "g", "kind": "K", "name": "n"}, "deletion": {"nodeDrainTimeoutSeconds": 5}}))
                .boxed(),
        ),
    ]);
    let control_plane = object(vec![
        ("replicas", (0..9i32).prop_map(Value::from).boxed()),
        ("version", text().boxed()),
        ("kthreesConfigSpec", config_spec(true)),
        ("rolloutAfter", Just(Value::from("2026-01-01T00:00:00Z")).boxed()),
        ("rollout", Just(json!({"after": "2026-01-01T00:00:00Z"})).boxed()),
        (
            "rolloutBefore",
            Just(json!({"certificatesExpiryDays": 30})).boxed(),
        ),
        ("rolloutStrategy", Just(json!({"type": "InPlace"})).boxed()),
        ("machineTemplate", machine),
        ("remediationStrategy", Just(json!({"maxRetry": 2})).boxed()),
    ]);
    let status = object(vec![
        ("version", text().boxed()),
        (
            "versions",
            Just(json!([{"version": "v1.34.1+k3s1", "replicas": 3}])).boxed(),
        ),
        ("replicas", (0..9i32).prop_map(Value::from).boxed()),
        ("updatedReplicas", (0..9i32).prop_map(Value::from).boxed()),
        ("upToDateReplicas", (0..9i32).prop_map(Value::from).boxed()),
        ("initialized", any::<bool>().prop_map(Value::from).boxed()),
        (
            "initialization",
            Just(json!({"controlPlaneInitialized": true})).boxed(),
        ),
        ("v1beta2", Just(json!({"conditions": []})).boxed()),
        (
            "conditions",
            Just(json!([{"type": "Ready", "status": "True"}])).boxed(),
        ),
    ]);
    prop_oneof![
        (control_plane, status.clone()).prop_map(|(spec, status)| json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KThreesControlPlane",
            "metadata": metadata(), "spec": spec, "status": status,
        })),
        (config_spec(true), status).prop_map(|(spec, status)| json!({
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KThreesConfig",
            "metadata": metadata(), "spec": spec, "status": status,
        })),
        config_spec(true).prop_map(|spec| json!({
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2", "kind": "KThreesConfigTemplate",
            "metadata": metadata(), "spec": {"template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}},
        })),
    ]
}

fn older_objects() -> impl Strategy<Value = Value> {
    let control_plane = object(vec![
        ("replicas", (0..9i32).prop_map(Value::from).boxed()),
        ("version", text().boxed()),
        (
            "infrastructureTemplate",
            Just(json!({"apiVersion": "g/v1", "kind": "T", "name": "t"})).boxed(),
        ),
        ("kthreesConfigSpec", config_spec(false)),
        ("upgradeAfter", Just(Value::from("2026-01-01T00:00:00Z")).boxed()),
        ("nodeDrainTimeout", text().boxed()),
        (
            "machineTemplate",
            Just(json!({"metadata": {"labels": {"a": "b"}}})).boxed(),
        ),
        ("remediationStrategy", Just(json!({"maxRetry": 2})).boxed()),
    ]);
    prop_oneof![
        control_plane.prop_map(|spec| json!({
            "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1", "kind": "KThreesControlPlane",
            "metadata": metadata(), "spec": spec, "status": {"replicas": 1, "initialized": true, "ready": true},
        })),
        config_spec(false).prop_map(|spec| json!({
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "kind": "KThreesConfig",
            "metadata": metadata(), "spec": spec, "status": {"ready": true},
        })),
        config_spec(false).prop_map(|spec| json!({
            "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "kind": "KThreesConfigTemplate",
            "metadata": metadata(), "spec": {"template": {"spec": spec}},
        })),
    ]
}

fn to(object: &Value, version: &str) -> Value {
    let group = object["apiVersion"]
        .as_str()
        .and_then(|text| text.split('/').next())
        .expect("a group");
    convert(object.clone(), &format!("{group}/{version}")).unwrap_or_else(|error| panic!("{error}: {object}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("SLIPWAY_TEST_FULL").is_some() { 20_000 } else { 1_000 }, ..ProptestConfig::default() })]

    /// S-62
    #[test]
    fn the_newer_version_survives_the_older_one(object in newer_objects()) {
        prop_assert_eq!(to(&to(&object, "v1beta1"), "v1beta2"), object);
    }

    /// S-62
    #[test]
    fn the_older_version_survives_the_newer_one(object in older_objects()) {
        let mut back = to(&to(&object, "v1beta2"), "v1beta1");
        back["metadata"]["annotations"].as_object_mut().expect("annotations").remove("cluster.x-k8s.io/conversion-data");
        prop_assert_eq!(back, object);
    }

    #[test]
    fn conversion_never_panics(object in arbitrary_json(), expected in "[a-z0-9./]{0,20}") {
        let _ = convert(object.clone(), &expected);
        for kind in ["KThreesConfig", "KThreesConfigTemplate", "KThreesControlPlane"] {
            for group in ["bootstrap.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"] {
                let mut object = object.clone();
                if let Some(map) = object.as_object_mut() {
                    map.insert("kind".into(), kind.into());
                    for (from, to) in [("v1beta1", "v1beta2"), ("v1beta2", "v1beta1")] {
                        let mut object = Value::Object(map.clone());
                        object["apiVersion"] = format!("{group}/{from}").into();
                        let _ = convert(object, &format!("{group}/{to}"));
                    }
                }
            }
        }
    }
}

pub fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-zA-Z0-9{}/: .-]{0,12}".prop_map(Value::from),
    ];
    let keys = prop::sample::select(vec![
        "spec",
        "status",
        "metadata",
        "template",
        "serverConfig",
        "agentConfig",
        "kthreesConfigSpec",
        "machineTemplate",
        "annotations",
        "files",
        "infrastructureRef",
        "version",
        "replicas",
        "cluster.x-k8s.io/conversion-data",
        "path",
    ]);
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..6).prop_map(|fields| {
                Value::Object(
                    fields
                        .into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect(),
                )
            }),
        ]
    })
}

/// What a client of v1beta1 changes wins, field by field; what it cannot see stays.
#[test]
fn an_edit_in_the_older_version_changes_only_what_it_says() {
    let v1beta2 = json!({
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KThreesControlPlane", "metadata": {"name": "a"},
        "spec": {
            "replicas": 3, "version": "v1.34.1+k3s1", "rolloutStrategy": {"type": "InPlace"},
            "kthreesConfigSpec": {"serverConfig": {"cloudProviderName": "vsphere", "disableCloudController": false, "etcdProxyImage": "i"}},
            "machineTemplate": {"infrastructureRef": {"kind": "T", "name": "t"}, "nodeDeletionTimeout": "5s"},
        },
    });
    let mut v1beta1 = to(&v1beta2, "v1beta1");
    assert_eq!(v1beta1["spec"]["infrastructureTemplate"]["name"], "t");
    v1beta1["spec"]["replicas"] = 5.into();
    v1beta1["spec"]["nodeDrainTimeout"] = "1m".into();
    let back = to(&v1beta1, "v1beta2");
    let mut expected = v1beta2.clone();
    expected["spec"]["replicas"] = 5.into();
    expected["spec"]["machineTemplate"]["nodeDrainTimeout"] = "1m".into();
    assert_eq!(back, expected);

    v1beta1["spec"]["kthreesConfigSpec"]["serverConfig"] = json!({"disableExternalCloudProvider": true});
    let back = to(&v1beta1, "v1beta2");
    let server = &back["spec"]["kthreesConfigSpec"]["serverConfig"];
    assert_eq!(
        server["cloudProviderName"], "",
        "the v1beta1 switch was turned: {server}"
    );
    assert_eq!(server["etcdProxyImage"], "i");
}

/// An object stored by cluster-api-k3s itself, with its annotation, is read the same.
#[test]
fn data_kept_by_the_peer_is_restored() {
    let v1beta1 = json!({
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "kind": "KThreesConfig",
        "metadata": {"name": "a", "annotations": {"cluster.x-k8s.io/conversion-data":
            "{\"apiVersion\":\"bootstrap.cluster.x-k8s.io/v1beta2\",\"kind\":\"KThreesConfig\",\"spec\":{\"agentConfig\":{},\"serverConfig\":{\"cloudProviderName\":\"external\",\"disableCloudController\":true,\"systemDefaultRegistry\":\"r\"}},\"status\":{}}"}},
        "spec": {"agentConfig": {}, "serverConfig": {}}, "status": {},
    });
    let v1beta2 = to(&v1beta1, "v1beta2");
    assert_eq!(v1beta2["spec"]["serverConfig"]["systemDefaultRegistry"], "r");
    assert_eq!(v1beta2["spec"]["serverConfig"]["cloudProviderName"], "external");
    assert!(v1beta2["metadata"].get("annotations").is_none());
}

#[test]
fn unreadable_kept_data_is_an_error_that_says_where() {
    let object = json!({
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "kind": "KThreesConfig",
        "metadata": {"annotations": {"cluster.x-k8s.io/conversion-data": "{"}}, "spec": {},
    });
    let error = convert(object, "bootstrap.cluster.x-k8s.io/v1beta2").expect_err("the data is cut off");
    assert!(
        error.starts_with("cannot read annotation cluster.x-k8s.io/conversion-data of KThreesConfig"),
        "{error}"
    );
}
