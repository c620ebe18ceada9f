//! The journal: one line a fact, readable by people, each with a checksum that also covers the line before it.
//!
//! It saves time and remembers reasons. Nothing unsafe follows from losing it: slots are read back before they are
//! armed, and the boot store tells which one runs.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use slipway_slots::machine::{Entry, Ledger};

/// Above this the journal is written again as one summary.
const COMPACT_ABOVE: usize = 256 * 1024;
/// More is not read: a journal is never so long.
const MAX_JOURNAL: u64 = 16 << 20;

/// Where the journal's bytes are.
pub trait JournalMedium: Send {
    fn describe(&self) -> String;
    fn read(&mut self) -> io::Result<Vec<u8>>;
    /// Durable when it returns.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// All of the old or all of the new; durable when it returns.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A line as it is written, after its checksum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    pub time: Timestamp,
    pub reason: String,
    pub entry: Entry,
}

#[derive(Debug, thiserror::Error)]
#[error("the journal at {place} cannot be {doing}: {source}")]
pub struct JournalError {
    place: String,
    doing: &'static str,
    source: io::Error,
}

/// What could be read of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub lines: Vec<Line>,
    /// Damage that was passed over.
    pub problems: Vec<String>,
    /// How many bytes from the beginning are good.
    good: usize,
    sum: u32,
}

/// Everything up to the first damaged line. What stands after it cannot be told from an older journal, so it is not
/// believed.
pub fn read_lines(bytes: &[u8]) -> Reading {
    let mut reading = Reading::default();
    let mut rest = bytes;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let Some((line, sum)) = parse(&rest[..end], reading.sum) else {
            break;
        };
        reading.lines.push(line);
        reading.sum = sum;
        reading.good += end + 1;
        rest = &rest[end + 1..];
    }
    if !rest.is_empty() {
        reading.problems.push(format!(
            "{} bytes after line {} are damaged or of an interrupted write and were left out",
            rest.len(),
            reading.lines.len()
        ));
    }
    reading
}

fn parse(line: &[u8], before: u32) -> Option<(Line, u32)> {
    let line = std::str::from_utf8(line).ok()?;
    let (sum, text) = line.split_once(' ')?;
    let computed = checksum(text, before);
    (sum == format!("{computed:08x}")).then_some(())?;
    Some((serde_json::from_str(text).ok()?, computed))
}

fn checksum(text: &str, before: u32) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_be_bytes());
    hasher.update(text.as_bytes());
    hasher.finalize()
}

/// The journal, open for appending.
pub struct Journal {
    medium: Box<dyn JournalMedium>,
    ledger: Ledger,
    sum: u32,
    length: usize,
    problems: Vec<String>,
}

impl Journal {
    pub fn open(mut medium: Box<dyn JournalMedium>) -> Result<Self, JournalError> {
        let bytes = medium.read().map_err(|source| JournalError {
            place: medium.describe(),
            doing: "read",
            source,
        })?;
        let reading = read_lines(&bytes);
        let mut ledger = Ledger::default();
        for line in &reading.lines {
            ledger.apply(&line.entry);
        }
        let mut journal = Self {
            medium,
            ledger,
            sum: reading.sum,
            length: reading.good,
            problems: reading.problems,
        };
        if reading.good < bytes.len() {
            // What is appended must follow a good line.
            journal.replace(&bytes[..reading.good])?;
        }
        Ok(journal)
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// What was damaged when it was opened.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    pub fn record(&mut self, entry: Entry, reason: &str, time: Timestamp) -> Result<(), JournalError> {
        let line = Line {
            time,
            reason: reason.to_owned(),
            entry,
        };
        let (bytes, sum) = encode(&line, self.sum);
        self.medium.append(&bytes).map_err(|source| JournalError {
            place: self.medium.describe(),
            doing: "written",
            source,
        })?;
        self.ledger.apply(&line.entry);
        self.sum = sum;
        self.length += bytes.len();
        if self.length > COMPACT_ABOVE {
            let summary = Line {
                time,
                reason: "the journal was shortened".to_owned(),
                entry: Entry::Summary(self.ledger.clone()),
            };
            let (bytes, sum) = encode(&summary, 0);
            self.replace(&bytes)?;
            self.sum = sum;
            self.length = bytes.len();
        }
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        self.medium.replace(bytes).map_err(|source| JournalError {
            place: self.medium.describe(),
            doing: "written",
            source,
        })
    }
}

fn encode(line: &Line, before: u32) -> (Vec<u8>, u32) {
    let text = serde_json::to_string(line).expect("a line has only text, numbers and lists");
    let sum = checksum(&text, before);
    (format!("{sum:08x} {text}\n").into_bytes(), sum)
}

/// A file on the data partition.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
}

impl JournalFile {
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    fn sync_directory(&self) -> io::Result<()> {
        match self.path.parent() {
            Some(directory) if directory.as_os_str().is_empty() => File::open(".")?.sync_all(),
            Some(directory) => File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }
}

impl JournalMedium for JournalFile {
    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.take(MAX_JOURNAL).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let new = !self.path.exists();
        let mut file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let length = file.metadata()?.len();
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if written.is_err() {
            // Half a line would make the next one unreadable; on a full disk the old length is still to be had.
            file.set_len(length)?;
        }
        written?;
        if new {
            self.sync_directory()?;
        }
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let temporary = self.path.with_extension("new");
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        self.sync_directory()
    }
}

/// Stands in for a medium that a [`Journal`] has taken over.
pub(super) struct Closed;

impl JournalMedium for Closed {
    fn describe(&self) -> String {
        "nowhere".to_owned()
    }

    fn read(&mut self) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn append(&mut self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn replace(&mut self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
}
