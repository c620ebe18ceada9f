//! A TCP proxy on loopback whose connections can be cut and refused.

use std::{net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::AbortHandle,
};

pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    accepting: AbortHandle,
}

#[derive(Default)]
struct State {
    refusing: bool,
    connections: Vec<AbortHandle>,
}

impl Proxy {
    pub async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((mut inbound, _)) = listener.accept().await {
                let mut state = shared.lock();
                if state.refusing {
                    continue;
                }
                let connection = tokio::spawn(async move {
                    if let Ok(mut outbound) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = copy_bidirectional(&mut inbound, &mut outbound).await;
                    }
                });
                state.connections.push(connection.abort_handle());
            }
        });
        Self {
            address,
            state,
            accepting: accepting.abort_handle(),
        }
    }

    /// Ends every connection in the middle of whatever it carries.
    pub fn cut(&self) {
        for connection in self.state.lock().connections.drain(..) {
            connection.abort();
        }
    }

    /// Cuts, and lets nobody in until told otherwise.
    pub fn refuse(&self, refusing: bool) {
        self.state.lock().refusing = refusing;
        self.cut();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}
