//! Bootstrap data: the part of cloud-config that bootstrap providers write. What is not understood is refused before
//! anything is done: half a bootstrap is worse than none.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Component, Path, PathBuf};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use slipway_agent_api::{Class, Problem};

/// Reads of compressed files end here.
const MAX_FILE: u64 = 16 << 20;

/// What to do, in this order.
#[derive(Clone, PartialEq, Eq)]
pub struct Bootstrap {
    /// `bootcmd`: before files are written.
    pub early: Vec<Vec<String>>,
    pub files: Vec<BootstrapFile>,
    /// `runcmd`
    pub commands: Vec<Vec<String>>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapFile {
    pub path: PathBuf,
    pub contents: Vec<u8>,
    pub mode: u32,
    pub owner: Option<String>,
    pub append: bool,
}

impl std::fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Bootstrap({} files, {} commands)",
            self.files.len(),
            self.early.len() + self.commands.len()
        )
    }
}

impl std::fmt::Debug for BootstrapFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BootstrapFile({})", self.path.display())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CloudConfig {
    #[serde(default)]
    write_files: Vec<WriteFile>,
    #[serde(default)]
    bootcmd: Vec<RunCommand>,
    #[serde(default)]
    runcmd: Vec<RunCommand>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteFile {
    /// An entry without one is no file, as cloud-init has it: kubeadm's bootstrap provider writes such entries, for the key of an etcd
    /// CA that is not the cluster's own.
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    content: String,
    #[serde(default)]
    encoding: Option<String>,
    #[serde(default)]
    permissions: Option<String>,
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    append: bool,
}

/// A line for the shell, or a program with its arguments.
#[derive(Deserialize)]
#[serde(untagged)]
enum RunCommand {
    Line(String),
    Words(Vec<String>),
}

fn refused(message: impl Into<String>) -> Problem {
    Problem::new(Class::Terminal, "Bootstrap", message)
}

impl Bootstrap {
    /// `host` and `provider_id` are what templates call the host and its node; an empty provider id is none.
    pub fn parse(data: &[u8], host: &str, provider_id: &str) -> Result<Self, Problem> {
        let text = std::str::from_utf8(data).map_err(|_| refused("the bootstrap data is not text"))?;
        let first = text.lines().map(str::trim).find(|line| !line.is_empty());
        // Templates of bootstrap providers begin with a line for Jinja.
        let header = match first {
            Some("## template: jinja") => text.lines().map(str::trim).nth(1),
            first => first,
        };
        if header != Some("#cloud-config") {
            return Err(refused(
                "the bootstrap data must begin with #cloud-config: other formats are not run by this agent",
            ));
        }
        let filled;
        let text = if first == header {
            text
        } else {
            filled = fill_in(text, host, provider_id)?;
            &filled
        };
        // The parser's own message may show the text, and the text has secrets.
        let parsed: CloudConfig = serde_saphyr::from_str(text).map_err(|_| {
            refused(
                "the bootstrap data is not cloud-config of the kind this agent runs: write_files, bootcmd and runcmd",
            )
        })?;
        let files = parsed
            .write_files
            .into_iter()
            .filter_map(|mut file| {
                let path = file.path.take().filter(|path| !path.is_empty())?;
                Some(BootstrapFile::read(&path, file))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            early: commands(parsed.bootcmd)?,
            files,
            commands: commands(parsed.runcmd)?,
        })
    }
}

fn commands(given: Vec<RunCommand>) -> Result<Vec<Vec<String>>, Problem> {
    given
        .into_iter()
        .map(|command| match command {
            RunCommand::Line(line) => Ok(["/bin/sh", "-c", &line].map(str::to_owned).to_vec()),
            RunCommand::Words(words) if words.first().is_some_and(|word| !word.is_empty()) => Ok(words),
            RunCommand::Words(_) => Err(refused("a command of the bootstrap data is empty")),
        })
        .collect()
}

const PROVIDER_ID: &str = "ds.meta_data.provider_id";

/// Templates that ask for the host's name, as those of kubeadm do, or for the provider id are filled in; others are not.
fn fill_in(text: &str, host: &str, provider_id: &str) -> Result<String, Problem> {
    const NAMES: [&str; 5] = [
        "ds.meta_data.local_hostname",
        "ds.meta_data.hostname",
        "v1.local_hostname",
        "local_hostname",
        "hostname",
    ];
    let not_filled = || {
        refused(format!(
            "the bootstrap data has expressions of a template that nobody here fills in; these are: {}{}",
            NAMES.join(", "),
            if provider_id.is_empty() {
                ""
            } else {
                ", ds.meta_data.provider_id"
            }
        ))
    };
    if text.contains("{%") {
        return Err(not_filled());
    }
    let mut parts = text.split("{{");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (expression, rest) = part.split_once("}}").ok_or_else(not_filled)?;
        filled.push_str(match expression.trim() {
            name if NAMES.contains(&name) => host,
            PROVIDER_ID if !provider_id.is_empty() => provider_id,
            _ => return Err(not_filled()),
        });
        filled.push_str(rest);
    }
    Ok(filled)
}

