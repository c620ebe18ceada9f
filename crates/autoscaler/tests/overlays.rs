//! NodeOverlays over machines: which are applied, what they change, and what is said of the others. The cases follow Karpenter's
//! own suites of them (`pkg/controllers/nodeoverlay/suite_test.go` of v1.15.0).

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use slipway_autoscaler::{
    api::NodeOverlay,
    instances::{Overlays, PoolShapes, Price, Shape},
    node_overlay,
};
use slipway_capi::condition;

use crate::instances::{amounts, shape, usual};

/// What an overlay says, its weight zero where it names none.
fn overlay(name: &str, spec: Value) -> Arc<NodeOverlay> {
    let mut value = json!({"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", "metadata": {"name": name, "generation": 2},
        "spec": {"requirements": []}});
    for (key, said) in spec.as_object().expect("an object") {
        value["spec"][key] = said.clone();
    }
    Arc::new(serde_json::from_value(value).expect("an overlay"))
}

fn of_type(values: &[&str]) -> Value {
    json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": values}])
}

/// Machines `small` in two zones and `large` in one, 0.2 per hour each.
fn machines() -> Vec<Shape> {
    let one = |name: &str, labels: &str| shape(&usual(name, &[("labels", labels)]));
    let named = |kind: &str, zone: &str| {
        format!("node.kubernetes.io/instance-type={kind},topology.kubernetes.io/zone={zone}")
    };
    vec![
        one("small-a", &named("small", "a")),
        one("small-b", &named("small", "b")),
        one("large-a", &named("large", "a")),
    ]
}

/// The machines of these NodePools (each with a label `team` of its name) after these overlays.
fn laid(pools: &[&str], overlays: &[Arc<NodeOverlay>]) -> (Overlays, BTreeMap<String, Vec<Shape>>) {
    let machines = machines();
    let labels: Vec<BTreeMap<String, String>> = pools
        .iter()
        .map(|name| [("team".to_owned(), (*name).to_owned())].into())
        .collect();
    let seen: Vec<PoolShapes<'_>> = pools
        .iter()
        .zip(&labels)
        .map(|(name, labels)| PoolShapes {
            name,
            labels,
            shapes: &machines,
        })
        .collect();
    let judged = Overlays::judge(overlays, &seen);
    let laid = seen
        .iter()
        .map(|pool| {
            let mut shapes = machines.clone();
            judged.lay_over(pool.name, pool.labels, &mut shapes);
            (pool.name.to_owned(), shapes)
        })
        .collect();
    (judged, laid)
}

fn prices(shapes: &[Shape]) -> Vec<f64> {
    let rounded = |shape: &Shape| (shape.price.value() * 1000.0).round() / 1000.0;
    shapes.iter().map(rounded).collect()
}

/// The prices of small-a, small-b and large-a in the one NodePool.
fn priced(overlays: &[Arc<NodeOverlay>]) -> Vec<f64> {
    prices(&laid(&["general"], overlays).1["general"])
}

#[test]
fn prices_are_given_or_changed() {
    assert_eq!(priced(&[]), [0.2, 0.2, 0.2]);
    for (said, expected) in [
        (json!({"price": "0.05"}), 0.05),
        (json!({"price": "0"}), 0.0),
        (json!({"priceAdjustment": "+0.1"}), 0.3),
        (json!({"priceAdjustment": "-0.05"}), 0.15),
        (json!({"priceAdjustment": "-5"}), 0.0),
        (json!({"priceAdjustment": "+50%"}), 0.3),
        (json!({"priceAdjustment": "-25%"}), 0.15),
        (json!({"priceAdjustment": "-100%"}), 0.0),
    ] {
        assert_eq!(priced(&[overlay("a", said.clone())]), [expected; 3], "{said}");
    }
}

