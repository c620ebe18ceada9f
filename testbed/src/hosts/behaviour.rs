//! What the hosts are told to do wrong or late, and what is known of each. Pure state; no I/O.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

/// A step in a host's life that can be made to take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPhase {
    /// From bootstrap data to a provider id.
    Provision,
    /// From a provider id to a Node.
    Join,
    /// From the delete request to being gone.
    Delete,
}

/// What goes wrong with a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The machine never gets a provider id; its Ready condition says why.
    Provision(String),
    /// The machine is there, but its Node never comes.
    NeverJoins,
}

#[derive(Default)]
pub(super) struct Behaviour {
    pub delays: BTreeMap<HostPhase, Duration>,
    failures: VecDeque<Failure>,
    machines: BTreeMap<String, Machine>,
}

#[derive(Default)]
struct Machine {
    failure: Option<Failure>,
    /// Whether it took its failure, or was spared.
    judged: bool,
    /// When each stage began.
    began: BTreeMap<HostPhase, Instant>,
    joined: bool,
    /// Its Cluster, from when it was first looked at.
    cluster: Option<String>,
    bootstrap_data: Option<Vec<u8>>,
}

impl Behaviour {
    pub fn fail_next(&mut self, failure: Failure) {
        self.failures.push_back(failure);
    }

    /// The failure of a machine; a new machine takes the next one that was asked for.
    pub fn failure(&mut self, name: &str) -> Option<Failure> {
        let machine = self.machines.entry(name.to_owned()).or_default();
        if !machine.judged {
            machine.judged = true;
            machine.failure = self.failures.pop_front();
        }
        machine.failure.clone()
    }

    pub fn recover(&mut self, name: &str) {
        if let Some(machine) = self.machines.get_mut(name) {
            machine.failure = None;
        }
    }

    /// How long a stage has still to take.
    pub fn remaining(&mut self, name: &str, stage: HostPhase) -> Option<Duration> {
        let delay = self.delays.get(&stage).copied().unwrap_or_default();
        let machine = self.machines.entry(name.to_owned()).or_default();
        let began = *machine.began.entry(stage).or_insert_with(Instant::now);
        delay.checked_sub(began.elapsed()).filter(|left| !left.is_zero())
    }

    pub fn has_joined(&self, name: &str) -> bool {
        self.machines.get(name).is_some_and(|machine| machine.joined)
    }

    pub fn joined(&mut self, name: &str) {
        self.machines.entry(name.to_owned()).or_default().joined = true;
    }

    pub fn belongs(&mut self, name: &str, cluster: &str) {
        let machine = self.machines.entry(name.to_owned()).or_default();
        if machine.cluster.as_deref() != Some(cluster) {
            machine.cluster = Some(cluster.to_owned());
        }
    }

    /// The Cluster of a machine.
    pub fn cluster(&self, name: &str) -> Option<String> {
        self.machines.get(name)?.cluster.clone()
    }

    pub fn read_bootstrap_data(&mut self, name: &str, data: Vec<u8>) {
        self.machines.entry(name.to_owned()).or_default().bootstrap_data = Some(data);
    }

    pub fn bootstrap_data(&self, name: &str) -> Option<Vec<u8>> {
        self.machines.get(name)?.bootstrap_data.clone()
    }

    pub fn gone(&mut self, name: &str) {
        self.machines.remove(name);
    }

    pub fn names(&self) -> BTreeSet<String> {
        self.machines.keys().cloned().collect()
    }

    pub fn names_in(&self, cluster: &str) -> Vec<String> {
        let machines = self.machines.iter();
        machines
            .filter(|(_, machine)| machine.cluster.as_deref() == Some(cluster))
            .map(|(name, _)| name.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_taken_by_one_machine_and_kept_until_it_recovers() {
        let mut behaviour = Behaviour::default();
        behaviour.fail_next(Failure::NeverJoins);
        assert_eq!(behaviour.failure("a"), Some(Failure::NeverJoins));
        assert_eq!(behaviour.failure("b"), None);
        assert_eq!(behaviour.failure("a"), Some(Failure::NeverJoins));
        behaviour.recover("a");
        assert_eq!(behaviour.failure("a"), None);
    }

    #[test]
    fn a_machine_takes_its_failure_also_where_it_is_known_already() {
        let mut behaviour = Behaviour::default();
        behaviour.fail_next(Failure::NeverJoins);
        behaviour.belongs("a", "fleet/one");
        behaviour.belongs("b", "fleet/two");
        assert_eq!(behaviour.names_in("fleet/one"), ["a"]);
        assert_eq!(behaviour.failure("a"), Some(Failure::NeverJoins));
        assert_eq!(behaviour.failure("b"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stage_takes_as_long_as_it_was_told_to() {
        let mut behaviour = Behaviour::default();
        behaviour.delays.insert(HostPhase::Join, Duration::from_secs(10));
        assert_eq!(behaviour.remaining("a", HostPhase::Provision), None);
        assert_eq!(
            behaviour.remaining("a", HostPhase::Join),
            Some(Duration::from_secs(10))
        );
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(
            behaviour.remaining("a", HostPhase::Join),
            Some(Duration::from_secs(6))
        );
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(behaviour.remaining("a", HostPhase::Join), None);
    }
}
