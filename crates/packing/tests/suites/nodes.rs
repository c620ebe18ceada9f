//! Nodes that stand before a case begins, and what happens to nodes in between.

use slipway_packing::labels;
use slipway_packing::model::{InstanceType, Node, NodeClaim};

use super::environment::Environment;
use super::words;
use crate::cluster::condition;

impl Environment {
    /// `bound-each n*3 name …`: a pod of the line on each node whose name begins so.
    pub fn put_on_each(&mut self, line: &[&str]) {
        let (prefix, most) = line[0]
            .split_once('*')
            .map_or((line[0], usize::MAX), |(prefix, most)| {
                (prefix, most.parse().expect("a number of nodes"))
            });
        let prefix = format!("{prefix}-");
        let nodes: Vec<String> = self
            .snapshot
            .nodes
            .iter()
            .map(|node| node.metadata.name.clone())
            .filter(|name| name.starts_with(&prefix))
            .take(most)
            .collect();
        assert!(!nodes.is_empty(), "no node begins with {prefix}");
        for (index, node) in nodes.iter().enumerate() {
            let name = format!("{}-{index}", line[1]);
            let own: Vec<String> = line[2..]
                .iter()
                .map(|word| word.replace('#', &index.to_string()))
                .collect();
            let mut words = vec![node.as_str(), name.as_str()];
            words.extend(own.iter().map(String::as_str));
            self.put_bound(&words);
        }
    }

    /// `partition n key`: every node whose name begins so gets another value of the label.
    pub fn partition(&mut self, line: &[&str]) {
        let prefix = format!("{}-", line[0]);
        let nodes = self
            .snapshot
            .nodes
            .iter_mut()
            .filter(|node| node.metadata.name.starts_with(&prefix));
        for (index, node) in nodes.enumerate() {
            node.metadata.labels.insert(line[1].to_owned(), index.to_string());
        }
    }

    /// `pools-nodes np*10 3 …`: so many nodes in each of the pools `np-0` and so on.
    pub fn put_in_pools(&mut self, line: &[&str]) {
        let (prefix, count) = line[0].split_once('*').expect("a number of pools");
        for pool in 0..count.parse::<usize>().expect("a number of pools") {
            let (name, own) = (
                format!("{prefix}-{pool}*{}", line[1]),
                format!("pool:{prefix}-{pool}"),
            );
            let mut words = vec![name.as_str(), own.as_str()];
            words.extend(&line[2..]);
            self.put_node(&words);
        }
    }

    /// `node name pool:default type:small-instance-type ct:od zone:z1 alloc:cpu=32 …`: initialized unless it says
    /// `starting`; without `pool` it is not managed, with `claim-only` it has not joined yet.
    pub fn put_node(&mut self, line: &[&str]) {
        let (name, count) = line[0].split_once('*').unwrap_or((line[0], ""));
        if count.is_empty() {
            self.put_one_node(name, &line[1..]);
            return;
        }
        for index in 0..count.parse::<usize>().expect("a number of nodes") {
            self.put_one_node(&format!("{name}-{index}"), &line[1..]);
        }
    }

