//! Real machines: GRUB, Debian's kernel and the agent in qemu's software emulation. They update, fail to boot, hang until the
//! watchdog bites, and return to the slot they came from.

mod build;
mod parts;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use build::{Behaviour, Workshop, script};
use parts::Parts;

/// A machine that is still on after this is stuck.
const LONGEST: Duration = Duration::from_mins(7);

/// Runs until the machine switches itself off; gives what it said.
fn power_on(disk: &Path) -> Vec<String> {
    let began = Instant::now();
    let mut machine = Command::new("qemu-system-x86_64")
        .args([
            "-machine",
            "q35",
            "-cpu",
            "max",
            "-m",
            "384",
            "-nographic",
            "-nodefaults",
            "-serial",
            "stdio",
        ])
        .arg("-drive")
        .arg(format!("file={},if=virtio,format=raw", disk.display()))
        .args(["-device", "i6300esb", "-action", "watchdog=reset"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("qemu runs");
    let (sender, lines) = mpsc::channel();
    let console = BufReader::new(machine.stdout.take().expect("a console"));
    thread::spawn(move || {
        for line in console.split(b'\n').map_while(Result::ok) {
            let _ = sender.send(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
    });
    let mut said = Vec::new();
    while let Ok(line) = lines.recv_timeout(LONGEST.saturating_sub(began.elapsed())) {
        said.push(line);
    }
    let ended = machine.try_wait().expect("asked").is_some() || {
        // The console is closed a moment before the process is gone.
        let _ = machine.kill();
        machine.wait().expect("ended");
        began.elapsed() < LONGEST
    };
    assert!(
        ended,
        "the machine is still on after {LONGEST:?}; it said:\n{}",
        said.join("\n")
    );
    let boots = said.iter().filter(|line| line.contains("SAY boot")).count();
    println!("{boots} boots in {:.1} s", began.elapsed().as_secs_f32());
    said
}

/// The lines that the systems say on purpose.
fn spoken(said: &[String]) -> Vec<&str> {
    said.iter()
        .filter_map(|line| line.split_once("SAY ").map(|(_, text)| text.trim()))
        .collect()
}

/// A machine of version 1, offered this one.
fn offered(version: &str, behaviour: Behaviour) -> Option<Vec<String>> {
    let parts = Parts::find()?;
    let folder = tempfile::tempdir().expect("a folder");
    let workshop = Workshop::new(folder.path(), parts);
    let first = workshop.slot("1", Behaviour::Good);
    let second = workshop.slot(version, behaviour);
    let data = folder.path().join("data");
    fs::create_dir_all(&data).expect("a folder");
    workshop.image(version, &second, &data.join("image"));
    fs::write(data.join("precious"), "what the host is for").expect("written");
    script(
        &data,
        r#"if [ -e /data/offered ]; then
  slipway-agent status | while read -r line; do echo "SAY $line"; done
  slipway-agent history | while read -r line; do echo "SAY $line"; done
  echo "SAY data $(cat /data/precious)"
else
  touch /data/offered; sync
  slipway-agent update --from /data/image --id offered || echo "SAY update failed"
  sleep 60
fi
"#,
    );
    let disk = workshop.disk(&first, &data);
    Some(power_on(&disk))
}

/// The three boots that run everywhere: the old system, the new one that hangs, and the old one again.
#[test]
fn e28_grub_returns_from_a_system_that_hangs_when_the_watchdog_bites() {
    let Some(said) = offered("2", Behaviour::Hangs) else {
        return;
    };
    let spoken = spoken(&said);
    let boots: Vec<&&str> = spoken.iter().filter(|line| line.starts_with("boot")).collect();
    assert_eq!(
        boots,
        [&"boot 1 A", &"boot 2 B", &"boot 1 A"],
        "{}",
        said.join("\n")
    );
    assert!(
        spoken
            .iter()
            .any(|line| line.starts_with("offered") && line.contains("rolled back")),
        "{spoken:?}"
    );
    assert!(spoken.contains(&"data what the host is for"), "{spoken:?}");
}

fn full() -> bool {
    let full = std::env::var("SLIPWAY_TEST_FULL").is_ok_and(|value| value == "1");
    if !full {
        eprintln!("SKIPPED: more boots of real machines run with SLIPWAY_TEST_FULL=1");
    }
    full
}

#[test]
fn grub_boots_the_new_system_and_it_is_confirmed() {
    if !full() {
        return;
    }
    let Some(said) = offered("2", Behaviour::Good) else {
        return;
    };
    let spoken = spoken(&said);
    let boots: Vec<&&str> = spoken.iter().filter(|line| line.starts_with("boot")).collect();
    assert_eq!(boots, [&"boot 1 A", &"boot 2 B"], "{}", said.join("\n"));
    assert!(
        spoken
            .iter()
            .any(|line| line.starts_with("* B") && line.ends_with("good")),
        "{spoken:?}"
    );
    assert!(
        spoken
            .iter()
            .any(|line| line.starts_with("offered") && line.contains("confirmed")),
        "{spoken:?}"
    );
    assert!(spoken.contains(&"data what the host is for"), "{spoken:?}");
}

#[test]
fn e28_grub_returns_from_a_system_that_panics() {
    if !full() {
        return;
    }
    let Some(said) = offered("2", Behaviour::Panics) else {
        return;
    };
    let spoken = spoken(&said);
    let boots: Vec<&&str> = spoken.iter().filter(|line| line.starts_with("boot")).collect();
    assert_eq!(
        boots,
        [&"boot 1 A", &"boot 2 B", &"boot 1 A"],
        "{}",
        said.join("\n")
    );
    assert!(
        spoken.iter().any(|line| line.contains("rolled back")),
        "{spoken:?}"
    );
}

#[test]
fn e29_a_system_that_is_not_healthy_is_left_for_the_one_before() {
    if !full() {
        return;
    }
    let Some(said) = offered("2", Behaviour::Unhealthy) else {
        return;
    };
    let spoken = spoken(&said);
    let boots: Vec<&&str> = spoken.iter().filter(|line| line.starts_with("boot")).collect();
    assert_eq!(
        boots,
        [&"boot 1 A", &"boot 2 B", &"boot 1 A"],
        "{}",
        said.join("\n")
    );
    assert!(
        spoken.iter().any(|line| line.contains("rolled back")),
        "{spoken:?}"
    );
}
