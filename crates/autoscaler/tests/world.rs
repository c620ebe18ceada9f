//! A small Cluster API: one MachineDeployment that makes and deletes Machines by its replicas, in the order core has (those being
//! deleted, then marked ones, then any), rolls out with a surge of one, and pauses, hangs and lags on demand. Two autoscalers can
//! work on it: ours, and the accounting of karpenter-provider-cluster-api as it is known from its sources.

use jiff::Timestamp;
use slipway_autoscaler::{
    accounting::{self, Account, Action, Claim, ClaimState, Group, Machine, account},
    instances::Reference,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autoscaler {
    Ours,
    Go,
}

#[derive(Clone, Debug)]
pub struct SimMachine {
    pub name: String,
    pub created: i64,
    pub revision: u32,
    pub claim: Option<String>,
    pub deleted_with: Option<String>,
    /// `cluster.x-k8s.io/delete-machine`.
    pub is_preferred: bool,
    /// The Go provider's label, from it or from the template.
    pub is_member: bool,
    pub is_deleting: bool,
    pub version: u64,
}

#[derive(Clone, Debug)]
pub struct SimClaim {
    pub uid: String,
    pub created: i64,
    pub is_leaving: bool,
    pub machine: Option<String>,
    pub gave_back: bool,
}

#[derive(Clone, Debug)]
pub struct World {
    pub now: i64,
    pub replicas: i32,
    pub version: u64,
    pub min_size: i32,
    pub max_size: Option<i32>,
    pub is_paused: bool,
    /// Cluster API does nothing at all.
    pub is_down: bool,
    /// Preflight checks fail: no Machine is made, deletion goes on.
    pub is_stuck: bool,
    pub revision: u32,
    /// Whether new Machines carry the Go provider's label, because the template does.
    pub template_is_member: bool,
    pub machines: Vec<SimMachine>,
    pub claims: Vec<SimClaim>,
    /// Replicas that somebody else asked for.
    pub asked_by_others: i32,
    /// What must never happen, once it did.
    pub wrongs: Vec<String>,
    made: u32,
    random: Random,
}

/// A few random numbers of a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound.max(1) as u64) as usize
    }
}

impl World {
    pub fn new(seed: u64) -> Self {
        World {
            now: 0,
            replicas: 0,
            version: 0,
            min_size: 0,
            max_size: None,
            is_paused: false,
            is_down: false,
            is_stuck: false,
            revision: 0,
            template_is_member: false,
            machines: Vec::new(),
            claims: Vec::new(),
            asked_by_others: 0,
            wrongs: Vec::new(),
            made: 0,
            random: Random::new(seed),
        }
    }

    pub fn claim(&mut self) -> String {
        self.now += 1;
        self.made += 1;
        let uid = format!("claim-{}", self.made);
        self.claims.push(SimClaim {
            uid: uid.clone(),
            created: self.now,
            is_leaving: false,
            machine: None,
            gave_back: false,
        });
        uid
    }

    pub fn leave(&mut self, uid: &str) {
        for claim in &mut self.claims {
            claim.is_leaving |= claim.uid == uid;
        }
    }

    fn make(&mut self) {
        self.made += 1;
        self.machines.push(SimMachine {
            name: format!("machine-{}", self.made),
            created: self.now,
            revision: self.revision,
            claim: None,
            deleted_with: None,
            is_preferred: false,
            is_member: self.template_is_member,
            is_deleting: false,
            version: 0,
        });
    }

    fn delete(&mut self, name: &str) {
        for machine in &mut self.machines {
            if machine.name == name && !machine.is_deleting {
                machine.is_deleting = true;
                machine.version += 1;
            }
        }
    }

    /// A health check, or a user, deletes a Machine.
    pub fn delete_from_outside(&mut self, place: usize) {
        let standing: Vec<String> = self.standing().map(|machine| machine.name.clone()).collect();
        if let Some(name) = standing.get(place % standing.len().max(1)) {
            self.delete(&name.clone());
        }
    }

