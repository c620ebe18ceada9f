//! The known defects of karpenter-provider-cluster-api (v0.2.0 and main of June 2026), one test each: what ours must do, and
//! the same question put to a model of what the Go sources do, which must fail. A test that both pass would prove nothing.

use std::collections::{BTreeMap, BTreeSet};

use slipway_autoscaler::{
    api::{ClusterAPINodeClassSpec, ScalableResourceType, names::label},
    instances::{
        Demand, Price, Scope, Settings, Shape, Source, SourceKind, admits, catalog, choose, describe,
    },
    lifecycle::{NodeFacts, progress},
};
use slipway_packing::{
    model::{NodeClaim, NodePool, Options, Plan, Pod, Snapshot},
    quantity::Quantity,
    requirement::{Operator, Requirement, RequirementSpec},
    requirements::{Requirements, Undefined},
    schedule,
};

use crate::{
    instances::{amounts, shape, source, taint, usual},
    lifecycle::{facts, node},
    world::{
        Autoscaler::{self, Go, Ours},
        World,
    },
};

type Verdict = Result<(), String>;

fn ensure(holds: bool, otherwise: impl std::fmt::Display) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise.to_string()) }
}

/// Ours passes and the model of the Go provider does not.
fn ours_alone(scenario: impl Fn(Autoscaler) -> Verdict) {
    assert_eq!(scenario(Ours), Ok(()));
    let go = scenario(Go);
    assert!(
        go.is_err(),
        "the Go provider's rules pass too: the test proves nothing"
    );
    println!("the Go provider: {go:?}");
}

/// One claim without a provider id stops Karpenter's core from planning anything. Here it is capacity on its way.
#[test]
fn d1_a_claim_without_a_provider_id_blocks_nobody() {
    ours_alone(|autoscaler| {
        let mut pool = NodePool::default();
        pool.metadata.name = "general".to_owned();
        let mut claim = NodeClaim::default();
        claim.metadata.name = "slow".to_owned();
        claim.metadata.labels = [(label::NODE_POOL.to_owned(), "general".to_owned())].into();
        claim.status.capacity = amounts(&[("cpu", "4"), ("memory", "16Gi"), ("pods", "110")]);
        claim.status.allocatable = claim.status.capacity.clone();
        let is_synced = autoscaler == Ours || !claim.status.provider_id.is_empty();
        let made = catalog(&[shape(&usual("a", &[]))], "general", &BTreeSet::new(), &[]);
        let snapshot = Snapshot {
            node_pools: vec![pool],
            instance_types: [("general".to_owned(), made.types)].into(),
            node_claims: vec![claim],
            options: Options::default(),
            ..Snapshot::default()
        };
        let pods: Vec<Pod> = ["one", "two", "three"]
            .map(|name| {
                serde_json::from_value(serde_json::json!({
                    "metadata": {"name": name, "namespace": "default", "uid": name},
                    "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]},
                }))
                .expect("a pod")
            })
            .into();
        let plan = if is_synced {
            schedule(&snapshot, &pods)
        } else {
            Plan::default()
        };
        let placed = plan.existing.iter().map(|node| node.pods.len()).sum::<usize>() + plan.new_claims.len();
        ensure(
            placed == 3 && plan.new_claims.len() == 2,
            format!(
                "{placed} of 3 pods have a place, {} claims",
                plan.new_claims.len()
            ),
        )
    });
}

/// A claim that is given up before its machine has a provider id takes its Machine with it.
#[test]
fn d2_a_launch_timeout_leaves_no_machine() {
    ours_alone(|autoscaler| {
        let mut world = World::new(2);
        let uid = world.claim();
        world.reconcile(autoscaler);
        world.cluster_api_times(3);
        world.reconcile(autoscaler);
        world.leave(&uid);
        if autoscaler == Go {
            // Core asks the provider to delete only what has a provider id.
            world.claims.clear();
        }
        world.settle(autoscaler);
        ensure(
            world.machines.is_empty() && world.replicas == 0,
            format!("{} Machines, {} replicas", world.machines.len(), world.replicas),
        )
    });
}

