//! Who somebody is: one URI in a certificate. Names are checked here, once.

use std::{fmt, str::FromStr};

use x509_parser::{extensions::GeneralName, parse_x509_certificate};

const SCHEME: &str = "slipway://";
/// Below this, hosts have their names in certificates; it is never resolved.
const HOST_DOMAIN: &str = "host.slipway.internal";
/// The edge manager's name in its certificate.
pub const MANAGER_NAME: &str = "manager.slipway.internal";

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Identity {
    /// The edge manager: gives orders.
    Operator { fleet: String },
    /// A host: serves as itself, and is a reader of blobs for the hosts beside it.
    Host { fleet: String, name: String },
    /// Looks and changes nothing.
    Reader { fleet: String, name: String },
    /// No certificate was shown.
    Anonymous,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnIdentity {
    #[error("the certificate cannot be read")]
    Certificate,
    #[error("the certificate must have exactly one name that begins with {SCHEME}, and has {0}")]
    Names(usize),
    #[error(
        "{0:?} is not an identity: slipway://FLEET/operator, slipway://FLEET/host/NAME or slipway://FLEET/reader/NAME"
    )]
    Uri(String),
    #[error("{0:?} is not a name: lower-case letters, digits, hyphens and dots, at most 200")]
    Name(String),
}

/// A DNS-1123 subdomain, as Kubernetes names nodes; shorter, so that the domain has its place after it.
pub fn check_name(name: &str) -> Result<(), NotAnIdentity> {
    let label = |label: &str| {
        let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = label.as_bytes();
        (1..=63).contains(&bytes.len())
            && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
            && bytes.first().is_some_and(alphanumeric)
            && bytes.last().is_some_and(alphanumeric)
    };
    if name.len() <= 200 && name.split('.').all(label) {
        Ok(())
    } else {
        Err(NotAnIdentity::Name(name.chars().take(80).collect()))
    }
}

/// The name a host's certificate carries and a caller expects.
pub fn server_name(host: &str) -> String {
    format!("{host}.{HOST_DOMAIN}")
}

/// The host that a server name is for.
pub fn host_of(server_name: &str) -> Option<&str> {
    server_name.strip_suffix(HOST_DOMAIN)?.strip_suffix('.')
}

impl Identity {
    pub fn fleet(&self) -> Option<&str> {
        match self {
            Self::Operator { fleet } | Self::Host { fleet, .. } | Self::Reader { fleet, .. } => Some(fleet),
            Self::Anonymous => None,
        }
    }

    /// The identity that a verified certificate gives.
    pub fn of_certificate(der: &[u8]) -> Result<Self, NotAnIdentity> {
        let (_, certificate) = parse_x509_certificate(der).map_err(|_| NotAnIdentity::Certificate)?;
        let names = certificate
            .subject_alternative_name()
            .map_err(|_| NotAnIdentity::Certificate)?;
        let uris: Vec<_> = names
            .iter()
            .flat_map(|names| &names.value.general_names)
            .filter_map(|name| match name {
                GeneralName::URI(uri) if uri.starts_with(SCHEME) => Some(*uri),
                _ => None,
            })
            .collect();
        match uris.as_slice() {
            [uri] => uri.parse(),
            several => Err(NotAnIdentity::Names(several.len())),
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator { fleet } => write!(f, "{SCHEME}{fleet}/operator"),
            Self::Host { fleet, name } => write!(f, "{SCHEME}{fleet}/host/{name}"),
            Self::Reader { fleet, name } => write!(f, "{SCHEME}{fleet}/reader/{name}"),
            Self::Anonymous => write!(f, "somebody without a certificate"),
        }
    }
}

impl FromStr for Identity {
    type Err = NotAnIdentity;

    fn from_str(uri: &str) -> Result<Self, NotAnIdentity> {
        let wrong = || NotAnIdentity::Uri(uri.chars().take(300).collect());
        let path = uri.strip_prefix(SCHEME).ok_or_else(wrong)?;
        let mut parts = path.split('/');
        let (fleet, role, name, rest) = (parts.next(), parts.next(), parts.next(), parts.next());
        let fleet = fleet.unwrap_or_default().to_owned();
        check_name(&fleet)?;
        match (role, name, rest) {
            (Some("operator"), None, None) => Ok(Self::Operator { fleet }),
            (Some(role @ ("host" | "reader")), Some(name), None) => {
                check_name(name)?;
                let name = name.to_owned();
                Ok(if role == "host" {
                    Self::Host { fleet, name }
                } else {
                    Self::Reader { fleet, name }
                })
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_host_is_found_in_its_server_name_and_nowhere_else() {
        assert_eq!(host_of(&server_name("box-1.site")), Some("box-1.site"));
        assert_eq!(host_of("host.slipway.internal"), None);
        assert_eq!(host_of("box-1.host.slipway.internal.example"), None);
    }

    proptest! {
        #[test]
        fn identities_round_trip(fleet in "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", name in "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\\.[a-z0-9]{1,10})?") {
            for identity in [
                Identity::Operator { fleet: fleet.clone() },
                Identity::Host { fleet: fleet.clone(), name: name.clone() },
                Identity::Reader { fleet: fleet.clone(), name: name.clone() },
            ] {
                prop_assert_eq!(identity.to_string().parse::<Identity>().unwrap(), identity);
            }
        }

        #[test]
        fn nothing_else_is_an_identity(text in ".{0,80}") {
            // What parses is exactly what is printed: there are no two spellings of one identity.
            if let Ok(identity) = text.parse::<Identity>() {
                prop_assert_eq!(identity.to_string(), text);
            }
        }

        #[test]
        fn damaged_certificates_are_no_identity(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(Identity::of_certificate(&bytes).is_err());
        }
    }
}
