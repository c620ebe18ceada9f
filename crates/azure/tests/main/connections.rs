//! The real connection: TLS to a simulator's port, its own certificate authority, and addresses that are not followed.

use std::time::Duration;

use http::Method;
use serde_json::json;
use slipway_azure::{
    ArmError, Azure, Cloud, Priority, Tuning,
    arm::ResourceId,
    credential::{CredentialError, IdentityKind, Namespace},
};
use slipway_azure_sim::{Ca, Fault, Options, Server, Settings, Simulator, Speed};
use slipway_runtime::{Class, Classified, Clock};

use crate::world::{SUBSCRIPTION, World, cluster, converge, group, identity, remove, secret};

async fn server() -> Server {
    let simulator = Simulator::new(Settings {
        speed: Speed::Instant,
        page_size: 2,
        ..Settings::default()
    });
    Server::start(simulator, Ca::new().unwrap(), Options::default())
        .await
        .unwrap()
}

fn over(cloud: Cloud) -> slipway_azure::Arm {
    let tuning = Tuning {
        call_timeout: Duration::from_secs(20),
        user_agent_suffix: Some("tests".into()),
        ..Tuning::default()
    };
    let azure = Azure::new(cloud, tuning, Clock::system()).unwrap();
    let identity = identity(IdentityKind::ServicePrincipal);
    let permission = identity.may_use(&Namespace::default()).unwrap();
    let principal = identity.principal(Some(&secret("right")), None).unwrap();
    azure.arm(&permission, principal, SUBSCRIPTION, "c").unwrap()
}

#[tokio::test]
async fn a_custom_cloud_is_reached_over_tls_with_its_own_authority() {
    let server = server().await;
    let endpoint = format!("https://localhost:{}", server.ports.https.port());
    let cloud = Cloud::custom(&endpoint, &endpoint, "https://management.azure.com").unwrap();
    let arm = over(cloud.clone().trusting(server.ca.certificate_pem()));
    converge(&arm, &group(), None).await.unwrap();
    for name in ["a", "b", "c"] {
        let put = cluster(name, &json!({}));
        let answer = arm
            .client()
            .put(&put.id, &put.mapping.api_version, &put.body, None)
            .await;
        answer.unwrap();
    }
    let path = format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.ContainerService/managedClusters");
    let scope = group().id;
    let listed = arm
        .client()
        .list(&scope, &path, "2024-09-01", Priority::Refresh)
        .await
        .unwrap();
    assert_eq!(listed.len(), 3, "two pages of at most two");
    {
        let azure = server.simulator().azure();
        let agents: Vec<_> = azure
            .requests()
            .filter(|request| request.path.starts_with("/subscriptions/"))
            .filter_map(|request| request.user_agent.clone())
            .collect();
        assert!(
            agents
                .iter()
                .all(|agent| agent.starts_with("tests azsdk-rust-slipway/")),
            "{agents:?}"
        );
    }
    remove(&arm, &group()).await;
    // Without its authority the cloud is not trusted, and the login goes nowhere.
    let error = over(cloud)
        .client()
        .get(&scope, "2020-06-01", Priority::Change)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ArmError::Credential(CredentialError::Unreachable { .. })),
        "{error}"
    );
    assert_eq!(error.class(), Class::Transient);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_not_azures_is_not_followed() {
    let world = World::new();
    let arm = world.arm("c");
    let path = format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Network/virtualNetworks");
    world.simulator.azure().add_fault(Fault {
        method: Method::GET.to_string(),
        path: path.clone(),
        status: Some(200),
        body: Some(json!({"value": [], "nextLink": "https://management.azure.com.evil.example/next"})),
        ..Fault::default()
    });
    let scope = ResourceId::resource_group(SUBSCRIPTION, "rg").unwrap();
    let error = arm
        .client()
        .list(&scope, &path, "2024-03-01", Priority::Change)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ArmError::ForeignAddress { host, .. } if host == "management.azure.com.evil.example"),
        "{error}"
    );
    assert_eq!(
        world
            .simulator
            .azure()
            .requests()
            .filter(|request| request.host.contains("evil"))
            .count(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_missing_subscription_is_not_taken_for_a_deleted_resource() {
    let world = World::new();
    let arm = world.arm("c");
    world.simulator.azure().add_fault(Fault {
        path: "/resourceGroups/rg".into(),
        times: 0,
        status: Some(404),
        code: "SubscriptionNotFound".into(),
        ..Fault::default()
    });
    let put = group();
    let error = arm
        .delete(&put.id, &put.mapping.api_version, None)
        .await
        .unwrap_err();
    assert_eq!(
        (error.code(), error.class()),
        ("SubscriptionNotFound", Class::Denied)
    );
}
