//! Userdata, read as the host reads it: cloud-init's templating and `write_files`, then what k3s finds in its
//! configuration and how it is installed. Pure.

use std::{collections::BTreeMap, io::Read};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::Value;

const CONFIG: &str = "/etc/rancher/k3s/config.yaml";
const CONFIG_FOLDER: &str = "/etc/rancher/k3s/config.yaml.d/";

/// What all servers of a cluster must agree on; k3s compares it when one joins.
const CRITICAL: &[&str] = &[
    "cluster-cidr",
    "cluster-dns",
    "cluster-domain",
    "disable-cloud-controller",
    "disable-helm-controller",
    "disable-network-policy",
    "egress-selector-mode",
    "embedded-registry",
    "flannel-backend",
    "secrets-encryption",
    "service-cidr",
];

/// What the platform tells cloud-init about the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    pub hostname: String,
    pub instance_id: String,
    pub zone: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    Agent,
}

/// What the host does with its userdata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    pub role: Role,
    /// Absent where the image brings k3s along.
    pub version: Option<String>,
    pub files: BTreeMap<String, Vec<u8>>,
    pub config: Config,
}

/// What k3s reads of its configuration here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub cluster_init: bool,
    pub server: Option<String>,
    pub token: String,
    pub agent_token: Option<String>,
    pub node_name: Option<String>,
    pub node_labels: Vec<String>,
    pub node_taints: Vec<String>,
    pub kubelet_arguments: Vec<String>,
    pub tls_names: Vec<String>,
    pub datastore: bool,
    pub critical: BTreeMap<&'static str, String>,
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

#[derive(Deserialize)]
struct CloudConfig {
    #[serde(default)]
    write_files: Vec<WriteFile>,
    #[serde(default)]
    runcmd: Vec<Value>,
}

#[derive(Deserialize)]
struct WriteFile {
    path: String,
    #[serde(default)]
    encoding: String,
    #[serde(default)]
    content: String,
}

pub fn read(userdata: &str, instance: &Instance) -> Result<Bootstrap, Unreadable> {
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
    let mut files = BTreeMap::new();
    for file in read.write_files {
        let content =
            decode(&file.encoding, &file.content).ok_or_else(|| Unreadable::Encoding(file.path.clone()))?;
        files.insert(file.path, content);
    }
    let commands: Vec<String> = read.runcmd.iter().map(command).collect();
    let (role, version) = commands
        .iter()
        .find_map(|command| installed(command))
        .ok_or(Unreadable::NotK3s)?;
    Ok(Bootstrap {
        role,
        version,
        config: config(&files)?,
        files,
    })
}

fn command(entry: &Value) -> String {
    match entry {
        Value::String(text) => text.clone(),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
            words.join(" ")
        }
        other => other.to_string(),
    }
}

