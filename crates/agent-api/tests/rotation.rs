//! Certificates change while calls go on: of a host, and of the CA itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use slipway_agent_api::{
    ca::Ca,
    client::{Direct, HostClient},
    enrol::{NewKey, renew},
    tls::Callers,
};
use tokio::sync::watch;

use crate::support::{FLEET, Fleet, Host, Running, host, operator};

/// Calls as fast as it can, each over a connection of its own; every failure is counted.
fn load(host: &Host, fleet: &Fleet) -> (watch::Receiver<usize>, Arc<AtomicUsize>, Running) {
    let (calls, counted) = watch::channel(0);
    let failures = Arc::new(AtomicUsize::new(0));
    let failed = failures.clone();
    let (address, name, tls) = (host.address.clone(), host.name.clone(), fleet.tls(&operator()));
    let task = tokio::spawn(async move {
        loop {
            let way = Direct {
                address: address.clone(),
                tls: tls.clone(),
            };
            if let Err(problem) = HostClient::new(&name, Arc::new(way)).inventory().await {
                eprintln!("{problem}");
                failed.fetch_add(1, Ordering::Relaxed);
            }
            calls.send_modify(|calls| *calls += 1);
        }
    });
    (counted, failures, Running(task))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_under_load_without_a_failed_call() {
    let fleet = Fleet::new().await;
    let box_1 = fleet.host("box-1").await;
    let (mut calls, failures, task) = load(&box_1, &fleet);
    let mut seen = Vec::new();
    for _ in 0..20 {
        let key = NewKey::generate().unwrap();
        let material = renew(&fleet.manager, "box-1", &box_1.tls, &key).await.unwrap();
        assert!(!seen.contains(&material.chain[0]), "the certificate is a new one");
        seen.push(material.chain[0].clone());
        box_1.tls.replace(&material).unwrap();
        let before = *calls.borrow();
        calls.wait_for(|calls| *calls >= before + 2).await.unwrap();
    }
    drop(task);
    assert_eq!(failures.load(Ordering::Relaxed), 0);
    assert!(*calls.borrow() >= 40);
}

/// Both CAs are believed while one takes the other's place; then the old one no longer is.
#[tokio::test]
async fn the_ca_is_replaced_without_a_gap() {
    let fleet = Fleet::new().await;
    let box_1 = fleet.host("box-1").await;
    let next = Ca::generate(FLEET, Timestamp::now()).unwrap();
    let day = Duration::from_hours(24);
    let open = |also: &[String]| Ca::open(FLEET, &next, also, day).unwrap();
    let call = async || box_1.client(fleet.tls(&operator())).inventory().await;

    // Everybody learns of the new one while the old one still signs.
    let both = Ca::open(FLEET, &fleet.pem, std::slice::from_ref(&next.certificate), day).unwrap();
    fleet.ca.store(Arc::new(both));
    let key = NewKey::generate().unwrap();
    let material = renew(&fleet.manager, "box-1", &box_1.tls, &key).await.unwrap();
    assert_eq!(material.ca_certificates.len(), 2);
    box_1.tls.replace(&material).unwrap();
    fleet.manager_tls.replace(&fleet.issue(&operator())).unwrap();
    call().await.unwrap();

    // The new one signs, the old one is still believed.
    fleet
        .ca
        .store(Arc::new(open(std::slice::from_ref(&fleet.pem.certificate))));
    call().await.unwrap();
    fleet.manager_tls.replace(&fleet.issue(&operator())).unwrap();
    let material = renew(&fleet.manager, "box-1", &box_1.tls, &key).await.unwrap();
    let old_host = box_1.tls.get();
    box_1.tls.replace(&material).unwrap();
    call().await.unwrap();

    // The old one is gone.
    fleet.ca.store(Arc::new(open(&[])));
    fleet.manager_tls.replace(&fleet.issue(&operator())).unwrap();
    call().await.unwrap();
    let old = slipway_agent_api::tls::CurrentTls::new(&fleet.issue(&host("box-1")), Callers::WithCertificate)
        .unwrap();
    renew(&fleet.manager, "box-1", &old, &key).await.unwrap();
    let stream =
        slipway_agent_api::channel::Channel::to_manager(&fleet.manager, old_host.client.clone()).await;
    let refused = match stream {
        Err(_) => true,
        Ok(channel) => {
            let origin = channel.origin();
            slipway_agent_api::proto::enrolment_client::EnrolmentClient::with_origin(channel, origin)
                .renew(slipway_agent_api::proto::RenewRequest {
                    certificate_request: key.request().to_vec(),
                })
                .await
                .is_err()
        }
    };
    assert!(refused, "a certificate of the CA that is gone was accepted");
}

#[test]
fn a_certificate_is_renewed_in_the_last_third_of_its_life_whatever_the_clock_did() {
    use slipway_agent_api::tls::Validity;
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let valid = Validity {
        from: at("2026-01-01T00:00:00Z"),
        until: at("2026-01-31T00:00:00Z"),
    };
    assert_eq!(valid.renew_at(), at("2026-01-21T00:00:00Z"));
    // A clock that jumped past the end leaves no time, and one that jumped back leaves more; neither panics.
    assert_eq!(valid.left(at("2027-01-01T00:00:00Z")), Duration::ZERO);
    assert!(valid.left(at("2020-01-01T00:00:00Z")) > Duration::from_hours(24 * 365));
}
