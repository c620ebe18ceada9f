//! What the webhooks refuse, and in which words; and what the definitions look like to core, clusterctl and kubectl.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use slipway_capi::names;
use slipway_edge::{api, cluster, cluster_upgrade, host, host_image, machine, node_upgrade, upgrade_policy};
use slipway_runtime::admission::{Change, Operation, Verdict};

const DIGEST: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000aa";

fn read<K: DeserializeOwned>(spec: &Value) -> K {
    serde_json::from_value(json!({
        "apiVersion": "x/v1", "kind": "X", "metadata": {"name": "box-1", "namespace": "default"}, "spec": spec,
    }))
    .expect("an object")
}

/// What is said to a change of the spec; empty where it is allowed without a word.
fn told<K: DeserializeOwned>(
    validate: fn(&Change<K>) -> Verdict,
    old: Option<Value>,
    new: Option<Value>,
) -> Vec<String> {
    let change = Change {
        operation: match (&old, &new) {
            (None, _) => Operation::Create,
            (_, None) => Operation::Delete,
            _ => Operation::Update,
        },
        dry_run: false,
        user: "user".to_owned(),
        old: old.map(|spec| read::<K>(&spec)),
        new: new.map(|spec| read::<K>(&spec)),
    };
    match validate(&change) {
        Verdict::Allowed { warnings } => warnings,
        Verdict::Invalid { errors, .. } => errors.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_machine_of_moc_says_which_one_it_is_and_who_may_speak_for_it() {
    let moc = json!({"cloudAgent": "cloud.example.com:55000", "location": "north", "group": "site", "virtualMachine": "vm-1",
        "imageURL": "https://images.example.com/{digest}.vhdx", "credentialsSecretName": "moc"});
    let spec = |changes: &[(&str, &str)]| {
        let mut moc = moc.clone();
        for (field, value) in changes {
            moc[field] = json!(value);
        }
        json!({"platform": {"moc": moc}})
    };
    let check = |new: Value| told(host::admit::validate, None, Some(new));
    assert_eq!(check(spec(&[])), [""; 0]);
    assert_eq!(check(spec(&[("cloudAgent", "cloud")])), [""; 0]);
    assert_eq!(
        check(json!({"platform": {}})),
        [
            "spec.platform.moc: Required value: which machine of MOC it is; leave platform out for a machine with an agent of its own"
        ]
    );
    let mut both = spec(&[]);
    both["address"] = json!("192.0.2.7:7443");
    assert_eq!(
        check(both),
        [
            "spec.platform.moc: Forbidden: together with address: a machine of MOC is reached through its cloud agent"
        ]
    );
    assert_eq!(
        check(spec(&[("cloudAgent", "https://cloud"), ("group", "")])),
        [
            "spec.platform.moc.cloudAgent: Invalid value: \"https://cloud\": must be a name with a port or without, e.g. cloud.example.com \
             or cloud.example.com:55000",
            "spec.platform.moc.group: Required value: the group of the virtual machine",
        ]
    );
    for url in ["images/{digest}", "https://images.example.com/k3s.vhdx"] {
        assert_eq!(
            check(spec(&[("imageURL", url)])),
            [format!(
                "spec.platform.moc.imageURL: Invalid value: \"{url}\": must be an address with {{digest}} in it, e.g. \
                 https://images.example.com/{{digest}}.vhdx"
            )]
        );
    }
    // How it is had at may change while somebody has it; which one it is may not.
    let claimed = |changes: &[(&str, &str)]| {
        let mut spec = spec(changes);
        spec["claim"] = json!({"name": "a", "uid": "1"});
        spec
    };
    let change = |new: Value| told(host::admit::validate, Some(claimed(&[])), Some(new));
    assert_eq!(change(claimed(&[("credentialsSecretName", "other")])), [""; 0]);
    assert_eq!(
        change(claimed(&[("virtualMachine", "vm-2")])),
        [
            "spec.platform: Forbidden: names another machine while an EdgeMachine has this one: delete its Machine first"
        ]
    );
}

#[test]
fn a_claim_never_goes_from_one_machine_to_another() {
    let claim = |name: &str, released: bool| json!({"claim": {"name": name, "uid": format!("uid-{name}"), "released": released}});
    let check = |old: Value, new: Option<Value>| told(host::admit::validate, Some(old), new);
    assert_eq!(check(json!({}), Some(claim("a", false))), [""; 0]);
    assert_eq!(check(claim("a", false), Some(claim("a", true))), [""; 0]);
    assert_eq!(check(claim("a", true), Some(json!({}))), [""; 0]);
    assert_eq!(
        check(claim("a", true), Some(claim("b", false))),
        ["spec.claim: Forbidden: EdgeMachine a has the host: it is wiped before another one gets it"]
    );
    assert_eq!(
        check(claim("a", true), Some(claim("a", false))),
        ["spec.claim.released: Forbidden: cannot be taken back: the host is being wiped"]
    );
    assert_eq!(
        check(claim("a", false), None),
        [
            "spec.claim: Forbidden: EdgeMachine a has the host: delete its Machine first, and the host when it is wiped"
        ]
    );
    assert_eq!(check(json!({}), None), [""; 0]);
}

#[test]
fn addresses_of_hosts_have_a_port() {
    for (address, is_good) in [
        ("192.0.2.7:7443", true),
        ("box.example.com:7443", true),
        ("[2001:db8::7]:7443", true),
        ("192.0.2.7", false),
        ("2001:db8::7", false),
        ("box:0", false),
        (":7443", false),
    ] {
        let said = told(host::admit::validate, None, Some(json!({"address": address})));
        assert_eq!(said.is_empty(), is_good, "{address}: {said:?}");
    }
}

#[test]
fn an_image_may_change_and_a_provider_id_may_not() {
    let spec = |digest: &str| {
        json!({"providerID": "edge://default/box-1/uid", "hostName": "box-1",
        "image": {"reference": "registry.example.com/k3s", "digest": digest}})
    };
    let check =
        |old: &Value, new: &Value| told(machine::admit::validate, Some(old.clone()), Some(new.clone()));
    assert_eq!(check(&spec(DIGEST), &spec(&DIGEST.replace("aa", "bb"))), [""; 0]);
    let mut moved = spec(DIGEST);
    moved["providerID"] = json!("edge://default/box-2/uid");
    moved["hostName"] = json!("box-2");
    assert_eq!(
        check(&spec(DIGEST), &moved),
        [
            "spec.providerID: Forbidden: cannot be changed: the node has it",
            "spec.hostName: Forbidden: cannot be changed: the machine runs on that host",
        ]
    );
    assert_eq!(
        check(&spec(DIGEST), &spec("latest")),
        [
            "spec.image.digest: Invalid value: \"latest\": it must be sha256: and 64 lower-case hexadecimal digits"
        ]
    );
    assert_eq!(
        told(
            machine::admit::validate_template,
            None,
            Some(json!({"template": {"spec": {"hostName": "box-1"}}}))
        ),
        ["spec.template.spec.hostName: Forbidden: belongs to one machine, not to a template"]
    );
}

/// A template that is in use stays as it is; the topology controller may ask what a change would be, and nobody else.
#[test]
fn a_template_does_not_change_but_in_the_topology_controllers_dry_run() {
    let template = |processors: u32, annotations: Value| {
        let template = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "EdgeMachineTemplate",
            "metadata": {"name": "workers", "annotations": annotations},
            "spec": {"template": {"spec": {"minimum": {"processors": processors}}}}});
        serde_json::from_value::<api::EdgeMachineTemplate>(template).expect("a template")
    };
    let check = |dry_run: bool, annotations: Value| {
        let change = Change {
            operation: Operation::Update,
            dry_run,
            user: "user".to_owned(),
            old: Some(template(1, json!({}))),
            new: Some(template(2, annotations)),
        };
        matches!(
            machine::admit::validate_template(&change),
            Verdict::Allowed { .. }
        )
    };
    let of_topology = json!({"topology.cluster.x-k8s.io/dry-run": ""});
    assert!(check(true, of_topology.clone()));
    assert!(!check(false, of_topology) && !check(true, json!({})));
}

