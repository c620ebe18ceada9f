//! What was found by reading, on real k3s servers: annotations that come late, a server that joined by hand, a restart beside a dead
//! server, and a plane whose machines are gone. They run where `real_k3s` does; two points share a cluster of servers each.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::json;
use slipway_kit::{core::UPDATE_IN_PROGRESS, extension::Extension};
use slipway_testbed::{
    hosts::{Booting, HostPhase},
    wait::{until_gone_within, until_within},
};

use crate::{
    k3s_fleet::{CORE, Fleet, HOSTS, NAME, condition},
    k3s_lifecycle::deleting_leaves_nothing,
    real_k3s::{RealFleet, nodes_become_voters, real},
    real_k3s_quorum::{
        LONGER_THAN_THE_GRACE, SAMPLE, Sampler, asked, delete_machine, delete_node, member_names,
        nobody_is_left_behind, node, patch_node, until_let_go,
    },
    support::is_ready,
};

const MEMBER: &str = "etcd.k3s.cattle.io/node-name";
const BY_HAND: &str = "by-hand";
/// As long as the node controller and a lease trust a dead host, and longer.
const LONGER_THAN_THE_NODE_GRACE: Duration = Duration::from_secs(50);
const REMEDIATION: &str = "controlplane.cluster.x-k8s.io/remediation-in-progress";

/// S-10, then S-5.
#[tokio::test]
async fn late_annotations_and_a_server_joined_by_hand() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-late", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(1, 0, version).await?;
    fleet.until_settled(1, version).await?;
    let fleet = Arc::new(fleet);
    a_late_annotation_keeps_the_host(&fleet, version).await?;
    a_server_that_joined_by_hand_keeps_its_member(&fleet, version).await?;
    deleting_leaves_nothing(&fleet).await
}

/// S-38, then S-15.
#[tokio::test]
async fn no_restart_beside_a_dead_server_and_no_second_first_one() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-in-place", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(3, 0, version).await?;
    fleet
        .patch_plane(json!({"rolloutStrategy": {"type": "InPlace"}}))
        .await?;
    fleet.until_settled(3, version).await?;
    nodes_become_voters(&fleet).await?;
    nothing_is_restarted_in_the_grace_of_a_dead_server(&fleet, version).await?;
    nothing_is_initialised_twice(&fleet).await?;
    deleting_leaves_nothing(&fleet).await
}

/// The cluster refuses to have members' names written to nodes that have none, as if k3s had not come to it yet. The names cannot be
/// kept away otherwise: k3s writes them by itself.
async fn keep_names_away(workload: &Client, kept: bool) -> Result<()> {
    let api = |kind: &str| -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        Api::all_with(workload.clone(), &ApiResource::from_gvk(&kind))
    };
    let (policies, bindings) = (
        api("ValidatingAdmissionPolicy"),
        api("ValidatingAdmissionPolicyBinding"),
    );
    let name = "no-names-yet";
    if !kept {
        bindings.delete(name, &DeleteParams::default()).await?;
        policies.delete(name, &DeleteParams::default()).await?;
        until_gone_within(Duration::from_mins(1), &bindings, name).await?;
        return Ok(());
    }
    let has = |object: &str| {
        format!("has({object}.metadata.annotations) && '{MEMBER}' in {object}.metadata.annotations")
    };
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]},
            ]},
            "validations": [{"expression": format!("!({}) || ({})", has("object"), has("oldObject"))}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    let params = PatchParams::apply("a-user");
    policies.patch(name, &params, &Patch::Apply(policy)).await?;
    bindings.patch(name, &params, &Patch::Apply(binding)).await?;
    Ok(())
}

/// A Machine is deleted whose Node does not name its member yet: its host is kept until the member is gone from etcd.
async fn a_late_annotation_keeps_the_host(fleet: &Fleet, version: &str) -> Result<()> {
    let workload = fleet.workload().await?;
    keep_names_away(&workload, true).await?;
    fleet.hosts.delay(HostPhase::Delete, Duration::from_secs(30));
    let first = fleet.server_names().await?;
    fleet.patch_plane(json!({"replicas": 3})).await?;
    let has_node = |server: &DynamicObject| server.data["status"]["nodeRef"]["name"].is_string();
    let servers = fleet
        .until_servers("have a second node", |servers| {
            servers.len() == 2 && servers.iter().all(has_node)
        })
        .await?;
    let second = servers
        .iter()
        .map(ResourceExt::name_any)
        .find(|name| !first.contains(name))
        .context("a second server")?;
    let found = node(fleet, &second).await?.context("its node")?;
    ensure!(!found.annotations().contains_key(MEMBER), "it names its member");
    let belongs = |member: &str| member.is_empty() || member.starts_with(&format!("{second}-"));
    let members = member_names(fleet).await?;
    ensure!(
        members.iter().any(|member| belongs(member)),
        "{second} is no member: {members:?}"
    );
    delete_machine(fleet, &second).await?;
    until_let_go(fleet, &second).await?;
    let found = node(fleet, &second).await?;
    ensure!(
        found.is_none_or(|node| !node.annotations().contains_key(MEMBER)),
        "the member's name came in between, so this says nothing"
    );
    fleet.until_gone(&second).await?;
    nobody_is_left_behind(fleet)?;
    fleet.hosts.delay(HostPhase::Delete, Duration::ZERO);
    keep_names_away(&fleet.workload().await?, false).await?;
    // k3s comes to a node when it changes.
    for node in asked(|| fleet.nodes()).await? {
        let touched = json!({"annotations": {"example.com/touched": "yes"}});
        patch_node(fleet, &node.name_any(), &touched).await?;
    }
    fleet.until_settled(3, version).await?;
    nodes_become_voters(fleet).await?;
    nobody_is_left_behind(fleet)?;
    ensure!(fleet.server_names().await?.contains(&first[0]), "the first stays");
    println!(
        "report: real k3s: the host of a server whose node names no member is kept until the member is gone"
    );
    Ok(())
}

