//! Every admission rule with an object that breaks it, the whole message where it is short, and a base object that
//! breaks none. An entry without a case, or a case that another rule refuses, fails.

mod control_plane_cases;
mod odd_objects;
mod pool_cases;
mod table;

use std::{collections::BTreeSet, sync::LazyLock};

use serde_json::{Value, json};
use slipway_aks::{
    admit::admission,
    api::crd::crds,
    cluster, cluster_template,
    control_plane::{self, admit::ClusterNetworkFact},
    control_plane_template, identity,
    pool::{self, admit::OtherSystemPools},
    pool_template,
};
use slipway_azure::reconcile::records;
use slipway_runtime::admission::{Change, Operation, Request, Verdict};

use self::table::Rule;

#[derive(Clone, Copy, Debug)]
pub struct Case {
    rule: &'static str,
    new: &'static str,
    old: Option<&'static str>,
    says: Option<&'static str>,
    knowing: Option<&'static str>,
    name: Option<&'static str>,
    status: Option<&'static str>,
}

impl Case {
    fn new(rule: &'static str, new: &'static str) -> Self {
        Self {
            rule,
            new,
            old: None,
            says: None,
            knowing: None,
            name: None,
            status: None,
        }
    }

    fn says(self, says: &'static str) -> Self {
        Self {
            says: Some(says),
            ..self
        }
    }

    fn from(self, old: &'static str) -> Self {
        Self {
            old: Some(old),
            ..self
        }
    }

    fn knowing(self, knowing: &'static str) -> Self {
        Self {
            knowing: Some(knowing),
            ..self
        }
    }

    fn named(self, name: &'static str) -> Self {
        Self {
            name: Some(name),
            ..self
        }
    }

    fn with_status(self, status: &'static str) -> Self {
        Self {
            status: Some(status),
            ..self
        }
    }
}

/// A valid spec of each kind, below which cases patch.
fn base(kind: &str) -> Value {
    match kind {
        "amcp" | "amcpt" => json!({
            "version": "v1.31.0",
            "location": "westus",
            "resourceGroupName": "group",
            "identityRef": {"name": "identity"},
            "virtualNetwork": {
                "name": "network", "cidrBlock": "10.0.0.0/8", "resourceGroup": "group",
                "subnet": {"name": "nodes", "cidrBlock": "10.240.0.0/16"}
            }
        }),
        "ammp" | "ammpt" => json!({"mode": "System", "sku": "Standard_D2s_v3", "name": "pool"}),
        "identity" => json!({"type": "ServicePrincipal", "clientID": "c", "tenantID": "t"}),
        _ => json!({}),
    }
}

fn object(kind: &str, patch: &str, name: &str, status: Option<&str>) -> Value {
    let mut spec = base(kind);
    json_patch::merge(&mut spec, &serde_json::from_str(patch).expect(patch));
    if kind.ends_with('t') {
        spec = json!({"template": {"spec": spec}});
    }
    let mut object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
    if let Some(status) = status {
        object["status"] = serde_json::from_str(status).expect(status);
    }
    object
}

fn request(old: Option<Value>, new: Option<Value>, dry_run: bool) -> Request {
    let operation = match (&old, &new) {
        (None, _) => Operation::Create,
        (_, None) => Operation::Delete,
        _ => Operation::Update,
    };
    Request {
        operation,
        group: "infrastructure.cluster.x-k8s.io".into(),
        version: "v1beta1".into(),
        kind: "test".into(),
        namespace: "default".into(),
        name: "test".into(),
        dry_run,
        user: "somebody".into(),
        object: new,
        old_object: old,
    }
}

fn network_fact(knowing: Option<&str>) -> ClusterNetworkFact {
    let Some(text) = knowing else {
        return ClusterNetworkFact::NoCluster;
    };
    let Some((services, pods)) = text.split_once(';') else {
        return ClusterNetworkFact::Unreadable("no such Cluster".into());
    };
    let list = |text: &str| {
        text.split(',')
            .filter(|range| !range.is_empty())
            .map(str::to_owned)
            .collect()
    };
    ClusterNetworkFact::Known {
        services: list(services),
        pods: list(pods),
    }
}

fn pools_fact(knowing: Option<&str>) -> OtherSystemPools {
    match knowing {
        None => OtherSystemPools::NotNeeded,
        Some(count) => OtherSystemPools::Count(count.parse().expect("a count")),
    }
}