#[test]
fn an_endpoint_is_given_or_comes_from_the_virtual_address_and_stays() {
    let check = |old: Option<Value>, new: Value| told(cluster::admit::validate, old, Some(new));
    let virtual_address = json!({"virtualAddress": {"address": "192.0.2.10/24", "interface": "eth0"}});
    assert_eq!(check(None, virtual_address.clone()), [""; 0]);
    let mut both = virtual_address.clone();
    both["controlPlaneEndpoint"] = json!({"host": "192.0.2.10", "port": 6443});
    assert_eq!(
        check(Some(virtual_address.clone()), both.clone()),
        [""; 0],
        "the provider writes it"
    );
    both["controlPlaneEndpoint"]["host"] = json!("192.0.2.11");
    assert_eq!(
        check(None, both.clone()),
        [
            "spec.controlPlaneEndpoint: Invalid value: \"192.0.2.11:6443\": must be left out together with virtualAddress, or be its address and port"
        ]
    );
    let given = json!({"controlPlaneEndpoint": {"host": "lb.example.com", "port": 6443}});
    assert_eq!(check(None, given.clone()), [""; 0]);
    assert_eq!(
        check(
            Some(given),
            json!({"controlPlaneEndpoint": {"host": "other.example.com", "port": 6443}})
        ),
        ["spec.controlPlaneEndpoint: Forbidden: cannot be changed: every node and kubeconfig has it"]
    );
    assert_eq!(
        check(
            None,
            json!({"virtualAddress": {"address": "192.0.2.10", "interface": ""}})
        ),
        [
            "spec.virtualAddress.address: Invalid value: \"192.0.2.10\": must be an address with its prefix length, e.g. 192.0.2.10/24",
            "spec.virtualAddress.interface: Required value: the network interface of the hosts, e.g. eth0",
        ]
    );
}

