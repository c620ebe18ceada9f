//! Durations as Kubernetes writes them (`1h30m`, `10s`, `250ms`).

use std::time::Duration;

/// Reads a duration; `None` if it is none, is negative, or does not fit.
pub fn parse(text: &str) -> Option<Duration> {
    slipway_runtime::duration::parse(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_kubernetes_writes_them() {
        assert_eq!(parse("1h0m0s"), Some(Duration::from_hours(1)));
        assert_eq!(parse("1.5m"), Some(Duration::from_secs(90)));
        assert_eq!(parse("0"), Some(Duration::ZERO));
        assert_eq!(parse("0s"), Some(Duration::ZERO));
        assert_eq!(parse("250ms"), Some(Duration::from_millis(250)));
        for text in ["", "5", "h", "1x", "-5s", "1h2", "..s", "1e9999h", "1 s"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
