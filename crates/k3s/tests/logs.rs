//! What the manager logs: one line when a control plane becomes ready, and next to nothing while it waits for a machine template
//! that does not exist, or whose kind does not.

use std::{fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use slipway_apiserver_sim::faults::Faults;
use tracing::{
    Dispatch, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::DefaultGuard,
};

use super::{
    driver::{Driver, OLD},
    environment::Fleet,
};

/// The lines of a log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

/// One of them.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 = format!("{} {field}={value:?}", self.0);
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// What this thread logs goes to the lines while both are held. Of a single dispatcher, tracing asks the thread that comes to a place
/// first, and a thread of another test, which has none, would silence that place for all; of two it asks both.
fn log_to(lines: &Lines) -> (Dispatch, DefaultGuard) {
    let second = Dispatch::new(Lines::default());
    (second, tracing::subscriber::set_default(lines.clone()))
}

#[tokio::test(start_paused = true)]
async fn a_missing_template_is_no_hot_loop() {
    for (kind, template) in [("HostMachineTemplate", "nowhere"), ("NothingTemplate", "hosts")] {
        let (calls, lines) = (Faults::none(), Lines::default());
        let _logged = log_to(&lines);
        let fleet = Fleet::start_with(&calls).await;
        fleet.create_from("edge", kind, template).await;
        let writes = || calls.log().iter().filter(|call| call.writes).count();
        tokio::time::sleep(Duration::from_mins(1)).await;
        let first = (writes(), lines.0.lock().len(), calls.calls());
        tokio::time::sleep(Duration::from_mins(10)).await;
        let later = (
            writes() - first.0,
            lines.0.lock().len() - first.1,
            calls.calls() - first.2,
        );
        println!(
            "report: k3s missing {kind} {template}: (writes, log lines, calls) in the first minute {first:?}, in ten more {later:?}"
        );
        assert!(first.0 <= 20 && first.1 <= 10, "{first:?}\n{:#?}", lines.0.lock());
        assert!(later.0 <= 2 && later.1 <= 20, "{later:?}\n{:#?}", lines.0.lock());
    }
}

#[tokio::test(start_paused = true)]
async fn a_control_plane_that_becomes_ready_is_logged_once() {
    let lines = Lines::default();
    let _logged = log_to(&lines);
    let mut driver = Driver::standing(1, OLD).await;
    driver.rounds(5).await;
    let lines = lines.0.lock();
    let ready: Vec<&String> = lines
        .iter()
        .filter(|line| line.contains("Became ready") && line.contains("KThreesControlPlane"))
        .collect();
    assert_eq!(ready.len(), 1, "{lines:#?}");
    assert!(ready[0].contains("edge"), "{ready:?}");
}
