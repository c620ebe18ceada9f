//! The life of clusters of inline Azure resources, with Cluster API's core and clusterctl as real processes, the manager under
//! its declared roles, and a simulated Azure. The scenarios run side by side in one world; at the end no right was missing,
//! no secret was told, and nothing is left in Azure.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use slipway_kit::manager::{Manager, roles};
use slipway_testbed::{
    Cluster, ManagementCluster,
    canary::Canaries,
    install,
    rights::{self, Unused},
    wait::{until, until_gone},
};

use crate::{
    aks_clusters::{Scenario, all_of},
    aks_joining::join_own_nodes,
    aks_manager::USER,
    aks_templates::{generate, repository},
    aks_world::{CORE, Fleet, NEXT, VERSION, World, capz, management},
    aso_world::{
        AKS, BINARY, CREDENTIAL, INFRASTRUCTURE, NETWORK, PLANE, POOL, PROGRAM, cluster, credential,
        examples, is_settled, managed_cluster, planes, pool, pool_resource, pools, replace, resource,
        resource_group, start, start_manager, until_settled,
    },
};

const OPEN: &str = "this manager's diagnostics are open";
const NO_OPERATOR: &str = "no Azure Service Operator is installed";
const OPERATED: &[&str] = &["create", "delete", "get", "list", "patch", "watch"];

const fn unused(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    reason: &'static str,
) -> Unused {
    Unused {
        group,
        resource,
        verbs,
        reason,
        rare: false,
    }
}

/// Declared, and not used in these scenarios.
const UNUSED: &[Unused] = &[
    unused("authentication.k8s.io", "tokenreviews", &["create"], OPEN),
    unused("authorization.k8s.io", "subjectaccessreviews", &["create"], OPEN),
    unused(
        "coordination.k8s.io",
        "leases",
        &["create", "get", "list", "update"],
        "this manager runs alone, and looks for the lease of an operator only where its kinds are installed",
    ),
    unused(
        "",
        "serviceaccounts/token",
        &["create"],
        "these credentials are client secrets",
    ),
    Unused {
        rare: true,
        ..unused(
            "cluster.x-k8s.io",
            "clusters",
            &["get"],
            "asked only where no watch of Clusters runs, and one runs here",
        )
    },
    Unused {
        rare: true,
        ..unused(
            "",
            "secrets",
            &["delete", "patch"],
            "only a kubeconfig of another type is replaced, and only one that changes is patched",
        )
    },
    Unused {
        rare: true,
        ..unused(
            "",
            "configmaps",
            &["patch"],
            "only values that change are patched",
        )
    },
    unused(
        "containerservice.azure.com",
        "fleetsmembers",
        OPERATED,
        NO_OPERATOR,
    ),
    unused(
        "containerservice.azure.com",
        "maintenanceconfigurations",
        OPERATED,
        NO_OPERATOR,
    ),
    unused(
        "containerservice.azure.com",
        "managedclusters",
        OPERATED,
        NO_OPERATOR,
    ),
    unused(
        "containerservice.azure.com",
        "managedclustersagentpools",
        OPERATED,
        NO_OPERATOR,
    ),
    unused(
        "kubernetesconfiguration.azure.com",
        "extensions",
        OPERATED,
        NO_OPERATOR,
    ),
    unused("network.azure.com", "bastionhosts", OPERATED, NO_OPERATOR),
    unused("network.azure.com", "natgateways", OPERATED, NO_OPERATOR),
    unused("network.azure.com", "privateendpoints", OPERATED, NO_OPERATOR),
    unused("network.azure.com", "virtualnetworks", OPERATED, NO_OPERATOR),
    unused(
        "network.azure.com",
        "virtualnetworkssubnets",
        OPERATED,
        NO_OPERATOR,
    ),
    unused("resources.azure.com", "resourcegroups", OPERATED, NO_OPERATOR),
];

