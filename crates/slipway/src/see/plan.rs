//! `slipway plan`: what the manager would do with an object now, or with one as a file has it, and why. The manager reads and plans as
//! in a reconcile; what a file changes goes no further than a dry run of the API server. Nothing is written.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Arg, ArgMatches, Command, value_parser};
use kube::api::{Patch, PatchParams};
use serde_json::Value;
use slipway_insight::Id;
use slipway_runtime::{
    ObjectKey, Preview, Provider,
    command::{Asker, asker_flags},
    preview::Effect,
};

use super::{
    collect,
    connect::{self, Connection},
    describe::{output, structured},
    terminal::plain,
    why,
};

const EXIT_CODES: &str = "Exit codes: 0 there is nothing to do, 3 something would be done or is waited for, 4 something is wrong; 1 and 2: the question \
                          could not be asked.";

pub fn command() -> Command {
    Command::new("plan")
        .about("Say what the manager would do with an object, or with a changed one, and why; nothing is written")
        .after_help(EXIT_CODES)
        .arg(
            Arg::new("object")
                .value_name("KIND/NAME")
                .required_unless_present("filename")
                .help("The object as it is"),
        )
        .arg(
            Arg::new("filename")
                .long("filename")
                .short('f')
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("object")
                .help("YAML with objects as they would be; each goes through admission as a dry run first"),
        )
        .args(connect::arguments())
        .args(output())
        .args(asker_flags("").map(|argument| argument.hide_default_value(true)))
}

/// What is asked about: an object, and how it would be if that is not as it is.
struct Subject {
    id: Id,
    changed: Option<Value>,
}

pub async fn run(providers: &[Provider], matches: &ArgMatches) -> Result<ExitCode, String> {
    let connection = Connection::open(matches).await?;
    let subjects = match matches.get_one::<PathBuf>("filename") {
        Some(path) => changed(&connection, path).await?,
        None => {
            let asked = why::asked(matches, &connection).await?;
            let resource = &asked.served.resource;
            let namespace = if asked.served.is_namespaced {
                asked.namespace.as_str()
            } else {
                ""
            };
            let id = Id::new(&resource.group, &resource.kind, namespace, &asked.name);
            vec![Subject { id, changed: None }]
        }
    };
    let managers = Managers::of(providers, matches);
    let (mut worst, mut all) = (0, Vec::new());
    for subject in &subjects {
        let id = &subject.id;
        let preview = managers
            .preview(&connection, id, subject.changed.as_ref())
            .await?;
        worst = worst.max(code(&preview));
        all.push((id, preview));
    }
    let values: Vec<Value> = all
        .iter()
        .map(|(id, preview)| serde_json::json!({"object": id, "plan": preview}))
        .collect();
    match structured(matches, &values)? {
        Some(text) => print!("{text}"),
        None => all
            .iter()
            .for_each(|(id, preview)| print!("{}", text(id, preview))),
    }
    Ok(ExitCode::from(worst))
}

/// The objects of a file, as admission would leave them.
async fn changed(connection: &Connection, path: &Path) -> Result<Vec<Subject>, String> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)
        .map_err(|error| format!("{} is no YAML: {error}", path.display()))?;
    let mut subjects = Vec::new();
    for mut object in documents.into_iter().filter(|document| !document.is_null()) {
        let id = Id::of(&object);
        if id.kind == "Secret" {
            return Err("Secrets are not sent: leave them out of the file".to_owned());
        }
        let served = connection
            .kind(&id.group, &id.kind)
            .ok_or_else(|| format!("the cluster serves no kind {:?} of group {:?}", id.kind, id.group))?;
        let namespace = match id.namespace.as_str() {
            _ if !served.is_namespaced => String::new(),
            "" => connection.namespace.clone(),
            namespace => namespace.to_owned(),
        };
        if served.is_namespaced {
            object["metadata"]["namespace"] = Value::from(namespace.as_str());
        }
        let parameters = PatchParams::apply("slipway-plan").force().dry_run();
        let admitted = collect::api(connection, served, &namespace)
            .patch(&id.name, &parameters, &Patch::Apply(&object))
            .await
            .map_err(|error| format!("{id} would be refused: {error}"))?;
        let admitted = collect::plain(served, admitted);
        subjects.push(Subject {
            id: Id { namespace, ..id },
            changed: Some(admitted),
        });
    }
    if subjects.is_empty() {
        return Err(format!("there is no object in {}", path.display()));
    }
    Ok(subjects)
}

/// The managers that can be asked: of each kind the one whose package is installed where the flags say, or where it is by default.
#[derive(Clone, Debug, Default)]
pub struct Managers {
    /// By group and kind of what a package brings: its namespace.
    namespaces: BTreeMap<(String, String), String>,
    namespace: Option<String>,
    /// The arguments that say how a manager is reached.
    reached: Vec<String>,
}

