//! Writes that note themselves, so that the next reconcile of the same object sees them.

use kube::{
    Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::Request,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Context, status::status_of};

/// What a typed object must be to be written.
pub trait Writable:
    Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug
{
}

impl<K> Writable for K where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + std::fmt::Debug
{
}

impl Context {
    /// Server-side apply: the object becomes as given in the given fields, which belong to this manager from here
    /// on, and those it no longer gives are dropped.
    pub async fn apply<K: Writable>(&self, field_manager: &str, object: &K) -> Result<K, kube::Error> {
        let mut body = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
        add_types::<K>(&mut body, &());
        let parameters = PatchParams::apply(field_manager).force();
        let request = request::<K>(&(), object.namespace().as_deref())
            .patch(&object.name_any(), &parameters, &Patch::Apply(&body))
            .map_err(kube::Error::BuildRequest)?;
        let written: K = self.client.request(request).await?;
        self.writes
            .saw_dynamic(&written, &(), object.meta().resource_version.as_deref());
        Ok(written)
    }

    pub async fn create<K: Writable>(&self, object: &K) -> Result<K, kube::Error> {
        let mut body = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
        add_types::<K>(&mut body, &());
        let body = serde_json::to_vec(&body).map_err(kube::Error::SerdeError)?;
        let request = request::<K>(&(), object.namespace().as_deref())
            .create(&PostParams::default(), body)
            .map_err(kube::Error::BuildRequest)?;
        let written: K = self.client.request(request).await?;
        self.writes.saw(&written);
        Ok(written)
    }

    /// A merge patch of the object itself, e.g. its finalizers.
    pub async fn patch<K: Writable>(&self, object: &K, patch: &Value) -> Result<K, kube::Error> {
        self.patch_dynamic(object, &(), patch).await
    }

    /// A JSON patch of the object itself. Its `test` operations make it fail if the object is not as it was thought.
    pub async fn patch_json<K: Writable>(
        &self,
        object: &K,
        patch: &json_patch::Patch,
    ) -> Result<K, kube::Error> {
        let request = request::<K>(&(), object.meta().namespace.as_deref())
            .patch(
                &object.name_any(),
                &PatchParams::default(),
                &Patch::<()>::Json(patch.clone()),
            )
            .map_err(kube::Error::BuildRequest)?;
        let written: K = self.client.request(request).await?;
        self.writes
            .saw_dynamic(&written, &(), object.meta().resource_version.as_deref());
        Ok(written)
    }

