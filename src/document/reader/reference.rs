//! References in text and attributes: `&amp;`, `&#233;`, `&eacute;`. Nothing that a DTD defines is ever expanded.

use super::Deviations;
use super::events::utf8;
use crate::document::Rule;
use quick_xml::escape::{resolve_html5_entity, resolve_xml_entity};
use quick_xml::events::{BytesStart, Event};
use std::borrow::Cow;

/// Longest name between `&` and `;` that is looked at.
const LONGEST_NAME: usize = 64;

/// A reference to an entity that XML does not define: what contains it cannot be understood.
#[derive(Debug)]
pub(super) struct UndefinedEntity;

/// The text between `&` and `;`.
pub(super) enum Reference {
    /// The characters that it stands for.
    Characters(Cow<'static, str>),
    /// An entity of a DTD, or a number that is not a character.
    Undefined,
    /// No name at all: the ampersand stands for itself, as in `?a=1&b=2;c`.
    Text,
}

impl Reference {
    /// `is_own` where the document declares entities: a name of HTML may then stand for anything, else it is noted.
    pub fn of(name: &str, is_own: bool, notes: &mut Deviations) -> Reference {
        let numbered = || name.strip_prefix('#').and_then(numbered).map(|character| character.to_string().into());
        if let Some(characters) = resolve_xml_entity(name).map(Cow::from).or_else(numbered) {
            return Reference::Characters(characters);
        }
        if let Some(characters) = resolve_html5_entity(name).filter(|_| !is_own) {
            notes.add(Rule::HtmlEntity, name);
            return Reference::Characters(characters.into());
        }
        let first = name.chars().next();
        let is_name = first.is_some_and(|c| c.is_alphabetic() || matches!(c, '_' | ':' | '#'))
            && name.chars().skip(1).all(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '-' | '.'));
        if is_name { Reference::Undefined } else { Reference::Text }
    }
}

/// The character of `233` or `xE9`, if XML allows it.
fn numbered(number: &str) -> Option<char> {
    let (digits, radix) = number.strip_prefix(['x', 'X']).map_or((number, 10), |digits| (digits, 16));
    let number = Some(digits).filter(|digits| !digits.starts_with('+'))?;
    let character = u32::from_str_radix(number, radix).ok().and_then(char::from_u32)?;
    (character >= ' ' || matches!(character, '\t' | '\n' | '\r')).then_some(character)
}

/// Replaces the references of an attribute's value; `is_own` as in [`Reference::of`].
pub(super) fn unescape<'a>(
    raw: &'a str,
    is_own: bool,
    notes: &mut Deviations,
) -> Result<Cow<'a, str>, UndefinedEntity> {
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
        match name.map(|name| (name, Reference::of(name, is_own, notes))) {
            Some((name, Reference::Characters(characters))) => {
                text.push_str(&characters);
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

/// Notes wrong references of an event that is passed by. Those to entities of a DTD may be right.
pub(super) fn judge_references(event: &Event<'_>, is_own: bool, notes: &mut Deviations) {
    match event {
        Event::Start(element) | Event::Empty(element) if !is_own => judge_attributes(element, notes),
        Event::Text(text) if !text.starts_with(b"&") => {}
        Event::Text(_) | Event::GeneralRef(_) if !is_own => {
            push_text(&mut String::new(), event, usize::MAX, is_own, notes);
        }
        _ => {}
    }
}

/// Notes what is wrong with the references in the attributes of an element.
pub(super) fn judge_attributes(element: &BytesStart<'_>, notes: &mut Deviations) {
    // Faults have been noted.
    let _ = unescape(utf8(element.attributes_raw()), false, notes);
}

/// Appends what an event adds to a text of at most `limit` bytes; whether it can be understood.
pub(super) fn push_text(
    text: &mut String,
    event: &Event<'_>,
    limit: usize,
    is_own: bool,
    notes: &mut Deviations,
) -> bool {
    let before = text.len();
    match event {
        Event::Text(addition) => {
            let addition = utf8(addition);
            // References are separate events: an ampersand at the beginning of a text does not begin one.
            if addition.starts_with('&') {
                notes.add(Rule::RawAmpersand, addition);
            }
            text.push_str(addition);
        }
        Event::CData(addition) => text.push_str(utf8(addition)),
        Event::GeneralRef(reference) => {
            let name = utf8(reference);
            match Reference::of(name, is_own, notes) {
                Reference::Characters(addition) => text.push_str(&addition),
                Reference::Text => {
                    notes.add(Rule::RawAmpersand, name);
                    text.extend(["&", name, ";"]);
                }
                Reference::Undefined => {
                    notes.add(Rule::UndefinedEntity, name);
                    return false;
                }
            }
        }
        _ => {}
    }
    if text.len() > limit {
        notes.add(Rule::TextTooLong, &text[before..]);
        text.clear();
        text.shrink_to(limit);
        return false;
    }
    true
}
