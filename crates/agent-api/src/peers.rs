//! Which hosts a host asks for an image before upstream: pure. Whoever orders decides; hosts only ask whom they are told to.

use slipway_slots::Digest;

use crate::proto::PeerHost;

/// How many hosts an order names.
pub const MOST_PEERS: usize = 8;

/// Who gives images to the hosts beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Nobody: every host asks upstream.
    None,
    /// One seed, the same for everybody.
    OneSeed,
    /// Every seed.
    Seeds,
    /// Every host that has the image.
    Hosts,
}

/// A host of the same cluster that may give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub name: String,
    /// host:port; empty for a host behind NAT, which nobody can ask.
    pub address: String,
    pub seed: bool,
    /// The image is usable there.
    pub has_image: bool,
}

/// Whom `host` asks, in this order. Seeds are asked although they do not have the image yet: they are the first to get it. The
/// order differs from host to host, so that the load is shared.
pub fn choose(scope: Scope, host: &str, candidates: &[Candidate]) -> Vec<PeerHost> {
    let can_give = |candidate: &&Candidate| candidate.name != host && !candidate.address.is_empty();
    let mut chosen: Vec<_> = candidates
        .iter()
        .filter(can_give)
        .filter(|candidate| match scope {
            Scope::None => false,
            Scope::OneSeed | Scope::Seeds => candidate.seed,
            Scope::Hosts => candidate.has_image,
        })
        .collect();
    if scope == Scope::OneSeed {
        // The first that has the image, or the first at all: the same one for every host that is not it.
        chosen.sort_by_key(|candidate| (!candidate.has_image, &candidate.name));
        chosen.truncate(1);
    }
    chosen.sort_by_key(|candidate| {
        let place = Digest::of(format!("{host} {}", candidate.name).as_bytes());
        (!candidate.has_image, place.0)
    });
    chosen
        .into_iter()
        .take(MOST_PEERS)
        .map(|candidate| PeerHost {
            host: candidate.name.clone(),
            address: candidate.address.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn candidate(name: &str, seed: bool, has_image: bool) -> Candidate {
        Candidate {
            name: name.to_owned(),
            address: format!("{name}:7443"),
            seed,
            has_image,
        }
    }

    fn names(scope: Scope, host: &str, candidates: &[Candidate]) -> Vec<String> {
        let mut names: Vec<_> = choose(scope, host, candidates)
            .into_iter()
            .map(|peer| peer.host)
            .collect();
        names.sort();
        names
    }

    #[test]
    fn each_scope_names_its_hosts_and_never_the_host_itself() {
        let mut all = vec![
            candidate("seed-1", true, false),
            candidate("seed-2", true, true),
            candidate("box-1", false, true),
            candidate("box-2", false, false),
        ];
        all.push(Candidate {
            address: String::new(),
            ..candidate("behind-nat", true, true)
        });
        for (scope, host, expected) in [
            (Scope::None, "box-2", vec![]),
            (Scope::OneSeed, "box-2", vec!["seed-2"]),
            (Scope::OneSeed, "seed-2", vec!["seed-1"]),
            (Scope::Seeds, "box-2", vec!["seed-1", "seed-2"]),
            (Scope::Seeds, "seed-1", vec!["seed-2"]),
            (Scope::Hosts, "box-2", vec!["box-1", "seed-2"]),
            (Scope::Hosts, "box-1", vec!["seed-2"]),
        ] {
            assert_eq!(names(scope, host, &all), expected, "{scope:?} {host}");
        }
        // Who has the image is asked first.
        assert_eq!(choose(Scope::Seeds, "box-2", &all)[0].host, "seed-2");
    }

    #[test]
    fn hosts_ask_different_ones_first_and_not_too_many() {
        let all: Vec<_> = (0..50)
            .map(|number| candidate(&format!("box-{number}"), false, true))
            .collect();
        let mut first = BTreeMap::<String, usize>::new();
        for host in &all {
            let chosen = choose(Scope::Hosts, &host.name, &all);
            assert_eq!(chosen.len(), MOST_PEERS);
            assert_eq!(
                chosen,
                choose(Scope::Hosts, &host.name, &all),
                "the same each time"
            );
            *first.entry(chosen[0].host.clone()).or_default() += 1;
        }
        assert!(first.values().all(|count| *count <= 6), "{first:?}");
    }
}
