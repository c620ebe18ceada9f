//! The shell around `plan` and `render`: reads what a KThreesConfig depends on, writes its data secret and status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use secrecy::ExposeSecret;
use serde_json::json;
use slipway_capi::{
    condition::{
        self, Report, Status,
        legacy::{self, LegacyReport, Severity},
    },
    names::{condition as names, label},
    owner, paused,
    secret::{self, Purpose},
    view::{Cluster, Machine, MachinePool},
};
use slipway_runtime::{
    Next, ObjectKey,
    controller::{Context, Controller, Reconciler, Registration},
    informer::{Informers, Scope},
};

use super::{
    plan::{self, Decision, Lock, Observed},
    render::{self, Authorities, Authority, Facts, Role},
};
use crate::{
    api::{
        FileSource, KThreesConfig, KThreesConfigStatus,
        conditions::{self, V1Beta2Status, reason},
        config::ConfigInitialization,
    },
    error::{Error, unless_exists},
    reads,
};

const LOCK_KEY: &str = "lock-information";

pub struct ConfigReconciler;

pub fn registration() -> Registration {
    let secrets = ApiResource::erase::<Secret>(&());
    Controller::new("kthreesconfig", ConfigReconciler)
        .watches::<Machine>(|machine, _| {
            machine
                .spec
                .bootstrap
                .config_ref
                .iter()
                .filter(|reference| reference.kind == "KThreesConfig")
                .map(|reference| ObjectKey::new(machine.metadata.namespace.as_deref(), &reference.name))
                .collect()
        })
        .watches::<Cluster>(|cluster, informers| {
            let name = cluster.metadata.name.as_deref();
            let of_cluster = |config: &KThreesConfig| owner::cluster_name(&config.metadata) == name;
            let namespace = cluster.metadata.namespace.as_deref();
            concerned(informers, namespace, |config| {
                of_cluster(config) && (is_unfinished(config) || is_told_otherwise(config, cluster))
            })
        })
        .watches_metadata(secrets, |secret, informers| {
            let name = secret.name.as_deref().unwrap_or_default();
            concerned(informers, secret.namespace.as_deref(), |config| {
                is_unfinished(config) && needs_secret(config, name)
            })
        })
        .into_registration()
}

/// A config that still waits for something.
fn is_unfinished(config: &KThreesConfig) -> bool {
    config.status.as_ref().and_then(|status| status.ready) != Some(true)
}

/// A finished config has nothing left to do, but it still says whether it is paused.
fn is_told_otherwise(config: &KThreesConfig, cluster: &Cluster) -> bool {
    let told = config
        .status
        .iter()
        .filter_map(|status| status.v1beta2.as_ref()?.conditions.as_ref())
        .flatten()
        .find(|condition| condition.type_ == names::PAUSED)
        .map(|condition| condition.status == "True");
    told != Some(paused::paused(Some(cluster), &config.metadata).is_paused())
}

/// Configs in a namespace that something concerns.
fn concerned(
    informers: &Informers,
    namespace: Option<&str>,
    concerns: impl Fn(&KThreesConfig) -> bool,
) -> Vec<ObjectKey> {
    informers
        .get::<KThreesConfig>(Scope::all())
        .list()
        .iter()
        .filter(|config| config.metadata.namespace.as_deref() == namespace)
        .filter(|config| concerns(config))
        .map(|config| ObjectKey::of(config.as_ref()))
        .collect()
}

/// Whether a secret of this name may be what a config waits for.
fn needs_secret(config: &KThreesConfig, name: &str) -> bool {
    let referenced = config
        .spec
        .files
        .iter()
        .flatten()
        .filter_map(|file| file.content_from.as_ref())
        .chain(config.spec.server_config.iter().filter_map(|server| {
            server
                .datastore
                .as_ref()
                .map(|datastore| &datastore.endpoint_from)
        }))
        .any(|source| source.secret.name == name);
    let cluster = owner::cluster_name(&config.metadata).unwrap_or_default();
    referenced || (!cluster.is_empty() && name.starts_with(&format!("{cluster}-")))
}

