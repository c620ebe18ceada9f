//! How several conditions become one, by Cluster API's rules: issues win over unknowns, unknowns over information,
//! and the message names who reports what, for as many as fit.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{Report, Status};
use crate::names;

/// Who reports a condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub kind: String,
    pub name: String,
    /// Messages about control plane machines go first.
    pub is_control_plane_machine: bool,
}

impl Owner {
    pub fn new(kind: &str, name: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            name: name.to_owned(),
            is_control_plane_machine: false,
        }
    }

    pub fn machine(name: &str, is_control_plane: bool) -> Self {
        Self {
            is_control_plane_machine: is_control_plane,
            ..Self::new("Machine", name)
        }
    }
}

/// A condition and who reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub owner: Owner,
    pub report: Report,
}

impl Owned {
    pub fn new(owner: &Owner, condition: &Condition) -> Self {
        Self {
            owner: owner.clone(),
            report: Report {
                type_: condition.type_.clone(),
                status: Status::parse(&condition.status),
                reason: condition.reason.clone(),
                message: condition.message.clone(),
                since: Some(condition.last_transition_time.0),
            },
        }
    }

    /// Stands for a condition that is not there: that is unknown, not absent.
    pub(super) fn not_yet_reported(owner: &Owner, type_: &str, message: String) -> Self {
        Self {
            owner: owner.clone(),
            report: Report::new(type_, Status::Unknown, names::reason::NOT_YET_REPORTED, message),
        }
    }
}

/// How much a condition matters for the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    Issue,
    Unknown,
    Info,
}

/// The reason of the result, by the most important thing that was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reasons<'a> {
    pub issue: &'a str,
    pub unknown: &'a str,
    pub info: &'a str,
}

impl Reasons<'static> {
    pub const AVAILABLE: Self = Self {
        issue: names::reason::NOT_AVAILABLE,
        unknown: names::reason::AVAILABLE_UNKNOWN,
        info: names::reason::AVAILABLE,
    };
    pub const READY: Self = Self {
        issue: names::reason::NOT_READY,
        unknown: names::reason::READY_UNKNOWN,
        info: names::reason::READY,
    };
    pub const UP_TO_DATE: Self = Self {
        issue: names::reason::NOT_UP_TO_DATE,
        unknown: names::reason::UP_TO_DATE_UNKNOWN,
        info: names::reason::UP_TO_DATE,
    };
}

impl Default for Reasons<'static> {
    fn default() -> Self {
        Self {
            issue: "IssuesReported",
            unknown: "UnknownReported",
            info: "InfoReported",
        }
    }
}

/// Decides how much a condition matters, instead of its status and polarity.
pub type PriorityOf<'a> = &'a (dyn Fn(&Owned) -> Priority + Send + Sync);

/// One way of merging.
#[derive(Clone, Copy)]
pub struct Merge<'a> {
    /// Types for which `True` is the bad news.
    pub negative: &'a [&'a str],
    /// Whether `True` of the result is good news.
    pub target_is_positive: bool,
    pub reasons: Reasons<'a>,
    pub priority: Option<PriorityOf<'a>>,
}

impl Default for Merge<'_> {
    fn default() -> Self {
        Self {
            negative: &[],
            target_is_positive: true,
            reasons: Reasons::default(),
            priority: None,
        }
    }
}

impl std::fmt::Debug for Merge<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Merge")
            .field("negative", &self.negative)
            .field("target_is_positive", &self.target_is_positive)
            .field("reasons", &self.reasons)
            .finish_non_exhaustive()
    }
}

