//! A helper on a node, and the wire to it: `slipway-agent slot serve` runs there, over SSH, beside a partition or a directory.

use std::io;

use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, client::Msg};
use tokio::runtime::{Builder, Runtime};

use super::{
    Error, Node, Session,
    protocol::{GREETING, Request, answer_length},
};

/// Owns its connection. A connection that is lost fails the call; whoever writes starts again and finds by digest what is
/// there.
pub struct Helper {
    runtime: Runtime,
    wire: Wire,
    /// Keeps the connection.
    _session: Session,
    /// The node's, for messages.
    node: String,
    /// What the helper calls what it serves, and how large that is.
    pub name: String,
    pub size: u64,
}

struct Wire {
    to: ChannelWriteHalf<Msg>,
    from: ChannelReadHalf,
    /// Received and not yet used.
    received: Vec<u8>,
    /// What the helper said on standard error, for the message when it ends.
    complaints: Vec<u8>,
}

impl Helper {
    /// `program` is the agent on the node, `path` what it serves there.
    pub fn start(node: &Node, program: &str, path: &str) -> Result<Self, Error> {
        let failed = |doing, reason: String| Error::Session {
            node: node.name(),
            doing,
            reason,
        };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed("starting a runtime", error.to_string()))?;
        let opened = runtime.block_on(async {
            let session = node.connect().await?;
            let channel = session
                .handle
                .channel_open_session()
                .await
                .map_err(session.failed("opening a channel"))?;
            let quoted = |word: &str| format!("'{}'", word.replace('\'', "'\\''"));
            let line = format!("exec {} slot serve {}", quoted(program), quoted(path));
            channel
                .exec(true, line)
                .await
                .map_err(session.failed("starting the helper"))?;
            let (from, to) = channel.split();
            let mut wire = Wire {
                to,
                from,
                received: Vec::new(),
                complaints: Vec::new(),
            };
            let greeting = wire.take(GREETING.len()).await;
            let greeting = greeting.map_err(|error| failed("starting the helper", error.to_string()))?;
            if greeting != GREETING {
                return Err(failed(
                    "starting the helper",
                    "it is of another version; install the same slipway-agent on both".to_owned(),
                ));
            }
            let described = wire.ask(&Request::Describe, 4096).await;
            let described = described.map_err(|error| failed("asking what it serves", error.to_string()))?;
            Ok((session, wire, described))
        });
        let (session, wire, described) = opened?;
        let Some((size, name)) = described.split_first_chunk::<8>() else {
            return Err(failed(
                "asking what it serves",
                "the answer is too short".to_owned(),
            ));
        };
        Ok(Self {
            name: format!("{}:{}", node.name(), String::from_utf8_lossy(name)),
            size: u64::from_be_bytes(*size),
            node: node.name(),
            runtime,
            wire,
            _session: session,
        })
    }

    pub fn ask(&mut self, request: &Request, longest: u64) -> io::Result<Vec<u8>> {
        let answer = self.runtime.block_on(self.wire.ask(request, longest));
        answer.map_err(|error| self.on_node(&error))
    }

    /// For what is not answered.
    pub fn send(&mut self, request: &Request) -> io::Result<()> {
        let sent = self.runtime.block_on(self.wire.send(request));
        sent.map_err(|error| self.on_node(&error))
    }

    fn on_node(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.node))
    }
}

impl Wire {
    async fn send(&mut self, request: &Request) -> io::Result<()> {
        self.to
            .data_bytes(request.encode())
            .await
            .map_err(io::Error::other)
    }

    async fn ask(&mut self, request: &Request, longest: u64) -> io::Result<Vec<u8>> {
        self.send(request).await?;
        let head = self.take(5).await?;
        let (good, length) = answer_length(head.try_into().expect("five bytes"), longest)?;
        let bytes = self.take(length).await?;
        if good {
            Ok(bytes)
        } else {
            Err(io::Error::other(String::from_utf8_lossy(&bytes).into_owned()))
        }
    }

    async fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.received.len() < length {
            match self.from.wait().await {
                Some(ChannelMsg::Data { data }) => self.received.extend_from_slice(&data),
                Some(ChannelMsg::ExtendedData { data, .. }) => {
                    let room = 1000_usize.saturating_sub(self.complaints.len());
                    self.complaints.extend(data.iter().take(room));
                }
                Some(ChannelMsg::Eof | ChannelMsg::Close | ChannelMsg::Failure) | None => {
                    let said = String::from_utf8_lossy(&self.complaints).trim().to_owned();
                    return Err(io::Error::new(
                        io::ErrorKind::ConnectionAborted,
                        if said.is_empty() {
                            "the helper on the node ended".to_owned()
                        } else {
                            format!("the helper on the node ended: {said}")
                        },
                    ));
                }
                Some(_) => {}
            }
        }
        let rest = self.received.split_off(length);
        Ok(std::mem::replace(&mut self.received, rest))
    }
}
