//! How far something is, and when it will be done, judged by the pace at which the parts before came.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Catalogue, Condition, Judgement, Kind, State, Status, path, state::seconds};

/// What an estimate rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Basis {
    /// Parts of the same thing that came before.
    Pace,
    /// How long it usually takes at most.
    Usual,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eta {
    pub basis: Basis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// From now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<i64>,
    /// Why there is no estimate.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

impl Eta {
    pub(crate) fn unknown(why: impl Into<String>) -> Self {
        Self {
            basis: Basis::Unknown,
            at: None,
            seconds: None,
            why: why.into(),
        }
    }

    fn at(basis: Basis, at: Timestamp, now: Timestamp) -> Self {
        Self {
            basis,
            at: Some(at),
            seconds: Some(seconds(now, at)),
            why: String::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    pub text: String,
    pub done: i64,
    pub total: i64,
    pub unit: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    pub eta: Eta,
}

/// What is counted of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up_to_date: Option<i64>,
}

impl Counts {
    pub(crate) fn of(object: &Value, kind: &Kind) -> Option<Self> {
        let numbers = kind.numbers;
        // A Cluster has its numbers twice: of the control plane, and of the workers.
        let read = |pointer| {
            let found = path::all(object, pointer);
            found
                .into_iter()
                .filter_map(Value::as_i64)
                .reduce(|all, one| all + one)
        };
        let counts = Self {
            desired: read(numbers.desired),
            current: read(numbers.current),
            ready: read(numbers.ready),
            available: read(numbers.available),
            up_to_date: read(numbers.up_to_date),
        };
        let is_counted = counts.desired.is_some() || counts.current.is_some();
        is_counted.then_some(counts)
    }

    /// How many are as they should be.
    fn done(&self) -> i64 {
        let ready = self.ready.or(self.available).unwrap_or(0);
        self.up_to_date.map_or(ready, |up_to_date| ready.min(up_to_date))
    }

    fn is_complete(&self) -> bool {
        match (self.desired, self.current) {
            (Some(desired), Some(current)) => current == desired && self.done() >= desired,
            (Some(desired), None) => self.done() >= desired,
            _ => true,
        }
    }
}

/// A part that has become what it should: when it came.
pub(crate) struct Finished(pub Timestamp);

/// How far an object is, if it is on its way anywhere. `finished`: the parts of it that are as they should be.
pub(crate) fn progress(
    object: &Value,
    kind: &Kind,
    judgement: &Judgement,
    conditions: &[Condition],
    finished: &[Finished],
    catalogue: &Catalogue,
    now: Timestamp,
) -> Option<Progress> {
    if let Some(found) = by_steps(object, kind, judgement, now) {
        return Some(found);
    }
    if let Some(counts) = Counts::of(object, kind)
        && let Some(total) = counts.desired
        && !counts.is_complete()
        && !judgement.deleting
    {
        return Some(by_numbers(
            &counts, total, kind, judgement, conditions, finished, now,
        ));
    }
    if !matches!(judgement.state, State::Progressing | State::Waiting) {
        return None;
    }
    let known = catalogue.reason(
        path::text(object, "/kind").unwrap_or_default(),
        &judgement.reason,
        &judgement.message,
    )?;
    if known.usually == 0 {
        return None;
    }
    let since = judgement.since?;
    Some(Progress {
        text: known.cause.to_owned(),
        done: 0,
        total: 1,
        unit: String::new(),
        since: Some(since),
        eta: usual(since, i64::from(known.usually), now),
    })
}

fn usual(since: Timestamp, usually: i64, now: Timestamp) -> Eta {
    match since.checked_add(SignedDuration::from_secs(usually)) {
        Ok(at) if at > now => Eta::at(Basis::Usual, at, now),
        _ => Eta::unknown(format!("it takes longer than the usual {usually} s")),
    }
}

fn by_steps(object: &Value, kind: &Kind, judgement: &Judgement, now: Timestamp) -> Option<Progress> {
    let steps = kind.steps?;
    let word = path::text(object, steps.at)?;
    let index = steps.order.iter().position(|step| *step == word)?;
    let total = steps.order.len() as i64 - 1;
    if index as i64 == total {
        return None;
    }
    let percent = path::number(object, steps.percent);
    let text = match percent {
        Some(percent) => format!("{word}, {percent} %"),
        None => word.to_owned(),
    };
    // The one thing that is measured within a step is its percentage.
    let eta = match (percent, judgement.since) {
        (Some(percent @ 5..=99), Some(since)) if seconds(since, now) > 0 => {
            let whole = seconds(since, now) * 100 / percent;
            usual(since, whole, now)
        }
        _ => Eta::unknown("steps take as long as the host needs"),
    };
    Some(Progress {
        text,
        done: index as i64,
        total,
        unit: "steps".to_owned(),
        since: judgement.since,
        eta,
    })
}

fn by_numbers(
    counts: &Counts,
    total: i64,
    kind: &Kind,
    judgement: &Judgement,
    conditions: &[Condition],
    finished: &[Finished],
    now: Timestamp,
) -> Progress {
    let unit = kind.unit;
    let done = counts.done().min(total);
    let current = counts.current.unwrap_or(0);
    let text = match counts.up_to_date {
        Some(up_to_date) if up_to_date < total && current >= total => {
            format!("{up_to_date} of {total} {unit} up to date")
        }
        _ if current > total => format!("{} of {current} {unit} to be removed", current - total),
        _ => format!("{done} of {total} {unit} ready"),
    };
    let since = conditions
        .iter()
        .filter(|one| one.status == Status::True)
        .filter(|one| ["RollingOut", "ScalingUp", "ScalingDown", "Updating"].contains(&one.name.as_str()))
        .filter_map(|one| one.since)
        .min()
        .or(judgement.since);
    let eta = match since {
        Some(since) if judgement.state != State::Stuck => by_pace(total - done, since, finished, now),
        Some(_) => Eta::unknown("it does not go on before somebody acts"),
        None => Eta::unknown("nothing says when it began"),
    };
    Progress {
        text,
        done,
        total,
        unit: unit.to_owned(),
        since,
        eta,
    }
}

/// As fast as those that came since the beginning.
fn by_pace(left: i64, since: Timestamp, finished: &[Finished], now: Timestamp) -> Eta {
    let times = finished.iter().map(|finished| finished.0);
    let after: Vec<Timestamp> = times.filter(|at| *at > since && *at <= now).collect();
    let Some(last) = after.iter().max() else {
        return Eta::unknown("none has come yet since it began");
    };
    if left <= 0 {
        return Eta::unknown("what is left is not counted");
    }
    let each = seconds(since, *last).max(1) / after.len() as i64;
    let due = last.checked_add(SignedDuration::from_secs(each.max(1) * left));
    match due {
        Ok(at) if at > now => Eta::at(Basis::Pace, at, now),
        _ => Eta::unknown(format!("it is slower than before, when each took {each} s")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Numbers, Part};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn an_estimate_follows_the_pace_of_those_that_came() {
        let came =
            |times: &[i64]| -> Vec<Finished> { times.iter().map(|time| Finished(at(*time))).collect() };
        // One each hundred seconds, three are left.
        let eta = by_pace(3, at(1000), &came(&[500, 1100, 1200]), at(1250));
        assert_eq!((eta.basis, eta.at), (Basis::Pace, Some(at(1500))));
        assert_eq!(eta.seconds, Some(250));
        // Those of before say nothing of this time.
        let eta = by_pace(3, at(1000), &came(&[500]), at(1250));
        assert_eq!((eta.basis, eta.at), (Basis::Unknown, None));
        // What should have come long ago is not promised for the past.
        let eta = by_pace(1, at(1000), &came(&[1100]), at(5000));
        assert_eq!(eta.at, None);
        assert_eq!(eta.why, "it is slower than before, when each took 100 s");
    }

    #[test]
    fn numbers_that_an_object_has_in_several_places_are_one() {
        let numbers = Numbers {
            desired: "/status/*/desiredReplicas",
            ready: "/status/*/readyReplicas",
            ..Numbers::CLUSTER_API
        };
        let kind = Kind::new("cluster.x-k8s.io", "Cluster", Part::Cluster).counting("machines", numbers);
        let object = json!({"status": {
            "controlPlane": {"desiredReplicas": 3, "readyReplicas": 3},
            "workers": {"desiredReplicas": 5, "readyReplicas": 4},
            "phase": "Provisioned",
        }});
        let counts = Counts::of(&object, &kind).expect("it has some");
        assert_eq!(
            (counts.desired, counts.ready, counts.available),
            (Some(8), Some(7), None)
        );
        assert_eq!(Counts::of(&json!({"status": {"phase": "Pending"}}), &kind), None);
    }

    #[test]
    fn what_usually_takes_a_while_is_promised_until_then() {
        assert_eq!(usual(at(0), 300, at(100)).seconds, Some(200));
        assert_eq!(
            usual(at(0), 300, at(301)).why,
            "it takes longer than the usual 300 s"
        );
    }
}
