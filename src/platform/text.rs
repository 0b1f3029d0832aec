//! Characters that no message and no name shows as they are.

use std::fmt::Display;

/// Answers whether `character` is obeyed by a terminal, turns the direction of its neighbours, ends a line, or is drawn as nothing:
/// controls, and what Unicode calls Default_Ignorable_Code_Point, line and paragraph separators and annotations.
pub fn is_hidden(character: char) -> bool {
    let is_in = |range: &[u32]| (range[0]..=range[1]).contains(&u32::from(character));
    if character.is_ascii() { character.is_ascii_control() } else { HIDDEN.chunks_exact(2).any(is_in) }
}

/// The first and the last of each range of hidden characters beyond ASCII.
const HIDDEN: [u32; 36] = [
    0x80, 0x9F, 0xAD, 0xAD, 0x34F, 0x34F, 0x61C, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180F, 0x200B, 0x200F,
    0x2028, 0x202E, 0x2060, 0x206F, 0x3164, 0x3164, 0xFE00, 0xFE0F, 0xFEFF, 0xFEFF, 0xFFA0, 0xFFA0, 0xFFF0, 0xFFFB,
    0x1BCA0, 0x1BCA3, 0x1D173, 0x1D17A, 0xE0000, 0xE0FFF,
];

/// A JSON value as text whose strings have everything hidden escaped: its meaning is the same.
pub fn printable_json(value: &impl Display) -> String {
    let text = value.to_string();
    if !text.contains(is_hidden) {
        return text;
    }
    let escaped = |character: char| -> String {
        character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
    };
    let printable = |character| if is_hidden(character) { escaped(character) } else { String::from(character) };
    text.chars().map(printable).collect()
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
