//! A host, its node and its machine as an upgrade meets them: what orders do to a host with two slots, how it boots, and what can go
//! wrong meanwhile. Time is a number.

use std::{collections::BTreeMap, fmt::Write as _};

use jiff::{SignedDuration, Timestamp};
use slipway_edge::{
    api::Image,
    node_upgrade::{
        Action, Decision,
        api::{NodeUpgradeSpec, Phase, Role},
        decide,
        drain::Pods,
        facts::{
            ClusterFacts, Facts, FleetFacts, HostFacts, MachineFacts, NodeFacts, Order, OrderFacts,
            OrderState, ReachedHost, Recorded, SlotFacts,
        },
    },
    upgrade_policy::{
        api::UpgradePolicySpec,
        judge::{Member, Standing},
    },
};

pub const OLD: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";
pub const NEW: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000bb";
pub const OLD_VERSION: &str = "v1.34.2+k3s1";
pub const NEW_VERSION: &str = "v1.34.3+k3s1";
const UID: &str = "machine-uid";

/// What the host will do when it is asked to.
#[derive(Clone, Debug, Default)]
pub struct Troubles {
    pub does_not_boot: bool,
    pub boots_never_to_be_ready: bool,
    /// Tries of the image's fetch that fail.
    pub fetches_fail: u32,
    pub order_fails_for_good: Option<Order>,
    pub pods_never_leave: bool,
    pub reboots_take_minutes: i64,
}

pub struct World {
    pub now: Timestamp,
    pub start: Timestamp,
    pub spec: NodeUpgradeSpec,
    pub recorded: Recorded,
    pub machine: Option<MachineFacts>,
    pub is_reachable: bool,
    pub host: ReachedHost,
    pub prepared: bool,
    /// When the host is there again.
    pub boots_at: Option<Timestamp>,
    pub goes_back_at: Option<Timestamp>,
    pub node: NodeFacts,
    pub cluster: ClusterFacts,
    /// Another machine went back from the image.
    pub is_halted: bool,
    /// The manager has let it go, and has not been started since.
    pub has_place: bool,
    /// What of the policy's gates is not well.
    pub unhealthy: Vec<String>,
    pub newer: Option<String>,
    pub troubles: Troubles,
    /// What was ever done, for rules about it.
    pub arms: usize,
    pub gate_was_open: bool,
    pub drained_once: bool,
    pub abandoned: bool,
}

impl World {
    pub fn new() -> Self {
        let start: Timestamp = "2026-11-18T02:00:00Z".parse().expect("a time");
        let pods = Pods {
            to_evict: vec!["default/web-1".to_owned(), "default/web-2".to_owned()],
            ..Pods::default()
        };
        Self {
            now: start,
            start,
            spec: NodeUpgradeSpec {
                machine_name: "m-1".to_owned(),
                machine_uid: UID.to_owned(),
                host_name: "box-1".to_owned(),
                image: Image {
                    reference: "registry.example.com/nodes/k3s".to_owned(),
                    digest: NEW.to_owned(),
                },
                version: NEW_VERSION.to_owned(),
                ..NodeUpgradeSpec::default()
            },
            recorded: Recorded::default(),
            machine: Some(MachineFacts {
                uid: UID.to_owned(),
                ..MachineFacts::default()
            }),
            is_reachable: true,
            host: ReachedHost {
                booted: Some(slot("A", OLD)),
                ..ReachedHost::default()
            },
            prepared: false,
            boots_at: None,
            goes_back_at: None,
            node: NodeFacts {
                is_ready: true,
                kubelet_version: OLD_VERSION.to_owned(),
                pods,
                ..NodeFacts::default()
            },
            cluster: ClusterFacts {
                control_plane: NEW_VERSION.parse().ok(),
                ..ClusterFacts::default()
            },
            is_halted: false,
            has_place: false,
            unhealthy: Vec::new(),
            newer: None,
            troubles: Troubles {
                reboots_take_minutes: 4,
                ..Troubles::default()
            },
            arms: 0,
            gate_was_open: false,
            drained_once: false,
            abandoned: false,
        }
    }

    pub fn single_server() -> Self {
        let mut world = Self::new();
        world.spec.role = Role::ControlPlane;
        world.cluster.etcd_members = 1;
        world
    }

    pub fn facts(&self) -> Facts {
        let is_away = !self.is_reachable || self.boots_at.is_some() || self.goes_back_at.is_some();
        Facts {
            spec: self.spec.clone(),
            id: "up".to_owned(),
            created: Some(self.start),
            is_deleting: false,
            newer: self.newer.clone(),
            recorded: self.recorded.clone(),
            machine: self.machine.clone(),
            host: if is_away {
                HostFacts::Unreachable {
                    why: "no route to host".to_owned(),
                }
            } else {
                HostFacts::Reached(Box::new(self.host.clone()))
            },
            node: Some(self.node.clone()),
            cluster: self.cluster.clone(),
            fleet: Some(self.fleet()),
        }
    }

