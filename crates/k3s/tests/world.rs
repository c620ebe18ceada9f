//! A small world around the membership model: machines, the core controllers that provision, drain and delete them,
//! health checks, and a controller that observes, plans and acts. Every write is checked against quorum.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use slipway_k3s::{
    api::RolloutStrategyType,
    control_plane::{
        observed::{
            ClusterFacts, Desired, HealthCheck, Hooks, InPlace, InPlaceAnswer, Member, Node, Observed,
            Outdated, RemediationLimits, RemediationRecord, Server, View, VoterCondition, Workload,
        },
        plan::{Action, Plan, Why, plan},
    },
};
use slipway_k3s_sim::{Model, model};

pub struct Machine {
    pub created_at: Timestamp,
    pub deleted_at: Option<Timestamp>,
    pub version: String,
    pub node: Option<String>,
    pub boots_at: Timestamp,
    pub never_boots: bool,
    pub initialize: bool,
    pub hooks: Hooks,
    pub drained: bool,
    pub health_check: HealthCheck,
    pub remediation_for: Option<RemediationRecord>,
    pub failure_domain: Option<String>,
    pub delete_requested: bool,
    pub updating_until: Option<Timestamp>,
    pub unhealthy_since: Option<Timestamp>,
}

pub struct World {
    pub model: Model,
    pub machines: BTreeMap<String, Machine>,
    pub desired: Desired,
    pub initialized: bool,
    pub deleting: bool,
    pub remediation: Option<RemediationRecord>,
    pub glitch: bool,
    pub in_place: InPlaceAnswer,
    pub failure_domains: Vec<String>,
    ghosts: BTreeMap<String, Timestamp>,
    answers: BTreeMap<String, InPlaceAnswer>,
    serial: u32,
    pub log: Vec<String>,
    pub next_fails: u32,
}

pub const NAMES: &str = "server";

impl World {
    pub fn new(replicas: usize) -> Self {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let mut model = Model::new(now);
        model.strict = false;
        Self {
            model,
            machines: BTreeMap::new(),
            desired: Desired {
                replicas,
                version: "v1.33.1+k3s1".into(),
                embedded_etcd: true,
                strategy: RolloutStrategyType::RollingUpdate,
                max_surge: 1,
                remediation: RemediationLimits::default(),
            },
            initialized: false,
            deleting: false,
            remediation: None,
            glitch: false,
            in_place: InPlaceAnswer::Can,
            failure_domains: Vec::new(),
            ghosts: BTreeMap::new(),
            answers: BTreeMap::new(),
            serial: 0,
            log: Vec::new(),
            next_fails: 0,
        }
    }

    /// A plane that has come up.
    pub fn settled(replicas: usize) -> Self {
        let mut world = Self::new(replicas);
        world.settle();
        assert!(
            world.is_settled(),
            "a new plane of {replicas} comes up:\n{}",
            world.log.join("\n")
        );
        world
    }

    pub fn now(&self) -> Timestamp {
        self.model.now
    }

