//! Waits until a part answers its readiness endpoint. It is asked again and again because a starting process has
//! nothing to watch; the deadline only guards against a hang.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use http::Request;
use kube::{Client, Config};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::StartError;
use crate::process::Process;

const BETWEEN_PROBES: Duration = Duration::from_millis(50);
const PROBE_DEADLINE: Duration = Duration::from_secs(5);
const DEADLINE: Duration = Duration::from_mins(3);

/// Where a part says that it is ready.
pub enum Probe {
    Http { port: u16, path: &'static str },
    Https { config: Box<Config>, path: &'static str },
}

impl Probe {
    async fn ask(&self) -> Result<(), String> {
        match self {
            Probe::Http { port, path } => ask_http(*port, path).await,
            Probe::Https { config, path } => {
                let client = Client::try_from(config.as_ref().clone()).map_err(|error| error.to_string())?;
                let request = Request::get(*path)
                    .body(Vec::new())
                    .map_err(|error| error.to_string())?;
                let answer = client.request_text(request).await;
                answer.map(|_| ()).map_err(|error| error.to_string())
            }
        }
    }
}

/// Waits for `process`; fails as soon as it ends.
pub async fn wait(process: &Process, probe: Probe) -> Result<(), StartError> {
    let started = Instant::now();
    loop {
        let answer = timeout(PROBE_DEADLINE, probe.ask())
            .await
            .unwrap_or_else(|_| Err("no answer".to_owned()));
        let Err(reason) = answer else {
            return Ok(());
        };
        if let Some(status) = process.ended() {
            return Err(failed(process, format!("ended while starting ({status})")));
        }
        if started.elapsed() > DEADLINE {
            return Err(failed(
                process,
                format!("was not ready after {} s: {reason}", DEADLINE.as_secs()),
            ));
        }
        sleep(BETWEEN_PROBES).await;
    }
}

fn failed(process: &Process, what: String) -> StartError {
    let directory = process.log().ancestors().nth(2).unwrap_or(process.log());
    if process.says("no space left on device") || is_full(directory) {
        return StartError::DirectoryFull {
            path: directory.to_owned(),
        };
    }
    StartError::PartFailed {
        part: process.name().to_owned(),
        what,
        log: process.log().to_owned(),
        tail: process.tail(),
    }
}

/// On a full disk a part may not even be able to log why it ended.
fn is_full(directory: &Path) -> bool {
    rustix::fs::statvfs(directory).is_ok_and(|disk| disk.f_bavail == 0)
}

async fn ask_http(port: u16, path: &str) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.map_err(text)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(text)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.map_err(text)?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.lines().next().unwrap_or_default();
    if status.contains(" 200 ") {
        Ok(())
    } else {
        Err(format!("{status} {}", answer.lines().last().unwrap_or_default()))
    }
}
