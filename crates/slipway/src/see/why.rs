//! `slipway why KIND/NAME`: from what is seen to its first cause, who has to act, and what to run next.

use std::{fmt::Write as _, process::ExitCode};

use clap::{Arg, ArgMatches, Command};
use jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::Value;
use slipway_insight::{Catalogue, CauseStep, Explanation, Id, State, explain};
use slipway_runtime::Provider;

use super::{
    collect::{self, Reader},
    connect::{self, Connection, Served},
    describe::{EXIT_CODES, output, structured},
    exit_code,
    terminal::{Look, coloured, duration, plain},
};

pub fn command() -> Command {
    Command::new("why")
        .about("Say why an object is not ready: the chain to the first cause, who has to act and what to run next")
        .after_help(EXIT_CODES)
        .arg(
            Arg::new("object")
                .value_name("KIND/NAME")
                .required(true)
                .help("The object; for a pod that waits, what the autoscaler says of it"),
        )
        .args(connect::arguments())
        .args(output())
}

/// What was asked about, found in the cluster.
pub struct Asked {
    pub served: Served,
    pub namespace: String,
    pub name: String,
}

/// Finds out which object `KIND/NAME` means.
pub async fn asked(matches: &ArgMatches, connection: &Connection) -> Result<Asked, String> {
    let text = matches.get_one::<String>("object").map_or("", String::as_str);
    let (kind, name) = text
        .split_once('/')
        .filter(|(kind, name)| !kind.is_empty() && !name.is_empty() && !name.contains('/'))
        .ok_or_else(|| {
            format!("{text:?} is no KIND/NAME: write it like `cluster/shop` or `machinepool/shop-work`")
        })?;
    let named = connection.named(kind);
    if named.iter().any(|served| served.resource.kind == "Secret") {
        return Err("Secrets are not read".to_owned());
    }
    let found = match named[..] {
        [] => {
            return Err(format!(
                "the cluster serves no kind {kind:?}: `kubectl api-resources` lists what it serves"
            ));
        }
        [one] => one,
        // Of several kinds of that name the one that has such an object is meant.
        _ => {
            let mut having: Vec<&Served> = Vec::new();
            for served in &named {
                let api = collect::api(connection, served, &connection.namespace);
                if let Ok(Some(_)) = api.get_opt(name).await {
                    having.push(served);
                }
            }
            match having[..] {
                [one] => one,
                [] => {
                    return Err(format!(
                        "there is no {kind} {name} in namespace {}",
                        connection.namespace
                    ));
                }
                _ => {
                    let words: Vec<String> = having
                        .iter()
                        .map(|served| format!("{}.{}", served.resource.plural, served.resource.group))
                        .collect();
                    return Err(format!(
                        "{kind} {name} may be any of {}: write one of these",
                        words.join(", ")
                    ));
                }
            }
        }
    };
    Ok(Asked {
        served: found.clone(),
        namespace: connection.namespace.clone(),
        name: name.to_owned(),
    })
}

pub async fn run(
    catalogue: &Catalogue,
    providers: &[Provider],
    matches: &ArgMatches,
) -> Result<ExitCode, String> {
    let connection = Connection::open(matches).await?;
    let asked = asked(matches, &connection).await?;
    if asked.served.resource.kind == "Pod" && asked.served.resource.group.is_empty() {
        return pod(&connection, &asked, providers, matches).await;
    }
    let reader = Reader {
        connection: &connection,
        catalogue,
    };
    let (id, collected) = reader
        .around(&asked.served, &asked.namespace, &asked.name)
        .await?;
    let now = Timestamp::now();
    let found = explain(&collected.objects, catalogue, &id, now).ok_or_else(|| format!("{id} is gone"))?;
    match structured(matches, &found)? {
        Some(text) => print!("{text}"),
        None => print!(
            "{}",
            text(&id, &found, now, Look::of_stdout(matches.get_flag("wide")))
        ),
    }
    Ok(exit_code(found.state))
}

