//! Hosts behind NAT: the agent connects to the manager, and the manager calls over that connection. Both certificates
//! are checked in the one handshake, so nothing but the direction differs from a host that can be reached.

use std::{collections::BTreeMap, fmt, sync::Arc};

use http::{Request, Response};
use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::watch};
use tonic::body::Body;

use crate::{
    Identity,
    channel::{Channel, ConnectError, connect, server_identity},
    identity::{MANAGER_NAME, host_of, server_name},
    problem::{Class, Problem},
    roles::Role,
    serve::{Caller, Router, accept_callers, serve_connection},
    tls::{ALPN_TUNNEL, CurrentTls, now},
};

/// The hosts that are connected to this replica of the manager.
#[derive(Clone, Default)]
pub struct Switchboard {
    hosts: Arc<Mutex<Hosts>>,
    changes: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
struct Hosts {
    connected: BTreeMap<String, (u64, Channel)>,
    /// Numbers connections: a host that comes again replaces itself, and the old connection's end removes nothing.
    next: u64,
}

impl fmt::Debug for Switchboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.hosts()).finish()
    }
}

impl Switchboard {
    /// The connected hosts.
    pub fn hosts(&self) -> Vec<String> {
        self.hosts.lock().connected.keys().cloned().collect()
    }

    /// Changes whenever a host connects or is gone: whoever waits for one looks again then.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn channel(&self, host: &str) -> Result<Channel, ConnectError> {
        self.hosts
            .lock()
            .connected
            .get(host)
            .map(|(_, channel)| channel.clone())
            .filter(|channel| !channel.is_closed())
            .ok_or_else(|| ConnectError::NotConnected(host.to_owned()))
    }

    /// Keeps the tunnel of a host until it ends.
    async fn keep(&self, host: &str, caller: Caller) {
        let Ok((channel, ended)) = Channel::over(caller.stream, &server_name(host)).await else {
            return;
        };
        let number = {
            let mut hosts = self.hosts.lock();
            hosts.next += 1;
            let number = hosts.next;
            hosts.connected.insert(host.to_owned(), (number, channel));
            number
        };
        tracing::info!(host, "the host is connected");
        self.changes.send_modify(|changes| *changes += 1);
        let _gone = Gone {
            board: self,
            host,
            number,
        };
        ended.await;
    }
}

/// Takes a connection off the board however its task ends.
struct Gone<'a> {
    board: &'a Switchboard,
    host: &'a str,
    number: u64,
}

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        let mut hosts = self.board.hosts.lock();
        if hosts
            .connected
            .get(self.host)
            .is_some_and(|(number, _)| *number == self.number)
        {
            hosts.connected.remove(self.host);
            drop(hosts);
            tracing::info!(host = self.host, "the host is no longer connected");
            self.board.changes.send_modify(|changes| *changes += 1);
        }
    }
}

/// The manager's port: hosts enrol, renew and connect here, and other replicas reach this one's hosts through it.
pub async fn serve_manager(
    listener: TcpListener,
    tls: Arc<CurrentTls>,
    fleet: String,
    router: Router,
    board: Switchboard,
) {
    let (router, fleet) = (Arc::new(router), Arc::new(fleet));
    accept_callers(listener, tls, move |caller| {
        let (router, board, fleet) = (router.clone(), board.clone(), fleet.clone());
        async move {
            if caller.protocol() == Some(ALPN_TUNNEL) {
                match caller.identity.clone() {
                    Identity::Host { fleet: of, name } if of == *fleet => board.keep(&name, caller).await,
                    other => tracing::warn!("{other} may not connect a tunnel"),
                }
                return;
            }
            let identity = Arc::new(caller.identity);
            serve_connection(caller.stream, move |request| {
                let (router, board, identity) = (router.clone(), board.clone(), identity.clone());
                async move { route(&router, &board, &identity, request).await }
            })
            .await;
        }
    })
    .await;
}

/// Calls for a host are handed on to it, with the manager's rights and for the manager only.
async fn route(
    router: &Router,
    board: &Switchboard,
    identity: &Identity,
    request: Request<Body>,
) -> Response<Body> {
    let host = request.uri().host().and_then(host_of).map(str::to_owned);
    match host {
        Some(host) if Role::of(identity) == Role::Operator => relay(board, &host, request).await,
        Some(_) => Problem::new(
            Class::Denied,
            "NotAllowed",
            format!("{identity} may not call hosts"),
        )
        .to_status()
        .into_http(),
        None => router.call(identity, request).await,
    }
}

async fn relay(board: &Switchboard, host: &str, request: Request<Body>) -> Response<Body> {
    let failed = |message: String| {
        Problem::new(Class::Transient, "NotConnected", message)
            .to_status()
            .into_http()
    };
    let mut channel = match board.channel(host) {
        Ok(channel) => channel,
        Err(error) => return failed(error.to_string()),
    };
    match channel.send(request).await {
        Ok(response) => response.map(Body::new),
        Err(error) => failed(format!("calling {host}: {error}")),
    }
}

/// The host's half: connects, and serves `router` over the connection until it ends.
pub async fn connect_tunnel(
    address: &str,
    fleet: &str,
    tls: &CurrentTls,
    router: Arc<Router>,
) -> Result<(), ConnectError> {
    let current = tls.get();
    let stream = connect(address, MANAGER_NAME, current.tunnel.clone()).await?;
    let untrusted = |reason: String| ConnectError::Untrusted {
        address: address.to_owned(),
        reason,
    };
    if stream.get_ref().1.alpn_protocol() != Some(ALPN_TUNNEL) {
        return Err(untrusted("it does not accept tunnels".to_owned()));
    }
    let identity = match server_identity(&stream) {
        Some(identity @ Identity::Operator { .. }) if identity.fleet() == Some(fleet) => Arc::new(identity),
        Some(other) => return Err(untrusted(format!("it is {other}"))),
        None => return Err(untrusted("its certificate names nobody".to_owned())),
    };
    let left = current.valid.left(now());
    let serving = serve_connection(stream, move |request| {
        let (router, identity) = (router.clone(), identity.clone());
        async move { router.call(&identity, request).await }
    });
    // Ours ends as the manager's does: with the certificate it was made with.
    let _ = tokio::time::timeout(left, serving).await;
    Ok(())
}
