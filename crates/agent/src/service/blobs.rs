//! The `Blobs` service: verified bytes for the hosts beside this one, within limits, and nothing else.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::Stream;
use slipway_agent_api::proto::{self, BlobSize, Piece, blobs_server::Blobs};
use slipway_agent_api::{Class, Identity, Problem};
use slipway_slots::Digest;
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::Host;

const PIECE: usize = 256 << 10;
/// A reader that takes nothing for this long makes room for another.
const TAKES_WITHIN: Duration = Duration::from_secs(30);

/// What hosts beside this one get of it.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    /// Reads at one time; more are told to come later.
    pub readers: usize,
    /// Of them by one host, so that none can keep the others out.
    pub readers_per_host: usize,
    /// For all of them together.
    pub bytes_per_second: Option<u64>,
}

impl Default for Serving {
    fn default() -> Self {
        Self {
            readers: 16,
            readers_per_host: 4,
            bytes_per_second: None,
        }
    }
}

pub(super) struct BlobService {
    host: Arc<Host>,
    readers: Arc<Readers>,
    pace: Arc<Pace>,
}

/// Who reads, and how often at one time.
struct Readers {
    serving: Serving,
    now: parking_lot::Mutex<HashMap<String, usize>>,
}

/// One read; its place is free again when it is dropped.
struct Reading {
    readers: Arc<Readers>,
    by: String,
}

impl Readers {
    fn begin(self: &Arc<Self>, by: String) -> Result<Reading, Problem> {
        let mut now = self.now.lock();
        let total: usize = now.values().sum();
        let own = now.get(&by).copied().unwrap_or_default();
        if total >= self.serving.readers || own >= self.serving.readers_per_host {
            return Err(Problem::new(
                Class::Throttled,
                "Busy",
                "this host serves as many others as it may",
            ));
        }
        now.insert(by.clone(), own + 1);
        drop(now);
        Ok(Reading {
            readers: self.clone(),
            by,
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut now = self.readers.now.lock();
        if let Some(count) = now.get_mut(&self.by) {
            *count -= 1;
            if *count == 0 {
                now.remove(&self.by);
            }
        }
    }
}

impl BlobService {
    pub fn new(host: Arc<Host>) -> Self {
        let serving = host.serving;
        Self {
            host,
            readers: Arc::new(Readers {
                serving,
                now: parking_lot::Mutex::default(),
            }),
            pace: Arc::new(Pace {
                rate: serving.bytes_per_second,
                free_at: Mutex::new(None),
            }),
        }
    }
}

/// Hands out time: each piece waits until those before it would have been sent at the rate.
struct Pace {
    rate: Option<u64>,
    free_at: Mutex<Option<Instant>>,
}

impl Pace {
    async fn wait(&self, bytes: usize) {
        let Some(rate) = self.rate else {
            return;
        };
        let at = {
            let mut free_at = self.free_at.lock().await;
            let now = Instant::now();
            let at = free_at.unwrap_or(now).max(now);
            let takes = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            *free_at = Some(at + takes);
            at
        };
        tokio::time::sleep_until(at).await;
    }
}

fn parse(text: &str) -> Result<Digest, Problem> {
    text.parse()
        .map_err(|error| Problem::new(Class::Terminal, "InvalidRequest", format!("{error}")))
}

#[async_trait]
impl Blobs for BlobService {
    async fn locate(
        &self,
        request: Request<proto::LocateRequest>,
    ) -> Result<Response<proto::LocateResponse>, Status> {
        let digests = request.into_inner().digests;
        if digests.len() > 1024 {
            return Err(Problem::new(
                Class::Terminal,
                "InvalidRequest",
                "at most 1024 digests are asked for at once",
            )
            .into());
        }
        let mut blobs = Vec::new();
        for text in digests {
            if let Some((_, size)) = self.host.cache.blob(&parse(&text)?) {
                blobs.push(BlobSize { digest: text, size });
            }
        }
        Ok(Response::new(proto::LocateResponse { blobs }))
    }

    type ReadStream = Pin<Box<dyn Stream<Item = Result<Piece, Status>> + Send>>;

    async fn read(&self, request: Request<proto::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let by = request
            .extensions()
            .get::<Identity>()
            .map(ToString::to_string)
            .unwrap_or_default();
        let request = request.into_inner();
        let digest = parse(&request.digest)?;
        let reading = self.readers.begin(by)?;
        let absent = || Status::not_found("the blob is not here");
        let (path, size) = self.host.cache.blob(&digest).ok_or_else(absent)?;
        if request.offset > size {
            return Err(Status::out_of_range("the blob is shorter"));
        }
        let mut file = File::open(path).map_err(|_| absent())?;
        file.seek(SeekFrom::Start(request.offset))
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let mut left = size - request.offset;
        if request.length > 0 {
            left = left.min(request.length);
        }
        let (sender, mut receiver) = mpsc::channel(2);
        tokio::spawn(send(file, left, reading, self.pace.clone(), sender));
        let stream = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
        Ok(Response::new(Box::pin(stream)))
    }
}

/// Hands on a file's bytes, at the pace and as long as they are taken.
async fn send(
    mut file: File,
    mut left: u64,
    reading: Reading,
    pace: Arc<Pace>,
    to: mpsc::Sender<Result<Piece, Status>>,
) {
    while left > 0 {
        let length = left.min(PIECE as u64) as usize;
        pace.wait(length).await;
        let read = tokio::task::spawn_blocking(move || {
            let mut data = vec![0; length];
            file.read_exact(&mut data).map(|()| (data, file))
        })
        .await;
        let piece = match read {
            Ok(Ok((data, back))) => {
                file = back;
                left -= length as u64;
                Ok(Piece { data })
            }
            Ok(Err(error)) => {
                let _ = to.send(Err(Status::unavailable(error.to_string()))).await;
                return;
            }
            Err(_) => return,
        };
        if to.send_timeout(piece, TAKES_WITHIN).await.is_err() {
            tracing::info!(by = reading.by, "a reader takes nothing, or is gone");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn e54_readers_share_the_bandwidth_that_is_allowed() {
        let pace = Arc::new(Pace {
            rate: Some(1 << 20),
            free_at: Mutex::new(None),
        });
        let began = Instant::now();
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let pace = pace.clone();
            readers.spawn(async move {
                for _ in 0..10 {
                    pace.wait(PIECE).await;
                }
            });
        }
        readers.join_all().await;
        // Ten MiB; the last piece goes when those before it are through.
        let expected = Duration::from_millis(9750);
        let took = began.elapsed();
        assert!(
            took >= expected && took < expected + Duration::from_millis(100),
            "{took:?}"
        );
    }

    #[test]
    fn one_host_does_not_keep_the_others_out() {
        let readers = Arc::new(Readers {
            serving: Serving {
                readers: 3,
                readers_per_host: 2,
                bytes_per_second: None,
            },
            now: parking_lot::Mutex::default(),
        });
        let begin = |by: &str| readers.begin(by.to_owned());
        let first = begin("a");
        let _second = begin("a");
        assert_eq!(
            begin("a").err().map(|problem| problem.class),
            Some(Class::Throttled)
        );
        let third = begin("b");
        assert!(third.is_ok() && begin("b").is_err(), "three at one time");
        drop(first);
        assert!(begin("b").is_ok());
        assert_eq!(readers.now.lock().len(), 2);
    }
}
