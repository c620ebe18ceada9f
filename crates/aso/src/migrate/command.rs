//! The command line of `slipway migrate`, and what carries a plan out: observe, plan, take the first step, and again.

use std::{fmt::Write, process::ExitCode, time::Duration};

use clap::{Arg, ArgAction, ArgMatches, Command};
use kube::api::ListParams;
use serde_json::json;
use slipway_runtime::{
    ObjectKey,
    command::{Asker, client_of, run},
    provider::Subcommand,
};

use super::{
    act::{Done, act},
    facts::Facts,
    observe::observe,
    plan::{Action, Goal, MigrationStep, caveats, plan},
};
use crate::{
    adopt::command::until_told,
    command::{
        objects::{CLASSIC_PLANE, CLUSTER, KindName, Objects},
        with_cluster,
    },
    diff::report::Verdict,
};

/// How long something is waited for.
const PATIENCE: Duration = Duration::from_mins(5);
const PAUSE: Duration = Duration::from_secs(2);
/// More steps than that no migration has.
const MOST_STEPS: usize = 100_000;

pub fn subcommand() -> Subcommand {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    let command = Command::new("migrate")
        .about("Let Clusters of AzureManagedControlPlane go on with inline Azure resources, in place; nothing is written in Azure")
        .long_about(
            "Let a Cluster of AzureManagedControlPlane, AzureManagedCluster and AzureManagedMachinePool go on with AzureASOManagedControlPlane, \
             AzureASOManagedCluster and AzureASOManagedMachinePool: the same Cluster, the same MachinePools, the same nodes. First the inline \
             objects are made from what Azure shows, and are only read; --confirm then deletes the classic ones and lets the inline ones be managed, \
             and before that --undo goes back. Nothing is written in Azure. A command that was interrupted goes on when it is given again.",
        )
        .arg(
            Arg::new("cluster")
                .value_name("CLUSTER")
                .num_args(1..)
                .required_unless_present("all")
                .help("Names of Clusters"),
        )
        .arg(flag("all", "Every Cluster of the namespace that has an AzureManagedControlPlane").conflicts_with("cluster"))
        .arg(flag("dry-run", "Print the steps and what to know before, and change nothing"))
        .arg(flag("confirm", "Delete the classic objects, and let the inline ones be managed").conflicts_with("undo"))
        .arg(flag("undo", "Go back to the classic objects, before it is confirmed"));
    Subcommand {
        command: with_cluster(command),
        run: |matches| match run(answer(matches)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("error: {message}");
                ExitCode::FAILURE
            }
        },
    }
}

