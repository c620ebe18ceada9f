//! Nodes as Machines over inline resources, with Cluster API's core: shown, chosen by their mark, deleted one by one, and gone without
//! their VMs where they are switched off.

use anyhow::{Result, ensure};

use crate::{
    aks_world::World,
    aso_world::{CREDENTIAL, cluster, credential, managed_cluster, pool, resource_group, until_settled},
    pool_machines::inline,
};

pub async fn nodes_as_machines(world: &World) -> Result<()> {
    let name = "asonodes";
    let fleet = world.fleet(name).await?.backed()?;
    let nodes = inline(&fleet);
    let mut all = vec![credential(&fleet, CREDENTIAL)];
    all.extend(cluster(name, &[resource_group(name)], &[managed_cluster(name)]));
    all.extend(pool(name, "asonodsys", "System", 1));
    all.extend(pool(name, "asonodwork", "User", 3));
    fleet.apply(&all).await?;
    until_settled(&fleet, name, 2).await?;
    fleet.until_nodes("asonodwork", 3).await?;
    ensure!(nodes.names("asonodwork").await?.is_empty(), "off by default");
    let writes = fleet.writes();
    for pool in ["asonodsys", "asonodwork"] {
        nodes.switch(pool, Some("true")).await?;
    }
    let first = nodes.until_whole("asonodwork", 3).await?;
    nodes.until_whole("asonodsys", 1).await?;
    ensure!(
        fleet.writes() == writes,
        "a pool is shown without a write to Azure"
    );
    let pool = nodes.pools().get("asonodwork").await?;
    ensure!(
        pool.data["status"]["capacity"]["cpu"] == "2",
        "{}",
        pool.data["status"]
    );
    nodes.mark(&first[1]).await?;
    fleet.scale("asonodwork", 2).await?;
    nodes.until_goes(&first[1]).await?;
    let second = nodes.until_whole("asonodwork", 2).await?;
    ensure!(
        second.contains(&first[0]) && second.contains(&first[2]) && nodes.deleted() == 1,
        "{second:?}"
    );
    nodes.delete(&first[0]).await?;
    nodes.until_goes(&first[0]).await?;
    let third = nodes.until_whole("asonodwork", 2).await?;
    ensure!(third.contains(&first[2]) && nodes.deleted() == 2, "{third:?}");
    nodes.until_off("asonodwork").await?;
    fleet.delete().await
}
