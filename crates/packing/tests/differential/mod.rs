//! The same random clusters into this crate and into Karpenter's scheduler: both must come to the same outcome. Recorded
//! outcomes stand in for Karpenter where there is no Go; `SLIPWAY_TEST_FULL=1` asks it live, with fresh seeds.

mod absence;
pub mod generator;
mod intolerant;
mod karpenter;
mod launchable;
mod node_labels;
mod outcome;
mod pods;
pub mod random;
mod recount;
mod soft_taints;
mod together;
mod unoffered;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use slipway_packing::model::{Plan, Workload};

use crate::judge;
use crate::judged::schedule;
use generator::generate;
use karpenter::Karpenter;

/// Karpenter breaks ties by the order of a hash map: one run shows one of its outcomes.
const RUNS: usize = 6;
const MORE_RUNS: usize = 60;

/// `SLIPWAY_DIFFERENTIAL_FIRST=1 SLIPWAY_DIFFERENTIAL_SEEDS=300 SLIPWAY_DIFFERENTIAL_RECORD=$PWD/tests/data/differential.tsv
/// cargo test -p slipway-packing --test packing differential::live` in the crate adds to it; once more with 1000000 and 200
/// for what later seeds exercise besides.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/differential.tsv");

fn plan(workload: &Value) -> Plan {
    let workload: Workload = serde_json::from_value(workload.clone()).expect("a workload");
    schedule(&workload.snapshot, &workload.pods)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What stands for an outcome where Karpenter breaks off.
const BROKE_OFF: &str = "broke off";

/// What is to be said about an outcome of ours that is not among Karpenter's.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    /// Karpenter's own runs differ from one another, and ours is no worse than they are.
    Ties,
    /// Karpenter sorts too many claims to keep the order of equal ones; ours is no worse than what it comes to.
    Order,
    /// Both agree as soon as some things are taken from the workload; the things are named.
    Without(String),
    /// Both agree but for types Karpenter lists that its claims' own reservations do not hold.
    FewerTypes,
    /// Karpenter's process does not survive the workload.
    BrokeOff,
    Open,
}

impl Verdict {
    fn name(&self) -> String {
        match self {
            Verdict::Same => "same".to_owned(),
            Verdict::Ties => "ties".to_owned(),
            Verdict::Order => "order".to_owned(),
            Verdict::Without(what) => format!("without-{what}"),
            Verdict::FewerTypes => "fewer-types".to_owned(),
            Verdict::BrokeOff => "broke-off".to_owned(),
            Verdict::Open => "open".to_owned(),
        }
    }
}

/// Go sorts up to this many elements without changing the order of equal ones.
const STABLE: usize = 12;

/// What Karpenter came to in several runs of a workload.
#[derive(Default)]
struct Asked {
    /// Each outcome, and how many runs came to it.
    outcomes: BTreeMap<String, usize>,
    /// The same without types that could not be launched.
    launchable: BTreeSet<String>,
    /// Every answer, with its outcome.
    answers: Vec<(String, Value)>,
}

/// Whether the independent checker refuses a plan of Karpenter's.
fn refused(workload: &Workload, answer: &Value) -> bool {
    let plan: Plan = serde_json::from_value(answer.clone()).expect("a plan");
    !judge::problems(&workload.snapshot, &workload.pods, &plan).is_empty()
}

impl Asked {
    fn agrees_with(&self, ours: &str) -> bool {
        self.outcomes.contains_key(ours) || self.launchable.contains(ours)
    }

    /// How many runs came to a plan that the checker refuses.
    fn refused(&self, workload: &Workload) -> usize {
        let answers = self.answers.iter();
        answers.filter(|(_, answer)| refused(workload, answer)).count()
    }

    /// Whether everything that is better than ours breaks Kubernetes' rules.
    fn only_better_by_breaking_rules(&self, workload: &Workload, ours: &str) -> bool {
        let figures = outcome::Figures::of(ours);
        let mut better = self
            .answers
            .iter()
            .filter(|(own, _)| !figures.are_no_worse_than(&outcome::Figures::of(own)))
            .peekable();
        better.peek().is_some() && better.all(|(_, answer)| refused(workload, answer))
    }

    /// What can be told from the outcomes alone.
    fn compare(&self, ours: &str) -> Verdict {
        let figures = outcome::Figures::of(ours);
        let finished = self.outcomes.iter().filter(|(own, _)| *own != BROKE_OFF);
        let all: Vec<(outcome::Figures, usize)> = finished
            .map(|(own, runs)| (outcome::Figures::of(own), *runs))
            .collect();
        let claims = all.iter().map(|(own, _)| own.claims).max().unwrap_or(0);
        // Chance has to make a difference to Karpenter, and ours must be no worse than a fair part of its runs.
        let by_chance = self.outcomes.len() > 1 || claims.max(figures.claims) > STABLE;
        let runs: usize = all.iter().map(|(_, runs)| runs).sum();
        let no_better: usize = all
            .iter()
            .filter(|(own, _)| figures.are_no_worse_than(own))
            .map(|(_, runs)| runs)
            .sum();
        if self.outcomes.contains_key(ours) {
            Verdict::Same
        } else if self.launchable.contains(ours) {
            Verdict::FewerTypes
        } else if all.is_empty() {
            Verdict::BrokeOff
        } else if by_chance && no_better * FAIR_PART >= runs {
            if self.outcomes.len() > 1 {
                Verdict::Ties
            } else {
                Verdict::Order
            }
        } else {
            Verdict::Open
        }
    }
}

