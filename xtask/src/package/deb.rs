//! `cargo xtask package deb`: the node agent with its service, configuration and boot loader script as a Debian package.

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result, bail};
use flate2::{Compression, GzBuilder};

use super::{
    elf,
    static_build::{self, Target},
    tar::{Entry, archive},
    toolchain::Folders,
};
use crate::bench::upstream::root;

/// Files of `crates/agent/package` and where they go.
const FILES: [(&str, &str); 6] = [
    (
        "slipway-agent.service",
        "usr/lib/systemd/system/slipway-agent.service",
    ),
    (
        "slipway-agent-serve.service",
        "usr/lib/systemd/system/slipway-agent-serve.service",
    ),
    ("config.yaml", "usr/share/doc/slipway-agent/config.yaml"),
    ("grub.cfg", "usr/share/doc/slipway-agent/grub.cfg"),
    ("debian/copyright", "usr/share/doc/slipway-agent/copyright"),
    (
        "debian/lintian-overrides",
        "usr/share/lintian/overrides/slipway-agent",
    ),
];

/// What dpkg runs, from the same folder.
const SCRIPTS: [&str; 3] = ["postinst", "postrm", "prerm"];

/// Builds the agent for these architectures and packs one package for each.
pub fn build(architectures: &[String], out: &Path) -> Result<()> {
    let folders = Folders::find()?;
    for target in static_build::targets(architectures)? {
        let program = static_build::build(target, &folders, "slipway-agent", "slipway-agent")?;
        let content = fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
        elf::check_static(&content, target.machine)
            .map_err(|reason| anyhow::anyhow!("{}: {reason}", program.display()))?;
        if let Some(folder) = folders.named_in(&content) {
            bail!("{} names {}", program.display(), folder.display());
        }
        let package = pack(target, &content)?;
        let version = env!("CARGO_PKG_VERSION");
        let path = out.join(format!("slipway-agent_{version}_{}.deb", target.architecture));
        fs::write(&path, package).with_context(|| format!("writing {}", path.display()))?;
        println!("{}: {:.1} MB static", path.display(), content.len() as f64 / 1e6);
    }
    Ok(())
}

fn source(name: &str) -> Result<Vec<u8>> {
    let path = root().join("crates/agent/package").join(name);
    fs::read(&path).with_context(|| format!("reading {}", path.display()))
}

/// A text of the package with what only its making knows.
fn filled(name: &str, target: &Target, installed: usize) -> Result<Vec<u8>> {
    let text = fill(&String::from_utf8(source(name)?)?, target, installed);
    if let Some(placeholder) = unfilled(&text) {
        bail!("{name} has {placeholder}, which nothing is put in for");
    }
    Ok(text.into_bytes())
}

fn fill(text: &str, target: &Target, installed: usize) -> String {
    text.replace("@VERSION@", env!("CARGO_PKG_VERSION"))
        .replace("@ARCHITECTURE@", target.architecture)
        .replace("@INSTALLED_SIZE@", &installed.div_ceil(1024).to_string())
}

/// The first placeholder: capitals between two `@`, which no address has.
fn unfilled(text: &str) -> Option<&str> {
    let is_name =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    text.match_indices('@').find_map(|(start, _)| {
        let (name, _) = text[start + 1..].split_once('@')?;
        is_name(name).then(|| &text[start..start + name.len() + 2])
    })
}

