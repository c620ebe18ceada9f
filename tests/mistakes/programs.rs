//! Mistakes at the command line: each ends a program with a message that says what to do.

use std::process::Command;

use slipway_kit::mistakes::Mistake;

const AREA: &str = "The command line";
const PROGRAM: &str = env!("CARGO_BIN_EXE_slipway-k3s");

struct Wrong {
    what: &'static str,
    arguments: &'static [&'static str],
    /// The same without the mistake; it succeeds, and ends by itself.
    right: &'static [&'static str],
    undo: &'static str,
}

const WRONG: &[Wrong] = &[
    Wrong {
        what: "a provider that this binary does not have",
        arguments: &["manifests", "--crds", "--providers=gke"],
        right: &["manifests", "--crds", "--providers=k3s"],
        undo: "name one of those listed, or leave `--providers` out",
    },
    Wrong {
        what: "a flag that does not exist",
        arguments: &["manager", "--leader-elct"],
        right: &["manager", "--help"],
        undo: "`slipway manager --help` lists them",
    },
    Wrong {
        what: "a duration without a unit",
        arguments: &["manager", "--sync-period=10"],
        right: &["manager", "--help"],
        undo: "write `10m`",
    },
    Wrong {
        what: "a kubeconfig that is not there",
        arguments: &["manager", "--kubeconfig=/nowhere/kubeconfig"],
        right: &["manager", "--help"],
        undo: "name one that is, or leave the flag out inside a cluster",
    },
    Wrong {
        what: "a feature gate that does not exist",
        arguments: &[
            "manager",
            "--kubeconfig=/nowhere/kubeconfig",
            "--feature-gates=Magic=true",
        ],
        right: &["manager", "--help"],
        undo: "name one of those listed",
    },
    Wrong {
        what: "an image without its registry",
        arguments: &[
            "manifests",
            "--out=/nowhere",
            "--check",
            "--image-repository=manager",
        ],
        right: &[
            "manifests",
            "--crds",
            "--image-repository=registry.example/slipway/manager",
        ],
        undo: "name the registry: `registry.example/slipway/manager`",
    },
    Wrong {
        what: "a release that is no version",
        arguments: &["manifests", "--out=/nowhere", "--check", "--release=1.0"],
        right: &["manifests", "--crds", "--release=v1.0.0"],
        undo: "write it like `v1.2.3`",
    },
    Wrong {
        what: "a program that is not the testbed",
        arguments: &["up", "--testbed=/nowhere/testbed"],
        right: &["up", "--help"],
        undo: "start `up` by `cargo xtask up`, which builds and names it",
    },
];

pub fn see() -> Vec<Mistake> {
    WRONG
        .iter()
        .map(|wrong| {
            let run = |arguments: &[&str]| {
                Command::new(PROGRAM)
                    .args(arguments)
                    .env_remove("KUBECONFIG")
                    .output()
                    .expect("the program runs")
            };
            let output = run(wrong.arguments);
            assert!(!output.status.success(), "{}: it was accepted", wrong.what);
            let right = run(wrong.right);
            assert!(
                right.status.success(),
                "{}: {}",
                wrong.what,
                String::from_utf8_lossy(&right.stderr)
            );
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Mistake {
                area: AREA,
                what: format!("{}: `slipway {}`", wrong.what, wrong.arguments.join(" ")),
                sees: first_words(&said),
                why: None,
                undo: wrong.undo.to_owned(),
            }
        })
        .collect()
}

/// The message itself, without the usage below it.
fn first_words(said: &str) -> String {
    said.split("\n\nUsage:")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}
