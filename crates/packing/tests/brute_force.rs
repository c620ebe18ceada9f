//! Every way to put up to eight pods on new nodes of a tiny catalogue, tried one after the other: what the crate refuses
//! fits nowhere, and no plan of its own uses fewer nodes than the least that is possible.

use serde_json::{Value, json};
use slipway_packing::model::Workload;

use crate::differential::random::Random;
use crate::judged::schedule;

const ZONE: &str = "topology.kubernetes.io/zone";
const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";

struct Kind {
    milli_cpu: usize,
    mebibytes: usize,
    pods: usize,
    zones: Vec<&'static str>,
    tainted: bool,
}

struct PodSize {
    milli_cpu: usize,
    mebibytes: usize,
    zone: Option<&'static str>,
    port: Option<i32>,
    tolerates: bool,
    /// Pods of one group keep off each other's nodes.
    alone_in_group: Option<usize>,
}

fn catalogue(random: &mut Random) -> Vec<Kind> {
    (0..random.between(1, 4))
        .map(|_| Kind {
            milli_cpu: random.pick(&[1000, 2000, 4000]),
            mebibytes: random.pick(&[1024, 4096]),
            pods: random.pick(&[2, 3, 10]),
            zones: random.some(&["zone-1", "zone-2"]),
            tainted: random.chance(30),
        })
        .collect()
}

fn required(random: &mut Random) -> Vec<PodSize> {
    (0..random.between(1, 8))
        .map(|_| PodSize {
            milli_cpu: random.pick(&[100, 500, 900, 1500, 3000, 5000]),
            mebibytes: random.pick(&[64, 700, 2000]),
            zone: if random.chance(30) {
                Some(random.pick(&["zone-1", "zone-2", "zone-3"]))
            } else {
                None
            },
            port: random.chance(20).then(|| random.pick(&[80, 443])),
            tolerates: random.chance(50),
            alone_in_group: random.chance(25).then(|| random.between(0, 1)),
        })
        .collect()
}

/// One pool for tainted types and one for the others, so that a taint belongs to the type.
fn workload(kinds: &[Kind], required: &[PodSize]) -> Value {
    let types = |tainted: bool| -> Vec<Value> {
        kinds
            .iter()
            .enumerate()
            .filter(|(_, kind)| kind.tainted == tainted)
            .map(|(index, kind)| {
                let offerings: Vec<Value> = kind
                    .zones
                    .iter()
                    .map(|zone| {
                        json!({"price": 1.0, "requirements": [
                            {"key": ZONE, "operator": "In", "values": [zone]},
                            {"key": CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}]})
                    })
                    .collect();
                json!({
                    "name": format!("t{index}"),
                    "requirements": [
                        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [format!("t{index}")]},
                        {"key": ZONE, "operator": "In", "values": kind.zones},
                        {"key": CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}],
                    "capacity": {"cpu": format!("{}m", kind.milli_cpu), "memory": format!("{}Mi", kind.mebibytes),
                                 "pods": kind.pods.to_string()},
                    "offerings": offerings,
                })
            })
            .collect()
    };
    let pods: Vec<Value> = required
        .iter()
        .enumerate()
        .map(|(index, pod)| {
            let mut spec = json!({"containers": [{"name": "main", "resources": {"requests": {
                "cpu": format!("{}m", pod.milli_cpu), "memory": format!("{}Mi", pod.mebibytes)}}}]});
            if let Some(zone) = pod.zone {
                spec["nodeSelector"] = json!({ZONE: zone});
            }
            if let Some(port) = pod.port {
                spec["containers"][0]["ports"] = json!([{"containerPort": port, "hostPort": port}]);
            }
            if pod.tolerates {
                spec["tolerations"] = json!([{"key": "dedicated", "operator": "Exists"}]);
            }
            let mut labels = json!({});
            if let Some(group) = pod.alone_in_group {
                labels["group"] = json!(group.to_string());
                spec["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "kubernetes.io/hostname",
                     "labelSelector": {"matchLabels": {"group": group.to_string()}}}]}});
            }
            json!({"metadata": {"name": format!("pod-{index}"), "namespace": "default",
                                "uid": format!("pod-{index}"), "labels": labels}, "spec": spec})
        })
        .collect();
    json!({
        "nodePools": [
            {"metadata": {"name": "open"}, "spec": {"weight": 2, "template": {"spec": {"requirements": []}}}},
            {"metadata": {"name": "tainted"}, "spec": {"template": {"spec": {"requirements": [],
                "taints": [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]}}}},
        ],
        "instanceTypes": {"open": types(false), "tainted": types(true)},
        "pods": pods,
    })
}

