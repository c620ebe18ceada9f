//! What the controllers of pools have seen of their VMs, for the controllers of machines. Only in memory: after a start a machine
//! waits until its pool has looked.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use slipway_runtime::{ObjectKey, controller::Trigger};

use super::Vm;

/// What a pool says of its machines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Posted {
    /// Machines are switched off for the pool: its objects go, and its VMs stay.
    pub is_off: bool,
    /// The VMs, by provider id in lower case.
    pub vms: BTreeMap<String, Vm>,
    /// What holds up the deletion of a VM, by provider id in lower case: reason and message.
    pub held: BTreeMap<String, (&'static str, String)>,
}

/// What is known of one VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Told {
    /// Its pool has not been looked at since this process began.
    #[default]
    Nothing,
    /// Machines are switched off for its pool.
    Off,
    /// Azure does not list it.
    Absent,
    Present {
        vm: Box<Vm>,
        held: Option<(&'static str, String)>,
    },
}

/// Clones share it.
#[derive(Clone, Default)]
pub struct Board {
    pools: Arc<Mutex<HashMap<ObjectKey, Posted>>>,
    trigger: Trigger,
}

impl std::fmt::Debug for Board {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Board").finish_non_exhaustive()
    }
}

impl Board {
    /// Brings machines back to their controller.
    pub fn trigger(&self) -> &Trigger {
        &self.trigger
    }

    /// Posts what a pool says, and wakes the machines that it says something new of. `machines`: the objects with their provider
    /// ids.
    pub fn post<'a>(
        &self,
        pool: &ObjectKey,
        posted: &Posted,
        machines: impl Iterator<Item = (&'a ObjectKey, &'a str)>,
    ) {
        let before = self.pools.lock().insert(pool.clone(), posted.clone());
        for (machine, id) in machines {
            let says = |posted: &Posted| Self::read(posted, id);
            if before.as_ref().map(says) != Some(says(posted)) {
                self.trigger.fire(machine);
            }
        }
    }

    fn read(posted: &Posted, provider_id: &str) -> Told {
        let key = provider_id.to_lowercase();
        if posted.is_off {
            return Told::Off;
        }
        match posted.vms.get(&key) {
            Some(vm) => Told::Present {
                vm: Box::new(vm.clone()),
                held: posted.held.get(&key).cloned(),
            },
            None => Told::Absent,
        }
    }

    /// What is known of the VM of this provider id in a pool.
    pub fn of(&self, pool: &ObjectKey, provider_id: &str) -> Told {
        let pools = self.pools.lock();
        pools
            .get(pool)
            .map_or(Told::Nothing, |posted| Self::read(posted, provider_id))
    }

    /// The pool is gone.
    pub fn forget(&self, pool: &ObjectKey) {
        self.pools.lock().remove(pool);
    }

    /// For how many pools something is held.
    pub fn len(&self) -> usize {
        self.pools.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
