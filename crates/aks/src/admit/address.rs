//! Addresses and ranges, read as Go's `net` package reads them.

use std::net::IpAddr;

/// A range in CIDR form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The address as written, host bits included.
    pub address: IpAddr,
    pub bits: u8,
}

impl Range {
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let widest = if address.is_ipv4() { 32 } else { 128 };
        if bits.is_empty() || bits.len() > 3 || !bits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let bits: u8 = bits.parse().ok().filter(|bits| *bits <= widest)?;
        Some(Self { address, bits })
    }

    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(base), IpAddr::V4(other)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                base.to_bits() & mask == other.to_bits() & mask
            }
            (IpAddr::V6(base), IpAddr::V6(other)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                base.to_bits() & mask == other.to_bits() & mask
            }
            _ => false,
        }
    }

    /// The address of the range that ends in 10, where AKS expects the DNS service.
    pub fn tenth(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(base) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V4((base.to_bits() & mask).saturating_add(10).into())
            }
            IpAddr::V6(base) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                IpAddr::V6((base.to_bits() & mask).saturating_add(10).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_contain_what_lies_in_them() {
        let range = Range::parse("10.1.2.3/16").expect("a range");
        assert!(range.contains("10.1.255.255".parse().expect("an address")));
        assert!(!range.contains("10.2.0.0".parse().expect("an address")));
        assert!(!range.contains("::1".parse().expect("an address")));
        assert_eq!(range.tenth().to_string(), "10.1.0.10");
        assert_eq!(
            Range::parse("fd00:1::/108").expect("a range").tenth().to_string(),
            "fd00:1::a"
        );
        assert!(
            Range::parse("0.0.0.0/0")
                .expect("a range")
                .contains("9.9.9.9".parse().expect("an address"))
        );
        assert!(
            Range::parse("::/0")
                .expect("a range")
                .contains("::5".parse().expect("an address"))
        );
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "::/129",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "a/8",
            "10.0.0.0/0008",
        ] {
            assert_eq!(Range::parse(bad), None, "{bad}");
        }
    }
}
