//! The reference part of the book, written from what the code itself says: fields, flags, metrics, conditions and
//! permissions. Pure: registrations in, pages out.

mod schema;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::PathBuf,
};

use clap::Command;
use serde_json::Value;
use slipway_runtime::{
    Provider,
    metrics::Metrics,
    process,
    provider::{Stage, catalogue},
    server,
};

use super::{Bundle, RenderError, roles};

/// Opens every page, so that nobody edits it by hand.
const NOTE: &str = "<!-- Rendered from the code by `cargo xtask manifests`. -->\n\n";

/// Every page by its path under `docs/reference/`. `root` is the whole command line.
pub fn reference(providers: &[Provider], root: &Command) -> Result<BTreeMap<PathBuf, String>, RenderError> {
    let packages = providers.iter().flat_map(|provider| &provider.packages);
    let bundles = Bundle::join(packages)?;
    let mut pages = BTreeMap::new();
    let mut kinds = Vec::new();
    for bundle in &bundles {
        for crd in bundle.crds.values() {
            let page = schema::page(crd, &bundle.identity);
            kinds.push((bundle.identity.clone(), page.kind, page.path.clone()));
            pages.insert(PathBuf::from(page.path), format!("{NOTE}{}", page.text));
        }
    }
    let mut add = |name: &str, text: String| {
        pages.insert(PathBuf::from(name), format!("{NOTE}{text}"));
    };
    add("flags.md", flags(providers, root));
    add("metrics.md", metrics(providers));
    add("conditions.md", conditions(providers));
    add("permissions.md", permissions(&bundles));
    add("README.md", index(&kinds));
    Ok(pages)
}

fn index(kinds: &[(String, String, String)]) -> String {
    let mut text = "# Reference\n\n\
        - [Flags](flags.md) and feature gates of every command\n\
        - [Metrics](metrics.md)\n\
        - [Conditions](conditions.md)\n\
        - [Permissions](permissions.md)\n\n\
        ## Resources\n\n| package | kind |\n|---|---|\n"
        .to_owned();
    for (package, kind, path) in kinds {
        let _ = writeln!(text, "| `{package}` | [{kind}]({path}) |");
    }
    text
}

fn flags(providers: &[Provider], root: &Command) -> String {
    let mut text = "# Flags\n".to_owned();
    let shown = root.get_subcommands().filter(|command| !command.is_hide_set());
    let mut commands: Vec<&Command> = shown.collect();
    commands.sort_by_key(|command| command.get_name() != "manager");
    for command in commands {
        describe(command, root.get_name(), &mut text);
    }
    let gates: Vec<_> = providers.iter().flat_map(|provider| &provider.gates).collect();
    text.push_str("\n## Feature gates\n\n");
    if gates.is_empty() {
        text.push_str("There are none.\n");
    } else {
        text.push_str("| gate | stage | default | what it does |\n|---|---|---|---|\n");
    }
    for gate in gates {
        let stage = match gate.stage {
            Stage::Alpha => "alpha",
            Stage::Beta => "beta",
            Stage::Stable => "stable",
        };
        let default = if gate.enabled_by_default { "on" } else { "off" };
        let _ = writeln!(
            text,
            "| `{}` | {stage} | {default} | {} |",
            gate.name,
            cell(gate.help)
        );
    }
    text.push_str("\nHow the manager's flags play together is told in [the manager](../manager.md).\n");
    text
}

/// A command's flags, and then those of each command below it.
fn describe(command: &Command, above: &str, text: &mut String) {
    let name = format!("{above} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(text, "\n## `{name}`\n\n{about}.\n");
    let arguments: Vec<_> = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set())
        .collect();
    if !arguments.is_empty() {
        text.push_str("\n| flag | default | what it does |\n|---|---|---|\n");
    }
    for argument in arguments {
        let name = match (argument.get_long(), argument.get_short()) {
            (Some(long), _) => format!("--{long}"),
            (None, Some(short)) => format!("-{short}"),
            (None, None) => argument.get_id().to_string(),
        };
        let defaults: Vec<_> = argument
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy())
            .filter(|value| !value.is_empty())
            .collect();
        let default = if defaults.is_empty() {
            String::new()
        } else {
            format!("`{}`", defaults.join(","))
        };
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| `{name}` | {default} | {} |", cell(&help));
    }
    for below in command.get_subcommands() {
        describe(below, &name, text);
    }
}

fn metrics(providers: &[Provider]) -> String {
    let metrics = Metrics::new();
    for provider in providers {
        (provider.metrics)(&metrics);
    }
    server::register_metrics(&metrics);
    process::register(&metrics);
    let mut found = metrics.descriptions();
    found.sort();
    let mut text = "# Metrics\n\nServed at `/metrics` of `--diagnostics-address`.\n\n\
        | metric | type | what it says |\n|---|---|---|\n"
        .to_owned();
    for metric in found {
        let _ = writeln!(
            text,
            "| `{}` | {} | {} |",
            metric.name,
            metric.kind,
            cell(&metric.help)
        );
    }
    text
}

fn conditions(providers: &[Provider]) -> String {
    let found: BTreeSet<_> = providers
        .iter()
        .flat_map(|provider| &provider.packages)
        .flat_map(|package| package.conditions.iter().copied())
        .collect();
    let mut text = "# Conditions\n\nEvery condition has a reason, and a message where there is something to say.\n\n| kind | condition | True means |\n|---|---|---|\n"
        .to_owned();
    for condition in found {
        let _ = writeln!(
            text,
            "| {} | `{}` | {} |",
            condition.kind,
            condition.name,
            cell(condition.meaning)
        );
    }
    text.push_str(&reasons(providers));
    text
}

