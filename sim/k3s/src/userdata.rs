//! Userdata, read as cloud-init reads it: templating, `write_files` and `runcmd`. Pure; who runs it decides where.

use std::io::Read;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::Value;

/// What cloud-init makes a file with that says nothing else.
const PERMISSIONS: u32 = 0o644;
const OWNER: &str = "root:root";

/// What the platform tells cloud-init about the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    pub hostname: String,
    pub instance_id: String,
    pub zone: Option<String>,
}

/// Why a host cannot make anything of its userdata. No message holds what a file does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("the userdata is not a cloud-config")]
    NotCloudConfig,
    #[error("cloud-init's templating does not know {0:?}")]
    Template(String),
    #[error("the cloud-config is not YAML: {0}")]
    Yaml(String),
    #[error("the content of {0} is not in its encoding")]
    Encoding(String),
    #[error("{0} is not YAML")]
    Config(String),
    #[error("no command installs k3s")]
    NotK3s,
}

/// One file that is to be written, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenFile {
    pub path: String,
    /// `user:group`.
    pub owner: String,
    pub permissions: u32,
    pub content: Vec<u8>,
    pub append: bool,
}

/// What a host is told to do, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Userdata {
    pub files: Vec<WrittenFile>,
    /// Lines of a shell script.
    pub commands: Vec<String>,
}

#[derive(Deserialize)]
struct CloudConfig {
    #[serde(default)]
    write_files: Option<Vec<Entry>>,
    #[serde(default)]
    runcmd: Option<Vec<Value>>,
}

#[derive(Deserialize)]
struct Entry {
    path: String,
    #[serde(default)]
    encoding: String,
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    permissions: Option<String>,
    #[serde(default)]
    content: String,
    #[serde(default)]
    append: bool,
}

impl Userdata {
    pub fn read(userdata: &str, instance: &Instance) -> Result<Userdata, Unreadable> {
        let text = match userdata.strip_prefix("## template: jinja\n") {
            Some(rest) => template(rest, instance)?,
            None => userdata.to_owned(),
        };
        if !text.starts_with("#cloud-config") {
            return Err(Unreadable::NotCloudConfig);
        }
        let read: CloudConfig = serde_saphyr::from_str(&text).map_err(|error| {
            // The parser's words may quote the text; its first line says where.
            let message = error.to_string();
            Unreadable::Yaml(message.lines().next().unwrap_or_default().to_owned())
        })?;
        let files = read.write_files.unwrap_or_default();
        let files = files.into_iter().map(Entry::decoded).collect::<Result<_, _>>()?;
        let commands = read.runcmd.unwrap_or_default();
        Ok(Userdata {
            files,
            commands: commands.iter().map(command).collect(),
        })
    }

    /// The script that `runcmd` becomes. A command that fails does not keep the next from running.
    pub fn script(&self) -> String {
        let mut script = "#!/bin/sh\n".to_owned();
        for command in &self.commands {
            script.push_str(command);
            script.push('\n');
        }
        script
    }
}

impl Entry {
    fn decoded(self) -> Result<WrittenFile, Unreadable> {
        let content =
            decode(&self.encoding, &self.content).ok_or_else(|| Unreadable::Encoding(self.path.clone()))?;
        let permissions = self
            .permissions
            .and_then(|text| u32::from_str_radix(text.trim_start_matches("0o"), 8).ok());
        Ok(WrittenFile {
            path: self.path,
            owner: self
                .owner
                .filter(|owner| !owner.is_empty())
                .unwrap_or_else(|| OWNER.to_owned()),
            permissions: permissions.unwrap_or(PERMISSIONS),
            content,
            append: self.append,
        })
    }
}

/// A line of text is a line of the script; a list is one command, each word quoted.
fn command(entry: &Value) -> String {
    match entry {
        Value::String(text) => text.clone(),
        Value::Array(words) => {
            let words: Vec<String> = words.iter().map(quoted).collect();
            words.join(" ")
        }
        other => other.to_string(),
    }
}