/// One in so many of Karpenter's runs.
const FAIR_PART: usize = 10;

/// Karpenter's outcomes: a few, and more of them as long as they differ and ours is not among them.
fn ask(karpenter: &mut Karpenter, workload: &Value, ours: &str) -> Asked {
    let mut asked = Asked::default();
    ask_on(karpenter, workload, ours, &mut asked, RUNS);
    asked
}

/// Asks until there are as many runs as are worth it: no more than `alike` if all of them come to the same.
fn ask_on(karpenter: &mut Karpenter, workload: &Value, ours: &str, asked: &mut Asked, alike: usize) {
    let done: usize = asked.outcomes.values().sum();
    for run in done..MORE_RUNS {
        if asked.agrees_with(ours) || (run >= alike && asked.outcomes.len() == 1) {
            break;
        }
        let Some(answer) = karpenter.solve(workload) else {
            *asked.outcomes.entry(BROKE_OFF.to_owned()).or_default() += 1;
            continue;
        };
        let own = outcome::of_json(&answer);
        *asked.outcomes.entry(own.clone()).or_default() += 1;
        let launchable = launchable::only_launchable(workload, &answer);
        asked.launchable.insert(outcome::of_json(&launchable));
        asked.answers.push((own, answer));
    }
}

type Removal = fn(&Value) -> Option<Value>;

/// What Karpenter is known to get wrong, and how to take the occasion from a workload.
const KNOWN: [(&str, Removal); 8] = [
    ("label-statements", absence::without_label),
    (
        "missing-node-labels",
        node_labels::no_exclusions_of_missing_labels,
    ),
    ("soft-taints", soft_taints::tolerated_from_the_start),
    ("alternatives", recount::last_alternative_only),
    ("different-min-domains", recount::same_min_domains),
    ("unoffered-domains", unoffered::only_offered_domains),
    ("intolerant-terms", intolerant::tolerant_terms_only),
    ("several-on-a-key", together::one_constraint_for_a_key),
];

/// How affinity terms are kept.
const KINDS: [&str; 2] = [
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
];

/// Takes expressions from a pod's node affinity, required and preferred. A term without any would select no node, so that one
/// stays which every node meets.
fn retain_expressions(pod: &mut Value, keep: impl Fn(&Value) -> bool) {
    let affinity = pod.pointer_mut("/spec/affinity/nodeAffinity");
    for (kind, value) in affinity.and_then(Value::as_object_mut).into_iter().flatten() {
        let terms = if kind.starts_with("required") {
            value.get_mut("nodeSelectorTerms")
        } else {
            Some(value)
        };
        for term in terms.and_then(Value::as_array_mut).into_iter().flatten() {
            let term = if term.get("preference").is_some() {
                &mut term["preference"]
            } else {
                term
            };
            let Some(expressions) = term.get_mut("matchExpressions").and_then(Value::as_array_mut) else {
                continue;
            };
            let before = expressions.len();
            expressions.retain(&keep);
            if expressions.is_empty() && before > 0 {
                expressions.push(json!({"key": "kubernetes.io/os", "operator": "Exists"}));
            }
        }
    }
}

/// What has to be taken from the workload for both to agree on it: as few things as possible, of those that Karpenter is
/// known to get wrong. With `or_chance` one thing will do that leaves nothing but chance: what Karpenter does without it
/// differs from ours only as its own runs may, and ours is no worse.
fn explain(karpenter: &mut Karpenter, workload: &Value, or_chance: bool) -> Option<String> {
    let mut sets: Vec<u32> = (1..1 << KNOWN.len()).collect();
    sets.sort_by_key(|set| set.count_ones());
    let mut by_chance = None;
    let agreed = sets.into_iter().find_map(|set| {
        let mut changed = workload.clone();
        let mut names = Vec::new();
        for (index, (name, change)) in KNOWN.iter().enumerate() {
            if set & (1 << index) != 0 {
                changed = change(&changed)?;
                names.push(*name);
            }
        }
        let plan = std::panic::catch_unwind(|| plan(&changed)).ok()?;
        let ours = outcome::of_plan(&plan);
        let asked = ask(karpenter, &changed, &ours);
        if asked.agrees_with(&ours) {
            return Some(names.join("+"));
        }
        if or_chance && by_chance.is_none() && names.len() == 1 {
            let verdict = asked.compare(&ours);
            by_chance = matches!(verdict, Verdict::Ties | Verdict::Order)
                .then(|| format!("{}+{}", names.join("+"), verdict.name()));
        }
        None
    });
    agreed.or(by_chance)
}

