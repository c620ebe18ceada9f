//! From a snapshot and pods that wait to the claims to make: pure but for the thread that the planning runs on. Each claim is
//! assigned to the object that its machine will come from, so that nothing has to be chosen later.

use std::fmt;

use jiff::Timestamp;
use slipway_packing::{
    model::{Plan as Packed, PodRefusal, RefusalReason},
    schedule,
};

pub use crate::making::Creation;
use crate::{making::Maker, watched::Observed};

/// What one round comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Why nothing is done at all.
    pub waits: Option<String>,
    pub creations: Vec<Creation>,
    /// Pods that will find a place on nodes that are there or on their way: node or claim, and pods.
    pub placed: Vec<(String, Vec<String>)>,
    pub refused: Vec<PodRefusal>,
}

impl Plan {
    pub fn creates(&self) -> bool {
        !self.creations.is_empty()
    }

    /// What the new machines cost together, per hour.
    pub fn price(&self) -> f64 {
        self.creations.iter().map(|creation| creation.price).sum()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.waits {
            return writeln!(formatter, "wait: {why}");
        }
        let is_empty = self.creations.is_empty() && self.placed.is_empty() && self.refused.is_empty();
        if is_empty {
            writeln!(formatter, "nothing to do")?;
        }
        for creation in &self.creations {
            writeln!(
                formatter,
                "create a claim of NodePool {} on {}, {} at {} per hour: for {}",
                creation.pool,
                creation.object,
                creation.instance_type,
                creation.price,
                some(&creation.pods)
            )?;
        }
        for (node, pods) in &self.placed {
            writeln!(formatter, "nothing for {}: there is room on {node}", some(pods))?;
        }
        for refusal in &self.refused {
            writeln!(formatter, "nothing for {}: {}", refusal.pod, refusal.message)?;
        }
        Ok(())
    }
}

/// The first few pods, and how many more there are.
fn some(pods: &[String]) -> String {
    const SHOWN: usize = 3;
    let mut text = pods[..pods.len().min(SHOWN)].join(", ");
    if pods.len() > SHOWN {
        text = format!("{text} and {} more", pods.len() - SHOWN);
    }
    text
}

/// Plans, on a thread that may take its time.
pub async fn decide(observed: Observed, now: Timestamp) -> Plan {
    let planned = tokio::task::spawn_blocking(move || plan(&observed, now)).await;
    planned.unwrap_or_else(|error| Plan {
        waits: Some(format!("planning failed: {error}")),
        ..Plan::default()
    })
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    if let Some(rival) = observed.rival.as_ref().filter(|rival| rival.until > now) {
        return Plan {
            waits: Some(rival.to_string()),
            ..Plan::default()
        };
    }
    if observed.pods.is_empty() {
        return Plan::default();
    }
    let packed = schedule(&observed.snapshot, &observed.pods);
    assign(observed, packed)
}

/// Chooses the object of each claim. Each choice takes room that the next no longer has.
fn assign(observed: &Observed, packed: Packed) -> Plan {
    let mut result = Plan {
        placed: packed
            .existing
            .into_iter()
            .map(|node| (node.node, node.pods))
            .collect(),
        refused: packed.unschedulable,
        ..Plan::default()
    };
    let mut maker = Maker::new(observed);
    for new in packed.new_claims {
        match maker.make(&new) {
            Ok(creation) => result.creations.extend(creation),
            Err(why) => result.refused.extend(new.pods.iter().map(|pod| PodRefusal {
                pod: pod.clone(),
                uid: String::new(),
                reason: RefusalReason::Unschedulable,
                message: why.clone(),
                candidates: Vec::new(),
            })),
        }
    }
    result
}
