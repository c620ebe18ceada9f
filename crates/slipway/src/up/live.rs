//! One line that says how an example stands: on a terminal it stays where it is, in a file it follows when something else is waited for.

use std::io::{IsTerminal, Write, stdout};

use jiff::Timestamp;
use kube::Client;
use slipway_insight::{Catalogue, Id, Tree, explain, tree};

use crate::see::{Connection, Reader, Watching, describe, terminal};

/// Shows a Cluster until it is dropped.
pub async fn follow(client: &Client, catalogue: &Catalogue, cluster: &Id, line: &mut Line) {
    // It is for people to look at: whoever cannot see it now goes on without.
    let Ok(connection) = Connection::over(client.clone(), cluster.namespace.clone()).await else {
        return std::future::pending().await;
    };
    let reader = Reader {
        connection: &connection,
        catalogue,
    };
    let Ok(mut collected) = reader.cluster(&cluster.namespace, &cluster.name).await else {
        return std::future::pending().await;
    };
    let mut watching = Watching::default();
    loop {
        let now = Timestamp::now();
        if let (Some(tree), Some(explanation)) = (
            tree(&collected.objects, catalogue, cluster, now),
            explain(&collected.objects, catalogue, cluster, now),
        ) {
            let cause = explanation.cause().map(|cause| {
                let judgement = &cause.judgement;
                let id = terminal::plain(&cause.id.to_string());
                let reason = terminal::plain(&judgement.reason);
                (format!("{id} {reason}"), terminal::plain(&judgement.message))
            });
            line.show(explanation.state.word(), cause, progress(&tree).as_deref());
        }
        watching.begin(&connection, &collected.sources);
        watching.changed(&mut collected.objects).await;
        if watching.problem.is_none() && reader.follow(&mut collected).await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// The first progress that there is, from the root down.
fn progress(tree: &Tree) -> Option<String> {
    let mut found = None;
    tree.root.walk(&mut |node| {
        if found.is_none() {
            found = node.progress.as_ref().map(describe::progress);
        }
    });
    found
}

/// The line of one example.
pub struct Line {
    name: String,
    is_terminal: bool,
    width: usize,
    /// What it says, without what changes by itself.
    said: String,
}

impl Line {
    pub fn new(name: &str) -> Self {
        let look = terminal::Look::of_stdout(false);
        Self {
            name: terminal::plain(name),
            is_terminal: stdout().is_terminal(),
            width: look.width.unwrap_or(120),
            said: String::new(),
        }
    }

    fn show(&mut self, state: &str, cause: Option<(String, String)>, progress: Option<&str>) {
        let (key, message) = cause.unwrap_or_default();
        let parts = [key.as_str(), message.as_str(), progress.unwrap_or_default()];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let text = format!("  {}: {state} · {}", self.name, parts.join(" · "));
        let mut out = stdout().lock();
        // Nobody is there to be told when the terminal is gone.
        let _ = if self.is_terminal {
            let shown: String = text.chars().take(self.width.saturating_sub(1)).collect();
            write!(out, "\r\x1b[2K{shown}").and_then(|()| out.flush())
        } else if self.said == key {
            Ok(())
        } else {
            writeln!(out, "{text}")
        };
        self.said = key;
    }

    /// Makes room for what comes next.
    pub fn clear(&self) {
        if self.is_terminal {
            print!("\r\x1b[2K");
        }
    }
}
