//! Words of our own that gave way to the field's stay away: names of types and modules, identifiers and phrases, each exact.
//! English words as such are free. And a name that was once given to many things names one.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use regex::Regex;

/// Types and modules: the definition, where, and what to say instead.
const DEFINITIONS: &[(&str, &str, &str)] = &[
    (
        r"(struct|enum|type) (Sight|Seen)",
        "",
        "ResourceState, Observation",
    ),
    ("(struct|enum|type) Motion", "", "OperationStatus"),
    ("(struct|enum|trait) Hands", "", "Executor"),
    ("(struct|enum) Round", "", "ReconcileResult"),
    ("(struct|enum) Taken", "", "StepResult"),
    ("(struct|enum) Scene", "", "ReconcileContext"),
    ("(struct|enum) Kept|mod kept", "", "Snapshot, or Stored…"),
    (
        "(struct|enum|trait|type) Door|mod doors?",
        "",
        "Transport, an injected client",
    ),
    (
        "(struct|trait) (Stage|Stand|Theatre|Book|Cue)|mod (stage|stand|theatre)",
        "",
        "simulator, test environment, recorder",
    ),
    ("(struct|enum) Peer|mod peers?", "", "upstream, or its name"),
    ("(struct|enum) Authorit(y|ies)|mod authority", "", "CA"),
    ("(struct|enum|mod) (Ghost|ghost)", "", "orphaned member"),
    ("(struct|enum) Person", "", "the kind of kubeconfig"),
    ("(struct|enum) Part", "crates/azure", "the kind of Azure resource"),
    ("(struct|enum) Marks|mod marks", "", "annotations, labels"),
    ("(struct|enum) Lent", "", "RoleGrant"),
    ("(struct|enum) (Newer|Older)[A-Z]", "", "V1Beta2…, V1Beta1…"),
    ("(struct|enum) Lesson", "", "RateLimitFeedback"),
    ("(struct|enum) Turn", "", "Permit"),
    ("(struct|enum) Lane", "", "Bucket"),
    (
        "(struct|enum) Refusal|mod refusal",
        "crates/azure",
        "ErrorResponse",
    ),
    ("(struct|enum) Refusal|mod refusal", "sim/azure", "ErrorResponse"),
    ("(struct|enum) Remedy", "", "RetryPolicy"),
    (
        "(struct|enum) Shape|mod shapes?",
        "crates/packing",
        "EquivalenceClass",
    ),
    (
        "(struct|enum) Pack(ed|er|ing)",
        "crates/runtime",
        "Compressed, Compressor",
    ),
];

/// Identifiers, in code but not in comments and strings: the word, where, and what to say instead.
const IDENTIFIERS: &[(&str, &str, &str)] = &[
    ("(un)?wanted", "", "desired"),
    ("patience", "", "timeout"),
    ("theatre", "", "environment"),
    ("lent|Lent", "", "role_grants"),
    ("Sight|Motion|Hands|Round|Scene|Taken", "", "the field's word"),
    ("ghosts?|Ghosts?", "", "orphaned member"),
    ("remedy|remedies", "", "retry policy"),
    ("lanes?|lessons?", "crates/azure", "bucket, feedback"),
    ("authority|Authority", "crates/agent-api", "CA"),
    ("[A-Za-z]*Authority[A-Z][A-Za-z]*", "", "CA"),
];

/// Phrases, in code and prose.
const PHRASES: &[(&str, &str)] = &[
    (r"\banew\b", "again"),
    (
        r"(?m)\b(it|that|what|which) is (not )?so([.,;:)]|$)",
        "it holds, it is true",
    ),
    (
        r"\b(brings?|bringing|brought) (it |them )?back\b",
        "enqueue, requeue",
    ),
    (r"\b(next|last|first|every|each) look\b", "reconcile, read, poll"),
    (
        r"\b(is|are|was|were|been|be) looked at again\b",
        "reconciled again, read again",
    ),
    (r"\bghost members?\b", "orphaned member"),
    (r"slipway-memory", "slipway-apiserver-sim"),
    (r"slipway-race", "slipway-bench-runtime"),
    (r"\b[Tt]he peer\b", "upstream, or its name"),
];

/// Once eight, eight and six types: each names one thing.
const ONCE: &[&str] = &["Step", "Change", "Place"];

/// What has not been renamed yet. A line that nobody needs fails the test.
const NOT_YET: &[&str] = &[];

/// A connection's other end is a peer in every protocol, and so is a host that gives images to those beside it.
const PROTOCOL_PEERS: &[&str] = &["crates/agent", "docs/agent-api.md", "docs/edge"];

const ROOTS: &[&str] = &[
    "benches",
    "crates",
    "docs",
    "sim",
    "testbed",
    "tests",
    "xtask",
    "README.md",
    "CONTRIBUTING.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn texts(path: &Path, found: &mut BTreeMap<String, String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder").flatten() {
            texts(&entry.path(), found);
        }
    } else if path
        .extension()
        .is_some_and(|extension| extension == "rs" || extension == "md")
        && !path.ends_with(file!())
    {
        let name = path.strip_prefix(root()).expect("below the root");
        let text = fs::read_to_string(path).expect("text");
        found.insert(name.display().to_string(), text);
    }
}

