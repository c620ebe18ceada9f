//! Our custom resources against those of upstream, leaf by leaf: a manifest that applied there must apply here. Every
//! difference is listed by the test with its reason; an unlisted one is a problem, and so is a listed one that is none.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// What differs on purpose: plural of the kind, leaf, keyword, reason.
pub type Listed = (&'static str, &'static str, &'static str, &'static str);

/// What comparing came to.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Leaves of upstream, per kind and version.
    pub leaves: usize,
    pub equal: usize,
    /// Which of the listed differences were met, by index.
    pub met: BTreeSet<usize>,
    pub problems: Vec<String>,
}

const KEYWORDS: &[&str] = &[
    "type",
    "enum",
    "default",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "nullable",
    "format",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-map-type",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
];

fn leaves(at: &str, schema: &Value, required: bool, into: &mut BTreeMap<String, Value>) {
    let mut leaf = json!({"required": required});
    for &keyword in KEYWORDS {
        if let Some(value) = schema.get(keyword) {
            leaf[keyword] = match (keyword, value.as_f64()) {
                ("minimum" | "maximum", Some(number)) => json!(number),
                // What the apiserver assumes for an integer anyway, and what an object without fields is.
                ("format", _) if value == "int64" => continue,
                _ => value.clone(),
            };
        }
    }
    into.insert(at.to_owned(), leaf);
    let required: Vec<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{at}.{name}");
        leaves(&path, property, required.contains(&name.as_str()), into);
    }
    if schema["items"].is_object() {
        leaves(&format!("{at}[]"), &schema["items"], false, into);
    }
    if schema["additionalProperties"].is_object() {
        leaves(&format!("{at}{{}}"), &schema["additionalProperties"], false, into);
    }
}

fn keyword_differs(keyword: &str, theirs: &Value, ours: &Value) -> bool {
    match keyword {
        // Ours may ask for less.
        "required" => theirs == false && ours == true,
        "enum" => {
            let empty = Vec::new();
            let mut theirs = theirs.as_array().unwrap_or(&empty).clone();
            let mut ours = ours.as_array().unwrap_or(&empty).clone();
            theirs.sort_by_key(ToString::to_string);
            ours.sort_by_key(ToString::to_string);
            theirs != ours
        }
        _ => theirs != ours,
    }
}

/// Columns that upstream shows and we do not, or otherwise. We show more, and some of them without `-o wide`.
fn missing_columns(ours: &Value, theirs: &Value) -> Vec<String> {
    let columns = |version: &Value| -> Vec<Value> {
        let all = version["additionalPrinterColumns"].as_array().cloned();
        let mut all = all.unwrap_or_default();
        for column in &mut all {
            column.as_object_mut().expect("a column").remove("priority");
        }
        all
    };
    let ours = columns(ours);
    let missing = columns(theirs)
        .into_iter()
        .filter(|column| !ours.contains(column));
    missing.map(|column| format!("no column {column}")).collect()
}

fn is_unset(value: &Value) -> bool {
    value.is_null() || *value == json!([]) || *value == json!({})
}

impl Comparison {
    /// Compares one definition with upstream's, in every version that upstream serves.
    pub fn compare(&mut self, ours: &Value, theirs: &Value, listed: &[Listed]) {
        let plural = theirs["spec"]["names"]["plural"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let none = Vec::new();
        for their_version in theirs["spec"]["versions"].as_array().unwrap_or(&none) {
            let name = &their_version["name"];
            let found = ours["spec"]["versions"]
                .as_array()
                .and_then(|versions| versions.iter().find(|version| version["name"] == *name));
            let Some(our_version) = found else {
                self.problems
                    .push(format!("{plural}: version {name} is not served"));
                continue;
            };
            self.version(&plural, our_version, their_version, listed);
        }
        let parts = [
            "shortNames",
            "categories",
            "kind",
            "listKind",
            "plural",
            "singular",
        ];
        for part in parts {
            let (ours, theirs) = (&ours["spec"]["names"][part], &theirs["spec"]["names"][part]);
            // An upstream project without short names and categories leaves them to us.
            if ours != theirs && !theirs.is_null() {
                self.problems
                    .push(format!("{plural}: {part} is {ours} and not {theirs}"));
            }
        }
    }

    fn version(&mut self, plural: &str, ours: &Value, theirs: &Value, listed: &[Listed]) {
        for part in ["served", "storage", "subresources"] {
            let (ours, theirs) = (&ours[part], &theirs[part]);
            if ours != theirs && !(is_unset(ours) && is_unset(theirs)) {
                self.problems
                    .push(format!("{plural}: {part} is {ours} and not {theirs}"));
            }
        }
        let columns = missing_columns(ours, theirs);
        self.problems
            .extend(columns.into_iter().map(|problem| format!("{plural}: {problem}")));
        let all = |version: &Value| {
            let mut found = BTreeMap::new();
            leaves("", &version["schema"]["openAPIV3Schema"], false, &mut found);
            found
        };
        let (our_leaves, their_leaves) = (all(ours), all(theirs));
        for (path, theirs) in &their_leaves {
            if matches!(path.as_str(), "" | ".apiVersion" | ".kind" | ".metadata") {
                continue;
            }
            self.leaves += 1;
            match our_leaves.get(path) {
                Some(ours) => self.leaf(plural, path, ours, theirs, listed),
                None => self.problems.push(format!("{plural}{path}: missing")),
            }
        }
        // What is ours alone may not be asked of a manifest that does not know it.
        for (path, ours) in &our_leaves {
            let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
            let is_ours_alone = !their_leaves.contains_key(path) && their_leaves.contains_key(parent);
            if is_ours_alone && ours["required"] == true {
                self.problems
                    .push(format!("{plural}{path}: is ours alone and required"));
            }
        }
    }

    fn leaf(&mut self, plural: &str, path: &str, ours: &Value, theirs: &Value, listed: &[Listed]) {
        let keywords: BTreeSet<&String> = theirs
            .as_object()
            .into_iter()
            .chain(ours.as_object())
            .flat_map(Map::keys)
            .collect();
        let mut same = true;
        for keyword in keywords {
            if !keyword_differs(keyword, &theirs[keyword], &ours[keyword]) {
                continue;
            }
            same = false;
            let known = listed
                .iter()
                .position(|(kind, leaf, word, _)| *kind == plural && *leaf == path && word == keyword);
            match known {
                Some(index) => {
                    self.met.insert(index);
                }
                None => self.problems.push(format!(
                    "{plural}{path}: {keyword} is {} and not {}",
                    ours[keyword], theirs[keyword]
                )),
            }
        }
        self.equal += usize::from(same);
    }

    /// Fails with everything that is wrong, if anything is.
    pub fn assert_drop_in(&self, listed: &[Listed]) {
        let problems = &self.problems;
        assert!(
            problems.is_empty(),
            "{} differences:\n{}",
            problems.len(),
            problems.join("\n")
        );
        let unmet: Vec<&Listed> = listed
            .iter()
            .enumerate()
            .filter(|(index, _)| !self.met.contains(index))
            .map(|(_, difference)| difference)
            .collect();
        assert!(unmet.is_empty(), "listed, and no longer different: {unmet:?}");
    }
}
