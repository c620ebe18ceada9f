//! Scenarios in `testdata`: a command, then everything that follows from it and the host's full state. They read as
//! documentation. `SLIPWAY_REWRITE=1 cargo test -p slipway-slots scenarios` writes the outputs again.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use slipway_slots::Slot;
use slipway_slots::machine::{
    Action, Entry, Health, Ledger, Outcome, Progress, Volatile, accept, activate, cancel, confirm, roll_back,
};

use super::world::{Content, World, digest, epoch};

struct Scenario {
    world: World,
    health: Health,
    hangs: bool,
}

impl Scenario {
    /// The lines that follow from one command.
    fn command(&mut self, line: &str) -> String {
        let mut out = String::new();
        let words: Vec<_> = line.split_whitespace().collect();
        let rest = words[1..].join(" ");
        match words[0] {
            "install" => self.world = World::installed(words[1]),
            "prepare" => {
                let version = words[2];
                let asked = accept(
                    &self.world.facts(),
                    words[1],
                    digest(version),
                    version,
                    epoch(version),
                );
                if self.record(asked.map_err(|refused| refused.to_string()), &mut out) {
                    self.world.volatile = Volatile::default();
                }
                self.run(&mut out);
            }
            "activate" => {
                let tries = words[2].parse().expect("a number of tries");
                let asked = activate(&self.world.facts(), words[1], tries);
                self.record(asked.map_err(|refused| refused.to_string()), &mut out);
                self.run(&mut out);
            }
            "confirm" => match confirm(&self.world.facts(), words[1]) {
                Ok(true) => {
                    self.world.volatile.health = Health::Passed;
                    self.run(&mut out);
                }
                Ok(false) => out.push_str("it was confirmed before\n"),
                Err(refused) => writeln!(out, "refused: {refused}").expect("a string takes all"),
            },
            "cancel" => {
                let asked = cancel(&self.world.facts(), words[1]);
                self.record(asked.map_err(|refused| refused.to_string()), &mut out);
                self.run(&mut out);
            }
            "rollback" => {
                let asked = roll_back(&self.world.facts(), &rest);
                self.record(asked.map_err(|refused| refused.to_string()), &mut out);
                self.run(&mut out);
            }
            "run" => self.run(&mut out),
            // Prepares, but the agent is killed when half of the slot is written.
            "prepare-killed-half-way" => {
                let version = words[2];
                let asked = accept(
                    &self.world.facts(),
                    words[1],
                    digest(version),
                    version,
                    epoch(version),
                );
                self.record(asked.map_err(|refused| refused.to_string()), &mut out);
                loop {
                    let decision = self.world.decide();
                    if decision.action == Action::Write {
                        break;
                    }
                    show(&decision.action, &decision.reason, &mut out);
                    self.world.perform(&decision.action, &self.health);
                }
                out.push_str("half of the slot is written when the agent is killed\n");
                let target = self.world.booted.map_or(Slot::B, Slot::other);
                self.world.contents[target] = Content::Garbage;
                self.world.agent_restart();
            }
            "boot" => {
                self.world.power_cycle(self.hangs);
                match self.world.booted {
                    Some(slot) => writeln!(out, "slot {slot} comes up"),
                    None => writeln!(out, "no slot comes up"),
                }
                .expect("a string takes all");
                self.run(&mut out);
            }
            "agent-restart" => {
                self.world.agent_restart();
                self.run(&mut out);
            }
            "wipe-journal" => self.world.ledger = Ledger::default(),
            "recovery-system" => {
                self.world.volatile = Volatile::default();
                self.world.booted = None;
                self.run(&mut out);
            }
            "health" => {
                self.health = match words[1] {
                    "passes" => Health::Passed,
                    "unknown" => Health::Unknown,
                    _ => Health::Failed(rest.trim_start_matches("fails").trim().to_owned()),
                };
            }
            "new-slot-hangs" => self.hangs = words[1] == "yes",
            "damage" => {
                let slot: Slot = words[1].parse().expect("a slot");
                self.world.contents[slot] = Content::Garbage;
            }
            other => panic!("{other} is no command"),
        }
        self.world.check();
        self.state(&mut out);
        out
    }

    fn record(&mut self, asked: Result<Option<Entry>, String>, out: &mut String) -> bool {
        match asked {
            Ok(Some(entry)) => {
                show(&Action::Record(entry.clone()), "asked for", out);
                self.world.ledger.apply(&entry);
                true
            }
            Ok(None) => {
                out.push_str("it is under way or done already\n");
                false
            }
            Err(refused) => {
                writeln!(out, "refused: {refused}").expect("a string takes all");
                false
            }
        }
    }

