//! The instance types a case can choose from.

use slipway_packing::labels;
use slipway_packing::model::{InstanceType, Offering, Overhead};
use slipway_packing::requirement::Operator;

use super::environment::label_of;
use super::words;
use crate::cluster::{
    default_types, instance_type, offering, requirement, types, with_offerings, with_requirement,
};

/// `default`, `none`, `assorted`, or a number of types of growing size.
pub fn named(name: &str) -> Vec<InstanceType> {
    match name {
        "default" => {
            let mut types = default_types();
            let arm = types
                .iter_mut()
                .find(|kind| kind.name == "arm-instance-type")
                .expect("a type");
            let systems = ["ios", "linux", "windows", "darwin"];
            *arm = with_requirement(arm.clone(), labels::OPERATING_SYSTEM, Operator::In, &systems);
            types
        }
        "none" => Vec::new(),
        "assorted" => assorted(),
        "spot-18" => stairs("spot"),
        "od-18" => stairs("on-demand"),
        number => types(number.parse().expect("a number of types")),
    }
}

/// Eighteen types of one size and rising price, but the last but one costs next to nothing.
fn stairs(capacity_type: &str) -> Vec<InstanceType> {
    (0..18)
        .map(|index| {
            let kind = instance_type(&format!("s-{index}"), &[("cpu", "1"), ("memory", "1Gi")]);
            let price = if index == 16 {
                0.001
            } else {
                1.0 + f64::from(index) / 10.0
            };
            with_offerings(kind, vec![offering(capacity_type, "test-zone-1", price)])
        })
        .collect()
}

/// The dearest and the cheapest of the assorted types, with capacity type and zone.
pub fn alias(word: &str) -> Option<(&'static str, &'static str)> {
    Some(match word {
        "dear" => ("64-cpu-128-mem-amd64-linux-test-zone-1-on-demand", "on-demand"),
        "dear-spot" => ("64-cpu-128-mem-amd64-linux-test-zone-1-spot", "spot"),
        "cheap" => ("1-cpu-1-mem-amd64-linux-test-zone-1-on-demand", "on-demand"),
        "cheap-spot" => ("1-cpu-1-mem-amd64-linux-test-zone-1-spot", "spot"),
        _ => return None,
    })
}

/// One type for every size, zone, capacity type, system and architecture.
fn assorted() -> Vec<InstanceType> {
    let mut all = Vec::new();
    for cpu in [1, 2, 4, 8, 16, 32, 64] {
        for memory in [1, 2, 4, 8, 16, 32, 64, 128] {
            for zone in ["test-zone-1", "test-zone-2", "test-zone-3"] {
                for capacity_type in ["spot", "on-demand"] {
                    for system in ["linux", "windows"] {
                        for architecture in ["amd64", "arm64"] {
                            let name = format!(
                                "{cpu}-cpu-{memory}-mem-{architecture}-{system}-{zone}-{capacity_type}"
                            );
                            let (cpu, memory) = (cpu.to_string(), format!("{memory}Gi"));
                            let kind = instance_type(&name, &[("cpu", &cpu), ("memory", &memory)]);
                            let price = kind.offerings[0].price;
                            let kind = with_offerings(kind, vec![offering(capacity_type, zone, price)]);
                            let kind =
                                with_requirement(kind, labels::OPERATING_SYSTEM, Operator::In, &[system]);
                            all.push(with_requirement(
                                kind,
                                labels::ARCHITECTURE,
                                Operator::In,
                                &[architecture],
                            ));
                        }
                    }
                }
            }
        }
    }
    all
}

/// `10` keeps the first ten; a list of requirements keeps types of which at least one holds.
pub fn keep(types: &mut Vec<InstanceType>, text: &str) {
    if let Ok(count) = text.parse() {
        types.truncate(count);
        return;
    }
    let required = words::requirements(&text.replace(',', "&"));
    types.retain(|kind| {
        required.iter().any(|required| {
            let own = kind.requirements.iter().find(|own| own.key == required.key);
            let hit = own.is_some_and(|own| own.values.iter().any(|value| required.values.contains(value)));
            hit == (required.operator == Operator::In)
        })
    });
}

