//! The tuning of requests: which there are, how old a read may be, what is batched, what happens at a limit. Every number
//! is read from the code it is about; what is said about rest is watched.

use std::{collections::BTreeMap, fmt::Write as _, path::Path, time::Duration};

use serde_json::json;
use slipway_azure::{Tuning, budget::Limits, tuning::READ_AGE_ANNOTATION};
use slipway_runtime::Settings;

use crate::life::world::{World, apply, manifests};

fn spoken(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        _ if seconds.is_multiple_of(3600) => format!("{} h", seconds / 3600),
        _ if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

/// A constant of another file that is nobody else's business, as it stands there.
fn constant(file: &str, name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let start = format!("const {name}: ");
    let line = text
        .lines()
        .find_map(|line| line.trim().trim_start_matches("pub ").strip_prefix(&start))
        .unwrap_or_else(|| panic!("{file} has no {name}"));
    let (unit, number) = line
        .split_once("::from_")
        .and_then(|(_, rest)| rest.split_once('('))
        .and_then(|(unit, rest)| Some((unit, rest.split_once(')')?.0)))
        .unwrap_or_else(|| panic!("{name} is no duration: {line}"));
    let number: u64 = number.parse().unwrap_or_else(|_| panic!("{name}: {line}"));
    spoken(match unit {
        "millis" => Duration::from_millis(number),
        "secs" => Duration::from_secs(number),
        "mins" => Duration::from_mins(number),
        "hours" => Duration::from_hours(number),
        other => panic!("{name} is in {other}"),
    })
}

fn page() -> String {
    let (tuning, limits, settings) = (Tuning::default(), Limits::default(), Settings::default());
    let mut page = String::from(
        "# Requests to Azure\n\nRendered from `crates/aks/tests/graduation/requests.rs` with the numbers of the code; a test keeps them equal and watches\n\
         a cluster at rest. [The ARM engine](../azure.md) says how it is done.\n\n\
         ## Which requests there are\n\n| when | request | how many |\n|---|---|---|\n",
    );
    for (when, request, how_many) in [
        (
            "at rest",
            "LIST of resource groups, virtual networks, managed clusters of the subscription (and of private endpoints where a cluster has one)".to_owned(),
            format!(
                "one each per {} for all clusters together; pools and subnets are in their parents' bodies",
                spoken(tuning.max_read_age)
            ),
        ),
        (
            "at rest",
            "GET of a fleet membership or an extension, which no list shows".to_owned(),
            format!("one each per {}", spoken(tuning.child_read_age)),
        ),
        (
            "at rest",
            "LIST of scale sets and their machines".to_owned(),
            format!(
                "none where the workload cluster's Nodes are watched; else when a pool's count, version, image or power changed, and every {} for a pool that AKS scales",
                constant("azure/src/workload/machines.rs", "RELIST_SCALED")
            ),
        ),
        (
            "at rest, with nodes as Machines",
            "LIST of the machines of a scale set, with how they run".to_owned(),
            format!(
                "one for each scale set per {}; sooner when the pool changed, and while Azure and the Nodes say different things",
                spoken(tuning.max_read_age)
            ),
        ),
        ("at rest", "PUT, PATCH, POST, DELETE".to_owned(), "none".to_owned()),
        (
            "before a change",
            "GET of the resource".to_owned(),
            "one: what is changed was read just before".to_owned(),
        ),
        (
            "a change",
            "PUT, only if something differs from what Azure shows".to_owned(),
            "one per resource, with If-Match where the resource has an etag".to_owned(),
        ),
        (
            "while an operation runs",
            "GET of the operation".to_owned(),
            format!(
                "as Azure asks by Retry-After, else every {}",
                constant("azure/src/arm/operation.rs", "BETWEEN")
            ),
        ),
        (
            "something moves that we did not start",
            "GET of the resource".to_owned(),
            format!("every {}", constant("azure/src/view/index.rs", "MOVING")),
        ),
        (
            "a kubeconfig has to be written",
            "POST listClusterAdminCredential or listClusterUserCredential".to_owned(),
            "one per Secret".to_owned(),
        ),
        ("deletion", "DELETE".to_owned(), "one per resource of ours, in order".to_owned()),
    ] {
        let _ = writeln!(page, "| {when} | {request} | {how_many} |");
    }
    page.push_str("\n## At a limit\n\n| what Azure says | what happens |\n|---|---|\n");
    for (says, happens) in [
        (
            "429 with Retry-After".to_owned(),
            "nobody asks again before that time: the whole subscription, the provider or one resource, whichever the limit is of".to_owned(),
        ),
        (
            "429 without a time".to_owned(),
            format!("{} of the same", constant("azure/src/arm/error.rs", "UNNAMED_WAIT")),
        ),
        (
            "409, another operation is in progress".to_owned(),
            format!("no error: asked again after {}", constant("azure/src/arm/client.rs", "BUSY")),
        ),
        (
            "x-ms-ratelimit-remaining-* runs low".to_owned(),
            "requests are spread until it recovers".to_owned(),
        ),
        (
            "a write was refused, or its operation failed".to_owned(),
            "the same is not sent again before its wait is over, whatever wakes the object: [the waits](../azure.md#writes-that-are-not-accepted); a change of the object or of its credential is sent at once".to_owned(),
        ),
        (
            "403 on a LIST".to_owned(),
            format!(
                "resources are read one by one, and the list is tried again after {}",
                constant("azure/src/view/index.rs", "REFUSED")
            ),
        ),
    ] {
        let _ = writeln!(page, "| {says} | {happens} |");
    }
    page.push_str("\n## What is assumed before Azure teaches better\n\n| bucket, per subscription | burst | per second |\n|---|---|---|\n");
    for (name, rate) in [
        ("all reads", limits.subscription_read),
        ("all writes", limits.subscription_write),
        ("reads of one resource provider", limits.provider_read),
        ("writes of one resource provider", limits.provider_write),
    ] {
        let _ = writeln!(page, "| {name} | {} | {} |", rate.burst, rate.per_second);
    }
    page.push_str("\n## Settings\n\n| setting | default | |\n|---|---|---|\n");
    for (setting, default, what) in [
        (
            "`--sync-period`".to_owned(),
            spoken(settings.sync_period),
            "every object is reconciled at least this often; at rest that asks Azure nothing by itself",
        ),
        (
            "`--azure-max-read-age`".to_owned(),
            spoken(tuning.max_read_age),
            "how old a read may be at rest: how late a change made behind our back is seen",
        ),
        (
            format!("annotation `{READ_AGE_ANNOTATION}`"),
            "-".to_owned(),
            "the same for one object",
        ),
        (
            "`--azure-child-read-age`".to_owned(),
            spoken(tuning.child_read_age),
            "the same for what no list shows",
        ),
        (
            "`--azure-request-budget`".to_owned(),
            tuning.budget.to_string(),
            "factor on the buckets above",
        ),
        (
            "`--service-reconcile-timeout`".to_owned(),
            spoken(tuning.budget_timeout),
            "how long a read stands in line for the budget before its object goes back to the queue; a change goes back after a second, and so does a read for an object that has not been told how it stands",
        ),
        (
            "`--api-call-timeout`".to_owned(),
            spoken(tuning.call_timeout),
            "one request",
        ),
        (
            "`--reconciler-requeue`".to_owned(),
            spoken(tuning.requeue),
            "the next poll of what is under way and names no time",
        ),
    ] {
        let _ = writeln!(page, "| {setting} | {default} | {what} |");
    }
    page
}

#[tokio::test(start_paused = true)]
async fn at_rest_only_lists_are_asked_and_the_page_tells_how_often() {
    let world = World::new();
    let pools = [("system", "System", 1), ("work", "User", 2), ("more", "User", 1)];
    apply(&world.server, &manifests(&json!({}), &pools)).await;
    world.until_ready(&["system", "work", "more"]).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    world.simulator.azure().forget_requests();
    let hour = Duration::from_hours(1);
    tokio::time::sleep(hour).await;
    let mut asked: BTreeMap<String, u64> = BTreeMap::new();
    for request in world.simulator.azure().requests() {
        if request.path.contains("oauth2") {
            continue;
        }
        let end = request.path.rsplit('/').next().unwrap_or_default().to_lowercase();
        *asked.entry(format!("{} {end}", request.method)).or_default() += 1;
    }
    let most = hour.as_secs() / Tuning::default().max_read_age.as_secs() + 1;
    let lists = ["GET managedclusters", "GET resourcegroups", "GET virtualnetworks"];
    assert_eq!(
        asked.keys().map(String::as_str).collect::<Vec<_>>(),
        lists,
        "an hour at rest: {asked:?}"
    );
    assert!(asked.values().all(|count| *count <= most), "{asked:?}");
    crate::pages::check("requests.md", &page());
}
