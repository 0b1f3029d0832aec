//! Parameters of HTTP fields: `; name=value` (RFC 9110, 5.6.6), with the extended values of RFC 8187.

use encoding_rs::Encoding;
use percent_encoding::percent_decode_str;

/// Walks a field from left to right.
pub(crate) struct Scanner<'a> {
    pub rest: &'a str,
    /// A comma ends a value: the field is a list.
    pub is_list: bool,
}

impl<'a> Scanner<'a> {
    /// The next parameter: its name in lower case, its value unquoted. `None` where no `;` comes next.
    pub fn parameter(&mut self) -> Option<(String, String)> {
        if !self.next_is(';') {
            return None;
        }
        let is_list = self.is_list;
        let name = self.take_until(|c| matches!(c, '=' | ';') || is_list && c == ',').trim().to_ascii_lowercase();
        let value = if self.next_is('=') { self.value() } else { String::new() };
        Some((name, value))
    }

    /// A token or a quoted string, unquoted.
    fn value(&mut self) -> String {
        self.skip(|c| c.is_ascii_whitespace());
        let Some(quoted) = self.rest.strip_prefix('"') else {
            let is_list = self.is_list;
            return self.take_until(|c| c == ';' || is_list && c == ',').trim().to_owned();
        };
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.rest = &quoted[at + 1..];
                    return value;
                }
                '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
                other => value.push(other),
            }
        }
        self.rest = "";
        value
    }

    /// Consumes `character`, blanks before it included, if it comes next.
    fn next_is(&mut self, character: char) -> bool {
        self.skip(|c| c.is_ascii_whitespace());
        let rest = self.rest.strip_prefix(character);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    pub fn skip(&mut self, unwanted: impl Fn(char) -> bool) {
        self.rest = self.rest.trim_start_matches(unwanted);
    }

    pub fn take_until(&mut self, end: impl Fn(char) -> bool) -> &'a str {
        let (taken, rest) = self.rest.split_at(self.rest.find(end).unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }
}

/// The text of an extended value, `UTF-8'en'%E2%82%AC`; `None` where it is none.
pub(crate) fn extended(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_, coded) = rest.split_once('\'')?;
    let bytes: Vec<u8> = percent_decode_str(coded).collect();
    let text = Encoding::for_label(charset.as_bytes())?.decode_without_bom_handling_and_without_replacement(&bytes)?;
    Some(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_values_in_two_charsets_and_none_that_is_broken() {
        assert_eq!(extended("UTF-8''%e2%82%ac%20rates").as_deref(), Some("€ rates"));
        assert_eq!(extended("iso-8859-1'en'%A3%20rates").as_deref(), Some("£ rates"));
        for broken in ["", "UTF-8", "UTF-8'en", "UTF-8''%ff", "no-such-charset''a"] {
            assert_eq!(extended(broken), None, "{broken:?}");
        }
    }
}