    /// A merge patch of a kind learnt at run time.
    pub async fn patch_dynamic<K>(
        &self,
        object: &K,
        dynamic: &K::DynamicType,
        patch: &Value,
    ) -> Result<K, kube::Error>
    where
        K: Resource + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let request = request::<K>(dynamic, object.meta().namespace.as_deref())
            .patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))
            .map_err(kube::Error::BuildRequest)?;
        let written: K = self.client.request(request).await?;
        self.writes
            .saw_dynamic(&written, dynamic, object.meta().resource_version.as_deref());
        Ok(written)
    }

    /// Makes the status what is given, with a merge patch of what differs. Writes nothing if nothing does.
    pub async fn patch_status<K: Writable>(
        &self,
        object: &K,
        status: &impl Serialize,
    ) -> Result<Option<K>, kube::Error> {
        let current = status_of(object).map_err(kube::Error::SerdeError)?;
        let desired = serde_json::to_value(status).map_err(kube::Error::SerdeError)?;
        let Some(difference) = merge_patch(&current, &desired) else {
            return Ok(None);
        };
        let patch = json!({ "status": difference });
        let request = request::<K>(&(), object.namespace().as_deref())
            .patch_subresource(
                "status",
                &object.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&patch),
            )
            .map_err(kube::Error::BuildRequest)?;
        let written: K = self.client.request(request).await?;
        self.writes
            .saw_dynamic(&written, &(), object.meta().resource_version.as_deref());
        Ok(Some(written))
    }

    /// Deletes this very object (not one that has since taken its name). Already gone is fine.
    pub async fn delete<K: Writable>(&self, object: &K) -> Result<(), kube::Error> {
        self.delete_dynamic(object, &()).await
    }

    pub async fn delete_dynamic<K>(&self, object: &K, dynamic: &K::DynamicType) -> Result<(), kube::Error>
    where
        K: Resource + DeserializeOwned + Clone + std::fmt::Debug,
    {
        let parameters = DeleteParams {
            preconditions: object.uid().map(|uid| Preconditions {
                uid: Some(uid),
                resource_version: None,
            }),
            ..DeleteParams::background()
        };
        let request = request::<K>(dynamic, object.meta().namespace.as_deref())
            .delete(&object.name_any(), &parameters)
            .map_err(kube::Error::BuildRequest)?;
        match self.client.request_status::<K>(request).await {
            Ok(either) => {
                match either.left() {
                    Some(deleting) => {
                        self.writes.saw_dynamic(
                            &deleting,
                            dynamic,
                            object.meta().resource_version.as_deref(),
                        );
                    }
                    None => self.writes.saw_gone(object, dynamic),
                }
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => {
                self.writes.saw_gone(object, dynamic);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn request<K: Resource>(dynamic: &K::DynamicType, namespace: Option<&str>) -> Request {
    Request::new(K::url_path(dynamic, namespace))
}

/// Types derived by kube write these themselves; narrow views and built-in types may not.
fn add_types<K: Resource>(body: &mut Value, dynamic: &K::DynamicType) {
    if let Some(body) = body.as_object_mut() {
        body.entry("apiVersion")
            .or_insert_with(|| K::api_version(dynamic).into());
        body.entry("kind").or_insert_with(|| K::kind(dynamic).into());
    }
}

/// The JSON merge patch that makes `current` what is `desired`; nothing if it is already.
fn merge_patch(current: &Value, desired: &Value) -> Option<Value> {
    let (Value::Object(current_fields), Value::Object(desired_fields)) = (current, desired) else {
        return (current != desired).then(|| without_nulls(desired));
    };
    let mut patch = serde_json::Map::new();
    for (name, desired) in desired_fields {
        match current_fields.get(name) {
            None if desired.is_null() => {}
            None => {
                patch.insert(name.clone(), without_nulls(desired));
            }
            Some(current) => {
                if let Some(difference) = merge_patch(current, desired) {
                    patch.insert(name.clone(), difference);
                }
            }
        }
    }
    for name in current_fields.keys() {
        if !desired_fields.contains_key(name) {
            patch.insert(name.clone(), Value::Null);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// A null in a merge patch removes; in a value that is set it means the same as leaving the field out.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name.clone(), without_nulls(value)))
                .collect(),
        ),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_differs_is_patched() {
        let current =
            json!({"ready": false, "replicas": 3, "old": 1, "nested": {"a": 1, "b": 2}, "list": [1]});
        let desired = json!({"ready": true, "replicas": 3, "nested": {"a": 1, "b": null}, "list": [1, 2]});
        assert_eq!(
            merge_patch(&current, &desired),
            Some(json!({"ready": true, "old": null, "nested": {"b": null}, "list": [1, 2]}))
        );
        assert_eq!(merge_patch(&current, &current), None);
        assert_eq!(
            merge_patch(&Value::Null, &json!({"ready": true, "x": null})),
            Some(json!({"ready": true}))
        );
    }

    fn documents() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0..3).prop_map(Value::from)];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::btree_map("[a-c]", inner.clone(), 0..3)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
                prop::collection::vec(inner, 0..2).prop_map(Value::Array),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_patch_leads_from_one_to_the_other(
            mut current in documents().prop_filter("objects", Value::is_object),
            desired in documents().prop_filter("objects", Value::is_object),
        ) {
            match merge_patch(&current, &desired) {
                None => prop_assert_eq!(current, desired),
                Some(patch) => {
                    json_patch::merge(&mut current, &patch);
                    prop_assert_eq!(current, desired);
                }
            }
        }
    }
}