fn verdict(kind: &str, request: &Request, knowing: Option<&str>, topology_dry_run: bool) -> Verdict {
    fn change<K: serde::de::DeserializeOwned>(request: &Request) -> Change<K> {
        Change::read(request).unwrap_or_else(|problem| panic!("{problem}: {request:?}"))
    }
    match kind {
        "amcp" => control_plane::admit::verdict(&change(request), &network_fact(knowing), topology_dry_run),
        "amcpt" => {
            control_plane_template::admit::verdict(&change(request), &network_fact(knowing), topology_dry_run)
        }
        "ammp" => pool::admit::verdict(&change(request), &pools_fact(knowing)),
        "ammpt" => pool_template::admit::verdict(&change(request), topology_dry_run),
        "identity" => identity::admit::verdict(&change(request)),
        "amc" => cluster::admit::verdict(&change(request)),
        "amct" => cluster_template::admit::verdict(&change(request)),
        other => panic!("no kind {other}"),
    }
}

fn errors(verdict: Verdict) -> Vec<String> {
    match verdict {
        Verdict::Invalid { errors, .. } => errors.iter().map(ToString::to_string).collect(),
        Verdict::Forbidden { message } => vec![message],
        Verdict::Unreadable { message } => panic!("{message}"),
        Verdict::Allowed { .. } | Verdict::Changed { .. } => vec![],
    }
}

/// What is said to a case.
fn refusal(case: &Case, kind: &str) -> Verdict {
    let default_name = if kind.starts_with("ammp") { "pool" } else { "plane" };
    let name = case.name.unwrap_or(default_name);
    // What cannot change is asked of what exists.
    let exists = match kind {
        "amcp" => json!({"initialized": true}),
        "ammp" => json!({"ready": true}),
        _ => Value::Null,
    };
    let old = case.old.map(|patch| {
        let mut old = object(kind, patch, name, case.status);
        if !exists.is_null() {
            json_patch::merge(&mut old, &json!({"status": exists}));
        }
        old
    });
    let new = (case.new != "DELETE").then(|| object(kind, case.new, name, case.status));
    verdict(kind, &request(old, new, false), case.knowing, false)
}

fn check(rule: &Rule, case: &Case, kind: &str) -> Result<(), String> {
    let found = errors(refusal(case, kind));
    let root = if kind.ends_with('t') {
        "spec.template.spec"
    } else {
        "spec"
    };
    let desired = case.says.unwrap_or(rule.says).replace("{root}", root);
    if !rule.says.is_empty() && !found.iter().any(|error| error.contains(rule.says)) {
        return Err(format!(
            "{} on {kind}: no error says {:?}: {found:#?}",
            rule.id, rule.says
        ));
    }
    if !found.iter().any(|error| error.contains(&desired)) {
        return Err(format!(
            "{} on {kind}: no error is {desired:?}: {found:#?}",
            rule.id
        ));
    }
    if rule.on == "create" && case.old.is_some() || rule.on == "update" && case.old.is_none() {
        return Err(format!(
            "{} is asked on {} and the case is another",
            rule.id, rule.on
        ));
    }
    Ok(())
}

