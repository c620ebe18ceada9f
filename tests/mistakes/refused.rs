//! Manifests that the apiserver refuses, by its schemas or by our webhooks: nothing is stored, so the way back is to apply a
//! right one, which each row does.

use kube::api::PostParams;
use serde_json::{Value, json};
use slipway_apiserver_sim::Apiserver;
use slipway_kit::{mistakes::Mistake, objects::api_of};

/// A manifest that is refused, and one that is not.
pub struct Refused {
    pub what: &'static str,
    pub kind: &'static str,
    /// Merged over the right manifest's base.
    pub wrong: Value,
    pub right: Value,
    pub undo: &'static str,
}

impl Refused {
    /// Applies both, and answers with the row.
    pub async fn see(&self, server: &Apiserver, area: &'static str, base: &Value) -> Result<Mistake, String> {
        let wrong = merged(base, &self.wrong);
        let Err(error) = create(server, &wrong).await else {
            return Err(format!("{}: it was accepted: {wrong}", self.what));
        };
        let right = merged(base, &self.right);
        create(server, &right)
            .await
            .map_err(|error| format!("{}: the right one is refused: {error}", self.what))?;
        Ok(Mistake {
            area,
            what: self.what.to_owned(),
            sees: reason(&error),
            why: None,
            undo: self.undo.to_owned(),
        })
    }
}

/// All rows of some tables, or what is wrong with any of them.
pub async fn see_all(
    server: &Apiserver,
    tables: Vec<(&'static str, Vec<Refused>)>,
    base: impl Fn(&str) -> Value,
) -> Vec<Mistake> {
    let (mut seen, mut wrong) = (Vec::new(), Vec::new());
    for (area, rows) in tables {
        for row in rows {
            // What one row leaves is not in the way of the next.
            let mut base = base(row.kind);
            base["metadata"]["name"] = json!(format!("row-{}", seen.len() + wrong.len()));
            match row.see(server, area, &base).await {
                Ok(mistake) => seen.push(mistake),
                Err(message) => wrong.push(message),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    seen
}

pub fn merged(base: &Value, patch: &Value) -> Value {
    let mut object = base.clone();
    json_patch::merge(&mut object, patch);
    object
}

async fn create(server: &Apiserver, manifest: &Value) -> Result<(), kube::Error> {
    let object = serde_json::from_value(manifest.clone()).expect("an object");
    api_of(server, manifest)
        .create(&PostParams::default(), &object)
        .await
        .map(|_| ())
}

/// The apiserver's own words, without the name of the object, which the reader knows.
pub fn reason(error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else {
        panic!("the apiserver did not answer: {error}")
    };
    let message = &status.message;
    match message.split_once(" is invalid: ") {
        Some((_, reason)) => reason.to_owned(),
        None => message.clone(),
    }
}

/// A patch of `spec`.
pub fn spec(spec: &Value) -> Value {
    json!({"spec": spec})
}
