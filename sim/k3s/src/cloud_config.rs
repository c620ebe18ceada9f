//! What k3s makes of a host's userdata: what it finds in its configuration, and how it is installed. Pure.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::{
    model::RejoinWait,
    userdata::{Instance, Unreadable, Userdata},
};

const CONFIG: &str = "/etc/rancher/k3s/config.yaml";
const CONFIG_FOLDER: &str = "/etc/rancher/k3s/config.yaml.d/";
const DROP_INS: &str = "/etc/systemd/system/k3s.service.d/";

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

pub fn read(userdata: &str, instance: &Instance) -> Result<Bootstrap, Unreadable> {
    let Userdata { files, commands } = Userdata::read(userdata, instance)?;
    let files = files.into_iter().map(|file| (file.path, file.content)).collect();
    Bootstrap::of(files, &commands)
}

/// Whether a command installs k3s.
pub fn installs_k3s(command: &str) -> bool {
    installed(command).is_some()
}

impl Bootstrap {
    /// From the files of a host, by their paths, and the commands that are run on it.
    pub fn of(files: BTreeMap<String, Vec<u8>>, commands: &[String]) -> Result<Self, Unreadable> {
        let (role, version) = commands
            .iter()
            .find_map(|command| installed(command))
            .ok_or(Unreadable::NotK3s)?;
        Ok(Self {
            role,
            version,
            config: Config::read(&files)?,
            files,
        })
    }

    /// How long a start of k3s waits that finds its etcd member removed: what the drop-ins of its unit say.
    pub fn rejoin_wait(&self) -> RejoinWait {
        let drop_ins = self.files.iter().filter(|(path, _)| path.starts_with(DROP_INS));
        let lines: Vec<&str> = drop_ins
            .filter_map(|(_, content)| std::str::from_utf8(content).ok())
            .flat_map(str::lines)
            .collect();
        let Some(before) = lines
            .iter()
            .find(|line| line.starts_with("ExecStartPre=") && line.contains("/tombstone "))
        else {
            return RejoinWait::default();
        };
        let after = |word: &str| before.split_once(word).map_or("", |(_, after)| after);
        let seconds = |word: &str| {
            let digits: String = after(word).chars().take_while(char::is_ascii_digit).collect();
            Duration::from_secs(digits.parse().unwrap_or(0))
        };
        // The file that says that it has voted is only there if something makes it when k3s is up.
        let marker = after("if test -e ").split(';').next().unwrap_or_default();
        let is_made = !marker.is_empty()
            && lines
                .iter()
                .any(|line| line.starts_with("ExecStartPost=") && line.contains(&format!("touch {marker}'")));
        let learner = if marker.is_empty() {
            seconds("|| sleep ")
        } else {
            seconds("else sleep ")
        };
        let voter = if is_made { seconds("then sleep ") } else { learner };
        RejoinWait { learner, voter }
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

impl Config {
    /// Reads the configuration among the files of a host, by path.
    pub fn read(files: &BTreeMap<String, Vec<u8>>) -> Result<Config, Unreadable> {
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
    fn what_keeps_a_removed_member_out_is_read_from_the_drop_in() {
        let with = |lines: &str| {
            let file = format!(
                "write_files:\n-   path: {DROP_INS}10-removed-member.conf\n    content: |\n      [Service]\n{lines}"
            );
            let server = SERVER.replacen("write_files:\n", &file, 1);
            let wait = read(&server, &instance()).expect("it is read").rejoin_wait();
            (wait.learner.as_secs(), wait.voter.as_secs())
        };
        let before = "      ExecStartPre=/bin/sh -c 'test ! -e /e/tombstone || if test -e /v; then sleep 86400; else sleep 600; fi'\n";
        let after = "      ExecStartPost=-/bin/sh -c 'touch /v'\n";
        assert_eq!(with(&format!("{before}{after}")), (600, 86400));
        assert_eq!(with(before), (600, 600), "nobody says that it has voted");
        assert_eq!(
            with("      ExecStartPre=/bin/sh -c 'test ! -e /e/tombstone || sleep 600'\n"),
            (600, 600),
            "userdata of earlier versions"
        );
        assert_eq!(with(""), (0, 0));
    }

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
    fn a_host_without_k3s_is_told() {
        let wrong = read("#cloud-config\nruncmd: [reboot]\n", &instance()).expect_err("it is refused");
        assert_eq!(wrong, Unreadable::NotK3s);
    }
}
