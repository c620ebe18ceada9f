//! Replays recorded ARM traffic against the simulator and compares the answers: status, headers, error codes,
//! provisioning states, and the keys and JSON types of bodies.
//!
//! What the service was busy with on the day of the recording is part of the script, not of the comparison: the clock
//! is set to the recorded times, operations last as long as they did, and an operation that was preempted then is
//! preempted now.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
};

use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use slipway_azure_sim::{Azure, Fault, Request, Response, Settings};

use crate::recording::{self, Interaction, RecordedResponse};

const PREFIXES: &[&str] = &[
    "Test_AKS_",
    "Test_KubernetesConfiguration_",
    "Test_Samples_CreationAndDeletion/Test_Containerservice_",
    "Test_Samples_CreationAndDeletion/Test_Kubernetesconfiguration_",
    "Test_Samples_CreationAndDeletion/Test_Managedidentity_",
    "Test_Samples_CreationAndDeletion/Test_Resources_",
    "Test_Networking_VirtualNetwork_2",
    "Test_Networking_VirtualNetworkAndSubnet",
    "Test_Networking_Subnet",
    "Test_Subnet_",
    "Test_Networking_PrivateEndpoint_",
    "Test_Networking_NatGateway_",
    "Test_Networking_NetworkSecurityGroup_",
    "Test_Networking_PublicIP",
    "Test_Network_PublicIPAddress_",
    "Test_Networking_RouteTable_",
    "Test_Networking_Route_",
    "Test_Networking_BastionHost_",
    "Test_ManagedIdentity_",
    "Test_Authorization_RoleAssignment_",
    "Test_Resources_ResourceGroup_",
    "Test_CreateResourceGroup",
];

/// Headers that mean something to a client.
const HEADERS: &[&str] = &[
    "azure-asyncoperation",
    "location",
    "retry-after",
    "etag",
    "x-ms-failure-cause",
    "x-ms-ratelimit-remaining-subscription-global-reads",
    "x-ms-ratelimit-remaining-subscription-global-writes",
    "x-ms-ratelimit-remaining-subscription-global-deletes",
];

/// The least share of exchanges that has to agree over all, in percent.
const SHARE: usize = 95;

