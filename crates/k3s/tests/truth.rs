//! The judge: every write of the control plane and every loss of quorum, by what is true in the simulator at that moment and
//! never by what the control plane observed. docs/k3s/quorum.md says what each count means.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use slipway_k3s::control_plane::{liveness::LEASE_OVERDUE, plan::Action};
use slipway_k3s_sim::{Model, model};

use super::world::World;

const FAULT: &str = "a fault";

/// Whose doing something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Faults of the schedule alone took a majority of the voters.
    Faults,
    /// A fault struck while a server was away for a change that was safe when it began.
    FaultInChange,
    /// A fault struck between the last answer and the write.
    Raced,
    /// Neither servers nor kubelets could be asked, and the lease of a server that had just died was still fresh, or that
    /// of one that had just come back not yet renewed.
    LeaseFresh,
    Ours,
}

/// What the judge has seen.
#[derive(Clone, Debug, Default)]
pub struct Verdicts {
    /// Operations that were judged.
    pub writes: u64,
    /// Members that were asked to leave, and those of them that lived and were to stay.
    pub removals: u64,
    pub living_removed: u64,
    /// Writes that were not safe when they were made, by why they were made all the same.
    pub unsafe_writes: Vec<Cause>,
    /// Losses of quorum.
    pub losses: Vec<Cause>,
}

impl Verdicts {
    pub fn add(&mut self, other: Self) {
        self.writes += other.writes;
        self.removals += other.removals;
        self.living_removed += other.living_removed;
        self.unsafe_writes.extend(other.unsafe_writes);
        self.losses.extend(other.losses);
    }

    pub fn losses(&self, cause: Cause) -> u64 {
        self.losses.iter().filter(|found| **found == cause).count() as u64
    }

    pub fn unsafe_writes(&self, cause: Cause) -> u64 {
        self.unsafe_writes.iter().filter(|found| **found == cause).count() as u64
    }
}

/// A fault that strikes after the last answer and before the write, and the world before anything was asked.
pub struct Strike {
    pub host: String,
    before: Box<World>,
}

impl Strike {
    pub fn on(host: String, world: &mut World) -> Self {
        let log = std::mem::take(&mut world.log);
        let before = Box::new(world.clone());
        world.log = log;
        Self { host, before }
    }

    /// Whether an unsafe write is a matter of the moment: had the fault come before the answers, none would have been made.
    fn is_race(&self) -> bool {
        let mut earlier = self.before.clone();
        earlier.strikes = None;
        earlier.counts_verdicts = true;
        earlier.verdicts = Verdicts::default();
        earlier.fault(|model| model.kill(&self.host));
        earlier.reconcile();
        earlier.verdicts.unsafe_writes.is_empty() && earlier.verdicts.living_removed == 0
    }
}

/// A voter that is not there, or is about to go, and since when that is true.
struct Missing {
    host: String,
    since: Timestamp,
}

/// An unsafe write of which no evidence could be had in time, until the plane is whole again.
#[derive(Clone, Debug)]
pub struct Excused {
    cause: Cause,
    effect: Effect,
    host: String,
}

/// What a write does to a host's vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Removed,
    Restarted,
    Added,
}

impl World {
    /// A fault of a host or its network, which may cost quorum by itself.
    pub fn fault(&mut self, fault: impl FnOnce(&mut Model)) {
        self.judge_quorum("nothing");
        fault(&mut self.model);
        let now = self.model.now;
        let hosts = &self.model.hosts;
        let updating: Vec<String> = hosts
            .keys()
            .filter(|name| self.is_updating(name))
            .cloned()
            .collect();
        for name in self.faulty.keys() {
            if hosts.get(name).is_some_and(model::Host::is_connected) {
                self.returned.insert(name.clone(), now);
            }
        }
        self.faulty
            .retain(|name, _| hosts.get(name).is_some_and(|host| !host.is_connected()));
        for (name, host) in hosts {
            if !host.is_connected() && (host.cut || !updating.contains(name)) {
                self.faulty.entry(name.clone()).or_insert(now);
            }
        }
        self.judge_quorum(FAULT);
    }

    /// Whether a server restarts for its update.
    fn is_updating(&self, host: &str) -> bool {
        self.machines
            .get(host)
            .is_some_and(|machine| machine.updating_until.is_some())
    }

    fn is_there(&self, member: &model::Member) -> bool {
        self.model
            .hosts
            .get(&member.host)
            .is_some_and(model::Host::is_connected)
    }

    /// Whether its host was let go, and is gone soon whatever anybody does.
    fn is_leaving(&self, member: &model::Member) -> bool {
        self.model
            .hosts
            .get(&member.host)
            .is_some_and(|host| host.leaves_at.is_some())
    }

