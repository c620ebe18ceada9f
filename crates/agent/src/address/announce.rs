//! Neighbours learn where an address is now from packets that nobody asked for: gratuitous ARP, and an unsolicited neighbour
//! advertisement. The packets are pure; sending them is the only place in the agent that writes to a network by itself.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd,
};

use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, sendto, socket},
};

type Mac = [u8; 6];

const BROADCAST: Mac = [0xff; 6];

/// A request for one's own address, which every neighbour takes to heart.
pub fn gratuitous_arp(mac: Mac, address: Ipv4Addr) -> Vec<u8> {
    let mut packet = Vec::with_capacity(42);
    packet.extend(BROADCAST);
    packet.extend(mac);
    // ARP; Ethernet, IPv4, their lengths, a request.
    packet.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    packet.extend(mac);
    packet.extend(address.octets());
    packet.extend([0; 6]);
    packet.extend(address.octets());
    packet
}

/// The same for IPv6: to all nodes, overriding what they knew.
pub fn unsolicited_advertisement(mac: Mac, address: Ipv6Addr) -> Vec<u8> {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(address.octets());
    message.extend([2, 1]);
    message.extend(mac);
    let sum = checksum(address, all_nodes, &message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    let mut packet = Vec::with_capacity(14 + 40 + message.len());
    packet.extend([0x33, 0x33, 0, 0, 0, 1]);
    packet.extend(mac);
    packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    packet.extend((message.len() as u16).to_be_bytes());
    // ICMPv6, and a hop limit that says that no router was between.
    packet.extend([58, 255]);
    packet.extend(address.octets());
    packet.extend(all_nodes.octets());
    packet.extend(message);
    packet
}

/// Over the pseudo-header and the message, as RFC 4443 has it.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let mut bytes = Vec::with_capacity(40 + message.len());
    bytes.extend(from.octets());
    bytes.extend(to.octets());
    bytes.extend((message.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, 58]);
    bytes.extend(message);
    let sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Tells the neighbours on this interface that the address is here.
pub fn announce(interface: &str, address: IpAddr) -> io::Result<()> {
    let (link, mac) = link_of(interface)?;
    let packet = match address {
        IpAddr::V4(address) => gratuitous_arp(mac, address),
        IpAddr::V6(address) => unsolicited_advertisement(mac, address),
    };
    let raw = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::EthAll,
    )?;
    sendto(raw.as_raw_fd(), &packet, &link, MsgFlags::empty())?;
    Ok(())
}

fn link_of(interface: &str) -> io::Result<(LinkAddr, Mac)> {
    let found = getifaddrs()?.find_map(|found| {
        let link = *found.address.as_ref()?.as_link_addr()?;
        (found.interface_name == interface).then_some((link, link.addr()?))
    });
    found.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no interface {interface} with a hardware address"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [0x02, 0, 0, 0xaa, 0xbb, 0xcc];

    #[test]
    fn the_packets_are_as_the_standards_have_them() {
        let arp = gratuitous_arp(MAC, Ipv4Addr::new(192, 0, 2, 10));
        assert_eq!(
            hex(&arp),
            "ffffffffffff020000aabbcc0806000108000604 0001020000aabbccc000020a000000000000c000020a"
                .replace(' ', "")
        );
        let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x10);
        let advertisement = unsolicited_advertisement(MAC, address);
        assert_eq!(advertisement.len(), 14 + 40 + 32);
        let message = &advertisement[54..];
        assert_eq!((message[0], message[4]), (136, 0x20));
        // A message with its sum in it sums up to nothing.
        let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        assert_eq!(checksum(address, all_nodes, message), 0);
    }

    fn hex(bytes: &[u8]) -> String {
        use std::fmt::Write;
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}
