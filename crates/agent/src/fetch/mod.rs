//! Chunks from the network: a directory on a web server, a registry, or another host of the fleet, by HTTP ranges.
//!
//! A link that drops is no failure: a read goes on where it was cut for as long as bytes keep coming now and then. It ends
//! in an error when the server says no, or when nothing came for a time.

mod answer;
mod pace;

use std::time::{Duration, Instant};

use answer::{Asked, Decision, Head, decide, strong};
use pace::Pace;
use reqwest::{
    Client, Response, StatusCode,
    header::{
        ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, IF_RANGE,
        RANGE, RETRY_AFTER,
    },
};
use slipway_slots::{Digest, manifest::Blob};
use tokio::{
    runtime::{Builder, Runtime},
    time::{sleep, timeout},
};
use url::Url;

use crate::engine::{ChunkSource, FetchError};

/// How blobs are named below the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// A directory of blobs, as `image build` writes it: `sha256-…`.
    Directory,
    /// An OCI registry's repository, such as `https://registry/v2/images/node`: `blobs/sha256:…`.
    Registry,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub layout: Layout,
    /// A connection from which nothing comes for this long is given up and made again.
    pub stall: Duration,
    /// A read fails after this long without a byte.
    pub give_up: Duration,
    /// The first and the longest wait between two tries.
    pub backoff: (Duration, Duration),
    pub bytes_per_second: Option<u64>,
    /// Sent as a bearer token. Never shown.
    pub token: Option<Token>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            layout: Layout::Directory,
            stall: Duration::from_secs(30),
            give_up: Duration::from_mins(30),
            backoff: (Duration::from_millis(500), Duration::from_secs(30)),
            bytes_per_second: None,
            token: None,
        }
    }
}

/// A secret; its value goes into a header and nowhere else.
#[derive(Clone)]
pub struct Token(pub String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token(…)")
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("{address} is not an address to fetch from: {reason}")]
    Address { address: String, reason: String },
    #[error("the HTTP client cannot be set up: {0}")]
    Client(String),
}

/// After reads that followed each other, so much is asked for at once.
const AHEAD: u64 = 16 << 20;
/// A server that ignores ranges is read from the start up to here; beyond, another source is better.
const MOST_SKIPPED: u64 = 64 << 20;

/// One server.
pub struct HttpSource {
    runtime: Runtime,
    remote: Remote,
}

struct Remote {
    base: Url,
    settings: Settings,
    client: Client,
    body: Option<Body>,
    /// Where the last read ended.
    last: Option<(Digest, u64)>,
    pace: Option<Pace>,
    since: Instant,
    /// Bytes that came over the network, skipped ones included.
    received: u64,
}

/// An answer that is being read.
struct Body {
    digest: Digest,
    response: Response,
    at: u64,
    end: u64,
    /// Received and not yet used.
    rest: Vec<u8>,
    etag: Option<String>,
}

/// Why a try ended.
enum Ended {
    Again { reason: String, wait: Option<Duration> },
    Changed,
    Absent,
    Never(String),
}

