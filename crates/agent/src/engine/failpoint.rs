//! Named places where a run can be cut short. Whoever builds an engine says what happens there; in service nothing
//! does.

/// Between any two of these, what the engine did last is durable or will be done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failpoint {
    Accepted,
    MadeUnbootable,
    ChunkWritten,
    Checkpoint,
    Written,
    LabelWritten,
    Flushed,
    ReadBack,
    Verified,
    Activated,
    Armed,
    RebootRequested,
    TrialStarted,
    HealthDecided,
    RollbackRecorded,
    SlotGivenUp,
    Confirmed,
    Finished,
    AgentWritten,
    AgentNamed,
    AgentStateWritten,
    AgentArmed,
    AgentCounted,
    AgentConfirmed,
}

impl Failpoint {
    pub const ALL: [Self; 24] = [
        Self::Accepted,
        Self::MadeUnbootable,
        Self::ChunkWritten,
        Self::Checkpoint,
        Self::Written,
        Self::LabelWritten,
        Self::Flushed,
        Self::ReadBack,
        Self::Verified,
        Self::Activated,
        Self::Armed,
        Self::RebootRequested,
        Self::TrialStarted,
        Self::HealthDecided,
        Self::RollbackRecorded,
        Self::SlotGivenUp,
        Self::Confirmed,
        Self::Finished,
        Self::AgentWritten,
        Self::AgentNamed,
        Self::AgentStateWritten,
        Self::AgentArmed,
        Self::AgentCounted,
        Self::AgentConfirmed,
    ];
}

/// Called at each [`Failpoint`]; it may not return.
pub trait Failpoints: Send + Sync {
    fn reached(&self, point: Failpoint);
}

/// Nothing happens anywhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unhindered;

impl Failpoints for Unhindered {
    fn reached(&self, _: Failpoint) {}
}
