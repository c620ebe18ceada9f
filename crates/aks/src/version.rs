//! Kubernetes versions as users and AKS write them: with and without `v`, with and without a patch.

use std::cmp::Ordering;

use semver::Version;

/// Reads `v1.31.2`, `1.31.2`, `1.31` or `1`. `None`: not a version.
pub fn parse(text: &str) -> Option<Version> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (core, rest) = text.split_at(end);
    let missing = 2usize.checked_sub(core.matches('.').count())?;
    Version::parse(&format!("{core}{}{rest}", ".0".repeat(missing))).ok()
}

/// Which is newer. What is no version is older than any.
pub fn compare(left: &str, right: &str) -> Ordering {
    match (parse(left), parse(right)) {
        (Some(left), Some(right)) => left.cmp_precedence(&right),
        (left, right) => left.is_some().cmp(&right.is_some()),
    }
}

/// The newer of two versions as it was written; the first of two equal ones.
pub fn newer<'a>(left: &'a str, right: &'a str) -> &'a str {
    if compare(left, right) == Ordering::Less {
        right
    } else {
        left
    }
}

/// As AKS writes it.
pub fn without_v(text: &str) -> &str {
    text.strip_prefix('v').unwrap_or(text)
}

/// As Cluster API writes it. What is no version stays as it is, so that whoever wrote it knows it again.
pub fn with_v(text: &str) -> String {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        format!("v{text}")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_however_they_are_written() {
        for (left, right, expected) in [
            ("v1.31.2", "1.31.2", Ordering::Equal),
            ("1.31", "1.31.0", Ordering::Equal),
            ("v1.30.9", "1.31.0", Ordering::Less),
            ("1.31.10", "1.31.9", Ordering::Greater),
            ("1.31.0-alpha.1", "1.31.0", Ordering::Less),
            ("nonsense", "1.0.0", Ordering::Less),
            ("", "nonsense", Ordering::Equal),
            ("1.2.3.4", "1.0.0", Ordering::Less),
        ] {
            assert_eq!(compare(left, right), expected, "{left} {right}");
        }
        assert_eq!(newer("v1.31.2", "1.32.0"), "1.32.0");
        assert_eq!(newer("v1.31.2", "1.31.2"), "v1.31.2");
        let shown = ["1.31.2", "v1.31.2", "latest", ""].map(with_v);
        assert_eq!(shown, ["v1.31.2", "v1.31.2", "latest", ""]);
    }
}
