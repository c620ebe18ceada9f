//! What a test does to the cluster's etcd behind the API server's back, through etcd's own JSON gateway.

use std::io;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Forgets every revision before the newest one, as compaction does in any cluster after a while: who continues from an
/// older one gets 410 Gone, unless the API server still has it in memory.
pub async fn compact(port: u16) -> io::Result<()> {
    let status = post(port, "/v3/maintenance/status", &json!({})).await?;
    let revision = status["header"]["revision"]
        .as_str()
        .ok_or_else(|| io::Error::other(format!("etcd tells no revision: {status}")))?;
    let desired = json!({"revision": revision, "physical": true});
    post(port, "/v3/kv/compaction", &desired).await.map(drop)
}

async fn post(port: u16, path: &str, body: &Value) -> io::Result<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let body = body.to_string();
    // HTTP/1.0, so that the answer comes in one piece.
    let request = format!(
        "POST {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        return Err(io::Error::other(format!(
            "etcd answers {path} with {status}: {body}"
        )));
    }
    serde_json::from_str(body).map_err(io::Error::other)
}