#[tokio::test(flavor = "multi_thread")]
async fn aso_clusters_live_side_by_side() -> Result<()> {
    let mut canaries = Canaries::default();
    let world = start(canaries.hatch("the client secret")).await?;
    let workload = install::parse(&std::fs::read_to_string(world.workload.kubeconfig())?)?;
    let key = workload[0]["users"][0]["user"]["client-key-data"].as_str();
    canaries.add("the key in the kubeconfigs, encoded", key.context("a key")?);
    let mut there = None;
    let scenarios: Vec<Scenario<'_>> = vec![
        ("the document's examples", Box::pin(of_the_document(&world))),
        ("templates of upstream", Box::pin(of_upstream(&world))),
        ("our flavors", Box::pin(of_ours(&world))),
        ("a whole life", Box::pin(whole_life(&world))),
        ("nodes of one's own", Box::pin(own_nodes(&world))),
        (
            "move with its credential",
            Box::pin(async {
                there = Some(move_away(&world).await?);
                Ok(())
            }),
        ),
    ];
    all_of(scenarios).await?;
    let rest = world.in_azure("/resourcegroups/");
    ensure!(rest.is_empty(), "left in Azure: {rest:?}");

    let (there, other) = there.context("it moved")?;
    let mut sightings = canaries.sightings("the metrics", &world.manager.metrics().await?);
    let declared = rights::declared(&roles::declared(&(PROGRAM.packages)())?);
    let mut requests = Vec::new();
    for (cluster, manager) in [(&world.management, &world.manager), (&there, &other)] {
        sightings.extend(canaries.sightings_in_cluster(&cluster.client()).await?);
        sightings.extend(canaries.sightings("the log", &manager.log()));
        let of_manager = |request: &slipway_testbed::audit::Request| request.username() == USER;
        requests.extend(cluster.audit().requests(None, of_manager)?);
    }
    ensure!(sightings.is_empty(), "secrets are told: {sightings:?}");
    let findings = rights::compare(&declared, &requests, UNUSED);
    ensure!(findings.is_empty(), "{findings}");
    world.manager.kill();
    other.kill();
    there.stop();
    Ok(())
}

/// Deletes a Cluster, and nothing of its resource group is left.
async fn delete(fleet: &Fleet<'_>, name: &str) -> Result<()> {
    fleet.clusters().delete(name, &DeleteParams::default()).await?;
    until_gone(&fleet.clusters(), name).await?;
    Ok(())
}

/// Both examples of the document as they stand there, with what they leave to the reader: an owner, a place and a pool.
async fn of_the_document(world: &World) -> Result<()> {
    let name = "my-cluster";
    let fleet = Fleet {
        name: "default".to_owned(),
        ..world.fleet("documented").await?
    };
    let found = examples("asomanagedcluster.md", name)?;
    let of = |kind: &str| {
        found
            .iter()
            .find(|one| one["kind"] == kind)
            .cloned()
            .context(kind.to_owned())
    };
    let mut infrastructure = of(INFRASTRUCTURE)?;
    let mut plane = of(PLANE)?;
    // The document that the API came with has them in its first version.
    for object in [&mut infrastructure, &mut plane] {
        object["apiVersion"] = json!("infrastructure.cluster.x-k8s.io/v1alpha1");
    }
    plane["spec"]["version"] = json!(VERSION);
    let left_out = json!({"owner": {"name": "my-resource-group"}, "location": "eastus", "dnsPrefix": name,
        "identity": {"type": "SystemAssigned"}, "disableLocalAccounts": true,
        "aadProfile": {"managed": true, "enableAzureRBAC": true}});
    json_patch::merge(&mut plane["spec"]["resources"][0]["spec"], &left_out);
    let mut all = vec![credential(&fleet, "aso-credential")];
    all.push(cluster(name, &[], &[]).swap_remove(0));
    all.extend([infrastructure, plane]);
    let mut members = pool(name, "docsys", "System", 1);
    members[1]["spec"]["resources"][0]["metadata"]["annotations"] = json!({});
    all.extend(members);
    fleet.apply(&all).await?;
    until_settled(&fleet, name, 1).await?;
    let kubeconfig = fleet.kubeconfig("my-cluster-kubeconfig").await?;
    ensure!(
        kubeconfig["users"][0]["user"]["token"].is_string(),
        "a token in place of the plugin"
    );
    ensure!(kubeconfig["users"][0]["user"]["exec"].is_null());
    let secrets: Api<Secret> = Api::namespaced(fleet.client.clone(), "default");
    ensure!(secrets.get_opt("my-cluster-user-kubeconfig").await?.is_some());
    delete(&fleet, name).await?;
    let left = world.in_azure("/resourcegroups/my-resource-group");
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// CAPZ's `aks-aso`, `aks-aso-clusterclass` and `aks-aso-topology`, as it publishes them.
async fn of_upstream(world: &World) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let variables = [
        ("CLUSTER_CLASS_NAME", "theirs"),
        ("ASO_CREDENTIAL_SECRET_NAME", CREDENTIAL),
    ];
    let config = repository(BINARY, folder.path(), &variables)?;
    let templates = capz()?.join("templates");
    let file = |flavor: &str| {
        let path = templates.join(format!("cluster-template-{flavor}.yaml"));
        path.display().to_string()
    };
    let plain = async {
        let fleet = world.fleet("asoplain").await?;
        let objects = generate(&fleet, &config, &["--from", &file("aks-aso")]).await?;
        fleet.apply(&signed_in(&fleet, objects)).await?;
        until_settled(&fleet, "asoplain", 2).await?;
        fleet.delete().await
    };
    let classy = async {
        let fleet = world.fleet("asoclass").await?.backed()?;
        let objects = generate(&fleet, &config, &["--from", &file("aks-aso-clusterclass")]).await?;
        fleet.apply(&signed_in(&fleet, objects)).await?;
        let objects = generate(&fleet, &config, &["--from", &file("aks-aso-topology")]).await?;
        fleet.apply(&objects).await?;
        until(&fleet.clusters(), "asoclass", "get its parts", |cluster| {
            crate::support::is_true(cluster, "TopologyReconciled")
        })
        .await?;
        until_settled(&fleet, "asoclass", 2).await?;
        fleet.delete().await
    };
    tokio::try_join!(async { plain.await.context("aks-aso") }, async {
        classy.await.context("aks-aso-clusterclass and aks-aso-topology")
    })?;
    Ok(())
}

