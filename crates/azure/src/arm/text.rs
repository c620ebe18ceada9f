//! Azure's messages without what changes from call to call, so that a condition that repeats one stays the same.

use std::sync::LazyLock;

use regex::Regex;

static CHANGING: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        // "Trace ID: <guid>", "Correlation ID: <guid>", "(correlationId: '<guid>')", "Activity ID: <guid>", "RequestId:<guid>"
        r"(?i)[\s,;]*[(\[]?\b(?:x-ms-)?(?:trace|correlation|activity|request|client[ -]?request|operation[ -]tracking)[ -]?id\b\s*[:=]?\s*(?:is\s+)?['\x22]?[0-9a-f]{8}-[0-9a-f-]{27}['\x22]?[)\]]?\.?",
        // "Timestamp: 2026-11-16 02:00:00Z", "time:2026-…"
        r"(?i)[\s,;]*\btime(?:stamp)?\s*:\s*\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?\.?",
        // "Please retry again in 36 seconds", "Please try again after '12' seconds": the wait counts down.
        r"(?i),?\s*please (?:re)?try again (?:in|after) '?\d+'? seconds?\.?",
    ]
    .iter()
    .map(|pattern| Regex::new(pattern).expect("the pattern is valid"))
    .collect()
});

/// How long Azure's own conditions may quote it.
const LONGEST: usize = 1024;

/// The message, free of request ids and times, on one line and of bounded length.
pub fn stable(message: &str) -> String {
    let mut text = message.split_whitespace().collect::<Vec<_>>().join(" ");
    for pattern in CHANGING.iter() {
        text = pattern.replace_all(&text, "").into_owned();
    }
    let mut text = text.trim().to_owned();
    if text.len() > LONGEST {
        let end = (0..=LONGEST)
            .rev()
            .find(|index| text.is_char_boundary(*index))
            .unwrap_or_default();
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_times_are_left_out() {
        for (message, expected) in [
            (
                "AADSTS7000215: Invalid client secret provided. Trace ID: 0b2a3ab0-52d6-4b9b-9f68-0f4ad0a6a200 Correlation ID: 7d1c9e3e-0e0b-4c35-86d1-65e36a6e2e43 Timestamp: 2026-11-16 02:00:00Z",
                "AADSTS7000215: Invalid client secret provided.",
            ),
            (
                "Internal server error\r\n(correlationId: '7d1c9e3e-0e0b-4c35-86d1-65e36a6e2e43')",
                "Internal server error",
            ),
            (
                "The PutAgentPoolHandler.PUT request limit has been exceeded for agentpool /subscriptions/s, please retry again in 36 seconds",
                "The PutAgentPoolHandler.PUT request limit has been exceeded for agentpool /subscriptions/s",
            ),
            (
                "The client '11111111-2222-3333-4444-555555555555' does not have authorization",
                "The client '11111111-2222-3333-4444-555555555555' does not have authorization",
            ),
        ] {
            assert_eq!(stable(message), expected);
        }
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let cut = stable(&"ü".repeat(2000));
        assert!(cut.len() <= LONGEST + '…'.len_utf8());
        assert!(cut.ends_with('…'));
    }
}
