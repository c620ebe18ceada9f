//! Host ports: two pods on one node cannot hold the same address, port and protocol.

use std::fmt;
use std::net::IpAddr;

use crate::model::Pod;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    address: Option<IpAddr>,
    port: i32,
    protocol: String,
}

impl HostPort {
    pub fn conflicts(&self, other: &HostPort) -> bool {
        let any = |address: Option<IpAddr>| address.is_some_and(|address| address.is_unspecified());
        self.port == other.port
            && self.protocol == other.protocol
            && (self.address == other.address || any(self.address) || any(other.address))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(formatter, "{address}:{}/{}", self.port, self.protocol),
            None => write!(formatter, "?:{}/{}", self.port, self.protocol),
        }
    }
}

pub(crate) fn of_pod(pod: &Pod) -> Vec<HostPort> {
    pod.spec
        .containers
        .iter()
        .flat_map(|container| &container.ports)
        .filter(|port| port.host_port != 0)
        .map(|port| HostPort {
            address: if port.host_ip.is_empty() {
                "0.0.0.0"
            } else {
                port.host_ip.as_str()
            }
            .parse::<IpAddr>()
            .ok()
            .map(|address| address.to_canonical()),
            port: port.host_port,
            protocol: if port.protocol.is_empty() {
                "TCP".to_owned()
            } else {
                port.protocol.clone()
            },
        })
        .collect()
}

/// The first pair that cannot share a node.
pub(crate) fn conflict<'a>(
    required: &'a [HostPort],
    held: &'a [HostPort],
) -> Option<(&'a HostPort, &'a HostPort)> {
    required.iter().find_map(|port| {
        held.iter()
            .find(|other| port.conflicts(other))
            .map(|other| (port, other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_conflicts_with_each() {
        let port = |address: &str, port, protocol: &str| HostPort {
            address: address.parse().ok(),
            port,
            protocol: protocol.to_owned(),
        };
        let anywhere = port("0.0.0.0", 80, "TCP");
        assert!(anywhere.conflicts(&port("10.0.0.1", 80, "TCP")));
        assert!(port("::", 80, "TCP").conflicts(&port("10.0.0.1", 80, "TCP")));
        assert!(!port("10.0.0.2", 80, "TCP").conflicts(&port("10.0.0.1", 80, "TCP")));
        assert!(!anywhere.conflicts(&port("10.0.0.1", 80, "UDP")));
        assert!(!anywhere.conflicts(&port("10.0.0.1", 81, "TCP")));
    }
}
