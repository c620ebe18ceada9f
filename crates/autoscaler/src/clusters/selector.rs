//! Which Clusters are scaled from here: a label selector, in kubectl's words.

use std::collections::BTreeSet;

use kube::core::{Expression, Selector};

/// Reads `key`, `!key`, `key=value`, `key!=value`, `key in (a,b)` and `key notin (a,b)`, with commas between them.
pub fn selector(text: &str) -> Result<Selector, String> {
    let wrong = |term: &str| {
        format!(
            "{term:?} is no term of a label selector: write key, !key, key=value, key!=value, key in (a,b) or key notin (a,b)"
        )
    };
    let mut expressions = Vec::new();
    for term in terms(text) {
        let is_name = |name: &str| {
            let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
            !name.is_empty() && name.chars().all(is_letter)
        };
        let expression = if let Some((key, values)) = term.split_once(" in ") {
            Expression::In(key.trim().to_owned(), listed(values).ok_or_else(|| wrong(term))?)
        } else if let Some((key, values)) = term.split_once(" notin ") {
            Expression::NotIn(key.trim().to_owned(), listed(values).ok_or_else(|| wrong(term))?)
        } else if let Some((key, value)) = term.split_once("!=") {
            Expression::NotEqual(key.trim().to_owned(), value.trim().to_owned())
        } else if let Some((key, value)) = term.split_once('=') {
            let value = value.strip_prefix('=').unwrap_or(value);
            Expression::Equal(key.trim().to_owned(), value.trim().to_owned())
        } else if let Some(key) = term.strip_prefix('!') {
            Expression::DoesNotExist(key.trim().to_owned())
        } else {
            Expression::Exists(term.to_owned())
        };
        let (key, values) = parts(&expression);
        if !is_name(key) || values.iter().any(|value| !value.is_empty() && !is_name(value)) {
            return Err(wrong(term));
        }
        expressions.push(expression);
    }
    if expressions.is_empty() {
        return Err("a label selector that says nothing would choose every Cluster: name a label".to_owned());
    }
    Ok(expressions.into_iter().collect())
}

/// What commas outside of parentheses are between.
fn terms(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let terms = text.split(|letter| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    });
    terms.map(str::trim).filter(|term| !term.is_empty()).collect()
}

/// `(a,b)`.
fn listed(text: &str) -> Option<BTreeSet<String>> {
    let inner = text.trim().strip_prefix('(')?.strip_suffix(')')?;
    Some(inner.split(',').map(|value| value.trim().to_owned()).collect())
}

fn parts(expression: &Expression) -> (&str, Vec<&str>) {
    match expression {
        Expression::In(key, values) | Expression::NotIn(key, values) => {
            (key, values.iter().map(String::as_str).collect())
        }
        Expression::Equal(key, value) | Expression::NotEqual(key, value) => (key, vec![value]),
        Expression::Exists(key) | Expression::DoesNotExist(key) => (key, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::SelectorExt;

    use super::*;

    #[test]
    fn selectors_are_kubectls() {
        let labels = [("stage", "prod"), ("slipway.dev/autoscaled", "")];
        let labels = labels
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        for (text, expected) in [
            ("stage=prod", true),
            ("stage==prod", true),
            ("stage = test", false),
            ("stage!=prod", false),
            ("slipway.dev/autoscaled", true),
            ("!slipway.dev/autoscaled", false),
            ("!nobody-has-this", true),
            ("stage in (test, prod), slipway.dev/autoscaled", true),
            ("stage notin (prod),slipway.dev/autoscaled", false),
        ] {
            let found = selector(text).map(|selector| selector.matches(&labels));
            assert_eq!(found, Ok(expected), "{text}");
        }
        for wrong in ["", ",", "stage in prod", "a b", "=x", "stage=a b", "!"] {
            assert!(selector(wrong).is_err(), "{wrong}");
        }
    }
}
