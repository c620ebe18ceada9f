//! Golden files: what is decided over time, each decision with its reason. `SLIPWAY_TEST_BLESS=1` writes them.

use std::path::Path;

/// The text is that of the golden file.
pub fn golden(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(file);
    if std::env::var_os("SLIPWAY_TEST_BLESS").is_some() {
        std::fs::write(&path, text).expect("the golden file is written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text,
        expected,
        "run with SLIPWAY_TEST_BLESS=1 to accept {}",
        path.display()
    );
}
