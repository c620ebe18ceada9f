//! The counts an oracle prints, and the floor below which they must not fall.

/// Prints how many of a suite's cases are ported, and fails when the number fell below what was reached before.
pub fn oracle(suite: &str, ported: usize, total: usize, floor: usize) {
    println!("report: packing oracle {suite}: {ported}/{total}");
    assert!(
        ported >= floor,
        "{suite}: {ported} cases, but {floor} had been reached"
    );
}
