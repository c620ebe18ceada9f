//! The page for people in trouble knows every condition and every reason of ours.

use slipway_aks::{
    planning::Waiting,
    render::RenderError,
    status::{condition_of, waiting},
};
use slipway_azure::{
    ownership::Foreign,
    reconcile::{ResourceKind, StepStatus, planning::WAITING_FOR_AZURE},
};

const PAGE: &str = include_str!("../../../../docs/aks/troubleshooting.md");
/// The page leads to it for reasons.
const REFERENCE: &str = include_str!("../../../../docs/reference/conditions.md");

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
        ResourceKind::ResourceGroup,
        ResourceKind::VirtualNetwork,
        ResourceKind::Subnet,
        ResourceKind::ManagedCluster,
        ResourceKind::PrivateEndpoint,
        ResourceKind::FleetMember,
        ResourceKind::Extension,
        ResourceKind::AgentPool,
    ]
    .into_iter()
    .map(|kind| condition_of(kind).to_owned())
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
        Waiting::OwnedByAnother {
            id: String::new(),
            foreign: Foreign::Marked {
                object: String::new(),
            },
        },
        Waiting::Vanished { id: String::new() },
        Waiting::ForStart { id: String::new() },
        Waiting::ForTheUser(RenderError::SshKey),
    ] {
        if let StepStatus::Waiting { reason, .. } = waiting(&reason) {
            words.push(reason.into_owned());
        }
    }
    words.extend(quoted(
        include_str!("../../../azure/src/reconcile/error.rs"),
        "pub fn code(&self)",
    ));
    words.extend([WAITING_FOR_AZURE, "IdentityNotFound", "NoSubscription"].map(str::to_owned));
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
        .filter(|word| {
            let quoted = format!("`{word}`");
            !PAGE.contains(&quoted) && !REFERENCE.contains(&quoted)
        })
        .collect();
    assert!(
        missing.is_empty(),
        "neither docs/aks/troubleshooting.md nor docs/reference/conditions.md has {missing:?}"
    );
}

/// Every event that a plan asks for, by the words in the sources.
#[test]
fn every_event_is_on_the_page() {
    let sources = [
        include_str!("../../src/planning.rs"),
        include_str!("../../../azure/src/reconcile/planning.rs"),
        include_str!("../../src/control_plane/plan/mod.rs"),
        include_str!("../../src/control_plane/plan/delete.rs"),
        include_str!("../../src/pool/plan.rs"),
    ];
    let mut reasons = std::collections::BTreeSet::new();
    for source in sources {
        for call in [".announced(\"", ".warned(\"", "Some(\""] {
            let found = source.split(call).skip(1);
            reasons.extend(found.filter_map(|rest| rest.split('"').next()));
        }
    }
    reasons
        .retain(|reason| reason.starts_with(char::is_uppercase) && reason.chars().all(char::is_alphanumeric));
    for known in [
        "Creating",
        "Upgraded",
        "Deleted",
        "DefaultSystemPool",
        "SystemPoolKeepsOneNode",
        "Orphaned",
    ] {
        assert!(reasons.contains(known), "{known} is not found: {reasons:?}");
    }
    reasons.retain(|reason| {
        !matches!(
            *reason,
            "Succeeded" | "Failed" | "Canceled" | "Leaving" | "Stopped"
        )
    });
    let missing: Vec<_> = reasons
        .iter()
        .filter(|reason| !PAGE.contains(&format!("`{reason}`")))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/aks/troubleshooting.md does not tell {missing:?}"
    );
}
