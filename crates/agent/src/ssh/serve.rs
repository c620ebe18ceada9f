//! The helper on a node: answers requests for one partition on standard input and output, and ends with its input.

use std::io::{self, Read, Write};

use slipway_slots::chunking::Chunker;

use super::protocol::{Answer, GREETING, MOST_CUTS, Request, write_answer};
use crate::target::SlotTarget;

/// Longer than the chunks of any image; bounds the memory of the helper.
const LONGEST_CHUNK: u32 = 4 << 20;

/// Serves until the other side closes. An error is one of the wire; errors of the partition are answers.
pub fn serve(target: &mut dyn SlotTarget, from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    to.write_all(GREETING)?;
    to.flush()?;
    let mut failed: Option<String> = None;
    while let Some(request) = Request::read(from)? {
        if let Request::Write { offset, bytes } = &request {
            if failed.is_none() {
                failed = target
                    .write_at(*offset, bytes)
                    .err()
                    .map(|error| error.to_string());
            }
            continue;
        }
        let answer = match failed.take() {
            Some(reason) => Err(format!("an earlier write: {reason}")),
            None => answer(target, &request),
        };
        write_answer(to, &answer)?;
    }
    Ok(())
}

fn answer(target: &mut dyn SlotTarget, request: &Request) -> Answer {
    let told = |error: io::Error| error.to_string();
    match request {
        Request::Describe => {
            let mut bytes = target.size().to_be_bytes().to_vec();
            bytes.extend(target.describe().bytes().take(1000));
            Ok(bytes)
        }
        Request::InUse => Ok(target.in_use().map_err(told)?.unwrap_or_default().into_bytes()),
        Request::Read {
            offset,
            length,
            through,
        } => {
            let mut bytes = vec![0; *length as usize];
            target.read_at(*offset, &mut bytes, *through).map_err(told)?;
            Ok(bytes)
        }
        Request::Flush => target.flush().map(|()| Vec::new()).map_err(told),
        Request::Digest {
            offset,
            length,
            through,
        } => Ok(target
            .digest(*offset, *length, *through)
            .map_err(told)?
            .0
            .to_vec()),
        Request::Digests {
            offset,
            lengths,
            through,
        } => {
            if let Some(long) = lengths.iter().find(|length| **length > LONGEST_CHUNK) {
                return Err(format!("a chunk of {long} bytes is too long"));
            }
            let digests = target.digests(*offset, lengths, *through).map_err(told)?;
            Ok(digests.iter().flat_map(|digest| digest.0).collect())
        }
        Request::Cut {
            offset,
            length,
            average,
        } => {
            let chunker =
                Chunker::new(*average).ok_or_else(|| format!("chunks of {average} bytes are none"))?;
            let cuts = target.cut(*offset, *length, chunker, MOST_CUTS).map_err(told)?;
            Ok(cuts
                .iter()
                .flat_map(|cut| cut.length.to_be_bytes().into_iter().chain(cut.digest.0))
                .collect())
        }
        Request::Write { .. } => Ok(Vec::new()),
    }
}
