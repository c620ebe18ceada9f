//! The frame on an apiserver in memory, with a kind whose plan is written in its spec.

use std::{collections::HashMap, fmt, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, CustomResource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_runtime::{Class, Controller, Informer, Next, Reconciler, Scope};

use super::*;
use crate::{
    condition::{self, Report, Status},
    names::annotation,
};

const FINALIZER: &str = "ship.example.dev";

#[derive(Clone, CustomResource, Debug, Default, Deserialize, PartialEq, Serialize)]
#[kube(
    group = "example.dev",
    version = "v1",
    kind = "Ship",
    namespaced,
    schema = "disabled",
    status = "ShipStatus"
)]
#[serde(default)]
pub struct ShipSpec {
    /// `<how> <action>`: then, beside, regardless, wait or blocked.
    plan: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct ShipStatus {
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("the sea is rough")]
struct Rough(Class);

impl Classified for Rough {
    fn class(&self) -> Class {
        self.0
    }
}

#[derive(Clone, Debug)]
struct Order(String);

impl fmt::Display for Order {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

struct Sea {
    ship: Ship,
    reads: usize,
}

/// Does what the specs say, and notes it.
#[derive(Clone, Default)]
struct Ships {
    acted: Arc<Mutex<Vec<String>>>,
    comes_to: Arc<Mutex<HashMap<String, Result<Outcome, Rough>>>>,
    forgotten: Arc<Mutex<Vec<ObjectKey>>>,
}

impl Kind for Ships {
    type Object = Ship;
    type Observed = Sea;
    type Action = Order;
    type Error = Rough;

    const BLOCKS_MOVE: bool = true;

    fn finalizer(_: &Ship) -> Option<&'static str> {
        Some(FINALIZER)
    }

    fn conditions(status: &mut ShipStatus) -> Option<&mut Vec<Condition>> {
        Some(&mut status.conditions)
    }

    async fn observe(&self, subject: &Subject<Ship>, _: &Context) -> Result<Sea, Rough> {
        Ok(Sea {
            ship: Ship::clone(&subject.object),
            reads: 1,
        })
    }

    fn plan(sea: &Sea, now: Timestamp) -> Plan<Order> {
        let mut plan = Plan::new();
        if sea.ship.metadata.deletion_timestamp.is_some() {
            plan.then(Order("unload".to_owned()), "the ship is deleted");
            plan.release_finalizer("its hold is empty");
            return plan;
        }
        for line in &sea.ship.spec.plan {
            let (how, what) = line.split_once(' ').expect("two words");
            let order = Order(what.to_owned());
            match how {
                "then" => plan.then(order, "it is next"),
                "beside" => plan.beside(order, "it can be done meanwhile"),
                "regardless" => plan.regardless(order, "it always can").announced("Sailing"),
                "wait" => plan
                    .wait(what, "the tide is low")
                    .until(now + Duration::from_mins(1)),
                _ => plan.blocked(what, "mend it", Class::Terminal),
            };
        }
        plan
    }

    fn needs_confirmation(sea: &Sea, plan: &Plan<Order>) -> bool {
        let needed = plan.actions().filter_map(|order| match order.0.as_str() {
            "board" => Some(3),
            "wander" => Some(99),
            _ => None,
        });
        needed.max().is_some_and(|needed| sea.reads < needed)
    }

    async fn confirm(&self, _: &Subject<Ship>, sea: Sea, _: &Context) -> Result<Sea, Rough> {
        self.acted.lock().push("confirm".to_owned());
        Ok(Sea {
            reads: sea.reads + 1,
            ..sea
        })
    }

    async fn act(
        &self,
        order: &Order,
        _: &Subject<Ship>,
        _: &mut Sea,
        _: &Context,
    ) -> Result<Outcome, Rough> {
        self.acted.lock().push(order.0.clone());
        let told = self.comes_to.lock().get(&order.0).cloned();
        told.unwrap_or(Ok(Outcome::Done))
    }

    fn follow_up(_: &Sea, progress: &ProgressOf<Self>) -> Plan<Order> {
        let mut plan = Plan::new();
        if progress
            .actions()
            .any(|(order, attempt)| order.0 == "load" && attempt.is_done())
        {
            plan.then(Order("count".to_owned()), "something was loaded");
        }
        plan
    }

    fn status(sea: &Sea, progress: &ProgressOf<Self>, now: Timestamp) -> ShipStatus {
        let mut status = sea.ship.status.clone().unwrap_or_default();
        let report = Report::new("Ready", Status::from(progress.is_done()), "Progress", "");
        condition::set(&mut status.conditions, &report, sea.ship.metadata.generation, now);
        status
    }

