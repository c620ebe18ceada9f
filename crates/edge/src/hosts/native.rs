//! Hosts with the node agent: reached at their address, or over the connection they hold to this manager.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use slipway_agent_api::{
    Class, Problem,
    client::{Direct, HostClient, Way},
    proto::{Host, Image, Operation, StartRequest},
    tls::CurrentTls,
    tunnel::Switchboard,
};

use super::{HostAddress, Hosts};

/// One connection a host, kept while it is good.
#[derive(Default)]
pub struct NativeHosts {
    /// The operator's certificate, once there is one.
    tls: Mutex<Option<Arc<CurrentTls>>>,
    board: Switchboard,
    clients: Mutex<BTreeMap<String, (HostAddress, HostClient)>>,
}

impl NativeHosts {
    /// `tls`: with the operator's certificate. `board`: the hosts that have connected here.
    pub fn new(tls: Arc<CurrentTls>, board: Switchboard) -> Self {
        Self {
            tls: Mutex::new(Some(tls)),
            board,
            clients: Mutex::default(),
        }
    }

    /// From here on hosts are spoken to with this certificate.
    pub fn open(&self, tls: Arc<CurrentTls>) {
        *self.tls.lock() = Some(tls);
        self.clients.lock().clear();
    }

    pub fn board(&self) -> &Switchboard {
        &self.board
    }

    /// How many hosts something is kept for.
    pub fn len(&self) -> usize {
        self.clients.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.clients.lock().is_empty()
    }

    fn client(&self, place: &HostAddress) -> Result<HostClient, Problem> {
        let Some(tls) = self.tls.lock().clone() else {
            return Err(Problem::new(
                Class::Transient,
                "Unreachable",
                "this manager has no certificate for hosts yet",
            ));
        };
        let mut clients = self.clients.lock();
        if let Some((known, client)) = clients.get(&place.name)
            && known == place
        {
            return Ok(client.clone());
        }
        let way: Arc<dyn Way> = match &place.address {
            Some(address) => Arc::new(Direct {
                address: address.clone(),
                tls,
            }),
            None => Arc::new(self.board.clone()),
        };
        let client = HostClient::new(&place.name, way);
        clients.insert(place.name.clone(), (place.clone(), client.clone()));
        Ok(client)
    }
}

#[async_trait]
impl Hosts for NativeHosts {
    async fn inventory(&self, host: &HostAddress) -> Result<Host, Problem> {
        self.client(host)?.inventory().await
    }

    async fn operation(&self, host: &HostAddress, id: &str) -> Result<Option<Operation>, Problem> {
        match self.client(host)?.operation(id).await {
            Ok(operation) => Ok(Some(operation)),
            Err(problem) if problem.reason == "UnknownOperation" => Ok(None),
            Err(problem) => Err(problem),
        }
    }

    async fn operations(&self, host: &HostAddress) -> Result<Vec<Operation>, Problem> {
        self.client(host)?.operations().await
    }

    async fn images(&self, host: &HostAddress) -> Result<Vec<Image>, Problem> {
        Ok(self.client(host)?.images().await?.images)
    }

    async fn start(&self, host: &HostAddress, order: StartRequest) -> Result<Operation, Problem> {
        self.client(host)?.start(order).await
    }

    async fn cancel(&self, host: &HostAddress, id: &str, generation: u64) -> Result<Operation, Problem> {
        self.client(host)?.cancel(id, generation).await
    }

    fn forget(&self, name: &str) {
        self.clients.lock().remove(name);
    }
}
