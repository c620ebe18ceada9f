//! Whether a machine may be disturbed now: pure. The answer for a machine depends on names, labels and how far the others are, so
//! everybody who asks with the same facts gets the same answer, and who asks with older ones gets no more.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::api::UpgradePolicySpec;
use crate::{
    api::resolve,
    selector,
    window::{self, Opening},
};

/// How far one machine of a fleet is on its way to one image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It has not been disturbed yet.
    Waiting,
    /// It is being drained, rebooted or verified.
    Disturbed,
    /// It runs the image since then.
    Done(Timestamp),
    /// It ran the image and went back.
    RolledBack,
    /// Nothing will be done to it by itself: it failed before it was disturbed, or a person works on it.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub standing: Standing,
}

/// The answer, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Go,
    /// Not yet. `until`: the time that is waited for, where there is one.
    Wait {
        reason: &'static str,
        message: String,
        until: Option<Timestamp>,
    },
    /// Not before a person acts.
    Halted {
        message: String,
    },
}

/// The wave of each machine, by number: from names and labels alone, so it stays while the machines are upgraded.
pub fn assign(policy: &UpgradePolicySpec, members: &[Member]) -> BTreeMap<String, usize> {
    let mut left: Vec<&Member> = members.iter().collect();
    left.sort_by(|one, other| one.name.cmp(&other.name));
    let mut waves = BTreeMap::new();
    for (number, wave) in policy.waves.iter().enumerate() {
        let mut room = wave
            .size
            .as_ref()
            .map_or(members.len(), |size| resolve(size, members.len()).unwrap_or(0));
        left.retain(|member| {
            let takes = room > 0 && selector::selects(wave.selector.as_ref(), &member.labels);
            if takes {
                room -= 1;
                waves.insert(member.name.clone(), number);
            }
            !takes
        });
    }
    waves.extend(
        left.into_iter()
            .map(|member| (member.name.clone(), policy.waves.len())),
    );
    waves
}

fn wave_name(policy: &UpgradePolicySpec, number: usize) -> String {
    policy
        .waves
        .get(number)
        .map_or_else(|| "the rest".to_owned(), |wave| format!("wave {}", wave.name))
}

/// Why nobody else of the fleet is disturbed, where too many machines went back from this image.
pub fn halted(policy: &UpgradePolicySpec, members: &[Member]) -> Option<String> {
    let back: Vec<&str> = members
        .iter()
        .filter(|member| member.standing == Standing::RolledBack)
        .map(|member| member.name.as_str())
        .collect();
    let limit = policy.stop_after_rollbacks.unwrap_or(1).max(1) as usize;
    (back.len() >= limit).then(|| {
        let machines = if back.len() == 1 { "machine" } else { "machines" };
        format!(
            "{} {machines} went back from this image ({}), which stops the upgrade: choose another image, or resume it",
            back.len(),
            back.join(", ")
        )
    })
}

/// Whether the named machine may be disturbed.
pub fn judge(policy: &UpgradePolicySpec, members: &[Member], name: &str, now: Timestamp) -> Verdict {
    let wait = |reason, message: String, until| Verdict::Wait {
        reason,
        message,
        until,
    };
    let Some(me) = members.iter().find(|member| member.name == name) else {
        return wait("NotInFleet", format!("machine {name} is not known yet"), None);
    };
    // What has begun is finished, whatever else holds.
    if me.standing == Standing::Disturbed {
        return Verdict::Go;
    }
    if let Some(message) = halted(policy, members) {
        return Verdict::Halted { message };
    }
    let waves = assign(policy, members);
    let mine = waves.get(name).copied().unwrap_or(policy.waves.len());
    if let Some(verdict) = earlier_waves(policy, members, &waves, mine, now) {
        return verdict;
    }
    if let Opening::Closed { until } = window::opening(&policy.windows, now) {
        let message = match until {
            Some(until) => format!("the next window opens at {until:.0}"),
            None => "no window of the policy can be read".to_owned(),
        };
        return wait("OutsideWindow", message, until);
    }
    let most = policy.max_concurrent.as_ref().map_or(1, |amount| {
        // A share never rounds down to a standstill.
        resolve(amount, members.len()).unwrap_or(1)
    });
    if most == 0 {
        return wait("Paused", "maxConcurrent is 0".to_owned(), None);
    }
    let disturbed = members
        .iter()
        .filter(|member| member.standing == Standing::Disturbed)
        .count();
    let mut in_line: Vec<&str> = members
        .iter()
        .filter(|member| member.standing == Standing::Waiting && waves.get(&member.name) == Some(&mine))
        .map(|member| member.name.as_str())
        .collect();
    in_line.sort_unstable();
    let place = in_line.iter().position(|other| *other == name).unwrap_or(0);
    if disturbed + place >= most {
        let message =
            format!("{disturbed} machines are being upgraded and {place} go before; at most {most} at once");
        return wait("InLine", message, None);
    }
    Verdict::Go
}

/// Whom an earlier wave keeps waiting.
fn earlier_waves(
    policy: &UpgradePolicySpec,
    members: &[Member],
    waves: &BTreeMap<String, usize>,
    mine: usize,
    now: Timestamp,
) -> Option<Verdict> {
    let earlier = || {
        members
            .iter()
            .filter(|member| waves.get(&member.name).is_some_and(|wave| *wave < mine))
    };
    let unfinished =
        earlier().find(|member| matches!(member.standing, Standing::Waiting | Standing::Disturbed));
    if let Some(member) = unfinished {
        let wave = waves.get(&member.name).copied().unwrap_or_default();
        return Some(Verdict::Wait {
            reason: "WaitingForWave",
            message: format!(
                "{} is not finished: machine {} is not upgraded yet",
                wave_name(policy, wave),
                member.name
            ),
            until: None,
        });
    }
    let soak = SignedDuration::from_mins(i64::from(policy.soak_minutes.unwrap_or(0)));
    let last = earlier()
        .filter_map(|member| match member.standing {
            Standing::Done(since) => Some(since),
            _ => None,
        })
        .max()?;
    let soaked = last.checked_add(soak).unwrap_or(Timestamp::MAX);
    (now < soaked).then(|| Verdict::Wait {
        reason: "Soaking",
        message: format!("the wave before runs well until {soaked:.0}, or not"),
        until: Some(soaked),
    })
}
