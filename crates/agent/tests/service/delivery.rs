//! E-53: container images where Kubernetes takes them: whole or not at all, under tag and digest, and as long as they are
//! pinned. With a real containerd, with upstream cut off, and after its restart.

use std::{
    fs,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use oci_client::secrets::RegistryAuth;
use slipway_agent::{
    cache::{Cache, RegistrySettings},
    deliver::{Containerd, Deliveries, K3sFolder},
    service::machine::LocalMachine,
};
use slipway_slots::Digest;
use tempfile::TempDir;

use crate::cache::{
    TestImage, TestSource, ensure, layer, open,
    real_registry::{RealRegistry, request},
};

fn names(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn e53_an_image_is_in_k3s_folder_as_long_as_it_is_pinned() {
    let root = TempDir::new().unwrap();
    let cache = open(&root.path().join("cache"), 8 << 20);
    let image = TestImage::of("app", &[layer(1, 50_000)]);
    let registry = TestSource::new("registry", &[&image]);
    let mut order = ensure(image.digest, &[&registry]);
    order.name = Some("registry.example/app:1".into());
    order.pin = Some("HostImage/app".into());
    cache.ensure(order, |_| {}).await.unwrap();
    let folder = root.path().join("images");
    let deliveries = Deliveries {
        k3s: Some(K3sFolder(folder.clone())),
        containerd: None,
    };
    fs::create_dir_all(&folder).unwrap();
    // Somebody else's files, one of them with a name like ours.
    fs::write(folder.join("airgap-images.tar"), b"k3s' own").unwrap();
    fs::write(folder.join("slipway-notes.tar"), b"a person's").unwrap();
    let k3s = deliveries.k3s.clone().unwrap();
    k3s.deliver(&cache, &image.digest).unwrap();
    k3s.deliver(&cache, &image.digest).unwrap();
    let hex = image.digest.to_string().replace("sha256:", "");
    let ours = format!("slipway-{hex}.tar");
    assert_eq!(
        names(&folder),
        ["airgap-images.tar", ours.as_str(), "slipway-notes.tar"]
    );
    // It is a whole image under both names.
    let there = open(&root.path().join("there"), 8 << 20);
    there.import(&folder.join(&ours), &[image.digest]).unwrap();
    let unpacked = root.path().join("unpacked");
    tar::Archive::new(fs::File::open(folder.join(&ours)).unwrap())
        .unpack(&unpacked)
        .unwrap();
    let index = fs::read_to_string(unpacked.join("index.json")).unwrap();
    for name in [
        "registry.example/app:1".to_owned(),
        format!("registry.example/app@{}", image.digest),
    ] {
        assert!(
            index.contains(&format!("\"io.containerd.image.name\":\"{name}\"")),
            "{index}"
        );
    }
    deliveries.tidy(&cache, &LocalMachine).await.unwrap();
    assert_eq!(names(&folder).len(), 3, "it is pinned");
    cache.unpin(&image.digest, "HostImage/app").unwrap();
    deliveries.tidy(&cache, &LocalMachine).await.unwrap();
    assert_eq!(names(&folder), ["airgap-images.tar", "slipway-notes.tar"]);
}

/// A containerd of our own, with its own folders and socket.
struct RealContainerd {
    child: Option<Child>,
    folder: TempDir,
}

impl Drop for RealContainerd {
    fn drop(&mut self) {
        self.stop();
    }
}

impl RealContainerd {
    fn start(test: &str) -> Option<Self> {
        for program in ["containerd", "ctr"] {
            if Command::new(program).arg("--version").output().is_err() {
                println!("report: skipped: {test}: {program} is not installed (Debian package containerd)");
                return None;
            }
        }
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\", \"io.containerd.snapshotter.v1.devmapper\", \"io.containerd.snapshotter.v1.btrfs\", \"io.containerd.snapshotter.v1.zfs\", \"io.containerd.snapshotter.v1.aufs\"]\n[grpc]\naddress = {:?}\n[ttrpc]\naddress = {:?}\n",
            at("root"),
            at("state"),
            at("containerd.sock"),
            at("ttrpc.sock"),
        );
        fs::write(folder.path().join("config.toml"), config).unwrap();
        let mut containerd = Self { child: None, folder };
        containerd.run();
        Some(containerd)
    }

    fn run(&mut self) {
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        let child = Command::new("containerd")
            .arg("--config")
            .arg(self.folder.path().join("config.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let began = Instant::now();
        while !self.ctr(&["version"]).0 {
            assert!(
                began.elapsed() < Duration::from_mins(1),
                "containerd does not start: {}",
                fs::read_to_string(self.folder.path().join("log")).unwrap()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn address(&self) -> String {
        self.folder.path().join("containerd.sock").display().to_string()
    }

    fn ctr(&self, arguments: &[&str]) -> (bool, String) {
        let address = self.address();
        let output = Command::new("ctr")
            .args([
                "--address",
                &address,
                "--namespace",
                "k8s.io",
                "--connect-timeout",
                "2s",
            ])
            .args(arguments)
            .output()
            .unwrap();
        let text =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    }
}

/// A program of one page that says a line and ends, for x86_64: the smallest thing that runs.
fn program(line: &str) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let mut code = vec![0xb8, 1, 0, 0, 0, 0xbf, 1, 0, 0, 0, 0x48, 0xbe];
    // write(1, line, length); exit(0)
    let text_at = BASE + HEADERS + 12 + 8 + 5 + 2 + 5 + 2 + 2;
    code.extend(text_at.to_le_bytes());
    code.push(0xba);
    code.extend((line.len() as u32).to_le_bytes());
    code.extend([0x0f, 0x05, 0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05]);
    code.extend(line.as_bytes());
    let size = HEADERS + code.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    elf.extend((BASE + HEADERS).to_le_bytes());
    elf.extend(64_u64.to_le_bytes());
    elf.extend(0_u64.to_le_bytes());
    elf.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    elf.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for field in [0, BASE, BASE, size, size, 0x1000] {
        elf.extend(field.to_le_bytes());
    }
    elf.extend(code);
    elf
}

/// A layer with that program, and the configuration of an image that runs it.
fn runnable(line: &str) -> (Vec<u8>, Vec<u8>) {
    let bytes = program(line);
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o755);
    archive
        .append_data(&mut header, "hello", bytes.as_slice())
        .unwrap();
    let layer = archive.into_inner().unwrap();
    let config = serde_json::json!({
        "architecture": slipway_agent::cache::architecture(),
        "os": "linux",
        "config": {"Cmd": ["/hello"]},
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer).to_string()]},
    });
    (layer, config.to_string().into_bytes())
}

async fn delivered(cache: &Arc<Cache>, containerd: &Containerd, digest: &Digest) -> Vec<String> {
    containerd.deliver(cache, &LocalMachine, digest).await.unwrap()
}

#[tokio::test]
async fn e53_a_real_containerd_takes_the_image_and_keeps_its_pin_over_a_restart() {
    let test = "e53 with a real containerd";
    let (Some(mut registry), Some(mut real)) =
        (RealRegistry::start(test, false), RealContainerd::start(test))
    else {
        return;
    };
    let (layer, config) = runnable("hello from the cache\n");
    let digest = registry
        .push_with("team/app:1", &layer, config, &RegistryAuth::Anonymous)
        .await;
    let root = TempDir::new().unwrap();
    let cache = open(&root.path().join("cache"), 8 << 20);
    let settings = RegistrySettings {
        plain_http: vec![registry.address.clone()],
        ..RegistrySettings::default()
    };
    let name = format!("{}/team/app:1", registry.address);
    let mut order = request(&settings, &name, Some(digest), None);
    order.pin = Some("HostImage/app".into());
    cache.ensure(order, |_| {}).await.unwrap();
    registry.cut_off();

    let containerd = Containerd {
        command: vec!["ctr".into()],
        address: real.address(),
        namespace: "k8s.io".into(),
        scratch: root.path().to_owned(),
    };
    let announced = delivered(&cache, &containerd, &digest).await;
    assert_eq!(
        announced,
        [name.clone(), format!("{}/team/app@{digest}", registry.address)]
    );
    delivered(&cache, &containerd, &digest).await;
    assert!(
        names(root.path()).iter().all(|name| !name.contains("import")),
        "the file for the import is gone"
    );
    for restarted in [false, true] {
        if restarted {
            real.stop();
            real.run();
        }
        let (good, check) = real.ctr(&["images", "check"]);
        assert!(good, "{check}");
        for name in &announced {
            let line = check
                .lines()
                .find(|line| line.split_whitespace().next() == Some(name))
                .unwrap_or_else(|| panic!("{name} is not in {check}"));
            assert!(line.contains("complete"), "{line}");
            let (_, listed) = real.ctr(&["images", "list", &format!("name=={name}")]);
            assert!(listed.contains("io.cri-containerd.pinned=pinned"), "{listed}");
            assert!(listed.contains(&digest.to_string()), "{listed}");
        }
        let (_, content) = real.ctr(&["content", "list"]);
        let source = format!("containerd.io/distribution.source.{}=team/app", registry.address);
        assert!(content.contains(&source), "{content}");
    }
    // Upstream has long been cut off, and it runs.
    if std::env::consts::ARCH == "x86_64" {
        let (ran, said) = real.ctr(&["run", "--rm", "--net-host", &name, "hello"]);
        if said.contains("hello from the cache") {
            assert!(ran, "{said}");
        } else {
            println!(
                "report: skipped: running a container of what was cached, runc cannot do it here: {said}"
            );
            assert!(!said.contains("not found"), "the content is missing: {said}");
        }
    }
    // Somebody took the label off while the image is pinned: it comes back, and on both names.
    for name in &announced {
        let (taken, said) = real.ctr(&["images", "label", name, "io.cri-containerd.pinned="]);
        assert!(taken, "{said}");
    }
    containerd.tidy(&cache, &LocalMachine).await.unwrap();
    let (_, listed) = real.ctr(&["images", "list"]);
    assert_eq!(
        listed.matches("io.cri-containerd.pinned=pinned").count(),
        2,
        "{listed}"
    );
    // Nobody pins it any more: the label goes, and the kubelet may take it.
    cache.unpin(&digest, "HostImage/app").unwrap();
    containerd.tidy(&cache, &LocalMachine).await.unwrap();
    let (_, listed) = real.ctr(&["images", "list"]);
    assert!(!listed.contains("pinned=pinned"), "{listed}");
}
