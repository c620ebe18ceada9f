//! Durations as Kubernetes writes them (`1h30m`, `10s`, `250ms`).

use std::time::Duration;

/// Reads a duration; `None` if it is none, is negative, or does not fit.
pub fn parse(text: &str) -> Option<Duration> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let mut seconds = 0f64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest
            .find(|character: char| !character.is_ascii_digit() && character != '.')
            .filter(|at| *at > 0)?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_end = rest
            .find(|character: char| character.is_ascii_digit() || character == '.')
            .unwrap_or(rest.len());
        let scale = match &rest[..unit_end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number * scale;
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(seconds).ok()
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