    pub fn standing(&self) -> impl Iterator<Item = &SimMachine> {
        self.machines.iter().filter(|machine| !machine.is_deleting)
    }

    /// One reconcile of Cluster API.
    pub fn cluster_api(&mut self) {
        self.now += 1;
        if self.is_down || self.is_paused {
            return;
        }
        if let Some(place) = self.machines.iter().position(|machine| machine.is_deleting) {
            self.machines.remove(place);
        }
        let replicas = usize::try_from(self.replicas).unwrap_or(0);
        let (total, standing) = (self.machines.len(), self.standing().count());
        let revision = self.revision;
        let is_rolling = self.standing().any(|machine| machine.revision != revision);
        if is_rolling && standing <= replicas {
            let current = self
                .standing()
                .filter(|machine| machine.revision == revision)
                .count();
            if total <= replicas && current < replicas && !self.is_stuck {
                self.make();
            }
            return;
        }
        if total < replicas {
            if !self.is_stuck {
                self.make();
            }
            return;
        }
        // Those already being deleted are the first that go, so they count.
        for _ in 0..total.saturating_sub(replicas).saturating_sub(total - standing) {
            // A rollout scales the old set down, and a smaller count falls on either.
            let of_old = is_rolling && self.random.below(3) > 0;
            let candidates: Vec<(bool, String)> = self
                .standing()
                .filter(|machine| !of_old || machine.revision != revision)
                .map(|machine| (machine.is_preferred, machine.name.clone()))
                .collect();
            let preferred: Vec<String> = candidates
                .iter()
                .filter(|(first, _)| *first)
                .map(|(_, name)| name.clone())
                .collect();
            let among = if preferred.is_empty() {
                candidates.into_iter().map(|(_, name)| name).collect()
            } else {
                preferred
            };
            if among.is_empty() {
                return;
            }
            let chosen = among[self.random.below(among.len())].clone();
            self.delete(&chosen);
        }
    }

    pub fn cluster_api_times(&mut self, times: usize) {
        for _ in 0..times {
            self.cluster_api();
        }
    }

    pub fn group(&self) -> Group {
        let at = |seconds: i64| Timestamp::from_second(seconds).expect("a moment");
        let mut group = Group::new(
            Reference::new("MachineDeployment", "fleet", "workers"),
            self.replicas,
        );
        group.min_size = self.min_size;
        group.max_size = self.max_size;
        group.is_paused = self.is_paused;
        group.stuck = self.is_stuck.then(|| "a preflight check fails".to_owned());
        group.current_revision = self.revision.to_string();
        group.machines = self
            .machines
            .iter()
            .map(|machine| Machine {
                revision: machine.revision.to_string(),
                claim: machine.claim.clone(),
                deleted_with: machine.deleted_with.clone(),
                is_deleting: machine.is_deleting,
                ..Machine::new(&machine.name, at(machine.created))
            })
            .collect();
        group.claims = self
            .claims
            .iter()
            .map(|claim| Claim {
                state: if claim.is_leaving {
                    ClaimState::Leaving
                } else {
                    ClaimState::Live
                },
                machine: claim.machine.clone(),
                gave_back: claim.gave_back,
                ..Claim::new(&claim.uid, at(claim.created))
            })
            .collect();
        group
    }