/// Who a config belongs to.
struct Owner {
    name: String,
    cluster: String,
    version: String,
    is_server: bool,
    data_secret_name: Option<String>,
}

impl Owner {
    fn machine(machine: &Machine) -> Self {
        Self {
            name: machine.metadata.name.clone().unwrap_or_default(),
            cluster: machine.spec.cluster_name.clone(),
            version: machine.spec.version.clone(),
            is_server: machine.is_control_plane(),
            data_secret_name: machine.spec.bootstrap.data_secret_name.clone(),
        }
    }

    /// A pool keeps its machines' version and data in its template.
    fn pool(pool: &MachinePool) -> Self {
        Self {
            name: pool.metadata.name.clone().unwrap_or_default(),
            cluster: pool.spec.cluster_name.clone(),
            version: pool.spec.template.spec.version.clone(),
            is_server: false,
            data_secret_name: pool.spec.template.spec.bootstrap.data_secret_name.clone(),
        }
    }
}

impl Reconciler for ConfigReconciler {
    type Object = KThreesConfig;
    type Error = Error;

    async fn reconcile(&self, config: Arc<KThreesConfig>, context: &Context) -> Result<Next, Error> {
        if config.metadata.deletion_timestamp.is_some() {
            return Ok(Next::OnChange);
        }
        let Some(owner) = find_owner(&config, context).await? else {
            return Ok(Next::OnChange);
        };
        let namespace = config.namespace().unwrap_or_default();
        let key = ObjectKey::namespaced(&namespace, &owner.cluster);
        let Some(cluster) = reads::cluster(&key, context).await? else {
            return Ok(Next::OnChange);
        };
        let mut status = config.status.clone().unwrap_or_default();
        let held = paused::paused(Some(&cluster), &config.metadata);
        set(&mut status, &config, context, &held.report("KThreesConfig"), None);
        if held.is_paused() {
            store(&config, &status, context).await?;
            return Ok(Next::OnChange);
        }
        let next = work(&config, &owner, &cluster, &mut status, context).await;
        summarize(&mut status, &config, context);
        if next.is_ok() {
            status.observed_generation = config.metadata.generation;
        }
        store(&config, &status, context).await?;
        next
    }
}

async fn work(
    config: &KThreesConfig,
    owner: &Owner,
    cluster: &Cluster,
    status: &mut KThreesConfigStatus,
    context: &Context,
) -> Result<Next, Error> {
    let lock = read_lock(config, owner, context).await?;
    let observed = Observed {
        infrastructure_ready: cluster.infrastructure_provisioned(),
        control_plane_initialized: cluster.control_plane_initialized(),
        endpoint_known: cluster.spec.control_plane_endpoint.is_valid(),
        is_server: owner.is_server,
        owners_secret: owner.data_secret_name.clone(),
        ready: status.ready == Some(true),
        data_secret_name: status.data_secret_name.clone(),
        lock,
    };
    match plan::decide(&observed) {
        Decision::Exists { secret } => {
            done(status, config, &secret, context);
            Ok(Next::OnChange)
        }
        Decision::Wait { reason, message } => {
            waiting(status, config, reason, &message, Severity::Info, context);
            Ok(Next::OnChange)
        }
        Decision::TakeLock => {
            take_lock(config, owner, cluster, context).await?;
            Ok(Next::After(Duration::from_millis(100)))
        }
        Decision::BreakLock { holder } => {
            tracing::info!(holder, "Releasing the init lock of a machine that is gone");
            release_lock(config, &owner.cluster, context).await?;
            Ok(Next::After(Duration::from_millis(100)))
        }
        Decision::Render {
            role,
            release_lock: release,
        } => {
            if release {
                release_lock(config, &owner.cluster, context).await?;
            }
            match gather(config, owner, cluster, role, context).await? {
                Gathered::Missing(message) => {
                    waiting(
                        status,
                        config,
                        reason::DATA_SECRET_GENERATION_FAILED,
                        &message,
                        Severity::Warning,
                        context,
                    );
                    Ok(Next::OnChange)
                }
                Gathered::Facts(facts) => {
                    let userdata = match render::render(&config.spec, &facts, role) {
                        Ok(userdata) => userdata,
                        Err(error) => {
                            waiting(
                                status,
                                config,
                                reason::DATA_SECRET_GENERATION_FAILED,
                                &error.to_string(),
                                Severity::Warning,
                                context,
                            );
                            return Err(error.into());
                        }
                    };
                    store_data(config, &owner.cluster, userdata, context).await?;
                    if role == Role::Init {
                        let report =
                            Report::new(conditions::CERTIFICATES_AVAILABLE, Status::True, "Available", "");
                        set(
                            status,
                            config,
                            context,
                            &report,
                            Some(&LegacyReport::good(conditions::CERTIFICATES_AVAILABLE)),
                        );
                    }
                    done(status, config, &config.name_any(), context);
                    Ok(Next::OnChange)
                }
            }
        }
    }
}

