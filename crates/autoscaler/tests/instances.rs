//! Instance types from objects: every annotation Cluster Autoscaler's users have written, by its exact name and format.

use std::collections::{BTreeMap, BTreeSet};

use slipway_autoscaler::{
    api::{ClusterAPINodeClassSpec, ScalableResourceType},
    instances::{
        Demand, Devices, FindingReason, Infrastructure, LiveNode, Price, PriceList, Reference, Refused,
        Scope, Settings, Shape, Source, admits, catalog, choose, describe,
    },
};
use slipway_packing::{
    model::{NodePool, Options, Overhead, Plan, Pod, RefusalReason, ResourceList, Snapshot, Taint},
    requirement::{Operator, RequirementSpec},
    schedule,
};

const CAPACITY: &str = "capacity.cluster-autoscaler.kubernetes.io";

pub fn source(name: &str, annotations: &[(&str, &str)]) -> Source {
    let mut source = Source::new(Reference::new("MachineDeployment", "fleet", name), "one");
    source.annotations = annotations
        .iter()
        .map(|(key, value)| {
            let key = if key.contains('/') {
                (*key).to_owned()
            } else {
                format!("{CAPACITY}/{key}")
            };
            (key, (*value).to_owned())
        })
        .collect();
    source
}

/// A machine of 4 cores and 16Gi, with more or other annotations.
pub fn usual(name: &str, more: &[(&str, &str)]) -> Source {
    let mut source = source(name, &[("cpu", "4"), ("memory", "16Gi"), ("price", "0.2")]);
    source.annotations.extend(self::source(name, more).annotations);
    source
}

pub fn shape(source: &Source) -> Shape {
    let (shape, findings) = describe(source, &Settings::default());
    shape.unwrap_or_else(|| panic!("{findings:?}"))
}

pub fn amounts(entries: &[(&str, &str)]) -> ResourceList {
    entries
        .iter()
        .map(|(name, amount)| ((*name).to_owned(), amount.parse().expect("an amount")))
        .collect()
}

pub fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    }
}

#[test]
fn capacity_by_annotation() {
    let described = shape(&source(
        "a",
        &[
            ("cpu", "16"),
            ("memory", "128G"),
            ("ephemeral-disk", "100Gi"),
            ("maxPods", "200"),
            ("gpu-type", "nvidia.com/gpu"),
            ("gpu-count", "2"),
        ],
    ));
    let expected = amounts(&[
        ("cpu", "16"),
        ("memory", "128G"),
        ("ephemeral-storage", "100Gi"),
        ("pods", "200"),
        ("nvidia.com/gpu", "2"),
    ]);
    assert_eq!(described.capacity, expected);
    assert_eq!(
        shape(&usual("a", &[])).capacity["pods"].value(),
        110,
        "a kubelet's default"
    );
    assert_eq!(
        shape(&usual("a", &[("maxPods", "")])).capacity["pods"].value(),
        110,
        "empty is absent"
    );
    assert_eq!(
        shape(&usual("a", &[("maxPods", "0")])).capacity["pods"].value(),
        110,
        "zero is absent"
    );
}