    fn fleet(&self) -> FleetFacts {
        let member = |name: &str, standing| Member {
            name: name.to_owned(),
            labels: BTreeMap::new(),
            standing,
        };
        let is_going = self.has_place || self.recorded.phase.disturbs();
        let mine = if is_going {
            Standing::Disturbed
        } else {
            Standing::Waiting
        };
        let mut members = vec![member("m-1", mine)];
        if self.is_halted {
            members.push(member("m-0", Standing::RolledBack));
        }
        FleetFacts {
            policy: Ok(UpgradePolicySpec::default()),
            members,
            given: 0,
            unhealthy: Some(self.unhealthy.clone()),
        }
    }

    pub fn decide(&self) -> Decision {
        decide(&self.facts(), self.now)
    }

    /// Carries out a decision. An action for which `is_lost` holds never arrives, and nor does what comes after it.
    pub fn act(&mut self, decision: &Decision, is_lost: impl Fn(&Action) -> bool) {
        self.gate_was_open |= !self.is_halted;
        let mut cut = false;
        for entry in &decision.plan.entries {
            if entry.as_wait().is_some() && entry.group.is_some() {
                cut = true;
            }
            let Some(action) = entry.action() else {
                continue;
            };
            if (cut && entry.group.is_some()) || is_lost(action) {
                cut = true;
                continue;
            }
            self.perform(action);
        }
        if decision.aborts_drain {
            self.recorded.drain_aborted_at = Some(self.now);
        }
        if let Some(why) = &decision.goes_back_because {
            self.recorded.rollback_reason = Some(why.clone());
        }
        self.has_place &= decision.keeps_place;
        self.recorded.phase = decision.phase;
        self.recorded.message.clone_from(&decision.message);
    }

    fn perform(&mut self, action: &Action) {
        match action {
            Action::Order { order, attempt } => {
                let is_away = !self.is_reachable || self.boots_at.is_some() || self.goes_back_at.is_some();
                if !is_away {
                    self.order(*order, *attempt);
                }
            }
            Action::Abandon => {
                self.abandoned = true;
                self.host.holds_slot = false;
                self.prepared = false;
            }
            Action::Unpin => self.host.is_pinned = false,
            Action::TakePlace => self.has_place = true,
            Action::Cordon => {
                let is_going = self.has_place || self.recorded.phase.disturbs();
                assert!(is_going, "drained before it was its turn");
                assert!(self.prepared, "drained before the slot was written");
                self.node.is_cordoned = true;
                self.node.cordoned_by_us = Some(self.now);
            }
            Action::Uncordon => {
                self.node.is_cordoned = false;
                self.node.cordoned_by_us = None;
            }
            Action::Evict { pod } => {
                if !self.troubles.pods_never_leave {
                    self.node.pods.to_evict.retain(|other| other != pod);
                }
            }
            Action::KeepOff => {
                if let Some(machine) = &mut self.machine {
                    machine.kept_off_since = Some(self.now);
                }
            }
            Action::LetIn => {
                if let Some(machine) = &mut self.machine {
                    machine.kept_off_since = None;
                }
            }
        }
    }

    fn order(&mut self, order: Order, attempt: u32) {
        // The same id is the same operation, and goes on where it was cut off.
        if let Some(given) = self.host.orders.get_mut(&order)
            && given.attempt == attempt
        {
            if given.state == OrderState::Interrupted {
                given.state = OrderState::Running;
            }
            return;
        }
        match order {
            Order::Ensure => self.host.is_pinned = true,
            Order::Arm => {
                assert!(self.prepared, "armed a slot that was not written and verified");
                assert!(
                    self.host.quarantined.is_none(),
                    "armed an image that failed here before"
                );
                assert!(self.gate_was_open, "armed without the policy's leave");
                self.arms += 1;
                self.host.holds_slot = false;
                self.drained_once |= self.node.pods.is_empty();
                self.boots_at = Some(minutes_after(self.now, self.troubles.reboots_take_minutes));
                self.node.is_ready = false;
            }
            Order::Rollback => {
                self.goes_back_at = Some(minutes_after(self.now, self.troubles.reboots_take_minutes));
                self.node.is_ready = false;
            }
            Order::Prepare => self.host.holds_slot = true,
            Order::Snapshot | Order::Kubernetes => {}
        }
        let facts = OrderFacts {
            attempt,
            state: OrderState::Running,
            message: String::new(),
            percent: matches!(order, Order::Ensure | Order::Prepare).then_some(43),
            accepted_at: self.now,
            ended_at: None,
        };
        self.host.orders.insert(order, facts);
    }

