//! Whether an order is carried out: pure. Generation, idempotency, the maintenance lock and what runs already decide, in this
//! order.

use slipway_agent_api::order::{Nature, Order};
use slipway_agent_api::{Class, Problem};
use slipway_slots::Digest;

use super::maintenance::Maintenance;

/// What is known of the operation of that id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub digest: Digest,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Accepted or running.
    Live,
    /// Cut off by the end of the agent.
    Interrupted,
    /// It has ended, well or not.
    Ended,
}

/// What the host stands at.
#[derive(Clone, Debug, Default)]
pub struct Standing<'a> {
    pub host: &'a str,
    /// The highest generation accepted.
    pub generation: u64,
    pub known: Option<Known>,
    /// The operation that works on slots, services or the machine.
    pub exclusive: Option<&'a str>,
    pub maintenance: Option<&'a Maintenance>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The operation is this one already.
    Join,
    Begin,
}

fn refused(class: Class, reason: &str, message: String) -> Problem {
    Problem::new(class, reason, message)
}

/// Whether orders of this generation count.
pub fn fence(generation: u64, seen: u64) -> Result<(), Problem> {
    if generation < seen {
        return Err(refused(
            Class::Conflict,
            "StaleGeneration",
            format!("the order is of generation {generation} and this host follows generation {seen}"),
        ));
    }
    Ok(())
}

pub fn admit(order: &Order, standing: &Standing<'_>) -> Result<Admission, Problem> {
    if order.host != standing.host {
        return Err(refused(
            Class::Terminal,
            "OtherHost",
            format!("the order is for {} and this is {}", order.host, standing.host),
        ));
    }
    fence(order.generation, standing.generation)?;
    if let Some(known) = standing.known {
        if known.digest != order.digest {
            return Err(refused(
                Class::Terminal,
                "IdReused",
                format!(
                    "operation {} was ordered before with other contents: choose another id",
                    order.id
                ),
            ));
        }
        if known.state != State::Interrupted {
            return Ok(Admission::Join);
        }
    }
    let Nature {
        name,
        exclusive,
        disturbs,
        ..
    } = order.nature();
    if let (true, Some(maintenance)) = (disturbs, standing.maintenance) {
        return Err(refused(
            Class::Conflict,
            "Maintenance",
            format!(
                "{name} waits: {} works on this host since {} ({})",
                maintenance.by, maintenance.since, maintenance.reason
            ),
        ));
    }
    if let (true, Some(running)) = (exclusive, standing.exclusive) {
        return Err(refused(
            Class::Conflict,
            "Busy",
            format!("{name} waits: operation {running} is under way"),
        ));
    }
    Ok(Admission::Begin)
}

#[cfg(test)]
mod tests {
    use slipway_agent_api::proto::{self, StartRequest, start_request::Verb};

    use super::*;

    fn order(id: &str, generation: u64, verb: Verb) -> Order {
        Order::check(StartRequest {
            operation_id: id.into(),
            generation,
            host: "box-1".into(),
            verb: Some(verb),
        })
        .unwrap()
    }

    fn reboot(reason: &str) -> Verb {
        Verb::Reboot(proto::Reboot {
            reason: reason.into(),
        })
    }

    fn pin() -> Verb {
        Verb::Pin(proto::Pin {
            digest: Digest::of(b"x").to_string(),
            owner: "me".into(),
            ttl_seconds: 0,
        })
    }

    #[test]
    fn every_reason_to_refuse_and_their_order() {
        let maintenance = Maintenance {
            by: "root".into(),
            reason: "a disk is replaced".into(),
            since: "2026-06-01T12:00:00Z".parse().unwrap(),
        };
        let free = Standing {
            host: "box-1",
            generation: 5,
            ..Standing::default()
        };
        let said = |order: &Order, standing: &Standing<'_>| match admit(order, standing) {
            Ok(admission) => format!("{admission:?}"),
            Err(problem) => problem.reason,
        };
        let known = |verb: Verb, state| Known {
            digest: order("op", 1, verb).digest,
            state,
        };
        let with = |change: &dyn Fn(&mut Standing<'_>)| {
            let mut standing = free.clone();
            change(&mut standing);
            standing.generation
        };
        assert_eq!(with(&|_| {}), 5);
        let disturbed = Standing {
            maintenance: Some(&maintenance),
            ..free.clone()
        };
        let busy = Standing {
            exclusive: Some("op-0"),
            ..free.clone()
        };
        assert_eq!(said(&order("op", 5, reboot("a")), &free), "Begin");
        assert_eq!(said(&order("op", 9, reboot("a")), &free), "Begin");
        assert_eq!(said(&order("op", 4, reboot("a")), &free), "StaleGeneration");
        assert_eq!(said(&order("op", 5, reboot("a")), &disturbed), "Maintenance");
        assert_eq!(said(&order("op", 5, pin()), &disturbed), "Begin");
        assert_eq!(said(&order("op", 5, reboot("a")), &busy), "Busy");
        assert_eq!(said(&order("op", 5, pin()), &busy), "Begin");
        for (state, expected) in [
            (State::Live, "Join"),
            (State::Ended, "Join"),
            (State::Interrupted, "Begin"),
        ] {
            let standing = Standing {
                known: Some(known(reboot("a"), state)),
                ..free.clone()
            };
            assert_eq!(said(&order("op", 5, reboot("a")), &standing), expected);
            assert_eq!(said(&order("op", 5, reboot("b")), &standing), "IdReused");
            // A leader that lost its lease learns that first, also of an operation it began.
            assert_eq!(said(&order("op", 4, reboot("a")), &standing), "StaleGeneration");
        }
        // What ended is told during maintenance, too: it disturbs nobody.
        let ended = Standing {
            known: Some(known(reboot("a"), State::Ended)),
            ..disturbed
        };
        assert_eq!(said(&order("op", 5, reboot("a")), &ended), "Join");
        let other = Standing {
            host: "box-2",
            ..free
        };
        assert_eq!(said(&order("op", 5, reboot("a")), &other), "OtherHost");
    }
}
