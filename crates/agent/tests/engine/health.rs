//! E-29, E-30: the health policy decides: healthy for the soak time without a break, or not by the deadline.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::Duration;

use slipway_agent::engine::{HealthCheck, HealthPolicy, Probe, Soak, SystemProbe, Time};
use slipway_slots::machine::Health;

/// Time that passes only by waiting.
#[derive(Default)]
struct Waited(Mutex<Cell<Duration>>);

impl Time for Waited {
    fn elapsed(&self) -> Duration {
        self.0.lock().unwrap().get()
    }

    fn sleep(&self, duration: Duration) {
        let time = self.0.lock().unwrap();
        time.set(time.get() + duration);
    }
}

/// One letter for each check: `+` healthy, `-` not; the last goes on forever.
struct Script(&'static str, usize);

impl Probe for Script {
    fn observe(&mut self) -> Result<(), String> {
        let at = self.1.min(self.0.len() - 1);
        self.1 += 1;
        if self.0.as_bytes()[at] == b'+' {
            Ok(())
        } else {
            Err("unit k3s.service: exit status: 3".to_owned())
        }
    }
}

fn decide(script: &'static str) -> Health {
    Soak {
        probe: Script(script, 0),
        time: Waited::default(),
        soak: Duration::from_secs(15),
        deadline: Duration::from_mins(1),
        interval: Duration::from_secs(5),
    }
    .decide()
}

#[test]
fn e29_health_is_decided_by_soak_and_deadline() {
    assert_eq!(decide("+"), Health::Passed);
    assert_eq!(decide("----+"), Health::Passed, "it took a while to come up");
    let failed = "not healthy within 60 s: unit k3s.service: exit status: 3";
    assert_eq!(decide("-"), Health::Failed(failed.into()));
    let flaps = "not healthy within 60 s: it was not healthy for 15 s without a break";
    assert_eq!(decide("++-++-++-++-++-"), Health::Failed(flaps.into()));
    assert_eq!(decide("------------+"), Health::Failed(flaps.into()), "too late");
}

/// Answers each request with one line.
fn server(status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let mut request = [0; 512];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes());
        }
    });
    format!("http://{address}/healthz")
}

fn observe(policy: HealthPolicy) -> Result<(), String> {
    SystemProbe(HealthPolicy {
        check_timeout_seconds: 60,
        ..policy
    })
    .observe()
}

#[test]
fn e29_probes_say_what_is_not_healthy() {
    let http = |status| HealthPolicy {
        http: vec![server(status)],
        ..HealthPolicy::default()
    };
    observe(http("200 OK")).unwrap();
    assert!(
        observe(http("503 Service Unavailable"))
            .unwrap_err()
            .ends_with("answered 503")
    );
    let kubelet = HealthPolicy {
        kubelet: Some(server("500 Internal Server Error")),
        ..HealthPolicy::default()
    };
    assert!(
        observe(kubelet)
            .unwrap_err()
            .starts_with("kubelet at http://127.0.0.1")
    );
    let closed = HealthPolicy {
        http: vec!["http://127.0.0.1:1/".into()],
        ..HealthPolicy::default()
    };
    assert!(observe(closed).unwrap_err().contains("refused"));
    let command = |argv: &[&str]| HealthPolicy {
        commands: vec![argv.iter().map(ToString::to_string).collect()],
        ..HealthPolicy::default()
    };
    observe(command(&["true"])).unwrap();
    assert_eq!(
        observe(command(&["false"])).unwrap_err(),
        "command false: exit status: 1"
    );
    let hanging = HealthPolicy {
        check_timeout_seconds: 1,
        ..command(&["sleep", "600"])
    };
    assert!(
        SystemProbe(hanging)
            .observe()
            .unwrap_err()
            .contains("did not end within 1 s")
    );
    assert!(
        observe(command(&["/nowhere"]))
            .unwrap_err()
            .contains("cannot be started")
    );
}
