//! The cache of parts: built once however many ask, resumed where it stopped, used without Go. `go` is played by a
//! script that makes small scripts instead of programs.

use std::{fs, path::PathBuf};

use slipway_testbed::{Manifest, Part, Parts, PartsError, parts::Builder};
use tempfile::TempDir;

/// Notes every package it builds in `built`, and refuses the one named in `refuse`.
const GO: &str = r#"#!/bin/sh
here=$(dirname "$0")
case "$1" in
env) echo go1.26.8 ;;
list) [ "$3" = -m ] && echo "$here/module"; exit 0 ;;
build)
  while [ "$1" != -o ]; do shift; done
  if [ "$3" = "$(cat "$here/refuse" 2>/dev/null)" ]; then echo refused >&2; exit 1; fi
  echo "$3" >> "$here/built"
  printf '#!/bin/sh\necho "kind: Rendered"\n' > "$2" && chmod +x "$2" ;;
esac
"#;

struct Workshop {
    directory: TempDir,
}

impl Workshop {
    fn new() -> Workshop {
        let directory = tempfile::tempdir().unwrap();
        crate::script(&directory.path().join("go"), GO);
        let crds = directory.path().join("module/cmd/clusterctl/config/crd/bases");
        fs::create_dir_all(&crds).unwrap();
        fs::write(crds.join("one.yaml"), "kind: Crd\n---\nkind: Other\n").unwrap();
        Workshop { directory }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn builder(&self) -> Builder {
        Builder::new()
            .unwrap()
            .go(self.file("go"))
            .cache(self.file("cache"))
            .progress(|_| {})
    }

    fn build(&self) -> Result<Parts, PartsError> {
        self.builder().build(&Part::ALL)
    }

    fn built(&self) -> Vec<String> {
        let text = fs::read_to_string(self.file("built")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[test]
fn two_runs_at_once_build_every_part_once() {
    let workshop = Workshop::new();
    let directories: Vec<PathBuf> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| workshop.build())).collect();
        runs.into_iter()
            .map(|run| run.join().unwrap().unwrap().directory().to_owned())
            .collect()
    });
    assert!(directories.iter().all(|directory| *directory == directories[0]));
    assert_eq!(workshop.built().len(), Part::ALL.len(), "{:?}", workshop.built());
}

#[test]
fn an_interrupted_build_goes_on_where_it_stopped() {
    let workshop = Workshop::new();
    fs::write(workshop.file("refuse"), "sigs.k8s.io/cluster-api/cmd/clusterctl").unwrap();
    let error = workshop.build().expect_err("one part is refused");
    assert!(
        error.to_string().starts_with("building clusterctl failed"),
        "{error}"
    );
    let before = workshop.built().len();
    fs::remove_file(workshop.file("refuse")).unwrap();
    workshop.build().unwrap();
    assert_eq!(workshop.built().len(), Part::ALL.len());
    assert!(before > 0 && before < Part::ALL.len());
}

#[test]
fn parts_that_are_built_need_no_go() {
    let workshop = Workshop::new();
    let built = workshop.build().unwrap();
    let found = workshop
        .builder()
        .go("/nonexistent/go")
        .build(&Part::ALL)
        .unwrap();
    assert_eq!(found.directory(), built.directory());
    assert_eq!(
        found.manifest(Manifest::Clusterctl).unwrap(),
        [
            serde_json::json!({"kind": "Crd"}),
            serde_json::json!({"kind": "Other"})
        ]
    );
    assert_eq!(
        found.manifest(Manifest::ClusterApi).unwrap(),
        [serde_json::json!({"kind": "Rendered"})]
    );
}

#[test]
fn one_part_is_built_alone_with_what_renders_the_manifests() {
    let workshop = Workshop::new();
    workshop.builder().build(&[Part::Kwok]).unwrap();
    assert_eq!(workshop.built(), ["./kubernetes", "sigs.k8s.io/kwok/cmd/kwok"]);
}