    pub fn observed(&mut self) -> Observed {
        let reachable = self.model.has_quorum() && !self.glitch;
        let matched: BTreeSet<String> = self
            .machines
            .values()
            .filter_map(|machine| machine.node.as_ref())
            .filter_map(|node| self.model.nodes.get(node))
            .filter_map(|node| node.annotations.get(model::MEMBER_ANNOTATION).cloned())
            .collect();
        let now = self.model.now;
        let names: BTreeSet<String> = self
            .model
            .members
            .iter()
            .map(|member| member.name.clone())
            .collect();
        self.ghosts
            .retain(|name, _| names.contains(name) && !matched.contains(name));
        for name in names.iter().filter(|name| !matched.contains(*name)) {
            self.ghosts.entry(name.clone()).or_insert(now);
        }
        let workload = if reachable {
            Workload::Reachable(View {
                nodes: self
                    .model
                    .nodes
                    .iter()
                    .filter(|(_, node)| node.labels.contains_key("node-role.kubernetes.io/control-plane"))
                    .map(|(name, node)| Node {
                        name: name.clone(),
                        ready: node.ready,
                        not_ready_reason: "Kubelet stopped posting node status.".into(),
                        registered_at: node.created_at,
                        kubelet_version: Some(node.kubelet_version.clone()),
                        member: node.annotations.get(model::MEMBER_ANNOTATION).cloned(),
                        removed_member: node.annotations.get(model::REMOVED_ANNOTATION).cloned(),
                        removal_requested: node.annotations.contains_key(model::REMOVE_ANNOTATION),
                        voter: node.voter.as_ref().map(|voter| VoterCondition {
                            status: voter.status,
                            reason: voter.reason.into(),
                            message: voter.message.clone(),
                            heartbeat: voter.heartbeat,
                        }),
                        placeholder: name.starts_with("placeholder-"),
                    })
                    .collect(),
                members: Some(
                    self.model
                        .members
                        .iter()
                        .map(|member| Member {
                            name: member.name.clone(),
                            learner: member.learner,
                            address: member.address.clone(),
                            ghost_since: self.ghosts.get(&member.name).copied(),
                        })
                        .collect(),
                ),
            })
        } else {
            Workload::Unreachable { since: now }
        };
        Observed {
            desired: self.desired.clone(),
            cluster: ClusterFacts {
                infrastructure_ready: true,
                endpoint_known: true,
                failure_domains: self.failure_domains.clone(),
                ..ClusterFacts::default()
            },
            deleting: self.deleting,
            initialized: self.initialized,
            missing_secrets: Vec::new(),
            remediation_in_progress: self.remediation.clone(),
            servers: self
                .machines
                .iter()
                .map(|(name, machine)| self.server(name, machine))
                .collect(),
            adoptable: Vec::new(),
            foreign: Vec::new(),
            workers: 0,
            workload,
            in_place_answers: self.answers.clone(),
            unseen_writes: false,
        }
    }

    fn server(&self, name: &str, machine: &Machine) -> Server {
        let mut outdated = Vec::new();
        if machine.version != self.desired.version {
            outdated.push(Outdated::Version {
                has: machine.version.clone(),
                wants: self.desired.version.clone(),
            });
        }
        Server {
            name: name.to_owned(),
            created_at: machine.created_at,
            deleted_at: machine.deleted_at,
            version: Some(machine.version.clone()),
            node: machine.node.clone(),
            failure_domain: machine.failure_domain.clone(),
            ready: machine.node.is_some(),
            available: machine.node.is_some(),
            health_check: machine.health_check,
            remediate_requested: false,
            delete_requested: machine.delete_requested,
            hooks: machine.hooks,
            waiting_for_hook: machine.drained,
            in_place: if machine.updating_until.is_some() {
                InPlace::Updating
            } else {
                InPlace::No
            },
            remediation_for: machine.remediation_for.clone(),
            outdated,
        }
    }

    /// Observes, plans and acts once; every write is judged.
    pub fn reconcile(&mut self) -> Plan {
        let observed = self.observed();
        let plan = plan(&observed, self.now());
        // A failure is no answer: it is asked again.
        self.answers
            .retain(|_, answer| !matches!(answer, InPlaceAnswer::Failed(_)));
        let operations = plan.actions.iter().filter(|action| action.is_operation()).count();
        assert!(
            operations <= 1 || self.deleting,
            "S-2: more than one operation at a time: {:?}\n{}",
            plan.actions,
            self.log.join("\n")
        );
        for action in plan.actions.clone() {
            let before = self.model.has_quorum();
            let voters = self.model.voters();
            self.log.push(format!(
                "{} {action:?} [{}/{}]",
                self.now(),
                self.model.healthy_voters(),
                self.model.voters()
            ));
            self.act(&action);
            let single_update = voters == 1 && matches!(action, Action::UpdateInPlace { .. });
            assert!(
                !before || self.model.has_quorum() || single_update || self.deleting,
                "S-1: {action:?} cost quorum: {} of {} voters are healthy\n{}",
                self.model.healthy_voters(),
                self.model.voters(),
                self.log.join("\n")
            );
            assert!(
                voters == 0 || self.model.voters() > 0 || self.deleting,
                "S-4: the last voter left"
            );
        }
        plan
    }