    /// Writes, unless the object has changed since the view was taken.
    fn write(&mut self, view: &World, step: &Action) -> bool {
        let seen = |name: &str| {
            view.machines
                .iter()
                .find(|machine| machine.name == name)
                .map(|machine| machine.version)
        };
        let named = match step {
            Action::Bind { machine, .. }
            | Action::Release { machine }
            | Action::Mark { machine, .. }
            | Action::Delete { machine } => Some(machine.clone()),
            Action::Scale { .. } | Action::Note { .. } => None,
        };
        if let Action::Note { claim: uid } = step {
            for claim in self.claims.iter_mut().filter(|claim| claim.uid == *uid) {
                claim.gave_back = true;
            }
            return true;
        }
        let Some(name) = named else {
            let Action::Scale { to, .. } = step else {
                return false;
            };
            if self.version != view.version {
                return false;
            }
            self.judge_scale(*to);
            self.replicas = *to;
            self.version += 1;
            return true;
        };
        if let Action::Delete { .. } = step {
            self.judge_delete(&name);
            self.delete(&name);
            return true;
        }
        let Some(machine) = self.machines.iter_mut().find(|machine| machine.name == name) else {
            return false;
        };
        if Some(machine.version) != seen(&name) {
            return false;
        }
        machine.version += 1;
        match step {
            Action::Bind { claim, .. } => machine.claim = Some(claim.clone()),
            Action::Release { .. } => machine.claim = None,
            Action::Mark { claim, .. } => {
                machine.deleted_with = Some(claim.clone());
                machine.is_preferred = true;
            }
            Action::Scale { .. } | Action::Note { .. } | Action::Delete { .. } => {}
        }
        true
    }

    fn judge_scale(&mut self, to: i32) {
        if to < self.replicas && to < self.min_size {
            self.wrongs.push(format!(
                "scaled from {} to {to}, below {}",
                self.replicas, self.min_size
            ));
        }
        if self.max_size.is_some_and(|most| to > self.replicas && to > most) {
            self.wrongs.push(format!(
                "scaled from {} to {to}, above {:?}",
                self.replicas, self.max_size
            ));
        }
    }

    fn judge_delete(&mut self, name: &str) {
        let claim = self
            .machines
            .iter()
            .find(|machine| machine.name == name)
            .and_then(|machine| machine.claim.clone());
        if self
            .claims
            .iter()
            .any(|known| Some(&known.uid) == claim.as_ref() && !known.is_leaving)
        {
            self.wrongs
                .push(format!("deleted {name}, which a claim has that stays"));
        }
    }

    /// One reconcile of ours, on a view that may lag, broken off after some writes.
    pub fn reconcile_on(&mut self, view: &World, writes: usize) {
        let mut writes_left = writes;
        let Account {
            steps,
            machines,
            unplaced,
            finished,
            needs_confirmation,
            ..
        } = account(&view.group());
        // What rests on an absence is decided on a fresh read, as the frame does it.
        let (view, steps, finished) = if needs_confirmation {
            let fresh = self.clone();
            let again = account(&fresh.group());
            (fresh, again.steps, again.finished)
        } else {
            (view.clone(), steps, finished)
        };
        for planned in &steps {
            if writes_left == 0 || !self.write(&view, &planned.step) {
                return;
            }
            writes_left -= 1;
        }
        for (uid, machine) in machines {
            if writes_left == 0 {
                return;
            }
            if let Some(claim) = self
                .claims
                .iter_mut()
                .find(|claim| claim.uid == uid && claim.machine.as_ref() != Some(&machine))
            {
                claim.machine = Some(machine);
                writes_left -= 1;
            }
        }
        for uid in finished {
            if writes_left == 0 {
                return;
            }
            self.claims.retain(|claim| claim.uid != uid || !claim.is_leaving);
            writes_left -= 1;
        }
        // Another object is chosen for them; here there is none.
        for uid in unplaced {
            if writes_left == 0 {
                return;
            }
            self.claims.retain(|claim| claim.uid != uid);
            writes_left -= 1;
        }
    }

    pub fn reconcile(&mut self, autoscaler: Autoscaler) {
        match autoscaler {
            Autoscaler::Ours => {
                let view = self.clone();
                self.reconcile_on(&view, usize::MAX);
            }
            Autoscaler::Go => self.go_reconcile(),
        }
    }

    pub fn settle(&mut self, autoscaler: Autoscaler) {
        for _ in 0..60 {
            self.reconcile(autoscaler);
            self.cluster_api_times(2);
        }
    }

