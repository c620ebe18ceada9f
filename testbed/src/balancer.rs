//! A load balancer for TCP, as the endpoint of a control plane needs one: every connection goes to a target that is
//! up, in turn, and ends with its target. It runs on a thread of its own, so that it can stand in a network namespace
//! where its targets are while it listens in others.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    net::{SocketAddr, TcpListener},
    os::fd::AsFd,
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::{net::TcpStream, sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;

/// A target that does not answer for this long is passed over.
const PATIENCE: Duration = Duration::from_secs(1);

struct Target {
    address: SocketAddr,
    up: CancellationToken,
}

#[derive(Default)]
struct Targets {
    by_name: BTreeMap<String, Target>,
    turn: usize,
}

impl Targets {
    /// All targets, beginning with the one whose turn it is.
    fn in_turn(&mut self) -> Vec<(SocketAddr, CancellationToken)> {
        self.turn = self.turn.wrapping_add(1);
        let mut all: Vec<_> = self
            .by_name
            .values()
            .map(|target| (target.address, target.up.clone()))
            .collect();
        let first = self.turn % all.len().max(1);
        all.rotate_left(first);
        all
    }
}

/// Ends, with all its connections, when it is dropped.
pub struct Balancer {
    targets: Arc<Mutex<Targets>>,
    listeners: mpsc::UnboundedSender<TcpListener>,
}

impl Balancer {
    /// Starts in this network namespace, or in another one (`/proc/…/ns/net`).
    pub fn start(namespace: Option<&Path>) -> io::Result<Balancer> {
        let namespace = namespace.map(File::open).transpose()?;
        let targets: Arc<Mutex<Targets>> = Arc::default();
        let (listeners, receiver) = mpsc::unbounded_channel();
        let (started, outcome) = std::sync::mpsc::channel();
        let known = Arc::clone(&targets);
        thread::Builder::new()
            .name("testbed-balancer".to_owned())
            .spawn(move || {
                let runtime = enter(namespace.as_ref())
                    .and_then(|()| tokio::runtime::Builder::new_current_thread().enable_all().build());
                match runtime {
                    Ok(runtime) => {
                        let _ = started.send(Ok(()));
                        runtime.block_on(run(receiver, known));
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            })?;
        outcome
            .recv()
            .map_err(|_| io::Error::other("the balancer's thread has ended"))??;
        Ok(Balancer { targets, listeners })
    }

    /// Serves what comes in here too, whatever network namespace it listens in.
    pub fn listen(&self, listener: TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        self.listeners
            .send(listener)
            .map_err(|_| io::Error::other("the balancer's thread has ended"))
    }

    /// A target is there, or is there again.
    pub fn up(&self, name: &str, address: SocketAddr) {
        let up = CancellationToken::new();
        let target = Target { address, up };
        if let Some(before) = self.targets.lock().by_name.insert(name.to_owned(), target) {
            before.up.cancel();
        }
    }

    /// A target is gone, and its connections with it.
    pub fn down(&self, name: &str) {
        if let Some(target) = self.targets.lock().by_name.remove(name) {
            target.up.cancel();
        }
    }

    pub fn targets(&self) -> Vec<String> {
        self.targets.lock().by_name.keys().cloned().collect()
    }
}

/// Moves this thread into a network namespace.
fn enter(namespace: Option<&File>) -> io::Result<()> {
    if let Some(namespace) = namespace {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
    }
    Ok(())
}

/// Listens in another network namespace (`/proc/…/ns/net`).
pub fn listen_in(namespace: &Path, address: SocketAddr) -> io::Result<TcpListener> {
    let namespace = File::open(namespace)?;
    // The namespace of a socket is that of the thread that makes it.
    thread::spawn(move || {
        enter(Some(&namespace))?;
        TcpListener::bind(address)
    })
    .join()
    .map_err(|_| io::Error::other("the listening thread has ended"))?
}

async fn run(mut listeners: mpsc::UnboundedReceiver<TcpListener>, targets: Arc<Mutex<Targets>>) {
    while let Some(listener) = listeners.recv().await {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => {
                tokio::spawn(accept(listener, Arc::clone(&targets)));
            }
            Err(error) => tracing::warn!(%error, "A balancer cannot listen"),
        }
    }
}

async fn accept(listener: tokio::net::TcpListener, targets: Arc<Mutex<Targets>>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(carry(stream, Arc::clone(&targets)));
            }
            // A namespace that went takes its listeners along.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                tracing::debug!(%error, "A balancer cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn carry(mut from: TcpStream, targets: Arc<Mutex<Targets>>) {
    let in_turn = targets.lock().in_turn();
    for (address, up) in in_turn {
        let Ok(Ok(mut to)) = timeout(PATIENCE, TcpStream::connect(address)).await else {
            continue;
        };
        let _ = (from.set_nodelay(true), to.set_nodelay(true));
        tokio::select! {
            () = up.cancelled() => {}
            _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
        }
        return;
    }
    // Nobody is up: the connection is closed as it came.
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        io::{Read, Write},
        net::{Ipv4Addr, Shutdown},
    };

    use super::*;

    fn listener() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")
    }

    /// Says its name to everyone who comes, and stays until they go.
    fn target(name: &'static str) -> SocketAddr {
        let listener = listener();
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut stream = stream;
                    let _ = stream.write_all(name.as_bytes());
                    let _ = stream.read(&mut [0; 1]);
                });
            }
        });
        address
    }

    fn balancer() -> (Balancer, SocketAddr) {
        let balancer = Balancer::start(None).expect("a balancer");
        let front = listener();
        let address = front.local_addr().expect("an address");
        balancer.listen(front).expect("it listens");
        (balancer, address)
    }

    fn greeting(front: SocketAddr) -> (String, std::net::TcpStream) {
        let mut stream = std::net::TcpStream::connect(front).expect("a connection");
        let mut name = [0; 1];
        let length = stream.read(&mut name).expect("an answer or an end");
        (String::from_utf8_lossy(&name[..length]).into_owned(), stream)
    }

    #[test]
    fn connections_go_round_and_pass_over_the_dead() {
        let (balancer, front) = balancer();
        assert_eq!(greeting(front).0, "", "nobody is up yet");
        balancer.up("a", target("a"));
        balancer.up("b", target("b"));
        let dead = listener()
            .local_addr()
            .expect("a port nobody listens on any more");
        balancer.up("c", dead);
        let met: BTreeSet<String> = (0..6).map(|_| greeting(front).0).collect();
        assert_eq!(met, BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert_eq!(balancer.targets(), ["a", "b", "c"]);
    }

    #[test]
    fn connections_end_with_their_target() {
        let (balancer, front) = balancer();
        balancer.up("a", target("a"));
        let (name, mut stream) = greeting(front);
        assert_eq!(name, "a");
        balancer.down("a");
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "it was cut");
        assert_eq!(greeting(front).0, "");
        balancer.up("a", target("b"));
        let (name, stream) = greeting(front);
        assert_eq!(name, "b");
        let _ = stream.shutdown(Shutdown::Both);
    }

    #[test]
    fn a_balancer_that_is_dropped_serves_nobody() {
        let (balancer, front) = balancer();
        balancer.up("a", target("a"));
        let (name, mut stream) = greeting(front);
        assert_eq!(name, "a");
        drop(balancer);
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "it was cut");
    }
}