#[test]
fn d3_replicas_do_not_run_away_while_no_machine_comes() {
    ours_alone(|autoscaler| {
        let mut world = World::new(3);
        world.claim();
        world.claim();
        world.is_down = true;
        for _ in 0..10 {
            world.reconcile(autoscaler);
        }
        ensure(
            world.replicas == 2,
            format!("{} replicas for 2 claims", world.replicas),
        )
    });
}

#[test]
fn d4_replicas_fall_once_for_a_claim() {
    ours_alone(|autoscaler| {
        let mut world = World::new(4);
        let first = world.claim();
        world.claim();
        world.claim();
        world.settle(autoscaler);
        world.leave(&first);
        world.is_down = true;
        for _ in 0..5 {
            world.reconcile(autoscaler);
        }
        let replicas = world.replicas;
        world.is_down = false;
        world.settle(autoscaler);
        ensure(
            replicas == 2,
            format!("{replicas} replicas for the 2 claims that stay"),
        )?;
        world.judge()
    });
}

#[test]
fn d5_claims_follow_a_rollout() {
    ours_alone(|autoscaler| {
        let mut world = World::new(5);
        let first = world.claim();
        world.claim();
        world.claim();
        world.settle(autoscaler);
        world.revision = 1;
        world.cluster_api();
        world.reconcile(autoscaler);
        // A claim leaves in the middle of it: the smaller count may fall on another Machine than the marked one.
        world.leave(&first);
        for _ in 0..40 {
            world.reconcile(autoscaler);
            world.cluster_api();
        }
        world.settle(autoscaler);
        world.judge()?;
        ensure(
            world.standing().all(|machine| machine.revision == 1),
            "the rollout did not end",
        )
    });
}

#[test]
fn d6_the_opt_in_label_in_a_template_binds_nothing() {
    ours_alone(|autoscaler| {
        let mut world = World::new(6);
        world.template_is_member = true;
        world.claim();
        world.settle(autoscaler);
        ensure(
            world.replicas == 1,
            format!("{} replicas for one claim", world.replicas),
        )?;
        world.judge()
    });
}

fn demand(requirements: Vec<RequirementSpec>, cpu: &str) -> Demand {
    Demand {
        requirements,
        requests: amounts(&[("cpu", cpu)]),
        taints: Vec::new(),
    }
}

/// The Go provider's way to choose: the asked-for requirements must define every label of the type; then the first by name.
fn go_choose<'a>(demand: &Demand, shapes: &'a [Shape]) -> Result<&'a Shape, String> {
    let asked = Requirements::from_specs(&demand.requirements);
    let mut fitting: Vec<&Shape> = shapes
        .iter()
        .filter(|shape| {
            let labels: Requirements = shape
                .claim_labels()
                .iter()
                .map(|(key, value)| Requirement::one_of(key, [value.as_str()]))
                .collect();
            asked.compatible(&labels, Undefined::WellKnown(&[])).is_ok()
        })
        // Nothing is kept for the system.
        .filter(|shape| {
            demand
                .requests
                .iter()
                .all(|(name, amount)| shape.capacity.get(name).is_some_and(|has| has >= amount))
        })
        .filter(|shape| shape.unavailable.is_none())
        .collect();
    fitting.sort_by_key(|shape| shape.instance_type.to_lowercase());
    fitting
        .first()
        .copied()
        .ok_or_else(|| "insufficient capacity".to_owned())
}

fn chosen<'a>(autoscaler: Autoscaler, demand: &Demand, shapes: &'a [Shape]) -> Result<&'a Shape, String> {
    match autoscaler {
        Ours => choose(demand, shapes, &BTreeMap::new())
            .map(|choice| choice.shape)
            .map_err(|error| error.to_string()),
        Go => go_choose(demand, shapes),
    }
}