/// An explanation for a terminal or a file.
pub fn text(id: &Id, found: &Explanation, now: Timestamp, look: Look) -> String {
    let mut text = String::new();
    let word = coloured(found.state, found.state.word(), look);
    let Some(cause) = found.cause() else {
        let paused = if found.paused {
            ", and paused: nothing is done for it"
        } else {
            ""
        };
        return format!("{} is {word}{paused}.\n", plain(&id.to_string()));
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{} is {word}.\n", plain(&id.to_string()));
    for (depth, step) in found.chain.iter().enumerate() {
        let arrow = if depth == 0 {
            String::new()
        } else {
            format!("{}└─ ", "   ".repeat(depth - 1))
        };
        let by = match step.by.as_str() {
            "" => String::new(),
            by => format!(" ({})", plain(by)),
        };
        let _ = writeln!(
            text,
            "{arrow}{}{by}: {}",
            plain(&step.id.to_string()),
            said(step, now)
        );
    }
    let _ = writeln!(
        text,
        "\nFirst cause  {}: {}",
        plain(&cause.id.to_string()),
        meaning(cause)
    );
    for condition in &cause.besides {
        let _ = writeln!(
            text,
            "             {} {}: {}",
            plain(&condition.name),
            plain(&condition.reason),
            plain(&condition.message)
        );
    }
    let _ = writeln!(text, "Who acts     {}", found.who);
    if !found.advice.is_empty() {
        let _ = writeln!(text, "What helps   {}", plain(&found.advice));
    }
    if !found.command.is_empty() {
        let _ = writeln!(text, "Run next     {}", plain(&found.command));
    }
    for other in &found.others {
        let _ = writeln!(
            text,
            "Beside it    {}: {}",
            plain(&other.id.to_string()),
            said(other, now)
        );
    }
    text
}

fn said(step: &CauseStep, now: Timestamp) -> String {
    let judgement = &step.judgement;
    let mut said = plain(&judgement.reason);
    if !judgement.message.is_empty() {
        let _ = write!(said, ": {}", plain(&judgement.message));
    }
    if let Some(since) = judgement.since {
        let _ = write!(said, " (for {})", duration(now.as_second() - since.as_second()));
    }
    said
}

fn meaning(step: &CauseStep) -> String {
    if step.meaning.is_empty() {
        plain(&step.judgement.message)
    } else {
        plain(&step.meaning)
    }
}

/// A pod: where it is, or what the autoscaler says of it.
async fn pod(
    connection: &Connection,
    asked: &Asked,
    providers: &[Provider],
    matches: &ArgMatches,
) -> Result<ExitCode, String> {
    let api = collect::api(connection, &asked.served, &asked.namespace);
    let found: Option<DynamicObject> = api
        .get_opt(&asked.name)
        .await
        .map_err(|error| format!("pod {} cannot be read: {error}", asked.name))?;
    let Some(found) = found else {
        return Err(format!(
            "there is no pod {} in namespace {}",
            asked.name, asked.namespace
        ));
    };
    let pod = collect::plain(&asked.served, found);
    let state = pod_state(&pod);
    if pod["spec"]["nodeName"].is_string() {
        println!("{}", on_node(&pod, state));
        return Ok(exit_code(state));
    }
    let Some(subcommand) = providers
        .iter()
        .flat_map(|provider| &provider.subcommands)
        .find(|subcommand| subcommand.command.get_name() == "autoscaler")
    else {
        println!(
            "pod {} has no node yet, and there is no autoscaler in this program",
            plain(&asked.name)
        );
        return Ok(exit_code(State::Waiting));
    };
    let mut arguments = vec![
        "autoscaler".to_owned(),
        "explain".to_owned(),
        format!("{}/{}", asked.namespace, asked.name),
    ];
    if let Some(path) = matches.get_one::<std::path::PathBuf>("kubeconfig") {
        arguments.push(format!("--kubeconfig={}", path.display()));
    }
    let parsed = subcommand
        .command
        .clone()
        .try_get_matches_from(arguments)
        .map_err(|error| error.to_string())?;
    let run = subcommand.run;
    // It has an executor of its own.
    tokio::task::spawn_blocking(move || run(&parsed))
        .await
        .map_err(|error| format!("the autoscaler was not asked: {error}"))?;
    Ok(exit_code(state))
}

fn pod_state(pod: &Value) -> State {
    let conditions = pod["status"]["conditions"].as_array();
    let is_ready = conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == "Ready" && one["status"] == "True");
    match pod["status"]["phase"].as_str() {
        Some("Succeeded") => State::Ready,
        Some("Failed") => State::Stuck,
        _ if is_ready => State::Ready,
        _ => State::Waiting,
    }
}

fn on_node(pod: &Value, state: State) -> String {
    let text = |value: &Value| plain(value.as_str().unwrap_or_default());
    let said = pod["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|one| one["type"] == "Ready" && one["status"] != "True")
        .map(|one| format!(": {}", text(&one["message"])))
        .unwrap_or_default();
    format!(
        "pod {} is on node {} and {}{said}",
        text(&pod["metadata"]["name"]),
        text(&pod["spec"]["nodeName"]),
        state.word()
    )
}
