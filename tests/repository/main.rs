//! Rules about the repository itself.

mod book;
mod conditions;
mod retired_words;
mod unused_dependencies;
mod versions;
mod who_may_know_whom;
mod writes_are_actions;
