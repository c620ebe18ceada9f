//! What the handlers of all kinds have in common.

use std::sync::Arc;

use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use slipway_capi::names::label;
use slipway_runtime::admission::{Admission, Change, Operation, Phase, Request, Verdict, field::FieldError};

use super::immutable::unless_before;

pub const CREATE_UPDATE: &[Operation] = &[Operation::Create, Operation::Update];

/// A handler that fetches facts before it decides.
pub fn validating_with<K, F>(
    operations: &[Operation],
    validate: fn(Request, Change<K>, Client) -> F,
) -> Admission
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
    F: Future<Output = Verdict> + Send + 'static,
{
    Admission::for_kind::<K>(
        Phase::Validating,
        operations.to_vec(),
        Arc::new(move |request, client| {
            Box::pin(async move {
                match Change::<K>::read(&request) {
                    Ok(change) => validate(request, change, client).await,
                    Err(message) => Verdict::Unreadable { message },
                }
            })
        }),
    )
}

/// An object on its way out is only losing its finalizers: no rule may hold it.
pub fn is_leaving<K: Resource>(new: &K) -> bool {
    new.meta().deletion_timestamp.is_some()
}

/// What is wrong with an object and was not before: nothing of an update that changes only metadata.
pub fn new_errors<K>(change: &Change<K>, errors: impl Fn(&K) -> Vec<FieldError>) -> Vec<FieldError> {
    let found = change.new.as_ref().map(&errors).unwrap_or_default();
    match &change.old {
        Some(old) if !found.is_empty() => unless_before(found, &errors(old)),
        _ => found,
    }
}

/// Namespace and name of the Cluster that an object is labelled with.
pub fn cluster_key<K: Resource<DynamicType = ()>>(object: &K) -> Option<(String, String)> {
    let name = object.labels().get(label::CLUSTER_NAME)?.clone();
    Some((object.namespace().unwrap_or_default(), name))
}
