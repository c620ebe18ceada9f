//! Validation of EdgeHost: a claim never goes from one machine to another without the host being let go.

use slipway_agent_api::identity::check_name;
use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use super::api::EdgeHost;

pub fn validate(change: &Change<EdgeHost>) -> Verdict {
    let path = Path::new("spec");
    let mut errors = Vec::new();
    let Some(new) = &change.new else {
        return match change.old.as_ref().and_then(|old| old.spec.claim.as_ref()) {
            Some(claim) => Verdict::from_errors(
                vec![FieldError::forbidden(
                    &path.child("claim"),
                    format!(
                        "EdgeMachine {} has the host: delete its Machine first, and the host when it is wiped",
                        claim.name
                    ),
                )],
                Vec::new(),
            ),
            None => Verdict::allowed(),
        };
    };
    let name = new.metadata.name.as_deref().unwrap_or_default();
    if let Err(error) = check_name(name) {
        errors.push(FieldError::invalid(
            &Path::new("metadata").child("name"),
            name,
            format!("must be the name of a host: {error}"),
        ));
    }
    if let Some(address) = new.spec.address.as_deref()
        && !is_address(address)
    {
        errors.push(FieldError::invalid(
            &path.child("address"),
            address,
            "must be host:port, e.g. 192.0.2.7:7443 or [2001:db8::7]:7443",
        ));
    }
    let claim = path.child("claim");
    if let Some(new) = &new.spec.claim
        && (new.name.is_empty() || new.uid.is_empty())
    {
        errors.push(FieldError::required(&claim, "needs the machine's name and uid"));
    }
    let before = change.old.as_ref().and_then(|old| old.spec.claim.as_ref());
    if let (Some(old), Some(new)) = (before, &new.spec.claim) {
        if old.uid != new.uid || old.name != new.name {
            errors.push(FieldError::forbidden(
                &claim,
                format!(
                    "EdgeMachine {} has the host: it is wiped before another one gets it",
                    old.name
                ),
            ));
        } else if old.released && !new.released {
            errors.push(FieldError::forbidden(
                &claim.child("released"),
                "cannot be taken back: the host is being wiped",
            ));
        }
    }
    Verdict::from_errors(errors, Vec::new())
}

/// `host:port`, with brackets around an IPv6 address.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let good_host = match bracketed {
        Some(inside) => inside.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
        }
    };
    good_host && port.parse::<u16>().is_ok_and(|port| port > 0)
}
