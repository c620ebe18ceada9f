//! Every admission rule by name: whom it is for, when it is asked, and what it says. The documentation is rendered from
//! this table, and a test holds a failing object against every entry.

mod control_plane;
mod control_plane_update;
mod pool;

use std::fmt::Write as _;

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub id: &'static str,
    /// The short names of the kinds it is for.
    pub kinds: &'static [&'static str],
    /// The operations it is asked on.
    pub on: &'static str,
    /// The field below the spec, or elsewhere if it says so.
    pub field: &'static str,
    /// What its message contains.
    pub says: &'static str,
    /// Where it comes from.
    pub source: &'static str,
}

const fn rule(
    id: &'static str,
    kinds: &'static [&'static str],
    on: &'static str,
    field: &'static str,
    says: &'static str,
    source: &'static str,
) -> Rule {
    Rule {
        id,
        kinds,
        on,
        field,
        says,
        source,
    }
}

/// All rules.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    control_plane::CONTROL_PLANE
        .iter()
        .chain(control_plane_update::CONTROL_PLANE_UPDATE)
        .chain(pool::POOL)
}

/// How many rules there are, each counted once per kind.
pub fn count() -> usize {
    all().map(|rule| rule.kinds.len()).sum()
}

/// The documentation page.
pub fn page() -> String {
    let mut page = format!(
        "# Admission rules\n\nRendered from `crates/aks/tests/rules/table`; a test keeps them equal. {} rules, counted once per kind.\n\n\
         | rule | kinds | on | field | says | source |\n|---|---|---|---|---|---|\n",
        count()
    );
    for rule in all() {
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | `{}` | {} | {} |",
            rule.id,
            rule.kinds.join(", "),
            rule.on,
            rule.field,
            rule.says,
            rule.source
        );
    }
    page
}