/// What an install command makes of the host.
fn installed(command: &str) -> Option<(Role, Option<String>)> {
    if !command.contains("INSTALL_K3S_") {
        return None;
    }
    let after = |name: &str| {
        let rest = command.split_once(name)?.1;
        let value = rest.split_whitespace().next().unwrap_or_default();
        Some(value.trim_matches(['\'', '"']).to_owned())
    };
    let version = after("INSTALL_K3S_VERSION=").filter(|version| !version.is_empty());
    let words = after("INSTALL_K3S_EXEC=")
        .into_iter()
        .chain(command.split_whitespace().map(str::to_owned));
    for word in words {
        match word.as_str() {
            "server" => return Some((Role::Server, version)),
            "agent" => return Some((Role::Agent, version)),
            _ => {}
        }
    }
    None
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

fn config(files: &BTreeMap<String, Vec<u8>>) -> Result<Config, Unreadable> {
    let mut merged = serde_json::Map::new();
    let folder = files.iter().filter(|(path, _)| path.starts_with(CONFIG_FOLDER));
    for (path, content) in files.get_key_value(CONFIG).into_iter().chain(folder) {
        let unreadable = || Unreadable::Config(path.clone());
        let text = std::str::from_utf8(content).map_err(|_| unreadable())?;
        let read: Value = serde_saphyr::from_str(text).map_err(|_| unreadable())?;
        match read {
            Value::Object(read) => merged.extend(read),
            Value::Null => {}
            _ => return Err(unreadable()),
        }
    }
    let plain = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let text = |key: &str| merged.get(key).map(plain).filter(|text| !text.is_empty());
    let list = |key: &str| match merged.get(key) {
        Some(Value::Array(items)) => items.iter().map(plain).collect(),
        Some(single) => vec![plain(single)],
        None => Vec::new(),
    };
    Ok(Config {
        cluster_init: merged.get("cluster-init") == Some(&Value::Bool(true)),
        server: text("server"),
        token: text("token").unwrap_or_default(),
        agent_token: text("agent-token"),
        node_name: text("node-name"),
        node_labels: list("node-label"),
        node_taints: list("node-taint"),
        kubelet_arguments: list("kubelet-arg"),
        tls_names: list("tls-san"),
        datastore: merged.contains_key("datastore-endpoint"),
        critical: CRITICAL
            .iter()
            .filter_map(|key| Some((*key, text(key)?)))
            .collect(),
    })
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

    const SERVER: &str = r#"## template: jinja
#cloud-config

write_files:
-   path: /var/lib/rancher/k3s/server/tls/server-ca.crt
    encoding: "base64"
    owner: root:root
    content: |
      Q0VSVA==
-   path: /etc/rancher/k3s/config.yaml
    owner: root:root
    permissions: '0640'
    content: |
      cluster-cidr: 10.52.0.0/16
      cluster-init: true
      kubelet-arg:
      - provider-id=sim://{{ ds.meta_data.instance_id }}
      node-label:
      - a={{ '{{' }}
      node-name: '{{ ds.meta_data.local_hostname }}'
      token: secret
runcmd:
  - "echo before"
  -  curl -sfL https://get.k3s.io -o /run/k3s-install.sh && INSTALL_K3S_VERSION=v1.34.1+k3s1 sh /run/k3s-install.sh server && echo success
"#;

    #[test]
    fn a_server_is_read_from_its_userdata() {
        let read = read(SERVER, &instance()).expect("it is read");
        assert_eq!(
            (read.role, read.version.as_deref()),
            (Role::Server, Some("v1.34.1+k3s1"))
        );
        assert_eq!(
            read.files["/var/lib/rancher/k3s/server/tls/server-ca.crt"],
            b"CERT"
        );
        let config = read.config;
        assert!(config.cluster_init && config.token == "secret" && config.server.is_none());
        assert_eq!(config.node_name.as_deref(), Some("edge-1"));
        assert_eq!(config.kubelet_arguments, ["provider-id=sim://i-7"]);
        assert_eq!(config.node_labels, ["a={{"]);
        assert_eq!(config.critical["cluster-cidr"], "10.52.0.0/16");
    }

    #[test]
    fn an_air_gapped_agent_brings_its_own_version() {
        let text = "#cloud-config\nwrite_files: []\nruncmd:\n- INSTALL_K3S_SKIP_DOWNLOAD=true INSTALL_K3S_EXEC='agent' sh /opt/install.sh && echo\n";
        let read = read(text, &instance()).expect("it is read");
        assert_eq!((read.role, read.version), (Role::Agent, None));
    }

    #[test]
    fn what_the_host_could_not_read_is_named() {
        let wrong = |text: &str| read(text, &instance()).expect_err("it is refused");
        assert_eq!(wrong("#!/bin/sh\n"), Unreadable::NotCloudConfig);
        assert_eq!(wrong("#cloud-config\nruncmd: [reboot]\n"), Unreadable::NotK3s);
        let unknown = "## template: jinja\n#cloud-config\n# {{ ds.meta_data.colour }}\n";
        assert!(matches!(wrong(unknown), Unreadable::Template(_)));
        let encoded = "#cloud-config\nwrite_files: [{path: /a, encoding: b64, content: '%%'}]\nruncmd: []\n";
        assert_eq!(wrong(encoded), Unreadable::Encoding("/a".into()));
    }
}
