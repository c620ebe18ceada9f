//! SSH public keys: making one, and telling whether a text is one.

use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;
use base64::{Engine, engine::general_purpose::STANDARD};

const ALGORITHMS: &[&str] = &[
    "ssh-rsa",
    "ssh-dss",
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];

/// Makes a key pair, keeps the public half in the authorized_keys form and forgets the private one: AKS wants a key,
/// and nobody asked to sign in with it. The error never holds key material.
pub fn generate() -> Result<String, String> {
    let pair = KeyPair::generate(KeySize::Rsa2048).map_err(|_| "cannot generate an RSA key".to_owned())?;
    let (modulus, exponent) = rsa_integers(pair.public_key().as_ref())
        .ok_or_else(|| "cannot read the generated RSA key".to_owned())?;
    let mut blob = Vec::new();
    for part in [b"ssh-rsa".as_slice(), exponent, modulus] {
        blob.extend_from_slice(&(part.len() as u32).to_be_bytes());
        blob.extend_from_slice(part);
    }
    Ok(format!("ssh-rsa {}\n", STANDARD.encode(blob)))
}

/// The two INTEGERs of an RSAPublicKey in DER. Their bytes are what SSH calls an mpint.
fn rsa_integers(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (body, _) = der_value(der, 0x30)?;
    let (modulus, rest) = der_value(body, 0x02)?;
    let (exponent, _) = der_value(rest, 0x02)?;
    Some((modulus, exponent))
}

/// The content of one DER value with this tag, and what follows it.
fn der_value(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [found, length, rest @ ..] = bytes else {
        return None;
    };
    if *found != tag {
        return None;
    }
    let (length, rest) = if *length < 0x80 {
        (usize::from(*length), rest)
    } else {
        let (digits, rest) = rest.split_at_checked(usize::from(*length & 0x7f))?;
        if digits.len() > 4 {
            return None;
        }
        let length = digits
            .iter()
            .fold(0usize, |sum, digit| sum << 8 | usize::from(*digit));
        (length, rest)
    };
    rest.split_at_checked(length)
}

/// Whether any line is a public key in the authorized_keys form: options, algorithm, base64, comment.
pub fn is_authorized_key(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .any(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            words.windows(2).any(|pair| {
                ALGORITHMS.contains(&pair[0])
                    && STANDARD
                        .decode(pair[1])
                        .is_ok_and(|blob| is_blob_of(&blob, pair[0]))
            })
        })
}

/// Whether the bytes are length-prefixed parts to the end, the algorithm first.
fn is_blob_of(mut blob: &[u8], algorithm: &str) -> bool {
    let mut parts = 0;
    while !blob.is_empty() {
        let Some((length, rest)) = blob.split_first_chunk::<4>() else {
            return false;
        };
        let Some((part, rest)) = rest.split_at_checked(u32::from_be_bytes(*length) as usize) else {
            return false;
        };
        if parts == 0 && part != algorithm.as_bytes() {
            return false;
        }
        parts += 1;
        blob = rest;
    }
    parts > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_key_is_a_key_and_never_the_same() {
        let (one, two) = (generate().expect("a key"), generate().expect("a key"));
        assert!(is_authorized_key(&one), "{one}");
        assert_ne!(one, two);
        let blob = STANDARD
            .decode(one.split(' ').nth(1).expect("a blob").trim())
            .expect("base64");
        // 4 + 7 for the name, 4 + 3 for 65537, 4 + 257 for 2048 bits with their sign byte.
        assert_eq!(blob.len(), 11 + 7 + 261);
    }

    #[test]
    fn what_is_no_key_is_told() {
        for bad in [
            "",
            "ssh-rsa",
            "ssh-rsa AAAA",
            "ssh-rsa !!!",
            "ssh-foo AAAAB3NzaC1yc2E=",
            "# ssh-rsa x",
            "\u{0}",
        ] {
            assert!(!is_authorized_key(bad), "{bad}");
        }
        let key = generate().expect("a key");
        assert!(is_authorized_key(&format!(
            "# mine\nno-pty {} me@home",
            key.trim()
        )));
        assert!(!is_authorized_key(&key.replace("ssh-rsa ", "ssh-ed25519 ")));
    }
}
