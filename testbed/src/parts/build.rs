//! Builds missing parts into the cache: one part at a time, each placed by a rename, under a lock that makes a
//! second run wait instead of building the same again. What is built stays when a later part fails.

use std::{
    env,
    ffi::OsString,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use super::{Part, Parts, PartsError, manifests, sources};

/// The oldest Go that builds the pinned modules.
pub const OLDEST_GO: &str = "1.26";

/// Two compile jobs at a time: linking Kubernetes alone takes gigabytes of memory.
pub(super) const FLAGS: &[&str] = &["build", "-p=2", "-trimpath", "-buildvcs=false", "-mod=readonly"];

/// Without symbols: the binaries are half the size.
pub(super) const LINKER_FLAGS: &str = "-s -w";

/// How often a long step says that it is still at it.
const STILL_AT_IT: Duration = Duration::from_secs(10);

/// A program of a Go module, and what the linker tells it about its own version.
pub(super) struct Program<'a> {
    pub name: &'static str,
    pub package: &'a str,
    pub version_flags: &'a str,
}

/// Where to build, and with which Go.
pub struct Builder {
    cache: PathBuf,
    go: OsString,
    environment: Vec<(OsString, OsString)>,
    progress: Box<dyn Fn(&str)>,
}

impl Builder {
    /// The user's cache and the `go` on PATH.
    pub fn new() -> Result<Builder, PartsError> {
        let cache = match (env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")) {
            (Some(cache), _) if !cache.is_empty() => PathBuf::from(cache),
            (_, Some(home)) if !home.is_empty() => PathBuf::from(home).join(".cache"),
            _ => return Err(PartsError::NoCacheDirectory),
        };
        Ok(Builder {
            cache: cache.join("slipway/parts"),
            go: "go".into(),
            environment: Vec::new(),
            progress: Box::new(|line| eprintln!("{line}")),
        })
    }

    pub fn cache(mut self, cache: impl Into<PathBuf>) -> Self {
        self.cache = cache.into();
        self
    }

    pub(super) fn cache_directory(&self) -> &Path {
        &self.cache
    }

    pub fn go(mut self, go: impl Into<OsString>) -> Self {
        self.go = go.into();
        self
    }

