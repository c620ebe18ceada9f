//! Asks the manager that leads. In a cluster it is reached through the apiserver, with a token of a ServiceAccount that is good for
//! nothing but asking; elsewhere by its address.

use std::{fs, path::PathBuf, time::Duration};

use clap::{Arg, ArgMatches, value_parser};
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    coordination::v1::Lease,
    core::v1::ServiceAccount,
};
use kube::{
    Api, Client, Config,
    api::{ListParams, PostParams},
    client::Body,
};
use serde_json::Value;

use crate::{
    ObjectKey, Preview,
    manager::{ASKER_AUDIENCE, ASKER_HEADER, IDENTITY_PREFIX},
};

/// The ServiceAccount whose token asks.
pub const ACCOUNT: &str = "slipway-asker";
const PORT: u16 = 8443;
/// As short as the apiserver allows.
const TOKEN_LIFE: i64 = 600;
const TIMEOUT: Duration = Duration::from_mins(2);

/// The flags that say how the manager is reached. The namespace is where its package is installed.
pub fn flags(namespace: &'static str) -> [Arg; 3] {
    [
        Arg::new("manager-namespace")
            .long("manager-namespace")
            .value_name("NAMESPACE")
            .default_value(namespace)
            .help("Where the manager runs"),
        Arg::new("manager")
            .long("manager")
            .value_name("URL")
            .help("Address of the manager's diagnostics port, e.g. https://127.0.0.1:8443; found through the cluster if absent"),
        Arg::new("token-file")
            .long("token-file")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .requires("manager")
            .help("A token that may read the manager's /debug pages; asked for in the cluster if absent"),
    ]
}

/// What the manager said.
struct Told {
    status: StatusCode,
    body: Vec<u8>,
}

impl Told {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim().to_owned()
    }
}

/// Where the manager is, and what lets us ask.
pub struct Asker {
    client: Client,
    prefix: String,
    header: (&'static str, String),
}

impl Asker {
    /// Finds the manager by the flags of a command.
    pub async fn find(client: &Client, matches: &ArgMatches) -> Result<Self, String> {
        let namespace = matches
            .get_one::<String>("manager-namespace")
            .cloned()
            .unwrap_or_default();
        let header = match matches.get_one::<PathBuf>("token-file") {
            Some(path) => {
                let token = fs::read_to_string(path)
                    .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
                (header::AUTHORIZATION.as_str(), format!("Bearer {}", token.trim()))
            }
            None => (ASKER_HEADER, token(client, &namespace).await?),
        };
        match matches.get_one::<String>("manager") {
            Some(url) => Self::at(url, header),
            None => {
                let pod = leader(client, &namespace).await?;
                Ok(Self {
                    client: client.clone(),
                    prefix: format!("/api/v1/namespaces/{namespace}/pods/https:{pod}:{PORT}/proxy"),
                    header,
                })
            }
        }
    }

    /// The manager at an address. Its certificate is made when it starts, so nobody can vouch for it.
    fn at(url: &str, header: (&'static str, String)) -> Result<Self, String> {
        let uri: http::Uri = url
            .parse()
            .ok()
            .filter(|uri: &http::Uri| uri.scheme_str() == Some("https") && uri.authority().is_some())
            .ok_or_else(|| format!("--manager: {url:?} is no address: write https://HOST:PORT"))?;
        let mut config = Config::new(uri);
        config.accept_invalid_certs = true;
        config.default_retry = false;
        config.connect_timeout = Some(Duration::from_secs(10));
        let client =
            Client::try_from(config).map_err(|error| format!("cannot connect to the manager: {error}"))?;
        Ok(Self::over(client, header))
    }

    /// The manager's diagnostics port behind a client, which is shown this header.
    pub fn over(client: Client, header: (&'static str, String)) -> Self {
        Self {
            client,
            prefix: String::new(),
            header,
        }
    }

    /// What a controller would do with an object; with `object`, with that one instead of the one that is there.
    pub async fn preview(
        &self,
        group: &str,
        kind: &str,
        key: &ObjectKey,
        object: Option<&Value>,
        unheld: bool,
    ) -> Result<Preview, String> {
        let query = if unheld { "?unheld=true" } else { "" };
        let path = format!("/debug/diff/{group}/{kind}/{key}{query}");
        let answer = self.json(&path, object).await?;
        serde_json::from_value(answer)
            .map_err(|error| format!("the manager's answer cannot be read: {error}"))
    }

    /// What a provider answers to a question.
    pub async fn question(&self, name: &str, question: &Value) -> Result<Value, String> {
        self.json(&format!("/debug/ask/{name}"), Some(question)).await
    }

    async fn ask(&self, path: &str, body: Option<&Value>) -> Result<Told, String> {
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string().into_bytes()));
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(header::CONTENT_TYPE, "application/json")
            .header(self.header.0, &self.header.1)
            .body(body)
            .map_err(|error| format!("cannot ask the manager: {error}"))?;
        let answer = async {
            let answer = self
                .client
                .send(request)
                .await
                .map_err(|error| error.to_string())?;
            let status = answer.status();
            let body = answer
                .into_body()
                .collect()
                .await
                .map_err(|error| error.to_string())?;
            let body = body.to_bytes().to_vec();
            Ok::<_, String>(Told { status, body })
        };
        match tokio::time::timeout(TIMEOUT, answer).await {
            Ok(Ok(told)) => Ok(told),
            Ok(Err(error)) => Err(format!("the manager does not answer: {error}")),
            Err(_) => Err("the manager does not answer in time".to_owned()),
        }
    }

