//! An error on one line with its causes.

use super::text::is_hidden;
use std::error::Error;

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
    let printable = |character: char| {
        if is_hidden(character) { character.escape_default().collect() } else { String::from(character) }
    };
    line.chars().map(printable).collect()
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
    struct NestedError {
        text: &'static str,
        #[source]
        cause: Option<Box<NestedError>>,
    }

    fn line(texts: &[&'static str]) -> String {
        let innermost_first = texts.iter().rev().fold(None, |cause, text| Some(Box::new(NestedError { text, cause })));
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
}
