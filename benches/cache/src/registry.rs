//! Upstream: Debian's `docker-registry`, and before it a link of limited bandwidth that counts what goes to the hosts.

use std::{
    fs,
    net::TcpListener as Listener,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use oci_client::{
    Client, Reference,
    client::{ClientConfig, ClientProtocol, Config, ImageLayer},
    secrets::RegistryAuth,
};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    time::Instant,
};

/// An image has so many layers of equal size.
const LAYERS: usize = 4;
/// What waits for its turn on the link at a time.
const PIECE: usize = 64 << 10;

/// A registry that ends with this value.
pub struct Registry {
    child: Child,
    /// Where the registry itself listens: only the image's maker goes there.
    own: String,
    /// The hosts' end of the link.
    pub address: String,
    sent: Arc<AtomicU64>,
    _folder: TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One link for all: each piece waits until those before it are through.
struct Link {
    bytes_per_second: u64,
    free_at: Mutex<Instant>,
    sent: Arc<AtomicU64>,
}

impl Link {
    async fn pass(&self, bytes: usize) {
        let until = {
            let mut free_at = self.free_at.lock().await;
            let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
            *free_at = (*free_at).max(Instant::now()) + takes;
            *free_at
        };
        tokio::time::sleep_until(until).await;
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// One connection. Requests are small and go through as they come.
    async fn carry(&self, host: TcpStream, registry: &str) -> std::io::Result<()> {
        let (mut from_host, mut to_host) = host.into_split();
        let (mut from_registry, mut to_registry) = TcpStream::connect(registry).await?.into_split();
        let requests = async {
            tokio::io::copy(&mut from_host, &mut to_registry).await?;
            to_registry.shutdown().await
        };
        let answers = async {
            let mut piece = vec![0; PIECE];
            loop {
                let length = from_registry.read(&mut piece).await?;
                if length == 0 {
                    return to_host.shutdown().await;
                }
                self.pass(length).await;
                to_host.write_all(&piece[..length]).await?;
            }
        };
        tokio::try_join!(requests, answers).map(|_| ())
    }
}

impl Registry {
    pub async fn start(bytes_per_second: u64) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let own = Listener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {own}\n",
            folder.path().join("data").display()
        );
        let path = folder.path().join("config.yml");
        fs::write(&path, config)?;
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting docker-registry; `crates/agent/tests/machine/install.sh` installs it")?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let sent = Arc::new(AtomicU64::new(0));
        let registry = Self {
            child,
            own: own.clone(),
            address: listener.local_addr()?.to_string(),
            sent: sent.clone(),
            _folder: folder,
        };
        let began = Instant::now();
        while TcpStream::connect(&own).await.is_err() {
            if began.elapsed() > Duration::from_mins(1) {
                bail!("docker-registry does not answer");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let link = Arc::new(Link {
            bytes_per_second,
            free_at: Mutex::new(Instant::now()),
            sent,
        });
        tokio::spawn(async move {
            while let Ok((host, _)) = listener.accept().await {
                let (link, own) = (link.clone(), own.clone());
                // A host that leaves in the middle is none of the link's business.
                tokio::spawn(async move { link.carry(host, &own).await });
            }
        });
        Ok(registry)
    }

    /// Bytes that went to hosts so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Makes an image of that size, which does not compress. Its digest.
    pub async fn push(&self, size: usize) -> Result<String> {
        // Whoever was first has the same one.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let client = Client::new(ClientConfig {
            protocol: ClientProtocol::Http,
            ..ClientConfig::default()
        });
        let mut random = StdRng::seed_from_u64(7);
        let layers: Vec<_> = (0..LAYERS)
            .map(|_| {
                let mut bytes = vec![0; size / LAYERS];
                random.fill_bytes(&mut bytes);
                ImageLayer::oci_v1(bytes, None)
            })
            .collect();
        let architecture = match std::env::consts::ARCH {
            "aarch64" => "arm64",
            _ => "amd64",
        };
        let config = format!(r#"{{"architecture":"{architecture}","os":"linux"}}"#);
        let reference: Reference = format!("{}/app:1", self.own).parse()?;
        let (config, auth) = (Config::oci_v1(config.into_bytes(), None), RegistryAuth::Anonymous);
        client.push(&reference, &layers, config, &auth, None).await?;
        let (_, digest) = client.pull_manifest(&reference, &auth).await?;
        Ok(digest)
    }
}
