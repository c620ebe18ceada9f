//! The page for people in trouble knows every condition and every reason of ours.

use slipway_aks::{
    plan::{Part, Waiting},
    render::RenderError,
    status::{Step, condition_of, waiting},
};

const PAGE: &str = include_str!("../../../../docs/aks/troubleshooting.md");

fn quoted(text: &str, name: &str) -> Vec<String> {
    // `=> "Reason"` in a function that gives reasons.
    let start = text.find(name).unwrap_or_else(|| panic!("{name} is not there"));
    text[start..]
        .split("\n    }\n")
        .next()
        .unwrap_or_default()
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(|word| !word.is_empty() && word.chars().all(char::is_alphanumeric))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_condition_and_reason_is_on_the_page() {
    let mut words: Vec<String> = [
        Part::ResourceGroup,
        Part::VirtualNetwork,
        Part::Subnet,
        Part::ManagedCluster,
        Part::PrivateEndpoint,
        Part::FleetMember,
        Part::Extension,
        Part::AgentPool,
    ]
    .into_iter()
    .map(|part| condition_of(part).to_owned())
    .collect();
    let pool = "pool".to_owned();
    for reason in [
        Waiting::ForSystemPool {
            until: jiff::Timestamp::UNIX_EPOCH,
        },
        Waiting::ForMachinePool { pool: pool.clone() },
        Waiting::ForReferencedPool { pool },
        Waiting::ForControlPlane,
        Waiting::ForAnotherSystemPool,
        Waiting::ForAzure { id: String::new() },
        Waiting::ForTheUser(RenderError::SshKey),
    ] {
        if let Step::Waiting { reason, .. } = waiting(&reason) {
            words.push(reason.to_owned());
        }
    }
    words.extend(quoted(include_str!("../../src/error.rs"), "pub fn code(&self)"));
    words.extend(quoted(
        include_str!("../../../azure/src/credential/error.rs"),
        "pub fn code(&self)",
    ));
    words.extend(quoted(
        include_str!("../../../azure/src/arm/error.rs"),
        "pub fn code(&self)",
    ));
    words.extend(
        [
            "Ready",
            "Available",
            "Paused",
            "Creating",
            "Updating",
            "Deleting",
            "Deleted",
        ]
        .map(str::to_owned),
    );
    assert!(words.len() > 35, "{words:?}");
    let missing: Vec<&String> = words
        .iter()
        .filter(|word| !PAGE.contains(&format!("`{word}`")))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/aks/troubleshooting.md does not tell {missing:?}"
    );
}