    fn act(&mut self, action: &Action) {
        let now = self.now();
        match action {
            Action::CreateServer {
                initialize,
                failure_domain,
                remediation_for,
            } => {
                self.serial += 1;
                let fails = self.next_fails > 0;
                self.next_fails = self.next_fails.saturating_sub(1);
                self.machines.insert(
                    format!("{NAMES}-{}", self.serial),
                    Machine {
                        created_at: now,
                        deleted_at: None,
                        version: self.desired.version.clone(),
                        node: None,
                        boots_at: now + SignedDuration::from_secs(45),
                        never_boots: fails,
                        initialize: *initialize,
                        hooks: Hooks {
                            ours: true,
                            ..Hooks::default()
                        },
                        drained: false,
                        health_check: HealthCheck::default(),
                        remediation_for: remediation_for.clone(),
                        failure_domain: failure_domain.clone(),
                        delete_requested: false,
                        updating_until: None,
                        unhealthy_since: None,
                    },
                );
                self.remediation = None;
            }
            Action::DeleteServer { machine, why } => {
                if let Why::Remediation(record) = why {
                    self.remediation = Some(record.clone());
                }
                self.delete_machine(machine);
            }
            Action::RemoveMember { node, .. } => {
                self.model.annotate(node, model::REMOVE_ANNOTATION, Some("true"));
            }
            Action::RemoveGhost { member, address } => {
                let labels = BTreeMap::from([
                    ("node-role.kubernetes.io/etcd".to_owned(), "true".to_owned()),
                    (
                        "node-role.kubernetes.io/control-plane".to_owned(),
                        "true".to_owned(),
                    ),
                ]);
                let annotations = BTreeMap::from([
                    (model::MEMBER_ANNOTATION.to_owned(), member.clone()),
                    (model::ADDRESS_ANNOTATION.to_owned(), address.clone()),
                    (model::REMOVE_ANNOTATION.to_owned(), "true".to_owned()),
                ]);
                self.model
                    .create_node(&format!("placeholder-{member}"), labels, annotations);
            }
            Action::DeletePlaceholder { node } => self.model.delete_node(node),
            Action::ReleaseHook { machine } => {
                if let Some(machine) = self.machines.get_mut(machine) {
                    machine.hooks = Hooks::default();
                }
                self.core();
            }
            Action::AddHook { machine } => {
                if let Some(machine) = self.machines.get_mut(machine) {
                    machine.hooks.ours = true;
                }
            }
            Action::ClearRemediationMark { machine } => {
                if let Some(machine) = self.machines.get_mut(machine) {
                    machine.health_check.ours_to_remediate = false;
                }
            }
            Action::ForgetRemediation => self.remediation = None,
            Action::AskInPlace { machine } => {
                self.answers.insert(machine.clone(), self.in_place.clone());
            }
            Action::UpdateInPlace { machine } => {
                self.answers.clear();
                let version = self.desired.version.clone();
                if let Some(entry) = self.machines.get_mut(machine) {
                    entry.version = version;
                    entry.updating_until = Some(now + SignedDuration::from_secs(90));
                    if let Some(node) = entry.node.clone() {
                        self.model.kill(&node);
                    }
                }
            }
            Action::ExplainRemediation { .. } | Action::Adopt { .. } | Action::RemoveFinalizer => {}
        }
    }

