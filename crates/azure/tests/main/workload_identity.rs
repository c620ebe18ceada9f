//! Workload identity with a real API server: its ServiceAccount tokens, its keys, and an Entra ID that checks both.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{ByteString, api::core::v1::ServiceAccount};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use slipway_azure::{
    ArmError, CredentialError, Priority, Tuning,
    arm::{Answer, ResourceId},
    credential::{
        Identity, IdentityKind, Login, Mode, NAMESPACE_ACCOUNT, Namespace, OPERATOR_ACCOUNT, Permission,
        Principal, SecretName, ServiceAccountTokens, Tenancy, TokenRequests, from_aso_secret,
    },
};
use slipway_azure_sim::{Application, Settings};
use slipway_runtime::{Class, Classified};
use slipway_testbed::{Cluster, shared};

use crate::world::{CLIENT, SUBSCRIPTION, TENANT, World, identity};

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
    ask(world, &permission, principal).await
}

async fn ask(world: &World, permission: &Permission, principal: Principal) -> Result<Answer, ArmError> {
    let arm = world.azure.arm(permission, principal, SUBSCRIPTION, "c").unwrap();
    let id = ResourceId::resource_group(SUBSCRIPTION, "none").unwrap();
    arm.client().get(&id, "2020-06-01", Priority::Change).await
}

/// An Entra ID that trusts the cluster's tokens, with one application that is federated with these subjects.
async fn federated(cluster: &Cluster, subjects: &[String]) -> World {
    let issuer = published(cluster, "/.well-known/openid-configuration").await;
    let issuer = issuer["issuer"].as_str().unwrap().to_owned();
    let keys = published(cluster, "/openid/v1/jwks").await;
    let settings = Settings {
        open_sign_in: false,
        ..Settings::default()
    };
    let world = World::with(settings, Tuning::default());
    {
        let mut azure = world.simulator.azure();
        let directory = azure.directory_mut();
        directory.trust_issuer(&issuer, keys);
        let application = Application::new(CLIENT);
        let known =
            |application: Application, subject: &String| application.federated(&issuer, subject, AUDIENCE);
        directory.register(subjects.iter().fold(application, known));
    }
    world
}

fn subject(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// A credential Secret of a namespace that names the identity, and nothing that is secret.
fn unproven(cluster: &Cluster, namespace: &str, tenancy: &Tenancy) -> (Permission, Principal, bool) {
    let name = SecretName {
        namespace: namespace.to_owned(),
        name: "aso-credential".to_owned(),
    };
    let data: BTreeMap<String, ByteString> = [
        ("AZURE_SUBSCRIPTION_ID", SUBSCRIPTION),
        ("AZURE_TENANT_ID", TENANT),
        ("AZURE_CLIENT_ID", CLIENT),
    ]
    .map(|(key, value)| (key.to_owned(), ByteString(value.into())))
    .into();
    let tokens: Arc<dyn ServiceAccountTokens> = Arc::new(TokenRequests(cluster.client()));
    let read = from_aso_secret(&name, &data, tenancy, &tokens).unwrap();
    let permission = Permission::for_secret(&name, namespace, &tenancy.operator_namespace).unwrap();
    (permission, read.principal, read.borrowed)
}

fn refusal(answer: Result<Answer, ArmError>) -> CredentialError {
    match answer {
        Err(ArmError::Credential(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Two namespaces, one identity: only the namespace whose ServiceAccount Entra was told of signs in, though both know the
/// client id and the manager could sign in as either.
#[tokio::test]
async fn a_namespace_cannot_use_another_ones_identity() {
    let cluster = shared("plain").await.unwrap();
    let [owner, thief, manager] = [
        cluster.namespace("owner").await.unwrap(),
        cluster.namespace("thief").await.unwrap(),
        cluster.namespace("manager").await.unwrap(),
    ];
    let tenancy = Tenancy {
        operator_namespace: manager.clone(),
        ..Tenancy::default()
    };
    new_account(&cluster, &owner, NAMESPACE_ACCOUNT).await;
    let subjects = [
        subject(&owner, NAMESPACE_ACCOUNT),
        subject(&manager, OPERATOR_ACCOUNT),
    ];
    let world = federated(&cluster, &subjects).await;
    let (permission, principal, borrowed) = unproven(&cluster, &owner, &tenancy);
    let answer = ask(&world, &permission, principal).await.unwrap();
    assert!(matches!(answer, Answer::NotFound) && !borrowed, "{answer:?}");

    let (permission, principal, _) = unproven(&cluster, &thief, &tenancy);
    let error = refusal(ask(&world, &permission, principal.clone()).await).to_string();
    assert!(
        error.contains(&format!(
            "create ServiceAccount aso-workload in namespace {thief}"
        )),
        "{error}"
    );
    // With an account of that name it is still not the one that the identity is federated with.
    new_account(&cluster, &thief, NAMESPACE_ACCOUNT).await;
    let error = refusal(ask(&world, &permission, principal).await);
    assert!(
        matches!(&error, CredentialError::Rejected { code, .. } if code.starts_with("AADSTS7002")),
        "{error:?}"
    );
}

/// After the swap the manager signs in as whichever subject the identity is federated with: its own, or that of the Azure
/// Service Operator it replaces.
#[tokio::test]
async fn the_manager_signs_in_as_the_subject_that_the_identity_knows() {
    let cluster = shared("plain").await.unwrap();
    let manager = cluster.namespace("swapped").await.unwrap();
    for account in ["capz-manager", OPERATOR_ACCOUNT] {
        new_account(&cluster, &manager, account).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    let requests = TokenRequests(cluster.client());
    let projected = requests
        .request(&manager, "capz-manager", AUDIENCE)
        .await
        .unwrap();
    std::fs::write(&file, projected).unwrap();
    let tenancy = Tenancy {
        operator_namespace: manager.clone(),
        mode: Mode::Relaxed,
        ..Tenancy::default()
    };
    // Of the manager's own namespace, and of another that borrows.
    for namespace in [manager.clone(), cluster.namespace("borrower").await.unwrap()] {
        let (permission, mut principal, borrowed) = unproven(&cluster, &namespace, &tenancy);
        assert_eq!(borrowed, namespace != manager);
        let Login::FirstFederated(logins) = &mut principal.login else {
            panic!("{principal:?}")
        };
        logins[0] = Login::FederatedFile(file.clone());
        for account in ["capz-manager", OPERATOR_ACCOUNT] {
            let world = federated(&cluster, &[subject(&manager, account)]).await;
            let answer = ask(&world, &permission, principal.clone()).await.unwrap();
            assert!(matches!(answer, Answer::NotFound), "{account}: {answer:?}");
        }
        let world = federated(&cluster, &[subject(&manager, "somebody")]).await;
        let error = refusal(ask(&world, &permission, principal).await).to_string();
        assert!(
            error.contains("capz-manager"),
            "the manager's own subject is told: {error}"
        );
    }
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
