//! Whatever bytes arrive, there is an answer: every message decodes or is refused, every order is checked, and no secret
//! is ever printed.

use proptest::prelude::*;
use prost::Message;
use slipway_agent_api::{
    order::{Order, nature},
    proto::{self, StartRequest, start_request::Verb},
};

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// One good order of every verb.
fn verbs() -> Vec<Verb> {
    let (digest, id) = (DIGEST.to_owned(), "up-1".to_owned());
    let variable = |name: &str, value: &str| proto::EnvironmentVariable {
        name: name.into(),
        value: value.into(),
    };
    vec![
        Verb::Ensure(proto::Ensure {
            image: Some(proto::ImageReference {
                reference: "registry.example/app:1".into(),
                digest: digest.clone(),
                ..Default::default()
            }),
            credentials: Some(proto::RegistryCredentials {
                username: "user".into(),
                password: "canary-registry".into(),
            }),
            ..Default::default()
        }),
        Verb::Pin(proto::Pin {
            digest: digest.clone(),
            owner: "HostImage/default/app".into(),
            ttl_seconds: 0,
        }),
        Verb::Unpin(proto::Unpin {
            digest: digest.clone(),
            owner: "HostImage/default/app".into(),
        }),
        Verb::Evict(proto::Evict {
            digest: digest.clone(),
        }),
        Verb::Export(proto::Export {
            digests: vec![digest.clone()],
            name: "bundle.tar".into(),
        }),
        Verb::Import(proto::Import {
            name: "bundle.tar".into(),
            digests: vec![],
        }),
        Verb::Prepare(proto::Prepare {
            upgrade: id.clone(),
            digest,
            reference: "registry.example/os:1".into(),
            credentials: Some(proto::RegistryCredentials {
                username: "user".into(),
                password: "canary-registry".into(),
            }),
            peers: vec![proto::PeerHost {
                host: "box-2".into(),
                address: "192.0.2.2:7443".into(),
            }],
        }),
        Verb::Arm(proto::Arm {
            upgrade: id.clone(),
            tries: 3,
        }),
        Verb::Confirm(proto::Confirm { upgrade: id }),
        Verb::Rollback(proto::Rollback {
            reason: "a person asked for it".into(),
        }),
        Verb::RunCommand(proto::RunCommand {
            argv: vec!["true".into()],
            environment: vec![variable("TOKEN", "canary-environment")],
            ..Default::default()
        }),
        Verb::RunBootstrap(proto::RunBootstrap {
            data: b"#cloud-config\n# canary-bootstrap".to_vec(),
            time_limit_seconds: 60,
            ..Default::default()
        }),
        Verb::KubernetesStep(proto::KubernetesStep {
            step: Some(proto::kubernetes_step::Step::KubeadmUpgrade(
                proto::KubeadmUpgrade {
                    apply_version: "v1.36.2".into(),
                },
            )),
        }),
        Verb::Wipe(proto::Wipe {
            confirm_host: "box-1".into(),
        }),
        Verb::HoldAddress(proto::HoldAddress {
            address: "192.0.2.10/24".into(),
            interface: "eth0".into(),
            lease: None,
        }),
        Verb::ReleaseAddress(proto::ReleaseAddress {
            address: "2001:db8::1/64".into(),
            interface: "eth0".into(),
        }),
        Verb::Reboot(proto::Reboot::default()),
        Verb::GiveUp(proto::GiveUp {
            upgrade: "up-1".into(),
        }),
    ]
}

fn request(verb: Verb) -> StartRequest {
    StartRequest {
        operation_id: "op-1".into(),
        generation: 1,
        host: "box-1".into(),
        verb: Some(verb),
    }
}

#[test]
fn every_verb_has_an_order_that_is_accepted() {
    let mut names = Vec::new();
    for verb in verbs() {
        names.push(nature(&verb).name);
        Order::check(request(verb)).unwrap();
    }
    names.sort_unstable();
    names.dedup();
    // The protocol's list, so that a new verb cannot be forgotten here.
    let text = include_str!("../proto/agent.proto");
    let block = text
        .split("oneof verb {")
        .nth(1)
        .unwrap()
        .split('}')
        .next()
        .unwrap();
    let mut in_protocol: Vec<_> = block
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    in_protocol.sort_unstable();
    assert_eq!(names, in_protocol);
}

