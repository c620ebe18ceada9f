//! What a host's answers mean for an upgrade: pure. The host says how its upgrades stand and ended, so nobody reads its words for that.

use std::collections::BTreeMap;

use jiff::Timestamp;
use slipway_agent_api::{
    Class, Problem,
    proto::{self, Operation, OperationState, UpgradeState},
};

use super::facts::{Order, OrderFacts, OrderState, ReachedHost, SlotFacts};

/// Everything that an upgrade is told of its host.
#[derive(Clone, Copy, Debug)]
pub struct Answers<'a> {
    pub host: &'a proto::Host,
    pub operations: &'a [Operation],
    pub images: &'a [proto::Image],
    /// Why its EdgeHost wants nothing done to it.
    pub maintenance: Option<&'a str>,
}

/// `id` is what the upgrade's orders begin with, `digest` its image.
pub fn reached(answers: Answers<'_>, id: &str, digest: &str) -> ReachedHost {
    let host = answers.host;
    let upgrade = host.upgrades.iter().rfind(|upgrade| upgrade.id == id);
    let booted = host.slots.iter().find(|slot| slot.name == host.booted_slot);
    let is_booted = upgrade.is_some_and(|upgrade| upgrade.slot == host.booted_slot);
    // What slots call the image of this upgrade: older agents say only that, and the upgrade itself tells which one it is.
    let called = upgrade.map_or("", |upgrade| upgrade.image.as_str());
    let is_it = |name: &str, digests: &[String]| {
        digests.iter().any(|known| known == digest) || name == digest || (!name.is_empty() && name == called)
    };
    let mut quarantined = host.quarantined.iter();
    let quarantined = quarantined.find(|image| is_it(&image.digest, &image.digests));
    let locked = host.maintenance.as_ref();
    ReachedHost {
        booted: booted.map(|slot| SlotFacts {
            name: slot.name.clone(),
            image: if is_it(&slot.image, &slot.digests) {
                digest.to_owned()
            } else {
                slot.image.clone()
            },
            is_good: slot.boot == "good",
        }),
        maintenance: answers
            .maintenance
            .map(ToOwned::to_owned)
            .or_else(|| locked.map(|lock| format!("{} ({})", lock.reason, lock.by))),
        orders: orders(answers.operations, id),
        quarantined: quarantined.map(|image| image.reason.clone()),
        holds_slot: !is_booted
            && upgrade.is_some_and(|upgrade| {
                matches!(
                    upgrade.state(),
                    UpgradeState::Writing | UpgradeState::Prepared | UpgradeState::Armed
                )
            }),
        left_because: left_because(&host.upgrades, id),
        is_pinned: answers.images.iter().any(|image| {
            let is_ours = |user: &proto::ImageUser| user.kind == "pin" && user.name == id;
            image.digest == digest && image.users.iter().any(is_ours)
        }),
    }
}

/// Why the slot of an upgrade was left. A slot that was kept first is left by a rollback of its own, which the host counts as another
/// upgrade with the same image.
fn left_because(upgrades: &[proto::Upgrade], id: &str) -> Option<String> {
    let at = upgrades.iter().rposition(|upgrade| upgrade.id == id)?;
    let (own, later) = (&upgrades[at], &upgrades[at + 1..]);
    let is_back = |upgrade: &&proto::Upgrade| upgrade.state() == UpgradeState::RolledBack;
    let left = Some(own).filter(is_back).or_else(|| {
        let was_kept = own.state() == UpgradeState::Confirmed && !own.image.is_empty();
        let mut later = later
            .iter()
            .filter(|upgrade| was_kept && upgrade.image == own.image);
        later.find(is_back)
    });
    left.map(|upgrade| upgrade.reason.clone())
}

/// The last try of each.
fn orders(operations: &[Operation], id: &str) -> BTreeMap<Order, OrderFacts> {
    let mut found: BTreeMap<Order, OrderFacts> = BTreeMap::new();
    for operation in operations {
        let Some((order, attempt)) = Order::of(&operation.id, id) else {
            continue;
        };
        if found.get(&order).is_none_or(|known| known.attempt < attempt) {
            found.insert(order, facts(operation, attempt));
        }
    }
    found
}

/// How one try of an order stands.
pub fn facts(operation: &Operation, attempt: u32) -> OrderFacts {
    let time = |milliseconds: i64| {
        (milliseconds > 0)
            .then(|| Timestamp::from_millisecond(milliseconds).ok())
            .flatten()
    };
    let progress = operation.progress.as_ref();
    let percent = |progress: &proto::Progress| {
        let share = progress.bytes_done.saturating_mul(100) / progress.bytes_total.max(1);
        (progress.bytes_total > 0).then(|| u32::try_from(share.min(100)).unwrap_or(100))
    };
    OrderFacts {
        attempt,
        state: state(operation),
        message: operation.message.clone(),
        percent: progress.and_then(percent),
        accepted_at: time(operation.accepted_at).unwrap_or_default(),
        ended_at: time(operation.ended_at),
    }
}

fn state(operation: &Operation) -> OrderState {
    match operation.state() {
        OperationState::Succeeded => OrderState::Succeeded,
        OperationState::Interrupted => OrderState::Interrupted,
        // Somebody has cut it off: it is ordered again like what fails for now.
        OperationState::Cancelled => OrderState::FailedForNow,
        OperationState::Failed => match operation.problem.as_ref().map(Problem::from_proto) {
            Some(problem) if matches!(problem.class, Class::Terminal | Class::Denied) => {
                OrderState::FailedForGood
            }
            _ => OrderState::FailedForNow,
        },
        OperationState::Unspecified | OperationState::Accepted | OperationState::Running => {
            OrderState::Running
        }
    }
}
