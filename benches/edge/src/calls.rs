//! Cluster API's half of an update in place: `UpdateMachine` for each machine, again when the answer says so, until it says that it is done.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use rustls_pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use slipway_edge::api::INFRASTRUCTURE_GROUP;
use slipway_kit::manager::Setup;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};

use super::{
    site::{NEW, Site},
    world::{self, CORE, NAME},
};

/// As many machines are in work at once as Cluster API's core has in work.
const CALLERS: usize = 10;
const PATH: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1/updatemachine/update-machine?timeout=10s";

/// The runtime extension of the manager.
pub struct Extension {
    url: String,
    client: reqwest::Client,
}

impl Extension {
    pub fn new(setup: &Setup) -> Result<Self> {
        let ca = std::fs::read(setup.folder.join("certificates/ca.crt"))?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&ca)?)?;
        let mut tls = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            url: format!("{}/{PATH}", setup.url()),
            client: reqwest::Client::builder()
                .tls_backend_preconfigured(tls)
                .build()?,
        })
    }

    /// The answer, and how long it took.
    async fn call(&self, request: &Value) -> Result<(Value, Duration)> {
        let body = request.to_string();
        let began = Instant::now();
        let answer = self
            .client
            .post(&self.url)
            .body(body)
            .send()
            .await?
            .bytes()
            .await?;
        let took = began.elapsed();
        let answer: Value = serde_json::from_slice(&answer).context("an answer in JSON")?;
        ensure!(answer["status"] == "Success", "UpdateMachine: {answer}");
        Ok((answer, took))
    }
}

fn request(number: usize, image: &Value) -> Value {
    let (name, id) = (
        format!("m-{number}"),
        format!("edge://default/box-{number}/c-{number}"),
    );
    json!({"apiVersion": "hooks.runtime.cluster.x-k8s.io/v1alpha1", "kind": "UpdateMachineRequest", "desired": {
        "machine": {"apiVersion": CORE, "kind": "Machine", "metadata": {"name": name, "namespace": "default"},
            "spec": {"clusterName": NAME, "version": NEW, "providerID": id, "bootstrap": {"dataSecretName": "bootstrap"},
                "infrastructureRef": {"apiGroup": INFRASTRUCTURE_GROUP, "kind": "EdgeMachine", "name": name}}},
        "infrastructureMachine": {"apiVersion": world::infrastructure(), "kind": "EdgeMachine",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"hostName": format!("box-{number}"), "providerID": id, "image": image}},
    }})
}

/// Ends when every machine is done; how long the answers took, in order of length.
pub async fn upgrade_all(extension: &Extension, site: &Arc<Site>, count: usize) -> Result<Vec<Duration>> {
    let (callers, took, done) = (
        Semaphore::new(CALLERS),
        Mutex::new(Vec::new()),
        Mutex::new(0_usize),
    );
    let image = site.image();
    let one = |number| {
        let request = request(number, &image);
        let (callers, took, done) = (&callers, &took, &done);
        async move {
            loop {
                let permit = callers.acquire().await?;
                let (answer, call) = extension.call(&request).await?;
                drop(permit);
                took.lock().push(call);
                let again = answer["retryAfterSeconds"].as_u64().unwrap_or(0);
                if again == 0 {
                    let done = {
                        let mut done = done.lock();
                        *done += 1;
                        *done
                    };
                    if done % 100 == 0 {
                        eprintln!("{done} machines are done");
                    }
                    return anyhow::Ok(());
                }
                sleep(Duration::from_secs(again)).await;
            }
        }
    };
    stream::iter(0..count)
        .map(one)
        .buffer_unordered(count.max(1))
        .try_collect::<()>()
        .await?;
    let mut took = took.into_inner();
    took.sort();
    Ok(took)
}