#[test]
fn an_order_is_the_same_for_every_leader_and_another_when_its_contents_differ() {
    let base = request(verbs().remove(0));
    let digest = |request: StartRequest| Order::check(request).unwrap().digest;
    let mut later = base.clone();
    later.generation = 7;
    assert_eq!(digest(base.clone()), digest(later));
    let changed = |change: fn(&mut proto::Ensure)| {
        let mut request = base.clone();
        if let Some(Verb::Ensure(ensure)) = &mut request.verb {
            change(ensure);
        }
        digest(request)
    };
    // New credentials and other neighbours make no other order.
    assert_eq!(
        changed(|ensure| ensure.credentials.as_mut().unwrap().password = "rotated".into()),
        digest(base.clone())
    );
    assert_eq!(
        changed(|ensure| ensure.peers.push(proto::PeerHost {
            host: "box-2".into(),
            address: "192.0.2.2:7443".into()
        })),
        digest(base.clone())
    );
    assert_ne!(
        changed(|ensure| ensure.pin_owner = "somebody".into()),
        digest(base.clone())
    );
    assert_ne!(changed(|ensure| ensure.verify = true), digest(base));
    // So it is with what else is had from registries and hosts.
    let prepare = |change: fn(&mut proto::Prepare)| {
        let mut verb = verbs().remove(6);
        if let Verb::Prepare(prepare) = &mut verb {
            change(prepare);
        }
        digest(request(verb))
    };
    let same = prepare(|_| {});
    assert_eq!(prepare(|prepare| prepare.credentials = None), same);
    assert_eq!(prepare(|prepare| prepare.peers.clear()), same);
    assert_ne!(
        prepare(|prepare| prepare.reference = "elsewhere.example/os:1".into()),
        same
    );
}

#[test]
fn what_would_do_harm_is_refused() {
    let refused = |verb: Verb, word: &str| {
        let said = Order::check(request(verb)).unwrap_err();
        assert!(said.message.contains(word), "{said}");
    };
    for name in ["../etc/passwd", "/etc/passwd", ".hidden", "", "a/b", "a\0b"] {
        refused(
            Verb::Import(proto::Import {
                name: name.into(),
                digests: vec![],
            }),
            "import.name",
        );
    }
    for interface in ["-batch", "eth0 up", "", "a-name-that-is-too-long"] {
        refused(
            Verb::HoldAddress(proto::HoldAddress {
                address: "192.0.2.10/24".into(),
                interface: interface.into(),
                lease: None,
            }),
            "interface",
        );
    }
    for address in ["192.0.2.10", "192.0.2.10/33", "::1/129", "-f/24", ""] {
        refused(
            Verb::HoldAddress(proto::HoldAddress {
                address: address.into(),
                interface: "eth0".into(),
                lease: None,
            }),
            "address",
        );
    }
    for version in ["1.36.2", "v1.36", "v1.36.2 --force", "v2.0.0", "--config=/x"] {
        refused(
            Verb::KubernetesStep(proto::KubernetesStep {
                step: Some(proto::kubernetes_step::Step::KubeadmUpgrade(
                    proto::KubeadmUpgrade {
                        apply_version: version.into(),
                    },
                )),
            }),
            "apply_version",
        );
    }
    let delivered = |delivery: i32, pin_owner: &str| {
        let Verb::Ensure(ensure) = verbs().remove(0) else {
            panic!("the first is ensure")
        };
        Verb::Ensure(proto::Ensure {
            delivery,
            pin_owner: pin_owner.into(),
            ..ensure
        })
    };
    // Who is to be asked is only said where an image may be had elsewhere than in the cache.
    let Verb::Prepare(mut prepare) = verbs().remove(6) else {
        panic!("the seventh is prepare")
    };
    prepare.reference.clear();
    refused(Verb::Prepare(prepare), "prepare.reference");
    refused(delivered(1, ""), "as long as it is pinned");
    refused(delivered(99, "somebody"), "update the agent");
    refused(
        Verb::Wipe(proto::Wipe {
            confirm_host: "box-2".into(),
        }),
        "confirm_host",
    );
    for provider_id in ["edge://a b", "edge://a'b", "edge://{{a}}", "edge://a\nb"] {
        refused(
            Verb::RunBootstrap(proto::RunBootstrap {
                data: b"#cloud-config".to_vec(),
                provider_id: provider_id.into(),
                ..Default::default()
            }),
            "run_bootstrap.provider_id",
        );
    }
    let mut without_verb = request(Verb::Reboot(proto::Reboot::default()));
    without_verb.verb = None;
    assert!(
        Order::check(without_verb)
            .unwrap_err()
            .message
            .contains("update the agent")
    );
}

