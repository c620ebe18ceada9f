//! Address ranges in CIDR form: which hold an address, which lie in another, which overlap.

use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    is_v4: bool,
    first: u128,
    last: u128,
}

impl Range {
    /// `None`: not a range.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let (number, width) = match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let bits: u32 = bits.parse().ok().filter(|bits| *bits <= width)?;
        let span = 1_u128
            .checked_shl(width - bits)
            .map_or(u128::MAX, |size| size - 1);
        let first = number & !span;
        Some(Self {
            is_v4: width == 32,
            first,
            last: first | span,
        })
    }

    /// How far into the range an address lies; `None` when it lies outside.
    pub fn offset(&self, address: &str) -> Option<u128> {
        let (is_v4, number) = match address.parse::<IpAddr>().ok()? {
            IpAddr::V4(address) => (true, u128::from(address.to_bits())),
            IpAddr::V6(address) => (false, address.to_bits()),
        };
        (is_v4 == self.is_v4 && (self.first..=self.last).contains(&number)).then(|| number - self.first)
    }

    pub fn holds(&self, other: &Self) -> bool {
        self.is_v4 == other.is_v4 && self.first <= other.first && other.last <= self.last
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.is_v4 == other.is_v4 && self.first <= other.last && other.first <= self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_and_overlap() {
        let range = |text: &str| Range::parse(text).expect("a range");
        assert!(range("10.0.0.0/8").holds(&range("10.240.0.0/16")));
        assert!(!range("10.0.0.0/16").holds(&range("10.0.0.0/8")));
        assert!(range("10.0.0.0/16").overlaps(&range("10.0.0.0/8")));
        assert!(!range("10.0.0.0/16").overlaps(&range("10.1.0.0/16")));
        assert!(!range("::/0").overlaps(&range("0.0.0.0/0")));
        assert!(range("::/0").holds(&range("fd00::/8")));
        assert_eq!(range("10.0.0.0/16").offset("10.0.0.10"), Some(10));
        assert_eq!(range("10.0.0.0/16").offset("10.1.0.0"), None);
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "a/8", "10.0.0.0/-1"] {
            assert_eq!(Range::parse(bad), None, "{bad}");
        }
    }
}
