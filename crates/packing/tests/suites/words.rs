//! The small words of a case: short names for labels and zones, requirements, amounts, taints, tolerations.

use slipway_packing::labels;
use slipway_packing::model::{LabelSelector, ResourceList, StringMap, Taint, Toleration};
use slipway_packing::requirement::{Operator, RequirementSpec};

/// `zone`, `host`, `type`, … stand for the labels behind them; anything else for itself.
pub fn key(word: &str) -> String {
    match word {
        "zone" => labels::ZONE,
        "region" => labels::REGION,
        "host" => labels::HOSTNAME,
        "type" => labels::INSTANCE_TYPE,
        "arch" => labels::ARCHITECTURE,
        "os" => labels::OPERATING_SYSTEM,
        "ct" => labels::CAPACITY_TYPE,
        "pool" => labels::NODE_POOL,
        "reservation" => "karpenter.sh/reservation-id",
        other => other,
    }
    .to_owned()
}

/// `z1` stands for `test-zone-1`, `od` for `on-demand`.
pub fn value(word: &str) -> String {
    match word {
        "z1" => "test-zone-1",
        "z2" => "test-zone-2",
        "z3" => "test-zone-3",
        "od" => "on-demand",
        other => other,
    }
    .to_owned()
}

/// `key=a|b`, `key!=a|b`, `key?`, `!key`, `key>5`, `key<5`, `key>=5`, `key<=5`; `~3` at the end asks for three values.
pub fn requirement(word: &str) -> RequirementSpec {
    let (word, min_values) = match word.rsplit_once('~') {
        Some((word, number)) => (word, Some(number.parse().expect("a number of values"))),
        None => (word, None),
    };
    let spec = |name: &str, operator, values: Vec<String>| RequirementSpec {
        key: key(name),
        operator,
        values,
        min_values,
    };
    if let Some(name) = word.strip_prefix('!') {
        return spec(name, Operator::DoesNotExist, Vec::new());
    }
    if let Some(name) = word.strip_suffix('?') {
        return spec(name, Operator::Exists, Vec::new());
    }
    for (sign, operator) in [
        ("!=", Operator::NotIn),
        (">=", Operator::Gte),
        ("<=", Operator::Lte),
        (">", Operator::Gt),
        ("<", Operator::Lt),
        ("=", Operator::In),
    ] {
        if let Some((name, values)) = word.split_once(sign) {
            let values = values.split('|').filter(|value| !value.is_empty()).map(value);
            return spec(name, operator, values.collect());
        }
    }
    panic!("not a requirement: {word}");
}

/// `a=1&b=2`
pub fn requirements(text: &str) -> Vec<RequirementSpec> {
    text.split('&').map(requirement).collect()
}

/// `cpu=1,memory=1Gi`
pub fn amounts(text: &str) -> ResourceList {
    pairs(text, ',')
        .into_iter()
        .map(|(name, amount)| {
            let amount = amount
                .parse()
                .unwrap_or_else(|_| panic!("not an amount: {amount}"));
            (name, amount)
        })
        .collect()
}

/// `a=b&c=d`
pub fn label_map(text: &str) -> StringMap {
    pairs(text, '&')
        .into_iter()
        .map(|(name, text)| (key(&name), value(&text)))
        .collect()
}

pub fn selector(text: &str) -> LabelSelector {
    LabelSelector {
        match_labels: label_map(text),
        ..LabelSelector::default()
    }
}

fn pairs(text: &str, separator: char) -> Vec<(String, String)> {
    text.split(separator)
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair
                .split_once('=')
                .unwrap_or_else(|| panic!("not a pair: {pair}"));
            (name.to_owned(), value.to_owned())
        })
        .collect()
}

/// `key=value:Effect` or `key:Effect`
pub fn taint(text: &str) -> Taint {
    let (rest, effect) = text
        .rsplit_once(':')
        .unwrap_or_else(|| panic!("not a taint: {text}"));
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    }
}

/// `key=value:Effect` is equal, `key:Effect` exists; either part may be empty, `*` tolerates all.
pub fn toleration(text: &str) -> Toleration {
    let (rest, effect) = text.rsplit_once(':').unwrap_or((text, ""));
    let rest = if rest == "*" { "" } else { rest };
    let (key, operator, value) = match rest.split_once('=') {
        Some((key, value)) => (key, "Equal", value),
        None => (rest, "Exists", ""),
    };
    Toleration {
        key: key.to_owned(),
        operator: operator.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
        toleration_seconds: None,
    }
}

/// Splits `name:rest` options; a word without a colon has no rest.
pub fn option(word: &str) -> (&str, &str) {
    word.split_once(':').unwrap_or((word, ""))
}
