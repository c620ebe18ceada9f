//! Leadership by client-go's protocol over one `coordination.k8s.io/v1` Lease, so that a Slipway manager and a
//! Go manager with the same lease name never lead together.
//!
//! Why there are never two leaders: a leader trusts a write for `renew_deadline`, counted from *before* it sent
//! the request. Another candidate takes over only after it has seen the record unchanged for the record's
//! `leaseDurationSeconds`, counted on its own monotonic clock from *after* it read it, and only if the record's
//! resourceVersion is still the one it read. `lease_duration` is longer than `renew_deadline`, so the old leader
//! has stepped down by then. Wall clocks are written into the record for people, and never compared.

mod fence;
#[cfg(test)]
mod simulation;
mod store;

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

pub use self::{
    fence::{Fence, NotLeading},
    store::{ApiServerLease, LeaseStore, StoreError},
};
use crate::{Clock, duration};

/// Who campaigns for which lease, and how patiently.
#[derive(Clone, Debug)]
pub struct Election {
    pub namespace: String,
    pub name: String,
    /// Unique to this process: a host name and a random part.
    pub identity: String,
    /// How long others wait after the last change of the record before they take over.
    pub lease_duration: Duration,
    /// How long this process trusts its last acknowledged write.
    pub renew_deadline: Duration,
    /// The pause between tries.
    pub retry_period: Duration,
}

/// Durations that would allow two leaders, or none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidElection {
    #[error(
        "--leader-elect-lease-duration ({}) must be longer than --leader-elect-renew-deadline ({})",
        duration::format(*.lease),
        duration::format(*.deadline)
    )]
    LeaseTooShort { lease: Duration, deadline: Duration },
    #[error(
        "--leader-elect-renew-deadline ({}) must be longer than 1.2 times --leader-elect-retry-period ({})",
        duration::format(*.deadline),
        duration::format(*.retry)
    )]
    DeadlineTooShort { deadline: Duration, retry: Duration },
    #[error("--leader-elect-retry-period must be longer than zero")]
    NoRetryPeriod,
}

/// How much longer than the retry period a candidate may wait, at random, so that candidates spread out.
const JITTER: f64 = 1.2;

impl Election {
    pub fn validate(&self) -> Result<(), InvalidElection> {
        if self.retry_period.is_zero() {
            return Err(InvalidElection::NoRetryPeriod);
        }
        if self.lease_duration <= self.renew_deadline {
            return Err(InvalidElection::LeaseTooShort {
                lease: self.lease_duration,
                deadline: self.renew_deadline,
            });
        }
        if self.renew_deadline <= self.retry_period.mul_f64(JITTER) {
            return Err(InvalidElection::DeadlineTooShort {
                deadline: self.renew_deadline,
                retry: self.retry_period,
            });
        }
        Ok(())
    }

    /// No request outlives half the deadline, so that a lost answer leaves time for a second try.
    fn request_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }
}

/// Whether this process leads. Cheap to copy and to ask.
#[derive(Clone, Debug)]
pub struct Leadership {
    pub(crate) until: watch::Receiver<Option<Instant>>,
}

impl Leadership {
    /// For a process that runs alone (`--leader-elect=false`).
    pub fn always() -> Self {
        let far = Instant::now() + Duration::from_hours(24 * 365 * 30);
        Self {
            until: watch::channel(Some(far)).1,
        }
    }

    /// Asks the clock, not a flag: a process that was stopped for a minute finds out before it acts.
    pub fn is_leading(&self) -> bool {
        self.until.borrow().is_some_and(|until| Instant::now() < until)
    }

    /// Until when the last acknowledged write may be trusted.
    pub fn until(&self) -> Option<Instant> {
        *self.until.borrow()
    }

