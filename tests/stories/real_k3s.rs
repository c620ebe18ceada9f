//! The scenarios of K3s once more, on real k3s servers: processes in network namespaces with embedded etcd, which boot
//! by the userdata that was rendered for them. They run where the environment names a k3s for each minor version
//! (`SLIPWAY_K3S_1_36=/path/to/k3s`), one after the other; elsewhere they say that they are skipped.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use slipway_testbed::{
    hosts::{Backend, RealK3s, Releases, unavailable},
    wait::until_within,
};
use tokio::sync::{Mutex, MutexGuard};

use crate::{
    k3s_fleet::{CORE, Fleet, Simulated, Tier, condition, is_true},
    k3s_lifecycle::{
        a_deleted_server_is_replaced, deleting_leaves_nothing, goes_back_halfway, servers_are_spread,
        workers_are_ready,
    },
    k3s_manager,
};

/// Where a host reports that it has joined.
const SUCCESS: &str = "/run/cluster-api/bootstrap-success.complete";

/// Where cloud-init notes that it is through.
const BOOT_FINISHED: &str = "/var/lib/cloud/instance/boot-finished";

/// A few servers keep a small machine busy.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// Real servers.
struct Real {
    hosts: Arc<RealK3s>,
}

impl Tier for Real {
    fn backend(&self) -> Arc<dyn Backend> {
        self.hosts.clone()
    }

    /// Only a server could tell, and only if it was asked at the right time.
    fn quorum_losses(&self, _cluster: &str) -> Option<u64> {
        None
    }

    fn left_behind(&self, cluster: &str) -> Option<Vec<String>> {
        Some(self.hosts.left_behind(cluster))
    }

    fn failures(&self, cluster: &str) -> Vec<String> {
        let told = |(host, why): (String, String)| format!("{host}: {why}");
        self.hosts.failures(cluster).into_iter().map(told).collect()
    }

    fn hosts(&self, cluster: &str) -> Vec<String> {
        self.hosts.hosts(cluster)
    }

    /// Nothing can run on these nodes, so nothing is deployed to them; and a silent node is noticed sooner.
    fn config(&self) -> Option<Value> {
        Some(json!({"serverConfig": {
            "disableComponents": ["coredns", "local-storage", "metrics-server", "servicelb", "traefik"],
            "kubeControllerManagerArgs": ["node-monitor-grace-period=20s"],
        }}))
    }

    fn deadline(&self) -> Duration {
        Duration::from_mins(20)
    }
}

/// A fleet of real servers, and nobody else's until it is dropped.
pub struct RealFleet {
    pub fleet: Fleet,
    pub hosts: Arc<RealK3s>,
    pub versions: Vec<String>,
    pub _alone: MutexGuard<'static, ()>,
}

/// A fleet where the environment names enough minor versions that follow each other, and the machine allows it.
pub async fn real(name: &str, minors: usize) -> Result<Option<RealFleet>> {
    let releases = Releases::from_environment()?;
    let versions: Vec<String> = releases
        .upgrades()
        .iter()
        .map(|release| release.version.clone())
        .collect();
    if versions.len() < minors {
        println!(
            "report: skipped: {name} on real k3s needs {minors} minor versions of it in the environment \
             (SLIPWAY_K3S_1_36=…), and there are {}",
            versions.len()
        );
        return Ok(None);
    }
    if let Some(why) = unavailable() {
        println!(
            "report: skipped: {name} on real k3s needs namespaces that this machine does not allow: {why}"
        );
        return Ok(None);
    }
    let alone = ONE_AT_A_TIME.lock().await;
    let manager = k3s_manager::of_shared_cluster().await?;
    let launcher = manager.cluster.description().parts.join("bin/launch");
    let hosts = Arc::new(RealK3s::new(launcher, releases)?);
    let tier = Real {
        hosts: Arc::clone(&hosts),
    };
    let fleet = Fleet::start(Arc::clone(&manager.cluster), name, Arc::new(tier)).await?;
    Ok(Some(RealFleet {
        fleet,
        hosts,
        versions,
        _alone: alone,
    }))
}

