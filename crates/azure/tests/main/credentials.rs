//! Each way to log in against the simulator, each way it fails, and no secret in any log.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use http::Method;
use k8s_openapi::ByteString;
use p12_keystore::{
    Certificate, EncryptionAlgorithm, KeyStore, KeyStoreEntry, MacAlgorithm, PrivateKey, PrivateKeyChain,
};
use rcgen::{CertificateParams, KeyPair, PKCS_RSA_SHA256, date_time_ymd};
use serde_json::json;
use slipway_azure::{
    ArmError, Cloud, CredentialError, Tuning,
    arm::{Answer, ResourceId},
    credential::{
        AllowedNamespaces, Identity, IdentityKind, Namespace, Permission, Principal, SecretName,
        ServiceAccountTokens, Tenancy, from_aso_secret,
    },
};
use slipway_azure_sim::{Application, Settings};
use slipway_runtime::{Class, Classified};

use crate::world::{self, CLIENT, SUBSCRIPTION, TENANT, World, identity, secret};

const CANARY: &str = "canary-8f3b-secret";
const ISSUER: &str = "https://issuer.example/cluster";

fn closed() -> World {
    World::with(
        Settings {
            open_sign_in: false,
            ..Settings::default()
        },
        Tuning::default(),
    )
}

struct Pair {
    key: String,
    certificate: String,
}

fn pair(last_year: i32) -> Pair {
    let key = KeyPair::generate_for(&PKCS_RSA_SHA256).expect("an RSA key");
    let mut parameters = CertificateParams::new(vec!["slipway".to_owned()]).unwrap();
    parameters.not_before = date_time_ymd(2020, 1, 1);
    parameters.not_after = date_time_ymd(last_year, 1, 1);
    Pair {
        certificate: parameters.self_signed(&key).unwrap().pem(),
        key: key.serialize_pem(),
    }
}

static VALID: LazyLock<Pair> = LazyLock::new(|| pair(2090));
static EXPIRED: LazyLock<Pair> = LazyLock::new(|| pair(2021));

impl Pair {
    fn pem(&self) -> String {
        format!("{}{}", self.key, self.certificate)
    }

    fn pkcs12(&self, password: &str, encryption: EncryptionAlgorithm, mac: MacAlgorithm) -> Vec<u8> {
        let der = |pem: &str| {
            let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
            BASE64_STANDARD.decode(body).unwrap()
        };
        let chain = PrivateKeyChain::new(
            b"1".to_vec(),
            PrivateKey::from_der(&der(&self.key)).unwrap(),
            [Certificate::from_der(&der(&self.certificate)).unwrap()],
        );
        let mut store = KeyStore::new();
        store.add_entry("slipway", KeyStoreEntry::PrivateKeyChain(chain));
        store
            .writer(password)
            .encryption_algorithm(encryption)
            .mac_algorithm(mac)
            .write()
            .unwrap()
    }
}

/// Logs in and reads the subscription's groups.
async fn log_in(world: &World, permission: &Permission, principal: Principal) -> Result<(), ArmError> {
    let arm = world
        .azure
        .arm(permission, principal, SUBSCRIPTION, "c")
        .map_err(|error| match error {
            slipway_azure::engine::SetupError::Credential(error) => ArmError::Credential(error),
            other => panic!("{other}"),
        })?;
    let id = ResourceId::resource_group(SUBSCRIPTION, "none").unwrap();
    match arm
        .client()
        .get(&id, "2020-06-01", slipway_azure::Priority::Change)
        .await?
    {
        Answer::NotFound => Ok(()),
        other => panic!("{other:?}"),
    }
}

async fn with_identity(
    world: &World,
    identity: &Identity,
    data: Option<BTreeMap<String, ByteString>>,
    tokens: Option<Arc<dyn ServiceAccountTokens>>,
) -> Result<(), ArmError> {
    let permission = identity.may_use(&Namespace::default())?;
    log_in(world, &permission, identity.principal(data.as_ref(), tokens)?).await
}

