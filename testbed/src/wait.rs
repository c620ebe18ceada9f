//! Waiting for an object by watching it, with a hang guard that says what was there instead.

use std::{fmt::Debug, time::Duration};

use kube::{Api, Resource, runtime::wait::await_condition};
use serde::{Serialize, de::DeserializeOwned};

/// Nothing a test waits for takes this long, unless it never comes.
const DEADLINE: Duration = Duration::from_mins(10);

const AGAIN: Duration = Duration::from_millis(200);

/// Whether the API server asked to be asked again.
fn passes(error: &(dyn std::error::Error + 'static)) -> bool {
    let code = match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => status.code,
        _ => 0,
    };
    matches!(code, 429 | 503) || error.source().is_some_and(passes)
}

#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    #[error("{kind} {name} did not {what} within {} s; it is:\n{state}", deadline.as_secs())]
    Deadline {
        kind: String,
        name: String,
        what: String,
        deadline: Duration,
        state: String,
    },
    #[error("waiting for {kind} {name} to {what}: {detail}")]
    Watch {
        kind: String,
        name: String,
        what: String,
        detail: String,
    },
}

/// Waits until the object is there and `is_so`; `what` ends the sentence "the object did not …".
pub async fn until<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    is_so: impl Fn(&K) -> bool,
) -> Result<K, WaitError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    until_within(DEADLINE, api, name, what, is_so).await
}

/// [`until`], for what takes longer.
pub async fn until_within<K>(
    deadline: Duration,
    api: &Api<K>,
    name: &str,
    what: &str,
    is_so: impl Fn(&K) -> bool,
) -> Result<K, WaitError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    let so = |object: Option<&K>| object.is_some_and(&is_so);
    let found = wait(deadline, api, name, what, so).await?;
    Ok(found.expect("the condition held for an object"))
}

/// Waits until no object has this name.
pub async fn until_gone<K>(api: &Api<K>, name: &str) -> Result<(), WaitError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    until_gone_within(DEADLINE, api, name).await
}

/// [`until_gone`], for what takes longer.
pub async fn until_gone_within<K>(deadline: Duration, api: &Api<K>, name: &str) -> Result<(), WaitError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    wait(deadline, api, name, "go", |object: Option<&K>| object.is_none())
        .await
        .map(|_| ())
}

async fn wait<K>(
    deadline: Duration,
    api: &Api<K>,
    name: &str,
    what: &str,
    condition: impl Fn(Option<&K>) -> bool,
) -> Result<Option<K>, WaitError>
where
    K: Resource + Clone + Debug + Serialize + DeserializeOwned + Send + 'static,
{
    let kind = api
        .resource_url()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    let watched = async {
        loop {
            match await_condition(api.clone(), name, &condition).await {
                // A kind whose definition has just changed is not served for a moment.
                Err(error) if passes(&error) => tokio::time::sleep(AGAIN).await,
                other => return other,
            }
        }
    };
    match tokio::time::timeout(deadline, watched).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(error)) => Err(WaitError::Watch {
            kind,
            name: name.to_owned(),
            what: what.to_owned(),
            detail: error.to_string(),
        }),
        Err(_) => {
            let state = match api.get_opt(name).await {
                Ok(Some(object)) => serde_json::to_string_pretty(&object).unwrap_or_default(),
                Ok(None) => "not there".to_owned(),
                Err(error) => error.to_string(),
            };
            Err(WaitError::Deadline {
                kind,
                name: name.to_owned(),
                what: what.to_owned(),
                deadline,
                state,
            })
        }
    }
}
