//! The segments of a URI's path, and its query, as names and back.
//!
//! An escape shows as its character where that is harmless in a name: `%20` as a blank, `%C3%A9` as an `é`. `%2C` shows as
//! `,` too, although it is another URI than `,` (RFC 3986, 2.2): many publishers escape all that they can, and hardly
//! one lists both. The rules lead back from `,` to the plain one; the other has to be kept with its path, and where both are
//! listed they meet. In a query nothing is unescaped, its `/` becomes `%2F` and, to keep that one apart, its `%` `%25`.

use super::{extension, limit};
use crate::platform::error_chain::is_hidden;

/// What a URI that ends in `/` stands for, in the folder of that URI.
pub(super) const INDEX: &str = "%index";

/// An empty segment that is a folder.
pub(super) const EMPTY: &str = "%";

/// The ASCII characters that are always escaped in a URI's path and show in a name.
const SHOWN: &[u8] = b" \"<>[\\]^`{|}";

/// The ASCII characters that show in a name and that stand in a URI's path escaped or not (RFC 3986, 3.3: `sub-delims`,
/// `:` and `@`). What is neither here nor in [`SHOWN`] and escaped is `/`, `?`, `#`, `%` or a control.
const SHOWN_EITHER_WAY: &[u8] = b"!$&'()*+,;=:@";

/// Appends the path of `below`, which is a URI without scheme, authority and first `/`. `extension` goes to a last name
/// that has none. Answers whether [`push_address`] leads back.
pub(super) fn push_path(below: &str, extension: Option<&str>, path: &mut String) -> bool {
    if extension.is_none() && is_its_own_path(below) {
        path.push_str(below);
        return true;
    }
    let (segments, query) = below.split_once('?').map_or((below, None), |(path, query)| (path, Some(query)));
    let (folders, last) = segments.rsplit_once('/').map_or((None, segments), |(folders, last)| (Some(folders), last));
    let mut whole = true;
    for folder in folders.into_iter().flat_map(|folders| folders.split('/')) {
        let start = path.len();
        whole &= push_name(if folder.is_empty() { None } else { Some(folder) }, EMPTY, path);
        whole &= limit::fit(path, start);
        path.push('/');
    }
    let start = path.len();
    whole &= push_name(if last.is_empty() { None } else { Some(last) }, INDEX, path);
    finish(query, extension, start, path) && whole
}

/// Completes the last name of `path`, which begins at `start`, by query and extension. Answers whether the rules lead back.
pub(super) fn finish(query: Option<&str>, extension: Option<&str>, start: usize, path: &mut String) -> bool {
    if let Some(query) = query {
        path.push('?');
        for character in query.chars() {
            match character {
                '/' => path.push_str("%2F"),
                '%' => path.push_str("%25"),
                other => path.push(other),
            }
        }
    }
    let extension = extension.filter(|_| extension::of_name(&path[start..]).is_empty());
    if let Some(extension) = extension {
        path.push('.');
        path.push_str(extension);
    }
    limit::fit(path, start) && extension.is_none()
}

/// Appends to `address` the URI path (and query) whose path is `below`, the reverse of [`push_path`]. `None` where it
/// certainly is the path of no URI; what it is the path of is for the caller to check.
pub(super) fn push_address(below: &str, address: &mut String) -> Option<()> {
    let (folders, last) = below.rsplit_once('/').map_or((None, below), |(folders, last)| (Some(folders), last));
    for folder in folders.into_iter().flat_map(|folders| folders.split('/')) {
        push_segment(if folder == EMPTY { "" } else { folder }, address);
        address.push('/');
    }
    let (name, query) = last.split_once('?').map_or((last, None), |(name, query)| (name, Some(query)));
    push_segment(if name == INDEX { "" } else { name }, address);
    query.map_or(Some(()), |query| push_query(query, address))
}

/// Appends to `address` the query, with its `?`, that a name shows as `query`.
pub(super) fn push_query(query: &str, address: &mut String) -> Option<()> {
    address.push('?');
    let mut rest = query;
    while let Some((before, escape)) = rest.split_once('%') {
        address.push_str(before);
        let (character, after) = match escape.strip_prefix("2F") {
            Some(after) => ('/', after),
            None => ('%', escape.strip_prefix("25")?),
        };
        address.push(character);
        rest = after;
    }
    address.push_str(rest);
    Some(())
}

/// `.` and `..` as names: a normalised path has no such segments, but a host may be one.
pub(super) fn escaped_dots(segment: &str) -> Option<&'static str> {
    match segment {
        "." => Some("%2E"),
        ".." => Some("%2E%2E"),
        _ => None,
    }
}

