//! A small world around the membership model: machines, the core controllers that provision, drain and delete them,
//! health checks, and a controller that observes, plans and acts. Every write is judged (see `truth`).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use slipway_k3s::{
    api::RolloutStrategyType,
    bootstrap::rejoin,
    control_plane::{
        liveness::{ADDRESS_KNOWN, Kubelet, Lease, Probe},
        observed::{
            ClusterFacts, Desired, HealthCheck, Hooks, InPlace, InPlaceAnswer, Member, Node, Observed,
            Outdated, Question, RemediationLimits, RemediationRecord, Server, View, VoterCondition, Workload,
        },
        orphan::Ledger,
        plan::{Action, Plan, Why, plan},
    },
};
use slipway_k3s_sim::{
    Model,
    model::{self, RejoinWait},
};

use super::truth::{Excused, Strike, Verdicts};

#[derive(Clone)]
pub struct Machine {
    pub created_at: Timestamp,
    pub deleted_at: Option<Timestamp>,
    pub version: String,
    pub node: Option<String>,
    pub boots_at: Timestamp,
    pub never_boots: bool,
    /// k3s has been started on its host.
    pub started: bool,
    /// Its member was asked to leave.
    pub removal_asked: bool,
    /// Its host was told to go, and is gone then.
    pub gone_at: Option<Timestamp>,
    pub hooks: Hooks,
    pub drained: bool,
    pub health_check: HealthCheck,
    pub remediation_for: Option<RemediationRecord>,
    pub failure_domain: Option<String>,
    pub delete_requested: bool,
    pub updating_until: Option<Timestamp>,
    pub unhealthy_since: Option<Timestamp>,
}

#[derive(Clone)]
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
    /// The management cluster reaches each server's own API.
    pub reaches_servers: bool,
    /// The cluster's endpoint reaches the kubelets.
    pub asks_kubelets: bool,
    pub slow_boot: SignedDuration,
    /// Since when the present process watches leases, and what it remembers.
    watching_since: Timestamp,
    silent: BTreeMap<String, Timestamp>,
    answered: BTreeSet<String>,
    orphans: Ledger,
    machine_of: BTreeMap<String, String>,
    /// Hosts that faults took, and since when.
    pub(super) faulty: BTreeMap<String, Timestamp>,
    /// Hosts that came back, and when.
    pub(super) returned: BTreeMap<String, Timestamp>,
    /// A host that loses its power between the last answer and the next operation.
    pub strikes: Option<String>,
    /// Another provider makes the servers: nothing on their hosts keeps k3s from joining again at once.
    made_by_another: bool,
    /// The servers it made.
    pub(super) of_another: BTreeSet<String>,
    pub verdicts: Verdicts,
    /// Unsafe writes that were excused since the plane was last whole.
    pub(super) excused: Vec<Excused>,
    /// A verdict against us is counted, and does not end the test.
    pub counts_verdicts: bool,
    pub(super) had_quorum: bool,
    again_in: Option<Duration>,
    answers: BTreeMap<String, InPlaceAnswer>,
    pub(super) question: Option<Question>,
    serial: u32,
    pub log: Vec<String>,
    pub next_fails: u32,
}

