//! What the agent reads from its disk takes any bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use slipway_agent::engine::{HealthPolicy, read_lines};

proptest! {
    #[test]
    fn a_journal_takes_any_bytes(bytes in vec(any::<u8>(), 0..4000)) {
        let reading = read_lines(&bytes);
        prop_assert!(reading.lines.is_empty(), "noise has no right checksum");
        prop_assert_eq!(reading.problems.is_empty(), bytes.is_empty());
    }

    #[test]
    fn a_health_policy_takes_any_text(text in ".{0,400}") {
        let _ = serde_json::from_str::<HealthPolicy>(&text);
    }
}
