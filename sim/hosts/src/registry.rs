//! A registry of node images on loopback, for hosts to fetch from: manifests and blobs by their digests, whole, to anybody.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::image::NodeImage;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const BLOB: &str = "application/octet-stream";

type Blobs = Arc<BTreeMap<String, Vec<u8>>>;

/// It speaks plain HTTP and ends with this value.
pub struct Registry {
    /// `host:port`, as references and `plain_http` of hosts name it.
    pub address: String,
    server: JoinHandle<()>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Registry {
    /// Every repository of it has all of these images.
    pub async fn start<'a>(images: impl IntoIterator<Item = &'a NodeImage>) -> io::Result<Self> {
        let blobs = images.into_iter().flat_map(NodeImage::blobs);
        let blobs: Blobs = Arc::new(
            blobs
                .map(|(digest, bytes)| (digest.to_string(), bytes.clone()))
                .collect(),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let blobs = blobs.clone();
                tokio::spawn(async move {
                    if let Err(error) = serve(stream, &blobs).await {
                        tracing::debug!("a connection to the simulated registry ended: {error}");
                    }
                });
            }
        });
        Ok(Self { address, server })
    }
}

/// One connection, request after request.
async fn serve(stream: TcpStream, blobs: &Blobs) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut request = String::new();
        if stream.read_line(&mut request).await? == 0 {
            return Ok(());
        }
        // Nothing that a header could ask for is needed here: who asks for a range gets all, and knows what to do with it.
        let mut header = String::new();
        while stream.read_line(&mut header).await? > 2 {
            header.clear();
        }
        let mut words = request.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (status, kind, body) = answer(path, blobs);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        if method != "HEAD" {
            stream.write_all(body).await?;
        }
        stream.flush().await?;
    }
}

fn answer<'a>(path: &str, blobs: &'a Blobs) -> (&'static str, &'static str, &'a [u8]) {
    if path == "/v2/" {
        return ("200 OK", "application/json", b"{}");
    }
    let mut parts = path.rsplit('/');
    let (digest, what) = (parts.next().unwrap_or_default(), parts.next());
    let kind = match what {
        Some("manifests") => MANIFEST,
        Some("blobs") => BLOB,
        _ => "",
    };
    match blobs.get(digest).filter(|_| !kind.is_empty()) {
        Some(bytes) => ("200 OK", kind, bytes),
        None => ("404 Not Found", "application/json", b"{}"),
    }
}
