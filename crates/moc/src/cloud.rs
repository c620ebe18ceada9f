//! Typed calls to a cloud agent, over any transport. Nothing is tried twice here: who calls decides that.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response, Uri};
use tonic::body::Body;
use tower::Service;

use crate::{
    error::{Code, MocError},
    wire::{
        Flag, Operation, PowerOperation,
        compute::{
            GalleryImage, GalleryImageRequest, InstanceView, RunCommandRequest, ScriptSource, VirtualMachine,
            VirtualMachineOperationRequest, VirtualMachineRequest,
            gallery_image_agent_client::GalleryImageAgentClient,
            virtual_machine_agent_client::VirtualMachineAgentClient,
        },
        storage::{
            VirtualHardDisk, VirtualHardDiskRequest,
            virtual_hard_disk_agent_client::VirtualHardDiskAgentClient,
        },
    },
};

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Sent = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

/// A read is answered within this time.
const READ_WITHIN: Duration = Duration::from_secs(30);
/// A command that is run in a guest only begins something there, or asks.
const COMMAND_WITHIN: Duration = Duration::from_mins(2);
/// What copies images takes long. MOC's own limit for a call.
const WORK_WITHIN: Duration = Duration::from_mins(10);

/// Where requests go.
#[derive(Clone)]
pub struct Transport(Arc<dyn Fn(Request<Body>) -> Sent + Send + Sync>);

