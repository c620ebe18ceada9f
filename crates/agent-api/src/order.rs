//! Orders: what a [`StartRequest`] must look like, what identifies it, and what kind of work each verb is. Pure: data in,
//! data out.

use std::net::IpAddr;

use prost::Message;
use slipway_slots::Digest;

use crate::{
    identity::check_name,
    problem::{Class, Problem},
    proto::{
        AddressLease, Delivery, Ensure, KubernetesStep, PeerHost, Prepare, RegistryCredentials, RunCommand,
        StartRequest, TagPolicy, kubernetes_step::Step, start_request::Verb,
    },
};

/// The most that bootstrap data may have.
pub const MAX_BOOTSTRAP: usize = 1 << 20;
const MAX_ARGUMENTS: usize = 128 << 10;
const MAX_SECONDS: u32 = 24 * 3600;

/// A request that has the right form.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    pub id: String,
    pub generation: u64,
    pub host: String,
    pub verb: Verb,
    /// Of everything that makes two orders the same: not of the generation, and not of what only helps to carry it out.
    pub digest: Digest,
}

/// How an operation gets along with others, with people on site, and with a restart of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// As in the protocol.
    pub name: &'static str,
    /// It works on slots, services or the machine: only one of these at a time.
    pub exclusive: bool,
    /// It can be felt on the host: not while a person works there.
    pub disturbs: bool,
    /// Doing it again after a restart ends in the same state, and what it needs is in the journal.
    pub resumes: bool,
}

fn wrong(field: &str, problem: &str) -> Problem {
    Problem::new(Class::Terminal, "InvalidOrder", format!("{field} {problem}"))
}

/// The name of an operation, an upgrade or a bundle: also a file name.
fn check_id(field: &str, id: &str) -> Result<(), Problem> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=128).contains(&id.len()) && id.bytes().all(good) && !id.starts_with('.') {
        Ok(())
    } else {
        Err(wrong(
            field,
            "must be 1 to 128 letters, digits, hyphens, underscores and dots, and not begin with a dot",
        ))
    }
}

fn check_text(field: &str, text: &str, most: usize) -> Result<(), Problem> {
    if text.len() <= most && !text.chars().any(char::is_control) {
        Ok(())
    } else {
        Err(wrong(
            field,
            &format!("must be at most {most} bytes without control characters"),
        ))
    }
}

fn check_digest(field: &str, text: &str) -> Result<(), Problem> {
    match text.parse::<Digest>() {
        Ok(_) => Ok(()),
        Err(error) => Err(wrong(field, &format!("is wrong: {error}"))),
    }
}

fn check_seconds(field: &str, seconds: u32) -> Result<(), Problem> {
    if seconds <= MAX_SECONDS {
        Ok(())
    } else {
        Err(wrong(field, "must be at most a day"))
    }
}

fn check_address(address: &str, interface: &str) -> Result<(), Problem> {
    let parsed = address
        .split_once('/')
        .and_then(|(ip, prefix)| Some((ip.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?)));
    match parsed {
        Some((ip, prefix)) if prefix <= if ip.is_ipv4() { 32 } else { 128 } => {}
        _ => {
            return Err(wrong(
                "address",
                "must be an address with its prefix length, such as 192.0.2.10/24",
            ));
        }
    }
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    // A leading hyphen would be an option of the tool that sets the address.
    if (1..=15).contains(&interface.len()) && interface.bytes().all(good) && !interface.starts_with('-') {
        Ok(())
    } else {
        Err(wrong(
            "interface",
            "must be the name of a network interface, at most 15 characters",
        ))
    }
}

fn check_lease(lease: &AddressLease) -> Result<(), Problem> {
    for (field, name) in [("lease.namespace", &lease.namespace), ("lease.name", &lease.name)] {
        check_name(name).map_err(|error| wrong(field, &format!("is wrong: {error}")))?;
    }
    if !(1..=8).contains(&lease.kubeconfigs.len()) {
        return Err(wrong("lease.kubeconfigs", "must be one to eight"));
    }
    for path in &lease.kubeconfigs {
        check_text("lease.kubeconfigs", path, 512)?;
        if !path.starts_with('/') {
            return Err(wrong(
                "lease.kubeconfigs",
                "must be paths that begin with a slash",
            ));
        }
    }
    if !(1..=65535).contains(&lease.port) {
        return Err(wrong("lease.port", "must be a port, 1 to 65535"));
    }
    Ok(())
}