/// The reverse of [`escaped_dots`].
pub(super) fn unescaped_dots(name: &str) -> Option<&'static str> {
    match name {
        "%2E" => Some("."),
        "%2E%2E" => Some(".."),
        _ => None,
    }
}

/// Whether [`push_path`] would copy `below` as it is. `false` only means that it must look closer.
fn is_its_own_path(below: &str) -> bool {
    let mut length = 0;
    for byte in below.bytes() {
        match byte {
            b'/' if length == 0 => return false,
            b'/' => length = 0,
            b'%' | b'?' => return false,
            b'.' if length == 0 => return false,
            _ if length == limit::NAME_MAX => return false,
            _ => length += 1,
        }
    }
    length != 0
}

/// Appends the name of one segment, `empty` where it is `None`. Answers whether [`push_segment`] leads back.
fn push_name(segment: Option<&str>, empty: &str, path: &mut String) -> bool {
    let Some(segment) = segment else {
        path.push_str(empty);
        return true;
    };
    if let Some(escaped) = escaped_dots(segment) {
        path.push_str(escaped);
        return true;
    }
    let mut leads_back = true;
    let mut rest = segment;
    while let Some(escape) = rest.find('%') {
        path.push_str(&rest[..escape]);
        rest = &rest[escape..];
        rest = match escaped_char(rest) {
            Some((shown, length)) if is_shown(shown) => {
                leads_back &= !is_one_of(SHOWN_EITHER_WAY, shown);
                path.push(shown);
                &rest[length..]
            }
            // The `%` alone: the digits follow as what they are.
            _ => {
                path.push('%');
                &rest[1..]
            }
        };
    }
    path.push_str(rest);
    leads_back
}

/// Appends the segment that a name shows, the reverse of [`push_name`].
fn push_segment(name: &str, address: &mut String) {
    for byte in name.bytes() {
        if byte.is_ascii() && !SHOWN.contains(&byte) {
            address.push(char::from(byte));
        } else {
            address.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// The character whose UTF-8 bytes stand escaped at the front of `text`, and the length of these escapes.
fn escaped_char(text: &str) -> Option<(char, usize)> {
    let mut bytes = [0; 4];
    bytes[0] = escaped_byte(text, 0)?;
    let length = match bytes[0] {
        0x00..=0x7F => 1,
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xFF => 4,
        0x80..=0xBF => return None,
    };
    for (place, byte) in bytes.iter_mut().enumerate().take(length).skip(1) {
        *byte = escaped_byte(text, 3 * place)?;
    }
    let shown = std::str::from_utf8(&bytes[..length]).ok()?.chars().next()?;
    Some((shown, 3 * length))
}

/// The byte whose escape stands at `place` of `text`.
fn escaped_byte(text: &str, place: usize) -> Option<u8> {
    let digits = text.get(place..place + 3)?.strip_prefix('%')?;
    // `from_str_radix` takes a sign too.
    if digits.starts_with('+') { None } else { u8::from_str_radix(digits, 16).ok() }
}

fn is_one_of(characters: &[u8], character: char) -> bool {
    u8::try_from(character).is_ok_and(|byte| characters.contains(&byte))
}

/// Whether a name may show `character` where the URI has it escaped: nothing that separates, and nothing hidden.
fn is_shown(character: char) -> bool {
    match character {
        _ if character.is_ascii() => is_one_of(SHOWN, character) || is_one_of(SHOWN_EITHER_WAY, character),
        _ => !is_hidden(character),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(segment: &str) -> String {
        let mut path = String::new();
        push_name(Some(segment), EMPTY, &mut path);
        path
    }

    #[test]
    fn dot_segments_are_never_names() {
        assert_eq!(name("."), "%2E");
        assert_eq!(name(".."), "%2E%2E");
        assert_eq!(name("..."), "...");
        let mut path = String::new();
        push_path("a/../b/.", None, &mut path);
        assert_eq!(path, "a/%2E%2E/b/%2E");
    }

    #[test]
    fn half_an_escape_is_no_escape() {
        assert_eq!(escaped_byte("%2", 0), None);
        assert_eq!(escaped_byte("%+1", 0), None);
        assert_eq!(escaped_byte("%zz", 0), None);
        assert_eq!(escaped_byte("%e9", 0), Some(0xE9));
    }

    #[test]
    fn every_ascii_escape_is_either_shown_or_kept() {
        for byte in 0..=0x7F_u8 {
            let escape = format!("%{byte:02X}");
            let shown = SHOWN.contains(&byte) || SHOWN_EITHER_WAY.contains(&byte);
            let expected = if shown { char::from(byte).to_string() } else { escape.clone() };
            assert_eq!(name(&escape), expected);
        }
    }
}
