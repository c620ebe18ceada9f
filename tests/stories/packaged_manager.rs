//! The manager that ships, as `cargo xtask package binaries` built it, with every provider it has: it starts on a cluster
//! with Cluster API's core, becomes ready, and is small when there is nothing to do. Release builds take minutes, so it is
//! run only where a program is named.

use std::{env, path::PathBuf, time::Duration};

use anyhow::Result;
use slipway_kit::manager::{Setup, measure};
use slipway_testbed::ManagementCluster;

/// In MB.
const LARGEST_AT_REST: f64 = 30.0;
/// Long enough for the first lists and for what follows from them.
const REST: Duration = Duration::from_secs(20);

#[tokio::test]
async fn packaged_manager_is_small_at_rest() -> Result<()> {
    let Some(program) = env::var_os("SLIPWAY_PROGRAM").map(PathBuf::from) else {
        println!("report: no packaged manager was run; docs/guides/release.md says how");
        return Ok(());
    };
    let cluster = ManagementCluster::builder()
        .name("packaged")
        .cluster_api()
        .start()
        .await?;
    let folder = tempfile::tempdir()?;
    let setup = Setup::new(
        &cluster,
        &program,
        folder.path(),
        "slipway",
        Some("system:masters"),
    )?;
    setup.install(&cluster).await?;
    let manager = setup.start("manager").await?;
    // What is measured is a manager that has been left alone.
    tokio::time::sleep(REST).await;
    let memory = measure::memory(manager.id())?;
    println!(
        "report: the packaged manager at rest: {:.1} MB resident ({:.1} MB of it the program), {:.1} MB at most",
        memory.now, memory.file, memory.peak
    );
    assert!(memory.now < LARGEST_AT_REST, "{} MB", memory.now);
    manager.kill();
    cluster.stop();
    Ok(())
}
