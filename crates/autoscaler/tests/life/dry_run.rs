//! `--autoscaler-dry-run`: it decides and tells, and writes nothing.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use slipway_apiserver_sim::{Apiserver, faults::Faults};
use slipway_kit::{journey::Surroundings, objects::of_kind};
use slipway_runtime::{Clock, Context, Settings, settings::Flags};

use super::cluster::{Life, count};

/// What the apiserver holds after ten minutes with pods that wait and a claim that somebody deleted, the last plan, and the writes.
async fn after_ten_minutes(flags: Flags) -> (usize, String, Vec<String>) {
    let server = Apiserver::new(Clock::starting_at(Timestamp::UNIX_EPOCH));
    let life = Arc::new(Life::new(&server, Clock::starting_at(Timestamp::UNIX_EPOCH)));
    tokio::spawn(life.play());
    life.found(5, "5").await;
    life.pods(["web-0".to_owned(), "web-1".to_owned()]).await;
    let faults = Faults::none();
    let mut context = Context::for_tests(server.client_with(faults.clone()), 1);
    context.clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
    context.settings = Arc::new(Settings {
        flags,
        ..Settings::default()
    });
    for registration in life.controllers(&faults) {
        tokio::spawn((registration.run)(context.clone()));
    }
    tokio::time::sleep(Duration::from_mins(10)).await;
    let plan = context.plans.show("karpenter.sh/Provisioner/provisioner");
    context.shutdown.cancel();
    let writes = faults.log().into_iter().filter(|call| call.writes);
    let writes = writes.map(|call| call.line).collect();
    let claims = server.look(|objects| {
        let pools = of_kind(objects, "NodePool").filter(|pool| !pool["status"].is_null());
        count(objects, "NodeClaim") + pools.count()
    });
    (claims, plan.unwrap_or_default(), writes)
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_decides_and_writes_nothing() {
    let (written, plan, writes) =
        after_ten_minutes(Flags::default().with("autoscaler-dry-run", "true")).await;
    assert!(
        plan.contains("create a claim of NodePool general on MachineDeployment/default/general"),
        "{plan}"
    );
    assert_eq!((written, writes), (0, Vec::new()));
    let (written, _, writes) = after_ten_minutes(Flags::default()).await;
    assert!(
        written >= 2 && writes.len() > 5,
        "without it: {written}, {writes:?}"
    );
}
