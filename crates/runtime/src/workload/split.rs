//! One client over two clusters, for controllers whose objects live in both: each request goes where its path says.

use http::Request;
use kube::{Client, client::Body};
use tower::BoxError;

/// A client that sends requests whose path `goes_there` says so to `there`, and all others to `here`. Whatever surrounds either
/// client (its fence, its counters) surrounds its requests.
pub fn split(here: Client, there: Client, goes_there: fn(&str) -> bool) -> Client {
    let namespace = here.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = if goes_there(request.uri().path()) {
            there.clone()
        } else {
            here.clone()
        };
        async move {
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use kube::Api;

    /// Answers everything with an object of this name.
    fn named(name: &'static str) -> Client {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let body = serde_json::json!({"metadata": {"name": name}}).to_string();
            Ok::<_, BoxError>(Response::new(Body::from(body.into_bytes())))
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn requests_go_where_their_path_says() {
        let client = split(named("here"), named("there"), |path| {
            path.contains("/configmaps/")
        });
        let map: Api<ConfigMap> = Api::namespaced(client.clone(), "a");
        let pod: Api<Pod> = Api::namespaced(client, "a");
        let names = (
            map.get("x").await.expect("an answer").metadata.name,
            pod.get("x").await.expect("an answer").metadata.name,
        );
        assert_eq!(names, (Some("there".to_owned()), Some("here".to_owned())));
    }
}
