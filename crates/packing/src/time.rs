//! Moments and durations as Kubernetes writes them, read without a clock or a time zone database.

/// Days since 1970-01-01 of a date in the Gregorian calendar.
pub(crate) fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The date of a day since 1970-01-01: year, month, day.
pub(crate) fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted - era * 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Seconds since 1970 of an RFC 3339 moment; fractions are cut.
pub fn epoch_seconds(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    let bytes = text.as_bytes();
    if bytes.len() < 20
        || separators
            .iter()
            .any(|(index, separator)| bytes[*index] != *separator)
    {
        return None;
    }
    if !matches!(bytes[10], b'T' | b't' | b' ') {
        return None;
    }
    let days = days_from_civil(number(0..4)?, number(5..7)?, number(8..10)?);
    let seconds = days * 86_400 + number(11..13)? * 3_600 + number(14..16)? * 60 + number(17..19)?;
    let zone =
        text[19..].trim_start_matches(|character: char| character == '.' || character.is_ascii_digit());
    match zone.as_bytes() {
        [b'Z' | b'z'] => Some(seconds),
        [sign @ (b'+' | b'-'), rest @ ..] if rest.len() == 5 => {
            let offset = zone[1..3].parse::<i64>().ok()? * 3_600 + zone[4..6].parse::<i64>().ok()? * 60;
            Some(if *sign == b'+' {
                seconds - offset
            } else {
                seconds + offset
            })
        }
        _ => None,
    }
}

/// A Go duration (`1h30m`, `15s`, `500ms`) in seconds; none for `Never` and for what is no duration.
pub fn duration_seconds(text: &str) -> Option<f64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0.0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let number_end = rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let value: f64 = rest[..number_end].parse().ok()?;
        rest = &rest[number_end..];
        let unit_end = rest
            .find(|character: char| character.is_ascii_digit() || character == '.')
            .unwrap_or(rest.len());
        seconds += value
            * match &rest[..unit_end] {
                "h" => 3_600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit_end..];
    }
    Some(if negative { -seconds } else { seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_moments() {
        assert_eq!(epoch_seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(epoch_seconds("2026-01-01T00:00:00Z"), Some(1_767_225_600));
        assert_eq!(
            epoch_seconds("2026-01-01T01:00:00.123+01:00"),
            Some(1_767_225_600)
        );
        assert_eq!(epoch_seconds("2000-02-29T12:00:00Z"), Some(951_825_600));
        for wrong in [
            "",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00+1",
            "x026-01-01T00:00:00Z",
        ] {
            assert_eq!(epoch_seconds(wrong), None, "{wrong}");
        }
        for days in [-719_468, -1, 0, 59, 60, 365, 11_016, 20_454, 100_000] {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
    }

    #[test]
    fn reads_durations() {
        assert_eq!(duration_seconds("1h30m"), Some(5_400.0));
        assert_eq!(duration_seconds("15s"), Some(15.0));
        assert_eq!(duration_seconds("500ms"), Some(0.5));
        assert_eq!(duration_seconds("0s"), Some(0.0));
        assert_eq!(duration_seconds("-1m"), Some(-60.0));
        for wrong in ["Never", "", "5", "1d", "h", "1h2"] {
            assert_eq!(duration_seconds(wrong), None, "{wrong}");
        }
    }
}
