//! What the manager is made of, as a CycloneDX bill of materials: every crate that is linked into it, with its version,
//! licence, checksum and what it needs. Made from cargo's own metadata; the same lock file gives the same bill.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::bench::upstream::root;

const PACKAGE: &str = "slipway";
const PLATFORM: &str = "x86_64-unknown-linux-musl";

pub fn write(path: &Path) -> Result<()> {
    let output = Command::new(env!("CARGO"))
        .current_dir(root())
        .args([
            "metadata",
            "--locked",
            "--format-version=1",
            "--filter-platform",
            PLATFORM,
        ])
        .output()
        .context("running cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    let lock = fs::read_to_string(root().join("Cargo.lock")).context("reading Cargo.lock")?;
    let bill = bill(&metadata, &checksums(&lock))?;
    let count = bill["components"].as_array().map_or(0, Vec::len);
    fs::write(path, serde_json::to_string_pretty(&bill)? + "\n")
        .with_context(|| format!("writing {}", path.display()))?;
    println!("{}: {count} components", path.display());
    Ok(())
}

/// SHA-256 of each crate as it was downloaded, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for block in lock.split("[[package]]") {
        let field = |name: &str| {
            let prefix = format!("{name} = \"");
            block
                .lines()
                .find_map(|line| Some(line.strip_prefix(&prefix)?.trim_end_matches('"').to_owned()))
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (field("name"), field("version"), field("checksum"))
        {
            found.insert((name, version), checksum);
        }
    }
    found
}

/// The bill of our package, from cargo's metadata.
fn bill(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Result<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let needs: BTreeMap<String, Vec<String>> = list(&metadata["resolve"]["nodes"])
        .iter()
        .map(|node| (text(&node["id"]), linked(node)))
        .collect();
    let subject = packages
        .iter()
        .find(|(_, package)| package["name"] == PACKAGE)
        .map(|(id, _)| id.clone())
        .context("cargo metadata does not name our package")?;

    let mut reached = BTreeSet::from([subject.clone()]);
    let mut open = vec![subject.clone()];
    while let Some(id) = open.pop() {
        for next in needs.get(&id).into_iter().flatten() {
            if reached.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    let reference = |id: &String| -> Result<String> {
        let package = packages
            .get(id)
            .with_context(|| format!("cargo metadata has no package {id}"))?;
        Ok(format!(
            "pkg:cargo/{}@{}",
            text(&package["name"]),
            text(&package["version"])
        ))
    };
    let component = |id: &String| -> Result<Value> {
        let package = &packages[id];
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let mut component = json!({
            "type": if *id == subject { "application" } else { "library" },
            "bom-ref": reference(id)?,
            "name": name,
            "version": version,
            "purl": reference(id)?,
        });
        if let Some(license) = package["license"].as_str() {
            // Some old crates separate alternatives by a slash, which SPDX does not know.
            component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
        }
        if let Some(checksum) = checksums.get(&(name.clone(), version)) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        } else if !package["source"].is_null() {
            bail!("{name} comes from elsewhere and has no checksum in Cargo.lock");
        }
        Ok(component)
    };
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for id in &reached {
        if *id != subject {
            components.push(component(id)?);
        }
        let mut on = needs
            .get(id)
            .into_iter()
            .flatten()
            .map(&reference)
            .collect::<Result<Vec<_>>>()?;
        on.sort();
        on.dedup();
        dependencies.push(json!({"ref": reference(id)?, "dependsOn": on}));
    }
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(&subject)?},
        "components": components,
        "dependencies": dependencies,
    }))
}