#[test]
fn jobs_policies_and_upgrades_are_checked_field_by_field() {
    let image = json!({"reference": "registry.example.com/k3s", "digest": DIGEST});
    assert_eq!(
        told(host_image::admit::validate, None, Some(json!({"images": [image, image], "parallelism": "150%"}))),
        [
            format!("spec.images[1].digest: Duplicate value: \"{DIGEST}\""),
            "spec.parallelism: Invalid value: \"150%\": must be a number that is not negative, or a share from 0% to 100%".to_owned(),
        ]
    );
    assert_eq!(
        told(
            upgrade_policy::admit::validate,
            None,
            Some(json!({
                "waves": [{"name": "all"}, {"name": "all"}], "stopAfterRollbacks": 0, "mandatoryVersions": ["1.34"],
            }))
        ),
        [
            "spec.waves[1].name: Duplicate value: \"all\"",
            "spec.stopAfterRollbacks: Invalid value: 0: must be at least 1: an upgrade that has not begun cannot be stopped by its rollbacks",
            "spec.mandatoryVersions[0]: Invalid value: \"1.34\": must be a version of Kubernetes with a leading v, e.g. v1.34.1 or v1.34.1+k3s1",
        ]
    );
    assert_eq!(
        told(
            upgrade_policy::admit::validate,
            None,
            Some(json!({"waves": [{"name": "all"}, {"name": "rest"}]}))
        ),
        ["spec.waves[0] takes every machine: nothing is left for the waves after it"]
    );
    let upgrade = |version: &str| {
        json!({"machineName": "m", "machineUID": "u", "hostName": "h", "image": image, "version": version,
        "role": "Worker", "distribution": "K3s", "drain": {"onTimeout": "Abort"}, "deadlines": {}})
    };
    assert_eq!(
        told(
            node_upgrade::admit::validate,
            Some(upgrade("v1.34.2")),
            Some(upgrade("v1.34.3"))
        ),
        ["spec: Forbidden: cannot be changed: a newer NodeUpgrade of the machine takes its place"]
    );
    assert_eq!(
        told(
            cluster_upgrade::admit::validate,
            None,
            Some(json!({"clusterName": "edge", "version": "v1.35.0", "images": []}))
        ),
        ["spec.images: Required value: has no image of v1.35.0, the version that is asked for"]
    );
}

#[test]
fn definitions_are_found_by_core_clusterctl_and_people() {
    let mut short_names = BTreeSet::new();
    let infrastructure = api::infrastructure();
    let all: Vec<_> = infrastructure
        .iter()
        .cloned()
        .chain(api::hosts())
        .chain(api::upgrades())
        .chain(api::images())
        .collect();
    assert_eq!(all.len(), 9);
    for crd in &all {
        let kind = &crd.spec.names.kind;
        assert_eq!(
            crd.metadata.name.as_deref(),
            Some(names::crd_name(&crd.spec.group, kind).as_str()),
            "core derives the name from the kind"
        );
        assert!(
            short_names.insert(crd.spec.names.short_names.clone()),
            "{kind} has no short name of its own"
        );
        let version = &crd.spec.versions[0];
        assert_eq!(version.name, api::VERSION);
        let columns = version.additional_printer_columns.as_ref().expect("columns");
        assert_eq!(columns.last().expect("a column").name, "Age", "{kind}");
        let schema = serde_json::to_value(&version.schema).expect("a schema is JSON");
        let spec = &schema["openAPIV3Schema"]["properties"]["spec"];
        for rule in spec["x-kubernetes-validations"].as_array().into_iter().flatten() {
            assert!(
                rule["message"]
                    .as_str()
                    .is_some_and(|message| message.contains("cannot") || message.contains("belong")),
                "{kind}: {rule}"
            );
        }
    }
    for crd in &infrastructure {
        let labels = crd.metadata.labels.as_ref().expect("labels");
        assert_eq!(
            labels.get("cluster.x-k8s.io/v1beta2").map(String::as_str),
            Some("v1alpha1")
        );
        assert_eq!(crd.spec.group, api::INFRASTRUCTURE_GROUP);
    }
}