impl BootstrapFile {
    fn read(name: &str, file: WriteFile) -> Result<Self, Problem> {
        let path = PathBuf::from(name);
        let plain = path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !path.is_absolute() || !plain || name.contains('\0') {
            return Err(refused(
                "a file of the bootstrap data has a path that is not absolute and plain",
            ));
        }
        let shown = path.display().to_string();
        let decode = |text: &str| {
            BASE64_STANDARD
                .decode(text.split_whitespace().collect::<String>())
                .map_err(|_| refused(format!("the contents of {shown} are not base64")))
        };
        let unpack = |bytes: Vec<u8>| -> Result<Vec<u8>, Problem> {
            use std::io::Read;
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(bytes.as_slice())
                .take(MAX_FILE + 1)
                .read_to_end(&mut plain)
                .map_err(|_| refused(format!("the contents of {shown} cannot be unpacked")))?;
            if plain.len() as u64 > MAX_FILE {
                return Err(refused(format!("{shown} has more than {MAX_FILE} bytes")));
            }
            Ok(plain)
        };
        let contents = match file.encoding.as_deref().unwrap_or("text/plain") {
            "text/plain" | "" => file.content.into_bytes(),
            "b64" | "base64" => decode(&file.content)?,
            "gz+b64" | "gz+base64" | "gzip+b64" | "gzip+base64" => unpack(decode(&file.content)?)?,
            _ => return Err(refused(format!("{shown} has an encoding that is not known"))),
        };
        let mode = match &file.permissions {
            None => 0o644,
            Some(text) => u32::from_str_radix(text.trim_start_matches("0o"), 8)
                .ok()
                .filter(|mode| *mode <= 0o7777)
                .ok_or_else(|| refused(format!("{shown} has permissions that are not octal digits")))?,
        };
        Ok(Self {
            path,
            contents,
            mode,
            owner: file.owner,
            append: file.append,
        })
    }

    /// Writes the file below `root`, which is `/` on a host.
    pub fn write(&self, root: &Path) -> std::io::Result<()> {
        use std::io::Write;
        let path = root.join(self.path.strip_prefix("/").unwrap_or(&self.path));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .write(true)
            .append(self.append)
            .truncate(!self.append)
            // Nobody reads a secret before its permissions are set.
            .mode(self.mode & 0o700)
            .open(&path)?;
        file.set_permissions(std::fs::Permissions::from_mode(self.mode))?;
        file.write_all(&self.contents)?;
        file.sync_all()?;
        if let Some(owner) = &self.owner {
            let (user, group) = ids(owner)?;
            chown(&path, user, group)?;
        }
        Ok(())
    }
}

