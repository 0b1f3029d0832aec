//! References in text and attributes: `&amp;`, `&#233;`. Nothing that a DTD defines is ever expanded.

use super::Notes;
use super::element::UndefinedEntity;
use crate::document::Rule;
use std::borrow::Cow;

/// Longest name between `&` and `;` that is looked at.
const LONGEST_NAME: usize = 64;

/// What stands between `&` and `;`.
pub(super) enum Reference {
    Character(char),
    /// An entity of a DTD, or a number that is no character.
    Undefined,
    /// No name at all: the ampersand stands for itself, as in `?a=1&b=2;c`.
    Text,
}

impl Reference {
    pub fn of(name: &str) -> Reference {
        let character = match name {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => name.strip_prefix('#').and_then(numbered),
        };
        let first = name.chars().next();
        let is_name = first.is_some_and(|c| c.is_alphabetic() || matches!(c, '_' | ':' | '#'))
            && name.chars().skip(1).all(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '-' | '.'));
        match character {
            Some(character) => Reference::Character(character),
            None if is_name => Reference::Undefined,
            None => Reference::Text,
        }
    }
}

/// The character of `233` or `xE9`, if XML allows it.
fn numbered(number: &str) -> Option<char> {
    let (digits, radix) = number.strip_prefix(['x', 'X']).map_or((number, 10), |digits| (digits, 16));
    let number = Some(digits).filter(|digits| !digits.starts_with('+'))?;
    let character = u32::from_str_radix(number, radix).ok().and_then(char::from_u32)?;
    (character >= ' ' || matches!(character, '\t' | '\n' | '\r')).then_some(character)
}

/// Replaces the references of an attribute's value.
pub(super) fn unescape<'a>(raw: &'a str, notes: &mut Notes<'_>) -> Result<Cow<'a, str>, UndefinedEntity> {
    let Some(first) = raw.find('&') else {
        return Ok(Cow::Borrowed(raw));
    };
    let (before, mut rest) = raw.split_at(first);
    let mut text = String::with_capacity(raw.len());
    text.push_str(before);
    let mut raw_ampersand = false;
    while let Some(after) = rest.strip_prefix('&') {
        let name = after.bytes().take(LONGEST_NAME).position(|b| matches!(b, b';' | b'&' | b'<'));
        let name = name.filter(|end| after.as_bytes().get(*end) == Some(&b';')).and_then(|end| after.get(..end));
        match name.map(|name| (name, Reference::of(name))) {
            Some((name, Reference::Character(character))) => {
                text.push(character);
                rest = after.get(name.len() + 1..).unwrap_or_default();
            }
            Some((_, Reference::Undefined)) => {
                notes.add(Rule::UndefinedEntity, raw);
                return Err(UndefinedEntity);
            }
            Some((_, Reference::Text)) | None => {
                raw_ampersand = true;
                text.push('&');
                rest = after;
            }
        }
        let next = rest.find('&').unwrap_or(rest.len());
        text.push_str(&rest[..next]);
        rest = &rest[next..];
    }
    if raw_ampersand {
        notes.add(Rule::RawAmpersand, raw);
    }
    Ok(Cow::Owned(text))
}