#[test]
fn a_guessed_price_stays_one_when_it_is_changed() {
    let guessed = shape(&crate::instances::source(
        "a",
        &[("cpu", "4"), ("memory", "16Gi")],
    ));
    let after = |said: Value| {
        let overlay = overlay("a", said);
        let mut shapes = vec![guessed.clone()];
        let seen = [PoolShapes {
            name: "general",
            labels: &BTreeMap::new(),
            shapes: &shapes.clone(),
        }];
        Overlays::judge(&[overlay], &seen).lay_over("general", &BTreeMap::new(), &mut shapes);
        shapes.remove(0).price
    };
    assert!(matches!(
        after(json!({"priceAdjustment": "+10%"})),
        Price::Guessed(_)
    ));
    assert_eq!(after(json!({"price": "0.4"})), Price::Known(0.4));
}

#[test]
fn requirements_say_which_machines_it_is_for() {
    let of =
        |requirements: Value| priced(&[overlay("a", json!({"price": "1", "requirements": requirements}))]);
    let one = |key: &str, operator: &str, values: &[&str]| {
        of(json!([{"key": key, "operator": operator, "values": values}]))
    };
    assert_eq!(of(of_type(&["small"])), [1.0, 1.0, 0.2]);
    assert_eq!(of(of_type(&["small", "large"])), [1.0; 3]);
    assert_eq!(one("topology.kubernetes.io/zone", "In", &["a"]), [1.0, 0.2, 1.0]);
    // A deprecated name stands for its successor.
    assert_eq!(
        one("failure-domain.beta.kubernetes.io/zone", "NotIn", &["a"]),
        [0.2, 1.0, 0.2]
    );
    assert_eq!(one("karpenter.sh/capacity-type", "In", &["spot"]), [0.2; 3]);
    assert_eq!(one("karpenter.sh/capacity-type", "Exists", &[]), [1.0; 3]);
    assert_eq!(
        one("team", "In", &["general"]),
        [1.0; 3],
        "a label of the NodePool's template"
    );
    assert_eq!(one("team", "In", &["other"]), [0.2; 3]);
    assert_eq!(one("karpenter.sh/nodepool", "In", &["general"]), [1.0; 3]);
    assert_eq!(one("unheard/of", "In", &["x"]), [0.2; 3], "no machine has it");
    assert_eq!(one("unheard/of", "DoesNotExist", &[]), [1.0; 3]);
}

#[test]
fn each_node_pool_has_prices_of_its_own() {
    let requirements = json!([{"key": "karpenter.sh/nodepool", "operator": "In", "values": ["web"]}]);
    let (judged, laid) = laid(
        &["batch", "web"],
        &[overlay("a", json!({"price": "1", "requirements": requirements}))],
    );
    assert_eq!(prices(&laid["batch"]), [0.2; 3]);
    assert_eq!(prices(&laid["web"]), [1.0; 3]);
    assert_eq!(
        judged.reaches("a"),
        "applied to the machines of 3 objects in NodePools web"
    );
}

#[test]
fn the_heaviest_counts_and_what_it_leaves_open_is_another_ones() {
    let light = overlay(
        "light",
        json!({"price": "1", "capacity": {"example.com/dongle": "4"}}),
    );
    let heavy = overlay(
        "heavy",
        json!({"price": "2", "weight": 10, "requirements": of_type(&["large"])}),
    );
    let (judged, laid) = laid(&["general"], &[light, heavy]);
    let shapes = &laid["general"];
    assert_eq!(prices(shapes), [1.0, 1.0, 2.0]);
    assert!(
        shapes
            .iter()
            .all(|shape| shape.overlaid.price && shape.overlaid.capacity)
    );
    assert!(
        shapes
            .iter()
            .all(|shape| shape.capacity["example.com/dongle"].value() == 4)
    );
    assert_eq!(judged.rejected("light"), None);
    // A change is of the machine's own price, and not of what a lighter one would make of it.
    assert_eq!(
        priced(&[
            overlay("a", json!({"price": "1"})),
            overlay("b", json!({"priceAdjustment": "+0.1", "weight": 5}))
        ]),
        [0.3; 3]
    );
}

