//! Entries as nearly every list writes them, found without the XML reader.
//!
//! Plain is a `<url>` whose elements have no prefix but `rs`, declare nothing, are closed as they were opened and hold
//! neither references nor comments, and whose attributes stand in double quotes. An entry that is anything else, or of which
//! the end is not in memory yet, is left to the XML reader from its first byte on. So both read every entry the same.

use super::namespace::ElementKind;
use memchr::{memchr, memchr2};
use std::ops::Range;

/// More elements than this in one entry are left to the XML reader.
const PARTS: usize = 64;

/// An element of a plain entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlainElement {
    pub kind: ElementKind,
    /// The place of its text; of an empty element, what follows its `<` up to its `/`.
    pub place: Range<usize>,
}

/// Bytes of `rs:md` and `rs:ln`.
pub(super) const NAME: usize = 5;

/// Finds the elements of the plain entry that `window` begins with, after blanks, and answers where it ends. No text or
/// attribute has more than `limit` bytes.
pub(super) fn find(window: &[u8], limit: usize, parts: &mut Vec<PlainElement>) -> Option<usize> {
    parts.clear();
    let mut at = behind(window, behind_blanks(window, 0), b"<url>")?;
    loop {
        at = behind_blanks(window, at);
        let (kind, start, end_tag): (_, _, &[u8]) = match window.get(at + 1)? {
            b'l' => match behind(window, at, b"<loc>") {
                Some(start) => (ElementKind::Loc, start, b"</loc>"),
                None => (ElementKind::LastMod, behind(window, at, b"<lastmod>")?, b"</lastmod>"),
            },
            b'r' => {
                let kind = match window.get(at..at + 1 + NAME)? {
                    b"<rs:md" => ElementKind::Metadata,
                    b"<rs:ln" => ElementKind::Link,
                    _ => return None,
                };
                let end = end_of_attributes(window, at + 1 + NAME, limit)?;
                parts.push(PlainElement { kind, place: at + 1..end });
                at = end + 2;
                if parts.len() > PARTS {
                    return None;
                }
                continue;
            }
            b'p' => (ElementKind::Foreign, behind(window, at, b"<priority>")?, b"</priority>"),
            b'c' => (ElementKind::ChangeFreq, behind(window, at, b"<changefreq>")?, b"</changefreq>"),
            _ => return behind(window, at, b"</url>"),
        };
        let length = memchr2(b'<', b'&', &window[start..])?;
        let end = start + length;
        at = behind(window, end, end_tag)?;
        if length > limit || parts.len() == PARTS {
            return None;
        }
        if kind != ElementKind::Foreign {
            parts.push(PlainElement { kind, place: start..end });
        }
    }
}

/// The end of `expected`, if it stands at `at`.
#[inline]
fn behind(window: &[u8], at: usize, expected: &[u8]) -> Option<usize> {
    window.get(at..)?.starts_with(expected).then_some(at + expected.len())
}

#[inline]
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

#[inline]
fn behind_blanks(window: &[u8], mut at: usize) -> usize {
    while window.get(at).is_some_and(|byte| is_blank(*byte)) {
        at += 1;
    }
    at
}

/// The place of the `/>` behind plain attributes.
fn end_of_attributes(window: &[u8], mut at: usize, limit: usize) -> Option<usize> {
    loop {
        let before = at;
        at = behind_blanks(window, at);
        if window.get(at) == Some(&b'/') {
            return (window.get(at + 1) == Some(&b'>')).then_some(at);
        }
        let name = at;
        while window.get(at)?.is_ascii_lowercase() {
            at += 1;
        }
        // A name that begins as `xmlns` does may declare a namespace.
        if at == name || name == before || window[name] == b'x' {
            return None;
        }
        let value = behind(window, at, b"=\"")?;
        let length = memchr(b'"', window.get(value..)?)?;
        if length > limit || memchr2(b'<', b'&', &window[value..value + length]).is_some() {
            return None;
        }
        at = value + length + 1;
    }
}

/// Names and values of attributes that [`find`] has found plain.
pub(super) fn attributes(mut bytes: &str) -> impl Iterator<Item = (&str, &str)> {
    std::iter::from_fn(move || {
        let opened = memchr(b'"', bytes.as_bytes())?;
        let (name, rest) = (bytes.get(..opened)?, bytes.get(opened + 1..)?);
        let closed = memchr(b'"', rest.as_bytes())?;
        bytes = rest.get(closed + 1..)?;
        Some((name.strip_suffix('=')?.trim_ascii_start(), rest.get(..closed)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of an entry, and what is left behind it.
    fn found(window: &str) -> Option<(Vec<(ElementKind, &str)>, &str)> {
        let mut parts = Vec::new();
        let end = find(window.as_bytes(), 100, &mut parts)?;
        Some((parts.into_iter().map(|part| (part.kind, &window[part.place])).collect(), &window[end..]))
    }

    #[test]
    fn every_element_is_found_in_its_place() {
        let entry = " \n<url>\n<loc> a é</loc><lastmod>b</lastmod><changefreq>c</changefreq><priority>0.5</priority>\n\
                     <rs:md hash=\"d\"\n length=\"5\" /><rs:ln rel=\"r\" href=\"h>\"/></url>\n<url>";

        let (parts, rest) = found(entry).unwrap();

        assert_eq!(
            parts,
            [
                (ElementKind::Loc, " a é"),
                (ElementKind::LastMod, "b"),
                (ElementKind::ChangeFreq, "c"),
                (ElementKind::Metadata, "rs:md hash=\"d\"\n length=\"5\" "),
                (ElementKind::Link, "rs:ln rel=\"r\" href=\"h>\""),
            ]
        );
        assert_eq!(rest, "\n<url>");
        let named: Vec<_> = attributes(&parts[3].1[NAME..]).collect();
        assert_eq!(named, [("hash", "d"), ("length", "5")]);
    }

    #[test]
    fn what_is_not_plain_is_left_alone() {
        let long = format!("<url><loc>{}</loc></url>", "a".repeat(101));
        for entry in [
            "",
            "<url",
            "<url><loc>a</loc>",
            "<url><loc>a</loc></url",
            "<url ><loc>a</loc></url>",
            "text<url></url>",
            "<url>text</url>",
            "<url><loc>a&amp;b</loc></url>",
            "<url><loc>a<!-- b --></loc></url>",
            "<url><loc>a</lastmod></url>",
            "<url><loc >a</loc></url>",
            "<url><loc/></url>",
            "<url><rs:md length='5'/></url>",
            "<url><rs:md length=\"&#53;\"/></url>",
            "<url><rs:md length=\"5\"type=\"a\"/></url>",
            "<url><rs:mdlength=\"5\"/></url>",
            "<url><rs:md length = \"5\"/></url>",
            "<url><rs:md length=\"5\"></rs:md></url>",
            "<url><rs:md length/></url>",
            "<url><rs:md rs:length=\"5\"/></url>",
            "<url><rs:md xmlns=\"a\" length=\"5\"/></url>",
            "<url><x:md length=\"5\"/></url>",
            "<sitemap><loc>a</loc></sitemap>",
            &long,
        ] {
            assert_eq!(found(entry), None, "{entry:?}");
        }
    }
}
