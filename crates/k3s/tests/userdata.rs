//! Userdata against what cluster-api-k3s gives for the same spec, byte by byte, but for the listed fixes. The recorded
//! outcomes are made again with `go run . ../../../crates/k3s/tests/userdata` in benches/peers/k3s-userdata.

use serde::Deserialize;
use slipway_k3s::{
    api::{AgentToken, Datastore, FileSource, KThreesConfigSpec, SecretKey},
    bootstrap::render::{Ca, Cas, Facts, Role, render},
};

#[derive(Deserialize)]
struct Pair {
    certificate: String,
    key: String,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    role: String,
    spec: KThreesConfigSpec,
    host: String,
    port: u16,
    token: String,
    version: String,
    #[serde(default, rename = "authorities")]
    cas: std::collections::BTreeMap<String, Pair>,
}

impl Case {
    fn role(&self) -> Role {
        match self.role.as_str() {
            "init" => Role::Init,
            "join" => Role::JoinServer,
            _ => Role::Worker,
        }
    }

    fn facts(&self) -> Facts {
        let ca = |name: &str| {
            self.cas.get(name).map_or_else(Ca::default, |pair| Ca {
                certificate: pair.certificate.clone(),
                key: pair.key.clone(),
            })
        };
        Facts {
            endpoint_host: self.host.clone(),
            endpoint_port: self.port,
            token: self.token.clone(),
            version: self.version.clone(),
            cas: Cas {
                server: ca("ca"),
                client: ca("cca"),
                etcd: Some(ca("etcd")),
            },
            file_contents: self
                .spec
                .files
                .iter()
                .flatten()
                .map(|file| file.content.clone().unwrap_or_default().into_bytes())
                .collect(),
            ..Facts::default()
        }
    }
}

/// A server's k3s waits before it joins again, which cluster-api-k3s' does not.
const DROP_IN: &str = concat!(
    "-   path: /etc/systemd/system/k3s.service.d/10-removed-member.conf\n",
    "    owner: root:root\n",
    "    permissions: '0644'\n",
    "    content: |\n",
    "      [Service]\n",
    "      ExecStartPre=/bin/sh -c 'test ! -e /var/lib/rancher/k3s/server/db/etcd/tombstone || if test -e /var/lib/rancher/k3s/server/was-voter; then sleep 86400; else sleep 600; fi'\n",
    "      ExecStartPost=-/bin/sh -c 'touch /var/lib/rancher/k3s/server/was-voter'\n",
    "      \n",
);

/// The listed fixes: the installer is downloaded to a file first, so that a failed download cannot report success, and a server
/// whose member was removed waits before it joins again.
fn with_fixes(upstream: &str) -> String {
    let config = "-   path: /etc/rancher/k3s/config.yaml\n";
    let upstream = if upstream.contains("/manifests/etcd-proxy.yaml\n") {
        upstream.replacen(config, &format!("{DROP_IN}{config}"), 1)
    } else {
        upstream.to_owned()
    };
    let role = |line: &str| {
        if line.contains(" - agent") {
            "agent"
        } else {
            "server"
        }
    };
    upstream
        .split('\n')
        .map(|line| {
            let Some(rest) = line.trim_start().strip_prefix("-  curl -sfL https://get.k3s.io |") else {
                return line.to_owned();
            };
            let version = rest.trim_start().split(' ').next().expect("the version follows");
            let (_, sentinel) = rest.split_once("&&").expect("the sentinel follows");
            format!(
                "  -  curl -sfL https://get.k3s.io -o /run/k3s-install.sh && {version} sh /run/k3s-install.sh {} &&{sentinel}",
                role(line)
            )
        })
        .collect::<Vec<_>>()
        .join("\n")
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("userdata/cases.json")).expect("the cases are well-formed")
}

/// S-19, S-20: init, join and worker, with all fields, air-gapped, with an own script.
#[test]
fn userdata_equals_the_peers_but_for_the_listed_fixes() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/userdata");
    let mut compared = 0;
    for case in cases() {
        let golden = std::fs::read_to_string(format!("{folder}/{}.golden", case.name))
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let ours = render(&case.spec, &case.facts(), case.role())
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let expected = with_fixes(&golden);
        if ours != expected {
            let difference = ours
                .lines()
                .zip(expected.lines())
                .enumerate()
                .find(|(_, (ours, peer))| ours != peer);
            panic!("{}: {difference:#?}\nours:\n{ours}", case.name);
        }
        compared += 1;
    }
    assert!(compared >= 24, "only {compared} cases were compared");
    println!("report: k3s userdata: {compared} cases equal cluster-api-k3s'");
}

fn minimal() -> (KThreesConfigSpec, Facts) {
    let case = cases()
        .into_iter()
        .find(|case| case.name == "init-full")
        .expect("the case exists");
    let facts = case.facts();
    (case.spec, facts)
}

