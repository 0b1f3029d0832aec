//! An error on one line with its causes, and the characters that no message and no name shows as they are.

use std::error::Error;
use std::fmt::{Display, Write as _};

/// Whether `character` is obeyed by a terminal, turns the direction of its neighbours, ends a line, or is drawn as nothing:
/// controls, and what Unicode calls Default_Ignorable_Code_Point, line and paragraph separators and annotations.
pub fn is_hidden(character: char) -> bool {
    match character {
        '\0'..='\u{7F}' => character.is_ascii_control(),
        _ => matches!(
            character,
            '\u{80}'..='\u{9F}'
                | '\u{AD}'
                | '\u{34F}'
                | '\u{61C}'
                | '\u{115F}'..='\u{1160}'
                | '\u{17B4}'..='\u{17B5}'
                | '\u{180B}'..='\u{180F}'
                | '\u{200B}'..='\u{200F}'
                | '\u{2028}'..='\u{202E}'
                | '\u{2060}'..='\u{206F}'
                | '\u{3164}'
                | '\u{FE00}'..='\u{FE0F}'
                | '\u{FEFF}'
                | '\u{FFA0}'
                | '\u{FFF0}'..='\u{FFFB}'
                | '\u{1BCA0}'..='\u{1BCA3}'
                | '\u{1D173}'..='\u{1D17A}'
                | '\u{E0000}'..='\u{E0FFF}'
        ),
    }
}

/// A JSON value as text whose strings have everything hidden escaped: its meaning is the same.
pub fn printable_json(value: &impl Display) -> String {
    let text = value.to_string();
    if !text.contains(is_hidden) {
        return text;
    }
    let mut printable = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_hidden(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(printable, "\\u{unit:04x}");
            }
        } else {
            printable.push(character);
        }
    }
    printable
}

/// An error and its causes on one line: `message: cause: cause of the cause`. A cause that the message ends with is not repeated, nor is the
/// beginning of one, nor the address that it begins with; the number of a system error is left out. Hidden characters are escaped, as
/// a cause may quote a server's text.
pub fn chain(error: &dyn Error) -> String {
    let mut line = without_number(&error.to_string()).to_owned();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        let text = without_number(text.trim_end());
        let subject = line.rsplit(": ").next().unwrap_or_default();
        let is_named = |place: &str| {
            let is_address = place.contains('/') && !place.contains(' ');
            is_address && [": ", " "].iter().any(|after| line.contains(&format!("{place}{after}")))
        };
        let begins = text.split_once(' ').filter(|(place, _)| is_named(place.trim_end_matches(':')));
        let text = begins.map_or(text, |(_, rest)| rest);
        let goes_on = text.strip_prefix(subject).filter(|rest| rest.starts_with([':', ' '])).map(str::to_owned);
        if let Some(rest) = goes_on {
            line.push_str(&rest);
        } else if !line.ends_with(text) {
            line.push_str(": ");
            line.push_str(text);
        }
        cause = inner.source();
    }
    if !line.contains(is_hidden) {
        return line;
    }
    let mut printable = String::with_capacity(line.len());
    for character in line.chars() {
        if is_hidden(character) {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}

/// Without the ` (os error 2)` at the end of what std calls an error of the system.
fn without_number(text: &str) -> &str {
    text.rsplit_once(" (os error ").filter(|(_, number)| number.ends_with(')')).map_or(text, |(words, _)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_error_is_shown_without_its_number() {
        assert_eq!(chain(&std::io::Error::from_raw_os_error(2)), "No such file or directory");
        assert_eq!(without_number("a (os error 2) b"), "a (os error 2) b");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failure {
        text: &'static str,
        #[source]
        cause: Option<Box<Failure>>,
    }

    fn line(texts: &[&'static str]) -> String {
        let innermost_first = texts.iter().rev().fold(None, |cause, text| Some(Box::new(Failure { text, cause })));
        innermost_first.map_or_else(String::new, |failure| chain(&*failure))
    }

    #[test]
    fn every_cause_is_named() {
        assert_eq!(line(&["the catalog failed", "/c/data.mdb", "disk"]), "the catalog failed: /c/data.mdb: disk");
    }

    #[test]
    fn a_repeated_cause_is_left_out() {
        assert_eq!(
            line(&["http://h/list.xml", "http://h/list.xml: 404 Not Found"]),
            "http://h/list.xml: 404 Not Found"
        );
        assert_eq!(line(&["it failed: no route", "no route"]), "it failed: no route");
        assert_eq!(
            line(&["not mounted", "http://h/: h gets no requests", "http://h/: cannot connect to h", "no route"]),
            "not mounted: http://h/: h gets no requests: cannot connect to h: no route"
        );
        assert_eq!(
            line(&["http://h/a cannot be downloaded", "http://h/a: no route"]),
            "http://h/a cannot be downloaded: no route"
        );
    }

    #[test]
    fn no_character_is_left_that_a_terminal_obeys() {
        assert_eq!(line(&["it panicked: é\x1b[31m\n\u{9b}2J"]), "it panicked: é\\u{1b}[31m\\n\\u{9b}2J");
        assert_eq!(line(&["a\u{ad}b\u{2028}\u{e0041}"]), "a\\u{ad}b\\u{2028}\\u{e0041}");
    }

    #[test]
    fn hidden_are_controls_and_what_is_drawn_as_nothing() {
        let hidden = [
            '\0',
            '\n',
            '\u{7f}',
            '\u{85}',
            '\u{9f}',
            '\u{ad}',
            '\u{61c}',
            '\u{180b}',
            '\u{180e}',
            '\u{200b}',
            '\u{2028}',
            '\u{2029}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{206f}',
            '\u{3164}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fff9}',
            '\u{fffb}',
            '\u{1d173}',
            '\u{e0001}',
            '\u{e0041}',
            '\u{e007f}',
            '\u{e0100}',
        ];
        for character in hidden {
            assert!(is_hidden(character), "{character:?}");
        }
        let shown = [
            ' ',
            '~',
            '\u{a0}',
            '\u{ac}',
            'é',
            '\u{301}',
            '\u{600}',
            '\u{2000}',
            '\u{2010}',
            '\u{202f}',
            '\u{2070}',
            '\u{3000}',
            '\u{fffc}',
            '\u{fffd}',
            '\u{10000}',
            '\u{1f600}',
            '\u{e1000}',
        ];
        for character in shown {
            assert!(!is_hidden(character), "{character:?}");
        }
    }

    #[test]
    fn json_keeps_its_meaning_with_everything_hidden_escaped() {
        let value = serde_json::json!({ "a\u{9b}": ["\u{7f}\u{2028}\u{e0041}\n\"\\é\x1b"] });

        let text = printable_json(&value);

        assert_eq!(text, "{\"a\\u009b\":[\"\\u007f\\u2028\\udb40\\udc41\\n\\\"\\\\é\\u001b\"]}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