#[test]
fn no_message_shows_its_secrets() {
    for verb in verbs() {
        let shown = format!("{:?} {:?}", request(verb.clone()), Order::check(request(verb)));
        assert!(!shown.contains("canary"), "{shown}");
    }
    let join = proto::JoinRequest {
        token: "canary".into(),
        ..Default::default()
    };
    let result = proto::CommandResult {
        output: b"canary".to_vec(),
        ..Default::default()
    };
    let output = proto::Output {
        data: b"canary".to_vec(),
        ..Default::default()
    };
    for shown in [format!("{join:?}"), format!("{result:?}"), format!("{output:?}")] {
        // Bytes are printed as numbers.
        assert!(!shown.contains("canary") && !shown.contains("99, 97"), "{shown}");
    }
}

/// Decodes bytes as each message; the messages' names.
macro_rules! decode_as {
    ($bytes:expr, $($message:ident)*) => {{
        let mut names = Vec::new();
        $(
            if let Ok(message) = proto::$message::decode($bytes) {
                // Whatever was understood can be shown and written again.
                let _ = format!("{message:?}");
                let again = proto::$message::decode(message.encode_to_vec().as_slice()).unwrap();
                assert_eq!(again.encode_to_vec(), message.encode_to_vec());
            }
            names.push(stringify!($message));
        )*
        names
    }};
}

fn decode_everything(bytes: &[u8]) -> Vec<&'static str> {
    let _ = proto::StartRequest::decode(bytes).map(Order::check);
    let _ = proto::Credentials::decode(bytes).map(|credentials| {
        slipway_agent_api::enrol::NewKey::generate()
            .unwrap()
            .complete(credentials, "box-1")
            .unwrap_err()
    });
    decode_as!(
        bytes,
        StartRequest ImageReference RegistryCredentials Ensure PeerHost Pin
        Unpin Evict Export Import Prepare Arm
        Confirm Rollback EnvironmentVariable RunCommand RunBootstrap KubernetesStep
        KubeadmUpgrade ServiceRestart Wipe HoldAddress ReleaseAddress Reboot
        GiveUp Upgrade QuarantinedImage AddressLease LocalCall LocalAnswer
        Operation Output Progress Problem CommandResult CancelOperationRequest
        GetOperationRequest WatchOperationRequest ListOperationsRequest ListOperationsResponse GetHostRequest Host
        Maintenance Hardware Disk Slot CacheUse ListImagesRequest
        ListImagesResponse Image ImageUser WaitForImageRequest WaitForImageResponse LocateRequest
        LocateResponse BlobSize ReadRequest Piece JoinRequest RenewRequest
        Credentials
    )
}

#[test]
fn every_message_of_the_protocol_is_among_those_that_are_fuzzed() {
    let mut in_protocol: Vec<_> = include_str!("../proto/agent.proto")
        .lines()
        .filter_map(|line| line.strip_prefix("message ")?.split_whitespace().next())
        .collect();
    let mut fuzzed = decode_everything(&[]);
    in_protocol.sort_unstable();
    fuzzed.sort_unstable();
    assert_eq!(fuzzed, in_protocol);
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        decode_everything(&bytes);
    }

    /// Real orders with bytes changed, cut and put in: closer to the parser's edges than noise is.
    #[test]
    fn damaged_orders_are_decoded_or_refused(
        which in 0..18_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6),
    ) {
        let mut bytes = request(verbs().remove(which)).encode_to_vec();
        for (at, byte, how) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => bytes.truncate(at),
            }
        }
        decode_everything(&bytes);
        // What is accepted can be written to the journal and read again as the same order.
        if let Ok(request) = StartRequest::decode(bytes.as_slice())
            && let Ok(order) = Order::check(request.clone())
        {
            let again = StartRequest::decode(request.encode_to_vec().as_slice()).unwrap();
            prop_assert_eq!(Order::check(again).unwrap().digest, order.digest);
        }
    }
}
