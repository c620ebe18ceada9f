//! Writes through a kube client: versions, generations, finalizers, owners, status, faults.

use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::PodDisruptionBudget},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
        PostParams, Preconditions,
    },
};
use serde_json::{Value, json};
use slipway_apiserver_sim::faults::{Fault, Faults};

use super::{boat, boats, harbour};

#[tokio::test(start_paused = true)]
async fn generation_follows_the_spec_and_status_has_its_own_door() {
    let server = harbour();
    let boats = boats(&server.client());
    let created = boats
        .create(&PostParams::default(), &boat("skiff", &json!({"length": 4})))
        .await
        .unwrap();
    assert_eq!(created.data["spec"]["sails"], 2, "defaulted");
    assert_eq!(created.metadata.generation, Some(1));

    let both = json!({"spec": {"length": 5}, "status": {"afloat": true}});
    let spec = boats
        .patch("skiff", &PatchParams::default(), &Patch::Merge(&both))
        .await
        .unwrap();
    assert_eq!(spec.metadata.generation, Some(2));
    assert!(
        spec.data.get("status").is_none(),
        "the main resource does not write status"
    );

    let status = boats
        .patch_status("skiff", &PatchParams::default(), &Patch::Merge(&both))
        .await
        .unwrap();
    assert_eq!(status.data["status"]["afloat"], true);
    assert_eq!(status.metadata.generation, Some(2));

    let again = boats
        .patch_status("skiff", &PatchParams::default(), &Patch::Merge(&both))
        .await
        .unwrap();
    assert_eq!(
        again.metadata.resource_version, status.metadata.resource_version,
        "nothing changed, nothing written"
    );
}