    fn run(&mut self, out: &mut String) {
        for _ in 0..50 {
            let decision = self.world.decide();
            show(&decision.action, &decision.reason, out);
            let unknown = decision.action == Action::CheckHealth && self.health == Health::Unknown;
            if matches!(decision.action, Action::Wait | Action::Recover) || unknown {
                return;
            }
            self.world.perform(&decision.action, &self.health);
        }
        panic!("it does not come to rest");
    }

    fn state(&self, out: &mut String) {
        let content = |slot: Slot| match &self.world.contents[slot] {
            Content::Empty => "empty".to_owned(),
            Content::Garbage => "garbage".to_owned(),
            Content::Image(version) => version.clone(),
        };
        let runs = self
            .world
            .booted
            .map_or_else(|| "the recovery system".to_owned(), |slot| format!("slot {slot}"));
        let under_way = match &self.world.ledger.current {
            None => "nothing".to_owned(),
            Some(current) => {
                let progress = match &current.progress {
                    Progress::Accepted => "accepted".to_owned(),
                    Progress::Verified => "verified".to_owned(),
                    Progress::Activated { tries } => format!("activated with {tries} tries"),
                    Progress::RollingBack { reason, .. } => format!("rolling back: {reason}"),
                };
                format!(
                    "{} ({} to slot {}), {progress}",
                    current.operation.id, current.operation.version, current.operation.target
                )
            }
        };
        writeln!(out, "  runs:      {runs}").expect("a string takes all");
        writeln!(out, "  slots:     A {}, B {}", content(Slot::A), content(Slot::B))
            .expect("a string takes all");
        writeln!(out, "  store:     {}", self.world.boot).expect("a string takes all");
        writeln!(out, "  under way: {under_way}").expect("a string takes all");
        for ended in &self.world.ledger.history {
            writeln!(
                out,
                "  ended:     {} {}",
                ended.operation.id,
                outcome(&ended.outcome)
            )
            .expect("a string takes all");
        }
    }
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Confirmed => "confirmed".to_owned(),
        Outcome::RolledBack { reason, quarantine } => format!(
            "rolled back{}: {reason}",
            if *quarantine { ", image quarantined" } else { "" }
        ),
        Outcome::Failed { reason } => format!("failed: {reason}"),
        Outcome::Cancelled => "cancelled".to_owned(),
    }
}

fn show(action: &Action, reason: &str, out: &mut String) {
    let text = match action {
        Action::Record(Entry::Accepted(operation)) => format!("record that {} is accepted", operation.id),
        Action::Record(Entry::Progressed { progress, .. }) => match progress {
            Progress::Accepted => "record that it is accepted".to_owned(),
            Progress::Verified => "record that it is verified".to_owned(),
            Progress::Activated { .. } => "record that it is activated".to_owned(),
            Progress::RollingBack { reason, .. } => format!("record that it is rolled back: {reason}"),
        },
        Action::Record(Entry::Returning { reason, .. }) => format!("record a rollback: {reason}"),
        Action::Record(Entry::Ended { outcome: how, .. }) => format!("record the end: {}", outcome(how)),
        Action::Record(other) => format!("record {other:?}"),
        Action::Boot(change) => change.to_string(),
        Action::Write => "write".to_owned(),
        Action::Verify => "read back".to_owned(),
        Action::CheckHealth => "check health".to_owned(),
        Action::Reboot => "reboot".to_owned(),
        Action::Wait => "wait".to_owned(),
        Action::Recover => "recovery".to_owned(),
    };
    writeln!(out, "{text} ({reason})").expect("a string takes all");
}

#[test]
fn scenarios_end_as_they_are_written_down() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let rewrite = std::env::var_os("SLIPWAY_REWRITE").is_some();
    let mut count = 0;
    let mut files: Vec<_> = fs::read_dir(&directory)
        .expect("there are scenarios")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    for path in files {
        let text = fs::read_to_string(&path).expect("a scenario is text");
        let mut scenario = Scenario {
            world: World::installed("1.0"),
            health: Health::Passed,
            hangs: false,
        };
        let mut expected = String::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            writeln!(expected, "{line}").expect("a string takes all");
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let output = scenario.command(line);
            writeln!(expected, "----\n{output}").expect("a string takes all");
            // The old output, or the empty line where there is none yet.
            while lines.next().is_some_and(|line| !line.is_empty()) {}
        }
        let expected = format!("{}\n", expected.trim_end());
        if rewrite {
            fs::write(&path, &expected).expect("a scenario can be written");
        } else {
            assert_eq!(text, expected, "{}", path.display());
        }
        count += 1;
    }
    assert!(count >= 8, "scenarios are missing");
}
