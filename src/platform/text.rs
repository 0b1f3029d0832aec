//! Characters that no message and no name shows as they are.

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

#[cfg(test)]
mod tests {
    use super::*;

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
