//! The provisioner: pods that wait become claims. It reads the cluster from watches, gathers pods as Karpenter does, and plans
//! for all of them at once. One task, which runs where the manager leads.

mod act;
pub mod plan;
mod waiting;

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use slipway_runtime::{Context, ObjectKey, controller::Registration, plans::PlanKey};
use tokio::{sync::Notify, time::sleep};

pub(crate) use self::act::create;
use self::waiting::Queue;
use crate::{
    Error,
    api::names::GROUP,
    batch::Window,
    cluster_api::Reader,
    cost, environment,
    memory::Memory,
    options::Options,
    watched::{Watched, observe},
};

/// Pods for which nothing was found are planned for again this often, as Karpenter has it: prices, limits and machines change
/// without a pod changing.
const AGAIN: Duration = Duration::from_secs(10);
/// A round that failed is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// With nobody waiting, only a change wakes it.
const IDLE: Duration = Duration::from_hours(1);

pub fn registration(memory: &Arc<Memory>) -> Registration {
    let memory = Arc::clone(memory);
    Registration {
        name: "provisioner",
        run: Arc::new(move |context: Context| {
            let memory = Arc::clone(&memory);
            async move {
                cost::answer(&memory, &context);
                run(&memory, &context).await;
                Ok(())
            }
            .boxed()
        }),
    }
}

async fn run(memory: &Memory, context: &Context) {
    for warning in environment::warnings(|name| std::env::var_os(name).is_some_and(|text| !text.is_empty())) {
        tracing::warn!("{warning}");
    }
    let changed = Arc::new(Notify::new());
    let watched = Watched::start(context, memory);
    let queue = Queue::start(&watched, &changed);
    let stopped = context.shutdown.clone();
    tokio::select! {
        () = stopped.cancelled() => return,
        () = watched.synced() => memory.metrics.synced(true),
    }
    let mut provisioner = Provisioner {
        window: Window::new(Options::of(&context.settings).batch),
        watched,
        queue,
        memory,
        context,
    };
    loop {
        let wait = provisioner.next_wait();
        tokio::select! {
            () = stopped.cancelled() => return,
            () = changed.notified() => {}
            () = sleep(wait) => {}
        }
        provisioner.gather();
        if provisioner.window.close(context.clock.now()).is_some() {
            provisioner.round().await;
        }
    }
}

struct Provisioner<'a> {
    window: Window,
    watched: Watched,
    queue: Queue,
    memory: &'a Memory,
    context: &'a Context,
}

impl Provisioner<'_> {
    /// How long nothing has to be done, unless something changes.
    fn next_wait(&self) -> Duration {
        let now = self.context.clock.now();
        let until_end = self
            .window
            .ends()
            .map(|end| Duration::try_from(end.duration_since(now)).unwrap_or_default());
        let due = self.queue.due_in();
        until_end.into_iter().chain(due).min().unwrap_or(IDLE)
    }

    fn gather(&mut self) {
        let now = self.context.clock.now();
        for pod in self.queue.take_waiting() {
            self.window.add(&pod, now);
        }
    }

    /// Plans for everybody who waits, and makes the claims.
    async fn round(&mut self) {
        let again = match self.provision().await {
            Ok(()) => AGAIN,
            Err(error) => {
                tracing::error!(%error, "Pods were not provided for, and will be");
                RETRY
            }
        };
        self.queue.wake_after(again);
    }

    async fn provision(&self) -> Result<(), Error> {
        let Self {
            watched,
            memory,
            context,
            ..
        } = self;
        let options = Options::of(&context.settings);
        let reader = Reader::new(context, memory);
        let now = context.clock.now();
        let observed = observe(watched, &reader, memory, &options, context).await;
        let (pods, nodes) = (observed.pods.len(), observed.snapshot.nodes.len());
        let started = tokio::time::Instant::now();
        let mut plan = plan::decide(observed, now).await;
        let seconds = started.elapsed().as_secs_f64();
        memory.metrics.planned(pods, plan.refused.len(), nodes, seconds);
        if plan.creates() && !options.is_dry_run {
            // Claims that the watch does not show yet would be made twice, and limits exceeded. Whoever else makes claims waits.
            let _alone = memory.making.lock().await;
            watched.read_claims_again(context).await?;
            let observed = observe(watched, &reader, memory, &options, context).await;
            plan = plan::decide(observed, now).await;
            self.keep(&plan, now);
            return act::act(&plan, watched, memory, context).await;
        }
        self.keep(&plan, now);
        if options.is_dry_run {
            tracing::info!(%plan, "Dry run: nothing is written");
            return Ok(());
        }
        act::act(&plan, watched, memory, context).await
    }

    fn keep(&self, plan: &plan::Plan, now: jiff::Timestamp) {
        let text = plan.to_string();
        tracing::debug!(plan = %text, "Planned");
        let key = PlanKey {
            group: GROUP.to_owned(),
            kind: "Provisioner".to_owned(),
            object: ObjectKey::cluster_scoped("provisioner"),
        };
        self.context.plans.keep(key, now, &text);
    }
}
