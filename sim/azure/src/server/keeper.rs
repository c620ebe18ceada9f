//! Keeps the state in a file: written beside it, flushed to disk, renamed over it, so that there is always a whole one.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Notify, watch};

use crate::{azure::State, simulator::Simulator};

/// Writes at most this often, and spends at most a tenth of the time on it. What changed since the last write is lost
/// when the process is killed, not when it is stopped.
const PAUSE: Duration = Duration::from_millis(250);

pub async fn keep(
    simulator: Simulator,
    path: PathBuf,
    changed: Arc<Notify>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut written = None;
    let mut pause = PAUSE;
    loop {
        let began = Instant::now();
        let ends = *stopped.borrow_and_update();
        let (revision, text) = {
            let azure = simulator.azure();
            let revision = azure.revision();
            let text = (written != Some(revision)).then(|| serde_json::to_vec(azure.state()));
            (revision, text)
        };
        match text {
            None => {}
            Some(Ok(text)) => {
                let path = path.clone();
                let saved = tokio::task::spawn_blocking(move || write(&path, &text)).await;
                match saved {
                    Ok(Ok(())) => written = Some(revision),
                    Ok(Err(error)) => tracing::error!(%error, "the state could not be written"),
                    Err(error) => tracing::error!(%error, "writing the state was cut off"),
                }
            }
            Some(Err(error)) => tracing::error!(%error, "the state could not be turned into JSON"),
        }
        if ends {
            return;
        }
        pause = (began.elapsed() * 9).max(PAUSE).max(pause / 2);
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = stopped.changed() => continue,
        }
        tokio::select! {
            () = changed.notified() => {}
            // Operations end by themselves, without a request.
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            _ = stopped.changed() => {}
        }
    }
}

pub fn write(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::File::open(folder)?.sync_all()
}

/// The state in a file; none when there is no file yet.
pub fn read(path: &Path) -> std::io::Result<Option<State>> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map(Some)
            .map_err(std::io::Error::other),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
