//! Whether an upgrade is stopped because machines went back from an image it asks for: pure.

use std::collections::BTreeMap;

use super::facts::{Facts, HostUpgradeFacts};
use crate::upgrade_policy::judge::{self, Member, Standing};

/// Why nobody else is disturbed: too many machines went back from an image that is asked for. Of each machine the latest upgrade to that
/// image counts. An upgrade that a person takes away has been seen, and stops nobody any more.
pub(super) fn halted(facts: &Facts) -> Option<String> {
    facts.spec.images.iter().find_map(|image| {
        let mut latest: BTreeMap<&str, &HostUpgradeFacts> = BTreeMap::new();
        let counts = |upgrade: &&HostUpgradeFacts| {
            upgrade.digest == image.image.digest
                && upgrade.policy_name == facts.spec.policy_name
                && !upgrade.is_deleting
        };
        for upgrade in facts.upgrades.iter().filter(counts) {
            let known = latest.entry(&upgrade.machine).or_insert(upgrade);
            if upgrade.created > known.created {
                *known = upgrade;
            }
        }
        let back: Vec<Member> = latest
            .into_values()
            .filter(|upgrade| upgrade.went_back)
            .map(|upgrade| Member {
                name: upgrade.machine.clone(),
                labels: BTreeMap::new(),
                standing: Standing::RolledBack,
            })
            .collect();
        judge::halted(&facts.policy, &back)
    })
}
