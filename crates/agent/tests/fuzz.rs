//! What the agent reads from its disk takes any bytes.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use slipway_agent::engine::{HealthPolicy, Unhindered, read_lines};
use slipway_agent::self_update::{Choice, Installation};
use slipway_slots::Digest;

proptest! {
    #[test]
    fn a_journal_takes_any_bytes(bytes in vec(any::<u8>(), 0..4000)) {
        let reading = read_lines(&bytes);
        prop_assert!(reading.lines.is_empty(), "noise has no right checksum");
        prop_assert_eq!(reading.problems.is_empty(), bytes.is_empty());
    }

    /// Whatever stands in the state of the agent's own update: the launcher starts the packaged program, or a version whose
    /// bytes are those of its name.
    #[test]
    fn the_state_of_the_agents_own_update_takes_any_bytes(
        noise in vec(any::<u8>(), 0..400),
        digest in prop::array::uniform32(any::<u8>()),
        left in any::<u8>(),
        sound in any::<bool>(),
    ) {
        let place = tempfile::TempDir::new().unwrap();
        let state = if sound {
            let named = Digest(digest);
            let json = format!("{{\"current\":\"{named}\",\"trial\":{{\"digest\":\"{named}\",\"left\":{left}}}}}");
            format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes())).into_bytes()
        } else {
            noise
        };
        std::fs::write(place.path().join("state"), state).unwrap();
        let version = place.path().join(Digest(digest).to_string().replace(':', "-"));
        std::fs::write(version, b"something else").unwrap();
        let installation = Installation::new(place.path(), Arc::new(Unhindered));
        prop_assert_eq!(installation.choose(), Choice::Packaged);
    }

    #[test]
    fn a_health_policy_takes_any_text(text in ".{0,400}") {
        let _ = serde_json::from_str::<HealthPolicy>(&text);
    }
}