/// Each row: what is written, and what is said of it. A row that is left out says so; the others are used.
#[test]
fn what_is_written_wrongly_is_a_finding_on_its_object() {
    let rows: &[(&str, &str, bool, &str)] = &[
        ("cpu", "four", true, "is not a quantity"),
        ("memory", "500mb", true, "is not a quantity"),
        ("memory", "-1Gi", true, "cannot be negative"),
        ("ephemeral-disk", "big", true, "is not a quantity"),
        ("maxPods", "1.5", true, "whole number"),
        ("gpu-count", "two", true, "whole number"),
        ("gpu-count", "2", false, "devices that nobody names"),
        ("labels", "a=b,c", false, "\"c\" is not key=value"),
        ("labels", "a b=c", false, "is not key=value with a valid label"),
        ("taints", "a=b", true, "\"a=b\" is not key=value:NoSchedule"),
        ("taints", "a=b:Sometimes", true, "is not key=value:NoSchedule"),
        ("csi-driver", "ebs.csi.aws.com", true, "driver=limit"),
        ("csi-driver", "ebs.csi.aws.com=many", true, "driver=limit"),
        ("price", "cheap", false, "price per hour"),
        ("price", "NaN", false, "price per hour"),
        ("cluster.x-k8s.io/machine-current-price", "-1", false, ""),
        (
            "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size",
            "-1",
            true,
            "whole number",
        ),
        (
            "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size",
            "ten",
            true,
            "whole number",
        ),
        (
            "cluster.x-k8s.io/autoscaling-options-scaledownunneededtime",
            "soon",
            false,
            "duration",
        ),
        (
            "cluster.x-k8s.io/autoscaling-options-scaledownutilizationthreshold",
            "half",
            false,
            "number",
        ),
    ];
    for (key, value, is_left_out, said) in rows {
        let wrong = usual("wrong", &[(key, value)]);
        let (described, findings) = describe(&wrong, &Settings::default());
        assert_eq!(described.is_none(), *is_left_out, "{key}={value}: {findings:?}");
        // A price that counts hides one that would not.
        if !said.is_empty() {
            let finding = findings.iter().find(|finding| finding.message.contains(said));
            let finding = finding.unwrap_or_else(|| panic!("{key}={value}: {findings:?}"));
            assert_eq!(finding.reason, FindingReason::InvalidAnnotation);
            assert_eq!(finding.object, wrong.reference);
            assert_eq!(finding.excludes, *is_left_out, "{finding}");
        }
    }
    let sizes = usual(
        "sizes",
        &[
            ("cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size", "3"),
            ("cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size", "2"),
        ],
    );
    let (described, findings) = describe(&sizes, &Settings::default());
    assert!(
        described.is_none() && findings[0].message.contains("the least size is 3"),
        "{findings:?}"
    );
}

#[test]
fn an_object_that_says_nothing_is_left_out_with_what_to_do() {
    let (described, findings) = describe(&source("bare", &[("cpu", "4")]), &Settings::default());
    assert!(described.is_none());
    assert_eq!(findings[0].reason, FindingReason::CapacityUnknown);
    assert!(
        findings[0]
            .message
            .starts_with("nothing says how much memory its machines have: set capacity."),
        "{}",
        findings[0]
    );
}

/// The annotation counts before the infrastructure provider's word, and that before a live node's.
#[test]
fn who_says_how_much_there_is() {
    let mut from = source("a", &[("memory", "32Gi")]);
    from.infrastructure = Infrastructure {
        capacity: [
            ("cpu", "8"),
            ("memory", "16Gi"),
            ("pods", "58"),
            ("example.com/nic", "2"),
        ]
        .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
        .into(),
        architecture: "arm64".to_owned(),
        operating_system: "windows".to_owned(),
    };
    from.live = Some(LiveNode {
        labels: [
            ("kubernetes.io/arch".to_owned(), "s390x".to_owned()),
            ("topology.kubernetes.io/zone".to_owned(), "z9".to_owned()),
        ]
        .into(),
        capacity: amounts(&[("cpu", "4"), ("ephemeral-storage", "50Gi")]),
        allocatable: amounts(&[("cpu", "3800m"), ("ephemeral-storage", "50Gi")]),
    });
    let described = shape(&from);
    let expected = amounts(&[
        ("cpu", "8"),
        ("memory", "32Gi"),
        ("pods", "58"),
        ("example.com/nic", "2"),
        ("ephemeral-storage", "50Gi"),
    ]);
    assert_eq!(described.capacity, expected);
    assert_eq!(described.labels["kubernetes.io/arch"], "arm64");
    assert_eq!(described.labels["kubernetes.io/os"], "windows");
    assert_eq!(described.zone, "z9", "only the live node knows");
    assert_eq!(
        described.overhead.total(),
        amounts(&[("cpu", "200m")]),
        "learnt from the live node"
    );
    assert_eq!(described.allocatable()["cpu"].milli_value(), 7800);
    from.infrastructure
        .capacity
        .insert("cpu".to_owned(), "lots".to_owned());
    let (described, findings) = describe(&from, &Settings::default());
    assert!(described.is_none());
    assert_eq!(findings[0].reason, FindingReason::InvalidCapacity);
}