#[test]
fn resources_are_added_and_standard_ones_stay() {
    let (_, laid) = laid(
        &["general"],
        &[
            overlay(
                "a",
                json!({"capacity": {"example.com/dongle": "4", "example.com/chip": 1}, "requirements": of_type(&["small"])}),
            ),
            overlay("b", json!({"capacity": {"example.com/dongle": "8"}, "weight": 3})),
        ],
    );
    let more = |shape: &Shape| -> Vec<(String, String)> {
        let added = shape.capacity.iter().filter(|(name, _)| name.contains('/'));
        added
            .map(|(name, amount)| (name.clone(), amount.to_string()))
            .collect()
    };
    let named = |entries: &[(&str, &str)]| -> Vec<(String, String)> {
        let owned = |(name, amount): &(&str, &str)| ((*name).to_owned(), (*amount).to_owned());
        entries.iter().map(owned).collect()
    };
    let shapes = &laid["general"];
    assert_eq!(
        more(&shapes[0]),
        named(&[("example.com/chip", "1"), ("example.com/dongle", "8")])
    );
    assert_eq!(more(&shapes[2]), named(&[("example.com/dongle", "8")]));
    let standard = amounts(&[("cpu", "4"), ("memory", "16Gi"), ("pods", "110")]);
    assert!(
        standard
            .iter()
            .all(|(name, amount)| shapes[0].capacity.get(name) == Some(amount))
    );
    assert!(!shapes[0].overlaid.price, "nothing was said of the price");
}

/// Two of one weight, and whether the second in order (the first by name) is refused.
#[test]
fn two_of_one_weight_may_not_say_the_same() {
    let rows = [
        (json!({"price": "1"}), json!({"price": "1"}), true),
        (json!({"price": "1"}), json!({"priceAdjustment": "+1"}), true),
        (
            json!({"price": "1", "weight": 4}),
            json!({"price": "2", "weight": 4}),
            true,
        ),
        (
            json!({"price": "1", "weight": 4}),
            json!({"price": "2", "weight": 5}),
            false,
        ),
        (
            json!({"price": "1", "requirements": of_type(&["small"])}),
            json!({"price": "2", "requirements": of_type(&["large"])}),
            false,
        ),
        (
            json!({"price": "1", "requirements": of_type(&["small", "large"])}),
            json!({"price": "2", "requirements": of_type(&["large"])}),
            true,
        ),
        (
            json!({"price": "1", "requirements": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]}]}),
            json!({"price": "2", "requirements": of_type(&["small"])}),
            true,
        ),
        (
            json!({"price": "1", "requirements": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["b"]}]}),
            json!({"price": "2", "requirements": of_type(&["large"])}),
            false,
        ),
        (
            json!({"capacity": {"x/a": "1"}}),
            json!({"capacity": {"x/a": "1"}}),
            true,
        ),
        (
            json!({"capacity": {"x/a": "1"}}),
            json!({"capacity": {"x/b": "1"}}),
            false,
        ),
        (json!({"capacity": {"x/a": "1"}}), json!({"price": "1"}), false),
    ];
    for (one, other, refused) in rows {
        let (judged, _) = laid(
            &["general"],
            &[overlay("a", one.clone()), overlay("b", other.clone())],
        );
        assert_eq!(
            judged.rejected("b"),
            None,
            "the later name comes first: {one} {other}"
        );
        assert_eq!(judged.rejected("a").is_some(), refused, "{one} {other}");
    }
}

/// Karpenter compares one with the last that came before it only, and lets the third of these through.
#[test]
fn a_conflict_is_seen_past_another_of_the_same_weight() {
    let (judged, _) = laid(
        &["general"],
        &[
            overlay("c", json!({"capacity": {"x/a": "1"}})),
            overlay("b", json!({"capacity": {"x/b": "1"}})),
            overlay("a", json!({"capacity": {"x/a": "2"}})),
        ],
    );
    assert_eq!(judged.rejected("b"), None);
    assert!(judged.rejected("a").is_some());
}

#[test]
fn one_in_conflict_is_applied_nowhere() {
    let rejected = overlay("a", json!({"price": "1"}));
    let kept = overlay("b", json!({"price": "2", "requirements": of_type(&["large"])}));
    let (judged, laid) = laid(&["batch", "web"], &[rejected, kept]);
    for pool in ["batch", "web"] {
        assert_eq!(prices(&laid[pool]), [0.2, 0.2, 2.0]);
    }
    assert_eq!(
        judged.rejected("a").map(ToString::to_string),
        Some(
            "NodeOverlay b says the price of MachineDeployment/fleet/large-a in NodePool batch too, with the same weight 0: give \
             one of them another weight, or narrow the requirements of one"
                .to_owned()
        )
    );
}

