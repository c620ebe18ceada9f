//! Commands that the end of their machine, or of the agent, cut short. A note is left before the command starts; whoever
//! starts next reads how it ended. Owns one file in the state directory.

use std::{fs, io, io::Write, path::Path, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::Outcome;

/// One run of a kernel, as `/proc/sys/kernel/random/boot_id` names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(String);

impl BootId {
    pub const PLACE: &'static str = "/proc/sys/kernel/random/boot_id";

    pub fn new(text: &str) -> Self {
        Self(text.trim().to_owned())
    }

    pub fn current() -> io::Result<Self> {
        Ok(Self::new(&fs::read_to_string(Self::PLACE)?))
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    operation: String,
    argv: Vec<String>,
    boot: BootId,
    may_reboot: bool,
}

/// A command that runs; the note of it is gone when this is finished, and stays when nobody lives to do so.
pub struct Running {
    place: PathBuf,
}

/// A command whose end nobody saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interrupted {
    pub operation: String,
    pub argv: Vec<String>,
    pub outcome: Outcome,
}

fn place(state: &Path) -> PathBuf {
    state.join("running-command.json")
}

impl Running {
    /// Durable before the command starts.
    pub fn begin(
        state: &Path,
        operation: &str,
        argv: &[String],
        may_reboot: bool,
        boot: &BootId,
    ) -> io::Result<Self> {
        let note = Note {
            operation: operation.to_owned(),
            argv: argv.to_vec(),
            boot: boot.clone(),
            may_reboot,
        };
        let (place, new) = (place(state), state.join("running-command.new"));
        let mut file = fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec(&note)?)?;
        file.sync_all()?;
        fs::rename(&new, &place)?;
        fs::File::open(state)?.sync_all()?;
        Ok(Self { place })
    }

    pub fn finish(self) -> io::Result<()> {
        fs::remove_file(&self.place)
    }

    /// What the last agent here left running, and how it ended as far as anybody can tell. Told once.
    pub fn settle(state: &Path, boot: &BootId) -> io::Result<Option<Interrupted>> {
        let place = place(state);
        let bytes = match fs::read(&place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let note: Option<Note> = serde_json::from_slice(&bytes).ok();
        fs::remove_file(&place)?;
        // A note that cannot be read was not durable, so its command never started.
        Ok(note.map(|note| Interrupted {
            outcome: outcome(&note, boot),
            operation: note.operation,
            argv: note.argv,
        }))
    }
}

fn outcome(note: &Note, now: &BootId) -> Outcome {
    match (note.boot == *now, note.may_reboot) {
        (false, true) => Outcome::Rebooting,
        (false, false) => Outcome::Lost {
            reason: "the machine restarted while it ran".to_owned(),
        },
        (true, _) => Outcome::Lost {
            reason: "the agent ended while it ran".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e46_a_command_cut_short_by_the_reboot_it_asked_for_is_no_failure() {
        let state = tempfile::tempdir().expect("a folder");
        let (before, after) = (BootId::new("one\n"), BootId::new("two\n"));
        let argv = vec!["systemctl".to_owned(), "reboot".to_owned()];
        for (may_reboot, now, expected) in [
            (true, &after, "restarts the machine"),
            (
                false,
                &after,
                "was lost sight of: the machine restarted while it ran",
            ),
            (true, &before, "was lost sight of: the agent ended while it ran"),
        ] {
            drop(Running::begin(state.path(), "op-1", &argv, may_reboot, &before).expect("a note"));
            let told = Running::settle(state.path(), now)
                .expect("read")
                .expect("a command");
            assert_eq!((told.operation.as_str(), &told.argv), ("op-1", &argv));
            assert_eq!(told.outcome.to_string(), expected);
            assert_eq!(
                Running::settle(state.path(), now).expect("read"),
                None,
                "told once"
            );
        }
        let done = Running::begin(state.path(), "op-2", &argv, true, &before).expect("a note");
        done.finish().expect("finished");
        assert_eq!(Running::settle(state.path(), &after).expect("read"), None);
    }

    #[test]
    fn a_torn_note_is_a_command_that_never_started() {
        let state = tempfile::tempdir().expect("a folder");
        fs::write(place(state.path()), b"{\"operation\":\"op").expect("written");
        assert_eq!(
            Running::settle(state.path(), &BootId::new("two")).expect("read"),
            None
        );
    }

    proptest::proptest! {
        /// It is told at most once, whatever stands in it.
        #[test]
        fn a_note_takes_any_bytes(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            let state = tempfile::tempdir().expect("a folder");
            fs::write(place(state.path()), bytes).expect("written");
            let now = BootId::new("two");
            Running::settle(state.path(), &now).expect("read");
            proptest::prop_assert_eq!(Running::settle(state.path(), &now).expect("read"), None);
        }
    }
}