/// `v1.MINOR.PATCH`, with a suffix or not; it becomes an argument of a command.
fn is_kubernetes_version(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("v1.") else {
        return false;
    };
    let (minor, patch) = rest.split_once('.').unwrap_or_default();
    let digits = |text: &str| (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let (patch, suffix) = patch.split_at(patch.find(['-', '+']).unwrap_or(patch.len()));
    let suffix_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-+.".contains(&byte);
    digits(minor) && digits(patch) && suffix.len() <= 32 && suffix.bytes().all(suffix_good)
}

impl Order {
    /// Checks everything that can be checked without the host.
    pub fn check(mut request: StartRequest) -> Result<Self, Problem> {
        check_id("operation_id", &request.operation_id)?;
        if request.generation == 0 {
            return Err(wrong("generation", "must be at least 1"));
        }
        check_name(&request.host).map_err(|error| wrong("host", &format!("is wrong: {error}")))?;
        let Some(verb) = request.verb.clone() else {
            return Err(wrong(
                "verb",
                "is missing, or of a later version than this agent's: update the agent",
            ));
        };
        check_verb(&verb, &request.host)?;
        let (id, generation, host) = (
            request.operation_id.clone(),
            std::mem::take(&mut request.generation),
            request.host.clone(),
        );
        match &mut request.verb {
            Some(Verb::Ensure(ensure)) => {
                ensure.credentials = None;
                ensure.peers.clear();
            }
            Some(Verb::Prepare(prepare)) => {
                prepare.credentials = None;
                prepare.peers.clear();
            }
            _ => {}
        }
        Ok(Self {
            id,
            generation,
            host,
            verb,
            digest: Digest::of(&request.encode_to_vec()),
        })
    }

    pub fn nature(&self) -> Nature {
        nature(&self.verb)
    }

    /// Whether it came with credentials: they are on no disk, so such an order is sent again after a restart.
    pub fn has_credentials(&self) -> bool {
        match &self.verb {
            Verb::Ensure(ensure) => ensure.credentials.is_some(),
            Verb::Prepare(prepare) => prepare.credentials.is_some(),
            _ => false,
        }
    }
}

pub fn nature(verb: &Verb) -> Nature {
    let of = |name, [exclusive, disturbs, resumes]: [bool; 3]| Nature {
        name,
        exclusive,
        disturbs,
        resumes,
    };
    match verb {
        Verb::Ensure(_) => of("ensure", [false, false, true]),
        Verb::Pin(_) => of("pin", [false, false, true]),
        Verb::Unpin(_) => of("unpin", [false, false, true]),
        Verb::Evict(_) => of("evict", [false, false, true]),
        Verb::Export(_) => of("export", [false, false, true]),
        Verb::Import(_) => of("import", [false, false, true]),
        Verb::Prepare(_) => of("prepare", [true, true, true]),
        Verb::Arm(_) => of("arm", [true, true, true]),
        Verb::Confirm(_) => of("confirm", [true, true, true]),
        Verb::Rollback(_) => of("rollback", [true, true, true]),
        Verb::RunCommand(_) => of("run_command", [true, true, false]),
        Verb::RunBootstrap(_) => of("run_bootstrap", [true, true, false]),
        Verb::KubernetesStep(_) => of("kubernetes_step", [true, true, false]),
        Verb::Wipe(_) => of("wipe", [true, true, true]),
        Verb::HoldAddress(_) => of("hold_address", [false, true, true]),
        Verb::ReleaseAddress(_) => of("release_address", [false, true, true]),
        Verb::Reboot(_) => of("reboot", [true, true, false]),
        // Nobody feels it: the slot that was prepared does not run.
        Verb::GiveUp(_) => of("give_up", [true, false, true]),
    }
}

fn check_verb(verb: &Verb, host: &str) -> Result<(), Problem> {
    match verb {
        Verb::Ensure(ensure) => check_ensure(ensure),
        Verb::Pin(pin) => {
            check_digest("pin.digest", &pin.digest)?;
            check_owner("pin.owner", &pin.owner)
        }
        Verb::Unpin(unpin) => {
            check_digest("unpin.digest", &unpin.digest)?;
            check_owner("unpin.owner", &unpin.owner)
        }
        Verb::Evict(evict) => check_digest("evict.digest", &evict.digest),
        Verb::Export(export) => {
            check_id("export.name", &export.name)?;
            if export.digests.is_empty() {
                return Err(wrong("export.digests", "must name at least one image"));
            }
            check_digests("export.digests", &export.digests)
        }
        Verb::Import(import) => {
            check_id("import.name", &import.name)?;
            check_digests("import.digests", &import.digests)
        }
        Verb::Prepare(prepare) => check_prepare(prepare),
        Verb::Arm(arm) => {
            check_id("arm.upgrade", &arm.upgrade)?;
            if arm.tries > 7 {
                return Err(wrong("arm.tries", "must be at most 7"));
            }
            Ok(())
        }
        Verb::Confirm(confirm) => check_id("confirm.upgrade", &confirm.upgrade),
        Verb::Rollback(rollback) => check_text("rollback.reason", &rollback.reason, 512),
        Verb::RunCommand(run) => check_command(run),
        Verb::RunBootstrap(run) => {
            if run.data.is_empty() || run.data.len() > MAX_BOOTSTRAP {
                return Err(wrong("run_bootstrap.data", "must be from 1 byte to 1 MiB"));
            }
            check_text("run_bootstrap.provider_id", &run.provider_id, 512)?;
            if run
                .provider_id
                .contains(|letter: char| letter.is_whitespace() || "'\"{}".contains(letter))
            {
                return Err(wrong(
                    "run_bootstrap.provider_id",
                    "must be without spaces, quotes and braces: it is put into the data",
                ));
            }
            check_seconds("run_bootstrap.time_limit_seconds", run.time_limit_seconds)
        }
        Verb::KubernetesStep(step) => check_kubernetes_step(step),
        Verb::Wipe(wipe) if wipe.confirm_host == host => Ok(()),
        Verb::Wipe(_) => Err(wrong("wipe.confirm_host", "must be the host's name")),
        Verb::HoldAddress(hold) => {
            check_address(&hold.address, &hold.interface)?;
            hold.lease.as_ref().map_or(Ok(()), check_lease)
        }
        Verb::ReleaseAddress(release) => check_address(&release.address, &release.interface),
        Verb::Reboot(reboot) => check_text("reboot.reason", &reboot.reason, 512),
        Verb::GiveUp(given_up) => check_id("give_up.upgrade", &given_up.upgrade),
    }
}

fn check_ensure(ensure: &Ensure) -> Result<(), Problem> {
    let Some(image) = &ensure.image else {
        return Err(wrong("ensure.image", "is missing"));
    };
    check_reference("ensure.image.reference", &image.reference)?;
    let policy = TagPolicy::try_from(image.tag_policy).unwrap_or(TagPolicy::DigestOnly);
    if !image.digest.is_empty() || policy == TagPolicy::DigestOnly {
        check_digest("ensure.image.digest", &image.digest)?;
    }
    check_text("ensure.pin_owner", &ensure.pin_owner, 253)?;
    if ensure.delivery != 0 && ensure.pin_owner.is_empty() {
        return Err(wrong(
            "ensure.pin_owner",
            "is missing: an image stays delivered as long as it is pinned",
        ));
    }
    if Delivery::try_from(ensure.delivery).is_err() {
        return Err(wrong(
            "ensure.delivery",
            "is of a later version than this agent's: update the agent",
        ));
    }
    check_credentials("ensure.credentials", ensure.credentials.as_ref())?;
    check_peers("ensure.peers", &ensure.peers)
}

fn check_prepare(prepare: &Prepare) -> Result<(), Problem> {
    check_id("prepare.upgrade", &prepare.upgrade)?;
    check_digest("prepare.digest", &prepare.digest)?;
    if prepare.reference.is_empty() {
        if prepare.credentials.is_some() || !prepare.peers.is_empty() {
            return Err(wrong(
                "prepare.reference",
                "is missing: without it the image is had from the cache alone",
            ));
        }
        return Ok(());
    }
    check_reference("prepare.reference", &prepare.reference)?;
    check_credentials("prepare.credentials", prepare.credentials.as_ref())?;
    check_peers("prepare.peers", &prepare.peers)
}

fn check_reference(field: &str, reference: &str) -> Result<(), Problem> {
    check_text(field, reference, 512)?;
    if reference.is_empty() || reference.contains(char::is_whitespace) {
        return Err(wrong(field, "must name a registry and a repository"));
    }
    Ok(())
}

fn check_credentials(field: &str, credentials: Option<&RegistryCredentials>) -> Result<(), Problem> {
    match credentials {
        Some(credentials) if credentials.username.len() + credentials.password.len() > 16 << 10 => {
            Err(wrong(field, "must be at most 16 KiB"))
        }
        _ => Ok(()),
    }
}

fn check_peers(field: &str, peers: &[PeerHost]) -> Result<(), Problem> {
    if peers.len() > 64 {
        return Err(wrong(field, "must be at most 64"));
    }
    for peer in peers {
        check_name(&peer.host)
            .map_err(|error| wrong(&format!("{field}.host"), &format!("is wrong: {error}")))?;
        check_text(&format!("{field}.address"), &peer.address, 300)?;
    }
    Ok(())
}

fn check_command(run: &RunCommand) -> Result<(), Problem> {
    let texts = run.argv.iter().chain(
        run.environment
            .iter()
            .flat_map(|variable| [&variable.name, &variable.value]),
    );
    let (mut bytes, mut nul) = (0, false);
    for text in texts {
        bytes += text.len() + 1;
        nul |= text.contains('\0');
    }
    if run.argv.first().is_none_or(String::is_empty) {
        return Err(wrong("run_command.argv", "must begin with a program"));
    }
    if nul || bytes > MAX_ARGUMENTS {
        return Err(wrong(
            "run_command.argv and environment",
            "must be at most 128 KiB without NUL bytes",
        ));
    }
    let bad_name = |name: &str| name.is_empty() || name.contains('=');
    if run.environment.iter().any(|variable| bad_name(&variable.name)) {
        return Err(wrong(
            "run_command.environment",
            "must have names without an equals sign",
        ));
    }
    check_seconds("run_command.time_limit_seconds", run.time_limit_seconds)
}

fn check_kubernetes_step(step: &KubernetesStep) -> Result<(), Problem> {
    match &step.step {
        Some(Step::KubeadmUpgrade(upgrade))
            if upgrade.apply_version.is_empty() || is_kubernetes_version(&upgrade.apply_version) =>
        {
            Ok(())
        }
        Some(Step::KubeadmUpgrade(_)) => Err(wrong(
            "kubernetes_step.apply_version",
            "must be a version such as v1.36.2, or empty",
        )),
        Some(Step::ServiceRestart(restart))
            if ["k3s", "k3s-agent", "kubelet"].contains(&restart.service.as_str()) =>
        {
            Ok(())
        }
        Some(Step::ServiceRestart(_)) => Err(wrong(
            "kubernetes_step.service",
            "must be k3s, k3s-agent or kubelet",
        )),
        None => Err(wrong("kubernetes_step.step", "is missing")),
    }
}

fn check_owner(field: &str, owner: &str) -> Result<(), Problem> {
    if owner.is_empty() {
        return Err(wrong(field, "must say who needs the image"));
    }
    check_text(field, owner, 253)
}

fn check_digests(field: &str, digests: &[String]) -> Result<(), Problem> {
    if digests.len() > 256 {
        return Err(wrong(field, "must be at most 256"));
    }
    digests.iter().try_for_each(|digest| check_digest(field, digest))
}
