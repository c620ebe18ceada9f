//! What the objects of a fleet say, for people: a tree of a cluster, a timeline, progress with the time that is left, and
//! explanations from a symptom to its first cause. Pure: objects as JSON and the time go in, values go out that serialise to
//! JSON. It knows no provider; each registers its kinds and reasons as data ([`Insight`]).

mod catalogue;
mod condition;
mod explain;
mod fleet;
mod inline;
mod objects;
mod path;
mod progress;
mod register;
mod state;
mod timeline;
mod tree;

pub use catalogue::Catalogue;
pub use condition::{Condition, Severity, Status, conditions};
pub use explain::{CauseStep, Explanation, explain};
pub use fleet::{Fleet, Machines, RollUp, Row, fleet, row};
pub use objects::{Id, Objects, Reference};
pub use progress::{Basis, Eta, Progress};
pub use register::{
    Actor, ConditionType, Inline, Insight, Kind, Link, Numbers, Part, Pointer, Reason, Steps,
};
pub use state::{Judgement, OWN_REASONS, State, judge};
pub use timeline::{Entry, Happening, Timeline, events, timeline};
pub use tree::{Counts, Node, Tree, of_part, tree};