    fn forget(&self, key: &ObjectKey, _: &Context) {
        self.forgotten.lock().push(key.clone());
    }
}

fn crd(group: &str, version: &str, kind: &str) -> CustomResourceDefinition {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let (lower, plural) = (kind.to_lowercase(), format!("{}s", kind.to_lowercase()));
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": lower, "listKind": format!("{kind}List")},
            "versions": [{
                "name": version, "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}},
            }],
        },
    }))
    .expect("a CRD")
}

struct Harbour {
    server: Apiserver,
    context: Context,
    ships: Ships,
    clusters: Informer<Cluster>,
}

impl Harbour {
    /// With a Cluster, and a ship of it whose plan is this.
    async fn with(plan: &[&str]) -> Self {
        let server = Apiserver::new(slipway_runtime::Clock::starting_at(Timestamp::UNIX_EPOCH));
        server.install(
            &[
                crd("example.dev", "v1", "Ship"),
                crd("cluster.x-k8s.io", "v1beta2", "Cluster"),
            ],
            &[],
            &[],
        );
        let context = Context::for_tests(server.client(), 1);
        let clusters = context.informers.get(Scope::of_namespace(&context.settings));
        clusters.synced().await;
        let harbour = Self {
            server,
            context,
            ships: Ships::default(),
            clusters,
        };
        let cluster = json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
            "metadata": {"name": "north"}, "spec": {}});
        let uid = harbour.create("Cluster", cluster).await.metadata.uid;
        harbour.ship("north", plan, uid).await;
        harbour.settle().await;
        harbour
    }

    async fn ship(&self, name: &str, plan: &[&str], owner: Option<String>) {
        let owner = owner.map(|uid| {
            json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "north", "uid": uid})
        });
        let owners: Vec<Value> = owner.into_iter().collect();
        let ship = json!({"apiVersion": "example.dev/v1", "kind": "Ship",
            "metadata": {"name": name, "ownerReferences": owners}, "spec": {"plan": plan}});
        self.create("Ship", ship).await;
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let (group, version) = if kind == "Ship" {
            ("example.dev", "v1")
        } else {
            ("cluster.x-k8s.io", "v1beta2")
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.server.client(), "default", &resource)
    }

    async fn create(&self, kind: &str, manifest: Value) -> DynamicObject {
        let object = serde_json::from_value(manifest).expect("an object");
        self.api(kind)
            .create(&PostParams::default(), &object)
            .await
            .expect("a create")
    }

    async fn patch(&self, kind: &str, name: &str, patch: Value) {
        self.api(kind)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("a patch");
        self.settle().await;
    }

    async fn delete(&self, kind: &str) {
        self.api(kind)
            .delete("north", &DeleteParams::default())
            .await
            .expect("a delete");
        self.settle().await;
    }

    /// Until the watches have shown everything.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    async fn stored(&self) -> Option<Ship> {
        let api: Api<Ship> = Api::namespaced(self.server.client(), "default");
        api.get_opt("north").await.expect("a read")
    }

    /// One reconcile of the ship as it is stored.
    async fn reconcile(&self) -> Result<Next, Failure<Rough>> {
        let ship = Arc::new(self.stored().await.expect("the ship is there"));
        Frame::new(self.ships.clone())
            .reconcile(ship, &self.context)
            .await
    }

    /// The same, once finalizer and move are held.
    async fn reconcile_held(&self) -> Result<Next, Failure<Rough>> {
        self.reconcile().await.expect("they are stored");
        assert_eq!(self.acted(), [""; 0], "nothing is done before they are stored");
        self.reconcile().await
    }

    fn acted(&self) -> Vec<String> {
        std::mem::take(&mut self.ships.acted.lock())
    }

    fn comes_to(&self, order: &str, result: Result<Outcome, Rough>) {
        self.ships.comes_to.lock().insert(order.to_owned(), result);
    }

    /// The plan as it is served, without its time.
    fn plan(&self) -> Option<String> {
        let shown = self.context.plans.show("example.dev/Ship/default/north")?;
        shown.split_once('\n').map(|(_, plan)| plan.to_owned())
    }

    /// The stored condition has this status and message.
    async fn says(&self, type_: &str, status: &str, message: &str) {
        let ship = self.stored().await.expect("the ship is there");
        let conditions = ship.status.expect("it has a status").conditions;
        let found = condition::find(&conditions, type_).expect("the condition is there");
        assert_eq!((found.status.as_str(), found.message.as_str()), (status, message));
    }
}

