//! Who a KThreesConfig belongs to: a machine, or a pool of them.

use slipway_capi::{
    owner,
    view::{Machine, MachinePool},
};
use slipway_runtime::{ObjectKey, controller::Context};

use crate::{api::KThreesConfig, error::Error, reads};

/// Who a config belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    pub name: String,
    pub cluster: String,
    pub version: String,
    pub is_server: bool,
    pub data_secret_name: Option<String>,
}

impl Owner {
    fn machine(machine: &Machine) -> Self {
        Self {
            name: machine.metadata.name.clone().unwrap_or_default(),
            cluster: machine.spec.cluster_name.clone(),
            version: machine.spec.version.clone(),
            is_server: machine.is_control_plane(),
            data_secret_name: machine.spec.bootstrap.data_secret_name.clone(),
        }
    }

    /// A pool keeps its machines' version and data in its template.
    fn pool(pool: &MachinePool) -> Self {
        Self {
            name: pool.metadata.name.clone().unwrap_or_default(),
            cluster: pool.spec.cluster_name.clone(),
            version: pool.spec.template.spec.version.clone(),
            is_server: false,
            data_secret_name: pool.spec.template.spec.bootstrap.data_secret_name.clone(),
        }
    }
}

/// None where it has no owner yet.
pub(super) async fn find_owner(config: &KThreesConfig, context: &Context) -> Result<Option<Owner>, Error> {
    if let Some(name) = owner::owner_machine_name(&config.metadata) {
        let key = ObjectKey::of(config).sibling(name);
        let machine = reads::machine(&key, context).await?;
        return Ok(machine.map(|machine| Owner::machine(&machine)));
    }
    let pool = owner::get_machine_pool(&context.client, &config.metadata).await?;
    Ok(pool.map(|pool| Owner::pool(&pool)))
}
