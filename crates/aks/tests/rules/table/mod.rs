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
         Three departures from Cluster API Provider Azure, so that every mistake can be undone:\n\n\
         - What cannot change may change while nothing exists in Azure. The annotation `slipway.dev/azure-applied` says what\n  \
           Azure has taken; an endpoint or a status that says it answers counts too. Where only a resource group or a\n  \
           network exists, what says where they are is fixed, and all else may change.\n\
         - A rule that an object broke before does not hold an update: one that changes only metadata is never refused.\n\
         - A version is compared with the one that AKS runs, not with the one that was asked for before.\n\n\
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
