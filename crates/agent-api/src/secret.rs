//! Messages that hold secrets say so instead of showing them.

use std::fmt;

use crate::proto::{
    CommandResult, EnvironmentVariable, JoinRequest, Output, RegistryCredentials, RunBootstrap,
};

impl fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegistryCredentials(…)")
    }
}

impl fmt::Debug for EnvironmentVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=…", self.name)
    }
}

impl fmt::Debug for RunBootstrap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunBootstrap({} bytes)", self.data.len())
    }
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinRequest({:?})", self.host)
    }
}

impl fmt::Debug for CommandResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CommandResult({}, {} bytes of output)",
            self.outcome,
            self.output.len()
        )
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Output({} bytes from {})", self.data.len(), self.offset)
    }
}
