//! `slipway describe`: one cluster as a tree, or all of them as a table.

use std::{fmt::Write as _, process::ExitCode};

use clap::{Arg, ArgAction, ArgMatches, Command};
use jiff::Timestamp;
use slipway_insight::{Basis, Catalogue, Eta, Fleet, Id, Node, Progress, State, Tree, fleet, tree};
use slipway_render::yaml;

use super::{
    collect::{Collected, Reader},
    connect::{self, Connection},
    exit_code,
    terminal::{Cell, Look, duration, plain, table},
    watch,
};

pub fn command() -> Command {
    Command::new("describe")
        .about("Show a cluster as a tree, or all clusters as a table: what is there, how far it is and what it waits for")
        .after_help(EXIT_CODES)
        .arg(
            Arg::new("cluster")
                .value_name("CLUSTER")
                .help("The Cluster, or namespace/name; all clusters if absent"),
        )
        .args(connect::arguments())
        .arg(connect::all_namespaces().conflicts_with("cluster"))
        .args(output())
        .arg(
            Arg::new("show-all")
                .long("show-all")
                .action(ArgAction::SetTrue)
                .help("Every object, not only what there is something to say of"),
        )
        .arg(
            Arg::new("watch")
                .long("watch")
                .short('w')
                .action(ArgAction::SetTrue)
                .help("Stay, and show what changes"),
        )
}

/// What the codes of `describe` and `why` mean.
pub const EXIT_CODES: &str = "Exit codes: 0 ready, 3 waiting or on its way, 4 stuck: somebody has to act; 1 and 2: the question could not be asked.";

/// How the answer is written.
pub fn output() -> [Arg; 2] {
    [
        Arg::new("output")
            .short('o')
            .long("output")
            .value_name("FORMAT")
            .value_parser(["text", "json", "yaml"])
            .default_value("text")
            .help("text, json or yaml"),
        Arg::new("wide")
            .long("wide")
            .action(ArgAction::SetTrue)
            .help("Do not cut lines at the edge of the terminal"),
    ]
}

/// Writes a value as JSON or YAML; `None` for text.
pub fn structured(matches: &ArgMatches, value: &impl serde::Serialize) -> Result<Option<String>, String> {
    let format = matches.get_one::<String>("output").map_or("text", String::as_str);
    let value = || serde_json::to_value(value).map_err(|error| format!("it cannot be written: {error}"));
    Ok(match format {
        "json" => Some(format!("{:#}\n", value()?)),
        "yaml" => Some(yaml::document(&value()?)),
        _ => None,
    })
}

/// Of a group of objects this many are named.
const NAMED: usize = 3;

/// What is shown.
#[derive(Clone, Debug)]
enum Subject {
    Cluster(Id),
    Fleet(Option<String>),
}

pub async fn run(catalogue: &Catalogue, matches: &ArgMatches) -> Result<ExitCode, String> {
    let connection = Connection::open(matches).await?;
    let reader = Reader {
        connection: &connection,
        catalogue,
    };
    let subject = subject(matches, &connection);
    let mut collected = read(&reader, &subject).await?;
    let look = Look::of_stdout(matches.get_flag("wide"));
    let mut shown = show(&collected, catalogue, &subject, matches, look)?;
    if !matches.get_flag("watch") {
        print!("{}", shown.text);
        return Ok(exit_code(shown.state));
    }
    let (mut screen, mut watching) = (watch::Screen::default(), watch::Watching::default());
    loop {
        screen.show(&shown.text, watching.problem.as_deref())?;
        watching.begin(&connection, &collected.sources);
        watching.changed(&mut collected.objects).await;
        if let Subject::Cluster(_) = subject
            && watching.problem.is_none()
        {
            reader.follow(&mut collected).await?;
        }
        shown = show(&collected, catalogue, &subject, matches, look)?;
    }
}

fn subject(matches: &ArgMatches, connection: &Connection) -> Subject {
    match matches.get_one::<String>("cluster") {
        Some(name) => {
            let (namespace, name) = name
                .split_once('/')
                .unwrap_or((connection.namespace.as_str(), name.as_str()));
            Subject::Cluster(Id::new("cluster.x-k8s.io", "Cluster", namespace, name))
        }
        None if matches.get_flag("all-namespaces") => Subject::Fleet(None),
        None => Subject::Fleet(Some(connection.namespace.clone())),
    }
}

