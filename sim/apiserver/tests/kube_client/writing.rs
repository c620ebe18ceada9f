//! Writes through a kube client: versions, generations, finalizers, owners, status, faults.

use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
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
