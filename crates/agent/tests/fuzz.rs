//! What the agent reads from its disk takes any bytes.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use slipway_agent::engine::{HealthPolicy, Unhindered, read_lines};
use slipway_agent::enrol;
use slipway_agent::self_update::{Choice, Installation};
use slipway_agent::service::{maintenance::Maintenance, operations::Operations};
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

    /// The service's files: whatever stands in them, it is said or passed over, and never believed.
    #[test]
    fn the_files_of_the_service_take_any_bytes(noise in vec(any::<u8>(), 0..400), at in 0..5_usize) {
        let place = tempfile::TempDir::new().unwrap();
        let state = place.path();
        std::fs::create_dir_all(state.join("operations")).unwrap();
        let file = ["generation", "operations/op-1.json", "identity.json", "maintenance.json", "operations/.new-1"][at];
        std::fs::write(state.join(file), &noise).unwrap();
        let opened = Operations::open(state, "box-1", "boot-1", Arc::new(Unhindered));
        match opened {
            Ok((operations, left)) => {
                prop_assert!(left.is_empty() && operations.list().is_empty());
                prop_assert!(file == "generation" || operations.generation() == 0);
            }
            // A generation that cannot be read must not count as none: stale orders would be taken.
            Err(error) => {
                prop_assert_eq!(file, "generation");
                prop_assert!(error.to_string().contains("generation"), "{}", error);
            }
        }
        let identity = enrol::read(state);
        prop_assert!(file == "identity.json" || matches!(identity, Ok(None)));
        prop_assert!(!matches!(identity, Ok(Some(_))), "noise is no identity");
        prop_assert_eq!(Maintenance::read(state).is_some(), file == "maintenance.json");
    }

    /// An image's record on disk.
    #[test]
    fn a_record_of_the_cache_takes_any_bytes(noise in vec(any::<u8>(), 0..400)) {
        let place = tempfile::TempDir::new().unwrap();
        let folder = place.path().join("images");
        std::fs::create_dir_all(&folder).unwrap();
        let name = Digest::of(b"x").to_string().replace("sha256:", "");
        std::fs::write(folder.join(format!("{name}.json")), &noise).unwrap();
        let cache = crate::cache::open(place.path(), 1 << 20);
        prop_assert!(cache.list().is_empty());
        prop_assert_eq!(cache.problems().len(), 1);
        prop_assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    }
}
