//! How text comes to a terminal: what objects say cannot move the cursor, lines fit, and colour is for people alone.

use std::{
    fmt::Write as _,
    io::{IsTerminal, stdout},
};

use slipway_insight::State;

/// Where output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Columns, where lines are cut; `None` for a file or a pipe.
    pub width: Option<usize>,
    pub colour: bool,
}

impl Look {
    pub fn of_stdout(wide: bool) -> Self {
        let is_terminal = stdout().is_terminal();
        let size = rustix::termios::tcgetwinsize(stdout()).ok();
        let columns = size
            .map(|size| usize::from(size.ws_col))
            .filter(|columns| *columns > 20);
        Self {
            width: columns.filter(|_| is_terminal && !wide),
            colour: is_terminal && std::env::var_os("NO_COLOR").is_none(),
        }
    }
}

/// Text from an object, on one line, without anything that a terminal would obey: control characters, and those that turn the
/// direction of what follows or hide it.
pub fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    if let Some(first) = lines.next() {
        escape(first, &mut safe);
    }
    for line in lines {
        // Cluster API writes lists with a star or a dash for each item.
        let joint = if safe.ends_with(':') { " " } else { "; " };
        safe.push_str(joint);
        escape(line, &mut safe);
    }
    safe
}

fn escape(text: &str, safe: &mut String) {
    for letter in text.chars() {
        if letter.is_control() || is_invisible(letter) {
            // Writing to a string cannot fail.
            let _ = write!(safe, "\\u{{{:x}}}", u32::from(letter));
        } else {
            safe.push(letter);
        }
    }
}

fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

pub fn coloured(state: State, text: &str, look: Look) -> String {
    if !look.colour {
        return text.to_owned();
    }
    let code = match state {
        State::Ready => "32",
        State::Progressing => "36",
        State::Waiting => "33",
        State::Stuck => "1;31",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// `2d3h`, `5m12s`: two parts at most, as kubectl writes it.
pub fn duration(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let parts = [
        (seconds / 86400, 'd'),
        (seconds / 3600 % 24, 'h'),
        (seconds / 60 % 60, 'm'),
        (seconds % 60, 's'),
    ];
    let first = parts.iter().position(|(number, _)| *number > 0).unwrap_or(3);
    let mut text = format!("{}{}", parts[first].0, parts[first].1);
    if let Some((number, unit)) = parts.get(first + 1)
        && *number > 0
        && parts[first].0 < 10
    {
        let _ = write!(text, "{number}{unit}");
    }
    text
}

/// One cell: its text, and the state whose colour it has.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub text: String,
    pub state: Option<State>,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, state: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<State> for Cell {
    fn from(state: State) -> Self {
        Self {
            text: state.word().to_owned(),
            state: Some(state),
        }
    }
}

/// Rows under a heading. Columns are as wide as they must be; the last one is cut where the terminal ends, and columns without
/// anything in them are left out.
pub fn table(heading: &[&str], rows: &[Vec<Cell>], look: Look) -> String {
    let length = |text: &str| text.chars().count();
    let kept: Vec<usize> = (0..heading.len())
        .filter(|column| {
            *column == 0
                || rows
                    .iter()
                    .any(|row| row.get(*column).is_some_and(|cell| !cell.text.is_empty()))
        })
        .collect();
    let widths: Vec<usize> = kept
        .iter()
        .map(|column| {
            let cells = rows
                .iter()
                .filter_map(|row| row.get(*column))
                .map(|cell| length(&cell.text));
            cells.chain([length(heading[*column])]).max().unwrap_or(0)
        })
        .collect();
    let heading: Vec<Cell> = heading.iter().map(|text| (*text).into()).collect();
    let mut text = String::new();
    for row in [&heading].into_iter().chain(rows) {
        let mut line = String::new();
        let mut used = 0;
        for (index, column) in kept.iter().enumerate() {
            let cell = row.get(*column).cloned().unwrap_or_default();
            let is_last = index + 1 == kept.len();
            let room = look.width.map(|width| width.saturating_sub(used));
            let shown = match room {
                Some(room) => cut(&cell.text, room),
                None => cell.text.clone(),
            };
            let shown_length = length(&shown);
            line.push_str(
                &cell
                    .state
                    .map_or_else(|| shown.clone(), |state| coloured(state, &shown, look)),
            );
            if !is_last {
                let padding = (widths[index] + 2).saturating_sub(shown_length);
                line.extend(std::iter::repeat_n(' ', padding));
                used += shown_length + padding;
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(room.saturating_sub(1)).collect();
    if room > 0 {
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Look = Look {
        width: None,
        colour: false,
    };

    #[test]
    fn what_an_object_says_does_not_reach_the_terminal_as_a_command() {
        assert_eq!(plain("a\x1b[2Jb\r\u{7}"), r"a\u{1b}[2Jb\u{d}\u{7}");
        assert_eq!(
            plain("safe\u{202e}fdp.exe\u{200b}"),
            r"safe\u{202e}fdp.exe\u{200b}"
        );
        assert_eq!(
            plain("* Ready:\n  * not yet\n\n* Other"),
            "* Ready: * not yet; * Other"
        );
        assert_eq!(plain("Grüße 世界 🚀"), "Grüße 世界 🚀");
        assert_eq!(plain("\u{9b}31m"), r"\u{9b}31m");
    }

    #[test]
    fn durations_have_two_parts_at_most() {
        let all = [
            (0, "0s"),
            (59, "59s"),
            (61, "1m1s"),
            (600, "10m"),
            (3660, "1h1m"),
            (90000, "1d1h"),
            (-5, "0s"),
        ];
        for (seconds, expected) in all {
            assert_eq!(duration(seconds), expected);
        }
        assert_eq!(duration(12 * 86400 + 3600), "12d");
    }

    #[test]
    fn a_table_is_cut_at_the_edge_and_leaves_empty_columns_out() {
        let rows = [
            vec![
                "one".into(),
                State::Ready.into(),
                "".into(),
                "a long message".into(),
            ],
            vec!["three".into(), State::Stuck.into(), "".into(), "".into()],
        ];
        let heading = ["NAME", "STATE", "NOTHING", "MESSAGE"];
        let expected = "NAME   STATE  MESSAGE\none    ready  a long message\nthree  stuck\n";
        assert_eq!(table(&heading, &rows, FILE), expected);
        let narrow = Look {
            width: Some(20),
            colour: false,
        };
        let shown = table(&heading, &rows, narrow);
        assert!(shown.contains("one    ready  a lon…\n"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 20), "{shown}");
        let coloured = table(
            &heading,
            &rows,
            Look {
                width: None,
                colour: true,
            },
        );
        assert!(
            coloured.contains("one    \x1b[32mready\x1b[0m  a long message"),
            "{coloured}"
        );
    }
}
