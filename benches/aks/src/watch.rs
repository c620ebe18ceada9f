//! A third party's view: which control planes and pools are ready.

use std::{collections::HashSet, sync::Arc};

use futures::TryStreamExt;
use kube::{
    Api, ResourceExt,
    api::DynamicObject,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinHandle};

pub struct Watch {
    ready: Arc<Mutex<HashSet<String>>>,
    changed: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Ready in the form that both sides have. What a pool of ours says besides is not asked for.
fn is_ready(object: &DynamicObject) -> bool {
    object.data["status"]["ready"] == true
}

impl Watch {
    pub fn start(api: Api<DynamicObject>) -> Self {
        let ready: Arc<Mutex<HashSet<String>>> = Arc::default();
        let changed: Arc<Notify> = Arc::default();
        let task = tokio::spawn({
            let (ready, changed) = (Arc::clone(&ready), Arc::clone(&changed));
            async move {
                let mut events = Box::pin(watcher(api, watcher::Config::default()).default_backoff());
                loop {
                    match events.try_next().await {
                        Ok(Some(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => {
                            let name = object.name_any();
                            if is_ready(&object) {
                                ready.lock().insert(name);
                            } else {
                                ready.lock().remove(&name);
                            }
                            changed.notify_one();
                        }
                        Ok(Some(_)) => {}
                        Ok(None) => return,
                        Err(error) => eprintln!("the driver's watch was interrupted: {error}"),
                    }
                }
            }
        });
        Self { ready, changed, task }
    }

    pub fn count(&self) -> usize {
        self.ready.lock().len()
    }

    /// Waits until so many are ready at once.
    pub async fn all_ready(&self, objects: usize) {
        while self.count() < objects {
            self.changed.notified().await;
        }
    }
}
