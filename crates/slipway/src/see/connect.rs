//! Which cluster is asked, as whom, and what it serves.

use clap::{Arg, ArgAction, ArgMatches, value_parser};
use kube::{
    Client, Config,
    config::{
        AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext,
    },
    discovery::{ApiResource, Discovery, Scope, verbs},
};
use std::path::PathBuf;

/// The arguments that say which cluster, and where in it.
pub fn arguments() -> Vec<Arg> {
    vec![
        Arg::new("kubeconfig")
            .long("kubeconfig")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("The management cluster; $KUBECONFIG or ~/.kube/config if absent"),
        Arg::new("context")
            .long("context")
            .value_name("NAME")
            .help("The context of the kubeconfig; its current one if absent"),
        Arg::new("namespace")
            .long("namespace")
            .short('n')
            .value_name("NAMESPACE")
            .help("The namespace; that of the context if absent"),
    ]
}

pub fn all_namespaces() -> Arg {
    Arg::new("all-namespaces")
        .long("all-namespaces")
        .short('A')
        .action(ArgAction::SetTrue)
        .conflicts_with("namespace")
        .help("Every namespace")
}

/// A kind that the cluster serves, at the version it prefers.
#[derive(Clone, Debug)]
pub struct Served {
    pub resource: ApiResource,
    pub is_namespaced: bool,
    pub can_be_listed: bool,
}

/// A cluster, and what it serves.
pub struct Connection {
    pub client: Client,
    pub namespace: String,
    pub served: Vec<Served>,
}

impl Connection {
    pub async fn open(matches: &ArgMatches) -> Result<Self, String> {
        let config = config(matches).await?;
        let namespace = matches
            .get_one::<String>("namespace")
            .cloned()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client =
            Client::try_from(config).map_err(|error| format!("the kubeconfig cannot be used: {error}"))?;
        Self::over(client, namespace).await
    }

    /// A cluster by its client.
    pub async fn over(client: Client, namespace: String) -> Result<Self, String> {
        let served = served(&client)
            .await
            .map_err(|error| format!("the cluster does not say what it serves: {error}"))?;
        Ok(Self {
            client,
            namespace,
            served,
        })
    }

    /// The kinds that a person means by a word: kind, plural, or either with its group.
    pub fn named(&self, word: &str) -> Vec<&Served> {
        let word = word.to_lowercase();
        let (kind, group) = word.split_once('.').unwrap_or((&word, ""));
        self.served
            .iter()
            .filter(|served| {
                let resource = &served.resource;
                (resource.kind.to_lowercase() == kind || resource.plural == kind)
                    && resource.group.starts_with(group)
            })
            .collect()
    }

    pub fn kind(&self, group: &str, kind: &str) -> Option<&Served> {
        self.served
            .iter()
            .find(|served| served.resource.group == group && served.resource.kind == kind)
    }
}

/// What a cluster serves.
pub async fn served(client: &Client) -> Result<Vec<Served>, kube::Error> {
    // Versions are the cluster's to choose: nothing here names one.
    let discovery = Discovery::new(client.clone()).run_aggregated().await?;
    let served = discovery
        .groups()
        .flat_map(kube::discovery::ApiGroup::recommended_resources)
        .map(|(resource, can)| Served {
            is_namespaced: can.scope == Scope::Namespaced,
            can_be_listed: can.supports_operation(verbs::LIST),
            resource,
        });
    Ok(served.collect())
}