async fn read(reader: &Reader<'_>, subject: &Subject) -> Result<Collected, String> {
    match subject {
        Subject::Cluster(id) => reader.cluster(&id.namespace, &id.name).await,
        Subject::Fleet(namespace) => reader.fleet(namespace.as_deref()).await,
    }
}

struct Shown {
    text: String,
    state: State,
}

fn show(
    collected: &Collected,
    catalogue: &Catalogue,
    subject: &Subject,
    matches: &ArgMatches,
    look: Look,
) -> Result<Shown, String> {
    let now = Timestamp::now();
    match subject {
        Subject::Cluster(id) => {
            let whole = tree(&collected.objects, catalogue, id, now)
                .ok_or_else(|| format!("Cluster {} is gone", id.name))?;
            let reduced = if matches.get_flag("show-all") {
                whole.clone()
            } else {
                whole.noteworthy()
            };
            let text = match structured(matches, &reduced)? {
                Some(text) => text,
                None => tree_text(&reduced, look),
            };
            Ok(Shown {
                text,
                state: worst(&whole.root),
            })
        }
        Subject::Fleet(namespace) => {
            let found = fleet(&collected.objects, catalogue, now);
            let text = match structured(matches, &found)? {
                Some(text) => text,
                None => fleet_text(&found, namespace.as_deref(), look),
            };
            let states = found.rows.iter().map(|row| row.judgement.state);
            Ok(Shown {
                text,
                state: states.max().unwrap_or(State::Ready),
            })
        }
    }
}

/// The worst of the structure: a Cluster may say that it is available while a pool of it is stuck.
fn worst(root: &Node) -> State {
    let mut state = root.judgement.state;
    root.walk(&mut |node: &Node| {
        if node.part.is_structure() {
            state = state.max(node.judgement.state);
        }
    });
    state
}

/// A tree for a terminal or a file.
pub fn tree_text(tree: &Tree, look: Look) -> String {
    let mut rows = Vec::new();
    lines(&tree.root, "", "", tree.at, &mut rows);
    table(
        &[
            "NAME",
            "STATE",
            "READY",
            "VERSION",
            "AGE",
            "SINCE",
            "WHAT IT SAYS",
        ],
        &rows,
        look,
    )
}

