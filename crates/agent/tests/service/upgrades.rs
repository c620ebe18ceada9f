//! Upgrades through the protocol, on simulated machines that boot, do not boot, and are not healthy; and many at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use slipway_agent_api::{
    client::HostClient,
    proto::{self, OperationState, UpgradeState, start_request::Verb},
};
use slipway_hosts_sim::{NodeImage, Reach};
use tokio::sync::Semaphore;

use super::{arm, complete, fleet, give_up, import, one, pin, prepare, standing, succeeded};

/// Waits until the host says so.
pub async fn until(client: &HostClient, what: &str, seen: impl Fn(&proto::Host) -> bool) -> proto::Host {
    let mut last = String::new();
    let began = Instant::now();
    while began.elapsed() < Duration::from_mins(5) {
        match client.inventory().await {
            Ok(host) if seen(&host) => return host,
            Ok(host) => last = format!("{host:?}"),
            Err(problem) => last = problem.to_string(),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what} did not come: {last}");
}

#[tokio::test]
async fn an_upgrade_boots_the_new_slot_and_keeps_it_and_its_image() {
    let (_fleet, host, client) = one().await;
    let image = NodeImage::build("2.0.0", 2).unwrap();
    image.write_layout(&host.exchange().join("two")).unwrap();
    succeeded(&client, "import", import("two")).await;
    succeeded(&client, "prepare", prepare("up-1", &image)).await;
    let armed = complete(&client, "arm", arm("up-1")).await.unwrap();
    assert_eq!(armed.state(), OperationState::Succeeded, "{}", armed.message);
    let after = until(&client, "the new slot", |host| {
        host.booted_slot == "B" && host.slots[1].boot == "good"
    })
    .await;
    assert_eq!(after.slots[1].version, "2.0.0");
    assert_eq!(after.slots[1].kubelet_version, "v2.0.0");
    assert_eq!(after.slots[1].digests, [image.digest.to_string()]);
    assert_eq!(host.machine.boots(), 2);
    assert_eq!(
        standing(&after, "up-1"),
        Some((UpgradeState::Confirmed, String::new()))
    );
    let kept = complete(&client, "give-up", give_up("up-1")).await.unwrap();
    assert_eq!(
        kept.problem.unwrap().reason,
        "Refused",
        "what runs is not given up"
    );
    // E-50: nobody pinned it, and it stays because a slot has it.
    let evict = Verb::Evict(proto::Evict {
        digest: image.digest.to_string(),
    });
    let kept = complete(&client, "evict", evict).await.unwrap();
    assert!(kept.message.contains("the image of slot B"), "{}", kept.message);
    // And back.
    let back = Verb::Rollback(proto::Rollback {
        reason: "the shop does not open".into(),
    });
    let back = complete(&client, "rollback", back).await.unwrap();
    assert_eq!(back.state(), OperationState::Succeeded, "{}", back.message);
    until(&client, "the old slot", |host| host.booted_slot == "A").await;
}

#[tokio::test]
async fn a_slot_that_is_not_healthy_or_never_boots_is_left_again() {
    for does_not_boot in [false, true] {
        let (_fleet, host, client) = one().await;
        let image = NodeImage::build("2.0.0", 2).unwrap();
        image.write_layout(&host.exchange().join("two")).unwrap();
        {
            let mut faults = host.machine.faults.lock();
            faults.does_not_boot = does_not_boot;
            faults.unhealthy = !does_not_boot;
        }
        succeeded(&client, "import", import("two")).await;
        succeeded(&client, "prepare", prepare("up-1", &image)).await;
        client
            .start(super::order("box-1", "arm", 1, arm("up-1")))
            .await
            .unwrap();
        let after = until(&client, "the old slot", |seen| {
            // The order to arm goes on over the reboots, and ends after them.
            seen.booted_slot == "A"
                && seen.slots[1].boot == "unbootable"
                && host.machine.boots() > 1
                && seen.running_operations.is_empty()
        })
        .await;
        assert_eq!(after.slots[0].boot, "good");
        // How it ended is told in a form that programs read: by the order, by the host, and for the image.
        let (state, reason) = standing(&after, "up-1").unwrap();
        assert_eq!(state, UpgradeState::RolledBack);
        assert!(!reason.is_empty());
        let order = client.operation("arm").await.unwrap();
        let told = order.upgrade.clone().unwrap();
        assert_eq!(
            (told.state(), &told.reason),
            (state, &reason),
            "{}",
            order.message
        );
        let quarantined = &after.quarantined[0];
        assert_eq!((&quarantined.digest, &quarantined.reason), (&told.image, &reason));
        // What orders call it is told beside the slots' own name, and stays known when the cache has forgotten the image.
        let called = [image.digest.to_string()];
        assert_ne!(told.image, called[0]);
        assert_eq!(
            (&quarantined.digests[..], &told.digests[..]),
            (&called[..], &called[..])
        );
        assert_eq!(
            client.images().await.unwrap().images[0].slot_image,
            image.id.to_string()
        );
        let evict = Verb::Evict(proto::Evict {
            digest: image.digest.to_string(),
        });
        succeeded(&client, "evict", evict).await;
        host.kill_agent().await.unwrap();
        let forgotten = until(&client, "the agent", |_| true).await;
        assert_eq!(forgotten.quarantined[0].digests, called);
        assert_eq!(forgotten.upgrades[0].digests, called);
        assert!(
            forgotten.slots[0].digests.is_empty(),
            "it was installed with that one"
        );
        succeeded(&client, "import-again", import("two")).await;
        // The image is quarantined: it is not written again.
        let again = complete(&client, "prepare-2", prepare("up-2", &image))
            .await
            .unwrap();
        assert_eq!(again.problem.unwrap().reason, "ImageRefused", "{}", again.message);
    }
}

#[tokio::test]
async fn a_reboot_ends_with_the_next_start_of_the_machine() {
    let (_fleet, host, client) = one().await;
    let reboot = Verb::Reboot(proto::Reboot {
        reason: "a new kernel".into(),
    });
    let done = complete(&client, "reboot", reboot).await.unwrap();
    assert_eq!(done.state(), OperationState::Succeeded, "{}", done.message);
    assert_eq!(host.machine.boots(), 2);
}

/// Every verb that runs programs, by what the machine was asked to do.
#[tokio::test]
async fn verbs_for_kubernetes_addresses_bootstrap_and_wiping() {
    let (_fleet, host, client) = one().await;
    let step = |step| Verb::KubernetesStep(proto::KubernetesStep { step: Some(step) });
    let upgrade = |version: &str| {
        step(proto::kubernetes_step::Step::KubeadmUpgrade(
            proto::KubeadmUpgrade {
                apply_version: version.into(),
            },
        ))
    };
    succeeded(&client, "k-1", upgrade("v1.36.2")).await;
    succeeded(&client, "k-2", upgrade("")).await;
    let restart = step(proto::kubernetes_step::Step::ServiceRestart(
        proto::ServiceRestart {
            service: "k3s".into(),
        },
    ));
    succeeded(&client, "k-3", restart).await;
    let (address, interface) = ("192.0.2.10/24".to_owned(), "eth0".to_owned());
    let hold = Verb::HoldAddress(proto::HoldAddress {
        address: address.clone(),
        interface: interface.clone(),
        lease: None,
    });
    succeeded(&client, "a-1", hold).await;
    assert_eq!(
        client.inventory().await.unwrap().held_addresses,
        ["192.0.2.10/24"]
    );
    let release = Verb::ReleaseAddress(proto::ReleaseAddress { address, interface });
    succeeded(&client, "a-2", release).await;
    assert!(client.inventory().await.unwrap().held_addresses.is_empty());

    let data = "#cloud-config\nwrite_files:\n- path: /etc/rancher/token\n  permissions: '0600'\n  content: canary\nruncmd:\n- [install-k3s]\n";
    let bootstrap = |data: &str| {
        Verb::RunBootstrap(proto::RunBootstrap {
            data: data.as_bytes().to_vec(),
            time_limit_seconds: 0,
            ..Default::default()
        })
    };
    succeeded(&client, "b-1", bootstrap(data)).await;
    let root = host.folder().join("root");
    assert_eq!(
        std::fs::read_to_string(root.join("etc/rancher/token")).unwrap(),
        "canary"
    );
    let sentinel = root.join("run/cluster-api/bootstrap-success.complete");
    assert_eq!(std::fs::read_to_string(&sentinel).unwrap(), "success\n");
    host.machine.faults.lock().programs = [("install-k3s".to_owned(), (3, Duration::ZERO))].into();
    let failed = complete(&client, "b-2", bootstrap(data)).await.unwrap();
    assert_eq!(failed.state(), OperationState::Failed);
    assert_eq!(failed.message, "bootstrap command 1 of 1 exited with 3");
    let wrong = complete(&client, "b-3", bootstrap("#!/bin/sh\necho canary"))
        .await
        .unwrap();
    assert!(!wrong.message.contains("canary"), "{}", wrong.message);

    std::fs::create_dir_all(root.join("var/lib/rancher/k3s")).unwrap();
    let wipe = Verb::Wipe(proto::Wipe {
        confirm_host: "box-1".into(),
    });
    succeeded(&client, "w-1", wipe).await;
    assert!(!root.join("var/lib/rancher").exists());
    let ran: Vec<_> = host.machine.ran().iter().map(|argv| argv.join(" ")).collect();
    assert_eq!(
        ran,
        [
            "kubeadm upgrade apply --yes v1.36.2",
            "kubeadm upgrade node",
            "systemctl restart k3s",
            "ip address replace 192.0.2.10/24 dev eth0",
            "ip address delete 192.0.2.10/24 dev eth0",
            "install-k3s",
            "install-k3s",
            "k3s-uninstall.sh",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_hosts_in_one_process_enrol_cache_and_prepare() {
    let (fleet, mut options) = fleet().await;
    options.reach = Reach::Tunnel;
    let hosts = fleet.add_many(200, &options).await.unwrap();
    let image = Arc::new(NodeImage::build("2.0.0", 2).unwrap());
    for host in &hosts {
        fleet.connected(host).await;
    }
    let mut work = tokio::task::JoinSet::new();
    // All are connected; so many work at once that none waits for a processor longer than a ping may take.
    let places = Arc::new(Semaphore::new(32));
    for host in hosts {
        let (fleet, image, places) = (fleet.clone(), image.clone(), places.clone());
        work.spawn(async move {
            let _place = places.acquire().await.unwrap();
            let client = fleet.client(&host);
            image.write_layout(&host.exchange().join("two")).unwrap();
            succeeded(&client, "import", import("two")).await;
            succeeded(&client, "pin", pin(&image, "test")).await;
            succeeded(&client, "prepare", prepare("up-1", &image)).await;
            client.inventory().await.unwrap().name
        });
    }
    let names: std::collections::BTreeSet<_> = work.join_all().await.into_iter().collect();
    assert_eq!(names.len(), 200);
    assert_eq!(fleet.board.hosts().len(), 200);
}

/// Of the names that were told only those stay that something on the host is about: one for each slot, upgrade and image in
/// quarantine. The same image under two names has both.
#[tokio::test]
async fn what_orders_call_images_is_remembered_while_it_is_needed() {
    let (_fleet, host, client) = one().await;
    let images: Vec<_> = ["2.0.0", "3.0.0"]
        .into_iter()
        .map(|version| NodeImage::build(version, 2).unwrap())
        .collect();
    for (image, name) in images.iter().zip(["two", "three"]) {
        image.write_layout(&host.exchange().join(name)).unwrap();
        succeeded(&client, &format!("import-{name}"), import(name)).await;
        succeeded(&client, &format!("prepare-{name}"), prepare(name, image)).await;
        succeeded(&client, &format!("give-up-{name}"), give_up(name)).await;
    }
    let names = host.state().join("image-names.json");
    let written = std::fs::read_to_string(&names).unwrap();
    for image in &images {
        assert!(
            written.contains(&format!("\"{}\":[\"{}\"]", image.id, image.digest)),
            "{written}"
        );
    }
    // A name of before, of an image that no slot, upgrade or quarantine is about, goes with the next one that is told.
    let stale = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    host.stop().await;
    std::fs::write(
        &names,
        written.replacen('{', &format!("{{\"{stale}\":[\"{stale}\"],"), 1),
    )
    .unwrap();
    host.start().await.unwrap();
    let four = NodeImage::build("4.0.0", 2).unwrap();
    four.write_layout(&host.exchange().join("four")).unwrap();
    succeeded(&client, "import-four", import("four")).await;
    succeeded(&client, "prepare-four", prepare("four", &four)).await;
    let written = std::fs::read_to_string(&names).unwrap();
    assert!(!written.contains(stale), "{written}");
    assert!(written.contains(&images[0].digest.to_string()), "{written}");
    // A file that is damaged begins again, and the cache still knows what it has.
    host.stop().await;
    std::fs::write(&names, "{").unwrap();
    host.start().await.unwrap();
    let after = until(&client, "the agent", |_| true).await;
    assert_eq!(after.upgrades[2].digests, [four.digest.to_string()]);
}