/// Every server's node comes to carry what k3s' own controllers write: a promoted learner is called a voter one look of
/// etcd's leader after its promotion.
pub async fn nodes_become_voters(fleet: &Fleet) -> Result<()> {
    let nodes: Api<Node> = Api::all(fleet.workload().await?);
    for server in fleet.servers().await? {
        let name = server.data["status"]["nodeRef"]["name"]
            .as_str()
            .context("a node")?;
        let node = until_within(fleet.tier.deadline(), &nodes, name, "be a voter", |node| {
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.into_iter().flatten().any(|one| {
                one.type_ == "EtcdIsVoter"
                    && one.status == "True"
                    && one.reason.as_deref() == Some("MemberNotLearner")
            })
        })
        .await?;
        let member = node.annotations().get("etcd.k3s.cattle.io/node-name");
        ensure!(
            member.is_some_and(|member| member.starts_with(&format!("{name}-"))),
            "{member:?}"
        );
        let role = node.labels().get("node-role.kubernetes.io/etcd");
        ensure!(role.is_some_and(|role| role == "true"));
    }
    Ok(())
}

/// Waits until a machine says this of its agent.
async fn until_agent(fleet: &Fleet, machine: &str, status: &str) -> Result<()> {
    let machines = fleet.of(CORE, "Machine");
    let what = format!("say {status} of its agent");
    until_within(fleet.tier.deadline(), &machines, machine, &what, |machine| {
        condition(machine, "AgentHealthy").is_some_and(|told| told["status"] == status)
    })
    .await?;
    Ok(())
}

/// One server and a worker, from userdata that a real k3s reads: the first one starts a cluster with the CAs
/// and the token it was given, the worker joins once it is there (S-17), the kubeconfig its users get is trusted, the
/// success is reported once k3s runs (S-18), and deleting leaves nothing (S-60).
#[tokio::test]
async fn one_server_and_a_worker() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts,
        _alone,
    }) = real("real-k3s-one", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(1, 1, version).await?;
    fleet.until_settled(1, version).await?;
    nodes_become_voters(&fleet).await?;
    workers_are_ready(&fleet, 1).await?;
    let booted = hosts.hosts(&fleet.key());
    ensure!(booted.len() == 2, "{booted:?}");
    for host in booted {
        let said = hosts.read(&fleet.key(), &host, SUCCESS)?;
        ensure!(said == "success\n", "{host} says {said:?}");
    }
    deleting_leaves_nothing(&fleet).await
}

/// A host on which k3s cannot be installed never reports a success (S-18), and its cluster can be deleted all the same.
#[tokio::test]
async fn no_success_is_reported_without_k3s() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts,
        _alone,
    }) = real("real-k3s-missing", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    let (minor, _) = version.rsplit_once('.').context("a patch version")?;
    fleet.create(1, 0, &format!("{minor}.99+k3s1")).await?;
    // cloud-init tells nobody that it is through: the disk is asked.
    let key = fleet.key();
    let through = async {
        loop {
            let mut booted = hosts.hosts(&key).into_iter();
            if let Some(host) = booted.find(|host| hosts.read(&key, host, BOOT_FINISHED).is_ok()) {
                break host;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    let host = tokio::time::timeout(fleet.tier.deadline(), through).await?;
    let failures = hosts.failures(&key);
    ensure!(failures.contains_key(&host), "{failures:?}");
    let said = hosts.read(&key, &host, SUCCESS);
    ensure!(
        said.as_ref()
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound),
        "{host} says {said:?}"
    );
    deleting_leaves_nothing(&fleet).await
}

/// Three servers in places of their own (S-61) join one another as learners and are promoted; one loses its power for a
/// while, which is told and taken back (S-39); one dies and is replaced; one is deleted by hand, and leaves etcd before
/// its host goes (S-7).
#[tokio::test]
async fn three_servers_are_healed() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-three", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(3, 0, version).await?;
    fleet.until_settled(3, version).await?;
    nodes_become_voters(&fleet).await?;
    servers_are_spread(&fleet).await?;

    let before: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    let dead = before.first().context("a server")?.clone();
    fleet.kill(&dead).await?;
    until_agent(&fleet, &dead, "False").await?;
    fleet.revive(&dead).await?;
    until_agent(&fleet, &dead, "True").await?;
    fleet.until_settled(3, version).await?;

    fleet.check_health().await?;
    fleet.kill(&dead).await?;
    fleet.until_gone(&dead).await?;
    fleet.until_settled(3, version).await?;
    let after: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    ensure!(
        before
            .iter()
            .filter(|name| **name != dead)
            .all(|name| after.contains(name)),
        "{before:?} became {after:?}"
    );
    nodes_become_voters(&fleet).await?;

    a_deleted_server_is_replaced(&fleet, version).await?;
    deleting_leaves_nothing(&fleet).await
}

/// From one minor version to the next, a server at a time; before that halfway and back (S-35).
#[tokio::test]
async fn three_servers_are_upgraded() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-upgrade", 2).await?
    else {
        return Ok(());
    };
    let (from, to) = (&versions[versions.len() - 2], &versions[versions.len() - 1]);
    fleet.create(3, 0, from).await?;
    fleet.until_settled(3, from).await?;
    goes_back_halfway(&fleet, from, to).await?;
    let before: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    fleet.patch_plane(json!({ "version": to })).await?;
    fleet.until_settled(3, to).await?;
    let after: BTreeSet<String> = fleet.server_names().await?.into_iter().collect();
    ensure!(before.is_disjoint(&after), "every server was replaced");
    ensure!(
        fleet
            .tier
            .left_behind(&fleet.key())
            .unwrap_or_default()
            .is_empty()
    );
    nodes_become_voters(&fleet).await?;
    deleting_leaves_nothing(&fleet).await
}

