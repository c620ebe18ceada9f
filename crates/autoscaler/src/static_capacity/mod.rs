//! Static NodePools (`spec.replicas`): as many claims as they say, whatever pods there are. One task, which runs where the manager
//! leads, and does nothing unless the gate `StaticCapacity` is on.

mod act;
pub mod plan;

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use slipway_runtime::{Context, ObjectKey, controller::Registration, plans::PlanKey};
use tokio::time::{Instant, sleep_until};

use crate::{
    Error,
    api::names::GROUP,
    cluster_api::Reader,
    memory::Memory,
    options::Options,
    watched::{Changed, Watched, observe},
};

/// Changes come many at once: they are looked at together.
const GATHER: Duration = Duration::from_millis(250);
/// What failed, and what cannot be had now, is tried again after this.
const RETRY: Duration = Duration::from_secs(10);
/// With nothing missing, only a change wakes it.
const IDLE: Duration = Duration::from_hours(1);

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let memory = Arc::clone(memory);
    Registration {
        name: "static-capacity",
        run: Arc::new(move |context: Context| {
            let memory = Arc::clone(&memory);
            async move {
                if Options::of(&context.settings).gates.static_capacity {
                    run(&memory, &context).await;
                } else {
                    context.shutdown.cancelled().await;
                }
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
    loop {
        let is_static = |pool: &Arc<crate::api::NodePool>| pool.spec.replicas.is_some();
        let next = if watched.pools.list().iter().any(is_static) {
            match round(&watched, memory, context).await {
                Ok(true) => IDLE,
                Ok(false) => RETRY,
                Err(error) => {
                    tracing::error!(%error, "Static NodePools were not provided for, and will be");
                    RETRY
                }
            }
        } else {
            IDLE
        };
        tokio::select! {
            () = stopped.cancelled() => return,
            () = sleep_until(Instant::now() + next) => {}
            () = changed.notified() => sleep_until(Instant::now() + GATHER).await,
        }
    }
}

/// Says whether nothing is missing.
async fn round(watched: &Watched, memory: &Memory, context: &Context) -> Result<bool, Error> {
    let options = Options::of(&context.settings);
    let reader = Reader::new(context, memory);
    let now = context.clock.now();
    let mut plan = plan::plan(&observe(watched, &reader, memory, &options, context).await, now);
    if plan.acts() && !options.is_dry_run {
        // Claims that the watch does not show yet would be made twice. Whoever else makes claims waits.
        let _alone = memory.making.lock().await;
        watched.read_claims_again(context).await?;
        plan = plan::plan(&observe(watched, &reader, memory, &options, context).await, now);
        keep(&plan, context);
        act::act(&plan, watched, memory, context).await?;
    } else {
        keep(&plan, context);
    }
    Ok(plan.missing.is_empty() && plan.waits.is_none())
}

fn keep(plan: &plan::Plan, context: &Context) {
    let key = PlanKey {
        group: GROUP.to_owned(),
        kind: "StaticCapacity".to_owned(),
        object: ObjectKey::cluster_scoped("static-capacity"),
    };
    context.plans.keep(key, context.clock.now(), &plan.to_string());
}