#[test]
fn d7_what_planning_accepts_can_be_launched() {
    ours_alone(|autoscaler| {
        let shapes = [shape(&usual("a", &[("labels", "team=blue")]))];
        let asked = demand(
            vec![RequirementSpec::new(
                "kubernetes.io/arch",
                Operator::In,
                &["amd64"],
            )],
            "1",
        );
        chosen(autoscaler, &asked, &shapes).map(drop)
    });
}

#[test]
fn d8_a_typo_in_an_annotation_harms_its_object_alone() {
    ours_alone(|autoscaler| {
        let sources = [usual("good", &[]), usual("typo", &[("memory", "500mb")])];
        let usable = match autoscaler {
            Ours => sources
                .iter()
                .filter_map(|source| describe(source, &Settings::default()).0)
                .count(),
            Go => {
                let mut read = 0;
                for source in &sources {
                    let text = &source.annotations["capacity.cluster-autoscaler.kubernetes.io/memory"];
                    text.parse::<Quantity>()
                        .map_err(|error| format!("panic: {error}"))?;
                    read += 1;
                }
                read
            }
        };
        ensure(usable == 1, format!("{usable} objects can be used"))
    });
}

#[test]
fn d9_taints_of_the_nodes_count() {
    ours_alone(|autoscaler| {
        let mut tainted = usual("tainted", &[]);
        tainted.template_taints = vec![taint("dedicated", "gpu", "NoSchedule")];
        let by_annotation = usual("annotated", &[("taints", "dedicated=gpu:NoSchedule")]);
        for source in [tainted, by_annotation] {
            let shapes = [shape(&source)];
            // The pod tolerates nothing.
            ensure(
                chosen(autoscaler, &demand(vec![], "1"), &shapes).is_err(),
                "a node that the pod does not tolerate was chosen",
            )?;
        }
        Ok(())
    });
}

#[test]
fn d10_prices_and_what_the_system_keeps_count() {
    ours_alone(|autoscaler| {
        let named = |name: &str, price: &str| {
            shape(&usual(
                name,
                &[
                    ("labels", &format!("node.kubernetes.io/instance-type={name}")),
                    ("price", price),
                ],
            ))
        };
        let shapes = [named("a-dear-one", "2.0"), named("z-cheap-one", "0.1")];
        let found = chosen(autoscaler, &demand(vec![], "1"), &shapes)?;
        ensure(
            found.price == Price::Known(0.1),
            format!("{} was chosen", found.instance_type),
        )?;
        let mut full = shapes[0].clone();
        full.overhead.kube_reserved = amounts(&[("cpu", "200m")]);
        ensure(
            chosen(autoscaler, &demand(vec![], "4"), &[full]).is_err(),
            "a pod as large as the machine was given it",
        )
    });
}

#[test]
fn d11_other_clusters_machines_are_left_alone() {
    ours_alone(|autoscaler| {
        let mut foreign = usual("a", &[]);
        foreign.labels = [(label::MEMBER.to_owned(), String::new())].into();
        foreign.cluster_name = "two".to_owned();
        let scope = Scope {
            cluster_name: Some("one".to_owned()),
            namespace: None,
        };
        let is_taken = match autoscaler {
            Ours => admits(
                &ClusterAPINodeClassSpec::default(),
                &scope,
                "cluster.x-k8s.io",
                &foreign,
            )
            .is_ok(),
            Go => foreign.labels.contains_key(label::MEMBER),
        };
        ensure(!is_taken, "a MachineDeployment of another Cluster is scaled")
    });
}

#[test]
fn d12_sizes_hold_at_the_write() {
    ours_alone(|autoscaler| {
        let mut world = World::new(12);
        for _ in 0..9 {
            world.claim();
        }
        world.settle(autoscaler);
        world.max_size = Some(10);
        for _ in 0..5 {
            world.claim();
        }
        world.reconcile(autoscaler);
        ensure(
            world.replicas <= 10,
            format!("{} replicas of at most 10", world.replicas),
        )
    });
    ours_alone(|autoscaler| {
        let mut world = World::new(12);
        let uid = world.claim();
        world.settle(autoscaler);
        world.min_size = 1;
        world.leave(&uid);
        world.settle(autoscaler);
        ensure(
            world.replicas >= 1,
            format!("{} replicas of at least 1", world.replicas),
        )
    });
}

