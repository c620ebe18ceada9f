//! Rules about the repository itself.

mod who_may_know_whom;
