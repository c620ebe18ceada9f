//! Prices: by annotation, from a list, or guessed from the size so that smaller is cheaper.

use std::collections::BTreeMap;

use slipway_packing::{
    model::ResourceList,
    resources::{CPU, MEMORY},
};

/// Per hour, and whether somebody said so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Price {
    Known(f64),
    /// Nobody said: a number that grows with the machine. It orders machines, and is no money.
    Guessed(f64),
}

impl Price {
    pub fn value(self) -> f64 {
        match self {
            Self::Known(price) | Self::Guessed(price) => price,
        }
    }

    /// What a core and four gibibytes cost about the same for, in no currency.
    pub fn guess(capacity: &ResourceList) -> Self {
        const GIBIBYTE: f64 = 1024.0 * 1024.0 * 1024.0;
        let amount = |name: &str| capacity.get(name).map_or(0.0, |quantity| quantity.as_f64());
        let devices: f64 = capacity
            .iter()
            .filter(|(name, _)| name.contains('/'))
            .map(|(_, quantity)| quantity.as_f64())
            .sum();
        Self::Guessed(amount(CPU) * 0.03 + amount(MEMORY) / GIBIBYTE * 0.0075 + devices)
    }
}

/// Lines `<instance type>[/<zone>[/<capacity type>]] <price per hour>`. The most exact line counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PriceList(BTreeMap<String, f64>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line} of the price list is {text:?}: write an instance type, if need be with /zone and /capacity-type, and a price per \
     hour such as 0.12"
)]
pub struct PriceListError {
    pub line: usize,
    pub text: String,
}

impl PriceList {
    /// Reads what can be read; lines that cannot are returned beside it. Empty lines and `#` comments are passed over.
    pub fn parse(text: &str) -> (Self, Vec<PriceListError>) {
        let (mut list, mut errors) = (BTreeMap::new(), Vec::new());
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let mut words = content.split_whitespace();
            let entry = (
                words.next(),
                words.next().and_then(|word| word.parse::<f64>().ok()),
                words.next(),
            );
            match entry {
                (Some(key), Some(price), None)
                    if price.is_finite()
                        && price >= 0.0
                        && key.split('/').count() <= 3
                        && !key.contains("//") =>
                {
                    list.insert(key.to_owned(), price);
                }
                _ => errors.push(PriceListError {
                    line: index + 1,
                    text: line.to_owned(),
                }),
            }
        }
        (PriceList(list), errors)
    }

    pub fn find(&self, instance_type: &str, zone: &str, capacity_type: &str) -> Option<f64> {
        let exact = format!("{instance_type}/{zone}/{capacity_type}");
        let of_zone = format!("{instance_type}/{zone}");
        [exact.as_str(), of_zone.as_str(), instance_type]
            .into_iter()
            .find_map(|key| self.0.get(key).copied())
    }
}
