//! A real OCI registry (Debian's `docker-registry`), with a password, a mirror, and upstream cut off.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use oci_client::{
    Client, Reference, RegistryOperation,
    client::{ClientConfig, ClientProtocol, Config, ImageLayer},
    secrets::RegistryAuth,
};
use slipway_agent::cache::{BlobSource, Cache, Ensure, RegistrySettings, TagPolicy};
use slipway_hosts_sim::NodeImage;
use slipway_slots::Digest;
use tempfile::TempDir;

use super::{layer, open};

const USER: &str = "edge";
const PASSWORD: &str = "canary-registry-password";
/// The password above, as htpasswd stores it.
const STORED: &str = "edge:$2y$05$abcdefghijklmnopqrstuuFqj9r0gzLJx5.wQXjqr5awOiZGCazOq\n";

/// Where the registry says that it listens: a port that the kernel gave it, so nobody else has it.
fn listens_at(log: &Path) -> String {
    let began = Instant::now();
    loop {
        let text = fs::read_to_string(log).unwrap();
        if let Some((_, rest)) = text.split_once("listening on ")
            && let Some((address, _)) = rest.split_once('"')
        {
            return address.to_owned();
        }
        assert!(
            began.elapsed() < Duration::from_mins(5),
            "the registry does not start: {text}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A registry process that ends with the test.
pub struct RealRegistry {
    child: Child,
    pub address: String,
    folder: TempDir,
}

impl Drop for RealRegistry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl RealRegistry {
    /// None, with the reason said, where the program is not installed.
    pub fn start(test: &str, password: bool) -> Option<Self> {
        if Command::new("docker-registry").arg("--version").output().is_err() {
            println!(
                "report: skipped: {test}: docker-registry is not installed (Debian package docker-registry)"
            );
            return None;
        }
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("htpasswd"), STORED).unwrap();
        let auth = if password {
            format!(
                "auth:\n  htpasswd:\n    realm: test\n    path: {}\n",
                folder.path().join("htpasswd").display()
            )
        } else {
            String::new()
        };
        let config = format!(
            "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n{auth}",
            folder.path().join("data").display()
        );
        let path = folder.path().join("config.yml");
        fs::write(&path, config).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Some(Self {
            child,
            address: listens_at(&folder.path().join("log")),
            folder,
        })
    }

    /// Stops answering.
    pub fn cut_off(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Pushes an image of one layer; its digest.
    pub async fn push(&self, name: &str, bytes: &[u8], auth: &RegistryAuth) -> Digest {
        let config = br#"{"architecture":"amd64","os":"linux"}"#.to_vec();
        self.push_with(name, bytes, config, auth).await
    }

    pub async fn push_with(&self, name: &str, bytes: &[u8], config: Vec<u8>, auth: &RegistryAuth) -> Digest {
        // Whoever was first has the same one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = Client::new(ClientConfig {
            protocol: ClientProtocol::Http,
            ..ClientConfig::default()
        });
        let reference: Reference = format!("{}/{name}", self.address).parse().unwrap();
        let config = Config::oci_v1(config, None);
        let layers = [ImageLayer::oci_v1(bytes.to_vec(), None)];
        client
            .push(&reference, &layers, config, auth, None)
            .await
            .unwrap();
        let (_, digest) = client.pull_manifest(&reference, auth).await.unwrap();
        digest.parse().unwrap()
    }

    /// Pushes an image for slots; how it is referred to.
    pub async fn push_image(&self, image: &NodeImage, repository: &str, tag: &str) -> String {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = Client::new(ClientConfig {
            protocol: ClientProtocol::Http,
            ..ClientConfig::default()
        });
        let name = format!("{}/{repository}:{tag}", self.address);
        let reference: Reference = name.parse().unwrap();
        client
            .auth(&reference, &RegistryAuth::Anonymous, RegistryOperation::Push)
            .await
            .unwrap();
        let ((digest, manifest), blobs) = image.blobs().split_last().unwrap();
        assert_eq!(*digest, image.digest);
        for (digest, bytes) in blobs {
            client
                .push_blob(&reference, bytes.clone(), &digest.to_string())
                .await
                .unwrap();
        }
        let kind = "application/vnd.oci.image.manifest.v1+json".parse().unwrap();
        client
            .push_manifest_raw(&reference, manifest.clone(), kind)
            .await
            .unwrap();
        name
    }

    /// Damages every stored blob of that size.
    fn damage(&self, length: u64) -> usize {
        fn walk(folder: &Path, length: u64, changed: &mut usize) {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    walk(&entry.path(), length, changed);
                } else if entry.metadata().unwrap().len() == length {
                    let mut bytes = fs::read(entry.path()).unwrap();
                    bytes[0] ^= 1;
                    fs::write(entry.path(), bytes).unwrap();
                    *changed += 1;
                }
            }
        }
        let mut changed = 0;
        walk(self.folder.path(), length, &mut changed);
        changed
    }
}

pub fn request(
    settings: &RegistrySettings,
    name: &str,
    digest: Option<Digest>,
    auth: Option<&RegistryAuth>,
) -> Ensure {
    let reference: Reference = name.parse().unwrap();
    Ensure {
        name: Some(name.to_owned()),
        digest,
        tag_policy: TagPolicy::PreferRegistry,
        sources: settings
            .places(&reference, auth)
            .into_iter()
            .map(|registry| Arc::new(registry) as Arc<dyn BlobSource>)
            .collect(),
        ttl: None,
        pin: None,
        verify: false,
    }
}

