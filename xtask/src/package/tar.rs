//! Writes a tar archive that is the same every time: no times, no owners' names, files in the order they are given.

/// One entry of an archive.
pub struct Entry<'a> {
    /// Without a leading slash; a folder's ends in one.
    pub path: &'a str,
    pub mode: u32,
    pub owner: u32,
    pub content: &'a [u8],
}

const BLOCK: usize = 512;

/// The archive, in the ustar form that every reader knows.
pub fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut archive = Vec::new();
    for entry in entries {
        archive.extend(header(entry));
        archive.extend(entry.content);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    // Two empty blocks end it.
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn header(entry: &Entry<'_>) -> [u8; BLOCK] {
    assert!(
        entry.path.len() <= 100,
        "paths in an image are short: {}",
        entry.path
    );
    let mut header = [0; BLOCK];
    let mut put =
        |offset: usize, text: &str| header[offset..offset + text.len()].copy_from_slice(text.as_bytes());
    put(0, entry.path);
    put(100, &format!("{:07o}", entry.mode));
    put(108, &format!("{:07o}", entry.owner));
    put(116, &format!("{:07o}", entry.owner));
    put(124, &format!("{:011o}", entry.content.len()));
    put(136, &format!("{:011o}", 0));
    // The checksum is made as if it were spaces.
    put(148, "        ");
    put(156, if entry.path.ends_with('/') { "5" } else { "0" });
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::{io::Write, process::Command};

    use super::*;

    #[test]
    fn tar_reads_what_is_written() {
        let entries = [
            Entry {
                path: "tmp/",
                mode: 0o1777,
                owner: 0,
                content: b"",
            },
            Entry {
                path: "etc/passwd",
                mode: 0o644,
                owner: 0,
                content: b"nonroot:x:65532:65532::/:\n",
            },
            Entry {
                path: "slipway",
                mode: 0o755,
                owner: 65532,
                content: &[7; 1000],
            },
        ];
        let archive = archive(&entries);
        assert_eq!(archive.len() % BLOCK, 0);
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let path = folder.path().join("layer.tar");
        std::fs::File::create(&path)
            .and_then(|mut file| file.write_all(&archive))
            .expect("it can be written");
        let output = Command::new("tar")
            .args(["--numeric-owner", "-tvf"])
            .arg(&path)
            .env("TZ", "UTC")
            .output()
            .expect("tar is there");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let found: Vec<_> = lines
            .iter()
            .map(|words| (words[0], words[1], words[2], words[5]))
            .collect();
        assert_eq!(
            found,
            [
                ("drwxrwxrwt", "0/0", "0", "tmp/"),
                ("-rw-r--r--", "0/0", "26", "etc/passwd"),
                ("-rwxr-xr-x", "65532/65532", "1000", "slipway"),
            ]
        );
    }
}
