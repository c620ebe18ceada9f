//! Fetching over a bad network: every read completes without help, or fails with one clear reason.

pub mod proxy;

use std::time::Duration;

use proptest::prelude::*;
use proxy::{Fault, Proxy};
use slipway_agent::{
    engine::{ChunkSource, FetchError},
    fetch::{HttpSource, Layout, Settings, Token},
};
use slipway_slots::{Digest, manifest::Blob};

fn file(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn blob(file: &[u8]) -> Blob {
    Blob {
        digest: Digest::of(file),
        size: file.len() as u64,
    }
}

/// Of a client that does not mistake a busy machine for a silent server.
fn settings() -> Settings {
    Settings {
        stall: Duration::from_secs(20),
        give_up: Duration::from_mins(2),
        backoff: (Duration::from_millis(5), Duration::from_millis(40)),
        ..Settings::default()
    }
}

fn read(proxy: &Proxy, blob: &Blob, offset: u64, length: usize) -> Result<Vec<u8>, FetchError> {
    read_with(proxy, settings(), blob, offset, length)
}

fn read_with(
    proxy: &Proxy,
    settings: Settings,
    blob: &Blob,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, FetchError> {
    let mut source = HttpSource::new(&proxy.address, settings).expect("a source");
    let mut buffer = vec![0; length];
    source.read(blob, offset, &mut buffer)?;
    Ok(buffer)
}

#[test]
fn e48_a_cut_download_goes_on_where_it_was_cut() {
    let file = file(300_000);
    let faults = [
        Fault::Cut(100_000),
        Fault::NoAnswer,
        Fault::Cut(50_000),
        Fault::Stall(10),
    ];
    let proxy = Proxy::new(file.clone(), faults);
    let settings = Settings {
        stall: Duration::from_secs(3),
        ..settings()
    };
    let read = read_with(&proxy, settings, &blob(&file), 0, file.len()).expect("it completes");
    assert!(read == file);
    let log = proxy.log();
    assert!(log.sent < 310_000, "{} bytes were sent for 300,000", log.sent);
    assert_eq!(log.ranges.len(), 5, "{:?}", log.ranges);
    assert_eq!(log.ranges[0], "bytes=0-299999");
    assert!(log.ranges[4].ends_with("-299999"), "{:?}", log.ranges);
    assert!(log.paths[0].starts_with("/images/sha256-"), "{:?}", log.paths);
}

#[test]
fn e48_a_server_that_ignores_ranges_and_a_file_that_changes_start_over_cleanly() {
    let file = file(200_000);
    let proxy = Proxy::new(file.clone(), [Fault::IgnoreRange]);
    assert!(read(&proxy, &blob(&file), 150_000, 10_000).expect("it completes") == file[150_000..160_000]);
    let proxy = Proxy::new(file.clone(), [Fault::Cut(60_000), Fault::Change]);
    let read = read(&proxy, &blob(&file), 0, file.len()).expect("it completes");
    assert!(read == file);
    let log = proxy.log();
    assert_eq!(
        log.ranges.last().map(String::as_str),
        Some("bytes=0-199999"),
        "{:?}",
        log.ranges
    );
}

#[test]
fn a_server_that_lies_or_is_overloaded_is_asked_again() {
    let file = file(50_000);
    let faults = [
        Fault::LieAboutRange,
        Fault::Status(429, "Retry-After: 0\r\n"),
        Fault::Status(503, ""),
        Fault::Status(500, ""),
        Fault::Drip(700),
    ];
    let proxy = Proxy::new(file.clone(), faults);
    assert!(read(&proxy, &blob(&file), 1000, 40_000).expect("it completes") == file[1000..41_000]);
    assert_eq!(proxy.faults_left(), 0);
}

#[test]
fn what_never_helps_fails_at_once_with_one_reason() {
    let file = file(5000);
    for (fault, expected) in [
        (
            Fault::Status(401, ""),
            "access is denied (401); check the token for it",
        ),
        (
            Fault::Status(403, ""),
            "access is denied (403); check the token for it",
        ),
        (Fault::Status(404, ""), "does not have"),
        (
            Fault::Status(416, ""),
            "is shorter than the 5000 bytes of the manifest",
        ),
        (
            Fault::Status(301, "Location: ftp://elsewhere/\r\n"),
            "did not deliver",
        ),
    ] {
        let proxy = Proxy::new(file.clone(), vec![fault.clone(); 50]);
        let mut source = HttpSource::new(
            &proxy.address,
            Settings {
                give_up: Duration::from_millis(400),
                ..settings()
            },
        )
        .expect("a source");
        let error = source
            .read(&blob(&file), 0, &mut [0; 5000])
            .expect_err("it fails")
            .to_string();
        assert!(error.contains(expected), "{fault:?}: {error}");
    }
}

#[test]
fn a_server_that_is_gone_is_given_up_in_words() {
    let file = file(5000);
    let proxy = Proxy::new(file.clone(), vec![Fault::NoAnswer; 1000]);
    let settings = Settings {
        give_up: Duration::from_millis(200),
        ..settings()
    };
    let mut source = HttpSource::new(&proxy.address, settings).expect("a source");
    let error = source
        .read(&blob(&file), 0, &mut [0; 5000])
        .expect_err("it fails")
        .to_string();
    assert!(error.contains("no byte came for"), "{error}");
}

#[test]
fn a_token_is_sent_and_never_shown() {
    let file = file(5000);
    let proxy = Proxy::new(file.clone(), vec![Fault::Status(401, ""); 3]);
    let settings = Settings {
        token: Some(Token("s3cret".to_owned())),
        layout: Layout::Registry,
        ..settings()
    };
    assert!(!format!("{settings:?}").contains("s3cret"));
    let mut source = HttpSource::new(&proxy.address, settings).expect("a source");
    let error = source
        .read(&blob(&file), 0, &mut [0; 5000])
        .expect_err("denied")
        .to_string();
    assert!(!error.contains("s3cret"), "{error}");
    let log = proxy.log();
    assert_eq!(log.authorizations, ["Bearer s3cret"]);
    assert!(
        log.paths[0].starts_with("/images/blobs/sha256:"),
        "{:?}",
        log.paths
    );
}

#[test]
fn addresses_that_are_none_are_refused() {
    for address in [
        "",
        "ftp://host/",
        "file:///etc/passwd",
        "https://user:pass@host/",
        "host",
    ] {
        let error = HttpSource::new(address, settings())
            .err()
            .expect(address)
            .to_string();
        assert!(
            !error.contains("pass@") || address.len() > 200 || error.contains("logs"),
            "{error}"
        );
    }
}

/// A solid image is read piece by piece, and asked for in few requests.
#[test]
fn reads_that_follow_each_other_share_an_answer() {
    let file = file(1 << 20);
    let proxy = Proxy::new(file.clone(), []);
    let mut source = HttpSource::new(&proxy.address, settings()).expect("a source");
    let mut all = Vec::new();
    for at in (0..file.len()).step_by(1 << 16) {
        let mut piece = vec![0; 1 << 16];
        source.read(&blob(&file), at as u64, &mut piece).expect("a piece");
        all.extend(piece);
    }
    assert!(all == file);
    assert_eq!(proxy.log().ranges.len(), 2, "{:?}", proxy.log().ranges);
    assert_eq!(source.received(), file.len() as u64);
}

fn any_fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0_usize..70_000).prop_map(Fault::Cut),
        Just(Fault::NoAnswer),
        (0_usize..70_000).prop_map(Fault::Stall),
        Just(Fault::Status(429, "Retry-After: 0\r\n")),
        Just(Fault::Status(502, "")),
        Just(Fault::IgnoreRange),
        Just(Fault::LieAboutRange),
        Just(Fault::Change),
        (1000_usize..70_000).prop_map(Fault::Drip),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// E-42: whatever the network does for a while, all bytes arrive, and they are the right ones.
    #[test]
    fn e42_a_bad_network_completes_without_help(
        faults in proptest::collection::vec(any_fault(), 0..5),
        offset in 0_usize..60_000,
        length in 1_usize..60_000,
    ) {
        let file = file(120_000);
        let proxy = Proxy::new(file.clone(), faults);
        let settings = Settings { stall: Duration::from_millis(300), ..settings() };
        let read = read_with(&proxy, settings, &blob(&file), offset as u64, length).expect("it completes");
        prop_assert!(read == file[offset..offset + length]);
    }
}
