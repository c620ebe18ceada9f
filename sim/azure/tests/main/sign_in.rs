//! Tokens: each kind of credential, and the errors people run into.

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