/// With two of three gone nothing is done; when one comes back the other is replaced (S-49).
#[tokio::test]
async fn two_of_three_are_left_alone_until_one_returns() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-quorum", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    fleet.create(3, 0, version).await?;
    fleet.until_settled(3, version).await?;
    let before = fleet.server_names().await?;
    let (lost, returning) = (&before[0], &before[1]);
    for machine in [lost, returning] {
        fleet.kill(machine).await?;
    }
    crate::k3s_healing::mark_unhealthy(&fleet, lost).await?;
    let machines = fleet.of(CORE, "Machine");
    let refused = until_within(
        fleet.tier.deadline(),
        &machines,
        lost,
        "say why it is not remediated",
        |machine| {
            condition(machine, "OwnerRemediated")
                .is_some_and(|one| one["status"] == "False" && one["reason"] != "WaitingForRemediation")
        },
    )
    .await?;
    ensure!(!is_true(&refused, "OwnerRemediated"));
    ensure!(
        fleet.server_names().await? == before,
        "nothing was deleted or made"
    );
    let token = fleet.secret("token", "value").await?;
    let known = format!("server:{}", token.trim_end());
    let told = answer_of(&fleet, "/db/info", Some(&known)).await?;
    let message = told[2][2].as_str().unwrap_or_default();
    ensure!(
        told[0] == 500 && told[2][0] == "Status" && message.contains("failed to get etcd MemberList"),
        "{told}"
    );
    fleet.revive(returning).await?;
    fleet.until_gone(lost).await?;
    fleet.until_settled(3, version).await?;
    ensure!(fleet.server_names().await?.contains(returning));
    deleting_leaves_nothing(&fleet).await
}

/// The same requests to both: who may ask what, in which form it is answered, and what a server's node says.
#[tokio::test]
async fn the_simulator_answers_as_k3s_does() -> Result<()> {
    let Some(RealFleet {
        fleet,
        versions,
        hosts: _hosts,
        _alone,
    }) = real("real-k3s-compared", 1).await?
    else {
        return Ok(());
    };
    let version = versions.last().context("a version")?;
    let simulated = Fleet::start(Arc::clone(&fleet.management), "k3s-compared", Simulated::new()).await?;
    let mut answers = Vec::new();
    for one in [&fleet, &simulated] {
        one.create(1, 0, version).await?;
        one.until_settled(1, version).await?;
        nodes_become_voters(one).await?;
        let mut asked = answers_of(one).await?;
        asked.insert("a server's node".to_owned(), node_of(one).await?);
        answers.push(asked);
    }
    let (real, simulator) = (&answers[0], &answers[1]);
    let told = |answer: Option<&Value>| answer.map_or_else(|| "nothing".to_owned(), ToString::to_string);
    let different: Vec<String> = real
        .iter()
        .map(|(what, answer)| (what, Some(answer), simulator.get(what)))
        .filter(|(_, real, simulated)| real != simulated)
        .map(|(what, real, simulated)| {
            let (real, simulated) = (told(real), told(simulated));
            format!("{what}:\n  k3s:       {real}\n  simulator: {simulated}")
        })
        .collect();
    ensure!(different.is_empty(), "{}", different.join("\n"));
    deleting_leaves_nothing(&simulated).await?;
    deleting_leaves_nothing(&fleet).await
}

