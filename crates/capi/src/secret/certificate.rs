//! Certificate CAs of a cluster: which are missing, how they are made, and when a certificate ends. What a
//! user supplied is taken as it is; after initialisation nothing is made again, because a new CA would lock
//! every running node out.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair as SigningKey, KeyUsagePurpose, SerialNumber, SignatureAlgorithm,
};
use secrecy::{ExposeSecret, SecretString};

use super::{KeyPair, Purpose};
use crate::Error;

pub const DAY: Duration = Duration::from_hours(24);
/// How long a CA lives.
pub const CA_LIFETIME: Duration = Duration::from_hours(3650 * 24);
/// How long a client certificate lives; it is renewed at half of that.
pub const CLIENT_LIFETIME: Duration = Duration::from_hours(365 * 24);
/// Clocks differ.
const BACKDATED: Duration = Duration::from_mins(5);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyAlgorithm {
    /// What Cluster API makes where nothing else is asked for.
    #[default]
    Rsa2048,
    EcdsaP256,
}

impl KeyAlgorithm {
    fn algorithm(self) -> &'static SignatureAlgorithm {
        match self {
            Self::Rsa2048 => &rcgen::PKCS_RSA_SHA256,
            Self::EcdsaP256 => &rcgen::PKCS_ECDSA_P256_SHA256,
        }
    }
}

/// Which of the required secrets have to be made: those that are not there, and none once the control plane runs.
/// `external` ones are never made, only waited for.
pub fn to_generate(
    required: &[Purpose],
    external: &[Purpose],
    present: &[Purpose],
    initialised: bool,
) -> Result<Vec<Purpose>, Error> {
    let missing: Vec<_> = required
        .iter()
        .copied()
        .filter(|purpose| !present.contains(purpose))
        .collect();
    let problem = |purpose: Purpose, problem: &str| Error::Secret {
        secret: format!("<cluster>-{}", purpose.as_str()),
        problem: problem.to_owned(),
    };
    if let Some(purpose) = missing.iter().find(|purpose| external.contains(purpose)) {
        return Err(problem(
            *purpose,
            "it is missing, and only its owner can make it: create it",
        ));
    }
    match missing.first() {
        Some(purpose) if initialised => Err(problem(
            *purpose,
            "it is missing although the control plane is initialised; a new one would not match the running nodes: \
             restore it",
        )),
        _ => Ok(missing),
    }
}

/// A new certificate authority, or a new pair of keys for service accounts.
pub fn generate(
    purpose: Purpose,
    common_name: &str,
    algorithm: KeyAlgorithm,
    lifetime: Duration,
    now: Timestamp,
) -> Result<KeyPair, Error> {
    let key = SigningKey::generate_for(algorithm.algorithm())?;
    if purpose == Purpose::ServiceAccount {
        return Ok(KeyPair {
            certificate: key.public_key_pem(),
            key: Some(private_key(&key)),
        });
    }
    let mut params = params(common_name, &[], lifetime, now);
    params.serial_number = Some(SerialNumber::from_slice(&[0]));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyCertSign,
    ];
    let certificate = params.self_signed(&key)?;
    Ok(KeyPair {
        certificate: certificate.pem(),
        key: Some(private_key(&key)),
    })
}

/// A client certificate signed by a CA.
pub fn client_certificate(
    ca: &KeyPair,
    user: &str,
    groups: &[&str],
    algorithm: KeyAlgorithm,
    lifetime: Duration,
    now: Timestamp,
) -> Result<KeyPair, Error> {
    let ca_key = ca
        .key
        .as_ref()
        .ok_or_else(|| Error::Certificate("the CA has no private key".to_owned()))?;
    // What the library says about a bad key can hold parts of it: only the kind of problem is told.
    let ca_key = SigningKey::from_pem(ca_key.expose_secret())
        .map_err(|_| Error::Certificate("the CA's private key cannot be read".to_owned()))?;
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, ca_key)
        .map_err(|_| Error::Certificate("the CA's certificate cannot be read".to_owned()))?;
    let key = SigningKey::generate_for(algorithm.algorithm())?;
    let mut params = params(user, groups, lifetime, now);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(KeyPair {
        certificate: certificate.pem(),
        key: Some(private_key(&key)),
    })
}

fn params(
    common_name: &str,
    organizations: &[&str],
    lifetime: Duration,
    now: Timestamp,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    for organization in organizations {
        name.push(DnType::OrganizationName, *organization);
    }
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(now.as_second().max(0).cast_unsigned());
    params.not_before = now - BACKDATED;
    params.not_after = now + lifetime;
    params
}

fn private_key(key: &SigningKey) -> SecretString {
    key.serialize_pem().into()
}

/// When the first certificate of a PEM text ends.
pub fn ends(pem: &str) -> Result<Timestamp, Error> {
    let unreadable = || Error::Certificate("the certificate cannot be read".to_owned());
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|_| unreadable())?;
    let certificate = pem.parse_x509().map_err(|_| unreadable())?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).map_err(|_| unreadable())
}

