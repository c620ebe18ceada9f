//! How the bytes of a store are read and in which order they are changed: what a codec and whoever carries out its
//! steps agree on.

use std::collections::BTreeMap;

use super::BootState;

/// A range of a block device or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub length: u64,
}

/// Which bytes a store consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// These ranges of one device or file.
    Extents(Vec<Extent>),
    /// The files of one directory whose names start with this prefix.
    Files { prefix: String },
}

/// The bytes of a store, in the order of its [`Layout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    Extents(Vec<Vec<u8>>),
    Files(BTreeMap<String, Vec<u8>>),
}

/// One write, or a barrier: everything before a [`Step::Flush`] is durable before anything after it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Overwrite this range of the device.
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Create or replace a file. Its contents may be torn by a power cut until the next flush.
    WriteFile {
        name: String,
        bytes: Vec<u8>,
    },
    /// On a journalling filesystem this is atomic; on FAT both names, or neither, may exist after a power cut.
    Rename {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
    Flush,
}

/// What a store's bytes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// What a boot loader acts on; `None` when nothing in the store can be trusted.
    pub state: Option<BootState>,
    /// Everything about the bytes that is not as it was written: each is damage or an interrupted change.
    pub problems: Vec<String>,
}

impl Decoded {
    pub fn is_intact(&self) -> bool {
        self.state.is_some() && self.problems.is_empty()
    }
}

/// The format of one kind of boot store.
pub trait Codec: Send {
    /// The name of the format in configuration, status and errors.
    fn name(&self) -> &'static str;
    fn layout(&self) -> Layout;
    fn decode(&self, contents: &Contents) -> Decoded;
    /// The steps that bring `contents` to `state`. They also repair what was damaged. None, when it is already so.
    fn encode(&self, contents: &Contents, state: &BootState) -> Result<Vec<Step>, CodecError>;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    #[error("the {store} boot store has no room: {what}")]
    NoRoom { store: &'static str, what: String },
    #[error("the {store} boot store is not laid out as configured: {what}")]
    Layout { store: &'static str, what: String },
}
