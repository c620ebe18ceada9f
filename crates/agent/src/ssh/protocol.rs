//! What goes over the wire between a target on a node and the helper beside its partition: frames as bytes in and values
//! out.
//!
//! A request is one byte for what, eight for the offset, eight for the length and four for the chunk size, all big endian,
//! then the bytes of a write or the lengths of chunks. An answer is one byte for how, four for its length, then its bytes. A write is not answered:
//! what went wrong with it is said at the next request that is.

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
pub const GREETING: &[u8; 16] = b"slipway slot 2\n\0";

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