/// What the definition refuses, of an object that was stored before it did, and what no definition can see.
#[test]
fn what_cannot_be_used_is_told_and_changes_nothing() {
    let requirement = |key: &str, operator: &str, values: &[&str]| json!({"price": "1", "requirements": [{"key": key, "operator": operator, "values": values}]});
    let rows = [
        (
            requirement("kubernetes.io/hostname", "In", &["a"]),
            "using label kubernetes.io/hostname",
        ),
        (
            requirement("karpenter.sh/registered", "In", &["true"]),
            "using label karpenter.sh/registered",
        ),
        (
            requirement("team", "In", &[]),
            "requirement team: In needs a value",
        ),
        (
            requirement("team", "NotIn", &[]),
            "requirement team: NotIn needs a value",
        ),
        (
            requirement("cores", "Gt", &["-1"]),
            "requirement cores: Gt needs one whole number",
        ),
        (
            requirement("cores", "Lte", &["1", "2"]),
            "requirement cores: Lte needs one whole number",
        ),
        (
            requirement("karpenter.sh/capacity-type", "In", &["cheap"]),
            "cheap is none of on-demand, spot, reserved",
        ),
        (
            json!({"capacity": {"cpu": "8"}}),
            "capacity cpu: what everybody knows",
        ),
        (
            json!({"capacity": {"x/a": "-1"}}),
            "capacity x/a: -1 is less than nothing",
        ),
        (json!({"price": "dear"}), "price and priceAdjustment are numbers"),
        (json!({"price": "1", "priceAdjustment": "+1"}), "sets both"),
    ];
    for (said, expected) in rows {
        let (judged, laid) = laid(&["general"], &[overlay("a", said.clone())]);
        let told = judged.rejected("a").map(ToString::to_string).unwrap_or_default();
        assert!(told.contains(expected), "{said}: {told}");
        assert_eq!(laid["general"], machines(), "{said}");
    }
}

#[test]
fn the_status_says_whether_it_is_applied_and_why_not() {
    let now = "2026-11-17T12:00:00Z".parse().expect("a moment");
    let told = |overlays: &[Arc<NodeOverlay>]| -> Vec<String> {
        let (judged, _) = laid(&["general"], overlays);
        let observed = node_overlay::Observed {
            overlay: overlays[0].as_ref().clone(),
            rejected: judged.rejected("a").cloned(),
            reaches: judged.reaches("a"),
        };
        let status = node_overlay::status(&observed, now);
        ["ValidationSucceeded", "Ready"]
            .iter()
            .map(|name| {
                let found = condition::find(&status.conditions, name).expect("it is there");
                assert_eq!(found.observed_generation, Some(2));
                format!("{}: {}", found.reason, found.message)
            })
            .collect()
    };
    assert_eq!(
        told(&[overlay("a", json!({"price": "1"}))]),
        [
            "ValidationSucceeded: applied to the machines of 3 objects in NodePools general",
            "Ready: "
        ]
    );
    assert_eq!(
        told(&[overlay(
            "a",
            json!({"price": "1", "requirements": of_type(&["lagre"])})
        )])[0],
        "ValidationSucceeded: no machine of any NodePool meets its requirements"
    );
    let invalid = told(&[overlay("a", json!({"capacity": {"cpu": "1"}}))]);
    assert!(
        invalid[0].starts_with("RuntimeValidation: capacity cpu"),
        "{invalid:?}"
    );
    assert!(
        invalid[1].starts_with("UnhealthyDependents: capacity cpu"),
        "{invalid:?}"
    );
    let conflict = told(&[
        overlay("a", json!({"price": "1"})),
        overlay("b", json!({"price": "1"})),
    ]);
    assert!(
        conflict[0].starts_with("Conflict: NodeOverlay b says"),
        "{conflict:?}"
    );
}
