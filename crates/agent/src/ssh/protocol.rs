//! What goes over the wire between a target on a node and the helper beside its partition, or beside the directory of its
//! boot store: frames as bytes in and values out.
//!
//! A request is one byte for what, eight for the offset, eight for the length and four for the chunk size, all big endian,
//! then the bytes of a write, the lengths of chunks, or the name of a file and its bytes; then the offset is the name's length. An answer is one byte for how, four for its length, then its bytes. A write is not answered:
//! what went wrong with it is said at the next request that is.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use crate::target::Through;

/// The longest piece that is moved at once; longer ones are cut.
pub const LONGEST: u64 = 1 << 20;
/// So many digests fit into one answer.
pub const MOST_DIGESTS: usize = LONGEST as usize / 32;
/// So many chunks do, with a length and a digest each.
pub const MOST_CUTS: usize = LONGEST as usize / 36;
const REQUEST: usize = 1 + 8 + 8 + 4;
/// Says that both sides speak this version; the helper sends it first.
pub const GREETING: &[u8; 16] = b"slipway slot 3\n\0";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The partition's size, then its name.
    Describe,
    InUse,
    Read {
        offset: u64,
        length: u64,
        through: Through,
    },
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    Flush,
    /// One digest of everything.
    Digest {
        offset: u64,
        length: u64,
        through: Through,
    },
    /// Digests of consecutive chunks of these lengths.
    Digests {
        offset: u64,
        lengths: Vec<u32>,
        through: Through,
    },
    /// The first chunks by content, as many as fit into an answer.
    Cut {
        offset: u64,
        length: u64,
        average: u32,
    },
    /// The files of a directory whose names begin so, as [`encode_files`] writes them.
    Files {
        prefix: String,
    },
    WriteFile {
        name: String,
        bytes: Vec<u8>,
    },
    RenameFile {
        from: String,
        to: String,
    },
    RemoveFile {
        name: String,
    },
}

/// Each file as the length of its name, the length of its bytes, the name and the bytes.
pub fn encode_files(files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut encoded = Vec::new();
    for (name, bytes) in files {
        encoded.extend((name.len() as u32).to_be_bytes());
        encoded.extend((bytes.len() as u32).to_be_bytes());
        encoded.extend(name.as_bytes());
        encoded.extend(bytes);
    }
    encoded
}

pub fn decode_files(mut encoded: &[u8]) -> Option<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    while !encoded.is_empty() {
        let (name_length, rest) = encoded.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*name_length) as usize)?;
        let (bytes, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        files.insert(String::from_utf8(name.to_vec()).ok()?, bytes.to_vec());
        encoded = rest;
    }
    Some(files)
}

fn code(cached: u8, through: Through) -> u8 {
    match through {
        Through::Cache => cached,
        Through::Medium => cached + 1,
    }
}

fn through(code: u8, cached: u8) -> Through {
    if code == cached {
        Through::Cache
    } else {
        Through::Medium
    }
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        let listed: Vec<u8>;
        let (what, offset, length, chunk, bytes): (u8, u64, u64, u32, &[u8]) = match self {
            Self::Describe => (1, 0, 0, 0, &[]),
            Self::InUse => (2, 0, 0, 0, &[]),
            Self::Read {
                offset,
                length,
                through,
            } => (code(3, *through), *offset, *length, 0, &[]),
            Self::Write { offset, bytes } => (5, *offset, bytes.len() as u64, 0, bytes),
            Self::Flush => (6, 0, 0, 0, &[]),
            Self::Digest {
                offset,
                length,
                through,
            } => (code(7, *through), *offset, *length, 0, &[]),
            Self::Digests {
                offset,
                lengths,
                through,
            } => {
                listed = lengths.iter().flat_map(|length| length.to_be_bytes()).collect();
                (code(9, *through), *offset, listed.len() as u64, 0, &listed)
            }
            Self::Cut {
                offset,
                length,
                average,
            } => (11, *offset, *length, *average, &[]),
            Self::Files { prefix } => (12, prefix.len() as u64, prefix.len() as u64, 0, prefix.as_bytes()),
            Self::WriteFile { name, bytes } => {
                listed = [name.as_bytes(), bytes].concat();
                (13, name.len() as u64, listed.len() as u64, 0, &listed)
            }
            Self::RenameFile { from, to } => {
                listed = [from.as_bytes(), to.as_bytes()].concat();
                (14, from.len() as u64, listed.len() as u64, 0, &listed)
            }
            Self::RemoveFile { name } => (15, name.len() as u64, name.len() as u64, 0, name.as_bytes()),
        };
        let mut frame = Vec::with_capacity(REQUEST + bytes.len());
        frame.push(what);
        frame.extend(offset.to_be_bytes());
        frame.extend(length.to_be_bytes());
        frame.extend(chunk.to_be_bytes());
        frame.extend(bytes);
        frame
    }

    /// `None` at the end of the requests.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut frame = [0; REQUEST];
        let mut first = [0; 1];
        if from.read(&mut first)? == 0 {
            return Ok(None);
        }
        frame[0] = first[0];
        from.read_exact(&mut frame[1..])?;
        let offset = u64::from_be_bytes(frame[1..9].try_into().expect("eight bytes"));
        let length = u64::from_be_bytes(frame[9..17].try_into().expect("eight bytes"));
        let chunk = u32::from_be_bytes(frame[17..21].try_into().expect("four bytes"));
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        Ok(Some(match frame[0] {
            1 => Self::Describe,
            2 => Self::InUse,
            what @ (3 | 4) if length <= LONGEST => Self::Read {
                offset,
                length,
                through: through(what, 3),
            },
            5 if length <= LONGEST => {
                let mut bytes = vec![0; length as usize];
                from.read_exact(&mut bytes)?;
                Self::Write { offset, bytes }
            }
            6 => Self::Flush,
            what @ (7 | 8) => Self::Digest {
                offset,
                length,
                through: through(what, 7),
            },
            what @ (9 | 10) if length <= MOST_DIGESTS as u64 * 4 && length.is_multiple_of(4) => {
                let mut bytes = vec![0; length as usize];
                from.read_exact(&mut bytes)?;
                let (lengths, _) = bytes.as_chunks::<4>();
                Self::Digests {
                    offset,
                    lengths: lengths.iter().map(|bytes| u32::from_be_bytes(*bytes)).collect(),
                    through: through(what, 9),
                }
            }
            11 => Self::Cut {
                offset,
                length,
                average: chunk,
            },
            what @ 12..=15 if length <= LONGEST && offset <= length => {
                let mut bytes = vec![0; length as usize];
                from.read_exact(&mut bytes)?;
                let rest = bytes.split_off(offset as usize);
                let text =
                    |bytes| String::from_utf8(bytes).map_err(|_| wrong("a name is not text".to_owned()));
                let name = text(bytes)?;
                match what {
                    12 => Self::Files { prefix: name },
                    13 => Self::WriteFile { name, bytes: rest },
                    14 => Self::RenameFile {
                        from: name,
                        to: text(rest)?,
                    },
                    _ => Self::RemoveFile { name },
                }
            }
            what => return Err(wrong(format!("request {what} for {length} bytes is not known"))),
        }))
    }
}

