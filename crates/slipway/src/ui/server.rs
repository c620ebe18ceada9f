//! The page's server: loopback, one token, answers that no other page can read, and a stream of changes that holds nothing back for
//! who reads slowly.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    answers::{self, Query, Refusal},
    files,
    live::{Live, Word},
    sessions::{Session, Sessions},
};

/// Connections at a time: a page needs a handful.
const CONNECTIONS: usize = 256;
/// A connection is kept this long for its next request.
const IDLE: Duration = Duration::from_mins(1);
/// A client that connects and says nothing is cut off.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// What changes within this time is told together.
const TOGETHER: Duration = Duration::from_millis(250);
/// Whoever hears nothing for longer takes the connection for lost.
const HEARTBEAT: Duration = Duration::from_secs(5);

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(&str, &str); 7] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Who is let in.
pub enum Gate {
    /// Whoever has this token: one person on their own machine.
    Own {
        live: Arc<Live>,
        token: String,
        /// What the `Host` header may be: another name for this address is somebody else's page.
        hosts: [String; 2],
    },
    /// Whoever has a token that the API server knows.
    SignIn(Arc<Sessions>),
}

impl Gate {
    pub fn own(live: Arc<Live>, token: String, port: u16) -> Self {
        Self::Own {
            live,
            token,
            hosts: [format!("127.0.0.1:{port}"), format!("localhost:{port}")],
        }
    }
}

/// What somebody who was let in sees. A session lasts for as long as anybody looks.
#[derive(Clone)]
enum Admitted {
    Own(Arc<Live>),
    Session(Arc<Session>),
}

impl Admitted {
    fn live(&self) -> &Live {
        match self {
            Self::Own(live) => live,
            Self::Session(session) => &session.live,
        }
    }
}

struct Page {
    gate: Gate,
    tls: Option<TlsAcceptor>,
}

