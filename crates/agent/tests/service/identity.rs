//! How a host gets its identity and keeps it: joins that are cut off, certificates that are renewed under load, and ones that
//! ended.

use std::{fs, sync::Arc, time::Duration};

use slipway_agent::{engine::Unhindered, enrol};
use slipway_agent_api::{
    enrol::{NewKey, join},
    tls::Validity,
};
use slipway_hosts_sim::{Fleet, NodeImage, Options, SimulatedHost};

use super::fleet;

async fn short_lived(lifetime: Duration) -> (Arc<Fleet>, Arc<SimulatedHost>) {
    let fleet = Arc::new(Fleet::start(lifetime).await.unwrap());
    let options = Options::new(Arc::new(NodeImage::build("1.0.0", 1).unwrap()));
    let host = fleet.add("box-1", options).await.unwrap();
    (fleet, host)
}

fn valid(host: &SimulatedHost) -> Validity {
    let material = enrol::read(&host.state()).unwrap().unwrap();
    Validity::of(&material.chain[0]).unwrap()
}

/// The agent ends at every step of a join; the token is good until the host has its certificate, and for nobody else.
#[tokio::test]
async fn a_join_that_is_cut_off_at_any_step_is_finished_with_the_same_token() {
    let (fleet, options) = fleet().await;
    for step in [
        "nothing",
        "the key is written",
        "the answer is lost",
        "the identity is written",
    ] {
        let name = step.replace(' ', "-");
        let host = SimulatedHost::install(
            fleet.folder(),
            &name,
            slipway_hosts_sim::FLEET,
            &fleet.manager,
            options.clone(),
        )
        .unwrap();
        let token = fleet.token(&name);
        let key = NewKey::generate().unwrap();
        if step != "nothing" {
            fs::create_dir_all(host.state()).unwrap();
            fs::write(host.state().join("joining.pem"), key.to_pem()).unwrap();
        }
        if ["the answer is lost", "the identity is written"].contains(&step) {
            let material = join(&fleet.manager, &name, &token, &key).await.unwrap();
            if step == "the identity is written" {
                enrol::write(&host.state(), &material, &Unhindered).unwrap();
            }
        }
        host.join(&token)
            .await
            .unwrap_or_else(|problem| panic!("{step}: {problem}"));
        assert!(!host.state().join("joining.pem").exists(), "{step}");
        host.start().await.unwrap();
        assert_eq!(fleet.client(&host).inventory().await.unwrap().name, name);
        // Whoever finds the token now has nothing of it.
        let thief = NewKey::generate().unwrap();
        let said = join(&fleet.manager, &name, &token, &thief).await.unwrap_err();
        assert!(said.message.contains("was used already"), "{said}");
        host.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_while_orders_come_in_and_no_call_fails() {
    let (fleet, host) = short_lived(Duration::from_secs(12)).await;
    let client = fleet.client(&host);
    let first = valid(&host);
    let mut calls = 0;
    while valid(&host).until == first.until {
        super::succeeded(&client, &format!("op-{calls}"), super::command(&["true"])).await;
        // New connections too: they see whichever certificate is served now.
        fleet.client(&host).inventory().await.unwrap();
        calls += 1;
    }
    fleet.client(&host).inventory().await.unwrap();
    assert!(calls > 0);
}

/// A host that was switched off for too long is reached by nobody, says so, and is back after a new join.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_whose_certificate_ended_is_back_after_a_new_join() {
    let (fleet, host) = short_lived(Duration::from_secs(3)).await;
    host.stop().await;
    // Certificates are good to the end of their last second.
    let over = valid(&host).until + jiff::SignedDuration::from_secs(1);
    while jiff::Timestamp::now() <= over {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    host.start().await.unwrap();
    let said = fleet.client(&host).inventory().await.unwrap_err();
    assert_eq!(said.reason, "Unreachable", "{said}");
    host.stop().await;
    fleet.set_lifetime(Duration::from_hours(1)).unwrap();
    host.join(&fleet.token("box-1")).await.unwrap();
    host.start().await.unwrap();
    assert_eq!(fleet.client(&host).inventory().await.unwrap().name, "box-1");
}