impl Merge<'_> {
    fn priority(&self, owned: &Owned) -> Priority {
        if let Some(priority) = self.priority {
            return priority(owned);
        }
        let status = if self.negative.contains(&owned.report.type_.as_str()) {
            owned.report.status.opposite()
        } else {
            owned.report.status
        };
        match status {
            Status::True => Priority::Info,
            Status::False => Priority::Issue,
            Status::Unknown => Priority::Unknown,
        }
    }

    /// What the most important of the conditions means for the result. `None` if there are none.
    fn verdict(&self, conditions: &[Owned]) -> Option<(Status, String)> {
        let top = conditions.iter().map(|owned| self.priority(owned)).min()?;
        let (status, reason) = match top {
            Priority::Issue => (Status::False, self.reasons.issue),
            Priority::Unknown => (Status::Unknown, self.reasons.unknown),
            Priority::Info => (Status::True, self.reasons.info),
        };
        let status = if self.target_is_positive {
            status
        } else {
            status.opposite()
        };
        Some((status, reason.to_owned()))
    }

    /// Different conditions of one object: every issue is told, in the order the caller finds relevant.
    pub(super) fn summary(&self, target: &str, mut conditions: Vec<Owned>, order: &[&str]) -> Option<Report> {
        sort(&mut conditions, order);
        let (status, reason) = self.verdict(&conditions)?;
        let lines: Vec<_> = conditions
            .iter()
            .filter(|owned| {
                self.priority(owned) != Priority::Info
                    || (status == Status::True && !owned.report.message.is_empty())
            })
            .map(|owned| {
                let Report {
                    type_,
                    reason,
                    message,
                    ..
                } = &owned.report;
                if message.is_empty() {
                    format!("* {type_}: {reason}")
                } else {
                    format!("* {type_}:{}", indented(message))
                }
            })
            .collect();
        Some(Report::new(target, status, &reason, lines.join("\n")))
    }

    /// One condition of many objects: at most three messages are told, each with at most three objects.
    pub(super) fn aggregate(
        &self,
        target: &str,
        mut conditions: Vec<Owned>,
        order: &[&str],
    ) -> Option<Report> {
        sort(&mut conditions, order);
        let (status, reason) = self.verdict(&conditions)?;
        let (troubles, infos): (Vec<_>, Vec<_>) = conditions
            .iter()
            .partition(|owned| self.priority(owned) != Priority::Info);
        let lines = if troubles.is_empty() {
            let told: Vec<_> = infos
                .into_iter()
                .filter(|owned| !owned.report.message.is_empty())
                .collect();
            self.aggregate_messages(&told)
        } else {
            // Issues are told before unknowns; within each, what was sorted stays sorted.
            let (issues, unknowns): (Vec<_>, Vec<_>) = troubles
                .into_iter()
                .partition(|owned| self.priority(owned) == Priority::Issue);
            self.aggregate_messages(&[issues, unknowns].concat())
        };
        Some(Report::new(target, status, &reason, lines.join("\n")))
    }

    fn aggregate_messages(&self, conditions: &[&Owned]) -> Vec<String> {
        const MESSAGES: usize = 3;
        const OBJECTS: usize = 3;
        let mut objects_by_kind: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
        let mut priorities: BTreeMap<&str, Priority> = BTreeMap::new();
        let mut first: BTreeSet<&str> = BTreeSet::new();
        let mut control_plane_machines: BTreeSet<&str> = BTreeSet::new();
        for owned in conditions {
            let message = owned.report.message.as_str();
            objects_by_kind
                .entry(&owned.owner.kind)
                .or_default()
                .entry(message)
                .or_default()
                .push(&owned.owner.name);
            if owned.owner.is_control_plane_machine {
                control_plane_machines.insert(&owned.owner.name);
                first.insert(message);
            }
            let priority = self.priority(owned);
            priorities
                .entry(message)
                .and_modify(|known| *known = (*known).min(priority))
                .or_insert(priority);
        }

        let mut left = MESSAGES;
        let mut lines = Vec::new();
        for (kind, objects_by_message) in objects_by_kind {
            let plural = names::plural(kind);
            let mut messages: Vec<_> = objects_by_message.into_iter().collect();
            messages.sort_by_cached_key(|(message, objects)| {
                (
                    !first.contains(message),
                    priorities[message],
                    std::cmp::Reverse(objects.len()),
                    objects.join(","),
                )
            });
            let mut others: BTreeMap<Priority, usize> = BTreeMap::new();
            for (message, mut objects) in messages {
                if left == 0 {
                    *others.entry(priorities[message]).or_default() += objects.len();
                    continue;
                }
                left -= 1;
                objects.sort_by_key(|name| (!control_plane_machines.contains(name), *name));
                let who = match objects.len() {
                    1 => format!("{kind} {}", objects[0]),
                    count if count <= OBJECTS => format!("{plural} {}", objects.join(", ")),
                    count => format!(
                        "{plural} {}, ... ({} more)",
                        objects[..OBJECTS].join(", "),
                        count - OBJECTS
                    ),
                };
                lines.push(format!("* {who}:{}", indented(message)));
            }
            for (priority, count) in others {
                let what = match priority {
                    Priority::Issue => "with other issues",
                    Priority::Unknown => "with status unknown",
                    Priority::Info => "with additional info",
                };
                let noun = if count == 1 { kind } else { &plural };
                lines.push(format!("And {count} {noun} {what}"));
            }
        }
        lines
    }
}

/// By the caller's order of types, then by age.
fn sort(conditions: &mut [Owned], order: &[&str]) {
    let place = |type_: &str| order.iter().position(|known| *known == type_).unwrap_or(0);
    conditions.sort_by_key(|owned| {
        (
            place(&owned.report.type_),
            owned.report.since.unwrap_or(Timestamp::MIN),
        )
    });
}

/// A message of several lines, or one that is a list, becomes a list below its heading.
fn indented(message: &str) -> String {
    if !message.contains('\n') && !has_bullet(message) {
        return format!(" {message}");
    }
    let all_bullets = message.split('\n').all(has_bullet);
    let lines: Vec<_> = message
        .split('\n')
        .map(|line| match (all_bullets, has_bullet(line)) {
            (true, _) => format!("  {line}"),
            (false, true) => format!("    {line}"),
            (false, false) => format!("  * {line}"),
        })
        .collect();
    format!("\n{}", lines.join("\n"))
}

/// An asterisk followed by white space, anywhere: Cluster API looks no closer.
fn has_bullet(line: &str) -> bool {
    line.as_bytes()
        .windows(2)
        .any(|pair| pair[0] == b'*' && matches!(pair[1], b' ' | b'\t' | b'\n' | b'\r' | 0x0c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_indented_as_lists() {
        for (message, expected) in [
            ("one line", " one line"),
            ("* a", "\n  * a"),
            ("* a\n* b", "\n  * a\n  * b"),
            ("head\n* a", "\n  * head\n    * a"),
            ("head\ntail", "\n  * head\n  * tail"),
            ("2 * 3", "\n  2 * 3"),
            ("a*b", " a*b"),
        ] {
            assert_eq!(indented(message), expected, "{message:?}");
        }
    }
}
