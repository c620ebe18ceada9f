//! What `slipway describe` shows beside the real `clusterctl describe`, of the same cluster: nothing that clusterctl shows is missing.

use std::{collections::BTreeMap, process::Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use slipway_testbed::Cluster;
use tokio::process::Command;

/// One object as clusterctl shows it.
#[derive(Debug, Default)]
struct Shown {
    kind: String,
    name: String,
    /// Replicas, available, ready and up to date, as far as they are there.
    numbers: [Option<String>; 4],
    conditions: Vec<ShownCondition>,
}

#[derive(Debug, Default)]
struct ShownCondition {
    name: String,
    status: String,
    reason: String,
    /// A message is broken into lines.
    message: Vec<String>,
}

/// The text in a column, by where its heading begins.
struct Columns(Vec<(String, usize)>);

impl Columns {
    fn of(heading: &str) -> Self {
        let names = [
            "NAME",
            "REPLICAS",
            "AVAILABLE",
            "READY",
            "UP TO DATE",
            "STATUS",
            "REASON",
            "SINCE",
            "MESSAGE",
        ];
        let at = |name: &&str| Some(((*name).to_owned(), heading.find(name)?));
        Self(names.iter().filter_map(at).collect())
    }

    /// Rows have letters of several bytes, headings have none.
    fn cell(&self, row: &[char], name: &str) -> String {
        let Some(index) = self.0.iter().position(|(known, _)| known == name) else {
            return String::new();
        };
        let from = self.0[index].1.min(row.len());
        let to = self
            .0
            .get(index + 1)
            .map_or(row.len(), |(_, at)| (*at).min(row.len()));
        row[from..to].iter().collect::<String>().trim().to_owned()
    }
}

fn parsed(text: &str) -> Result<Vec<Shown>> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("NAME"));
    let columns = Columns::of(lines.next().context("clusterctl shows a heading")?);
    let mut all: Vec<Shown> = Vec::new();
    for line in lines {
        let row: Vec<char> = line.chars().collect();
        let cell = |name| columns.cell(&row, name);
        let name = cell("NAME");
        let name = name.trim_start_matches([' ', '│', '├', '└', '─']).to_owned();
        let message = cell("MESSAGE");
        let status = cell("STATUS");
        // What a name stands for goes before it: `ControlPlane - KThreesControlPlane/edge`.
        let object = name
            .rsplit(" - ")
            .next()
            .unwrap_or(&name)
            .trim_start_matches("!! DELETED !! ");
        if let Some((kind, name)) = object.split_once('/') {
            let numbers = ["REPLICAS", "AVAILABLE", "READY", "UP TO DATE"];
            all.push(Shown {
                kind: kind.to_owned(),
                name: name.to_owned(),
                numbers: numbers.map(|name| Some(cell(name)).filter(|text| !text.is_empty())),
                conditions: Vec::new(),
            });
            continue;
        }
        let Some(last) = all.last_mut() else { continue };
        if !name.is_empty() && ["True", "False", "Unknown"].contains(&status.as_str()) {
            last.conditions.push(ShownCondition {
                name,
                status,
                reason: cell("REASON"),
                message: Vec::new(),
            });
        }
        if let Some(condition) = last.conditions.last_mut().filter(|_| !message.is_empty()) {
            condition.message.push(message);
        }
    }
    Ok(all)
}

fn flat<'a>(node: &'a Value, into: &mut BTreeMap<(String, String), &'a Value>) {
    let text = |name: &str| node[name].as_str().unwrap_or_default().to_owned();
    into.insert((text("kind"), text("name")), node);
    for child in node["children"].as_array().into_iter().flatten() {
        flat(child, into);
    }
}

fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A status may be written between one answer and the other: then both are asked once more, so often.
const TIMES: usize = 5;

/// Compares both for one Cluster that is at rest, says how much there was, and answers with what `slipway describe` printed.
pub async fn nothing_is_missing(
    cluster: &Cluster,
    binary: &str,
    namespace: &str,
    name: &str,
) -> Result<String> {
    for _ in 1..TIMES {
        if let Ok(text) = compared(cluster, binary, namespace, name).await {
            return Ok(text);
        }
    }
    compared(cluster, binary, namespace, name).await
}