#[test]
fn recorded_traffic_is_answered_alike() {
    let recordings = recording::all(|name| PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = Count::default();
    for recording in &recordings {
        let interactions = recording::read(recording);
        let differences: BTreeMap<usize, String> = replay(&interactions).into_iter().collect();
        for (index, interaction) in interactions.iter().enumerate() {
            let difference = differences.get(&index);
            let kind = kind_of(interaction);
            all.add(difference.is_none());
            for name in [format!("kind {kind}"), recording.name.clone()] {
                counts.entry(name).or_default().add(difference.is_none());
            }
            let Some(difference) = difference else { continue };
            *reasons.entry(format!("{kind}: {difference}")).or_default() += 1;
            if std::env::var_os("SLIPWAY_CONFORMANCE_DETAILS").is_some() {
                println!(
                    "{} #{index} {} {kind}: {difference}",
                    recording.name, interaction.request.method,
                );
            }
        }
    }
    println!(
        "report: azure-sim conformance: {} exchanges, {} agree, {:.2} %",
        all.compared,
        all.agreed,
        all.agreed as f64 * 100.0 / all.compared.max(1) as f64
    );
    let table: String = counts.iter().fold(String::new(), |mut table, (name, count)| {
        let _ = writeln!(table, "{name}\t{}\t{}", count.compared, count.agreed);
        table
    });
    print!("{table}");
    for (reason, count) in reasons {
        println!("{count:>5} {reason}");
    }
    if std::env::var_os("SLIPWAY_CONFORMANCE_RAISE").is_some() {
        std::fs::write(floor_path(), table).expect("the floor can be written");
        return;
    }
    let floor = std::fs::read_to_string(floor_path()).expect("the floor is in the repository");
    let below = below_floor(&floor, &counts);
    assert!(
        below.is_empty(),
        "fewer exchanges agree than before, or others were compared:\n{}",
        below.join("\n")
    );
    assert!(
        all.agreed * 100 >= all.compared * SHARE,
        "{} of {} exchanges agree, fewer than {SHARE} %",
        all.agreed,
        all.compared
    );
}

#[derive(Default)]
struct Count {
    compared: usize,
    agreed: usize,
}

impl Count {
    fn add(&mut self, agrees: bool) {
        self.compared += 1;
        self.agreed += usize::from(agrees);
    }
}

fn floor_path() -> std::path::PathBuf {
    std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/conformance.floor")
}

/// Kinds and recordings of which fewer exchanges agree than the floor says, or that one of both does not have.
fn below_floor(floor: &str, counts: &BTreeMap<String, Count>) -> Vec<String> {
    let floor: BTreeMap<&str, (usize, usize)> = floor
        .lines()
        .map(|line| {
            let mut parts = line.split('\t');
            let mut next = || parts.next().expect("a line of the floor has three parts");
            let name = next();
            let mut number = || next().parse().expect("a line of the floor ends with two numbers");
            (name, (number(), number()))
        })
        .collect();
    let names: BTreeSet<&str> = floor
        .keys()
        .copied()
        .chain(counts.keys().map(String::as_str))
        .collect();
    names
        .into_iter()
        .filter_map(|name| match (floor.get(name), counts.get(name)) {
            (Some((compared, least)), Some(count)) => {
                let holds = *compared == count.compared && count.agreed >= *least;
                (!holds).then(|| {
                    format!(
                        "{name}: {} of {} agree, floor {least} of {compared}",
                        count.agreed, count.compared
                    )
                })
            }
            (None, _) => Some(format!("{name}: not in the floor")),
            (_, None) => Some(format!("{name}: in the floor, and was not replayed")),
        })
        .collect()
}

/// What an exchange is about, without names.
fn kind_of(interaction: &Interaction) -> String {
    let path = path_of(&interaction.request.url);
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let lower: Vec<String> = segments
        .iter()
        .map(|segment| segment.to_ascii_lowercase())
        .collect();
    let Some(providers) = lower.iter().rposition(|segment| segment == "providers") else {
        return lower.get(2).cloned().unwrap_or_default();
    };
    let mut kind = segments.get(providers + 1).unwrap_or(&"").to_string();
    for word in segments.iter().skip(providers + 2).step_by(2) {
        kind.push('/');
        kind.push_str(word);
    }
    kind
}

fn path_of(url: &str) -> &str {
    let path = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = path.find('/').map_or("", |start| &path[start..]);
    path.split('?').next().unwrap_or_default()
}

/// When a recorded exchange happened, if it tells.
fn time_of(interaction: &Interaction) -> Option<Timestamp> {
    let reference = interaction.response.header("x-msedge-ref")?;
    reference.rsplit("Ref C: ").next()?.parse().ok()
}

fn times(interactions: &[Interaction]) -> Vec<Timestamp> {
    // Recordings without times are older than the header that carries them.
    let mut now: Timestamp = interactions
        .iter()
        .find_map(time_of)
        .unwrap_or_else(|| "2023-11-01T00:00:00Z".parse().expect("a time"));
    interactions
        .iter()
        .map(|interaction| {
            let step = now + SignedDuration::from_secs(20);
            now = match time_of(interaction) {
                Some(time) => time.max(now + SignedDuration::from_secs(1)),
                None => step,
            };
            now
        })
        .collect()
}

fn is_over(response: &RecordedResponse) -> bool {
    let body: Value = serde_json::from_str(&response.body).unwrap_or_default();
    match body["status"].as_str() {
        Some(status) => matches!(status, "Succeeded" | "Failed" | "Canceled"),
        None => response.code != 202,
    }
}

/// Refusals that came from a race between requests or between data centres, not from the request.
fn is_accident(response: &RecordedResponse) -> bool {
    let body: Value = serde_json::from_str(&response.body).unwrap_or_default();
    matches!(error_code(&body).as_str(), "RetryableError" | "PrincipalNotFound")
}

/// How long the operation that exchange `index` started went on, and the error it carried along.
fn script(
    interactions: &[Interaction],
    times: &[Timestamp],
    index: usize,
) -> (Option<SignedDuration>, Option<Value>) {
    let response = &interactions[index].response;
    let links: Vec<&str> = ["azure-asyncoperation", "location"]
        .iter()
        .filter_map(|name| response.header(name))
        .map(path_of)
        .collect();
    if links.is_empty() {
        return (None, None);
    }
    let mut last = times[index];
    let mut note = None;
    let mut seen = false;
    for (later, time) in interactions.iter().zip(times).skip(index + 1) {
        if !links.contains(&path_of(&later.request.url)) {
            continue;
        }
        seen = true;
        let body: Value = serde_json::from_str(&later.response.body).unwrap_or_default();
        if body["error"].is_object() {
            note = Some(body["error"].clone());
        }
        if is_over(&later.response) {
            // Over as early as the recording allows: others may already have counted on it.
            let gap = SignedDuration::from_millis((time.duration_since(last).as_millis() / 2) as i64);
            let ends = last.duration_since(times[index]) + gap.min(SignedDuration::from_millis(500));
            return (Some(ends), note);
        }
        last = *time;
    }
    let forever = SignedDuration::from_hours(24 * 30);
    (Some(if seen { forever } else { SignedDuration::ZERO }), note)
}

/// Some recordings begin with resources that an earlier run had made: they are made first, with the first write the
/// recording sends to them. Where Azure Policy had enabled its add-on by then, it does so now.
fn make_what_was_there(azure: &mut Azure, interactions: &[Interaction], start: Timestamp) {
    let mut seen = BTreeSet::new();
    for (index, interaction) in interactions.iter().enumerate() {
        let path = path_of(&interaction.request.url).to_ascii_lowercase();
        if !seen.insert(path.clone()) {
            continue;
        }
        let (method, code) = (interaction.request.method.as_str(), interaction.response.code);
        // A new group or cluster is answered with 201.
        let is_group = !path.contains("/providers/");
        let was_there = code == 200 && (method == "GET" || method == "PUT" && is_group);
        let first_write = interactions[index..].iter().find(|later| {
            later.request.method == "PUT" && path_of(&later.request.url).eq_ignore_ascii_case(&path)
        });
        let (true, Some(write)) = (was_there, first_write) else {
            continue;
        };
        let mut request = Request::new(Method::PUT, &write.request.url);
        request.body = write.request.body.clone().into();
        azure.next_operation_lasts(Some(std::time::Duration::ZERO));
        azure.handle(&request, start - SignedDuration::from_mins(1));
        azure.settle(start);
        let shown: Value = serde_json::from_str(&interaction.response.body).unwrap_or_default();
        if shown.pointer("/properties/addonProfiles/azurepolicy").is_some() {
            azure.enable_policy_addon(&path);
        }
    }
}

fn replay(interactions: &[Interaction]) -> Vec<(usize, String)> {
    let times = times(interactions);
    let mut azure = Azure::new(Settings {
        tenant: "00000000-0000-0000-0000-000000000000".to_owned(),
        require_token: false,
        throttling: false,
        kubernetes_versions: [
            "1.26.6", "1.27.7", "1.28.9", "1.29.5", "1.29.9", "1.30.0", "1.31.5", "1.32.7", "1.33.5",
            "1.34.0",
        ]
        .map(str::to_owned)
        .to_vec(),
        default_kubernetes_version: "1.29".to_owned(),
        ..Settings::default()
    });
    make_what_was_there(&mut azure, interactions, times[0]);
    let mut links: HashMap<String, String> = HashMap::new();
    let mut differences = Vec::new();
    for (index, interaction) in interactions.iter().enumerate() {
        let recorded = &interaction.request;
        let url = links.get(path_of(&recorded.url)).unwrap_or(&recorded.url).clone();
        let method = Method::from_bytes(recorded.method.as_bytes()).expect("a method");
        let mut request = Request::new(method.clone(), &url);
        if !recorded.body.is_empty() {
            request.body = recorded.body.clone().into();
        }
        if is_accident(&interaction.response) {
            differences.push((
                index,
                "not sent: refused for what others did at the same moment".to_owned(),
            ));
            continue;
        }
        let (duration, note) = script(interactions, &times, index);
        if method != Method::GET {
            azure.next_operation_lasts(duration.and_then(|duration| duration.try_into().ok()));
            azure.clear_faults();
            if let Some(note) = note {
                azure.add_fault(Fault {
                    operation_succeeds: true,
                    operation_error: Some(note),
                    ..Fault::default()
                });
            }
        }
        let response = azure.handle(&request, times[index]);
        for name in ["azure-asyncoperation", "location"] {
            if let (Some(theirs), Some(ours)) =
                (interaction.response.header(name), response.header_text(name))
                && path_of(theirs) != path_of(&recorded.url)
                && theirs.starts_with("https://")
            {
                links.insert(path_of(theirs).to_owned(), ours.to_owned());
            }
        }
        if let Some(difference) = compare(&interaction.response, &response) {
            differences.push((index, difference));
        }
    }
    differences
}

/// The first thing that differs.
fn compare(recorded: &RecordedResponse, ours: &Response) -> Option<String> {
    if recorded.code != ours.status {
        let theirs: Value = serde_json::from_str(&recorded.body).unwrap_or_default();
        return Some(format!(
            "status {} {} instead of {} {}",
            ours.status,
            error_code(&ours.body_json()),
            recorded.code,
            error_code(&theirs)
        ));
    }
    for name in HEADERS {
        let (theirs, own) = (recorded.header(name), ours.header_text(name));
        // Old recordings carry no counts at all.
        if name.starts_with("x-ms-ratelimit") && theirs.is_none() {
            continue;
        }
        if theirs.is_some() != own.is_some() {
            return Some(format!(
                "header {name}: {own:?} instead of {:?}",
                theirs.map(|_| "one")
            ));
        }
    }
    let theirs: Value = serde_json::from_str(&recorded.body).unwrap_or_default();
    let own = ours.body_json();
    if error_code(&theirs) != error_code(&own) {
        return Some(format!(
            "error code {} instead of {}",
            error_code(&own),
            error_code(&theirs)
        ));
    }
    for pointer in ["/properties/provisioningState", "/status"] {
        let (theirs, own) = (theirs.pointer(pointer), own.pointer(pointer));
        if theirs.and_then(Value::as_str) != own.and_then(Value::as_str) {
            return Some(format!("{pointer}: {own:?} instead of {theirs:?}"));
        }
    }
    let mut found = Vec::new();
    shapes(&theirs, &own, "", &mut found);
    if found.is_empty() {
        None
    } else {
        Some(found.join(", "))
    }
}

fn error_code(body: &Value) -> String {
    body["error"]["code"]
        .as_str()
        .or_else(|| body["code"].as_str())
        .unwrap_or("")
        .to_owned()
}

/// Keys and types, all the way down.
fn shapes(theirs: &Value, own: &Value, path: &str, found: &mut Vec<String>) {
    match (theirs, own) {
        (Value::Object(theirs), Value::Object(own)) => {
            let keys: BTreeSet<&String> = theirs.keys().chain(own.keys()).collect();
            for key in keys {
                match (theirs.get(key), own.get(key)) {
                    (Some(theirs), Some(own)) => shapes(theirs, own, &format!("{path}.{key}"), found),
                    (Some(_), None) => found.push(format!("-{path}.{key}")),
                    (None, Some(_)) => found.push(format!("+{path}.{key}")),
                    (None, None) => {}
                }
            }
        }
        (Value::Array(theirs), Value::Array(own)) => {
            if theirs.len() != own.len() {
                found.push(format!("{path}[] has {} instead of {}", own.len(), theirs.len()));
                return;
            }
            for (theirs, own) in theirs.iter().zip(own) {
                shapes(theirs, own, &format!("{path}[]"), found);
            }
        }
        _ => {
            if std::mem::discriminant(theirs) != std::mem::discriminant(own) {
                found.push(format!("{path}: another type"));
            }
        }
    }
}
