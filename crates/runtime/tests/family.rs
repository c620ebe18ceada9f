//! Parents and their children, for tests that break the connection between a controller and its cluster: every ConfigMap
//! with the label gets one Secret.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Config, Resource, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams},
};
use slipway_runtime::{
    Context, Controller, Informer, Metrics, Next, Reconciler, Scope, Settings, informer::WATCH_FILTER_LABEL,
    instrumented_client,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Only a guard against hanging; nothing here is measured.
const HANG: Duration = Duration::from_mins(5);

const FILTER: &str = "family";

/// How a child is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Anew each time: acting on a stale cache makes two.
    New,
    /// After its parent: a create whose answer was lost is met again.
    Derived,
}

/// Gives each map a secret, if the cache shows none.
struct OneChild {
    names: Names,
}

impl Reconciler for OneChild {
    type Object = ConfigMap;
    type Error = kube::Error;

    async fn reconcile(&self, parent: Arc<ConfigMap>, context: &Context) -> Result<Next, kube::Error> {
        let secrets: Informer<Secret> = context.informers.get(Scope::of_namespace(&context.settings));
        let uid = parent.uid().unwrap_or_default();
        let is_child = |secret: &Arc<Secret>| secret.owner_references().iter().any(|owner| owner.uid == uid);
        if !secrets.list().iter().any(is_child) {
            let name = match self.names {
                Names::New => format!("{}-{}", parent.name_any(), context.random.name_suffix(5)),
                Names::Derived => parent.name_any(),
            };
            let child = Secret {
                metadata: ObjectMeta {
                    name: Some(name),
                    namespace: parent.namespace(),
                    owner_references: parent.controller_owner_ref(&()).map(|owner| vec![owner]),
                    ..ObjectMeta::default()
                },
                ..Secret::default()
            };
            context.create(&child).await?;
        }
        Ok(Next::OnChange)
    }
}

/// The controller at work in one namespace.
pub struct Family {
    pub metrics: Metrics,
    shutdown: CancellationToken,
    running: JoinHandle<anyhow::Result<()>>,
}

impl Family {
    pub fn start(config: Config, namespace: &str, names: Names) -> Self {
        let metrics = Metrics::new();
        let client = instrumented_client(config, &metrics).expect("a client");
        let shutdown = CancellationToken::new();
        let settings = Settings {
            namespace: Some(namespace.to_owned()),
            watch_filter: Some(FILTER.to_owned()),
            ..Settings::default()
        };
        let context = Context::new(client, settings, metrics.clone(), shutdown.clone());
        let registration = Controller::new("configmap", OneChild { names })
            .owns::<Secret>()
            .into_registration();
        Self {
            metrics,
            shutdown,
            running: tokio::spawn((registration.run)(context)),
        }
    }

    /// Stops it; it must still have been at work, and without a panic.
    pub async fn stop(self) {
        assert!(!self.running.is_finished(), "the controller ended by itself");
        self.shutdown.cancel();
        self.running.await.expect("no panic").expect("no error");
        let text = self.metrics.encode();
        assert!(
            text.contains(r#"controller_runtime_reconcile_panics_total{controller="configmap"} 0"#),
            "{text}"
        );
    }
}

pub async fn make_parents(maps: &Api<ConfigMap>, names: std::ops::Range<usize>) {
    for number in names {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(format!("parent-{number}")),
                labels: Some(BTreeMap::from([(
                    WATCH_FILTER_LABEL.to_owned(),
                    FILTER.to_owned(),
                )])),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        maps.create(&PostParams::default(), &map)
            .await
            .expect("the apiserver answers");
    }
}

/// Waits until these are exactly the owners of the children, each once; two children of one owner never become one.
pub async fn wait_for_children(secrets: &Api<Secret>, parents: std::ops::Range<usize>) {
    let mut desired: Vec<String> = parents.map(|number| format!("parent-{number}")).collect();
    desired.sort_unstable();
    let mut found = Vec::new();
    let enough = async {
        loop {
            if let Ok(list) = secrets.list(&ListParams::default()).await {
                found = owners(&list.items);
                if found == desired {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    if tokio::time::timeout(HANG, enough).await.is_err() {
        assert_eq!(found, desired, "one child each");
    }
}

/// The owners of children, once for each child.
fn owners(children: &[Secret]) -> Vec<String> {
    let mut owners: Vec<String> = children
        .iter()
        .flat_map(|secret| secret.owner_references().iter().map(|owner| owner.name.clone()))
        .collect();
    owners.sort_unstable();
    owners
}