#[test]
fn every_rule_refuses_an_object_that_breaks_it() {
    let cases: Vec<Case> = [control_plane_cases::cases(), pool_cases::cases()].concat();
    let mut problems = Vec::new();
    let mut checked = 0;
    for rule in table::all() {
        let ours: Vec<&Case> = cases.iter().filter(|case| case.rule == rule.id).collect();
        if ours.is_empty() {
            problems.push(format!("{} has no case", rule.id));
        }
        for case in ours {
            for kind in rule.kinds {
                checked += 1;
                problems.extend(check(rule, case, kind).err());
            }
        }
    }
    for case in &cases {
        if !table::all().any(|rule| rule.id == case.rule) {
            problems.push(format!("there is no rule {}", case.rule));
        }
    }
    println!("report: aks rules: {} rules, {checked} cases", table::count());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// What the Cluster itself has, where a rule speaks of it.
const OF_THE_CLUSTER: [&str; 3] = [
    "Cluster.spec.clusterNetwork",
    "Cluster.spec.clusterNetwork.services.cidrBlocks",
    "Cluster.spec.clusterNetwork.pods.cidrBlocks",
];

/// Whether a path leads to a field of a kind.
fn exists(kind: &str, path: &str) -> bool {
    static CRDS: LazyLock<Vec<Value>> = LazyLock::new(|| crds().iter().map(|crd| json!(crd)).collect());
    let kind = match kind {
        "amcp" => "AzureManagedControlPlane",
        "amcpt" => "AzureManagedControlPlaneTemplate",
        "ammp" => "AzureManagedMachinePool",
        "ammpt" => "AzureManagedMachinePoolTemplate",
        "amc" => "AzureManagedCluster",
        "amct" => "AzureManagedClusterTemplate",
        _ => "AzureClusterIdentity",
    };
    let crd = CRDS.iter().find(|crd| crd["spec"]["names"]["kind"] == kind);
    let crd = crd.expect(kind);
    let mut schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut rest = path;
    while !rest.is_empty() {
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        schema = &schema["properties"][&rest[..end]];
        rest = &rest[end..];
        while let Some(after) = rest.strip_prefix('[') {
            schema = if schema["items"].is_object() {
                &schema["items"]
            } else {
                &schema["additionalProperties"]
            };
            rest = after.split_once(']').map_or("", |(_, rest)| rest);
        }
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if !schema.is_object() {
            return false;
        }
    }
    true
}

#[test]
fn every_path_in_a_refusal_is_one_of_the_api() {
    let cases: Vec<Case> = [control_plane_cases::cases(), pool_cases::cases()].concat();
    let (mut seen, mut problems) = (0, BTreeSet::new());
    for rule in table::all() {
        for (case, kind) in cases
            .iter()
            .filter(|case| case.rule == rule.id)
            .flat_map(|case| rule.kinds.iter().map(move |kind| (case, *kind)))
        {
            let Verdict::Invalid { errors, .. } = refusal(case, kind) else {
                continue;
            };
            for path in errors.iter().map(|error| error.path.to_string()) {
                seen += 1;
                let is_ours = path.starts_with("metadata.") || exists(kind, &path);
                if !is_ours && !OF_THE_CLUSTER.contains(&path.as_str()) {
                    problems.insert(format!("{kind}: {path} ({})", rule.id));
                }
            }
        }
    }
    assert!(seen > 150, "{seen}");
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn the_base_objects_break_no_rule() {
    for kind in ["amc", "amct", "amcp", "amcpt", "ammp", "ammpt", "identity"] {
        let new = object(kind, "{}", "plane", None);
        let found = errors(verdict(
            kind,
            &request(None, Some(new.clone()), false),
            None,
            false,
        ));
        assert_eq!(found, Vec::<String>::new(), "{kind} created");
        let found = errors(verdict(
            kind,
            &request(Some(new.clone()), Some(new), false),
            None,
            false,
        ));
        assert_eq!(found, Vec::<String>::new(), "{kind} unchanged");
    }
}

#[test]
fn what_may_change_changes() {
    for (kind, old, new) in [
        (
            "amcp",
            r#"{"apiServerAccessProfile":{"authorizedIPRanges":["1.2.3.4/32"]}}"#,
            r#"{"apiServerAccessProfile":{"authorizedIPRanges":["1.2.3.5/32"]}}"#,
        ),
        ("amcp", r#"{"version":"v1.31.0"}"#, r#"{"version":"v1.32.0"}"#),
        ("amcp", "{}", r#"{"sku":{"tier":"Premium"}}"#),
        (
            "amcp",
            r#"{"extensions":[{"name":"e","extensionType":"t","scope":{"scopeType":"Cluster","releaseNamespace":"a"}}]}"#,
            r#"{"additionalTags":{"a":"b"},"extensions":[{"name":"e","extensionType":"t","scope":{"scopeType":"Cluster","releaseNamespace":"a"}}]}"#,
        ),
        ("amcp", r#"{"dnsPrefix":null}"#, r#"{"dnsPrefix":"plane"}"#),
        (
            "ammp",
            r#"{"availabilityZones":["1","2"]}"#,
            r#"{"availabilityZones":["2","1"]}"#,
        ),
        (
            "ammp",
            "{}",
            r#"{"scaling":{"minSize":1,"maxSize":3},"taints":[{"key":"k","value":"","effect":"NoSchedule"}],"nodeLabels":{"a":"b"}}"#,
        ),
        ("ammp", "{}", r#"{"subnetName":"nodes"}"#),
        ("ammp", "{}", r#"{"mode":"User"}"#),
    ] {
        let (old, new) = (object(kind, old, "plane", None), object(kind, new, "plane", None));
        let knowing = (kind == "ammp").then_some("1");
        assert_eq!(
            errors(verdict(
                kind,
                &request(Some(old), Some(new.clone()), false),
                knowing,
                false
            )),
            Vec::<String>::new(),
            "{new}"
        );
    }
}

#[test]
fn topology_dry_runs_pass_immutability_and_nothing_else() {
    for (kind, patch) in [
        ("amcp", r#"{"location":"eastus"}"#),
        ("amcpt", r#"{"location":"eastus"}"#),
        ("ammpt", r#"{"sku":"Other"}"#),
    ] {
        let (old, new) = (
            object(kind, "{}", "plane", Some(r#"{"ready":true}"#)),
            object(kind, patch, "plane", None),
        );
        let request = request(Some(old), Some(new), true);
        assert_eq!(
            errors(verdict(kind, &request, None, true)),
            Vec::<String>::new(),
            "{kind}"
        );
        assert_eq!(errors(verdict(kind, &request, None, false)).len(), 1, "{kind}");
    }
    let (old, new) = (
        object("amcpt", "{}", "plane", None),
        object("amcpt", r#"{"version":"x"}"#, "plane", None),
    );
    assert_eq!(
        errors(verdict("amcpt", &request(Some(old), Some(new), true), None, true)).len(),
        1
    );
}

#[test]
fn the_last_system_pool_may_go_with_its_cluster_and_with_a_move() {
    let pool = object("ammp", "{}", "pool", None);
    let delete = |pool: &Value, knowing| {
        errors(verdict(
            "ammp",
            &request(Some(pool.clone()), None, false),
            knowing,
            false,
        ))
    };
    assert_eq!(delete(&pool, Some("0")).len(), 1);
    assert!(delete(&pool, Some("1")).is_empty(), "another one is there");
    assert!(delete(&pool, None).is_empty(), "the Cluster is going too");
    let mut moved = pool.clone();
    moved["metadata"]["annotations"] = json!({"clusterctl.cluster.x-k8s.io/delete-for-move": ""});
    assert!(delete(&moved, Some("0")).is_empty(), "clusterctl moves it");
    let user = object("ammp", r#"{"mode":"User"}"#, "pool", None);
    assert!(delete(&user, Some("0")).is_empty(), "it is no system pool");
}

#[test]
fn an_object_on_its_way_out_is_not_held() {
    for kind in ["amcp", "ammp"] {
        let old = object(kind, "{}", "plane", None);
        let mut new = object(
            kind,
            r#"{"sku":null,"location":"elsewhere","mode":"User"}"#,
            "plane",
            None,
        );
        new["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(errors(verdict(kind, &request(Some(old), Some(new), false), None, false)).is_empty());
    }
}

/// Whatever an object breaks, an update that changes only metadata is let in, and so is one of another field.
#[test]
fn an_object_that_breaks_a_rule_is_not_held() {
    let mut tried = 0;
    for case in [control_plane_cases::cases(), pool_cases::cases()].concat() {
        let rule = table::all().find(|rule| rule.id == case.rule).expect("a rule");
        if case.old.is_some() || case.new == "DELETE" {
            continue;
        }
        for kind in rule.kinds {
            let name = case.name.unwrap_or("plane");
            let old = object(kind, case.new, name, case.status);
            let mut new = old.clone();
            new["metadata"]["ownerReferences"] =
                json!([{"kind": "Cluster", "name": "c", "uid": "u", "apiVersion": "v1"}]);
            new["metadata"]["labels"] = json!({"cluster.x-k8s.io/cluster-name": "c"});
            for knowing in [case.knowing, Some("10.0.0.0/16;"), Some("unreadable")] {
                let knowing = if kind.starts_with("amcp") { knowing } else { None };
                tried += 1;
                assert_eq!(
                    errors(verdict(
                        kind,
                        &request(Some(old.clone()), Some(new.clone()), false),
                        knowing,
                        false
                    )),
                    Vec::<String>::new(),
                    "{} on {kind}",
                    rule.id
                );
            }
        }
    }
    assert!(tried > 300, "only {tried}");
}

#[test]
fn what_does_not_exist_in_azure_may_become_anything() {
    let record = |id: &str| json!({(records::ANNOTATION): json!({id: {"apiVersion": "1", "record": {"sent": {}}}}).to_string()});
    let group = "/subscriptions/s/resourcegroups/g";
    let cluster =
        "/subscriptions/s/resourcegroups/g/providers/microsoft.containerservice/managedclusters/plane";
    let found = |old_patch: &str, patch: &str, records: Option<&str>| {
        let mut old = object("amcp", old_patch, "plane", None);
        if let Some(id) = records {
            old["metadata"]["annotations"] = record(id);
        }
        let mut new = object("amcp", patch, "plane", None);
        new["metadata"]["annotations"] = old["metadata"]["annotations"].clone();
        errors(verdict(
            "amcp",
            &request(Some(old), Some(new), false),
            None,
            false,
        ))
        .len()
    };
    let (plugin, location) = (r#"{"networkPlugin":"kubenet"}"#, r#"{"location":"eastus"}"#);
    assert_eq!((found("{}", plugin, None), found("{}", location, None)), (0, 0));
    assert_eq!(
        (
            found("{}", plugin, Some(group)),
            found("{}", location, Some(group))
        ),
        (0, 1)
    );
    assert_eq!(
        (
            found("{}", plugin, Some(cluster)),
            found("{}", location, Some(cluster))
        ),
        (1, 1)
    );
    // A typo in the version is taken back.
    assert_eq!(
        found(r#"{"version":"v1.99.0"}"#, r#"{"version":"v1.33.0"}"#, None),
        0
    );
}

#[test]
fn a_version_that_aks_refused_is_taken_back() {
    let running = r#"{"ready":true,"version":"v1.33.5"}"#;
    let change = |from: &str, to: &str| {
        let old = object(
            "amcp",
            &format!(r#"{{"version":"{from}"}}"#),
            "plane",
            Some(running),
        );
        let new = object(
            "amcp",
            &format!(r#"{{"version":"{to}"}}"#),
            "plane",
            Some(running),
        );
        verdict("amcp", &request(Some(old), Some(new), false), None, false)
    };
    assert_eq!(errors(change("v1.35.0", "v1.33.5")), Vec::<String>::new());
    assert_eq!(errors(change("v1.35.0", "v1.34.1")), Vec::<String>::new());
    assert_eq!(
        errors(change("v1.35.0", "v1.32.0")),
        [r#"spec.version: Invalid value: "v1.32.0": field version cannot be downgraded: AKS runs v1.33.5"#]
    );
    let Verdict::Allowed { warnings } = change("v1.33.5", "v1.35.0") else {
        panic!("AKS says whether it takes it")
    };
    assert_eq!(
        warnings,
        [
            "spec.version: AKS upgrades one minor version at a time, and the cluster runs v1.33.5: it refuses v1.35.0. `az aks get-upgrades` lists what it takes"
        ]
    );
}

#[test]
fn the_upgrades_that_aks_offered_are_said() {
    let status = r#"{"ready":true,"version":"v1.33.3","conditions":[{"type":"Ready","status":"False","message":"AKS refused: Available upgrades: [1.33.5 1.34.1]. Please see"}]}"#;
    let old = object("amcp", r#"{"version":"v1.35.0"}"#, "plane", Some(status));
    let change = |to: &str| {
        let new = object("amcp", &format!(r#"{{"version":"{to}"}}"#), "plane", Some(status));
        verdict("amcp", &request(Some(old.clone()), Some(new), false), None, false)
    };
    let Verdict::Allowed { warnings } = change("v1.34.2") else {
        panic!("let in")
    };
    assert_eq!(
        warnings,
        [
            "spec.version: AKS offered 1.33.5, 1.34.1 as upgrades from v1.33.3 when it was last asked, and not v1.34.2"
        ]
    );
    let Verdict::Allowed { warnings } = change("v1.34.1") else {
        panic!("let in")
    };
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn every_kind_has_its_webhooks() {
    let mut names: Vec<String> = admission()
        .iter()
        .map(slipway_runtime::admission::Admission::path)
        .collect();
    names.sort();
    assert_eq!(names.len(), 11);
    names.dedup();
    assert_eq!(names.len(), 11);
}

#[test]
fn the_documented_rules_are_the_rules() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/aks/rules.md");
    let page = table::page();
    if std::env::var_os("SLIPWAY_WRITE_DOCS").is_some() {
        std::fs::write(path, &page).expect("docs/aks/rules.md can be written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/aks/rules.md is out of date: run this test with SLIPWAY_WRITE_DOCS=1"
    );
}
