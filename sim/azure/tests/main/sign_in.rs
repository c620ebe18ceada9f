//! Tokens: each kind of credential, and the errors people run into.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::Method;
use serde_json::{Value, json};
use slipway_azure_sim::{Application, Request, Response, Settings};

use crate::fixture::{Fixture, code, request};

const CLIENT: &str = "22222222-2222-2222-2222-222222222222";
const TENANT: &str = "11111111-1111-1111-1111-111111111111";

fn closed() -> Fixture {
    Fixture::with(Settings {
        open_sign_in: false,
        ..Settings::default()
    })
}

fn token(azure: &mut Fixture, fields: &[(&str, &str)]) -> Response {
    let mut form = vec![
        ("grant_type", "client_credentials"),
        ("client_id", CLIENT),
        ("scope", "https://management.azure.com/.default"),
    ];
    form.extend_from_slice(fields);
    let address = format!("https://login.microsoftonline.com/{TENANT}/oauth2/v2.0/token");
    azure.send(&Request::new(Method::POST, &address).form(&form))
}

fn description(response: &Response) -> String {
    response.body_json()["error_description"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_secret_gets_a_token_that_arm_accepts_until_it_expires() {
    let mut azure = closed();
    azure
        .azure
        .directory_mut()
        .register(Application::new(CLIENT).secret("right"));
    let answer = token(&mut azure, &[("client_secret", "right")]).body_json();
    let bearer = format!("Bearer {}", answer["access_token"].as_str().expect("a token"));
    let put = request(Method::PUT, "/resourceGroups/rg")
        .json(&json!({"location": "westus3"}))
        .header("authorization", &bearer);
    assert_eq!(azure.send(&put).status, 201);
    azure.pass(4000);
    assert_eq!(code(&azure.send(&put)), "ExpiredAuthenticationToken");
    let forged = put.header("authorization", "Bearer a.b.c");
    assert_eq!(code(&azure.send(&forged)), "InvalidAuthenticationToken");
}

#[test]
fn a_token_for_another_audience_is_not_for_arm() {
    let mut azure = Fixture::with(Settings::default());
    let form = [
        ("grant_type", "client_credentials"),
        ("client_id", CLIENT),
        ("client_secret", "any"),
        ("scope", "6dae42f8-4368-4678-94ff-3960e28e3630/.default"),
    ];
    let address = format!("https://login.microsoftonline.com/{TENANT}/oauth2/v2.0/token");
    let answer = azure
        .send(&Request::new(Method::POST, &address).form(&form))
        .body_json();
    let bearer = format!("Bearer {}", answer["access_token"].as_str().expect("a token"));
    let refused = azure.send(&request(Method::GET, "/resourceGroups/rg").header("authorization", &bearer));
    assert_eq!(code(&refused), "InvalidAuthenticationTokenAudience");
}

#[test]
fn wrong_credentials_get_their_aadsts_number() {
    let mut azure = closed();
    let unknown = token(&mut azure, &[("client_secret", "right")]);
    assert_eq!(unknown.status, 400);
    assert!(description(&unknown).starts_with("AADSTS700016"));
    azure
        .azure
        .directory_mut()
        .register(Application::new(CLIENT).secret("right"));
    let wrong = token(&mut azure, &[("client_secret", "wrong-secret-text")]);
    assert_eq!(wrong.status, 401);
    assert_eq!(wrong.body_json()["error"], "invalid_client");
    assert!(description(&wrong).starts_with("AADSTS7000215"));
    assert!(!description(&wrong).contains("wrong-secret-text"));
    let none = token(&mut azure, &[]);
    assert_eq!(none.body_json()["error_codes"], json!([7_000_218]));
}

#[test]
fn secrets_are_neither_remembered_nor_saved() {
    let mut azure = closed();
    azure
        .azure
        .directory_mut()
        .register(Application::new(CLIENT).secret("hunter2-hunter2"));
    token(&mut azure, &[("client_secret", "hunter2-hunter2")]);
    let saved = serde_json::to_string(azure.azure.state()).expect("the state is JSON");
    assert!(!saved.contains("hunter2-hunter2"));
    assert!(azure.azure.requests().all(|request| request.body.is_empty()));
}

#[test]
fn discovery_names_this_host_when_it_is_not_the_public_one() {
    let mut azure = closed();
    let address = format!(
        "https://localhost:8443/common/discovery/instance?api-version=1.1&authorization_endpoint=https%3A%2F%2Flocalhost%3A8443%2F{TENANT}%2Foauth2%2Fv2.0%2Fauthorize"
    );
    let body: Value = azure.send(&Request::new(Method::GET, &address)).body_json();
    assert_eq!(
        body["tenant_discovery_endpoint"],
        format!("https://localhost:8443/{TENANT}/v2.0/.well-known/openid-configuration")
    );
    let aliases: Vec<&Value> = body["metadata"]
        .as_array()
        .expect("clouds")
        .iter()
        .map(|cloud| &cloud["preferred_network"])
        .collect();
    assert!(aliases.contains(&&json!("localhost:8443")));
    let address = format!("https://localhost:8443/{TENANT}/v2.0/.well-known/openid-configuration");
    let body = azure.send(&Request::new(Method::GET, &address)).body_json();
    assert_eq!(
        body["token_endpoint"],
        format!("https://localhost:8443/{TENANT}/oauth2/v2.0/token")
    );
    let keys = azure
        .send(&Request::new(
            Method::GET,
            body["jwks_uri"].as_str().expect("a link"),
        ))
        .body_json();
    assert_eq!(keys["keys"][0]["kty"], "RSA");
}

#[test]
fn the_metadata_service_wants_its_header() {
    let mut azure = Fixture::with(Settings::default());
    let address = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fmanagement.azure.com%2F";
    assert_eq!(azure.send(&Request::new(Method::GET, address)).status, 400);
    let answer = azure
        .send(&Request::new(Method::GET, address).header("metadata", "true"))
        .body_json();
    let bearer = format!("Bearer {}", answer["access_token"].as_str().expect("a token"));
    let got = azure.send(&request(Method::GET, "/resourceGroups").header("authorization", &bearer));
    assert_eq!(got.status, 200);
}

/// A client assertion as an SDK makes it: signed with the certificate's key, naming the certificate.
struct Signer {
    keys: aws_lc_rs::rsa::KeyPair,
    pem: String,
    thumbprint: String,
}

impl Signer {
    fn new(not_after: (i32, u8, u8)) -> Self {
        let pair = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)
            .expect("a key");
        let mut parameters = rcgen::CertificateParams::new(vec!["app".to_owned()]).expect("a name");
        parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(not_after.0, not_after.1, not_after.2);
        let certificate = parameters.self_signed(&pair).expect("a certificate");
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate.der());
        Self {
            keys: aws_lc_rs::rsa::KeyPair::from_pkcs8(&pair.serialize_der()).expect("an RSA key"),
            pem: certificate.pem(),
            thumbprint: URL_SAFE_NO_PAD.encode(digest),
        }
    }

    fn sign(&self, claims: &Value) -> String {
        let header = json!({"alg": "RS256", "typ": "JWT", "x5t#S256": self.thumbprint, "kid": "one"});
        let text = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header.to_string()),
            URL_SAFE_NO_PAD.encode(claims.to_string())
        );
        let mut signature = vec![0; self.keys.public_modulus_len()];
        self.keys
            .sign(
                &aws_lc_rs::signature::RSA_PKCS1_SHA256,
                &aws_lc_rs::rand::SystemRandom::new(),
                text.as_bytes(),
                &mut signature,
            )
            .expect("signed");
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

