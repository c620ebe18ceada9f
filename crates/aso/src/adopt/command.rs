//! The command line of `slipway adopt`.

use std::{fmt::Write, process::ExitCode, time::Duration};

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};
use slipway_azure::reconcile::{Records, records::ADOPT};
use slipway_runtime::{
    ObjectKey,
    command::{Asker, client_of, run},
    provider::Subcommand,
};

use super::{
    Answer, QUESTION, Question,
    act::{self, Made},
    manifests::{Wishes, manifests},
    read::cluster_id,
};
use crate::{
    command::{
        objects::{CLASSIC_PLANE, CLUSTER, INLINE_CLUSTER, INLINE_PLANE, INLINE_POOL, KindName, Objects},
        output_flag, with_cluster,
    },
    diff::{
        self,
        report::{Report, Verdict},
    },
};

/// How long new objects are waited for until their difference can be told.
const PATIENCE: Duration = Duration::from_mins(2);
const PAUSE: Duration = Duration::from_secs(2);

pub fn subcommand() -> Subcommand {
    let command = Command::new("adopt")
        .about("Make objects for AKS clusters that run already; nothing is written in Azure before it is confirmed")
        .long_about(
            "Read AKS clusters in Azure, with pools, networks, extensions, membership in fleets, maintenance windows and federated \
             credentials, and make the objects that stand for them: Cluster, AzureASOManagedCluster, AzureASOManagedControlPlane, and a \
             MachinePool with its AzureASOManagedMachinePool for each pool. Their resources have the reconcile-policy skip: they are read, \
             and nothing is written in Azure. The difference is shown; `slipway adopt --confirm NAME` lets them be managed.",
        )
        .arg(
            Arg::new("target")
                .value_name("ARM-ID")
                .required(true)
                .num_args(1..)
                .help("Ids of AKS clusters; with --confirm, names of Clusters"),
        )
        .arg(
            Arg::new("confirm")
                .long("confirm")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["output", "credential", "name"])
                .help("Show what changes in Azure, and let the Clusters be managed"),
        )
        .arg(
            Arg::new("credential")
                .long("credential")
                .value_name("SECRET")
                .help("The Secret of the namespace that signs in to Azure; what the namespace has if absent"),
        )
        .arg(
            Arg::new("name")
                .long("name")
                .value_name("NAME")
                .help("The Cluster's name; the AKS cluster's if absent"),
        )
        .arg(output_flag(&["yaml", "json"], "Print the manifests, and create nothing"));
    Subcommand {
        command: with_cluster(command),
        run: |matches| match run(answer(matches)) {
            Ok(text) => {
                print!("{text}");
                ExitCode::SUCCESS
            }
            Err(message) => {
                eprintln!("error: {message}");
                ExitCode::FAILURE
            }
        },
    }
}

async fn answer(matches: &ArgMatches) -> Result<String, String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let targets: Vec<String> = matches
        .get_many::<String>("target")
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let namespace = text("namespace").unwrap_or_default();
    let adoption = Adoption {
        namespace,
        credential: text("credential"),
        name: text("name"),
    };
    let confirms = matches.get_flag("confirm");
    if !confirms {
        adoption.check(&targets)?;
    }
    let client = client_of(matches).await?;
    let objects = Objects::discover(&client).await?;
    let asker = Asker::find(&client, matches).await?;
    if confirms {
        return confirm(&objects, &asker, &adoption.namespace, &targets).await;
    }
    let read = adoption.read(&objects, &asker, &targets).await?;
    for note in &read.notes {
        eprintln!("note: {note}");
    }
    match text("output").as_deref() {
        Some("json") => Ok(format!(
            "{:#}\n",
            json!({"apiVersion": "v1", "kind": "List", "items": read.all()})
        )),
        Some(_) => yaml(&read.all()),
        None => adoption.apply(&objects, &asker, &read).await,
    }
}

/// What is adopted, and how.
#[derive(Clone, Debug, Default)]
pub struct Adoption {
    pub namespace: String,
    pub credential: Option<String>,
    pub name: Option<String>,
}

/// The objects of what was read, cluster by cluster.
#[derive(Clone, Debug, Default)]
pub struct Read {
    pub clusters: Vec<Vec<Value>>,
    pub notes: Vec<String>,
}

impl Read {
    pub fn all(&self) -> Vec<&Value> {
        self.clusters.iter().flatten().collect()
    }
}

impl Adoption {
    /// What is wrong with the command line, before anything is asked.
    pub fn check(&self, ids: &[String]) -> Result<(), String> {
        for id in ids {
            cluster_id(id)?;
        }
        if ids.len() > 1 && self.name.is_some() {
            return Err("--name names one Cluster: adopt the AKS clusters one by one".to_owned());
        }
        Ok(())
    }

    /// Has the manager read the clusters, and makes the objects.
    pub async fn read(&self, objects: &Objects, asker: &Asker, ids: &[String]) -> Result<Read, String> {
        self.check(ids)?;
        let core = objects
            .resource(CLUSTER.group, CLUSTER.kind)
            .ok_or("the cluster serves no Cluster of cluster.x-k8s.io: install Cluster API first")?;
        let question = Question {
            ids: ids.to_vec(),
            namespace: self.namespace.clone(),
            credential: self.credential.clone(),
            also: Vec::new(),
        };
        let answer = asker.question(QUESTION, &json!(question)).await?;
        let answer: Answer = serde_json::from_value(answer)
            .map_err(|error| format!("the manager's answer cannot be read: {error}"))?;
        let wishes = Wishes {
            namespace: self.namespace.clone(),
            credential: self.credential.clone(),
            name: self.name.clone(),
            core: core.version.clone(),
        };
        let mut read = Read::default();
        for cluster in &answer.clusters {
            let mut manifests = manifests(cluster, &wishes)?;
            read.notes.extend(cluster.notes.iter().cloned());
            if let Some(mark) = &cluster.mark {
                read.notes.push(inherit(objects, mark, &mut manifests).await?);
            }
            read.clusters.push(manifests);
        }
        Ok(read)
    }

