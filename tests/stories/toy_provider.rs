//! A provider's whole life through the whole manager, as a real process under the roles it declares: its objects are
//! created, defaulted, validated, converted, reconciled, paused and deleted together with Cluster API's core. Objects
//! whose reconcile panics or hangs, and objects that cannot be read, harm nobody else. A killed leader is replaced. At
//! rest nothing is written, no right is declared without need, and no secret is told.

mod environment;
mod refusals;

use std::{pin::pin, time::Duration};

use anyhow::{Context, Result};
use futures::TryStreamExt;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Event};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use slipway_kit::manager::{Manager, Setup};
use slipway_testbed::{
    Cluster, ManagementCluster,
    canary::Canaries,
    wait::{until, until_gone},
};
use slipway_tests::toy;

pub use self::environment::BINARY;
use self::environment::{Replaceable, USER, in_logs, planted_in, rights_are_those_needed, setup};
use crate::support::{apply, is_true, objects};

const CORE: &str = "cluster.x-k8s.io/v1beta2";
const OLD: &str = "infrastructure.cluster.x-k8s.io/v1beta1";
const NEW: &str = "infrastructure.cluster.x-k8s.io/v1beta2";

fn fleet(name: &str, spec: &Value, annotations: &Value) -> Value {
    json!({"apiVersion": NEW, "kind": "Fleet", "metadata": {"name": name, "annotations": annotations}, "spec": spec})
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) -> Result<DynamicObject, kube::Error> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
}

fn status_of(error: &kube::Error) -> (u16, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_provider_lives_through_the_whole_manager() -> Result<()> {
    // Conversion webhooks are global, so the story has a cluster of its own.
    let cluster = ManagementCluster::builder()
        .name("toy")
        .cluster_api()
        .audit_everything_of(USER)
        .start()
        .await?;
    let directory = tempfile::tempdir()?;
    let setup = setup(&cluster, directory.path()).await?;
    let namespace = cluster.namespace("toy").await?;
    let client = cluster.client();

    missing_crds_are_named(&setup).await?;
    setup.install(&cluster).await?;
    let manager = setup.launch("first")?;

    let story = Story {
        client: client.clone(),
        namespace: namespace.clone(),
    };
    let mut process = Replaceable {
        cluster: &cluster,
        setup: &setup,
        manager,
    };
    process.until_leading().await?;
    story.created_defaulted_and_converted().await?;
    story.validated().await?;
    story.reconciled().await?;
    story.paused().await?;
    story.at_rest_nothing_is_written(&mut process).await?;
    let mut canaries = planted_in(&setup.kubeconfig())?;
    let manager = process.manager;
    story.secrets_stay_secret(&manager, &mut canaries).await?;
    story.misbehaviour_stays_at_home(&manager).await?;
    story.what_cannot_be_read_stops_nobody(&manager).await?;
    // The malformed object is still there: the next manager finds it in its first list.
    let manager = story
        .a_killed_leader_is_replaced(&cluster, &setup, &manager)
        .await?;
    let mut sightings = canaries.sightings_in_cluster(&client).await?;
    story.deleted().await?;

    sightings.extend(canaries.sightings("the metrics", &manager.metrics().await?));
    let (status, log) = (manager.stop().await?, manager.log());
    sightings.extend(canaries.sightings_in_cluster(&client).await?);
    sightings.extend(in_logs(&canaries, directory.path())?);
    assert_eq!(sightings, [], "secrets are told to nobody");
    rights_are_those_needed(&cluster).await?;
    assert!(status.success(), "{status}:\n{log}");
    assert!(
        !log.contains("forbidden"),
        "the declared roles are enough:\n{log}"
    );
    let leases: Api<Lease> = Api::namespaced(client, "capt-system");
    let lease = leases
        .get("controller-leader-election-capt")
        .await?
        .spec
        .context("a spec")?;
    assert_eq!(lease.holder_identity.as_deref(), Some(""), "given back");
    Ok(())
}

async fn missing_crds_are_named(setup: &Setup) -> Result<()> {
    // Its certificate is made with them.
    setup.rendered().await?;
    let output = tokio::process::Command::new(BINARY)
        .args([
            "manager",
            "--webhook-port=0",
            "--health-addr=0",
            "--diagnostics-address=0",
            "--kubeconfig",
        ])
        .arg(setup.kubeconfig())
        .arg("--webhook-cert-dir")
        .arg(setup.folder.join("certificates"))
        .output()
        .await?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains(
            "error: the cluster does not serve fleets.infrastructure.cluster.x-k8s.io v1beta1, \
             fleets.infrastructure.cluster.x-k8s.io v1beta2, vessels.infrastructure.cluster.x-k8s.io v1beta2; \
             install them with "
        ),
        "{message}"
    );
    Ok(())
}

