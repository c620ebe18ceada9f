//! A host in memory: two slots, a boot store of any kind, a journal. Every write and flush can be recorded, and the
//! host can be put into any state that a power cut leaves behind.

pub mod boot_loader;
pub mod disks;
pub mod faulty_disk;
pub mod host;
pub mod images;
