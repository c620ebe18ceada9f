//! Provider ids: `edge://<namespace>/<host>/<claim uid>`. The claim is part of it, so a host that is claimed again is another node.

use std::{fmt, str::FromStr};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProviderId {
    pub namespace: String,
    pub host: String,
    /// The uid of the EdgeMachine that has the host.
    pub claim: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no provider id of an edge host: it must be edge://namespace/host/claim")]
pub struct NotAProviderId(String);

impl fmt::Display for ProviderId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "edge://{}/{}/{}",
            self.namespace, self.host, self.claim
        )
    }
}

impl FromStr for ProviderId {
    type Err = NotAProviderId;

    fn from_str(text: &str) -> Result<Self, NotAProviderId> {
        let wrong = || NotAProviderId(text.chars().take(80).collect());
        let mut parts = text.strip_prefix("edge://").ok_or_else(wrong)?.split('/');
        let mut next = || {
            let name = |part: &&str| {
                !part.is_empty()
                    && part.bytes().all(|byte| {
                        byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
                    })
            };
            parts.next().filter(name).map(ToOwned::to_owned).ok_or_else(wrong)
        };
        let found = Self {
            namespace: next()?,
            host: next()?,
            claim: next()?,
        };
        match parts.next() {
            None => Ok(found),
            Some(_) => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_again(namespace in "[a-z0-9-]{1,20}", host in "[a-z0-9.-]{1,20}", claim in "[0-9a-f-]{1,36}") {
            let id = ProviderId { namespace, host, claim };
            prop_assert_eq!(id.to_string().parse::<ProviderId>().unwrap(), id);
        }

        #[test]
        fn anything_else_is_refused_or_means_itself(text in "(edge:/)?[a-zA-Z0-9/:. -]{0,40}") {
            if let Ok(id) = text.parse::<ProviderId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
