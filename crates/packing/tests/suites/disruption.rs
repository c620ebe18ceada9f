//! The lines of a case that ask which nodes should go.

use slipway_packing::disrupt::{Method, Outcome, Totals, eviction_cost, is_worth_it, score};

use super::environment::Environment;
use super::expect::number;
use super::words;
use crate::cluster::condition;
use crate::judged::{disrupt, next_command};

impl Environment {
    /// False if the line is not of this kind.
    pub fn disruption(&mut self, line: &[&str]) -> bool {
        match line[0] {
            // `disrupt`, or one method by name
            "disrupt" => self.ask(line.get(1).copied()),
            // Round after round, what was decided is on its way out.
            "rounds" => {
                for _ in 0..line[1].parse::<usize>().expect("a number of rounds") {
                    self.ask(None);
                    let commands = self.answer().commands();
                    let nodes: Vec<String> = commands.flat_map(|command| command.nodes.clone()).collect();
                    self.gone += nodes.len();
                    self.snapshot.deleting_nodes.extend(nodes);
                }
            }
            // What evicting one pod costs against another, or a number
            "eviction" => {
                let cost = |name: &str| {
                    let pod = self.waiting.iter().find(|pod| pod.metadata.name == name);
                    eviction_cost(pod.unwrap_or_else(|| panic!("no pod is called {name}")))
                };
                match line[2] {
                    ">" => assert!(
                        cost(line[1]) > cost(line[3]),
                        "{} {}",
                        cost(line[1]),
                        cost(line[3])
                    ),
                    "=" => {
                        let expected: f64 = line[3].parse().expect("a cost");
                        assert!((cost(line[1]) - expected).abs() < 1e-9, "{}", cost(line[1]));
                    }
                    other => panic!("unknown sign {other}"),
                }
            }
            // `score SAVINGS DISRUPTION of COST DISRUPTION is SCORE yes`
            "score" => {
                let value = |index: usize| line[index].parse::<f64>().expect("a number");
                let totals = Totals {
                    cost: value(4),
                    disruption: value(5),
                };
                let (actual, expected) = (score(value(1), value(2), totals), value(7));
                assert!(
                    (actual - expected).abs() < 1e-5 || (actual.is_infinite() && expected.is_infinite()),
                    "{actual}"
                );
                assert_eq!(is_worth_it(value(1), value(2), totals), line[8] == "yes");
            }
            "goes-first" => assert_eq!(self.command().nodes[0], line[1]),
            "saves" => {
                let bound = |index: usize| line[index].parse::<f64>().expect("an amount");
                let savings = self.command().savings;
                assert!(savings > bound(1) && savings < bound(2), "{savings}");
            }
            "gone" => number(self.gone, line[1], "nodes went"),
            "into-has" | "into-first" => {
                let types = &self.command().replacements[0].instance_types;
                let has = if line[0] == "into-has" {
                    types.iter().any(|own| own == line[1])
                } else {
                    types[0] == line[1]
                };
                assert!(has, "{types:?}");
            }
            "stays" => {
                let command = &self.answer().command;
                assert!(command.is_none(), "{command:?}");
            }
            // Nodes by name, or how many
            "goes" => {
                let mut nodes = self.command().nodes.clone();
                nodes.sort();
                if line[1].starts_with(|first: char| first.is_ascii_digit() || first == '<' || first == '>') {
                    number(nodes.len(), line[1], "nodes go");
                } else {
                    let mut expected: Vec<&str> = line[1..].to_vec();
                    expected.sort_unstable();
                    assert_eq!(nodes, expected);
                }
            }
            "keeps" => {
                let command = self.answer().command.as_ref();
                for name in &line[1..] {
                    assert!(
                        !command.is_some_and(|command| command.nodes.iter().any(|node| node == name)),
                        "{name} goes"
                    );
                }
            }
            // How many commands may run side by side
            "commands" => number(self.answer().commands().count(), line[1], "commands"),
            "decides" => assert_eq!(format!("{:?}", self.command().decision), line[1]),
            // Seconds, or `none`
            "grace" => {
                let seconds = self.command().termination_grace_seconds;
                let expected = (line[1] != "none").then(|| line[1].parse::<f64>().expect("seconds"));
                assert_eq!(seconds, expected);
            }
            // The condition that decided
            "because" => {
                let unhealthy = self.command().unhealthy.as_ref().expect("an unhealthy node");
                assert_eq!(unhealthy.condition, line[1]);
                assert_eq!(unhealthy.escalated, line.get(2) == Some(&"escalated"));
            }
            "first-because" => {
                let reason = self.command().terminate_first.expect("a node that goes first");
                assert_eq!(format!("{reason:?}"), line[1]);
            }
            // Of all commands, how many are for nodes whose name begins so
            "goes-of" => {
                let prefix = format!("{}-", line[1]);
                let nodes = self.answer().commands().flat_map(|command| &command.nodes);
                let own = nodes.filter(|node| node.starts_with(&prefix)).count();
                number(own, line[2], "nodes go");
            }
            "not-blocked" => {
                let blocked = &self.answer().blocked;
                assert!(!blocked.contains_key(line[1]), "{blocked:?}");
            }
            "comes" => number(self.command().replacements.len(), line[1], "replacements"),
            // The types of the one replacement
            "into" => {
                let mut types = self.command().replacements[0].instance_types.to_vec();
                types.sort();
                let mut expected: Vec<&str> = line[1..].to_vec();
                expected.sort_unstable();
                assert_eq!(types, expected);
            }
            "into-types" => number(
                self.command().replacements[0].instance_types.len(),
                line[1],
                "types",
            ),
            "not-into" => {
                for name in &line[1..] {
                    let types = &self.command().replacements[0].instance_types;
                    assert!(!types.iter().any(|own| own == name), "{types:?}");
                }
            }
            "into-req" => {
                let required = words::requirement(line[1]);
                let claim = &self.command().replacements[0];
                let own = claim.requirements.iter().find(|own| own.key == required.key);
                assert_eq!(
                    own.map(|own| &own.values),
                    Some(&required.values),
                    "{:?}",
                    claim.requirements
                );
            }
            "method" => assert_eq!(format!("{:?}", self.command().method), line[1]),
            "savings" => {
                let expected: f64 = line[1].parse().expect("an amount");
                let savings = self.command().savings;
                assert!((savings - expected).abs() < 1e-6, "{savings}");
            }
            "allowed" => {
                let own = self.answer().allowed[line[1]];
                number(own, line[2], "may go");
            }
            "blocked" => {
                let text = line[2..].join(" ");
                let why = self.answer().blocked.get(line[1]).cloned().unwrap_or_default();
                assert!(why.contains(&text), "{why:?} of {:?}", self.answer().blocked);
            }
            "constrained" => assert_eq!(self.answer().constrained_by_budgets.to_string(), line[1]),
            // A pod that waits, told so by the kube-scheduler.
            "pending" => {
                let place = self.waiting.len();
                let mut words = vec!["pod"];
                words.extend(&line[1..]);
                self.set_up(&words);
                for pod in &mut self.waiting[place..] {
                    let mut waits = condition("PodScheduled", "False");
                    waits.reason = "Unschedulable".to_owned();
                    pod.status.conditions.push(waits);
                }
            }
            _ => return false,
        }
        if !["disrupt", "rounds", "pending"].contains(&line[0]) {
            self.asked += 1;
        }
        true
    }

    fn ask(&mut self, method: Option<&str>) {
        self.place_types();
        let pending = &self.waiting;
        self.outcome = Some(match method {
            None => next_command(&self.snapshot, pending),
            Some(name) => {
                let method = Method::ALL
                    .into_iter()
                    .find(|method| format!("{method:?}").starts_with(name));
                disrupt(
                    &self.snapshot,
                    pending,
                    method.unwrap_or_else(|| panic!("unknown method {name}")),
                )
            }
        });
    }

    fn answer(&self) -> &Outcome {
        self.outcome.as_ref().expect("`disrupt` comes first")
    }

    fn command(&self) -> &slipway_packing::disrupt::Command {
        let outcome = self.answer();
        outcome
            .command
            .as_ref()
            .unwrap_or_else(|| panic!("nothing goes: {:?}", outcome.blocked))
    }
}
