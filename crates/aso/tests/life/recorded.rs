//! The fake operator is held to what the real Azure Service Operator did with the same cluster, step by step: what it asked of Azure,
//! with the bodies that it sent, how its objects stood, and what was in Azure. `tests/stories/aso_engine.rs` made the record.

use std::time::Duration;

use serde_json::{Value, json};
use slipway_kit::azure::{
    NAMESPACE,
    outcome::{CREDENTIAL, Counts, Outcome, manifests},
};

use super::{
    operated::{ask_for, running},
    operator::is_its,
    world::{World, apply, credential, merge, remove},
};

/// Long enough for everybody to be done.
const REST: Duration = Duration::from_mins(20);

struct Story {
    world: World,
    outcome: Outcome,
}

impl Story {
    /// Tells of a step once nobody has anything left to do.
    async fn tell(&mut self, step: &str) -> Counts {
        tokio::time::sleep(REST).await;
        let objects = self.world.server.objects();
        let operated: Vec<Value> = objects.iter().filter(|object| is_its(object)).cloned().collect();
        self.outcome.step(step, &self.world.simulator.azure(), &operated)
    }

    async fn scale(&self, replicas: i32) {
        let patch = json!({"spec": {"replicas": replicas}});
        merge(&self.world.server, "MachinePool", "work", patch).await;
    }

    async fn pause(&self, paused: bool) {
        let patch = json!({"spec": {"paused": paused}});
        merge(&self.world.server, "Cluster", "fleet", patch).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_fake_operator_does_what_the_real_one_was_recorded_to_do() {
    let world = running().await;
    let (mut all, network) = manifests();
    for manifest in &mut all {
        manifest["metadata"]["namespace"] = json!(NAMESPACE);
    }
    apply(&world.server, &[credential(CREDENTIAL)]).await;
    apply(&world.server, &all).await;
    let mut story = Story {
        world,
        outcome: Outcome::default(),
    };
    story.world.until_ready(&["system", "work"]).await;
    story.tell("made").await;
    story.scale(3).await;
    story.tell("scaled").await;

    let resources = story.world.infrastructure()["spec"]["resources"].clone();
    let resources = resources.as_array().cloned().unwrap_or_default();
    let more = [resources.clone(), vec![network]].concat();
    let kind = "AzureASOManagedCluster";
    story.world.replace_resources(kind, "fleet", &more).await;
    story.tell("a network added").await;
    story.world.replace_resources(kind, "fleet", &resources).await;
    story.tell("a network taken out").await;

    ask_for(&story.world, Some("native")).await;
    story.tell("switched to native").await;
    story.scale(2).await;
    story.tell("scaled natively").await;
    ask_for(&story.world, Some("aso")).await;
    story.tell("switched back").await;

    story.pause(true).await;
    story.tell("paused").await;
    story.pause(false).await;
    story.tell("resumed").await;
    remove(&story.world.server, "Cluster", "fleet").await;
    story.tell("deleted").await;
    if let Err(difference) = story.outcome.compare(false) {
        panic!("{difference}");
    }
}