/// Serves the page until the program ends.
pub async fn serve(listener: TcpListener, gate: Gate, tls: Option<TlsAcceptor>) -> Infallible {
    let page = Arc::new(Page { gate, tls });
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            continue;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let page = Arc::clone(&page);
                tokio::spawn(async move {
                    converse(stream, page).await;
                    drop(place);
                });
            }
            // Out of file descriptors, or a connection that ended before it began.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn converse(stream: TcpStream, page: Arc<Page>) {
    // An answer that is late by a packet is no harm.
    let _ = stream.set_nodelay(true);
    let tls = page.tls.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let page = Arc::clone(&page);
        // No question has a body.
        let request = request.map(|_| ());
        async move { Ok::<_, Infallible>(page.respond(&request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE);
    // A browser that goes away in the middle is no failure.
    match &tls {
        None => {
            let _ = http.serve_connection(TokioIo::new(stream), service).await;
        }
        Some(tls) => {
            if let Ok(Ok(stream)) = timeout(HANDSHAKE, tls.accept(stream)).await {
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            }
        }
    }
}

impl Page {
    async fn respond(&self, request: &Request<()>) -> Response<Body> {
        let mut response = self.answer(request).await;
        for (name, value) in HEADERS {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        response
    }

    async fn answer(&self, request: &Request<()>) -> Response<Body> {
        let host = request
            .headers()
            .get(header::HOST)
            .and_then(|value| value.to_str().ok());
        if let Gate::Own { hosts, .. } = &self.gate
            && !host.is_some_and(|host| hosts.iter().any(|known| known.eq_ignore_ascii_case(host)))
        {
            return refusal(
                StatusCode::MISDIRECTED_REQUEST,
                "this is not the address of the page: it is on 127.0.0.1 or localhost",
            );
        }
        if request.method() != Method::GET {
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "the page is read-only");
        }
        let path = request.uri().path();
        if let Some(file) = files::find(path) {
            return with_type(
                file.kind,
                Full::new(Bytes::from_static(file.content.as_bytes())).boxed_unsync(),
            );
        }
        let Some(question) = path.strip_prefix("/api/") else {
            return refusal(StatusCode::NOT_FOUND, "there is nothing here");
        };
        let seen = match self.admit(request.headers()).await {
            Ok(seen) => seen,
            Err((code, why)) => return self.refuse(code, &why),
        };
        if question == "watch" {
            return with_type("text/event-stream", changes(seen.live().hear(), seen.clone()));
        }
        let query = request.uri().query().unwrap_or_default().as_bytes();
        let query: Query = url::form_urlencoded::parse(query).into_owned().collect();
        let answer = match question {
            "plan" => answers::plan(seen.live(), &query).await,
            "cost" => answers::cost(seen.live()).await,
            _ => answers::answer(seen.live(), question, &query),
        };
        match answer {
            Ok(body) => with_type("application/json", Full::new(Bytes::from(body)).boxed_unsync()),
            Err((code, why)) => refusal(code, &why),
        }
    }

    /// What the caller sees, if anything.
    async fn admit(&self, headers: &HeaderMap) -> Result<Admitted, Refusal> {
        let given = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
            .unwrap_or_default();
        match &self.gate {
            Gate::Own { live, token, .. } if is_same(given, token.as_bytes()) => {
                Ok(Admitted::Own(Arc::clone(live)))
            }
            Gate::Own { .. } => Err((
                StatusCode::UNAUTHORIZED,
                "the token is missing or is not that of this server".to_owned(),
            )),
            Gate::SignIn(sessions) => {
                let given = std::str::from_utf8(given).unwrap_or_default();
                sessions.of(given).await.map(Admitted::Session)
            }
        }
    }

    /// Says whether signing in would help.
    fn refuse(&self, code: StatusCode, why: &str) -> Response<Body> {
        let can_sign_in = matches!(self.gate, Gate::SignIn(_));
        let body = json!({"message": why, "signIn": can_sign_in}).to_string();
        let mut response = with_type("application/json", Full::new(Bytes::from(body)).boxed_unsync());
        *response.status_mut() = code;
        response
    }
}

/// Takes as long for a wrong token as for the right one.
fn is_same(given: &[u8], right: &[u8]) -> bool {
    let pairs = given.iter().zip(right);
    let differs = pairs.fold(0, |differs, (one, other)| differs | (one ^ other));
    given.len() == right.len() && differs == 0
}

fn with_type(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn refusal(code: StatusCode, why: &str) -> Response<Body> {
    let body = json!({"message": why}).to_string();
    let mut response = with_type("application/json", Full::new(Bytes::from(body)).boxed_unsync());
    *response.status_mut() = code;
    response
}

/// What has changed, as server-sent events. Nothing is queued: whoever has taken one gets the newest there is then.
fn changes<Held: Send + 'static>(word: watch::Receiver<Word>, held: Held) -> Body {
    let start = (word, None::<Instant>, held);
    let frames = stream::unfold(start, |(mut word, last, held)| async move {
        let text = match last {
            None => event(&word.borrow_and_update()),
            Some(last) => match timeout(HEARTBEAT, word.changed()).await {
                Ok(Ok(())) => {
                    sleep_until(last + TOGETHER).await;
                    event(&word.borrow_and_update())
                }
                Ok(Err(_)) => return None,
                Err(_) => ": still here\n\n".to_owned(),
            },
        };
        let frame = Ok::<_, Infallible>(Frame::data(Bytes::from(text)));
        Some((frame, (word, Some(Instant::now()), held)))
    });
    StreamBody::new(frames.boxed()).boxed_unsync()
}

fn event(word: &Word) -> String {
    let word = serde_json::to_string(word).unwrap_or_default();
    format!("data: {word}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn page() -> Page {
        Page {
            gate: Gate::own(Live::of_nothing(), TOKEN.to_owned(), 9),
            tls: None,
        }
    }

    async fn asked(method: Method, path: &str, host: Option<&str>, token: Option<&str>) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(host) = host {
            request = request.header(header::HOST, host);
        }
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        page().respond(&request.body(()).expect("a request")).await
    }

    #[tokio::test]
    async fn only_who_has_the_token_and_the_right_address_gets_an_answer() {
        let (here, right) = (Some("127.0.0.1:9"), format!("Bearer {TOKEN}"));
        let wrong = format!("Bearer {}0", &TOKEN[1..]);
        let cases = [
            (Method::GET, "/api/fleet", here, Some(right.as_str()), 200),
            (Method::GET, "/api/fleet", Some("LOCALHOST:9"), Some(&right), 200),
            (Method::GET, "/", here, None, 200),
            (Method::GET, "/api/fleet", here, None, 401),
            (Method::GET, "/api/watch", here, None, 401),
            (Method::GET, "/api/fleet", here, Some(&wrong), 401),
            (Method::GET, "/api/fleet", here, Some("Bearer "), 401),
            (Method::GET, "/api/fleet", here, Some(TOKEN), 401),
            (
                Method::GET,
                "/api/fleet",
                here,
                Some(&right[..right.len() - 1]),
                401,
            ),
            (Method::GET, "/", Some("evil.example:9"), None, 421),
            (Method::GET, "/", Some("127.0.0.1:10"), None, 421),
            (Method::GET, "/api/fleet", None, Some(&right), 421),
            (Method::POST, "/api/fleet", here, Some(&right), 405),
            (Method::GET, "/api/secrets", here, Some(&right), 404),
            (Method::GET, "/api/plan?kind=Cluster&name=one", here, None, 401),
            (
                Method::GET,
                "/api/plan?kind=Cluster&name=one",
                here,
                Some(&right),
                404,
            ),
            (Method::GET, "/../Cargo.toml", here, None, 404),
        ];
        for (method, path, host, token, code) in cases {
            let response = asked(method.clone(), path, host, token).await;
            assert_eq!(
                response.status().as_u16(),
                code,
                "{method} {path} {host:?} {token:?}"
            );
            for (name, value) in HEADERS {
                assert_eq!(response.headers()[name], value);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_gets_the_newest_and_nothing_is_kept_for_him() {
        let word = watch::Sender::new(Word::default());
        let mut body = changes(word.subscribe(), ());
        let mut next = async || {
            let frame = body.frame().await.expect("it goes on").expect("it cannot fail");
            String::from_utf8(frame.into_data().expect("data").to_vec()).expect("text")
        };
        assert!(next().await.contains("\"revision\":0"));
        for _ in 0..1_000 {
            word.send_modify(|word| word.revision += 1);
        }
        assert!(next().await.contains("\"revision\":1000"));
        // Nothing has changed since: only a sign of life.
        assert_eq!(next().await, ": still here\n\n");
    }
}
