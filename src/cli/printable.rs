//! Text from a Source, made harmless for a terminal.

/// Text from a Source without what a terminal would obey: control, bidirectional and zero-width characters.
pub fn printable(text: &str) -> String {
    let obeyed = |c: char| match c {
        '\n' | '\t' => false,
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' => true,
        _ => c.is_control(),
    };
    text.chars().map(|c| if obeyed(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
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
        assert_eq!(printable_value("a\nDeviations   none\t"), "a\u{fffd}Deviations   none\u{fffd}");
    }
}