/// A server that nobody made a Machine for joins, is off for longer than an orphaned member is kept, and comes back to its member.
async fn a_server_that_joined_by_hand_keeps_its_member(fleet: &Arc<Fleet>, version: &str) -> Result<()> {
    let servers = fleet.server_names().await?;
    let backend = fleet.tier.backend();
    let joined = fleet.host_of(servers.last().context("a server")?).await?;
    let booting = Booting {
        cluster: fleet.key(),
        name: BY_HAND.to_owned(),
        provider_id: format!("testhost://{}/{BY_HAND}", fleet.namespace),
        address: "10.251.0.1".to_owned(),
        version: version.to_owned(),
        is_control_plane: true,
        bootstrap_kind: "KThreesConfig".to_owned(),
        bootstrap_data: fleet.hosts.bootstrap_data(&joined).context("userdata")?,
        ..Booting::default()
    };
    backend.boot(&booting).await?;
    until_voters(fleet, 4).await?;
    let nodes: Api<Node> = Api::all(fleet.workload().await?);
    let named = |node: &Node| node.annotations().contains_key(MEMBER);
    until_within(fleet.tier.deadline(), &nodes, BY_HAND, "name its member", named).await?;
    let before = member_names(fleet).await?;
    let sampler = Sampler::of(fleet);
    backend.set_alive(&fleet.key(), BY_HAND, false).await?;
    // That something does not happen can only be waited for.
    let started = Instant::now();
    while started.elapsed() < LONGER_THAN_THE_GRACE {
        let now = member_names(fleet).await?;
        ensure!(now == before, "{before:?} became {now:?}");
        ensure!(fleet.server_names().await? == servers);
        tokio::time::sleep(SAMPLE).await;
    }
    let off = node(fleet, BY_HAND).await?.context("its node")?;
    ensure!(!is_ready(&off), "the cluster has noticed");
    backend.set_alive(&fleet.key(), BY_HAND, true).await?;
    until_within(fleet.tier.deadline(), &nodes, BY_HAND, "be ready again", is_ready).await?;
    sampler.saw_no_removal((4, 4))?;
    drop(sampler);
    println!(
        "report: real k3s: a server that joined by hand keeps its member while it is off for {LONGER_THAN_THE_GRACE:?}"
    );

    // It goes as the docs say: its node is deleted, and k3s takes the member along.
    backend.set_alive(&fleet.key(), BY_HAND, false).await?;
    delete_node(fleet, BY_HAND).await?;
    until_voters(fleet, 3).await?;
    backend.destroy(&fleet.key(), BY_HAND).await?;
    Ok(())
}

/// etcd tells nobody when its members change: it is asked.
async fn until_voters(fleet: &Fleet, voters: usize) -> Result<()> {
    let asked = async {
        loop {
            if let Ok(members) = fleet.members().await
                && members.len() == voters
                && members.iter().all(|member| !member.learner)
            {
                return;
            }
            tokio::time::sleep(SAMPLE).await;
        }
    };
    tokio::time::timeout(fleet.tier.deadline(), asked)
        .await
        .with_context(|| format!("etcd does not come to have {voters} voters"))
}

/// Core asks the extension what it serves, and notes it.
async fn register(fleet: &Fleet, extension: &Extension) -> Result<Api<DynamicObject>> {
    let kind = GroupVersionKind::gvk("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
    let configs = Api::all_with(fleet.client.clone(), &ApiResource::from_gvk(&kind));
    let config = json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2",
        "kind": "ExtensionConfig",
        "metadata": {"name": fleet.namespace},
        "spec": {
            "clientConfig": extension.client_config(),
            // No other cluster is its business.
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": fleet.namespace}},
        },
    });
    let params = PatchParams::apply("a-user");
    configs
        .patch(&fleet.namespace, &params, &Patch::Apply(config))
        .await?;
    let known =
        |config: &DynamicObject| condition(config, "Discovered").is_some_and(|one| one["status"] == "True");
    until_within(
        fleet.tier.deadline(),
        &configs,
        &fleet.namespace,
        "be discovered",
        known,
    )
    .await?;
    Ok(configs)
}

