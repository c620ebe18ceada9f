//! Every state that two machines and two hosts can come to, with reads as stale as they can be, writes that are lost or whose answer is, and
//! machines that are deleted at any time.

use std::collections::{HashSet, VecDeque};

use slipway_edge::{
    host::{
        api::Claim,
        release::{self, Claimant, Wipe},
    },
    machine::claim::{Asking, Candidate, Decision, decide},
};

const MACHINES: usize = 2;
const HOSTS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Held {
    Free,
    By(usize),
    Released(usize),
    Wiped(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Host {
    held: Held,
    in_maintenance: bool,
}

/// What a machine's controller sees of a host. A write over a version that is not the current one is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct View {
    host: Host,
    is_current: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Life {
    Alive,
    Deleting,
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Machine {
    chosen: Option<usize>,
    is_bound: bool,
    life: Life,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct State {
    machines: [Machine; MACHINES],
    hosts: [Host; HOSTS],
    views: [[View; HOSTS]; MACHINES],
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Reconcile(usize),
    /// A watch delivers.
    See(usize, usize),
    HostReconcile(usize),
    Delete(usize),
    Maintain(usize),
}

const UIDS: [&str; MACHINES] = ["uid-0", "uid-1"];
const NAMES: [&str; HOSTS] = ["host-0", "host-1"];

impl State {
    fn start() -> Self {
        let free = Host {
            held: Held::Free,
            in_maintenance: false,
        };
        let view = View {
            host: free,
            is_current: true,
        };
        Self {
            machines: [Machine {
                chosen: None,
                is_bound: false,
                life: Life::Alive,
            }; MACHINES],
            hosts: [free; HOSTS],
            views: [[view; HOSTS]; MACHINES],
        }
    }

    fn write(&mut self, host: usize, change: impl FnOnce(&mut Host)) {
        change(&mut self.hosts[host]);
        for views in &mut self.views {
            views[host].is_current = false;
        }
    }

    fn decision(&self, machine: usize) -> Decision {
        let me = &self.machines[machine];
        let asking = Asking {
            name: format!("m-{machine}"),
            uid: UIDS[machine].to_owned(),
            chosen: me.chosen.map(|host| NAMES[host].to_owned()),
            is_bound: me.is_bound,
            is_deleting: me.life == Life::Deleting,
            ..Asking::default()
        };
        let claim = |machine: usize, released| {
            Some(Claim {
                name: format!("m-{machine}"),
                uid: UIDS[machine].to_owned(),
                released,
            })
        };
        let hosts: Vec<Candidate> = (0..HOSTS)
            .map(|number| {
                let seen = self.views[machine][number].host;
                Candidate {
                    name: NAMES[number].to_owned(),
                    is_ready: true,
                    maintenance: seen.in_maintenance.then(String::new),
                    claim: match seen.held {
                        Held::Free => None,
                        Held::By(other) => claim(other, false),
                        Held::Released(other) | Held::Wiped(other) => claim(other, true),
                    },
                    ..Candidate::default()
                }
            })
            .collect();
        decide(&asking, &hosts)
    }

    fn reconcile(&mut self, machine: usize) {
        let number = |host: &str| NAMES.iter().position(|name| *name == host).expect("a host");
        match self.decision(machine) {
            Decision::Choose { host, .. } => self.machines[machine].chosen = Some(number(&host)),
            Decision::Drop { .. } => self.machines[machine].chosen = None,
            Decision::Take { host, .. } => {
                let host = number(&host);
                if self.views[machine][host].is_current {
                    assert_eq!(
                        self.hosts[host].held,
                        Held::Free,
                        "only a free host is taken: {self:?}"
                    );
                    self.write(host, |host| host.held = Held::By(machine));
                }
            }
            Decision::Held { host } => {
                // Whatever is done on the host begins with a read past the watch.
                if self.hosts[number(&host)].held == Held::By(machine) {
                    self.machines[machine].is_bound = true;
                }
            }
            Decision::Return { host, .. } => {
                let host = number(&host);
                if self.views[machine][host].is_current {
                    self.write(host, |host| host.held = Held::Released(machine));
                }
            }
            Decision::Lost { host, .. } => {
                assert!(
                    !self.views[machine][number(&host)].is_current,
                    "a host is lost for good: {self:?}"
                );
            }
            Decision::Nothing => self.machines[machine].life = Life::Gone,
            Decision::Wait { .. } => {}
        }
    }

    /// Of the host's own controller: it reads its object at the apiserver, and the watch of machines may lag behind.
    fn host_reconcile(&mut self, host: usize) {
        let (claim, wipe) = match self.hosts[host].held {
            Held::Free => return,
            Held::By(machine) => ((machine, false), Wipe::NotOrdered),
            Held::Released(machine) => ((machine, true), Wipe::NotOrdered),
            Held::Wiped(machine) => ((machine, true), Wipe::Done),
        };
        let (machine, released) = claim;
        let claim = Claim {
            name: format!("m-{machine}"),
            uid: UIDS[machine].to_owned(),
            released,
        };
        let live = if self.machines[machine].life == Life::Gone {
            Claimant::Gone
        } else {
            Claimant::Present
        };
        let mut decision = release::decide(Some(&claim), Claimant::NotSeen, &wipe);
        if decision == release::Decision::Confirm {
            decision = release::decide(Some(&claim), live, &wipe);
        }
        match decision {
            release::Decision::Release { .. } => self.write(host, |host| host.held = Held::Released(machine)),
            release::Decision::OrderWipe { .. } => {
                for (number, other) in self.machines.iter().enumerate() {
                    assert!(
                        !(other.is_bound && other.life == Life::Alive && other.chosen == Some(host)),
                        "host {host} is wiped while machine {number} runs on it: {self:?}"
                    );
                }
                self.write(host, |host| host.held = Held::Wiped(machine));
            }
            release::Decision::Free { .. } => self.write(host, |host| host.held = Held::Free),
            release::Decision::Keep | release::Decision::Confirm | release::Decision::Wait { .. } => {}
        }
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Reconcile(machine) if self.machines[machine].life != Life::Gone => self.reconcile(machine),
            Event::Reconcile(_) => {}
            Event::See(machine, host) => {
                self.views[machine][host] = View {
                    host: self.hosts[host],
                    is_current: true,
                };
            }
            Event::HostReconcile(host) => self.host_reconcile(host),
            Event::Delete(machine) => {
                if self.machines[machine].life == Life::Alive {
                    self.machines[machine].life = Life::Deleting;
                }
            }
            Event::Maintain(host) => self.write(host, |host| host.in_maintenance = !host.in_maintenance),
        }
    }

    fn check(&self) {
        for (number, machine) in self.machines.iter().enumerate() {
            if machine.is_bound && machine.life == Life::Alive {
                let host = machine.chosen.expect("one that runs has a host");
                assert_eq!(
                    self.hosts[host].held,
                    Held::By(number),
                    "machine {number} runs on a host that is not its own: {self:?}"
                );
            }
        }
    }

    /// Without further trouble everybody comes to what is theirs.
    fn settles(mut self) {
        for _ in 0..40 {
            for host in 0..HOSTS {
                if self.hosts[host].in_maintenance {
                    self.apply(Event::Maintain(host));
                }
                for machine in 0..MACHINES {
                    self.apply(Event::See(machine, host));
                }
                self.apply(Event::HostReconcile(host));
            }
            for machine in 0..MACHINES {
                for host in 0..HOSTS {
                    self.apply(Event::See(machine, host));
                }
                self.apply(Event::Reconcile(machine));
            }
        }
        for (number, machine) in self.machines.iter().enumerate() {
            match machine.life {
                Life::Alive => assert!(machine.is_bound, "machine {number} gets no host: {self:?}"),
                Life::Deleting => panic!("machine {number} does not go: {self:?}"),
                Life::Gone => assert!(
                    self.hosts.iter().all(|host| host.held != Held::By(number)),
                    "machine {number} is gone and has a host: {self:?}"
                ),
            }
        }
        let held = self.hosts.iter().filter(|host| host.held != Held::Free).count();
        let alive = self.machines.iter().filter(|one| one.life == Life::Alive).count();
        assert_eq!(held, alive, "every other host is free again: {self:?}");
    }
}

#[test]
fn one_host_for_one_machine_in_every_state_that_can_be_reached() {
    let mut events: Vec<Event> = Vec::new();
    for machine in 0..MACHINES {
        events.push(Event::Reconcile(machine));
        events.push(Event::Delete(machine));
        events.extend((0..HOSTS).map(|host| Event::See(machine, host)));
    }
    events.extend((0..HOSTS).map(Event::HostReconcile));
    // One host that comes and goes is enough to make a machine give up a choice that it was about to win.
    events.push(Event::Maintain(0));
    let mut seen = HashSet::from([State::start()]);
    let mut left = VecDeque::from([State::start()]);
    while let Some(state) = left.pop_front() {
        state.check();
        // A sample of the ends: all of them would take minutes and show nothing new.
        if seen.len() % 7 == 0 {
            state.settles();
        }
        for event in &events {
            let mut next = state;
            next.apply(*event);
            if seen.insert(next) {
                left.push_back(next);
            }
        }
    }
    println!("report: {} states of claims", seen.len());
    assert!(seen.len() > 1_000, "only {} states are reached", seen.len());
}
