//! Hosts in namespaces of their own, with a program in k3s' place: what their userdata does to them, what they see of
//! each other, and what is left of them when they lose power, are destroyed, or their process is killed.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Read},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use slipway_testbed::{
    Part, Parts,
    hosts::{Backend, BackendError, Booting, RealK3s, Releases, unavailable},
};

use crate::death::{runs, wait_until_gone};

/// A hang guard; a host boots in a second.
const DEADLINE: Duration = Duration::from_mins(2);

/// Says its version, tells the supervisor that it is up, and greets everyone by its host's name.
const PROGRAM: &str = r#"#!/usr/bin/perl
use IO::Socket::INET;
use IO::Socket::UNIX;
if ($ARGV[0] eq "--version") { print "k3s version v1.36.3+k3s1 (00000000)\n"; exit 0; }
my $door = IO::Socket::INET->new(LocalPort => 6443, Listen => 8, ReuseAddr => 1) or die "no door: $!";
my $notify = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Peer => $ENV{NOTIFY_SOCKET}) or die "no supervisor: $!";
$notify->send("READY=1\n");
open(my $log, ">>", "/root/starts"); print $log "@ARGV\n"; close $log;
chomp(my $name = `hostname`);
while (my $guest = $door->accept()) { print $guest $name; close $guest; }
"#;

const USERDATA: &str = r#"## template: jinja
#cloud-config

write_files:
-   path: /etc/rancher/secret
    encoding: "base64"
    owner: nobody:adm
    permissions: '0640'
    content: |
      e3sgbm90IGEgdGVtcGxhdGUgfX0K
-   path: /etc/rancher/k3s/config.yaml
    content: |
      node-name: '{{ ds.meta_data.local_hostname }}'
      token: t
runcmd:
  - "stat -c '%a %U %G' /etc/rancher/secret > /root/seen"
  - "ip -4 -br addr show eth0 | tr -s ' ' >> /root/seen"
  - "false"
  -  curl -sfL https://get.k3s.io -o /run/k3s-install.sh && INSTALL_K3S_VERSION=@VERSION@ sh /run/k3s-install.sh server --flag && mkdir -p /root/sentinel && echo success > /root/sentinel/complete
  - "curl -sfL https://example.com/anything; echo $? > /root/outside"
"#;

fn launcher() -> std::path::PathBuf {
    Parts::ready().unwrap().binary(Part::Launch)
}

/// Hosts of one cluster, or nothing where this machine allows none.
fn backend(folder: &Path) -> Option<RealK3s> {
    let missing =
        unavailable().or_else(|| (!Path::new("/usr/bin/perl").exists()).then(|| "no perl".to_owned()));
    if let Some(why) = missing {
        println!("report: skipped: this machine lets no test have hosts in namespaces of their own: {why}");
        return None;
    }
    let program = folder.join("k3s");
    crate::script(&program, PROGRAM);
    let releases =
        Releases::named([("SLIPWAY_K3S_1_36".to_owned(), program.display().to_string())].into_iter());
    Some(RealK3s::new(launcher(), releases.unwrap()).unwrap())
}

fn booting(name: &str, number: u8, version: &str) -> Booting {
    Booting {
        cluster: "ns/edge".into(),
        name: name.into(),
        provider_id: format!("testhost://ns/{name}"),
        address: format!("10.1.2.{number}"),
        version: "v1.36.3+k3s1".into(),
        is_control_plane: true,
        bootstrap_data: USERDATA.replace("@VERSION@", version).into_bytes(),
        ..Booting::default()
    }
}

fn greeting(endpoint: SocketAddr) -> String {
    let mut text = String::new();
    if let Ok(mut stream) = TcpStream::connect(endpoint) {
        // A busy host may drop the last packet of a handshake, and who waits to be greeted never learns of it.
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("a timeout");
        let _ = stream.read_to_string(&mut text);
    }
    text
}

