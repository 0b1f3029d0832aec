//! An error told with its causes.

use std::error::Error;

/// An error and its causes on one line: `message: cause: cause of the cause`, each said once, also what a cause begins with
/// where the message ends with it. Control characters are escaped, for a cause may quote what a server sent.
pub fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        let said = said.trim_end();
        let subject = line.rsplit(": ").next().unwrap_or_default();
        let goes_on = said.strip_prefix(subject).filter(|rest| rest.starts_with([':', ' '])).map(str::to_owned);
        if let Some(rest) = goes_on {
            line.push_str(&rest);
        } else if !line.ends_with(said) {
            line.push_str(": ");
            line.push_str(said);
        }
        cause = inner.source();
    }
    if !line.contains(char::is_control) {
        return line;
    }
    let mut printable = String::with_capacity(line.len());
    for character in line.chars() {
        if character.is_control() {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{said}")]
    struct Failure {
        said: &'static str,
        #[source]
        cause: Option<Box<Failure>>,
    }

    fn told(said: &[&'static str]) -> String {
        let innermost_first = said.iter().rev().fold(None, |cause, said| Some(Box::new(Failure { said, cause })));
        innermost_first.map_or_else(String::new, |failure| chain(&*failure))
    }

    #[test]
    fn every_cause_is_named() {
        assert_eq!(told(&["the catalog failed", "/c/data.mdb", "disk"]), "the catalog failed: /c/data.mdb: disk");
    }

    #[test]
    fn what_was_just_said_is_not_said_again() {
        assert_eq!(
            told(&["http://h/list.xml", "http://h/list.xml: 404 Not Found"]),
            "http://h/list.xml: 404 Not Found"
        );
        assert_eq!(told(&["it failed: no route", "no route"]), "it failed: no route");
    }

    #[test]
    fn nothing_is_left_that_a_terminal_would_obey() {
        assert_eq!(told(&["it panicked: é\x1b[31m\n\u{9b}2J"]), "it panicked: é\\u{1b}[31m\\n\\u{9b}2J");
    }
}
