//! Which cluster is asked, as whom, and what it serves.

use clap::{Arg, ArgAction, ArgMatches, value_parser};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
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
