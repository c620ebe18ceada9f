//! What the named options change, each against the same cluster without it.

use slipway_packing::labels::{HOSTNAME, NODE_POOL};
use slipway_packing::model::Improvements;

use crate::cluster::{
    Cluster, copies, default_types, instance_type, labelled, offering, pod, pool, types, with_offerings,
};
use crate::constraints::{With, spread};

fn with(mut cluster: Cluster, improvements: Improvements) -> Cluster {
    cluster.snapshot.options.improvements = improvements;
    cluster
}

#[test]
fn price_aware_takes_the_cheaper_pool_of_equal_weight() {
    let cluster = || {
        let mut cluster = Cluster::new(vec![pool("a-cheap"), pool("z-dear")], default_types());
        for (name, price) in [("a-cheap", 1.0), ("z-dear", 5.0)] {
            let kind = with_offerings(
                instance_type(name, &[]),
                vec![offering("on-demand", "test-zone-1", price)],
            );
            cluster
                .snapshot
                .instance_types
                .insert(name.to_owned(), vec![kind]);
        }
        cluster
    };
    for (price_aware, expected) in [(false, "z-dear"), (true, "a-cheap")] {
        let mut cluster = with(
            cluster(),
            Improvements {
                price_aware,
                ..Improvements::default()
            },
        );
        cluster.provision(vec![pod("one", &[])]);
        assert_eq!(cluster.label_of("one", NODE_POOL), expected);
    }
    // Weight still comes first.
    let mut weighted = with(
        cluster(),
        Improvements {
            price_aware: true,
            ..Improvements::default()
        },
    );
    weighted.snapshot.node_pools[1].spec.weight = Some(10);
    weighted.provision(vec![pod("one", &[])]);
    assert_eq!(weighted.label_of("one", NODE_POOL), "z-dear");
}

#[test]
fn tighter_packing_fills_the_fullest_claim() {
    // Two claims are opened by pods that exclude each other; the rest could go to either.
    let pods = || {
        let apart = [("app", "apart")];
        let mut pods = copies(
            "apart",
            2,
            &labelled("", &[("cpu", "3")], &apart).spread(spread(HOSTNAME, 1, &apart)),
        );
        pods.extend(copies(
            "rest",
            4,
            &labelled("", &[("cpu", "1")], &[("app", "rest")]),
        ));
        pods
    };
    for (tighter_packing, expected) in [(false, vec![2, 2]), (true, vec![4])] {
        let cluster = Cluster::new(vec![pool("default")], types(20));
        let mut cluster = with(
            cluster,
            Improvements {
                tighter_packing,
                ..Improvements::default()
            },
        );
        cluster.provision(pods());
        assert_eq!(cluster.skew(HOSTNAME, &[("app", "rest")]), expected);
    }
}

#[test]
fn hostname_spread_against_the_emptiest_host() {
    let web = [("app", "web")];
    let example = labelled("", &[("cpu", "10m")], &web).spread(spread(HOSTNAME, 1, &web));
    for (hostname_spread_as_kube_scheduler, nodes) in [(false, 4), (true, 2)] {
        let improvements = Improvements {
            hostname_spread_as_kube_scheduler,
            ..Improvements::default()
        };
        let mut cluster = Cluster::default();
        // Two hosts with one pod each stand; two more pods fit evenly on them.
        cluster.provision(copies("first", 2, &example));
        assert_eq!(cluster.node_count(), 2);
        cluster.snapshot.options.improvements = improvements;
        let plan = crate::judged::schedule(&cluster.snapshot, &copies("second", 2, &example));
        assert_eq!(cluster.node_count() + plan.new_claims.len(), nodes);
    }
}
