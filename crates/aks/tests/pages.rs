//! Pages of the documentation that a test keeps true.

/// Compares a page of `docs/aks` with what it should be; with `SLIPWAY_WRITE_DOCS` it is written first.
pub fn check(name: &str, page: &str) {
    let path = format!("{}/../../docs/aks/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("SLIPWAY_WRITE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/aks/{name} is out of date: run this test with SLIPWAY_WRITE_DOCS=1"
    );
}
