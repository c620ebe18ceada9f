//! A credential plugin for kubeconfigs of clusters with Entra accounts: `azure-sim get-token` takes the arguments AKS
//! writes for kubelogin and signs in as a service principal, since nobody is there to type a device code.

use anyhow::{Context, Result, bail};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

#[derive(clap::Args)]
pub struct Arguments {
    /// The application the API server trusts.
    #[arg(long)]
    server_id: String,
    #[arg(long)]
    tenant_id: String,
    /// Where to sign in.
    #[arg(
        long,
        env = "AZURE_AUTHORITY_HOST",
        default_value = "https://login.microsoftonline.com"
    )]
    authority_host: String,
    /// A file with the certificate authority of that host.
    #[arg(long, env = "SSL_CERT_FILE")]
    ca_file: Option<std::path::PathBuf>,
    #[command(flatten)]
    _without_use: WithoutUse,
}

/// What kubelogin needs to ask a person; accepted because AKS writes it into every kubeconfig.
#[derive(clap::Args)]
struct WithoutUse {
    #[arg(long)]
    client_id: Option<String>,
    #[arg(long)]
    environment: Option<String>,
    #[arg(long)]
    login: Option<String>,
}

pub async fn run(arguments: &Arguments) -> Result<()> {
    let variable = |name: &str| {
        std::env::var(name).with_context(|| format!("set {name}: the service principal to sign in as"))
    };
    let (client, secret) = (variable("AZURE_CLIENT_ID")?, variable("AZURE_CLIENT_SECRET")?);
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut builder = reqwest::Client::builder();
    if let Some(path) = &arguments.ca_file {
        let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        let certificate = reqwest::Certificate::from_pem(&text)
            .with_context(|| format!("{} holds no certificate", path.display()))?;
        builder = builder.tls_certs_only([certificate]);
    }
    let address = format!(
        "{}/{}/oauth2/v2.0/token",
        arguments.authority_host.trim_end_matches('/'),
        arguments.tenant_id
    );
    let form = url::form_urlencoded::Serializer::new(String::new())
        .append_pair("grant_type", "client_credentials")
        .append_pair("client_id", &client)
        .append_pair("client_secret", &secret)
        .append_pair("scope", &format!("{}/.default", arguments.server_id))
        .finish();
    let response = builder
        .build()?
        .post(&address)
        .header("content-type", "application/x-www-form-urlencoded")
        .body(form)
        .send()
        .await
        .with_context(|| format!("signing in at {address}"))?;
    let answer: Value =
        serde_json::from_slice(&response.bytes().await?).context("the login service answered no JSON")?;
    let Some(token) = answer["access_token"].as_str() else {
        bail!(
            "the login service refused: {}",
            answer["error_description"]
                .as_str()
                .unwrap_or("it gave no reason")
        );
    };
    let lives = SignedDuration::from_secs(answer["expires_in"].as_i64().unwrap_or(0));
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {
            "token": token,
            "expirationTimestamp": (Timestamp::now() + lives).strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        },
    });
    println!("{credential}");
    Ok(())
}