/// An answer: what was asked for, or why not.
pub type Answer = Result<Vec<u8>, String>;

pub fn write_answer(to: &mut impl Write, answer: &Answer) -> io::Result<()> {
    let (how, bytes) = match answer {
        Ok(bytes) => (0, &bytes[..]),
        Err(reason) => (1, reason.as_bytes()),
    };
    to.write_all(&[how])?;
    to.write_all(&(bytes.len() as u32).to_be_bytes())?;
    to.write_all(bytes)?;
    to.flush()
}

/// How an answer's five first bytes go on.
pub fn answer_length(head: [u8; 5], longest: u64) -> io::Result<(bool, usize)> {
    let length = u32::from_be_bytes(head[1..].try_into().expect("four bytes"));
    if head[0] > 1 || u64::from(length) > longest.max(4096) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the helper on the node answers {} with {length} bytes", head[0]),
        ));
    }
    Ok((head[0] == 0, length as usize))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_request() -> impl Strategy<Value = Request> {
        let through = prop_oneof![Just(Through::Cache), Just(Through::Medium)];
        prop_oneof![
            Just(Request::Describe),
            Just(Request::InUse),
            Just(Request::Flush),
            (any::<u64>(), 0..=LONGEST, through.clone()).prop_map(|(offset, length, through)| {
                Request::Read {
                    offset,
                    length,
                    through,
                }
            }),
            (any::<u64>(), proptest::collection::vec(any::<u8>(), 0..600))
                .prop_map(|(offset, bytes)| Request::Write { offset, bytes }),
            (any::<u64>(), any::<u64>(), through.clone()).prop_map(|(offset, length, through)| {
                Request::Digest {
                    offset,
                    length,
                    through,
                }
            }),
            (
                any::<u64>(),
                proptest::collection::vec(any::<u32>(), 0..100),
                through
            )
                .prop_map(|(offset, lengths, through)| {
                    Request::Digests {
                        offset,
                        lengths,
                        through,
                    }
                }),
            (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(offset, length, average)| Request::Cut {
                offset,
                length,
                average
            }),
            ".{0,20}".prop_map(|prefix| Request::Files { prefix }),
            (".{0,20}", proptest::collection::vec(any::<u8>(), 0..600))
                .prop_map(|(name, bytes)| Request::WriteFile { name, bytes }),
            (".{0,20}", ".{0,20}").prop_map(|(from, to)| Request::RenameFile { from, to }),
            ".{0,20}".prop_map(|name| Request::RemoveFile { name }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn requests_arrive_as_they_were_sent(requests in proptest::collection::vec(any_request(), 0..8)) {
            let wire: Vec<u8> = requests.iter().flat_map(Request::encode).collect();
            let mut rest = &wire[..];
            for request in requests {
                prop_assert_eq!(Request::read(&mut rest).unwrap(), Some(request));
            }
            prop_assert_eq!(Request::read(&mut rest).unwrap(), None);
        }

        #[test]
        fn files_arrive_as_they_were_sent_and_no_bytes_are_too_strange(
            files in proptest::collection::btree_map(".{0,20}", proptest::collection::vec(any::<u8>(), 0..60), 0..5),
            strange in proptest::collection::vec(any::<u8>(), 0..60),
            cut in any::<proptest::sample::Index>(),
        ) {
            let encoded = encode_files(&files);
            prop_assert_eq!(decode_files(&encoded), Some(files));
            let _ = decode_files(&strange);
            let _ = decode_files(&encoded[..cut.index(encoded.len() + 1)]);
        }

        #[test]
        fn hostile_bytes_end_in_an_error_or_a_request(wire in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut rest = &wire[..];
            while let Ok(Some(request)) = Request::read(&mut rest) {
                if let Request::Write { bytes, .. } = request {
                    prop_assert!(bytes.len() <= wire.len());
                }
            }
        }
    }
}
