//! Thousands of seeded worlds in paused time: requests that are slow, lost, or answered into the void after they
//! were committed; candidates that stand still for a while, whose clocks run fast or slow, that restart or leave.
//! In none of them may two candidates lead at the same moment, and once the world is healthy somebody leads.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use jiff::{SignedDuration, Timestamp};

use super::*;

/// The apiserver's memory of one lease.
#[derive(Default)]
struct Server {
    lease: Mutex<(u64, Option<Lease>)>,
}

impl Server {
    fn commit(&self, mut lease: Lease, creating: bool) -> Result<Lease, StoreError> {
        let mut slot = self.lease.lock().unwrap();
        let current = slot
            .1
            .as_ref()
            .and_then(|lease| lease.metadata.resource_version.clone());
        let expected = if creating {
            None
        } else {
            lease.metadata.resource_version.clone()
        };
        if creating == slot.1.is_some() || current != expected {
            return Err(StoreError::Conflict);
        }
        slot.0 += 1;
        lease.metadata.resource_version = Some(slot.0.to_string());
        slot.1 = Some(lease.clone());
        Ok(lease)
    }
}

/// One candidate's way to the server, with the weather of this seed.
struct Network {
    server: Arc<Server>,
    random: Mutex<StdRng>,
    /// Once set, every request is answered within 50 ms.
    healthy: Arc<AtomicBool>,
    /// Of a hundred requests, how many are lost before, and how many after they are committed.
    lost_before: u32,
    lost_after: u32,
    slowest: Duration,
}

enum Fate {
    Lost,
    Delivered { there: Duration, back: Option<Duration> },
}

impl Network {
    fn fate(&self) -> Fate {
        let mut random = self.random.lock().unwrap();
        let slowest = if self.healthy.load(Ordering::Relaxed) {
            Duration::from_millis(25)
        } else if random.random_ratio(self.lost_before, 100) {
            return Fate::Lost;
        } else {
            self.slowest
        };
        let there = slowest.mul_f64(random.random::<f64>());
        let lost = !self.healthy.load(Ordering::Relaxed) && random.random_ratio(self.lost_after, 100);
        let back = (!lost).then(|| slowest.mul_f64(random.random::<f64>()));
        Fate::Delivered { there, back }
    }

    /// Sends a request that the server works on even when the sender has stopped waiting.
    async fn send<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Server) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self.fate() {
            Fate::Lost => Err(StoreError::Failed("connection refused".into())),
            Fate::Delivered { there, back } => {
                let server = self.server.clone();
                let committed = tokio::spawn(async move {
                    tokio::time::sleep(there).await;
                    work(&server)
                });
                let answer = committed.await.expect("the server does not panic");
                match back {
                    Some(back) => tokio::time::sleep(back).await,
                    None => std::future::pending().await,
                }
                answer
            }
        }
    }
}

impl LeaseStore for Network {
    fn get(&self) -> futures::future::BoxFuture<'_, Result<Option<Lease>, StoreError>> {
        Box::pin(self.send(|server| Ok(server.lease.lock().unwrap().1.clone())))
    }

    fn create(&self, lease: Lease) -> futures::future::BoxFuture<'_, Result<Lease, StoreError>> {
        Box::pin(self.send(move |server| server.commit(lease, true)))
    }

    fn replace(&self, lease: Lease) -> futures::future::BoxFuture<'_, Result<Lease, StoreError>> {
        Box::pin(self.send(move |server| server.commit(lease, false)))
    }
}

/// A process that stands still while `stopped` is set: it is not polled, though time goes on around it.
struct Process<F> {
    inner: Pin<Box<F>>,
    stopped: watch::Receiver<bool>,
    wake: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<F: Future<Output = ()>> Process<F> {
    fn new(inner: F, stopped: watch::Receiver<bool>) -> Self {
        Self {
            inner: Box::pin(inner),
            stopped,
            wake: None,
        }
    }
}

impl<F: Future<Output = ()>> Future for Process<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        while *self.stopped.borrow() {
            let stopped = self.stopped.clone();
            let wake = self.wake.get_or_insert_with(|| {
                let mut stopped = stopped;
                Box::pin(async move {
                    let _ = stopped.wait_for(|stopped| !stopped).await;
                })
            });
            match wake.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(()) => self.wake = None,
            }
        }
        self.inner.as_mut().poll(context)
    }
}

/// When each candidate believed it led: start and end of every term.
type Terms = Arc<Mutex<Vec<(String, Instant, Instant)>>>;

