//! Expressions by which a resource hands values to Kubernetes: `operatorSpec.configMapExpressions` and `secretExpressions`, in
//! the Common Expression Language. Pure. Somebody's text is evaluated in the manager, so what one may cost is bounded: by its
//! length, its nesting, and the steps and bytes that it can come to with the object it is evaluated over.

use std::{collections::BTreeMap, fmt, sync::Arc, thread};

use cel::{Context, ExecutionError, Program, Value as CelValue, objects::Key};
use serde_json::Value;

use super::{
    cost,
    export::{Destination, Export, Source, Store},
    labelling::{self, Labelling, Member},
    problem::Problem,
    secrets::{self, SECRET},
};

/// The longest text of an expression, the deepest nesting of brackets in it, and how many operators it may have: what parses and
/// evaluates it recurses with each.
const LONGEST: usize = 1024;
const DEEPEST: usize = 12;
const OPERATORS: usize = 64;
/// How many steps an expression may come to.
const DEAREST: u64 = 1_000_000;

/// The stack of what parses and evaluates: each level of an expression takes a hundred kilobytes of it in a build without
/// optimisation, and a worker of the manager may be deep in its own.
const STACK: usize = 16 << 20;

/// Does something on a stack of its own. `None`: it could not be begun, or panicked.
fn on_a_stack_of_its_own<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        worker.ok()?.join().ok()
    })
}

/// Credentials that Azure hands out, by name.
pub type Secrets = BTreeMap<String, String>;

/// What an expression gives, by key; or why there is nothing.
pub type Texts = Result<BTreeMap<String, String>, String>;

/// A value that a resource hands to Kubernetes, as an expression over the object.
#[derive(Clone)]
pub struct Expression {
    /// Where it is written, for messages.
    pub path: String,
    pub store: Store,
    /// The Secret or ConfigMap.
    pub name: String,
    /// The key that a text goes to; `None`: the expression gives a map of keys and texts.
    pub key: Option<String>,
    /// The credentials that it refers to as `secret.NAME`, by name.
    pub secrets: BTreeMap<String, Source>,
    source: String,
    program: Arc<Program>,
    /// What gives the labels and annotations of its Secret or ConfigMap, each with its text.
    labelling: BTreeMap<(Member, String), (String, Arc<Program>)>,
}

impl fmt::Debug for Expression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} to {:?} {}", self.path, self.store, self.name)
    }
}

/// Reads the expressions of a store. `known` are the credentials that the kind of resource hands out.
pub fn expressions(
    store: Store,
    value: &Value,
    path: &str,
    known: &BTreeMap<String, Source>,
) -> Result<Vec<Expression>, Problem> {
    let Some(items) = value.as_array() else {
        return Err(Problem::Malformed {
            path: path.to_owned(),
            expected: "must be a list",
        });
    };
    let read = |(index, item): (usize, &Value)| {
        let path = format!("{path}[{index}]");
        let text = |member: &str| item[member].as_str().filter(|text| !text.is_empty());
        let (Some(name), Some(source)) = (text("name"), text("value")) else {
            return Err(Problem::Malformed {
                path,
                expected: "must be an object with name and value",
            });
        };
        let wrong = |text: String| Problem::Expression {
            path: format!("{path}.value"),
            text,
        };
        let program = compile(source).map_err(wrong)?;
        let secrets = secrets_of(&program, store, known).map_err(wrong)?;
        let labelling = labelling::written(item, &path)?
            .into_iter()
            .map(|((member, name), source)| {
                let program = compile_label(&source).map_err(|text| Problem::Expression {
                    path: format!("{path}: {member} {name:?}"),
                    text,
                })?;
                Ok(((member, name), (source, Arc::new(program))))
            })
            .collect::<Result<_, Problem>>()?;
        Ok(Expression {
            store,
            secrets,
            name: name.to_owned(),
            key: text("key").map(str::to_owned),
            source: source.to_owned(),
            program: Arc::new(program),
            labelling,
            path,
        })
    };
    items.iter().enumerate().map(read).collect()
}

