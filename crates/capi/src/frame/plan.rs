//! What a reconcile is about to do: a list of entries, each an action or a wait, with its reason and, for a change, the
//! difference. Pure data that prints itself; what the entries came to is [`super::Progress`].

use std::{borrow::Cow, fmt, time::Duration};

use jiff::Timestamp;
use slipway_runtime::Class;

/// What one entry of a plan does. A kind writes only its own actions; the others are the frame's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What<A> {
    /// One idempotent call of the kind.
    Do(A),
    AddFinalizer(&'static str),
    /// Everything outside is gone: let the object go.
    ReleaseFinalizer,
    /// Make `clusterctl move` wait until the object is paused.
    BlockMove,
    /// Let `clusterctl move` go on.
    UnblockMove,
    /// Nothing is done but to record an event of this reason: something began, or came to its end.
    Report(&'static str),
    /// Nothing is done for now.
    Wait(Wait),
}

/// Why nothing is done. Waiting is no error; what is waited for is watched, or the time is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// One word, as in a condition's reason.
    pub reason: String,
    /// The latest time at which the object is reconciled again.
    pub until: Option<Timestamp>,
    /// Something failed while observing, or the spec cannot be fulfilled: the reconcile ends with an error of this class.
    pub class: Option<Class>,
}

/// One field that an action changes, as text. Values that are secret are never given, and credentials in URLs are left out
/// when it is printed: proxies are written so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub path: String,
    pub from: String,
    pub to: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (without_credentials(&self.from), without_credentials(&self.to));
        write!(formatter, "{}: {from} -> {to}", self.path)
    }
}

/// A text without the user and the password of the URLs in it.
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    const AUTHORITY: &str = "://";
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(AUTHORITY) {
        let (before, after) = rest.split_at(at + AUTHORITY.len());
        let ends =
            |letter: char| matches!(letter, '/' | '?' | '#' | '"' | '\'' | ',') || letter.is_whitespace();
        let authority = &after[..after.find(ends).unwrap_or(after.len())];
        let host = authority.rfind('@').map_or(0, |at| at + 1);
        shown.push_str(before);
        if host > 0 {
            shown.push_str("…@");
        }
        rest = &after[host..];
    }
    if shown.is_empty() {
        return Cow::Borrowed(text);
    }
    shown.push_str(rest);
    Cow::Owned(shown)
}

/// One entry of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<A> {
    pub what: What<A>,
    pub why: String,
    pub differences: Vec<Difference>,
    /// Entries of one group do not wait for each other; those of a later group wait for all of the earlier ones. An entry
    /// without a group waits for nobody and holds up nobody.
    pub group: Option<u16>,
    /// The condition that shows how it went, where the kind has one for it.
    pub condition: Option<&'static str>,
    /// The event that is recorded when the action was taken, or with the wait.
    pub event: Option<Announcement>,
}

/// An event of an entry. Its note is made of the entry's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    pub reason: &'static str,
    pub warning: bool,
}

impl<A> Entry<A> {
    fn new(what: What<A>, why: impl Into<String>, group: Option<u16>) -> Self {
        Self {
            what,
            why: why.into(),
            differences: Vec::new(),
            group,
            condition: None,
            event: None,
        }
    }

    /// Says what the action changes.
    pub fn changing(
        &mut self,
        path: impl Into<String>,
        from: impl fmt::Display,
        to: impl fmt::Display,
    ) -> &mut Self {
        self.differences.push(Difference {
            path: path.into(),
            from: from.to_string(),
            to: to.to_string(),
        });
        self
    }

    /// Records an event with this reason when the action was taken. Its note is the action, its why and the difference.
    pub fn announced(&mut self, reason: &'static str) -> &mut Self {
        self.event = Some(Announcement {
            reason,
            warning: false,
        });
        self
    }

    /// The same as a warning. A wait is in many plans: its event is asked for where its condition does not show it yet.
    pub fn warned(&mut self, reason: &'static str) -> &mut Self {
        self.event = Some(Announcement {
            reason,
            warning: true,
        });
        self
    }

    /// Names the condition that shows how it went.
    pub fn shown_in(&mut self, condition: &'static str) -> &mut Self {
        self.condition = Some(condition);
        self
    }

    /// The object is reconciled again at this time, if nothing changes before.
    pub fn until(&mut self, time: Timestamp) -> &mut Self {
        if let What::Wait(wait) = &mut self.what {
            wait.until = Some(time);
        }
        self
    }

    pub fn in_group(&mut self, group: u16) -> &mut Self {
        self.group = Some(group);
        self
    }

    pub fn action(&self) -> Option<&A> {
        match &self.what {
            What::Do(action) => Some(action),
            _ => None,
        }
    }

