//! The page for many: everybody signs in with a token of their own, and sees what the API server lets them see. The page itself has no
//! rights. A token is known again by its hash; but for the client that asks with it nothing holds it.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use http::StatusCode;
use parking_lot::Mutex;
use tokio::{
    sync::Mutex as Turn,
    time::{Instant, sleep, timeout},
};

use super::{
    answers::Refusal,
    live::{Live, Shows},
};
use crate::see::connect::{ApiServer, Connection};

/// Each has watches of its own. Who has not looked for longest goes first.
const MOST: usize = 64;
/// Whoever does not look for so long is forgotten.
const IDLE: Duration = Duration::from_mins(10);
const LOOK: Duration = Duration::from_mins(1);
/// To find out what a cluster serves.
const PATIENCE: Duration = Duration::from_secs(20);
/// No token is longer.
const LONGEST: usize = 32 * 1024;

/// One who has signed in.
pub struct Session {
    pub live: Arc<Live>,
    last: Mutex<Instant>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.live.end();
    }
}

/// A token, as it is remembered: by two hashes with keys that are new with every process.
type Key = (u64, u64);

pub struct Sessions {
    api_server: ApiServer,
    shows: Shows,
    open: Mutex<BTreeMap<Key, Arc<Session>>>,
    /// One signs in at a time: a page asks several things at once.
    turn: Turn<()>,
    keys: (RandomState, RandomState),
}

impl Sessions {
    pub fn begin(api_server: ApiServer, shows: Shows) -> Arc<Self> {
        let sessions = Arc::new(Self {
            api_server,
            shows,
            open: Mutex::default(),
            turn: Turn::default(),
            keys: (RandomState::new(), RandomState::new()),
        });
        tokio::spawn(Arc::clone(&sessions).forget_those_who_left());
        sessions
    }

    /// The session of a token; a new one if it has none.
    pub async fn of(&self, token: &str) -> Result<Arc<Session>, Refusal> {
        if token.is_empty() || token.len() > LONGEST {
            return Err(unknown());
        }
        let key = (self.keys.0.hash_one(token), self.keys.1.hash_one(token));
        if let Some(session) = self.known(key) {
            return session;
        }
        let _turn = self.turn.lock().await;
        if let Some(session) = self.known(key) {
            return session;
        }
        let client = self
            .api_server
            .client(token)
            .await
            .map_err(|why| (StatusCode::BAD_GATEWAY, why))?;
        // Also tells whether the API server takes the token.
        match timeout(PATIENCE, client.apiserver_version()).await {
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(status))) if status.code == 401 => return Err(unknown()),
            Ok(Err(error)) => {
                return Err((
                    StatusCode::BAD_GATEWAY,
                    format!("the API server does not answer: {error}"),
                ));
            }
            Err(_) => {
                return Err((
                    StatusCode::BAD_GATEWAY,
                    "the API server does not answer in time".to_owned(),
                ));
            }
        }
        let connection = timeout(PATIENCE, Connection::over(client, String::new()))
            .await
            .unwrap_or_else(|_| Err("the API server does not answer in time".to_owned()))
            .map_err(|why| (StatusCode::BAD_GATEWAY, why))?;
        let session = Arc::new(Session {
            live: Live::begin(connection, self.shows.clone()),
            last: Mutex::new(Instant::now()),
        });
        let mut open = self.open.lock();
        if open.len() >= MOST
            && let Some(oldest) = open
                .iter()
                .min_by_key(|(_, session)| *session.last.lock())
                .map(|(key, _)| *key)
        {
            open.remove(&oldest);
        }
        open.insert(key, Arc::clone(&session));
        Ok(session)
    }

    /// A session that there is, if its token still counts.
    fn known(&self, key: Key) -> Option<Result<Arc<Session>, Refusal>> {
        let mut open = self.open.lock();
        let session = Arc::clone(open.get(&key)?);
        if session.live.is_refused() {
            open.remove(&key);
            return Some(Err(unknown()));
        }
        *session.last.lock() = Instant::now();
        Some(Ok(session))
    }

    async fn forget_those_who_left(self: Arc<Self>) {
        loop {
            sleep(LOOK).await;
            // Whoever has the page open holds the session.
            self.open.lock().retain(|_, session| {
                !session.live.is_refused()
                    && (Arc::strong_count(session) > 1 || session.last.lock().elapsed() < IDLE)
            });
        }
    }
}

fn unknown() -> Refusal {
    (
        StatusCode::UNAUTHORIZED,
        "the API server does not know the token: sign in with one that is valid".to_owned(),
    )
}
