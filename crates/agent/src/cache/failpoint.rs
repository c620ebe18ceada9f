//! Named places where the cache and the service can be cut short, as the engine has them. In service nothing happens
//! there.

/// Between any two of these, what was done last is durable or will be done again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceFailpoint {
    Reserved,
    PartialOpened,
    PieceWritten,
    PartialSynced,
    BlobNamed,
    RecordWritten,
    RecordRemoved,
    BlobRemoved,
    BundleWritten,
    BundleNamed,
    FenceWritten,
    OperationAccepted,
    OperationEnded,
    IdentityWritten,
}

impl ServiceFailpoint {
    pub const ALL: [Self; 14] = [
        Self::Reserved,
        Self::PartialOpened,
        Self::PieceWritten,
        Self::PartialSynced,
        Self::BlobNamed,
        Self::RecordWritten,
        Self::RecordRemoved,
        Self::BlobRemoved,
        Self::BundleWritten,
        Self::BundleNamed,
        Self::FenceWritten,
        Self::OperationAccepted,
        Self::OperationEnded,
        Self::IdentityWritten,
    ];
}

/// Called at each [`ServiceFailpoint`]; it may not return.
pub trait ServiceFailpoints: Send + Sync {
    fn reached(&self, step: ServiceFailpoint);
}

impl ServiceFailpoints for crate::engine::Unhindered {
    fn reached(&self, _: ServiceFailpoint) {}
}