struct Story {
    client: Client,
    namespace: String,
}

impl Story {
    fn of(&self, version: &str, kind: &str) -> Api<DynamicObject> {
        objects(&self.client, &self.namespace, version, kind)
    }

    async fn apply(&self, manifest: Value) -> Result<()> {
        apply(&self.client, &self.namespace, &[manifest]).await
    }

    /// How many vessels a fleet has.
    async fn vessels(&self, fleet: &str) -> Result<usize> {
        let vessels = self.of(NEW, "Vessel").list(&ListParams::default()).await?;
        Ok(vessels
            .iter()
            .filter(|vessel| {
                vessel
                    .metadata
                    .owner_references
                    .iter()
                    .flatten()
                    .any(|owner| owner.name == fleet)
            })
            .count())
    }

    async fn until_ready(&self, fleet: &str, vessels: usize) -> Result<()> {
        until(&self.of(NEW, "Fleet"), fleet, "be ready", |found| {
            is_true(found, "Ready") && found.data["status"]["vessels"] == vessels
        })
        .await?;
        Ok(())
    }

    async fn created_defaulted_and_converted(&self) -> Result<()> {
        self.apply(
            json!({"apiVersion": OLD, "kind": "Fleet", "metadata": {"name": "north"}, "spec": {"ships": 2}}),
        )
        .await?;
        let new = self.of(NEW, "Fleet").get("north").await?;
        assert_eq!(new.data["spec"], json!({"vessels": 2, "harbour": "home"}));
        let old = self.of(OLD, "Fleet").get("north").await?;
        assert_eq!(old.data["spec"], json!({"ships": 2}));
        let annotations = old.metadata.annotations.unwrap_or_default();
        assert_eq!(
            annotations.get("toy.slipway.dev/harbour").map(String::as_str),
            Some("home")
        );
        Ok(())
    }

    async fn validated(&self) -> Result<()> {
        let fleets = self.of(NEW, "Fleet");
        let error = merge(
            &fleets,
            "north",
            json!({"spec": {"vessels": 99, "harbour": "south"}}),
        )
        .await
        .expect_err("it is refused");
        assert_eq!(
            status_of(&error),
            (
                422,
                "admission webhook \"validation.fleet.v1beta2.infrastructure.cluster.x-k8s.io\" denied the request: \
                 Fleet.infrastructure.cluster.x-k8s.io \"north\" is invalid: [spec.vessels: Invalid value: 99: must be \
                 between 0 and 10, spec.harbour: Forbidden: a fleet stays in its harbour]"
                    .to_owned()
            )
        );
        // The old version is judged by the same rules, by way of conversion.
        let error = merge(&self.of(OLD, "Fleet"), "north", json!({"spec": {"ships": -1}}))
            .await
            .expect_err("it is refused");
        let (code, message) = status_of(&error);
        assert_eq!(code, 422);
        assert!(
            message.ends_with("spec.vessels: Invalid value: -1: must be between 0 and 10"),
            "{message}"
        );
        Ok(())
    }