fn all() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for name in ROOTS {
        texts(&root().join(name), &mut found);
    }
    found
}

static NO_CODE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r##"(?s)r#".*?"#|"(?:[^"\\]|\\.)*"|//[^\n]*"##).expect("a pattern"));

fn is_rust(path: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|extension| extension == "rs")
}

/// A pattern, where it counts, and what to say instead.
struct Retired {
    pattern: Regex,
    below: &'static str,
    in_code: bool,
    instead: &'static str,
}

static RETIRED: LazyLock<Vec<Retired>> = LazyLock::new(|| {
    let entry = |pattern: &str, below, in_code, instead| Retired {
        pattern: Regex::new(pattern).expect("a pattern"),
        below,
        in_code,
        instead,
    };
    let whole = |pattern: &str| format!(r"\b({pattern})\b");
    let definitions = DEFINITIONS
        .iter()
        .map(|(pattern, below, instead)| entry(&whole(pattern), below, true, instead));
    let identifiers = IDENTIFIERS
        .iter()
        .map(|(pattern, below, instead)| entry(&whole(pattern), below, true, instead));
    let phrases = PHRASES
        .iter()
        .map(|(pattern, instead)| entry(pattern, "", false, instead));
    definitions.chain(identifiers).chain(phrases).collect()
});

/// What is retired in a text, each once, as `what: say instead`.
fn retired(path: &str, text: &str) -> BTreeSet<String> {
    let code = if is_rust(path) {
        NO_CODE.replace_all(text, "\"\"")
    } else {
        "".into()
    };
    let is_protocol = PROTOCOL_PEERS.iter().any(|known| path.starts_with(known));
    RETIRED
        .iter()
        .filter(|retired| path.starts_with(retired.below))
        .flat_map(|retired| {
            let text: &str = if retired.in_code { &code } else { text };
            retired
                .pattern
                .find_iter(text)
                .map(|hit| format!("{:?}: say {}", hit.as_str(), retired.instead))
        })
        .filter(|found| !(is_protocol && found.contains("upstream, or its name")))
        .collect()
}

#[test]
fn retired_words_stay_away() {
    let (all, mut wrong, mut needed) = (all(), Vec::new(), BTreeSet::new());
    assert!(all.len() > 500, "only {} texts are read", all.len());
    for (path, text) in &all {
        let found = retired(path, text);
        match NOT_YET.iter().find(|prefix| path.starts_with(**prefix)) {
            Some(prefix) if !found.is_empty() => {
                needed.insert(*prefix);
            }
            _ => wrong.extend(found.iter().map(|found| format!("{path}: {found}"))),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let stale: Vec<_> = NOT_YET
        .iter()
        .filter(|prefix| !needed.contains(*prefix))
        .collect();
    assert!(stale.is_empty(), "nobody needs {stale:?} any more");
}

#[test]
fn a_name_names_one_thing() {
    let all = all();
    for name in ONCE {
        let pattern = Regex::new(&format!(r"\b(struct|enum|trait|type) {name}\b")).expect("a pattern");
        let found: Vec<_> = all
            .iter()
            .filter(|(path, _)| !NOT_YET.iter().any(|prefix| path.starts_with(prefix)))
            .filter(|(path, text)| is_rust(path) && pattern.is_match(&NO_CODE.replace_all(text, "")))
            .map(|(path, _)| path.as_str())
            .collect();
        assert!(
            found.len() <= 1,
            "{name} is defined {} times: {found:?}",
            found.len()
        );
    }
}

#[test]
fn words_are_recognised_and_english_is_free() {
    for (path, text) in [
        ("crates/x/src/a.rs", "pub struct Sight {"),
        ("crates/x/src/a.rs", "mod stage;"),
        ("crates/packing/src/a.rs", "struct Shape<'a>("),
        ("crates/x/src/a.rs", "let wanted = 1;"),
        ("crates/x/src/a.rs", "Outgoing::Taken"),
        ("crates/x/src/a.rs", "enum AuthorityError {"),
        ("crates/azure/src/a.rs", "let lane = 1;"),
        ("crates/x/src/a.rs", "// It is made anew."),
        ("docs/a.md", "The change brings it back."),
        ("docs/a.md", "until that is so"),
        ("crates/x/src/a.rs", "/// Where the peer differs"),
    ] {
        assert!(!retired(path, text).is_empty(), "{text}");
    }
    for (path, text) in [
        (
            "crates/x/src/a.rs",
            "// What a user wanted; in sight of the house",
        ),
        ("crates/x/src/a.rs", "let text = \"wanted: a theatre\";"),
        ("crates/azure/src/a.rs", "struct Shape"),
        ("crates/x/src/a.rs", "let lane = url.authority();"),
        ("crates/agent/src/a.rs", "mod peer;"),
        ("crates/x/src/a.rs", "enum Stage { Alpha }"),
        (
            "docs/a.md",
            "objects of one kind are so much alike, and it is so large",
        ),
        (
            "crates/agent-api/src/a.rs",
            "// The peer has closed the connection",
        ),
    ] {
        assert_eq!(retired(path, text), BTreeSet::new(), "{text}");
    }
}
