//! What a reconcile asks for.

use serde_json::json;
use slipway_apiserver_sim::faults::Faults;
use slipway_capi::view::Machine;
use slipway_k3s::api::KThreesConfig;
use slipway_runtime::{Informer, Scope, controller::Context};

use crate::{
    driver::{Driver, NEW},
    environment::change,
};

/// A reconcile that finds nothing to do takes servers as the watches show them; the apiserver is asked again once one changed.
#[tokio::test(start_paused = true)]
async fn a_look_that_finds_nothing_to_do_reads_no_server() {
    let mut driver = Driver::standing(3, NEW).await;
    let (faults, clock) = (Faults::none(), driver.context.clock);
    driver.context = Context::for_tests(driver.management.client_with(faults.clone()), 7);
    driver.context.clock = clock;
    driver.restart();
    // A manager's controllers hold these.
    let scope = Scope::of_namespace(&driver.context.settings);
    let machines: Informer<Machine> = driver.context.informers.get(scope.clone());
    let configs: Informer<KThreesConfig> = driver.context.informers.get(scope);
    let reads = |since: usize| -> Vec<String> {
        let of_a_server = |line: &str| {
            let kinds = [
                "LIST machines fleet",
                "GET kthreesconfigs fleet",
                "GET hostmachines fleet",
            ];
            kinds.iter().any(|kind| line.starts_with(kind))
        };
        let log = faults.log().into_iter().skip(since).map(|call| call.line);
        log.filter(|line| of_a_server(line)).collect()
    };
    driver.rounds(4).await;
    assert!(machines.is_synced() && configs.is_synced());
    assert!(!reads(0).is_empty(), "the first reconcile reads the apiserver");

    let before = faults.log().len();
    driver.rounds(3).await;
    assert_eq!(reads(before), Vec::<String>::new());

    let name = driver.names().await.remove(0);
    let patch = json!({"metadata": {"annotations": {"example.org/note": "changed"}}});
    change(&driver.machines(), &name, &patch).await;
    let before = faults.log().len();
    driver.rounds(1).await;
    assert!(!reads(before).is_empty(), "a server changed");
}