fn pack(target: &Target, program: &[u8]) -> Result<Vec<u8>> {
    let mut files = vec![("usr/bin/slipway-agent", 0o755, program.to_vec())];
    for (from, to) in FILES {
        files.push((to, 0o644, source(from)?));
    }
    let changes = gzip(&filled("debian/changelog", target, 0)?)?;
    files.push(("usr/share/doc/slipway-agent/changelog.gz", 0o644, changes));
    let installed: usize = files.iter().map(|(_, _, content)| content.len()).sum();
    // Sums of the files are made by dpkg when it unpacks a package that brings none.
    let mut members = vec![(
        "./control".to_owned(),
        0o644,
        filled("debian/control", target, installed)?,
    )];
    for script in SCRIPTS {
        members.push((format!("./{script}"), 0o755, source(&format!("debian/{script}"))?));
    }
    let members: Vec<Entry<'_>> = members
        .iter()
        .map(|(path, mode, content)| file(path, *mode, content))
        .collect();
    let control = archive(&members);
    let names: Vec<String> = files.iter().map(|(path, ..)| format!("./{path}")).collect();
    let mut folders: Vec<String> = Vec::new();
    for name in &names {
        for (at, _) in name.match_indices('/').skip(1) {
            let folder = name[..=at].to_owned();
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    let mut entries: Vec<Entry<'_>> = folders.iter().map(|folder| file(folder, 0o755, b"")).collect();
    entries.extend(
        names
            .iter()
            .zip(&files)
            .map(|(name, (_, mode, content))| file(name, *mode, content)),
    );
    Ok(ar(&[
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", gzip(&control)?),
        ("data.tar.gz", gzip(&archive(&entries))?),
    ]))
}

fn file<'a>(path: &'a str, mode: u32, content: &'a [u8]) -> Entry<'a> {
    Entry {
        path,
        mode,
        owner: 0,
        content,
    }
}

/// The same bytes every time: no time, no name.
fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

/// The archive that a Debian package is.
fn ar(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let head = format!(
            "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n",
            0,
            0,
            0,
            100_644,
            content.len()
        );
        bytes.extend(head.as_bytes());
        bytes.extend(content);
        if content.len() % 2 == 1 {
            bytes.push(b'\n');
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, process::Command};

    use super::*;

    /// A package whose program is a script that says where it is.
    struct Package {
        folder: tempfile::TempDir,
        path: PathBuf,
    }

    /// `None`, and said aloud, where there is no dpkg.
    fn package() -> Option<Package> {
        if Command::new("dpkg").arg("--version").output().is_err() {
            println!("report: skipped: reading the agent's package needs dpkg");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("agent.deb");
        let program = b"#!/bin/sh\necho started\n";
        fs::write(&path, pack(&static_build::TARGETS[0], program).expect("packed")).expect("written");
        Some(Package { folder, path })
    }

    fn said(command: &mut Command) -> String {
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {text}{problem}");
        text
    }

    #[test]
    fn dpkg_reads_the_package() {
        let Some(package) = package() else { return };
        let info = said(Command::new("dpkg-deb").arg("--info").arg(&package.path));
        for expected in [
            "Package: slipway-agent",
            "Architecture: amd64",
            concat!("Version: ", env!("CARGO_PKG_VERSION")),
        ] {
            assert!(info.contains(expected), "{expected}: {info}");
        }
        assert_eq!(unfilled(&info), None, "{info}");
        let contents = said(Command::new("dpkg-deb").arg("--contents").arg(&package.path));
        let files: Vec<&str> = contents
            .lines()
            .filter(|line| line.starts_with('-'))
            .filter_map(|line| line.split_whitespace().last())
            .collect();
        assert_eq!(
            files,
            [
                "./usr/bin/slipway-agent",
                "./usr/lib/systemd/system/slipway-agent.service",
                "./usr/lib/systemd/system/slipway-agent-serve.service",
                "./usr/share/doc/slipway-agent/config.yaml",
                "./usr/share/doc/slipway-agent/grub.cfg",
                "./usr/share/doc/slipway-agent/copyright",
                "./usr/share/lintian/overrides/slipway-agent",
                "./usr/share/doc/slipway-agent/changelog.gz",
            ]
        );
        assert!(contents.starts_with("drwxr-xr-x 0/0"), "{contents}");
        assert!(contents.contains("-rwxr-xr-x 0/0"), "{contents}");
    }

    /// Of every text that goes into the package, and with the maintainer's address in it.
    #[test]
    fn a_placeholder_that_nobody_fills_is_found() {
        let target = &static_build::TARGETS[0];
        for name in ["debian/control", "debian/changelog"] {
            let text = String::from_utf8(source(name).expect("a file")).expect("text");
            assert!(unfilled(&text).is_some(), "{name} has none to fill");
            assert!(text.contains("authors@"), "{name} has no address");
            assert_eq!(unfilled(&fill(&text, target, 4096)), None, "{name}");
            let typo = text.replace("@VERSION@", "@VERSON@");
            assert_eq!(unfilled(&fill(&typo, target, 4096)), Some("@VERSON@"), "{name}");
        }
        for name in FILES
            .iter()
            .map(|(from, _)| (*from).to_owned())
            .chain(SCRIPTS.map(|name| format!("debian/{name}")))
        {
            let text = String::from_utf8(source(&name).expect("a file")).expect("text");
            assert_eq!(unfilled(&text), None, "{name} is packed as it is");
        }
        assert_eq!(unfilled("me@example.com and @you@"), None);
    }

    /// Into an empty root, whose dpkg knows nothing, and out of it again.
    #[test]
    fn dpkg_installs_and_removes_the_package() {
        let Some(package) = package() else { return };
        let root = package.folder.path().join("root");
        fs::create_dir_all(root.join("var/lib/dpkg/info")).expect("a folder");
        fs::create_dir_all(root.join("var/lib/dpkg/updates")).expect("a folder");
        fs::write(root.join("var/lib/dpkg/status"), "").expect("written");
        let dpkg = || {
            let mut command = Command::new("dpkg");
            command
                .arg(format!("--root={}", root.display()))
                .args(["--force-not-root", "--force-script-chrootless"]);
            command
        };
        said(dpkg().arg("--install").arg(&package.path));
        let status = said(dpkg().args(["--status", "slipway-agent"]));
        assert!(status.contains("Status: install ok installed"), "{status}");
        assert_eq!(
            said(&mut Command::new(root.join("usr/bin/slipway-agent"))),
            "started\n"
        );
        assert_eq!(said(dpkg().args(["--verify", "slipway-agent"])), "");
        fs::write(root.join("usr/bin/slipway-agent"), "changed").expect("written");
        let verified = dpkg()
            .args(["--verify", "slipway-agent"])
            .output()
            .expect("it runs");
        let verified = String::from_utf8_lossy(&verified.stdout).into_owned();
        assert!(verified.contains("/usr/bin/slipway-agent"), "{verified}");
        said(dpkg().args(["--remove", "slipway-agent"]));
        assert!(!root.join("usr/bin/slipway-agent").exists());
        assert!(!root.join("usr/lib/systemd/system/slipway-agent.service").exists());
    }

    /// Nothing in the unit is unknown to systemd, and its score says that it may do little.
    #[test]
    fn systemd_takes_the_unit() {
        let Some(package) = package() else { return };
        let root = package.folder.path().join("root");
        said(
            Command::new("dpkg-deb")
                .arg("--extract")
                .arg(&package.path)
                .arg(&root),
        );
        let analyze = |arguments: &[&str]| {
            let mut command = Command::new("systemd-analyze");
            command.args(arguments).output().ok()
        };
        if analyze(&["--version"]).is_none() {
            println!("report: skipped: checking the agent's unit needs systemd-analyze");
            return;
        }
        let at = format!("--root={}", root.display());
        let verified = analyze(&[
            &at,
            "--man=no",
            "--recursive-errors=no",
            "verify",
            "slipway-agent.service",
            "slipway-agent-serve.service",
        ]);
        let verified = verified.expect("it ran before");
        let problems = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(verified.status.success() && problems.is_empty(), "{problems}");
        let secure = analyze(&[
            &at,
            "--offline=yes",
            "--threshold=30",
            "security",
            "slipway-agent.service",
        ]);
        let secure = secure.expect("it ran before");
        let table = String::from_utf8_lossy(&secure.stdout).into_owned();
        assert!(secure.status.success(), "{table}");
    }
}
