//! Capacity that is reserved, on its way or bound to a place, and pods that are told no at once.

use slipway_packing::labels::{CAPACITY_TYPE, HOSTNAME, INITIALIZED, REGISTERED, ZONE};
use slipway_packing::model::{RefusalReason, ReservedOfferingMode, Service, Taint, Workload};
use slipway_packing::requirement::Operator;

use crate::cluster::{
    Cluster, copies, default_types, instance_type, labelled, offering, pod, pool, pool_with, requirement,
    with_offerings,
};
use crate::constraints::{With, node_term, spread, term};
use crate::judged::schedule;

const TINY: &[(&str, &str)] = &[("cpu", "10m")];

/// One reservation with two slots; on demand costs more.
fn reserved() -> Cluster {
    let mut slots = offering("reserved", "test-zone-1", 0.001);
    slots
        .requirements
        .push(requirement("karpenter.sh/reservation-id", Operator::In, &["r-1"]));
    slots.reservation_capacity = 2;
    let kind = with_offerings(
        instance_type("kind", &[]),
        vec![slots, offering("on-demand", "test-zone-1", 1.0)],
    );
    let mut cluster = Cluster::new(vec![pool("default")], vec![kind]);
    cluster
        .snapshot
        .options
        .well_known_labels
        .push("karpenter.sh/reservation-id".to_owned());
    cluster
}

#[test]
fn reserved_slots_are_counted_and_waited_for() {
    let web = [("app", "web")];
    let pods = copies("pod", 3, &labelled("", TINY, &web).apart(term(HOSTNAME, &web)));
    let cluster = reserved();
    let plan = schedule(&cluster.snapshot, &pods);
    assert_eq!(plan.new_claims.len(), 2);
    for claim in &plan.new_claims {
        let own = claim
            .requirements
            .iter()
            .find(|own| own.key == CAPACITY_TYPE)
            .expect("pinned");
        assert_eq!(own.values, ["reserved"]);
    }
    assert_eq!(plan.unschedulable.len(), 1);
    assert_eq!(
        plan.unschedulable[0].reason,
        RefusalReason::ReservedCapacityPending
    );
    // Simulations take what there is.
    let mut cluster = reserved();
    cluster.snapshot.options.reserved_offering_mode = ReservedOfferingMode::Fallback;
    let plan = schedule(&cluster.snapshot, &pods);
    assert_eq!((plan.new_claims.len(), plan.unschedulable.len()), (3, 0));
}

#[test]
fn volumes_decide_the_zone() {
    let mut cluster = Cluster::default();
    let storage: Workload = serde_json::from_value(serde_json::json!({
        "persistentVolumeClaims": [
            {"metadata": {"name": "bound", "namespace": "default", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
             "spec": {"volumeName": "disk", "storageClassName": "fast"}},
            {"metadata": {"name": "later", "namespace": "default"}, "spec": {"storageClassName": "fast"}},
            {"metadata": {"name": "unbound", "namespace": "default"}, "spec": {"storageClassName": "now"}}],
        "persistentVolumes": [{"metadata": {"name": "disk"}, "spec": {"csi": {"driver": "disk.csi.example"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["test-zone-3"]}]}]}}}}],
        "storageClasses": [
            {"metadata": {"name": "fast"}, "provisioner": "disk.csi.example", "volumeBindingMode": "WaitForFirstConsumer",
             "allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": ["test-zone-2"]}]}]},
            {"metadata": {"name": "now"}, "provisioner": "disk.csi.example", "volumeBindingMode": "Immediate"}]
    }))
    .expect("storage");
    cluster.snapshot.persistent_volume_claims = storage.snapshot.persistent_volume_claims;
    cluster.snapshot.persistent_volumes = storage.snapshot.persistent_volumes;
    cluster.snapshot.storage_classes = storage.snapshot.storage_classes;
    let with_claim = |name: &str, claim: &str| {
        let mut pod = pod(name, TINY);
        let volume = serde_json::json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
        pod.spec
            .volumes
            .push(serde_json::from_value(volume).expect("a volume"));
        pod
    };
    let conflicting = with_claim("conflicting", "bound").selecting(ZONE, "test-zone-1");
    let batch = cluster.provision(vec![
        with_claim("bound", "bound"),
        with_claim("later", "later"),
        with_claim("unbound", "unbound"),
        with_claim("missing", "missing"),
        conflicting,
    ]);
    assert_eq!(cluster.label_of("bound", ZONE), "test-zone-3");
    assert_eq!(cluster.label_of("later", ZONE), "test-zone-2");
    let reasons: Vec<(&str, RefusalReason)> = batch
        .plan
        .unschedulable
        .iter()
        .map(|refusal| (refusal.pod.as_str(), refusal.reason))
        .collect();
    assert_eq!(
        reasons,
        [
            ("default/unbound", RefusalReason::Invalid),
            ("default/missing", RefusalReason::Invalid),
            ("default/conflicting", RefusalReason::Unschedulable),
        ]
    );
}

