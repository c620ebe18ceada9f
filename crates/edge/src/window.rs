//! Maintenance windows: on which days, from when and for how long, in which time zone. A window follows the clock on the wall of its
//! zone, so one from 02:00 is there also on the day the clocks change.

use jiff::{SignedDuration, Timestamp, civil, tz::TimeZone};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slipway_runtime::admission::field::{FieldError, Path};

/// When hosts may be disturbed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// The days on which it begins; every day if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Day>,
    /// When it begins, e.g. 22:30.
    #[schemars(extend("pattern" = "^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// For how many minutes it is open; at most a week.
    #[schemars(extend("minimum" = 1, "maximum" = 10080))]
    pub minutes: u32,
    /// The time zone of its days and times, e.g. Europe/Berlin (default UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Day {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl Day {
    fn of(date: civil::Date) -> Self {
        match date.weekday() {
            civil::Weekday::Monday => Self::Monday,
            civil::Weekday::Tuesday => Self::Tuesday,
            civil::Weekday::Wednesday => Self::Wednesday,
            civil::Weekday::Thursday => Self::Thursday,
            civil::Weekday::Friday => Self::Friday,
            civil::Weekday::Saturday => Self::Saturday,
            civil::Weekday::Sunday => Self::Sunday,
        }
    }
}

const LONGEST_MINUTES: u32 = 7 * 24 * 60;

/// Whether something may begin, or when it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Open until then; `None`: there are no windows, so it is always open.
    Open { until: Option<Timestamp> },
    /// Closed; `None`: no window will ever open, because none can be read.
    Closed { until: Option<Timestamp> },
}

impl Window {
    fn zone(&self) -> Option<TimeZone> {
        match self.time_zone.as_deref() {
            None | Some("" | "UTC") => Some(TimeZone::UTC),
            Some(name) => TimeZone::get(name).ok(),
        }
    }

    fn begins_at(&self) -> Option<civil::Time> {
        let (hour, minute) = self.start.split_once(':')?;
        let two_digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        if !two_digits(hour) || !two_digits(minute) {
            return None;
        }
        civil::Time::new(hour.parse().ok()?, minute.parse().ok()?, 0, 0).ok()
    }

    /// The openings that begin in the days around `now`: enough for one that began a week ago and for the next one.
    fn openings(&self, now: Timestamp) -> Vec<(Timestamp, Timestamp)> {
        let (Some(zone), Some(time)) = (self.zone(), self.begins_at()) else {
            return Vec::new();
        };
        if self.minutes == 0 || self.minutes > LONGEST_MINUTES {
            return Vec::new();
        }
        let today = now.to_zoned(zone.clone()).date();
        let length = SignedDuration::from_mins(i64::from(self.minutes));
        (-8..=8)
            .filter_map(|days| today.checked_add(jiff::Span::new().days(days)).ok())
            .filter(|date| self.days.is_empty() || self.days.contains(&Day::of(*date)))
            // A time that the clocks skip is the same length of time after midnight.
            .filter_map(|date| date.to_datetime(time).to_zoned(zone.clone()).ok())
            .filter_map(|begin| {
                let begin = begin.timestamp();
                Some((begin, begin.checked_add(length).ok()?))
            })
            .collect()
    }

    pub fn errors(&self, path: &Path) -> Vec<FieldError> {
        let mut errors = Vec::new();
        if self.begins_at().is_none() {
            errors.push(FieldError::invalid(
                &path.child("start"),
                self.start.as_str(),
                "must be a time of day with two digits each, e.g. 02:30",
            ));
        }
        if self.minutes == 0 || self.minutes > LONGEST_MINUTES {
            errors.push(FieldError::invalid(
                &path.child("minutes"),
                self.minutes,
                format!("must be from 1 to {LONGEST_MINUTES}, which is a week"),
            ));
        }
        if self.zone().is_none() {
            errors.push(FieldError::invalid(
                &path.child("timeZone"),
                self.time_zone.clone().unwrap_or_default(),
                "must be a time zone that this system knows, e.g. Europe/Berlin",
            ));
        }
        errors
    }
}

/// Whether any window is open. Without windows it always is.
pub fn opening(windows: &[Window], now: Timestamp) -> Opening {
    if windows.is_empty() {
        return Opening::Open { until: None };
    }
    let all = windows.iter().flat_map(|window| window.openings(now));
    let (mut open_until, mut opens_at) = (None::<Timestamp>, None::<Timestamp>);
    for (begin, end) in all {
        if begin <= now && now < end {
            open_until = open_until.max(Some(end));
        } else if begin > now {
            opens_at = Some(opens_at.map_or(begin, |known| known.min(begin)));
        }
    }
    match open_until {
        Some(until) => Opening::Open { until: Some(until) },
        None => Opening::Closed { until: opens_at },
    }
}