/// What a package is linked with: neither what only tests need nor what only builds it.
fn linked(node: &Value) -> Vec<String> {
    node["deps"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|dependency| {
            let mut kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            kinds.any(|kind| kind["kind"].is_null())
        })
        .filter_map(|dependency| dependency["pkg"].as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(source: &str) -> Value {
        let node = |id: &str, deps: &[(&str, Value)]| {
            let deps: Vec<Value> = deps
                .iter()
                .map(|(id, kind)| json!({"pkg": id, "dep_kinds": [{"kind": kind}]}))
                .collect();
            json!({"id": id, "deps": deps})
        };
        json!({
            "packages": [
                {"id": "a", "name": "slipway", "version": "0.1.0", "license": "Apache-2.0", "source": null},
                {"id": "b", "name": "linked", "version": "1.0.0", "license": "MIT/Apache-2.0", "source": source},
                {"id": "c", "name": "tests-only", "version": "1.0.0", "source": source},
                {"id": "d", "name": "deeper", "version": "2.0.0", "source": source},
            ],
            "resolve": {"nodes": [
                node("a", &[("b", Value::Null), ("c", json!("dev"))]),
                node("b", &[("d", Value::Null), ("c", json!("build"))]),
                node("c", &[]),
                node("d", &[]),
            ]},
        })
    }

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"linked\"\nversion = \"1.0.0\"\nchecksum = \"aa\"\n\n\
        [[package]]\nname = \"deeper\"\nversion = \"2.0.0\"\nchecksum = \"bb\"\n";

    #[test]
    fn what_is_linked_is_listed_and_nothing_else() {
        let bill = bill(&metadata("registry"), &checksums(LOCK)).expect("a bill");
        let names: Vec<&Value> = bill["components"]
            .as_array()
            .expect("components")
            .iter()
            .map(|component| &component["name"])
            .collect();
        assert_eq!(names, ["linked", "deeper"]);
        assert_eq!(bill["metadata"]["component"]["type"], "application");
        assert_eq!(
            bill["components"][0]["licenses"],
            json!([{"expression": "MIT OR Apache-2.0"}])
        );
        assert_eq!(bill["components"][0]["hashes"][0]["content"], "aa");
        assert_eq!(
            bill["dependencies"],
            json!([
                {"ref": "pkg:cargo/slipway@0.1.0", "dependsOn": ["pkg:cargo/linked@1.0.0"]},
                {"ref": "pkg:cargo/linked@1.0.0", "dependsOn": ["pkg:cargo/deeper@2.0.0"]},
                {"ref": "pkg:cargo/deeper@2.0.0", "dependsOn": []},
            ])
        );
    }

    #[test]
    fn a_crate_without_a_checksum_is_named() {
        let error = bill(&metadata("registry"), &BTreeMap::new()).expect_err("no checksum");
        assert!(
            error.to_string().contains("has no checksum in Cargo.lock"),
            "{error}"
        );
    }

    /// Every reference in the bill of what really ships points at something in it.
    #[test]
    fn the_bill_of_the_manager_is_whole() {
        let folder = tempfile::tempdir().expect("a temporary directory can be made");
        let path = folder.path().join("slipway.cdx.json");
        write(&path).expect("it can be written");
        let bill: Value = serde_json::from_slice(&fs::read(&path).expect("it is there")).expect("JSON");
        let components = bill["components"].as_array().expect("components");
        let mut known: Vec<&str> = components
            .iter()
            .chain([&bill["metadata"]["component"]])
            .filter_map(|component| component["bom-ref"].as_str())
            .collect();
        let count = known.len();
        known.sort_unstable();
        known.dedup();
        assert_eq!(known.len(), count, "every component once");
        assert!(
            known
                .iter()
                .any(|reference| reference.starts_with("pkg:cargo/kube@"))
        );
        assert!(
            !known.iter().any(|reference| reference.contains("testbed")),
            "tests are not shipped"
        );
        for dependency in bill["dependencies"].as_array().expect("dependencies") {
            for reference in dependency["dependsOn"]
                .as_array()
                .expect("a list")
                .iter()
                .chain([&dependency["ref"]])
            {
                let reference = reference.as_str().expect("text");
                assert!(
                    known.binary_search(&reference).is_ok(),
                    "{reference} is not in the bill"
                );
            }
        }
    }
}
