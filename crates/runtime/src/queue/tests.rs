//! What the queue promises, one test a promise, in paused time.

use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;

use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("default", name)
}

fn queue(limits: Limits) -> Queue {
    Queue::new("fleet", limits, Random::seeded(1), Metrics::new())
}

fn exact() -> Limits {
    Limits {
        jitter: 0.0,
        ..Limits::default()
    }
}

fn ready(queue: &Queue) -> Option<Item> {
    queue.next().now_or_never().flatten()
}

fn finish(queue: &Queue, item: &Item) {
    queue.done(item, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_queued_once_and_in_work_once() {
    let queue = queue(exact());
    queue.add(&key("a"), Priority::Normal);
    queue.add(&key("a"), Priority::Normal);
    let first = ready(&queue).unwrap();
    assert!(ready(&queue).is_none());
    queue.add(&key("a"), Priority::Normal);
    assert!(ready(&queue).is_none(), "it is still in work");
    finish(&queue, &first);
    let again = ready(&queue).expect("it was asked for while in work");
    finish(&queue, &again);
    assert!(ready(&queue).is_none());
    assert_eq!(queue.len(), 0, "nothing is kept of an idle object");
}

#[tokio::test(start_paused = true)]
async fn live_edits_go_before_the_first_list() {
    let queue = queue(exact());
    queue.add(&key("listed"), Priority::Low);
    queue.add(&key("child"), Priority::Normal);
    queue.add(&key("edited"), Priority::High);
    queue.add(&key("raised"), Priority::Low);
    queue.add(&key("raised"), Priority::High);
    let order: Vec<String> = std::iter::from_fn(|| ready(&queue))
        .map(|item| item.key.name().to_owned())
        .collect();
    assert_eq!(order, ["edited", "raised", "child", "listed"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_edits_does_not_starve_the_rest() {
    let queue = queue(exact());
    queue.add(&key("resync"), Priority::Low);
    for number in 0..100 {
        queue.add(&key(&format!("edit-{number}")), Priority::High);
    }
    let position = std::iter::from_fn(|| ready(&queue))
        .position(|item| item.key.name() == "resync")
        .unwrap();
    assert!(position < 10, "it was number {position}");
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_each_object_by_itself_until_forgotten() {
    let queue = queue(Limits {
        first_retry: Duration::from_secs(1),
        longest_retry: Duration::from_secs(5),
        ..exact()
    });
    let mut waits = Vec::new();
    for _ in 0..4 {
        waits.push(queue.add_rate_limited(&key("bad"), Priority::Normal).as_secs());
        let item = queue.next().await.unwrap();
        finish(&queue, &item);
    }
    assert_eq!(waits, [1, 2, 4, 5]);
    assert_eq!(
        queue.add_rate_limited(&key("good"), Priority::Normal).as_secs(),
        1
    );
    queue.forget(&key("bad"));
    assert_eq!(queue.add_rate_limited(&key("bad"), Priority::Normal).as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn jitter_spreads_retries() {
    let queue = queue(Limits {
        first_retry: Duration::from_secs(10),
        jitter: 0.1,
        ..Limits::default()
    });
    let waits: Vec<Duration> = (0..50)
        .map(|number| queue.add_rate_limited(&key(&number.to_string()), Priority::Normal))
        .collect();
    let (shortest, longest) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
    assert!(*shortest >= Duration::from_secs(9) && *longest <= Duration::from_secs(11));
    assert!(*longest > *shortest + Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn the_earliest_time_wins_and_an_edit_ends_a_wait() {
    let queue = queue(exact());
    let start = Instant::now();
    queue.add_after(&key("a"), Duration::from_mins(1), Priority::Normal);
    queue.add_after(&key("a"), Duration::from_secs(10), Priority::Normal);
    queue.add_after(&key("a"), Duration::from_secs(30), Priority::Normal);
    let item = queue.next().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 10);
    finish(&queue, &item);
    queue.add_after(&key("a"), Duration::from_mins(1), Priority::Normal);
    queue.add(&key("a"), Priority::High);
    let item = ready(&queue).expect("the edit is due now");
    assert_eq!(item.priority, Priority::High);
    finish(&queue, &item);
    assert!(ready(&queue).is_none(), "one request was merged into the other");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_taker_wakes_for_what_comes_earlier() {
    let queue = queue(exact());
    queue.add_after(&key("later"), Duration::from_hours(1), Priority::Normal);
    let taker = tokio::spawn({
        let queue = queue.clone();
        async move { (queue.next().await.unwrap().key, Instant::now()) }
    });
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    queue.add(&key("now"), Priority::Low);
    let (taken, at) = taker.await.unwrap();
    assert_eq!((taken, (at - start).as_secs()), (key("now"), 5));
}

#[tokio::test(start_paused = true)]
async fn an_object_keeps_its_minimum_interval() {
    let queue = queue(Limits {
        min_interval: Duration::from_secs(1),
        ..exact()
    });
    let start = Instant::now();
    queue.add(&key("a"), Priority::High);
    let item = queue.next().await.unwrap();
    queue.add(&key("a"), Priority::High);
    finish(&queue, &item);
    queue.add(&key("b"), Priority::High);
    assert_eq!(
        queue.next().await.unwrap().key,
        key("b"),
        "others are not held up"
    );
    let item = queue.next().await.unwrap();
    assert_eq!((item.key.name(), start.elapsed().as_secs()), ("a", 1));
    finish(&queue, &item);
    tokio::time::sleep(Duration::from_secs(2)).await;
    queue.add(&key("c"), Priority::High);
    assert_eq!(queue.len(), 2, "only c, and b which is still in work");
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_does_not_count_for_the_interval() {
    let queue = queue(Limits {
        min_interval: Duration::from_secs(10),
        ..exact()
    });
    let start = Instant::now();
    queue.add(&key("a"), Priority::High);
    let item = queue.next().await.unwrap();
    queue.give_back(&item, Duration::from_millis(100));
    let item = queue.next().await.unwrap();
    assert_eq!(start.elapsed().as_millis(), 100);
    assert_eq!(item.priority, Priority::High);
}

#[tokio::test(start_paused = true)]
async fn the_overall_rate_holds_for_all_objects_together() {
    let queue = queue(Limits {
        rate: Some(Rate {
            per_second: 2.0,
            burst: 3,
        }),
        ..exact()
    });
    for number in 0..9 {
        queue.add(&key(&number.to_string()), Priority::Normal);
    }
    let start = Instant::now();
    for _ in 0..3 {
        queue.next().await.unwrap();
    }
    assert!(start.elapsed().is_zero(), "the burst is free");
    for _ in 0..6 {
        queue.next().await.unwrap();
    }
    let took = start.elapsed().as_secs_f64();
    assert!((2.9..3.1).contains(&took), "six more at two a second took {took}");
}

#[tokio::test(start_paused = true)]
async fn a_shut_down_queue_hands_out_nothing_and_drains() {
    let queue = queue(exact());
    queue.add(&key("a"), Priority::Normal);
    queue.add(&key("b"), Priority::Normal);
    let item = queue.next().await.unwrap();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.drained().await }
    });
    queue.shut_down();
    assert!(queue.next().await.is_none());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    finish(&queue, &item);
    waiting.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_gauges_tell_what_waits_and_what_runs() {
    let metrics = Metrics::new();
    let queue = Queue::new("fleet", exact(), Random::seeded(1), metrics.clone());
    queue.add(&key("a"), Priority::High);
    queue.add(&key("b"), Priority::Low);
    let item = queue.next().await.unwrap();
    tokio::time::sleep(Duration::from_secs(7)).await;
    let text = metrics.encode();
    for line in [
        r#"workqueue_depth{name="fleet",controller="fleet",priority="-100"} 1"#,
        r#"workqueue_adds_total{name="fleet",controller="fleet"} 2"#,
        r#"workqueue_longest_running_processor_seconds{name="fleet",controller="fleet"} 7"#,
    ] {
        assert!(text.contains(line), "{line} is not in:\n{text}");
    }
    finish(&queue, &item);
}
