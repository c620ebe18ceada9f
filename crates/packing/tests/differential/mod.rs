//! The same random clusters into this crate and into Karpenter's scheduler: both must come to the same outcome. Recorded
//! outcomes stand in for the peer where there is no Go; `SLIPWAY_TEST_FULL=1` asks it live, with fresh seeds.

mod absence;
mod generator;
mod karpenter;
mod outcome;
mod pods;
pub mod random;
mod soft_taints;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use slipway_packing::model::{Plan, Workload};
use slipway_packing::schedule;

use crate::checker;
use generator::generate;
use karpenter::Karpenter;

/// The peer breaks ties by the order of a hash map: one run shows one of its outcomes.
const RUNS: usize = 6;
const MORE_RUNS: usize = 60;

/// `SLIPWAY_DIFFERENTIAL_FIRST=1 SLIPWAY_DIFFERENTIAL_SEEDS=300 SLIPWAY_DIFFERENTIAL_RECORD=$PWD/tests/data/differential.tsv
/// cargo test -p slipway-packing --test packing differential::live` in the crate makes it anew.
const RECORDED: &str = include_str!("../data/differential.tsv");

fn plan(workload: &serde_json::Value) -> Plan {
    let workload: Workload = serde_json::from_value(workload.clone()).expect("a workload");
    let plan = schedule(&workload.snapshot, &workload.pods);
    checker::check(&workload.snapshot, &workload.pods, &plan);
    plan
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Both agree; or the peer's own runs do not agree with each other, or it sorts too many claims to keep the order of
/// equal ones, or it takes a label for absent that has to be there, or it counts anew after giving up on avoiding taints;
/// or nothing explains it yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Same,
    Explained,
    Open,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Same => "same",
            Verdict::Explained => "explained",
            Verdict::Open => "open",
        }
    }
}

/// Go sorts up to this many elements without changing the order of equal ones.
const STABLE: usize = 12;

fn judge(ours: &str, claims: usize, theirs: &BTreeSet<String>, workload: &serde_json::Value) -> Verdict {
    if theirs.contains(ours) {
        Verdict::Same
    } else if theirs.len() > 1 || claims > STABLE || absence::confuses_peer(workload) {
        Verdict::Explained
    } else {
        Verdict::Open
    }
}

/// The peer's outcomes: a few, and more of them as long as they differ and ours is not among them.
fn ask(peer: &mut Karpenter, workload: &serde_json::Value, ours: &str) -> BTreeSet<String> {
    let mut theirs = BTreeSet::new();
    for run in 0..MORE_RUNS {
        if theirs.contains(ours) || (run >= RUNS && theirs.len() == 1) {
            break;
        }
        theirs.insert(outcome::of_json(&peer.solve(workload)));
    }
    theirs
}

/// Whether both agree once no pod has to give up on avoiding taints.
fn soft_taints_explain(peer: &mut Karpenter, workload: &serde_json::Value) -> bool {
    let Some(tolerant) = soft_taints::tolerated_from_the_start(workload) else {
        return false;
    };
    let Ok(plan) = std::panic::catch_unwind(|| plan(&tolerant)) else {
        return false;
    };
    let ours = outcome::of_plan(&plan);
    ask(peer, &tolerant, &ours).contains(&ours)
}

#[derive(Default)]
struct Tally {
    same: usize,
    explained: usize,
    open: usize,
}

impl Tally {
    fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Same => self.same += 1,
            Verdict::Explained => self.explained += 1,
            Verdict::Open => self.open += 1,
        }
    }

    fn report(&self, which: &str) {
        println!(
            "report: packing differential ({which}): {} workloads, {} same outcome, {} explained, {} open",
            self.same + self.explained + self.open,
            self.same,
            self.explained,
            self.open
        );
    }
}

