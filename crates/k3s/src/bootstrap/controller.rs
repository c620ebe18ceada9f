//! The shell around `plan` and `render`: reads what a KThreesConfig depends on, writes its data secret and status.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, Patch, PatchParams, PostParams},
};
use serde_json::json;
use slipway_capi::{
    condition::{
        Report, Status,
        legacy::{LegacyReport, Severity},
    },
    owner, paused, secret,
    view::{Cluster, Machine},
};
use slipway_runtime::{
    Next, ObjectKey,
    controller::{Context, Controller, Reconciler, Registration},
};

use super::{
    concern,
    gather::{Gathered, gather},
    lock,
    owner::{Owner, find_owner},
    plan::{self, Decision, Lock, Observed},
    render::{self, Role},
    status,
};
use crate::{
    api::{
        KThreesConfig, KThreesConfigStatus,
        conditions::{self, reason},
    },
    error::Error,
    reads,
};

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
        .watches::<Cluster>(concern::by_cluster)
        .watches_metadata(secrets, concern::by_secret)
        .into_registration()
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
        status::set(&mut status, &config, context, &held.report("KThreesConfig"), None);
        if held.is_paused() {
            status::store(&config, &status, context).await?;
            return Ok(Next::OnChange);
        }
        let next = work(&config, &owner, &cluster, &mut status, context).await;
        status::summarize(&mut status, &config, context);
        if next.is_ok() {
            status.observed_generation = config.metadata.generation;
        }
        status::store(&config, &status, context).await?;
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
    let mut observed = Observed {
        infrastructure_ready: cluster.infrastructure_provisioned(),
        control_plane_initialized: cluster.control_plane_initialized(),
        endpoint_known: cluster.spec.control_plane_endpoint.is_valid(),
        is_server: owner.is_server,
        owners_secret: owner.data_secret_name.clone(),
        ready: status.ready == Some(true),
        data_secret_name: status.data_secret_name.clone(),
        lock: Lock::Free,
    };
    if plan::turns_on_the_lock(&observed) {
        observed.lock = lock::read(config, owner, context).await?;
    }
    match plan::decide(&observed) {
        Decision::Exists { secret } => {
            status::done(status, config, &secret, context);
            Ok(Next::OnChange)
        }
        Decision::Wait { reason, message } => {
            status::waiting(status, config, reason, &message, Severity::Info, context);
            Ok(Next::OnChange)
        }
        Decision::TakeLock => {
            lock::take(config, owner, cluster, context).await?;
            Ok(Next::After(Duration::from_millis(100)))
        }
        Decision::BreakLock { holder } => {
            tracing::info!(holder, "Releasing the init lock of a machine that is gone");
            lock::release(config, &owner.cluster, context).await?;
            Ok(Next::After(Duration::from_millis(100)))
        }
        Decision::Render {
            role,
            release_lock: release,
        } => {
            if release {
                lock::release(config, &owner.cluster, context).await?;
            }
            match gather(config, owner, cluster, role, context).await? {
                Gathered::Missing(message) => {
                    status::waiting(
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
                            status::waiting(
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
                        status::set(
                            status,
                            config,
                            context,
                            &report,
                            Some(&LegacyReport::good(conditions::CERTIFICATES_AVAILABLE)),
                        );
                    }
                    status::done(status, config, &config.name_any(), context);
                    Ok(Next::OnChange)
                }
            }
        }
    }
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