    fn end(&mut self, order: Order, state: OrderState, message: &str) {
        if let Some(given) = self.host.orders.get_mut(&order) {
            given.state = state;
            message.clone_into(&mut given.message);
            given.ended_at = Some(self.now);
        }
    }

    /// Time passes, and the host gets on with what it was told.
    pub fn pass(&mut self, minutes: i64) {
        self.now = minutes_after(self.now, minutes);
        let running: Vec<(Order, u32)> = self
            .host
            .orders
            .iter()
            .filter(|(_, given)| given.state == OrderState::Running)
            .map(|(order, given)| (*order, given.attempt))
            .collect();
        for (order, attempt) in running {
            if self.troubles.order_fails_for_good == Some(order) {
                self.end(order, OrderState::FailedForGood, "it does not fit");
                continue;
            }
            match order {
                Order::Ensure if attempt <= self.troubles.fetches_fail => {
                    self.end(order, OrderState::FailedForNow, "the registry does not answer");
                }
                Order::Prepare => {
                    self.prepared = true;
                    self.end(order, OrderState::Succeeded, "written and verified");
                }
                Order::Ensure | Order::Snapshot | Order::Kubernetes => {
                    self.end(order, OrderState::Succeeded, "done");
                }
                Order::Arm | Order::Rollback => {}
            }
        }
        if self.boots_at.is_some_and(|at| self.now >= at) {
            self.boots_at = None;
            self.boot();
        }
        if self.goes_back_at.is_some_and(|at| self.now >= at) {
            self.goes_back_at = None;
            self.host.booted = Some(slot("A", OLD));
            self.node.is_ready = true;
            OLD_VERSION.clone_into(&mut self.node.kubelet_version);
            self.end(Order::Rollback, OrderState::Succeeded, "the other slot runs");
        }
    }

    fn boot(&mut self) {
        if self.troubles.does_not_boot {
            self.node.is_ready = true;
            self.end(Order::Arm, OrderState::Succeeded, "the host was started again");
            self.host.left_because = Some("slot B did not come up in 3 tries".to_owned());
            self.host.quarantined = Some("slot B did not come up in 3 tries".to_owned());
            return;
        }
        self.host.booted = Some(slot("B", NEW));
        self.end(
            Order::Arm,
            OrderState::Succeeded,
            "the upgrade was armed and is confirmed",
        );
        NEW_VERSION.clone_into(&mut self.node.kubelet_version);
        self.node.is_ready = !self.troubles.boots_never_to_be_ready;
    }

    /// The manager's half, once; returns what it decided.
    pub fn step(&mut self) -> Decision {
        let decision = self.decide();
        self.act(&decision, |_| false);
        decision
    }

    pub fn is_clean(&self) -> bool {
        self.node.cordoned_by_us.is_none()
            && !self.host.is_pinned
            && !self.host.holds_slot
            && self
                .machine
                .as_ref()
                .is_none_or(|machine| machine.kept_off_since.is_none())
    }

    /// Steps until it has ended and nothing is left, and writes down every decision that differs from the one before.
    pub fn story(&mut self) -> String {
        let (mut text, mut last) = (String::new(), String::new());
        for _ in 0..400 {
            let decision = self.step();
            let told = decision.to_string();
            if told != last {
                let minutes = self.now.duration_since(self.start).as_mins();
                let _ = writeln!(text, "+{minutes} min  {told}");
            }
            last = told;
            if decision.phase.is_terminal()
                && self.is_clean()
                && self.decide().plan.actions().next().is_none()
            {
                return text;
            }
            self.pass(1);
        }
        panic!("it never ended:\n{text}");
    }

    pub fn until(&mut self, phase: Phase) {
        for _ in 0..400 {
            if self.step().phase == phase {
                return;
            }
            self.pass(1);
        }
        panic!("it never came to {phase}");
    }

    pub fn restart_agent(&mut self) {
        let running: BTreeMap<_, _> = self
            .host
            .orders
            .iter_mut()
            .filter(|(order, given)| {
                given.state == OrderState::Running && !matches!(order, Order::Arm | Order::Rollback)
            })
            .collect();
        for given in running.into_values() {
            given.state = OrderState::Interrupted;
        }
    }
}

pub fn slot(name: &str, image: &str) -> SlotFacts {
    SlotFacts {
        name: name.to_owned(),
        image: image.to_owned(),
        is_good: true,
    }
}

fn minutes_after(time: Timestamp, minutes: i64) -> Timestamp {
    time + SignedDuration::from_mins(minutes)
}