fn lines(node: &Node, prefix: &str, below: &str, now: Timestamp, rows: &mut Vec<Vec<Cell>>) {
    let since = node
        .judgement
        .since
        .filter(|_| node.judgement.state != State::Ready)
        .map(|since| duration(now.as_second() - since.as_second()));
    rows.push(vec![
        format!("{prefix}{}", name(node)).into(),
        state(node),
        ready(node).into(),
        version(node.version.as_deref(), node.desired_version.as_deref()).into(),
        node.age_seconds.map(duration).unwrap_or_default().into(),
        since.unwrap_or_default().into(),
        says(node).into(),
    ]);
    for (index, child) in node.children.iter().enumerate() {
        let (branch, trunk) = if index + 1 == node.children.len() {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        lines(
            child,
            &format!("{below}{branch}"),
            &format!("{below}{trunk}"),
            now,
            rows,
        );
    }
}

fn name(node: &Node) -> String {
    if node.count == 1 {
        return plain(&node.id.to_string());
    }
    let named: Vec<String> = node.members.iter().take(NAMED).map(|name| plain(name)).collect();
    let more = if node.count > NAMED { ", …" } else { "" };
    format!(
        "{} {}s ({}{more})",
        node.count,
        plain(&node.id.kind),
        named.join(", ")
    )
}

fn state(node: &Node) -> Cell {
    let judgement = &node.judgement;
    let word = match judgement.state {
        _ if node.missing => "missing",
        _ if judgement.deleting => "deleting",
        _ if judgement.paused => "paused",
        state => state.word(),
    };
    Cell {
        text: word.to_owned(),
        state: Some(judgement.state),
    }
}

fn ready(node: &Node) -> String {
    let Some(counts) = node.counts else {
        return String::new();
    };
    let ready = counts.ready.or(counts.available).unwrap_or(0);
    match counts.desired.or(counts.current) {
        Some(desired) => format!("{ready}/{desired}"),
        None => String::new(),
    }
}

fn version(running: Option<&str>, desired: Option<&str>) -> String {
    match (running, desired) {
        (Some(running), Some(desired)) => format!("{} → {}", plain(running), plain(desired)),
        (running, _) => plain(running.unwrap_or_default()),
    }
}

/// Progress first, then the reason and what it says.
fn says(node: &Node) -> String {
    let judgement = &node.judgement;
    let mut parts: Vec<String> = node.progress.iter().map(progress).collect();
    if judgement.state != State::Ready {
        let message = plain(&judgement.message);
        parts.push(match (plain(&judgement.reason), message.is_empty()) {
            (reason, true) => reason,
            (reason, false) => format!("{reason}: {message}"),
        });
        if judgement.overdue {
            parts.push("it takes longer than usual".to_owned());
        }
        let waits: Vec<String> = node
            .waits_for
            .iter()
            .take(3)
            .map(|id| plain(&id.to_string()))
            .collect();
        if !waits.is_empty() {
            let more = if node.waits_for.len() > 3 { ", …" } else { "" };
            parts.push(format!("waits for {}{more}", waits.join(", ")));
        }
    } else if parts.is_empty() {
        parts.extend(
            node.facts
                .iter()
                .map(|(name, value)| format!("{name} {}", plain(value))),
        );
        return parts.join(", ");
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" · ")
}

pub fn progress(progress: &Progress) -> String {
    format!("{}, {}", plain(&progress.text), eta(&progress.eta))
}

fn eta(eta: &Eta) -> String {
    match (eta.basis, eta.seconds) {
        (Basis::Pace, Some(seconds)) => format!("{} left at this pace", duration(seconds)),
        (Basis::Usual, Some(seconds)) => format!("usually done in {}", duration(seconds)),
        _ => format!("time left unknown: {}", eta.why),
    }
}

/// All clusters for a terminal or a file.
pub fn fleet_text(fleet: &Fleet, namespace: Option<&str>, look: Look) -> String {
    if fleet.rows.is_empty() {
        return match namespace {
            Some(namespace) => format!(
                "There is no Cluster in namespace {}; --all-namespaces looks everywhere.\n",
                plain(namespace)
            ),
            None => "There is no Cluster.\n".to_owned(),
        };
    }
    let machines = |machines: slipway_insight::Machines| {
        if machines.desired == 0 && machines.ready == 0 {
            String::new()
        } else {
            format!("{}/{}", machines.ready, machines.desired)
        }
    };
    let rows: Vec<Vec<Cell>> = fleet
        .rows
        .iter()
        .map(|row| {
            let judgement = &row.judgement;
            let mut parts: Vec<String> = row.progress.iter().map(progress).collect();
            if judgement.state != State::Ready {
                parts.push(format!(
                    "{}: {}",
                    plain(&judgement.reason),
                    plain(&judgement.message)
                ));
            }
            let word = match judgement.state {
                _ if judgement.deleting => "deleting",
                _ if judgement.paused => "paused",
                state => state.word(),
            };
            vec![
                if namespace.is_none() {
                    plain(&row.id.namespace)
                } else {
                    String::new()
                }
                .into(),
                plain(&row.id.name).into(),
                Cell {
                    text: word.to_owned(),
                    state: Some(judgement.state),
                },
                plain(&row.control_plane).into(),
                version(row.version.as_deref(), row.desired_version.as_deref()).into(),
                machines(row.control_plane_machines).into(),
                machines(row.worker_machines).into(),
                row.age_seconds.map(duration).unwrap_or_default().into(),
                parts.join(" · ").into(),
            ]
        })
        .collect();
    let mut heading = vec![
        "NAMESPACE",
        "NAME",
        "STATE",
        "CONTROL PLANE",
        "VERSION",
        "SERVERS",
        "WORKERS",
        "AGE",
        "WHAT IT SAYS",
    ];
    let mut rows = rows;
    if namespace.is_some() {
        heading.remove(0);
        for row in &mut rows {
            row.remove(0);
        }
    }
    let mut text = table(&heading, &rows, look);
    let counts = &fleet.roll_up;
    let parts = [
        (counts.ready, "ready"),
        (counts.progressing, "progressing"),
        (counts.waiting, "waiting"),
        (counts.stuck, "stuck"),
        (counts.paused, "paused"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, word)| format!("{number} {word}"))
        .collect();
    let noun = if counts.clusters == 1 {
        "cluster"
    } else {
        "clusters"
    };
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "\n{} {noun}: {}; {} of {} machines ready",
        counts.clusters,
        parts.join(", "),
        counts.machines.ready,
        counts.machines.desired
    );
    text
}
