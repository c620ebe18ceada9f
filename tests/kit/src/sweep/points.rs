//! Which calls meet which faults: every pair, or a sample that has every fault in it.

use std::{collections::HashSet, time::Duration};

use slipway_apiserver_sim::faults::{Called, Fault};

/// How much of a sweep is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Only the run without faults.
    Baseline,
    /// So many runs, and never fewer than there are faults.
    Runs(usize),
    /// Every n-th pair, beginning with the k-th: `Share(k, n)`.
    Share(usize, usize),
    /// Every call with every fault.
    All,
    /// Every fault at the calls that begin so: what a defect was once found at.
    At(&'static str),
}

/// Rest begins this long after the last write, the last change of the apiserver and the start.
const CALM: Duration = Duration::from_mins(2);

/// The calls that meet faults.
///
/// At rest nothing moves any more: what is called are watches that are opened again and looks that find all as it should
/// be. Of those only the first of each kind counts: the world is the same at every later one, so the fault would be too.
pub fn calls_to_fault(calls: &[Called], first: usize) -> Vec<usize> {
    let end = calls.last().map_or(0, |call| call.version);
    let moved = calls
        .iter()
        .rev()
        .find(|call| call.writes || call.version != end)
        .map_or(Duration::ZERO, |call| call.after);
    let mut seen = HashSet::new();
    (first..calls.len())
        .filter(|index| calls[*index].after <= moved + CALM || seen.insert(&calls[*index].line))
        .collect()
}

/// The runs of a sweep, in order.
pub fn points(calls: &[usize], extent: Extent, seed: u64) -> Vec<(usize, Fault)> {
    if calls.is_empty() {
        return Vec::new();
    }
    match extent {
        Extent::Baseline => Vec::new(),
        Extent::All | Extent::At(_) => every(calls).collect(),
        Extent::Share(from, step) => every(calls).skip(from).step_by(step.max(1)).collect(),
        Extent::Runs(runs) => sample(calls, runs.max(Fault::ALL.len()), seed),
    }
}

fn every(calls: &[usize]) -> impl Iterator<Item = (usize, Fault)> {
    calls
        .iter()
        .flat_map(|call| Fault::ALL.into_iter().map(move |fault| (*call, fault)))
}

/// Faults in turn, beginning where the seed says; calls one from each of as many equal stretches.
fn sample(calls: &[usize], runs: usize, seed: u64) -> Vec<(usize, Fault)> {
    let faults = Fault::ALL.len();
    // Five is prime to the number of faults: neighbouring stretches meet faults of different sorts.
    let start = (mixed(seed) % faults as u64) as usize;
    (0..runs)
        .map(|run| {
            let (from, to) = (run * calls.len() / runs, (run + 1) * calls.len() / runs);
            let within = mixed(seed ^ (run as u64 + 1)) % (to - from).max(1) as u64;
            let call = calls[(from + within as usize).min(calls.len() - 1)];
            (call, Fault::ALL[(start + run * 5 + run / faults) % faults])
        })
        .collect()
}

/// A number from a name, the same in every run.
pub fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn mixed(seed: u64) -> u64 {
    let mut number = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn call(seconds: u64, line: &str, writes: bool, version: u64) -> Called {
        Called {
            line: line.to_owned(),
            writes,
            version,
            after: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn at_rest_each_kind_of_call_counts_once() {
        let calls = [
            call(0, "WATCH boats", false, 1),
            call(300, "WATCH boats", false, 1),
            call(600, "PATCH boats a", true, 1),
            call(601, "GET boats a", false, 2),
            call(602, "GET boats a", false, 2),
            call(603, "PUT azure", true, 2),
            call(604, "GET boats a", false, 2),
            call(723, "GET boats a", false, 2),
            // Here rest begins.
            call(724, "WATCH boats", false, 2),
            call(725, "GET boats a", false, 2),
            call(726, "WATCH boats", false, 2),
            call(727, "GET boats a", false, 2),
            call(728, "GET boats b", false, 2),
        ];
        assert_eq!(calls_to_fault(&calls, 0), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12]);
        assert_eq!(calls_to_fault(&calls, 4), [4, 5, 6, 7, 8, 9, 12]);
        let mut moving = calls.to_vec();
        moving.push(call(900, "WATCH boats", false, 3));
        assert_eq!(
            calls_to_fault(&moving, 9),
            [9, 10, 11, 12, 13],
            "nothing rests before the end"
        );
    }

    #[test]
    fn a_sample_has_every_fault_and_calls_from_everywhere() {
        let calls: Vec<usize> = (100..700).collect();
        for (runs, seed) in [(1, 3), (18, 7), (50, 11), (54, seed_of("k3s"))] {
            let points = points(&calls, Extent::Runs(runs), seed);
            assert_eq!(points.len(), runs.max(18));
            let faults: BTreeSet<Fault> = points.iter().map(|(_, fault)| *fault).collect();
            assert_eq!(faults.len(), Fault::ALL.len());
            for (index, (call, _)) in points.iter().enumerate() {
                let stretch = 600 * index / points.len() + 100..600 * (index + 1) / points.len() + 101;
                assert!(stretch.contains(call), "{call} in {stretch:?}");
            }
        }
        assert_eq!(
            points(&calls, Extent::Runs(40), 5),
            points(&calls, Extent::Runs(40), 5)
        );
        assert_ne!(
            points(&calls, Extent::Runs(40), 5),
            points(&calls, Extent::Runs(40), 6)
        );
        assert_eq!(points(&[4, 9], Extent::Runs(18), 1).len(), 18);
    }

    #[test]
    fn shares_are_disjoint_and_make_up_the_whole() {
        let calls: Vec<usize> = (0..7).collect();
        let all = points(&calls, Extent::All, 0);
        let mut shares: Vec<(usize, Fault)> = (0..4)
            .flat_map(|part| points(&calls, Extent::Share(part, 4), 0))
            .collect();
        shares.sort_unstable();
        assert_eq!((all.len(), shares), (126, all.clone()));
    }
}
