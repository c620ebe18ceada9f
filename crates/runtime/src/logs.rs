//! Structured logs in the two forms Kubernetes components write: klog's text, and JSON (`--logging-format=json`).
//! A line carries the fields of the spans it was written in (controller, namespace, name, reconcileID), so that
//! one object's story can be filtered out.

use std::{
    fmt::{self, Write as _},
    io::{self, Write as _},
    sync::{Arc, OnceLock},
};

use jiff::{Timestamp, tz::TimeZone};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};
use tracing_subscriber::{
    Layer, Registry,
    filter::Targets,
    layer::{Context, SubscriberExt},
    registry::{LookupSpan, Scope},
    reload,
};

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Text,
    Json,
}

/// What `-v` is when nobody sets it, as in Cluster API's managers.
pub const DEFAULT_VERBOSITY: u32 = 2;

/// Changes the verbosity of a running process (`PUT /debug/flags/v`).
#[derive(Clone)]
pub struct Verbosity {
    handle: reload::Handle<Targets, Registry>,
}

impl Verbosity {
    pub fn set(&self, verbosity: u32) -> Result<(), String> {
        self.handle
            .reload(targets(verbosity))
            .map_err(|error| format!("cannot change the verbosity: {error}"))
    }
}

impl fmt::Debug for Verbosity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Verbosity")
    }
}

