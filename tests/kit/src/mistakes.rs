//! Mistakes people make: what they did, what they saw, and the way back. A test makes each, sees what it shows and undoes
//! it; the page is rendered from what was seen.

use std::fmt::Write as _;

/// One mistake, as a test saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where it was made; a heading of the page.
    pub area: &'static str,
    pub what: String,
    /// The text that was seen: an answer of the apiserver, a condition, an event, a program's message.
    pub sees: String,
    /// The first cause by `slipway why`, of what was accepted and cannot work.
    pub why: Option<String>,
    pub undo: String,
}

impl Mistake {
    /// What is wrong with the row itself.
    pub fn check(&self) {
        for (name, text) in [("what", &self.what), ("sees", &self.sees), ("undo", &self.undo)] {
            assert!(!text.trim().is_empty(), "{self:?} does not say: {name}");
        }
    }
}

/// The page, with a table for each area in the order they come.
pub fn page(introduction: &str, mistakes: &[Mistake]) -> String {
    let mut page = format!("{introduction}\n");
    let mut area = "";
    for mistake in mistakes {
        let has_why = mistakes
            .iter()
            .any(|other| other.area == mistake.area && other.why.is_some());
        if mistake.area != area {
            area = mistake.area;
            let (heading, line) = if has_why {
                ("| `slipway why` on the Cluster ", "|---")
            } else {
                ("", "")
            };
            let _ = write!(
                page,
                "\n## {area}\n\n| mistake | what you see {heading}| the way back |\n|---|---{line}|---|\n"
            );
        }
        let why = mistake.why.as_deref().unwrap_or("–");
        let why = if has_why {
            format!("| {} ", cell(why))
        } else {
            String::new()
        };
        let _ = writeln!(
            page,
            "| {} | {} {why}| {} |",
            cell(&mistake.what),
            cell(&mistake.sees),
            cell(&mistake.undo)
        );
    }
    page
}

/// A text in one cell of a table.
fn cell(text: &str) -> String {
    text.trim()
        .replace('|', "\\|")
        .replace('<', "&lt;")
        // A pattern such as [a](b) is no link.
        .replace("](", "]\\(")
        .replace('\n', "<br>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_table_for_each_area() {
        let mistake = |area, what: &str| Mistake {
            area,
            what: what.to_owned(),
            sees: "a | b\nc <d> [e](f)".to_owned(),
            why: None,
            undo: "mend it".to_owned(),
        };
        let page = page(
            "# Mistakes",
            &[mistake("One", "x"), mistake("One", "y"), mistake("Two", "z")],
        );
        let head = "| mistake | what you see | the way back |\n|---|---|---|\n";
        let row = |what| format!("| {what} | a \\| b<br>c &lt;d> [e]\\(f) | mend it |\n");
        assert_eq!(
            page,
            format!(
                "# Mistakes\n\n## One\n\n{head}{}{}\n## Two\n\n{head}{}",
                row("x"),
                row("y"),
                row("z")
            )
        );
    }

    #[test]
    fn what_was_accepted_has_a_column_for_its_first_cause() {
        let mistake = Mistake {
            area: "One",
            what: "x".to_owned(),
            sees: "y".to_owned(),
            why: Some("`Pool/a`: Full".to_owned()),
            undo: "z".to_owned(),
        };
        let expected = "# Mistakes\n\n## One\n\n| mistake | what you see | `slipway why` on the Cluster | the way back |\n\
            |---|---|---|---|\n| x | y | `Pool/a`: Full | z |\n";
        assert_eq!(page("# Mistakes", &[mistake]), expected);
    }

    #[test]
    #[should_panic(expected = "does not say: undo")]
    fn a_row_without_a_way_back_is_refused() {
        let row = Mistake {
            area: "One",
            what: "x".to_owned(),
            sees: "y".to_owned(),
            why: None,
            undo: " ".to_owned(),
        };
        row.check();
    }
}
