//! From a symptom to its first cause, across owners and references: who has to act, and what to run next.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    Actor, Catalogue, Condition, Id, Judgement, Objects, State,
    condition::conditions,
    state::{NOT_FOUND, NOT_READABLE, judge},
};

/// One object on the way to the cause.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CauseStep {
    #[serde(flatten)]
    pub id: Id,
    /// What led here from the step before: a field, or a relation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    #[serde(flatten)]
    pub judgement: Judgement,
    /// What its reason means.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub meaning: String,
    /// What its other conditions say that are not as they should be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub besides: Vec<Condition>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Of the object that was asked about. It is stuck where its cause is.
    pub state: State,
    pub paused: bool,
    /// From the object that was asked about to the first cause; empty where there is nothing to explain.
    pub chain: Vec<CauseStep>,
    pub actor: Actor,
    /// Who has to act, in words.
    pub who: String,
    /// What helps.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub advice: String,
    /// The command to run next.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Further first causes beside this one, which hold it up too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<CauseStep>,
}

impl Explanation {
    /// The first cause: the last step.
    pub fn cause(&self) -> Option<&CauseStep> {
        self.chain.last()
    }
}

/// Why an object is as it is. `None` if it is not there.
pub fn explain(objects: &Objects, catalogue: &Catalogue, id: &Id, now: Timestamp) -> Option<Explanation> {
    let object = objects.get(id)?;
    let own = judge(object, catalogue, now);
    let mut search = Search {
        objects,
        catalogue,
        now,
        seen: BTreeSet::new(),
        ends: Vec::new(),
    };
    let chain = search.walk(id, String::new()).unwrap_or_default();
    let cause = chain.last().cloned();
    let state = cause
        .as_ref()
        .map_or(State::Ready, |step| step.judgement.state.max(own.state));
    let is_cause = |step: &CauseStep| cause.as_ref().is_some_and(|cause| cause.id == step.id);
    let mut others: Vec<CauseStep> = Vec::new();
    for end in search.ends {
        if end.judgement.state == State::Stuck
            && !is_cause(&end)
            && !others.iter().any(|other| other.id == end.id)
        {
            others.push(end);
        }
    }
    let (actor, advice, command) = match &cause {
        Some(step) => advise(step, objects, catalogue),
        None => (Actor::Nobody, String::new(), String::new()),
    };
    Some(Explanation {
        state,
        paused: own.paused,
        chain,
        actor,
        who: actor.words().to_owned(),
        advice,
        command,
        others,
    })
}

struct Search<'a> {
    objects: &'a Objects,
    catalogue: &'a Catalogue,
    now: Timestamp,
    seen: BTreeSet<Id>,
    /// The ends of all ways.
    ends: Vec<CauseStep>,
}