    fn put_one_node(&mut self, name: &str, line: &[&str]) {
        let mut own = slipway_packing::model::StringMap::new();
        let mut pool = None;
        let mut kind: Option<InstanceType> = None;
        for word in line {
            let (option, rest) = words::option(word);
            match option {
                "pool" => pool = Some(rest),
                "type" => {
                    let mut rest = rest;
                    if let Some((name, capacity_type)) = super::catalog::alias(rest) {
                        own.insert(labels::CAPACITY_TYPE.to_owned(), capacity_type.to_owned());
                        own.insert(labels::ZONE.to_owned(), "test-zone-1".to_owned());
                        rest = name;
                    }
                    own.insert(labels::INSTANCE_TYPE.to_owned(), rest.to_owned());
                    let types = pool
                        .and_then(|pool| self.own_types.get(pool))
                        .unwrap_or(&self.types);
                    kind = types.iter().find(|kind| kind.name == rest).cloned();
                }
                "zone" | "ct" => {
                    own.insert(words::key(option), words::value(rest));
                }
                "label" => own.extend(words::label_map(rest)),
                _ => {}
            }
        }
        let managed = pool.is_some();
        if let Some(pool) = pool.filter(|pool| !pool.is_empty()) {
            own.insert(labels::NODE_POOL.to_owned(), pool.to_owned());
        }
        let kind = kind.unwrap_or_default();
        let mut node = if managed {
            let mut claim = NodeClaim::default();
            claim.metadata.name = format!("claim-{name}");
            claim.metadata.creation_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
            self.join(name, claim, own, &kind)
        } else {
            let mut node = Node::default();
            node.metadata.name = name.to_owned();
            node.metadata.labels = own;
            node.metadata
                .labels
                .insert(labels::HOSTNAME.to_owned(), name.to_owned());
            node.spec.provider_id = format!("test://{name}");
            node
        };
        node.status.conditions.push(condition("Ready", "True"));
        let starting = line.contains(&"starting");
        if !line.contains(&"claim-only") {
            self.snapshot.nodes.push(node);
        }
        if !starting && !line.contains(&"claim-only") {
            self.initialize(&[name]);
        }
        if managed {
            let claim = self.snapshot.node_claims.last_mut().expect("just made");
            claim.status.conditions.retain(|own| own.kind != "Consolidatable");
            if !line.contains(&"busy") {
                claim.status.conditions.push(condition("Consolidatable", "True"));
            }
        }
        let mut change = vec![name];
        let known = [
            "pool",
            "type",
            "zone",
            "ct",
            "label",
            "starting",
            "claim-only",
            "busy",
        ];
        change.extend(line.iter().filter(|word| !known.contains(&words::option(word).0)));
        self.change_node(&change);
    }

    /// `initialize @pod` or a node; without a name, all of them.
    pub fn initialize(&mut self, line: &[&str]) {
        let names: Vec<String> = if line.is_empty() {
            self.snapshot
                .nodes
                .iter()
                .map(|node| node.metadata.name.clone())
                .collect()
        } else {
            line.iter().map(|word| self.node_name(word)).collect()
        };
        let ephemeral = super::environment::NOT_READY.split(':').next().expect("a key");
        for node in self
            .snapshot
            .nodes
            .iter_mut()
            .filter(|node| names.contains(&node.metadata.name))
        {
            node.metadata
                .labels
                .insert(labels::INITIALIZED.to_owned(), "true".to_owned());
            node.metadata
                .labels
                .insert(labels::REGISTERED.to_owned(), "true".to_owned());
            node.spec.taints.retain(|taint| taint.key != ephemeral);
            if !node.status.conditions.iter().any(|own| own.kind == "Ready") {
                node.status.conditions.push(condition("Ready", "True"));
            }
        }
        for claim in self
            .snapshot
            .node_claims
            .iter_mut()
            .filter(|claim| names.contains(&claim.status.node_name))
        {
            claim.status.conditions.push(condition("Initialized", "True"));
            if !claim.is_true("Consolidatable") {
                claim.status.conditions.push(condition("Consolidatable", "True"));
            }
        }
    }