    /// Voters besides one that are not there, or are about to go.
    fn missing(&self, besides: Option<&str>) -> Vec<Missing> {
        let voters = self.model.members.iter().filter(|member| !member.learner);
        voters
            .filter(|member| Some(member.host.as_str()) != besides)
            .filter(|member| !self.is_there(member) || self.is_leaving(member))
            .map(|member| Missing {
                host: member.host.clone(),
                since: self.faulty.get(&member.host).copied().unwrap_or(member.joined_at),
            })
            .collect()
    }

    /// Why a write is not safe at this moment, in truth, with some of the missing voters taken for being there, and maybe the one
    /// that is taken for one that does not live.
    fn unsafe_because(
        &self,
        action: &Action,
        ignoring: impl Fn(&Missing) -> bool,
        taken_is_dead: bool,
    ) -> Option<String> {
        let voters = self.model.voters();
        let missing = |besides: Option<&str>| {
            let mut missing = self.missing(besides);
            missing.retain(|missing| !ignoring(missing));
            missing
        };
        let of_host = |host: &str| {
            self.model
                .members
                .iter()
                .find(|member| member.host == host && !member.learner)
        };
        let takes = |host: &str, left: usize| {
            let missing = missing(Some(host));
            // A host that was let go and joined again is no server that could be kept for another's sake: its vote ends in
            // seconds. Left a voter it costs quorum where the number of voters is even (of four, one lost and this one gone,
            // two are no quorum; removed, two of three are), and gains nothing where it is odd. That enough are left is
            // asked of its removal too, and the release was judged when it was made.
            let stays = of_host(host).is_some_and(|member| self.is_there(member) && !self.is_leaving(member));
            let alive = (voters - 1).saturating_sub(missing.len());
            if alive < left / 2 + 1 {
                return Some(format!("{alive} of {left} voters are left"));
            }
            (stays && !taken_is_dead && !missing.is_empty())
                .then(|| "a living server is taken while another is lost".to_owned())
        };
        match action {
            Action::RemoveMember { member, .. } | Action::RemoveOrphan { member, .. } => {
                let entry = self
                    .model
                    .members
                    .iter()
                    .find(|entry| entry.name == *member && !entry.learner)?;
                takes(&entry.host, voters - 1)
            }
            Action::DeleteServer { machine, .. } if !self.deleting => {
                of_host(machine).filter(|member| self.is_there(member))?;
                takes(machine, voters - 1)
            }
            Action::UpdateInPlace { machine } => {
                of_host(machine).filter(|member| self.is_there(member))?;
                (voters > 1).then_some(())?;
                takes(machine, voters)
            }
            Action::ReleaseHook { machine } if !self.deleting => {
                let is_member = self.model.members.iter().any(|member| member.host == *machine);
                is_member.then(|| "etcd counts on its host".to_owned())
            }
            Action::CreateServer { .. } => {
                (!missing(None).is_empty()).then(|| "a server joins while another is lost".to_owned())
            }
            _ => None,
        }
    }

    /// The host that an action takes.
    fn taken_by(&self, action: &Action) -> Option<String> {
        match action {
            Action::RemoveMember { member, .. } | Action::RemoveOrphan { member, .. } => {
                let entry = self.model.members.iter().find(|entry| entry.name == *member)?;
                Some(entry.host.clone())
            }
            Action::UpdateInPlace { machine } | Action::DeleteServer { machine, .. } => Some(machine.clone()),
            _ => None,
        }
    }

    /// What an action does to whose vote.
    fn effect_of(&self, action: &Action) -> Option<(Effect, String)> {
        match action {
            Action::CreateServer { .. } => Some((Effect::Added, self.next_name())),
            Action::UpdateInPlace { machine } => Some((Effect::Restarted, machine.clone())),
            _ => self.taken_by(action).map(|host| (Effect::Removed, host)),
        }
    }

    /// The worst of the excused writes, if quorum would be there without them.
    fn excuse(&self) -> Option<Cause> {
        let mut voters: BTreeMap<&str, bool> = BTreeMap::new();
        for member in self.model.members.iter().filter(|member| !member.learner) {
            voters.insert(&member.host, self.is_there(member));
        }
        for Excused { effect, host, .. } in &self.excused {
            let is_voter = voters.contains_key(host.as_str());
            match effect {
                Effect::Removed if !is_voter => voters.insert(host, true),
                Effect::Restarted if is_voter && self.is_updating(host) => voters.insert(host, true),
                Effect::Added => voters.remove(host.as_str()),
                Effect::Removed | Effect::Restarted => None,
            };
        }
        let there = voters.values().filter(|there| **there).count();
        let cause = self.excused.iter().map(|excused| excused.cause).max()?;
        (there > voters.len() / 2).then_some(cause)
    }

