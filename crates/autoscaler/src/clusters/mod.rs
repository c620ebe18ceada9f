//! Many clusters from one management cluster: for each Cluster that the user chose a set of our controllers, which works in that
//! one's workload cluster and sees of the management cluster what is of that Cluster. It is started when the workload cluster
//! answers and stopped with the Cluster; sets share nothing but the client of the management cluster, so none waits for another.
//!
//! Clusters are core's, so the frame, which owns an object's status, is not for them. The shape is the same.

mod act;
mod confined;
pub mod plan;
mod selector;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::FutureExt;
use k8s_openapi::api::core::v1::Secret;
use kube::{ResourceExt, api::PartialObjectMeta, core::SelectorExt};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipway_capi::{
    names::label,
    paused,
    secret::{Purpose, VALUE_KEY, kubeconfig, store},
    view::Cluster,
};
use slipway_runtime::{
    Answers, Context, Controller, Informer, Next, ObjectKey, Previews, Reconciler, Scope, Settings,
    controller::Registration,
    workload::{Clients, Connector, Reachable, WorkloadCluster, WorkloadClusters},
};

use self::{
    confined::confined,
    plan::{Action, Connected, Connection, Definitions, Observed, plan},
};
pub use self::{plan::CONDITION, selector::selector};
use crate::{
    Error,
    management::Management,
    memory::Memory,
    options::{CLUSTER_NAME, CLUSTER_NAMESPACE, Options},
    provider,
};

/// The set of controllers that scales a workload cluster.
const SET: &str = "autoscaler";
/// Missing kinds are looked for this often: a watch on the definitions of every cluster is not worth it.
const LOOK_AGAIN: Duration = Duration::from_mins(1);
/// A definition is served within moments of being installed.
const SERVED_AFTER: Duration = Duration::from_secs(1);

/// A controller that scales the manager's own cluster: it rests where the user chose Clusters instead.
pub(crate) fn unless_chosen(registration: Registration) -> Registration {
    only_where(registration, |options| options.clusters.is_none())
}

fn only_where(registration: Registration, runs: fn(&Options) -> bool) -> Registration {
    let run = registration.run;
    Registration {
        name: registration.name,
        run: Arc::new(move |context: Context| {
            let run = Arc::clone(&run);
            async move {
                if runs(&Options::of(&context.settings)) {
                    return run(context).await;
                }
                context.shutdown.cancelled().await;
                Ok(())
            }
            .boxed()
        }),
    }
}

/// What the manager may do besides, where it scales workload clusters: whoever turns that on binds it. In a cluster that scales
/// itself nobody reads Secrets.
pub(crate) fn role(workload: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": format!("{workload}-clusters")},
        "rules": [
            {"apiGroups": ["cluster.x-k8s.io"], "resources": ["clusters/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]},
        ],
    })
}

/// What became of a kubeconfig.
struct Served {
    /// The version that the watch showed when it was asked for, and the one that was read: the watch comes to show that too.
    versions: [String; 2],
    /// Or why there is none.
    connection: Result<Arc<WorkloadCluster>, String>,
    definitions: Definitions,
    /// The set runs over this connection.
    is_running: bool,
}

struct Clusters {
    /// As the manager gave it, without what belongs to one reconcile.
    manager: Context,
    connections: WorkloadClusters,
    served: Mutex<HashMap<ObjectKey, Served>>,
}

impl Clusters {
    fn new(context: &Context, connector: Option<Connector>) -> Self {
        let mut manager = context.clone();
        // Questions are about the management cluster's objects; nobody's controllers are kept alive by them.
        manager.previews = Previews::default();
        manager.answers = Answers::default();
        let clients = Clients::of(context).connecting_by(connector);
        Clusters {
            connections: WorkloadClusters::with(clients, context),
            manager,
            served: Mutex::default(),
        }
    }