impl HttpSource {
    pub fn new(base: &str, settings: Settings) -> Result<Self, SetupError> {
        let wrong = |reason: String| SetupError::Address {
            address: base.chars().take(200).collect(),
            reason,
        };
        let slash = if base.ends_with('/') { "" } else { "/" };
        let base: Url = format!("{base}{slash}")
            .parse()
            .map_err(|error: url::ParseError| wrong(error.to_string()))?;
        if !["http", "https"].contains(&base.scheme()) || base.cannot_be_a_base() {
            return Err(wrong("it must begin with https:// or http://".to_owned()));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong(
                "a password in it would end up in logs; use a token".to_owned(),
            ));
        }
        // Whoever was first has the same one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = Client::builder()
            .connect_timeout(Duration::from_secs(10))
            .tcp_keepalive(Duration::from_secs(15))
            .pool_max_idle_per_host(1)
            .redirect(reqwest::redirect::Policy::limited(4))
            .build()
            .map_err(|error| SetupError::Client(error.to_string()))?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| SetupError::Client(error.to_string()))?;
        Ok(Self {
            runtime,
            remote: Remote {
                base,
                pace: settings.bytes_per_second.map(Pace::new),
                settings,
                client,
                body: None,
                last: None,
                since: Instant::now(),
                received: 0,
            },
        })
    }

    /// Bytes that came over the network so far.
    pub fn received(&self) -> u64 {
        self.remote.received
    }

    /// A small file beside the blobs, such as the signed manifest.
    pub fn get(&mut self, name: &str, most: usize) -> Result<Vec<u8>, FetchError> {
        let remote = &self.remote;
        let failed = |reason: String| FetchError::Failed {
            source_name: remote.base.to_string(),
            blob: name.to_owned(),
            reason,
        };
        let url = remote
            .base
            .join(name)
            .map_err(|error| failed(error.to_string()))?;
        let mut wait = remote.settings.backoff.0;
        let started = Instant::now();
        loop {
            let request = remote.authorized(remote.client.get(url.clone()));
            let stall = remote.settings.stall;
            let answer = self.runtime.block_on(async {
                let fetching = async {
                    let mut response = request.send().await.map_err(|error| told(&error))?;
                    let status = response.status();
                    let mut bytes = Vec::new();
                    while let Some(piece) = response.chunk().await.map_err(|error| told(&error))? {
                        bytes.extend_from_slice(&piece);
                        if bytes.len() > most {
                            return Ok((StatusCode::PAYLOAD_TOO_LARGE, bytes));
                        }
                    }
                    Ok::<_, String>((status, bytes))
                };
                timeout(stall, fetching)
                    .await
                    .unwrap_or_else(|_| Err("it does not answer".to_owned()))
            });
            let reason = match answer {
                Ok((StatusCode::OK, bytes)) => return Ok(bytes),
                Ok((StatusCode::NOT_FOUND, _)) => {
                    return Err(FetchError::Absent {
                        source_name: remote.base.to_string(),
                        blob: name.to_owned(),
                    });
                }
                Ok((StatusCode::PAYLOAD_TOO_LARGE, _)) => {
                    return Err(failed(format!("it has more than {most} bytes")));
                }
                Ok((status, _)) if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                    return Err(failed(format!("it answers {status}")));
                }
                Ok((status, _)) => format!("it answers {status}"),
                Err(reason) => reason,
            };
            if started.elapsed() + wait > remote.settings.give_up {
                return Err(failed(reason));
            }
            self.runtime.block_on(sleep(wait));
            wait = (wait * 2).min(remote.settings.backoff.1);
        }
    }
}