    /// Judges a write before it is made.
    pub(super) fn judge_write(&mut self, action: &Action, struck: Option<&Strike>) {
        if !action.is_operation() {
            return;
        }
        self.verdicts.writes += 1;
        self.judge_removal(action);
        let Some(why) = self.unsafe_because(action, |_| false, false) else {
            return;
        };
        let now = self.now();
        let lease_only = !self.reaches_servers && !self.asks_kubelets;
        // One that came back is known to live when its lease is renewed.
        let is_back = |host: &str| {
            self.returned
                .get(host)
                .is_some_and(|since| age(*since, now) <= self.model.timing.lease)
        };
        let taken_is_back = self.taken_by(action).is_some_and(|host| is_back(&host));
        // One that was lost before the servers were asked is no excuse.
        let question = self
            .question
            .as_ref()
            .filter(|question| question.operation == action.to_string());
        let asked_at = question.map(|question| question.asked_at);
        let lost_since = |missing: &Missing| {
            age(missing.since, now) <= LEASE_OVERDUE
                && asked_at.is_some_and(|asked_at| missing.since >= asked_at)
        };
        let fresh =
            |missing: &Missing| lease_only && self.faulty.contains_key(&missing.host) && lost_since(missing);
        let just_struck = |missing: &Missing| struck.is_some_and(|strike| strike.host == missing.host);
        let is_race = || struck.is_some_and(Strike::is_race);
        let cause = if self.unsafe_because(action, just_struck, false).is_none() && is_race() {
            Cause::Raced
        } else if self
            .unsafe_because(
                action,
                |missing| (lease_only && just_struck(missing)) || fresh(missing),
                lease_only && taken_is_back,
            )
            .is_none()
        {
            Cause::LeaseFresh
        } else {
            Cause::Ours
        };
        self.log
            .push(format!("{now} UNSAFE ({cause:?}) {action:?}: {why}"));
        self.verdicts.unsafe_writes.push(cause);
        if cause != Cause::Ours
            && let Some((effect, host)) = self.effect_of(action)
        {
            self.excused.push(Excused { cause, effect, host });
        }
        self.allow(cause);
    }

    /// A living member is removed only if its machine is being deleted.
    fn judge_removal(&mut self, action: &Action) {
        let (Action::RemoveMember { member, .. } | Action::RemoveOrphan { member, .. }) = action else {
            return;
        };
        let Some(member) = self.model.members.iter().find(|entry| entry.name == *member) else {
            return;
        };
        self.verdicts.removals += 1;
        let lives = self.model.hosts.get(&member.host).is_some_and(|host| host.alive);
        let goes = self
            .machines
            .get(&member.host)
            .is_some_and(|machine| machine.deleted_at.is_some());
        if lives && !goes {
            self.log
                .push(format!("{} LIVING MEMBER REMOVED {action:?}", self.now()));
            self.verdicts.living_removed += 1;
            self.allow(Cause::Ours);
        }
    }

    /// Notes a loss of quorum, and whose doing it is.
    pub(super) fn judge_quorum(&mut self, after: &str) {
        let has = self.model.has_quorum();
        let lost = self.had_quorum && !has && !self.deleting;
        self.had_quorum = has;
        if has && self.missing(None).is_empty() {
            // Whatever was done before, the plane is whole again.
            self.excused.clear();
        }
        if !lost {
            return;
        }
        let voters: Vec<&model::Member> = self
            .model
            .members
            .iter()
            .filter(|member| !member.learner)
            .collect();
        let away: Vec<&&model::Member> = voters.iter().filter(|member| !self.is_there(member)).collect();
        // Those that no fault took: they restart for their update, or their host went by a release of ours.
        let by_us: Vec<&&&model::Member> = away
            .iter()
            .filter(|member| !self.faulty.contains_key(&member.host))
            .collect();
        let restarts = |member: &model::Member| {
            self.model.hosts.contains_key(&member.host) && self.is_updating(&member.host)
        };
        if voters.len() == 1 && by_us.len() == 1 && restarts(voters[0]) {
            // The only server restarts for its update, as the plan says.
            return;
        }
        let taken_by_faults = away.len() - by_us.len();
        let cause = if let Some(cause) = self.excuse() {
            cause
        } else if after == FAULT && voters.len() - taken_by_faults < voters.len() / 2 + 1 {
            Cause::Faults
        } else if after == FAULT && by_us.iter().all(|member| restarts(member)) {
            Cause::FaultInChange
        } else {
            Cause::Ours
        };
        self.log.push(format!(
            "{} LOST ({cause:?}) after {after}: {} of {} voters are there, away {:?}",
            self.now(),
            self.model.healthy_voters(),
            self.model.voters(),
            away.iter().map(|member| &member.host).collect::<Vec<_>>(),
        ));
        self.verdicts.losses.push(cause);
        self.allow(cause);
    }
}

impl World {
    /// A test that does not count verdicts has none that is ours.
    fn allow(&self, cause: Cause) {
        assert!(
            self.counts_verdicts || cause != Cause::Ours,
            "by our doing:\n{}",
            self.log.join("\n")
        );
    }
}

fn age(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since).max(SignedDuration::ZERO)).unwrap_or_default()
}
