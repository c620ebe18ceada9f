//! The same input gives the same plan: in other threads, in other processes, where hash maps have other seeds, and however
//! many threads plan at the same time.

use std::process::Command;
use std::thread;

use slipway_packing::model::Workload;

use crate::differential::generator::{LATER_FROM, generate};
use crate::judged::{next_command, schedule};

/// Set in the processes this test starts: they print their digest and are done.
const ASKED: &str = "SLIPWAY_PACKING_DIGEST";
const MARK: &str = "digest:";

fn seeds() -> impl Iterator<Item = u64> {
    (1..40).chain(LATER_FROM..LATER_FROM + 40)
}

/// Everything decided about some clusters, as one number (FNV-1a of the JSON).
fn digest() -> u64 {
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    for seed in seeds() {
        let workload: Workload = serde_json::from_value(generate(seed).workload).expect("a workload");
        let plan = slipway_packing::schedule(&workload.snapshot, &workload.pods);
        let disruption = slipway_packing::disrupt::next_command(&workload.snapshot, &workload.pods);
        for text in [serde_json::to_string(&plan), serde_json::to_string(&disruption)] {
            for byte in text.expect("what was decided is JSON").bytes() {
                digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    digest
}

#[test]
fn plans_do_not_depend_on_hash_seeds_processes_or_threads() {
    let here = digest();
    if std::env::var_os(ASKED).is_none() {
        for seed in seeds() {
            let workload: Workload = serde_json::from_value(generate(seed).workload).expect("a workload");
            schedule(&workload.snapshot, &workload.pods);
            next_command(&workload.snapshot, &workload.pods);
        }
    }
    if std::env::var_os(ASKED).is_some() {
        println!("{MARK}{here}");
        return;
    }
    for threads in [2, 4] {
        let running: Vec<_> = (0..threads).map(|_| thread::spawn(digest)).collect();
        for thread in running {
            assert_eq!(thread.join().expect("a digest"), here, "one of {threads} threads");
        }
    }
    let name = "determinism::plans_do_not_depend_on_hash_seeds_processes_or_threads";
    for process in 0..3 {
        let output = Command::new(std::env::current_exe().expect("this program has a path"))
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(ASKED, "1")
            .output()
            .expect("this program starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let found = text
            .split(MARK)
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next());
        assert_eq!(
            found,
            Some(here.to_string().as_str()),
            "process {process}: {text}"
        );
    }
    println!(
        "report: packing determinism: {} clusters, 3 processes, 6 threads",
        seeds().count()
    );
}
