//! The templates that `clusterctl generate cluster` offers: their inline resources can be read, and the class names variables it has.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::Value;
use slipway_aso::{
    inline::{Inventory, Policy},
    provider::provider,
};

/// The documents of a template, with every variable of clusterctl set to something.
fn documents(name: &str) -> Vec<Value> {
    let provider = provider();
    let templates = &provider.packages[0].templates;
    let (_, text) = templates
        .iter()
        .find(|(file, _)| *file == name)
        .unwrap_or_else(|| panic!("{name} is not offered"));
    let variable = Regex::new(r"\$\{([A-Z_]+)(:=((?:\$\{[A-Z_]+\})|[^}]*))?\}").expect("a pattern");
    let mut text = (*text).to_owned();
    while let Some(found) = variable.captures(&text) {
        let value = if &found[1] == "KUBERNETES_VERSION" {
            "v1.33.3"
        } else {
            "one"
        };
        let whole = found.get(0).expect("a match").range();
        text.replace_range(whole, value);
    }
    text.split("\n---\n")
        .map(|part| serde_saphyr::from_str(part).expect("YAML"))
        .collect()
}

fn read(resources: &Value) -> usize {
    let all = resources.as_array().expect("resources");
    let found = Inventory::read(all, "ns", Policy::Manage);
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    found.items.len()
}

#[test]
fn the_flavor_is_made_of_resources_that_can_be_read() {
    let found = documents("cluster-template-aks-aso.yaml");
    let of = |kind: &str| found.iter().filter(|one| one["kind"] == kind).count();
    assert_eq!(
        (
            of("Cluster"),
            of("MachinePool"),
            of("Secret"),
            of("ServiceAccount")
        ),
        (1, 2, 1, 1)
    );
    let inline = found.iter().filter(|one| one["spec"]["resources"].is_array());
    assert_eq!(
        inline.map(|one| read(&one["spec"]["resources"])).sum::<usize>(),
        4
    );
}

#[test]
fn the_class_makes_resources_that_can_be_read_from_variables_it_has() {
    let found = documents("clusterclass-aks-aso.yaml");
    let class = &found[0]["spec"];
    let names = |value: &Value| -> BTreeSet<String> {
        let all = value.as_array().into_iter().flatten();
        all.filter_map(|one| one["name"].as_str())
            .map(str::to_owned)
            .collect()
    };
    let variables = names(&class["variables"]);
    let field = Regex::new(r"\{\{ \.([A-Za-z.]+) \}\}").expect("a pattern");
    let mut resources = 0;
    for patch in class["patches"].as_array().expect("patches") {
        for definition in patch["definitions"].as_array().expect("definitions") {
            let template = definition["jsonPatches"][0]["valueFrom"]["template"]
                .as_str()
                .expect("a template");
            for used in field.captures_iter(template) {
                let known = used[1].starts_with("builtin.") || variables.contains(&used[1]);
                assert!(known, "{} is no variable of the class", &used[1]);
            }
            let text = field.replace_all(template, "one");
            let value: Value = serde_saphyr::from_str(&text).expect("YAML");
            resources += read(value.get("resources").unwrap_or(&value));
        }
    }
    assert_eq!(resources, 4);
    let topology = documents("cluster-template-aks-aso-topology.yaml");
    let set = names(&topology[0]["spec"]["topology"]["variables"]);
    assert_eq!(set, variables, "the cluster sets what the class asks for");
}