#[tokio::test(start_paused = true)]
async fn finalizer_and_move_are_held_before_anything_is_done_and_at_rest_nothing_is_written() {
    let harbour = Harbour::with(&["then load"]).await;
    harbour.reconcile().await.unwrap();
    assert_eq!(
        harbour.plan().unwrap(),
        "1. add finalizer ship.example.dev: nothing is made that could be left behind\n\
         2. block move: the object is worked on until it is paused\n"
    );
    let ship = harbour.stored().await.unwrap();
    assert_eq!(ship.finalizers(), [FINALIZER]);
    assert!(ship.annotations().contains_key(annotation::BLOCK_MOVE));
    assert_eq!(harbour.acted(), [""; 0]);

    assert_eq!(harbour.reconcile().await.unwrap(), Next::OnChange);
    assert_eq!(harbour.acted(), ["load", "count"], "with what follows from it");
    assert_eq!(
        harbour.plan().unwrap(),
        "1. load: it is next => done\n2. count: something was loaded => done\n"
    );
    harbour.says("Ready", "True", "").await;
    harbour.says("Paused", "False", "").await;
    let version = harbour.stored().await.unwrap().resource_version();
    harbour.reconcile().await.unwrap();
    assert_eq!(harbour.stored().await.unwrap().resource_version(), version);
}

