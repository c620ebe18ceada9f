//! Dashboards for Grafana and alerts for Prometheus, rendered from what is registered: a query that names a metric nobody has is a mistake
//! that rendering finds.

mod alerts;
mod panels;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use slipway_runtime::{Provider, metrics::Metrics, process, server};

use self::{
    alerts::{ALERTS, Alert},
    panels::{DASHBOARDS, Dashboard, Panel},
};
use super::{RenderError, yaml};

const FOLDER: &str = "monitoring";
/// Stands in queries for what a dashboard is narrowed to.
const SCOPE: &str = "SCOPE";
/// Grafana's grid has this many columns.
const COLUMNS: usize = 24;
const HEIGHT: usize = 8;

/// Every file by its path under `deploy/`. What is about metrics of providers that are not here is left out.
pub fn monitoring(providers: &[Provider]) -> Result<BTreeMap<PathBuf, String>, RenderError> {
    let known = known(providers);
    let mut files = BTreeMap::new();
    let folder = Path::new(FOLDER);
    for dashboard in DASHBOARDS {
        let queries = dashboard.panels.iter().flat_map(Panel::queries);
        if is_here(dashboard.name, queries, dashboard.of, &known)? {
            let text = format!("{:#}\n", drawn(dashboard));
            files.insert(folder.join(format!("{}.json", dashboard.name)), text);
        }
    }
    let mut rules = Vec::new();
    for alert in ALERTS {
        if is_here(alert.name, [alert.when], alert.of, &known)? {
            rules.push(ruled(alert));
        }
    }
    let rules = json!({"groups": [{"name": "slipway", "rules": rules}]});
    files.insert(folder.join("alerts.yaml"), yaml::document(&rules));
    Ok(files)
}

/// The metrics there are, as queries name them.
fn known(providers: &[Provider]) -> BTreeSet<String> {
    let metrics = Metrics::new();
    for provider in providers {
        (provider.metrics)(&metrics);
    }
    server::register_metrics(&metrics);
    process::register(&metrics);
    let mut known = BTreeSet::new();
    for metric in metrics.descriptions() {
        if metric.kind == "histogram" {
            known.extend(["_bucket", "_count", "_sum"].map(|end| format!("{}{end}", metric.name)));
        } else {
            known.insert(metric.name);
        }
    }
    known
}

/// The names in a query that are metrics: what stands before a selector.
fn named(query: &str) -> impl Iterator<Item = &str> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    query.match_indices('{').filter_map(move |(end, _)| {
        let before = &query[..end];
        let name = before.rsplit(|letter| !is_of_name(letter)).next()?;
        (!name.is_empty()).then_some(name)
    })
}

/// Whether what belongs to some provider's metrics is to be rendered; a metric of ours that does not exist is a mistake.
fn is_here<'a>(
    what: &str,
    queries: impl IntoIterator<Item = &'a str>,
    of: &str,
    known: &BTreeSet<String>,
) -> Result<bool, RenderError> {
    if !of.is_empty() && !known.iter().any(|name| name.starts_with(of)) {
        return Ok(false);
    }
    for query in queries {
        for name in named(query) {
            if !known.contains(name) {
                return Err(RenderError::Metric {
                    what: what.to_owned(),
                    metric: name.to_owned(),
                });
            }
        }
    }
    Ok(true)
}

/// A dashboard as Grafana takes it.
fn drawn(dashboard: &Dashboard) -> Value {
    let (mut column, mut row) = (0, 0);
    let mut panels = Vec::new();
    for (number, panel) in dashboard.panels.iter().enumerate() {
        if column + panel.width > COLUMNS {
            column = 0;
            row += HEIGHT;
        }
        panels.push(panel_of(panel, number + 1, column, row));
        column += panel.width;
    }
    json!({
        "uid": dashboard.name,
        "title": dashboard.title,
        "description": dashboard.says,
        "tags": ["slipway"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [
            {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
            {
                "name": "namespace",
                "label": "Namespace",
                "type": "query",
                "datasource": source(),
                "query": {"query": "label_values(slipway_build_info, namespace)", "refId": "namespace"},
                "refresh": 2,
                "multi": true,
                "includeAll": true,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            },
        ]},
        "panels": panels,
    })
}

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn panel_of(panel: &Panel, id: usize, column: usize, row: usize) -> Value {
    let targets: Vec<Value> = panel
        .lines
        .iter()
        .enumerate()
        .map(|(number, (query, legend))| {
            let letter = char::from(b'A' + u8::try_from(number).unwrap_or(0));
            json!({
                "refId": letter.to_string(),
                "datasource": source(),
                "expr": query.replace(SCOPE, "namespace=~\"$namespace\""),
                "legendFormat": legend,
            })
        })
        .collect();
    json!({
        "id": id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": source(),
        "gridPos": {"x": column, "y": row, "w": panel.width, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"showLegend": true, "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": targets,
    })
}

/// An alert as Prometheus takes it.
fn ruled(alert: &Alert) -> Value {
    json!({
        "alert": alert.name,
        "expr": alert.when.replace(&format!("{SCOPE},"), "").replace(SCOPE, ""),
        "for": alert.lasts,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.says},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_in_a_query_are_found() {
        let query = "sum by (a) (rate(one_total{SCOPE,code!~\"2..\"}[5m])) / sum(two_count{SCOPE}) > 0";
        assert_eq!(named(query).collect::<Vec<_>>(), ["one_total", "two_count"]);
    }

    #[test]
    fn without_providers_there_is_what_every_manager_has() {
        let files = monitoring(&[]).expect("every metric exists");
        let names: Vec<String> = files.keys().map(|path| path.display().to_string()).collect();
        assert_eq!(
            names,
            ["monitoring/alerts.yaml", "monitoring/slipway-manager.json"]
        );
    }

    #[test]
    fn a_metric_that_nobody_has_is_a_mistake() {
        let known = BTreeSet::from(["there_total".to_owned()]);
        let of = |query| is_here("a panel", [query], "", &known);
        assert_eq!(of("rate(there_total{SCOPE}[5m])"), Ok(true));
        let error = of("rate(gone_total{SCOPE}[5m])").expect_err("nobody has it");
        assert_eq!(
            error.to_string(),
            "a panel asks for the metric gone_total, which nobody registers"
        );
        assert_eq!(
            is_here("a panel", ["gone_total{SCOPE}"], "gone_", &known),
            Ok(false)
        );
    }
}