impl Search<'_> {
    /// The way from an object to the worst cause there is below it; `None` if it is well.
    fn walk(&mut self, id: &Id, by: String) -> Option<Vec<CauseStep>> {
        if !self.seen.insert(id.clone()) {
            return None;
        }
        let Some(object) = self.objects.get(id) else {
            return self.missing(id, by).map(|step| vec![step]);
        };
        let judgement = judge(object, self.catalogue, self.now);
        if judgement.state == State::Ready {
            return None;
        }
        let kind = self.catalogue.kind(id);
        let mut step = self.step(id, by, judgement);
        let speaks = |one: &Condition| one.name != step.judgement.condition && Catalogue::is_news(&kind, one);
        step.besides = conditions(object).into_iter().filter(speaks).collect();
        let links = self.catalogue.elsewhere(&kind, &id.kind, &step.judgement);
        let mut best: Option<Vec<CauseStep>> = None;
        for link in links.into_iter().flatten() {
            for reference in self.objects.follow(id, link) {
                let Some(way) = self.walk(&reference.id, reference.by) else {
                    continue;
                };
                let rank =
                    |way: &[CauseStep]| way.last().map(|end| (end.judgement.state, end.judgement.overdue));
                if best.as_ref().is_none_or(|best| rank(&way) > rank(best)) {
                    best = Some(way);
                }
            }
        }
        let mut chain = vec![step];
        match best {
            Some(way) => chain.extend(way),
            None => self.ends.extend(chain.first().cloned()),
        }
        Some(chain)
    }

    fn step(&self, id: &Id, by: String, judgement: Judgement) -> CauseStep {
        let known = self
            .catalogue
            .reason(&id.kind, &judgement.reason, &judgement.message);
        let meaning = match known {
            Some(reason) => reason.cause.to_owned(),
            None => self
                .catalogue
                .meaning(&id.kind, &judgement.condition)
                .map(|meaning| format!("{} would say: {meaning}", judgement.condition))
                .unwrap_or_default(),
        };
        CauseStep {
            id: id.clone(),
            by,
            judgement,
            meaning,
            besides: Vec::new(),
        }
    }

    /// What is named and is not there. Whether a Secret is there is not known: none is read.
    fn missing(&mut self, id: &Id, by: String) -> Option<CauseStep> {
        if id.kind == "Secret" || by == "owner" {
            return None;
        }
        let judgement = match self.objects.unreadable(id) {
            Some(why) => Judgement::own(State::Waiting, NOT_READABLE, why.to_owned()),
            None => Judgement::own(State::Stuck, NOT_FOUND, format!("{by} names it")),
        };
        let step = self.step(id, by, judgement);
        self.ends.push(step.clone());
        Some(step)
    }
}

fn advise(step: &CauseStep, objects: &Objects, catalogue: &Catalogue) -> (Actor, String, String) {
    let judgement = &step.judgement;
    let known = catalogue.reason(&step.id.kind, &judgement.reason, &judgement.message);
    let actor = match known {
        Some(reason) => reason.actor,
        None if judgement.state == State::Stuck => Actor::Author,
        None => Actor::Nobody,
    };
    let advice = match known.map(|reason| reason.advice) {
        Some(advice) if !advice.is_empty() => advice.to_owned(),
        _ if judgement.overdue => {
            "it takes longer than usual: look at its events and at the manager's log".to_owned()
        }
        _ if judgement.state == State::Stuck => "the message says what is wrong".to_owned(),
        _ => String::new(),
    };
    let cluster = objects.cluster_of(&step.id);
    let template = match known.map(|reason| reason.command) {
        Some(command) if !command.is_empty() => command,
        _ if judgement.state == State::Stuck || judgement.overdue => {
            "kubectl -n {namespace} describe {resource} {name}"
        }
        _ if cluster.is_some() => "slipway describe {cluster} -n {namespace} --watch",
        _ => "kubectl -n {namespace} get {resource} {name} --watch",
    };
    let cluster = cluster.map(|cluster| cluster.name).unwrap_or_default();
    (actor, advice, filled(template, &step.id, &cluster))
}

/// A command with the names put in, quoted for a shell where they need it.
fn filled(template: &str, id: &Id, cluster: &str) -> String {
    let template = if id.namespace.is_empty() {
        template.replace(" -n {namespace}", "")
    } else {
        template.to_owned()
    };
    template
        .replace("{namespace}", &quoted(&id.namespace))
        .replace("{resource}", &quoted(&id.resource()))
        .replace("{name}", &quoted(&id.name))
        .replace("{cluster}", &quoted(cluster))
}

fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:".contains(letter);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_commands() {
        let id = Id::new("toy.dev", "Boat", "shop", "a'; rm -rf /");
        let command = filled("kubectl -n {namespace} get {resource} {name}", &id, "");
        assert_eq!(command, r"kubectl -n shop get boat.toy.dev 'a'\''; rm -rf /'");
        assert_eq!(
            filled("kubectl -n {namespace} get", &Id::default(), ""),
            "kubectl get"
        );
    }
}
