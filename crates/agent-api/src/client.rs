//! Speaking to one host: orders that may be sent twice, and watches that go on after the link was down.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::Stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tonic::Status;

use crate::{
    channel::{Channel, ConnectError},
    problem::{Class, Problem},
    proto::{
        CancelOperationRequest, GetHostRequest, GetOperationRequest, Host, ListImagesRequest,
        ListImagesResponse, ListOperationsRequest, Operation, OperationState, StartRequest,
        WaitForImageRequest, WaitForImageResponse, WatchOperationRequest, agent_client::AgentClient,
    },
    tls::CurrentTls,
    tunnel::Switchboard,
};

/// The first and the longest wait between two tries of a watch.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// A way to a host.
#[async_trait]
pub trait Way: Send + Sync {
    async fn connect(&self, host: &str) -> Result<Channel, ConnectError>;
}

/// The host can be reached.
pub struct Direct {
    pub address: String,
    pub tls: Arc<CurrentTls>,
}

#[async_trait]
impl Way for Direct {
    async fn connect(&self, host: &str) -> Result<Channel, ConnectError> {
        Channel::to_host(&self.address, host, self.tls.get().client.clone()).await
    }
}

/// The host has connected to this replica.
#[async_trait]
impl Way for Switchboard {
    async fn connect(&self, host: &str) -> Result<Channel, ConnectError> {
        self.channel(host)
    }
}

/// The host has connected to another replica, at this address.
pub struct ThroughReplica {
    pub address: String,
    pub tls: Arc<CurrentTls>,
}

#[async_trait]
impl Way for ThroughReplica {
    async fn connect(&self, host: &str) -> Result<Channel, ConnectError> {
        let channel = Channel::to_manager(&self.address, self.tls.get().client.clone()).await?;
        Ok(channel.named(&crate::identity::server_name(host)))
    }
}

/// One host.
#[derive(Clone)]
pub struct HostClient {
    host: Arc<str>,
    way: Arc<dyn Way>,
    channel: Arc<Mutex<Option<Channel>>>,
}

impl fmt::Debug for HostClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostClient({})", self.host)
    }
}

/// How far a watch has come: it goes on there after a reconnect.
#[derive(Debug, Default)]
struct WatchProgress {
    sequence: Option<u64>,
    /// Bytes of output.
    output: u64,
}

impl WatchProgress {
    /// Whether there is anything in it that was not seen; then it is seen now.
    fn is_new(&mut self, operation: &Operation) -> bool {
        if self.sequence.is_some_and(|seen| operation.sequence <= seen) {
            return false;
        }
        self.sequence = Some(operation.sequence);
        if let Some(output) = &operation.output {
            // An operation that is run again after a restart of the agent speaks from its beginning.
            self.output = output.offset + output.data.len() as u64;
        }
        true
    }
}

/// Whether an operation has come to its end. An interrupted one has: it goes on only when it is ordered again.
pub fn has_ended(operation: &Operation) -> bool {
    matches!(
        operation.state(),
        OperationState::Succeeded
            | OperationState::Failed
            | OperationState::Cancelled
            | OperationState::Interrupted
    )
}

macro_rules! call {
    ($self:ident, $method:ident, $request:expr) => {{
        let request = $request;
        let mut result = $self.client().await?.$method(request.clone()).await;
        // A connection that died since it was last used is no failure: every call may be sent twice.
        if let Err(status) = &result
            && died(status)
        {
            *$self.channel.lock() = None;
            result = $self.client().await?.$method(request).await;
        }
        match result {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(Problem::from_status(&status)),
        }
    }};
}

/// The connection failed, and not the host behind it: its refusals carry details.
fn died(status: &Status) -> bool {
    status.details().is_empty()
        && matches!(
            status.code(),
            tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::Cancelled | tonic::Code::Internal
        )
}

