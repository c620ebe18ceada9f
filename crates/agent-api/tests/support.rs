//! A fleet on loopback: a CA, a manager, and hosts whose service answers with what a test has put there.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, atomic::AtomicUsize, atomic::Ordering},
    time::Duration,
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use futures::Stream;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use slipway_agent_api::{
    Identity, Problem,
    ca::{Ca, CaPem},
    client::{Direct, HostClient, has_ended},
    enrol::EnrolmentService,
    proto::{
        self, Operation, OperationState,
        agent_server::{Agent, AgentServer},
        blobs_server::{Blobs, BlobsServer},
        enrolment_server::EnrolmentServer,
    },
    serve::{Router, serve},
    tls::{Callers, CurrentTls, Material},
    token::{JoinToken, TokenRecord, TokenStore},
    tunnel::{Switchboard, serve_manager},
};
use slipway_slots::Digest;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tonic::{Request, Response, Status};

pub const FLEET: &str = "north";

/// Tokens in memory.
#[derive(Clone, Default)]
pub struct Tokens(Arc<Mutex<BTreeMap<String, TokenRecord>>>);

impl Tokens {
    pub fn add(&self, record: TokenRecord) {
        self.0.lock().insert(record.id.clone(), record);
    }
}

#[async_trait]
impl TokenStore for Tokens {
    async fn get(&self, id: &str) -> Result<Option<TokenRecord>, Problem> {
        Ok(self.0.lock().get(id).cloned())
    }

    async fn claim(&self, record: &TokenRecord, key: Digest) -> Result<bool, Problem> {
        let mut records = self.0.lock();
        let kept = records.get_mut(&record.id).unwrap();
        if kept.used_by.is_some() {
            return Ok(false);
        }
        kept.used_by = Some(key);
        Ok(true)
    }
}

