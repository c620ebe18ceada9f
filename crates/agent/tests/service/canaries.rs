//! Secrets that are sent to a host are in no log, no file and no message of it.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use slipway_agent_api::proto::{self, start_request::Verb};
use slipway_hosts_sim::{FLEET, SimulatedHost};

use super::{complete, fleet, one};

const SECRETS: [&str; 4] = [
    "canary-environment",
    "canary-bootstrap",
    "canary-registry-password",
    "canary-command-output",
];

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    use base64::Engine;
    let encoded = base64::prelude::BASE64_STANDARD.encode(text);
    [text.as_bytes(), encoded.trim_end_matches('=').as_bytes()]
        .iter()
        .any(|needle| bytes.windows(needle.len()).any(|window| window == *needle))
}

fn search(folder: &Path, found: &mut Vec<String>, files: &mut usize) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            search(&path, found, files);
            continue;
        }
        *files += 1;
        let bytes = std::fs::read(&path).unwrap();
        for secret in SECRETS {
            if contains(&bytes, secret) {
                found.push(format!("{secret} in {}", path.display()));
            }
        }
    }
}

/// What a host joins with and what it gets: the token's secret is nowhere afterwards, its key in one file.
#[tokio::test]
async fn a_join_token_and_a_hosts_key_are_in_no_log_and_no_message() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let (fleet, options) = fleet().await;
    let token = fleet.token("box-1");
    let text = token.reveal();
    let secret = text.split('.').nth(2).unwrap().to_owned();
    assert!(secret.len() > 40, "{} characters", secret.len());
    let install = |name: &str| {
        SimulatedHost::install(fleet.folder(), name, FLEET, &fleet.manager, options.clone()).unwrap()
    };
    let host = install("box-1");
    host.join(&token).await.unwrap();
    host.start().await.unwrap();
    // Used, and meant for another: both are told, without it.
    let mut shown = vec![format!("{token:?}")];
    for name in ["box-2", "box-3"] {
        shown.push(format!("{:?}", install(name).join(&token).await.unwrap_err()));
    }
    let identity = std::fs::read_to_string(host.state().join("identity.json")).unwrap();
    let identity: serde_json::Value = serde_json::from_str(&identity).unwrap();
    let key = identity["key"].as_str().unwrap();
    let bytes = log.0.lock().unwrap().clone();
    assert!(!bytes.is_empty(), "the log was kept");
    for (what, secret) in [("the token's secret", secret.as_str()), ("the host's key", key)] {
        assert!(!contains(&bytes, secret), "{what} is in the log");
        assert!(!shown.join(" ").contains(secret), "{what} is shown: {shown:?}");
    }
    let mut holding = Vec::new();
    holders(fleet.folder(), &[&secret, key], &mut holding);
    assert_eq!(holding, [host.state().join("identity.json")]);
}

/// Files below the folder that have one of these texts.
fn holders(folder: &Path, texts: &[&str], found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            holders(&path, texts, found);
        } else if let Ok(bytes) = std::fs::read(&path)
            && texts.iter().any(|text| contains(&bytes, text))
        {
            found.push(path);
        }
    }
}

#[tokio::test]
async fn canary_secrets_are_in_no_log_no_file_and_no_message() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let (fleet, host, client) = one().await;
    host.machine.faults.lock().programs = [("fails".to_owned(), (1, std::time::Duration::ZERO))].into();
    let mut shown = Vec::new();
    let environment = proto::EnvironmentVariable {
        name: "TOKEN".into(),
        value: SECRETS[0].into(),
    };
    let verbs = [
        Verb::RunCommand(proto::RunCommand {
            argv: vec!["echo".into(), SECRETS[3].into()],
            environment: vec![environment],
            ..Default::default()
        }),
        // A program that fails is named, and its arguments are not.
        Verb::RunCommand(proto::RunCommand {
            argv: vec!["fails".into(), SECRETS[3].into()],
            ..Default::default()
        }),
        // A file with the secret is what bootstrap data are for; here only its command has one.
        Verb::RunBootstrap(proto::RunBootstrap {
            data: format!("#cloud-config\nruncmd: ['echo {}']", SECRETS[1]).into_bytes(),
            time_limit_seconds: 0,
            ..Default::default()
        }),
        Verb::RunBootstrap(proto::RunBootstrap {
            data: format!("#cloud-config\nwrong: {}", SECRETS[1]).into_bytes(),
            time_limit_seconds: 0,
            ..Default::default()
        }),
        Verb::Ensure(proto::Ensure {
            image: Some(proto::ImageReference {
                reference: "127.0.0.1:1/app:1".into(),
                digest: slipway_slots::Digest::of(b"nothing").to_string(),
                ..Default::default()
            }),
            credentials: Some(proto::RegistryCredentials {
                username: "edge".into(),
                password: SECRETS[2].into(),
            }),
            ..Default::default()
        }),
    ];
    for (number, verb) in verbs.into_iter().enumerate() {
        let id = format!("op-{number}");
        if matches!(verb, Verb::Ensure(_)) {
            // Nobody is there: it tries on, and is cut off.
            client.start(super::order("box-1", &id, 1, verb)).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            shown.push(format!("{:?}", client.cancel(&id, 1).await.unwrap()));
            continue;
        }
        let operation = complete(&client, &id, verb).await.unwrap();
        shown.push(format!("{operation:?} {}", operation.message));
    }
    host.kill_agent().await.unwrap();
    shown.push(format!("{:?}", client.operations().await.unwrap()));
    let text = shown.join("\n");
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} is shown: {text}");
    }
    let bytes = log.0.lock().unwrap().clone();
    assert!(contains(&bytes, "accepted"), "the log was kept");
    for secret in SECRETS {
        assert!(!contains(&bytes, secret), "{secret} is in the log");
    }
    let (mut found, mut files) = (Vec::new(), 0);
    search(fleet.folder(), &mut found, &mut files);
    assert!(found.is_empty(), "{found:?}");
    assert!(files > 8, "{files} files were searched");
}
