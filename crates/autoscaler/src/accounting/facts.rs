//! What accounting reads: one scalable object, its Machines, and the claims that are assigned to it.

use jiff::Timestamp;

use crate::instances::Reference;

/// A MachineDeployment, MachineSet or MachinePool with everything that belongs to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub reference: Reference,
    pub replicas: i32,
    pub min_size: i32,
    /// None is no limit.
    pub max_size: Option<i32>,
    pub is_paused: bool,
    /// Why Cluster API makes no Machines although replicas ask for them, e.g. a preflight check that fails.
    pub stuck: Option<String>,
    /// The revision that new Machines are made of.
    pub current_revision: String,
    /// All of them, those that are being deleted too: Cluster API counts them until they are gone.
    pub machines: Vec<Machine>,
    pub claims: Vec<Claim>,
}

impl Group {
    /// An object without Machines and claims.
    pub fn new(reference: Reference, replicas: i32) -> Self {
        Group {
            reference,
            replicas,
            min_size: 0,
            max_size: None,
            is_paused: false,
            stuck: None,
            current_revision: String::new(),
            machines: Vec::new(),
            claims: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    pub name: String,
    pub created: Timestamp,
    pub revision: String,
    /// The uid of the claim it is bound to, by its label.
    pub claim: Option<String>,
    /// The uid of the claim it is to go with: the intent is recorded, whatever happens after.
    pub deleted_with: Option<String>,
    pub is_deleting: bool,
    /// Its infrastructure or bootstrap failed for good.
    pub has_failed: bool,
}

impl Machine {
    pub fn new(name: &str, created: Timestamp) -> Self {
        Machine {
            name: name.to_owned(),
            created,
            revision: String::new(),
            claim: None,
            deleted_with: None,
            is_deleting: false,
            has_failed: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    Live,
    /// Deleted, and its node still drains: it keeps its Machine.
    Draining,
    /// Deleted and drained: its Machine is to go.
    Leaving,
}

/// A NodeClaim that is assigned to the object.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub uid: String,
    pub name: String,
    pub created: Timestamp,
    pub state: ClaimState,
    /// The Machine it names, which may be gone.
    pub machine: Option<String>,
    /// Replicas have fallen for it, as an annotation says: once its Machine is gone, nothing is left of it.
    pub gave_back: bool,
}

impl Claim {
    pub fn new(uid: &str, created: Timestamp) -> Self {
        Claim {
            uid: uid.to_owned(),
            name: uid.to_owned(),
            created,
            state: ClaimState::Live,
            machine: None,
            gave_back: false,
        }
    }

    pub fn is_leaving(&self) -> bool {
        self.state == ClaimState::Leaving
    }
}