/// A task that ends with the test.
pub struct Running(pub JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub struct Fleet {
    pub ca: Arc<ArcSwap<Ca>>,
    pub pem: CaPem,
    pub tokens: Tokens,
    pub manager: String,
    pub manager_tls: Arc<CurrentTls>,
    pub board: Switchboard,
    _server: Running,
}

pub fn operator() -> Identity {
    Identity::Operator { fleet: FLEET.into() }
}

pub fn host(name: &str) -> Identity {
    Identity::Host {
        fleet: FLEET.into(),
        name: name.into(),
    }
}

pub fn reader() -> Identity {
    Identity::Reader {
        fleet: FLEET.into(),
        name: "dashboard".into(),
    }
}

impl Fleet {
    pub async fn new() -> Self {
        Self::with_lifetime(Duration::from_hours(24)).await
    }

    pub async fn with_lifetime(lifetime: Duration) -> Self {
        let pem = Ca::generate(FLEET, Timestamp::now()).unwrap();
        let ca = Ca::open(FLEET, &pem, &[], lifetime).unwrap();
        let long_lived = Ca::open(FLEET, &pem, &[], Duration::from_hours(24)).unwrap();
        let material = long_lived.issue(&operator(), Timestamp::now()).unwrap();
        let manager_tls = CurrentTls::new(&material, Callers::Anybody).unwrap();
        let ca = Arc::new(ArcSwap::from_pointee(ca));
        let tokens = Tokens::default();
        let service = EnrolmentService {
            ca: ca.clone(),
            tokens: tokens.clone(),
            now: Timestamp::now,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let manager = listener.local_addr().unwrap().to_string();
        let board = Switchboard::default();
        let router = Router::new(FLEET).with(EnrolmentServer::new(service));
        let server = tokio::spawn(serve_manager(
            listener,
            manager_tls.clone(),
            FLEET.to_owned(),
            router,
            board.clone(),
        ));
        Self {
            ca,
            pem,
            tokens,
            manager,
            manager_tls,
            board,
            _server: Running(server),
        }
    }

    pub fn issue(&self, identity: &Identity) -> Material {
        self.ca.load().issue(identity, Timestamp::now()).unwrap()
    }

    pub fn tls(&self, identity: &Identity) -> Arc<CurrentTls> {
        CurrentTls::new(&self.issue(identity), Callers::WithCertificate).unwrap()
    }

    pub fn token(&self, host: &str) -> JoinToken {
        let hour = SignedDuration::from_hours(1);
        let (token, record) = JoinToken::issue(host, self.ca.load().digest(), Timestamp::now(), hour);
        self.tokens.add(record);
        token
    }

    /// A host of that name with its own certificate.
    pub async fn host(&self, name: &str) -> Host {
        Host::start(name, self.tls(&host(name))).await
    }
}

/// What a host's service answers with: one operation, which the test changes.
#[derive(Clone)]
pub struct Script {
    pub operation: Arc<watch::Sender<Operation>>,
    pub said: Arc<Mutex<Vec<u8>>>,
    pub starts: Arc<AtomicUsize>,
    pub watches: Arc<AtomicUsize>,
}

impl Script {
    pub fn new() -> Self {
        let operation = Operation {
            id: "op-1".into(),
            state: OperationState::Running.into(),
            sequence: 1,
            ..Operation::default()
        };
        Self {
            operation: Arc::new(watch::Sender::new(operation)),
            said: Arc::default(),
            starts: Arc::default(),
            watches: Arc::default(),
        }
    }

    /// What a program of the operation says.
    pub fn say(&self, text: &str) {
        self.said.lock().extend_from_slice(text.as_bytes());
        self.advance(OperationState::Running);
    }

    pub fn advance(&self, state: OperationState) {
        self.operation.send_modify(|operation| {
            operation.sequence += 1;
            operation.state = state.into();
        });
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[async_trait]
impl Agent for Script {
    async fn get_host(&self, _: Request<proto::GetHostRequest>) -> Answer<proto::Host> {
        Ok(Response::new(<_>::default()))
    }

    async fn list_images(&self, _: Request<proto::ListImagesRequest>) -> Answer<proto::ListImagesResponse> {
        Ok(Response::new(<_>::default()))
    }

    async fn wait_for_image(
        &self,
        _: Request<proto::WaitForImageRequest>,
    ) -> Answer<proto::WaitForImageResponse> {
        Ok(Response::new(<_>::default()))
    }

    async fn start(&self, _: Request<proto::StartRequest>) -> Answer<Operation> {
        self.starts.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(self.operation.borrow().clone()))
    }

    async fn cancel_operation(&self, _: Request<proto::CancelOperationRequest>) -> Answer<Operation> {
        Ok(Response::new(<_>::default()))
    }

    async fn get_operation(&self, _: Request<proto::GetOperationRequest>) -> Answer<Operation> {
        Ok(Response::new(self.operation.borrow().clone()))
    }

    async fn list_operations(
        &self,
        _: Request<proto::ListOperationsRequest>,
    ) -> Answer<proto::ListOperationsResponse> {
        Ok(Response::new(<_>::default()))
    }

    type WatchOperationStream = Pin<Box<dyn Stream<Item = Result<Operation, Status>> + Send>>;

    async fn watch_operation(
        &self,
        request: Request<proto::WatchOperationRequest>,
    ) -> Answer<Self::WatchOperationStream> {
        self.watches.fetch_add(1, Ordering::Relaxed);
        let receiver = self.operation.subscribe();
        let (said, from) = (self.said.clone(), request.into_inner().output_from as usize);
        let stream = futures::stream::unfold(
            (receiver, from, true, false),
            move |(mut receiver, from, first, ended)| {
                let said = said.clone();
                async move {
                    if ended || (!first && receiver.changed().await.is_err()) {
                        return None;
                    }
                    let mut operation = receiver.borrow_and_update().clone();
                    let ended = has_ended(&operation);
                    let said = said.lock();
                    operation.output = (from < said.len()).then(|| proto::Output {
                        offset: from as u64,
                        data: said[from..].to_vec(),
                    });
                    Some((Ok(operation), (receiver, said.len(), false, ended)))
                }
            },
        );
        Ok(Response::new(Box::pin(stream)))
    }
}

#[async_trait]
impl Blobs for Script {
    async fn locate(&self, _: Request<proto::LocateRequest>) -> Answer<proto::LocateResponse> {
        Ok(Response::new(<_>::default()))
    }

    type ReadStream = Pin<Box<dyn Stream<Item = Result<proto::Piece, Status>> + Send>>;

    async fn read(&self, _: Request<proto::ReadRequest>) -> Answer<Self::ReadStream> {
        Ok(Response::new(Box::pin(futures::stream::empty())))
    }
}

pub fn router(script: &Script) -> Router {
    Router::new(FLEET)
        .with(AgentServer::new(script.clone()))
        .with(BlobsServer::new(script.clone()))
}

pub struct Host {
    pub name: String,
    pub address: String,
    pub script: Script,
    pub tls: Arc<CurrentTls>,
    _server: Running,
}

impl Host {
    pub async fn start(name: &str, tls: Arc<CurrentTls>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let script = Script::new();
        let server = tokio::spawn(serve(listener, tls.clone(), router(&script)));
        Self {
            name: name.to_owned(),
            address,
            script,
            tls,
            _server: Running(server),
        }
    }

    pub fn client(&self, tls: Arc<CurrentTls>) -> HostClient {
        let way = Direct {
            address: self.address.clone(),
            tls,
        };
        HostClient::new(&self.name, Arc::new(way))
    }
}
