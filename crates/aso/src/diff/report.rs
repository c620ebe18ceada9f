//! What is told of differences, and what the exit code says. Pure.

use std::fmt;

use serde_json::{Value, json};
use slipway_runtime::{
    ObjectKey, Preview,
    preview::{Effect, PreviewStep},
};

/// What the exit code says, as that of `kubectl diff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Same,
    Differs,
    /// Something could not be told.
    Unknown,
}

impl Verdict {
    pub fn code(self) -> u8 {
        match self {
            Self::Same => 0,
            Self::Differs => 1,
            Self::Unknown => 2,
        }
    }
}

/// What would happen to one object's resources.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    kind: String,
    key: ObjectKey,
    answer: Result<Preview, String>,
}

impl Told {
    fn steps(&self, effects: &'static [Effect]) -> impl Iterator<Item = &PreviewStep> {
        let steps = self.answer.iter().flat_map(|preview| &preview.steps);
        steps.filter(move |step| effects.contains(&step.effect))
    }

    fn differences(&self) -> impl Iterator<Item = &PreviewStep> {
        self.steps(&[Effect::Outside])
    }

    fn unknown(&self) -> impl Iterator<Item = &PreviewStep> {
        self.steps(&[Effect::Wait, Effect::Blocked])
    }

    fn verdict(&self) -> Verdict {
        let is_unknown = match &self.answer {
            Err(_) => true,
            Ok(preview) => preview.left_alone.is_some() || self.unknown().next().is_some(),
        };
        if is_unknown {
            Verdict::Unknown
        } else if self.differences().next().is_some() {
            Verdict::Differs
        } else {
            Verdict::Same
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report(Vec<Told>);

impl Report {
    pub fn add(&mut self, kind: &str, key: &ObjectKey, answer: Result<Preview, String>) {
        self.0.push(Told {
            kind: kind.to_owned(),
            key: key.clone(),
            answer,
        });
    }

    pub fn verdict(&self) -> Verdict {
        self.0.iter().map(Told::verdict).max().unwrap_or(Verdict::Same)
    }

    pub fn json(&self) -> String {
        let objects: Vec<Value> = self
            .0
            .iter()
            .map(|told| {
                let mut object =
                    json!({"kind": told.kind, "namespace": told.key.namespace(), "name": told.key.name()});
                match &told.answer {
                    Ok(preview) => {
                        object["paused"] = json!(preview.paused);
                        object["leftAlone"] = json!(preview.left_alone);
                        object["differences"] = json!(told.differences().collect::<Vec<_>>());
                        object["notKnown"] = json!(told.unknown().collect::<Vec<_>>());
                    }
                    Err(error) => object["error"] = json!(error),
                }
                object
            })
            .collect();
        format!("{:#}\n", json!({"objects": objects}))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for told in &self.0 {
            writeln!(formatter, "{} {}", told.kind, told.key)?;
            let preview = match &told.answer {
                Ok(preview) => preview,
                Err(error) => {
                    writeln!(formatter, "  not known: {error}")?;
                    continue;
                }
            };
            if let Some(why) = &preview.paused {
                writeln!(formatter, "  paused: {why}")?;
            }
            if let Some(why) = &preview.left_alone {
                writeln!(formatter, "  not known: nothing is done for it: {why}")?;
            }
            for step in told.differences() {
                writeln!(formatter, "  {}: {}", step.what, step.why)?;
                for change in &step.changes {
                    writeln!(formatter, "    {}: {} -> {}", change.path, change.from, change.to)?;
                }
            }
            for step in told.unknown() {
                writeln!(formatter, "  not known: {}: {}", step.what, step.why)?;
            }
            if told.verdict() == Verdict::Same {
                writeln!(formatter, "  no difference")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipway_runtime::preview::PreviewChange;

    fn step(effect: Effect, what: &str, changes: Vec<PreviewChange>) -> PreviewStep {
        PreviewStep {
            what: what.to_owned(),
            why: "it differs".to_owned(),
            effect,
            changes,
        }
    }

    fn report(answers: Vec<Result<Preview, String>>) -> Report {
        let mut report = Report::default();
        for (index, answer) in answers.into_iter().enumerate() {
            let key = ObjectKey::namespaced("default", &format!("o{index}"));
            report.add("AzureASOManagedControlPlane", &key, answer);
        }
        report
    }

    fn preview(steps: Vec<PreviewStep>) -> Preview {
        Preview {
            steps,
            ..Preview::default()
        }
    }

    #[test]
    fn the_exit_code_tells_differences_from_what_is_not_known() {
        let change = PreviewChange {
            path: "properties.count".to_owned(),
            from: "3".to_owned(),
            to: "5".to_owned(),
        };
        let inside = || step(Effect::Inside, "store what was applied", Vec::new());
        let outside = || step(Effect::Outside, "ensure ManagedCluster", vec![change.clone()]);
        let waits = || step(Effect::Wait, "wait WaitingForAzure", Vec::new());
        let paused = Ok(Preview {
            paused: Some("Cluster spec.paused is set to true".to_owned()),
            ..Preview::default()
        });
        for (answers, verdict) in [
            (vec![], Verdict::Same),
            (vec![Ok(preview(vec![inside()]))], Verdict::Same),
            (vec![paused], Verdict::Same),
            (
                vec![Ok(preview(vec![outside()])), Ok(preview(vec![]))],
                Verdict::Differs,
            ),
            (vec![Ok(preview(vec![outside(), waits()]))], Verdict::Unknown),
            (
                vec![Ok(preview(vec![])), Err("gone".to_owned())],
                Verdict::Unknown,
            ),
            (
                vec![Ok(Preview::left_alone("no Cluster has become its owner yet"))],
                Verdict::Unknown,
            ),
        ] {
            let report = report(answers);
            assert_eq!(report.verdict(), verdict, "{report}");
        }
        assert_eq!(
            report(vec![Ok(preview(vec![outside(), inside()])), Ok(preview(vec![]))]).to_string(),
            "AzureASOManagedControlPlane default/o0\n  ensure ManagedCluster: it differs\n    properties.count: 3 -> 5\n\
             AzureASOManagedControlPlane default/o1\n  no difference\n"
        );
    }
}
