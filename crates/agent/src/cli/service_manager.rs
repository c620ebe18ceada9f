//! systemd's notifications and watchdog, without which the same goes on.

use std::{os::unix::net::UnixDatagram, time::Duration};

pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// How often it wants to hear that we are alive.
    pub interval: Duration,
}

impl ServiceManager {
    pub fn find() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|path| {
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect(path).ok()?;
            Some(socket)
        });
        let period = std::env::var("WATCHDOG_USEC")
            .ok()
            .and_then(|text| text.parse::<u64>().ok());
        Self {
            socket,
            interval: period.map_or(Duration::from_mins(1), |micros| Duration::from_micros(micros / 3)),
        }
    }

    pub fn ready(&self) {
        self.tell("READY=1");
    }

    pub fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    fn tell(&self, what: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(what.as_bytes());
        }
    }
}
