//! A partition of a node as a slot target: `slipway-agent slot serve` runs beside it, over SSH.

use std::io;

use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, client::Msg};
use slipway_slots::Digest;
use slipway_slots::chunking::Chunker;
use tokio::runtime::{Builder, Runtime};

use super::{
    Error, Node, Session,
    protocol::{GREETING, LONGEST, MOST_DIGESTS, Request, answer_length},
};
use crate::target::{Cut, SlotTarget, Through};

/// Owns its connection. A connection that is lost fails the call; whoever writes starts again and finds by digest what is
/// there.
pub struct RemoteTarget {
    runtime: Runtime,
    wire: Wire,
    /// Keeps the connection.
    _session: Session,
    name: String,
    size: u64,
}

struct Wire {
    to: ChannelWriteHalf<Msg>,
    from: ChannelReadHalf,
    /// Received and not yet used.
    received: Vec<u8>,
    /// What the helper said on standard error, for the message when it ends.
    complaints: Vec<u8>,
}

impl RemoteTarget {
    /// `helper` is the agent's program on the node, `device` the partition there.
    pub fn open(node: &Node, helper: &str, device: &str) -> Result<Self, Error> {
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
            let line = format!("exec {} slot serve {}", quoted(helper), quoted(device));
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
            let described =
                described.map_err(|error| failed("asking for the partition", error.to_string()))?;
            Ok((session, wire, described))
        });
        let (session, wire, described) = opened?;
        let Some((size, name)) = described.split_first_chunk::<8>() else {
            return Err(failed(
                "asking for the partition",
                "the answer is too short".to_owned(),
            ));
        };
        Ok(Self {
            name: format!("{}:{}", node.name(), String::from_utf8_lossy(name)),
            size: u64::from_be_bytes(*size),
            runtime,
            wire,
            _session: session,
        })
    }

    fn ask(&mut self, request: &Request, longest: u64) -> io::Result<Vec<u8>> {
        self.runtime.block_on(self.wire.ask(request, longest))
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

impl SlotTarget for RemoteTarget {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn in_use(&mut self) -> io::Result<Option<String>> {
        let said = self.ask(&Request::InUse, 4096)?;
        Ok((!said.is_empty()).then(|| String::from_utf8_lossy(&said).into_owned()))
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8], through: Through) -> io::Result<()> {
        let mut at = offset;
        for piece in buffer.chunks_mut(LONGEST as usize) {
            let length = piece.len() as u64;
            let bytes = self.ask(
                &Request::Read {
                    offset: at,
                    length,
                    through,
                },
                length,
            )?;
            if bytes.len() != piece.len() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            piece.copy_from_slice(&bytes);
            at += length;
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = offset;
        for piece in bytes.chunks(LONGEST as usize) {
            let request = Request::Write {
                offset: at,
                bytes: piece.to_vec(),
            };
            self.runtime.block_on(self.wire.send(&request))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ask(&Request::Flush, 0).map(drop)
    }

    fn digests(&mut self, offset: u64, lengths: &[u32], through: Through) -> io::Result<Vec<Digest>> {
        let mut digests = Vec::with_capacity(lengths.len());
        let mut at = offset;
        for lengths in lengths.chunks(MOST_DIGESTS) {
            let request = Request::Digests {
                offset: at,
                lengths: lengths.to_vec(),
                through,
            };
            let bytes = self.ask(&request, LONGEST)?;
            let (found, rest) = bytes.as_chunks::<32>();
            if !rest.is_empty() || found.len() != lengths.len() {
                return Err(io::Error::other(
                    "the helper on the node answers with another number of digests",
                ));
            }
            digests.extend(found.iter().map(|bytes| Digest(*bytes)));
            at += lengths.iter().map(|length| u64::from(*length)).sum::<u64>();
        }
        Ok(digests)
    }

    fn cut(&mut self, offset: u64, length: u64, chunker: Chunker, count: usize) -> io::Result<Vec<Cut>> {
        let request = Request::Cut {
            offset,
            length,
            average: chunker.average(),
        };
        let bytes = self.ask(&request, LONGEST)?;
        let (found, rest) = bytes.as_chunks::<36>();
        let mut cuts: Vec<_> = found
            .iter()
            .map(|bytes| {
                let (length, digest) = bytes.split_at(4);
                Cut {
                    length: u32::from_be_bytes(length.try_into().expect("four bytes")),
                    digest: Digest(digest.try_into().expect("32 bytes")),
                }
            })
            .collect();
        let cut: u64 = cuts.iter().map(|cut| u64::from(cut.length)).sum();
        if !rest.is_empty()
            || cut > length
            || (cut == 0 && length > 0)
            || cuts.iter().any(|cut| cut.length == 0)
        {
            return Err(io::Error::other(
                "the helper on the node cuts where there is nothing",
            ));
        }
        cuts.truncate(count);
        Ok(cuts)
    }

    fn digest(&mut self, offset: u64, length: u64, through: Through) -> io::Result<Digest> {
        let request = Request::Digest {
            offset,
            length,
            through,
        };
        let bytes = self.ask(&request, 32)?;
        Ok(Digest(bytes.try_into().map_err(|_| io::ErrorKind::InvalidData)?))
    }
}
