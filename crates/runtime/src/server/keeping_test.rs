//! How long a connection is kept: an apiserver keeps its own for the next call, and a call that meets the end of one
//! fails. Time is the test's own.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full};
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    Answer,
    listen::{HANDSHAKE, IDLE, LINGER, converse},
};

/// How long a client written in Go keeps a connection that it does not use.
const KEPT_BY_GO: Duration = Duration::from_secs(90);

async fn allow(_request: Request<Incoming>) -> Answer {
    Answer::new(Full::new(Bytes::from_static(b"allowed")))
}

/// The client's end of a connection that is served until `cancel`.
fn connect(cancel: &CancellationToken) -> DuplexStream {
    let (client, server) = tokio::io::duplex(4096);
    tokio::spawn(converse(server, allow, cancel.clone()));
    client
}

async fn speak(stream: DuplexStream) -> (SendRequest<Empty<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection))
}

/// Asks, and tells whether the connection is closed by the answer.
async fn ask(sender: &mut SendRequest<Empty<Bytes>>) -> bool {
    let request = Request::post("/validate").header(header::HOST, "webhook");
    let answer = sender
        .send_request(request.body(Empty::new()).unwrap())
        .await
        .expect("the connection is still there");
    assert_eq!(answer.status(), StatusCode::OK);
    let closes = answer
        .headers()
        .get(header::CONNECTION)
        .is_some_and(|value| value == "close");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "allowed");
    closes
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_its_client_keeps_is_never_closed_on_it() {
    let (mut sender, _connection) = speak(connect(&CancellationToken::new())).await;
    for pause in [
        Duration::from_secs(1),
        HANDSHAKE + Duration::from_secs(1),
        KEPT_BY_GO / 2,
        KEPT_BY_GO,
        KEPT_BY_GO + Duration::from_secs(5),
    ] {
        assert!(!ask(&mut sender).await);
        sleep(pause).await;
    }
    assert!(!ask(&mut sender).await);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nobody_uses_ends() {
    let (mut sender, connection) = speak(connect(&CancellationToken::new())).await;
    ask(&mut sender).await;
    let idle = Instant::now();
    connection.await.unwrap().unwrap();
    assert!(idle.elapsed() >= IDLE, "{:?}", idle.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_connects_and_says_nothing_is_cut_off() {
    for said in ["", "POST /validate HT"] {
        let mut stream = connect(&CancellationToken::new());
        let begun = Instant::now();
        stream.write_all(said.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert!(answer.is_empty());
        let after = begun.elapsed();
        assert!(after >= HANDSHAKE && after < IDLE, "{after:?} after {said:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_goes_answers_who_has_not_heard_of_it_and_says_so() {
    let cancel = CancellationToken::new();
    let (mut used, ends) = speak(connect(&cancel)).await;
    let (mut unused, ends_unused) = speak(connect(&cancel)).await;
    assert!(!ask(&mut used).await);
    assert!(!ask(&mut unused).await);
    cancel.cancel();
    let told = Instant::now();
    sleep(LINGER / 2).await;
    assert!(ask(&mut used).await, "the answer is the last on its connection");
    ends.await.unwrap().unwrap();
    assert!(told.elapsed() < LINGER);
    ends_unused.await.unwrap().unwrap();
    assert_eq!(told.elapsed().as_secs(), LINGER.as_secs());
}
