//! Everything that can keep the parts from being built says what to do. `go` is played by a script.

use std::{fs, path::PathBuf, process::Command};

use slipway_testbed::{Part, PartsError, parts::Builder};
use tempfile::TempDir;

/// A `go` that answers `go env GOVERSION` with a version and runs `rest` for everything else.
struct FakeGo {
    directory: TempDir,
}

impl FakeGo {
    fn new(version: &str, rest: &str) -> FakeGo {
        let directory = tempfile::tempdir().unwrap();
        let script = format!("#!/bin/sh\nif [ \"$1\" = env ]; then echo {version}; exit 0; fi\n{rest}\n");
        crate::script(&directory.path().join("go"), &script);
        FakeGo { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("go")
    }

    fn cache(&self) -> PathBuf {
        self.directory.path().join("cache")
    }

    fn build(&self) -> PartsError {
        Builder::new()
            .unwrap()
            .go(self.path())
            .cache(self.cache())
            .progress(|_| {})
            .build(&Part::ALL)
            .map(|parts| parts.directory().to_owned())
            .expect_err("a fake go builds nothing")
    }
}

#[test]
fn a_missing_go_is_named_with_the_way_out() {
    let empty = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_testbed"))
        .arg("parts")
        .env("PATH", empty.path())
        .env("XDG_CACHE_HOME", empty.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("error: Go is not installed"), "{said}");
    assert!(said.contains("Install Go 1.26 or newer"), "{said}");
    assert_eq!(said.lines().count(), 1, "one message: {said}");
}

#[test]
fn an_old_go_is_refused_before_anything_is_built() {
    let go = FakeGo::new("go1.24.3", "echo built >&2; exit 1");
    let error = go.build().to_string();
    assert!(
        error.contains("go1.24.3") && error.contains("1.26 or newer is needed"),
        "{error}"
    );
    assert!(!go.cache().exists());
}

#[test]
fn a_broken_network_is_not_taken_for_a_broken_build() {
    let go = FakeGo::new(
        "go1.26.8",
        "echo 'go: k8s.io/kubernetes@v1.36.3: dial tcp: lookup proxy: no such host' >&2; exit 1",
    );
    let error = go.build();
    assert!(matches!(error, PartsError::Download { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("no such host") && text.contains("Check the network"),
        "{text}"
    );
}

#[test]
fn a_build_failure_names_the_part_and_what_go_said() {
    let go = FakeGo::new(
        "go1.26.8",
        "[ \"$1\" = list ] && exit 0; echo 'undefined: thing' >&2; exit 1",
    );
    let error = go.build().to_string();
    assert!(
        error.starts_with("building launch failed") && error.contains("undefined: thing"),
        "{error}"
    );
}

#[test]
fn a_full_disk_is_named_with_the_way_out() {
    let go = FakeGo::new(
        "go1.26.8",
        "[ \"$1\" = list ] && exit 0; echo 'link: write a.out: no space left on device' >&2; exit 1",
    );
    let error = go.build();
    assert!(matches!(error, PartsError::CacheFull { .. }), "{error:?}");
    assert!(error.to_string().contains("set XDG_CACHE_HOME"), "{error}");
}

#[test]
fn a_cache_that_cannot_be_written_is_named_with_the_way_out() {
    let go = FakeGo::new("go1.26.8", "exit 1");
    // Not even root can make a directory below a file.
    fs::write(go.cache(), "a file").unwrap();
    let error = go.build();
    assert!(matches!(error, PartsError::CacheNotWritable { .. }), "{error:?}");
    assert!(error.to_string().contains("set XDG_CACHE_HOME"), "{error}");
}

#[test]
fn an_unknown_part_is_answered_with_those_there_are() {
    let error = Part::named("docker").unwrap_err().to_string();
    assert!(
        error.contains("\"docker\"") && error.contains("kubernetes, cluster-api"),
        "{error}"
    );
}
