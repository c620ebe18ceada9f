//! The registration: kinds, controllers and the gate in front of them.

use std::time::Duration;

use slipway_apiserver_sim::Apiserver;
use slipway_aso::provider::{GATE, provider};
use slipway_runtime::{Clock, controller::Context};

#[test]
fn the_provider_adds_its_kinds_to_the_package_of_azure() {
    let provider = provider();
    assert_eq!(provider.name, "aso");
    let [package] = provider.packages.as_slice() else {
        panic!("{provider:?}")
    };
    assert_eq!(
        (package.identity().as_str(), package.prefix().as_str()),
        ("infrastructure-azure", "capz")
    );
    assert_eq!(package.crds.len(), 6);
    let names: Vec<&str> = package.controllers.iter().map(|one| one.name).collect();
    assert_eq!(
        names,
        [
            "azureasomanagedcluster",
            "azureasomanagedcontrolplane",
            "azureasomanagedmachinepool"
        ]
    );
    assert_eq!(package.arguments, ["--feature-gates=ASOAPI=${EXP_ASO_API:=true}"]);
    assert_eq!(
        package.objects[0]["metadata"]["name"],
        "azureserviceoperator-default"
    );
    let tokens = package
        .rbac
        .iter()
        .find(|rule| rule.resources == ["serviceaccounts/token"])
        .expect("a rule for tokens");
    assert_eq!(tokens.names, ["aso-workload", "azureserviceoperator-default"]);
    let gate = provider.gates.first().expect("a gate");
    assert!(gate.name == GATE && gate.enabled_by_default);
}

/// Without the gate nothing is watched; the controller ends when the manager does.
#[tokio::test(start_paused = true)]
async fn nothing_runs_while_the_gate_is_off() {
    let server = Apiserver::new(Clock::starting_at(jiff::Timestamp::UNIX_EPOCH));
    let context = Context::for_tests(server.client(), 1);
    let controllers = provider().packages.remove(0).controllers;
    let running = tokio::spawn((controllers[0].run)(context.clone()));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!running.is_finished());
    assert_eq!(context.informers.len(), 0);
    context.shutdown.cancel();
    running.await.expect("it ends").expect("without an error");
}