/// `--flavor aks-aso`, and `--flavor aks-aso-topology`, which brings its class along.
async fn of_ours(world: &World) -> Result<()> {
    const FLAVOR: [&str; 3] = ["--infrastructure", "azure:v0.1.0", "--flavor"];
    let folder = tempfile::tempdir()?;
    let variables = [
        ("ASO_CREDENTIAL_SECRET_NAME", CREDENTIAL),
        ("SYSTEM_POOL_NAME", "oursys"),
        ("USER_POOL_NAME", "ourwork"),
    ];
    let config = repository(BINARY, folder.path(), &variables)?;
    let plain = async {
        let fleet = world.fleet("asoours").await?;
        let objects = generate(&fleet, &config, &[&FLAVOR[..], &["aks-aso"]].concat()).await?;
        fleet.apply(&signed_in(&fleet, objects)).await?;
        until_settled(&fleet, "asoours", 2).await?;
        fleet.delete().await
    };
    let classy = async {
        let fleet = world.fleet("asotopo").await?;
        let objects = generate(&fleet, &config, &[&FLAVOR[..], &["aks-aso-topology"]].concat()).await?;
        ensure!(
            objects.iter().any(|object| object["kind"] == "ClusterClass"),
            "clusterctl adds the class"
        );
        fleet.apply(&signed_in(&fleet, objects)).await?;
        until_settled(&fleet, "asotopo", 2).await?;
        fleet.delete().await
    };
    tokio::try_join!(async { plain.await.context("aks-aso") }, async {
        classy.await.context("aks-aso-topology")
    })?;
    Ok(())
}

/// The template's objects, with a credential in place of the one that it brings.
fn signed_in(fleet: &Fleet<'_>, mut objects: Vec<Value>) -> Vec<Value> {
    objects.retain(|object| object["kind"] != "Secret");
    objects.insert(0, credential(fleet, CREDENTIAL));
    objects
}