    /// `change @pod taint:key=value:Effect …`
    pub fn change_node(&mut self, line: &[&str]) {
        let name = self.node_name(line[0]);
        let snapshot = &mut self.snapshot;
        for word in &line[1..] {
            let (option, rest) = words::option(word);
            let node = snapshot.nodes.iter_mut().find(|node| node.metadata.name == name);
            let claim = snapshot
                .node_claims
                .iter_mut()
                .find(|claim| claim.status.node_name == name);
            match option {
                "taint" => node.expect("a node").spec.taints.push(words::taint(rest)),
                "untaint" => node.expect("a node").spec.taints.clear(),
                "label" => {
                    let more = words::label_map(rest);
                    if let Some(claim) = claim {
                        claim.metadata.labels.extend(more.clone());
                    }
                    node.expect("a node").metadata.labels.extend(more);
                }
                // On the node alone, as if something else had put it there.
                "node-label" => node
                    .expect("a node")
                    .metadata
                    .labels
                    .extend(words::label_map(rest)),
                "unlabel" => {
                    let key = words::key(rest);
                    if let Some(claim) = claim {
                        claim.metadata.labels.remove(&key);
                    }
                    node.expect("a node").metadata.labels.remove(&key);
                }
                "anno" => {
                    let more = words::label_map(rest);
                    if let Some(claim) = claim {
                        claim.metadata.annotations.extend(more.clone());
                    }
                    node.expect("a node").metadata.annotations.extend(more);
                }
                "alloc" => {
                    let amounts = words::amounts(rest);
                    if let Some(claim) = claim {
                        claim.status.allocatable.clone_from(&amounts);
                        claim.status.capacity.clone_from(&amounts);
                    }
                    if let Some(node) = node {
                        node.status.allocatable.clone_from(&amounts);
                        node.status.capacity = amounts;
                    }
                }
                // What the kubelet reports, though the claim promised more.
                "reported" => {
                    let node = node.expect("a node");
                    node.status.allocatable = words::amounts(rest);
                    node.status.capacity.clone_from(&node.status.allocatable);
                }
                "startup" => claim
                    .expect("a claim")
                    .spec
                    .startup_taints
                    .push(words::taint(rest)),
                "deleting" => {
                    claim.expect("a claim").metadata.deletion_timestamp =
                        Some("2026-01-01T00:00:00Z".to_owned());
                }
                "going" => snapshot.deleting_nodes.push(name.clone()),
                "buffered" => snapshot.buffered_nodes.push(name.clone()),
                "unbuffered" => snapshot.buffered_nodes.retain(|own| *own != name),
                "promised" => snapshot.nominated_nodes.push(name.clone()),
                "drifted" => {
                    let mut drifted = condition("Drifted", "True");
                    if !rest.is_empty() {
                        drifted.last_transition_time = Some(rest.to_owned());
                    }
                    claim.expect("a claim").status.conditions.push(drifted);
                }
                "condition" => {
                    let (kind, status) = rest.split_once('=').expect("a condition and its status");
                    let claim = claim.expect("a claim");
                    claim.status.conditions.retain(|own| own.kind != kind);
                    claim.status.conditions.push(condition(kind, status));
                }
                // `sick:BadNode=False@2026-01-01T00:10:00Z` and perhaps `@Reason`
                "sick" => {
                    let mut fields = rest.split('@');
                    let (kind, status) = fields
                        .next()
                        .and_then(|field| field.split_once('='))
                        .expect("a condition and its status");
                    let mut sick = condition(kind, status);
                    if let Some(since) = fields.next() {
                        sick.last_transition_time = Some(since.to_owned());
                    }
                    fields.next().unwrap_or_default().clone_into(&mut sick.reason);
                    let conditions = &mut node.expect("a node").status.conditions;
                    conditions.retain(|own| own.kind != kind);
                    conditions.push(sick);
                }
                // The last reboot ended then.
                "rebooted" => {
                    let mut ended = condition("Rebooting", "False");
                    ended.last_transition_time = Some(rest.to_owned());
                    claim.expect("a claim").status.conditions.push(ended);
                }
                "not-ready" => {
                    let node = node.expect("a node");
                    node.status.conditions.retain(|own| own.kind != "Ready");
                    node.status.conditions.push(condition("Ready", "False"));
                }
                "grace" => claim.expect("a claim").spec.termination_grace_period = Some(rest.to_owned()),
                "last-pod" => claim.expect("a claim").status.last_pod_event_time = Some(rest.to_owned()),
                "expire" => claim.expect("a claim").spec.expire_after = Some(rest.to_owned()),
                "created" => {
                    claim.expect("a claim").metadata.creation_timestamp = Some(rest.to_owned());
                    node.expect("a node").metadata.creation_timestamp = Some(rest.to_owned());
                }
                "unclaimed" => snapshot
                    .node_claims
                    .retain(|claim| claim.status.node_name != name),
                other => panic!("unknown word for a node: {other}"),
            }
        }
    }
}