/// What people call the cluster that is asked: the context of the kubeconfig, where there is one.
pub fn context(matches: &ArgMatches) -> String {
    let chosen = matches.get_one::<String>("context").cloned();
    let file = match matches.get_one::<PathBuf>("kubeconfig") {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    chosen
        .or_else(|| file.ok().and_then(|file| file.current_context))
        .unwrap_or_default()
}

/// Where the API server is, without anybody's credentials: from the kubeconfig, or as a pod finds it.
#[derive(Clone, Debug)]
pub struct ApiServer(Kubeconfig);

const NAME: &str = "the-cluster";
/// What a pod knows of its cluster.
const POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

impl ApiServer {
    pub fn of(matches: &ArgMatches) -> Result<Self, String> {
        let file = match matches.get_one::<PathBuf>("kubeconfig") {
            Some(path) => Kubeconfig::read_from(path),
            None if std::env::var_os("KUBECONFIG").is_some() => Kubeconfig::read(),
            None => return Self::of_pod(),
        };
        let file = file.map_err(|error| format!("the kubeconfig cannot be read: {error}"))?;
        let chosen = matches
            .get_one::<String>("context")
            .or(file.current_context.as_ref());
        let context = file
            .contexts
            .iter()
            .find(|context| Some(&context.name) == chosen)
            .and_then(|context| context.context.as_ref())
            .ok_or("the kubeconfig has no such context")?;
        let mut cluster = file
            .clusters
            .iter()
            .find(|cluster| cluster.name == context.cluster)
            .cloned()
            .ok_or_else(|| format!("the kubeconfig has no cluster {}", context.cluster))?;
        NAME.clone_into(&mut cluster.name);
        Ok(Self(Kubeconfig {
            clusters: vec![cluster],
            ..Kubeconfig::default()
        }))
    }

    fn of_pod() -> Result<Self, String> {
        let variable = |name: &str| {
            std::env::var(name).map_err(|_| {
                format!("no cluster is configured: this is no pod ({name} is not set), so name one with --kubeconfig")
            })
        };
        let (host, port) = (
            variable("KUBERNETES_SERVICE_HOST")?,
            variable("KUBERNETES_SERVICE_PORT")?,
        );
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        let cluster = Cluster {
            server: Some(format!("https://{host}:{port}")),
            certificate_authority: Some(POD.to_owned()),
            ..Cluster::default()
        };
        Ok(Self(Kubeconfig {
            clusters: vec![NamedCluster {
                name: NAME.to_owned(),
                cluster: Some(cluster),
                ..NamedCluster::default()
            }],
            ..Kubeconfig::default()
        }))
    }

    /// A client that has this token and nothing else.
    pub async fn client(&self, token: &str) -> Result<Client, String> {
        let mut file = self.0.clone();
        file.auth_infos = vec![NamedAuthInfo {
            name: NAME.to_owned(),
            auth_info: Some(AuthInfo {
                token: Some(token.to_owned().into()),
                ..AuthInfo::default()
            }),
            ..NamedAuthInfo::default()
        }];
        file.contexts = vec![NamedContext {
            name: NAME.to_owned(),
            context: Some(Context {
                cluster: NAME.to_owned(),
                user: Some(NAME.to_owned()),
                ..Context::default()
            }),
            ..NamedContext::default()
        }];
        file.current_context = Some(NAME.to_owned());
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .map_err(|error| format!("the cluster's address cannot be used: {error}"))?;
        Client::try_from(config).map_err(|error| format!("the cluster's address cannot be used: {error}"))
    }
}

async fn config(matches: &ArgMatches) -> Result<Config, String> {
    let options = KubeConfigOptions {
        context: matches.get_one::<String>("context").cloned(),
        ..KubeConfigOptions::default()
    };
    let file = match matches.get_one::<PathBuf>("kubeconfig") {
        Some(path) => Kubeconfig::read_from(path),
        None if options.context.is_none() => {
            return Config::infer().await.map_err(|error| {
                format!("no cluster is configured: set $KUBECONFIG or --kubeconfig ({error})")
            });
        }
        None => Kubeconfig::read(),
    };
    let file = file.map_err(|error| format!("the kubeconfig cannot be read: {error}"))?;
    Config::from_custom_kubeconfig(file, &options)
        .await
        .map_err(|error| format!("the kubeconfig cannot be used: {error}"))
}
