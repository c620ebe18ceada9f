//! Digests of many chunks: several threads read and hash side by side, or one reads ahead where there is one way in only.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use slipway_slots::Digest;

use super::aligned::{ALIGNMENT, AlignedBuffer};
use super::{SlotTarget, Through};

/// About as many bytes are read at once: enough to keep a disk busy.
const GROUP: u64 = 2 << 20;
/// More threads than that would only cost memory.
const MOST_WORKERS: usize = 4;

/// So many threads read and hash: some wait for the disk while others compute.
const READERS: usize = 4;

/// How many threads hash side by side.
pub fn workers() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get().min(MOST_WORKERS))
}

/// What several threads take from, each the next.
pub fn next<T>(jobs: &Mutex<Receiver<T>>) -> Option<T> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Some chunks that lie one after the other, and their bytes.
struct Job {
    chunks: Range<usize>,
    buffer: AlignedBuffer,
    /// Where the first chunk begins in the buffer.
    start: usize,
}

struct Hashed {
    first: usize,
    digests: Vec<Digest>,
    buffer: AlignedBuffer,
}

/// Digests of consecutive chunks of these lengths from `offset` on.
pub fn digests<T: SlotTarget + ?Sized>(
    target: &mut T,
    offset: u64,
    lengths: &[u32],
    through: Through,
) -> io::Result<Vec<Digest>> {
    let mut readers = Vec::with_capacity(READERS);
    while readers.len() < READERS
        && let Some(reader) = target.another_reader()?
    {
        readers.push(reader);
    }
    if readers.is_empty() {
        read_ahead(target, offset, lengths, through)
    } else {
        side_by_side(readers, offset, lengths, through)
    }
}

/// What nobody has read yet: a chunk's number and where it begins.
struct Unread {
    first: usize,
    at: u64,
}

/// Every thread reads a group, hashes it and takes the next.
fn side_by_side(
    readers: Vec<Box<dyn SlotTarget>>,
    offset: u64,
    lengths: &[u32],
    through: Through,
) -> io::Result<Vec<Digest>> {
    let unread = Mutex::new(Unread { first: 0, at: offset });
    let take = || {
        let mut unread = unread.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, at) = (unread.first, unread.at);
        let (count, length) = group(&lengths[first..])?;
        unread.first += count;
        unread.at += length;
        Some((first..first + count, at, length))
    };
    let work = |mut reader: Box<dyn SlotTarget>| {
        let mut buffer = AlignedBuffer::default();
        let mut found = Vec::new();
        while let Some((chunks, at, length)) = take() {
            let start = read_group(&mut *reader, at, length, through, &mut buffer).inspect_err(|_| {
                // It has failed as a whole: nobody needs the rest.
                unread.lock().unwrap_or_else(PoisonError::into_inner).first = lengths.len();
            })?;
            let digests = digests_of(&buffer.bytes()[start..], &lengths[chunks.clone()]);
            found.push((chunks, digests));
        }
        Ok::<_, io::Error>(found)
    };
    let mut digests = vec![Digest([0; 32]); lengths.len()];
    thread::scope(|scope| {
        let threads: Vec<_> = readers
            .into_iter()
            .map(|reader| scope.spawn(|| work(reader)))
            .collect();
        for thread in threads {
            let found = thread
                .join()
                .map_err(|_| io::Error::other("computing digests failed"))??;
            for (chunks, of_group) in found {
                digests[chunks].copy_from_slice(&of_group);
            }
        }
        Ok(digests)
    })
}

/// Of chunks of these lengths, one after the other.
pub fn digests_of(bytes: &[u8], lengths: &[u32]) -> Vec<Digest> {
    let mut rest = bytes;
    let digest = |length: &u32| {
        let (chunk, behind) = rest.split_at(*length as usize);
        rest = behind;
        Digest::of(chunk)
    };
    lengths.iter().map(digest).collect()
}

/// One thread reads, others hash.
fn read_ahead<T: SlotTarget + ?Sized>(
    target: &mut T,
    offset: u64,
    lengths: &[u32],
    through: Through,
) -> io::Result<Vec<Digest>> {
    let mut digests = vec![Digest([0; 32]); lengths.len()];
    let mut keep = |hashed: Hashed| {
        digests[hashed.first..][..hashed.digests.len()].copy_from_slice(&hashed.digests);
        hashed.buffer
    };
    let workers = workers();
    let (to_hash, jobs) = sync_channel(workers);
    let jobs = Mutex::new(jobs);
    let (done, results) = channel();
    let read = thread::scope(|scope| {
        let jobs = &jobs;
        for _ in 0..workers {
            let done = done.clone();
            scope.spawn(move || hash(jobs, lengths, &done));
        }
        drop(done);
        let mut at = offset;
        let mut first = 0;
        let read = loop {
            let Some((count, length)) = group(&lengths[first..]) else {
                break Ok(());
            };
            let mut buffer = results.try_recv().map(&mut keep).unwrap_or_default();
            let start = match read_group(target, at, length, through, &mut buffer) {
                Ok(start) => start,
                Err(error) => break Err(error),
            };
            let chunks = first..first + count;
            let job = Job {
                chunks,
                buffer,
                start,
            };
            if to_hash.send(job).is_err() {
                break Err(io::Error::other("computing digests failed"));
            }
            first += count;
            at += length;
        };
        drop(to_hash);
        for hashed in &results {
            keep(hashed);
        }
        read
    });
    read.map(|()| digests)
}

fn hash(jobs: &Mutex<Receiver<Job>>, lengths: &[u32], done: &Sender<Hashed>) {
    while let Some(job) = next(jobs) {
        let digests = digests_of(&job.buffer.bytes()[job.start..], &lengths[job.chunks.clone()]);
        let hashed = Hashed {
            first: job.chunks.start,
            digests,
            buffer: job.buffer,
        };
        if done.send(hashed).is_err() {
            return;
        }
    }
}

/// How many of the chunks are read at once, and how long they are together.
fn group(lengths: &[u32]) -> Option<(usize, u64)> {
    let (first, rest) = lengths.split_first()?;
    let (mut count, mut total) = (1, u64::from(*first));
    for length in rest {
        if total + u64::from(*length) > GROUP {
            break;
        }
        count += 1;
        total += u64::from(*length);
    }
    Some((count, total))
}

/// Reads whole blocks, because direct I/O knows nothing else; where in the buffer the bytes begin that were asked for.
fn read_group<T: SlotTarget + ?Sized>(
    target: &mut T,
    at: u64,
    length: u64,
    through: Through,
    buffer: &mut AlignedBuffer,
) -> io::Result<usize> {
    let begin = at - at % ALIGNMENT as u64;
    let end = (at + length).next_multiple_of(ALIGNMENT as u64);
    // Past the end of the target it is the target that says so.
    let end = end.min(target.size()).max(at + length);
    target.read_at(begin, buffer.for_writing((end - begin) as usize), through)?;
    Ok((at - begin) as usize)
}
