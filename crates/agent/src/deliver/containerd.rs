//! containerd, over its own command `ctr`, which every host with containerd has: k3s calls it `k3s ctr`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use slipway_agent_api::{Class, Problem};
use slipway_slots::Digest;

use super::is_pinned;
use crate::cache::{Cache, announced_names};
use crate::command::Command;
use crate::service::machine::{Machine, Ran};

/// The kubelet's garbage collection leaves images alone that carry it.
const PINNED: &str = "io.cri-containerd.pinned";
/// By which we know what we brought.
const OURS: &str = "slipway.dev/image";

#[derive(Clone, Debug)]
pub struct Containerd {
    /// `ctr`, or `k3s ctr`.
    pub command: Vec<String>,
    /// Its socket; empty for the command's default.
    pub address: String,
    /// `k8s.io`, where the kubelet looks.
    pub namespace: String,
    /// Where an image lies as one file while it is imported.
    pub scratch: PathBuf,
}

impl Containerd {
    async fn run(&self, machine: &dyn Machine, arguments: &[&str]) -> Result<String, Problem> {
        let mut argv = self.command.clone();
        if !self.address.is_empty() {
            argv.extend(["--address".to_owned(), self.address.clone()]);
        }
        argv.extend(["--namespace".to_owned(), self.namespace.clone()]);
        argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let mut command = Command::new(argv);
        command.time_limit = Duration::from_mins(10);
        let Ran { outcome, output, .. } = machine.run(&command).await;
        let said = String::from_utf8_lossy(&output).into_owned();
        if outcome.is_success() {
            return Ok(said);
        }
        Err(Problem::new(
            Class::Transient,
            "Delivery",
            format!(
                "ctr {}: it {outcome}: {}",
                arguments.first().copied().unwrap_or_default(),
                said.chars().take(300).collect::<String>().trim()
            ),
        ))
    }

    /// Imports an image, says where it came from, and pins it. The names it is found by: tags and digests.
    pub async fn deliver(
        &self,
        cache: &Arc<Cache>,
        machine: &dyn Machine,
        digest: &Digest,
    ) -> Result<Vec<String>, Problem> {
        let record = cache.image(digest).ok_or_else(|| {
            Problem::new(
                Class::Terminal,
                "NotCached",
                format!("image {digest} is not cached here"),
            )
        })?;
        if record.names.is_empty() {
            return Err(Problem::new(
                Class::Terminal,
                "Delivery",
                format!(
                    "image {digest} has no name that containerd could find it by: ensure it with a reference"
                ),
            ));
        }
        let file = self.scratch.join(format!(
            ".slipway-import-{}.partial",
            digest.to_string().trim_start_matches("sha256:")
        ));
        let exported = {
            let (cache, digest, file) = (cache.clone(), *digest, file.clone());
            tokio::task::spawn_blocking(move || cache.export(&[digest], &file)).await
        };
        let imported = match exported {
            Ok(Ok(())) => {
                let place = file.display().to_string();
                self.run(machine, &["images", "import", "--no-unpack", &place])
                    .await
            }
            Ok(Err(error)) => Err(error.problem()),
            Err(_) => Err(Problem::new(
                Class::Transient,
                "Delivery",
                "exporting was given up",
            )),
        };
        // Whatever happened, the copy is not needed any more.
        let _ = std::fs::remove_file(&file);
        imported?;
        let names = announced_names(record.names.keys(), digest);
        for name in record.names.keys() {
            if let Some((registry, repository)) = source(name) {
                let label = format!("containerd.io/distribution.source.{registry}={repository}");
                for blob in &record.blobs {
                    let blob = blob.digest.to_string();
                    // Content that was there from before has its labels.
                    self.run(machine, &["content", "label", &blob, &label]).await?;
                }
            }
        }
        for name in &names {
            let labels = [format!("{PINNED}=pinned"), format!("{OURS}={digest}")];
            self.run(machine, &["images", "label", name, &labels[0], &labels[1]])
                .await?;
        }
        Ok(names)
    }

    /// Takes the pin off images that nobody needs any more, which the kubelet may then collect, and puts it back on those that
    /// somebody needs and that lost it.
    pub async fn tidy(&self, cache: &Cache, machine: &dyn Machine) -> Result<(), Problem> {
        let listed = self
            .run(machine, &["images", "list", &format!("labels.\"{OURS}\"")])
            .await?;
        for line in listed.lines().skip(1) {
            let name = line.split_whitespace().next().unwrap_or_default();
            let labels: Vec<_> = line.split([' ', ',']).collect();
            let ours = labels
                .iter()
                .find_map(|word| word.strip_prefix(&format!("{OURS}=")))
                .and_then(|digest| digest.parse::<Digest>().ok());
            let Some(digest) = ours else {
                continue;
            };
            let pin = format!("{PINNED}=pinned");
            let (has, needs) = (labels.contains(&pin.as_str()), is_pinned(cache, &digest));
            if has != needs {
                let label = if needs { pin } else { format!("{PINNED}=") };
                self.run(machine, &["images", "label", name, &label]).await?;
            }
        }
        Ok(())
    }
}

/// The registry and repository of a name.
fn source(name: &str) -> Option<(String, String)> {
    let reference: oci_client::Reference = name.parse().ok()?;
    Some((reference.registry().to_owned(), reference.repository().to_owned()))
}