    async fn reconciled(&self) -> Result<()> {
        let reference =
            json!({"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "Fleet", "name": "north"});
        self.apply(
            json!({"apiVersion": CORE, "kind": "Cluster", "metadata": {"name": "north"},
            "spec": {"infrastructureRef": reference}}),
        )
        .await?;
        let clusters = self.of(CORE, "Cluster");
        until(&clusters, "north", "have its infrastructure", |cluster| {
            is_true(cluster, "InfrastructureReady")
                && cluster.data["status"]["initialization"]["infrastructureProvisioned"] == true
        })
        .await?;
        let fleet = self.of(NEW, "Fleet").get("north").await?;
        let owners = fleet.metadata.owner_references.unwrap_or_default();
        assert!(
            owners
                .iter()
                .any(|owner| owner.kind == "Cluster" && owner.name == "north")
        );
        assert_eq!(
            fleet.metadata.finalizers.unwrap_or_default(),
            ["fleet.toy.slipway.dev"]
        );
        assert_eq!(self.vessels("north").await?, 2);
        // A child that somebody deletes comes again.
        let vessels = self.of(NEW, "Vessel");
        let before = vessels.get("north-1").await?.metadata.uid;
        vessels.delete("north-1", &DeleteParams::default()).await?;
        until(&vessels, "north-1", "come again", |vessel| {
            vessel.metadata.uid != before
        })
        .await?;
        self.until_ready("north", 2).await
    }

    async fn paused(&self) -> Result<()> {
        let fleets = self.of(NEW, "Fleet");
        let clusters = self.of(CORE, "Cluster");
        merge(&clusters, "north", json!({"spec": {"paused": true}})).await?;
        until(&fleets, "north", "be paused", |fleet| is_true(fleet, "Paused")).await?;
        let changed = merge(&fleets, "north", json!({"spec": {"vessels": 3}})).await?;
        // The condition of the new generation shows that the change was seen.
        until(&fleets, "north", "have been reconciled", |fleet| {
            fleet.data["status"]["conditions"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|condition| {
                    condition["type"] == "Paused"
                        && condition["observedGeneration"] == json!(changed.metadata.generation)
                })
        })
        .await?;
        assert_eq!(self.vessels("north").await?, 2, "nothing is done while paused");
        merge(&clusters, "north", json!({"spec": {"paused": false}})).await?;
        self.until_ready("north", 3).await
    }

    async fn at_rest_nothing_is_written(&self, process: &mut Replaceable<'_>) -> Result<()> {
        let annotations = json!({toy::MISBEHAVE: "restless"});
        self.apply(fleet("restless", &json!({"vessels": 1}), &annotations))
            .await?;
        self.until_ready("restless", 1).await?;
        let count = async |kind| {
            Ok::<_, kube::Error>(self.of(NEW, kind).list(&ListParams::default()).await?.items.len())
        };
        let objects = [
            ("fleet", count("Fleet").await?),
            ("vessel", count("Vessel").await?),
        ];
        assert_eq!(objects, [("fleet", 2), ("vessel", 4)]);
        // A patch that changes nothing is a write all the same, and is seen.
        let writes = process.writes_of_the_next("restless", &objects).await?;
        let shown: Vec<String> = writes.iter().map(ToString::to_string).collect();
        let expected = format!(
            "patch fleets.{} {}/restless (200)",
            toy::api::GROUP,
            self.namespace
        );
        assert!(
            !shown.is_empty() && shown.iter().all(|one| *one == expected),
            "{shown:?}"
        );

        let calm = json!({"metadata": {"annotations": {toy::MISBEHAVE: null}}});
        merge(&self.of(NEW, "Fleet"), "restless", calm).await?;
        let writes = process.writes_of_the_next("rested", &objects).await?;
        let shown: Vec<String> = writes.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown, [""; 0],
            "at rest a manager writes its lease and nothing else"
        );
        Ok(())
    }

    /// A charter that cannot be read makes an error about a secret. A parser's words would quote it.
    async fn charter(&self, name: &str, seal: &str, misbehaviour: &str) -> Result<()> {
        self.apply(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {"seal": json!(seal).to_string()}}),
        )
        .await?;
        let annotations = json!({toy::CHARTER: name, toy::MISBEHAVE: misbehaviour});
        self.apply(fleet(name, &json!({"vessels": 1}), &annotations))
            .await
    }

    async fn secrets_stay_secret(&self, manager: &Manager, canaries: &mut Canaries) -> Result<()> {
        let seal = canaries.hatch("the seal of a charter");
        self.charter("chartered", &seal, "").await?;
        manager
            .until_logged("the charter in Secret chartered has no")
            .await?;

        // One that tells is found wherever it tells.
        let mut told = Canaries::default();
        let seal = told.hatch("the seal that is told");
        self.charter("leaking", &seal, "leak").await?;
        manager.until_logged(&seal).await?;
        assert_ne!(told.sightings("the log", &manager.log()), []);
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let of_fleet = watcher::Config::default().fields("involvedObject.name=leaking");
        let recorded = watcher(events, of_fleet).applied_objects();
        tokio::time::timeout(Duration::from_mins(1), pin!(recorded).try_next())
            .await
            .context("an event of the fleet")??;
        let seen = told.sightings_in_cluster(&self.client).await?;
        assert!(
            seen.iter().any(|sighting| sighting.place.starts_with("Event ")),
            "{seen:?}"
        );
        // Both sail once their charters can be read.
        for name in ["chartered", "leaking"] {
            self.apply(
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
                "stringData": {"seal": json!({"tonnes": 3}).to_string()}}),
            )
            .await?;
            self.until_ready(name, 1).await?;
        }
        Ok(())
    }

    async fn misbehaviour_stays_at_home(&self, manager: &Manager) -> Result<()> {
        let misbehave = |how: &str| json!({"toy.slipway.dev/misbehave": how});
        let spec = json!({"vessels": 1});
        self.apply(fleet("panicking", &spec, &misbehave("panic"))).await?;
        self.apply(fleet("hanging", &spec, &misbehave("hang"))).await?;
        let label = "controller=\"fleet\"";
        manager
            .until_metric("controller_runtime_reconcile_panics_total", label, |count| {
                count >= 2.0
            })
            .await?;
        manager
            .until_metric("controller_runtime_reconcile_timeouts_total", label, |count| {
                count >= 1.0
            })
            .await?;
        self.apply(fleet("calm", &spec, &json!({}))).await?;
        self.until_ready("calm", 1).await?;
        // Once they behave they are served like the others.
        let fleets = self.of(NEW, "Fleet");
        for name in ["panicking", "hanging"] {
            merge(
                &fleets,
                name,
                json!({"metadata": {"annotations": {"toy.slipway.dev/misbehave": null}}}),
            )
            .await?;
            self.until_ready(name, 1).await?;
        }
        Ok(())
    }

    async fn what_cannot_be_read_stops_nobody(&self, manager: &Manager) -> Result<()> {
        self.apply(
            json!({"apiVersion": NEW, "kind": "Vessel", "metadata": {"name": "malformed"},
            "spec": {"number": 7, "cargo": "a great deal"}}),
        )
        .await?;
        manager
            .until_metric("slipway_informer_malformed_objects", "kind=\"Vessel\"", |count| {
                count > 0.5
            })
            .await?;
        self.floats("beside").await
    }

    /// A vessel of its own is put to sea.
    async fn floats(&self, name: &str) -> Result<()> {
        self.apply(
            json!({"apiVersion": NEW, "kind": "Vessel", "metadata": {"name": name},
            "spec": {"number": 8, "cargo": {"tonnes": 3}}}),
        )
        .await?;
        let vessels = self.of(NEW, "Vessel");
        until(&vessels, name, "float", |vessel| {
            vessel.data["status"]["afloat"] == true
        })
        .await?;
        Ok(())
    }

    async fn a_killed_leader_is_replaced(
        &self,
        cluster: &Cluster,
        setup: &Setup,
        first: &Manager,
    ) -> Result<Manager> {
        let setup = setup.at_another_port()?;
        let second = setup.launch("second")?;
        // It stands by: its webhooks are ready, its controllers do not run.
        second.until_ready().await?;
        second
            .until_metric("leader_election_master_status", "capt", |leads| leads < 0.5)
            .await?;
        assert!(!second.log().contains("Starting Controller"), "{}", second.log());
        let killed = std::time::Instant::now();
        first.kill();
        setup.install(cluster).await?;
        second
            .until_metric("leader_election_master_status", "capt", |leads| leads > 0.5)
            .await?;
        println!(
            "report: lease: takeover {:.1} s after kill -9",
            killed.elapsed().as_secs_f64()
        );
        second
            .until_metric("slipway_informer_malformed_objects", "kind=\"Vessel\"", |count| {
                count > 0.5
            })
            .await?;
        self.floats("after-takeover").await?;
        self.apply(fleet("later", &json!({"vessels": 2}), &json!({})))
            .await?;
        self.until_ready("later", 2).await?;
        Ok(second)
    }

    async fn deleted(&self) -> Result<()> {
        let clusters = self.of(CORE, "Cluster");
        clusters.delete("north", &DeleteParams::default()).await?;
        until_gone(&clusters, "north").await?;
        let fleets = self.of(NEW, "Fleet");
        until_gone(&fleets, "north").await?;
        assert_eq!(
            self.vessels("north").await?,
            0,
            "the finalizer held the fleet until its vessels were gone"
        );
        for name in [
            "calm",
            "chartered",
            "hanging",
            "later",
            "leaking",
            "panicking",
            "restless",
        ] {
            fleets.delete(name, &DeleteParams::default()).await?;
            until_gone(&fleets, name).await?;
        }
        Ok(())
    }
}
