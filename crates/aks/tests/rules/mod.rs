//! Every admission rule with an object that breaks it, the whole message where it is short, and a base object that
//! breaks none. An entry without a case, or a case that another rule refuses, fails.

mod control_plane_cases;
mod odd_objects;
mod pool_cases;
mod table;

use serde_json::{Value, json};
use slipway_aks::{
    admit::{
        ClusterNetworkFact, OtherSystemPools, admission, cluster, control_plane_template_verdict,
        control_plane_verdict, identity_verdict, pool_template_verdict, pool_verdict,
    },
    api::{AzureManagedCluster, AzureManagedClusterTemplate},
};
use slipway_runtime::admission::{Change, Operation, Request, Verdict, field::Path};

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
        "amcp" => control_plane_verdict(&change(request), &network_fact(knowing), topology_dry_run),
        "amcpt" => control_plane_template_verdict(&change(request), &network_fact(knowing), topology_dry_run),
        "ammp" => pool_verdict(&change(request), &pools_fact(knowing)),
        "ammpt" => pool_template_verdict(&change(request), topology_dry_run),
        "identity" => identity_verdict(&change(request)),
        "amc" => {
            let change: Change<AzureManagedCluster> = change(request);
            let template = change
                .new
                .as_ref()
                .and_then(|new| new.spec.default_pool_template.as_ref());
            Verdict::from_errors(cluster::validate(&Path::new("spec"), template), vec![])
        }
        "amct" => {
            let change: Change<AzureManagedClusterTemplate> = change(request);
            let template = change
                .new
                .as_ref()
                .and_then(|new| new.spec.template.spec.default_pool_template.as_ref());
            Verdict::from_errors(
                cluster::validate(&Path::new("spec.template.spec"), template),
                vec![],
            )
        }
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

fn check(rule: &Rule, case: &Case, kind: &str) -> Result<(), String> {
    let default_name = if kind.starts_with("ammp") { "pool" } else { "plane" };
    let name = case.name.unwrap_or(default_name);
    let old = case.old.map(|patch| object(kind, patch, name, case.status));
    let new = (case.new != "DELETE").then(|| object(kind, case.new, name, case.status));
    let found = errors(verdict(kind, &request(old, new, false), case.knowing, false));
    let root = if kind.ends_with('t') {
        "spec.template.spec"
    } else {
        "spec"
    };
    let wanted = case.says.unwrap_or(rule.says).replace("{root}", root);
    if !rule.says.is_empty() && !found.iter().any(|error| error.contains(rule.says)) {
        return Err(format!(
            "{} on {kind}: no error says {:?}: {found:#?}",
            rule.id, rule.says
        ));
    }
    if !found.iter().any(|error| error.contains(&wanted)) {
        return Err(format!(
            "{} on {kind}: no error is {wanted:?}: {found:#?}",
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
            object(kind, "{}", "plane", None),
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
