//! The host's identity: one file with its certificate, key and the CAs it believes, replaced as a whole. Joins with a token
//! once, and renews before the certificate ends.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use slipway_agent_api::enrol::{NewKey, join, renew};
use slipway_agent_api::tls::{CurrentTls, Material, Validity};
use slipway_agent_api::token::JoinToken;
use slipway_agent_api::{Class, Identity, Problem};

use crate::cache::{ServiceFailpoint, ServiceFailpoints, replace_file};

/// Between two tries to renew, while the certificate is still good.
const RENEW_AGAIN: Duration = Duration::from_mins(1);
/// However far away the renewal is, the clock is looked at this often: it may jump.
const LOOK_AGAIN: Duration = Duration::from_mins(10);

/// What is on disk.
#[derive(Serialize, Deserialize)]
struct Stored {
    chain: Vec<String>,
    key: String,
    ca_certificates: Vec<String>,
}

fn place(state: &Path) -> PathBuf {
    state.join("identity.json")
}

fn disk(doing: &str, error: &io::Error) -> Problem {
    Problem::new(Class::Transient, "Disk", format!("{doing}: {error}"))
}

fn write_secret(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // `replace_file` makes its files for the owner only.
    replace_file(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
}

/// The identity of a host that has joined.
pub fn read(state: &Path) -> Result<Option<Material>, Problem> {
    let bytes = match fs::read(place(state)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| disk("reading the host's identity", &error))?,
    };
    let damaged = || {
        Problem::new(
            Class::Terminal,
            "Identity",
            "the host's identity on disk cannot be read: join again with a new token",
        )
    };
    let stored: Stored = serde_json::from_slice(&bytes).map_err(|_| damaged())?;
    let decode = |text: &String| BASE64_STANDARD.decode(text).map_err(|_| damaged());
    let certificates = |texts: &[String]| -> Result<Vec<CertificateDer<'static>>, Problem> {
        texts
            .iter()
            .map(|text| Ok(CertificateDer::from(decode(text)?)))
            .collect()
    };
    Ok(Some(Material {
        chain: certificates(&stored.chain)?,
        key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(decode(&stored.key)?)),
        ca_certificates: certificates(&stored.ca_certificates)?,
    }))
}

/// Replaces the identity on disk, all of it at once.
pub fn write(state: &Path, material: &Material, steps: &dyn ServiceFailpoints) -> Result<(), Problem> {
    let encode = |certificates: &[CertificateDer<'_>]| {
        certificates
            .iter()
            .map(|certificate| BASE64_STANDARD.encode(certificate))
            .collect()
    };
    let stored = Stored {
        chain: encode(&material.chain),
        key: BASE64_STANDARD.encode(material.key.secret_der()),
        ca_certificates: encode(&material.ca_certificates),
    };
    let bytes = serde_json::to_vec(&stored)
        .map_err(|error| disk("writing the host's identity", &io::Error::other(error)))?;
    write_secret(&place(state), &bytes).map_err(|error| disk("writing the host's identity", &error))?;
    steps.reached(ServiceFailpoint::IdentityWritten);
    Ok(())
}

/// Who the material is for: the host's name and its fleet.
pub fn identity(material: &Material) -> Result<(String, String), Problem> {
    let own = material.chain.first().map(|own| Identity::of_certificate(own));
    match own {
        Some(Ok(Identity::Host { fleet, name })) => Ok((name, fleet)),
        _ => Err(Problem::new(
            Class::Terminal,
            "Identity",
            "the certificate on disk is not a host's: join again with a new token",
        )),
    }
}

/// Joins a fleet. The key is on disk before it is asked for: a token is for one key, and an answer can be lost.
pub async fn enrol(
    state: &Path,
    manager: &str,
    host: &str,
    token: &JoinToken,
    steps: &dyn ServiceFailpoints,
) -> Result<Material, Problem> {
    fs::create_dir_all(state).map_err(|error| disk("making the state directory", &error))?;
    let pending = state.join("joining.pem");
    let key = match fs::read_to_string(&pending) {
        Ok(pem) => NewKey::from_pem(&pem)?,
        Err(_) => {
            let key = NewKey::generate()?;
            write_secret(&pending, key.to_pem().as_bytes())
                .map_err(|error| disk("writing the host's key", &error))?;
            key
        }
    };
    let material = join(manager, host, token, &key).await?;
    write(state, &material, steps)?;
    fs::remove_file(&pending).map_err(|error| disk("removing the key of the join", &error))?;
    Ok(material)
}

/// What to do about the certificate now: pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Look again after so long.
    Wait(Duration),
    Renew,
    /// Nobody accepts it any more; trying is all there is, and a person has to know.
    Expired,
}

