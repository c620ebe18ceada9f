//! Secrets that are sent to a host are in no log, no file and no message of it.

use std::{
    io::Write,
    path::Path,
    sync::{Arc, Mutex},
};

use slipway_agent_api::proto::{self, start_request::Verb};

use super::{complete, one};

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
        }),
        Verb::RunBootstrap(proto::RunBootstrap {
            data: format!("#cloud-config\nwrong: {}", SECRETS[1]).into_bytes(),
            time_limit_seconds: 0,
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