#[test]
fn restricted_labels_are_refused_at_once() {
    let mut cluster = Cluster::default();
    let fields = {
        let mut term = node_term(vec![]);
        term.match_fields
            .push(requirement("metadata.name", Operator::In, &["node"]));
        pod("fields", TINY).requiring(vec![term])
    };
    let batch = cluster.provision(vec![
        pod("domain", TINY).selecting("karpenter.sh/anything", "x"),
        pod("subdomain", TINY).selecting("sub.karpenter.sh/anything", "x"),
        pod("host", TINY).selecting(HOSTNAME, "node-1"),
        pod("unknown", TINY).selecting("team", "web"),
        fields,
    ]);
    let invalid = |name: &str| {
        let own = format!("default/{name}");
        batch
            .plan
            .unschedulable
            .iter()
            .find(|refusal| refusal.pod == own)
            .expect("refused")
            .reason
    };
    for name in ["domain", "subdomain", "host", "fields"] {
        assert_eq!(invalid(name), RefusalReason::Invalid, "{name}");
    }
    assert_eq!(invalid("unknown"), RefusalReason::Unschedulable);
    let message = &batch.plan.unschedulable.last().expect("the last one").message;
    assert!(
        message.contains("label \"team\" does not have known values"),
        "{message}"
    );
}

#[test]
fn capacity_on_its_way_takes_pods() {
    let mut cluster = Cluster::default();
    let starting = Taint {
        key: "starting".to_owned(),
        value: String::new(),
        effect: "NoSchedule".to_owned(),
    };
    cluster.snapshot.node_pools[0].spec.template.spec.startup_taints = vec![starting.clone()];
    cluster.provision(vec![pod("first", TINY)]);
    // The node has joined but is not initialized: its startup taint and missing amounts do not count.
    cluster.snapshot.node_claims[0].spec.startup_taints = vec![starting.clone()];
    cluster.snapshot.node_claims[0].status.allocatable = cluster.snapshot.nodes[0].status.allocatable.clone();
    cluster.snapshot.nodes[0].status.allocatable.clear();
    cluster.snapshot.nodes[0].spec.taints = vec![
        starting,
        Taint {
            key: "node.kubernetes.io/not-ready".to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
        },
    ];
    cluster.snapshot.nodes[0].metadata.labels.remove(INITIALIZED);
    let plan = schedule(&cluster.snapshot, &[pod("second", TINY)]);
    assert_eq!(plan.existing[0].pods, ["default/second"]);
    assert!(!plan.existing[0].initialized);
    // Before the node joins, the claim stands for it.
    cluster.snapshot.nodes[0].metadata.labels.remove(REGISTERED);
    let plan = schedule(&cluster.snapshot, &[pod("second", TINY)]);
    assert_eq!(plan.existing[0].node, "claim-0001");
    // Once initialized, a taint that is still there counts.
    cluster.snapshot.nodes[0]
        .metadata
        .labels
        .insert(INITIALIZED.to_owned(), "true".to_owned());
    cluster.snapshot.nodes[0]
        .metadata
        .labels
        .insert(REGISTERED.to_owned(), "true".to_owned());
    let plan = schedule(&cluster.snapshot, &[pod("second", TINY)]);
    assert_eq!((plan.existing.len(), plan.new_claims.len()), (0, 1));
}

#[test]
fn nodes_that_are_going_away_take_nothing() {
    let mut cluster = Cluster::default();
    cluster.provision(vec![pod("first", TINY)]);
    cluster.snapshot.deleting_nodes.push("node-0001".to_owned());
    let plan = schedule(&cluster.snapshot, &[pod("second", TINY)]);
    assert_eq!((plan.existing.len(), plan.new_claims.len()), (0, 1));
}

#[test]
fn default_spread_uses_the_service() {
    let web = [("app", "web")];
    let pods = || copies("pod", 3, &labelled("", TINY, &web));
    let mut cluster = Cluster::default();
    let mut constraint = spread(ZONE, 1, &[]);
    constraint.label_selector = None;
    cluster.snapshot.options.default_topology_spread = vec![constraint];
    // Nothing selects the pods: they stay together.
    assert_eq!(schedule(&cluster.snapshot, &pods()).new_claims.len(), 1);
    let mut service = Service::default();
    service.metadata.namespace = "default".to_owned();
    service.spec.selector = Some(
        web.iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
    );
    cluster.snapshot.services.push(service);
    cluster.provision(pods());
    assert_eq!(cluster.skew(ZONE, &web), [1, 1, 1]);
}

#[test]
fn spread_policies_on_taints_and_affinity() {
    let web = [("app", "web")];
    let mut tainted = pool_with("tainted", vec![requirement(ZONE, Operator::In, &["test-zone-3"])]);
    tainted.spec.template.spec.taints = vec![Taint {
        key: "team".to_owned(),
        value: "web".to_owned(),
        effect: "NoSchedule".to_owned(),
    }];
    let plain = pool_with(
        "plain",
        vec![requirement(ZONE, Operator::In, &["test-zone-1", "test-zone-2"])],
    );
    for (policy, scheduled) in [("Ignore", 2), ("Honor", 4)] {
        let mut cluster = Cluster::new(vec![tainted.clone(), plain.clone()], default_types());
        let mut constraint = spread(ZONE, 1, &web);
        constraint.node_taints_policy = Some(policy.to_owned());
        let batch = cluster.provision(copies("pod", 4, &labelled("", TINY, &web).spread(constraint)));
        assert_eq!(4 - batch.unscheduled.len(), scheduled, "{policy}");
    }
}