/// What stands beside the cluster: a second network, an identity that its OIDC issuer is federated with, a role for it.
fn beside(name: &str) -> Vec<Value> {
    let owner = json!({"name": name});
    let network = |network: &str, range: &str| {
        let spec =
            json!({"owner": owner, "location": "westus3", "addressSpace": {"addressPrefixes": [range]}});
        resource(NETWORK, "VirtualNetwork", network, &spec)
    };
    let identities = "managedidentity.azure.com/v1api20230131";
    vec![
        resource_group(name),
        network("lifeone", "10.1.0.0/16"),
        network("lifetwo", "10.2.0.0/16"),
        resource(
            identities,
            "UserAssignedIdentity",
            "lifeid",
            &json!({"owner": owner, "location": "westus3",
                "operatorSpec": {"configMaps": {"principalId": {"name": "lifeid", "key": "principal"}}}}),
        ),
        resource(
            "authorization.azure.com/v1api20220401",
            "RoleAssignment",
            "liferole",
            &json!({"owner": {"group": "resources.azure.com", "kind": "ResourceGroup", "name": name},
                "principalType": "ServicePrincipal",
                "principalIdFromConfig": {"name": "lifeid", "key": "principal"},
                "roleDefinitionReference": {"armId": "/subscriptions/00000000-0000-0000-0000-00000000000a/providers/\
Microsoft.Authorization/roleDefinitions/b24988ac-6180-42a0-ab88-20f7382dd24c"}}),
        ),
        resource(
            "containerservice.azure.com/v1api20230315preview",
            "Fleet",
            "lifefleet",
            &json!({"owner": owner, "location": "westus3"}),
        ),
    ]
}

/// The cluster and what belongs to it.
fn inside(name: &str) -> Vec<Value> {
    let group = "containerservice.azure.com";
    vec![
        managed_cluster(name),
        resource(
            "managedidentity.azure.com/v1api20230131",
            "FederatedIdentityCredential",
            "lifefed",
            &json!({"owner": {"name": "lifeid"}, "audiences": ["api://AzureADTokenExchange"],
                "issuerFromConfig": {"name": "issuer", "key": "url"},
                "subject": "system:serviceaccount:default:app"}),
        ),
        resource(
            "containerservice.azure.com/v1api20230315preview",
            "FleetsMember",
            "lifemember",
            &json!({"owner": {"name": "lifefleet"},
                "clusterResourceReference": {"group": group, "kind": "ManagedCluster", "name": name}}),
        ),
        resource(
            "kubernetesconfiguration.azure.com/v1api20230501",
            "Extension",
            "lifeext",
            &json!({"owner": {"group": group, "kind": "ManagedCluster", "name": name},
                "extensionType": "microsoft.flux", "autoUpgradeMinorVersion": true,
                "identity": {"type": "SystemAssigned"}}),
        ),
        resource(
            AKS,
            "MaintenanceConfiguration",
            "default",
            &json!({"owner": {"name": name}, "timeInWeek": [{"day": "Sunday", "hourSlots": [1, 2]}]}),
        ),
    ]
}

async fn whole_life(world: &World) -> Result<()> {
    let name = "life";
    let fleet = world.fleet(name).await?.backed()?;
    let mut all = vec![credential(&fleet, CREDENTIAL)];
    all.extend(cluster(name, &beside(name), &inside(name)));
    all.extend(pool(name, "lifesys", "System", 1));
    all.extend(pool(name, "lifework", "User", 2));
    fleet.apply(&all).await?;
    until_settled(&fleet, name, 2).await?;
    fleet.until_nodes("lifework", 2).await?;
    for part in [
        "/virtualnetworks/lifetwo",
        "/federatedidentitycredentials/lifefed",
        "/roleassignments/",
        "/fleets/lifefleet/members/lifemember",
        "/extensions/lifeext",
        "/maintenanceconfigurations/default",
    ] {
        let found = world.in_azure(part);
        ensure!(!found.is_empty(), "{part} is not in Azure");
    }
    let maps: Api<ConfigMap> = Api::namespaced(fleet.client.clone(), name);
    ensure!(
        maps.get("issuer")
            .await?
            .data
            .context("data")?
            .contains_key("url")
    );

    fleet.scale("lifework", 3).await?;
    fleet.until_nodes("lifework", 3).await?;
    autoscale(&fleet, name).await?;
    upgrade(&fleet, name).await?;

    fleet.apply(&pool(name, "lifeadd", "User", 1)).await?;
    fleet.until_nodes("lifeadd", 1).await?;
    fleet
        .machine_pools()
        .delete("lifeadd", &DeleteParams::default())
        .await?;
    until_gone(&pools(&fleet), "lifeadd").await?;
    ensure!(
        world.in_azure("/agentpools/lifeadd").is_empty(),
        "the pool that was removed"
    );

    // What is taken out of the spec goes, and what is in it stays.
    let fewer: Vec<Value> = beside(name)
        .into_iter()
        .filter(|one| one["metadata"]["name"] != "lifetwo")
        .collect();
    replace(&fleet, INFRASTRUCTURE, name, &fewer).await?;
    let gone = |object: &kube::api::DynamicObject| {
        is_settled(object) && world.in_azure("/virtualnetworks/lifetwo").is_empty()
    };
    until(
        &fleet.of(crate::aks_world::AZURE, INFRASTRUCTURE),
        name,
        "lose a network",
        gone,
    )
    .await?;
    ensure!(!world.in_azure("/virtualnetworks/lifeone").is_empty());
    fleet.delete().await
}

