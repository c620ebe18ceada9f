//! Validation of EdgeHost: a claim never goes from one machine to another without the host being let go.

use slipway_agent_api::identity::check_name;
use slipway_runtime::admission::{
    Change, Verdict,
    field::{FieldError, Path},
};

use super::api::{EdgeHost, EdgeHostSpec, cloud_agent};

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
    errors.extend(platform_errors(&new.spec, &path));
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
    if let (Some(old), Some(_)) = (&change.old, before)
        && old.spec.platform != new.spec.platform
        && !is_same_machine(&old.spec, &new.spec)
    {
        errors.push(FieldError::forbidden(
            &path.child("platform"),
            "names another machine while an EdgeMachine has this one: delete its Machine first",
        ));
    }
    Verdict::from_errors(errors, Vec::new())
}

/// How a machine of MOC is had at may change; which one it is may not.
fn is_same_machine(old: &EdgeHostSpec, new: &EdgeHostSpec) -> bool {
    let which = |spec: &EdgeHostSpec| {
        let moc = spec.moc()?;
        Some((
            moc.location.clone(),
            moc.group.clone(),
            moc.virtual_machine.clone(),
        ))
    };
    which(old) == which(new)
}

fn platform_errors(spec: &EdgeHostSpec, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(platform) = &spec.platform else {
        return errors;
    };
    let path_of_platform = path.child("platform");
    let Some(moc) = &platform.moc else {
        errors.push(FieldError::required(
            &path_of_platform.child("moc"),
            "which machine of MOC it is; leave platform out for a machine with an agent of its own",
        ));
        return errors;
    };
    let path = path_of_platform.child("moc");
    if spec.address.is_some() {
        errors.push(FieldError::forbidden(
            &path,
            "together with address: a machine of MOC is reached through its cloud agent",
        ));
    }
    let (name, _) = cloud_agent(&moc.cloud_agent);
    if name.is_empty() || name.contains(|letter: char| letter.is_whitespace() || "/:@".contains(letter)) {
        errors.push(FieldError::invalid(
            &path.child("cloudAgent"),
            moc.cloud_agent.as_str(),
            "must be a name with a port or without, e.g. cloud.example.com or cloud.example.com:55000",
        ));
    }
    for (field, value, what) in [
        (
            "location",
            &moc.location,
            "the location whose gallery has the images",
        ),
        ("group", &moc.group, "the group of the virtual machine"),
        (
            "virtualMachine",
            &moc.virtual_machine,
            "the virtual machine's name",
        ),
        (
            "credentialsSecretName",
            &moc.credentials_secret_name,
            "the Secret with a login file of MOC",
        ),
    ] {
        if value.is_empty() {
            errors.push(FieldError::required(&path.child(field), what));
        }
    }
    if let Some(url) = &moc.image_url {
        let is_address = ["http://", "https://"]
            .iter()
            .any(|scheme| url.starts_with(scheme));
        if !is_address || !url.contains("{digest}") || url.contains(char::is_whitespace) {
            errors.push(FieldError::invalid(
                &path.child("imageURL"),
                url.as_str(),
                "must be an address with {digest} in it, e.g. https://images.example.com/{digest}.vhdx",
            ));
        }
    }
    errors
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
