//! What the disk of a host holds before it boots: the little an image brings along, and what cloud-init is to do. The
//! programs on it stand in for what a host gets from outside: k3s' installer, `curl`, an init that keeps a service up.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt, symlink},
    path::Path,
};

use slipway_k3s_sim::Userdata;

/// Where cloud-init keeps what it was told.
const INSTANCE: &str = "var/lib/cloud/instance";
/// Where a host and the platform it runs on talk to each other.
pub const PLATFORM: &str = "run/platform";
/// Where every release is mounted under its version.
pub const RELEASES: &str = "opt/releases";

/// Outside the host, in namespaces of its own: makes its network and its view of the disk, then becomes it.
pub const POWER_ON: &str = include_str!("power_on.sh");
const INIT: &str = include_str!("init.sh");
const SUPERVISE: &str = include_str!("supervise.sh");
const INSTALL: &str = include_str!("install.sh");
const CURL: &str = include_str!("curl.sh");
const WRITE: &str = include_str!("write.sh");

/// Lays out the disk of a new host.
pub fn lay_out(root: &Path, userdata: &Userdata, image_version: &str) -> io::Result<()> {
    let folders = [
        "dev",
        "etc",
        "home",
        "local/bin",
        "local/lib",
        "opt/releases",
        "proc",
        "root",
        "srv",
        "sys",
        "usr",
    ];
    for folder in folders {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::create_dir_all(root.join("var/log"))?;
    fs::create_dir(root.join("tmp"))?;
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    symlink("/run", root.join("var/run"))?;
    for (path, text) in [
        (
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
        ),
        ("etc/group", "root:x:0:\nadm:x:4:\nnogroup:x:65534:\n"),
        ("etc/hosts", "127.0.0.1 localhost\n"),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ] {
        fs::write(root.join(path), text)?;
    }
    for (path, text) in [
        ("local/bin/curl", CURL),
        ("local/lib/init", INIT),
        ("local/lib/supervise", SUPERVISE),
        // k3s looks for it wherever it starts, and brings its own in a release.
        ("local/bin/host-local", "#!/bin/sh\nexit 1\n"),
        ("opt/install.sh", INSTALL),
    ] {
        fs::write(root.join(path), text)?;
        fs::set_permissions(root.join(path), fs::Permissions::from_mode(0o755))?;
    }
    // For a host that downloads nothing.
    symlink(format!("/{RELEASES}/{image_version}"), root.join("local/bin/k3s"))?;
    stage(&root.join(INSTANCE), userdata)
}

/// Puts down what cloud-init is to do: the contents of the files, and two scripts.
fn stage(instance: &Path, userdata: &Userdata) -> io::Result<()> {
    let files = instance.join("files");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&files)?;
    for (number, file) in userdata.files.iter().enumerate() {
        fs::write(files.join(number.to_string()), &file.content)?;
    }
    fs::write(instance.join("write-files"), write_files(userdata))?;
    fs::write(instance.join("runcmd"), userdata.script())
}

/// A file that cannot be written keeps the following ones from being written, as in cloud-init.
fn write_files(userdata: &Userdata) -> String {
    let mut script = WRITE.to_owned();
    for (number, file) in userdata.files.iter().enumerate() {
        let call = format!(
            "write /{INSTANCE}/files/{number} {} {:o} {} {}\n",
            quoted(&file.path),
            file.permissions,
            quoted(&file.owner),
            if file.append { "append" } else { "replace" },
        );
        script.push_str(&call);
    }
    script
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
