//! What a manager with webhooks says when it is refused its certificate folder or its port.

use anyhow::Result;

use super::environment::BINARY;

/// Runs the command to its end.
fn refusal(arguments: &[&str]) -> Result<String> {
    let output = std::process::Command::new(BINARY)
        .args(arguments)
        .env_remove("KUBECONFIG")
        .env("HOME", "/nonexistent")
        .output()?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(
        message.lines().filter(|line| line.starts_with("error: ")).count(),
        1,
        "{message}"
    );
    assert!(!message.contains("panicked"), "{message}");
    Ok(message)
}

#[test]
fn a_certificate_folder_or_port_that_cannot_be_used_is_named() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(
        &kubeconfig,
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n\
         contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n",
    )?;
    let kubeconfig = kubeconfig.to_string_lossy();
    let start = ["manager", "--kubeconfig", &kubeconfig];
    // Not even the superuser can make a folder inside a file.
    let arguments = [
        start.as_slice(),
        &[
            "--webhook-self-signed",
            "--webhook-cert-dir=/dev/null/certificates",
        ],
    ]
    .concat();
    let message = refusal(&arguments)?;
    assert!(
        message.contains("cannot write a self-signed certificate to /dev/null/certificates"),
        "{message}"
    );
    let arguments = [start.as_slice(), &["--webhook-cert-dir=/nowhere"]].concat();
    let message = refusal(&arguments)?;
    assert!(
        message.contains("cannot read the webhook certificate /nowhere/tls.crt"),
        "{message}"
    );

    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = format!("--webhook-port={}", taken.local_addr()?.port());
    let folder = format!("--webhook-cert-dir={}", directory.path().join("made").display());
    let rest = [
        "--webhook-self-signed",
        "--webhook-host=127.0.0.1",
        &folder,
        &port,
    ];
    let message = refusal(&[start.as_slice(), &rest].concat())?;
    assert!(
        message.contains(" is in use: ") && message.contains("--webhook-port"),
        "{message}"
    );
    Ok(())
}