impl Remote {
    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.settings.token {
            Some(Token(token)) => request.header(AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    fn address(&self, digest: &Digest) -> Url {
        let name = match self.settings.layout {
            Layout::Directory => digest.to_string().replace(':', "-"),
            Layout::Registry => format!("blobs/{digest}"),
        };
        // Not `join`: a digest's colon would be read as the end of a scheme.
        let mut address = self.base.clone();
        let path = format!("{}{name}", self.base.path());
        address.set_path(&path);
        address
    }

    /// Opens an answer that holds the bytes from `offset` on.
    async fn open(&mut self, blob: &Blob, offset: u64, end: u64, etag: Option<&str>) -> Result<Body, Ended> {
        let asked = Asked {
            offset,
            end,
            size: blob.size,
            etag: etag.map(str::to_owned),
        };
        let mut request = self
            .authorized(self.client.get(self.address(&blob.digest)))
            .header(ACCEPT_ENCODING, "identity")
            .header(RANGE, format!("bytes={offset}-{}", end - 1));
        if let Some(etag) = etag {
            request = request.header(IF_RANGE, etag);
        }
        let again = |reason: String| Ended::Again { reason, wait: None };
        let response = match timeout(self.settings.stall, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(again(told(&error))),
            Err(_) => return Err(again("it does not answer".to_owned())),
        };
        let headers = response.headers();
        let head = Head {
            status: response.status().as_u16(),
            content_range: text(headers, &CONTENT_RANGE),
            content_length: text(headers, &CONTENT_LENGTH).and_then(|length| length.parse().ok()),
            etag: text(headers, &ETAG),
            retry_after: text(headers, &RETRY_AFTER),
        };
        let (at, end) = match decide(&asked, &head) {
            Decision::Take { at, end } => (at, end),
            Decision::Changed => return Err(Ended::Changed),
            Decision::Later { reason, wait } => return Err(Ended::Again { reason, wait }),
            Decision::Absent => return Err(Ended::Absent),
            Decision::Never { reason } => return Err(Ended::Never(reason)),
        };
        let mut body = Body {
            digest: blob.digest,
            response,
            at,
            end,
            rest: Vec::new(),
            etag: strong(head.etag.as_deref()).map(str::to_owned),
        };
        if offset - at > MOST_SKIPPED {
            return Err(Ended::Never(format!(
                "it ignores ranges and byte {offset} is too far from the start"
            )));
        }
        while body.at < offset {
            let skip = offset - body.at;
            self.more(&mut body).await?;
            let length = skip.min(body.rest.len() as u64) as usize;
            body.rest.drain(..length);
            body.at += length as u64;
        }
        Ok(body)
    }

    /// Waits for the next piece of the body.
    async fn more(&mut self, body: &mut Body) -> Result<(), Ended> {
        let again = |reason: String| Ended::Again { reason, wait: None };
        match timeout(self.settings.stall, body.response.chunk()).await {
            Ok(Ok(Some(piece))) => {
                body.rest.extend_from_slice(&piece);
                self.received += piece.len() as u64;
                if let Some(pace) = &mut self.pace {
                    let wait = pace.passed(piece.len(), self.since.elapsed());
                    if !wait.is_zero() {
                        sleep(wait).await;
                    }
                }
                Ok(())
            }
            Ok(Ok(None)) => Err(again("it ended before all was there".to_owned())),
            Ok(Err(error)) => Err(again(told(&error))),
            Err(_) => Err(again(format!(
                "nothing came for {} s",
                self.settings.stall.as_secs_f32()
            ))),
        }
    }

    /// Fills the buffer as far as one answer carries; `filled` says how far that was.
    async fn some(
        &mut self,
        blob: &Blob,
        offset: u64,
        buffer: &mut [u8],
        filled: &mut usize,
        etag: &mut Option<String>,
    ) -> Result<(), Ended> {
        let at = offset + *filled as u64;
        let mut body = match self.body.take() {
            Some(body) if body.digest == blob.digest && body.at == at && body.at < body.end => body,
            _ => {
                let needed = offset + buffer.len() as u64;
                let follows = self.last == Some((blob.digest, offset));
                let end = if follows {
                    needed.max(at + AHEAD).min(blob.size)
                } else {
                    needed
                };
                self.open(blob, at, end, etag.as_deref()).await?
            }
        };
        etag.clone_from(&body.etag);
        while *filled < buffer.len() && body.at < body.end {
            if body.rest.is_empty() {
                self.more(&mut body).await?;
            }
            let most = (body.end - body.at).min((buffer.len() - *filled) as u64) as usize;
            let length = body.rest.len().min(most);
            buffer[*filled..*filled + length].copy_from_slice(&body.rest[..length]);
            body.rest.drain(..length);
            body.at += length as u64;
            *filled += length;
        }
        self.body = Some(body);
        Ok(())
    }

    async fn fill(&mut self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<(), Ended> {
        let mut filled = 0;
        let mut etag = None;
        let mut wait = self.settings.backoff.0;
        let mut progress = Instant::now();
        while filled < buffer.len() {
            let before = filled;
            let ended = self.some(blob, offset, buffer, &mut filled, &mut etag).await;
            if filled > before {
                progress = Instant::now();
                wait = self.settings.backoff.0;
            }
            match ended {
                Ok(()) => {}
                Err(Ended::Changed) => {
                    self.body = None;
                    (filled, etag) = (0, None);
                    if progress.elapsed() > self.settings.give_up {
                        return Err(Ended::Never("the file there changes all the time".to_owned()));
                    }
                    sleep(wait).await;
                    wait = (wait * 2).min(self.settings.backoff.1);
                }
                Err(Ended::Again { reason, wait: told }) => {
                    self.body = None;
                    let pause = told.unwrap_or(wait);
                    if progress.elapsed() + pause > self.settings.give_up {
                        return Err(Ended::Never(format!(
                            "{reason}, and no byte came for {} s",
                            progress.elapsed().as_secs()
                        )));
                    }
                    sleep(pause).await;
                    wait = (wait * 2).min(self.settings.backoff.1);
                }
                Err(ended) => return Err(ended),
            }
        }
        Ok(())
    }
}

impl ChunkSource for HttpSource {
    fn name(&self) -> String {
        self.remote.base.to_string()
    }

    fn read(&mut self, blob: &Blob, offset: u64, buffer: &mut [u8]) -> Result<(), FetchError> {
        if buffer.is_empty() {
            return Ok(());
        }
        let remote = &mut self.remote;
        let (source_name, name) = (remote.base.to_string(), blob.digest.to_string());
        let end = match offset.checked_add(buffer.len() as u64) {
            Some(end) if end <= blob.size => end,
            _ => {
                return Err(FetchError::Failed {
                    source_name,
                    blob: name,
                    reason: format!("bytes {offset}+{} are outside it", buffer.len()),
                });
            }
        };
        let ended = self.runtime.block_on(remote.fill(blob, offset, buffer));
        match ended {
            Ok(()) => {
                remote.last = Some((blob.digest, end));
                Ok(())
            }
            Err(Ended::Absent) => Err(FetchError::Absent {
                source_name,
                blob: name,
            }),
            Err(Ended::Never(reason) | Ended::Again { reason, .. }) => Err(FetchError::Failed {
                source_name,
                blob: name,
                reason,
            }),
            Err(Ended::Changed) => Err(FetchError::Failed {
                source_name,
                blob: name,
                reason: "the file there changes all the time".to_owned(),
            }),
        }
    }
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// An error of the client in words: its innermost cause, without the address that the message has already.
fn told(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
