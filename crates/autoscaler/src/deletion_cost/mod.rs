//! Pod deletion cost, behind the gate `PodDeletionCostManagement`: when a ReplicaSet gets smaller, its pods go first from nodes that go
//! anyway, so that these empty by themselves and nobody is evicted. One task, which runs where the manager leads.

mod act;
mod metrics;
pub mod plan;

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use slipway_runtime::{Context, ObjectKey, controller::Registration, plans::PlanKey};
use tokio::time::{Instant, sleep_until};

pub(crate) use self::metrics::DeletionCosts;
use self::{act::act, plan::Plan};
use crate::{
    api::names::GROUP,
    cluster_api::Reader,
    memory::Memory,
    options::Options,
    watched::{Changed, Watched, observe_to_disrupt},
};

/// Each order moves others, and each place is a write: it is looked at no more often, as Karpenter has it.
const INTERVAL: Duration = Duration::from_mins(1);
/// With nothing to write, only a change wakes it.
const IDLE: Duration = Duration::from_hours(1);

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let memory = Arc::clone(memory);
    Registration {
        name: "deletion-cost",
        run: Arc::new(move |context: Context| {
            let memory = Arc::clone(&memory);
            async move {
                run(&memory, &context).await;
                Ok(())
            }
            .boxed()
        }),
    }
}

async fn run(memory: &Memory, context: &Context) {
    let watched = Watched::start(context, memory);
    let stopped = context.shutdown.clone();
    tokio::select! {
        () = stopped.cancelled() => return,
        () = watched.synced() => {}
    }
    let changed = Changed::listen(&watched);
    let is_on = Options::of(&context.settings).gates.pod_deletion_cost;
    loop {
        let is_done = round(&watched, memory, context, is_on).await;
        if is_done && !is_on {
            // What was written before it was switched off is gone.
            drop(changed);
            stopped.cancelled().await;
            return;
        }
        let not_before = Instant::now() + INTERVAL;
        let next = if is_done { IDLE } else { INTERVAL };
        tokio::select! {
            () = stopped.cancelled() => return,
            () = sleep_until(Instant::now() + next) => {}
            () = changed.notified() => tokio::select! {
                () = stopped.cancelled() => return,
                () = sleep_until(not_before) => {}
            },
        }
    }
}

/// Says whether nothing is left to write.
async fn round(watched: &Watched, memory: &Memory, context: &Context, is_on: bool) -> bool {
    let options = Options::of(&context.settings);
    let reader = Reader::new(context, memory);
    let now = context.clock.now();
    let observed = observe_to_disrupt(watched, &reader, memory, &options, context).await;
    let planned = tokio::task::spawn_blocking(move || plan::plan(&observed, is_on, now)).await;
    let plan = planned.unwrap_or_else(|error| Plan {
        waits: Some(format!("planning failed: {error}")),
        ..Plan::default()
    });
    keep(&plan, context);
    memory.metrics.deletion_costs.planned(&plan.nodes);
    if plan.waits.is_some() || options.is_dry_run {
        return options.is_dry_run;
    }
    act(&plan, watched, memory, context).await && !plan.is_cut
}

fn keep(plan: &Plan, context: &Context) {
    let key = PlanKey {
        group: GROUP.to_owned(),
        kind: "PodDeletionCost".to_owned(),
        object: ObjectKey::cluster_scoped("pod-deletion-cost"),
    };
    context.plans.keep(key, context.clock.now(), &plan.to_string());
}
