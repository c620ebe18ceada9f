//! What a NodePool that is static needs: pure.

use std::fmt;

use jiff::Timestamp;
use slipway_packing::static_pools::replicas;

use crate::{
    making::{Creation, Maker},
    watched::Observed,
};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Why nothing is done at all.
    pub waits: Option<String>,
    pub creations: Vec<Creation>,
    /// Names of claims that are too many, with their NodePool.
    pub deletions: Vec<(String, String)>,
    /// How many claims a NodePool lacks that it cannot have now, and why.
    pub missing: Vec<(String, usize, String)>,
}

impl Plan {
    pub fn acts(&self) -> bool {
        !self.creations.is_empty() || !self.deletions.is_empty()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.waits {
            return writeln!(formatter, "wait: {why}");
        }
        if !self.acts() && self.missing.is_empty() {
            writeln!(formatter, "nothing to do")?;
        }
        for creation in &self.creations {
            let Creation {
                pool, object, why, ..
            } = creation;
            writeln!(formatter, "create a claim of NodePool {pool} on {object}: {why}")?;
        }
        for (pool, claim) in &self.deletions {
            writeln!(
                formatter,
                "delete {claim}: NodePool {pool} has more than its replicas"
            )?;
        }
        for (pool, count, why) in &self.missing {
            writeln!(formatter, "NodePool {pool} lacks {count}: {why}")?;
        }
        Ok(())
    }
}

pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if let Some(rival) = observed.rival.as_ref().filter(|rival| rival.until > now) {
        plan.waits = Some(rival.to_string());
        return plan;
    }
    let mut maker = Maker::new(observed);
    let pools = observed.snapshot.node_pools.iter();
    for pool in pools.filter(|pool| pool.spec.replicas.is_some()) {
        let name = &pool.metadata.name;
        let needed = replicas(&observed.snapshot, name);
        plan.deletions
            .extend(needed.delete.into_iter().map(|claim| (name.clone(), claim)));
        let mut missing = needed.missing;
        let mut why = "its limits or its objects have no room".to_owned();
        for new in &needed.create {
            match maker.make(new) {
                Ok(creation) => plan.creations.extend(creation),
                Err(refused) => {
                    missing += 1;
                    why = refused;
                }
            }
        }
        if missing > 0 {
            plan.missing.push((name.clone(), missing, why));
        }
    }
    plan
}