fn with_assertion(azure: &mut Fixture, client: &str, assertion: &str) -> Response {
    let form = [
        ("grant_type", "client_credentials"),
        ("client_id", client),
        ("scope", "https://management.azure.com/.default"),
        (
            "client_assertion_type",
            "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        ),
        ("client_assertion", assertion),
    ];
    let address = format!("https://login.microsoftonline.com/{TENANT}/oauth2/v2.0/token");
    azure.send(&Request::new(Method::POST, &address).form(&form))
}

#[test]
fn a_certificate_signs_in_until_it_expires_and_no_other_does() {
    let mut azure = closed();
    let (good, other) = (Signer::new((2026, 2, 1)), Signer::new((2026, 2, 1)));
    azure
        .azure
        .directory_mut()
        .register(Application::new(CLIENT).certificate_pem(&good.pem));
    let claims = |now: jiff::Timestamp| json!({"iss": CLIENT, "sub": CLIENT, "aud": "x", "exp": now.as_second() + 600});
    let now = azure.now;
    assert_eq!(
        with_assertion(&mut azure, CLIENT, &good.sign(&claims(now))).status,
        200
    );
    let unknown = with_assertion(&mut azure, CLIENT, &other.sign(&claims(now)));
    assert!(
        description(&unknown).starts_with("AADSTS700027") && description(&unknown).contains("not registered")
    );
    let forged = Signer {
        thumbprint: good.thumbprint.clone(),
        ..other
    };
    assert!(
        description(&with_assertion(&mut azure, CLIENT, &forged.sign(&claims(now))))
            .starts_with("AADSTS50013")
    );
    let stale = with_assertion(
        &mut azure,
        CLIENT,
        &good.sign(&json!({"iss": CLIENT, "exp": now.as_second() - 1})),
    );
    assert!(description(&stale).starts_with("AADSTS700024"));
    azure.pass(60 * 24 * 3600);
    let now = azure.now;
    let expired = with_assertion(&mut azure, CLIENT, &good.sign(&claims(now)));
    assert_eq!(expired.status, 401);
    assert!(description(&expired).contains("The key used is expired"));
}

#[test]
fn a_federated_assertion_must_match_the_credential_arm_holds() {
    let mut azure = closed();
    azure.azure.settings.require_token = false;
    azure.put("/resourceGroups/rg", &json!({"location": "westus3"}));
    let identity = "/resourceGroups/rg/providers/Microsoft.ManagedIdentity/userAssignedIdentities/one";
    let made = azure.put(identity, &json!({"location": "westus3"})).body_json();
    let client = made["properties"]["clientId"]
        .as_str()
        .expect("a client id")
        .to_owned();
    azure.put(
        &format!("{identity}/federatedIdentityCredentials/fc"),
        &json!({"properties": {
            "issuer": "https://issuer.example/",
            "subject": "system:serviceaccount:ns:name",
            "audiences": ["api://AzureADTokenExchange"],
        }}),
    );
    let signer = Signer::new((2030, 1, 1));
    let claims = |subject: &str| {
        json!({
            "iss": "https://issuer.example/",
            "sub": subject,
            "aud": ["api://AzureADTokenExchange"],
            "exp": 4_000_000_000_i64,
        })
    };
    let right = signer.sign(&claims("system:serviceaccount:ns:name"));
    assert_eq!(with_assertion(&mut azure, &client, &right).status, 200);
    let wrong = signer.sign(&claims("system:serviceaccount:ns:other"));
    let refused = with_assertion(&mut azure, &client, &wrong);
    assert_eq!(refused.status, 401);
    assert!(description(&refused).starts_with("AADSTS700213"));
    azure
        .azure
        .directory_mut()
        .trust_issuer("https://issuer.example", json!({"keys": []}));
    let refused = with_assertion(&mut azure, &client, &right);
    assert!(
        description(&refused).starts_with("AADSTS50013"),
        "no key of the issuer signed it"
    );
}

#[test]
fn roles_decide_who_may_write_and_who_gets_credentials() {
    let mut azure = Fixture::with_group();
    let cluster = azure.cluster("one");
    azure
        .azure
        .directory_mut()
        .register(Application::new(CLIENT).secret("right"));
    azure.azure.settings.enforce_roles = true;
    let answer = token(&mut azure, &[("client_secret", "right")]).body_json();
    let bearer = format!("Bearer {}", answer["access_token"].as_str().expect("a token"));
    let ask = request(Method::POST, &format!("{cluster}/listClusterAdminCredential"))
        .header("authorization", &bearer);
    let refused = azure.send(&ask);
    assert_eq!(
        (refused.status, code(&refused).as_str()),
        (403, "AuthorizationFailed")
    );
    azure.azure.settings.enforce_roles = false;
    let assignment = format!(
        "{cluster}/providers/Microsoft.Authorization/roleAssignments/33333333-3333-3333-3333-333333333333"
    );
    let object_id = slipway_azure_sim::object_id_of(CLIENT);
    let role = |id: &str| {
        json!({"properties": {
            "principalId": object_id,
            "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{id}"),
        }})
    };
    assert_eq!(
        azure
            .put(&assignment, &role("0ab0b1a8-8aac-4efd-b8c2-3ee1fb270be8"))
            .status,
        201
    );
    azure.azure.settings.enforce_roles = true;
    assert_eq!(azure.send(&ask).status, 200);

    let id = format!("{}{cluster}", crate::fixture::SUBSCRIPTION);
    let review = Request::new(
        Method::POST,
        &format!("https://localhost/kubernetes/authorize{id}"),
    )
    .json(&json!({
        "spec": {"user": object_id, "resourceAttributes": {"verb": "delete", "resource": "nodes"}},
    }));
    assert_eq!(azure.send(&review).body_json()["status"]["allowed"], false);
    azure.azure.settings.enforce_roles = false;
    let admin = assignment.replace("33333333-3333", "44444444-4444");
    azure.put(&admin, &role("b1ff04bb-8a4e-4dc4-8eb5-8693973ce19b"));
    assert_eq!(azure.send(&review).body_json()["status"]["allowed"], true);
}

