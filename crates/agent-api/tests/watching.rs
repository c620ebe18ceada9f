//! A watch goes on after the link was down, and shows each state once and in order.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use parking_lot::Mutex;
use slipway_agent_api::{
    client::{Direct, HostClient},
    proto::OperationState,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::support::{Fleet, Running, operator};

/// A link that can be cut.
struct Link {
    address: String,
    connections: Arc<Mutex<Vec<JoinHandle<()>>>>,
    _task: Running,
}

impl Link {
    async fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let kept = connections.clone();
        let task = tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let target = target.clone();
                kept.lock().push(tokio::spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(&target).await {
                        let _ = copy_bidirectional(&mut near, &mut far).await;
                    }
                }));
            }
        });
        Self {
            address,
            connections,
            _task: Running(task),
        }
    }

    fn cut(&self) -> usize {
        let mut connections = self.connections.lock();
        let cut = connections.len();
        connections.drain(..).for_each(|connection| connection.abort());
        cut
    }
}

/// E-39: the watch stream resumes after a reconnect.
#[tokio::test]
async fn e39_a_watch_survives_every_cut_of_the_link() {
    let fleet = Fleet::new().await;
    let box_1 = fleet.host("box-1").await;
    let link = Link::to(box_1.address.clone()).await;
    let way = Direct {
        address: link.address.clone(),
        tls: fleet.tls(&operator()),
    };
    let client = HostClient::new("box-1", Arc::new(way));
    let mut watch = client.watch("op-1");
    let mut sequences = vec![watch.next().await.unwrap().unwrap().sequence];
    for _ in 0..5 {
        assert_eq!(link.cut(), 1, "there is a connection to cut");
        box_1.script.advance(OperationState::Running);
        sequences.push(watch.next().await.unwrap().unwrap().sequence);
    }
    link.cut();
    box_1.script.advance(OperationState::Succeeded);
    let last = watch.next().await.unwrap().unwrap();
    sequences.push(last.sequence);
    assert_eq!(last.state(), OperationState::Succeeded);
    assert!(watch.next().await.is_none());
    assert_eq!(sequences, [1, 2, 3, 4, 5, 6, 7]);
    assert!(
        box_1.script.watches.load(std::sync::atomic::Ordering::Relaxed) >= 7,
        "each cut made a new watch"
    );
}

/// What a command says comes over the watch as it is said, each byte once, however often the link is cut.
#[tokio::test]
async fn output_is_watched_and_goes_on_behind_what_was_seen() {
    let fleet = Fleet::new().await;
    let box_1 = fleet.host("box-1").await;
    let link = Link::to(box_1.address.clone()).await;
    let way = Direct {
        address: link.address.clone(),
        tls: fleet.tls(&operator()),
    };
    let client = HostClient::new("box-1", Arc::new(way));
    let mut watch = client.watch("op-1");
    assert_eq!(watch.next().await.unwrap().unwrap().output, None);
    let mut heard = Vec::new();
    for line in ["one ", "two ", "three "] {
        link.cut();
        box_1.script.say(line);
        let output = watch.next().await.unwrap().unwrap().output.unwrap();
        assert_eq!(output.offset as usize, heard.len());
        heard.extend(output.data);
    }
    box_1.script.advance(OperationState::Succeeded);
    let last = watch.next().await.unwrap().unwrap();
    assert_eq!((last.state(), last.output), (OperationState::Succeeded, None));
    assert_eq!(heard, b"one two three ");
}

/// E-52: what is silent and answers pings is alive. Ten minutes pass on the paused clock without a change.
#[tokio::test]
async fn e52_an_operation_that_is_silent_for_ten_minutes_is_still_watched_over_the_same_connection() {
    let fleet = Fleet::new().await;
    let box_1 = fleet.host("box-1").await;
    let client = box_1.client(fleet.tls(&operator()));
    let mut watch = client.watch("op-1");
    watch.next().await.unwrap().unwrap();
    tokio::time::pause();
    for _ in 0..120 {
        tokio::time::advance(Duration::from_secs(5)).await;
        // Pings go over real sockets: both ends get many turns to send and to answer.
        for _ in 0..500 {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::resume();
    box_1.script.advance(OperationState::Succeeded);
    assert_eq!(
        watch.next().await.unwrap().unwrap().state(),
        OperationState::Succeeded
    );
    assert_eq!(box_1.script.watches.load(std::sync::atomic::Ordering::Relaxed), 1);
}
