//! Which of domains that suit a pod equally well is taken, where few claims are made: whatever comes out cheaper.

use slipway_packing::labels::ZONE;

use crate::cluster::{Cluster, instance_type, labelled, offering, pod, pool, with_offerings};
use crate::constraints::{With, term};

const GROUP: &[(&str, &str)] = &[("app", "group")];
const MOST_OF_A_NODE: &[(&str, &str)] = &[("cpu", "3")];

/// Two nodes: one has to be in the first zone, the other may be in either. Returns what they cost and where the other is.
fn plan(first_zone: f64, second_zone: f64) -> (f64, String) {
    let offerings = vec![
        offering("on-demand", "zone-a", first_zone),
        offering("on-demand", "zone-b", second_zone),
    ];
    let kind = with_offerings(instance_type("only", &[]), offerings);
    let mut cluster = Cluster::new(vec![pool("default")], vec![kind]);
    let fixed = pod("fixed", MOST_OF_A_NODE).selecting(ZONE, "zone-a");
    let free = labelled("free", MOST_OF_A_NODE, GROUP).near(term(ZONE, GROUP));
    let batch = cluster.provision(vec![fixed, free]);
    assert_eq!(batch.plan.new_claims.len(), 2);
    let cost = batch
        .plan
        .new_claims
        .iter()
        .map(|claim| claim.cheapest_price)
        .sum();
    (cost, cluster.label_of("free", ZONE).to_owned())
}

#[test]
fn another_of_equal_domains_is_taken_where_that_is_cheaper() {
    assert_eq!(plan(2.0, 1.0), (3.0, "zone-b".to_owned()));
}

#[test]
fn the_first_by_name_is_taken_where_another_is_no_cheaper() {
    assert_eq!(plan(1.0, 2.0), (2.0, "zone-a".to_owned()));
    assert_eq!(plan(1.0, 1.0), (2.0, "zone-a".to_owned()));
}
