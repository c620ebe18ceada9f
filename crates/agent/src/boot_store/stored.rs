//! One boot store for every format and medium: read, decode, change, write, read again.

use slipway_slots::Slot;
use slipway_slots::boot::{BootChange, BootState, Codec, Contents, Decoded, SlotBoot};

use super::{BootStore, Medium, Reading, StoreError};

/// A format on a medium.
#[derive(Debug)]
pub struct Stored<C, M> {
    codec: C,
    medium: M,
}

impl<C: Codec, M: Medium> Stored<C, M> {
    pub fn new(codec: C, medium: M) -> Self {
        Self { codec, medium }
    }

    fn io(&self, doing: &'static str) -> impl FnOnce(std::io::Error) -> StoreError {
        let (store, place) = (self.codec.name(), self.medium.describe());
        move |source| StoreError::Io {
            store,
            place,
            doing,
            source,
        }
    }

    fn load(&mut self) -> Result<Contents, StoreError> {
        let layout = self.codec.layout();
        self.medium.load(&layout).map_err(|error| self.io("read")(error))
    }

    fn trusted(&self, decoded: Decoded) -> Result<Reading, StoreError> {
        let Decoded { state, problems } = decoded;
        match state {
            Some(state) => Ok(Reading { state, problems }),
            None => Err(StoreError::Unreadable {
                store: self.codec.name(),
                place: self.medium.describe(),
                problems: problems.join("; "),
            }),
        }
    }

    /// Writes the steps and reads the store again: a change that is not there afterwards was not made.
    fn write(&mut self, contents: &Contents, state: &BootState) -> Result<(), StoreError> {
        for step in self.codec.encode(contents, state)? {
            self.medium
                .apply(&step)
                .map_err(|error| self.io("written")(error))?;
        }
        let contents = self.load()?;
        let reading = self.trusted(self.codec.decode(&contents))?;
        if !same(&reading.state, state) {
            return Err(self.io("written")(std::io::Error::other(format!(
                "it was to say \"{state}\" and says \"{}\"",
                reading.state
            ))));
        }
        Ok(())
    }
}

/// Not every store has room for the epoch, nor for the tries a slot was armed with.
fn same(found: &BootState, expected: &BootState) -> bool {
    let comparable = |state: &BootState| {
        let slot = |slot: Slot| match state.slots[slot] {
            SlotBoot::Trial { left, .. } => SlotBoot::Trial { left, of: left },
            boot => boot,
        };
        (slot(Slot::A), slot(Slot::B), state.preferred)
    };
    comparable(found) == comparable(expected) && (found.epoch == expected.epoch || found.epoch == 0)
}

impl<C: Codec, M: Medium> BootStore for Stored<C, M> {
    fn name(&self) -> &'static str {
        self.codec.name()
    }

    fn read(&mut self) -> Result<Reading, StoreError> {
        let contents = self.load()?;
        self.trusted(self.codec.decode(&contents))
    }

    fn change(&mut self, change: BootChange) -> Result<BootState, StoreError> {
        let contents = self.load()?;
        let reading = self.trusted(self.codec.decode(&contents))?;
        let state = reading
            .state
            .with(change)
            .map_err(|source| StoreError::Refused { change, source })?;
        self.write(&contents, &state)?;
        Ok(state)
    }

    fn install(&mut self, state: &BootState) -> Result<(), StoreError> {
        let contents = self.load()?;
        self.write(&contents, state)
    }

    fn repair(&mut self) -> Result<(), StoreError> {
        let contents = self.load()?;
        let reading = self.trusted(self.codec.decode(&contents))?;
        if reading.problems.is_empty() {
            return Ok(());
        }
        self.write(&contents, &reading.state)
    }
}