    /// Returns when this process leads. Pending for ever if the campaign has ended.
    pub async fn won(&mut self) {
        loop {
            if self.is_leading() {
                return;
            }
            if self.until.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns when this process no longer leads, at the latest at the moment its last write may be stale.
    pub async fn lost(&mut self) {
        loop {
            let Some(until) = self.until().filter(|until| Instant::now() < *until) else {
                return;
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                changed = self.until.changed() => if changed.is_err() {
                    // The campaign has ended: what it last said stands until its time is over.
                    tokio::time::sleep_until(until).await;
                }
            }
        }
    }
}

/// Campaigns for one lease until cancelled.
pub struct Campaign {
    election: Election,
    store: Arc<dyn LeaseStore>,
    clock: Clock,
    random: StdRng,
    until: watch::Sender<Option<Instant>>,
    /// The record as last read or written, and when this process first saw it so.
    observed: Option<(Lease, Instant)>,
    /// The holder last logged.
    announced: Option<String>,
}

impl Campaign {
    pub fn new(
        election: Election,
        store: Arc<dyn LeaseStore>,
        clock: Clock,
        seed: u64,
    ) -> (Self, Leadership) {
        let (until, receiver) = watch::channel(None);
        let campaign = Self {
            election,
            store,
            clock,
            random: StdRng::seed_from_u64(seed),
            until,
            observed: None,
            announced: None,
        };
        (campaign, Leadership { until: receiver })
    }

    /// Campaigns, leads, and on cancellation gives the lease back. Returns when leadership was lost or given back.
    pub async fn run(mut self, cancel: CancellationToken) {
        let lease = format!("{}/{}", self.election.namespace, self.election.name);
        tracing::info!(
            lease,
            identity = self.election.identity,
            "Attempting to acquire leader lease"
        );
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                won = self.attempt() => if won { break },
            }
            let pause = self
                .election
                .retry_period
                .mul_f64(1.0 + self.random.random::<f64>() * (JITTER - 1.0));
            tokio::select! {
                () = cancel.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
        tracing::info!(lease, "Successfully acquired lease");
        loop {
            let Some(until) = *self.until.borrow() else { return };
            let pause = Instant::now() + self.election.retry_period;
            tokio::select! {
                biased;
                () = cancel.cancelled() => return self.release().await,
                () = tokio::time::sleep_until(pause.min(until)) => {}
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(until) => {
                    self.until.send_replace(None);
                    tracing::error!(lease, "Failed to renew lease: stopping before another process may lead");
                    return;
                }
                () = cancel.cancelled() => return self.release().await,
                kept = self.attempt() => if !kept && self.is_held_by_another() {
                    self.until.send_replace(None);
                    tracing::error!(lease, holder = self.holder(), "Lost lease to another process");
                    return;
                },
            }
        }
    }

    /// One try to take or keep the lease. True if a write was acknowledged.
    async fn attempt(&mut self) -> bool {
        let timeout = self.election.request_timeout();
        let leading = self.until.borrow().is_some();
        // A leader renews by what it last wrote; only if that is refused does it read first.
        if let Some((lease, _)) = self
            .observed
            .clone()
            .filter(|_| leading && !self.is_held_by_another())
        {
            match self.write(&lease, timeout).await {
                Ok(()) => return true,
                Err(StoreError::Conflict) => {}
                Err(error) => {
                    tracing::warn!(error = %error, "Failed to update lease, falling back to reading it");
                }
            }
        }
        let found = match tokio::time::timeout(timeout, self.store.get()).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::warn!(error = %error, "Failed to read lease");
                return false;
            }
            Err(_) => {
                tracing::warn!("Failed to read lease: no answer in time");
                return false;
            }
        };
        let now = Instant::now();
        let Some(lease) = found else {
            return acknowledged(self.create(timeout).await);
        };
        let unchanged = self
            .observed
            .as_ref()
            .is_some_and(|(seen, _)| seen.metadata.resource_version == lease.metadata.resource_version);
        if !unchanged {
            self.observed = Some((lease.clone(), now));
        }
        let holder = self.holder();
        if !holder.is_empty() && self.announced.as_ref() != Some(&holder) {
            tracing::info!(holder, "New leader elected");
            self.announced = Some(holder);
        }
        if self.is_held_by_another() && !self.has_expired(now) {
            return false;
        }
        acknowledged(self.write(&lease, timeout).await)
    }

