//! K3s servers that die, with Cluster API's real core and its health checks: one of three and two of five are
//! replaced, two of three are left alone until one comes back.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Result, ensure};
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::json;
use slipway_testbed::wait::until;

use crate::{
    k3s_fleet::{CORE, Fleet, Simulated, condition},
    k3s_manager,
};

const VERSION: &str = "v1.35.2+k3s1";

async fn settled(name: &str, servers: usize) -> Result<Fleet> {
    let manager = k3s_manager::of_shared_cluster().await?;
    let fleet = Fleet::start(Arc::clone(&manager.cluster), name, Simulated::new()).await?;
    fleet.create(servers, 0, VERSION).await?;
    fleet.until_settled(servers, VERSION).await?;
    Ok(fleet)
}

fn remain(before: &BTreeSet<String>, after: &[String], dead: &[String]) -> bool {
    let expected = before.iter().filter(|name| !dead.contains(name));
    expected.into_iter().all(|name| after.contains(name))
}

/// A health check's finding is what a server is replaced for.
#[tokio::test]
async fn one_of_three_is_healed() -> Result<()> {
    let fleet = settled("k3s-heal", 3).await?;
    fleet.check_health().await?;
    let before: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    let dead: Vec<String> = before.iter().take(1).cloned().collect();
    fleet.kill(&dead[0]).await?;
    fleet.until_gone(&dead[0]).await?;
    fleet.until_settled(3, VERSION).await?;
    let after = fleet.server_names().await?;
    ensure!(remain(&before, &after, &dead), "{before:?} became {after:?}");
    ensure!(fleet.tier.quorum_losses(&fleet.key()).unwrap_or(0) == 0);
    Ok(())
}

/// Both are replaced, one at a time (S-48).
#[tokio::test]
async fn two_of_five_are_healed_one_after_the_other() -> Result<()> {
    let fleet = settled("k3s-heal-two", 5).await?;
    let before: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    let dead: Vec<String> = before.iter().take(2).cloned().collect();
    for machine in &dead {
        fleet.kill(machine).await?;
    }
    fleet.check_health().await?;
    let leaving = |machine: &DynamicObject| machine.metadata.deletion_timestamp.is_some();
    let mut most = 0;
    for machine in &dead {
        let left = fleet
            .until_servers("lose a dead one", |servers| {
                !servers
                    .iter()
                    .any(|one| one.metadata.name.as_ref() == Some(machine))
                    || servers.iter().filter(|one| leaving(one)).count() > 1
            })
            .await?;
        most = most.max(left.iter().filter(|one| leaving(one)).count());
    }
    ensure!(most <= 1, "{most} servers left at a time");
    fleet.until_settled(5, VERSION).await?;
    let after = fleet.server_names().await?;
    ensure!(remain(&before, &after, &dead), "{before:?} became {after:?}");
    ensure!(fleet.tier.quorum_losses(&fleet.key()).unwrap_or(0) == 0);
    Ok(())
}

/// With two of three gone nothing can be done without making it worse, and that is what the machine says. When one
/// comes back the other is replaced (S-49).
#[tokio::test]
async fn two_of_three_are_left_alone_until_one_returns() -> Result<()> {
    let fleet = settled("k3s-quorum", 3).await?;
    let before = fleet.server_names().await?;
    let (lost, returning) = (&before[0], &before[1]);
    for machine in [lost, returning] {
        fleet.kill(machine).await?;
    }
    // Nobody can write to the cluster, so its nodes look as they did: somebody else notices.
    mark_unhealthy(&fleet, lost).await?;
    let machines = fleet.of(CORE, "Machine");
    let refused = until(&machines, lost, "say why it is not remediated", |machine| {
        condition(machine, "OwnerRemediated")
            .is_some_and(|one| one["status"] == "False" && one["reason"] != "WaitingForRemediation")
    })
    .await?;
    let told = condition(&refused, "OwnerRemediated")
        .cloned()
        .unwrap_or_default();
    ensure!(
        ["RemediationDeferred", "CannotBeRemediated"]
            .iter()
            .any(|one| told["reason"] == *one)
            && told["message"].as_str().is_some_and(|why| !why.is_empty()),
        "{told}"
    );
    ensure!(
        fleet.server_names().await? == before,
        "nothing was deleted or made"
    );
    ensure!(
        fleet
            .tier
            .quorum_losses(&fleet.key())
            .is_none_or(|losses| losses == 1)
    );

    fleet.revive(returning).await?;
    fleet.until_gone(lost).await?;
    fleet.until_settled(3, VERSION).await?;
    ensure!(fleet.server_names().await?.contains(returning));
    Ok(())
}

/// What a MachineHealthCheck writes onto a machine whose remediation is its owner's.
pub async fn mark_unhealthy(fleet: &Fleet, machine: &str) -> Result<()> {
    let now = k8s_openapi::jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string();
    let condition = |type_: &str, reason: &str| {
        json!({"type": type_, "status": "False", "reason": reason,
            "message": "the console shows a kernel panic", "lastTransitionTime": now})
    };
    let status = json!({"apiVersion": CORE, "kind": "Machine", "metadata": {"name": machine},
    "status": {"conditions": [
        condition("HealthCheckSucceeded", "UnhealthyNode"),
        condition("OwnerRemediated", "WaitingForRemediation"),
    ]}});
    fleet
        .of(CORE, "Machine")
        .patch_status(
            machine,
            &PatchParams::apply("a-health-check").force(),
            &Patch::Apply(&status),
        )
        .await?;
    Ok(())
}