/// S-20: nothing on an air-gapped host reaches for the network.
#[test]
fn an_air_gapped_host_runs_no_network_command() {
    let (mut spec, facts) = minimal();
    spec.agent_config.get_or_insert_default().air_gapped = Some(true);
    for role in [Role::Init, Role::JoinServer, Role::Worker] {
        let userdata = render(&spec, &facts, role).expect("it renders");
        let commands = userdata.split("\nruncmd:").nth(1).expect("there are commands");
        assert!(
            !commands.contains("curl") && !commands.contains("https://"),
            "{commands}"
        );
        assert!(commands.contains("INSTALL_K3S_SKIP_DOWNLOAD=true"));
    }
}

/// S-23: where it is asked for, workers get a token that cannot join as a server.
#[test]
fn workers_get_their_own_token_where_the_control_plane_has_one() {
    let (mut spec, mut facts) = minimal();
    spec.server_config.get_or_insert_default().agent_token = Some(AgentToken::Separate);
    facts.agent_token = Some("ffff0000ffff0000ffff0000ffff0000".into());
    let worker = render(&spec, &facts, Role::Worker).expect("it renders");
    assert!(worker.contains("token: ffff0000ffff0000ffff0000ffff0000"));
    assert!(
        !worker.contains(&facts.token),
        "the servers' token is on a worker"
    );
    let server = render(&spec, &facts, Role::JoinServer).expect("it renders");
    assert!(server.contains("agent-token: ffff0000ffff0000ffff0000ffff0000"));
    assert!(server.contains(&format!("\n      token: {}", facts.token)));
}

/// S-53: an external datastore replaces embedded etcd and all that serves it.
#[test]
fn an_external_datastore_starts_no_etcd() {
    let (mut spec, mut facts) = minimal();
    spec.server_config.get_or_insert_default().datastore = Some(Datastore {
        endpoint_from: FileSource {
            secret: SecretKey {
                name: "datastore".into(),
                key: "endpoint".into(),
            },
        },
        ca_file: Some("/etc/datastore/ca.crt".into()),
        ..Datastore::default()
    });
    facts.datastore_endpoint = Some("postgres://user:p{{w@db:5432/k3s".into());
    facts.cas.etcd = None;
    let userdata = render(&spec, &facts, Role::Init).expect("it renders");
    assert!(!userdata.contains("cluster-init"));
    assert!(!userdata.contains("etcd-proxy"));
    assert!(!userdata.contains("tls/etcd/"));
    assert!(userdata.contains("datastore-cafile: /etc/datastore/ca.crt"));
    assert!(
        userdata.contains("datastore-endpoint: postgres://user:p{{ '{{' }}w@db:5432/k3s"),
        "a password may hold what templating would read"
    );
}

/// The provider id reaches the kubelet before it registers.
#[test]
fn the_provider_id_is_a_kubelet_argument() {
    let (mut spec, facts) = minimal();
    let agent = spec.agent_config.get_or_insert_default();
    agent.kubelet_args = None;
    agent.provider_id = Some("aws:///{{ ds.meta_data.instance_id }}".into());
    let userdata = render(&spec, &facts, Role::Worker).expect("it renders");
    assert!(userdata.contains("- provider-id=aws:///{{ ds.meta_data.instance_id }}\n"));
}

/// S-24: the version comes from the caller, who knows where a machine pool keeps it; none is an error, not `stable`.
#[test]
fn userdata_without_a_version_is_refused() {
    let (spec, mut facts) = minimal();
    facts.version = String::new();
    let error = render(&spec, &facts, Role::Worker).expect_err("there is no version");
    assert!(error.to_string().contains("must be a k3s version"), "{error}");
}

/// S-18: the sentinel is written only after the installer itself has succeeded.
#[test]
fn success_is_reported_only_if_the_installer_ran_to_its_end() {
    let (mut spec, facts) = minimal();
    spec.pre_k3s_commands = None;
    spec.post_k3s_commands = None;
    let userdata = render(&spec, &facts, Role::Init).expect("it renders");
    let line = userdata
        .split("\nruncmd:\n")
        .nth(1)
        .and_then(|commands| commands.lines().next())
        .and_then(|line| line.strip_prefix("  -  "))
        .expect("the install line");
    let folder = std::env::temp_dir().join(format!("slipway-k3s-sentinel-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (download, install, succeeds) in [
        ("exit 22", "exit 0", false),
        ("", "exit 1", false),
        ("", "exit 0", true),
    ] {
        let script = folder.join("install.sh");
        let sentinel = folder.join("success");
        let _ = std::fs::remove_file(&sentinel);
        let _ = std::fs::remove_file(&script);
        // The real line, with the paths of the host moved into the folder and the download played.
        let line = line
            .replace("/run/k3s-install.sh", &script.display().to_string())
            .replace(
                "/run/cluster-api/bootstrap-success.complete",
                &sentinel.display().to_string(),
            )
            .replace("mkdir -p /run/cluster-api", "true");
        let curl = format!(
            "curl() {{ {}; printf '{install}' > {}; }}\n",
            if download.is_empty() { "true" } else { "return 22" },
            script.display()
        );
        let status = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("{curl}{line}"))
            .status()
            .expect("sh runs");
        assert_eq!(
            sentinel.exists(),
            succeeds,
            "download {download:?}, install {install:?}: {status}"
        );
        assert_eq!(status.success(), succeeds);
    }
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}
