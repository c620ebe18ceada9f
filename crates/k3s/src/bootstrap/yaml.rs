//! YAML scalars in the style of the library cluster-api-k3s writes with, so that the same spec gives the same bytes.
//! Whatever the text, what is written here reads back as exactly that text.

use std::{fmt::Write, sync::LazyLock};

use regex::Regex;

/// Words that YAML 1.1 reads as something else than a string.
const WORDS: &[&str] = &[
    "", "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", "n", "N", "no", "No", "NO",
    "false", "False", "FALSE", "off", "Off", "OFF", "~", "null", "Null", "NULL", ".nan", ".NaN", ".NAN",
    ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF",
];

/// What reads as a number, a date or a base-60 number.
static NUMBERS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^(?:",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        r"|[-+]?0[xX][0-9a-fA-F]{1,16}|[-+]?0[bB][01]+|[-+]?0[oO][0-7]+",
        r"|[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?",
        r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ][0-9:.Zz+-]*)?",
        r")$"
    ))
    .expect("the pattern is well-formed")
});

/// The column after which a plain scalar is folded at its next space.
const WIDTH: usize = 80;

/// One scalar that starts in `column` (counted from the line's start, after the key and its space). A continuation
/// line is indented by two.
pub fn scalar(text: &str, column: usize) -> String {
    let plain = text.replace('_', "");
    // A number too large to be one stays a string.
    let too_large = plain.parse::<f64>().is_ok_and(f64::is_infinite) && !plain.contains("inf");
    let reads_as_string = !WORDS.contains(&text) && (too_large || !NUMBERS.is_match(&plain));
    let shape = Shape::of(text);
    if text.contains('\n') || !reads_as_string || shape.needs_escapes {
        return double_quoted(text);
    }
    if shape.plain_allowed {
        return folded(text, column);
    }
    format!("'{}'", text.replace('\'', "''"))
}

fn folded(text: &str, column: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut column = column;
    let mut previous_is_space = false;
    let characters: Vec<char> = text.chars().collect();
    for (index, character) in characters.iter().enumerate() {
        let next_is_space = characters.get(index + 1) == Some(&' ');
        if *character == ' ' && !previous_is_space && column > WIDTH && !next_is_space {
            out.push_str("\n  ");
            column = 2;
        } else {
            out.push(*character);
            column += 1;
        }
        previous_is_space = *character == ' ';
    }
    out
}

struct Shape {
    plain_allowed: bool,
    needs_escapes: bool,
}

impl Shape {
    fn of(text: &str) -> Self {
        let characters: Vec<char> = text.chars().collect();
        let blank =
            |character: Option<&char>| character.is_none_or(|character| matches!(character, ' ' | '\t'));
        let mut indicator = text.starts_with("---") || text.starts_with("...");
        for (index, character) in characters.iter().enumerate() {
            let followed_by_blank = blank(characters.get(index + 1));
            indicator |= match (index, character) {
                (
                    0,
                    '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@'
                    | '`',
                ) => true,
                (0, '?' | '-') | (_, ':') => followed_by_blank,
                (_, '#') => blank(characters.get(index - 1)),
                _ => false,
            };
        }
        Self {
            plain_allowed: !indicator && !text.starts_with(' ') && !text.ends_with(' '),
            needs_escapes: !characters.iter().copied().all(is_printable),
        }
    }
}

/// What the emitter writes as it is. Characters above the basic plane are escaped.
pub fn is_printable(character: char) -> bool {
    matches!(character, ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}')
        && !matches!(character, '\u{feff}' | '\u{2028}' | '\u{2029}')
}

/// A scalar in double quotes, with everything escaped that is not printable.
pub fn double_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        let known = match character {
            '\0' => Some("\\0"),
            '\u{1b}' => Some("\\e"),
            '\u{85}' => Some("\\N"),
            '\u{2028}' => Some("\\L"),
            '\u{2029}' => Some("\\P"),
            _ => short_escape(character),
        };
        match known {
            Some(escape) => out.push_str(escape),
            None if is_printable(character) => out.push(character),
            None => {
                let code = u32::from(character);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02X}"),
                    0x100..=0xffff => write!(out, "\\u{code:04X}"),
                    _ => write!(out, "\\U{code:08X}"),
                };
            }
        }
    }
    out.push('"');
    out
}

/// What both ways of quoting write in short.
fn short_escape(character: char) -> Option<&'static str> {
    Some(match character {
        '"' => "\\\"",
        '\\' => "\\\\",
        '\u{7}' => "\\a",
        '\u{8}' => "\\b",
        '\t' => "\\t",
        '\n' => "\\n",
        '\u{b}' => "\\v",
        '\u{c}' => "\\f",
        '\r' => "\\r",
        _ => return None,
    })
}

/// A string as Go's `%q` writes it, which is a YAML scalar too.
pub fn go_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match short_escape(character) {
            Some(escape) => out.push_str(escape),
            None if shows(character) => out.push(character),
            None => {
                let code = u32::from(character);
                let _ = match code {
                    0..=0x7f => write!(out, "\\x{code:02x}"),
                    0x80..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push('"');
    out
}

/// Whether a character is a letter, mark, number, punctuation, symbol or the plain space. The debug form of a string
/// escapes exactly the others, marks at its start excepted; hence the letter before it.
fn shows(character: char) -> bool {
    let mut buffer = String::from("a");
    buffer.push(character);
    character != '\u{feff}' && (matches!(character, '\'') || buffer.escape_debug().eq(buffer.chars()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_quoted_only_where_they_would_read_as_something_else() {
        let table = [
            ("cloud-provider=external", "cloud-provider=external"),
            ("true", "\"true\""),
            ("6443", "\"6443\""),
            ("10.42.0.0/16", "10.42.0.0/16"),
            ("10.43.0.10", "10.43.0.10"),
            ("1e10", "\"1e10\""),
            (
                "12345678901234567890123456789012",
                "\"12345678901234567890123456789012\"",
            ),
            ("0x1f", "\"0x1f\""),
            ("a: b", "'a: b'"),
            ("a:b", "a:b"),
            ("a #b", "'a #b'"),
            (
                "{{ ds.meta_data.local_hostname }}",
                "'{{ ds.meta_data.local_hostname }}'",
            ),
            ("it's", "it's"),
            ("'it", "'''it'"),
            (" a", "' a'"),
            ("a\tb", "\"a\\tb\""),
            ("a\nb", "\"a\\nb\""),
            ("😀", "\"\\U0001F600\""),
            ("ü", "ü"),
            ("2026-11-16", "\"2026-11-16\""),
            ("1:20", "\"1:20\""),
            ("", "\"\""),
        ];
        for (text, written) in table {
            assert_eq!(scalar(text, 2), written, "{text:?}");
        }
    }

    #[test]
    fn commands_are_quoted_as_go_does() {
        assert_eq!(
            go_quoted("echo \"a\\b\"\n\u{1}\u{7f}é\u{a0}😀"),
            "\"echo \\\"a\\\\b\\\"\\n\\x01\\x7fé\\u00a0😀\""
        );
    }
}
