//! Userdata: pure, from a spec and the facts of its cluster to the cloud-config of one host. Byte-equal to
//! cluster-api-k3s' but for the fixes listed in docs/k3s/userdata.md, and safe against whatever a file or a
//! command holds: it stays the content of that file and the text of that command.

use std::{fmt::Write, sync::LazyLock};

use base64::{Engine, engine::general_purpose::STANDARD};
use regex::Regex;

use super::{etcd_proxy, k3s_config, rejoin, yaml};
use crate::{
    api::{File, KThreesConfigSpec},
    bootstrap::api::Encoding,
    version::Version,
};

/// What the host becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The first server: it starts the cluster.
    Init,
    /// A further server.
    JoinServer,
    Worker,
}

/// One CA's certificate and key, as PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ca {
    pub certificate: String,
    /// Empty where the user keeps the key away from the cluster.
    pub key: String,
}

/// The CAs the first server is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cas {
    pub server: Ca,
    pub client: Ca,
    /// Absent with an external datastore.
    pub etcd: Option<Ca>,
}

/// What a host must know of its cluster.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub endpoint_host: String,
    pub endpoint_port: u16,
    /// The token of the servers.
    pub token: String,
    /// The token of the workers, where they have one of their own.
    pub agent_token: Option<String>,
    /// The version to install.
    pub version: String,
    pub cas: Cas,
    /// The external datastore's connection string.
    pub datastore_endpoint: Option<String>,
    /// The contents of `spec.files`, in order: what `contentFrom` named has been read.
    pub file_contents: Vec<Vec<u8>>,
}

/// Why userdata cannot be made. No message holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the version {0:?} {1}")]
    Version(String, crate::version::Malformed),
    #[error("the control plane endpoint is not known yet")]
    Endpoint,
    #[error("the contents of {0} files are known, the spec has {1}")]
    Files(usize, usize),
}

const CA_FOLDER: &str = "/var/lib/rancher/k3s/server/tls";
const SENTINEL: &str =
    "mkdir -p /run/cluster-api && echo success > /run/cluster-api/bootstrap-success.complete";
const INSTALL_SCRIPT_PATH: &str = "/opt/install.sh";
/// Where the downloaded installer is kept. It is run from a file, not from a pipe: a download that fails must not
/// look like an installation that succeeded.
const DOWNLOADED_SCRIPT_PATH: &str = "/run/k3s-install.sh";

/// A file as it is written: contents may be any bytes.
struct Written {
    path: String,
    owner: Option<String>,
    permissions: Option<String>,
    encoding: Option<Encoding>,
    content: Vec<u8>,
    /// Ours is made line by line with that in mind; a user's file decides by its content.
    ours: bool,
}

impl Written {
    fn ours(path: impl Into<String>, permissions: &str, content: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            owner: Some("root:root".into()),
            permissions: Some(permissions.into()),
            encoding: None,
            content: content.into(),
            ours: true,
        }
    }

    fn users(file: &File, content: &[u8]) -> Self {
        Self {
            path: file.path.clone(),
            owner: file.owner.clone(),
            permissions: file.permissions.clone(),
            encoding: file.encoding,
            content: content.to_vec(),
            ours: false,
        }
    }
}

/// The cloud-config of one host.
pub fn render(spec: &KThreesConfigSpec, facts: &Facts, role: Role) -> Result<String, Error> {
    let version: Version = facts
        .version
        .parse()
        .map_err(|error| Error::Version(facts.version.clone(), error))?;
    if facts.endpoint_host.is_empty() {
        return Err(Error::Endpoint);
    }
    let user_files = spec.files.as_deref().unwrap_or_default();
    if user_files.len() != facts.file_contents.len() {
        return Err(Error::Files(facts.file_contents.len(), user_files.len()));
    }

    let mut files = Vec::new();
    if role == Role::Init {
        files.extend(ca_files(&facts.cas));
    }
    files.extend(
        user_files
            .iter()
            .zip(&facts.file_contents)
            .map(|(file, content)| Written::users(file, content)),
    );
    if role != Role::Worker && spec.has_embedded_etcd() {
        let server = spec.server();
        files.push(Written::ours(
            etcd_proxy::PATH,
            "0640",
            etcd_proxy::manifest(
                server.etcd_proxy_image.as_deref(),
                server.system_default_registry.as_deref(),
            ),
        ));
        files.push(Written::ours(rejoin::PATH, "0644", rejoin::drop_in()));
    }
    files.push(Written::ours(k3s_config::PATH, "0640", config(spec, facts, role)));

    let mut out = String::from("## template: jinja\n#cloud-config\n\nwrite_files:");
    for file in &files {
        write_file(&mut out, file);
    }
    out.push_str("\nruncmd:");
    write_commands(&mut out, spec.pre_k3s_commands.as_deref());
    out.push_str("\n  - ");
    out.push_str(&install_command(spec, &version, role));
    write_commands(&mut out, spec.post_k3s_commands.as_deref());
    out.push('\n');
    Ok(out)
}

