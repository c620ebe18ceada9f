//! A set of controllers that works in one workload cluster: started with its connection, stopped with it, and never
//! twice at once for one cluster.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::WorkloadCluster;
use crate::{Context, Events, ObjectKey, controller::Registration};

/// A controller that ended by itself is started again after this long.
const RESTART_AFTER: Duration = Duration::from_secs(10);

/// Which set of which cluster.
type SetName = (ObjectKey, &'static str);

/// One lock for each set that is at work: the next one of its name begins when the last has ended, also where the
/// connection was replaced in between.
#[derive(Clone, Default)]
pub(super) struct SetLocks {
    pub(super) locks: Arc<Mutex<HashMap<SetName, Arc<tokio::sync::Mutex<()>>>>>,
}

impl SetLocks {
    fn of(&self, name: &SetName) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.locks.lock().entry(name.clone()).or_default())
    }

    /// The last set of a name removes its lock.
    fn end(&self, name: &SetName, lock: Arc<tokio::sync::Mutex<()>>) {
        let mut locks = self.locks.lock();
        drop(lock);
        if locks
            .get(name)
            .is_some_and(|remaining| Arc::strong_count(remaining) == 1)
        {
            locks.remove(name);
        }
    }
}

impl WorkloadCluster {
    /// What controllers in this cluster are given: its client and informers, events that go to it, and all else as the
    /// manager's own.
    fn context(&self, manager: &Context, stopped: &CancellationToken) -> Context {
        let mut context = manager.clone();
        context.random = manager.random.fork();
        context.client = self.client.clone();
        context.informers = self.informers.clone();
        context.events = Events::to_cluster(
            self.client.clone(),
            "slipway",
            manager.metrics.clone(),
            stopped.clone(),
        );
        context.shutdown = stopped.clone();
        context
    }

    /// Runs controllers in this cluster until the connection is given up, [`WorkloadCluster::stop_controllers`] is called
    /// or the manager stops. Does nothing where the set of this name runs already, so a reconcile may ask every time.
    pub fn run_controllers(
        &self,
        set: &'static str,
        manager: &Context,
        controllers: impl FnOnce() -> Vec<Registration>,
    ) {
        let mut sets = self.sets.lock();
        if self.stopped.is_cancelled() || sets.contains_key(set) {
            return;
        }
        let stopped = self.stopped.child_token();
        sets.insert(set, stopped.clone());
        drop(sets);
        let context = self.context(manager, &stopped);
        let name = (self.key.clone(), set);
        let (set_locks, lock) = (self.set_locks.clone(), self.set_locks.of(&name));
        let controllers = controllers();
        manager.background.spawn(async move {
            {
                let _held = lock.lock().await;
                tracing::info!(cluster = %name.0, set, "Starting the controllers of a workload cluster");
                futures::future::join_all(controllers.into_iter().map(|controller| {
                    let context = context.clone();
                    async move { keep_running(controller, context).await }
                }))
                .await;
                tracing::info!(cluster = %name.0, set, "Stopped the controllers of a workload cluster");
            }
            set_locks.end(&name, lock);
        });
    }

    /// Stops a set of controllers; the connection stays. What is in work is given time to end.
    pub fn stop_controllers(&self, set: &str) {
        if let Some(stopped) = self.sets.lock().remove(set) {
            stopped.cancel();
        }
    }
}

/// A controller of one cluster that fails must not take the manager with it.
async fn keep_running(controller: Registration, context: Context) {
    loop {
        let ended = tokio::spawn((controller.run)(context.clone())).await;
        if context.shutdown.is_cancelled() {
            return;
        }
        let reason = match ended {
            Ok(Ok(())) => "without being asked".to_owned(),
            Ok(Err(error)) => format!("{error:#}"),
            Err(panic) => panic.to_string(),
        };
        tracing::error!(
            controller = controller.name,
            reason,
            "A controller of a workload cluster has ended and is started again"
        );
        tokio::select! {
            () = context.shutdown.cancelled() => return,
            () = tokio::time::sleep(context.random.jitter(RESTART_AFTER, 0.1)) => {}
        }
    }
}