    /// Creates the objects, and shows what would change in Azure. What is there already is left as it is, so that it can be
    /// called again after it was interrupted.
    pub async fn apply(&self, objects: &Objects, asker: &Asker, read: &Read) -> Result<String, String> {
        let mut text = String::new();
        for manifests in &read.clusters {
            let Some(name) = manifests
                .first()
                .and_then(|cluster| cluster["metadata"]["name"].as_str())
            else {
                continue;
            };
            let cluster = ObjectKey::namespaced(&self.namespace, name);
            if let Some(found) = objects.find(CLUSTER, &cluster).await?
                && KindName::of_reference(&found["spec"]["controlPlaneRef"]) != Some(INLINE_PLANE)
            {
                return Err(format!(
                    "there is a Cluster {cluster} of another kind: give the adopted one another name with --name, or migrate the one that is \
                     there with `slipway migrate {name}`"
                ));
            }
            for manifest in manifests {
                let made = act::create(objects, manifest).await?;
                let verb = if made == Made::Created {
                    "created"
                } else {
                    "is there:"
                };
                let kind = manifest["kind"].as_str().unwrap_or_default();
                let _ = writeln!(
                    text,
                    "{verb} {kind} {}",
                    manifest["metadata"]["name"].as_str().unwrap_or_default()
                );
            }
            let report = until_told(objects, asker, &cluster).await?;
            let _ = writeln!(
                text,
                "\nWhat would change in Azure once Cluster {cluster} is managed:\n\n{report}"
            );
            let namespace = &self.namespace;
            let _ = writeln!(
                text,
                "Nothing is written in Azure yet. Let it be managed with: slipway adopt --confirm {name} --namespace {namespace}"
            );
        }
        Ok(text)
    }
}

/// What an object here has made is the adopter's as soon as that object is gone. Of anybody else's it is only told.
async fn inherit(objects: &Objects, mark: &str, manifests: &mut [Value]) -> Result<String, String> {
    let owner = objects.all(CLASSIC_PLANE).await?.into_iter().find(|plane| {
        let metadata = serde_json::from_value(plane["metadata"].clone());
        metadata.is_ok_and(|metadata| Records::of(&metadata).mark() == Some(mark))
    });
    let Some(owner) = owner else {
        return Ok(format!(
            "the AKS cluster carries the mark {mark} of another owner: nothing is written to it before AzureASOManagedCluster and \
             AzureASOManagedControlPlane are annotated with {ADOPT}: {mark}; do that when nobody else manages it any more"
        ));
    };
    for manifest in manifests {
        let kind = manifest["kind"].as_str().unwrap_or_default();
        if [INLINE_CLUSTER.kind, INLINE_PLANE.kind].contains(&kind) {
            manifest["metadata"]["annotations"][ADOPT] = json!(mark);
        }
    }
    let text = |field: &str| owner["metadata"][field].as_str().unwrap_or_default();
    Ok(format!(
        "AzureManagedControlPlane {}/{} owns the AKS cluster: nothing is written to it by others before that one is gone",
        text("namespace"),
        text("name")
    ))
}

/// The difference of a Cluster, once its objects were seen by the controllers.
pub async fn until_told(objects: &Objects, asker: &Asker, cluster: &ObjectKey) -> Result<Report, String> {
    let began = tokio::time::Instant::now();
    loop {
        let targets = diff::targets(objects, cluster).await?;
        let report = diff::diff(asker, targets).await;
        if report.verdict() != Verdict::Unknown || began.elapsed() > PATIENCE {
            return Ok(report);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Shows what changes in Azure, and lets the Clusters be managed. One whose difference cannot be told is left as it is.
pub async fn confirm(
    objects: &Objects,
    asker: &Asker,
    namespace: &str,
    clusters: &[String],
) -> Result<String, String> {
    let mut text = String::new();
    for name in clusters {
        let cluster = ObjectKey::namespaced(namespace, name);
        let report = until_told(objects, asker, &cluster).await?;
        let _ = writeln!(text, "{report}");
        if report.verdict() == Verdict::Unknown {
            return Err(format!(
                "{text}Cluster {cluster} stays as it is: what would change in Azure cannot be told. Mend what is named above, and confirm again"
            ));
        }
        let mut confirmed = false;
        for (kind, key) in diff::targets(objects, &cluster).await? {
            if [INLINE_CLUSTER, INLINE_PLANE, INLINE_POOL].contains(&kind) {
                confirmed |= act::confirm(objects, kind, &key).await?;
            }
        }
        let said = if confirmed {
            "is managed from now on"
        } else {
            "had nothing left to confirm"
        };
        let _ = writeln!(text, "Cluster {cluster} {said}.");
    }
    Ok(text)
}

fn yaml(objects: &[&Value]) -> Result<String, String> {
    let mut text = String::new();
    for object in objects {
        let document =
            serde_saphyr::to_string(object).map_err(|error| format!("cannot print YAML: {error}"))?;
        let _ = write!(text, "---\n{document}");
        if !document.ends_with('\n') {
            text.push('\n');
        }
    }
    Ok(text)
}
