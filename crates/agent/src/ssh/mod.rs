//! A node over SSH: commands on it, and its partitions as slot targets. The host key is pinned and a key is the only way
//! in; a node whose host key changed is refused.

mod helper;
mod medium;
mod protocol;
mod run;
mod serve;
mod target;

use std::{sync::Arc, time::Duration};

use russh::{
    Disconnect,
    client::{self, Handle},
    keys::{PrivateKey, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate},
};
use tokio::time::timeout;

pub use medium::{RemoteDevice, RemoteDirectory};
pub use serve::{serve, serve_directory};
pub use target::RemoteTarget;

/// How a node is reached.
#[derive(Clone)]
pub struct Node {
    host: String,
    port: u16,
    user: String,
    host_keys: Arc<[PublicKey]>,
    key: Arc<PrivateKey>,
    connect_timeout: Duration,
}

/// Its messages name the node and never a key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the {what} for {node} cannot be read: {reason}")]
    Key {
        node: String,
        what: &'static str,
        reason: String,
    },
    #[error("{node} cannot be reached: {reason}")]
    Unreachable { node: String, reason: String },
    #[error(
        "{node} shows host key {shown}, which is none of those pinned for it; if the node was installed again, pin its new key"
    )]
    HostKey { node: String, shown: String },
    #[error("{node} does not accept our key for {user}")]
    Denied { node: String, user: String },
    #[error("{node}: {doing}: {reason}")]
    Session {
        node: String,
        doing: &'static str,
        reason: String,
    },
}

impl Node {
    /// `host_keys` as lines of a `known_hosts` file without the host's name, `key` as OpenSSH writes it, not encrypted.
    pub fn new(host: &str, port: u16, user: &str, host_keys: &[String], key: &str) -> Result<Self, Error> {
        let unreadable = |what| {
            move |error: russh::keys::ssh_key::Error| Error::Key {
                node: format!("{host}:{port}"),
                what,
                reason: error.to_string(),
            }
        };
        let pinned: Vec<PublicKey> = host_keys
            .iter()
            .map(|line| PublicKey::from_openssh(line))
            .collect::<Result<_, _>>()
            .map_err(unreadable("host key"))?;
        if pinned.is_empty() {
            return Err(Error::Key {
                node: format!("{host}:{port}"),
                what: "host key",
                reason: "none is pinned; `ssh-keyscan` run on a trusted network shows it".to_owned(),
            });
        }
        let key = PrivateKey::from_openssh(key).map_err(unreadable("private key"))?;
        if key.is_encrypted() {
            return Err(Error::Key {
                node: format!("{host}:{port}"),
                what: "private key",
                reason: "it is encrypted, and there is nobody to ask for its passphrase".to_owned(),
            });
        }
        Ok(Self {
            host: host.to_owned(),
            port,
            user: user.to_owned(),
            host_keys: pinned.into(),
            key: Arc::new(key),
            connect_timeout: Duration::from_secs(15),
        })
    }

    pub fn name(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    pub async fn connect(&self) -> Result<Session, Error> {
        let node = self.name();
        let config = client::Config {
            keepalive_interval: Some(Duration::from_secs(5)),
            keepalive_max: 3,
            nodelay: true,
            ..client::Config::default()
        };
        let pins = Pins {
            node: node.clone(),
            keys: Arc::clone(&self.host_keys),
        };
        let opened = async {
            let mut handle = client::connect(Arc::new(config), (self.host.as_str(), self.port), pins).await?;
            let key = PrivateKeyWithHashAlg::new(Arc::clone(&self.key), None);
            let answer = handle
                .authenticate_publickey(&self.user, key)
                .await
                .map_err(Refused::Ssh)?;
            if !answer.success() {
                return Err(Refused::Key);
            }
            Ok(handle)
        };
        match timeout(self.connect_timeout, opened).await {
            Ok(Ok(handle)) => Ok(Session { node, handle }),
            Ok(Err(Refused::HostKey(error))) => Err(error),
            Ok(Err(Refused::Key)) => Err(Error::Denied {
                node,
                user: self.user.clone(),
            }),
            Ok(Err(Refused::Ssh(error))) => Err(Error::Unreachable {
                node,
                reason: error.to_string(),
            }),
            Err(_) => Err(Error::Unreachable {
                node,
                reason: format!("no answer within {} s", self.connect_timeout.as_secs()),
            }),
        }
    }
}

/// A connection on which we are let in.
pub struct Session {
    node: String,
    handle: Handle<Pins>,
}

impl Session {
    pub async fn close(self) {
        let _ = self.handle.disconnect(Disconnect::ByApplication, "", "").await;
    }

    fn failed(&self, doing: &'static str) -> impl Fn(russh::Error) -> Error + '_ {
        move |error| Error::Session {
            node: self.node.clone(),
            doing,
            reason: error.to_string(),
        }
    }
}

/// The host keys we accept.
struct Pins {
    node: String,
    keys: Arc<[PublicKey]>,
}

#[derive(Debug)]
enum Refused {
    HostKey(Error),
    Key,
    Ssh(russh::Error),
}

impl From<russh::Error> for Refused {
    fn from(error: russh::Error) -> Self {
        Self::Ssh(error)
    }
}

impl client::Handler for Pins {
    type Error = Refused;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Refused> {
        let shown = match shown {
            PublicKeyOrCertificate::PublicKey { key, .. } => {
                if self.keys.iter().any(|pinned| pinned.key_data() == key.key_data()) {
                    return Ok(true);
                }
                key.fingerprint(russh::keys::HashAlg::Sha256).to_string()
            }
            PublicKeyOrCertificate::Certificate(_) => "in a certificate".to_owned(),
        };
        Err(Refused::HostKey(Error::HostKey {
            node: self.node.clone(),
            shown,
        }))
    }
}