#[test]
fn overhead_given_by_the_class() {
    let given = Overhead {
        kube_reserved: amounts(&[("cpu", "100m")]),
        system_reserved: amounts(&[("memory", "1Gi")]),
        eviction_threshold: amounts(&[("memory", "100Mi")]),
    };
    let settings = Settings {
        overhead: given,
        learn_overhead: false,
        ..Settings::default()
    };
    let mut from = usual("a", &[]);
    from.live = Some(LiveNode {
        capacity: amounts(&[("cpu", "4")]),
        allocatable: amounts(&[("cpu", "1")]),
        ..LiveNode::default()
    });
    let described = describe(&from, &settings).0.expect("a shape");
    assert_eq!(
        described.allocatable(),
        amounts(&[("cpu", "3900m"), ("memory", "15260Mi"), ("pods", "110")])
    );
}

#[test]
fn labels_and_where_they_come_from() {
    let mut from = usual(
        "a",
        &[(
            "labels",
            "tier=front,topology.kubernetes.io/zone=z1, node-role.kubernetes.io/edge=yes",
        )],
    );
    from.failure_domain = "z7".to_owned();
    from.template_labels = [
        ("node-role.kubernetes.io/edge", "no"),
        ("team.node-restriction.kubernetes.io/name", "blue"),
        ("a.node.cluster.x-k8s.io/b", "c"),
        ("private", "stays on the Machine"),
        ("evilnode.cluster.x-k8s.io/b", "not a subdomain"),
        ("cluster.x-k8s.io/interruptible", ""),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let described = shape(&from);
    let expected: BTreeMap<String, String> = [
        ("a.node.cluster.x-k8s.io/b", "c"),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/os", "linux"),
        ("node-role.kubernetes.io/edge", "yes"),
        ("team.node-restriction.kubernetes.io/name", "blue"),
        ("tier", "front"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    assert_eq!(described.labels, expected);
    assert_eq!(
        (described.zone.as_str(), described.capacity_type.as_str()),
        ("z1", "spot")
    );
    let old_name = shape(&usual(
        "a",
        &[("labels", "failure-domain.beta.kubernetes.io/zone=z3")],
    ));
    assert_eq!(old_name.zone, "z3");
    let settings = Settings {
        default_architecture: "arm64".to_owned(),
        ..Settings::default()
    };
    let described = describe(&usual("a", &[]), &settings).0.expect("a shape");
    assert_eq!(
        described.labels["kubernetes.io/arch"], "arm64",
        "CAPI_SCALE_ZERO_DEFAULT_ARCH"
    );
}

/// The template's taints, and the annotation's over them by key and effect.
#[test]
fn taints_are_merged_as_cluster_autoscaler_does() {
    let mut from = usual(
        "a",
        &[(
            "taints",
            "dedicated=gpu:NoSchedule,maintenance:NoExecute,dedicated=x:NoExecute",
        )],
    );
    from.template_taints = vec![
        taint("dedicated", "cpu", "NoSchedule"),
        taint("kept", "", "PreferNoSchedule"),
        taint("karpenter.sh/unregistered", "", "NoExecute"),
        taint("node.cluster.x-k8s.io/uninitialized", "", "NoSchedule"),
    ];
    assert_eq!(
        shape(&from).taints,
        [
            taint("dedicated", "gpu", "NoSchedule"),
            taint("kept", "", "PreferNoSchedule"),
            taint("maintenance", "", "NoExecute"),
            taint("dedicated", "x", "NoExecute"),
        ],
        "those that go once the node has started are not pods' business"
    );
}

#[test]
fn drivers() {
    let described = shape(&usual(
        "a",
        &[
            ("csi-driver", "ebs.csi.aws.com=25,other=16,unlimited=0"),
            ("dra-driver", "gpu.nvidia.com"),
            ("gpu-count", "8"),
        ],
    ));
    let limits: BTreeMap<String, u32> = [("ebs.csi.aws.com".to_owned(), 25), ("other".to_owned(), 16)].into();
    assert_eq!(described.volume_limits, limits);
    assert_eq!(
        described.devices,
        Some(Devices {
            driver: "gpu.nvidia.com".to_owned(),
            count: 8
        })
    );
    assert_eq!(
        described.capacity.len(),
        3,
        "devices of a driver are no resource: {:?}",
        described.capacity
    );
}

#[test]
fn options_and_the_group() {
    let own_group = Settings {
        group: "capi.example.com".to_owned(),
        ..Settings::default()
    };
    let from = usual(
        "a",
        &[
            ("capi.example.com/cluster-api-autoscaler-node-group-min-size", "1"),
            ("capi.example.com/cluster-api-autoscaler-node-group-max-size", "5"),
            (
                "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size",
                "99",
            ),
            (
                "capi.example.com/autoscaling-options-scaledownutilizationthreshold",
                "0.4",
            ),
            (
                "capi.example.com/autoscaling-options-scaledowngpuutilizationthreshold",
                "0.7",
            ),
            (
                "capi.example.com/autoscaling-options-scaledownunneededtime",
                "10m0s",
            ),
            ("capi.example.com/autoscaling-options-scaledownunreadytime", "1h"),
            ("capi.example.com/autoscaling-options-maxnodeprovisiontime", "45m"),
        ],
    );
    let described = describe(&from, &own_group).0.expect("a shape");
    assert_eq!(
        (described.min_size, described.max_size),
        (1, Some(5)),
        "CAPI_GROUP"
    );
    let options = described.options;
    assert_eq!(
        [
            options.scale_down_utilization_threshold,
            options.scale_down_gpu_utilization_threshold,
            options.scale_down_unneeded_time,
            options.scale_down_unready_time,
            options.max_node_provision_time,
        ],
        [Some(0.4), Some(0.7), Some(600.0), Some(3600.0), Some(2700.0)]
    );
    let first_group = usual(
        "a",
        &[("cluster.k8s.io/cluster-api-autoscaler-node-group-max-size", "7")],
    );
    assert_eq!(
        shape(&first_group).max_size,
        Some(7),
        "the group Cluster API had at first"
    );
    assert_eq!(shape(&usual("a", &[])).max_size, None, "no limit is no limit");
}

#[test]
fn prices_and_their_order() {
    let (list, errors) = PriceList::parse(
        "# per hour\nm5.large 0.10\nm5.large/z1 0.11 # dearer there\nm5.large/z1/spot 0.03\n\nodd\nm5.xlarge 1.2.3\na/b/c/d 1\n",
    );
    assert_eq!(
        errors.iter().map(|error| error.line).collect::<Vec<_>>(),
        [6, 7, 8]
    );
    let settings = Settings {
        prices: list,
        ..Settings::default()
    };
    let price = |more: &[(&str, &str)]| {
        let from = source("a", &[&[("cpu", "2"), ("memory", "8Gi")], more].concat());
        describe(&from, &settings).0.expect("a shape").price
    };
    let named = "node.kubernetes.io/instance-type=m5.large";
    let in_z1 = format!("{named},topology.kubernetes.io/zone=z1");
    let spot = format!("{in_z1},karpenter.sh/capacity-type=spot");
    for (annotations, expected) in [
        (vec![("labels", named)], Price::Known(0.10)),
        (vec![("labels", in_z1.as_str())], Price::Known(0.11)),
        (vec![("labels", spot.as_str())], Price::Known(0.03)),
        (vec![("labels", named), ("price", "0.5")], Price::Known(0.5)),
        (
            vec![
                ("labels", named),
                ("cluster.x-k8s.io/machine-current-price", "0.6"),
            ],
            Price::Known(0.6),
        ),
        (
            vec![
                ("price", "0.5"),
                ("cluster.x-k8s.io/machine-current-price", "0.6"),
            ],
            Price::Known(0.5),
        ),
        (
            vec![
                ("price", "odd"),
                ("cluster.x-k8s.io/machine-current-price", "0.6"),
            ],
            Price::Known(0.6),
        ),
        (vec![], Price::Guessed(0.12)),
    ] {
        assert_eq!(price(&annotations), expected, "{annotations:?}");
    }
    let (_, findings) = describe(
        &source("a", &[("cpu", "2"), ("memory", "8Gi")]),
        &Settings::default(),
    );
    assert_eq!(findings[0].reason, FindingReason::PriceUnknown);
    assert!(!findings[0].excludes);
}

#[test]
fn paused_and_full_objects_offer_nothing_now() {
    let mut paused = usual("a", &[]);
    paused.is_paused = true;
    assert_eq!(shape(&paused).unavailable.as_deref(), Some("it is paused"));
    let mut full = usual(
        "a",
        &[("cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size", "3")],
    );
    full.replicas = 3;
    assert_eq!(
        shape(&full).unavailable.as_deref(),
        Some("it has 3 of at most 3 replicas")
    );
    full.replicas = 2;
    assert_eq!(shape(&full).unavailable, None);
}

#[test]
fn which_objects_a_class_takes() {
    let class = |labels: &[&str], selector: Option<(&str, &str)>| ClusterAPINodeClassSpec {
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        scalable_resource_selector: selector.map(|(key, value)| {
            k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector {
                match_labels: Some([(key.to_owned(), value.to_owned())].into()),
                ..Default::default()
            }
        }),
        ..Default::default()
    };
    let labelled = |labels: &[(&str, &str)]| {
        let mut source = usual("a", &[]);
        source.labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        source
    };
    let member = ("node.cluster.x-k8s.io/karpenter-member", "");
    let no_scope = Scope::default();
    let verdict = |class: &ClusterAPINodeClassSpec, source: &Source| {
        admits(class, &no_scope, "cluster.x-k8s.io", source)
    };
    // Inclusive: every label is needed, with its value where one is named.
    let both = class(&["tier=edge", "gpu"], None);
    assert_eq!(
        verdict(&both, &labelled(&[("tier", "edge"), ("gpu", "any")])),
        Ok(())
    );
    assert_eq!(
        verdict(&both, &labelled(&[("tier", "edge")])),
        Err(Refused::LacksLabel("gpu".to_owned()))
    );
    assert_eq!(
        verdict(&both, &labelled(&[("tier", "core"), ("gpu", "any")])),
        Err(Refused::LacksLabel("tier=edge".to_owned()))
    );
    // The Go provider's selector, and its opt-in beside it.
    let selector = class(&[], Some(("pool", "a")));
    assert_eq!(verdict(&selector, &labelled(&[("pool", "a"), member])), Ok(()));
    assert_eq!(
        verdict(&selector, &labelled(&[("pool", "b"), member])),
        Err(Refused::NotSelected)
    );
    assert_eq!(
        verdict(&selector, &labelled(&[("pool", "a")])),
        Err(Refused::NotOptedIn)
    );
    // A Cluster Autoscaler user's objects are opted in by their most.
    let mut of_cluster_autoscaler = usual(
        "a",
        &[("cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size", "3")],
    );
    assert_eq!(verdict(&class(&[], None), &of_cluster_autoscaler), Ok(()));
    assert_eq!(
        verdict(&class(&[], None), &usual("a", &[])),
        Err(Refused::NotOptedIn)
    );
    // Never of another kind, namespace or Cluster.
    let mut pools = class(&[], None);
    pools.scalable_resource = Some(ScalableResourceType {
        kind: "MachinePool".to_owned(),
        ..Default::default()
    });
    assert_eq!(
        verdict(&pools, &of_cluster_autoscaler),
        Err(Refused::OtherKind("MachineDeployment".to_owned()))
    );
    let scope = Scope {
        cluster_name: Some("one".to_owned()),
        namespace: Some("fleet".to_owned()),
    };
    let open = class(&[], None);
    assert_eq!(
        admits(&open, &scope, "cluster.x-k8s.io", &of_cluster_autoscaler),
        Ok(())
    );
    of_cluster_autoscaler.cluster_name = "two".to_owned();
    assert_eq!(
        admits(&open, &scope, "cluster.x-k8s.io", &of_cluster_autoscaler),
        Err(Refused::OtherCluster("two".to_owned()))
    );
    of_cluster_autoscaler.reference.namespace = "other".to_owned();
    assert_eq!(
        admits(&open, &scope, "cluster.x-k8s.io", &of_cluster_autoscaler),
        Err(Refused::OtherNamespace("other".to_owned()))
    );
    let mut owned = usual("a", &[]);
    owned.is_owned = true;
    assert_eq!(verdict(&both, &owned), Err(Refused::Owned));
}

fn of(shapes: &[Shape]) -> slipway_autoscaler::instances::Catalog {
    catalog(shapes, "general", &BTreeSet::new(), &[])
}

#[test]
fn equal_machines_in_several_zones_are_one_type() {
    let at = |name: &str, zone: &str, price: &str| {
        let labels = format!("node.kubernetes.io/instance-type=m5.xlarge,topology.kubernetes.io/zone={zone}");
        shape(&usual(name, &[("labels", &labels), ("price", price)]))
    };
    let made = of(&[at("c", "z2", "0.3"), at("a", "z1", "0.2"), at("b", "z3", "0.2")]);
    assert_eq!(made.types.len(), 1);
    let kind = &made.types[0];
    assert_eq!(kind.name, "m5.xlarge");
    let zones: Vec<_> = kind
        .offerings
        .iter()
        .map(|offering| (offering.requirements[1].values[0].as_str(), offering.price))
        .collect();
    assert_eq!(zones, [("z1", 0.2), ("z2", 0.3), ("z3", 0.2)]);
    let names: Vec<_> = made.offered["m5.xlarge"]
        .iter()
        .map(|offered| offered.reference.name.as_str())
        .collect();
    assert_eq!(names, ["a", "c", "b"], "in the order of the offerings");
    assert!(kind.requirements.contains(&RequirementSpec::new(
        "topology.kubernetes.io/zone",
        Operator::In,
        &["z1", "z2", "z3"]
    )));
    // The same name for other machines is another type.
    let mut bigger = at("d", "z1", "0.4");
    bigger.capacity = amounts(&[("cpu", "8"), ("memory", "32Gi"), ("pods", "110")]);
    let made = of(&[at("a", "z1", "0.2"), bigger]);
    let names: Vec<_> = made.types.iter().map(|kind| kind.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "m5.xlarge@MachineDeployment/fleet/a",
            "m5.xlarge@MachineDeployment/fleet/d"
        ]
    );
    // Without a name, the size is one.
    let made = of(&[shape(&usual("a", &[])), shape(&usual("b", &[]))]);
    assert_eq!(made.types.len(), 1);
    assert_eq!(made.types[0].name, "4cpu-16gi");
}

fn pool(taints: &[Taint]) -> NodePool {
    let mut pool = NodePool::default();
    "general".clone_into(&mut pool.metadata.name);
    pool.spec.template.spec.taints = taints.to_vec();
    pool
}

fn pod(name: &str, cpu: &str, selector: &[(&str, &str)]) -> Pod {
    let mut pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]},
    }))
    .expect("a pod");
    pod.spec.node_selector = selector
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    pod
}

