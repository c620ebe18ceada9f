//! Our side of the race: each Buoy gets one ConfigMap by server-side apply and a status by merge patch. Nothing is
//! written that the cache shows to be there already.

use std::{collections::BTreeMap, process::ExitCode, sync::Arc};

use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::{CustomResourceExt, Resource, ResourceExt, api::ObjectMeta};
use slipway_bench_runtime::{Buoy, BuoyStatus};
use slipway_runtime::{
    Context, Controller, Informer, Manager, Next, ObjectKey, Package, PackageKind, Provider, Reconciler,
    Scope,
    manager::{command, normalize, switch},
};

struct Buoys;

impl Reconciler for Buoys {
    type Object = Buoy;
    type Error = kube::Error;

    async fn reconcile(&self, buoy: Arc<Buoy>, context: &Context) -> Result<Next, kube::Error> {
        let scope = Scope::of_namespace(&context.settings);
        let maps: Informer<ConfigMap> = context.informers.get(scope);
        let data = BTreeMap::from([
            ("text".to_owned(), buoy.spec.text.clone()),
            ("revision".to_owned(), buoy.spec.revision.to_string()),
        ]);
        let child = maps.get(&ObjectKey::of(buoy.as_ref()));
        let is_there =
            child.is_some_and(|child| child.data.as_ref() == Some(&data) && is_controlled_by(&child, &buoy));
        if !is_there {
            context.apply("race", &desired(&buoy, data)).await?;
        }
        context
            .patch_status(buoy.as_ref(), &status(&buoy, context))
            .await?;
        Ok(Next::OnChange)
    }
}

fn is_controlled_by(child: &ConfigMap, buoy: &Buoy) -> bool {
    let mut owners = child.owner_references().iter();
    owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == buoy.meta().uid.as_ref())
}

fn desired(buoy: &Buoy, data: BTreeMap<String, String>) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: buoy.metadata.name.clone(),
            namespace: buoy.metadata.namespace.clone(),
            owner_references: buoy.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    }
}

fn status(buoy: &Buoy, context: &Context) -> BuoyStatus {
    let conditions = buoy.status.as_ref().map(|status| status.conditions.as_slice());
    let ready = conditions
        .unwrap_or_default()
        .iter()
        .find(|one| one.type_ == "Ready");
    let since = ready.filter(|ready| ready.status == "True");
    BuoyStatus {
        observed_generation: buoy.metadata.generation,
        config_map: buoy.metadata.name.clone(),
        conditions: vec![Condition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            reason: "Applied".to_owned(),
            message: "the ConfigMap is as desired".to_owned(),
            observed_generation: buoy.metadata.generation,
            last_transition_time: since.map_or_else(
                || Time(context.clock.now()),
                |ready| ready.last_transition_time.clone(),
            ),
        }],
    }
}

fn provider(compressed: bool) -> Provider {
    let mut controller = Controller::new("buoy", Buoys).owns::<ConfigMap>();
    if compressed {
        controller = controller.keeps_as_text::<Buoy>().keeps_as_text::<ConfigMap>();
    }
    let mut package = Package::new(PackageKind::HelmOnly, "race");
    package.crds = vec![Buoy::crd()];
    package.controllers = vec![controller.into_registration()];
    let mut provider = Provider::new("race");
    provider.packages = vec![package];
    provider.flags = vec![switch(COMPRESSED, "Keep the caches as text")];
    provider
}

const COMPRESSED: &str = "compressed";

fn main() -> ExitCode {
    // What is watched is decided before the flags are read.
    let compressed = std::env::args().any(|argument| argument == "--compressed");
    let providers = vec![provider(compressed)];
    let matches = command(&providers).get_matches_from(normalize(std::env::args_os()));
    let run = || -> Result<(), String> {
        let manager = Manager::from_matches(providers, &matches).map_err(|error| error.to_string())?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        runtime
            .block_on(manager.run_until_signalled())
            .map_err(|error| error.to_string())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}