#[test]
fn d13_one_bad_object_does_not_end_the_list() {
    ours_alone(|autoscaler| {
        let sources: Vec<Source> = vec![usual("good", &[]), source("without", &[]), usual("other", &[])];
        let listed: Result<usize, String> = match autoscaler {
            Ours => Ok(sources
                .iter()
                .filter_map(|source| describe(source, &Settings::default()).0)
                .count()),
            Go => sources.iter().try_fold(0, |count, source| {
                let says = source
                    .annotations
                    .contains_key("capacity.cluster-autoscaler.kubernetes.io/cpu");
                if says {
                    Ok(count + 1)
                } else {
                    Err("the list ends at an object without cpu".to_owned())
                }
            }),
        };
        ensure(listed? == 2, "two objects are good")
    });
}

#[test]
fn d14_a_claim_whose_machine_is_gone_gets_another() {
    ours_alone(|autoscaler| {
        let mut world = World::new(14);
        world.claim();
        world.claims[0].machine = Some("machine-of-old".to_owned());
        world.settle(autoscaler);
        world.judge()
    });
}

#[test]
fn d15_one_name_stands_for_one_type() {
    ours_alone(|autoscaler| {
        let at = |name: &str, zone: &str| {
            let labels =
                format!("node.kubernetes.io/instance-type=m5.large,topology.kubernetes.io/zone={zone}");
            shape(&usual(name, &[("labels", &labels)]))
        };
        let unnamed = shape(&usual("d", &[("cpu", "8")]));
        let shapes = [at("a", "z1"), at("b", "z2"), at("c", "z3"), unnamed];
        let names: Vec<String> = match autoscaler {
            Ours => catalog(&shapes, "general", &BTreeSet::new(), &[])
                .types
                .into_iter()
                .map(|kind| kind.name)
                .collect(),
            Go => shapes
                .iter()
                .map(|shape| {
                    if shape.name_is_made_up {
                        String::new()
                    } else {
                        shape.instance_type.clone()
                    }
                })
                .collect(),
        };
        let distinct: BTreeSet<&String> = names.iter().collect();
        ensure(
            distinct.len() == names.len() && !names.contains(&String::new()),
            format!("{names:?}"),
        )
    });
}

#[test]
fn d16_claims_get_the_labels_that_pools_ask_for() {
    ours_alone(|autoscaler| {
        let source = usual("a", &[("labels", "tier=front")]);
        let labels: BTreeSet<String> = match autoscaler {
            Ours => shape(&source).claim_labels().into_keys().collect(),
            Go => ["tier".to_owned()].into(),
        };
        for needed in [
            label::CAPACITY_TYPE,
            label::INSTANCE_TYPE,
            label::ARCHITECTURE,
            label::OPERATING_SYSTEM,
        ] {
            ensure(
                labels.contains(needed),
                format!("{needed} is missing, so the claim drifts at once"),
            )?;
        }
        Ok(())
    });
}

/// A Node registers with or without the taint that a bootstrap template would have to give it.
#[test]
fn d17_the_taint_of_unregistered_nodes_is_nobodys_duty() {
    ours_alone(|autoscaler| {
        let without = NodeFacts {
            taints: Vec::new(),
            ..node()
        };
        for joined in [node(), without] {
            let is_registered = match autoscaler {
                Ours => {
                    progress(
                        &facts(Some("m"), std::slice::from_ref(&joined)),
                        jiff::Timestamp::UNIX_EPOCH,
                    )
                    .registered
                    .holds
                }
                Go => joined
                    .taints
                    .iter()
                    .any(|taint| taint.key == "karpenter.sh/unregistered"),
            };
            ensure(is_registered, "the bootstrap template has to register the taint")?;
        }
        Ok(())
    });
}

