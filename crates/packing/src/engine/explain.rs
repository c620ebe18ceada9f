//! Why not: asked only about pods that were placed nowhere, so that a success costs nothing.

use std::collections::BTreeMap;

use super::choice::NoDomain;
use super::equivalence_class::ClassId;
use super::group::Group;
use super::intern::ReqVec;
use super::node_check::NodeRefusal;
use super::run::Run;
use crate::bits::BitSet;
use crate::model::{CandidateKind, CandidateRefusal};
use crate::requirements::Undefined;
use crate::resources;
use crate::taints;

impl Run<'_, '_> {
    /// One sentence, and the reasons by candidate, for the most relaxed form of the pod.
    pub fn explain(&mut self, class: ClassId) -> (String, Vec<CandidateRefusal>) {
        let variant = self.world.classes[class].variants.len() - 1;
        let claims = self.claims.len();
        let topology = match self
            .world
            .choose(class, variant, claims, self.options.equal_domains)
        {
            Ok(choice) => choice.no_new_host.map(|group| self.topology_reason(group)),
            Err(NoDomain(group)) => Some(self.topology_reason(group)),
        };
        let mut candidates = Vec::new();
        let mut sentence = Vec::new();
        for pool in 0..self.world.pools.len() {
            let reason = self.pool_reason(pool, class, variant, topology.as_deref());
            sentence.push(reason.clone());
            candidates.push(CandidateRefusal {
                kind: CandidateKind::NodePool,
                name: self.world.pools[pool].name.clone(),
                count: 1,
                reason,
            });
        }
        let mut reasons: BTreeMap<(CandidateKind, String), (String, usize)> = BTreeMap::new();
        let mut note = |kind, name: String, reason| {
            reasons.entry((kind, reason)).or_insert((name, 0)).1 += 1;
        };
        for claim in 0..self.claims.len() {
            let reason = self.claim_reason(claim, class, variant, topology.as_deref());
            note(CandidateKind::NewClaim, claim.to_string(), reason);
        }
        for node in 0..self.world.nodes.len() {
            if self.excluded.contains(node) {
                continue;
            }
            let reason = match self.world.node_takes(node, class, variant) {
                Err(refusal) => node_reason(&refusal),
                Ok(()) => topology.clone().unwrap_or_else(|| {
                    "its topology domain is not one the pod's spread constraints or affinity allow".to_owned()
                }),
            };
            note(
                CandidateKind::Node,
                self.world.nodes[node].name.to_owned(),
                reason,
            );
        }
        candidates.extend(
            reasons
                .into_iter()
                .map(|((kind, reason), (name, count))| CandidateRefusal {
                    kind,
                    name,
                    count,
                    reason,
                }),
        );
        sentence.dedup();
        let message = if sentence.is_empty() {
            "no dynamic nodepools found".to_owned()
        } else {
            sentence.join("; ")
        };
        (message, candidates)
    }

    fn topology_reason(&self, group: usize) -> String {
        let group = &self.world.groups[group];
        format!(
            "unsatisfiable topology constraint for {}, key={} (counts = {})",
            group.spec.kind.describe(),
            self.world.interner.key_name(group.spec.key),
            self.counts(group)
        )
    }

    fn counts(&self, group: &Group) -> String {
        let Some(domains) = self.world.domains.get(&group.spec.key) else {
            return format!("{} hosts with matching pods", group.occupied.len());
        };
        let mut shown: Vec<String> = group
            .domains()
            .map(|(domain, count)| format!("{}={count}", domains.names[domain]))
            .collect();
        if shown.len() > 25 {
            let more = shown.len() - 25;
            shown.truncate(25);
            shown.push(format!("and {more} others"));
        }
        shown.join(", ")
    }

    fn pool_reason(&mut self, pool: usize, class: ClassId, variant: usize, topology: Option<&str>) -> String {
        let name = self.world.pools[pool].name.clone();
        let data = &self.world.pools[pool];
        if data.usable.is_empty() {
            return if data.min_values_unmet {
                format!("nodepool {name} has no instance types that meet its minValues")
            } else {
                format!("nodepool requirements filtered out all available instance types (NodePool={name})")
            };
        }
        let variant_data = &self.world.classes[class].variants[variant];
        if let Some(taint) = taints::untolerated(&data.taints, &variant_data.tolerations) {
            return format!(
                "did not tolerate taint of nodepool {name} (taint={})",
                taints::display(taint)
            );
        }
        let own = self.world.interner.to_requirements(&data.requirements);
        let required = self.world.interner.to_requirements(&variant_data.requirements);
        let well_known = Undefined::WellKnown(&self.world.options.well_known_labels);
        if let Err(problem) = own.compatible(&required, well_known) {
            return format!("incompatible with nodepool {name}, {problem}");
        }
        if self.node_limit_reached(pool) {
            return format!("node limits have been exhausted for nodepool {name}");
        }
        let template = self.world.pools[pool].requirements.clone();
        let required = self.world.classes[class].variants[variant].requirements.clone();
        let merged = self.world.interner.merge(&template, &required);
        let mut slots = self.world.pools[pool].usable.clone();
        if let Some(limited) = self.limited_slots(pool) {
            slots.intersect_with(limited);
            if slots.is_empty() {
                return format!("all available instance types exceed limits for nodepool {name}");
            }
        }
        let requests = self.world.classes[class].requests.clone();
        match self.type_reason(pool, &merged, &slots, &requests, class, &[]) {
            Some(reason) => format!("nodepool {name}: {reason}"),
            None => match topology {
                Some(topology) => format!("nodepool {name}: {topology}"),
                None if !self.world.classes[class].volume_places.is_empty() => {
                    format!(
                        "nodepool {name}: no instance type is offered where the pod's volumes can be attached"
                    )
                }
                None => {
                    format!("nodepool {name}: no offering is left in a topology domain the pod could go to")
                }
            },
        }
    }