pub fn errors(windows: &[Window], path: &Path) -> Vec<FieldError> {
    windows
        .iter()
        .enumerate()
        .flat_map(|(index, window)| window.errors(&path.index(index)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn window(days: &[Day], start: &str, minutes: u32, zone: &str) -> Window {
        Window {
            days: days.to_vec(),
            start: start.to_owned(),
            minutes,
            time_zone: Some(zone.to_owned()),
        }
    }

    fn open(until: &str) -> Opening {
        Opening::Open {
            until: Some(at(until)),
        }
    }

    fn closed(until: &str) -> Opening {
        Opening::Closed {
            until: Some(at(until)),
        }
    }

    #[test]
    fn a_window_may_pass_midnight_and_several_are_one() {
        let night = [window(&[Day::Saturday], "23:00", 180, "UTC")];
        // 2026-11-21 is a Saturday.
        assert_eq!(
            opening(&night, at("2026-11-21T22:59:59Z")),
            closed("2026-11-21T23:00:00Z")
        );
        assert_eq!(
            opening(&night, at("2026-11-21T23:00:00Z")),
            open("2026-11-22T02:00:00Z")
        );
        assert_eq!(
            opening(&night, at("2026-11-22T01:59:59Z")),
            open("2026-11-22T02:00:00Z")
        );
        assert_eq!(
            opening(&night, at("2026-11-22T02:00:00Z")),
            closed("2026-11-28T23:00:00Z")
        );
        let two = [night[0].clone(), window(&[], "01:00", 120, "UTC")];
        assert_eq!(
            opening(&two, at("2026-11-22T01:30:00Z")),
            open("2026-11-22T03:00:00Z")
        );
        assert_eq!(
            opening(&[], at("2026-11-22T01:30:00Z")),
            Opening::Open { until: None }
        );
    }

    #[test]
    fn windows_follow_the_wall_clock_of_their_zone_through_both_changes() {
        let berlin = [window(&[], "02:30", 60, "Europe/Berlin")];
        assert_eq!(
            opening(&berlin, at("2026-01-10T01:30:00Z")),
            open("2026-01-10T02:30:00Z")
        );
        assert_eq!(
            opening(&berlin, at("2026-07-10T00:30:00Z")),
            open("2026-07-10T01:30:00Z")
        );
        // On 2026-03-29 02:30 does not exist there: the window is still an hour long.
        assert_eq!(
            opening(&berlin, at("2026-03-29T01:30:00Z")),
            open("2026-03-29T02:30:00Z")
        );
        // On 2026-10-25 02:30 comes twice: it opens once, at the first.
        assert_eq!(
            opening(&berlin, at("2026-10-25T00:30:00Z")),
            open("2026-10-25T01:30:00Z")
        );
        assert_eq!(
            opening(&berlin, at("2026-10-25T01:30:00Z")),
            closed("2026-10-26T01:30:00Z")
        );
    }

    #[test]
    fn a_window_of_a_week_never_closes_and_one_that_cannot_be_read_never_opens() {
        let week = [window(&[Day::Monday], "00:00", LONGEST_MINUTES, "UTC")];
        for hour in 0..24 * 14 {
            let now = at("2026-11-16T00:00:00Z") + SignedDuration::from_hours(hour);
            assert!(matches!(opening(&week, now), Opening::Open { .. }), "{now}");
        }
        let unknown = [window(&[], "02:30", 60, "Mars/Olympus")];
        assert_eq!(
            opening(&unknown, at("2026-11-16T02:30:00Z")),
            Opening::Closed { until: None }
        );
        let texts: Vec<String> = errors(
            &[window(&[], "2:30", 0, "Mars/Olympus")],
            &Path::new("spec.windows"),
        )
        .iter()
        .map(ToString::to_string)
        .collect();
        assert_eq!(
            texts,
            [
                "spec.windows[0].start: Invalid value: \"2:30\": must be a time of day with two digits each, e.g. 02:30",
                "spec.windows[0].minutes: Invalid value: 0: must be from 1 to 10080, which is a week",
                "spec.windows[0].timeZone: Invalid value: \"Mars/Olympus\": must be a time zone that this system knows, e.g. \
                 Europe/Berlin",
            ]
        );
    }
}
