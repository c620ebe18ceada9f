//! Where Cluster API's objects are: in the cluster that is scaled, or in another that the flags name. In the second case every
//! controller works over one client that sends each request to the cluster its path belongs to; both sides carry the leader's
//! fence.

use std::{fmt, path::Path, sync::Arc};

use futures::FutureExt;
use slipway_runtime::{
    Context, Events, ObjectKey, Settings,
    controller::Registration,
    manager::ManagerError,
    workload::{Access, AccessParts, Clients, Refused, split},
};
use tokio::sync::OnceCell;

use crate::{
    api::names::NODE_CLASS_GROUP,
    memory::Memory,
    options::{
        MANAGEMENT_CA, MANAGEMENT_KUBECONFIG, MANAGEMENT_SKIP_VERIFY, MANAGEMENT_TOKEN, MANAGEMENT_URL,
    },
};

/// Why the management cluster cannot be worked in. Never repeats a token or a kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "--{MANAGEMENT_KUBECONFIG} and --{MANAGEMENT_URL} both name a management cluster: give one of them"
    )]
    Both,
    #[error("--{0} says nothing without --{MANAGEMENT_URL}")]
    NoUrl(&'static str),
    #[error("--{MANAGEMENT_KUBECONFIG}: {0}")]
    Kubeconfig(#[source] ManagerError),
    #[error("--{MANAGEMENT_URL}: {0}")]
    Parts(#[source] Refused),
    #[error("connecting to the management cluster: {0}")]
    Client(#[source] kube::Error),
}

/// The connection to a management cluster elsewhere, made once for all controllers.
#[derive(Default)]
pub(crate) struct Management {
    elsewhere: OnceCell<Option<Elsewhere>>,
}

struct Elsewhere {
    context: Context,
    events: Events,
}

impl fmt::Debug for Management {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_elsewhere = self.elsewhere.get().is_some_and(Option::is_some);
        formatter
            .debug_struct("Management")
            .field("elsewhere", &is_elsewhere)
            .finish_non_exhaustive()
    }
}

/// Whether a request is about Cluster API's objects. Definitions are read only to learn their contract.
fn is_cluster_api(path: &str) -> bool {
    let group = path
        .strip_prefix("/apis/")
        .and_then(|rest| rest.split('/').next())
        .unwrap_or_default();
    let is_of_cluster_api = group == slipway_capi::names::GROUP || group.ends_with(".cluster.x-k8s.io");
    (is_of_cluster_api && group != NODE_CLASS_GROUP) || group == "apiextensions.k8s.io"
}

/// How the management cluster is reached, if the flags name one.
pub async fn access(settings: &Settings) -> Result<Option<Access>, ConnectError> {
    let flags = &settings.flags;
    let given = |name: &str| flags.get(name).filter(|text| !text.is_empty());
    let (kubeconfig, url) = (given(MANAGEMENT_KUBECONFIG), given(MANAGEMENT_URL));
    match (kubeconfig, url) {
        (Some(_), Some(_)) => Err(ConnectError::Both),
        (Some(path), None) => {
            let access = Access::from_file(Path::new(path)).await;
            access.map(Some).map_err(ConnectError::Kubeconfig)
        }
        (None, Some(url)) => Access::from_parts(AccessParts {
            url,
            token: given(MANAGEMENT_TOKEN),
            ca_data: given(MANAGEMENT_CA),
            skip_verification: flags.is_true(MANAGEMENT_SKIP_VERIFY),
        })
        .map(Some)
        .map_err(ConnectError::Parts),
        (None, None) => {
            let idle = [MANAGEMENT_TOKEN, MANAGEMENT_CA]
                .into_iter()
                .find(|name| given(name).is_some());
            idle.map_or(Ok(None), |name| Err(ConnectError::NoUrl(name)))
        }
    }
}

impl Management {
    /// The context that controllers work with.
    pub async fn context(&self, context: Context) -> Result<Context, ConnectError> {
        let connect = || async {
            let Some(access) = access(&context.settings).await? else {
                return Ok(None);
            };
            let key = ObjectKey::cluster_scoped("management");
            let there = Clients::of(&context)
                .connect(&key, &access)
                .map_err(ConnectError::Client)?;
            tracing::info!(url = %access.url(), "Cluster API's objects are in another cluster");
            Ok(Some(Elsewhere {
                context: context.over(split(context.client.clone(), there.clone(), is_cluster_api)),
                events: Events::to_cluster(
                    there,
                    "slipway",
                    context.metrics.clone(),
                    context.shutdown.clone(),
                ),
            }))
        };
        let elsewhere = self.elsewhere.get_or_try_init(connect).await?;
        Ok(match elsewhere {
            Some(elsewhere) => elsewhere.context.clone(),
            None => context,
        })
    }

    /// Where events on Cluster API's objects go.
    pub fn events<'a>(&'a self, context: &'a Context) -> &'a Events {
        let elsewhere = self.elsewhere.get().and_then(Option::as_ref);
        elsewhere.map_or(&context.events, |elsewhere| &elsewhere.events)
    }
}

/// The same controller over both clusters.
pub(crate) fn across(registration: Registration, memory: &Arc<Memory>) -> Registration {
    let (memory, run) = (Arc::clone(memory), registration.run);
    Registration {
        name: registration.name,
        run: Arc::new(move |context: Context| {
            let (memory, run) = (Arc::clone(&memory), Arc::clone(&run));
            async move {
                memory.metrics.register(&context.metrics);
                let context = memory.management.context(context).await?;
                run(context).await
            }
            .boxed()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipway_runtime::settings::Flags;

    #[test]
    fn cluster_apis_objects_are_known_by_their_path() {
        for (path, expected) in [
            ("/apis/cluster.x-k8s.io/v1beta2/namespaces/a/machines", true),
            ("/apis/infrastructure.cluster.x-k8s.io/v1beta1/x", true),
            ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x", true),
            (
                "/apis/karpenter.cluster.x-k8s.io/v1alpha1/clusterapinodeclasses",
                false,
            ),
            ("/apis/karpenter.sh/v1/nodeclaims", false),
            ("/api/v1/nodes", false),
            ("/apis/coordination.k8s.io/v1/leases", false),
        ] {
            assert_eq!(is_cluster_api(path), expected, "{path}");
        }
    }

    #[tokio::test]
    async fn flags_name_one_management_cluster() {
        let read = |flags: &[(&str, &str)]| {
            let mut all = Flags::default();
            for (name, value) in flags {
                all = all.with(name, *value);
            }
            let settings = Settings {
                flags: all,
                ..Settings::default()
            };
            async move {
                let access = access(&settings).await.map_err(|error| error.to_string())?;
                Ok::<_, String>(access.map(|access| access.url().to_string()))
            }
        };
        assert_eq!(read(&[]).await, Ok(None));
        let url = (MANAGEMENT_URL, "https://fleet.example:6443");
        assert_eq!(
            read(&[url, (MANAGEMENT_TOKEN, "canary")]).await,
            Ok(Some("https://fleet.example:6443/".to_owned()))
        );
        let both = read(&[url, (MANAGEMENT_KUBECONFIG, "/nowhere")]).await;
        assert!(both.is_err_and(|text| text.contains("give one of them")));
        let no_url = read(&[(MANAGEMENT_TOKEN, "canary")]).await.unwrap_err();
        assert_eq!(
            no_url,
            "--cluster-api-token says nothing without --cluster-api-url"
        );
        let no_file = read(&[(MANAGEMENT_KUBECONFIG, "/nowhere")]).await.unwrap_err();
        assert!(
            no_file.starts_with("--cluster-api-kubeconfig: cannot use"),
            "{no_file}"
        );
    }
}
