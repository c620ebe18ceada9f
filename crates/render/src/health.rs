//! Health rules of Argo CD for our kinds, in Lua, from what the kinds register: which conditions sum up, which are alarms, and which
//! reasons nothing but a person can end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::PathBuf,
};

use serde_json::json;
use slipway_insight::{Catalogue, Kind, State};
use slipway_runtime::{Provider, provider::catalogue};

use super::yaml;

/// Of Lua as Argo CD runs it, which is 5.1. `SUMMARIES`, `ALARMS` and `STUCK` are put in.
const RULE: &str = r#"local summaries = {SUMMARIES}
local alarms = {ALARMS}
local stuck = {STUCK}

local function said(condition)
  local text = condition.reason or ""
  if condition.message ~= nil and condition.message ~= "" then
    text = text .. ": " .. condition.message
  end
  return text
end

local status = obj.status or {}
local all = {}
local seen = status.observedGeneration
local lists = { status.conditions }
if status.v1beta2 ~= nil then
  lists = { status.conditions, status.v1beta2.conditions }
end
for index = 1, 2 do
  for _, condition in ipairs(lists[index] or {}) do
    all[condition.type] = condition
    if condition.observedGeneration ~= nil and (seen == nil or condition.observedGeneration > seen) then
      seen = condition.observedGeneration
    end
  end
end

if all["Paused"] ~= nil and all["Paused"].status == "True" then
  return { status = "Suspended", message = said(all["Paused"]) }
end
if obj.metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = "it is being deleted" }
end
for _, name in ipairs(alarms) do
  if all[name] ~= nil and all[name].status == "True" then
    return { status = "Degraded", message = said(all[name]) }
  end
end
if seen ~= nil and obj.metadata.generation ~= nil and seen < obj.metadata.generation then
  return { status = "Progressing", message = "its newest generation was not looked at yet" }
end
local found = false
for _, name in ipairs(summaries) do
  local condition = all[name]
  if condition ~= nil then
    found = true
    if condition.status ~= "True" then
      if stuck[condition.reason or ""] or condition.severity == "Error" then
        return { status = "Degraded", message = said(condition) }
      end
      return { status = "Progressing", message = said(condition) }
    end
  end
end
if found then
  return { status = "Healthy", message = "" }
end
return { status = "Progressing", message = "no controller has written its conditions" }
"#;

/// Has no state of its own: it is as it is written.
const PLAIN: &str = "return { status = \"Healthy\", message = \"\" }\n";

/// Every kind of ours with its rule, by the key that Argo CD has for it.
pub fn rules(providers: &[Provider]) -> BTreeMap<String, String> {
    let known = catalogue(providers);
    let mut rules = BTreeMap::new();
    for package in providers.iter().flat_map(|provider| &provider.packages) {
        for crd in &package.crds {
            let (group, kind) = (&crd.spec.group, &crd.spec.names.kind);
            rules.insert(
                format!("resource.customizations.health.{group}_{kind}"),
                rule(&known, group, kind),
            );
        }
    }
    rules
}

fn rule(known: &Catalogue, group: &str, kind: &str) -> String {
    if kind.ends_with("Template") || !known.has_conditions(kind) {
        return PLAIN.to_owned();
    }
    let of_kind = |one: &&Kind| one.group == group && one.kind == kind;
    let registered = known.kinds().find(of_kind).copied();
    let mut summaries = vec!["Ready", "Available"];
    summaries.extend(registered.iter().flat_map(|kind| kind.summaries));
    let alarms = registered.map_or(&[][..], |kind| kind.alarms);
    let stuck: BTreeSet<&str> = known
        .reasons()
        .filter(|reason| reason.state == State::Stuck && reason.says.is_empty() && !reason.name.is_empty())
        .filter(|reason| reason.kinds.is_empty() || reason.kinds.contains(&kind))
        .map(|reason| reason.name)
        .collect();
    let list = |names: &[&str]| -> String {
        let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        format!("{{ {} }}", quoted.join(", "))
    };
    let mut set = "{\n".to_owned();
    for name in stuck {
        // Writing to a string cannot fail.
        let _ = writeln!(set, "  [{name:?}] = true,");
    }
    set.push('}');
    RULE.replace("{SUMMARIES}", &list(&summaries))
        .replace("{ALARMS}", &list(alarms))
        .replace("{STUCK}", &set)
}

/// The file under `deploy/`: to be merged into the ConfigMap `argocd-cm`.
pub fn health(providers: &[Provider]) -> BTreeMap<PathBuf, String> {
    let rules = rules(providers);
    if rules.is_empty() {
        return BTreeMap::new();
    }
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "argocd-cm", "namespace": "argocd"},
        "data": rules,
    });
    [(PathBuf::from("argocd/argocd-cm.yaml"), yaml::document(&map))].into()
}