async fn find_owner(config: &KThreesConfig, context: &Context) -> Result<Option<Owner>, Error> {
    if let Some(name) = owner::owner_machine_name(&config.metadata) {
        let key = ObjectKey::of(config).sibling(name);
        let machine = reads::machine(&key, context).await?;
        return Ok(machine.map(|machine| Owner::machine(&machine)));
    }
    let pool = owner::get_machine_pool(&context.client, &config.metadata).await?;
    Ok(pool.map(|pool| Owner::pool(&pool)))
}

enum Gathered {
    Facts(Box<Facts>),
    /// What is not there yet; its creation brings the config back.
    Missing(String),
}

async fn gather(
    config: &KThreesConfig,
    owner: &Owner,
    cluster: &Cluster,
    role: Role,
    context: &Context,
) -> Result<Gathered, Error> {
    let namespace = config.namespace().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let value = |name: String, key: String| {
        let secrets = secrets.clone();
        async move {
            let found = secrets
                .get_opt(&name)
                .await
                .map_err(Error::api(format!("reading Secret {name}")))?;
            Ok::<_, Error>(match found {
                None => Err(format!("Secret {name} does not exist")),
                Some(secret) => secret
                    .data
                    .and_then(|mut data| data.remove(&key))
                    .map(|bytes| bytes.0)
                    .ok_or_else(|| format!("Secret {name} has no key {key:?}")),
            })
        }
    };
    let mut facts = Facts {
        endpoint_host: cluster.spec.control_plane_endpoint.host.clone(),
        endpoint_port: u16::try_from(cluster.spec.control_plane_endpoint.port).unwrap_or_default(),
        version: config
            .spec
            .version
            .clone()
            .filter(|version| !version.is_empty())
            .unwrap_or_else(|| owner.version.clone()),
        ..Facts::default()
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end().to_owned();
    match value(format!("{}-token", owner.cluster), "value".into()).await? {
        Ok(token) => facts.token = text(token),
        Err(missing) => return Ok(Gathered::Missing(missing)),
    }
    if let Ok(token) = value(format!("{}-agent-token", owner.cluster), "value".into()).await? {
        facts.agent_token = Some(text(token));
    }
    let source = |source: &FileSource| (source.secret.name.clone(), source.secret.key.clone());
    for file in config.spec.files.iter().flatten() {
        let content = match &file.content_from {
            None => file.content.clone().unwrap_or_default().into_bytes(),
            Some(from) => {
                let (name, key) = source(from);
                match value(name, key).await? {
                    Ok(content) => content,
                    Err(missing) => return Ok(Gathered::Missing(format!("file {}: {missing}", file.path))),
                }
            }
        };
        facts.file_contents.push(content);
    }
    if role != Role::Worker
        && let Some(datastore) = config.spec.server().datastore
    {
        let (name, key) = source(&datastore.endpoint_from);
        match value(name, key).await? {
            Ok(endpoint) => facts.datastore_endpoint = Some(text(endpoint)),
            Err(missing) => return Ok(Gathered::Missing(format!("datastore: {missing}"))),
        }
    }
    if role == Role::Init {
        let mut purposes = vec![Purpose::ClusterCa, Purpose::ClientCa];
        if config.spec.has_embedded_etcd() {
            purposes.push(Purpose::EtcdCa);
        }
        let found = secret::store::lookup(&context.client, &namespace, &owner.cluster, &purposes).await?;
        let mut authorities = Vec::new();
        for purpose in &purposes {
            let Some(stored) = found.get(purpose) else {
                return Ok(Gathered::Missing(format!(
                    "Secret {} does not exist",
                    purpose.secret_name(&owner.cluster)
                )));
            };
            let pair = secret::read_key_pair(stored)?;
            if pair.key.is_none() {
                // k3s would make an authority of its own beside the one without a key.
                return Ok(Gathered::Missing(format!(
                    "Secret {} has no key \"tls.key\": the first server signs with it, so put it there until the control \
                     plane is initialised",
                    purpose.secret_name(&owner.cluster)
                )));
            }
            authorities.push(Authority {
                certificate: pair.certificate,
                key: pair
                    .key
                    .map(|key| key.expose_secret().to_owned())
                    .unwrap_or_default(),
            });
        }
        let mut authorities = authorities.into_iter();
        facts.authorities = Authorities {
            server: authorities.next().unwrap_or_default(),
            client: authorities.next().unwrap_or_default(),
            etcd: authorities.next(),
        };
    }
    Ok(Gathered::Facts(Box::new(facts)))
}

async fn store_data(
    config: &KThreesConfig,
    cluster: &str,
    userdata: String,
    context: &Context,
) -> Result<(), Error> {
    let namespace = config.namespace().unwrap_or_default();
    let name = config.name_any();
    let data = secret::cluster_secret(
        &namespace,
        cluster,
        &name,
        owner::controller_reference(config),
        [
            (secret::VALUE_KEY, userdata.into_bytes()),
            ("format", b"cloud-config".to_vec()),
        ],
    );
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &namespace);
    let doing = || format!("storing the bootstrap data of {namespace}/{name}");
    match secrets.create(&PostParams::default(), &data).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let present = secrets.get(&name).await.map_err(Error::api(doing()))?;
            if !owner::is_controlled_by(&present.metadata, &config.metadata) {
                return Err(Error::Unusable {
                    doing: doing(),
                    problem: format!(
                        "Secret {name} exists and belongs to somebody else: delete or rename it"
                    ),
                });
            }
            let patch = json!({"data": data.data});
            secrets
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .map_err(Error::api(doing()))?;
            Ok(())
        }
        Err(error) => Err(Error::api(doing())(error)),
    }
}