#[tokio::test(start_paused = true)]
async fn while_paused_nothing_is_touched_and_a_move_goes_on() {
    let harbour = Harbour::with(&["then load"]).await;
    harbour.reconcile_held().await.unwrap();
    harbour.acted();
    harbour
        .patch("Cluster", "north", json!({"spec": {"paused": true}}))
        .await;
    harbour.reconcile().await.unwrap();
    let ship = harbour.stored().await.unwrap();
    assert!(!ship.annotations().contains_key(annotation::BLOCK_MOVE));
    harbour
        .says("Paused", "True", "Cluster spec.paused is set to true")
        .await;
    let version = harbour.stored().await.unwrap().resource_version();
    harbour.reconcile().await.unwrap();
    assert_eq!(harbour.acted(), [""; 0]);
    assert_eq!(harbour.stored().await.unwrap().resource_version(), version);
    harbour
        .patch("Cluster", "north", json!({"spec": {"paused": false}}))
        .await;
    harbour.reconcile_held().await.unwrap();
    assert_eq!(harbour.acted(), ["load", "count"]);
    harbour.says("Paused", "False", "").await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_goes_when_its_plan_is_done_also_without_its_cluster() {
    for cluster_is_gone in [false, true] {
        let harbour = Harbour::with(&[]).await;
        harbour.reconcile_held().await.unwrap();
        harbour.delete("Ship").await;
        if cluster_is_gone {
            harbour.delete("Cluster").await;
            assert_eq!(harbour.clusters.len(), 0);
        }
        let minute = Duration::from_mins(1);
        harbour.comes_to("unload", Ok(Outcome::InProgress(minute)));
        assert_eq!(harbour.reconcile().await.unwrap(), Next::After(minute));
        assert_eq!(
            harbour.plan().unwrap(),
            "1. unload: the ship is deleted => in progress, again in 60s\n\
             2. release finalizer: its hold is empty => held\n"
        );
        harbour.comes_to("unload", Ok(Outcome::Done));
        assert_eq!(harbour.reconcile().await.unwrap(), Next::OnChange);
        assert!(harbour.stored().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_for_a_move_is_let_go_and_what_it_stands_for_is_not_touched() {
    let harbour = Harbour::with(&[]).await;
    harbour.reconcile_held().await.unwrap();
    let moved = json!({"metadata": {"annotations": {(annotation::DELETE_FOR_MOVE): ""}}});
    harbour.patch("Ship", "north", moved).await;
    harbour.delete("Ship").await;
    harbour.reconcile().await.unwrap();
    assert!(harbour.stored().await.is_none());
    assert_eq!(harbour.acted(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn without_its_cluster_nothing_is_done() {
    let harbour = Harbour::with(&["then load"]).await;
    harbour.delete("Cluster").await;
    // The garbage collector of a real cluster would take the ship with it.
    if let Some(ship) = harbour.stored().await {
        let frame = Frame::new(harbour.ships.clone());
        frame.reconcile(Arc::new(ship), &harbour.context).await.unwrap();
    }
    assert_eq!(harbour.acted(), [""; 0]);
    assert_eq!(harbour.plan(), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_done_holds_up_later_groups_and_nobody_else() {
    let harbour = Harbour::with(&["then a", "beside b", "then c", "regardless d", "wait Tide"]).await;
    let soon = Duration::from_secs(9);
    harbour.comes_to("a", Ok(Outcome::InProgress(soon)));
    assert_eq!(harbour.reconcile_held().await.unwrap(), Next::After(soon));
    assert_eq!(harbour.acted(), ["a", "b", "d"]);
    harbour.says("Ready", "False", "").await;
    assert_eq!(
        harbour.plan().unwrap(),
        "1. a: it is next => in progress, again in 9s\n\
         1. b: it can be done meanwhile => done\n\
         2. c: it is next => held\n\
         -  d: it always can => done\n\
         3. wait Tide until 1970-01-02T00:01:01Z: the tide is low => held\n"
    );
    let notes: Vec<_> = harbour
        .context
        .events
        .recorded()
        .into_iter()
        .map(|event| (event.reason, event.note))
        .collect();
    assert_eq!(notes, [("Sailing".to_owned(), "d: it always can".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_and_the_status_is_still_written() {
    let harbour = Harbour::with(&["then a", "then b"]).await;
    harbour.comes_to("a", Err(Rough(Class::Transient)));
    let failure = harbour.reconcile_held().await.unwrap_err();
    assert_eq!(
        (failure.class(), failure.to_string().as_str()),
        (Class::Transient, "the sea is rough")
    );
    assert_eq!(harbour.acted(), ["a"]);
    harbour.says("Ready", "False", "").await;
    assert_eq!(
        harbour.plan().unwrap(),
        "1. a: it is next => failed: the sea is rough\n2. b: it is next => held\n"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_user_has_to_mend_is_told_in_an_event_and_does_not_end_a_poll() {
    let harbour = Harbour::with(&["blocked Rudder"]).await;
    let failure = harbour.reconcile_held().await.unwrap_err();
    assert_eq!(
        (failure.class(), failure.to_string().as_str()),
        (Class::Terminal, "Rudder: mend it")
    );
    let polling = Harbour::with(&["regardless poll", "blocked Rudder"]).await;
    let minute = Duration::from_mins(1);
    polling.comes_to("poll", Ok(Outcome::InProgress(minute)));
    assert_eq!(polling.reconcile_held().await.unwrap(), Next::After(minute));
    for harbour in [harbour, polling] {
        let warnings: Vec<_> = harbour
            .context
            .events
            .recorded()
            .into_iter()
            .filter(|event| event.warning)
            .collect();
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0].note, "Rudder: mend it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_needs_it_is_made_again_from_closer_reads() {
    let harbour = Harbour::with(&["then board"]).await;
    harbour.reconcile_held().await.unwrap();
    assert_eq!(harbour.acted(), ["confirm", "confirm", "board"]);
    let endless = Harbour::with(&["then wander"]).await;
    let failure = endless.reconcile_held().await.unwrap_err();
    assert!(matches!(failure, Failure::Unconfirmed));
    assert!(
        !endless.acted().contains(&"wander".to_owned()),
        "it is not done unconfirmed"
    );
}

#[tokio::test(start_paused = true)]
async fn fifty_objects_that_are_moved_away_leave_nothing_behind() {
    let harbour = Harbour::with(&["then load"]).await;
    let uid = harbour.clusters.list()[0].metadata.uid.clone();
    for number in 0..50 {
        harbour
            .ship(&format!("s{number}"), &["then load"], uid.clone())
            .await;
    }
    let registration = Controller::new("ship", Frame::new(harbour.ships.clone()))
        .watches::<Cluster>(|_, _| Vec::new())
        .into_registration();
    let running = tokio::spawn((registration.run)(harbour.context.clone()));
    harbour.settle().await;
    assert_eq!(harbour.context.plans.len(), 51);
    let tasks = harbour.context.informers.tasks();
    // As `clusterctl move` does: what is paused loses its finalizers and is deleted, nobody plans a deletion.
    harbour
        .patch("Cluster", "north", json!({"spec": {"paused": true}}))
        .await;
    for number in 0..50 {
        let name = format!("s{number}");
        harbour
            .patch("Ship", &name, json!({"metadata": {"finalizers": null}}))
            .await;
        let deleted = harbour.api("Ship").delete(&name, &DeleteParams::default()).await;
        deleted.expect("a delete");
    }
    harbour.settle().await;
    let mut forgotten = harbour.ships.forgotten.lock().clone();
    forgotten.sort();
    forgotten.dedup();
    assert_eq!(forgotten.len(), 50);
    assert_eq!(harbour.context.plans.list(""), "example.dev/Ship/default/north\n");
    assert_eq!(harbour.context.informers.tasks(), tasks);
    harbour.context.shutdown.cancel();
    running.await.expect("no panic").expect("an orderly end");
}