fn refusal(result: Result<(), ArmError>) -> CredentialError {
    match result {
        Err(ArmError::Credential(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn bytes(value: &[u8]) -> BTreeMap<String, ByteString> {
    [("clientSecret".to_owned(), ByteString(value.to_vec()))].into()
}

fn federated_token(subject: &str) -> String {
    let encode = |value: serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let now = jiff::Timestamp::now().as_second();
    format!(
        "{}.{}.{}",
        encode(json!({"alg": "RS256", "typ": "JWT", "kid": "1"})),
        encode(
            json!({"iss": ISSUER, "sub": subject, "aud": "api://AzureADTokenExchange", "iat": now, "nbf": now, "exp": now + 3600})
        ),
        BASE64_URL_SAFE_NO_PAD.encode("signature"),
    )
}

fn file(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

const SUBJECT: &str = "system:serviceaccount:default:fleet";

#[derive(Debug)]
struct Accounts(Result<String, String>);

#[async_trait::async_trait]
impl ServiceAccountTokens for Accounts {
    async fn request(&self, namespace: &str, name: &str, audience: &str) -> Result<String, String> {
        assert_eq!(
            (namespace, name, audience),
            ("default", "fleet", "api://AzureADTokenExchange")
        );
        self.0.clone()
    }
}

#[tokio::test]
async fn a_secret_logs_in_and_a_wrong_one_is_one_clear_error() {
    let world = closed();
    world
        .simulator
        .azure()
        .directory_mut()
        .register(Application::new(CLIENT).secret(CANARY));
    let principal = identity(IdentityKind::ServicePrincipal);
    with_identity(&world, &principal, Some(secret(CANARY)), None)
        .await
        .unwrap();
    let error = refusal(with_identity(&world, &principal, Some(secret("wrong-canary")), None).await);
    assert_eq!(error.class(), Class::Denied);
    assert!(
        matches!(&error, CredentialError::Rejected { code, .. } if code == "AADSTS7000215"),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.starts_with(
            "AzureClusterIdentity default/fleet: Microsoft Entra refused the login: AADSTS7000215"
        ),
        "{text}"
    );
    assert!(
        text.ends_with("Check that the Secret holds the client secret's value, not its id."),
        "{text}"
    );
    assert!(
        !text.contains("canary") && !text.contains("Trace ID") && !text.contains('\n'),
        "{text}"
    );
    let again = refusal(with_identity(&world, &principal, Some(secret("wrong-canary")), None).await);
    assert_eq!(again, error, "the same failure reads the same");
    let mut unknown = principal.clone();
    unknown.client_id = "33333333-3333-3333-3333-333333333333".into();
    let error = refusal(with_identity(&world, &unknown, Some(secret(CANARY)), None).await);
    assert!(
        matches!(&error, CredentialError::Rejected { code, .. } if code == "AADSTS700016"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_certificate_logs_in_as_pem_and_as_pkcs12_old_and_new() {
    let world = closed();
    world
        .simulator
        .azure()
        .directory_mut()
        .register(Application::new(CLIENT).certificate_pem(&VALID.certificate));
    let principal = identity(IdentityKind::ServicePrincipalCertificate);
    let modern = VALID.pkcs12(
        "",
        EncryptionAlgorithm::PbeWithHmacSha256AndAes256,
        MacAlgorithm::HmacSha256,
    );
    let legacy = VALID.pkcs12(
        "",
        EncryptionAlgorithm::PbeWithShaAnd3KeyTripleDesCbc,
        MacAlgorithm::HmacSha1,
    );
    for form in [
        VALID.pem().into_bytes(),
        format!("{}{}", VALID.certificate, VALID.key).into_bytes(),
        BASE64_STANDARD.encode(&modern).into_bytes(),
        modern,
        legacy,
    ] {
        with_identity(&world, &principal, Some(bytes(&form)), None)
            .await
            .unwrap();
    }
    let mut data = bytes(&VALID.pkcs12(
        CANARY,
        EncryptionAlgorithm::PbeWithHmacSha256AndAes256,
        MacAlgorithm::HmacSha256,
    ));
    let error = refusal(with_identity(&world, &principal, Some(data.clone()), None).await);
    assert_eq!(
        error.to_string(),
        "AzureClusterIdentity default/fleet: the certificate cannot be used: it is neither PEM nor a PKCS12 archive that this password opens"
    );
    data.insert("password".into(), ByteString(CANARY.into()));
    with_identity(&world, &principal, Some(data), None).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut on_disk = principal.clone();
    on_disk.certificate_path = Some(file(folder.path(), "tls.pem", VALID.pem()));
    with_identity(&world, &on_disk, None, None).await.unwrap();
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_says_why() {
    let world = closed();
    world
        .simulator
        .azure()
        .directory_mut()
        .register(Application::new(CLIENT).certificate_pem(&EXPIRED.certificate));
    let principal = identity(IdentityKind::ServicePrincipalCertificate);
    let before = world.simulator.azure().requests().count();
    let error = refusal(with_identity(&world, &principal, Some(bytes(EXPIRED.pem().as_bytes())), None).await);
    assert_eq!(
        error.to_string(),
        "AzureClusterIdentity default/fleet: the certificate expired at 2021-01-01T00:00:00Z; put a valid one into its place"
    );
    assert_eq!(
        world.simulator.azure().requests().count(),
        before,
        "Entra is not asked"
    );
    for (form, reason) in [
        (VALID.certificate.clone(), "it has no PRIVATE KEY block"),
        (VALID.key.clone(), "it has no CERTIFICATE block"),
        (
            format!("{}{}", EXPIRED.key, VALID.certificate),
            "no certificate in it belongs to the private key",
        ),
        (
            "nonsense".to_owned(),
            "it is neither PEM nor a PKCS12 archive that this password opens",
        ),
    ] {
        let error = refusal(with_identity(&world, &principal, Some(bytes(form.as_bytes())), None).await);
        assert_eq!(
            error.to_string(),
            format!("AzureClusterIdentity default/fleet: the certificate cannot be used: {reason}")
        );
        assert_eq!(error.class(), Class::Terminal);
    }
    let error = refusal(with_identity(&world, &principal, Some(bytes(VALID.pem().as_bytes())), None).await);
    assert!(
        matches!(&error, CredentialError::Rejected { code, .. } if code == "AADSTS700027"),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_federated_token_logs_in_from_a_file_and_by_request() {
    let world = closed();
    world
        .simulator
        .azure()
        .directory_mut()
        .register(Application::new(CLIENT).federated(ISSUER, SUBJECT, "api://AzureADTokenExchange"));
    let name = SecretName {
        namespace: "n".into(),
        name: "aso-credential".into(),
    };
    let data: BTreeMap<String, ByteString> = [
        ("AZURE_SUBSCRIPTION_ID", SUBSCRIPTION),
        ("AZURE_TENANT_ID", TENANT),
        ("AZURE_CLIENT_ID", CLIENT),
    ]
    .map(|(key, value)| (key.to_owned(), ByteString(value.into())))
    .into();
    let permission = Permission::for_secret(&name, "n", "slipway").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let none: Arc<dyn ServiceAccountTokens> = Arc::new(Accounts(Err("none".into())));
    let read = from_aso_secret(&name, &data, &Tenancy::default(), &none).unwrap();
    assert_eq!(
        format!("{:?}", read.principal.login),
        "ServiceAccount",
        "its namespace's own"
    );
    let mut principal = read.principal;
    let missing = folder.path().join("no token");
    principal.login = slipway_azure::credential::Login::FederatedFile(missing);
    let error = refusal(log_in(&world, &permission, principal.clone()).await);
    assert!(
        matches!(
            &error,
            CredentialError::File {
                what: "the federated token file",
                ..
            }
        ),
        "{error}"
    );
    principal.login = slipway_azure::credential::Login::FederatedFile(file(
        folder.path(),
        "token",
        federated_token(SUBJECT),
    ));
    log_in(&world, &permission, principal.clone()).await.unwrap();

    let mut own = identity(IdentityKind::WorkloadIdentity);
    own.service_account = Some("fleet".into());
    let tokens = |answer| Some(Arc::new(Accounts(answer)) as Arc<dyn ServiceAccountTokens>);
    with_identity(&world, &own, None, tokens(Ok(federated_token(SUBJECT))))
        .await
        .unwrap();
    let other = closed();
    other
        .simulator
        .azure()
        .directory_mut()
        .register(Application::new(CLIENT).federated(ISSUER, "somebody else", "api://AzureADTokenExchange"));
    let error = refusal(with_identity(&other, &own, None, tokens(Ok(federated_token(SUBJECT)))).await);
    assert!(
        error
            .to_string()
            .ends_with("Check the federated credential's issuer, subject and audience."),
        "{error}"
    );
    let error = refusal(
        with_identity(
            &closed(),
            &own,
            None,
            tokens(Err("serviceaccounts \"fleet\" not found".into())),
        )
        .await,
    );
    assert_eq!(
        error.to_string(),
        "AzureClusterIdentity default/fleet: a ServiceAccount token could not be requested: serviceaccounts \"fleet\" not found"
    );
}

#[tokio::test]
async fn a_managed_identity_and_an_identity_file_log_in() {
    let world = closed();
    let path = format!("https://management.azure.com/subscriptions/{SUBSCRIPTION}/resourceGroups/rg");
    let ask = |address: String| {
        let request =
            slipway_azure_sim::Request::new(Method::PUT, &address).json(&json!({"location": "westus3"}));
        world.simulator.handle(&request).body_json()
    };
    world.simulator.azure().settings.require_token = false;
    ask(format!("{path}?api-version=2020-06-01"));
    let made = ask(format!(
        "{path}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/host?api-version=2023-01-31"
    ));
    world.simulator.azure().settings.require_token = true;
    let mut own = identity(IdentityKind::UserAssignedManagedIdentity);
    made["properties"]["clientId"]
        .as_str()
        .expect("an identity")
        .clone_into(&mut own.client_id);
    with_identity(&world, &own, None, None).await.unwrap();
    own.client_id = "44444444-4444-4444-4444-444444444444".into();
    let error = refusal(with_identity(&world, &own, None, None).await);
    assert!(
        matches!(error, CredentialError::ManagedIdentity { .. }),
        "{error}"
    );

    let world = closed();
    world
        .simulator
        .azure()
        .directory_mut()
        .register(Application::new(CLIENT).certificate_pem(&VALID.certificate));
    let folder = tempfile::tempdir().unwrap();
    let mut from_file = identity(IdentityKind::UserAssignedIdentityCredential);
    let content = json!({
        "client_id": CLIENT, "tenant_id": TENANT, "authentication_endpoint": "https://login.microsoftonline.com/",
        "client_secret": BASE64_STANDARD.encode(VALID.pem()), "not_after": "2090-01-01T00:00:00Z",
    });
    from_file.credentials_path = Some(file(folder.path(), "identity.json", content.to_string()));
    with_identity(&world, &from_file, None, None).await.unwrap();
    from_file.credentials_path = Some(file(
        folder.path(),
        "broken.json",
        format!("{{\"client_secret\": \"{CANARY}\""),
    ));
    let error = refusal(with_identity(&world, &from_file, None, None).await).to_string();
    assert!(
        error.contains("broken.json cannot be read: it is not the expected JSON")
            && !error.contains("canary"),
        "{error}"
    );
}

#[tokio::test]
async fn no_token_is_asked_for_a_namespace_that_may_not_use_the_identity() {
    let world = closed();
    world
        .simulator
        .azure()
        .directory_mut()
        .register(Application::new(CLIENT).secret(CANARY));
    let mut owned = identity(IdentityKind::ServicePrincipal);
    owned.allowed_namespaces = Some(AllowedNamespaces {
        list: Some(vec!["team-a".into()]),
        selector: None,
    });
    let foreign = Namespace {
        name: "team-b".into(),
        ..Namespace::default()
    };
    let error = owned.may_use(&foreign).unwrap_err();
    assert_eq!(
        error.to_string(),
        "namespace \"team-b\" may not use AzureClusterIdentity default/fleet: add it to spec.allowedNamespaces of the identity"
    );
    assert_eq!(error.class(), Class::Denied);
    // A permission for one identity does not open another.
    let mut open = identity(IdentityKind::ServicePrincipal);
    open.name = "open".into();
    let permission = open.may_use(&foreign).unwrap();
    let principal = owned.principal(Some(&secret(CANARY)), None).unwrap();
    let error = refusal(log_in(&world, &permission, principal).await);
    assert!(matches!(error, CredentialError::NamespaceNotAllowed { .. }));
    assert_eq!(world.simulator.azure().requests().count(), 0);
}

#[tokio::test]
async fn every_cloud_has_its_own_login_and_endpoint() {
    for (cloud, login, endpoint) in [
        (
            "AzurePublicCloud",
            "login.microsoftonline.com",
            "management.azure.com",
        ),
        (
            "AzureUSGovernmentCloud",
            "login.microsoftonline.us",
            "management.usgovcloudapi.net",
        ),
        (
            "AzureChinaCloud",
            "login.chinacloudapi.cn",
            "management.chinacloudapi.cn",
        ),
    ] {
        let world = World::of(
            Cloud::by_name(cloud).unwrap(),
            Settings::default(),
            Tuning::default(),
        );
        with_identity(
            &world,
            &identity(IdentityKind::ServicePrincipal),
            Some(secret(CANARY)),
            None,
        )
        .await
        .unwrap();
        let hosts: Vec<String> = world
            .simulator
            .azure()
            .requests()
            .map(|request| request.host.clone())
            .collect();
        assert_eq!(hosts, [login, endpoint]);
    }
}

#[tokio::test]
async fn one_login_serves_many_and_a_refused_token_is_not_used_again() {
    let world = closed();
    world
        .simulator
        .azure()
        .directory_mut()
        .register(Application::new(CLIENT).secret(CANARY));
    let principal = identity(IdentityKind::ServicePrincipal);
    for _ in 0..5 {
        with_identity(&world, &principal, Some(secret(CANARY)), None)
            .await
            .unwrap();
    }
    let logins = |world: &World| world.simulator.azure().count("POST", "/oauth2/v2.0/token");
    assert_eq!(logins(&world), 1);
    world.simulator.azure().add_fault(slipway_azure_sim::Fault {
        path: "/resourceGroups/none".into(),
        status: Some(401),
        code: "ExpiredAuthenticationToken".into(),
        ..slipway_azure_sim::Fault::default()
    });
    let error = with_identity(&world, &principal, Some(secret(CANARY)), None)
        .await
        .unwrap_err();
    assert_eq!(error.class(), Class::Transient);
    with_identity(&world, &principal, Some(secret(CANARY)), None)
        .await
        .unwrap();
    assert_eq!(logins(&world), 2);
}

#[test]
fn no_secret_reaches_a_log() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let text = world::captured(|| {
        runtime.block_on(async {
            let world = closed();
            {
                let mut azure = world.simulator.azure();
                azure.directory_mut().register(
                    Application::new(CLIENT)
                        .secret(CANARY)
                        .certificate_pem(&VALID.certificate)
                        .federated(ISSUER, SUBJECT, "api://AzureADTokenExchange"),
                );
            }
            let service = identity(IdentityKind::ServicePrincipal);
            with_identity(&world, &service, Some(secret(CANARY)), None)
                .await
                .unwrap();
            let wrong = format!("{CANARY}-wrong");
            with_identity(&world, &service, Some(secret(&wrong)), None)
                .await
                .unwrap_err();
            let certificate = identity(IdentityKind::ServicePrincipalCertificate);
            with_identity(&world, &certificate, Some(bytes(VALID.pem().as_bytes())), None)
                .await
                .unwrap();
            let mut federated = identity(IdentityKind::WorkloadIdentity);
            federated.service_account = Some("fleet".into());
            let tokens = Arc::new(Accounts(Ok(federated_token(SUBJECT))));
            with_identity(&world, &federated, None, Some(tokens))
                .await
                .unwrap();
        });
    });
    assert!(
        text.contains("Asked Azure Resource Manager"),
        "the log was captured: {text:.3000}"
    );
    let key_line = VALID.key.lines().nth(3).unwrap();
    for canary in [CANARY, "eyJ", "Bearer", key_line] {
        let found = text.lines().find(|line| line.contains(canary));
        assert!(found.is_none(), "{canary:?} in the log: {found:?}");
    }
}

/// A resource may refer to one of another tenant, such as a network that it is peered with: Azure then wants a token of that one, too.
#[tokio::test]
async fn tokens_of_additional_tenants_are_shown_beside_its_own() {
    const OTHERS: [&str; 2] = [
        "aaaaaaaa-0000-0000-0000-000000000001",
        "aaaaaaaa-0000-0000-0000-000000000002",
    ];
    let world = World::new();
    let name = SecretName {
        namespace: "n".into(),
        name: "aso-credential".into(),
    };
    let none: Arc<dyn ServiceAccountTokens> = Arc::new(Accounts(Err("none".into())));
    let read = |tenants: &str| {
        let data: BTreeMap<String, ByteString> = [
            ("AZURE_SUBSCRIPTION_ID", SUBSCRIPTION),
            ("AZURE_TENANT_ID", TENANT),
            ("AZURE_CLIENT_ID", CLIENT),
            ("AZURE_CLIENT_SECRET", CANARY),
            ("AZURE_ADDITIONAL_TENANTS", tenants),
        ]
        .map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())))
        .into();
        let found = from_aso_secret(&name, &data, &Tenancy::default(), &none);
        found.unwrap().principal
    };
    let permission = Permission::for_secret(&name, "n", "slipway").unwrap();
    for (tenants, shown) in [
        (String::new(), Vec::new()),
        (TENANT.to_owned(), Vec::new()),
        (
            format!("{}, {},", OTHERS[0], OTHERS[1]),
            OTHERS.map(str::to_owned).to_vec(),
        ),
    ] {
        world.simulator.azure().forget_requests();
        log_in(&world, &permission, read(&tenants)).await.unwrap();
        let azure = world.simulator.azure();
        let asked: Vec<_> = azure
            .requests()
            .filter(|one| !one.path.contains("oauth2"))
            .collect();
        assert!(!asked.is_empty());
        assert!(
            asked.iter().all(|one| one.auxiliary_tenants == shown),
            "{tenants}: {asked:?}"
        );
    }
}