impl Transport {
    pub fn new<F>(send: impl Fn(Request<Body>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Response<Body>, BoxError>> + Send + 'static,
    {
        Self(Arc::new(move |request| Box::pin(send(request))))
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transport")
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Sent;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Sent {
        (self.0)(request)
    }
}

/// A cloud agent.
#[derive(Clone, Debug)]
pub struct Cloud {
    transport: Transport,
    origin: Uri,
}

/// Ends with an error where the time is over.
async fn within<T>(
    limit: Duration,
    doing: &str,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, MocError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(MocError::of_status(doing, &status)),
        Err(_) => Err(MocError::unreachable(
            doing,
            &format!("no answer within {} seconds", limit.as_secs()),
        )),
    }
}

fn judged(doing: &str, result: Option<&Flag>, error: &str) -> Result<(), MocError> {
    if !error.is_empty() || result.is_some_and(|result| !result.value) {
        return Err(MocError::told(doing, error));
    }
    Ok(())
}

/// What is not there is `None`, however that is said.
fn found<T>(read: Result<Vec<T>, MocError>) -> Result<Option<T>, MocError> {
    match read {
        Ok(found) => Ok(found.into_iter().next()),
        Err(error) if error.is(Code::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Cloud {
    /// `origin` is what stands in requests: `https://NAME`.
    pub fn new(transport: Transport, origin: Uri) -> Self {
        Self { transport, origin }
    }

    fn machines(&self) -> VirtualMachineAgentClient<Transport> {
        VirtualMachineAgentClient::with_origin(self.transport.clone(), self.origin.clone())
    }

    async fn invoke_machine(
        &self,
        doing: &str,
        limit: Duration,
        machine: Vec<u8>,
        operation: Operation,
    ) -> Result<Vec<Vec<u8>>, MocError> {
        let request = VirtualMachineRequest {
            virtual_machines: vec![machine],
            operation: operation.into(),
        };
        let answer = within(limit, doing, self.machines().invoke(request)).await?;
        judged(doing, answer.result.as_ref(), &answer.error)?;
        Ok(answer.virtual_machines)
    }

    /// As its bytes are: what is written back keeps what is not known here.
    pub async fn machine(&self, group: &str, name: &str) -> Result<Option<Vec<u8>>, MocError> {
        let doing = format!("reading virtual machine {group}/{name}");
        let machine = VirtualMachine {
            name: name.to_owned(),
            group_name: group.to_owned(),
            ..VirtualMachine::default()
        };
        let machine = prost::Message::encode_to_vec(&machine);
        found(
            self.invoke_machine(&doing, READ_WITHIN, machine, Operation::Get)
                .await,
        )
    }

    /// Refused where somebody has changed it since it was read.
    pub async fn write_machine(&self, machine: Vec<u8>) -> Result<(), MocError> {
        let doing = "writing the virtual machine";
        self.invoke_machine(doing, WORK_WITHIN, machine, Operation::Post)
            .await?;
        Ok(())
    }

    pub async fn operate(&self, machine: Vec<u8>, operation: PowerOperation) -> Result<(), MocError> {
        let doing = match operation {
            PowerOperation::Start => "starting the virtual machine",
            PowerOperation::StopGraceful => "shutting down the virtual machine",
            _ => "stopping the virtual machine",
        };
        let request = VirtualMachineOperationRequest {
            virtual_machines: vec![machine],
            operation: operation.into(),
        };
        let answer = within(WORK_WITHIN, doing, self.machines().operate(request)).await?;
        judged(doing, answer.result.as_ref(), &answer.error)
    }

    pub async fn run_command(&self, machine: Vec<u8>, script: String) -> Result<InstanceView, MocError> {
        let doing = "running a command in the guest";
        let request = RunCommandRequest {
            virtual_machine: machine,
            source: Some(ScriptSource { script }),
        };
        let answer = within(COMMAND_WITHIN, doing, self.machines().run_command(request)).await?;
        answer
            .instance_view
            .ok_or_else(|| MocError::told(doing, "MOC says nothing of the command"))
    }

    async fn invoke_image(
        &self,
        doing: &str,
        limit: Duration,
        image: GalleryImage,
        operation: Operation,
    ) -> Result<Vec<GalleryImage>, MocError> {
        let request = GalleryImageRequest {
            gallery_images: vec![image],
            operation: operation.into(),
        };
        let mut client = GalleryImageAgentClient::with_origin(self.transport.clone(), self.origin.clone());
        let answer = within(limit, doing, client.invoke(request)).await?;
        judged(doing, answer.result.as_ref(), &answer.error)?;
        Ok(answer.gallery_images)
    }

    pub async fn image(&self, location: &str, name: &str) -> Result<Option<GalleryImage>, MocError> {
        let doing = format!("reading gallery image {name}");
        let image = GalleryImage {
            name: name.to_owned(),
            location_name: location.to_owned(),
            ..GalleryImage::default()
        };
        found(
            self.invoke_image(&doing, READ_WITHIN, image, Operation::Get)
                .await,
        )
    }

    pub async fn create_image(&self, image: GalleryImage) -> Result<(), MocError> {
        let doing = format!("importing gallery image {}", image.name);
        self.invoke_image(&doing, WORK_WITHIN, image, Operation::Post)
            .await?;
        Ok(())
    }

    pub async fn delete_image(&self, image: GalleryImage) -> Result<(), MocError> {
        let doing = format!("deleting gallery image {}", image.name);
        let deleted = self
            .invoke_image(&doing, WORK_WITHIN, image, Operation::Delete)
            .await;
        found(deleted).map(|_| ())
    }

    async fn invoke_disk(
        &self,
        doing: &str,
        limit: Duration,
        disk: VirtualHardDisk,
        operation: Operation,
    ) -> Result<Vec<VirtualHardDisk>, MocError> {
        let request = VirtualHardDiskRequest {
            virtual_hard_disks: vec![disk],
            operation: operation.into(),
        };
        let mut client = VirtualHardDiskAgentClient::with_origin(self.transport.clone(), self.origin.clone());
        let answer = within(limit, doing, client.invoke(request)).await?;
        judged(doing, answer.result.as_ref(), &answer.error)?;
        Ok(answer.virtual_hard_disks)
    }

    pub async fn disk(&self, group: &str, name: &str) -> Result<Option<VirtualHardDisk>, MocError> {
        let doing = format!("reading disk {group}/{name}");
        let disk = VirtualHardDisk {
            name: name.to_owned(),
            group_name: group.to_owned(),
            ..VirtualHardDisk::default()
        };
        found(self.invoke_disk(&doing, READ_WITHIN, disk, Operation::Get).await)
    }

    pub async fn create_disk(&self, disk: VirtualHardDisk) -> Result<(), MocError> {
        let doing = format!("making disk {}", disk.name);
        self.invoke_disk(&doing, WORK_WITHIN, disk, Operation::Post)
            .await?;
        Ok(())
    }

    pub async fn delete_disk(&self, disk: VirtualHardDisk) -> Result<(), MocError> {
        let doing = format!("deleting disk {}", disk.name);
        let deleted = self
            .invoke_disk(&doing, WORK_WITHIN, disk, Operation::Delete)
            .await;
        found(deleted).map(|_| ())
    }
}
