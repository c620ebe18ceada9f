//! The helper on a node: answers requests for one partition, or for one directory of a boot store, on standard input and
//! output, and ends with its input.

use std::io::{self, Read, Write};

use slipway_slots::chunking::Chunker;

use slipway_slots::boot::{Contents, Layout, Step};

use super::protocol::{Answer, GREETING, LONGEST, MOST_CUTS, Request, encode_files, write_answer};
use crate::boot_store::{Directory, Medium};
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
        Request::Files { .. }
        | Request::WriteFile { .. }
        | Request::RenameFile { .. }
        | Request::RemoveFile { .. } => Err("this is a partition and has no files".to_owned()),
    }
}

/// Serves the files of a boot store until the other side closes.
pub fn serve_directory(
    directory: &mut Directory,
    from: &mut impl Read,
    to: &mut impl Write,
) -> io::Result<()> {
    to.write_all(GREETING)?;
    to.flush()?;
    while let Some(request) = Request::read(from)? {
        write_answer(to, &answer_for_directory(directory, request))?;
    }
    Ok(())
}

fn answer_for_directory(directory: &mut Directory, request: Request) -> Answer {
    let told = |error: io::Error| error.to_string();
    let step = match request {
        Request::Describe => {
            let mut bytes = 0_u64.to_be_bytes().to_vec();
            bytes.extend(directory.describe().bytes().take(1000));
            return Ok(bytes);
        }
        Request::Files { prefix } => {
            let contents = directory.load(&Layout::Files { prefix }).map_err(told)?;
            let Contents::Files(files) = contents else {
                return Err("it has no files".to_owned());
            };
            let encoded = encode_files(&files);
            return if encoded.len() as u64 > LONGEST {
                Err("its files are too large for a boot store".to_owned())
            } else {
                Ok(encoded)
            };
        }
        Request::Flush => Step::Flush,
        Request::WriteFile { name, bytes } => Step::WriteFile {
            name: inside(name)?,
            bytes,
        },
        Request::RenameFile { from, to } => Step::Rename {
            from: inside(from)?,
            to: inside(to)?,
        },
        Request::RemoveFile { name } => Step::Remove { name: inside(name)? },
        _ => return Err("this is a directory and no partition".to_owned()),
    };
    directory.apply(&step).map(|()| Vec::new()).map_err(told)
}

/// The name of a file in the directory itself.
fn inside(name: String) -> Result<String, String> {
    if name.is_empty() || name.contains(['/', '\0']) || name == "." || name == ".." {
        return Err(format!("{name:?} is no file of the directory"));
    }
    Ok(name)
}
