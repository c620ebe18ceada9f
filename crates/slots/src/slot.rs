//! The two slots of a host and what each is good for.

use std::fmt;
use std::ops::{Index, IndexMut};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One of the two slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Slot {
    A,
    B,
}

impl Slot {
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// `A` or `B`, as RAUC and most boot scripts name them.
    pub fn letter(self) -> char {
        match self {
            Self::A => 'A',
            Self::B => 'B',
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.letter())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a slot: it must be A or B")]
pub struct NotASlot(String);

impl FromStr for Slot {
    type Err = NotASlot;

    fn from_str(text: &str) -> Result<Self, NotASlot> {
        match text {
            "A" | "a" => Ok(Self::A),
            "B" | "b" => Ok(Self::B),
            other => Err(NotASlot(other.chars().take(20).collect())),
        }
    }
}

/// One value for each slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BySlot<T> {
    pub a: T,
    pub b: T,
}

impl<T> BySlot<T> {
    pub fn each(mut make: impl FnMut(Slot) -> T) -> Self {
        Self {
            a: make(Slot::A),
            b: make(Slot::B),
        }
    }
}

impl<T> Index<Slot> for BySlot<T> {
    type Output = T;

    fn index(&self, slot: Slot) -> &T {
        match slot {
            Slot::A => &self.a,
            Slot::B => &self.b,
        }
    }
}

impl<T> IndexMut<Slot> for BySlot<T> {
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        match slot {
            Slot::A => &mut self.a,
            Slot::B => &mut self.b,
        }
    }
}
