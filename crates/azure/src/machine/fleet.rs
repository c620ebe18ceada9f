//! What becomes of a pool's machines: which VMs are shown, which Machines go, which VMs AKS is to delete, and what is kept back.
//! Pure, and by levels: everything follows from what Azure and Kubernetes show now, so nothing is counted twice by somebody who
//! was killed in between.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use slipway_capi::{
    frame::Plan,
    names::{annotation, condition, finalizer},
    view::Machine,
};

use super::Vm;

/// Keeps the last node of a system pool: core drains no Machine that carries it.
pub const HOOK: &str = "pre-drain.delete.hook.machine.cluster.x-k8s.io/slipway-last-system-node";
/// The reason of a VM that AKS does not delete because it is the last of a system pool.
pub const LAST_SYSTEM_NODE: &str = "LastSystemNode";
const LAST_SYSTEM_NODE_MESSAGE: &str =
    "a system pool keeps one node: it goes when the pool has another, so ask for more replicas first";
/// The reason of a VM whose deletion waits for what AKS does with its pool.
pub const WAITING_FOR_POOL: &str = "WaitingForPool";

/// An object that shows a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub name: String,
    pub provider_id: String,
    pub is_deleting: bool,
}

impl Shown {
    fn key(&self) -> String {
        self.provider_id.to_lowercase()
    }
}

/// A Machine that core made for such an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreMachine {
    pub name: String,
    pub uid: Option<String>,
    /// The object that it was made for.
    pub infrastructure: String,
    pub is_deleting: bool,
    /// Somebody wants this one to go first.
    pub is_marked: bool,
    /// Why a health check gave it up.
    pub unhealthy: Option<String>,
    pub is_ready: bool,
    pub is_held: bool,
    /// It carries the annotation that pauses it.
    pub is_paused: bool,
    /// Core has seen that.
    pub knows_pause: bool,
    pub has_finalizer: bool,
}

impl CoreMachine {
    pub fn of(machine: &Machine) -> Self {
        let annotations = machine.metadata.annotations.as_ref();
        let has = |name: &str| annotations.is_some_and(|all| all.contains_key(name));
        let conditions = &machine.status.conditions;
        let find = |type_: &str| conditions.iter().find(|one| one.type_ == type_);
        let is = |type_: &str, status: &str| find(type_).is_some_and(|one| one.status == status);
        let finalizers = machine.metadata.finalizers.as_ref();
        let given_up = is(condition::OWNER_REMEDIATED, "False");
        Self {
            name: machine.metadata.name.clone().unwrap_or_default(),
            uid: machine.metadata.uid.clone(),
            infrastructure: machine.spec.infrastructure_ref.name.clone(),
            is_deleting: machine.is_deleting(),
            is_marked: machine.is_marked_for_deletion(),
            unhealthy: given_up.then(|| {
                let check = find(condition::HEALTH_CHECK_SUCCEEDED);
                check
                    .map(|check| check.message.clone())
                    .filter(|message| !message.is_empty())
                    .unwrap_or_else(|| "its health check failed".to_owned())
            }),
            is_ready: is(condition::READY, "True"),
            is_held: has(HOOK),
            is_paused: has(annotation::PAUSED),
            knows_pause: is(condition::PAUSED, "True"),
            has_finalizer: finalizers.is_some_and(|all| all.iter().any(|one| one == finalizer::MACHINE)),
        }
    }
}

/// One idempotent call for a pool's machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Make the object that shows a VM.
    Show {
        name: String,
        provider_id: String,
    },
    /// Delete the object of a VM that is no more, or that is no longer shown.
    Hide {
        name: String,
    },
    /// Delete a Machine: core drains its node and deletes its object, for which AKS deletes the VM.
    DeleteMachine {
        name: String,
    },
    /// Have AKS delete VMs.
    DeleteVms {
        machines: Vec<String>,
    },
    /// Keep core from draining a Machine.
    Hold {
        machine: String,
    },
    LetGo {
        machine: String,
    },
    /// Keep core's hands off a Machine, so that it goes without its node.
    Pause {
        machine: String,
    },
    /// Take away a Machine that core does not touch, without its node and its VM.
    Drop {
        machine: String,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Show { name, .. } => write!(formatter, "show VM {name}"),
            Self::Hide { name } => write!(formatter, "hide VM {name}"),
            Self::DeleteMachine { name } => write!(formatter, "delete Machine {name}"),
            Self::DeleteVms { machines } => write!(formatter, "delete VMs {}", machines.join(", ")),
            Self::Hold { machine } => write!(formatter, "hold Machine {machine}"),
            Self::LetGo { machine } => write!(formatter, "stop holding Machine {machine}"),
            Self::Pause { machine } => write!(formatter, "pause Machine {machine}"),
            Self::Drop { machine } => write!(formatter, "drop Machine {machine}"),
        }
    }
}

