//! Cron schedules of disruption budgets.

use crate::time::civil_from_days;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cron {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    any_day: bool,
    any_weekday: bool,
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Cron {
    pub fn parse(text: &str) -> Option<Self> {
        let text = match text.trim() {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return None;
        };
        let open = |field: &str| field.starts_with('*') || field.starts_with('?');
        Some(Cron {
            minutes: field(minutes, 0, 59, &[])?,
            hours: field(hours, 0, 23, &[])?,
            days: field(days, 1, 31, &[])?,
            months: field(months, 1, 12, &MONTHS)?,
            // Sunday is 0; 7 is not accepted.
            weekdays: field(weekdays, 0, 6, &WEEKDAYS)?,
            any_day: open(days),
            any_weekday: open(weekdays),
        })
    }

    fn hits(&self, epoch_minute: i64) -> bool {
        let days = epoch_minute.div_euclid(1440);
        let minute_of_day = epoch_minute.rem_euclid(1440);
        let (_, month, day) = civil_from_days(days);
        // 1970-01-01 was a Thursday.
        let weekday = (days + 4).rem_euclid(7);
        let has = |set: u64, value: i64| set & (1 << value) != 0;
        let day_hits = match (self.any_day, self.any_weekday) {
            (false, false) => has(self.days, day) || has(self.weekdays, weekday),
            _ => has(self.days, day) && has(self.weekdays, weekday),
        };
        has(self.minutes, minute_of_day % 60)
            && has(self.hours, minute_of_day / 60)
            && has(self.months, month)
            && day_hits
    }

    /// Whether it hit in the `seconds` up to and including `now`, on a clock that is so many seconds ahead of UTC at a moment; the
    /// window's very start is outside.
    pub fn hit_within(&self, now: i64, seconds: i64, ahead: impl Fn(i64) -> i64) -> bool {
        let first = (now - seconds).div_euclid(60) + 1;
        let last = now.div_euclid(60);
        (first..=last).any(|minute| self.hits(minute + ahead(minute * 60).div_euclid(60)))
    }
}

fn field(text: &str, low: u32, high: u32, names: &[&str]) -> Option<u64> {
    let value = |text: &str| -> Option<u32> {
        let lowered = text.to_lowercase();
        let named = names
            .iter()
            .position(|name| *name == lowered)
            .map(|index| index as u32 + low);
        named
            .or_else(|| text.parse().ok())
            .filter(|value| (low..=high).contains(value))
    };
    let mut set = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<u32>().ok().filter(|step| *step > 0)?),
            None => (part, 1),
        };
        let (from, to) = match range {
            "*" | "?" => (low, high),
            _ => match range.split_once('-') {
                Some((from, to)) => (value(from)?, value(to)?),
                // `5/15` runs from 5 to the end.
                None if part.contains('/') => (value(range)?, high),
                None => (value(range)?, value(range)?),
            },
        };
        if from > to {
            return None;
        }
        set |= (from..=to)
            .step_by(step as usize)
            .fold(0, |set, value| set | (1 << value));
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::epoch_seconds;

    #[test]
    fn hits_when_it_should() {
        let at = |text: &str| epoch_seconds(text).expect("a moment");
        // 2026-01-05 is a Monday.
        for (schedule, now, duration, expected) in [
            ("0 9 * * *", "2026-01-05T09:00:00Z", 3600, true),
            ("0 9 * * *", "2026-01-05T09:59:59Z", 3600, true),
            ("0 9 * * *", "2026-01-05T10:00:00Z", 3600, false),
            ("0 9 * * *", "2026-01-05T08:59:59Z", 3600, false),
            ("0 9 * * mon-fri", "2026-01-05T09:30:00Z", 3600, true),
            ("0 9 * * mon-fri", "2026-01-04T09:30:00Z", 3600, false),
            ("*/15 * * * *", "2026-01-05T09:31:00Z", 60, false),
            ("*/15 * * * *", "2026-01-05T09:30:30Z", 60, true),
            ("0 0 1 * 1", "2026-01-05T00:00:00Z", 60, true),
            ("0 0 2 * *", "2026-01-05T00:00:00Z", 60, false),
            ("@daily", "2026-01-05T00:30:00Z", 3600, true),
            ("@weekly", "2026-01-05T00:30:00Z", 3600, false),
            ("0 0 * feb *", "2026-01-05T00:00:00Z", 60, false),
        ] {
            let cron = Cron::parse(schedule).expect(schedule);
            assert_eq!(
                cron.hit_within(at(now), duration, |_| 0),
                expected,
                "{schedule} at {now}"
            );
        }
        for wrong in [
            "",
            "* * * *",
            "60 * * * *",
            "* * 0 * *",
            "* * * * 8",
            "a * * * *",
            "5-1 * * * *",
            "*/0 * * * *",
        ] {
            assert_eq!(Cron::parse(wrong), None, "{wrong}");
        }
    }
}