fn lock_name(cluster: &str) -> String {
    format!("{cluster}-lock")
}

fn locks(config: &KThreesConfig, context: &Context) -> Api<ConfigMap> {
    Api::namespaced(context.client.clone(), &config.namespace().unwrap_or_default())
}

async fn read_lock(config: &KThreesConfig, owner: &Owner, context: &Context) -> Result<Lock, Error> {
    let name = lock_name(&owner.cluster);
    let Some(lock) = locks(config, context)
        .get_opt(&name)
        .await
        .map_err(Error::api(format!("reading the init lock {name}")))?
    else {
        return Ok(Lock::Free);
    };
    let holder = lock
        .data
        .and_then(|data| serde_json::from_str::<serde_json::Value>(data.get(LOCK_KEY)?).ok())
        .and_then(|information| information["machineName"].as_str().map(ToOwned::to_owned))
        .unwrap_or_default();
    if holder == owner.name && owner.is_server {
        return Ok(Lock::Ours);
    }
    let machine = Api::<Machine>::namespaced(context.client.clone(), &config.namespace().unwrap_or_default())
        .get_opt(&holder)
        .await
        .map_err(Error::api(format!(
            "reading Machine {holder}, which holds the init lock"
        )))?;
    Ok(match machine {
        Some(machine) if !machine.is_deleting() => Lock::Theirs(holder),
        _ => Lock::Abandoned(holder),
    })
}