/// Objects are read in v1beta2, where references have no version and taints are part of the template.
#[test]
fn d18_objects_are_read_in_the_contracts_current_version() {
    ours_alone(|autoscaler| {
        let object = serde_json::json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": "workers", "namespace": "fleet", "labels": {"pool": ""}},
            "spec": {"clusterName": "one", "replicas": 2, "template": {"metadata": {"labels": {"node.cluster.x-k8s.io/a": "b"}},
                "spec": {"clusterName": "one", "failureDomain": "z1",
                    "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "EdgeMachineTemplate", "name": "m"},
                    "taints": [{"key": "edge", "effect": "NoSchedule", "propagation": "Always"}]}}},
        });
        match autoscaler {
            Ours => {
                let view = serde_json::from_value(object).map_err(|error| error.to_string())?;
                let source = slipway_autoscaler::read::machine_deployment(&view, None);
                let seen = (
                    source.reference.to_string(),
                    source.replicas,
                    source.failure_domain.as_str(),
                    source.template_taints.len(),
                );
                ensure(
                    seen == ("MachineDeployment/fleet/workers".to_owned(), 2, "z1", 1),
                    format!("{seen:?}"),
                )
            }
            // Its types know references with an apiVersion, and no taints.
            Go => ensure(
                object["apiVersion"] == "cluster.x-k8s.io/v1beta1"
                    && object["spec"]["template"]["spec"]["infrastructureRef"]["apiVersion"].is_string(),
                "v1beta1 is not what is served",
            ),
        }
    });
}

/// Two reconciles on the same view, as with a cache that lags or two processes.
#[test]
fn d19_a_stale_view_does_not_scale_twice() {
    ours_alone(|autoscaler| {
        let mut world = World::new(19);
        world.claim();
        world.is_down = true;
        let view = world.clone();
        for _ in 0..2 {
            match autoscaler {
                Ours => world.reconcile_on(&view, usize::MAX),
                Go => world.reconcile(Go),
            }
        }
        ensure(
            world.replicas == 1,
            format!("{} replicas for one claim", world.replicas),
        )
    });
}

#[test]
fn d20_every_kind_and_the_templates_word_on_capacity() {
    ours_alone(|autoscaler| {
        for kind in [
            "MachineDeployment",
            "MachineSet",
            "MachinePool",
            "EdgeMachineTemplate",
        ] {
            let mut class = ClusterAPINodeClassSpec {
                labels: vec!["pool".to_owned()],
                ..Default::default()
            };
            class.scalable_resource = Some(ScalableResourceType {
                kind: kind.to_owned(),
                ..Default::default()
            });
            let mut source = source("a", &[]);
            source.reference.kind = SourceKind::of_type(&class.scalable_resource.clone().unwrap_or_default());
            source.labels = [("pool".to_owned(), String::new())].into();
            source.infrastructure.capacity = [
                ("cpu".to_owned(), "4".to_owned()),
                ("memory".to_owned(), "8Gi".to_owned()),
            ]
            .into();
            let is_usable = match autoscaler {
                Ours => {
                    admits(&class, &Scope::default(), "cluster.x-k8s.io", &source).is_ok()
                        && describe(&source, &Settings::default()).0.is_some()
                }
                Go => {
                    kind == "MachineDeployment"
                        && source
                            .annotations
                            .contains_key("capacity.cluster-autoscaler.kubernetes.io/cpu")
                }
            };
            ensure(is_usable, format!("{kind} cannot be used"))?;
        }
        Ok(())
    });
}

#[test]
fn d21_a_health_check_leaves_claims_and_machines_one_to_one() {
    ours_alone(|autoscaler| {
        let mut world = World::new(21);
        world.claim();
        world.claim();
        world.settle(autoscaler);
        world.delete_from_outside(0);
        world.settle(autoscaler);
        world.judge()?;
        ensure(
            world.machines.len() == 2,
            format!("{} Machines for 2 claims", world.machines.len()),
        )
    });
}
