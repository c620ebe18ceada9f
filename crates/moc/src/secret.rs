//! Messages that hold secrets, or may, say so instead of showing them.

use std::fmt;

use crate::wire::{
    compute::{GalleryImage, InstanceView, ScriptSource},
    security::{AuthenticationResponse, Identity},
    storage::VirtualHardDisk,
};

impl fmt::Debug for ScriptSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptSource({} bytes)", self.script.len())
    }
}

impl fmt::Debug for InstanceView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "InstanceView({:?}, {})",
            self.execution_state(),
            self.exit_code
        )
    }
}

/// Its source may be an address with a signature in it.
impl fmt::Debug for GalleryImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GalleryImage({})", self.name)
    }
}

impl fmt::Debug for VirtualHardDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VirtualHardDisk({}/{})", self.group_name, self.name)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.name)
    }
}

impl fmt::Debug for AuthenticationResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthenticationResponse(…)")
    }
}