    async fn create(&mut self, timeout: Duration) -> Result<(), StoreError> {
        let sent = Instant::now();
        let lease = Lease {
            metadata: ObjectMeta {
                namespace: Some(self.election.namespace.clone()),
                name: Some(self.election.name.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(self.claim(None)),
        };
        let stored = answer(timeout, self.store.create(lease)).await?;
        self.trust(stored, sent);
        Ok(())
    }

    /// Writes this process as the holder over the record that was read, if nobody wrote in between.
    async fn write(&mut self, over: &Lease, timeout: Duration) -> Result<(), StoreError> {
        let sent = Instant::now();
        let mut lease = over.clone();
        lease.metadata.managed_fields = None;
        lease.spec = Some(self.claim(over.spec.as_ref()));
        let stored = answer(timeout, self.store.replace(lease)).await?;
        self.trust(stored, sent);
        Ok(())
    }

    fn trust(&mut self, stored: Lease, sent: Instant) {
        self.observed = Some((stored, Instant::now()));
        self.announced = Some(self.election.identity.clone());
        let until = sent + self.election.renew_deadline;
        // An answer that took longer than the deadline proves nothing any more.
        self.until.send_replace((Instant::now() < until).then_some(until));
    }

    /// The record that says this process leads.
    fn claim(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(self.clock.now());
        let kept = before.filter(|spec| spec.holder_identity.as_deref() == Some(&self.election.identity));
        let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.election.identity.clone()),
            // Rounded up: a record may promise too much time, never too little.
            lease_duration_seconds: Some(self.election.lease_duration.as_secs_f64().ceil() as i32),
            acquire_time: kept
                .and_then(|spec| spec.acquire_time.clone())
                .or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(match (before, kept) {
                (None, _) => 0,
                (Some(_), Some(_)) => transitions,
                (Some(_), None) => transitions + 1,
            }),
            ..before.cloned().unwrap_or_default()
        }
    }

    /// Steps down first, then tells the others, so that they need not wait.
    async fn release(&mut self) {
        self.until.send_replace(None);
        let Some((lease, _)) = self.observed.clone().filter(|_| !self.is_held_by_another()) else {
            return;
        };
        let now = MicroTime(self.clock.now());
        let mut free = lease;
        free.metadata.managed_fields = None;
        if let Some(spec) = &mut free.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(now.clone());
            spec.acquire_time = Some(now);
        }
        match answer(self.election.request_timeout(), self.store.replace(free)).await {
            Ok(_) => tracing::info!(lease = self.election.name, "Released lease"),
            Err(error) => tracing::warn!(error = %error, "Failed to release lease: it will expire by itself"),
        }
    }

    fn holder(&self) -> String {
        self.observed
            .as_ref()
            .and_then(|(lease, _)| lease.spec.as_ref()?.holder_identity.clone())
            .unwrap_or_default()
    }

    fn is_held_by_another(&self) -> bool {
        let holder = self.holder();
        !holder.is_empty() && holder != self.election.identity
    }

    /// Whether the holder has had its promised time since this process first saw the record as it is.
    fn has_expired(&self, now: Instant) -> bool {
        let Some((lease, since)) = &self.observed else {
            return false;
        };
        let promised = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds)
            .filter(|seconds| *seconds > 0)
            .map_or(self.election.lease_duration, |seconds| {
                Duration::from_secs(seconds.unsigned_abs().into())
            });
        now >= *since + promised
    }
}

fn acknowledged(written: Result<(), StoreError>) -> bool {
    match written {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(error = %error, "Failed to write lease");
            false
        }
    }
}

async fn answer<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(timeout, request)
        .await
        .unwrap_or(Err(StoreError::Failed("no answer in time".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn election(lease: u64, deadline: u64, retry: u64) -> Election {
        Election {
            namespace: "harbour".into(),
            name: "pilot".into(),
            identity: "one".into(),
            lease_duration: Duration::from_secs(lease),
            renew_deadline: Duration::from_secs(deadline),
            retry_period: Duration::from_secs(retry),
        }
    }

    #[test]
    fn durations_that_allow_two_leaders_are_refused() {
        assert_eq!(election(15, 10, 2).validate(), Ok(()));
        assert_eq!(
            election(10, 10, 2).validate().unwrap_err().to_string(),
            "--leader-elect-lease-duration (10s) must be longer than --leader-elect-renew-deadline (10s)"
        );
        assert_eq!(
            election(15, 10, 9).validate().unwrap_err().to_string(),
            "--leader-elect-renew-deadline (10s) must be longer than 1.2 times --leader-elect-retry-period (9s)"
        );
        assert!(election(15, 10, 0).validate().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_runs_alone_always_leads() {
        let mut alone = Leadership::always();
        alone.won().await;
        tokio::time::advance(Duration::from_secs(100_000)).await;
        assert!(alone.is_leading());
    }
}
