//! Whatever is in an object, a Secret or an answer: it gets an error or a result, never a panic.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proptest::prelude::*;
use serde_json::Value;
use slipway_capi::{
    apply,
    hook::{
        coverage,
        types::{CanUpdateMachineRequest, CanUpdateMachineResponse, MachineObjects, Patch},
    },
    in_place,
    secret::{cluster_secret, kubeconfig, read_key_pair},
    template,
};

/// Documents with the keys the code looks for, and anything under them.
fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z*\\n ~/]{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("apiVersion".to_owned()),
        Just("kind".to_owned()),
        Just("metadata".to_owned()),
        Just("name".to_owned()),
        Just("labels".to_owned()),
        Just("annotations".to_owned()),
        Just("spec".to_owned()),
        Just("template".to_owned()),
        Just("deletion".to_owned()),
        Just("status".to_owned()),
        Just("conditions".to_owned()),
        Just("v1beta2".to_owned()),
        Just("type".to_owned()),
        Just("lastTransitionTime".to_owned()),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_document_is_taken_or_refused(one in document(), other in document(), third in document()) {
        let new = template::NewObject { name: "n".into(), ..Default::default() };
        if let Ok(object) = template::clone(&one, &new) {
            prop_assert_eq!(&object["metadata"]["name"], "n");
        }
        let intent = apply::spec_intent(&one);
        prop_assert!(intent.get("status").is_none());
        let reduced = apply::for_hook(&one);
        prop_assert!(reduced["metadata"].get("uid").is_none());
        let desired = MachineObjects {
            machine: one, infrastructure_machine: other, bootstrap_config: Some(third),
        };
        let managers = apply::FieldManagers { spec: "s", metadata: "m" };
        prop_assert_eq!(in_place::trigger(&ObjectMeta::default(), &desired, managers).len(), 5);
    }

    #[test]
    fn any_answer_is_applied_or_refused(
        current in document(), desired in document(), patch in document(), is_merge in any::<bool>(),
    ) {
        let objects = |object: &Value| MachineObjects {
            machine: object.clone(), infrastructure_machine: object.clone(), bootstrap_config: None,
        };
        let request = CanUpdateMachineRequest { current: objects(&current), desired: objects(&desired) };
        let response = CanUpdateMachineResponse {
            machine_patch: Patch {
                patch_type: if is_merge { "JSONMergePatch" } else { "JSONPatch" }.to_owned(),
                patch: patch.to_string().into_bytes(),
            },
            ..Default::default()
        };
        let first = coverage::uncovered_of_machine("h", &request, &response);
        prop_assert_eq!(&first, &coverage::uncovered_of_machine("h", &request, &response), "deterministic");
        // Desired is always reached from itself.
        let same = CanUpdateMachineRequest { current: objects(&desired), desired: objects(&desired) };
        prop_assert_eq!(coverage::uncovered_of_machine("h", &same, &CanUpdateMachineResponse::default()), Ok(Vec::new()));
    }

    #[test]
    fn any_secret_is_read_or_refused_without_being_quoted(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let marker = b"hunter2-hunter2".to_vec();
        let content = [marker, bytes].concat();
        let secret = cluster_secret("n", "c", "c-ca", None, [("value", content.clone()), ("tls.key", content)]);
        if let Err(error) = kubeconfig::read(&secret) {
            prop_assert!(!error.to_string().contains("hunter2"));
        }
        let error = read_key_pair(&secret).expect_err("there is no certificate");
        prop_assert!(!error.to_string().contains("hunter2"));
    }
}
