//! The verb that writes an image to the slot that does not run, from the cache or, without it, from whoever has the chunks that
//! are on no disk of this host.

use std::sync::Arc;
use std::time::Duration;

use oci_client::{Reference, secrets::RegistryAuth};
use slipway_agent_api::proto::{PeerHost, Prepare, Progress, RegistryCredentials, Upgrade};
use slipway_agent_api::{Class, Problem};
use slipway_slots::{Digest, manifest::SignedManifest};

use super::Host;
use super::slots::Moved;
use super::verbs::{Done, NotDone, digest};
use crate::cache::{BlobSource, PeerSource, RemoteCounts};

/// How often whoever watches sees the engine's count.
const SHOWN_EVERY: Duration = Duration::from_millis(250);

impl Host {
    pub(super) async fn prepare(self: &Arc<Self>, id: &str, prepare: &Prepare) -> Result<Done, NotDone> {
        let slots = self.slots()?;
        let image = digest(&prepare.digest)?;
        let counts = Arc::new(RemoteCounts::default());
        let preparing = self.write_slot(prepare, &image, &counts);
        tokio::pin!(preparing);
        let show = || {
            let progress = slots.progress();
            let (bytes_upstream, bytes_peers) = counts.get();
            let progress = Progress {
                bytes_done: progress.bytes_done,
                bytes_total: progress.bytes_total,
                bytes_upstream,
                bytes_peers,
                bytes_per_second: progress.rate,
                seconds_left: progress.eta_seconds.unwrap_or_default(),
            };
            self.operations.report(id, "writing", Some(progress));
        };
        loop {
            tokio::select! {
                prepared = &mut preparing => {
                    show();
                    let done = Done::from(prepared?);
                    return Ok(Done { digest: Some(image), ..done });
                }
                // The engine counts in another thread; whoever watches sees it move.
                () = tokio::time::sleep(SHOWN_EVERY) => show(),
            }
        }
    }

    async fn write_slot(
        self: &Arc<Self>,
        prepare: &Prepare,
        image: &Digest,
        counts: &Arc<RemoteCounts>,
    ) -> Result<Moved, Problem> {
        let slots = self.slots()?;
        if prepare.reference.is_empty() || self.cache.image(image).is_some() {
            let signed = self.cache.disk_image(image).map_err(|error| error.problem())?;
            self.remember_name(&signed, image)?;
            return slots.prepare(&prepare.upgrade, image).await;
        }
        let reference = parse_reference(&prepare.reference)?;
        let sources = self.sources(&reference, prepare.credentials.as_ref(), &prepare.peers);
        let remote = self
            .cache
            .remote_disk_image(*image, sources, counts.clone())
            .await
            .map_err(|error| error.problem())?;
        self.remember_name(&remote.signed, image)?;
        slots.prepare_remote(&prepare.upgrade, remote).await
    }

    /// Before the slot is written: whatever is said of it later can be said in the words of the order. A manifest that cannot be read
    /// has no name, and the engine refuses it.
    fn remember_name(&self, signed: &SignedManifest, digest: &Digest) -> Result<(), Problem> {
        let Ok(manifest) = signed.unverified() else {
            return Ok(());
        };
        let status = self.slots()?.status();
        let in_slots = status.iter().flat_map(|status| &status.slots);
        let quarantined = status.iter().flat_map(|status| &status.quarantined);
        let upgrades = self.slots()?.upgrades();
        let needed = in_slots
            .filter_map(|slot| slot.image)
            .chain(quarantined.map(|(image, _)| *image))
            .chain(upgrades.iter().filter_map(|upgrade| upgrade.image.parse().ok()))
            .collect();
        self.image_names
            .add(manifest.id(), *digest, &needed)
            .map_err(|error| {
                Problem::new(
                    Class::Transient,
                    "Disk",
                    format!("writing down what image {} is called: {error}", digest.short()),
                )
            })
    }

    /// What orders call an image of a slot: as far as one was given here, or the cache has it.
    pub(super) fn digests_of(&self, image: &Digest) -> Vec<String> {
        let mut digests = self.image_names.of(image);
        digests.extend(self.cache.digests_of_slot_image(image));
        digests.iter().map(ToString::to_string).collect()
    }

    pub(super) fn with_digests(&self, mut upgrade: Upgrade) -> Upgrade {
        if let Ok(image) = upgrade.image.parse() {
            upgrade.digests = self.digests_of(&image);
        }
        upgrade
    }

    /// Who is asked for an image: hosts beside this one, mirrors, then the registry itself.
    pub(super) fn sources(
        &self,
        reference: &Reference,
        credentials: Option<&RegistryCredentials>,
        peers: &[PeerHost],
    ) -> Vec<Arc<dyn BlobSource>> {
        let mut sources: Vec<Arc<dyn BlobSource>> = Vec::new();
        for peer in peers.iter().filter(|peer| peer.host != self.name) {
            if let Some(tls) = &self.tls {
                sources.push(Arc::new(PeerSource::new(&peer.host, &peer.address, tls.clone())));
            }
        }
        let auth = credentials.map(|credentials| {
            RegistryAuth::Basic(credentials.username.clone(), credentials.password.clone())
        });
        for registry in self.registries.places(reference, auth.as_ref()) {
            sources.push(Arc::new(registry));
        }
        sources
    }
}

pub(super) fn parse_reference(text: &str) -> Result<Reference, Problem> {
    text.parse().map_err(|error| {
        Problem::new(
            Class::Terminal,
            "InvalidOrder",
            format!("the reference {text}: {error}"),
        )
    })
}