    fn observe(&self, cluster: &Cluster, options: &Options, context: &Context) -> Observed {
        let key = ObjectKey::of(cluster);
        let chosen = options.clusters.as_deref().and_then(|text| selector(text).ok());
        let version = version(&key, context);
        let served = self.served.lock();
        let connected = served.get(&key).map(|served| Connected {
            is_current: version
                .as_ref()
                .is_some_and(|version| served.versions.contains(version)),
            connection: match &served.connection {
                Err(why) => Connection::Refused(why.clone()),
                Ok(connection) => match connection.health().reachable {
                    Reachable::Unknown => Connection::Unknown,
                    Reachable::Yes => Connection::Answers,
                    Reachable::No { error, .. } => Connection::Silent(error),
                },
            },
            definitions: served.definitions.clone(),
        });
        Observed {
            is_chosen: chosen.is_some_and(|chosen| chosen.matches(cluster.labels())),
            is_deleting: cluster.metadata.deletion_timestamp.is_some(),
            is_paused: paused::paused(Some(cluster), &cluster.metadata).is_paused(),
            is_initialized: cluster.control_plane_initialized(),
            has_kubeconfig: version.is_some(),
            connected,
            installs: options.installs,
        }
    }

    /// Stops the set of a cluster, and gives its connection up.
    fn leave(&self, key: &ObjectKey) {
        self.served.lock().remove(key);
        self.connections.disconnect(key);
    }

    /// Connects by the kubeconfig that there is now, which may be a newer one than the watch shows. One that says the same as the
    /// last leaves the connection, and what runs over it, as it is.
    async fn connect(&self, key: &ObjectKey, context: &Context) -> Result<(), Error> {
        let asked = version(key, context).unwrap_or_default();
        let namespace = key.namespace().unwrap_or_default();
        let found = store::lookup(&context.client, namespace, key.name(), &[Purpose::Kubeconfig]).await?;
        let Some(secret) = found.get(&Purpose::Kubeconfig) else {
            self.leave(key);
            return Ok(());
        };
        let connection = self.connect_by(key, secret);
        let mut all = self.served.lock();
        let versions = [asked, secret.resource_version().unwrap_or_default()];
        if let (Ok(connection), Some(served)) = (&connection, all.get_mut(key))
            && served
                .connection
                .as_ref()
                .is_ok_and(|last| Arc::ptr_eq(last, connection))
        {
            served.versions = versions;
            return Ok(());
        }
        match &connection {
            Ok(connection) => follow(connection, key, context),
            Err(_) => self.connections.disconnect(key),
        }
        let served = Served {
            versions,
            connection,
            definitions: Definitions::default(),
            is_running: false,
        };
        all.insert(key.clone(), served);
        Ok(())
    }

    fn connect_by(&self, key: &ObjectKey, secret: &Secret) -> Result<Arc<WorkloadCluster>, String> {
        // What cannot be used is told by the Secret's name, and none of it is repeated.
        kubeconfig::access(secret).map_err(|error| error.to_string())?;
        let data = secret.data.as_ref().and_then(|data| data.get(VALUE_KEY));
        let text = data
            .and_then(|data| std::str::from_utf8(&data.0).ok())
            .unwrap_or_default();
        self.connections
            .connect(key, text)
            .map_err(|error| error.to_string())
    }

    fn connection(&self, key: &ObjectKey) -> Option<Arc<WorkloadCluster>> {
        let served = self.served.lock();
        served.get(key)?.connection.as_ref().ok().cloned()
    }

    /// Asks the workload cluster for our kinds. Others have this one's place among the workers meanwhile.
    async fn look(&self, key: &ObjectKey, context: &Context) -> Result<(), Error> {
        let Some(connection) = self.connection(key) else {
            return Ok(());
        };
        let found = context.slot().given_up_for(act::look(&connection.client)).await?;
        if let Some(served) = self.served.lock().get_mut(key) {
            served.definitions = found;
        }
        Ok(())
    }

    /// Runs the set, unless it runs already.
    fn run(&self, key: &ObjectKey) {
        let connection = {
            let mut served = self.served.lock();
            let idle = served.get_mut(key).filter(|served| !served.is_running);
            let Some(served) = idle else { return };
            served.is_running = true;
            served.connection.as_ref().ok().cloned()
        };
        let Some(connection) = connection else { return };
        let mut context = self.manager.clone();
        context.settings = Arc::new(settings_of(&self.manager.settings, key));
        context.plans = self.manager.plans.of_cluster(key);
        connection.run_controllers(SET, &context, || {
            let there = confined(self.manager.client.clone(), key);
            let management = Management::given(there, self.manager.events.clone());
            let metrics = self.manager.metrics.of_cluster(key);
            provider::controllers(&Arc::new(Memory::of_cluster(management, metrics)))
        });
    }
}

