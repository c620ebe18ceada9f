//! Azure RBAC for Kubernetes: the webhook an API server asks when a cluster leaves authorization to Azure. It answers
//! SubjectAccessReviews at `/kubernetes/authorize{cluster id}`.

use serde_json::{Value, json};

use crate::{
    azure::Azure,
    roles,
    wire::{Request, Response},
};

const CLUSTER_ADMIN: &str = "b1ff04bb-8a4e-4dc4-8eb5-8693973ce19b";
const ADMIN: &str = "3498e952-d568-435e-9b2c-8d77e338d7f7";
const WRITER: &str = "a7ffa36f-339b-4b5c-8bdf-e2c188b2c0eb";
const READER: &str = "7f6c6a51-bcf8-42ba-9220-52d62157d7db";

pub fn answer(azure: &Azure, request: &Request) -> Response {
    let cluster = request.path.trim_start_matches("/kubernetes/authorize");
    let Ok(review) = request.body_json() else {
        return Response::json(
            400,
            &json!({"message": "the body must be a SubjectAccessReview in JSON"}),
        );
    };
    let user = review["spec"]["user"].as_str().unwrap_or_default();
    let attributes = &review["spec"]["resourceAttributes"];
    let verb = attributes["verb"].as_str().unwrap_or_default();
    let reads = matches!(verb, "get" | "list" | "watch");
    let is_namespaced = attributes["namespace"]
        .as_str()
        .is_some_and(|name| !name.is_empty());
    let is_rbac = attributes["group"].as_str() == Some("rbac.authorization.k8s.io");
    let mut enough = vec![CLUSTER_ADMIN];
    if is_namespaced {
        enough.push(ADMIN);
        if !is_rbac {
            enough.push(WRITER);
            if reads && attributes["resource"].as_str() != Some("secrets") {
                enough.push(READER);
            }
        }
    }
    let allowed = roles::holds(azure, user, cluster, &enough);
    let mut status = json!({"allowed": allowed});
    if !allowed {
        status["reason"] = Value::from(
            "User does not have access to the resource in Azure. Update role assignment to allow access.",
        );
    }
    Response::json(
        200,
        &json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "status": status,
        }),
    )
}
