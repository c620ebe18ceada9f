//! k3s versions (`v1.34.1+k3s1`): reading and comparing them.

use std::{cmp::Ordering, fmt, str::FromStr};

/// One k3s version. Ordered by release, then by the revision of k3s on top of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub major: u64,
    pub minor: u64,
    pub patch: u64,
    /// `rc1` in `v1.34.1-rc1+k3s1`; sorts before the release.
    pre: String,
    /// `1` in `+k3s1`.
    revision: u64,
    text: String,
}

/// Why a text is no version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a k3s version with a leading v, e.g. v1.34.1+k3s1")]
pub struct Malformed;

impl Version {
    /// How many minor versions `other` is ahead of this one.
    pub fn minors_to(&self, other: &Self) -> i64 {
        (other.major as i64 - self.major as i64) * 1000 + (other.minor as i64 - self.minor as i64)
    }

    fn key(&self) -> (u64, u64, u64, bool, &str, u64) {
        (
            self.major,
            self.minor,
            self.patch,
            self.pre.is_empty(),
            &self.pre,
            self.revision,
        )
    }
}

impl FromStr for Version {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let rest = text.strip_prefix('v').ok_or(Malformed)?;
        if !rest
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || matches!(character, '.' | '-' | '+'))
        {
            return Err(Malformed);
        }
        let (release, build) = match rest.split_once('+') {
            Some((release, build)) if !build.is_empty() && !build.contains('+') => (release, build),
            Some(_) => return Err(Malformed),
            None => (rest, ""),
        };
        let (core, pre) = release.split_once('-').unwrap_or((release, ""));
        if release.ends_with('-') {
            return Err(Malformed);
        }
        let mut numbers = core.split('.').map(|part| {
            if part.len() > 1 && part.starts_with('0') {
                return Err(Malformed);
            }
            part.parse::<u64>().map_err(|_| Malformed)
        });
        let mut next = || numbers.next().unwrap_or(Err(Malformed));
        let (major, minor, patch) = (next()?, next()?, next()?);
        if numbers.next().is_some() {
            return Err(Malformed);
        }
        let digits: String = build
            .chars()
            .rev()
            .take_while(char::is_ascii_digit)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect();
        Ok(Self {
            major,
            minor,
            patch,
            pre: pre.to_owned(),
            revision: digits.parse().unwrap_or(0),
            text: text.to_owned(),
        })
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key()
            .cmp(&other.key())
            .then_with(|| self.text.cmp(&other.text))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn versions_are_ordered_by_release_then_revision() {
        let sorted = [
            "v1.33.10+k3s1",
            "v1.34.0-rc1+k3s1",
            "v1.34.0+k3s1",
            "v1.34.0+k3s2",
            "v1.34.0+k3s10",
            "v1.34.1",
            "v2.0.0+k3s1",
        ];
        for pair in sorted.windows(2) {
            assert!(version(pair[0]) < version(pair[1]), "{pair:?}");
        }
        assert_eq!(version("v1.33.1+k3s1").minors_to(&version("v1.35.0+k3s1")), 2);
        assert_eq!(version("v1.35.0+k3s1").minors_to(&version("v1.34.9+k3s1")), -1);
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for text in [
            "",
            "v",
            "1.34.1+k3s1",
            "v1.34",
            "v1.34.1+",
            "v1.34.x",
            "v1.34.1+k3s1 ",
            "v1.34.1+k3s1;reboot",
            "latest",
            "v1.34.1.2",
            "v01.34.1",
            "v1.34.1-",
            "v-1.34.1",
            "v1.34.1\n",
        ] {
            assert_eq!(text.parse::<Version>(), Err(Malformed), "{text:?}");
        }
    }
}