/// `name cpu=2,memory=2Gi offer:spot/z1/0.5 arch:arm64 os:linux req:size=big volumes:driver=10 pool:other`. An offering may end in `/off`
/// (unavailable) or `/rID*2` (a reservation with two places free).
pub fn parse(line: &[&str]) -> (InstanceType, Option<String>) {
    let amounts = line
        .get(1)
        .filter(|word| word.contains('=') && !word.contains(':'));
    let pairs: Vec<(&str, &str)> = amounts.map_or_else(Vec::new, |text| {
        text.split(',')
            .map(|pair| pair.split_once('=').expect("an amount"))
            .collect()
    });
    let mut kind = instance_type(line[0], &pairs);
    let price = kind.offerings[0].price;
    let mut offerings: Vec<Offering> = Vec::new();
    let mut more = Vec::new();
    let mut pool = None;
    for word in &line[1 + usize::from(amounts.is_some())..] {
        let (name, rest) = words::option(word);
        match name {
            "offer" => offerings.push(parse_offering(rest, price)),
            // Beside the usual offerings, not in their place.
            "also" => more.push(parse_offering(rest, price)),
            "arch" => kind = with_requirement(kind, labels::ARCHITECTURE, Operator::In, &[rest]),
            "os" => kind = with_requirement(kind, labels::OPERATING_SYSTEM, Operator::In, &[rest]),
            "req" => kind.requirements.extend(words::requirements(rest)),
            "volumes" => {
                let (driver, count) = rest.split_once('=').expect("a driver and a count");
                kind.volume_attachment_limits
                    .insert(driver.to_owned(), count.parse().expect("a count"));
            }
            "overhead" => kind.overhead.kube_reserved = words::amounts(rest),
            "pool" => pool = Some(rest.to_owned()),
            // Every usual offering once more, with more capacity and other overhead.
            "override" | "override-off" => {
                for usual in kind.offerings.clone() {
                    more.push(Offering {
                        available: name == "override",
                        capacity_override: words::amounts(rest),
                        overhead_override: Some(Overhead {
                            system_reserved: words::amounts("memory=1Gi"),
                            ..Overhead::default()
                        }),
                        ..usual
                    });
                }
            }
            other => panic!("unknown word for a type: {other}"),
        }
    }
    if !offerings.is_empty() {
        kind = with_offerings(kind, offerings);
    }
    if !more.is_empty() {
        let mut all = kind.offerings.clone();
        all.extend(more);
        let reserved = all
            .iter()
            .any(|own| label_of(own, labels::CAPACITY_TYPE) == "reserved");
        if reserved {
            let capacity = kind
                .requirements
                .iter_mut()
                .find(|own| own.key == labels::CAPACITY_TYPE);
            capacity
                .expect("a capacity type")
                .values
                .push("reserved".to_owned());
        }
        kind.offerings = all;
    }
    (kind, pool)
}

fn parse_offering(text: &str, usual: f64) -> Offering {
    let fields: Vec<&str> = text.split('/').collect();
    let price = fields.get(2).filter(|price| !price.is_empty());
    let price = price.map_or(usual, |price| price.parse().expect("a price"));
    let mut made = offering(&words::value(fields[0]), &words::value(fields[1]), price);
    for field in fields.iter().skip(3) {
        if *field == "off" {
            made.available = false;
        } else if let Some((id, count)) = field.split_once('*') {
            made.requirements
                .push(requirement("karpenter.sh/reservation-id", Operator::In, &[id]));
            made.reservation_capacity = count.parse().expect("a number of places");
        } else {
            panic!("unknown word for an offering: {field}");
        }
    }
    made
}