/// As the connection marks the requests that are ours.
pub const OURS: &str = "kthrees.controlplane.cluster.x-k8s.io/remove-requested";
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
            reaches_servers: true,
            asks_kubelets: true,
            slow_boot: SignedDuration::from_secs(45),
            watching_since: now,
            silent: BTreeMap::new(),
            answered: BTreeSet::new(),
            orphans: Ledger::default(),
            machine_of: BTreeMap::new(),
            faulty: BTreeMap::new(),
            returned: BTreeMap::new(),
            strikes: None,
            made_by_another: false,
            of_another: BTreeSet::new(),
            verdicts: Verdicts::default(),
            excused: Vec::new(),
            counts_verdicts: false,
            had_quorum: false,
            again_in: None,
            answers: BTreeMap::new(),
            question: None,
            serial: 0,
            log: Vec::new(),
            next_fails: 0,
        }
    }

    /// A plane that has come up.
    pub fn settled(replicas: usize) -> Self {
        Self::new(replicas).come_up()
    }

    /// A plane that another provider made.
    pub fn taken_over(replicas: usize) -> Self {
        let mut world = Self::new(replicas);
        world.made_by_another = true;
        let mut world = world.come_up();
        world.made_by_another = false;
        world
    }

    fn come_up(self) -> Self {
        let mut world = self;
        let replicas = world.desired.replicas;
        world.settle();
        assert!(
            world.is_settled(),
            "a new plane of {replicas} comes up:\n{}",
            world.log.join("\n")
        );
        // k3s calls the last one a voter with the tick after its promotion.
        world.step();
        world
    }

    pub fn now(&self) -> Timestamp {
        self.model.now
    }

    pub fn observed(&mut self) -> Observed {
        let reachable = self.model.has_quorum() && !self.glitch;
        let now = self.model.now;
        let names: Vec<String> = self.machines.keys().cloned().collect();
        let servers: Vec<Server> = names.iter().map(|name| self.server(name)).collect();
        let workload = if reachable {
            let nodes: Vec<Node> = self
                .model
                .nodes
                .iter()
                .map(|(name, node)| self.node(name, node))
                .filter(|node| {
                    node.is_server
                        || servers
                            .iter()
                            .any(|server| server.node.as_ref() == Some(&node.name))
                })
                .collect();
            let members = self
                .model
                .members
                .iter()
                .map(|member| Member {
                    name: member.name.clone(),
                    learner: member.learner,
                    address: member.address.clone(),
                    ..Member::default()
                })
                .collect();
            let members = self.orphans.note(members, &servers, &nodes, now);
            Workload::Reachable(View {
                nodes,
                members: Some(members),
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
            servers,
            adoptable: Vec::new(),
            foreign: Vec::new(),
            workers: 0,
            workload,
            in_place_answers: self.answers.clone(),
            question: self.question.clone(),
        }
    }

    fn node(&self, name: &str, node: &model::Node) -> Node {
        let has = |key: &str| node.annotations.contains_key(key);
        Node {
            name: name.to_owned(),
            ready: node.ready,
            not_ready_reason: "Kubelet stopped posting node status.".into(),
            registered_at: node.created_at,
            kubelet_version: Some(node.kubelet_version.clone()),
            lease: node.lease.map(|renewed| Lease {
                silent_since: renewed.max(self.watching_since),
                renewed: renewed > self.watching_since,
            }),
            kubelet: match self.model.hosts.get(name) {
                _ if !self.asks_kubelets => Kubelet::NotAsked,
                Some(host) if host.is_connected() => Kubelet::Answers,
                _ => Kubelet::Silent,
            },
            address: self.model.hosts.get(name).map(|host| host.address.clone()),
            machine: self.machine_of.get(name).cloned(),
            is_server: node.labels.contains_key("node-role.kubernetes.io/control-plane")
                || node.labels.contains_key(model::ETCD_ROLE)
                || has(model::MEMBER_ANNOTATION)
                || has(model::REMOVED_ANNOTATION),
            has_etcd_role: node.labels.contains_key(model::ETCD_ROLE),
            member: node.annotations.get(model::MEMBER_ANNOTATION).cloned(),
            removed_member: node.annotations.get(model::REMOVED_ANNOTATION).cloned(),
            removal_requested: has(model::REMOVE_ANNOTATION),
            removal_is_ours: has(OURS),
            voter: node.voter.as_ref().map(|voter| VoterCondition {
                status: voter.status,
                reason: voter.reason.into(),
                message: voter.message.clone(),
                heartbeat: voter.heartbeat,
            }),
            placeholder: name.starts_with("placeholder-"),
        }
    }

    /// What a server's own API answers, where it is reached.
    fn probe(&mut self, name: &str) -> Probe {
        let started = self.machines.get(name).is_some_and(|machine| machine.started);
        let answer = match self.model.hosts.get(name) {
            _ if !self.reaches_servers => None,
            Some(host) if !host.is_connected() => None,
            Some(_) => Some(
                if self
                    .model
                    .members
                    .iter()
                    .any(|member| member.host == name && !member.learner)
                {
                    Probe::Ready
                } else {
                    Probe::NotReady("etcd failed".into())
                },
            ),
            None if started => Some(Probe::NotReady("etcd failed".into())),
            None => None,
        };
        if answer.is_some() {
            self.silent.remove(name);
            self.answered.insert(name.to_owned());
        }
        let now = self.model.now;
        answer.unwrap_or_else(|| {
            let since = *self.silent.entry(name.to_owned()).or_insert(now);
            let known = SignedDuration::try_from(ADDRESS_KNOWN).expect("a time");
            Probe::NoAnswer {
                since,
                answered_before: self.answered.contains(name) && now.duration_since(since) < known,
            }
        })
    }

    fn server(&mut self, name: &str) -> Server {
        let probe = self.probe(name);
        let machine = &self.machines[name];
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
            addresses: self
                .model
                .hosts
                .get(name)
                .map(|host| host.address.clone())
                .into_iter()
                .collect(),
            has_bootstrap_data: true,
            removal_asked: machine.removal_asked,
            stays_out: !self.of_another.contains(name),
            probe,
        }
    }

    /// Another process takes over: what the first one remembered is gone.
    pub fn restart_manager(&mut self) {
        self.watching_since = self.now();
        self.silent.clear();
        self.answered.clear();
        self.orphans = Ledger::default();
        self.answers.clear();
        self.question = None;
    }

    /// Observes, plans and acts once; every write is judged.
    pub fn reconcile(&mut self) -> Plan {
        let before = self.strikes.clone().map(|host| Strike::on(host, self));
        let observed = self.observed();
        let plan = plan(&observed, self.now());
        // A failure is no answer: it is asked again.
        self.answers
            .retain(|_, answer| !matches!(answer, InPlaceAnswer::Failed(_)));
        let operations = plan.actions().filter(|action| action.is_operation()).count();
        assert!(
            operations <= 1 || self.deleting,
            "S-2: more than one operation at a time: {plan}\n{}",
            self.log.join("\n")
        );
        let struck = before.filter(|_| operations > 0);
        if let Some(strike) = &struck {
            self.strikes = None;
            self.log.push(format!(
                "{} {} loses its power as we write",
                self.now(),
                strike.host
            ));
            self.fault(|model| model.kill(&strike.host));
        }
        for action in plan.actions() {
            let voters = self.model.voters();
            let told = format!(
                "{action:?} [{}/{}]",
                self.model.healthy_voters(),
                self.model.voters()
            );
            if self.log.last().is_none_or(|last| !last.ends_with(&told)) {
                self.log.push(format!("{} {told}", self.now()));
            }
            self.judge_write(action, struck.as_ref());
            self.act(action);
            if action.is_operation() {
                self.question = None;
            }
            self.judge_quorum(&told);
            assert!(
                voters == 0 || self.model.voters() > 0 || self.deleting,
                "S-4: the last voter left\n{}",
                self.log.join("\n")
            );
        }
        plan
    }

    /// How the next server is called.
    pub(super) fn next_name(&self) -> String {
        format!("{NAMES}-{}", self.serial + 1)
    }

    fn act(&mut self, action: &Action) {
        let now = self.now();
        if let Action::RemoveMember { machine, .. } | Action::RemoveOrphan { machine, .. } = action
            && let Some(machine) = machine.as_ref().and_then(|name| self.machines.get_mut(name))
        {
            machine.removal_asked = true;
        }
        match action {
            Action::CreateServer {
                failure_domain,
                remediation_for,
            } => {
                let name = self.next_name();
                self.serial += 1;
                let fails = self.next_fails > 0;
                self.next_fails = self.next_fails.saturating_sub(1);
                self.machines.insert(
                    name,
                    Machine {
                        created_at: now,
                        deleted_at: None,
                        version: self.desired.version.clone(),
                        node: None,
                        boots_at: now + self.slow_boot,
                        never_boots: fails,
                        started: false,
                        removal_asked: false,
                        gone_at: None,
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
                self.model.annotate(node, OURS, Some("true"));
                self.model.annotate(node, model::REMOVE_ANNOTATION, Some("true"));
            }
            Action::WithdrawRemoval { node, .. } => {
                self.model.annotate(node, OURS, None);
                self.model.annotate(node, model::REMOVE_ANNOTATION, None);
            }
            Action::AnnounceOrphan { member, .. } => self.orphans.announce(member),
            Action::RemoveOrphan { member, address, .. } => {
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
            Action::DeletePlaceholder { node } => {
                self.model.annotate(node, model::REMOVE_ANNOTATION, None);
                self.model.annotate(node, model::REMOVED_ANNOTATION, Some(node));
                self.model.delete_node(node);
            }
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
            Action::AskServers { operation } => {
                self.question = Some(Question {
                    operation: operation.clone(),
                    asked_at: now,
                });
            }
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
            // What is not about servers and members is not played here.
            _ => {}
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
            let shutdown = SignedDuration::try_from(self.model.timing.shutdown).expect("a time");
            let machine = self.machines.get_mut(&name).expect("just listed");
            if machine.deleted_at.is_some() {
                if machine.hooks.ours || machine.hooks.legacy {
                    machine.drained = true;
                } else {
                    // The host goes first, which takes a while, then the node, then the machine.
                    let gone_at = *machine.gone_at.get_or_insert(now + shutdown);
                    self.model.shut_down(&name);
                    if now >= gone_at {
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
                }
            }
            let machine = self.machines.get_mut(&name).expect("just listed");
            let boots = !machine.never_boots && now >= machine.boots_at;
            // A host that is told to go starts nothing any more; what runs goes on until it is gone.
            machine.started |= boots && machine.gone_at.is_none();
            if machine.node.is_none() && machine.started {
                let (version, gone_at) = (machine.version.clone(), machine.gone_at);
                if self.model.hosts.contains_key(&name) {
                    machine.node = self.model.nodes.contains_key(&name).then(|| name.clone());
                    if machine.node.is_some() {
                        self.machine_of.insert(name.clone(), name.clone());
                    }
                } else if !self.initialized && self.model.members.is_empty() {
                    self.model.initialize(&name, &version);
                    if self.made_by_another {
                        self.of_another.insert(name.clone());
                    }
                    self.initialized = true;
                } else if self.model.join(&name, &version)
                    && let Some(host) = self.model.hosts.get_mut(&name)
                {
                    host.leaves_at = gone_at;
                    if self.made_by_another {
                        self.of_another.insert(name.clone());
                    } else {
                        host.rejoin_wait = RejoinWait {
                            learner: rejoin::WAIT_OF_LEARNER,
                            voter: rejoin::WAIT_OF_VOTER,
                        };
                    }
                }
            }
            let machine = self.machines.get_mut(&name).expect("just listed");
            if machine.updating_until.is_some_and(|until| now >= until) {
                machine.updating_until = None;
                let version = machine.version.clone();
                self.model.revive(&name);
                self.model.upgrade(&name, &version);
                if self.model.hosts.get(&name).is_some_and(model::Host::is_connected) {
                    self.faulty.remove(&name);
                }
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
        self.step_by(Duration::from_secs(15))
    }

    /// Time passes, with a reconcile wherever the last plan asked for one.
    pub fn step_by(&mut self, time: Duration) -> Plan {
        let mut left = time;
        loop {
            let chunk = self.again_in.unwrap_or(left).min(left);
            self.model.advance(chunk);
            self.judge_quorum("time");
            self.core();
            self.judge_quorum("core");
            let plan = self.reconcile();
            // What was written wakes its control plane.
            self.again_in = if plan.actions().next().is_none() {
                plan.revisit.as_ref().map(|(after, _)| *after)
            } else {
                Some(Duration::from_secs(1))
            };
            left -= chunk;
            if left.is_zero() {
                return plan;
            }
        }
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

    /// Somebody who knows that a host never starts k3s does what the wait says.
    pub fn person_helps(&mut self) -> bool {
        let told: Vec<String> = {
            let observed = self.observed();
            let plan = plan(&observed, self.now());
            plan.waits().map(|(_, why)| why.to_owned()).collect()
        };
        let mut helped = false;
        for (name, machine) in &mut self.machines {
            if machine.never_boots
                && told.iter().any(|why| {
                    why.contains(&format!("machine {name} keeps its host"))
                        && why.contains("remove the annotation")
                })
            {
                machine.hooks = Hooks::default();
                helped = true;
            }
        }
        helped
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