async fn take_lock(
    config: &KThreesConfig,
    owner: &Owner,
    cluster: &Cluster,
    context: &Context,
) -> Result<(), Error> {
    let name = lock_name(&owner.cluster);
    let lock: ConfigMap = serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": config.namespace(),
            "labels": {(label::CLUSTER_NAME): owner.cluster},
            "ownerReferences": [{
                "apiVersion": "cluster.x-k8s.io/v1beta2",
                "kind": "Cluster",
                "name": owner.cluster,
                "uid": cluster.metadata.uid.clone().unwrap_or_default(),
            }],
        },
        "data": {(LOCK_KEY): json!({"machineName": owner.name}).to_string()},
    }))
    .map_err(|error| Error::Unusable {
        doing: "making the init lock".into(),
        problem: error.to_string(),
    })?;
    // Whoever comes second sees the first on its next look.
    unless_exists(locks(config, context).create(&PostParams::default(), &lock).await)
        .map_err(Error::api(format!("taking the init lock {name}")))
}

async fn release_lock(config: &KThreesConfig, cluster: &str, context: &Context) -> Result<(), Error> {
    let name = lock_name(cluster);
    let api = locks(config, context);
    let doing = || format!("releasing the init lock {name}");
    let Some(lock) = api.get_opt(&name).await.map_err(Error::api(doing()))? else {
        return Ok(());
    };
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: lock.metadata.uid,
            resource_version: lock.metadata.resource_version,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&name, &parameters).await {
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        other => other.map(|_| ()).map_err(Error::api(doing())),
    }
}

fn done(status: &mut KThreesConfigStatus, config: &KThreesConfig, secret: &str, context: &Context) {
    status.ready = Some(true);
    status.data_secret_name = Some(secret.to_owned());
    status.initialization = Some(ConfigInitialization {
        data_secret_created: Some(true),
    });
    let report = Report::new(conditions::DATA_SECRET_AVAILABLE, Status::True, "Available", "");
    set(
        status,
        config,
        context,
        &report,
        Some(&LegacyReport::good(conditions::DATA_SECRET_AVAILABLE)),
    );
}

fn waiting(
    status: &mut KThreesConfigStatus,
    config: &KThreesConfig,
    reason: &str,
    message: &str,
    severity: Severity,
    context: &Context,
) {
    let report = Report::new(conditions::DATA_SECRET_AVAILABLE, Status::False, reason, message);
    let legacy = LegacyReport::bad(conditions::DATA_SECRET_AVAILABLE, severity, reason, message);
    set(status, config, context, &report, Some(&legacy));
}

fn set(
    status: &mut KThreesConfigStatus,
    config: &KThreesConfig,
    context: &Context,
    report: &Report,
    legacy: Option<&LegacyReport>,
) {
    let now = context.clock.now();
    let newer = status
        .v1beta2
        .get_or_insert_with(V1Beta2Status::default)
        .conditions
        .get_or_insert_default();
    condition::set(newer, report, config.metadata.generation, now);
    if let Some(legacy) = legacy {
        let mut older = conditions::to_legacy(status.conditions.as_deref().unwrap_or_default());
        legacy::set(&mut older, legacy, now);
        status.conditions = Some(conditions::from_legacy(&older));
    }
}

fn summarize(status: &mut KThreesConfigStatus, config: &KThreesConfig, context: &Context) {
    let available = status
        .v1beta2
        .as_ref()
        .and_then(|newer| newer.conditions.as_ref())
        .and_then(|list| condition::find(list, conditions::DATA_SECRET_AVAILABLE).cloned());
    let (report, legacy) = match available {
        Some(found) if found.status == "True" => (
            Report::new(conditions::READY, Status::True, "Ready", ""),
            LegacyReport::good(conditions::READY),
        ),
        Some(found) => (
            Report::new(
                conditions::READY,
                Status::False,
                &found.reason,
                found.message.clone(),
            ),
            LegacyReport::bad(conditions::READY, Severity::Info, &found.reason, found.message),
        ),
        None => return,
    };
    set(status, config, context, &report, Some(&legacy));
}

async fn store(config: &KThreesConfig, status: &KThreesConfigStatus, context: &Context) -> Result<(), Error> {
    context
        .patch_status(config, status)
        .await
        .map(|_| ())
        .map_err(Error::api(format!(
            "writing the status of KThreesConfig {}",
            config.name_any()
        )))
}