fn config(spec: &KThreesConfigSpec, facts: &Facts, role: Role) -> String {
    let host = if facts.endpoint_host.contains(':') {
        format!("[{}]", facts.endpoint_host)
    } else {
        facts.endpoint_host.clone()
    };
    let join = format!("https://{host}:{}", facts.endpoint_port);
    let server_facts = k3s_config::ServerFacts {
        endpoint_host: &facts.endpoint_host,
        token: &facts.token,
        agent_token: facts.agent_token.as_deref(),
        datastore_endpoint: facts.datastore_endpoint.as_deref(),
    };
    match role {
        Role::Init => k3s_config::server(spec, &server_facts, None),
        Role::JoinServer => k3s_config::server(spec, &server_facts, Some(&join)),
        Role::Worker => k3s_config::worker(spec, facts.agent_token.as_ref().unwrap_or(&facts.token), &join),
    }
    .to_yaml()
}

fn ca_files(cas: &Cas) -> Vec<Written> {
    let mut files = Vec::new();
    let mut add = |name: &str, ca: &Ca| {
        if !ca.certificate.is_empty() {
            files.push(Written::ours(
                format!("{CA_FOLDER}/{name}.crt"),
                "0640",
                ca.certificate.as_bytes(),
            ));
        }
        if !ca.key.is_empty() {
            files.push(Written::ours(
                format!("{CA_FOLDER}/{name}.key"),
                "0600",
                ca.key.as_bytes(),
            ));
        }
    };
    add("server-ca", &cas.server);
    add("client-ca", &cas.client);
    if let Some(etcd) = &cas.etcd {
        add("etcd/server-ca", etcd);
    }
    files
}

fn install_command(spec: &KThreesConfigSpec, version: &Version, role: Role) -> String {
    let agent = spec.agent();
    let role = if role == Role::Worker { "agent" } else { "server" };
    if !agent.air_gapped.unwrap_or(false) {
        return format!(
            " curl -sfL https://get.k3s.io -o {DOWNLOADED_SCRIPT_PATH} && INSTALL_K3S_VERSION={version} sh \
             {DOWNLOADED_SCRIPT_PATH} {role} && {SENTINEL}"
        );
    }
    let path = agent
        .air_gapped_install_script_path
        .filter(|path| !path.is_empty())
        .unwrap_or_else(|| INSTALL_SCRIPT_PATH.into());
    let plain = path
        .chars()
        .all(|character| character.is_ascii_alphanumeric() || "/._-".contains(character));
    // The two spaces of a server are cluster-api-k3s'.
    let gap = if role == "server" { "  " } else { " " };
    let command = |path: &str| {
        format!("INSTALL_K3S_SKIP_DOWNLOAD=true INSTALL_K3S_EXEC='{role}' sh {path}{gap}&& {SENTINEL}")
    };
    if plain {
        format!(" {}", command(&path))
    } else {
        let quoted = format!("'{}'", path.replace('\'', r"'\''"));
        jinja_literal(&yaml::go_quoted(&command(&quoted)))
    }
}

fn write_commands(out: &mut String, commands: Option<&[String]>) {
    for command in commands.unwrap_or_default() {
        out.push_str("\n  - ");
        let quoted = yaml::go_quoted(command);
        if is_template(command) {
            out.push_str(&quoted);
        } else {
            out.push_str(&jinja_literal(&quoted));
        }
    }
}

