//! Which credentials an expression refers to: `secret.NAME`. They are found in its text, because Azure is asked for no more than
//! those. Pure.

use std::collections::BTreeSet;

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue};

/// What an expression calls the credentials that Azure hands out.
pub(super) const SECRET: &str = "secret";

/// The credentials that an expression names. `None`: it takes them in a way that does not say which.
pub(super) fn named(expression: &IdedExpr) -> Option<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut left = vec![expression];
    while let Some(next) = left.pop() {
        match &next.expr {
            Expr::Ident(name) if name == SECRET => return None,
            Expr::Select(select) if is_secret(&select.operand) => {
                found.insert(select.field.clone());
            }
            Expr::Call(call) if call.func_name == "_[_]" && call.args.first().is_some_and(is_secret) => {
                found.insert(literal(call.args.get(1)?)?);
            }
            other => left.extend(children(other)),
        }
    }
    Some(found)
}

fn is_secret(expression: &IdedExpr) -> bool {
    matches!(&expression.expr, Expr::Ident(name) if name == SECRET)
}

fn literal(expression: &IdedExpr) -> Option<String> {
    match &expression.expr {
        Expr::Literal(LiteralValue::String(text)) => Some(text.inner().to_owned()),
        _ => None,
    }
}

fn children(expression: &Expr) -> Vec<&IdedExpr> {
    match expression {
        Expr::Select(select) => vec![&select.operand],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| values(&entry.expr)).collect(),
        Expr::Struct(found) => found
            .entries
            .iter()
            .flat_map(|entry| values(&entry.expr))
            .collect(),
        Expr::Comprehension(found) => vec![
            &found.iter_range,
            &found.accu_init,
            &found.loop_cond,
            &found.loop_step,
            &found.result,
        ],
        _ => Vec::new(),
    }
}

fn values(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

#[cfg(test)]
mod tests {
    use cel::Program;

    use super::*;

    fn of(source: &str) -> Option<Vec<String>> {
        let program = Program::compile(source).unwrap();
        Some(named(program.expression())?.into_iter().collect())
    }

    #[test]
    fn what_is_named_is_found_and_what_takes_all_of_them_is_not() {
        let none: Option<Vec<String>> = None;
        for (source, names) in [
            ("self.status.secret.key", Some(vec![])),
            ("secret.a", Some(vec!["a".to_owned()])),
            (
                "secret['a'] + secret.b",
                Some(vec!["a".to_owned(), "b".to_owned()]),
            ),
            ("{'x': [secret.a][0]}", Some(vec!["a".to_owned()])),
            (
                "self.list.map(one, one + secret.b)[0]",
                Some(vec!["b".to_owned()]),
            ),
            ("secret", none.clone()),
            ("secret.map(key, key)[0]", none.clone()),
            ("secret[self.spec.name]", none),
        ] {
            assert_eq!(of(source), names, "{source}");
        }
    }
}
