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
        if mistake.area != area {
            area = mistake.area;
            let _ = write!(
                page,
                "\n## {area}\n\n| mistake | what you see | the way back |\n|---|---|---|\n"
            );
        }
        let _ = writeln!(
            page,
            "| {} | {} | {} |",
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
    #[should_panic(expected = "does not say: undo")]
    fn a_row_without_a_way_back_is_refused() {
        let row = Mistake {
            area: "One",
            what: "x".to_owned(),
            sees: "y".to_owned(),
            undo: " ".to_owned(),
        };
        row.check();
    }
}