    /// Forgets what the update extension answered, as a change of spec or time does.
    pub fn forget_answers(&mut self) {
        self.answers.clear();
    }

    pub fn delete_machine(&mut self, name: &str) {
        let now = self.now();
        if let Some(machine) = self.machines.get_mut(name) {
            machine.deleted_at.get_or_insert(now);
        }
    }

    /// What Cluster API and the hosts do by themselves.
    pub fn core(&mut self) {
        let now = self.now();
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for name in names {
            let machine = self.machines.get_mut(&name).expect("just listed");
            if machine.deleted_at.is_some() {
                if machine.hooks.ours || machine.hooks.legacy {
                    machine.drained = true;
                    continue;
                }
                // The host goes first, then the node, then the machine.
                let node = machine.node.clone();
                self.machines.remove(&name);
                self.model.destroy(&name);
                if let Some(node) = node
                    && self.model.has_quorum()
                {
                    self.model.delete_node(&node);
                }
                continue;
            }
            if machine.node.is_none() && !machine.never_boots && now >= machine.boots_at {
                let (initialize, version) = (machine.initialize, machine.version.clone());
                if self.model.hosts.contains_key(&name) {
                    machine.node = self.model.nodes.contains_key(&name).then(|| name.clone());
                } else if initialize && self.model.members.is_empty() {
                    self.model.initialize(&name, &version);
                    self.initialized = true;
                } else if !initialize {
                    self.model.join(&name, &version);
                }
            }
            let machine = self.machines.get_mut(&name).expect("just listed");
            if machine.updating_until.is_some_and(|until| now >= until) {
                machine.updating_until = None;
                let version = machine.version.clone();
                self.model.revive(&name);
                self.model.upgrade(&name, &version);
            }
        }
        self.health_check();
    }

    /// A MachineHealthCheck: five minutes without a ready node, or ten without a node at all.
    fn health_check(&mut self) {
        let now = self.now();
        let reachable = self.model.has_quorum();
        for machine in self.machines.values_mut() {
            if machine.updating_until.is_some() {
                continue;
            }
            let unhealthy = match &machine.node {
                None => now.duration_since(machine.created_at) > SignedDuration::from_mins(10),
                Some(node) => reachable && self.model.nodes.get(node).is_none_or(|node| !node.ready),
            };
            let known = machine.node.is_none() || reachable;
            if unhealthy {
                let since = *machine.unhealthy_since.get_or_insert(now);
                if machine.node.is_none() || now.duration_since(since) > SignedDuration::from_mins(5) {
                    machine.health_check = HealthCheck {
                        failed: true,
                        ours_to_remediate: true,
                    };
                }
            } else if known {
                machine.unhealthy_since = None;
                machine.health_check.failed = false;
            }
        }
    }

    pub fn step(&mut self) -> Plan {
        self.model.advance(Duration::from_secs(15));
        self.core();
        self.reconcile()
    }

    /// Whether the plane is what is asked for.
    pub fn is_settled(&self) -> bool {
        self.machines.len() == self.desired.replicas
            && self.machines.values().all(|machine| {
                machine.version == self.desired.version
                    && machine.deleted_at.is_none()
                    && machine.updating_until.is_none()
                    && machine
                        .node
                        .as_ref()
                        .is_some_and(|node| self.model.hosts.get(node).is_some_and(|host| host.alive))
            })
            && self.model.members.len() == self.desired.replicas
            && self.model.healthy_voters() == self.desired.replicas
            && self
                .model
                .nodes
                .keys()
                .all(|node| !node.starts_with("placeholder-"))
    }

    /// Lets time pass until the plane is settled, or long enough to say that it will not be.
    pub fn settle(&mut self) {
        for _ in 0..600 {
            self.step();
            if self.is_settled() {
                return;
            }
        }
    }

    pub fn names(&self) -> Vec<String> {
        self.machines.keys().cloned().collect()
    }
}