/// The expression of a label or an annotation.
fn compile_label(source: &str) -> Result<Program, String> {
    let program = compile(source)?;
    if secrets::named(program.expression()).is_none_or(|names| !names.is_empty()) {
        return Err(format!(
            "refers to {SECRET}, and labels and annotations hide nothing: use self"
        ));
    }
    Ok(program)
}

/// The credentials that an expression refers to, each of them known.
fn secrets_of(
    program: &Program,
    store: Store,
    known: &BTreeMap<String, Source>,
) -> Result<BTreeMap<String, Source>, String> {
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    let names = if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    };
    let Some(found) = secrets::named(program.expression()) else {
        return Err(format!(
            "must name what it takes of {SECRET}: use {SECRET}.NAME with one of {names}"
        ));
    };
    if store == Store::ConfigMap && !found.is_empty() {
        return Err(format!(
            "refers to {SECRET}, which goes to Secrets alone: use secretExpressions"
        ));
    }
    let known = |name: String| match known.get(&name) {
        Some(source) => Ok((name, *source)),
        None => Err(format!(
            "refers to {SECRET}.{name}, which this kind has not: use one of {names}"
        )),
    };
    found.into_iter().map(known).collect()
}

/// How deep brackets and signs are nested at most, strings included: more than there are, never fewer.
fn nesting(source: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for letter in source.chars() {
        match letter {
            '(' | '[' | '{' | '!' | '-' | '?' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn compile(source: &str) -> Result<Program, String> {
    if source.len() > LONGEST {
        return Err(format!("is longer than {LONGEST} bytes: make it shorter"));
    }
    if nesting(source) > DEEPEST {
        return Err(format!("is nested deeper than {DEEPEST} levels: make it simpler"));
    }
    let operators = source
        .matches(|letter| "([{!-?.+*/%<>=&|".contains(letter))
        .count();
    if operators > OPERATORS {
        return Err(format!(
            "has more than {OPERATORS} brackets, dots and operators: split it into several"
        ));
    }
    let program = on_a_stack_of_its_own(|| {
        Program::compile(source).map_err(|errors| {
            let first = errors.errors.first().map(|error| error.msg.clone());
            format!("is no expression of CEL: {}", first.unwrap_or_default())
        })
    });
    program.unwrap_or_else(|| Err("cannot be read".to_owned()))
}

impl Expression {
    /// The key that it is written to, where it says one.
    pub fn destination(&self) -> Option<Destination> {
        let key = self.key.clone()?;
        Some(Destination {
            store: self.store,
            name: self.name.clone(),
            key,
        })
    }

    /// The expression that gives a credential as it is.
    pub fn of_credential(export: &Export, path: String) -> Option<Self> {
        let source = format!("{SECRET}.{}", export.name);
        Some(Self {
            path,
            store: export.to.store,
            name: export.to.name.clone(),
            key: Some(export.to.key.clone()),
            secrets: [(export.name.clone(), export.source)].into(),
            program: Arc::new(compile(&source).ok()?),
            source,
            // They are known without asking for it.
            labelling: BTreeMap::new(),
        })
    }

    /// The text of it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether it looks at the object at all.
    pub fn refers_to_object(&self) -> bool {
        self.program.references().has_variable("self")
    }

    /// The texts that it gives for an object and its credentials, by key; or why there are none. Never tells a value of either.
    pub fn evaluate(&self, object: &Value, secrets: &Secrets) -> Texts {
        let found = on_a_stack_of_its_own(|| self.evaluate_here(object, secrets));
        found.unwrap_or_else(|| Err("cannot be evaluated over what Azure shows".to_owned()))
    }

    /// The names of the labels and annotations that it gives.
    pub fn labels(&self) -> impl Iterator<Item = &(Member, String)> {
        self.labelling.keys()
    }

    /// The labels and annotations that it gives for an object, or why there are none.
    pub fn labelling(&self, object: &Value) -> Result<Labelling, String> {
        if self.labelling.is_empty() {
            return Ok(Labelling::new());
        }
        let found = on_a_stack_of_its_own(|| {
            let mut all = Labelling::new();
            for ((member, name), (source, program)) in &self.labelling {
                let wrong = |text: &str| format!("{member} {name:?} {text}");
                let found =
                    run(program, &[("self", object)]).map_err(|failure| wrong(&words(&failure, source)))?;
                let CelValue::String(text) = found else {
                    return Err(wrong("must give a text: use string()"));
                };
                all.insert((*member, name.clone()), text.as_str().to_owned());
            }
            Ok(all)
        });
        found.unwrap_or_else(|| Err("cannot be evaluated over what Azure shows".to_owned()))
    }

    fn evaluate_here(&self, object: &Value, secrets: &Secrets) -> Texts {
        let secrets = serde_json::json!(secrets);
        let found = run(&self.program, &[("self", object), (SECRET, &secrets)])
            .map_err(|error| words(&error, &self.source))?;
        match (found, &self.key) {
            (CelValue::String(text), Some(key)) => Ok([(key.clone(), text.as_str().to_owned())].into()),
            (CelValue::Map(map), None) => texts(map.map.as_ref()),
            (CelValue::String(_), None) => Err("gives a text: set the key that it goes to".to_owned()),
            (CelValue::Map(_), Some(_)) => {
                Err("gives a map, which has keys of its own: remove key".to_owned())
            }
            _ => Err("must give a text, or a map of texts: use string()".to_owned()),
        }
    }
}

/// Why a program gives nothing.
enum Failure {
    TooDear,
    NotEvaluated(ExecutionError),
}

fn run(program: &Program, variables: &[(&str, &Value)]) -> Result<CelValue, Failure> {
    if cost::steps(program.expression(), variables) > DEAREST {
        return Err(Failure::TooDear);
    }
    let mut context = Context::default();
    for (name, value) in variables {
        context
            .add_variable(*name, value)
            .map_err(|_| Failure::NotEvaluated(ExecutionError::function_error(name, "cannot be read")))?;
    }
    program.execute(&context).map_err(Failure::NotEvaluated)
}

/// What went wrong, without what was evaluated: it may be a secret. A name is told that stands in the expression's own text.
fn words(failure: &Failure, source: &str) -> String {
    let is_written = |name: &str| source.contains(name);
    match failure {
        Failure::TooDear => "would take too long over this object: make it simpler".to_owned(),
        Failure::NotEvaluated(ExecutionError::NoSuchKey(name)) if is_written(name) => {
            format!("finds no {name} in what Azure shows")
        }
        Failure::NotEvaluated(ExecutionError::UndeclaredReference(name)) if is_written(name) => {
            format!("refers to {name}, which is not known: the object is self")
        }
        Failure::NotEvaluated(_) => "cannot be evaluated over what Azure shows".to_owned(),
    }
}

fn texts<'a>(
    map: impl IntoIterator<Item = (&'a Key, &'a CelValue)>,
) -> Result<BTreeMap<String, String>, String> {
    map.into_iter()
        .map(|(key, value)| match (key, value) {
            (Key::String(key), CelValue::String(text)) => {
                Ok((key.as_str().to_owned(), text.as_str().to_owned()))
            }
            _ => Err("must give a map of texts: use string()".to_owned()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(source: &str, key: Option<&str>, object: &Value) -> Result<BTreeMap<String, String>, String> {
        let listed = json!([{"name": "n", "key": key, "value": source}]);
        let found =
            expressions(Store::Secret, &listed, "at", &known()).map_err(|problem| problem.to_string())?;
        let secrets = [("credentials".to_owned(), "hunter2: \"x\"".to_owned())].into();
        found[0].evaluate(object, &secrets)
    }

    fn known() -> BTreeMap<String, Source> {
        [("credentials".to_owned(), Source::Body("/c"))].into()
    }

    #[test]
    fn credentials_are_taken_by_name_and_go_to_secrets_alone() {
        let text = |source: &str| of(source, Some("k"), &cluster()).map(|found| found["k"].clone());
        assert_eq!(text("secret.credentials").unwrap(), "hunter2: \"x\"");
        assert_eq!(
            text("self.status.fqdn + '=' + secret['credentials']").unwrap(),
            "fleet.example=hunter2: \"x\""
        );
        assert_eq!(
            text("secret.other").unwrap_err(),
            "at[0].value: refers to secret.other, which this kind has not: use one of credentials"
        );
        assert_eq!(
            text("string(secret)").unwrap_err(),
            "at[0].value: must name what it takes of secret: use secret.NAME with one of credentials"
        );
        let listed = json!([{"name": "n", "key": "k", "value": "secret.credentials"}]);
        let shown = expressions(Store::ConfigMap, &listed, "at", &known()).unwrap_err();
        assert_eq!(
            shown.to_string(),
            "at[0].value: refers to secret, which goes to Secrets alone: use secretExpressions"
        );
        let told = text("secret.credentials - 1").unwrap_err();
        assert!(!told.contains("hunter2"), "{told}");
    }

    #[test]
    fn labels_and_annotations_are_expressions_over_the_object_alone() {
        let of = |labels: &Value| {
            let listed = json!([{"name": "n", "key": "k", "value": "self.status.fqdn", "labels": labels,
                "annotations": {"at": "self.spec.location"}}]);
            let found = expressions(Store::Secret, &listed, "at", &known());
            found.map(|found| found[0].labelling(&cluster()))
        };
        let label = |name: &str, text: &str| ((Member::Label, name.to_owned()), text.to_owned());
        let at = ((Member::Annotation, "at".to_owned()), "westus3".to_owned());
        assert_eq!(
            of(&json!({"team": "self.status.tags.team"})).unwrap().unwrap(),
            [label("team", "a"), at].into()
        );
        for (source, told) in [
            (
                "self.status.nothing",
                "label \"x\" finds no nothing in what Azure shows",
            ),
            ("self.status.count", "label \"x\" must give a text: use string()"),
        ] {
            assert_eq!(of(&json!({"x": source})).unwrap().unwrap_err(), told);
        }
        assert_eq!(
            of(&json!({"x": "secret.credentials"})).unwrap_err().to_string(),
            "at[0]: label \"x\": refers to secret, and labels and annotations hide nothing: use self"
        );
    }

    fn cluster() -> Value {
        json!({
            "metadata": {"name": "fleet"}, "spec": {"location": "westus3"},
            "status": {"fqdn": "fleet.example", "count": 3, "secret": "hunter2",
                "agentPoolProfiles": [{"name": "one", "count": 1}, {"name": "two", "count": 2}],
                "tags": {"team": "a", "stage": "b"}},
        })
    }

    #[test]
    fn a_text_goes_to_its_key_and_a_map_to_its_own() {
        let object = cluster();
        let text = |source: &str| of(source, Some("k"), &object).map(|found| found["k"].clone());
        assert_eq!(text("self.status.fqdn").unwrap(), "fleet.example");
        assert_eq!(
            text("'https://' + self.status.fqdn + ':' + string(self.status.count)").unwrap(),
            "https://fleet.example:3"
        );
        assert_eq!(
            text("self.status.agentPoolProfiles.filter(p, p.count > 1).map(p, p.name)[0]").unwrap(),
            "two"
        );
        assert_eq!(
            text("has(self.status.missing) ? self.status.missing : 'none'").unwrap(),
            "none"
        );
        assert_eq!(
            of("self.status.tags", None, &object).unwrap(),
            BTreeMap::from([
                ("stage".to_owned(), "b".to_owned()),
                ("team".to_owned(), "a".to_owned())
            ])
        );
        assert_eq!(
            of("{'at': self.spec.location}", None, &object).unwrap(),
            BTreeMap::from([("at".to_owned(), "westus3".to_owned())])
        );
    }

    #[test]
    fn what_gives_no_text_is_told_without_what_it_was_evaluated_over() {
        let object = cluster();
        for (source, key, told) in [
            (
                "self.status.missing",
                Some("k"),
                "finds no missing in what Azure shows",
            ),
            (
                "key.secret",
                Some("k"),
                "refers to key, which is not known: the object is self",
            ),
            (
                "self.status.count",
                Some("k"),
                "must give a text, or a map of texts: use string()",
            ),
            (
                "self.status.fqdn",
                None,
                "gives a text: set the key that it goes to",
            ),
            (
                "self.status.tags",
                Some("k"),
                "gives a map, which has keys of its own: remove key",
            ),
            ("self.status", None, "must give a map of texts: use string()"),
            (
                "self.status.secret - 1",
                Some("k"),
                "cannot be evaluated over what Azure shows",
            ),
            (
                "self.status.secret.nothing()",
                Some("k"),
                "refers to nothing, which is not known: the object is self",
            ),
        ] {
            let error = of(source, key, &object).unwrap_err();
            assert_eq!(error, told, "{source}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        let error = of("self.", Some("k"), &object).unwrap_err();
        assert!(
            error.starts_with("at[0].value: is no expression of CEL: "),
            "{error}"
        );
        let nothing = expressions(Store::Secret, &json!([{"name": "n"}]), "at", &known()).unwrap_err();
        assert_eq!(
            nothing.to_string(),
            "at[0]: must be an object with name and value"
        );
    }

    #[test]
    fn what_would_cost_too_much_is_not_begun() {
        let long = "x".repeat(20_000);
        let object = json!({"status": {"long": long, "list": vec!["a"; 60]}});
        // Each level doubles what the one below it gives.
        let mut doubled = "self.status.long".to_owned();
        for _ in 0..11 {
            doubled = format!("[{doubled}].map(x, x + x)[0]");
        }
        let list = "self.status.list";
        let nested = format!("{list}.map(a, {list}.map(b, {list}.map(c, a + b + c)[0])[0])[0]");
        for source in [doubled.as_str(), nested.as_str()] {
            let error = of(source, Some("k"), &object).unwrap_err();
            assert_eq!(error, "would take too long over this object: make it simpler");
        }
        let one = format!("{list}.map(a, a + {list}[0])[59]");
        assert_eq!(of(&one, Some("k"), &object).unwrap()["k"], "aa");
        let told = |source: &str| of(source, Some("k"), &object).unwrap_err();
        assert_eq!(
            told(&"11111+".repeat(200)),
            "at[0].value: is longer than 1024 bytes: make it shorter"
        );
        for open in ["(", "[", "!", "-", "true ? 1 : "] {
            let deep = format!("{}1", open.repeat(80));
            assert_eq!(
                told(&deep),
                "at[0].value: is nested deeper than 12 levels: make it simpler"
            );
        }
    }

    /// A parser that recurses must not end the process: the deepest that is let through needs a small stack.
    #[test]
    fn the_deepest_expression_fits_a_thread() {
        let chain = format!("self{}", ".a".repeat(OPERATORS));
        let sum = format!("1{}", "+1".repeat(OPERATORS));
        let brackets = format!("{}1{}", "(".repeat(DEEPEST), ")".repeat(DEEPEST));
        let lists = format!("{}1{}", "[".repeat(DEEPEST), "]".repeat(DEEPEST));
        let more = format!("self{}", ".a".repeat(OPERATORS + 1));
        let error = of(&more, Some("k"), &json!({})).unwrap_err();
        assert_eq!(
            error,
            "at[0].value: has more than 64 brackets, dots and operators: split it into several"
        );
        let worker = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
            for source in [chain, sum, brackets, lists] {
                assert!(of(&source, Some("k"), &json!({})).is_err());
            }
        });
        worker.unwrap().join().unwrap();
    }
}