#[test]
fn an_api_server_can_check_tokens_with_the_published_keys() {
    let issuer = format!("https://localhost:8443/{TENANT}/v2.0");
    let mut azure = Fixture::with(Settings {
        token_issuer: Some(issuer.clone()),
        ..Settings::default()
    });
    let form = [
        ("grant_type", "client_credentials"),
        ("client_id", CLIENT),
        ("client_secret", "any"),
        ("scope", "6dae42f8-4368-4678-94ff-3960e28e3630/.default"),
    ];
    let address = format!("https://localhost:8443/{TENANT}/oauth2/v2.0/token");
    let answer = azure
        .send(&Request::new(Method::POST, &address).form(&form))
        .body_json();
    let token = answer["access_token"].as_str().expect("a token");
    let discovery = azure
        .send(&Request::new(
            Method::GET,
            &format!("{issuer}/.well-known/openid-configuration"),
        ))
        .body_json();
    assert_eq!(discovery["issuer"], issuer);
    let keys = azure
        .send(&Request::new(
            Method::GET,
            discovery["jwks_uri"].as_str().expect("a link"),
        ))
        .body_json();
    let (signed, signature) = token.rsplit_once('.').expect("three parts");
    let claims = URL_SAFE_NO_PAD
        .decode(signed.split_once('.').expect("two parts").1)
        .expect("base64");
    let claims: Value = serde_json::from_slice(&claims).expect("JSON");
    assert_eq!(claims["iss"], issuer);
    assert_eq!(claims["aud"], "6dae42f8-4368-4678-94ff-3960e28e3630");
    let part = |name: &str| {
        URL_SAFE_NO_PAD
            .decode(keys["keys"][0][name].as_str().expect("a number"))
            .expect("base64")
    };
    aws_lc_rs::signature::RsaPublicKeyComponents {
        n: part("n"),
        e: part("e"),
    }
    .verify(
        &aws_lc_rs::signature::RSA_PKCS1_2048_8192_SHA256,
        signed.as_bytes(),
        &URL_SAFE_NO_PAD.decode(signature).expect("base64"),
    )
    .expect("signed with the published key");
}