/// The version of the kubeconfig that the watch shows.
fn version(cluster: &ObjectKey, context: &Context) -> Option<String> {
    let secrets: Informer<PartialObjectMeta<Secret>> = context.informers.get(secrets(&context.settings));
    let name = Purpose::Kubeconfig.secret_name(cluster.name());
    secrets
        .get(&ObjectKey::new(cluster.namespace(), &name))?
        .metadata
        .resource_version
        .clone()
}

/// Brings the Cluster back whenever its apiserver begins or ceases to answer. It ends with the connection.
fn follow(connection: &WorkloadCluster, key: &ObjectKey, context: &Context) {
    let Some(trigger) = context.trigger() else {
        return;
    };
    let (mut health, key) = (connection.watch_health(), key.clone());
    tokio::spawn(async move {
        while health.changed().await.is_ok() {
            trigger.fire(&key);
        }
    });
}

/// A NodeClass in a workload cluster means that one's Cluster. What the user set for the Clusters themselves does not count there.
fn settings_of(manager: &Settings, cluster: &ObjectKey) -> Settings {
    let flags = manager
        .flags
        .clone()
        .with(CLUSTER_NAME, cluster.name())
        .with(CLUSTER_NAMESPACE, cluster.namespace().unwrap_or_default());
    Settings {
        namespace: None,
        watch_filter: None,
        flags,
        ..manager.clone()
    }
}

/// The Secrets of Clusters, as core caches them.
fn secrets(settings: &Settings) -> Scope {
    Scope::of_namespace(settings).labels(label::CLUSTER_NAME)
}

impl Reconciler for Clusters {
    type Object = Cluster;
    type Error = Error;

    async fn reconcile(&self, cluster: Arc<Cluster>, context: &Context) -> Result<Next, Error> {
        let (key, options) = (ObjectKey::of(cluster.as_ref()), Options::of(&context.settings));
        let mut next = Next::OnChange;
        let mut decided = plan(&self.observe(&cluster, &options, context));
        match decided.action {
            Action::Leave => self.leave(&key),
            Action::Connect => self.connect(&key, context).await?,
            Action::Look | Action::LookLater => {
                self.look(&key, context).await?;
                decided = plan(&self.observe(&cluster, &options, context));
            }
            Action::Install | Action::Run | Action::Wait => {}
        }
        match decided.action {
            Action::Install => {
                if let Some(connection) = self.connection(&key) {
                    let installed = act::install(&connection.client);
                    context.slot().given_up_for(installed).await?;
                }
                self.look(&key, context).await?;
                next = Next::After(SERVED_AFTER);
            }
            Action::LookLater => next = Next::After(LOOK_AGAIN),
            Action::Run => self.run(&key),
            Action::Leave | Action::Connect | Action::Wait | Action::Look => {}
        }
        // One that goes takes its conditions along.
        if cluster.metadata.deletion_timestamp.is_none() {
            act::tell(&cluster, decided.report.as_ref(), context).await?;
        }
        Ok(next)
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.leave(key);
    }
}

pub(crate) fn registration(connector: Option<Connector>) -> Registration {
    let name = "autoscaler-cluster";
    let run = Arc::new(move |context: Context| {
        let clusters = Clusters::new(&context, connector.clone());
        let controller =
            Controller::new(name, clusters).watches_in::<PartialObjectMeta<Secret>>(secrets, |secret, _| {
                let named = secret.metadata.name.as_deref().and_then(Purpose::parse);
                let of_kubeconfig = named.filter(|(_, purpose)| *purpose == Purpose::Kubeconfig);
                of_kubeconfig
                    .map(|(cluster, _)| ObjectKey::new(secret.metadata.namespace.as_deref(), cluster))
                    .into_iter()
                    .collect()
            });
        (controller.into_registration().run)(context)
    });
    only_where(Registration { name, run }, |options| options.clusters.is_some())
}