/// Another process has no watch to offer.
fn until(what: &str, so: impl Fn() -> bool) {
    let started = Instant::now();
    while !so() {
        assert!(started.elapsed() < DEADLINE, "{what} never came");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn greets_only(endpoint: SocketAddr, names: &[&str]) -> bool {
    let met: BTreeSet<String> = (0..6).map(|_| greeting(endpoint)).collect();
    met == names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_do_what_their_userdata_says_and_nothing_is_left_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut hosts) = backend(folder.path()) else {
        return;
    };
    let endpoint = hosts.endpoint("ns/edge").await.unwrap();
    let endpoint: SocketAddr = format!("{}:{}", endpoint.host, endpoint.port).parse().unwrap();
    assert_eq!(greeting(endpoint), "", "nobody is up yet");
    for (name, number) in [("real-a", 1), ("real-b", 2)] {
        let host = booting(name, number, "v1.36.3+k3s1");
        hosts.boot(&host).await.unwrap();
        hosts.boot(&host).await.unwrap();
    }
    until("both hosts", || greets_only(endpoint, &["real-a", "real-b"]));

    let read = |host: &str, path: &str| hosts.read("ns/edge", host, path).unwrap_or_default();
    until("the end of the commands", || {
        read("real-a", "/root/outside") == "6\n" && !read("real-b", "/root/outside").is_empty()
    });
    assert_eq!(
        read("real-a", "/root/seen"),
        "640 nobody adm\neth0@if3 UP 10.1.2.1/8 \n".replace("if3", &interface(&read("real-a", "/root/seen")))
    );
    assert_eq!(read("real-a", "/etc/rancher/secret"), "{{ not a template }}\n");
    assert_eq!(
        read("real-b", "/etc/rancher/k3s/config.yaml"),
        "node-name: 'real-b'\ntoken: t\n"
    );
    assert_eq!(read("real-a", "/root/sentinel/complete"), "success\n");
    assert!(
        !Path::new("/etc/rancher/secret").exists(),
        "this machine's own disk is not theirs"
    );
    let started = read("real-a", "/root/starts");
    assert!(
        started.starts_with("server --disable-agent") && started.ends_with("--flag\n"),
        "{started}"
    );

    hosts.set_alive("ns/edge", "real-a", false).await.unwrap();
    until("the end of one", || greets_only(endpoint, &["real-b"]));
    assert_eq!(
        read("real-a", "/root/sentinel/complete"),
        "success\n",
        "its disk stays"
    );
    hosts.set_alive("ns/edge", "real-a", true).await.unwrap();
    until("both again", || greets_only(endpoint, &["real-a", "real-b"]));
    assert_eq!(read("real-a", "/root/starts").lines().count(), 2, "started again");
    assert_eq!(
        read("real-a", "/root/seen").lines().count(),
        2,
        "cloud-init runs once"
    );

    for host in ["real-a", "real-b"] {
        let running = hosts.processes("ns/edge", host);
        assert!(running.len() > 1, "an init and its service");
        hosts.destroy("ns/edge", host).await.unwrap();
        hosts.destroy("ns/edge", host).await.unwrap();
        assert!(!running.into_iter().any(runs), "nothing of it runs any more");
    }
    assert!(hosts.hosts("ns/edge").is_empty());
    assert_eq!(greeting(endpoint), "");
    hosts.all_went_well();
}

/// The number of the other end of a cable is the kernel's to choose.
fn interface(seen: &str) -> String {
    let (_, rest) = seen.split_once('@').unwrap_or_default();
    rest.split(' ').next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_come_up_is_told_and_leaves_no_success_behind() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut hosts) = backend(folder.path()) else {
        return;
    };
    hosts.boot(&booting("real-c", 3, "v1.35.0+k3s1")).await.unwrap();
    let read = |path: &str| hosts.read("ns/edge", "real-c", path).unwrap_or_default();
    until("the end of its commands", || !read("/root/outside").is_empty());
    until("the failure", || !hosts.failures("ns/edge").is_empty());
    assert_eq!(hosts.failures("ns/edge")["real-c"], "the installer ended with 1");
    assert_eq!(read("/root/sentinel/complete"), "");
    assert_eq!(
        read("/root/outside"),
        "6\n",
        "a command that fails does not keep the next from running"
    );

    let unreadable = Booting {
        bootstrap_data: b"#!/bin/sh\n".to_vec(),
        ..booting("real-d", 4, "")
    };
    let refused = hosts.boot(&unreadable).await;
    assert!(matches!(refused, Err(BackendError::Refused(_))), "{refused:?}");
    assert_eq!(
        hosts.failures("ns/edge")["real-d"],
        "the userdata is not a cloud-config"
    );
    hosts.destroy("ns/edge", "real-d").await.unwrap();
    assert!(!hosts.failures("ns/edge").contains_key("real-d"));
    let running = hosts.processes("ns/edge", "real-c");
    assert!(!running.is_empty());
    hosts.all_went_well();
    drop(hosts);
    assert!(
        !running.into_iter().any(runs),
        "hosts end with the value that holds them"
    );
}

const AS_CHILD: &str = "SLIPWAY_TEST_HOLDS_A_HOST";

/// Killed with SIGKILL, nobody has time to clean up.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_does_not_outlive_the_process_that_holds_it() {
    if let Some(folder) = std::env::var_os(AS_CHILD) {
        return hold_a_host(Path::new(&folder)).await;
    }
    let folder = tempfile::tempdir().unwrap();
    if backend(folder.path()).is_none() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("real_hosts::a_host_does_not_outlive_the_process_that_holds_it")
        .env(AS_CHILD, folder.path())
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let told = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        // On a machine with one processor the name of the test stands before it.
        .find_map(|line| Some(line.split_once("running: ")?.1.to_owned()))
        .expect("the child has a host");
    let running: Vec<u32> = told.split(' ').map(|id| id.parse().unwrap()).collect();
    assert!(running.len() > 1 && running.iter().all(|id| runs(*id)));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until_gone(running.into_iter());
}

async fn hold_a_host(folder: &Path) {
    let hosts = backend(folder).unwrap();
    let host = booting("real-e", 5, "v1.36.3+k3s1");
    hosts.boot(&host).await.unwrap();
    let is_up = || {
        hosts
            .read("ns/edge", "real-e", "/root/outside")
            .is_ok_and(|text| !text.is_empty())
    };
    until("a host", is_up);
    let running: Vec<String> = hosts
        .processes("ns/edge", "real-e")
        .iter()
        .map(u32::to_string)
        .collect();
    println!("running: {}", running.join(" "));
    std::future::pending::<()>().await;
}