/// What a server answers to those who may ask and to others.
async fn answers_of(fleet: &Fleet) -> Result<BTreeMap<String, Value>> {
    let token = fleet.secret("token", "value").await?;
    let token = token.trim_end();
    let (known, unknown, agent) = (
        Some(format!("server:{token}")),
        Some("server:wrong".to_owned()),
        Some(format!("node:{token}")),
    );
    let requests = [
        ("/ping", None),
        ("/cacerts", None),
        ("/readyz", None),
        ("/livez", None),
        ("/version", None),
        ("/db/info", known),
        ("/db/info", unknown),
        ("/db/info", agent),
        ("/db/info", None),
        ("/api/v1/nodes", None),
    ];
    let mut answers = BTreeMap::new();
    for (path, credentials) in requests {
        let answer = answer_of(fleet, path, credentials.as_deref()).await?;
        let who = credentials.as_deref().unwrap_or("nobody").replace(token, "token");
        answers.insert(format!("{path} as {who}"), answer);
    }
    Ok(answers)
}

/// What a server answers to somebody without a certificate: status, form and contents, without what differs from
/// cluster to cluster.
async fn answer_of(fleet: &Fleet, path: &str, credentials: Option<&str>) -> Result<Value> {
    let mut config = fleet.workload_config().await?;
    config.auth_info = kube::config::AuthInfo::default();
    let mut request = http::Request::get(path);
    if let Some(credentials) = credentials {
        let basic = BASE64_STANDARD.encode(credentials);
        request = request.header("authorization", format!("Basic {basic}"));
    }
    let request = request.body(kube::client::Body::empty())?;
    let answer = Client::try_from(config)?.send(request).await?;
    let status = answer.status().as_u16();
    let form = answer.headers().get("content-type").cloned();
    let form = form.and_then(|form| Some(form.to_str().ok()?.to_owned()));
    let body = answer.into_body().collect_bytes().await?;
    let text = String::from_utf8_lossy(&body).into_owned();
    let said = match serde_json::from_str::<Value>(&text) {
        Ok(said) if status == 200 => shape(&said),
        Ok(refusal) => {
            let fields = ["kind", "reason", "message", "code"];
            fields.iter().map(|field| refusal[*field].clone()).collect()
        }
        Err(_) if text.starts_with("-----BEGIN CERTIFICATE-----") => json!("a certificate"),
        Err(_) => json!(text),
    };
    Ok(json!([status, form, said]))
}

/// Names and types, without values.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), shape(value)))
            .collect(),
        Value::Array(items) => items.first().map(shape).into_iter().collect(),
        Value::String(_) => json!("text"),
        Value::Number(_) => json!("number"),
        other => other.clone(),
    }
}

/// What k3s itself writes to the node of a server.
async fn node_of(fleet: &Fleet) -> Result<Value> {
    let nodes = fleet.nodes().await?;
    let node = nodes.first().context("a node")?;
    let roles: BTreeMap<&String, &String> = node
        .labels()
        .iter()
        .filter(|(key, _)| key.starts_with("node-role.kubernetes.io/"))
        .collect();
    let annotations: Vec<&String> = node
        .annotations()
        .keys()
        .filter(|key| key.starts_with("etcd.k3s.cattle.io/"))
        .collect();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let voter = conditions
        .into_iter()
        .flatten()
        .find(|one| one.type_ == "EtcdIsVoter");
    let voter = voter.map(|one| json!([one.status, one.reason, one.message]));
    Ok(json!({"roles": roles, "annotations": annotations, "voter": voter}))
}