    fn claim_reason(
        &mut self,
        claim: usize,
        class: ClassId,
        variant: usize,
        topology: Option<&str>,
    ) -> String {
        let data = self.claims[claim].clone();
        let variant_data = &self.world.classes[class].variants[variant];
        if let Some(taint) =
            taints::untolerated(&self.world.pools[data.pool].taints, &variant_data.tolerations)
        {
            return format!("did not tolerate taint {}", taints::display(taint));
        }
        let required = variant_data.requirements.clone();
        if !self
            .world
            .interner
            .compatible(&data.requirements, &required, true)
        {
            let own = self.world.interner.to_requirements(&data.requirements);
            let required = self.world.interner.to_requirements(&required);
            let well_known = Undefined::WellKnown(&self.world.options.well_known_labels);
            let problem = own
                .compatible(&required, well_known)
                .err()
                .map_or_else(String::new, |problem| problem.to_string());
            return format!("incompatible requirements, {problem}");
        }
        let merged = self.world.interner.merge(&data.requirements, &required);
        let mut requests = data.requests.clone();
        resources::add_amounts(&mut requests, &self.world.classes[class].requests);
        self.type_reason(
            data.pool,
            &merged,
            &data.slots,
            &requests,
            class,
            &data.host_ports,
        )
        .or_else(|| topology.map(str::to_owned))
        .unwrap_or_else(|| "its topology domain is not one the pod could go to".to_owned())
    }

    /// Which of requirements, resources and offerings leave no instance type, if none is left.
    fn type_reason(
        &mut self,
        pool: usize,
        requirements: &ReqVec,
        slots: &BitSet,
        requests: &resources::Amounts,
        class: ClassId,
        held_ports: &[crate::host_ports::HostPort],
    ) -> Option<String> {
        let world = &mut *self.world;
        let ports = world.classes[class].host_ports.clone();
        let mut matching = slots.clone();
        for (_, requirement) in requirements {
            matching.intersect_with(world.pools[pool].type_mask(&mut world.interner, *requirement));
        }
        let mut fitting = slots.clone();
        world.pools[pool].cut_to_fit(&mut fitting, requests, &ports, held_ports);
        let mut offered = slots.clone();
        offered.intersect_with(world.pools[pool].offer_mask(&mut world.interner, requirements));
        let both = |left: &BitSet, right: &BitSet| {
            let mut both = left.clone();
            both.intersect_with(right);
            both
        };
        let all = both(&both(&matching, &fitting), &offered);
        let details = format!(
            "requirements={}, resources={}",
            world.interner.to_requirements(requirements),
            resources::display(&world.classes[class].request_list())
        );
        if !all.is_empty() {
            let unmet = world.pools[pool].unmet_min_values(&world.interner, requirements, &all);
            if unmet.is_empty() {
                return None;
            }
            let keys: Vec<&str> = unmet
                .iter()
                .map(|(key, _)| world.interner.key_name(*key))
                .collect();
            return Some(format!(
                "minValues requirement is not met for label(s) (label(s)=[{}]), {details}",
                keys.join(" ")
            ));
        }
        let mut missing = Vec::new();
        if matching.is_empty() {
            missing.push("met the scheduling requirements");
        }
        if fitting.is_empty() {
            missing.push("had enough resources");
        }
        if offered.is_empty() {
            missing.push("had a required offering");
        }
        let what = match missing.as_slice() {
            [] if both(&matching, &fitting).is_empty() => {
                "no instance type which had the required offering both met the scheduling requirements and had enough resources".to_owned()
            }
            [] if both(&matching, &offered).is_empty() => {
                "no instance type which had enough resources both met the scheduling requirements and had the required offering".to_owned()
            }
            [] if both(&fitting, &offered).is_empty() => {
                "no instance type which met the scheduling requirements both had enough resources and had the required offering".to_owned()
            }
            [] => "no instance type met the requirements/resources/offering tuple".to_owned(),
            missing => format!("no instance type {}", missing.join(" or ")),
        };
        let cpu = world.classes[class].request_list().get(resources::CPU).copied();
        let typo = if cpu.is_some_and(|cpu| cpu >= crate::quantity::Quantity::from_units(1_000_000)) {
            " (CPU request >= 1 Million, m vs M typo?)"
        } else {
            ""
        };
        Some(format!("{what}, {details}{typo}"))
    }
}

fn node_reason(refusal: &NodeRefusal) -> String {
    match refusal {
        NodeRefusal::Taint(taint) => format!("did not tolerate taint {taint}"),
        NodeRefusal::Volumes { driver, count, limit } => {
            format!("would exceed volume limit of {driver}: {count} of {limit}")
        }
        NodeRefusal::HostPort(conflict) => format!("host port {conflict}"),
        NodeRefusal::Resources(names) if names.is_empty() => "is over its resources".to_owned(),
        NodeRefusal::Resources(names) => format!("has not enough {}", names.join(", ")),
        NodeRefusal::Label(requirement) => format!("its labels do not meet {requirement}"),
        NodeRefusal::VolumePlace => "the pod's volumes cannot be attached there".to_owned(),
    }
}