impl HostClient {
    pub fn new(host: &str, way: Arc<dyn Way>) -> Self {
        Self {
            host: host.into(),
            way,
            channel: Arc::new(Mutex::new(None)),
        }
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// The connection in use, or a new one.
    pub async fn channel(&self) -> Result<Channel, Problem> {
        let open = self.channel.lock().clone().filter(|channel| !channel.is_closed());
        if let Some(channel) = open {
            return Ok(channel);
        }
        let channel = self.way.connect(&self.host).await.map_err(|error| {
            let class = match error {
                ConnectError::Untrusted { .. } => Class::Denied,
                _ => Class::Transient,
            };
            Problem::new(class, "Unreachable", format!("host {}: {error}", self.host))
        })?;
        *self.channel.lock() = Some(channel.clone());
        Ok(channel)
    }

    async fn client(&self) -> Result<AgentClient<Channel>, Problem> {
        let channel = self.channel().await?;
        let origin = channel.origin();
        Ok(AgentClient::with_origin(channel, origin))
    }

    pub async fn start(&self, request: StartRequest) -> Result<Operation, Problem> {
        call!(self, start, request)
    }

    pub async fn cancel(&self, id: &str, generation: u64) -> Result<Operation, Problem> {
        call!(
            self,
            cancel_operation,
            CancelOperationRequest {
                operation_id: id.to_owned(),
                generation,
            }
        )
    }

    pub async fn operation(&self, id: &str) -> Result<Operation, Problem> {
        call!(
            self,
            get_operation,
            GetOperationRequest {
                operation_id: id.to_owned(),
            }
        )
    }

    pub async fn operations(&self) -> Result<Vec<Operation>, Problem> {
        let listed: Result<_, Problem> = call!(self, list_operations, ListOperationsRequest {});
        Ok(listed?.operations)
    }

    pub async fn inventory(&self) -> Result<Host, Problem> {
        call!(self, get_host, GetHostRequest {})
    }

    pub async fn images(&self) -> Result<ListImagesResponse, Problem> {
        call!(self, list_images, ListImagesRequest {})
    }

    pub async fn wait_for_image(&self, digest: &str, seconds: u32) -> Result<WaitForImageResponse, Problem> {
        call!(
            self,
            wait_for_image,
            WaitForImageRequest {
                digest: digest.to_owned(),
                time_limit_seconds: seconds,
            }
        )
    }

    /// The operation as it stands and with every change until it has ended, whatever the link does meanwhile. What its
    /// programs say comes with it, each byte once. Ends with an error only when the host says that asking again is no use.
    pub fn watch(&self, id: &str) -> impl Stream<Item = Result<Operation, Problem>> + Send + Unpin + use<> {
        let (sender, mut receiver) = mpsc::channel(16);
        let (client, id) = (self.clone(), id.to_owned());
        tokio::spawn(async move {
            let gone = sender.clone();
            tokio::select! {
                () = client.follow(&id, &sender) => {}
                () = gone.closed() => {}
            }
        });
        futures::stream::poll_fn(move |context| receiver.poll_recv(context))
    }

    async fn follow(&self, id: &str, to: &mpsc::Sender<Result<Operation, Problem>>) {
        let mut seen = WatchProgress::default();
        let mut wait = BACKOFF.0;
        loop {
            let problem = match self.follow_once(id, to, &mut seen, &mut wait).await {
                Ok(()) => return,
                Err(problem) => problem,
            };
            if matches!(problem.class, Class::Terminal | Class::Denied) {
                let _ = to.send(Err(problem)).await;
                return;
            }
            tracing::debug!(host = %self.host, id, "the watch is made again: {problem}");
            *self.channel.lock() = None;
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    /// `Ok` when the operation has ended, or nobody listens any more.
    async fn follow_once(
        &self,
        id: &str,
        to: &mpsc::Sender<Result<Operation, Problem>>,
        seen: &mut WatchProgress,
        wait: &mut Duration,
    ) -> Result<(), Problem> {
        let request = WatchOperationRequest {
            operation_id: id.to_owned(),
            output_from: seen.output,
        };
        let from_status = |status: Status| Problem::from_status(&status);
        let mut stream = self
            .client()
            .await?
            .watch_operation(request)
            .await
            .map_err(from_status)?
            .into_inner();
        while let Some(operation) = stream.message().await.map_err(from_status)? {
            *wait = BACKOFF.0;
            let ended = has_ended(&operation);
            // After a reconnect the host begins with what was seen already.
            if !seen.is_new(&operation) {
                if ended {
                    return Ok(());
                }
                continue;
            }
            if to.send(Ok(operation)).await.is_err() || ended {
                return Ok(());
            }
        }
        Err(Problem::new(
            Class::Transient,
            "WatchEnded",
            "the watch ended before the operation",
        ))
    }
}
