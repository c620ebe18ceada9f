//! `/healthz` and `/readyz`, worded as controller-runtime words them, over named checks.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
};

use parking_lot::RwLock;

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Named checks for one question. Clones share them.
#[derive(Clone, Default)]
pub struct Checks {
    checks: Arc<RwLock<Vec<(String, Check)>>>,
}

/// The two questions a kubelet asks.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// A failure means: restart me.
    pub live: Checks,
    /// A failure means: send me no requests yet.
    pub ready: Checks,
}

/// The answer to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub healthy: bool,
    pub body: String,
}

impl Checks {
    /// Adds a check. Its error is logged and withheld from the answer, which anybody may read.
    pub fn add(&self, name: &str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.checks.write().push((name.to_owned(), Arc::new(check)));
    }

    /// Asks every check, or the one named (`/readyz/webhook`). `None` if there is no such check.
    pub fn ask(&self, endpoint: &str, only: Option<&str>, verbose: bool) -> Option<Answer> {
        let checks = self.checks.read().clone();
        let mut lines = String::new();
        let mut healthy = true;
        let mut asked = 0;
        for (name, check) in checks
            .iter()
            .filter(|(name, _)| only.is_none_or(|only| only == name))
        {
            asked += 1;
            match check() {
                Ok(()) => {
                    let _ = writeln!(lines, "[+]{name} ok");
                }
                Err(reason) => {
                    healthy = false;
                    tracing::debug!(checker = name, err = reason, "Health check failed");
                    let _ = writeln!(lines, "[-]{name} failed: reason withheld");
                }
            }
        }
        if only.is_some_and(|only| only != "ping") && asked == 0 {
            return None;
        }
        let body = match (healthy, verbose) {
            (true, false) => "ok".to_owned(),
            (true, true) => format!("{lines}{endpoint} check passed\n"),
            (false, _) => format!("{lines}{endpoint} check failed\n"),
        };
        Some(Answer { healthy, body })
    }
}

impl fmt::Debug for Checks {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks = self.checks.read();
        let names: Vec<&str> = checks.iter().map(|(name, _)| name.as_str()).collect();
        formatter.debug_list().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_failing_check_is_named_and_its_reason_withheld() {
        let ready = Arc::new(AtomicBool::new(false));
        let checks = Checks::default();
        checks.add("ping", || Ok(()));
        let flag = ready.clone();
        checks.add("webhook", move || {
            flag.load(Ordering::Relaxed)
                .then_some(())
                .ok_or_else(|| "secret detail".to_owned())
        });
        let answer = checks.ask("readyz", None, false).unwrap();
        assert!(!answer.healthy);
        assert_eq!(
            answer.body,
            "[+]ping ok\n[-]webhook failed: reason withheld\nreadyz check failed\n"
        );
        ready.store(true, Ordering::Relaxed);
        assert_eq!(checks.ask("readyz", None, false).unwrap().body, "ok");
        assert_eq!(
            checks.ask("readyz", Some("webhook"), true).unwrap().body,
            "[+]webhook ok\nreadyz check passed\n"
        );
        assert_eq!(checks.ask("readyz", Some("nonesuch"), false), None);
    }
}
