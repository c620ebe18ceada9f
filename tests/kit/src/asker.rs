//! A manager in this process, asked as commands ask one over the diagnostics port.

use std::convert::Infallible;

use http::{Method, Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use slipway_runtime::{Context, ObjectKey, command::Asker, manager::ASKER_HEADER, preview::Question};

/// Asks the manager that was started with this context.
pub fn asker(context: &Context) -> Asker {
    let (previews, answers) = (context.previews.clone(), context.answers.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (previews, answers) = (previews.clone(), answers.clone());
        async move {
            let path = request.uri().path().trim_start_matches('/').to_owned();
            let unheld = request.uri().query() == Some("unheld=true");
            let method = request.method().clone();
            let body = request.into_body().collect_bytes().await.expect("a body");
            let sent = (method == Method::POST)
                .then(|| serde_json::from_slice::<Value>(&body).expect("a question in JSON"));
            let parts: Vec<&str> = path.split('/').collect();
            let answer = match parts.as_slice() {
                ["debug", "diff", group, kind, namespace, name] => {
                    let question = Question { object: sent, unheld };
                    let key = ObjectKey::namespaced(namespace, name);
                    let preview = previews.ask(group, kind, key, question).await;
                    preview
                        .map(|preview| json!(preview))
                        .map_err(|error| error.to_string())
                }
                ["debug", "ask", name] => {
                    let answer = answers.ask(name, sent.unwrap_or_default()).await;
                    answer.map_err(|error| error.to_string())
                }
                _ => panic!("no such question: {path}"),
            };
            let (status, text) = match answer {
                Ok(value) => (StatusCode::OK, value.to_string()),
                Err(text) => (StatusCode::BAD_REQUEST, text),
            };
            let answer = Response::builder()
                .status(status)
                .body(Body::from(text.into_bytes()));
            Ok::<_, Infallible>(answer.expect("an answer"))
        }
    });
    Asker::over(
        Client::new(service, "default"),
        (ASKER_HEADER, "token".to_owned()),
    )
}
