//! What a look asks for.

use serde_json::json;
use slipway_apiserver_sim::faults::Faults;
use slipway_capi::view::Machine;
use slipway_k3s::api::KThreesConfig;
use slipway_runtime::{Informer, Scope, controller::Context};

use crate::{
    stage::{NEW, Stage},
    theatre::change,
};

/// A look that finds nothing to do takes servers as the watches show them; the apiserver is asked again once one changed.
#[tokio::test(start_paused = true)]
async fn a_look_that_finds_nothing_to_do_reads_no_server() {
    let mut stage = Stage::standing(3, NEW).await;
    let (faults, clock) = (Faults::none(), stage.context.clock);
    stage.context = Context::for_tests(stage.management.client_with(faults.clone()), 7);
    stage.context.clock = clock;
    stage.restart();
    // A manager's controllers hold these.
    let scope = Scope::of_namespace(&stage.context.settings);
    let machines: Informer<Machine> = stage.context.informers.get(scope.clone());
    let configs: Informer<KThreesConfig> = stage.context.informers.get(scope);
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
    stage.rounds(4).await;
    assert!(machines.is_synced() && configs.is_synced());
    assert!(!reads(0).is_empty(), "the first look is at the apiserver");

    let before = faults.log().len();
    stage.rounds(3).await;
    assert_eq!(reads(before), Vec::<String>::new());

    let name = stage.names().await.remove(0);
    let patch = json!({"metadata": {"annotations": {"example.org/note": "changed"}}});
    change(&stage.machines(), &name, &patch).await;
    let before = faults.log().len();
    stage.rounds(1).await;
    assert!(!reads(before).is_empty(), "a server changed");
}