    /// Sets a variable for the `go` command.
    pub fn environment(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Hears what is being done; stderr unless told otherwise.
    pub fn progress(mut self, progress: impl Fn(&str) + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// The desired parts and all manifests; builds what is missing.
    pub fn build(&self, desired: &[Part]) -> Result<Parts, PartsError> {
        let key = sources::key(&[FLAGS, &[LINKER_FLAGS]].concat());
        let version = match self
            .go_version()
            .and_then(|version| check_version(&version).map(|()| version))
        {
            Ok(version) => version,
            // Parts that were built before need no Go to run.
            Err(error) => return self.built_before(&key, desired).ok_or(error),
        };
        let parts = Parts::at(self.cache.join(format!("{key}-{version}")));
        if is_complete(&parts, desired) {
            return Ok(parts);
        }

        fs::create_dir_all(&parts.directory).map_err(|source| PartsError::cache(&parts.directory, source))?;
        let _lock = self.lock(&parts.directory.join("lock"))?;
        // Another run may have built them while this one waited.
        if is_complete(&parts, desired) {
            return Ok(parts);
        }
        self.build_missing(&parts, desired)?;
        Ok(parts)
    }

    fn build_missing(&self, parts: &Parts, desired: &[Part]) -> Result<(), PartsError> {
        // kubectl renders the manifests, so Kubernetes is always among them.
        let missing: Vec<Part> = Part::ALL
            .into_iter()
            .filter(|part| desired.contains(part) || *part == Part::Kubernetes)
            .filter(|part| !parts.has(*part))
            .collect();
        let source = parts.directory.join("source");
        sources::write(&source)?;
        let bin = parts.directory.join("bin");
        fs::create_dir_all(&bin).map_err(|source| PartsError::cache(&bin, source))?;

        let steps = missing.len() + 2;
        let started = Instant::now();
        self.download(&source, &format!("downloading Go modules (1 of {steps})"))?;
        for (index, part) in missing.iter().enumerate() {
            let step = format!("building {} ({} of {steps})", part.name(), index + 2);
            self.build_one(parts, &source, *part, &step)?;
        }
        if !parts.has_manifests() {
            (self.progress)(&format!("rendering manifests ({steps} of {steps})…"));
            manifests::render(parts, |module| self.module_directory(&source, module))?;
        }
        (self.progress)(&format!(
            "real parts are ready in {} ({} s)",
            parts.directory.display(),
            started.elapsed().as_secs()
        ));
        Ok(())
    }

    /// Downloads on its own, so that a broken network is not taken for a broken build.
    fn download(&self, source: &Path, step: &str) -> Result<(), PartsError> {
        let mut command = self.go_command(source);
        command.args(["list", "-mod=readonly", "-deps", "-f", "{{.Name}}"]);
        command.args(Part::ALL.map(Part::package));
        let output = self.run(command, step)?;
        if output.status.success() {
            return Ok(());
        }
        let detail = tail(&output.stderr);
        if is_full(&detail) {
            return Err(PartsError::CacheFull {
                path: self.cache.clone(),
            });
        }
        Err(PartsError::Download { detail })
    }

    fn build_one(&self, parts: &Parts, source: &Path, part: Part, step: &str) -> Result<(), PartsError> {
        let unfinished = parts.directory.join(format!("{}.unfinished", part.name()));
        let program = Program {
            name: part.name(),
            package: part.package(),
            version_flags: &part.version_flags(),
        };
        self.compile(source, &program, step, &unfinished, &parts.binary(part))
    }

    /// Builds one program of a module, and puts it in place when it is whole.
    pub(super) fn compile(
        &self,
        source: &Path,
        program: &Program<'_>,
        step: &str,
        unfinished: &Path,
        binary: &Path,
    ) -> Result<(), PartsError> {
        let mut command = self.go_command(source);
        command
            .args(FLAGS)
            .arg(format!("-ldflags={LINKER_FLAGS}{}", program.version_flags))
            .arg("-o")
            .arg(unfinished)
            .arg(program.package)
            .env("CGO_ENABLED", "0");
        let output = self.run(command, step)?;
        if !output.status.success() {
            // What is left of it is of no use, and removing it is best effort.
            let _ = fs::remove_file(unfinished);
            let detail = tail(&output.stderr);
            return Err(if is_full(&detail) {
                PartsError::CacheFull {
                    path: self.cache.clone(),
                }
            } else {
                PartsError::Build {
                    part: program.name,
                    detail,
                }
            });
        }
        fs::rename(unfinished, binary).map_err(|source| PartsError::cache(binary, source))
    }

    /// Where the module cache holds a module of the pinned version.
    pub(super) fn module_directory(&self, source: &Path, module: &str) -> Result<PathBuf, PartsError> {
        let mut command = self.go_command(source);
        command.args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module]);
        let output = output(command)?;
        let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || directory.is_empty() {
            return Err(PartsError::Download {
                detail: tail(&output.stderr),
            });
        }
        Ok(directory.into())
    }

    /// `go1.26.8`, as the Go command itself says.
    pub(super) fn go_version(&self) -> Result<String, PartsError> {
        let mut command = self.go_command(Path::new("/"));
        command.args(["env", "GOVERSION"]);
        let output = output(command)?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() || version.is_empty() {
            return Err(PartsError::Go {
                command: "go env GOVERSION".to_owned(),
                source: io::Error::other(tail(&output.stderr)),
            });
        }
        Ok(version)
    }