/// Machines of another infrastructure provider join by kubeadm beside a pool of AKS.
async fn own_nodes(world: &World) -> Result<()> {
    let name = "asobyo";
    let fleet = world.fleet(name).await?.backed()?;
    let mut all = vec![credential(&fleet, CREDENTIAL)];
    all.extend(cluster(name, &[resource_group(name)], &[managed_cluster(name)]));
    all.extend(pool(name, "asobyosys", "System", 1));
    fleet.apply(&all).await?;
    until_settled(&fleet, name, 1).await?;
    let _hosts = join_own_nodes(&fleet, "asobyosys").await?;
    fleet.delete().await
}

/// AKS scales a pool: its MachinePool says so, and follows.
async fn autoscale(fleet: &Fleet<'_>, name: &str) -> Result<()> {
    let scaled = json!({"enableAutoScaling": true, "minCount": 1, "maxCount": 5});
    replace(
        fleet,
        POOL,
        "lifework",
        &[pool_resource(name, "lifework", "User", &scaled)],
    )
    .await?;
    until(&fleet.machine_pools(), "lifework", "be AKS's to scale", |pool| {
        let annotations = pool.metadata.annotations.as_ref();
        annotations
            .and_then(|all| all.get("cluster.x-k8s.io/replicas-managed-by"))
            .is_some_and(|by| by == "aks")
    })
    .await?;
    until(&pools(fleet), "lifework", "be ready", is_settled).await?;
    ensure!(fleet.pool_shown("lifework")?["enableAutoScaling"] == true);
    Ok(())
}

async fn upgrade(fleet: &Fleet<'_>, name: &str) -> Result<()> {
    fleet
        .merge(&planes(fleet), name, json!({"spec": {"version": NEXT}}))
        .await?;
    until(&planes(fleet), name, "run the next version", |plane| {
        is_settled(plane) && plane.data["status"]["version"] == NEXT
    })
    .await?;
    let version = json!({"spec": {"template": {"spec": {"version": NEXT}}}});
    for pool in ["lifesys", "lifework"] {
        fleet.merge(&fleet.machine_pools(), pool, version.clone()).await?;
        until(&pools(fleet), pool, "run the next version", |object| {
            let shown = fleet.pool_shown(pool);
            is_settled(object) && shown.is_ok_and(|shown| shown["currentOrchestratorVersion"] == NEXT[1..])
        })
        .await?;
    }
    Ok(())
}

