//! Questions that providers answer while the manager leads, by name: what only the manager can read, because it has the credentials.
//! An answer changes nothing anywhere.

use std::{collections::HashMap, fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::Semaphore, time::timeout};

/// Answers at a time.
const AT_A_TIME: usize = 2;
/// An answer that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(110);

/// Answers one kind of question; what is wrong with a question is for whoever asked.
pub type Answerer = Arc<dyn Fn(Value) -> BoxFuture<'static, Result<Value, String>> + Send + Sync>;

/// Who answers what. Clones share it.
#[derive(Clone)]
pub struct Answers {
    by_name: Arc<Mutex<HashMap<&'static str, Answerer>>>,
    turns: Arc<Semaphore>,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            by_name: Arc::default(),
            turns: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.by_name.lock().keys()).finish()
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    #[error(
        "nobody answers questions about {0} here: either its provider is switched off, or another replica leads"
    )]
    Nobody(String),
    #[error("{0}")]
    Refused(String),
    #[error("the answer panicked; the log has it")]
    Panicked,
    #[error("the answer took too long: ask again")]
    TimedOut,
}

impl Answers {
    /// Answers questions of this name from now on.
    pub fn register(&self, name: &'static str, answerer: Answerer) {
        self.by_name.lock().insert(name, answerer);
    }

    pub async fn ask(&self, name: &str, question: Value) -> Result<Value, NoAnswer> {
        let answerer = self.by_name.lock().get(name).cloned();
        let answerer = answerer.ok_or_else(|| NoAnswer::Nobody(name.to_owned()))?;
        let answer = async {
            let _turn = self.turns.acquire().await;
            AssertUnwindSafe(answerer(question)).catch_unwind().await
        };
        match timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer.map_err(NoAnswer::Refused),
            Ok(Err(_)) => Err(NoAnswer::Panicked),
            Err(_) => Err(NoAnswer::TimedOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test(start_paused = true)]
    async fn what_goes_wrong_in_an_answer_is_told_and_goes_no_further() {
        let answers = Answers::default();
        answers.register(
            "toy",
            Arc::new(|question| {
                async move {
                    match question.as_str() {
                        Some("no") => Err("not that".to_owned()),
                        Some("panic") => panic!("no answer"),
                        Some("hang") => std::future::pending().await,
                        _ => Ok(json!({"asked": question})),
                    }
                }
                .boxed()
            }),
        );
        let ask = async |name: &str, question: &str| answers.ask(name, json!(question)).await;
        assert_eq!(ask("toy", "this").await, Ok(json!({"asked": "this"})));
        assert_eq!(
            ask("toy", "no").await,
            Err(NoAnswer::Refused("not that".to_owned()))
        );
        assert_eq!(ask("toy", "panic").await, Err(NoAnswer::Panicked));
        assert_eq!(ask("toy", "hang").await, Err(NoAnswer::TimedOut));
        assert_eq!(
            ask("other", "this").await,
            Err(NoAnswer::Nobody("other".to_owned()))
        );
    }
}
