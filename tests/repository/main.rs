//! Rules about the repository itself.

mod book;
mod who_may_know_whom;
mod writes_are_actions;
