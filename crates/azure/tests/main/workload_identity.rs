//! Workload identity with a real API server: its ServiceAccount tokens, its keys, and an Entra ID that checks both.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use slipway_azure::{
    ArmError, CredentialError, Priority, Tuning,
    arm::{Answer, ResourceId},
    credential::{Identity, IdentityKind, Namespace, TokenRequests},
};
use slipway_azure_sim::{Application, Settings};
use slipway_runtime::{Class, Classified};
use slipway_testbed::{Cluster, shared};

use crate::world::{CLIENT, SUBSCRIPTION, World, identity};

const AUDIENCE: &str = "api://AzureADTokenExchange";

async fn new_account(cluster: &Cluster, namespace: &str, name: &str) {
    let account = ServiceAccount {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..ServiceAccount::default()
    };
    Api::<ServiceAccount>::namespaced(cluster.client(), namespace)
        .create(&PostParams::default(), &account)
        .await
        .unwrap();
}

/// Asks the API server what anybody may ask it: who issues its tokens, and with which keys.
async fn published(cluster: &Cluster, path: &str) -> serde_json::Value {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let text = cluster.client().request_text(request).await.unwrap();
    serde_json::from_str(&text).unwrap()
}

async fn log_in(world: &World, cluster: &Cluster, identity: &Identity) -> Result<Answer, ArmError> {
    let permission = identity.may_use(&Namespace::default())?;
    let tokens = Arc::new(TokenRequests(cluster.client()));
    let principal = identity.principal(None, Some(tokens))?;
    let arm = world
        .azure
        .arm(&permission, principal, SUBSCRIPTION, "c")
        .unwrap();
    let id = ResourceId::resource_group(SUBSCRIPTION, "none").unwrap();
    arm.client().get(&id, "2020-06-01", Priority::Change).await
}

#[tokio::test]
async fn an_identity_logs_in_with_its_own_service_account_of_a_real_api_server() {
    let cluster = shared("plain").await.unwrap();
    let namespace = cluster.namespace("workload-identity").await.unwrap();
    new_account(&cluster, &namespace, "fleet").await;
    new_account(&cluster, &namespace, "other").await;
    let issuer = published(&cluster, "/.well-known/openid-configuration").await;
    let issuer = issuer["issuer"].as_str().unwrap().to_owned();
    let keys = published(&cluster, "/openid/v1/jwks").await;

    let world = World::with(
        Settings {
            open_sign_in: false,
            ..Settings::default()
        },
        Tuning::default(),
    );
    let subject = format!("system:serviceaccount:{namespace}:fleet");
    {
        let mut azure = world.simulator.azure();
        let directory = azure.directory_mut();
        directory.trust_issuer(&issuer, keys);
        directory.register(Application::new(CLIENT).federated(&issuer, &subject, AUDIENCE));
    }
    let mut own = identity(IdentityKind::WorkloadIdentity);
    own.namespace.clone_from(&namespace);
    own.service_account = Some("fleet".into());
    let answer = log_in(&world, &cluster, &own).await.unwrap();
    assert!(matches!(answer, Answer::NotFound), "{answer:?}");

    // Another account of the same cluster is signed by the same keys, and is not the one Entra ID was told of.
    own.service_account = Some("other".into());
    let error = log_in(&world, &cluster, &own).await.unwrap_err();
    let ArmError::Credential(error) = error else {
        panic!("{error:?}")
    };
    assert_eq!(error.class(), Class::Denied);
    assert!(
        matches!(&error, CredentialError::Rejected { code, .. } if code.starts_with("AADSTS7002")),
        "{error:?}"
    );

    // One that is not there is told as what it is.
    own.service_account = Some("gone".into());
    let error = log_in(&world, &cluster, &own).await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("a ServiceAccount token could not be requested: serviceaccounts \"gone\" not found"),
        "{error}"
    );
}