/// `clusterctl move` takes a cluster and its credential along; Azure is not written to, and it is paused by itself.
async fn move_away(world: &World) -> Result<(Cluster, Manager)> {
    let name = "asomoved";
    let fleet = world.fleet(name).await?.backed()?;
    let (there, ()) = tokio::try_join!(
        async {
            let there = management("aso-there", true).await?;
            let manager = start_manager(&there, &world.azure).await?;
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            install::install(&there.client(), &[namespace]).await?;
            Ok::<_, anyhow::Error>((there, manager))
        },
        async {
            let mut all = vec![credential(&fleet, CREDENTIAL)];
            all.extend(cluster(name, &[resource_group(name)], &[managed_cluster(name)]));
            all.extend(pool(name, "asomovsys", "System", 1));
            fleet.apply(&all).await?;
            until_settled(&fleet, name, 1).await?;
            fleet.until_nodes("asomovsys", 1).await
        },
    )?;
    let (there, manager) = there;
    paused(&fleet, name).await?;
    let before = fleet.writes();
    let moved = Fleet {
        client: there.client(),
        ..fleet.clone()
    };
    let kubeconfig = there.kubeconfig().display().to_string();
    world
        .management
        .clusterctl(&["move", "--namespace", name, "--to-kubeconfig", &kubeconfig])
        .await?;
    until_settled(&moved, name, 1).await?;
    moved.until_nodes("asomovsys", 1).await?;
    let secrets = |fleet: &Fleet<'_>| -> Api<Secret> { Api::namespaced(fleet.client.clone(), name) };
    ensure!(
        secrets(&moved).get_opt(CREDENTIAL).await?.is_some(),
        "the credential went along"
    );
    for kind in [PLANE, INFRASTRUCTURE, POOL] {
        let left = fleet
            .of(crate::aks_world::AZURE, kind)
            .list(&ListParams::default())
            .await?;
        ensure!(left.items.is_empty(), "{kind} stayed behind");
    }
    until_gone(&fleet.of(CORE, "Cluster"), name).await?;
    ensure!(fleet.writes() == before, "{:?}", &fleet.writes()[before.len()..]);
    // It goes on there: what is asked for now is done.
    moved.scale("asomovsys", 2).await?;
    moved.until_nodes("asomovsys", 2).await?;
    delete(&moved, name).await?;
    let left = world.in_azure(&format!("/resourcegroups/{name}"));
    ensure!(left.is_empty(), "{left:?}");
    Ok((there, manager))
}

/// Nothing is done for a paused Cluster, also with a policy that the user set, and it goes on afterwards.
async fn paused(fleet: &Fleet<'_>, name: &str) -> Result<()> {
    let mut group = resource_group(name);
    group["metadata"]["annotations"]["serviceoperator.azure.com/reconcile-policy"] = json!("manage");
    replace(fleet, INFRASTRUCTURE, name, &[group]).await?;
    let pause = |paused: Value| json!({"spec": {"paused": paused}});
    fleet.merge(&fleet.clusters(), name, pause(json!(true))).await?;
    for (kind, object) in [(PLANE, name), (INFRASTRUCTURE, name), (POOL, "asomovsys")] {
        until(
            &fleet.of(crate::aks_world::AZURE, kind),
            object,
            "be paused",
            |object| {
                let annotations = object.metadata.annotations.as_ref();
                let blocks =
                    annotations.is_some_and(|all| all.contains_key("clusterctl.cluster.x-k8s.io/block-move"));
                crate::support::is_true(object, "Paused") && !blocks
            },
        )
        .await?;
    }
    let before = fleet.writes();
    fleet.scale("asomovsys", 3).await?;
    fleet.scale("asomovsys", 1).await?;
    fleet.merge(&fleet.clusters(), name, pause(Value::Null)).await?;
    until_settled(fleet, name, 1).await?;
    ensure!(fleet.writes() == before, "{:?}", &fleet.writes()[before.len()..]);
    Ok(())
}

/// Core whose feature gate is off takes no MachinePool, and neither does a cluster wait for one in silence.
#[tokio::test(flavor = "multi_thread")]
async fn machine_pools_without_their_gate_are_refused_by_core() -> Result<()> {
    let management = ManagementCluster::builder()
        .name("aso-no-pools")
        .cluster_api()
        .without_gate("MachinePool")
        .scheduler(false)
        .start()
        .await?;
    let mut machine_pool = pool("fleet", "work", "User", 1).swap_remove(0);
    machine_pool["metadata"]["namespace"] = json!("default");
    let refused = install::install(&management.client(), &[machine_pool]).await;
    let words = refused.err().context("core takes it")?.to_string();
    ensure!(words.contains("MachinePool feature flag"), "{words}");
    management.stop();
    Ok(())
}
