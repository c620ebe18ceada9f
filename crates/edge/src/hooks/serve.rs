//! The handlers, as Cluster API finds them by Discovery. Questions are answered from the request alone; an update is answered from what
//! the apiserver has now, past every cache, so a replica that stands by answers like the one that leads.

use std::sync::Arc;

use futures::{FutureExt, future::ready};
use kube::Client;
use serde_json::Value;
use slipway_capi::hook as names;
use slipway_runtime::{
    Class, Classified,
    hook::{Hook, HookHandler},
    provider::{Gate, Stage},
};

use super::{act, can_update, observe, update, upgrade_plan};
use crate::error::Error;

/// Of `GenerateUpgradePlan`: Cluster API before v1.12 does not know the hook, and then refuses all of them.
pub const PLAN_GATE: Gate = Gate {
    name: "EdgeUpgradePlans",
    stage: Stage::Alpha,
    enabled_by_default: false,
    help: "edge: plans chained upgrades of topologies (the hook GenerateUpgradePlan)",
};

/// How long Cluster API waits for an answer.
const TIMEOUT_SECONDS: u32 = 10;
const API_VERSION: &str = "hooks.runtime.cluster.x-k8s.io/v1alpha1";

pub fn hooks() -> Vec<Hook> {
    let hook = |hook, name, handler: HookHandler| Hook {
        hook,
        name,
        api_version: API_VERSION,
        timeout_seconds: TIMEOUT_SECONDS,
        // A call that fails would be taken for an update that is finished.
        fail_open: false,
        gate: None,
        handler,
    };
    vec![
        hook(
            names::CAN_UPDATE_MACHINE,
            "can-update-machine",
            Arc::new(|request, _| ready(can_update::machine(&request)).boxed()),
        ),
        hook(
            names::CAN_UPDATE_MACHINE_SET,
            "can-update-machineset",
            Arc::new(|request, _| ready(can_update::machine_set(&request)).boxed()),
        ),
        hook(
            names::UPDATE_MACHINE,
            "update-machine",
            Arc::new(|request, client| update_machine(request, client).boxed()),
        ),
        Hook {
            gate: Some(PLAN_GATE.name),
            ..hook(
                upgrade_plan::HOOK,
                "generate-upgrade-plan",
                Arc::new(|request, client| generate_upgrade_plan(request, client).boxed()),
            )
        },
    ]
}

async fn update_machine(request: Value, client: Client) -> Value {
    let target = match update::target(&request) {
        Ok(target) => target,
        Err(answer) => return answer,
    };
    match updated(&target, &client).await {
        Ok(response) => response,
        // What passes is waited for; the words are the same each time, because they are shown in a condition.
        Err(error) => match error.class() {
            Class::Denied | Class::Terminal => update::failed(error.to_string()),
            Class::Conflict | Class::Throttled(_) | Class::Transient => {
                tracing::warn!(machine = %target.machine, %error, "Cannot tell how far an update is");
                update::going_on("the apiserver of the management cluster is waited for")
            }
        },
    }
}

async fn updated(target: &update::Target, client: &Client) -> Result<Value, Error> {
    let Some(observed) = observe::of_target(target, client).await? else {
        return Ok(update::failed(format!(
            "there is no Machine {} in namespace {}",
            target.machine, target.namespace
        )));
    };
    let answer = update::answer(target, &observed.known);
    act::ensure(&answer.ensure, &observed, client).await?;
    Ok(answer.response)
}

async fn generate_upgrade_plan(request: Value, client: Client) -> Value {
    match observe::policy_of_cluster(&request, &client).await {
        Ok(Ok(policy)) => upgrade_plan::answer(&request, &policy),
        Ok(Err(message)) => can_update::failure(message),
        Err(error) => can_update::failure(error.to_string()),
    }
}
