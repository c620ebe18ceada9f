//! What the stories share.

pub mod toy;

/// The guide for authors of providers: its code is compiled, and its sweep run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/guides/provider.md")]
pub struct ProviderGuide;