#[tokio::test(start_paused = true)]
async fn an_old_resource_version_conflicts_and_bad_objects_are_refused() {
    let server = harbour();
    let boats = boats(&server.client());
    let mut old = boats
        .create(&PostParams::default(), &boat("skiff", &json!({"length": 4})))
        .await
        .unwrap();
    let change = json!({"spec": {"length": 5}});
    boats
        .patch("skiff", &PatchParams::default(), &Patch::Merge(&change))
        .await
        .unwrap();
    old.data["spec"]["length"] = json!(6);
    let conflict = boats
        .replace("skiff", &PostParams::default(), &old)
        .await
        .unwrap_err();
    assert!(
        matches!(&conflict, kube::Error::Api(status) if status.is_conflict()),
        "{conflict}"
    );

    let invalid = boats
        .create(&PostParams::default(), &boat("dinghy", &json!({"length": 0})))
        .await
        .unwrap_err();
    assert!(
        invalid
            .to_string()
            .contains("should be greater than or equal to 1"),
        "{invalid}"
    );
    let twice = boats
        .create(&PostParams::default(), &boat("skiff", &json!({"length": 4})))
        .await
        .unwrap_err();
    assert!(
        matches!(&twice, kube::Error::Api(status) if status.is_already_exists()),
        "{twice}"
    );
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_and_owners_take_their_dependents_along() {
    let server = harbour();
    let boats = boats(&server.client());
    let owner = boats
        .create(&PostParams::default(), &boat("ferry", &json!({"length": 40})))
        .await
        .unwrap();
    let mut tender = boat("tender", &json!({"length": 3}));
    tender.metadata.finalizers = Some(vec!["harbour.slipway.dev/moored".into()]);
    tender.metadata.owner_references = Some(vec![serde_json::from_value(json!({
        "apiVersion": "harbour.slipway.dev/v1", "kind": "Boat", "name": "ferry", "uid": owner.metadata.uid,
    }))
    .unwrap()]);
    boats.create(&PostParams::default(), &tender).await.unwrap();

    let wrong = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some("another".into()),
            ..Default::default()
        }),
        ..DeleteParams::default()
    };
    assert!(boats.delete("ferry", &wrong).await.is_err());
    boats.delete("ferry", &DeleteParams::default()).await.unwrap();
    assert!(boats.get_opt("ferry").await.unwrap().is_none());
    let held = boats.get("tender").await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some());

    let release = json!({"metadata": {"finalizers": null}});
    boats
        .patch("tender", &PatchParams::default(), &Patch::Merge(&release))
        .await
        .unwrap();
    assert!(boats.get_opt("tender").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn two_appliers_share_one_object() {
    let server = harbour();
    let boats = boats(&server.client());
    let apply = async |manager: &str, spec: Value| {
        let body = json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Boat",
            "metadata": {"name": "sloop"}, "spec": spec});
        boats
            .patch("sloop", &PatchParams::apply(manager), &Patch::Apply(body))
            .await
    };
    apply("first", json!({"length": 9, "rigging": {"mast": "pine"}}))
        .await
        .unwrap();
    apply("second", json!({"rigging": {"boom": "oak"}}))
        .await
        .unwrap();
    let refused = apply("second", json!({"rigging": {"boom": "oak", "mast": "steel"}}))
        .await
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("conflict with \"first\": .spec.rigging.mast"),
        "{refused}"
    );
    let left = apply("first", json!({"length": 9})).await.unwrap();
    assert_eq!(left.data["spec"]["rigging"], json!({"boom": "oak"}));
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages_and_expire() {
    let server = harbour();
    let boats = boats(&server.client());
    for number in 0..5 {
        boats
            .create(
                &PostParams::default(),
                &boat(&format!("b{number}"), &json!({"length": 1})),
            )
            .await
            .unwrap();
    }
    let page = boats.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(
        (page.items.len(), page.metadata.remaining_item_count),
        (2, Some(3))
    );
    let token = page.metadata.continue_.unwrap();
    let rest = boats
        .list(&ListParams::default().continue_token(&token))
        .await
        .unwrap();
    assert_eq!(rest.items.len(), 3);
    server.compact();
    boats.delete("b0", &DeleteParams::default()).await.unwrap();
    server.compact();
    let expired = boats
        .list(&ListParams::default().continue_token(&token))
        .await
        .unwrap_err();
    assert!(
        matches!(&expired, kube::Error::Api(status) if status.code == 410),
        "{expired}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_has_taken_effect_and_a_lost_request_has_not() {
    let server = harbour();
    let faults = Faults::none().at(0, Fault::LostRequest).at(1, Fault::LostAnswer);
    let tested = boats(&server.client_with(faults.clone()));
    let seen = boats(&server.client());
    let skiff = boat("skiff", &json!({"length": 4}));
    tested.create(&PostParams::default(), &skiff).await.unwrap_err();
    assert!(seen.get_opt("skiff").await.unwrap().is_none());
    tested.create(&PostParams::default(), &skiff).await.unwrap_err();
    assert!(seen.get_opt("skiff").await.unwrap().is_some());
    let lines: Vec<String> = faults.log().into_iter().map(|call| call.line).collect();
    assert_eq!(lines, ["CREATE boats default", "CREATE boats default"]);
}

#[tokio::test(start_paused = true)]
async fn replicas_are_written_at_scale_and_by_version() {
    let server = harbour();
    server.install(&[fleet_crd()], &[], &[]);
    let kind = GroupVersionKind::gvk("harbour.slipway.dev", "v1", "Fleet");
    let fleets: Api<DynamicObject> =
        Api::namespaced_with(server.client(), "default", &ApiResource::from_gvk(&kind));
    let fleet = serde_json::from_value(json!({"apiVersion": "harbour.slipway.dev/v1", "kind": "Fleet",
        "metadata": {"name": "north"}, "spec": {"replicas": 1, "home": "kiel"}}))
    .unwrap();
    let made = fleets.create(&PostParams::default(), &fleet).await.unwrap();
    let scale = |version: &str, replicas: i32| {
        Patch::Merge(json!({"metadata": {"resourceVersion": version}, "spec": {"replicas": replicas}}))
    };
    let version = made.metadata.resource_version.unwrap();
    let scaled = fleets
        .patch_scale("north", &PatchParams::default(), &scale(&version, 3))
        .await
        .unwrap();
    assert_eq!(scaled.spec.and_then(|spec| spec.replicas), Some(3));
    let now = fleets.get("north").await.unwrap();
    assert_eq!(now.data["spec"], json!({"replicas": 3, "home": "kiel"}));
    assert_eq!(now.metadata.resource_version, scaled.metadata.resource_version);
    let stale = fleets
        .patch_scale("north", &PatchParams::default(), &scale(&version, 5))
        .await;
    assert!(matches!(stale, Err(kube::Error::Api(status)) if status.code == 409));
    let boats = boats(&server.client());
    boats
        .create(&PostParams::default(), &boat("skiff", &json!({"length": 4})))
        .await
        .unwrap();
    let none = boats
        .patch_scale("skiff", &PatchParams::default(), &Patch::Merge(json!({})))
        .await;
    assert!(none.is_err(), "a kind without the subresource");
}

#[tokio::test(start_paused = true)]
async fn a_budget_holds_an_eviction_back() {
    let server = harbour();
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    for name in ["web-1", "web-2", "job"] {
        let app = name.split('-').next().unwrap();
        let pod = serde_json::from_value(json!({"metadata": {"name": name, "labels": {"app": app}},
            "spec": {"containers": [{"name": "main"}]}}))
        .unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(server.client(), "default");
    let budget = serde_json::from_value(json!({"metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}))
    .unwrap();
    budgets.create(&PostParams::default(), &budget).await.unwrap();
    let allowed = Patch::Merge(json!({"status": {"disruptionsAllowed": 1, "currentHealthy": 2,
        "desiredHealthy": 1, "expectedPods": 2}}));
    budgets
        .patch_status("web", &PatchParams::default(), &allowed)
        .await
        .unwrap();
    let evict = async |name: &str, uid: Option<&str>| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
            "deleteOptions": {"preconditions": uid.map(|uid| json!({"uid": uid}))}});
        let parameters = PostParams::default();
        let answer: Result<Value, kube::Error> = pods
            .create_subresource("eviction", name, &parameters, &eviction)
            .await;
        match answer {
            Ok(_) => 201,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(
        evict("job", Some("another")).await,
        409,
        "another pod took its name"
    );
    assert_eq!(evict("job", None).await, 201);
    assert_eq!(evict("web-1", None).await, 201);
    assert_eq!(evict("web-2", None).await, 429);
    let left: Vec<String> = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|pod| pod.metadata.name)
        .collect();
    assert_eq!(left, ["web-2"]);
}

fn fleet_crd() -> CustomResourceDefinition {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    serde_json::from_value(json!({
        "metadata": {"name": "fleets.harbour.slipway.dev"},
        "spec": {"group": "harbour.slipway.dev", "scope": "Namespaced",
            "names": {"kind": "Fleet", "plural": "fleets", "singular": "fleet"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas"}}}]},
    }))
    .unwrap()
}
