//! What a provider says of its kinds, conditions and reasons: plain data, from which trees and explanations are made and the
//! reference is rendered.

use serde::{Deserialize, Serialize};

use crate::State;

/// A JSON pointer into an object; `*` stands for every item of a list or map.
pub type Pointer = &'static str;

/// What one provider brings.
#[derive(Clone, Debug, Default)]
pub struct Insight {
    pub kinds: Vec<Kind>,
    pub reasons: Vec<Reason>,
}

/// A condition that objects of a kind carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConditionType {
    pub kind: &'static str,
    pub name: &'static str,
    /// What holds when it is True.
    pub meaning: &'static str,
}

/// Where a kind has its place in a cluster, which is also the order in which it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    Cluster,
    Infrastructure,
    ControlPlane,
    /// What keeps a number of machines: MachineDeployment, MachinePool.
    Workers,
    /// What stands between workers and their machines. Shown only when all is.
    Between,
    Machine,
    /// What upgrades something: it is of interest while it works.
    Upgrade,
    Autoscaling,
    Host,
    /// Of something above it: bootstrap configuration, the infrastructure of a machine, inline resources.
    #[default]
    Detail,
    /// From which others are made; has no state of its own.
    Template,
}

impl Part {
    /// Whether it is shown although there is nothing to say of it.
    pub fn is_structure(self) -> bool {
        matches!(
            self,
            Self::Cluster | Self::Infrastructure | Self::ControlPlane | Self::Workers | Self::Autoscaling
        )
    }
}

/// How an object leads to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A field of it is a reference with `kind` and `name`, and `apiGroup`, `group` or `apiVersion`.
    Reference(Pointer),
    /// A field of it is the name of an object of this kind, or has `name` and perhaps `namespace`.
    Name {
        group: &'static str,
        kind: &'static str,
        at: Pointer,
    },
    /// Objects of this kind that have it as their owner; of any kind if both are empty.
    Owned { group: &'static str, kind: &'static str },
    /// Objects of this kind with its name as the value of a label.
    Labelled {
        group: &'static str,
        kind: &'static str,
        label: &'static str,
    },
    /// Objects of this kind with its name in a field.
    Naming {
        group: &'static str,
        kind: &'static str,
        at: Pointer,
    },
    /// What its Cluster names in a field.
    OfCluster(Pointer),
    /// Its Cluster itself.
    Cluster,
    /// Its owner.
    Owner,
}

/// Fields of an object that count the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub desired: Pointer,
    pub current: Pointer,
    pub ready: Pointer,
    pub available: Pointer,
    pub up_to_date: Pointer,
}

impl Numbers {
    /// As Cluster API has them.
    pub const CLUSTER_API: Self = Self {
        desired: "/spec/replicas",
        current: "/status/replicas",
        ready: "/status/readyReplicas",
        available: "/status/availableReplicas",
        up_to_date: "/status/upToDateReplicas",
    };
}

/// Steps that an object goes through, by what a field of it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    pub at: Pointer,
    /// In order; the last is the end. Another word is outside of it: the object has failed, or waits.
    pub order: &'static [&'static str],
    /// Percent within the current step.
    pub percent: Pointer,
}

/// Resources without objects of their own that an object holds, by the fields of its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inline {
    /// Each of them; the others are pointers into it.
    pub at: Pointer,
    /// Its group, kind and name.
    pub resource: Pointer,
    pub ready: Pointer,
    pub reason: Pointer,
    pub message: Pointer,
    pub since: Pointer,
}

/// A kind: how its objects are read.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub group: &'static str,
    pub kind: &'static str,
    pub part: Part,
    /// How the objects below it are found, in the order in which they are shown.
    pub children: &'static [Link],
    /// Objects that it needs and that stand elsewhere: followed to a cause, not shown below it.
    pub needs: &'static [Link],
    /// Conditions that sum up, beside Ready and Available.
    pub summaries: &'static [&'static str],
    /// Conditions that are bad news when they are True.
    pub alarms: &'static [&'static str],
    /// Conditions that repeat what another object says: the cause is there.
    pub mirrors: &'static [(&'static str, Link)],
    /// The version that runs, and that is asked for; the first that is there counts.
    pub running: &'static [Pointer],
    pub desired: &'static [Pointer],
    pub numbers: Numbers,
    /// What is counted, in the plural.
    pub unit: &'static str,
    pub steps: Option<Steps>,
    pub inline: Option<Inline>,
    /// Further facts worth a word, with what they are called.
    pub facts: &'static [(&'static str, Pointer)],
    /// Whether its objects belong to no Cluster and are listed for themselves.
    pub stands_alone: bool,
}

impl Kind {
    pub const fn new(group: &'static str, kind: &'static str, part: Part) -> Self {
        Self {
            group,
            kind,
            part,
            children: &[],
            needs: &[],
            summaries: &[],
            alarms: &[],
            mirrors: &[],
            running: &["/status/version", "/status/nodeInfo/kubeletVersion"],
            desired: &[
                "/spec/version",
                "/spec/template/spec/version",
                "/spec/topology/version",
            ],
            numbers: Numbers::CLUSTER_API,
            unit: "machines",
            steps: None,
            inline: None,
            facts: &[],
            stands_alone: false,
        }
    }

