//! When a machine is replaced, and above all when not.

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use slipway_k3s::{
    api::KThreesConfigSpec,
    control_plane::{
        observed::Outdated,
        rollout::{Desired, Made, differences},
    },
};

fn spec(value: Value) -> KThreesConfigSpec {
    serde_json::from_value(value).expect("a config spec")
}

fn compare(has: &Value, wants: &Value) -> Vec<Outdated> {
    let (has, wants) = (spec(has.clone()), spec(wants.clone()));
    let made = Made {
        version: Some("v1.34.1+k3s1"),
        config: Some(&has),
        cloned_from: Some(("t", "HostTemplate.infrastructure.cluster.x-k8s.io")),
        ..Made::default()
    };
    differences(&made, &desired(&wants), Timestamp::UNIX_EPOCH)
}

fn desired(config: &KThreesConfigSpec) -> Desired<'_> {
    Desired {
        version: "v1.34.1+k3s1",
        config,
        template: ("t", "HostTemplate.infrastructure.cluster.x-k8s.io"),
        rollout_after: None,
        certificates_expiry_days: None,
    }
}

/// S-29, S-58: absent, null, empty and defaulted are the same; a version cluster-api-k3s wrote into a config is no difference.
#[test]
fn ways_of_writing_the_same_replace_nothing() {
    let defaulted =
        json!({"serverConfig": {"cloudProviderName": "external", "disableCloudController": true}});
    for (has, wants) in [
        (json!({}), defaulted.clone()),
        (
            json!({"files": [], "preK3sCommands": null, "agentConfig": {}, "version": "v1.34.1+k3s1"}),
            defaulted.clone(),
        ),
        (
            json!({"serverConfig": {"tlsSan": [], "clusterDomain": ""}}),
            json!({}),
        ),
        (
            json!({"agentConfig": {"airGapped": false, "nodeLabels": []}}),
            json!({"agentConfig": null}),
        ),
        (
            json!({"serverConfig": {"disableExternalCloudProvider": true, "agentToken": "Shared"}}),
            json!({}),
        ),
        (
            json!({"serverConfig": {"cloudProviderName": ""}}),
            json!({"serverConfig": {"cloudProviderName": "", "disableCloudController": true}}),
        ),
    ] {
        assert_eq!(compare(&has, &wants), [], "{has} {wants}");
    }
}

#[test]
fn real_differences_are_named_by_field() {
    let found = compare(
        &json!({"serverConfig": {"cloudProviderName": ""}, "preK3sCommands": ["a"]}),
        &json!({"serverConfig": {"tlsSan": ["b"]}, "preK3sCommands": ["a", "b"]}),
    );
    assert_eq!(
        found,
        [Outdated::Config {
            fields: vec![
                "preK3sCommands".into(),
                "serverConfig.cloudProviderName".into(),
                "serverConfig.tlsSan".into()
            ]
        }]
    );
}

/// A config or host that cannot be read, or that was not cloned by us, is no reason to replace a machine.
#[test]
fn what_is_not_known_is_no_difference() {
    let config = KThreesConfigSpec::default();
    let made = Made {
        version: Some("v1.34.1+k3s1"),
        ..Made::default()
    };
    assert_eq!(differences(&made, &desired(&config), Timestamp::UNIX_EPOCH), []);
}

/// S-31: only machines older than the time, and only once it has come.
#[test]
fn a_requested_rollout_replaces_only_older_machines() {
    let config = KThreesConfigSpec::default();
    let at = |seconds: i64| Timestamp::from_second(seconds).expect("a time");
    let ask = |created: i64, after: i64, now: i64| {
        let made = Made {
            created_at: at(created),
            version: Some("v1.34.1+k3s1"),
            ..Made::default()
        };
        let desired = Desired {
            rollout_after: Some(at(after)),
            ..desired(&config)
        };
        differences(&made, &desired, at(now))
    };
    assert_eq!(ask(50, 100, 99), [], "not yet");
    assert_eq!(ask(50, 100, 100), [Outdated::RolloutAfter]);
    assert_eq!(ask(150, 100, 200), [], "younger than the request");
}

/// S-32: certificates that are about to expire, where the user asked to act on it.
#[test]
fn certificates_near_their_end_replace_a_machine() {
    let config = KThreesConfigSpec::default();
    let day = 24 * 3600;
    let at = |days: i64| Timestamp::from_second(days * day).expect("a time");
    let ask = |days: Option<i32>, now: i64| {
        let made = Made {
            version: Some("v1.34.1+k3s1"),
            certificates_expire_at: Some(at(365)),
            ..Made::default()
        };
        let desired = Desired {
            certificates_expiry_days: days,
            ..desired(&config)
        };
        differences(&made, &desired, at(now))
    };
    assert_eq!(ask(Some(30), 334), []);
    assert_eq!(ask(Some(30), 335), [Outdated::CertificatesExpire { at: at(365) }]);
    assert_eq!(ask(None, 364), []);
}

proptest! {
    #[test]
    fn comparing_never_panics_and_a_spec_equals_itself(value in super::conversion::arbitrary_json()) {
        if let Ok(spec) = serde_json::from_value::<KThreesConfigSpec>(value) {
            let value = serde_json::to_value(&spec).expect("JSON");
            prop_assert_eq!(compare(&value, &value), []);
        }
    }
}
