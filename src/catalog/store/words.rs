//! Media types, codings and relations that lists use most: a record names them by number.

use super::super::naming::EXTENSIONS;
use super::codec::{Decoder, push_string};
use std::collections::HashMap;
use std::sync::LazyLock;

/// Numbers from here on are those of [`OTHERS`], those below of the media types that have an extension.
const FIRST_OTHER: u8 = 128;

/// Words that are not among these media types. Numbers are indices into these two lists, and part of the format of the store:
/// either list grows at its end only.
const OTHERS: &[&str] = &[
    "application/octet-stream",
    "text/html; charset=utf-8",
    "text/html;charset=utf-8",
    "text/plain; charset=utf-8",
    "text/plain;charset=utf-8",
    "gzip",
    "br",
    "deflate",
    "zstd",
    "duplicate",
    "alternate",
    "canonical",
    "describedby",
    "collection",
    "memento",
    "timegate",
    "http://www.openarchives.org/rs/terms/patch",
];

static NUMBERS: LazyLock<HashMap<&str, u8>> = LazyLock::new(|| {
    let types = EXTENSIONS.iter().map(|(media_type, _)| *media_type).zip(1..);
    types.chain(OTHERS.iter().copied().zip(FIRST_OTHER..)).collect()
});

/// Writes `text` by its number, or as it is.
pub fn push_word(out: &mut Vec<u8>, text: &str) {
    match NUMBERS.get(text) {
        Some(number) => out.push(*number),
        None => {
            out.push(0);
            push_string(out, text);
        }
    }
}

/// Reads a word that [`push_word`] wrote.
pub fn word<'a>(bytes: &mut Decoder<'a>) -> Option<&'a str> {
    match bytes.value()? {
        0_u8 => bytes.value(),
        number @ FIRST_OTHER.. => OTHERS.get(usize::from(number - FIRST_OTHER)).copied(),
        number => EXTENSIONS.get(usize::from(number) - 1).map(|(media_type, _)| *media_type),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_comes_back_and_has_one_number() {
        assert!(EXTENSIONS.len() < usize::from(FIRST_OTHER) && OTHERS.len() < 128);
        let all = EXTENSIONS.iter().map(|(media_type, _)| *media_type).chain(OTHERS.iter().copied());
        for text in all.chain(["", "application/x-rare", "Text/HTML"]) {
            let mut bytes = Vec::new();
            push_word(&mut bytes, text);
            assert_eq!(word(&mut Decoder(&bytes)), Some(text));
            assert_eq!(bytes.len() == 1, NUMBERS.contains_key(text));
        }
        assert_eq!(NUMBERS.len(), EXTENSIONS.len() + OTHERS.len());
        assert_eq!(word(&mut Decoder(&[255])), None);
    }
}
