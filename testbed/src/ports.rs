//! Picks ports that stay free until they are used: below the range the kernel gives to outgoing connections, and
//! locked against other testbeds of the same user for as long as the [`Port`] lives.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, TcpListener},
    ops::Range,
    path::PathBuf,
};

use rand::Rng;

const RANGE: Range<u16> = 20_000..32_000;

/// A port on loopback that no other testbed picks while this lives.
#[derive(Debug)]
pub struct Port {
    pub number: u16,
    _lock: File,
}

impl Port {
    /// Any free port.
    pub fn free() -> io::Result<Port> {
        let count = RANGE.end - RANGE.start;
        let first = rand::rng().random_range(0..count);
        for offset in 0..count {
            let number = RANGE.start + (first + offset) % count;
            if let Some(port) = Port::take(number)? {
                return Ok(port);
            }
        }
        Err(io::Error::other(format!(
            "no port between {} and {} is free",
            RANGE.start, RANGE.end
        )))
    }

    /// This port, or nothing if something listens on it or another testbed holds it.
    pub fn take(number: u16) -> io::Result<Option<Port>> {
        let directory = directory();
        fs::create_dir_all(&directory)?;
        let lock = File::create(directory.join(number.to_string()))?;
        if lock.try_lock().is_err() {
            return Ok(None);
        }
        // Listening on every address finds those who listen on any of them.
        match TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)) {
            Ok(_) => Ok(Some(Port { number, _lock: lock })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn directory() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    std::env::temp_dir().join(format!("slipway-testbed-ports-{user}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once_until_it_is_let_go() {
        let port = Port::free().unwrap();
        assert!(Port::take(port.number).unwrap().is_none());
        let number = port.number;
        drop(port);
        assert!(Port::take(number).unwrap().is_some());
    }

    #[test]
    fn a_port_that_something_listens_on_is_not_given() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let number = listener.local_addr().unwrap().port();
        assert!(Port::take(number).unwrap().is_none());
    }
}