/// Follows one candidate's leadership and writes down every span it was entitled to act in.
async fn record(identity: String, mut leadership: Leadership, terms: Terms) {
    let mut current: Option<usize> = None;
    loop {
        let now = Instant::now();
        match leadership.until() {
            Some(until) if now < until => {
                let mut terms = terms.lock().unwrap();
                match current {
                    Some(index) if terms[index].2 >= now => terms[index].2 = until,
                    _ => {
                        current = Some(terms.len());
                        terms.push((identity.clone(), now, until));
                    }
                }
            }
            _ => {
                if let Some(index) = current.take() {
                    let mut terms = terms.lock().unwrap();
                    terms[index].2 = terms[index].2.min(now);
                }
            }
        }
        if leadership.until.changed().await.is_err() {
            return;
        }
    }
}

fn overlap(terms: &[(String, Instant, Instant)]) -> Option<String> {
    let mut sorted = terms.to_vec();
    sorted.sort_by_key(|(_, start, _)| *start);
    for (index, (who, start, end)) in sorted.iter().enumerate() {
        for (other, other_start, _) in &sorted[index + 1..] {
            if who != other && other_start < end {
                return Some(format!(
                    "{who} led for {:?} when {other} began {:?} after it",
                    *end - *start,
                    *other_start - *start
                ));
            }
        }
    }
    None
}

struct Ended {
    terms: usize,
    leaders: usize,
}

/// One world. `renew_deadline` is a parameter so that a test can show that a wrong one is caught.
async fn world(seed: u64, renew_deadline: Duration) -> Result<Ended, String> {
    let mut random = StdRng::seed_from_u64(seed);
    let server = Arc::new(Server::default());
    let healthy = Arc::new(AtomicBool::new(false));
    let terms = Terms::default();
    let mut stops = BTreeMap::new();
    let mut cancels = Vec::new();
    let mut leaderships = Vec::new();
    let spawn = |identity: String, random: &mut StdRng| {
        // A clock that runs up to a tenth fast or slow: all of its durations shrink or stretch alike.
        let drift = random.random_range(0.9..1.1);
        let election = Election {
            namespace: "harbour".into(),
            name: "pilot".into(),
            identity: identity.clone(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: renew_deadline.mul_f64(drift),
            retry_period: Duration::from_secs(2).mul_f64(drift),
        };
        let network = Network {
            server: server.clone(),
            random: Mutex::new(StdRng::seed_from_u64(random.random())),
            healthy: healthy.clone(),
            lost_before: random.random_range(0..60),
            lost_after: random.random_range(0..40),
            slowest: Duration::from_millis(random.random_range(1..20_000)),
        };
        // Wall clocks are hours apart.
        let skew = SignedDuration::from_secs(random.random_range(-20_000..20_000));
        let clock = Clock::starting_at(Timestamp::from_second(1_800_000_000).unwrap() + skew);
        let (campaign, leadership) = Campaign::new(election, Arc::new(network), clock, random.random());
        let cancel = CancellationToken::new();
        let (stop, stopped) = watch::channel(false);
        let again = leadership.clone();
        tokio::spawn(record(identity.clone(), leadership.clone(), terms.clone()));
        tokio::spawn(Process::new(campaign.run(cancel.clone()), stopped));
        (stop, cancel, again)
    };
    let count = random.random_range(2..6);
    for index in 0..count {
        let (stop, cancel, leadership) = spawn(format!("candidate-{index}"), &mut random);
        stops.insert(index, stop);
        cancels.push(cancel);
        leaderships.push(leadership);
    }
    // Two to four minutes of trouble.
    let mut next = count;
    for _ in 0..random.random_range(20..60) {
        tokio::time::sleep(Duration::from_millis(random.random_range(0..8_000))).await;
        match random.random_range(0..10) {
            // Somebody stands still, perhaps for longer than its lease.
            0..6 => {
                let stop = stops
                    .values()
                    .nth(random.random_range(0..stops.len()))
                    .unwrap()
                    .clone();
                let pause = Duration::from_millis(random.random_range(0..40_000));
                stop.send_replace(true);
                tokio::spawn(async move {
                    tokio::time::sleep(pause).await;
                    stop.send_replace(false);
                });
            }
            // Somebody shuts down gracefully and a new process comes.
            6..8 => {
                cancels[random.random_range(0..cancels.len())].cancel();
                let (stop, cancel, leadership) = spawn(format!("candidate-{next}"), &mut random);
                stops.insert(next, stop);
                cancels.push(cancel);
                leaderships.push(leadership);
                next += 1;
            }
            _ => {}
        }
    }
    // Good weather: within a lease, its retries and the last pauses, somebody must lead. A process whose
    // leadership was lost has ended, so a fresh candidate stands by, as a Deployment would start one.
    healthy.store(true, Ordering::Relaxed);
    let (_stop, _cancel, leadership) = spawn("fresh".into(), &mut random);
    leaderships.push(leadership);
    tokio::time::sleep(Duration::from_secs(40 + 20 + 2 * 15 + 10)).await;
    let leaders = leaderships
        .iter()
        .filter(|leadership| leadership.is_leading())
        .count();
    let terms = terms.lock().unwrap();
    if let Some(overlap) = overlap(&terms) {
        return Err(format!("seed {seed}: {overlap}"));
    }
    if leaders != 1 {
        return Err(format!("seed {seed}: {leaders} leaders in good weather"));
    }
    Ok(Ended {
        terms: terms.len(),
        leaders: terms
            .iter()
            .map(|(who, _, _)| who)
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
    })
}

fn run_world(seed: u64, renew_deadline: Duration) -> Result<Ended, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(world(seed, renew_deadline))
}

