//! Text from a Source, made harmless for a terminal.

use crate::platform::error_chain::is_hidden;

/// Text from a Source without what is hidden or what a terminal would obey; line ends and tabs stay.
pub fn printable(text: &str) -> String {
    let replaced = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
    text.chars().map(|c| if replaced(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// The same for a value within a line, which must not pretend to be lines of ours.
pub fn printable_value(value: &str) -> String {
    printable(&value.replace(['\n', '\t'], "\u{fffd}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_not_printed() {
        assert_eq!(printable("a\x1b[31mb\u{9b}c\u{202e}\n"), "a\u{fffd}[31mb\u{fffd}c\u{fffd}\n");
        assert_eq!(printable("a\u{ad}\u{61c}\u{2028}\u{e0041}\té"), "a\u{fffd}\u{fffd}\u{fffd}\u{fffd}\té");
        assert_eq!(printable_value("a\nDeviations   none\t"), "a\u{fffd}Deviations   none\u{fffd}");
    }
}
