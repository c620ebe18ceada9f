//! The views of this process, and the one place where reads happen: a list is asked for once, however many wait for it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::Value;
use slipway_runtime::{Class, Classified};
use tokio::time::Instant;

use super::index::{Found, Index, Listing, Shown};
use crate::{
    arm::{Answer, ArmError, Client, ResourceId},
    budget::Priority,
};

/// What a read came to.
#[derive(Debug)]
pub enum Read {
    Present {
        body: Arc<Value>,
        /// Whether it was asked for just now, and alone.
        fresh: bool,
    },
    Absent {
        fresh: bool,
    },
    /// A rate limit: come back after this long.
    Throttled(Duration),
}

/// Lists on their way. One that somebody waits for does not stand behind one that can wait.
type Flights = HashMap<(Listing, Priority), Arc<tokio::sync::Mutex<()>>>;

/// One subscription as one identity sees it.
#[derive(Debug)]
pub struct View {
    start: Instant,
    index: Mutex<Index>,
    flights: Mutex<Flights>,
}

impl View {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            index: Mutex::default(),
            flights: Mutex::default(),
        }
    }

    /// Never the same twice over a change and the read after it.
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// What is known without asking, or what has to be asked.
    fn known(&self, id: &ResourceId, api_version: &str, max_age: Duration) -> Result<Read, Found> {
        match self.index.lock().find(id, api_version, max_age, self.now()) {
            Found::Present(body) => Ok(Read::Present { body, fresh: false }),
            Found::Absent => Ok(Read::Absent { fresh: false }),
            ask => Err(ask),
        }
    }

    /// The resource, read no longer than `max_age` ago.
    pub async fn read(
        &self,
        client: &Client,
        id: &ResourceId,
        api_version: &str,
        max_age: Duration,
        priority: Priority,
    ) -> Result<Read, ArmError> {
        let listing = match self.known(id, api_version, max_age) {
            Ok(read) => return Ok(read),
            Err(Found::List(listing)) => listing,
            Err(_) => return self.get(client, id, api_version, priority).await,
        };
        let key = (listing.clone(), priority);
        let flight = Arc::clone(self.flights.lock().entry(key).or_default());
        let _flight = match client.await_other(id, priority, flight.lock()).await {
            Ok(guard) => guard,
            Err(after) => return Ok(Read::Throttled(after)),
        };
        // The request before ours may have read what we need.
        match self.known(id, api_version, max_age) {
            Ok(read) => return Ok(read),
            Err(Found::List(_)) => {}
            Err(_) => return self.get(client, id, api_version, priority).await,
        }
        if let Err(error) = self.list(client, id, &listing, priority).await {
            match error.class() {
                Class::Throttled(after) => return Ok(Read::Throttled(after)),
                // A role on the resource group alone does not allow to list the subscription.
                Class::Denied if !matches!(error, ArmError::Credential(_)) => {
                    self.index.lock().list_refused(&listing, self.now());
                }
                _ => return Err(error),
            }
        }
        match self.known(id, api_version, max_age) {
            Ok(read) => Ok(read),
            Err(_) => self.get(client, id, api_version, priority).await,
        }
    }

    /// The resource as it was last seen, however long ago.
    pub fn last(&self, id: &ResourceId, api_version: &str) -> Option<Arc<Value>> {
        self.index.lock().last(id, api_version)
    }

    /// The resource as it is now.
    pub async fn get(
        &self,
        client: &Client,
        id: &ResourceId,
        api_version: &str,
        priority: Priority,
    ) -> Result<Read, ArmError> {
        let asked = self.now();
        match client.get(id, api_version, priority).await {
            Ok(Answer::Done(body)) => {
                self.index.lock().read(id, api_version, Some(&body), asked);
                Ok(Read::Present {
                    body: Arc::new(body),
                    fresh: true,
                })
            }
            Ok(Answer::NotFound) => {
                self.index.lock().read(id, api_version, None, asked);
                Ok(Read::Absent { fresh: true })
            }
            Ok(Answer::Throttled(after) | Answer::Busy { after, .. } | Answer::Accepted { after, .. })
            | Err(ArmError::Budget { after, .. }) => Ok(Read::Throttled(after)),
            Err(error) => Err(error),
        }
    }

    async fn list(
        &self,
        client: &Client,
        id: &ResourceId,
        listing: &Listing,
        priority: Priority,
    ) -> Result<(), ArmError> {
        let subscription = id.subscription().unwrap_or_default();
        let kind = id.resource_type();
        // A child is shown by the list of its parents.
        let parents = kind.split('/').take(2).collect::<Vec<_>>().join("/");
        let path = if parents == "Microsoft.Resources/resourceGroups" {
            format!("/subscriptions/{subscription}/resourcegroups")
        } else {
            format!("/subscriptions/{subscription}/providers/{parents}")
        };
        let asked = self.now();
        let mut shown = Vec::new();
        client
            .list_each(id, &path, &listing.api_version, priority, |item| {
                shown.extend(Shown::listed(&item));
            })
            .await?;
        self.index.lock().listed(listing, shown, asked);
        Ok(())
    }

    /// Nobody asks for the resource any more.
    pub fn forget(&self, id: &ResourceId) {
        self.index.lock().forget(id);
    }

    /// We changed the resource: reads from before no longer count.
    pub fn touch(&self, id: &ResourceId) {
        self.index.lock().touch(id, self.now());
    }
}

/// All views. An identity never sees what another one read.
#[derive(Clone, Debug, Default)]
pub struct Views(Arc<Mutex<BySubscription>>);

/// By subscription and identity.
type BySubscription = HashMap<(String, String), Arc<View>>;

impl Views {
    pub fn of(&self, subscription: &str, identity: &str) -> Arc<View> {
        let key = (subscription.to_ascii_lowercase(), identity.to_owned());
        Arc::clone(self.0.lock().entry(key).or_insert_with(|| Arc::new(View::new())))
    }

    /// Nobody looks at it any more.
    pub fn forget(&self, view: &Arc<View>) {
        self.0.lock().retain(|_, known| !Arc::ptr_eq(known, view));
    }

    pub fn count(&self) -> usize {
        self.0.lock().len()
    }
}
