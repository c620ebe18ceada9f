//! The manager's image: the program, a user to run as, a place for temporary files and the CAs that public
//! servers are trusted by. No shell, nothing else.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;

use super::{binaries::Built, oci, tar::Entry};

const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// Writes the layout afresh.
pub fn write(programs: &[Built], directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("removing {}", directory.display()))?;
    }
    let mut contents = Vec::new();
    for program in programs {
        let content =
            fs::read(&program.path).with_context(|| format!("reading {}", program.path.display()))?;
        contents.push((program.architecture, content));
    }
    let authorities = authorities();
    let images: Vec<oci::Image<'_>> = contents
        .iter()
        .map(|(architecture, program)| oci::Image {
            architecture,
            entries: entries(program, &authorities),
            entrypoint: &["/slipway"],
        })
        .collect();
    let labels = json!({
        "org.opencontainers.image.title": "slipway",
        "org.opencontainers.image.description": "Runs fleets of Kubernetes clusters through Cluster API",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": VERSION,
    });
    let digest = oci::write(&images, VERSION, &labels, directory)
        .with_context(|| format!("writing {}", directory.display()))?;
    println!("{}: {digest}", directory.display());
    Ok(())
}

/// Mozilla's CAs as one PEM file. They come with a pinned crate, so the image does not depend on the machine.
fn authorities() -> String {
    let mut text = String::new();
    for certificate in webpki_root_certs::TLS_SERVER_ROOT_CERTS {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = BASE64_STANDARD.encode(certificate);
        for line in encoded.as_bytes().chunks(64) {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

fn entries<'a>(program: &'a [u8], authorities: &'a str) -> Vec<Entry<'a>> {
    vec![
        Entry {
            path: "etc/",
            mode: 0o755,
            owner: 0,
            content: b"",
        },
        Entry {
            path: "etc/passwd",
            mode: 0o644,
            owner: 0,
            content: b"root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n",
        },
        Entry {
            path: "etc/group",
            mode: 0o644,
            owner: 0,
            content: b"root:x:0:\nnonroot:x:65532:\n",
        },
        Entry {
            path: "etc/ssl/",
            mode: 0o755,
            owner: 0,
            content: b"",
        },
        Entry {
            path: "etc/ssl/certs/",
            mode: 0o755,
            owner: 0,
            content: b"",
        },
        Entry {
            path: "etc/ssl/certs/ca-certificates.crt",
            mode: 0o644,
            owner: 0,
            content: authorities.as_bytes(),
        },
        Entry {
            path: "tmp/",
            mode: 0o1777,
            owner: 0,
            content: b"",
        },
        Entry {
            path: "slipway",
            mode: 0o755,
            owner: 0,
            content: program,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_are_written_as_pem() {
        let text = authorities();
        let count = text.matches("-----BEGIN CERTIFICATE-----\n").count();
        assert_eq!(count, webpki_root_certs::TLS_SERVER_ROOT_CERTS.len());
        let first: String = text
            .lines()
            .skip(1)
            .take_while(|line| !line.starts_with("-----"))
            .collect();
        let read = BASE64_STANDARD.decode(first).expect("base64");
        assert_eq!(read, webpki_root_certs::TLS_SERVER_ROOT_CERTS[0].as_ref());
    }

    #[test]
    fn the_only_program_in_the_image_is_ours() {
        let programs: Vec<&str> = entries(b"program", "authorities")
            .into_iter()
            .filter(|entry| !entry.path.ends_with('/') && entry.mode & 0o111 != 0)
            .map(|entry| entry.path)
            .collect();
        assert_eq!(programs, ["slipway"]);
    }
}