fn planned(shapes: &[Shape], pools: &[NodePool], pods: &[Pod]) -> Plan {
    let taints: Vec<Taint> = pools
        .iter()
        .flat_map(|pool| pool.spec.template.spec.taints.clone())
        .collect();
    let made = catalog(shapes, "general", &BTreeSet::new(), &taints);
    let snapshot = Snapshot {
        node_pools: pools.to_vec(),
        instance_types: [("general".to_owned(), made.types)].into(),
        options: Options {
            well_known_labels: made.well_known_labels,
            ..Options::default()
        },
        ..Snapshot::default()
    };
    schedule(&snapshot, pods)
}

/// A pod may select on what the object says of its nodes, and is not given a node of an object that says nothing of it.
#[test]
fn pods_select_on_labels_of_objects() {
    let (front, plain) = (
        shape(&usual("a", &[("labels", "tier=front")])),
        shape(&usual("b", &[("price", "0.1")])),
    );
    let plan = planned(
        &[front.clone(), plain.clone()],
        &[pool(&[])],
        &[pod("p", "1", &[("tier", "front")])],
    );
    let types: Vec<_> = plan.new_claims[0].instance_types.iter().cloned().collect();
    assert_eq!(types, ["4cpu-16gi@MachineDeployment/fleet/a"]);
    let plan = planned(
        &[front, plain],
        &[pool(&[])],
        &[pod("p", "1", &[("tier", "back")])],
    );
    assert_eq!(plan.new_claims.len(), 0);
    assert_eq!(plan.unschedulable[0].reason, RefusalReason::Unschedulable);
}

