//! Without new pods, nodes come to rest: whatever the policy, the gates and the prices, commands are few, each is for something, and then
//! there is none.

use slipway_packing::disrupt::{Method, Reason};
use slipway_packing::labels::CAPACITY_TYPE;
use slipway_packing::model::PackingPolicy;

use crate::cluster::{Cluster, condition};
use crate::cost_consolidation::{cost_of, on_demand, worn_of};
use crate::differential::random::Random;
use crate::judged::next_command;

/// Prices added up in another order differ by less.
const ROUNDING: f64 = 1e-6;

/// A worn cluster of one way to run it: by the bits of the seed.
fn any_cluster(seed: u64) -> Cluster {
    let mut pool = on_demand("default");
    if seed & 1 == 1 {
        // Spot or on demand, whatever comes.
        pool.spec
            .template
            .spec
            .requirements
            .retain(|own| own.key != CAPACITY_TYPE);
    }
    if seed & 2 == 2 {
        pool.spec.disruption.consolidation_policy = "Balanced".to_owned();
    }
    let mut cluster = worn_of(pool, seed);
    let options = &mut cluster.snapshot.options;
    options.spot_to_spot_consolidation = true;
    options.improvements.exact_node_limits = true;
    options.improvements.replacements_within_limits = true;
    options.improvements.cheapest_is_launched = seed & 4 == 4;
    options.improvements.busy_destinations = seed & 16 == 16;
    if seed & 8 == 8 {
        options.packing = PackingPolicy::Cost;
    }
    let random = &mut Random::new(!seed);
    for claim in &mut cluster.snapshot.node_claims {
        if random.chance(20) {
            claim.status.conditions.push(condition("Drifted", "True"));
        }
    }
    cluster
}

#[test]
fn without_new_pods_nodes_come_to_rest() {
    let is_full = std::env::var_os("SLIPWAY_TEST_FULL").is_some();
    let seeds = if is_full { 2_000 } else { 64 };
    let (mut most, mut commands, mut saved, mut drifted_in_all) = (0, 0, 0.0, 0);
    for seed in 0..seeds {
        let mut cluster = any_cluster(seed);
        let nodes = cluster.node_count();
        let pods = cluster.snapshot.bound_pods.len();
        let claims = cluster.snapshot.node_claims.iter();
        let drifted = claims.filter(|claim| claim.is_true("Drifted")).count();
        let mut rounds = 0;
        let mut for_drift = 0;
        loop {
            let before = cost_of(&cluster.snapshot);
            let outcome = next_command(&cluster.snapshot, &[]);
            let Some(command) = outcome.command else { break };
            cluster.carry_out(&command);
            let after = cost_of(&cluster.snapshot);
            rounds += 1;
            if command.reason == Reason::Drifted {
                for_drift += 1;
            } else {
                assert!(
                    after < before - ROUNDING || command.method == Method::Emptiness,
                    "seed {seed}: {after} after {before} by {command:?}"
                );
                saved += before - after;
            }
            assert_eq!(
                cluster.snapshot.bound_pods.len(),
                pods,
                "seed {seed}: no pod is lost"
            );
            assert!(
                rounds <= drifted + 4 * nodes,
                "seed {seed}: {rounds} commands over {nodes} nodes, the last {command:?}"
            );
        }
        assert!(
            for_drift <= drifted,
            "seed {seed}: {for_drift} of {drifted} drifted ones"
        );
        most = most.max(rounds);
        commands += rounds;
        drifted_in_all += drifted;
    }
    println!(
        "report: packing: {seeds} worn clusters come to rest after {commands} commands in all, at most {most}; {drifted_in_all} nodes had drifted, the others saved {saved:.2} an hour"
    );
}
