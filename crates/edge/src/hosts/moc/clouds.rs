//! The cloud agents that hosts are of: one session for each, with the credentials of a Secret beside the EdgeHost.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use parking_lot::Mutex;
use slipway_agent_api::{Class, Problem};
use slipway_moc::{
    Cloud,
    access::Credentials,
    session::{Endpoint, Session},
};

use slipway_runtime::{Context, controller::Registration};

use super::MocPlace;

/// How cloud agents are reached.
#[async_trait]
pub trait Clouds: Send + Sync + 'static {
    async fn cloud(&self, place: &MocPlace, now: Timestamp) -> Result<Cloud, Problem>;

    /// It did not take us for somebody who may do this: who we are is read again.
    fn refused(&self, place: &MocPlace);
}

/// Whose credentials, and where they are used.
type Key = (String, String, Endpoint);

#[derive(Default)]
pub struct SecretClouds {
    /// Once the manager runs.
    client: Mutex<Option<Client>>,
    sessions: Mutex<BTreeMap<Key, Arc<Session>>>,
}

/// Gives it the means to read Secrets, while this process leads.
pub fn registration(clouds: &Arc<SecretClouds>) -> Registration {
    let clouds = clouds.clone();
    Registration {
        name: "edgemoc",
        run: Arc::new(move |context: Context| {
            let clouds = clouds.clone();
            async move {
                clouds.open(context.client.clone());
                context.shutdown.cancelled().await;
                Ok(())
            }
            .boxed()
        }),
    }
}

fn key(place: &MocPlace) -> Key {
    (place.namespace.clone(), place.secret.clone(), place.cloud.clone())
}

impl SecretClouds {
    pub fn open(&self, client: Client) {
        *self.client.lock() = Some(client);
    }

    async fn session(&self, place: &MocPlace) -> Result<Arc<Session>, Problem> {
        let key = key(place);
        if let Some(session) = self.sessions.lock().get(&key) {
            return Ok(session.clone());
        }
        let client = self.client.lock().clone().ok_or_else(|| {
            Problem::new(
                Class::Transient,
                "Unreachable",
                "this manager has only just begun to lead",
            )
        })?;
        let secrets: Api<Secret> = Api::namespaced(client, &place.namespace);
        let name = &place.secret;
        let found = secrets.get_opt(name).await.map_err(|error| {
            Problem::new(
                Class::Transient,
                "Unreachable",
                format!("reading Secret {name}: {error}"),
            )
        })?;
        let wrong = |problem: String| {
            let message = format!("Secret {name} with the credentials for MOC {problem}");
            Problem::new(Class::Terminal, "NoCredentials", message)
        };
        let secret = found.ok_or_else(|| wrong("is not there".to_owned()))?;
        let data = secret.data.unwrap_or_default();
        let data = data.into_iter().map(|(key, value)| (key, value.0)).collect();
        let credentials = Credentials::of_secret(&data).map_err(|error| wrong(error.to_string()))?;
        let session = Arc::new(Session::new(place.cloud.clone(), credentials));
        self.sessions.lock().insert(key, session.clone());
        Ok(session)
    }
}

#[async_trait]
impl Clouds for SecretClouds {
    async fn cloud(&self, place: &MocPlace, now: Timestamp) -> Result<Cloud, Problem> {
        let opened = self.session(place).await?.cloud(now).await;
        opened.map_err(|error| {
            if error.class == Class::Denied {
                self.refused(place);
            }
            error.problem()
        })
    }

    fn refused(&self, place: &MocPlace) {
        self.sessions.lock().remove(&key(place));
    }
}
