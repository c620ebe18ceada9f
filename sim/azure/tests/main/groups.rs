//! Resource groups, pages and the gate in front of everything.

use http::Method;
use serde_json::json;
use slipway_azure_sim::{Request, Settings};

use crate::fixture::{Fixture, code, request};

#[test]
fn a_group_is_written_at_once_and_deleted_by_polling_with_all_it_holds() {
    let mut azure = Fixture::new();
    assert_eq!(
        azure
            .put("/resourceGroups/rg", &json!({"location": "westus3"}))
            .status,
        201
    );
    assert_eq!(
        azure
            .put("/resourceGroups/RG", &json!({"location": "westus3"}))
            .status,
        200
    );
    let cluster = azure.cluster("one");
    let deleted = azure.delete("/resourceGroups/rg");
    assert_eq!(deleted.status, 202);
    assert_eq!(deleted.header_text("retry-after"), Some("15"));
    let link = deleted
        .header_text("location")
        .expect("a link to poll")
        .to_owned();
    assert_eq!(azure.follow(&link).status, 202);
    assert_eq!(
        code(&azure.put(&cluster, &crate::fixture::cluster_body())),
        "ResourceGroupBeingDeleted"
    );
    azure.pass(300);
    assert_eq!(azure.follow(&link).status, 200);
    let gone = azure.get(&cluster);
    assert_eq!(
        (gone.status, code(&gone).as_str()),
        (404, "ResourceGroupNotFound")
    );
    assert_eq!(gone.header_text("x-ms-failure-cause"), Some("gateway"));
}

#[test]
fn an_operation_link_must_come_back_whole() {
    let mut azure = Fixture::with_group();
    let deleted = azure.delete("/resourceGroups/rg");
    let link = deleted.header_text("location").expect("a link").to_owned();
    let (bare, _) = link.split_once("&t=").expect("a signed query");
    assert_eq!(azure.follow(bare).status, 403);
}

#[test]
fn a_request_without_token_or_api_version_is_refused() {
    let mut azure = Fixture::with(Settings::default());
    let refused = azure.get("/resourceGroups/rg");
    assert_eq!(
        (refused.status, code(&refused).as_str()),
        (401, "AuthenticationFailed")
    );
    assert!(refused.header_text("www-authenticate").is_some());
    let mut azure = Fixture::new();
    let refused = azure.send(&Request::new(
        Method::GET,
        "https://management.azure.com/subscriptions/a/resourceGroups/rg",
    ));
    assert_eq!(code(&refused), "MissingApiVersionParameter");
    let refused = azure.send(&request(Method::PUT, "/resourceGroups/rg").json(&json!([1])));
    assert_eq!(code(&refused), "InvalidRequestContent");
}

#[test]
fn lists_come_in_pages_that_link_to_the_next() {
    let mut azure = Fixture::with(Settings {
        require_token: false,
        page_size: 2,
        ..Settings::default()
    });
    for name in ["a", "b", "c", "d", "e"] {
        azure.put(
            &format!("/resourceGroups/{name}"),
            &json!({"location": "westus3"}),
        );
    }
    let mut names = Vec::new();
    let mut page = azure.get("/resourceGroups").body_json();
    loop {
        let value = page["value"].as_array().expect("a page").clone();
        assert!(value.len() <= 2);
        names.extend(
            value
                .iter()
                .filter_map(|group| group["name"].as_str().map(str::to_owned)),
        );
        let Some(next) = page["nextLink"].as_str().map(str::to_owned) else {
            break;
        };
        page = azure.follow(&next).body_json();
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}

#[test]
fn what_one_subscription_holds_is_not_seen_in_another() {
    let mut azure = Fixture::with_group();
    let other = Request::new(
        Method::GET,
        "https://management.azure.com/subscriptions/00000000-0000-0000-0000-00000000000b/resourceGroups?api-version=2020-06-01",
    );
    assert_eq!(azure.send(&other).body_json()["value"], json!([]));
    azure
        .azure
        .reset_subscription("00000000-0000-0000-0000-00000000000a");
    assert_eq!(azure.get("/resourceGroups/rg").status, 404);
}