/// Which of our levels each `-v` shows. Libraries speak up only when somebody looks for a fault in them.
fn targets(verbosity: u32) -> Targets {
    let ours = match verbosity {
        0..=3 => LevelFilter::INFO,
        4 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let libraries = match verbosity {
        0..=5 => LevelFilter::WARN,
        6..=7 => LevelFilter::INFO,
        8..=9 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    Targets::new()
        .with_default(libraries)
        .with_target("slipway", ours)
}

/// The `v` of a line: what Cluster API's guidelines call default, debug and trace.
fn verbosity_of(level: Level) -> u8 {
    match level {
        Level::ERROR | Level::WARN | Level::INFO => 0,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

/// Starts logging to standard error for the whole process. A second call changes the verbosity only.
pub fn start(format: Format, verbosity: u32) -> Verbosity {
    static STARTED: OnceLock<Verbosity> = OnceLock::new();
    let mut first = false;
    let handle = STARTED.get_or_init(|| {
        first = true;
        let (filter, handle) = reload::Layer::new(targets(verbosity));
        let lines = Lines {
            format,
            output: Mutex::new(Box::new(io::stderr())),
        };
        let subscriber = Registry::default().with(filter).with(lines);
        // Fails only if a program that embeds us logs in its own way already.
        let _ = tracing::subscriber::set_global_default(subscriber);
        Verbosity { handle }
    });
    if !first {
        let _ = handle.set(verbosity);
    }
    handle.clone()
}

/// For tests and embedding: a subscriber that writes to `output`.
pub fn subscriber(
    format: Format,
    verbosity: u32,
    output: Box<dyn io::Write + Send>,
) -> (impl Subscriber + Send + Sync, Verbosity) {
    let (filter, handle) = reload::Layer::new(targets(verbosity));
    let lines = Lines {
        format,
        output: Mutex::new(output),
    };
    (Registry::default().with(filter).with(lines), Verbosity { handle })
}

/// Writes one line per event.
struct Lines {
    format: Format,
    output: Mutex<Box<dyn io::Write + Send>>,
}

/// The fields of a span or an event, in the order they were given.
#[derive(Default)]
struct Fields {
    message: String,
    values: Vec<(String, Value)>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match field.name() {
            "message" => {
                self.message = match value {
                    Value::String(text) => text,
                    other => other.to_string(),
                }
            }
            // klog's name for it.
            "error" => self.values.push(("err".to_owned(), value)),
            name => self
                .values
                .push((name.trim_start_matches("r#").to_owned(), value)),
        }
    }
}

impl Fields {
    /// The names of a span's fields are fixed when it is compiled, and Cluster API writes the object of a reconcile
    /// under the name of its kind.
    fn name_object_by_kind(&mut self) {
        let kind = self.values.iter().find_map(|(name, value)| {
            (name == "controllerKind").then(|| value.as_str().map(str::to_owned))?
        });
        if let Some(kind) = kind {
            for (name, _) in self.values.iter_mut().filter(|(name, _)| name == "object") {
                name.clone_from(&kind);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, Value::String(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

impl<S> Layer<S> for Lines
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            fields.name_object_by_kind();
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut all: Vec<(String, Value)> = Vec::new();
        for span in context.event_scope(event).into_iter().flat_map(Scope::from_root) {
            if let Some(recorded) = span.extensions().get::<Fields>() {
                all.extend(recorded.values.iter().cloned());
            }
        }
        all.append(&mut fields.values);
        let line = match self.format {
            Format::Text => text_line(Timestamp::now(), event.metadata(), &fields.message, &all),
            Format::Json => json_line(Timestamp::now(), event.metadata(), &fields.message, all),
        };
        // There is nowhere left to report that standard error is gone.
        let _ = self.output.lock().write_all(line.as_bytes());
    }
}

fn caller(metadata: &Metadata<'_>) -> String {
    let file = metadata
        .file()
        .and_then(|path| path.rsplit('/').next())
        .unwrap_or("unknown");
    format!("{file}:{}", metadata.line().unwrap_or(0))
}

/// klog's header, then the message and `key="value"` pairs.
fn text_line(now: Timestamp, metadata: &Metadata<'_>, message: &str, fields: &[(String, Value)]) -> String {
    let letter = match *metadata.level() {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let time = now
        .to_zoned(TimeZone::UTC)
        .strftime("%m%d %H:%M:%S%.6f")
        .to_string();
    let mut line = format!(
        "{letter}{time} {:>7} {}] {message:?}",
        std::process::id(),
        caller(metadata)
    );
    for (key, value) in fields {
        let _ = match value {
            Value::String(text) => write!(line, " {key}={text:?}"),
            other => write!(line, " {key}={other}"),
        };
    }
    line.push('\n');
    line
}

fn json_line(now: Timestamp, metadata: &Metadata<'_>, message: &str, fields: Vec<(String, Value)>) -> String {
    let mut line = Map::new();
    let milliseconds = now.as_microsecond() as f64 / 1e3;
    line.insert("ts".to_owned(), milliseconds.into());
    line.insert("caller".to_owned(), caller(metadata).into());
    line.insert("msg".to_owned(), message.into());
    if *metadata.level() != Level::ERROR {
        line.insert("v".to_owned(), verbosity_of(*metadata.level()).into());
    }
    line.extend(fields);
    let mut text = Value::Object(line).to_string();
    text.push('\n');
    text
}

/// A place to write logs to and read them back, for tests.
#[derive(Clone, Debug, Default)]
pub struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock()).into_owned()
    }
}

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(format: Format, verbosity: u32, write: impl FnOnce(&Verbosity)) -> String {
        let captured = Captured::default();
        let (subscriber, handle) = subscriber(format, verbosity, Box::new(captured.clone()));
        tracing::subscriber::with_default(subscriber, || write(&handle));
        captured.text()
    }

    #[test]
    fn text_is_klogs_and_carries_the_spans_fields() {
        let text = logged(Format::Text, 2, |_| {
            let span = tracing::info_span!("reconcile", controller = "fleet", name = "north");
            let _entered = span.enter();
            tracing::info!(replicas = 3, "Scaled up");
            tracing::error!(error = "no \"wind\"", "Reconciler error");
        });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(
            lines[0].starts_with('I') && lines[0].contains(" logs.rs:"),
            "{text}"
        );
        assert!(
            lines[0].ends_with(r#"] "Scaled up" controller="fleet" name="north" replicas=3"#),
            "{text}"
        );
        assert!(lines[1].starts_with('E'), "{text}");
        assert!(lines[1].ends_with(r#"err="no \"wind\"""#), "{text}");
    }

    #[test]
    fn json_has_kubernetes_keys() {
        let text = logged(Format::Json, 4, |_| {
            tracing::debug!(node = "n1", "Waiting for node");
            tracing::error!(error = "gone", "Failed to get node");
        });
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines[0]["msg"], "Waiting for node");
        assert_eq!(lines[0]["v"], 4);
        assert_eq!(lines[0]["node"], "n1");
        assert!(lines[0]["ts"].as_f64().unwrap() > 1.6e12);
        assert_eq!(lines[1]["err"], "gone");
        assert_eq!(lines[1].get("v"), None);
    }

    #[test]
    fn verbosity_decides_and_can_be_changed_while_running() {
        let text = logged(Format::Text, 2, |handle| {
            tracing::debug!("Quiet");
            handle.set(5).unwrap();
            tracing::trace!("Loud");
            handle.set(0).unwrap();
            tracing::debug!("Quiet again");
            tracing::info!("Always");
        });
        assert!(
            !text.contains("Quiet") && text.contains("Loud") && text.contains("Always"),
            "{text}"
        );
    }

    #[test]
    fn libraries_are_quiet_unless_asked() {
        let text = logged(Format::Text, 5, |_| {
            tracing::debug!(target: "hyper::client", "Chatter");
            tracing::warn!(target: "kube_client::client", "Trouble");
        });
        assert!(!text.contains("Chatter") && text.contains("Trouble"), "{text}");
    }

    #[test]
    fn the_object_of_a_reconcile_is_written_under_its_kind() {
        let text = |text: &str| Value::String(text.to_owned());
        let mut fields = Fields {
            message: String::new(),
            values: vec![
                ("controllerKind".to_owned(), text("Vessel")),
                ("object".to_owned(), text("default/north")),
            ],
        };
        fields.name_object_by_kind();
        assert_eq!(fields.values[1], ("Vessel".to_owned(), text("default/north")));
        let mut other = Fields {
            message: String::new(),
            values: vec![("object".to_owned(), text("default/north"))],
        };
        other.name_object_by_kind();
        assert_eq!(other.values[0].0, "object");
    }
}
