//! Calls on the machine itself, over a socket that only root can open: how a guest of a cloud is reached that has no other way in than
//! running commands (`slipway-agent call`). One call a connection: the request to its end, then the answer to its end.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use prost::Message;
use slipway_agent_api::proto::{
    ListImagesResponse, ListOperationsResponse, LocalAnswer, LocalCall, Operation, local_answer::Answer,
    local_call::Call,
};
use slipway_agent_api::{Class, Problem};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::Host;
use super::api::unknown;
use super::shown::withhold_output;

/// Bootstrap data and what is around it.
const LARGEST_CALL: u64 = 4 << 20;
/// What goes back through a cloud is small: of a program's output the end, of operations the latest.
const OUTPUT_SHOWN: usize = 1 << 10;
const OPERATIONS_SHOWN: usize = 40;

/// Answers for ever.
pub async fn serve(listener: UnixListener, host: Arc<Host>) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        let host = host.clone();
        tokio::spawn(async move {
            if let Err(error) = one(stream, &host).await {
                tracing::debug!("a local call ended: {error}");
            }
        });
    }
}

/// Listens where nobody else gets in, at no moment: the socket is made in a folder of its own and moved over what the last agent
/// left. Two agents never run on one state directory.
pub fn bind(socket: &Path) -> io::Result<UnixListener> {
    let private = socket.with_extension("new");
    match std::fs::remove_dir_all(&private) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    DirBuilder::new().mode(0o700).create(&private)?;
    let made = private.join("s");
    let listener = UnixListener::bind(&made)?;
    std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&made, socket)?;
    std::fs::remove_dir(&private)?;
    Ok(listener)
}

async fn one(mut stream: UnixStream, host: &Arc<Host>) -> io::Result<()> {
    let mut bytes = Vec::new();
    (&mut stream).take(LARGEST_CALL).read_to_end(&mut bytes).await?;
    let answer = match LocalCall::decode(bytes.as_slice()) {
        Ok(call) => host.answer(call).await,
        Err(_) => failed(&Problem::new(
            Class::Terminal,
            "InvalidRequest",
            "the call cannot be read",
        )),
    };
    stream.write_all(&answer.encode_to_vec()).await?;
    stream.shutdown().await
}

/// Asks the agent of this machine.
pub async fn ask(socket: &Path, call: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket).await?;
    stream.write_all(call).await?;
    stream.shutdown().await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}

fn failed(problem: &Problem) -> LocalAnswer {
    LocalAnswer {
        answer: Some(Answer::Problem(problem.to_proto())),
    }
}

fn shortened(mut operation: Operation) -> Operation {
    operation.output = None;
    if let Some(command) = &mut operation.command
        && command.output.len() > OUTPUT_SHOWN
    {
        let cut = command.output.len() - OUTPUT_SHOWN;
        command.output.drain(..cut);
        command.truncated = true;
    }
    operation
}

impl Host {
    /// One local call.
    pub async fn answer(self: &Arc<Self>, call: LocalCall) -> LocalAnswer {
        let answered = match call.call {
            Some(Call::GetHost(_)) => Ok(Answer::Host(self.inventory())),
            Some(Call::ListImages(_)) => Ok(Answer::Images(ListImagesResponse {
                images: self.shown_images(),
                r#use: None,
            })),
            Some(Call::Start(order)) => self.start(&order).map(shortened).map(Answer::Operation),
            Some(Call::CancelOperation(request)) => self
                .cancel(&request.operation_id, request.generation)
                .await
                .map(shortened)
                .map(Answer::Operation),
            Some(Call::GetOperation(request)) => self
                .operations
                .get(&request.operation_id)
                .map(shortened)
                .map(Answer::Operation)
                .ok_or_else(|| unknown(&request.operation_id)),
            Some(Call::ListOperations(_)) => {
                let mut operations = self.operations.list();
                operations.sort_by_key(|operation| operation.accepted_at);
                let latest = operations.len().saturating_sub(OPERATIONS_SHOWN);
                Ok(Answer::Operations(ListOperationsResponse {
                    operations: operations.drain(latest..).map(withhold_output).collect(),
                }))
            }
            None => Err(Problem::new(
                Class::Terminal,
                "InvalidRequest",
                "the call is of a later version than this agent's: update the agent",
            )),
        };
        match answered {
            Ok(answer) => LocalAnswer { answer: Some(answer) },
            Err(problem) => failed(&problem),
        }
    }
}
