//! From a snapshot to claims: what a round makes, and what it must not.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::json;
use slipway_autoscaler::{
    instances::{Shape, catalog},
    provisioner::plan::plan,
    safety::Rival,
    snapshot::Store,
    watched::Observed,
};

use crate::{
    instances::{shape, usual},
    snapshot::{now, pod, pool},
};

/// So many pods, each of which needs a machine of its own, over one NodePool.
fn round(shapes: &[Shape], pods: usize) -> Observed {
    let mut store = Store::default();
    let pool = pool("general", &json!({}));
    store.put_node_pool(&pool).expect("a pool");
    for number in 0..pods {
        let waits = pod(&format!("waits-{number}"), "3", None);
        store.put_pod(&waits).expect("a pod");
    }
    let made = catalog(shapes, "general", &[].into(), &[]);
    let catalogs = BTreeMap::from([("general".to_owned(), made)]);
    Observed {
        snapshot: store.snapshot(&catalogs, now()),
        pods: store.waiting(),
        pools: [("general".to_owned(), Arc::new(pool))].into(),
        shapes: [("general".to_owned(), shapes.to_vec())].into(),
        ..Observed::default()
    }
}

/// The objects that the claims of a round are assigned to, and what is said of pods that get nothing.
fn outcome(observed: &Observed) -> (Vec<String>, Vec<String>) {
    let plan = plan(observed, now());
    let objects = plan.creations.iter().map(|creation| {
        let assigned = &creation.claim.metadata.annotations;
        let assigned = assigned
            .as_ref()
            .map(|all| all["karpenter.cluster.x-k8s.io/scalable-resource"].clone());
        assert_eq!(assigned, Some(creation.object.to_string()));
        creation.object.name.clone()
    });
    let mut said: Vec<String> = plan
        .refused
        .iter()
        .map(|refusal| refusal.message.clone())
        .collect();
    said.dedup();
    (objects.collect(), said)
}

#[test]
fn a_pool_whose_machines_fail_gets_one_at_a_time() {
    let mut observed = round(&[shape(&usual("a", &[]))], 3);
    assert_eq!(outcome(&observed).0.len(), 3);
    let why = "2 of its last 4 machines did not register".to_owned();
    observed.breakers = [("general".to_owned(), (1, why))].into();
    let said = "NodePool general makes one machine at a time: 2 of its last 4 machines did not register";
    assert_eq!(outcome(&observed), (vec!["a".to_owned()], vec![said.to_owned()]));
    // One is on its way already.
    if let Some((left, _)) = observed.breakers.get_mut("general") {
        *left = 0;
    }
    assert_eq!(outcome(&observed), (vec![], vec![said.to_owned()]));
}

/// Claims of one round take room from each other: those that the cheapest object has no room for get the next.
#[test]
fn claims_of_one_round_share_the_room_of_an_object() {
    let most = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size";
    let cheap = shape(&usual("cheap", &[("price", "0.1"), (most, "1")]));
    let dear = shape(&usual("dear", &[("price", "0.3"), (most, "1")]));
    let (objects, said) = outcome(&round(&[dear, cheap], 3));
    assert_eq!(objects, ["cheap", "dear"]);
    assert!(
        matches!(&said[..], [one] if one.contains("it has 1 of at most 1 replicas")),
        "{said:?}"
    );
}

/// At the same price, machines go where the fewest are, those of the same round counted.
#[test]
fn zones_stay_even_within_a_round() {
    let at = |name: &str, zone: &str| {
        let labels = format!("topology.kubernetes.io/zone={zone}");
        shape(&usual(name, &[("labels", &labels)]))
    };
    let mut observed = round(&[at("a", "z1"), at("b", "z2")], 4);
    observed.zones = [("z1".to_owned(), 2)].into();
    let mut objects = outcome(&observed).0;
    objects.sort();
    assert_eq!(objects, ["a", "b", "b", "b"], "three in each zone");
}

#[test]
fn nothing_is_made_while_another_autoscaler_holds_its_lease() {
    let mut observed = round(&[shape(&usual("a", &[]))], 1);
    observed.rival = Some(Rival {
        who: "Cluster Autoscaler",
        lease: "kube-system/cluster-autoscaler".to_owned(),
        holder: "ca-7f".to_owned(),
        until: "2026-11-17T12:00:15Z".parse().expect("a moment"),
    });
    let waits = plan(&observed, now());
    assert!(!waits.creates());
    assert!(
        waits
            .waits
            .is_some_and(|why| why.starts_with("Cluster Autoscaler scales this cluster: ca-7f"))
    );
    let later = "2026-11-17T12:00:16Z".parse().expect("a moment");
    assert!(plan(&observed, later).creates(), "its lease has ended");
}
