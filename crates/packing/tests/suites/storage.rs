//! The lines of a case that are about volumes, namespaces, owners and budgets of pods.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slipway_packing::model::Snapshot;

use super::words;

/// False if the line is not of this kind.
pub fn set_up(snapshot: &mut Snapshot, line: &[&str]) -> bool {
    match line[0] {
        "class" => snapshot.storage_classes.push(read(&class(&line[1..]))),
        "pvc" => snapshot
            .persistent_volume_claims
            .extend(claims(&line[1..]).iter().map(read)),
        "pv" => snapshot.persistent_volumes.push(read(&volume(&line[1..]))),
        "namespace" => {
            let labels = line
                .get(2)
                .map_or_else(Default::default, |word| words::label_map(words::option(word).1));
            snapshot
                .namespaces
                .push(read(&json!({"metadata": {"name": line[1], "labels": labels}})));
        }
        // `service app=web ns:other`; `-` is an empty selector, `nil` none
        "service" => {
            let selector = match line[1] {
                "nil" => Value::Null,
                "-" => json!({}),
                text => json!(words::label_map(text)),
            };
            let namespace = line.get(2).map_or("default", |word| words::option(word).1);
            snapshot.services.push(read(
                &json!({"metadata": {"name": "service", "namespace": namespace}, "spec": {"selector": selector}}),
            ));
        }
        // `replicaset name app=web` or `app!=other`
        "replicaset" | "statefulset" | "replicationcontroller" => {
            let (api, kind) = match line[0] {
                "replicaset" => ("apps/v1", "ReplicaSet"),
                "statefulset" => ("apps/v1", "StatefulSet"),
                _ => ("v1", "ReplicationController"),
            };
            let selector = if line[2].contains("!=") {
                json!({"matchExpressions": words::requirements(line[2])})
            } else {
                json!({"matchLabels": words::label_map(line[2])})
            };
            snapshot
                .controllers
                .push(read(&json!({"apiVersion": api, "kind": kind,
                "metadata": {"name": line[1], "namespace": "default", "uid": format!("uid-{}", line[1])},
                "spec": {"selector": selector}})));
        }
        // `pdb name app=web allowed`
        "pdb" => {
            let labels = words::label_map(line[2]);
            let allowed: i32 = line[3].parse().expect("a number of pods");
            let mut budget = json!({
                "metadata": {"name": line[1], "namespace": "default"},
                "spec": {"selector": {"matchLabels": labels}},
                "status": {"disruptionsAllowed": allowed}});
            for word in line.iter().skip(4) {
                let (name, rest) = words::option(word);
                let value = rest
                    .parse::<i64>()
                    .map_or_else(|_| json!(rest), |number| json!(number));
                match name {
                    "ns" => budget["metadata"]["namespace"] = json!(rest),
                    "most" => budget["spec"]["maxUnavailable"] = value,
                    "least" => budget["spec"]["minAvailable"] = value,
                    policy => budget["spec"]["unhealthyPodEvictionPolicy"] = json!(policy),
                }
            }
            snapshot.pod_disruption_budgets.push(read(&budget));
        }
        _ => return false,
    }
    true
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{value}: {error}"))
}

/// `name by:driver zones:z1|z2 immediate default created:TIME topo:zone=z1|z2&other=x`
fn class(line: &[&str]) -> Value {
    let mut class = json!({"metadata": {"name": line[0]}, "provisioner": "other-provider",
        "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": []});
    for word in &line[1..] {
        let (name, rest) = words::option(word);
        match name {
            "by" => class["provisioner"] = json!(rest),
            "zones" => {
                let zones: Vec<String> = rest.split('|').map(words::value).collect();
                class["allowedTopologies"] =
                    json!([{"matchLabelExpressions": [{"key": words::key("zone"), "values": zones}]}]);
            }
            "topo" => {
                let terms: Vec<Value> = words::requirements(rest)
                    .iter()
                    .map(|own| json!({"key": own.key, "values": own.values}))
                    .collect();
                let all = class["allowedTopologies"].as_array_mut().expect("a list");
                all.push(json!({ "matchLabelExpressions": terms }));
            }
            "immediate" => class["volumeBindingMode"] = json!("Immediate"),
            "default" => {
                class["metadata"]["annotations"] =
                    json!({"storageclass.kubernetes.io/is-default-class": "true"});
            }
            "created" => class["metadata"]["creationTimestamp"] = json!(rest),
            other => panic!("unknown word for a class: {other}"),
        }
    }
    class
}

/// `name*10 class:fast volume:disk lost deleting unbound`
fn claims(line: &[&str]) -> Vec<Value> {
    let names: Vec<String> = match line[0].split_once('*') {
        Some((name, count)) => (0..count.parse::<usize>().expect("a number"))
            .map(|index| format!("{name}-{index}"))
            .collect(),
        None => vec![line[0].to_owned()],
    };
    names.iter().map(|name| claim(name, &line[1..])).collect()
}

fn claim(name: &str, line: &[&str]) -> Value {
    let mut claim = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {}, "status": {}});
    for word in line {
        let (name, rest) = words::option(word);
        match name {
            "class" => claim["spec"]["storageClassName"] = json!(rest),
            "volume" => {
                claim["spec"]["volumeName"] = json!(rest);
                claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
            }
            "unbound" => claim["metadata"]["annotations"] = json!({}),
            "lost" => claim["status"]["phase"] = json!("Lost"),
            "deleting" => claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            "ns" => claim["metadata"]["namespace"] = json!(rest),
            other => panic!("unknown word for a claim: {other}"),
        }
    }
    claim
}

/// `name zones:z1 by:driver term:zone=z1&… nfs local host-path deleting`; every `term` is an alternative.
fn volume(line: &[&str]) -> Value {
    let mut volume = json!({"metadata": {"name": line[0]}, "spec": {"csi": {"driver": "test.driver"}}});
    let mut terms: Vec<Value> = Vec::new();
    for word in &line[1..] {
        let (name, rest) = words::option(word);
        match name {
            "zones" => {
                let zones: Vec<String> = rest.split('|').map(words::value).collect();
                terms.push(json!({"matchExpressions": [{"key": words::key("zone"), "operator": "In", "values": zones}]}));
            }
            "term" => terms.push(json!({"matchExpressions": words::requirements(rest)})),
            "by" => volume["spec"]["csi"]["driver"] = json!(rest),
            "nfs" => volume["spec"]["csi"] = Value::Null,
            "local" => volume["spec"] = json!({"local": {}}),
            "host-path" => volume["spec"] = json!({"hostPath": {}}),
            "ebs" => volume["spec"] = json!({"awsElasticBlockStore": {}}),
            "deleting" => volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
            other => panic!("unknown word for a volume: {other}"),
        }
    }
    if !terms.is_empty() {
        volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
    }
    volume
}
