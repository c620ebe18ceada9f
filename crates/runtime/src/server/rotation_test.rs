//! The certificate of a server under load is renewed the way a kubelet renews cert-manager's secret volume. No request is
//! dropped, new connections get the new certificate, and old ones go on.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::{
    ClientConfig, RootCertStore,
    client::Resumption,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::{Listener, Protocol};
use crate::certificates::{CertificateFiles, Certificates, SelfSigned, install_crypto_provider};

const HANG_GUARD: Duration = Duration::from_mins(1);

/// `tls.crt -> ..data/tls.crt`, `..data -> ..<number>`, and a new link renamed over `..data`.
fn renew(volume: &Path, number: usize, pair: &SelfSigned) {
    let name = format!("..{number}");
    pair.write(&volume.join(&name)).unwrap();
    symlink(&name, volume.join("..data_tmp")).unwrap();
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    for file in ["ca.crt", "tls.crt", "tls.key"] {
        if fs::symlink_metadata(volume.join(file)).is_err() {
            symlink(Path::new("..data").join(file), volume.join(file)).unwrap();
        }
    }
    if number > 0 {
        fs::remove_dir_all(volume.join(format!("..{}", number - 1))).unwrap();
    }
}

#[derive(Clone)]
struct Client {
    address: SocketAddr,
    connector: TlsConnector,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl Client {
    fn trusting(pairs: &[SelfSigned], address: SocketAddr) -> Self {
        install_crypto_provider();
        let mut roots = RootCertStore::empty();
        for pair in pairs {
            let ca = CertificateDer::from_pem_slice(pair.ca.as_bytes()).unwrap();
            roots.add(ca).unwrap();
        }
        let mut config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        // A resumed session shows the certificate it began with.
        config.resumption = Resumption::disabled();
        Self {
            address,
            connector: TlsConnector::from(Arc::new(config)),
        }
    }

    /// A connection, and the certificate it was answered with.
    async fn connect(&self) -> Result<(http1::SendRequest<Empty<Bytes>>, Vec<u8>), Error> {
        let stream = TcpStream::connect(self.address).await?;
        let stream = self
            .connector
            .connect(ServerName::try_from("localhost")?, stream)
            .await?;
        let leaf = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(|chain| chain.first())
            .ok_or("no certificate")?
            .to_vec();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok((sender, leaf))
    }
}

async fn request(sender: &mut http1::SendRequest<Empty<Bytes>>) -> Result<(), Error> {
    let request = Request::get("/").header("host", "localhost").body(Empty::new())?;
    let answer = sender.send_request(request).await?;
    let body = answer.into_body().collect().await?.to_bytes();
    if body == "afloat" {
        Ok(())
    } else {
        Err("another answer".into())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_of_a_secret_volume_drop_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let pairs: Vec<SelfSigned> = (0..4)
        .map(|_| SelfSigned::generate(&["localhost".to_owned()]).unwrap())
        .collect();
    renew(folder.path(), 0, &pairs[0]);
    let files = CertificateFiles::in_directory(folder.path());
    let certificates = Arc::new(Certificates::load(&files).unwrap());
    let cancel = CancellationToken::new();
    let follower = tokio::spawn(certificates.clone().follow_every(
        Duration::from_millis(5),
        files,
        cancel.clone(),
    ));
    let listener = Listener::bind("127.0.0.1:0", "--test").await.unwrap();
    let client = Client::trusting(&pairs, listener.address());
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let protocol = Protocol::tls(certificates.clone(), &versions, &[]).unwrap();
    let server = tokio::spawn(listener.serve(
        protocol,
        |_| async {
            tokio::task::yield_now().await;
            Response::new(Full::new(Bytes::from_static(b"afloat")))
        },
        cancel.clone(),
    ));

    let answered = Arc::new(AtomicUsize::new(0));
    let failures = Arc::new(Mutex::new(Vec::new()));
    let stop = CancellationToken::new();
    // One keeps its connection over every renewal; the others make a new one for each request.
    let callers: Vec<_> = (0..3)
        .map(|caller| {
            let (client, answered, failures, stop) =
                (client.clone(), answered.clone(), failures.clone(), stop.clone());
            tokio::spawn(async move {
                let mut kept = if caller == 0 {
                    client.connect().await.ok()
                } else {
                    None
                };
                while !stop.is_cancelled() {
                    let ended = match &mut kept {
                        Some((sender, _)) => request(sender).await,
                        None => match client.connect().await {
                            Ok((mut sender, _)) => request(&mut sender).await,
                            Err(error) => Err(error),
                        },
                    };
                    match ended {
                        Ok(()) => _ = answered.fetch_add(1, Ordering::Relaxed),
                        Err(error) => failures.lock().push(format!("caller {caller}: {error}")),
                    }
                }
                kept.map(|(_, leaf)| leaf)
            })
        })
        .collect();

    for (number, pair) in pairs.iter().enumerate().skip(1) {
        renew(folder.path(), number, pair);
        let desired = pair.certificates().unwrap().leaf();
        let taken_up = async {
            while certificates.leaf() != desired {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(HANG_GUARD, taken_up)
            .await
            .expect("the renewal is taken up");
        let (mut sender, leaf) = client.connect().await.unwrap();
        assert_eq!(leaf, desired, "a new connection gets renewal {number}");
        request(&mut sender).await.unwrap();
        // Callers meet this renewal too, before the next.
        let before = answered.load(Ordering::Relaxed);
        let served = async {
            while answered.load(Ordering::Relaxed) < before + 10 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(HANG_GUARD, served)
            .await
            .expect("requests go on");
    }
    stop.cancel();
    let mut first = Vec::new();
    for caller in callers {
        first.extend(caller.await.unwrap());
    }
    assert_eq!(
        first,
        [pairs[0].certificates().unwrap().leaf()],
        "one connection outlived every renewal"
    );
    assert_eq!(*failures.lock(), Vec::<String>::new());
    cancel.cancel();
    server.await.unwrap();
    follower.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_renewal_between_loading_and_the_first_look_is_taken_up() {
    let folder = tempfile::tempdir().unwrap();
    let pairs: Vec<SelfSigned> = (0..2)
        .map(|_| SelfSigned::generate(&["localhost".to_owned()]).unwrap())
        .collect();
    renew(folder.path(), 0, &pairs[0]);
    let files = CertificateFiles::in_directory(folder.path());
    let certificates = Arc::new(Certificates::load(&files).unwrap());
    renew(folder.path(), 1, &pairs[1]);
    let period = Duration::from_secs(1);
    let follower = certificates
        .clone()
        .follow_every(period, files, CancellationToken::new());
    tokio::time::timeout(period * 3, follower)
        .await
        .expect_err("it follows for good");
    assert_eq!(certificates.leaf(), pairs[1].certificates().unwrap().leaf());
}
