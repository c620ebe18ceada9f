//! What the status says of the operator. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use slipway_capi::condition::{self, Report, Status};

use super::{ANNOTATION, Standing};
use crate::resources::{Held, Resource};

/// The condition of an object with resources that Azure Service Operator writes, or could.
pub const OPERATOR_READY: &str = "AzureServiceOperatorReady";

fn names<'a>(resources: impl Iterator<Item = &'a Resource>) -> String {
    let names: Vec<String> = resources.map(Resource::display).collect();
    names.join(", ")
}

/// Status, reason and message of that condition.
pub type Word = (Status, &'static str, String);

/// Writes the condition, or takes it away.
pub fn report(
    found: Option<&Word>,
    conditions: &mut Vec<Condition>,
    generation: Option<i64>,
    now: Timestamp,
) {
    conditions.retain(|one| one.type_ != OPERATOR_READY || found.is_some());
    if let Some((status, reason, message)) = found {
        let report = Report::new(OPERATOR_READY, *status, reason, message.clone());
        condition::set(conditions, &report, generation, now);
    }
}

/// How the operator stands to the resources that it writes; where it writes none, that it could.
pub fn judge(held: &Held) -> Option<Word> {
    let operated = || held.resources.iter().filter(|one| one.choice.is_operated());
    let bad = operated().find(|one| one.standing != Standing::Running);
    if let Some(bad) = bad {
        let same = operated().filter(|one| one.standing == bad.standing);
        let message = format!("{}: {}. {}", names(same), bad.standing, way_out(&bad.standing));
        return Some((Status::False, bad.standing.reason(), message));
    }
    if let Some(switching) = held.resources.iter().find(|one| one.choice.held_up.is_some()) {
        let why = switching.choice.held_up.clone().unwrap_or_default();
        let message = format!("{}: {ANNOTATION} is aso, and {why}", switching.display());
        return Some((Status::False, switching.standing.reason(), message));
    }
    if operated().next().is_some() {
        return Some((Status::True, Standing::Running.reason(), String::new()));
    }
    let could = || {
        held.resources
            .iter()
            .filter(|one| one.standing == Standing::Running)
    };
    could().next()?;
    let message = format!(
        "{}: {}. To hand over to Azure Service Operator, annotate the object with {ANNOTATION}: aso",
        names(could()),
        could()
            .next()
            .map(|one| one.choice.why.clone())
            .unwrap_or_default()
    );
    Some((Status::True, "NotUsed", message))
}

fn way_out(standing: &Standing) -> String {
    match standing {
        Standing::Forbidden(_) | Standing::Running => String::new(),
        Standing::NotInstalled | Standing::VersionNotServed(_) => {
            format!("Install it, or annotate the object with {ANNOTATION}: native")
        }
        Standing::NoLease | Standing::Stopped(_) => {
            format!("Start it, or annotate the object with {ANNOTATION}: native to have it written here")
        }
    }
}