    fn go_command(&self, directory: &Path) -> Command {
        let mut command = Command::new(&self.go);
        command
            .current_dir(directory)
            .env("GOWORK", "off")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs one step and says every ten seconds that it is still running.
    fn run(&self, mut command: Command, step: &str) -> Result<Output, PartsError> {
        (self.progress)(&format!("{step}…"));
        let started = Instant::now();
        let words = describe(&command);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| go_failed(words.clone(), source))?;
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(child.wait_with_output()));
        loop {
            match receiver.recv_timeout(STILL_AT_IT) {
                Ok(result) => return result.map_err(|source| go_failed(words, source)),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    (self.progress)(&format!("{step}: {} s", started.elapsed().as_secs()));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(go_failed(words, io::Error::other("it was never waited for")));
                }
            }
        }
    }

    pub(super) fn lock(&self, path: &Path) -> Result<File, PartsError> {
        let file = File::create(path).map_err(|source| PartsError::cache(path, source))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                (self.progress)("another run is building the real parts; waiting for it…");
                file.lock().map_err(|source| PartsError::cache(path, source))?;
                Ok(file)
            }
            Err(TryLockError::Error(source)) => Err(PartsError::cache(path, source)),
        }
    }

    /// A complete build of the same sources, by whichever Go.
    fn built_before(&self, key: &str, desired: &[Part]) -> Option<Parts> {
        let prefix = format!("{key}-");
        fs::read_dir(&self.cache)
            .ok()?
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| Parts::at(entry.path()))
            .find(|parts| is_complete(parts, desired))
    }
}

fn is_complete(parts: &Parts, desired: &[Part]) -> bool {
    desired.iter().all(|part| parts.has(*part)) && parts.has_manifests()
}

fn output(mut command: Command) -> Result<Output, PartsError> {
    let words = describe(&command);
    command.output().map_err(|source| go_failed(words, source))
}

fn go_failed(command: String, source: io::Error) -> PartsError {
    if source.kind() == io::ErrorKind::NotFound {
        let program = command.split(' ').next().unwrap_or("go").to_owned();
        return PartsError::GoMissing { program };
    }
    PartsError::Go { command, source }
}

fn describe(command: &Command) -> String {
    let mut words = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args().take(2) {
        words.push(' ');
        words.push_str(&argument.to_string_lossy());
    }
    words
}

/// Fails for a Go older than [`OLDEST_GO`]; a development version passes.
fn check_version(version: &str) -> Result<(), PartsError> {
    let number = |text: &str| {
        let mut digits = text.split('.').map(|part| {
            part.chars()
                .take_while(char::is_ascii_digit)
                .collect::<String>()
                .parse::<u32>()
                .unwrap_or(0)
        });
        (digits.next().unwrap_or(0), digits.next().unwrap_or(0))
    };
    let Some(text) = version.strip_prefix("go") else {
        return Ok(());
    };
    if number(text) < number(OLDEST_GO) {
        return Err(PartsError::GoTooOld {
            found: version.to_owned(),
        });
    }
    Ok(())
}

fn is_full(detail: &str) -> bool {
    detail.contains("no space left on device") || detail.contains("disk quota exceeded")
}

/// The end of what a command said: its last words are the reason.
pub(super) fn tail(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_go_older_than_the_modules_ask_for_is_refused() {
        for old in ["go1.25.9", "go1.9", "go1.25rc1"] {
            assert!(
                matches!(check_version(old), Err(PartsError::GoTooOld { .. })),
                "{old}"
            );
        }
        for new in ["go1.26", "go1.26.8", "go1.27rc1", "go2.0", "devel +abcdef"] {
            assert!(check_version(new).is_ok(), "{new}");
        }
    }

    #[test]
    fn the_last_words_of_a_command_are_kept() {
        let said: Vec<String> = (1..=30).map(|line| line.to_string()).collect();
        let said = said.join("\n");
        let tail = tail(said.as_bytes());
        assert!(tail.starts_with("11\n") && tail.ends_with("30"));
    }
}