/// One of three loses its power, and an update in place is asked for while its node still looks ready: nobody is restarted until it is
/// back, and then all are updated in place.
async fn nothing_is_restarted_in_the_grace_of_a_dead_server(fleet: &Fleet, version: &str) -> Result<()> {
    let extension = Extension::start(&["KThreesConfig", "Machine", "TestHostMachine"]).await;
    let configs = register(fleet, &extension).await?;
    let before = fleet.server_names().await?;
    let dead = &before[2];
    fleet.kill(dead).await?;
    let found = node(fleet, dead).await?.context("its node")?;
    ensure!(is_ready(&found), "nobody has noticed yet");
    let labels = json!({"kthreesConfigSpec": {"agentConfig": {"nodeLabels": ["example.com/updated=yes"]}}});
    let asked = Instant::now();
    fleet.patch_plane(labels).await?;
    fleet
        .until_plane("say whom the update waits for", |plane| {
            condition(plane, "RollingOut").is_some_and(|one| {
                let why = one["message"].as_str().unwrap_or_default();
                let heard = why.split("waiting to hear from").nth(1);
                heard.is_some_and(|nodes| nodes.contains(dead))
                    || why.contains(&format!("machine {dead} is not alive"))
                    || why.contains(&format!("node of machine {dead} is not ready"))
            })
        })
        .await?;
    let named_after = asked.elapsed();
    // That something does not happen can only be waited for.
    while asked.elapsed() < LONGER_THAN_THE_NODE_GRACE {
        for server in fleet.servers().await? {
            let marked = server.annotations().contains_key(UPDATE_IN_PROGRESS);
            ensure!(!marked, "{} is restarted beside {dead}", server.name_any());
        }
        ensure!(extension.calls("UpdateMachine") == 0);
        tokio::time::sleep(SAMPLE).await;
    }
    ensure!(fleet.server_names().await? == before);
    fleet.revive(dead).await?;
    fleet.until_settled(3, version).await?;
    ensure!(fleet.server_names().await? == before, "none is replaced");
    let updated = extension.calls("UpdateMachine");
    ensure!(updated >= 3, "{updated} calls to update three servers");
    configs.delete(&fleet.namespace, &DeleteParams::default()).await?;
    println!(
        "report: real k3s: an update in place names the dead server after {:.1} s and restarts nobody until it is back",
        named_after.as_secs_f64()
    );
    Ok(())
}

/// Every Machine is torn out without its hooks, and the control plane remembers a remediation: it was initialised once, so it makes no
/// first server again.
async fn nothing_is_initialised_twice(fleet: &Fleet) -> Result<()> {
    let clusters = fleet.of(CORE, "Cluster");
    let pause = |paused: bool| Patch::Merge(json!({"spec": {"paused": paused}}));
    clusters
        .patch(NAME, &PatchParams::default(), &pause(true))
        .await?;
    fleet
        .until_plane("be paused", |plane| {
            condition(plane, "Paused").is_some_and(|one| one["status"] == "True")
        })
        .await?;
    let servers = fleet.server_names().await?;
    let record = json!({"machine": servers[0], "timestamp": "2026-01-01T00:00:00Z", "retryCount": 0});
    let remembers = json!({"metadata": {"annotations": {REMEDIATION: record.to_string()}}});
    fleet
        .planes()
        .patch(NAME, &PatchParams::default(), &Patch::Merge(remembers))
        .await?;
    let torn_out = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let machines = fleet.of(CORE, "Machine");
    for server in &servers {
        machines.delete(server, &DeleteParams::default()).await?;
        machines.patch(server, &PatchParams::default(), &torn_out).await?;
        fleet.until_gone(server).await?;
    }
    // Their hosts go with them, in the garbage collector's time.
    let hosts = fleet.of(HOSTS, "TestHostMachine");
    for host in hosts.list(&ListParams::default()).await?.items {
        until_gone_within(fleet.tier.deadline(), &hosts, &host.name_any()).await?;
    }
    clusters
        .patch(NAME, &PatchParams::default(), &pause(false))
        .await?;
    fleet
        .until_plane("say that no first server is made again", |plane| {
            let status = plane.data["status"].to_string();
            status.contains("no first server is made a second time")
        })
        .await?;
    // That something does not happen can only be waited for.
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(40) {
        let made = fleet.server_names().await?;
        ensure!(
            made.is_empty(),
            "{made:?} would be an empty cluster of the same name"
        );
        tokio::time::sleep(SAMPLE).await;
    }
    println!("report: real k3s: a plane that lost every machine makes no first server again");
    Ok(())
}