    /// The Go provider: replicas grow by what is asked for less the Machines without its label, and fall with each call to
    /// delete that finds the Machine without a deletion timestamp.
    fn go_reconcile(&mut self) {
        let gone: Vec<String> = self
            .claims
            .iter()
            .filter(|claim| claim.is_leaving)
            .filter(|claim| {
                claim
                    .machine
                    .as_ref()
                    .is_none_or(|name| !self.machines.iter().any(|machine| machine.name == *name))
            })
            .map(|claim| claim.uid.clone())
            .collect();
        self.claims.retain(|claim| !gone.contains(&claim.uid));
        let leaving: Vec<String> = self
            .claims
            .iter()
            .filter(|claim| claim.is_leaving)
            .filter_map(|claim| claim.machine.clone())
            .collect();
        for name in leaving {
            let machine = self
                .machines
                .iter_mut()
                .find(|machine| machine.name == name && !machine.is_deleting);
            if let Some(machine) = machine {
                machine.is_preferred = true;
                self.replicas = (self.replicas - 1).max(0);
                self.version += 1;
            }
        }
        let pending = self
            .claims
            .iter()
            .filter(|claim| !claim.is_leaving && claim.machine.is_none())
            .count();
        if pending == 0 {
            return;
        }
        let free = |machine: &&SimMachine| !machine.is_member && !machine.is_preferred;
        let unclaimed = self.standing().filter(free).count();
        self.replicas += i32::try_from(pending.saturating_sub(unclaimed)).unwrap_or(0);
        self.version += 1;
        // Half a minute is waited for Machines.
        self.cluster_api_times(3);
        for place in 0..self.claims.len() {
            if self.claims[place].is_leaving || self.claims[place].machine.is_some() {
                continue;
            }
            let found = self
                .machines
                .iter_mut()
                .find(|machine| !machine.is_deleting && !machine.is_member && !machine.is_preferred);
            if let Some(machine) = found {
                machine.is_member = true;
                self.claims[place].machine = Some(machine.name.clone());
            }
        }
    }

    /// Whether claims and Machines are one to one, nothing is left over, and replicas are what they should be.
    pub fn judge(&self) -> Result<(), String> {
        if let Some(wrong) = self.wrongs.first() {
            return Err(wrong.clone());
        }
        let staying: Vec<&SimClaim> = self.claims.iter().filter(|claim| !claim.is_leaving).collect();
        if staying.len() != self.claims.len() {
            return Err(format!(
                "{} claims still leave",
                self.claims.len() - staying.len()
            ));
        }
        let mut used = std::collections::BTreeSet::new();
        for claim in &staying {
            let stands = claim
                .machine
                .as_ref()
                .is_some_and(|name| self.standing().any(|machine| machine.name == *name));
            if !stands {
                return Err(format!("{} has no Machine ({:?})", claim.uid, claim.machine));
            }
            if !used.insert(claim.machine.clone()) {
                return Err(format!("two claims have {:?}", claim.machine));
            }
        }
        let standing = self.standing().count();
        if usize::try_from(self.replicas).unwrap_or(0) != standing {
            return Err(format!("{} replicas and {standing} Machines", self.replicas));
        }
        let unclaimed = i32::try_from(standing - staying.len()).unwrap_or(0);
        if unclaimed > self.asked_by_others.max(self.min_size) {
            return Err(format!(
                "{unclaimed} Machines are nobody's, and others asked for {}",
                self.asked_by_others
            ));
        }
        if self.replicas < self.min_size || self.max_size.is_some_and(|most| self.replicas > most) {
            return Err(format!(
                "{} replicas are outside {} to {:?}",
                self.replicas, self.min_size, self.max_size
            ));
        }
        Ok(())
    }
}

/// The account of a world, printed.
pub fn printed(world: &World) -> String {
    let account = accounting::account(&world.group());
    let mut lines: Vec<String> = account.steps.iter().map(ToString::to_string).collect();
    lines.push(String::new());
    lines.join("\n")
}
