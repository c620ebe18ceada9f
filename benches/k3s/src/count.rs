//! What the managers of a side use and ask for, from one reading to the next.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::{Value, json};
use slipway_k3s_sim::Simulator;
use slipway_testbed::{
    Cluster,
    audit::{Mark, Request},
};

use super::{
    USER,
    managers::{Managers, is_a_managers},
};

/// How often what was asked for, by verb and kind.
type Asked = BTreeMap<String, u64>;

#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub cpu_seconds: f64,
    pub management: Asked,
    pub management_writes: usize,
    /// A watch that is renewed counts as one.
    pub workload: Asked,
}

impl Counted {
    pub fn management_requests(&self) -> u64 {
        self.management.values().sum()
    }

    pub fn workload_requests(&self) -> u64 {
        self.workload.values().sum()
    }

    pub fn json(&self) -> Value {
        json!({
            "cpu_seconds": rounded(self.cpu_seconds),
            "management_requests": self.management_requests(),
            "management_writes": self.management_writes,
            "management": self.management,
            "workload_requests": self.workload_requests(),
            "workload": self.workload,
        })
    }
}

pub fn rounded(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

pub struct Counter<'a> {
    cluster: &'a Cluster,
    managers: &'a Managers,
    simulator: &'a Simulator,
    mark: Mark,
    cpu_seconds: f64,
    workload: Asked,
}

impl<'a> Counter<'a> {
    pub fn new(cluster: &'a Cluster, managers: &'a Managers, simulator: &'a Simulator) -> Result<Self> {
        Ok(Self {
            cluster,
            managers,
            simulator,
            mark: cluster.audit().mark()?,
            cpu_seconds: managers.cpu_seconds()?,
            workload: Asked::new(),
        })
    }

    /// What was counted since the last time.
    pub fn take(&mut self) -> Result<Counted> {
        let mark = self.cluster.audit().mark()?;
        // A lease is written all the time by whoever leads.
        let ours = |request: &Request| request.username() == USER && request.object.resource != "leases";
        let requests = self.cluster.audit().requests(Some(self.mark), ours)?;
        let cpu_seconds = self.managers.cpu_seconds()?;
        let workload = self.asked();
        let mut management = Asked::new();
        for request in &requests {
            let what = format!("{} {}", request.verb.to_uppercase(), request.resource());
            *management.entry(what).or_default() += 1;
        }
        let counted = Counted {
            cpu_seconds: cpu_seconds - self.cpu_seconds,
            management,
            management_writes: requests.iter().filter(|request| request.is_write()).count(),
            workload: difference(&workload, &self.workload),
        };
        (self.mark, self.cpu_seconds, self.workload) = (mark, cpu_seconds, workload);
        Ok(counted)
    }

    /// What the managers of this side asked the workload clusters for. Cluster API's core asks too, on both sides
    /// alike; it names itself.
    fn asked(&self) -> Asked {
        let mut asked = Asked::new();
        for cluster in self.simulator.clusters() {
            for (agent, requests) in cluster.requests() {
                if is_a_managers(&agent) {
                    for (what, count) in requests {
                        *asked.entry(what).or_default() += count;
                    }
                }
            }
        }
        asked
    }
}

fn difference(now: &Asked, before: &Asked) -> Asked {
    let since = |what: &String, count: &u64| count - before.get(what).copied().unwrap_or(0);
    now.iter()
        .map(|(what, count)| (what.clone(), since(what, count)))
        .filter(|(_, count)| *count > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_counted() {
        let asked = |list: &[(&str, u64)]| -> Asked {
            list.iter()
                .map(|(what, count)| ((*what).to_owned(), *count))
                .collect()
        };
        let before = asked(&[("LIST nodes", 2), ("WATCH nodes", 1)]);
        let now = asked(&[("GET secrets", 4), ("LIST nodes", 5), ("WATCH nodes", 1)]);
        assert_eq!(
            difference(&now, &before),
            asked(&[("GET secrets", 4), ("LIST nodes", 3)])
        );
    }
}
