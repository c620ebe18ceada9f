//! A catalogue in the form of Karpenter's kwok provider, as it stands in `kwok/examples` of its sources.

use serde::Deserialize;
use slipway_packing::labels;
use slipway_packing::model::{InstanceType, Offering, Overhead, ResourceList};
use slipway_packing::requirement::{Operator, RequirementSpec};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    name: String,
    architecture: String,
    operating_systems: Vec<String>,
    resources: ResourceList,
    offerings: Vec<ListedOffering>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedOffering {
    price: f64,
    available: bool,
    requirements: Vec<RequirementSpec>,
}

/// What the system keeps of a node.
const RESERVED: [(&str, &str); 2] = [("cpu", "400m"), ("memory", "1126Mi")];

/// General purpose, compute and memory optimised families.
fn is_measured(name: &str) -> bool {
    let mut letters = name.chars();
    matches!(letters.next(), Some('m' | 'c' | 'r'))
        && letters.next().is_some_and(|next| next.is_ascii_digit())
}

/// The types of a catalogue that run Linux on x86-64, on demand.
pub fn read(file: &str) -> Result<Vec<InstanceType>, String> {
    let listed: Vec<Listed> = super::read(file)?;
    let mut types = Vec::new();
    for kind in listed {
        let linux = kind.operating_systems.iter().any(|system| system == "linux");
        if kind.architecture != "x86_64" || !linux || !is_measured(&kind.name) {
            continue;
        }
        let on_demand = |offering: &ListedOffering| {
            let own = |own: &RequirementSpec| {
                own.key == labels::CAPACITY_TYPE && own.values == [labels::CAPACITY_ON_DEMAND]
            };
            offering.available && offering.requirements.iter().any(own)
        };
        let offerings: Vec<Offering> = kind
            .offerings
            .into_iter()
            .filter(on_demand)
            .map(|offering| Offering {
                requirements: offering.requirements,
                price: offering.price,
                ..Offering::default()
            })
            .collect();
        if offerings.is_empty() {
            continue;
        }
        let mut zones: Vec<&str> = offerings
            .iter()
            .flat_map(|offering| &offering.requirements)
            .filter(|own| own.key == labels::ZONE)
            .flat_map(|own| own.values.iter().map(String::as_str))
            .collect();
        zones.sort_unstable();
        zones.dedup();
        types.push(InstanceType {
            requirements: vec![
                RequirementSpec::new(labels::INSTANCE_TYPE, Operator::In, &[&kind.name]),
                RequirementSpec::new(labels::ARCHITECTURE, Operator::In, &["amd64"]),
                RequirementSpec::new(labels::OPERATING_SYSTEM, Operator::In, &["linux"]),
                RequirementSpec::new(labels::ZONE, Operator::In, &zones),
                RequirementSpec::new(labels::CAPACITY_TYPE, Operator::In, &[labels::CAPACITY_ON_DEMAND]),
            ],
            name: kind.name,
            capacity: kind.resources,
            overhead: Overhead {
                kube_reserved: RESERVED
                    .iter()
                    .map(|(name, text)| ((*name).to_owned(), text.parse().expect("a quantity")))
                    .collect(),
                ..Overhead::default()
            },
            offerings,
            ..InstanceType::default()
        });
    }
    Ok(types)
}