/// Whether machines are switched on for a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Switch {
    /// Nobody looked.
    #[default]
    Unknown,
    Off,
    On,
}

/// Everything that the plan is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    pub switch: Switch,
    /// Whether the pool's status says so to core.
    pub is_told: bool,
    /// The VMs of the pool; `None` where nobody can tell.
    pub vms: Option<Vec<Vm>>,
    /// Azure and the Machines were asked just now.
    pub is_fresh: bool,
    pub shown: Vec<Shown>,
    pub machines: Vec<CoreMachine>,
    /// How many nodes the MachinePool asks for.
    pub replicas: Option<i32>,
    /// How many nodes AKS is to have, as it shows it.
    pub count: Option<i32>,
    /// Why AKS takes no change of the pool now.
    pub occupied: Option<String>,
    pub is_scaled_by_aks: bool,
    pub is_system: bool,
    /// When to look at the VMs again, of which nobody tells.
    pub look_again: Duration,
}

/// Why a VM that AKS' autoscaler keeps is not deleted for a mark alone.
const SCALED_BY_AKS: &str = "AKS's own autoscaler decides which nodes of the pool go";

impl Fleet {
    /// How many nodes AKS is to be asked for: never fewer than it has, because machines are deleted one by one and by name.
    pub fn replicas_to_ask_for(&self, asked: i32) -> i32 {
        if self.switch == Switch::On && !self.is_scaled_by_aks {
            asked.max(self.count.unwrap_or(asked))
        } else {
            asked
        }
    }

    /// What the pool's status tells core: the kind of its machines from when they are first read, and nothing where they are
    /// switched off. A pool that was not looked at says what it said before.
    pub fn kind_to_tell(&self, before: Option<String>, kind: String) -> Option<String> {
        match (&self.switch, &self.vms) {
            (Switch::Unknown, _) | (Switch::On, None) => before,
            (Switch::On, Some(_)) => Some(kind),
            (Switch::Off, _) => None,
        }
    }

    fn machine_of(&self, object: &str) -> Option<&CoreMachine> {
        self.machines
            .iter()
            .find(|machine| machine.infrastructure == object)
    }

    fn shown_of(&self, vm: &Vm) -> Option<&Shown> {
        self.shown.iter().find(|shown| shown.key() == vm.key())
    }

    /// Whether a VM is on its way out.
    fn is_leaving(&self, vm: &Vm) -> bool {
        self.shown_of(vm).is_some_and(|shown| {
            let machine = self.machine_of(&shown.name);
            shown.is_deleting || machine.is_some_and(|machine| machine.is_deleting)
        })
    }

    /// The VMs of the pool's scale sets. One that joined by itself is no node that AKS counts.
    fn own(&self) -> impl Iterator<Item = &Vm> {
        self.vms.iter().flatten().filter(|vm| vm.machine.is_some())
    }

    /// The one VM of a system pool that has to stay, by provider id: the only one that nobody deletes, or the first of those that
    /// are deleted where there is no other.
    fn keeper(&self) -> Option<&Vm> {
        if !self.is_system {
            return None;
        }
        let staying: Vec<&Vm> = self.own().filter(|vm| !self.is_leaving(vm)).collect();
        match staying.as_slice() {
            [only] => Some(only),
            [] => {
                let is_held = |vm: &&Vm| {
                    let machine = self.shown_of(vm).and_then(|shown| self.machine_of(&shown.name));
                    machine.is_some_and(|machine| machine.is_held)
                };
                self.own().find(is_held).or_else(|| self.own().next())
            }
            _ => None,
        }
    }

    /// What holds up the deletion of VMs, by provider id in lower case, for the conditions of their objects.
    pub fn held(&self) -> BTreeMap<String, (&'static str, String)> {
        let keeper = self.keeper().map(Vm::key);
        self.own()
            .map(Vm::key)
            .map(|key| {
                let held = if keeper.as_ref() == Some(&key) {
                    (LAST_SYSTEM_NODE, LAST_SYSTEM_NODE_MESSAGE.to_owned())
                } else if let Some(why) = &self.occupied {
                    (
                        WAITING_FOR_POOL,
                        format!("AKS takes no change of the node pool: {why}"),
                    )
                } else {
                    (WAITING_FOR_POOL, "AKS is asked to delete the VM".to_owned())
                };
                (key, held)
            })
            .collect()
    }