    pub const fn children(mut self, children: &'static [Link]) -> Self {
        self.children = children;
        self
    }

    pub const fn needs(mut self, needs: &'static [Link]) -> Self {
        self.needs = needs;
        self
    }

    pub const fn summaries(mut self, summaries: &'static [&'static str]) -> Self {
        self.summaries = summaries;
        self
    }

    pub const fn alarms(mut self, alarms: &'static [&'static str]) -> Self {
        self.alarms = alarms;
        self
    }

    pub const fn mirrors(mut self, mirrors: &'static [(&'static str, Link)]) -> Self {
        self.mirrors = mirrors;
        self
    }

    pub const fn versions(mut self, running: &'static [Pointer], desired: &'static [Pointer]) -> Self {
        self.running = running;
        self.desired = desired;
        self
    }

    pub const fn counting(mut self, unit: &'static str, numbers: Numbers) -> Self {
        self.unit = unit;
        self.numbers = numbers;
        self
    }

    pub const fn steps(mut self, steps: Steps) -> Self {
        self.steps = Some(steps);
        self
    }

    pub const fn holding(mut self, inline: Inline) -> Self {
        self.inline = Some(inline);
        self
    }

    pub const fn facts(mut self, facts: &'static [(&'static str, Pointer)]) -> Self {
        self.facts = facts;
        self
    }

    pub const fn standing_alone(mut self) -> Self {
        self.stands_alone = true;
        self
    }
}

/// Who has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Actor {
    /// It goes on by itself.
    Nobody,
    /// Whoever wrote the object.
    Author,
    /// Whoever runs the management cluster.
    Operator,
    /// Whoever administers the cloud's account.
    Cloud,
    /// Whoever can walk up to the host.
    Site,
}

impl Actor {
    pub fn words(self) -> &'static str {
        match self {
            Self::Nobody => "nobody: it goes on by itself",
            Self::Author => "whoever wrote the object",
            Self::Operator => "whoever runs the management cluster",
            Self::Cloud => "whoever administers the cloud's account",
            Self::Site => "whoever looks after the host",
        }
    }
}

/// What a reason in a condition means, and what helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The kinds that say it; all of them if empty.
    pub kinds: &'static [&'static str],
    /// The reason; any of them if empty.
    pub name: &'static str,
    /// Part of the message, where the message says more than the reason; empty where the reason is enough.
    pub says: &'static str,
    pub state: State,
    /// What it means. A clause that goes on after "because".
    pub cause: &'static str,
    pub actor: Actor,
    /// What to do, for whoever has to; empty where there is nothing.
    pub advice: &'static str,
    /// The command to run next, with `{namespace}`, `{name}`, `{resource}` and `{cluster}`; a general one if empty.
    pub command: &'static str,
    /// The cause lies with another object: one of these, or with whatever is below it and what it needs if there are none.
    pub elsewhere: Option<&'static [Link]>,
    /// How many seconds it usually takes at most; 0 where nobody knows.
    pub usually: u32,
}

impl Reason {
    const fn new(name: &'static str, state: State, cause: &'static str, actor: Actor) -> Self {
        Self {
            kinds: &[],
            name,
            says: "",
            state,
            cause,
            actor,
            advice: "",
            command: "",
            elsewhere: None,
            usually: 0,
        }
    }

    /// Nothing is wrong.
    pub const fn good(name: &'static str, cause: &'static str) -> Self {
        Self::new(name, State::Ready, cause, Actor::Nobody)
    }

    /// Under way, and it goes on by itself.
    pub const fn working(name: &'static str, cause: &'static str) -> Self {
        Self::new(name, State::Progressing, cause, Actor::Nobody)
    }

    /// It waits for something that comes by itself.
    pub const fn waiting(name: &'static str, cause: &'static str) -> Self {
        Self::new(name, State::Waiting, cause, Actor::Nobody)
    }

    /// It waits for another object, which has the cause: one of these, or any below it or that it needs.
    pub const fn follows(name: &'static str, cause: &'static str, links: &'static [Link]) -> Self {
        Self::waiting(name, cause).elsewhere(links)
    }

    /// Nothing goes on before somebody acts.
    pub const fn stuck(name: &'static str, cause: &'static str, actor: Actor, advice: &'static str) -> Self {
        Self {
            advice,
            ..Self::new(name, State::Stuck, cause, actor)
        }
    }

    /// Only where the message has this in it.
    pub const fn says(mut self, part: &'static str) -> Self {
        self.says = part;
        self
    }

    pub const fn of(mut self, kinds: &'static [&'static str]) -> Self {
        self.kinds = kinds;
        self
    }

    /// The cause lies with one of these, or with whatever is below it and what it needs if there are none.
    pub const fn elsewhere(mut self, links: &'static [Link]) -> Self {
        self.elsewhere = Some(links);
        self
    }

    pub const fn advice(mut self, advice: &'static str) -> Self {
        self.advice = advice;
        self
    }

    pub const fn command(mut self, command: &'static str) -> Self {
        self.command = command;
        self
    }

    pub const fn usually(mut self, seconds: u32) -> Self {
        self.usually = seconds;
        self
    }
}
