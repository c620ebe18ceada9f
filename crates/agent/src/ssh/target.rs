//! A partition of a node as a slot target.

use std::io;

use slipway_slots::Digest;
use slipway_slots::chunking::Chunker;

use super::{
    Error, Node,
    helper::Helper,
    protocol::{LONGEST, MOST_DIGESTS, Request},
};
use crate::target::{Cut, SlotTarget, Through};

pub struct RemoteTarget(Helper);

impl RemoteTarget {
    /// `helper` is the agent's program on the node, `device` the partition there.
    pub fn open(node: &Node, helper: &str, device: &str) -> Result<Self, Error> {
        Helper::start(node, helper, device).map(Self)
    }
}

impl SlotTarget for RemoteTarget {
    fn describe(&self) -> String {
        self.0.name.clone()
    }

    fn size(&self) -> u64 {
        self.0.size
    }

    fn in_use(&mut self) -> io::Result<Option<String>> {
        let said = self.0.ask(&Request::InUse, 4096)?;
        Ok((!said.is_empty()).then(|| String::from_utf8_lossy(&said).into_owned()))
    }

    fn read_at(&mut self, offset: u64, buffer: &mut [u8], through: Through) -> io::Result<()> {
        let mut at = offset;
        for piece in buffer.chunks_mut(LONGEST as usize) {
            let length = piece.len() as u64;
            let bytes = self.0.ask(
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
            self.0.send(&request)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.ask(&Request::Flush, 0).map(drop)
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
            let bytes = self.0.ask(&request, LONGEST)?;
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
        let bytes = self.0.ask(&request, LONGEST)?;
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
        let bytes = self.0.ask(&request, 32)?;
        Ok(Digest(bytes.try_into().map_err(|_| io::ErrorKind::InvalidData)?))
    }
}