    pub fn as_wait(&self) -> Option<&Wait> {
        match &self.what {
            What::Wait(wait) => Some(wait),
            _ => None,
        }
    }
}

/// What to do now, and what is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<A> {
    pub entries: Vec<Entry<A>>,
    /// When to reconcile again where no event will tell, and why.
    pub revisit: Option<(Duration, String)>,
}

impl<A> Default for Plan<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A> Plan<A> {
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            revisit: None,
        }
    }

    fn last_group(&self) -> Option<u16> {
        self.entries.iter().filter_map(|entry| entry.group).max()
    }

    fn push(&mut self, what: What<A>, why: impl Into<String>, group: Option<u16>) -> &mut Entry<A> {
        self.entries.push(Entry::new(what, why, group));
        let last = self.entries.len() - 1;
        &mut self.entries[last]
    }

    fn next_group(&self) -> u16 {
        self.last_group().map_or(1, |group| group + 1)
    }

    /// An action that is taken when everything before it is done.
    pub fn then(&mut self, action: A, why: impl Into<String>) -> &mut Entry<A> {
        let group = self.next_group();
        self.push(What::Do(action), why, Some(group))
    }

    /// An action beside the last one: neither waits for the other.
    pub fn beside(&mut self, action: A, why: impl Into<String>) -> &mut Entry<A> {
        let group = self.last_group().unwrap_or(1);
        self.push(What::Do(action), why, Some(group))
    }

    /// An action that waits for nobody, and for which nobody waits.
    pub fn regardless(&mut self, action: A, why: impl Into<String>) -> &mut Entry<A> {
        self.push(What::Do(action), why, None)
    }

    /// Something began or came to its end, which an event of this reason says. Nobody waits for it.
    pub fn report(&mut self, reason: &'static str, why: impl Into<String>) -> &mut Entry<A> {
        self.push(What::Report(reason), why, None).announced(reason)
    }

    /// Something has to come first: everything planned after it waits.
    pub fn wait(&mut self, reason: impl Into<String>, message: impl Into<String>) -> &mut Entry<A> {
        self.push_wait(reason, message, None)
    }

    /// Something failed while observing, or the spec cannot be fulfilled. Everything planned after it waits, and the
    /// reconcile ends with an error of this class, which decides when it is tried again.
    pub fn blocked(
        &mut self,
        reason: impl Into<String>,
        message: impl Into<String>,
        class: Class,
    ) -> &mut Entry<A> {
        self.push_wait(reason, message, Some(class))
    }

    fn push_wait(
        &mut self,
        reason: impl Into<String>,
        message: impl Into<String>,
        class: Option<Class>,
    ) -> &mut Entry<A> {
        let wait = Wait {
            reason: reason.into(),
            until: None,
            class,
        };
        let group = self.next_group();
        self.push(What::Wait(wait), message, Some(group))
    }

    /// Everything outside is gone once everything before this is done: the object is let go.
    pub fn release_finalizer(&mut self, why: impl Into<String>) -> &mut Entry<A> {
        self.of_frame(What::ReleaseFinalizer, why)
    }

    /// An entry of the frame itself.
    pub(super) fn of_frame(&mut self, what: What<A>, why: impl Into<String>) -> &mut Entry<A> {
        let group = self.next_group();
        self.push(what, why, Some(group))
    }

    /// Reconcile again after this long although nothing changed; of several the earliest counts.
    pub fn revisit(&mut self, after: Duration, why: impl Into<String>) {
        if self.revisit.as_ref().is_none_or(|(before, _)| after < *before) {
            self.revisit = Some((after, why.into()));
        }
    }

    /// The kind's own actions, in order.
    pub fn actions(&self) -> impl Iterator<Item = &A> {
        self.entries.iter().filter_map(Entry::action)
    }

    /// Waits, each with its message.
    pub fn waits(&self) -> impl Iterator<Item = (&Wait, &str)> {
        self.entries
            .iter()
            .filter_map(|entry| Some((entry.as_wait()?, entry.why.as_str())))
    }

    /// Whether nothing is done and nothing is waited for.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What follows from what this plan came to, after it.
    pub(super) fn append(&mut self, later: Self) {
        let first = self.last_group().unwrap_or(0);
        self.entries.extend(later.entries.into_iter().map(|mut entry| {
            entry.group = entry.group.map(|group| first + group);
            entry
        }));
        if let Some((after, why)) = later.revisit {
            self.revisit(after, why);
        }
    }
}

