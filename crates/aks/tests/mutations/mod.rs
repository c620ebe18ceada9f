//! Every field that may change on an object that exists, set, changed and unset in a living cluster: let in by
//! admission, brought to Azure by the controllers, and found in the body that was sent. The page in the documentation
//! is the table of cases; a field that may change and has no case fails.

mod cases;
mod network_cases;
mod pool_cases;

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use http::Method;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{
    fields,
    life::world::{SUBSCRIPTION, World, api, apply, create, manifests, pool_manifests},
};

/// What becomes of one change.
#[derive(Clone, Copy, Debug, Default)]
pub enum Mutation {
    /// It cannot be made by itself: the field is required where its parent is.
    #[default]
    None,
    /// Let in, and the body that Azure gets holds this; `null`: holds nothing there.
    Sends(&'static str, &'static str),
    /// Let in, and the resource is no longer in Azure.
    Gone(&'static str),
    /// Refused, with these words.
    Refused(&'static str, &'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The kind it belongs to.
    pub kind: &'static str,
    /// The object it is changed on.
    pub object: &'static str,
    /// As the table of fields spells it.
    pub field: &'static str,
    /// What has to stand beside it, as a merge patch of the spec.
    pub beside: &'static str,
    /// The end of the resource's id in Azure.
    pub resource: &'static str,
    /// A pointer into the body of the PUT, or `?api-version`.
    pub place: &'static str,
    pub set: Mutation,
    pub change: Mutation,
    pub unset: Mutation,
}

pub const CLUSTER: &str = "/managedClusters/fleet";

/// A case of a control plane's field.
pub const fn plane(field: &'static str, resource: &'static str, place: &'static str) -> Case {
    Case {
        kind: "AzureManagedControlPlane",
        object: "fleet",
        field,
        beside: "{}",
        resource,
        place,
        set: Mutation::None,
        change: Mutation::None,
        unset: Mutation::None,
    }
}

impl Case {
    pub const fn beside(self, beside: &'static str) -> Self {
        Self { beside, ..self }
    }

    pub const fn set(self, set: Mutation) -> Self {
        Self { set, ..self }
    }

    pub const fn change(self, change: Mutation) -> Self {
        Self { change, ..self }
    }

    pub const fn unset(self, unset: Mutation) -> Self {
        Self { unset, ..self }
    }

    fn steps(&self) -> [(&'static str, Mutation); 3] {
        [("set", self.set), ("change", self.change), ("unset", self.unset)]
    }
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn all() -> Vec<&'static Case> {
    chapters().into_iter().flatten().collect()
}

fn chapters() -> Vec<&'static [Case]> {
    vec![
        cases::PLAIN,
        cases::AUTOSCALER,
        cases::SIGN_IN,
        cases::SECURITY,
        network_cases::NETWORK,
        network_cases::BESIDES,
        pool_cases::POOLS,
    ]
}

async fn patch(world: &World, case: &Case, spec: &str) -> Result<(), String> {
    let patch = json!({"spec": value(spec)});
    api(&world.server, case.kind)
        .patch(case.object, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// What the last PUT of a resource held at a place.
fn sent(world: &World, case: &Case) -> Value {
    let azure = world.simulator.azure();
    let requests: Vec<_> = azure.requests().collect();
    let last = requests.iter().rfind(|request| {
        request.method == "PUT"
            && request
                .path
                .to_lowercase()
                .ends_with(&case.resource.to_lowercase())
    });
    if case.place == "?api-version" {
        let query = last.map(|request| request.query.as_str()).unwrap_or_default();
        return query
            .split('&')
            .find_map(|part| part.strip_prefix("api-version="))
            .into();
    }
    last.and_then(|request| request.body_json().pointer(case.place).cloned())
        .unwrap_or_default()
}

fn is_in_azure(world: &World, case: &Case) -> bool {
    world
        .in_azure()
        .iter()
        .any(|id| id.ends_with(&case.resource.to_lowercase()))
}

/// Nothing in any of its spellings is nothing sent.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

async fn play(world: &World, pools: &[&str], case: &Case, problems: &mut Vec<String>) {
    if let Err(error) = patch(world, case, case.beside).await {
        problems.push(format!(
            "{}: what stands beside it is refused: {error}",
            case.field
        ));
        return;
    }
    world.until_ready(pools).await;
    for (word, step) in case.steps() {
        let name = format!("{} {} {word}", case.kind, case.field);
        // Shown when the world does not get ready.
        println!("{name}: {step:?}");
        match step {
            Mutation::None => {}
            Mutation::Refused(spec, says) => match patch(world, case, spec).await {
                Ok(()) => problems.push(format!("{name} is let in")),
                Err(error) if error.contains(says) => {}
                Err(error) => problems.push(format!("{name} is refused, saying {error}")),
            },
            Mutation::Sends(spec, expected) => {
                if let Err(error) = patch(world, case, spec).await {
                    problems.push(format!("{name} is refused: {error}"));
                    continue;
                }
                world.until_ready(pools).await;
                let (expected, sent) = (value(expected), sent(world, case));
                let same = expected == sent || (is_nothing(&expected) && is_nothing(&sent));
                if !same {
                    problems.push(format!("{name}: {sent} was sent and not {expected}"));
                }
            }
            Mutation::Gone(spec) => {
                if let Err(error) = patch(world, case, spec).await {
                    problems.push(format!("{name} is refused: {error}"));
                    continue;
                }
                world.until_ready(pools).await;
                world.until(&name, |world| !is_in_azure(world, case)).await;
            }
        }
    }
}

/// Plays a chapter in a world of its own; in the end nothing is left to do.
async fn chapter(plane: &Value, pools: &[(&str, &str, i32)], more: &[Value], cases: &[Case]) {
    let world = World::new();
    for hub in ["hub", "hub2"] {
        let group = format!("/resourceGroups/{hub}");
        world.ask(Method::PUT, &group, Some(&json!({"location": "westus3"})));
        for fleet in ["armada", "flotilla"] {
            world.ask(
                Method::PUT,
                &format!("{group}/providers/Microsoft.ContainerService/fleets/{fleet}"),
                Some(&json!({"location": "westus3", "properties": {}})),
            );
        }
    }
    world.ask(
        Method::PUT,
        "/resourceGroups/ids",
        Some(&json!({"location": "westus3"})),
    );
    for name in ["one", "two", "kubelet", "other"] {
        world.ask(
            Method::PUT,
            &format!("/resourceGroups/ids/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{name}"),
            Some(&json!({"location": "westus3"})),
        );
    }
    // What endpoints refer to exists.
    for name in ["a", "b"] {
        let group =
            format!("/resourceGroups/hub/providers/Microsoft.Network/applicationSecurityGroups/{name}");
        world.ask(
            Method::PUT,
            &group,
            Some(&json!({"location": "westus3", "properties": {}})),
        );
    }
    tokio::time::sleep(Duration::from_mins(10)).await;
    apply(&world.server, &manifests(plane, pools)).await;
    for manifest in more {
        create(&world.server, manifest).await;
    }
    let mut names: Vec<&str> = pools.iter().map(|(name, ..)| *name).collect();
    names.extend(
        more.iter()
            .filter(|manifest| manifest["kind"] == "AzureManagedMachinePool")
            .filter_map(|manifest| manifest["metadata"]["name"].as_str()),
    );
    world.until_ready(&names).await;
    let mut problems = Vec::new();
    for case in cases {
        play(&world, &names, case, &mut problems).await;
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    world.assert_rests().await;
}

const SYSTEM: &[(&str, &str, i32)] = &[("system", "System", 1)];

#[tokio::test(start_paused = true)]
async fn plain_fields_of_a_control_plane() {
    chapter(&json!({}), SYSTEM, &[], cases::PLAIN).await;
}

#[tokio::test(start_paused = true)]
async fn the_autoscalers_settings() {
    chapter(&json!({}), SYSTEM, &[], cases::AUTOSCALER).await;
}

#[tokio::test(start_paused = true)]
async fn who_signs_in() {
    chapter(&json!({}), SYSTEM, &[], cases::SIGN_IN).await;
}

#[tokio::test(start_paused = true)]
async fn the_security_profile() {
    chapter(&json!({}), SYSTEM, &[], cases::SECURITY).await;
}

#[tokio::test(start_paused = true)]
async fn the_network() {
    chapter(&json!({}), SYSTEM, &[], network_cases::NETWORK).await;
}

#[tokio::test(start_paused = true)]
async fn what_stands_beside_a_cluster() {
    chapter(&json!({}), SYSTEM, &[], network_cases::BESIDES).await;
}

#[tokio::test(start_paused = true)]
async fn pools() {
    let spot = pool_manifests("spot", "User", 1, &json!({"scaleSetPriority": "Spot"}));
    let pools = [("system", "System", 1), ("work", "User", 1)];
    chapter(&json!({}), &pools, &spot, pool_cases::POOLS).await;
}

/// How a step is told in the documentation.
fn told(step: Mutation) -> String {
    match step {
        Mutation::None => "-".to_owned(),
        Mutation::Refused(_, says) => format!("refused: {says}"),
        Mutation::Gone(_) => "the resource is deleted".to_owned(),
        Mutation::Sends(_, expected) if is_nothing(&value(expected)) => "left out".to_owned(),
        Mutation::Sends(_, expected) => {
            let text = expected.replace(SUBSCRIPTION, "…");
            format!("`{text}`")
        }
    }
}

#[test]
fn every_field_that_may_change_has_a_case_and_the_page_tells_it() {
    let mut problems = Vec::new();
    let cases = all();
    let mut mutable = 0;
    for (kind, rows) in [
        ("AzureManagedControlPlane", fields::control_plane_rows()),
        ("AzureManagedMachinePool", fields::pool_rows()),
    ] {
        let known: BTreeMap<&str, &fields::Row> = rows.iter().map(|row| (row.name.as_str(), row)).collect();
        for row in &rows {
            let may = [row.set, row.change, row.unset];
            if !may.contains(&"yes") {
                continue;
            }
            mutable += 1;
            let Some(case) = cases
                .iter()
                .find(|case| case.kind == kind && case.field == row.name)
            else {
                problems.push(format!("{kind} {} may change and has no case", row.name));
                continue;
            };
            for ((word, step), may) in case.steps().into_iter().zip(may) {
                // Where the parent brings it, setting and unsetting it is the parent's.
                let fits = may != "yes" || !matches!(step, Mutation::None);
                if !fits {
                    problems.push(format!(
                        "{kind} {} {word} is {may} and the case says {step:?}",
                        row.name
                    ));
                }
            }
        }
        for case in cases.iter().filter(|case| case.kind == kind) {
            if !known.contains_key(case.field) {
                problems.push(format!("{kind} has no field {}", case.field));
            }
        }
    }
    assert!(mutable > 60, "{mutable} fields");
    println!(
        "report: aks mutations: {mutable} fields that may change, {} cases",
        cases.len()
    );
    assert!(problems.is_empty(), "{}", problems.join("\n"));

    let mut page = String::from(
        "# What may change\n\nRendered from the cases of `crates/aks/tests/mutations`, each of which is played in a living cluster: let in by\n\
         admission, brought to the simulated Azure by the controllers, and found in the body that was sent. A field that may\n\
         change and is not here fails a test. `left out`: the body no longer holds it, and AKS goes back to its own default.\n",
    );
    for kind in ["AzureManagedControlPlane", "AzureManagedMachinePool"] {
        let _ = write!(
            page,
            "\n## {kind}\n\n| field | in Azure | set | change | unset |\n|---|---|---|---|---|\n"
        );
        for case in cases.iter().filter(|case| case.kind == kind) {
            let resource = case.resource.trim_start_matches('/');
            let _ = writeln!(
                page,
                "| `{}` | {} `{}` | {} | {} | {} |",
                case.field,
                resource.split('/').next().unwrap_or_default(),
                case.place,
                told(case.set),
                told(case.change),
                told(case.unset)
            );
        }
    }
    super::pages::check("mutations.md", &page);
}
