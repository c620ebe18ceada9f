//! What is rendered for other tools, in the hands of those: Argo CD's health rules in a Lua interpreter on data for every kind, alerts and
//! the queries of dashboards in Prometheus' own checker.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use slipway_render::health_rules;
use slipway_runtime::Provider;

fn providers() -> Vec<Provider> {
    vec![
        slipway_aks::provider::provider(),
        slipway_aso::provider::provider(),
        slipway_autoscaler::provider(),
        slipway_edge::provider::provider(),
        slipway_k3s::provider::provider(),
    ]
}

/// The first of these programs that is on this machine; says so where there is none.
fn program(what: &str, names: &[&str]) -> Option<PathBuf> {
    let found = names
        .iter()
        .map(|name| Path::new("/usr/bin").join(name))
        .find(|path| path.exists());
    if found.is_none() {
        println!("report: skipped: {what} needs one of {names:?} in /usr/bin");
    }
    found
}

/// A value as Lua writes it.
fn lua(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        Value::Array(items) => format!("{{ {} }}", items.iter().map(lua).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| format!("[{name:?}] = {}", lua(value)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn object(conditions: &[(&str, &str, &str)], rest: &Value) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(name, status, reason)| json!({"type": name, "status": status, "reason": reason, "message": "as it is", "observedGeneration": 2}))
        .collect();
    let mut object =
        json!({"metadata": {"name": "one", "generation": 2}, "status": {"conditions": conditions}});
    for (name, value) in rest.as_object().into_iter().flatten() {
        object[name] = value.clone();
    }
    object
}

/// Objects in every state, with what Argo CD is to say of them.
fn cases() -> Vec<(Value, &'static str)> {
    let none = json!({});
    let later = json!({"metadata": {"name": "one", "generation": 3}});
    let gone =
        json!({"metadata": {"name": "one", "generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    vec![
        (
            json!({"metadata": {"name": "one", "generation": 1}}),
            "Progressing",
        ),
        (object(&[("Ready", "True", "Ready")], &none), "Healthy"),
        (object(&[("Available", "True", "Available")], &none), "Healthy"),
        (
            object(&[("Ready", "False", "SomethingOnItsWay")], &none),
            "Progressing",
        ),
        (object(&[("Ready", "Unknown", "")], &none), "Progressing"),
        // The reason of the model itself that every kind has.
        (object(&[("Ready", "False", "NotFound")], &none), "Degraded"),
        (object(&[("Ready", "True", "Ready")], &later), "Progressing"),
        (object(&[("Ready", "True", "Ready")], &gone), "Progressing"),
        (
            object(
                &[("Ready", "False", "NotReady"), ("Paused", "True", "Paused")],
                &none,
            ),
            "Suspended",
        ),
        (
            json!({"metadata": {"name": "one"}, "status": {
                "conditions": [{"type": "Ready", "status": "False", "reason": "Broken", "severity": "Error"}]}}),
            "Degraded",
        ),
        // The newer form goes before the older.
        (
            json!({"metadata": {"name": "one"}, "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "v1beta2": {"conditions": [{"type": "Ready", "status": "False", "reason": "Updating"}]}}}),
            "Progressing",
        ),
    ]
}

#[test]
fn every_kind_has_a_health_rule_that_argo_cd_can_run() {
    let Some(interpreter) = program("running health rules", &["lua5.1", "lua5.4", "lua5.3", "luajit"]) else {
        return;
    };
    let rules = health_rules(&providers());
    assert!(rules.len() > 20, "{} rules", rules.len());
    let (mut script, mut expected) = (String::new(), Vec::new());
    for (key, rule) in &rules {
        // Templates and the like are as they are written.
        let is_plain = !rule.contains("summaries");
        for (object, state) in cases() {
            writeln!(script, "do\n  local function rule(obj)\n{rule}\n  end").expect("text");
            writeln!(script, "  print(rule({}).status)\nend", lua(&object)).expect("text");
            expected.push((key, object, if is_plain { "Healthy" } else { state }));
        }
    }
    let mut child = Command::new(interpreter)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("its input is piped");
    let writer = std::thread::spawn(move || input.write_all(script.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("it is written").expect("it is read");
    assert!(output.status.success(), "the rules do not run");
    let said = String::from_utf8(output.stdout).expect("text");
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said.len(), expected.len());
    for ((key, object, state), said) in expected.iter().zip(&said) {
        assert_eq!(said, state, "{key} of {object}");
    }
    println!(
        "report: health rules: {} kinds, {} objects",
        rules.len(),
        said.len()
    );
}

#[test]
fn an_alarm_of_an_upgrade_is_bad_news_to_argo_cd() {
    let rules = health_rules(&providers());
    let rule = &rules["resource.customizations.health.edge.slipway.dev_ClusterUpgrade"];
    assert!(rule.contains("local alarms = { \"Halted\" }"), "{rule}");
}

#[test]
fn prometheus_takes_the_alerts_and_the_queries_of_every_dashboard() {
    let Some(promtool) = program("checking alerts", &["promtool"]) else {
        return;
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/monitoring");
    let mut rules = Vec::new();
    for entry in fs::read_dir(&folder).expect("it is rendered") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("it can be read");
        let dashboard: Value = serde_json::from_str(&text).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        for target in panels
            .iter()
            .flat_map(|panel| panel["targets"].as_array().expect("targets"))
        {
            // A variable stands for what Grafana puts in.
            let query = target["expr"]
                .as_str()
                .expect("a query")
                .replace("$namespace", ".*");
            rules.push(json!({"record": format!("query{}", rules.len()), "expr": query}));
        }
    }
    assert!(rules.len() > 30, "{} queries", rules.len());
    let written = tempfile::NamedTempFile::new().expect("a file");
    let queries = json!({"groups": [{"name": "queries", "rules": rules}]});
    fs::write(written.path(), queries.to_string()).expect("it can be written");
    for path in [folder.join("alerts.yaml"), written.path().to_owned()] {
        let output = Command::new(&promtool)
            .args(["check", "rules"])
            .arg(&path)
            .output()
            .expect("it runs");
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", path.display());
    }
    println!("report: promtool accepts the alerts and {} queries", rules.len());
}