    /// Adds what is to be done for the pool's machines. VMs are deleted after what the plan has already for the pool itself.
    pub fn plan<A: From<Action>>(&self, plan: &mut Plan<A>) {
        match self.switch {
            Switch::Unknown => return,
            Switch::Off => return self.switch_off(plan),
            Switch::On => plan.revisit(self.look_again, "nobody tells how the VMs stand"),
        }
        let Some(vms) = &self.vms else { return };
        self.show(vms, plan);
        self.forget_gone(vms, plan);
        let mut going = self.remediate(plan);
        self.scale_down(&mut going, plan);
        self.hold(plan);
        self.delete(plan);
    }

    fn show<A: From<Action>>(&self, vms: &[Vm], plan: &mut Plan<A>) {
        let names: BTreeSet<&str> = self.shown.iter().map(|shown| shown.name.as_str()).collect();
        for vm in vms.iter().filter(|vm| self.shown_of(vm).is_none()) {
            // An object of that name stands for another VM, and goes first.
            if names.contains(vm.name.as_str()) {
                continue;
            }
            let action = Action::Show {
                name: vm.name.clone(),
                provider_id: vm.provider_id.clone(),
            };
            let why = if vm.machine.is_some() {
                "AKS has the VM"
            } else {
                "the VM joined the pool by itself"
            };
            plan.regardless(action.into(), why);
        }
    }

    /// The object goes before the Machine: core drains no node whose infrastructure goes.
    fn forget_gone<A: From<Action>>(&self, vms: &[Vm], plan: &mut Plan<A>) {
        let why = "Azure has no such VM any more";
        let there: BTreeSet<String> = vms.iter().map(Vm::key).collect();
        let names: BTreeSet<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
        for shown in self.shown.iter().filter(|shown| !there.contains(&shown.key())) {
            if !shown.is_deleting {
                let name = shown.name.clone();
                plan.regardless(Action::Hide { name }.into(), why);
            }
            if let Some(machine) = self
                .machine_of(&shown.name)
                .filter(|machine| !machine.is_deleting)
            {
                let name = machine.name.clone();
                plan.regardless(Action::DeleteMachine { name }.into(), why);
            }
        }
        // Core may make one for an object that has just gone.
        let is_shown = |name: &str| self.shown.iter().any(|shown| shown.name == name);
        for machine in &self.machines {
            let object = machine.infrastructure.as_str();
            if !machine.is_deleting && !is_shown(object) && !names.contains(object) {
                let name = machine.name.clone();
                plan.regardless(Action::DeleteMachine { name }.into(), why);
            }
        }
    }

    /// The Machines that stand for VMs which nobody deletes yet, with their VMs.
    fn staying(&self) -> Vec<(&Vm, &CoreMachine)> {
        self.own()
            .filter(|vm| !self.is_leaving(vm))
            .filter_map(|vm| Some((vm, self.machine_of(&self.shown_of(vm)?.name)?)))
            .collect()
    }

    /// A health check gives a Machine up by asking its owner; the pool makes another VM then.
    fn remediate<A: From<Action>>(&self, plan: &mut Plan<A>) -> BTreeSet<String> {
        let mut going = BTreeSet::new();
        let staying = self.own().filter(|vm| !self.is_leaving(vm)).count();
        // A system pool keeps one, however it is.
        let most = staying.saturating_sub(usize::from(self.is_system));
        let unhealthy = self.staying().into_iter().filter_map(|(vm, machine)| {
            let why = machine.unhealthy.as_ref()?;
            Some((vm, machine, why))
        });
        for (vm, machine, why) in unhealthy.take(most) {
            let name = machine.name.clone();
            going.insert(vm.key());
            plan.regardless(Action::DeleteMachine { name }.into(), why.clone())
                .announced("Remediating");
        }
        going
    }

    /// How many VMs are too many. A VM on its way out counts as gone, and what AKS is about to do with the pool comes first: a node
    /// that it adds for an upgrade is none too many.
    fn surplus(&self, going: usize) -> usize {
        let (Some(count), Some(replicas)) = (self.count, self.replicas) else {
            return 0;
        };
        if self.is_scaled_by_aks || self.occupied.is_some() {
            return 0;
        }
        let leaving = self.own().filter(|vm| self.is_leaving(vm)).count() + going;
        let stay = replicas.max(i32::from(self.is_system));
        usize::try_from(count - stay)
            .unwrap_or_default()
            .saturating_sub(leaving)
    }