impl Managers {
    pub fn of(providers: &[Provider], matches: &ArgMatches) -> Self {
        let text = |name: &str| {
            matches
                .get_one::<String>(name)
                .filter(|text| !text.is_empty())
                .cloned()
        };
        let mut namespaces = BTreeMap::new();
        for package in providers.iter().flat_map(|provider| &provider.packages) {
            let names = package.names.map(|names| names.namespace.to_owned());
            let namespace = names.unwrap_or_else(|| format!("{}-system", package.prefix()));
            for crd in &package.crds {
                let key = (crd.spec.group.clone(), crd.spec.names.kind.clone());
                namespaces.entry(key).or_insert_with(|| namespace.clone());
            }
        }
        let mut reached: Vec<String> = Vec::new();
        reached.extend(text("manager").map(|url| format!("--manager={url}")));
        if let Some(path) = matches.get_one::<PathBuf>("token-file") {
            reached.push(format!("--token-file={}", path.display()));
        }
        Self {
            namespaces,
            namespace: text("manager-namespace"),
            reached,
        }
    }

    /// Whether a package in this program brings the kind.
    pub fn know(&self, id: &Id) -> bool {
        self.namespaces.contains_key(&(id.group.clone(), id.kind.clone()))
    }

    /// What the manager of a kind answers to a question.
    pub async fn question(
        &self,
        connection: &Connection,
        (group, kind): (&str, &str),
        name: &str,
    ) -> Result<Value, String> {
        let asker = self.asker(connection, group, kind).await?;
        asker.question(name, &Value::Null).await
    }

    /// What its manager would do with an object, or with one as it would be.
    pub async fn preview(
        &self,
        connection: &Connection,
        id: &Id,
        changed: Option<&Value>,
    ) -> Result<Preview, String> {
        let asker = self.asker(connection, &id.group, &id.kind).await?;
        let key = if id.namespace.is_empty() {
            ObjectKey::new(None, &id.name)
        } else {
            ObjectKey::namespaced(&id.namespace, &id.name)
        };
        asker.preview(&id.group, &id.kind, &key, changed, false).await
    }

    async fn asker(&self, connection: &Connection, group: &str, kind: &str) -> Result<Asker, String> {
        let of_kind = || self.namespaces.get(&(group.to_owned(), kind.to_owned()));
        let namespace =
            self.namespace.as_ref().or_else(of_kind).ok_or_else(|| {
                format!("no provider in this program has the kind {kind}: nobody can be asked")
            })?;
        let mut arguments = self.reached.clone();
        arguments.push(format!("--manager-namespace={namespace}"));
        let matches = Command::new("asker")
            .no_binary_name(true)
            .args(asker_flags(""))
            .try_get_matches_from(arguments)
            .map_err(|error| error.to_string())?;
        Asker::find(&connection.client, &matches).await
    }
}

fn code(preview: &Preview) -> u8 {
    match preview {
        _ if preview.steps.iter().any(|step| step.effect == Effect::Blocked) => 4,
        _ if preview.steps.is_empty() => 0,
        _ => 3,
    }
}

/// A plan as the manager's log and its golden files have it.
fn text(id: &Id, preview: &Preview) -> String {
    let mut text = format!("{}\n", plain(&id.to_string()));
    // Writing to a string cannot fail.
    if let Some(why) = &preview.left_alone {
        let _ = writeln!(text, "  nothing is planned: {}", plain(why));
        return text;
    }
    if let Some(why) = &preview.paused {
        let _ = writeln!(
            text,
            "  nothing of this is done before it goes on: {}",
            plain(why)
        );
    }
    if preview.steps.is_empty() {
        text.push_str("  nothing is to be done: it is as asked for\n");
    }
    for (number, step) in preview.steps.iter().enumerate() {
        let effect = match step.effect {
            Effect::Outside => " (outside of Kubernetes)",
            Effect::Inside => "",
            Effect::Wait => " (more may follow)",
            Effect::Blocked => " (blocked)",
        };
        let _ = writeln!(
            text,
            "  {}. {}: {}{effect}",
            number + 1,
            plain(&step.what),
            plain(&step.why)
        );
        for change in &step.changes {
            let _ = writeln!(
                text,
                "       {}: {} -> {}",
                plain(&change.path),
                plain(&change.from),
                plain(&change.to)
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use slipway_runtime::preview::{PreviewChange, PreviewStep};

    use super::*;

    fn step(effect: Effect) -> PreviewStep {
        PreviewStep {
            what: "update cluster".to_owned(),
            why: "the version\ndiffers\u{1b}".to_owned(),
            effect,
            changes: vec![PreviewChange {
                path: "version".to_owned(),
                from: "1.33".to_owned(),
                to: "1.34".to_owned(),
            }],
        }
    }

    #[test]
    fn a_plan_is_told_with_its_reasons_and_its_code() {
        let id = Id::new("toy.dev", "Boat", "shop", "one");
        let nothing = Preview::default();
        assert_eq!(
            text(&id, &nothing),
            "Boat/one\n  nothing is to be done: it is as asked for\n"
        );
        assert_eq!(code(&nothing), 0);
        let planned = Preview {
            steps: vec![step(Effect::Outside)],
            ..Preview::default()
        };
        let expected = "Boat/one\n  1. update cluster: the version; differs\\u{1b} (outside of Kubernetes)\n       version: 1.33 -> 1.34\n";
        assert_eq!(text(&id, &planned), expected);
        assert_eq!(code(&planned), 3);
        assert_eq!(
            code(&Preview {
                steps: vec![step(Effect::Blocked)],
                ..Preview::default()
            }),
            4
        );
        let left = Preview {
            left_alone: Some("it is another's".to_owned()),
            ..Preview::default()
        };
        assert_eq!(
            text(&id, &left),
            "Boat/one\n  nothing is planned: it is another's\n"
        );
    }
}