/// Whether one node of some type in some zone holds all of these.
fn fits(kinds: &[Kind], pods: &[&PodSize]) -> bool {
    for (index, pod) in pods.iter().enumerate() {
        for other in &pods[..index] {
            let same_port = pod.port.is_some() && pod.port == other.port;
            let same_group = pod.alone_in_group.is_some() && pod.alone_in_group == other.alone_in_group;
            if same_port || same_group {
                return false;
            }
        }
    }
    kinds.iter().any(|kind| {
        pods.len() <= kind.pods
            && pods.iter().map(|pod| pod.milli_cpu).sum::<usize>() <= kind.milli_cpu
            && pods.iter().map(|pod| pod.mebibytes).sum::<usize>() <= kind.mebibytes
            && (!kind.tainted || pods.iter().all(|pod| pod.tolerates))
            && kind
                .zones
                .iter()
                .any(|zone| pods.iter().all(|pod| pod.zone.is_none_or(|own| own == *zone)))
    })
}

/// The least number of nodes, by trying each pod on each node opened so far and on a new one.
fn least<'a>(kinds: &[Kind], left: &[&'a PodSize], nodes: &mut Vec<Vec<&'a PodSize>>, best: &mut usize) {
    let Some((pod, rest)) = left.split_first() else {
        *best = nodes.len().min(*best);
        return;
    };
    for index in 0..nodes.len() {
        nodes[index].push(pod);
        if fits(kinds, &nodes[index]) {
            least(kinds, rest, nodes, best);
        }
        nodes[index].pop();
    }
    if nodes.len() + 1 < *best {
        nodes.push(vec![pod]);
        least(kinds, rest, nodes, best);
        nodes.pop();
    }
}

#[test]
fn agrees_on_what_fits_and_never_beats_what_is_possible() {
    let (mut fewest, mut more, mut refused) = (0, 0, 0);
    for seed in 0..400 {
        let random = &mut Random::new(seed);
        let (kinds, required) = (catalogue(random), required(random));
        let workload: Workload = serde_json::from_value(workload(&kinds, &required)).expect("a workload");
        let plan = schedule(&workload.snapshot, &workload.pods);
        let mut left: Vec<&str> = plan
            .unschedulable
            .iter()
            .map(|refusal| refusal.uid.as_str())
            .collect();
        left.sort_unstable();
        let names: Vec<String> = (0..required.len()).map(|index| format!("pod-{index}")).collect();
        let hopeless: Vec<&str> = required
            .iter()
            .zip(&names)
            .filter(|(pod, _)| !fits(&kinds, &[*pod]))
            .map(|(_, name)| name.as_str())
            .collect();
        // Nothing limits the number of nodes: what fits one alone has to be placed.
        assert_eq!(left, hopeless, "seed {seed}");
        refused += hopeless.len();
        let possible: Vec<&PodSize> = required.iter().filter(|pod| fits(&kinds, &[*pod])).collect();
        let mut best = possible.len() + 1;
        least(&kinds, &possible, &mut Vec::new(), &mut best);
        assert!(
            plan.new_claims.len() >= best,
            "seed {seed}: {} nodes, {best} is the least",
            plan.new_claims.len()
        );
        if plan.new_claims.len() == best {
            fewest += 1;
        } else {
            more += 1;
        }
    }
    assert!(refused > 0 && fewest > 0, "the workloads test something");
    println!(
        "report: packing brute force: {} workloads of up to 8 pods agree, {fewest} with the fewest nodes possible, {more} with more",
        fewest + more
    );
}
