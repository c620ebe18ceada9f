//! Verbs on images: had, delivered, taken out and brought in as bundles.

use std::sync::Arc;
use std::time::Instant;

use oci_client::Reference;
use parking_lot::Mutex;
use slipway_agent_api::proto::{self, Delivery, Ensure};
use slipway_agent_api::{Class, Problem};
use slipway_slots::Digest;

use super::Host;
use super::prepare::parse_reference;
use super::speed::Speed;
use super::verbs::{Done, NotDone, about, digest, said, seconds};
use crate::cache::{self, TagPolicy};

impl Host {
    pub(super) async fn ensure(self: &Arc<Self>, id: &str, ensure: &Ensure) -> Result<Done, NotDone> {
        let image = ensure.image.clone().unwrap_or_default();
        let reference = parse_reference(&image.reference)?;
        let sources = self.sources(&reference, ensure.credentials.as_ref(), &ensure.peers);
        let request = cache::Ensure {
            name: Some(name_of(&reference, &image)),
            digest: (!image.digest.is_empty())
                .then(|| digest(&image.digest))
                .transpose()?,
            tag_policy: match proto::TagPolicy::try_from(image.tag_policy) {
                Ok(proto::TagPolicy::PreferCache) => TagPolicy::PreferCache,
                _ => TagPolicy::PreferRegistry,
            },
            sources,
            ttl: seconds(ensure.ttl_seconds),
            pin: (!ensure.pin_owner.is_empty()).then(|| ensure.pin_owner.clone()),
            verify: ensure.verify,
        };
        let mut again = true;
        let speed = Mutex::new(Speed::default());
        loop {
            let image = self
                .cache
                .ensure(request.clone(), |progress| {
                    let progress = speed.lock().of(progress.into(), Instant::now());
                    self.operations.report(id, "downloading", Some(progress));
                })
                .await
                .map_err(|error| error.problem())?;
            let _lease = self.cache.lease(&image).map_err(|error| error.problem())?;
            match self.deliver(id, &image, ensure.delivery()).await {
                Ok(()) => return about(image, "the image is usable"),
                // What was damaged on disk is had again, once.
                Err(problem) if again && problem.reason == "Damaged" => again = false,
                Err(problem) => return Err(problem.into()),
            }
        }
    }

    async fn deliver(self: &Arc<Self>, id: &str, image: &Digest, delivery: Delivery) -> Result<(), Problem> {
        let not_here = |what: &str| {
            Problem::new(
                Class::Terminal,
                "NoDelivery",
                format!("this host's configuration names no {what}"),
            )
        };
        let kind = self.cache.image(image).map(|record| record.kind);
        if delivery != Delivery::None && kind == Some(cache::Kind::Disk) {
            return Err(Problem::new(
                Class::Terminal,
                "NoDelivery",
                format!("image {image} is for slots and not for containers"),
            ));
        }
        match delivery {
            Delivery::None => Ok(()),
            Delivery::K3s => {
                self.operations.report(id, "delivering to k3s", None);
                let folder = self.deliveries.k3s.clone().ok_or_else(|| not_here("k3s"))?;
                let (cache, image) = (self.cache.clone(), *image);
                blocking(move || folder.deliver(&cache, &image)).await?
            }
            Delivery::Containerd => {
                self.operations.report(id, "delivering to containerd", None);
                let containerd = self.deliveries.containerd.as_ref();
                let containerd = containerd.ok_or_else(|| not_here("containerd"))?;
                containerd
                    .deliver(&self.cache, self.machine.as_ref(), image)
                    .await
                    .map(|_| ())
            }
        }
    }

    pub(super) async fn export(self: &Arc<Self>, export: &proto::Export) -> Result<Done, NotDone> {
        let images = export
            .digests
            .iter()
            .map(|text| digest(text))
            .collect::<Result<Vec<_>, _>>()?;
        let (cache, path) = (self.cache.clone(), self.exchange.join(&export.name));
        std::fs::create_dir_all(&self.exchange).map_err(|error| {
            Problem::new(
                Class::Transient,
                "Disk",
                format!("the exchange directory: {error}"),
            )
        })?;
        blocking(move || cache.export(&images, &path).map_err(|error| error.problem())).await??;
        said(format!("{} is written", export.name))
    }

    pub(super) async fn import(self: &Arc<Self>, import: &proto::Import) -> Result<Done, NotDone> {
        let only = import
            .digests
            .iter()
            .map(|text| digest(text))
            .collect::<Result<Vec<_>, _>>()?;
        let (cache, path) = (self.cache.clone(), self.exchange.join(&import.name));
        let images = blocking(move || cache.import(&path, &only).map_err(|error| error.problem())).await??;
        Ok(Done {
            message: format!("{} images are usable", images.len()),
            digest: images.first().map(|image| image.digest),
            ..Done::default()
        })
    }
}

/// What an image goes by: its tag in full, or its repository when it was ordered by digest alone.
fn name_of(reference: &Reference, image: &proto::ImageReference) -> String {
    let repository = format!("{}/{}", reference.registry(), reference.repository());
    let plain = image.reference.split('@').next().unwrap_or_default();
    let tagged = plain.rsplit('/').next().is_some_and(|last| last.contains(':'));
    match reference.tag() {
        Some(tag) if tagged || image.digest.is_empty() => format!("{repository}:{tag}"),
        _ => repository,
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| Problem::new(Class::Transient, "Interrupted", "the work was given up"))
}
