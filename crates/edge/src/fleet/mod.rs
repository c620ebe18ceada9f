//! The fleet: a CA in a Secret, the manager's own certificate, and the port where hosts join and connect. It runs beside the controllers
//! of whoever leads; a host that finds another replica tries again.

mod act;
pub mod record;

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use slipway_agent_api::{
    Class, Identity, Problem,
    ca::{Ca, CaError, CaPem},
    enrol::EnrolmentService,
    proto::enrolment_server::EnrolmentServer,
    serve::Router,
    tls::{Callers, CurrentTls, TlsError},
    token::{TokenRecord, TokenStore},
    tunnel::serve_manager,
};
use slipway_runtime::{Context, controller::Registration, manager::own_namespace};
use slipway_slots::Digest;
use tokio::net::TcpListener;

pub use act::issue_token;

use self::record::FLEET;
use crate::hosts::native::NativeHosts;

/// Of hosts' certificates, and of the manager's own. Hosts renew after two thirds of it.
const LIFETIME: Duration = Duration::from_hours(30 * 24);
/// Between two tries to open the port.
const TRY_AGAIN: Duration = Duration::from_secs(10);

pub const ADDRESS_FLAG: &str = "edge-address";
pub const NAMESPACE_FLAG: &str = "edge-namespace";
pub const DEFAULT_ADDRESS: &str = "[::]:9445";
/// Where nobody says another, and the manager does not run in a Pod.
pub const DEFAULT_NAMESPACE: &str = "infrastructure-edge-system";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{doing}: {source}")]
    Api {
        doing: String,
        #[source]
        source: kube::Error,
    },
    #[error(
        "Secret {namespace}/slipway-edge-ca has no certificate and key under tls.crt and tls.key: restore it, or delete it and let every host join again"
    )]
    NoCa { namespace: String },
    #[error(transparent)]
    Ca(#[from] CaError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("opening {address} for hosts: {source}; --edge-address names another")]
    Listen {
        address: String,
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    fn api(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Api { doing, source }
    }
}

fn open(pem: &CaPem) -> Result<Ca, CaError> {
    Ca::open(FLEET, pem, &[], LIFETIME)
}

/// Records of join tokens as Secrets.
struct SecretTokens {
    client: Client,
    namespace: String,
}

fn unavailable(error: &Error) -> Problem {
    Problem::new(Class::Transient, "Unavailable", error.to_string())
}

#[async_trait]
impl TokenStore for SecretTokens {
    async fn get(&self, id: &str) -> Result<Option<TokenRecord>, Problem> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        // Ids that are no names were never given out.
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(None);
        }
        let found = secrets
            .get_opt(&record::token_secret(id))
            .await
            .map_err(Error::api("reading a join token's record"))
            .map_err(|error| unavailable(&error))?;
        Ok(found.and_then(|secret| record::read_record(id, &secret)))
    }

    async fn claim(&self, token: &TokenRecord, key: Digest) -> Result<bool, Problem> {
        act::claim_token(&self.client, &self.namespace, token, key)
            .await
            .map_err(|error| unavailable(&error))
    }
}

/// Runs while this process leads.
pub fn registration(hosts: &Arc<NativeHosts>) -> Registration {
    let hosts = hosts.clone();
    Registration {
        name: "edgefleet",
        run: Arc::new(move |context: Context| {
            let hosts = hosts.clone();
            async move {
                while !context.shutdown.is_cancelled() {
                    tokio::select! {
                        () = context.shutdown.cancelled() => break,
                        served = serve(&hosts, &context) => {
                            if let Err(error) = served {
                                tracing::error!("hosts cannot connect: {error}");
                            }
                        }
                    }
                    tokio::select! {
                        () = context.shutdown.cancelled() => {}
                        () = tokio::time::sleep(TRY_AGAIN) => {}
                    }
                }
                Ok(())
            }
            .boxed()
        }),
    }
}

/// Opens the port and serves it; ends when the port does.
async fn serve(hosts: &NativeHosts, context: &Context) -> Result<(), Error> {
    let flags = &context.settings.flags;
    let namespace = flags.get(NAMESPACE_FLAG).map(ToOwned::to_owned);
    let namespace = namespace
        .or_else(own_namespace)
        .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    let address = flags.get(ADDRESS_FLAG).unwrap_or(DEFAULT_ADDRESS).to_owned();
    let pem = act::ensure_ca(&context.client, &namespace, context.clock.now()).await?;
    let ca = open(&pem)?;
    let operator = Identity::Operator { fleet: FLEET.into() };
    let tls = CurrentTls::new(&ca.issue(&operator, Timestamp::now())?, Callers::Anybody)?;
    hosts.open(tls.clone());
    let listener = TcpListener::bind(&address)
        .await
        .map_err(|source| Error::Listen {
            address: address.clone(),
            source,
        })?;
    tracing::info!(address, "hosts join and connect here");
    let ca = Arc::new(ArcSwap::from_pointee(ca));
    let enrolment = EnrolmentService {
        ca: ca.clone(),
        tokens: SecretTokens {
            client: context.client.clone(),
            namespace,
        },
        now: Timestamp::now,
    };
    let router = Router::new(FLEET).with(EnrolmentServer::new(enrolment));
    let serving = serve_manager(
        listener,
        tls.clone(),
        FLEET.to_owned(),
        router,
        hosts.board().clone(),
    );
    let renewing = async {
        loop {
            tokio::time::sleep(LIFETIME / 3).await;
            let renewed = ca.load().issue(&operator, Timestamp::now());
            match renewed.map(|material| tls.replace(&material)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!("the manager's certificate cannot be used: {error}"),
                Err(error) => tracing::error!("the manager's certificate cannot be renewed: {error}"),
            }
        }
    };
    tokio::select! {
        () = serving => {}
        () = renewing => {}
    }
    Ok(())
}