pub fn due(valid: &Validity, now: Timestamp) -> Due {
    if now >= valid.until {
        return Due::Expired;
    }
    // A clock before the certificate's beginning is wrong, and so is every date it gives.
    let renew_at = valid.renew_at();
    if now >= renew_at {
        return Due::Renew;
    }
    let wait = Duration::try_from(renew_at.duration_since(now)).unwrap_or(LOOK_AGAIN);
    Due::Wait(wait.min(LOOK_AGAIN).max(Duration::from_millis(1)))
}

/// Renews for ever. New connections take the new certificate; it is on disk before it is used.
pub async fn keep_renewed(
    state: PathBuf,
    manager: String,
    host: String,
    tls: Arc<CurrentTls>,
    steps: Arc<dyn ServiceFailpoints>,
) {
    loop {
        let valid = tls.get().valid;
        let now = Timestamp::now();
        match due(&valid, now) {
            Due::Wait(wait) => tokio::time::sleep(wait).await,
            Due::Renew => {
                if let Err(problem) = renew_once(&state, &manager, &host, &tls, steps.as_ref()).await {
                    tracing::warn!("renewing the certificate: {problem}");
                }
                // A short life has short waits. Also after a success: the new certificate may be due at once.
                let wait = RENEW_AGAIN.min(valid.left(now) / 20);
                tokio::time::sleep(wait.max(Duration::from_millis(100))).await;
            }
            Due::Expired => {
                tracing::error!(
                    until = %valid.until,
                    "the host's certificate is over and nobody accepts it: `slipway-agent join` with a new token"
                );
                // Somebody may just have joined again; or the clock jumped, and the certificate on disk is good.
                if let Err(problem) = take_from_disk(&state, &tls) {
                    tracing::warn!("reading the host's identity: {problem}");
                }
                if due(&tls.get().valid, Timestamp::now()) == Due::Expired {
                    tokio::time::sleep(RENEW_AGAIN).await;
                }
            }
        }
    }
}

fn take_from_disk(state: &Path, tls: &CurrentTls) -> Result<(), Problem> {
    let Some(material) = read(state)? else {
        return Ok(());
    };
    tls.replace(&material)
        .map_err(|error| Problem::new(Class::Transient, "Tls", error.to_string()))
}

async fn renew_once(
    state: &Path,
    manager: &str,
    host: &str,
    tls: &CurrentTls,
    steps: &dyn ServiceFailpoints,
) -> Result<(), Problem> {
    let key = NewKey::generate()?;
    let material = renew(manager, host, tls, &key).await?;
    write(state, &material, steps)?;
    tls.replace(&material)
        .map_err(|error| Problem::new(Class::Transient, "Tls", error.to_string()))?;
    tracing::info!(until = %tls.get().valid.until, "the certificate is renewed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_that_somebody_else_wrote_is_taken_from_disk() {
        use slipway_agent_api::{ca::Ca, tls::Callers};
        let now = Timestamp::now();
        let pem = Ca::generate("fleet", now).unwrap();
        let issue = |hours: u64| {
            let ca = Ca::open("fleet", &pem, &[], Duration::from_hours(hours)).unwrap();
            let identity = Identity::Host {
                fleet: "fleet".into(),
                name: "box-1".into(),
            };
            ca.issue(&identity, now).unwrap()
        };
        let state = tempfile::tempdir().unwrap();
        let tls = CurrentTls::new(&issue(1), Callers::WithCertificate).unwrap();
        let before = tls.get().valid.until;
        take_from_disk(state.path(), &tls).unwrap();
        assert_eq!(tls.get().valid.until, before, "nobody has joined again");
        write(state.path(), &issue(9), &crate::engine::Unhindered).unwrap();
        take_from_disk(state.path(), &tls).unwrap();
        assert!(tls.get().valid.until > before);
        let mode = fs::metadata(place(state.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_certificate_is_renewed_in_time_whatever_the_clock_does() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let valid = Validity {
            from: at("2026-01-01T00:00:00Z"),
            until: at("2026-01-31T00:00:00Z"),
        };
        for (now, expected) in [
            ("2026-01-02T00:00:00Z", Due::Wait(LOOK_AGAIN)),
            ("2026-01-20T23:59:00Z", Due::Wait(Duration::from_mins(1))),
            ("2026-01-21T00:00:00Z", Due::Renew),
            ("2026-01-30T23:59:59Z", Due::Renew),
            ("2026-01-31T00:00:00Z", Due::Expired),
            // Jumps: years ahead, and years back.
            ("2031-01-01T00:00:00Z", Due::Expired),
            ("1999-01-01T00:00:00Z", Due::Wait(LOOK_AGAIN)),
        ] {
            assert_eq!(due(&valid, at(now)), expected, "{now}");
        }
    }
}
