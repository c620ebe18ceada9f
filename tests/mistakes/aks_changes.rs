//! Changes of an AKS cluster that exists which are refused: nothing changes, so the way back is to leave it, or to do
//! what the row says instead.

use serde_json::{Value, json};
use slipway_kit::mistakes::Mistake;

use crate::{
    aks_world::{PLANE, POOL, World},
    refused::reason,
};

const AREA: &str = "AKS: changes of what exists";

struct Edit {
    what: &'static str,
    kind: &'static str,
    name: &'static str,
    spec: Value,
    undo: &'static str,
}

fn changes() -> Vec<Edit> {
    let plane = |what, spec, undo| Edit {
        what,
        kind: PLANE,
        name: "fleet",
        spec,
        undo,
    };
    let pool = |what, spec, undo| Edit {
        what,
        kind: POOL,
        name: "system",
        spec,
        undo,
    };
    vec![
        plane(
            "another location",
            json!({"location": "eastus"}),
            "nothing changed; make a second Cluster there and move workloads",
        ),
        plane(
            "another resource group",
            json!({"resourceGroupName": "other"}),
            "nothing changed; make a second Cluster there and move workloads",
        ),
        plane(
            "another subscription",
            json!({"subscriptionID": "00000000-0000-0000-0000-00000000000b"}),
            "nothing changed; make a second Cluster there and move workloads",
        ),
        plane(
            "another network plugin",
            json!({"networkPlugin": "kubenet"}),
            "nothing changed; AKS cannot change it, make a second Cluster",
        ),
        plane(
            "another DNS prefix",
            json!({"dnsPrefix": "other"}),
            "nothing changed; the address of an API server stays",
        ),
        plane(
            "another range for the network",
            json!({"virtualNetwork": {"cidrBlock": "10.0.0.0/9"}}),
            "nothing changed; add a network of your own and peer it",
        ),
        plane(
            "an older version",
            json!({"version": "v1.32.9"}),
            "nothing changed; AKS goes forward only",
        ),
        pool(
            "another size for a pool's machines",
            json!({"sku": "Standard_D4s_v5"}),
            "nothing changed; add a pool of the other size, then delete this one",
        ),
        pool(
            "a larger disk for a pool's machines",
            json!({"osDiskSizeGB": 256}),
            "nothing changed; add a pool with the other disk, then delete this one",
        ),
        pool(
            "other zones for a pool",
            json!({"availabilityZones": ["1"]}),
            "nothing changed; add a pool in those zones, then delete this one",
        ),
        pool(
            "the only system pool made a User pool",
            json!({"mode": "User"}),
            "nothing changed; add another System pool first",
        ),
    ]
}

pub async fn see() -> Vec<Mistake> {
    let world = World::standing().await;
    let (mut seen, mut wrong) = (Vec::new(), Vec::new());
    for change in changes() {
        let before = world.object(change.kind, change.name).expect("it exists")["spec"].clone();
        let changed = world
            .merge(change.kind, change.name, json!({"spec": change.spec}))
            .await;
        let Err(error) = changed else {
            wrong.push(change.what);
            continue;
        };
        let after = world.object(change.kind, change.name).expect("it exists")["spec"].clone();
        assert_eq!(before, after, "{}: nothing changed", change.what);
        seen.push(Mistake {
            area: AREA,
            what: change.what.to_owned(),
            sees: reason(&error),
            why: None,
            undo: change.undo.to_owned(),
        });
    }
    assert!(wrong.is_empty(), "these were accepted: {wrong:?}");
    let error = world
        .delete(POOL, "system")
        .await
        .expect_err("the last system pool stays");
    seen.push(Mistake {
        area: AREA,
        what: "the only system pool deleted".to_owned(),
        sees: reason(&error),
        why: None,
        undo: "nothing changed; add another System pool first, or delete the Cluster".to_owned(),
    });
    world.until_ready().await;
    seen
}
