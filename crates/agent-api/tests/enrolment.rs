//! Joining a fleet: tokens, lost answers, two hundred hosts at once, and a manager that is not the right one.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use slipway_agent_api::{
    Class,
    ca::{Ca, requested_key},
    enrol::{NewKey, join},
    tls::{Callers, CurrentTls},
    token::JoinToken,
};

use crate::support::{FLEET, Fleet, Host, operator};

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_hosts_join_at_once() {
    let fleet = Arc::new(Fleet::new().await);
    let mut joining = tokio::task::JoinSet::new();
    for number in 0..200 {
        let fleet = fleet.clone();
        joining.spawn(async move {
            let name = format!("box-{number}");
            let token = fleet.token(&name);
            let key = NewKey::generate().unwrap();
            let material = join(&fleet.manager, &name, &token, &key).await.unwrap();
            let certificate = material.chain[0].to_vec();
            let tls = CurrentTls::new(&material, Callers::WithCertificate).unwrap();
            let host = Host::start(&name, tls).await;
            host.client(fleet.tls(&operator())).inventory().await.unwrap();
            certificate
        });
    }
    let certificates: BTreeSet<_> = joining.join_all().await.into_iter().collect();
    assert_eq!(certificates.len(), 200);
}

#[tokio::test]
async fn a_used_token_is_refused_but_a_lost_answer_is_no_loss() {
    let fleet = Fleet::new().await;
    let token = fleet.token("box-1");
    let key = NewKey::generate().unwrap();
    join(&fleet.manager, "box-1", &token, &key).await.unwrap();
    // The answer was lost: the same key, kept on disk, asks again.
    let kept = NewKey::from_pem(&key.to_pem()).unwrap();
    join(&fleet.manager, "box-1", &token, &kept).await.unwrap();
    // Somebody else with the same token has another key.
    let said = join(&fleet.manager, "box-1", &token, &NewKey::generate().unwrap())
        .await
        .unwrap_err();
    assert_eq!(
        (said.class, said.reason.as_str()),
        (Class::Denied, "TokenRefused")
    );
    assert_eq!(said.message, "the join token was used already: make a new one");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_use_one_token_at_once_one_gets_in() {
    let fleet = Arc::new(Fleet::new().await);
    let token = fleet.token("box-1");
    let mut joining = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (fleet, token) = (fleet.clone(), token.clone());
        joining.spawn(async move {
            let key = NewKey::generate().unwrap();
            join(&fleet.manager, "box-1", &token, &key).await.is_ok()
        });
    }
    let joined = joining
        .join_all()
        .await
        .into_iter()
        .filter(|joined| *joined)
        .count();
    assert_eq!(joined, 1);
}

#[tokio::test]
async fn tokens_of_another_host_expired_or_never_made_are_refused() {
    let fleet = Fleet::new().await;
    let key = NewKey::generate().unwrap();
    let ca = fleet.ca.load().digest();
    let past = Timestamp::now() - SignedDuration::from_hours(2);
    let (expired, record) = JoinToken::issue("box-1", ca, past, SignedDuration::from_hours(1));
    fleet.tokens.add(record);
    let (unknown, _) = JoinToken::issue("box-1", ca, Timestamp::now(), SignedDuration::from_hours(1));
    for (token, expected) in [
        (fleet.token("box-2"), "is for host box-2"),
        (expired, "was valid until"),
        (unknown, "is not known here"),
    ] {
        let said = join(&fleet.manager, "box-1", &token, &key).await.unwrap_err();
        assert_eq!(said.class, Class::Denied);
        assert!(said.message.contains(expected), "{said}");
        assert!(
            !said.message.contains(token.reveal().split('.').nth(2).unwrap()),
            "the secret is in the message"
        );
    }
}

/// Who is between the host and the manager has a certificate of the right name, and not of the right CA.
#[tokio::test]
async fn a_host_joins_only_the_manager_its_token_names() {
    let (right, wrong) = (Fleet::new().await, Fleet::new().await);
    let token = right.token("box-1");
    let said = join(&wrong.manager, "box-1", &token, &NewKey::generate().unwrap())
        .await
        .unwrap_err();
    assert_eq!(said.class, Class::Denied);
    assert!(
        said.message.contains("the CA that the join token names"),
        "{said}"
    );
    // A host's certificate is of the right CA, and its owner is still not the manager.
    let impostor = Host::start("box-2", right.tls(&crate::support::host("box-2"))).await;
    let said = join(&impostor.address, "box-1", &token, &NewKey::generate().unwrap())
        .await
        .unwrap_err();
    assert_eq!(said.class, Class::Denied, "{said}");
}

#[test]
fn nothing_but_the_key_is_taken_from_a_request() {
    use slipway_agent_api::Identity;
    let pem = Ca::generate(FLEET, Timestamp::now()).unwrap();
    let ca = Ca::open(FLEET, &pem, &[], Duration::from_hours(1)).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["manager.slipway.internal".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::NoCa;
    params.subject_alt_names.push(rcgen::SanType::URI(
        "slipway://north/operator".try_into().unwrap(),
    ));
    let request = params.serialize_request(&key).unwrap();
    let identity = Identity::Host {
        fleet: FLEET.into(),
        name: "box-1".into(),
    };
    let chain = ca.sign(&identity, request.der(), Timestamp::now()).unwrap();
    assert_eq!(Identity::of_certificate(&chain[0]).unwrap(), identity);
    assert!(
        !chain[0]
            .windows(24)
            .any(|window| window == b"manager.slipway.internal"),
        "a name was taken from the request"
    );
    // Without the key's own signature a request is nobody's.
    let mut forged = request.der().to_vec();
    let last = forged.len() - 1;
    forged[last] ^= 1;
    assert!(requested_key(&forged).is_err());
}