/// What the peer came to when it was last asked. A workload on which both agreed must stay so.
#[test]
fn recorded() {
    let mut tally = Tally::default();
    for line in RECORDED.lines() {
        let mut fields = line.split('\t');
        let seed: u64 = fields.next().and_then(|seed| seed.parse().ok()).expect("a seed");
        let was = fields.next().expect("a verdict");
        let theirs: BTreeSet<String> = fields.map(str::to_owned).collect();
        let workload = generate(seed).workload;
        let plan = plan(&workload);
        let ours = outcome::of_plan(&plan);
        let mut verdict = judge(&ours, plan.new_claims.len(), &theirs, &workload);
        // Some explanations took more questions to the peer.
        if verdict == Verdict::Open && was == Verdict::Explained.name() {
            verdict = Verdict::Explained;
        }
        tally.count(verdict);
        assert!(
            verdict == Verdict::Same || was != Verdict::Same.name(),
            "seed {seed} came to another outcome\n  ours   {ours}\n  peer's {theirs:#?}"
        );
    }
    assert!(tally.same > 0, "nothing was recorded");
    tally.report("recorded");
}

/// Workloads that differ are written where `SLIPWAY_DIFFERENTIAL_KEEP` says.
fn keep(seed: u64, workload: &serde_json::Value) {
    if let Some(directory) = std::env::var_os("SLIPWAY_DIFFERENTIAL_KEEP") {
        let file = std::path::Path::new(&directory).join(format!("{seed}.json"));
        std::fs::write(file, workload.to_string()).expect("the directory is there");
    }
}

#[test]
fn live() {
    let asked = number("SLIPWAY_DIFFERENTIAL_SEEDS");
    if std::env::var_os("SLIPWAY_TEST_FULL").is_none() && asked.is_none() {
        return;
    }
    let Some(mut peer) = Karpenter::start() else {
        println!("report: packing differential: not live, there is no Go");
        return;
    };
    let fresh = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_secs());
    let first = number("SLIPWAY_DIFFERENTIAL_FIRST").unwrap_or(fresh);
    let count = asked.unwrap_or(500);
    println!(
        "report: packing differential: SLIPWAY_DIFFERENTIAL_FIRST={first} SLIPWAY_DIFFERENTIAL_SEEDS={count}"
    );
    let mut tally = Tally::default();
    let mut record = String::new();
    let mut invalid = Vec::new();
    for seed in first..first + count {
        let generated = generate(seed);
        // The whole run is wanted even if one plan is not valid.
        let Ok(plan) = std::panic::catch_unwind(|| plan(&generated.workload)) else {
            println!("seed {seed} invalid {:?}", generated.features);
            keep(seed, &generated.workload);
            invalid.push(seed);
            continue;
        };
        let ours = outcome::of_plan(&plan);
        let theirs = ask(&mut peer, &generated.workload, &ours);
        let mut verdict = judge(&ours, plan.new_claims.len(), &theirs, &generated.workload);
        if verdict == Verdict::Open && soft_taints_explain(&mut peer, &generated.workload) {
            verdict = Verdict::Explained;
        }
        tally.count(verdict);
        let listed: Vec<&str> = theirs.iter().map(String::as_str).take(4).collect();
        if verdict == Verdict::Same {
            writeln!(record, "{seed}\tsame\t{ours}").expect("a string grows");
            continue;
        }
        writeln!(record, "{seed}\t{}\t{}", verdict.name(), listed.join("\t")).expect("a string grows");
        println!(
            "seed {seed} {} {:?}\n  ours   {ours}\n  peer's {listed:#?}",
            verdict.name(),
            generated.features
        );
        keep(seed, &generated.workload);
    }
    if let Some(file) = std::env::var_os("SLIPWAY_DIFFERENTIAL_RECORD") {
        std::fs::write(file, record).expect("the record is written");
    }
    tally.report("live");
    assert!(
        invalid.is_empty(),
        "the checker refuses the plans of seeds {invalid:?}"
    );
    // What is open today is rare; a fault in a whole feature would not be.
    assert!(
        tally.same * 10 >= count as usize * 7,
        "fewer than seven of ten agree"
    );
}