/// Whether a certificate ends within the given time.
pub fn ends_within(pem: &str, threshold: Duration, now: Timestamp) -> Result<bool, Error> {
    Ok(is_within(ends(pem)?, threshold, now))
}

/// Whether a time comes within the given time from now.
pub fn is_within(time: Timestamp, threshold: Duration, now: Timestamp) -> bool {
    time.as_second() - now.as_second() < threshold.as_secs().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-06-01T12:00:00Z".parse().unwrap()
    }

    fn ca(algorithm: KeyAlgorithm) -> KeyPair {
        generate(Purpose::ClusterCa, "kubernetes", algorithm, CA_LIFETIME, now()).unwrap()
    }

    #[test]
    fn an_authority_signs_clients_that_can_be_checked_against_it() {
        for algorithm in [KeyAlgorithm::Rsa2048, KeyAlgorithm::EcdsaP256] {
            let ca = ca(algorithm);
            let client = client_certificate(
                &ca,
                "kubernetes-admin",
                &["system:masters"],
                algorithm,
                CLIENT_LIFETIME,
                now(),
            )
            .unwrap();
            let (_, ca_pem) = x509_parser::pem::parse_x509_pem(ca.certificate.as_bytes()).unwrap();
            let ca = ca_pem.parse_x509().unwrap();
            let (_, client_pem) = x509_parser::pem::parse_x509_pem(client.certificate.as_bytes()).unwrap();
            let client = client_pem.parse_x509().unwrap();
            assert_eq!(client.issuer(), ca.subject());
            assert_eq!(
                client.subject().to_string(),
                "O=system:masters, CN=kubernetes-admin"
            );
            assert!(client.extended_key_usage().unwrap().unwrap().value.client_auth);
            assert!(ca.is_ca() && !client.is_ca());
            assert_eq!(
                ca.validity().not_after.timestamp() - now().as_second(),
                3650 * 24 * 3600
            );
        }
    }

    /// Cluster API stores RSA keys in the older PKCS#1 form.
    #[test]
    fn an_authority_of_cluster_api_can_sign() {
        let ca = ca(KeyAlgorithm::Rsa2048);
        let pkcs8 = x509_parser::pem::parse_x509_pem(ca.key.as_ref().unwrap().expose_secret().as_bytes())
            .unwrap()
            .1
            .contents;
        // SEQUENCE, version and algorithm come before the octets of the PKCS#1 key.
        let body = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &pkcs8[26..]);
        let lines: Vec<_> = body
            .as_bytes()
            .chunks(64)
            .map(|line| std::str::from_utf8(line).unwrap())
            .collect();
        let older = KeyPair {
            key: Some(
                format!(
                    "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n",
                    lines.join("\n")
                )
                .into(),
            ),
            ..ca
        };
        client_certificate(&older, "u", &[], KeyAlgorithm::EcdsaP256, DAY, now()).unwrap();
    }

    #[test]
    fn service_accounts_get_a_pair_of_plain_keys() {
        let pair = generate(Purpose::ServiceAccount, "", KeyAlgorithm::EcdsaP256, DAY, now()).unwrap();
        assert!(pair.certificate.starts_with("-----BEGIN PUBLIC KEY-----"));
    }

    #[test]
    fn a_bad_authority_is_named_without_its_key() {
        let bad = KeyPair {
            certificate: "x".into(),
            key: Some("sesame".to_owned().into()),
        };
        let error = client_certificate(&bad, "u", &[], KeyAlgorithm::EcdsaP256, DAY, now()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "making a certificate failed: the CA's private key cannot be read"
        );
    }

    #[test]
    fn ends_within_looks_at_the_first_certificate() {
        let ca = ca(KeyAlgorithm::EcdsaP256);
        let client = client_certificate(&ca, "u", &[], KeyAlgorithm::EcdsaP256, DAY * 10, now()).unwrap();
        assert!(!ends_within(&client.certificate, DAY * 9, now()).unwrap());
        assert!(ends_within(&client.certificate, DAY * 11, now()).unwrap());
        assert!(ends("nonsense").is_err());
    }

    #[test]
    fn nothing_is_made_anew_once_the_control_plane_runs() {
        use Purpose::{ClientCa, ClusterCa, EtcdCa};
        let required = [ClusterCa, ClientCa, EtcdCa];
        assert_eq!(
            to_generate(&required, &[], &[ClusterCa], false).unwrap(),
            [ClientCa, EtcdCa]
        );
        assert_eq!(to_generate(&required, &[], &required, true).unwrap(), []);
        let lost = to_generate(&required, &[], &[ClusterCa, ClientCa], true)
            .unwrap_err()
            .to_string();
        assert!(
            lost.starts_with("Secret <cluster>-etcd cannot be used: it is missing although"),
            "{lost}"
        );
        assert!(to_generate(&required, &[EtcdCa], &[ClusterCa, ClientCa], false).is_err());
    }
}
