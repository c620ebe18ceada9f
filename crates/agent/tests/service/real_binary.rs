//! `slipway-agent serve` as a process: joined with a token, held by the same suite, and killed again and again.

use std::{path::Path, time::Duration};

use slipway_agent_api::proto::{self, OperationState, start_request::Verb};
use slipway_hosts_sim::{AgentProcess, Fleet, NodeImage, Options};

use super::suite::{Target, hold, reader, real_addresses};
use super::{ended, fleet, import, order};

fn join(fleet: &Fleet, options: &Options) -> AgentProcess {
    AgentProcess::join(
        Path::new(env!("CARGO_BIN_EXE_slipway-agent")),
        fleet,
        "box-real",
        &options.installed,
        "cache: {quotaMebibytes: 64, marginMebibytes: 0}",
    )
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_binary_holds_the_suite() {
    let (fleet, options) = fleet().await;
    let agent = join(&fleet, &options);
    let target = Target {
        operator: agent.operator(&fleet).unwrap(),
        reader: Some(agent.client(&fleet, &reader()).unwrap()),
        exchange: agent.exchange(),
        state: agent.state(),
    };
    hold(&target).await;
    real_addresses(&target.operator).await;
    // The token was for one use.
    let said = agent.enrol().unwrap_err().to_string();
    assert!(said.contains("was used already"), "{said}");
}

/// kill -9 at times that differ; each order comes to its end, and none is done twice over.
#[tokio::test(flavor = "multi_thread")]
async fn the_real_binary_is_killed_while_it_works_and_finishes() {
    let (fleet, options) = fleet().await;
    let mut agent = join(&fleet, &options);
    let image = NodeImage::build("2.0.0", 2).unwrap();
    image.write_layout(&agent.exchange().join("two")).unwrap();
    let rounds = if crate::power::full() { 60 } else { 12 };
    let mut cut_off = 0;
    for round in 0..rounds {
        let id = format!("import-{round}");
        let client = agent.operator(&fleet).unwrap();
        client
            .start(order("box-real", &id, 1, import("two")))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(round % 6)).await;
        agent.kill();
        agent.start().unwrap();
        let client = agent.operator(&fleet).unwrap();
        let done = ended(&client, &id).await.unwrap();
        assert_eq!(done.state(), OperationState::Succeeded, "{}", done.message);
        cut_off += usize::from(done.sequence >= 1 << 32);
        let images = client.images().await.unwrap();
        assert_eq!(images.images.len(), 1);
        assert_eq!(images.r#use.unwrap().reserved_bytes, 0);
        let verb = Verb::Evict(proto::Evict {
            digest: image.digest.to_string(),
        });
        super::succeeded(&client, &format!("evict-{round}"), verb).await;
    }
    println!(
        "report: of {rounds} imports of the real agent {cut_off} were cut off by SIGKILL, and all ended well"
    );
}
