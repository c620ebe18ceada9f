//! The requirement table: every combination of requirements on one label with the answer Karpenter gives.

use slipway_packing::requirement::{Operator, Requirement};

use crate::report;

fn operator(name: &str) -> Operator {
    match name {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::Gt,
        "Lt" => Operator::Lt,
        "Gte" => Operator::Gte,
        "Lte" => Operator::Lte,
        other => panic!("unknown operator {other}"),
    }
}

/// `NotIn 1,2 >=2 <=8 min 2`
fn requirement(text: &str) -> Requirement {
    let mut words = text.split_whitespace().peekable();
    let operator = operator(words.next().expect("an operator"));
    let mut values: Vec<&str> = Vec::new();
    let mut bounds = Vec::new();
    let mut min_values = None;
    while let Some(word) = words.next() {
        if word == "min" {
            min_values = Some(words.next().expect("a number").parse().expect("a number"));
        } else if let Some(bound) = word.strip_prefix(">=") {
            bounds.push((Operator::Gte, bound));
        } else if let Some(bound) = word.strip_prefix("<=") {
            bounds.push((Operator::Lte, bound));
        } else {
            values = word.split(',').collect();
        }
    }
    if bounds.is_empty() {
        return Requirement::new("key", operator, values, min_values);
    }
    // What is excluded next to a bound is kept as it is, inside or outside of it.
    let mut result = Requirement::new("key", operator, values, min_values);
    for (operator, bound) in bounds {
        result = result.intersection(&Requirement::new("key", operator, [bound], None));
    }
    result
}

fn form(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace(',', " ")
}

fn canonical(requirement: &Requirement) -> String {
    requirement
        .to_string()
        .trim_start_matches("key ")
        .replace(['[', ']'], "")
        .replace("minValues", "min")
}

#[test]
fn agrees_with_the_table() {
    let table = include_str!("data/requirement-table.txt");
    let mut rows = 0;
    for row in table
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let cells: Vec<&str> = row.split(';').map(str::trim).collect();
        match cells[0] {
            "intersection" => {
                let (left, right) = (requirement(cells[1]), requirement(cells[2]));
                let expected = requirement(cells[3]);
                let actual = left.intersection(&right);
                assert_eq!(canonical(&actual), canonical(&expected), "{row}");
                assert_eq!(actual.to_specs(), expected.to_specs(), "{row}");
                // The cheap question and the costly one agree, both ways round.
                assert_eq!(left.intersects(&right), !actual.is_empty(), "{row}");
                assert_eq!(right.intersects(&left), !actual.is_empty(), "{row}");
            }
            "has" => assert_eq!(requirement(cells[1]).has(cells[2]).to_string(), cells[3], "{row}"),
            "operator" => assert_eq!(requirement(cells[1]).operator().name(), cells[2], "{row}"),
            "length" => assert_eq!(requirement(cells[1]).len().to_string(), cells[2], "{row}"),
            "print" => {
                let mut parts = cells[1].split('&').map(requirement);
                let first = parts.next().expect("a requirement");
                let printed = parts
                    .fold(first, |left, right| left.intersection(&right))
                    .to_string();
                assert_eq!(printed, cells[2], "{row}");
            }
            "manifest" => {
                let specs = requirement(cells[1]).to_specs();
                assert_eq!(specs.len(), 1, "{row}");
                let spec = &specs[0];
                let mut shown = spec.operator.name().to_owned();
                for value in &spec.values {
                    shown.push(' ');
                    shown.push_str(value);
                }
                if let Some(min_values) = spec.min_values {
                    shown.push_str(" min ");
                    shown.push_str(&min_values.to_string());
                }
                assert_eq!(shown, form(cells[2]), "{row}");
            }
            other => panic!("unknown question {other}"),
        }
        rows += 1;
    }
    report::oracle("requirement table", rows, 732, 732);
}

#[test]
fn any_value_is_allowed_and_always_the_same() {
    for text in [
        "Exists",
        "In A,B",
        "NotIn A",
        "NotIn 0,1,2",
        "Gt 9",
        "Lt 1",
        "Gte 0",
        "Lte 8",
        "NotIn 10 >=10",
    ] {
        let requirement = requirement(text);
        let value = requirement.any_value().expect("a value");
        assert!(requirement.has(&value), "{text}: {value}");
        assert_eq!(requirement.any_value(), Some(value));
    }
    assert_eq!(requirement("DoesNotExist").any_value(), None);
}

#[test]
fn inclusive_bounds_equal_exclusive_ones() {
    let bound = |operator, value: &str| Requirement::new("key", operator, [value], None);
    assert_eq!(bound(Operator::Gte, "2"), bound(Operator::Gt, "1"));
    assert_eq!(bound(Operator::Lte, "8"), bound(Operator::Lt, "9"));
    assert_eq!(
        bound(Operator::Gt, &i64::MAX.to_string()).operator(),
        Operator::DoesNotExist
    );
    let both = bound(Operator::Gte, "2").intersection(&bound(Operator::Lte, "8"));
    assert!(both.has("2") && both.has("8") && !both.has("1") && !both.has("9") && !both.has("x"));
    // Two bounds of one kind leave the tighter.
    for (left, right, value) in [("5", "3", "5"), ("3", "5", "5")] {
        let result = bound(Operator::Gte, left).intersection(&bound(Operator::Gte, right));
        assert_eq!(result, bound(Operator::Gte, value));
    }
    assert_eq!(both.to_specs().len(), 2);
}
