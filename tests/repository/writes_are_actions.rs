//! A provider writes in the `act` of a kind and nowhere else: what is written is in the plan. What providers share may hold
//! functions that write, each in a file that is named here, and only an `act` calls them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use regex::Regex;

/// Whose sources are read.
const PROVIDERS: &[&str] = &[
    "crates/aks/src",
    "crates/aso/src",
    "crates/autoscaler/src",
    "crates/edge/src",
    "crates/k3s/src",
    "tests/src/toy",
];

/// What providers share, and which files of it write: whoever calls them is an `act`, or is named here.
const SHARED: &[&str] = &["crates/azure/src", "crates/capi/src"];
const WRITERS: &[(&str, &str)] = &[
    (
        "crates/azure/src/credential/service_account.rs",
        "a TokenRequest signs in and stores nothing",
    ),
    ("crates/azure/src/engine.rs", "one resource of Azure"),
    ("crates/azure/src/engine/ensure.rs", "one resource of Azure"),
    (
        "crates/azure/src/machine/act.rs",
        "the Machines of a pool's VMs, as its plan says",
    ),
    (
        "crates/azure/src/reconcile/step.rs",
        "one resource of Azure, with its record",
    ),
    ("crates/azure/src/takeover.rs", "detaches objects of others"),
    (
        "crates/azure/src/workload/cluster_info.rs",
        "one ConfigMap of a workload cluster",
    ),
    (
        "crates/azure/src/workload/kubeconfig.rs",
        "AKS hands out credentials by POST, which changes nothing",
    ),
    ("crates/capi/src/apply.rs", "server-side apply"),
    (
        "crates/capi/src/finalizer.rs",
        "the finalizer of an object that is not reconciled",
    ),
    (
        "crates/capi/src/frame/reconcile.rs",
        "the frame: finalizer, move, status",
    ),
    (
        "crates/capi/src/hook/client.rs",
        "runtime extensions are asked by POST",
    ),
    ("crates/capi/src/hook/prepare.rs", "a dry run"),
    ("crates/capi/src/in_place/mod.rs", "starts an update in place"),
    ("crates/capi/src/secret/store.rs", "Secrets"),
];

/// What still writes elsewhere, and until when. One that is no longer needed fails the test.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// A write: the parameters that kube wants for one, the context's writes, those of `slipway-capi`, those of Azure.
static WRITE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?x)
        \b(PostParams|PatchParams|DeleteParams)\b
        | context \s* \. \s* (apply|create|patch|delete)\w* \s* \(
        | \b(finalizer|apply|store|in_place) :: (ensure|release|create|apply|merge|trigger|perform|bootstrap_data) \s* \(
        | \b(step|seen) :: (ensure|delete) \s* \(
        | \barm \s* \. \s* (ensure|delete) \s* \(
        | \btakeover \s* \. \s* detach \s* \(
        | \bpublication \s* \. \s* write \s* \(
        | \bclient(\(\))? \s* \. \s* (put|post|patch|delete) \s* \(",
    )
    .expect("a pattern")
});

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether everything in the file is an action: `act.rs`, or below a folder `act`.
fn is_act(path: &Path) -> bool {
    path.file_stem().is_some_and(|name| name == "act")
        || path.parent().is_some_and(|folder| folder.ends_with("act"))
}

/// The writes in a text, without its tests.
fn writes(text: &str) -> Vec<&str> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    WRITE.find_iter(code).map(|found| found.as_str()).collect()
}

#[test]
fn providers_write_in_their_actions_alone() {
    let mut needed = BTreeSet::new();
    let mut wrong = Vec::new();
    let mut acts = 0;
    for provider in PROVIDERS {
        let mut files = Vec::new();
        sources(&root().join(provider), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).expect("a source");
            let found = writes(&text);
            if found.is_empty() {
                continue;
            }
            if is_act(&file) {
                acts += 1;
                continue;
            }
            let path = file.strip_prefix(root()).expect("below the root").to_path_buf();
            match EXCEPTIONS
                .iter()
                .find(|(exception, _)| path.starts_with(exception))
            {
                Some((exception, _)) => {
                    needed.insert(*exception);
                }
                None => wrong.push(format!("{}: {}", path.display(), found.join(", "))),
            }
        }
    }
    assert!(acts > 0, "the pattern finds no writes at all");
    assert!(wrong.is_empty(), "writes outside of `act`:\n{}", wrong.join("\n"));
    let stale: Vec<_> = EXCEPTIONS
        .iter()
        .filter(|(exception, _)| !needed.contains(exception))
        .collect();
    assert!(stale.is_empty(), "exceptions nobody needs: {stale:?}");
}

#[test]
fn what_providers_share_writes_in_files_that_are_known() {
    let mut found = BTreeSet::new();
    for folder in SHARED {
        let mut files = Vec::new();
        sources(&root().join(folder), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).expect("a source");
            let is_test = file.file_stem().is_some_and(|name| name == "tests");
            if !is_test && !writes(&text).is_empty() {
                let path = file.strip_prefix(root()).expect("below the root");
                found.insert(path.display().to_string());
            }
        }
    }
    let known: BTreeSet<String> = WRITERS.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(found, known, "left: what writes, right: what is known to");
}

#[test]
fn writes_are_recognised() {
    for text in [
        "api.create(&PostParams::default(), &object)",
        "self.context\n    .patch(&object, &patch)",
        "context.patch_status(object, &status)",
        "finalizer::ensure(&api, object, FINALIZER)",
        "store::bootstrap_data(client, config, cluster, format, data)",
        "arm.delete(&id, version)",
        "session.arm.client()\n.post(&id)",
        "takeover\n    .detach(&object)",
        "publication.write().await",
    ] {
        assert_eq!(writes(text).len(), 1, "{text}");
    }
    for text in [
        "text.replace('a', \"b\")",
        "context.informers.get(scope)",
        "api.get_opt(name)",
        "fine();\n#[cfg(test)]\nmod tests { PostParams }",
    ] {
        assert_eq!(writes(text), [""; 0], "{text}");
    }
}
