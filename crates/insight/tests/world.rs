//! A toy provider's registration, and objects to look at.

use jiff::Timestamp;
use serde_json::{Value, json};
use slipway_insight::{Actor, Catalogue, ConditionType, Id, Insight, Kind, Link, Part, Reason};

pub const CORE: &str = "cluster.x-k8s.io";
pub const TOY: &str = "infrastructure.cluster.x-k8s.io";
pub const NAMESPACE: &str = "shop";
const CONTROL_PLANE: &[Link] = &[Link::OfCluster("/spec/controlPlaneRef")];
const PORT: &[Link] = &[Link::Name {
    group: TOY,
    kind: "Port",
    at: "/spec/port",
}];

pub fn catalogue() -> Catalogue {
    let kinds = vec![
        Kind::new(CORE, "Cluster", Part::Cluster).children(&[
            Link::Reference("/spec/infrastructureRef"),
            Link::Reference("/spec/controlPlaneRef"),
            Link::Labelled {
                group: CORE,
                kind: "MachineDeployment",
                label: "cluster.x-k8s.io/cluster-name",
            },
        ]),
        Kind::new(CORE, "MachineDeployment", Part::Workers).children(&[Link::Owned {
            group: CORE,
            kind: "MachineSet",
        }]),
        Kind::new(CORE, "MachineSet", Part::Between).children(&[Link::Owned {
            group: CORE,
            kind: "Machine",
        }]),
        Kind::new(CORE, "Machine", Part::Machine)
            .children(&[Link::Reference("/spec/infrastructureRef")])
            .mirrors(&[("BoatReady", Link::Reference("/spec/infrastructureRef"))])
            .versions(&["/status/nodeInfo/kubeletVersion"], &["/spec/version"]),
        Kind::new(TOY, "Fleet", Part::ControlPlane).needs(PORT),
        Kind::new(TOY, "Sea", Part::Infrastructure).needs(CONTROL_PLANE),
        Kind::new(TOY, "Boat", Part::Detail).facts(&[("berth", "/status/berth")]),
    ];
    let reasons = vec![
        Reason::follows("NotAvailable", "something of it is not available", &[]),
        Reason::follows("WaitingForFleet", "the fleet is not there yet", CONTROL_PLANE),
        Reason::follows("WaitingForPort", "its port is closed", PORT),
        Reason::stuck("Leaking", "water comes in", Actor::Site, "pump")
            .command("toy pump {name} -n {namespace}"),
        Reason::stuck("", "the hole is below the water line", Actor::Site, "dock")
            .says("below the water line"),
        Reason::working("Sailing", "it is on its way").usually(300),
        Reason::good("Moored", "it is not asked to sail"),
    ];
    let conditions = [ConditionType {
        kind: "Boat",
        name: "Afloat",
        meaning: "it swims",
    }];
    Catalogue::new([Insight { kinds, reasons }], conditions)
}

pub fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().expect("a time")
}

pub fn id(group: &str, kind: &str, name: &str) -> Id {
    Id::new(group, kind, NAMESPACE, name)
}

/// `Ready=False/Leaking@11:50:00 "message"`, as a condition.
pub fn condition(text: &str) -> Value {
    let (head, message) = text.split_once(' ').unwrap_or((text, ""));
    let (head, at) = head.split_once('@').unwrap_or((head, "11:00:00"));
    let (name, rest) = head.split_once('=').expect("a condition");
    let (status, reason) = rest.split_once('/').unwrap_or((rest, ""));
    json!({
        "type": name, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": format!("2026-01-01T{at}Z"),
    })
}

pub struct Made(pub Value);

pub fn made(group: &str, kind: &str, name: &str) -> Made {
    let version = if group == CORE { "v1beta2" } else { "v1" };
    Made(json!({
        "apiVersion": format!("{group}/{version}"), "kind": kind,
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": format!("{kind}/{name}"),
            "creationTimestamp": "2026-01-01T11:00:00Z",
        },
    }))
}

impl Made {
    pub fn with(mut self, pointer: &str, value: Value) -> Self {
        let mut at = &mut self.0;
        for segment in pointer.split('/').skip(1) {
            let segment = segment.replace("~1", "/");
            at = &mut at[segment];
        }
        *at = value;
        self
    }

    pub fn says(self, conditions: &[&str]) -> Self {
        let conditions: Vec<Value> = conditions.iter().map(|text| condition(text)).collect();
        self.with("/status/conditions", json!(conditions))
    }

    pub fn owned_by(self, kind: &str, name: &str) -> Self {
        self.with(
            "/metadata/ownerReferences",
            json!([{"kind": kind, "name": name, "uid": format!("{kind}/{name}"), "controller": true}]),
        )
    }

    pub fn of_cluster(self) -> Self {
        self.with("/metadata/labels/cluster.x-k8s.io~1cluster-name", json!("one"))
    }
}

pub fn cluster(conditions: &[&str]) -> Value {
    let reference = |kind: &str| json!({"apiGroup": TOY, "kind": kind, "name": "one"});
    made(CORE, "Cluster", "one")
        .with(
            "/spec",
            json!({"infrastructureRef": reference("Sea"), "controlPlaneRef": reference("Fleet")}),
        )
        .says(conditions)
        .0
}

/// A deployment of machines, each with its boat.
pub fn workers(machines: &[(&str, &[&str])]) -> Vec<Value> {
    let mut all = vec![
        made(CORE, "MachineDeployment", "work")
            .of_cluster()
            .says(&["Available=True"])
            .0,
        made(CORE, "MachineSet", "work-1")
            .of_cluster()
            .owned_by("MachineDeployment", "work")
            .0,
    ];
    for (name, conditions) in machines {
        all.push(
            made(CORE, "Machine", name)
                .of_cluster()
                .owned_by("MachineSet", "work-1")
                .with(
                    "/spec",
                    json!({"version": "v1.34.1", "infrastructureRef":
                    {"apiGroup": TOY, "kind": "Boat", "name": name}}),
                )
                .says(conditions)
                .0,
        );
        all.push(
            made(TOY, "Boat", name)
                .of_cluster()
                .owned_by("Machine", name)
                .says(&["Ready=True"])
                .0,
        );
    }
    all
}
