//! What an HTTP answer to a range request means: values in, a decision with its reason out. Nothing here does I/O.

use std::time::Duration;

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub offset: u64,
    /// Exclusive.
    pub end: u64,
    /// The blob's size, as its manifest has it.
    pub size: u64,
    /// The version of the file that earlier bytes came from.
    pub etag: Option<String>,
}

/// The parts of an answer that decide.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    pub content_range: Option<String>,
    pub content_length: Option<u64>,
    pub etag: Option<String>,
    pub retry_after: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The body holds the bytes from `at` to `end`.
    Take { at: u64, end: u64 },
    /// The file is another one than that of earlier bytes: these are dropped.
    Changed,
    /// Try again, not before this has passed if the server said so.
    Later { reason: String, wait: Option<Duration> },
    /// This server does not have it.
    Absent,
    /// Trying again would not help.
    Never { reason: String },
}

/// Beyond this a server does not tell us when to come again.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// A strong validator; a weak one says nothing about bytes.
pub fn strong(etag: Option<&str>) -> Option<&str> {
    etag.filter(|etag| etag.starts_with('"') && etag.len() < 256)
}

pub fn decide(asked: &Asked, head: &Head) -> Decision {
    let later = |reason: String| Decision::Later { reason, wait: None };
    let shown = strong(head.etag.as_deref());
    let changed = match (&asked.etag, shown) {
        (Some(earlier), Some(now)) => earlier != now,
        _ => false,
    };
    match head.status {
        200 | 206 if changed => Decision::Changed,
        206 => match head.content_range.as_deref().and_then(content_range) {
            Some((start, end, total))
                if start == asked.offset
                    && end > start
                    && end <= asked.end
                    && total.is_none_or(|it| it == asked.size) =>
            {
                Decision::Take { at: start, end }
            }
            Some((start, end, total)) => later(format!(
                "it was asked for bytes {}-{} of {} and answers with {start}-{} of {}",
                asked.offset,
                asked.end - 1,
                asked.size,
                end.saturating_sub(1),
                total.map_or_else(|| "an unknown size".to_owned(), |total| total.to_string())
            )),
            None => later("it answers with a part and does not say which".to_owned()),
        },
        200 => match head.content_length {
            Some(length) if length != asked.size => Decision::Never {
                reason: format!(
                    "the file there has {length} bytes, the manifest says {}",
                    asked.size
                ),
            },
            _ => Decision::Take {
                at: 0,
                end: asked.size,
            },
        },
        404 | 410 => Decision::Absent,
        401 | 403 => Decision::Never {
            reason: format!("access is denied ({}); check the token for it", head.status),
        },
        416 => Decision::Never {
            reason: format!(
                "the file there is shorter than the {} bytes of the manifest",
                asked.size
            ),
        },
        408 | 425 | 429 | 500..=599 => Decision::Later {
            reason: format!("it answers {}", head.status),
            wait: head.retry_after.as_deref().and_then(retry_after),
        },
        other => Decision::Never {
            reason: format!("it answers {other}"),
        },
    }
}

/// `bytes 0-99/1000` as start, exclusive end, and size if it is told.
fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse().ok()?),
    };
    Some((first, last.checked_add(1)?, total))
}

/// Seconds only: a date needs a clock that is right.
fn retry_after(text: &str) -> Option<Duration> {
    let seconds: u64 = text.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked() -> Asked {
        Asked {
            offset: 100,
            end: 200,
            size: 1000,
            etag: Some("\"one\"".to_owned()),
        }
    }

    fn part(range: &str) -> Head {
        Head {
            status: 206,
            content_range: Some(range.to_owned()),
            ..Head::default()
        }
    }

    #[test]
    fn only_the_bytes_asked_for_are_taken() {
        let take = |range| decide(&asked(), &part(range));
        assert_eq!(take("bytes 100-199/1000"), Decision::Take { at: 100, end: 200 });
        assert_eq!(take("bytes 100-149/*"), Decision::Take { at: 100, end: 150 });
        for lie in [
            "bytes 0-99/1000",
            "bytes 100-199/999",
            "bytes 100-299/1000",
            "bytes 101-199/1000",
            "100-199/1000",
        ] {
            assert!(
                matches!(take(lie), Decision::Later { .. }),
                "{lie}: {:?}",
                take(lie)
            );
        }
    }

    #[test]
    fn a_changed_file_and_an_ignored_range_are_told_apart() {
        let whole = Head {
            status: 200,
            content_length: Some(1000),
            etag: Some("\"one\"".to_owned()),
            ..Head::default()
        };
        assert_eq!(decide(&asked(), &whole), Decision::Take { at: 0, end: 1000 });
        let other = Head {
            etag: Some("\"two\"".to_owned()),
            ..whole.clone()
        };
        assert_eq!(decide(&asked(), &other), Decision::Changed);
        let short = Head {
            content_length: Some(900),
            ..whole
        };
        assert!(matches!(decide(&asked(), &short), Decision::Never { .. }));
    }

    #[test]
    fn refusals_end_it_and_overload_waits() {
        let status = |status, retry_after: Option<&str>| {
            let head = Head {
                status,
                retry_after: retry_after.map(str::to_owned),
                ..Head::default()
            };
            decide(&asked(), &head)
        };
        assert!(matches!(status(401, None), Decision::Never { reason } if reason.contains("token")));
        assert!(matches!(status(416, None), Decision::Never { .. }));
        assert_eq!(status(404, None), Decision::Absent);
        let wait = |decision| match decision {
            Decision::Later { wait, .. } => wait,
            other => panic!("{other:?}"),
        };
        assert_eq!(wait(status(429, Some("7"))), Some(Duration::from_secs(7)));
        assert_eq!(wait(status(503, Some("86400"))), Some(LONGEST_WAIT));
        assert_eq!(wait(status(503, Some("Wed, 21 Oct 2015 07:28:00 GMT"))), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever a server says, bytes are only taken for where they were asked for.
        #[test]
        fn no_answer_makes_us_take_other_bytes(
            status in prop_oneof![Just(200_u16), Just(206), 100_u16..600],
            range in proptest::option::of("bytes [0-9]{1,4}-[0-9]{1,20}/([0-9]{1,5}|\\*)"),
            content_length in proptest::option::of(0_u64..2000),
            etag in proptest::option::of("(W/)?\"(one|two)\""),
        ) {
            let head = Head { status, content_range: range, content_length, etag, retry_after: None };
            if let Decision::Take { at, end } = decide(&asked(), &head) {
                prop_assert!((at == 100 && end <= 200) || (at == 0 && end == 1000), "{at}-{end}");
            }
        }
    }
}