fn write_file(out: &mut String, file: &Written) {
    let text = std::str::from_utf8(&file.content).ok();
    let left_to_jinja =
        text.is_some_and(|text| (file.ours && !is_pem(text)) || !has_jinja(text) || is_template(text));
    let block = text.filter(|text| left_to_jinja && is_block_safe(text));
    let (encoding, content) = match (block, file.encoding) {
        (Some(text), encoding) => (encoding, format!("|\n{}", indent(text))),
        (None, None) => (Some(Encoding::Base64), encoded(&file.content)),
        (None, Some(Encoding::Gzip)) => (Some(Encoding::GzipBase64), encoded(&file.content)),
        // Already text by its encoding; whatever else it holds is for the host's decoder to refuse.
        (None, encoding @ Some(Encoding::Base64 | Encoding::GzipBase64)) => (
            encoding,
            jinja_literal(&yaml::double_quoted(&String::from_utf8_lossy(&file.content))),
        ),
    };
    out.push_str("\n-   path: ");
    out.push_str(&inline(&file.path));
    out.push_str("\n    ");
    if let Some(encoding) = encoding {
        let _ = write!(out, "encoding: \"{}\"\n    ", encoding.as_str());
    }
    if let Some(owner) = file.owner.as_deref().filter(|owner| !owner.is_empty()) {
        let _ = write!(out, "owner: {}\n    ", inline(owner));
    }
    if let Some(permissions) = file.permissions.as_deref().filter(|value| !value.is_empty()) {
        let simple = permissions
            .chars()
            .all(|character| character.is_ascii_alphanumeric());
        if simple {
            let _ = write!(out, "permissions: '{permissions}'\n    ");
        } else {
            let _ = write!(
                out,
                "permissions: {}\n    ",
                jinja_literal(&yaml::double_quoted(permissions))
            );
        }
    }
    out.push_str("content: ");
    out.push_str(&content);
}

/// A scalar of a file of ours: a user's expression over instance data is left to cloud-init, nothing else is.
pub fn literal_unless_template(text: &str, column: usize) -> String {
    let scalar = yaml::scalar(text, column);
    if is_template(text) {
        scalar
    } else {
        jinja_literal(&scalar)
    }
}

/// A path or an owner: as it is where it reads as itself, else quoted.
fn inline(text: &str) -> String {
    let scalar = if yaml::scalar(text, 0) == text {
        text.to_owned()
    } else {
        yaml::double_quoted(text)
    };
    if is_template(text) {
        scalar
    } else {
        jinja_literal(&scalar)
    }
}

fn encoded(content: &[u8]) -> String {
    format!("|\n{}", indent(&STANDARD.encode(content)))
}

fn indent(text: &str) -> String {
    let mut out = String::from("      ");
    out.push_str(&text.replace('\n', "\n      "));
    out
}

/// Whether a literal block carries the text: nothing in it ends the block, changes its indentation or is read as
/// another line break.
fn is_block_safe(text: &str) -> bool {
    let clean = text.chars().all(|character| {
        matches!(character, '\n' | '\t') || yaml::is_printable(character) || character > '\u{ffff}'
    });
    let first = text.split('\n').find(|line| !line.is_empty());
    clean && first.is_none_or(|line| !line.starts_with([' ', '\t']))
}

fn is_pem(text: &str) -> bool {
    text.contains("-----BEGIN ")
}

fn has_jinja(text: &str) -> bool {
    ["{{", "{%", "{#"].iter().any(|open| text.contains(open))
}

/// Keeps cloud-init's templating from reading a text: every opening is written as an expression that gives it.
pub fn jinja_literal(text: &str) -> String {
    static OPENINGS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\{[{%#]").expect("the pattern is well-formed"));
    OPENINGS.replace_all(text, "{{ '$0' }}").into_owned()
}

/// Whether a text is meant for cloud-init's templating: all it asks for is instance data.
fn is_template(text: &str) -> bool {
    static EXPRESSION: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?s)\{\{-?(.*?)-?\}\}").expect("the pattern is well-formed"));
    static INSTANCE_DATA: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(concat!(
            r"^\s*(?:ds|v1|v1_[a-z_]+|merged_cfg|merged_system_cfg|sys_info|instance_id|instance_name|local_hostname",
            r"|region|availability_zone|cloud_name|cloud_id|platform|subplatform|distro|distro_release",
            r"|distro_version|kernel_release|machine|public_ssh_keys|variant)\b"
        ))
        .expect("the pattern is well-formed")
    });
    if text.contains("{#") {
        return false;
    }
    let mut asks = false;
    for expression in EXPRESSION.captures_iter(text) {
        if !INSTANCE_DATA.is_match(&expression[1]) {
            return false;
        }
        asks = true;
    }
    asks && EXPRESSION.replace_all(text, "").matches("{{").count() == 0
}