fn quoted(word: &Value) -> String {
    let text = match word {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn decode(encoding: &str, content: &str) -> Option<Vec<u8>> {
    let base64 = |text: &str| {
        let compact: String = text.split_whitespace().collect();
        STANDARD.decode(compact).ok()
    };
    let unzip = |bytes: Vec<u8>| {
        let mut out = Vec::new();
        flate2::read::GzDecoder::new(bytes.as_slice())
            .read_to_end(&mut out)
            .ok()
            .map(|_| out)
    };
    match encoding {
        "" | "text/plain" => Some(content.as_bytes().to_vec()),
        "b64" | "base64" => base64(content),
        "gz" | "gzip" => unzip(content.as_bytes().to_vec()),
        "gz+b64" | "gz+base64" | "gzip+b64" | "gzip+base64" => unzip(base64(content)?),
        _ => None,
    }
}

/// The part of cloud-init's templating that userdata is made of: literals and instance data.
fn template(text: &str, instance: &Instance) -> Result<String, Unreadable> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min() {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let close = match &rest[..2] {
            "{{" => "}}",
            "{%" => "%}",
            _ => "#}",
        };
        let unknown = || Unreadable::Template(rest.chars().take(24).collect());
        let end = rest.find(close).ok_or_else(unknown)?;
        let inside = rest[2..end].trim_matches(['-', ' ', '\t', '\n']);
        let mut next = end + 2;
        match close {
            "#}" => {}
            "}}" => out.push_str(&expression(inside, instance).ok_or_else(unknown)?),
            _ if inside == "raw" => {
                let body = &rest[next..];
                let (raw, length) = ["{% endraw %}", "{%- endraw -%}"]
                    .iter()
                    .find_map(|end| body.split_once(end).map(|(raw, _)| (raw, raw.len() + end.len())))
                    .ok_or_else(unknown)?;
                out.push_str(raw);
                next += length;
            }
            _ => return Err(unknown()),
        }
        rest = &rest[next..];
    }
    out.push_str(rest);
    Ok(out)
}

fn expression(text: &str, instance: &Instance) -> Option<String> {
    for quote in ['\'', '"'] {
        let inside = text
            .strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote))
            .filter(|inside| !inside.contains(quote));
        if let Some(inside) = inside {
            return Some(inside.to_owned());
        }
    }
    let name = text
        .trim_start_matches("ds.meta_data.")
        .trim_start_matches("v1.")
        .replace('-', "_");
    match name.as_str() {
        "hostname" | "local_hostname" | "instance_name" => Some(instance.hostname.clone()),
        "instance_id" => Some(instance.instance_id.clone()),
        "availability_zone" | "region" => instance.zone.clone(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance() -> Instance {
        Instance {
            hostname: "edge-1".into(),
            instance_id: "i-7".into(),
            zone: None,
        }
    }

    #[test]
    fn files_and_commands_are_what_cloud_init_would_make_of_them() {
        let text = r#"## template: jinja
#cloud-config

write_files:
-   path: /etc/a
    encoding: "gzip+base64"
    owner: root:adm
    permissions: '0600'
    content: |
      H4sIAAAAAAAC/yvOzc9OBQB66UZJBQAAAA==
-   path: /etc/b
    append: true
    content: |
      {{ ds.meta_data.local_hostname }} {% raw %}{{ kept }}{% endraw %}
runcmd:
  - "echo \"it's here\""
  - [echo, "it's", there]
  -  one && two
"#;
        let read = Userdata::read(text, &instance()).expect("it is read");
        let file = |at: usize| {
            let file = &read.files[at];
            (
                file.owner.as_str(),
                file.permissions,
                String::from_utf8_lossy(&file.content).into_owned(),
                file.append,
            )
        };
        assert_eq!(file(0), ("root:adm", 0o600, "smoke".to_owned(), false));
        assert_eq!(
            file(1),
            ("root:root", 0o644, "edge-1 {{ kept }}\n".to_owned(), true)
        );
        assert_eq!(
            read.script(),
            "#!/bin/sh\necho \"it's here\"\n'echo' 'it'\\''s' 'there'\none && two\n"
        );
    }

    #[test]
    fn nothing_to_do_is_fine_and_what_cannot_be_read_is_named() {
        let nothing = "#cloud-config\nwrite_files:\nruncmd:\n";
        assert_eq!(Userdata::read(nothing, &instance()), Ok(Userdata::default()));
        let wrong = |text: &str| Userdata::read(text, &instance()).expect_err("it is refused");
        assert_eq!(wrong("#!/bin/sh\n"), Unreadable::NotCloudConfig);
        let unknown = "## template: jinja\n#cloud-config\n# {{ ds.meta_data.colour }}\n";
        assert!(matches!(wrong(unknown), Unreadable::Template(_)));
        let encoded = "#cloud-config\nwrite_files: [{path: /a, encoding: b64, content: '%%'}]\nruncmd: []\n";
        assert_eq!(wrong(encoded), Unreadable::Encoding("/a".into()));
    }
}
