//! `slipway diff`: what a controller would change in Azure for an object, or for all objects of a Cluster. The manager observes and
//! plans; nothing is written.

pub mod report;

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use slipway_runtime::{
    ObjectKey,
    command::{Asker, client_of, run},
    provider::Subcommand,
};

use self::report::{Report, Verdict};
use crate::command::{
    objects::{CLASSIC_CLUSTER, CLUSTER, KindName, MACHINE_POOL, NAMES, Objects},
    output_flag, with_cluster,
};

pub fn subcommand() -> Subcommand {
    let command = Command::new("diff")
        .about("Show what would change in Azure for an object, or for a Cluster, and change nothing")
        .long_about(
            "Show what would change in Azure for an object, or for all objects of a Cluster, field by field. The manager reads and plans as \
             it does in a reconcile, and writes nothing. Resources with the reconcile-policy skip, and objects that are paused, are shown as \
             if they were managed.\n\nExit code: 0 without a difference, 1 with differences, 2 where something could not be told.",
        )
        .arg(
            Arg::new("object")
                .value_name("KIND/NAME")
                .required(true)
                .help("e.g. cluster/fleet, azureasomanagedcontrolplane/fleet"),
        )
        .arg(output_flag(&["text", "json"], "text or json; text if absent"));
    Subcommand {
        command: with_cluster(command),
        run: |matches| match run(answer(matches)) {
            Ok((text, verdict)) => {
                print!("{text}");
                ExitCode::from(verdict.code())
            }
            Err(message) => {
                eprintln!("error: {message}");
                ExitCode::from(Verdict::Unknown.code())
            }
        },
    }
}

/// What a command line of `slipway diff` is answered with.
pub async fn answer(matches: &ArgMatches) -> Result<(String, Verdict), String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let object = text("object");
    let (kind, name) = object
        .split_once('/')
        .filter(|(_, name)| !name.is_empty())
        .ok_or_else(|| format!("{object:?} is no object: write KIND/NAME, e.g. cluster/fleet"))?;
    let known = || {
        let names: Vec<&str> = NAMES
            .iter()
            .filter_map(|(_, names)| names.first().copied())
            .collect();
        format!(
            "{kind:?} has no difference to Azure: the kinds are {}",
            names.join(", ")
        )
    };
    let kind = KindName::parse(kind).ok_or_else(known)?;
    let client = client_of(matches).await?;
    let key = ObjectKey::namespaced(&text("namespace"), name);
    let targets = if kind == CLUSTER {
        let objects = Objects::discover(&client).await?;
        targets(&objects, &key).await?
    } else {
        vec![(kind, key)]
    };
    let asker = Asker::find(&client, matches).await?;
    let report = diff(&asker, targets).await;
    let shown = if text("output") == "json" {
        report.json()
    } else {
        report.to_string()
    };
    Ok((shown, report.verdict()))
}

/// What each of these objects would change. What cannot be told of one keeps the others from nothing.
pub async fn diff(asker: &Asker, targets: Vec<(KindName, ObjectKey)>) -> Report {
    let mut report = Report::default();
    for (kind, key) in targets {
        let answer = asker.preview(kind.group, kind.kind, &key, None, true).await;
        report.add(kind.kind, &key, answer);
    }
    report
}

/// The objects of a Cluster that stand for something in Azure.
pub async fn targets(objects: &Objects, cluster: &ObjectKey) -> Result<Vec<(KindName, ObjectKey)>, String> {
    let found = objects.get(CLUSTER, cluster).await?;
    let mut references = vec![
        found["spec"]["infrastructureRef"].clone(),
        found["spec"]["controlPlaneRef"].clone(),
    ];
    for pool in objects.of_cluster(MACHINE_POOL, cluster).await? {
        references.push(pool["spec"]["template"]["spec"]["infrastructureRef"].clone());
    }
    let targets: Vec<(KindName, ObjectKey)> = references
        .iter()
        .filter_map(|reference| {
            let kind = KindName::of_reference(reference)?;
            Some((kind, cluster.sibling(reference["name"].as_str()?)))
        })
        // It only holds the endpoint.
        .filter(|(kind, _)| *kind != CLASSIC_CLUSTER)
        .collect();
    if targets.is_empty() {
        return Err(format!(
            "Cluster {cluster} refers to nothing of this provider: it has no difference to Azure"
        ));
    }
    Ok(targets)
}