#[derive(Default)]
struct Tally(BTreeMap<String, usize>);

impl Tally {
    fn count(&mut self, verdict: &str) {
        *self.0.entry(verdict.to_owned()).or_default() += 1;
    }

    fn same(&self) -> usize {
        self.0.get("same").copied().unwrap_or(0)
    }

    fn report(&self, which: &str) {
        let total: usize = self.0.values().sum();
        let counts: Vec<String> = self
            .0
            .iter()
            .map(|(name, count)| format!("{count} {name}"))
            .collect();
        println!(
            "report: packing differential ({which}): {total} workloads: {}",
            counts.join(", ")
        );
    }
}

/// What Karpenter came to when it was last asked, and what was said about it. Where both agreed they must go on to agree;
/// where not, ours must stay as it was judged, or come to agree.
#[test]
fn recorded() {
    let mut tally = Tally::default();
    let mut changed = Vec::new();
    let recorded = std::env::var_os("SLIPWAY_DIFFERENTIAL_RECORDED").unwrap_or_else(|| RECORDED.into());
    let recorded = std::fs::read_to_string(recorded).expect("outcomes were recorded");
    for line in recorded.lines() {
        let mut fields = line.split('\t');
        let seed: u64 = fields.next().and_then(|seed| seed.parse().ok()).expect("a seed");
        let was = fields.next().expect("a verdict");
        let judged = fields.next().expect("our outcome when it was judged");
        let theirs: BTreeSet<String> = fields.map(str::to_owned).collect();
        let ours = outcome::of_plan(&plan(&generate(seed).workload));
        if ours == judged || theirs.contains(&ours) {
            let agrees = was == "same" || theirs.contains(&ours);
            tally.count(if agrees { "same" } else { was });
        } else {
            changed.push(format!("seed {seed} ({was})\n  was    {judged}\n  is now {ours}"));
        }
    }
    assert!(tally.same() > 0, "nothing was recorded");
    assert!(
        changed.is_empty(),
        "other outcomes than were judged; compare live and record again:\n{}",
        changed.join("\n")
    );
    tally.report("recorded");
}

/// Workloads that differ are written where `SLIPWAY_DIFFERENTIAL_KEEP` says.
fn keep(seed: u64, workload: &Value) {
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
    let Some(mut karpenter) = Karpenter::start() else {
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
    let mut refused_of_the_peer = Vec::new();
    for seed in first..first + count {
        let generated = generate(seed);
        // The whole run is required even if one plan is not valid.
        let Ok(plan) = std::panic::catch_unwind(|| plan(&generated.workload)) else {
            println!("seed {seed} invalid {:?}", generated.features);
            keep(seed, &generated.workload);
            invalid.push(seed);
            continue;
        };
        let ours = outcome::of_plan(&plan);
        let mut asked = ask(&mut karpenter, &generated.workload, &ours);
        if asked.compare(&ours) == Verdict::Open {
            // A few runs may be alike by chance.
            ask_on(&mut karpenter, &generated.workload, &ours, &mut asked, MORE_RUNS);
        }
        let workload: Workload = serde_json::from_value(generated.workload.clone()).expect("a workload");
        if asked.refused(&workload) > 0 {
            refused_of_the_peer.push(seed);
        }
        let mut verdict = asked.compare(&ours);
        // What can be shown counts for more than what may be chance.
        let or_chance = verdict == Verdict::Open && asked.only_better_by_breaking_rules(&workload, &ours);
        if !matches!(verdict, Verdict::Same | Verdict::FewerTypes)
            && let Some(what) = explain(&mut karpenter, &generated.workload, or_chance)
        {
            verdict = Verdict::Without(what);
        }
        let name = verdict.name();
        tally.count(&name);
        let listed: Vec<&str> = asked.outcomes.keys().map(String::as_str).take(4).collect();
        if verdict == Verdict::Same {
            writeln!(record, "{seed}\tsame\t{ours}").expect("a string grows");
            continue;
        }
        writeln!(record, "{seed}\t{name}\t{ours}\t{}", listed.join("\t")).expect("a string grows");
        println!(
            "seed {seed} {name} {:?}\n  ours   {ours}\n  Karpenter's {listed:#?}",
            generated.features
        );
        keep(seed, &generated.workload);
    }
    if let Some(file) = std::env::var_os("SLIPWAY_DIFFERENTIAL_RECORD") {
        let file = std::fs::File::options().create(true).append(true).open(file);
        file.and_then(|mut file| std::io::Write::write_all(&mut file, record.as_bytes()))
            .expect("the record is written");
    }
    tally.report("live");
    println!(
        "report: packing differential (live): the checker refuses plans of Karpenter's for {} workloads: {refused_of_the_peer:?}",
        refused_of_the_peer.len()
    );
    assert!(
        invalid.is_empty(),
        "the checker refuses the plans of seeds {invalid:?}"
    );
    // What is open today is rare; a fault in a whole feature would not be.
    assert!(
        tally.same() * 10 >= count as usize * 7,
        "fewer than seven of ten agree"
    );
}