    /// Fewer nodes are asked for: marked Machines go first, then those that are not ready, then the youngest. The order says the same
    /// again to somebody who was killed after the first of them.
    fn scale_down<A: From<Action>>(&self, going: &mut BTreeSet<String>, plan: &mut Plan<A>) {
        let surplus = self.surplus(going.len());
        if surplus == 0 {
            return;
        }
        let mut staying = self.staying();
        staying.retain(|(vm, _)| !going.contains(&vm.key()));
        staying.sort_by_key(|(vm, machine)| {
            let number = Reverse(vm.number());
            (!machine.is_marked, machine.is_ready, number, vm.name.clone())
        });
        let (count, replicas) = (self.count.unwrap_or_default(), self.replicas.unwrap_or_default());
        for (vm, machine) in staying.into_iter().take(surplus) {
            let choice = if machine.is_marked {
                "it is marked to go first"
            } else if !machine.is_ready {
                "it is not ready"
            } else {
                "it is the youngest"
            };
            going.insert(vm.key());
            let name = machine.name.clone();
            plan.regardless(Action::DeleteMachine { name }.into(), choice)
                .changing("replicas", count, replicas)
                .announced("ScalingDown");
        }
    }

    fn hold<A: From<Action>>(&self, plan: &mut Plan<A>) {
        let keeper = self.keeper().and_then(|vm| self.shown_of(vm));
        for machine in &self.machines {
            let keeps = keeper.is_some_and(|keeper| keeper.name == machine.infrastructure);
            let machine_name = machine.name.clone();
            if keeps && !machine.is_held {
                let action = Action::Hold {
                    machine: machine_name,
                };
                plan.regardless(action.into(), "it is the last node of a system pool");
            } else if !keeps && machine.is_held {
                let action = Action::LetGo {
                    machine: machine_name,
                };
                plan.regardless(action.into(), "it is not the last node of a system pool");
            }
        }
    }

    /// The pool goes, and with it who would let its last Machine go: core drains that like any other.
    pub fn let_go<A: From<Action>>(&self, plan: &mut Plan<A>) {
        for machine in self.machines.iter().filter(|machine| machine.is_held) {
            let machine = machine.name.clone();
            plan.then(Action::LetGo { machine }.into(), "its node pool is deleted");
        }
    }

    /// The VMs whose objects are deleted, in one request: AKS takes one change of a pool at a time.
    fn delete<A: From<Action>>(&self, plan: &mut Plan<A>) {
        if self.occupied.is_some() {
            return;
        }
        let keeper = self.keeper().map(Vm::key);
        let machines: Vec<String> = self
            .own()
            .filter(|vm| self.shown_of(vm).is_some_and(|shown| shown.is_deleting))
            .filter(|vm| keeper.as_ref() != Some(&vm.key()))
            .filter_map(|vm| vm.machine.clone())
            .collect();
        if machines.is_empty() {
            return;
        }
        let why = if self.is_scaled_by_aks {
            format!("their objects are deleted; whether others take their place is AKS's: {SCALED_BY_AKS}")
        } else {
            "their objects are deleted".to_owned()
        };
        plan.then(Action::DeleteVms { machines }.into(), why)
            .announced("DeletingMachines");
    }

    /// Machines are switched off: they go without their nodes and VMs. Core must not touch a Machine that goes this way, because it
    /// would drain and delete its node.
    fn switch_off<A: From<Action>>(&self, plan: &mut Plan<A>) {
        let why = "machines are switched off for the pool: its VMs stay";
        // While core is told of machines, it makes those again that go.
        if self.is_told {
            return;
        }
        for machine in &self.machines {
            let machine_name = machine.name.clone();
            if !machine.is_paused {
                let action = Action::Pause {
                    machine: machine_name,
                };
                plan.regardless(action.into(), why);
            } else if machine.knows_pause || !machine.has_finalizer {
                let action = Action::Drop {
                    machine: machine_name,
                };
                plan.regardless(action.into(), why);
            }
        }
        for shown in self.shown.iter().filter(|shown| !shown.is_deleting) {
            if self.machine_of(&shown.name).is_none() {
                let name = shown.name.clone();
                plan.regardless(Action::Hide { name }.into(), why);
            }
        }
    }

    /// What AKS' own autoscaler leaves undone, where somebody marked machines.
    pub fn remark(&self) -> Option<&'static str> {
        let is_marked = self.machines.iter().any(|machine| machine.is_marked);
        (self.switch == Switch::On && self.is_scaled_by_aks && is_marked).then_some(SCALED_BY_AKS)
    }
}

impl Action {
    /// Whether it takes something away for good, for which what was read a while ago is not enough.
    pub fn needs_confirmation(&self) -> bool {
        matches!(
            self,
            Self::Hide { .. } | Self::DeleteMachine { .. } | Self::DeleteVms { .. }
        )
    }
}
