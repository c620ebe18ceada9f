//! The certificates of one cluster: a CA, what it signs for servers, and what it signs for people.

use std::{fs, io, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256,
};

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// Signs for one cluster.
#[derive(Clone)]
pub struct Ca {
    pair: Pair,
}

impl Ca {
    pub fn new(name: &str) -> Result<Ca, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = named(name, None);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
        ];
        let certificate = parameters.self_signed(&key)?;
        Ok(Ca {
            pair: Pair {
                certificate: certificate.pem(),
                key: key.serialize_pem(),
            },
        })
    }

    pub fn from_pair(pair: Pair) -> Ca {
        Ca { pair }
    }

    pub fn pair(&self) -> &Pair {
        &self.pair
    }

    /// A certificate for servers on this machine.
    pub fn server(&self) -> Result<Pair, rcgen::Error> {
        self.server_called(
            [
                "127.0.0.1",
                "10.0.0.1",
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
            ]
            .map(String::from),
        )
    }

    /// A certificate for a server that is reached under these names.
    pub fn server_called(&self, names: impl Into<Vec<String>>) -> Result<Pair, rcgen::Error> {
        let mut parameters = CertificateParams::new(names)?;
        parameters.distinguished_name = named("localhost", None);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(parameters)
    }

    /// A certificate that says who a client is, and of which group: it has room for one.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Pair, rcgen::Error> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name = named(user, group);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(parameters)
    }

    fn sign(&self, mut parameters: CertificateParams) -> Result<Pair, rcgen::Error> {
        parameters.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        let issuer = Issuer::from_ca_cert_pem(&self.pair.certificate, KeyPair::from_pem(&self.pair.key)?)?;
        let key = KeyPair::generate()?;
        Ok(Pair {
            certificate: parameters.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

impl Pair {
    /// Writes `<name>.crt` and `<name>.key`.
    pub fn write(&self, directory: &Path, name: &str) -> io::Result<()> {
        fs::write(directory.join(format!("{name}.crt")), &self.certificate)?;
        fs::write(directory.join(format!("{name}.key")), &self.key)
    }

    pub fn read(directory: &Path, name: &str) -> io::Result<Pair> {
        Ok(Pair {
            certificate: fs::read_to_string(directory.join(format!("{name}.crt")))?,
            key: fs::read_to_string(directory.join(format!("{name}.key")))?,
        })
    }
}

/// A new private key and its public half, both PEM. RSA, as clusters have it: others that trust their tokens, such as
/// Entra ID, take no other.
pub fn key() -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_RSA_SHA256)?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn named(name: &str, group: Option<&str>) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    if let Some(group) = group {
        distinguished.push(DnType::OrganizationName, group);
    }
    distinguished
}
