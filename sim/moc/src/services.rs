//! The services of a cloud agent over its world, and requests led to them.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Request, Response};
use prost::Message;
use slipway_moc::wire::compute::gallery_image_agent_server::{GalleryImageAgent, GalleryImageAgentServer};
use slipway_moc::wire::compute::virtual_machine_agent_server::{
    VirtualMachineAgent, VirtualMachineAgentServer,
};
use slipway_moc::wire::compute::{
    GalleryImageRequest, GalleryImageResponse, InstanceView, RunCommandRequest, RunCommandResponse,
    VirtualMachine, VirtualMachineOperationRequest, VirtualMachineRequest, VirtualMachineResponse,
};
use slipway_moc::wire::storage::virtual_hard_disk_agent_server::{
    VirtualHardDiskAgent, VirtualHardDiskAgentServer,
};
use slipway_moc::wire::storage::{VirtualHardDiskRequest, VirtualHardDiskResponse};
use slipway_moc::wire::{ExecutionState, Flag, Operation};
use slipway_moc::{Code, Transport};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;

use crate::world::{Moc, Refused};

type Answer<T> = Result<tonic::Response<T>, Status>;

fn status((code, message): Refused) -> Status {
    slipway_moc::refusal(code, &message)
}

const YES: Flag = Flag { value: true };

fn one<T>(mut several: Vec<T>) -> Result<T, Status> {
    match (several.pop(), several.is_empty()) {
        (Some(one), true) => Ok(one),
        _ => Err(status((
            Code::InvalidInput,
            "exactly one is served here".to_owned(),
        ))),
    }
}

fn not_served<T>() -> Result<T, Status> {
    Err(status((
        Code::NotSupported,
        "an operation that is not served here".to_owned(),
    )))
}

#[async_trait]
impl VirtualMachineAgent for Moc {
    async fn invoke(&self, request: tonic::Request<VirtualMachineRequest>) -> Answer<VirtualMachineResponse> {
        self.called("VirtualMachine.Invoke");
        let request = request.into_inner();
        let operation = request.operation();
        let machine = one(request.virtual_machines)?;
        let found = match operation {
            Operation::Get => {
                let asked = VirtualMachine::decode(machine.as_slice())
                    .map_err(|_| Status::internal("no virtual machine"))?;
                self.machine(&asked.group_name, &asked.name)
            }
            Operation::Post => self.write_machine(&machine),
            Operation::Delete => return not_served(),
        };
        Ok(tonic::Response::new(VirtualMachineResponse {
            virtual_machines: vec![found.map_err(status)?],
            result: Some(YES),
            error: String::new(),
        }))
    }

    async fn operate(
        &self,
        request: tonic::Request<VirtualMachineOperationRequest>,
    ) -> Answer<VirtualMachineResponse> {
        self.called("VirtualMachine.Operate");
        let request = request.into_inner();
        let operation = request.operation();
        let machine = one(request.virtual_machines)?;
        let machine = Self::operate(self, &machine, operation).await.map_err(status)?;
        Ok(tonic::Response::new(VirtualMachineResponse {
            virtual_machines: vec![machine],
            result: Some(YES),
            error: String::new(),
        }))
    }

    async fn run_command(&self, request: tonic::Request<RunCommandRequest>) -> Answer<RunCommandResponse> {
        self.called("VirtualMachine.RunCommand");
        let request = request.into_inner();
        let script = request.source.unwrap_or_default().script;
        let ran = Self::run_command(self, &request.virtual_machine, &script).await;
        let (exit_code, output, error) = ran.map_err(status)?;
        let state = if exit_code == 0 {
            ExecutionState::Succeeded
        } else {
            ExecutionState::Failed
        };
        Ok(tonic::Response::new(RunCommandResponse {
            virtual_machine: request.virtual_machine,
            instance_view: Some(InstanceView {
                execution_state: state.into(),
                exit_code,
                output,
                error,
            }),
        }))
    }
}

#[async_trait]
impl GalleryImageAgent for Moc {
    async fn invoke(&self, request: tonic::Request<GalleryImageRequest>) -> Answer<GalleryImageResponse> {
        self.called("GalleryImage.Invoke");
        let request = request.into_inner();
        let operation = request.operation();
        let image = one(request.gallery_images)?;
        let (location, name) = (image.location_name.clone(), image.name.clone());
        let images = match operation {
            Operation::Get => vec![self.image(&location, &name).map_err(status)?],
            Operation::Post => {
                self.write_image(image).map_err(status)?;
                vec![self.image(&location, &name).map_err(status)?]
            }
            Operation::Delete => {
                self.delete_image(&location, &name).map_err(status)?;
                Vec::new()
            }
        };
        Ok(tonic::Response::new(GalleryImageResponse {
            gallery_images: images,
            result: Some(YES),
            error: String::new(),
        }))
    }
}

#[async_trait]
impl VirtualHardDiskAgent for Moc {
    async fn invoke(
        &self,
        request: tonic::Request<VirtualHardDiskRequest>,
    ) -> Answer<VirtualHardDiskResponse> {
        self.called("VirtualHardDisk.Invoke");
        let request = request.into_inner();
        let operation = request.operation();
        let disk = one(request.virtual_hard_disks)?;
        let (group, name) = (disk.group_name.clone(), disk.name.clone());
        let disks = match operation {
            Operation::Get => vec![self.disk(&group, &name).map_err(status)?],
            Operation::Post => {
                self.write_disk(disk).map_err(status)?;
                vec![self.disk(&group, &name).map_err(status)?]
            }
            Operation::Delete => {
                self.delete_disk(&group, &name).map_err(status)?;
                Vec::new()
            }
        };
        Ok(tonic::Response::new(VirtualHardDiskResponse {
            virtual_hard_disks: disks,
            result: Some(YES),
            error: String::new(),
        }))
    }
}

impl Moc {
    /// One request of somebody who may call.
    pub(crate) async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        let service = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let this = Arc::new(self.clone());
        let answered = match service {
            "moc.cloudagent.compute.VirtualMachineAgent" => {
                VirtualMachineAgentServer::from_arc(this).call(request).await
            }
            "moc.cloudagent.compute.GalleryImageAgent" => {
                GalleryImageAgentServer::from_arc(this).call(request).await
            }
            "moc.cloudagent.storage.VirtualHardDiskAgent" => {
                VirtualHardDiskAgentServer::from_arc(this).call(request).await
            }
            _ => Ok(Status::unimplemented("this is not served here").into_http()),
        };
        match answered {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// Requests without a network between.
    pub fn transport(&self) -> Transport {
        let moc = self.clone();
        Transport::new(move |request| {
            let moc = moc.clone();
            async move { Ok(moc.answer(request).await) }
        })
    }
}
