//! What the controllers of one workload cluster see and change of the management cluster: objects of Cluster API in the namespace of
//! their Cluster, and of core's kinds those of this Cluster. It is held here, at the client, for whatever a controller asks: who
//! writes NodeClasses and claims in a workload cluster is trusted with its own machines alone.

use http::{Method, Request, Response, StatusCode, Uri};
use kube::{Client, client::Body};
use serde_json::json;
use slipway_capi::names::{GROUP, label};
use slipway_runtime::ObjectKey;
use tower::BoxError;

/// A client that asks for nothing else; who tries is answered as an apiserver would.
pub fn confined(client: Client, cluster: &ObjectKey) -> Client {
    let (namespace, cluster) = (client.default_namespace().to_owned(), cluster.clone());
    let service = tower::service_fn(move |mut request: Request<Body>| {
        let (client, confined) = (client.clone(), confine(request.method(), request.uri(), &cluster));
        let cluster = cluster.clone();
        async move {
            let Some(uri) = confined else {
                return Ok(refusal(request.uri(), &cluster));
            };
            *request.uri_mut() = uri;
            client.send(request).await.map_err(|error| -> BoxError {
                match error {
                    kube::Error::Service(error) => error,
                    error => error.into(),
                }
            })
        }
    });
    Client::new(service, namespace)
}

fn refusal(uri: &Uri, cluster: &ObjectKey) -> Response<Body> {
    let message = format!(
        "{} is not of Cluster {cluster}, for which it was asked",
        uri.path()
    );
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Forbidden",
        "code": 403, "message": message});
    let mut response = Response::new(Body::from(status.to_string().into_bytes()));
    *response.status_mut() = StatusCode::FORBIDDEN;
    response
}

/// The request as it is sent: what spans namespaces or Clusters is narrowed, and what is of another is not sent.
fn confine(method: &Method, uri: &Uri, cluster: &ObjectKey) -> Option<Uri> {
    let own = cluster.namespace().unwrap_or_default();
    let mut parts = uri.path().strip_prefix("/apis/")?.splitn(3, '/');
    let (group, version, rest) = (parts.next()?, parts.next(), parts.next());
    let (Some(version), Some(rest)) = (version, rest) else {
        return Some(uri.clone());
    };
    if group == "apiextensions.k8s.io" {
        return (method == Method::GET).then(|| uri.clone());
    }
    let segments: Vec<&str> = rest.split('/').collect();
    let plural = match segments.as_slice() {
        ["namespaces", namespace, _, _, ..] => return (*namespace == own).then(|| uri.clone()),
        ["namespaces", namespace, plural] if *namespace == own => plural,
        [plural] if method == Method::GET => plural,
        _ => return None,
    };
    let path = format!("/apis/{group}/{version}/namespaces/{own}/{plural}");
    let query = uri.query().unwrap_or_default();
    let query = match *method {
        Method::GET if group == GROUP => narrowed(query, plural, cluster.name()),
        Method::GET | Method::POST => query.to_owned(),
        // Whole collections are nobody's to change.
        _ => return None,
    };
    let mut parts = uri.clone().into_parts();
    let text = if query.is_empty() {
        path
    } else {
        format!("{path}?{query}")
    };
    parts.path_and_query = Some(text.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Selects what is of the Cluster: core labels its Machines, and whatever makes them, with the Cluster's name.
fn narrowed(query: &str, plural: &str, cluster: &str) -> String {
    let (parameter, term) = if plural == "clusters" {
        ("fieldSelector", format!("metadata.name%3D{cluster}"))
    } else {
        let key = label::CLUSTER_NAME.replace('/', "%2F");
        ("labelSelector", format!("{key}%3D{cluster}"))
    };
    let mut is_there = false;
    let mut narrowed: Vec<String> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) if name == parameter && !value.is_empty() => {
                is_there = true;
                format!("{name}={value}%2C{term}")
            }
            _ => pair.to_owned(),
        })
        .collect();
    if !is_there {
        narrowed.push(format!("{parameter}={term}"));
    }
    narrowed.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_of_one_cluster() {
        let cluster = ObjectKey::namespaced("fleet", "edge");
        let sent = |method: &Method, path: &str| {
            let uri: Uri = path.parse().expect("a path");
            confine(method, &uri, &cluster).map(|uri| uri.to_string())
        };
        let core = "/apis/cluster.x-k8s.io/v1beta2";
        let hosts = "/apis/infrastructure.cluster.x-k8s.io/v1beta1";
        let of_edge = "cluster.x-k8s.io%2Fcluster-name%3Dedge";
        for (method, path, expected) in [
            (
                Method::GET,
                format!("{core}/machines?watch=true"),
                Some(format!(
                    "{core}/namespaces/fleet/machines?watch=true&labelSelector={of_edge}"
                )),
            ),
            (
                Method::GET,
                format!("{core}/namespaces/fleet/machines?labelSelector=a%3Db&limit=5"),
                Some(format!(
                    "{core}/namespaces/fleet/machines?labelSelector=a%3Db%2C{of_edge}&limit=5"
                )),
            ),
            (
                Method::GET,
                format!("{core}/clusters"),
                Some(format!(
                    "{core}/namespaces/fleet/clusters?fieldSelector=metadata.name%3Dedge"
                )),
            ),
            (
                Method::GET,
                format!("{hosts}/testhostmachinetemplates"),
                Some(format!("{hosts}/namespaces/fleet/testhostmachinetemplates")),
            ),
            (
                Method::PATCH,
                format!("{core}/namespaces/fleet/machinedeployments/a/scale"),
                Some(format!("{core}/namespaces/fleet/machinedeployments/a/scale")),
            ),
            (
                Method::POST,
                format!("{core}/namespaces/fleet/machines"),
                Some(format!("{core}/namespaces/fleet/machines")),
            ),
            (Method::GET, core.to_owned(), Some(core.to_owned())),
            (
                Method::GET,
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x".to_owned(),
                Some("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x".to_owned()),
            ),
            (
                Method::PATCH,
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/x".to_owned(),
                None,
            ),
            (Method::GET, format!("{core}/namespaces/other/machines"), None),
            (
                Method::PATCH,
                format!("{core}/namespaces/other/machinedeployments/a/scale"),
                None,
            ),
            (Method::POST, format!("{core}/namespaces/other/machines"), None),
            (Method::DELETE, format!("{core}/namespaces/fleet/machines"), None),
            (Method::DELETE, format!("{core}/machines"), None),
            (Method::GET, "/api/v1/secrets".to_owned(), None),
        ] {
            assert_eq!(sent(&method, &path), expected, "{method} {path}");
        }
    }
}