async fn compared(cluster: &Cluster, binary: &str, namespace: &str, name: &str) -> Result<String> {
    let theirs = cluster
        .clusterctl(&[
            "describe",
            "cluster",
            name,
            "--namespace",
            namespace,
            "--show-conditions=all",
            "--show-machinesets",
            "--show-templates",
            "--show-resourcesets",
            "--grouping=false",
            "--echo",
            "--color=false",
        ])
        .await?;
    let ours = Command::new(binary)
        .args([
            "describe",
            name,
            "--namespace",
            namespace,
            "--show-all",
            "--output=json",
            "--kubeconfig",
        ])
        .arg(cluster.kubeconfig())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let code = ours.status.code();
    ensure!(
        matches!(code, Some(0 | 3 | 4)),
        "{code:?}: {}",
        String::from_utf8_lossy(&ours.stderr)
    );
    let text = String::from_utf8(ours.stdout)?;
    let ours: Value = serde_json::from_str(&text)?;
    let mut nodes = BTreeMap::new();
    flat(&ours["root"], &mut nodes);
    let (mut missing, mut conditions, mut numbers) = (Vec::new(), 0, 0);
    let all = parsed(&theirs)?;
    ensure!(all.len() > 2, "clusterctl shows little:\n{theirs}");
    for object in &all {
        let what = format!("{}/{}", object.kind, object.name);
        let Some(node) = nodes.get(&(object.kind.clone(), object.name.clone())) else {
            missing.push(what);
            continue;
        };
        // A Machine is one; what clusterctl counts of it are its conditions.
        if object.kind != "Machine" {
            let counts = &node["counts"];
            let of = |name: &str| counts[name].as_i64().unwrap_or(0).to_string();
            let replicas = format!("{}/{}", of("current"), of("desired"));
            let known = [replicas, of("available"), of("ready"), of("upToDate")];
            for (theirs, ours) in object.numbers.iter().zip(known) {
                let Some(theirs) = theirs else { continue };
                numbers += 1;
                if *theirs != ours {
                    missing.push(format!("{what}: {theirs} is {ours} in {counts}"));
                }
            }
        }
        for condition in &object.conditions {
            conditions += 1;
            let mut known = node["conditions"].as_array().into_iter().flatten();
            let is_there = known.any(|one| {
                let message = squeezed(one["message"].as_str().unwrap_or_default());
                one["type"] == condition.name.as_str()
                    && one["status"] == condition.status.as_str()
                    && one["reason"].as_str().unwrap_or_default() == condition.reason
                    && condition
                        .message
                        .iter()
                        .all(|line| message.contains(&squeezed(line)))
            });
            if !is_there {
                missing.push(format!("{what}: {condition:?} in {}", node["conditions"]));
            }
        }
    }
    ensure!(
        missing.is_empty(),
        "slipway describe does not show:\n{}\n{theirs}",
        missing.join("\n")
    );
    println!(
        "report: describe beside clusterctl: of {name} everything: {} objects of {}, {numbers} numbers, {conditions} conditions",
        all.len(),
        nodes.len()
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clusterctl_prints_is_read() -> Result<()> {
        let text = "\
NAME                                     REPLICAS AVAILABLE READY UP TO DATE STATUS REASON       SINCE MESSAGE
Cluster/edge                             3/4      3         3     4
│           ├─Available                                                      False  NotAvailable 2m    * WorkersAvailable:
│           │                                                                                          * 1 of 2
│           └─Paused                                                         False  NotPaused    2m
├─ControlPlane - KThreesControlPlane/edge
└─Workers
  └─!! DELETED !! Machine/edge-a         1        1         1     1          True   Ready        1m
";
        let all = parsed(text)?;
        let names: Vec<String> = all
            .iter()
            .map(|one| format!("{}/{}", one.kind, one.name))
            .collect();
        assert_eq!(
            names,
            ["Cluster/edge", "KThreesControlPlane/edge", "Machine/edge-a"]
        );
        assert_eq!(
            all[0].numbers.each_ref().map(Option::as_deref),
            [Some("3/4"), Some("3"), Some("3"), Some("4")]
        );
        assert_eq!(all[0].conditions.len(), 2);
        assert_eq!(all[0].conditions[0].message, ["* WorkersAvailable:", "* 1 of 2"]);
        assert_eq!(all[0].conditions[1].reason, "NotPaused");
        Ok(())
    }
}
