//! `clusterctl move` on the apiserver simulator: objects are taken away with their finalizers and made again elsewhere, or
//! in the same place, without status and under new identities.

use std::collections::BTreeMap;

use kube::api::PostParams;
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;

use crate::objects::{api_of, delete, merge};

/// Takes the objects of these kinds away, owners last. The kinds are named owners first, and so are the objects returned.
pub async fn take_away(server: &Apiserver, kinds: &[&str], is_moved: impl Fn(&Value) -> bool) -> Vec<Value> {
    let objects = server.objects();
    let moved: Vec<Value> = kinds
        .iter()
        .flat_map(|kind| objects.iter().filter(move |object| object["kind"] == *kind))
        .filter(|object| is_moved(object))
        .cloned()
        .collect();
    for object in moved.iter().rev() {
        merge(server, object, json!({"metadata": {"finalizers": null}})).await;
        delete(server, object).await;
    }
    moved
}

/// Makes the objects again, owners first, whose references to each other hold again.
pub async fn put_down(server: &Apiserver, objects: &[Value]) {
    let mut identities: BTreeMap<String, Value> = BTreeMap::new();
    for object in objects {
        let mut copy = object.clone();
        copy.as_object_mut().expect("an object").remove("status");
        let metadata = copy["metadata"].as_object_mut().expect("metadata");
        for field in [
            "resourceVersion",
            "generation",
            "creationTimestamp",
            "managedFields",
        ] {
            metadata.remove(field);
        }
        let old = metadata.remove("uid").unwrap_or_default().to_string();
        let owners = copy["metadata"]["ownerReferences"].as_array_mut();
        for owner in owners.into_iter().flatten() {
            if let Some(uid) = identities.get(&owner["uid"].to_string()) {
                owner["uid"] = uid.clone();
            }
        }
        let copy = serde_json::from_value(copy).expect("an object");
        let made = api_of(server, object)
            .create(&PostParams::default(), &copy)
            .await
            .unwrap_or_else(|error| panic!("moving {}: {error}", object["kind"]));
        identities.insert(old, json!(made.metadata.uid));
    }
}