impl<A: fmt::Display> fmt::Display for What<A> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Do(action) => action.fmt(formatter),
            Self::AddFinalizer(name) => write!(formatter, "add finalizer {name}"),
            Self::ReleaseFinalizer => formatter.write_str("release finalizer"),
            Self::BlockMove => formatter.write_str("block move"),
            Self::UnblockMove => formatter.write_str("unblock move"),
            Self::Report(reason) => write!(formatter, "report {reason}"),
            Self::Wait(Wait {
                reason,
                until: None,
                class: None,
            }) => write!(formatter, "wait {reason}"),
            Self::Wait(Wait {
                reason,
                until: Some(until),
                class: None,
            }) => write!(formatter, "wait {reason} until {until:.0}"),
            Self::Wait(Wait {
                reason,
                class: Some(class),
                ..
            }) => write!(formatter, "blocked {reason} ({})", class.as_str()),
        }
    }
}

impl<A: fmt::Display> Entry<A> {
    /// What an event of the entry says.
    pub(super) fn note(&self) -> String {
        let mut note = match &self.what {
            What::Wait(_) | What::Report(_) => self.why.clone(),
            what => format!("{what}: {}", self.why),
        };
        for (index, difference) in self.differences.iter().enumerate() {
            note.push_str(if index == 0 { "; " } else { ", " });
            note.push_str(&difference.to_string());
        }
        note
    }

    /// The first line: `1. create Vessel north-0: it is missing`.
    pub(super) fn line(&self) -> String {
        let group = self
            .group
            .map_or_else(|| "- ".to_owned(), |group| format!("{group}."));
        if self.why.is_empty() {
            format!("{group} {}", self.what)
        } else {
            format!("{group} {}: {}", self.what, self.why)
        }
    }
}

impl<A: fmt::Display> fmt::Display for Plan<A> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print(formatter, |_| String::new())
    }
}

impl<A: fmt::Display> Plan<A> {
    /// One line an entry, with what `came_to` says of it, and its differences below.
    pub(super) fn print(
        &self,
        formatter: &mut fmt::Formatter<'_>,
        came_to: impl Fn(usize) -> String,
    ) -> fmt::Result {
        if self.entries.is_empty() {
            writeln!(formatter, "nothing to do")?;
        }
        for (index, entry) in self.entries.iter().enumerate() {
            writeln!(formatter, "{}{}", entry.line(), came_to(index))?;
            for difference in &entry.differences {
                writeln!(formatter, "     {difference}")?;
            }
        }
        if let Some((after, why)) = &self.revisit {
            writeln!(formatter, "again in {after:?}: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_urls_are_printed_nowhere() {
        let mut plan = Plan::new();
        plan.then("update cluster", "the proxy differs").changing(
            "properties.httpProxyConfig",
            r#"{"httpProxy":"http://ann:s3cret@proxy:3128/","noProxy":["https://a"]}"#,
            "http://ann:pass%40word@other:3128, socks5://bob@third",
        );
        let entry = &plan.entries[0];
        for text in [plan.to_string(), entry.note()] {
            for secret in ["ann", "s3cret", "word", "bob"] {
                assert!(!text.contains(secret), "{text}");
            }
            for kept in [
                "http://…@proxy:3128/",
                "https://a\"",
                "http://…@other:3128",
                "socks5://…@third",
            ] {
                assert!(text.contains(kept), "{kept}: {text}");
            }
        }
        for text in ["3", "a@b", "https://a/b@c", "://"] {
            assert_eq!(without_credentials(text), text);
        }
    }

    #[test]
    fn a_plan_prints_what_why_and_the_difference() {
        let mut plan = Plan::new();
        plan.then("create group", "it is absent");
        plan.then("create network", "it is absent");
        plan.beside("update cluster", "the version differs")
            .changing("properties.version", "1.30", "1.31")
            .announced("Updating");
        plan.regardless("write endpoint", "AKS has named it");
        plan.wait("WaitingForPool", "no pool yet")
            .until(Timestamp::UNIX_EPOCH);
        plan.blocked("InvalidSpec", "the size is unknown", Class::Terminal);
        plan.report("Upgraded", "1.31 runs");
        plan.release_finalizer("everything is gone");
        plan.revisit(Duration::from_secs(90), "AKS tells nobody");
        plan.revisit(Duration::from_secs(100), "later");
        assert_eq!(
            plan.to_string(),
            "1. create group: it is absent\n\
             2. create network: it is absent\n\
             2. update cluster: the version differs\n     properties.version: 1.30 -> 1.31\n\
             -  write endpoint: AKS has named it\n\
             3. wait WaitingForPool until 1970-01-01T00:00:00Z: no pool yet\n\
             4. blocked InvalidSpec (terminal): the size is unknown\n\
             -  report Upgraded: 1.31 runs\n\
             5. release finalizer: everything is gone\n\
             again in 90s: AKS tells nobody\n"
        );
        assert_eq!(Plan::<&str>::new().to_string(), "nothing to do\n");
    }
}