#[test]
fn never_two_leaders_and_always_one_in_good_weather() {
    let seeds: u64 = if std::env::var_os("SLIPWAY_TEST_FULL").is_some() {
        20_000
    } else {
        2_000
    };
    // Two threads, because each world runs on one.
    let halves = [0, 1].map(|half| {
        std::thread::spawn(move || {
            (half..seeds)
                .step_by(2)
                .map(|seed| run_world(seed, Duration::from_secs(10)))
                .collect::<Result<Vec<Ended>, String>>()
        })
    });
    let (mut terms, mut changes) = (0, 0);
    for half in halves {
        for ended in half.join().unwrap().unwrap_or_else(|problem| panic!("{problem}")) {
            terms += ended.terms;
            changes += ended.leaders - 1;
        }
    }
    // A simulation in which nobody ever lost the lease would show nothing.
    assert!(
        changes as u64 > seeds,
        "{changes} changes of leader in {seeds} seeds"
    );
    println!("report: lease: {seeds} seeds, 0 overlaps ({terms} terms, {changes} changes of leader)");
}

#[test]
fn the_simulation_catches_a_deadline_that_outlives_the_lease() {
    let caught = (0..200)
        .filter_map(|seed| run_world(seed, Duration::from_secs(30)).err())
        .any(|problem| problem.contains(" led for "));
    assert!(
        caught,
        "no seed found two leaders with a deadline of twice the lease"
    );
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_once_and_a_dead_leaders_after_its_time() {
    let server = Arc::new(Server::default());
    let candidate = |identity: &str| {
        let network = Network {
            server: server.clone(),
            random: Mutex::new(StdRng::seed_from_u64(1)),
            healthy: Arc::new(AtomicBool::new(true)),
            lost_before: 0,
            lost_after: 0,
            slowest: Duration::ZERO,
        };
        let election = Election {
            namespace: "harbour".into(),
            name: "pilot".into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        };
        let (campaign, leadership) = Campaign::new(election, Arc::new(network), Clock::system(), 7);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(campaign.run(cancel.clone()));
        (cancel, task, leadership)
    };
    let (first, first_task, mut first_leads) = candidate("first");
    first_leads.won().await;
    let (_second, second_task, mut second_leads) = candidate("second");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(first_leads.is_leading() && !second_leads.is_leading());

    first.cancel();
    first_task.await.unwrap();
    assert!(!first_leads.is_leading());
    let released = Instant::now();
    second_leads.won().await;
    assert!(
        released.elapsed() < Duration::from_secs(3),
        "{:?}",
        released.elapsed()
    );
    let spec = server.lease.lock().unwrap().1.clone().unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("second"));
    assert_eq!(spec.lease_duration_seconds, Some(15));
    // The change from nobody to the second counts once; giving back does not.
    assert_eq!(spec.lease_transitions, Some(1));

    let (_third, _third_task, mut third_leads) = candidate("third");
    tokio::time::sleep(Duration::from_secs(5)).await;
    second_task.abort();
    let killed = Instant::now();
    second_leads.lost().await;
    let stepped_down = killed.elapsed();
    third_leads.won().await;
    assert!(stepped_down <= Duration::from_secs(10) && stepped_down < killed.elapsed());
    assert!(
        killed.elapsed() < Duration::from_secs(15 + 3),
        "{:?}",
        killed.elapsed()
    );
}
