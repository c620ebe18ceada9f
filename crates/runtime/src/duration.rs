//! Durations as Go writes them (`10m`, `1h30m`, `1.5s`), because that is how Cluster API's flags, manifests and
//! metrics spell them. Read here and not by kube's `Duration`, which panics on one that is too long.

use std::time::Duration;

const UNITS: &[(&str, f64)] = &[
    // Longest first, so that `ms` is not read as `m` followed by `s`.
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    // The Greek letter, where the one above is the sign.
    ("μs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3600e9),
];

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration: write it like 10m, 1h30m or 15s")]
pub struct InvalidDuration {
    text: String,
}

/// Reads a duration in Go's form. Negative durations are refused: no setting has a meaning for one.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration {
        text: text.to_owned(),
    };
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut nanoseconds = 0.0;
    while !rest.is_empty() {
        let digits = rest
            .find(|character: char| !character.is_ascii_digit() && character != '.')
            .ok_or_else(invalid)?;
        let number: f64 = rest[..digits].parse().map_err(|_| invalid())?;
        rest = &rest[digits..];
        let letters = rest
            .find(|character: char| character.is_ascii_digit() || character == '.')
            .unwrap_or(rest.len());
        let (_, factor) = UNITS
            .iter()
            .find(|(unit, _)| *unit == &rest[..letters])
            .ok_or_else(invalid)?;
        nanoseconds += number * factor;
        rest = &rest[letters..];
    }
    // Go's durations end at 2^63 nanoseconds (292 years).
    if nanoseconds >= i64::MAX as f64 {
        return Err(invalid());
    }
    Ok(Duration::from_nanos(nanoseconds.round() as u64))
}

/// Writes a duration in Go's form: `10m0s`, `1h30m0s`, `15s`, `250ms`.
pub fn format(duration: Duration) -> String {
    if duration.is_zero() {
        return "0s".to_owned();
    }
    if duration < Duration::from_secs(1) {
        let nanoseconds = duration.subsec_nanos();
        let (divisor, unit) = match nanoseconds {
            0..1_000 => (1.0, "ns"),
            1_000..1_000_000 => (1e3, "µs"),
            _ => (1e6, "ms"),
        };
        return format!("{}{unit}", f64::from(nanoseconds) / divisor);
    }
    let whole = duration.as_secs();
    let (hours, minutes) = (whole / 3600, whole / 60 % 60);
    let seconds = format!(
        "{}",
        (whole % 60) as f64 + f64::from(duration.subsec_nanos()) / 1e9
    );
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, milliseconds) in [
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("250ms", 250),
            ("5000µs", 5),
            ("5000μs", 5),
            ("2h0m0.5s", 7_200_500),
            ("0", 0),
            ("+5s", 5_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused_with_an_example() {
        for text in [
            "",
            "10",
            "m",
            "10x",
            "-5s",
            "1h-5m",
            "ten minutes",
            "1..5s",
            "10 m",
            "9999999999999h",
        ] {
            assert_eq!(
                parse(text).unwrap_err().to_string(),
                format!("{text:?} is not a duration: write it like 10m, 1h30m or 15s")
            );
        }
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (text, written) in [
            ("10m", "10m0s"),
            ("90m", "1h30m0s"),
            ("15s", "15s"),
            ("0.25s", "250ms"),
            ("1.5s", "1.5s"),
            ("0", "0s"),
        ] {
            assert_eq!(format(parse(text).unwrap()), written);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(milliseconds in 0_u64..10_000_000_000) {
            let duration = Duration::from_millis(milliseconds);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = parse(&text);
        }
    }
}
