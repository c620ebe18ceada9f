//! A server's state, kept aside: a scenario that begins with a cluster that stands does not build it again for every run.

use std::sync::Arc;

use jiff::Timestamp;
use slipway_runtime::admission::Admission;

use crate::{Apiserver, kinds::Kind, store::Store};

/// What a server knows and holds at one moment. The objects are shared, not copied.
#[derive(Clone)]
pub struct Snapshot {
    kinds: Vec<Arc<Kind>>,
    admission: Vec<Admission>,
    store: Store,
    suffixes: u64,
    /// When it was taken.
    pub at: Timestamp,
}

impl Apiserver {
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let mut store = state.store.clone();
        // Who starts from here lists first: what led here is history.
        store.compact();
        Snapshot {
            kinds: state.kinds.clone(),
            admission: state.admission.clone(),
            store,
            suffixes: state.suffixes,
            at: state.clock.now(),
        }
    }

    /// Becomes what the other server was. The clock is still this server's own: start it at [`Snapshot::at`].
    pub fn restore(&self, snapshot: &Snapshot) {
        let mut state = self.state.lock();
        state.kinds.clone_from(&snapshot.kinds);
        state.admission.clone_from(&snapshot.admission);
        state.store = snapshot.store.clone();
        state.suffixes = snapshot.suffixes;
        let version = state.store.version();
        state.observed = version;
        drop(state);
        self.control.send_modify(|control| control.version = version);
    }
}
