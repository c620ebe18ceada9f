//! The cache over a bad network: a registry on the wire that cuts, stalls, drips, lies about ranges, changes and refuses. It
//! completes without help, or fails with one reason.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use slipway_agent::{
    cache::{Cache, RegistrySettings, Waits},
    engine::Unhindered,
};
use tempfile::TempDir;

use super::{TestImage, layer, open_with, real_registry::request, settings};
use crate::fetch::proxy::{Fault, Proxy};

fn image() -> TestImage {
    TestImage::of("app", &[layer(1, 180_000), layer(2, 5000)])
}

fn registry(image: &TestImage, faults: Vec<Fault>) -> Proxy {
    let files: BTreeMap<_, _> = image
        .blobs
        .iter()
        .map(|(digest, bytes)| (digest.to_string(), bytes.to_vec()))
        .collect();
    Proxy::registry(files, faults)
}

/// A cache that waits for a silent registry as long as a test can, and the registry's address.
fn host(folder: &TempDir, proxy: &Proxy) -> (Arc<Cache>, RegistrySettings, String) {
    let mut settings = settings(8 << 20);
    settings.waits = Waits {
        stall: Duration::from_millis(300),
        ..settings.waits
    };
    let address = proxy
        .address
        .trim_start_matches("http://")
        .trim_end_matches("/images")
        .to_owned();
    let registries = RegistrySettings {
        plain_http: vec![address.clone()],
        ..RegistrySettings::default()
    };
    let cache = open_with(folder.path(), settings, Arc::new(Unhindered));
    (cache, registries, format!("{address}/app:1"))
}

#[tokio::test(flavor = "multi_thread")]
async fn e48_every_fault_of_the_network_at_every_request_is_survived() {
    let image = image();
    let faults = [
        Fault::Cut(0),
        Fault::Cut(70_000),
        Fault::NoAnswer,
        Fault::Stall(1000),
        Fault::Status(429, "Retry-After: 0\r\n"),
        Fault::Status(500, ""),
        Fault::Status(503, ""),
        Fault::IgnoreRange,
        Fault::LieAboutRange,
        Fault::Change,
        Fault::Drip(3000),
    ];
    let (mut runs, mut met) = (0, 0);
    for fault in faults {
        for at in [0, 1, 2, 3, 4, 6] {
            let folder = TempDir::new().unwrap();
            // A cut before it, so that ranges are asked for.
            let mut script = vec![Fault::Drip(50_000); at];
            if at > 2 {
                script[2] = Fault::Cut(60_000);
            }
            script.extend([fault.clone(), fault.clone()]);
            let proxy = registry(&image, script);
            let (cache, registries, name) = host(&folder, &proxy);
            let order = request(&registries, &name, Some(image.digest), None);
            let digest = cache
                .ensure(order, |_| {})
                .await
                .unwrap_or_else(|error| panic!("{fault:?} at request {at}: {error}"));
            assert!(cache.verify(&digest).await.unwrap(), "{fault:?} at request {at}");
            runs += 1;
            met += usize::from(proxy.faults_left() == 0);
        }
    }
    println!(
        "report: the cache completed {runs} downloads over a bad network, {met} of which met the fault twice"
    );
    assert!(met > runs / 2, "{met} of {runs}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_waiting_helps_against_is_told_at_once() {
    let image = image();
    for (status, expected) in [
        (401, "other credentials"),
        (403, "refuses it"),
        (404, "does not have it"),
    ] {
        let folder = TempDir::new().unwrap();
        let proxy = registry(&image, vec![Fault::Status(status, ""); 64]);
        let (cache, registries, name) = host(&folder, &proxy);
        let order = request(&registries, &name, Some(image.digest), None);
        let said = tokio::time::timeout(Duration::from_mins(5), cache.ensure(order, |_| {}))
            .await
            .expect("it does not wait")
            .unwrap_err()
            .to_string();
        assert!(said.contains(expected), "{status}: {said}");
        assert!(cache.image(&image.digest).is_none());
    }
}