/// What a reason means and what helps: what `slipway why` says.
fn reasons(providers: &[Provider]) -> String {
    let catalogue = catalogue(providers);
    let mut text = "\n## Reasons\n\nWhat a condition's reason means, who has to act and what to do. `slipway why KIND/NAME` finds the first \
        cause and says the same. A reason that is not here is Azure's own error code, with Azure's own message, or \
        another controller's word.\n\n\
        | reason | of | state | what it means | who acts | what to do |\n|---|---|---|---|---|---|\n"
        .to_owned();
    let mut found: Vec<_> = catalogue.reasons().collect();
    found.sort_by_key(|reason| (reason.name.is_empty(), reason.name, reason.kinds, reason.says));
    for reason in found {
        let name = match (reason.name, reason.says) {
            ("", says) => format!("… {says} …"),
            (name, "") => format!("`{name}`"),
            (name, says) => format!("`{name}`: … {says} …"),
        };
        let kinds = if reason.kinds.is_empty() {
            "any".to_owned()
        } else {
            reason.kinds.join(", ")
        };
        let follows = if reason.elsewhere.is_some() {
            "; the cause is elsewhere"
        } else {
            ""
        };
        let _ = writeln!(
            text,
            "| {} | {kinds} | {} | {}{follows} | {} | {} |",
            cell(&name),
            reason.state.word(),
            cell(reason.cause),
            cell(reason.actor.words()),
            cell(reason.advice),
        );
    }
    text
}

fn permissions(bundles: &[Bundle]) -> String {
    let list = |value: &Value| {
        let items = value.as_array().into_iter().flatten();
        let items: Vec<_> = items.filter_map(Value::as_str).collect();
        items.join(", ")
    };
    let mut text = "# Permissions\n\nWhat each package's manager may do in the management cluster. Tests run under these \
        roles: a missing right fails them, and so does one that nothing uses.\n"
        .to_owned();
    for bundle in bundles {
        let _ = write!(
            text,
            "\n## {}\n\n| role | group | resources | verbs |\n|---|---|---|---|\n",
            bundle.identity
        );
        for role in roles::roles(bundle) {
            for rule in role["rules"].as_array().into_iter().flatten() {
                let group = list(&rule["apiGroups"]);
                let _ = writeln!(
                    text,
                    "| {} `{}` | {} | {} | {} |",
                    role["kind"].as_str().unwrap_or_default(),
                    role["metadata"]["name"].as_str().unwrap_or_default(),
                    if group.is_empty() { "core" } else { &group },
                    list(&rule["resources"]),
                    list(&rule["verbs"])
                );
            }
        }
    }
    text
}

/// Text that fits into one cell of a table.
fn cell(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use slipway_runtime::{Package, PackageKind, Rule, manager, provider::ConditionType};

    fn provider() -> Provider {
        let mut package = Package::new(PackageKind::Infrastructure, "toy");
        package.crds = vec![
            serde_json::from_value(json!({
                "metadata": {"name": "boats.example.dev"},
                "spec": {
                    "group": "example.dev", "scope": "Namespaced",
                    "names": {"kind": "Boat", "plural": "boats"},
                    "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                        "type": "object",
                        "properties": {"spec": {"type": "object", "required": ["sails"], "properties": {
                            "sails": {"type": "integer", "description": "How many | at most\nthree."},
                        }}},
                    }}}],
                },
            }))
            .unwrap(),
        ];
        package.rbac = vec![Rule::new("", &["secrets"], &["get"])];
        package.conditions = vec![ConditionType {
            kind: "Boat",
            name: "Afloat",
            meaning: "it swims",
        }];
        let mut provider = Provider::new("toy");
        provider.packages = vec![package];
        provider
    }

    #[test]
    fn every_page_is_there_and_says_what_the_code_says() {
        let providers = [provider()];
        let ask = Command::new("ask").arg(clap::Arg::new("boat").help("Which"));
        let root = Command::new("slipway")
            .subcommand(manager::command(&providers))
            .subcommand(Command::new("toy").about("Plays").subcommand(ask.about("Asks")));
        let pages = reference(&providers, &root).unwrap();
        let page = |name: &str| &pages[&PathBuf::from(name)];
        assert!(
            page("resources/boats.example.dev.md")
                .contains("| `spec.sails` | integer, required | How many \\| at most three. |")
        );
        assert!(page("flags.md").contains("| `--sync-period` | `10m` | "));
        let below = "## `slipway toy`\n\nPlays.\n\n## `slipway toy ask`\n\nAsks.\n\n| flag | default | what it does |\n\
            |---|---|---|\n| `boat` |  | Which |\n";
        assert!(page("flags.md").contains(below), "{}", page("flags.md"));
        assert!(page("metrics.md").contains("| `controller_runtime_reconcile_total` | counter | "));
        assert!(page("metrics.md").contains("| `controller_runtime_webhook_requests_total` | counter | "));
        assert!(page("conditions.md").contains("| Boat | `Afloat` | it swims |"));
        assert!(
            page("permissions.md")
                .contains("| ClusterRole `infrastructure-toy-manager-role` | core | secrets | get |")
        );
        assert!(
            page("README.md").contains("| `infrastructure-toy` | [Boat](resources/boats.example.dev.md) |")
        );
    }
}