/// An object whose nodes carry a taint that the NodePool does not declare would be given to pods that cannot run there.
#[test]
fn undeclared_taints_leave_an_object_out() {
    let tainted = shape(&usual("a", &[("taints", "dedicated=gpu:NoSchedule")]));
    let made = of(std::slice::from_ref(&tainted));
    assert!(made.types.is_empty());
    assert_eq!(made.findings[0].reason, FindingReason::UndeclaredTaint);
    assert!(
        made.findings[0]
            .message
            .contains("dedicated=gpu:NoSchedule, which NodePool general does not declare")
    );
    let declared = [taint("dedicated", "gpu", "NoSchedule")];
    let made = catalog(&[tainted], "general", &BTreeSet::new(), &declared);
    assert_eq!(made.types.len(), 1);
    let soft = shape(&usual("a", &[("taints", "dedicated=gpu:PreferNoSchedule")]));
    assert_eq!(of(&[soft]).types.len(), 1);
}

#[test]
fn pods_with_dynamic_resources_are_refused_with_a_reason() {
    let mut needs = pod("p", "1", &[]);
    needs.spec.resource_claims =
        serde_json::from_value(serde_json::json!([{"name": "gpu"}])).expect("claims");
    let devices = shape(&usual(
        "a",
        &[("dra-driver", "gpu.nvidia.com"), ("gpu-count", "1")],
    ));
    let plan = planned(&[devices], &[pool(&[])], &[needs, pod("q", "1", &[])]);
    assert_eq!(plan.unschedulable.len(), 1);
    assert_eq!(plan.unschedulable[0].reason, RefusalReason::DynamicResources);
    assert!(
        plan.unschedulable[0]
            .message
            .contains("Dynamic Resource Allocation")
    );
    assert_eq!(plan.new_claims[0].pods, ["default/q"], "the other goes on");
}