async fn answer(matches: &ArgMatches) -> Result<(), String> {
    let namespace = matches
        .get_one::<String>("namespace")
        .cloned()
        .unwrap_or_default();
    let goal = match (matches.get_flag("confirm"), matches.get_flag("undo")) {
        (true, _) => Goal::Confirm,
        (_, true) => Goal::Undo,
        _ => Goal::Prepare,
    };
    let client = client_of(matches).await?;
    let objects = Objects::discover(&client).await?;
    let named: Vec<String> = matches
        .get_many::<String>("cluster")
        .into_iter()
        .flatten()
        .cloned()
        .collect();
    let names = if matches.get_flag("all") {
        classic_clusters(&objects, &namespace).await?
    } else {
        named
    };
    if names.is_empty() {
        println!("No Cluster of namespace {namespace} has an AzureManagedControlPlane.");
        return Ok(());
    }
    let asker = if matches.get_flag("dry-run") {
        None
    } else {
        Some(Asker::find(&client, matches).await?)
    };
    let mut failed = Vec::new();
    for name in &names {
        let key = ObjectKey::namespaced(&namespace, name);
        let done = match &asker {
            None => dry_run(&objects, &key, goal).await.map(|text| print!("{text}")),
            Some(asker) => migrate(&objects, asker, &key, goal, &mut |line| println!("{line}")).await,
        };
        if let Err(error) = done {
            eprintln!("Cluster {key}: {error}");
            failed.push(name.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("not done: {}", failed.join(", ")))
}

/// The Clusters of a namespace that can be migrated.
async fn classic_clusters(objects: &Objects, namespace: &str) -> Result<Vec<String>, String> {
    let list = objects
        .api(CLUSTER, namespace)?
        .list(&ListParams::default())
        .await
        .map_err(|error| format!("cannot list Clusters: {error}"))?;
    let clusters = list.items.into_iter().map(|cluster| json!(cluster));
    let classic = clusters.filter(|cluster| {
        let is_classic = KindName::of_reference(&cluster["spec"]["controlPlaneRef"]) == Some(CLASSIC_PLANE);
        is_classic || cluster["metadata"]["annotations"].get(super::MIGRATION).is_some()
    });
    Ok(classic
        .filter_map(|cluster| cluster["metadata"]["name"].as_str().map(str::to_owned))
        .collect())
}

/// The steps, and what to know before.
pub async fn dry_run(objects: &Objects, key: &ObjectKey, goal: Goal) -> Result<String, String> {
    let facts = observe(objects, key).await?;
    let steps = plan(&facts, goal)?;
    let mut text = format!("Cluster {key}:\n");
    for (number, step) in steps.iter().enumerate() {
        let _ = writeln!(text, "{:3}. {step}", number + 1);
    }
    if steps.is_empty() {
        text.push_str("  nothing is left to do\n");
    }
    if goal == Goal::Prepare {
        text.push_str("\nBefore:\n");
        for caveat in caveats(&facts) {
            let _ = writeln!(text, "  - {caveat}");
        }
    }
    text.push_str("\nNothing was changed.\n");
    Ok(text)
}

/// Takes steps until the goal is reached. Where it stands is read again before each, so it may end anywhere and be called again.
pub async fn migrate(
    objects: &Objects,
    asker: &Asker,
    key: &ObjectKey,
    goal: Goal,
    tell: &mut impl FnMut(&str),
) -> Result<(), String> {
    if goal == Goal::Confirm {
        judge(objects, asker, key, tell).await?;
    }
    let mut waiting: Option<tokio::time::Instant> = None;
    let mut told = String::new();
    for _ in 0..MOST_STEPS {
        let facts = match observe(objects, key).await {
            Ok(facts) => facts,
            Err(error) => return Err(with_way_on(&error, key, goal)),
        };
        if is_finished(&facts, goal) {
            return finish(objects, asker, key, goal, tell).await;
        }
        let steps = plan(&facts, goal)?;
        let Some(step) = steps.first() else {
            return finish(objects, asker, key, goal, tell).await;
        };
        let line = step.to_string();
        if line != told {
            tell(&line);
            told = line;
        }
        let done = act(&step.action, &facts, objects, asker).await;
        match done.map_err(|error| with_way_on(&error, key, goal))? {
            Done::Yes => waiting = None,
            Done::NotYet => {
                let since = *waiting.get_or_insert_with(tokio::time::Instant::now);
                if since.elapsed() > PATIENCE {
                    return Err(with_way_on(&overdue(step), key, goal));
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    Err(with_way_on("it does not come to an end", key, goal))
}

/// A confirmation and an undo take their note off the Cluster with their last step.
fn is_finished(facts: &Facts, goal: Goal) -> bool {
    match goal {
        Goal::Prepare => false,
        Goal::Confirm => facts.mark().is_none() && facts.is_swapped() && facts.classic().next().is_none(),
        Goal::Undo => {
            facts.mark().is_none()
                && facts.is_classic()
                && !facts.inline().any(super::facts::Object::is_migrated)
        }
    }
}

fn overdue(step: &MigrationStep) -> String {
    let what = match &step.action {
        Action::AwaitPause(_) => "is a manager running that works on them, and does it lead?",
        _ => "something holds them: look at their finalizers",
    };
    format!("{step}: that took too long; {what}")
}

fn with_way_on(error: &str, key: &ObjectKey, goal: Goal) -> String {
    let (name, namespace) = (key.name(), key.namespace().unwrap_or_default());
    let again = match goal {
        Goal::Prepare => format!("slipway migrate {name} -n {namespace} (or go back with --undo)"),
        Goal::Confirm => format!("slipway migrate --confirm {name} -n {namespace}"),
        Goal::Undo => format!("slipway migrate --undo {name} -n {namespace}"),
    };
    format!("{error}. Nothing was written in Azure; go on with {again}")
}

/// Nothing is confirmed whose difference cannot be told.
async fn judge(
    objects: &Objects,
    asker: &Asker,
    key: &ObjectKey,
    tell: &mut impl FnMut(&str),
) -> Result<(), String> {
    let facts = observe(objects, key).await?;
    if is_finished(&facts, Goal::Confirm) || facts.mark().is_none_or(|mark| mark.confirmed) {
        return Ok(());
    }
    // What is wrong before that has a message of its own.
    plan(&facts, Goal::Confirm)?;
    let report = until_told(objects, asker, key).await?;
    tell(&report.to_string());
    if report.verdict() == Verdict::Unknown {
        let error = "what would change in Azure cannot be told: mend what is named above first";
        return Err(with_way_on(error, key, Goal::Confirm));
    }
    Ok(())
}

async fn finish(
    objects: &Objects,
    asker: &Asker,
    key: &ObjectKey,
    goal: Goal,
    tell: &mut impl FnMut(&str),
) -> Result<(), String> {
    let (name, namespace) = (key.name(), key.namespace().unwrap_or_default());
    match goal {
        Goal::Confirm => tell(&format!(
            "Cluster {key} has inline resources, which are managed; the classic objects are gone."
        )),
        Goal::Undo => tell(&format!("Cluster {key} is as it was before.")),
        Goal::Prepare => {
            let facts = observe(objects, key).await?;
            if facts.is_paused() {
                tell(&format!(
                    "Cluster {key} refers to inline resources. It was paused before, and stays so."
                ));
            } else {
                let report = until_told(objects, asker, key).await?;
                tell(&format!(
                    "\nWhat would change in Azure once it is managed:\n\n{report}"
                ));
            }
            tell(&format!(
                "Nothing was written in Azure, and the inline resources are only read. Look at it, then:\n  slipway migrate --confirm {name} -n \
                 {namespace}\nor back:\n  slipway migrate --undo {name} -n {namespace}"
            ));
        }
    }
    Ok(())
}