    /// An answer as JSON; anything else than success is an error in the manager's words.
    async fn json(&self, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let told = self.ask(path, body).await?;
        match told.status {
            StatusCode::OK => serde_json::from_slice(&told.body)
                .map_err(|error| format!("the manager's answer cannot be read: {error}")),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(format!(
                "the manager does not let us ask ({}): {}. Who asks needs the rights that docs/manager.md names under Diagnostics",
                told.status,
                told.text()
            )),
            StatusCode::NOT_FOUND if told.text().is_empty() || told.text().contains("page not found") => Err(
                "this manager does not answer questions: it is of an older release, or it runs with --insecure-diagnostics"
                    .to_owned(),
            ),
            _ => Err(told.text()),
        }
    }
}

/// A token that is good for asking, and for nothing else.
async fn token(client: &Client, namespace: &str) -> Result<String, String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: vec![ASKER_AUDIENCE.to_owned()],
            expiration_seconds: Some(TOKEN_LIFE),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let made = accounts
        .create_token_request(ACCOUNT, &PostParams::default(), &request)
        .await
        .map_err(|error| {
            format!(
                "cannot get a token of ServiceAccount {namespace}/{ACCOUNT}, which asks the manager: {error}"
            )
        })?;
    made.status
        .map(|status| status.token)
        .ok_or_else(|| format!("the apiserver made no token of ServiceAccount {namespace}/{ACCOUNT}"))
}

/// The Pod of the manager that leads.
async fn leader(client: &Client, namespace: &str) -> Result<String, String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let list = leases
        .list(&ListParams::default())
        .await
        .map_err(|error| format!("cannot list the leases of namespace {namespace}: {error}"))?;
    let now = Timestamp::now();
    list.items
        .iter()
        .find_map(|lease| holder(lease, now))
        .ok_or_else(|| {
            format!(
                "no manager of Slipway leads in namespace {namespace}: name the one where it runs with --manager-namespace, or its \
                 address with --manager"
            )
        })
}

/// The host that holds a lease of ours, if it has renewed it lately.
fn holder(lease: &Lease, now: Timestamp) -> Option<String> {
    let spec = lease.spec.as_ref()?;
    let renewed = spec.renew_time.as_ref()?.0;
    let life = SignedDuration::from_secs(i64::from(spec.lease_duration_seconds.unwrap_or(15)) * 4);
    let rest = spec.holder_identity.as_deref()?.strip_prefix(IDENTITY_PREFIX)?;
    let (host, _) = rest.strip_prefix('_')?.rsplit_once('_')?;
    (now.duration_since(renewed) < life && !host.is_empty()).then(|| host.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime};

    #[test]
    fn the_pod_that_leads_is_read_from_its_lease() {
        let now = Timestamp::now();
        let lease = |holder: &str, ago: i64| Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(15),
                renew_time: Some(MicroTime(now - SignedDuration::from_secs(ago))),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        let pod = "capz-controller-manager-7d9f-x2b";
        let ours = format!("slipway_{pod}_5f9c2f1e-0c3a-4b8e-9d56-6f0b1f1f0a11");
        assert_eq!(holder(&lease(&ours, 5), now).as_deref(), Some(pod));
        assert_eq!(holder(&lease(&ours, 90), now), None, "nobody renews it");
        assert_eq!(holder(&lease("capz-controller-manager_5f9c", 5), now), None);
        assert_eq!(holder(&lease("slipway__5f9c", 5), now), None);
        assert_eq!(holder(&Lease::default(), now), None);
    }

    #[test]
    fn an_address_is_https() {
        let header = || (ASKER_HEADER, "token".to_owned());
        for url in ["127.0.0.1:8443", "http://127.0.0.1:8443", "nonsense"] {
            let error = Asker::at(url, header()).err();
            assert!(
                error.is_some_and(|error| error.contains("https://HOST:PORT")),
                "{url}"
            );
        }
    }
}