fn plain(registries: &[&RealRegistry]) -> RegistrySettings {
    RegistrySettings {
        plain_http: registries
            .iter()
            .map(|registry| registry.address.clone())
            .collect(),
        ..RegistrySettings::default()
    }
}

async fn whole(cache: &Arc<Cache>, digest: &Digest) {
    assert!(cache.verify(digest).await.unwrap());
}

#[tokio::test]
async fn e47_an_image_of_a_real_registry_is_cached_and_stays_with_upstream_cut_off() {
    let Some(mut registry) = RealRegistry::start("e47 with a real registry", false) else {
        return;
    };
    let digest = registry
        .push("app:1", &layer(1, 300_000), &RegistryAuth::Anonymous)
        .await;
    let root = TempDir::new().unwrap();
    let cache = open(root.path(), 8 << 20);
    let settings = plain(&[&registry]);
    let name = format!("{}/app:1", registry.address);
    // By tag; then by digest with nobody there.
    assert_eq!(
        cache.ensure(request(&settings, &name, None, None), |_| {}).await,
        Ok(digest)
    );
    registry.cut_off();
    assert_eq!(
        cache
            .ensure(request(&settings, &name, Some(digest), None), |_| {})
            .await,
        Ok(digest)
    );
    assert_eq!(
        cache.ensure(request(&settings, &name, None, None), |_| {}).await,
        Ok(digest),
        "the tag is answered offline"
    );
    whole(&cache, &digest).await;
}

#[tokio::test]
async fn a_password_is_needed_and_never_shown_and_a_mirror_is_asked_first() {
    let (Some(registry), Some(mut mirror)) = (
        RealRegistry::start("credentials with a real registry", true),
        RealRegistry::start("a mirror with a real registry", false),
    ) else {
        return;
    };
    let auth = RegistryAuth::Basic(USER.into(), PASSWORD.into());
    let bytes = layer(2, 200_000);
    let digest = registry.push("app:1", &bytes, &auth).await;
    assert_eq!(
        mirror.push("app:1", &bytes, &RegistryAuth::Anonymous).await,
        digest
    );
    let name = format!("{}/app:1", registry.address);
    let mut settings = plain(&[&registry, &mirror]);
    let root = TempDir::new().unwrap();
    let mut cache = open(root.path(), 8 << 20);

    let said = cache
        .ensure(request(&settings, &name, Some(digest), None), |_| {})
        .await
        .unwrap_err();
    assert!(said.to_string().contains("other credentials"), "{said}");
    let wrong = RegistryAuth::Basic(USER.into(), "canary-wrong-password".into());
    let said = cache
        .ensure(request(&settings, &name, Some(digest), Some(&wrong)), |_| {})
        .await
        .unwrap_err();
    assert!(!format!("{said} {said:?}").contains("canary"), "{said}");
    cache
        .ensure(request(&settings, &name, Some(digest), Some(&auth)), |_| {})
        .await
        .unwrap();
    whole(&cache, &digest).await;

    // The mirror has it without a password.
    settings.mirrors = vec![(registry.address.clone(), mirror.address.clone())];
    let other = TempDir::new().unwrap();
    cache = open(other.path(), 8 << 20);
    cache
        .ensure(request(&settings, &name, Some(digest), None), |_| {})
        .await
        .unwrap();
    // With the mirror gone, the registry is asked after it.
    mirror.cut_off();
    cache.evict(&digest).unwrap();
    cache
        .ensure(request(&settings, &name, Some(digest), Some(&auth)), |_| {})
        .await
        .unwrap();
    whole(&cache, &digest).await;
}

#[tokio::test]
async fn e48_e49_a_real_registry_resumes_by_range_and_damage_in_it_is_noticed() {
    let Some(registry) = RealRegistry::start("e48 and e49 with a real registry", false) else {
        return;
    };
    let bytes = layer(3, 777_777);
    let digest = registry.push("app:1", &bytes, &RegistryAuth::Anonymous).await;
    let root = TempDir::new().unwrap();
    let settings = plain(&[&registry]);
    let name = format!("{}/app:1", registry.address);
    // The first half was downloaded by an agent that is gone.
    let cache = open(root.path(), 8 << 20);
    drop(cache);
    let half = root
        .path()
        .join("partial")
        .join(Digest::of(&bytes).to_string().trim_start_matches("sha256:"));
    fs::write(&half, &bytes[..400_000]).unwrap();
    let cache = open(root.path(), 8 << 20);
    let seen = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let report = seen.clone();
    cache
        .ensure(request(&settings, &name, Some(digest), None), move |progress| {
            report.lock().push(progress.upstream);
        })
        .await
        .unwrap();
    whole(&cache, &digest).await;
    let upstream = seen.lock().last().copied().unwrap_or_default();
    assert!(upstream < 400_000, "{upstream} bytes came, and half was there");

    assert_eq!(registry.damage(777_777), 1);
    cache.evict(&digest).unwrap();
    let said = cache
        .ensure(request(&settings, &name, Some(digest), None), |_| {})
        .await
        .unwrap_err();
    assert!(said.to_string().contains("sent other bytes"), "{said}");
    assert!(cache.image(&digest).is_none());
}