/// `user:group` by the system's own tables.
fn ids(owner: &str) -> std::io::Result<(Option<u32>, Option<u32>)> {
    let unknown = |name: &str| std::io::Error::other(format!("nobody here is called {name}"));
    let find = |table: &str, name: &str| -> std::io::Result<u32> {
        if let Ok(number) = name.parse() {
            return Ok(number);
        }
        std::fs::read_to_string(table)?
            .lines()
            .find_map(|line| {
                let mut fields = line.split(':');
                (fields.next() == Some(name))
                    .then(|| fields.nth(1)?.parse().ok())
                    .flatten()
            })
            .ok_or_else(|| unknown(name))
    };
    let (user, group) = owner.split_once(':').unwrap_or((owner, ""));
    let user_id = (!user.is_empty())
        .then(|| find("/etc/passwd", user))
        .transpose()?;
    let group_id = (!group.is_empty())
        .then(|| find("/etc/group", group))
        .transpose()?;
    Ok((user_id, group_id))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KUBEADM: &str = "## template: jinja\n#cloud-config\n\nwrite_files:\n-   path: /run/kubeadm/kubeadm.yaml\n    owner: root:root\n    permissions: '0640'\n    content: |\n      ---\n      token: canary\n-   path: /etc/packed\n    encoding: gzip+base64\n    content: H4sIAAAAAAAAA8tIzcnJBwCGphA2BQAAAA==\nruncmd:\n  - 'echo one > /tmp/one'\n  - [ ls, -l ]\n";

    #[test]
    fn what_bootstrap_providers_write_is_understood() {
        let bootstrap = Bootstrap::parse(KUBEADM.as_bytes(), "box-1", "").unwrap();
        assert_eq!(bootstrap.files[0].path, Path::new("/run/kubeadm/kubeadm.yaml"));
        assert_eq!(bootstrap.files[0].contents, b"---\ntoken: canary\n");
        assert_eq!((bootstrap.files[0].mode, bootstrap.files[1].mode), (0o640, 0o644));
        assert_eq!(
            bootstrap.commands,
            [
                vec!["/bin/sh".to_owned(), "-c".into(), "echo one > /tmp/one".into()],
                vec!["ls".into(), "-l".into()],
            ]
        );
        assert!(!format!("{bootstrap:?} {:?}", bootstrap.files).contains("canary"));
    }

    /// As kubeadm's bootstrap provider writes it for an external etcd.
    #[test]
    fn an_entry_without_a_path_is_no_file() {
        for path in ["path: ", "path: ''", "append: false"] {
            let text = format!(
                "#cloud-config\nwrite_files:\n-   {path}\n    permissions: '0600'\n    content: |\n      a key\n-   path: /etc/one\n    content: one\n"
            );
            let bootstrap = Bootstrap::parse(text.as_bytes(), "box-1", "").unwrap();
            let paths: Vec<_> = bootstrap.files.iter().map(|file| file.path.as_path()).collect();
            assert_eq!(paths, [Path::new("/etc/one")], "{path}");
        }
    }

    #[test]
    fn a_template_gets_the_hosts_name_and_early_commands_come_first() {
        let text = "## template: jinja\n#cloud-config\nbootcmd: [early]\nruncmd: ['kubeadm join --node-name {{ ds.meta_data.local_hostname }} {{ds.meta_data.hostname}}']\n";
        let bootstrap = Bootstrap::parse(text.as_bytes(), "box-1", "").unwrap();
        assert_eq!(bootstrap.early, [["/bin/sh", "-c", "early"]]);
        assert_eq!(
            bootstrap.commands,
            [["/bin/sh", "-c", "kubeadm join --node-name box-1 box-1"]]
        );
        // The node's provider id, where the order has one.
        let text_with_id = text.replace("{{ds.meta_data.hostname}}", "{{ ds.meta_data.provider_id }}");
        let id = "edge://default/box-1/0a1b";
        let bootstrap = Bootstrap::parse(text_with_id.as_bytes(), "box-1", id).unwrap();
        assert!(bootstrap.commands[0][2].ends_with("--node-name box-1 edge://default/box-1/0a1b"));
        let said = Bootstrap::parse(text_with_id.as_bytes(), "box-1", "").unwrap_err();
        assert!(said.message.contains("nobody here fills in"), "{said}");
        // Braces that no template was announced for are text.
        let plain = text.replace("## template: jinja\n", "");
        let bootstrap = Bootstrap::parse(plain.as_bytes(), "box-1", "").unwrap();
        assert!(bootstrap.commands[0][2].contains("{{"));
    }

    #[test]
    fn what_is_not_understood_is_refused_without_showing_it() {
        for (text, word) in [
            ("#!/bin/sh\necho canary", "#cloud-config"),
            (
                "#cloud-config\nusers: [canary]",
                "write_files, bootcmd and runcmd",
            ),
            ("#cloud-config\nwrite_files: canary", "write_files"),
            ("#cloud-config\nwrite_files: [{path: canary/x}]", "absolute"),
            (
                "#cloud-config\nwrite_files: [{path: /a/../../canary}]",
                "absolute",
            ),
            (
                "#cloud-config\nwrite_files: [{path: /a, permissions: canary}]",
                "octal",
            ),
            (
                "#cloud-config\nwrite_files: [{path: /a, encoding: b64, content: '?canary?'}]",
                "base64",
            ),
            ("#cloud-config\nruncmd: [[]]", "empty"),
            (
                "## template: jinja\n#cloud-config\nruncmd: ['{{ canary }}']",
                "template",
            ),
        ] {
            let said = Bootstrap::parse(text.as_bytes(), "box-1", "").unwrap_err();
            assert!(said.message.contains(word), "{said}");
            assert!(!said.message.contains("canary"), "{said}");
        }
    }

    #[test]
    fn a_file_has_its_contents_and_permissions_and_is_appended_to() {
        let root = tempfile::tempdir().unwrap();
        let mut file = Bootstrap::parse(KUBEADM.as_bytes(), "box-1", "")
            .unwrap()
            .files
            .remove(0);
        file.owner = None;
        file.write(root.path()).unwrap();
        file.append = true;
        file.write(root.path()).unwrap();
        let path = root.path().join("run/kubeadm/kubeadm.yaml");
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "---\ntoken: canary\n---\ntoken: canary\n"
        );
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            0o640
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(#cloud-config\n)?[ -~\n]{0,200}") {
            let _ = Bootstrap::parse(text.as_bytes(), "box-1", "");
        }

        #[test]
        fn damaged_bootstrap_data_is_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = KUBEADM.as_bytes().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = Bootstrap::parse(&bytes, "box-1", "");
        }
    }
}