#[test]
fn the_cheapest_that_fits_is_chosen_and_zones_stay_even() {
    let at = |name: &str, zone: &str, price: &str| {
        shape(&usual(
            name,
            &[
                ("labels", &format!("topology.kubernetes.io/zone={zone}")),
                ("price", price),
            ],
        ))
    };
    let shapes = [
        at("dear", "z1", "0.4"),
        at("a", "z1", "0.2"),
        at("b", "z2", "0.2"),
        at("c", "z3", "0.1"),
    ];
    let demand = |requirements: Vec<RequirementSpec>, cpu: &str| Demand {
        requirements,
        requests: amounts(&[("cpu", cpu)]),
        taints: Vec::new(),
    };
    let even = BTreeMap::new();
    let name = |demand: &Demand, nodes: &BTreeMap<String, usize>| {
        choose(demand, &shapes, nodes).map(|choice| choice.shape.reference.name.clone())
    };
    assert_eq!(name(&demand(vec![], "1"), &even), Ok("c".to_owned()));
    let not_z3 = || {
        vec![RequirementSpec::new(
            "topology.kubernetes.io/zone",
            Operator::NotIn,
            &["z3"],
        )]
    };
    assert_eq!(name(&demand(not_z3(), "1"), &even), Ok("a".to_owned()));
    let busy = BTreeMap::from([("z1".to_owned(), 3), ("z2".to_owned(), 1)]);
    assert_eq!(
        name(&demand(not_z3(), "1"), &busy),
        Ok("b".to_owned()),
        "the emptier zone at the same price"
    );
    let refused = name(&demand(vec![], "5"), &even).expect_err("nothing is that large");
    assert_eq!(refused.by_object.len(), 4);
    assert!(
        refused
            .to_string()
            .contains("MachineDeployment/fleet/a: 5 of cpu are asked for and it has 4"),
        "{refused}"
    );
}
