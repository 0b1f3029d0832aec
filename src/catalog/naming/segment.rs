//! The segments of a URI's path, and its query, as names and back.
//!
//! An escape shows as its character where that is harmless in a name: `%20` as a blank, `%C3%A9` as an `é`. `%2C` shows as
//! `,` too, although it is another URI than `,` (RFC 3986, 2.2): many publishers escape all that they can, and hardly
//! one lists both. The rules lead back from `,` to the plain one; the other has to be kept with its path, and where both are
//! listed they meet. In a query nothing is unescaped, its `/` becomes `%2F` and, to keep that one apart, its `%` `%25`.

use super::{extension, limit};
use crate::platform::text::is_hidden;
use percent_encoding::{percent_decode_str, percent_encode_byte};

/// The name of a URI that ends in `/`, in the folder of that URI.
pub(super) const INDEX: &str = "%index";

/// An empty segment that is a folder.
pub(super) const EMPTY: &str = "%";

/// The ASCII characters that are always escaped in a URI's path and show in a name.
const SHOWN: &[u8] = b" \"<>[\\]^`{|}";

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
        whole &= push_name(folder, EMPTY, path);
        whole &= limit::fit(path, start);
        path.push('/');
    }
    let start = path.len();
    whole &= push_name(last, INDEX, path);
    finish(query, extension, start, path) && whole
}

/// Completes the last name of `path`, which begins at `start`, by query and extension. Answers whether the rules lead back.
pub(super) fn finish(query: Option<&str>, extension: Option<&str>, start: usize, path: &mut String) -> bool {
    if let Some(query) = query {
        path.push('?');
        path.push_str(&query.replace('%', "%25").replace('/', "%2F"));
    }
    let extension = extension.filter(|_| extension::of_name(&path[start..]).is_empty());
    if let Some(extension) = extension {
        path.push('.');
        path.push_str(extension);
    }
    limit::fit(path, start) && extension.is_none()
}

/// Appends to `address` the URI path (and query) whose path is `below`, the reverse of [`push_path`]; what it is the path of is for the
/// caller to check.
pub(super) fn push_address(below: &str, address: &mut String) {
    let (folders, last) = below.rsplit_once('/').map_or((None, below), |(folders, last)| (Some(folders), last));
    for folder in folders.into_iter().flat_map(|folders| folders.split('/')) {
        push_segment(if folder == EMPTY { "" } else { folder }, address);
        address.push('/');
    }
    let (name, query) = last.split_once('?').map_or((last, None), |(name, query)| (name, Some(query)));
    push_segment(if name == INDEX { "" } else { name }, address);
    if let Some(query) = query {
        push_query(query, address);
    }
}

/// Appends to `address` the query, with its `?`, that a name shows as `query`.
pub(super) fn push_query(query: &str, address: &mut String) {
    address.push('?');
    address.push_str(&query.replace("%2F", "/").replace("%25", "%"));
}

/// `.` and `..` as names: a normalised path has no such segments, but a host may be one.
pub(super) fn escaped_dots(segment: &str) -> Option<String> {
    matches!(segment, "." | "..").then(|| segment.replace('.', "%2E"))
}

/// True if [`push_path`] would copy `below` as it is. `false` only means that it must look closer.
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

/// Appends the name of one segment, `empty` where that is empty. Answers whether [`push_segment`] leads back.
fn push_name(segment: &str, empty: &str, path: &mut String) -> bool {
    if segment.is_empty() {
        path.push_str(empty);
        return true;
    }
    if !segment.contains('%') {
        path.push_str(escaped_dots(segment).as_deref().unwrap_or(segment));
        return true;
    }
    let (start, bytes) = (path.len(), Vec::from_iter(percent_decode_str(segment)));
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            // Nothing that separates, and nothing hidden.
            if matches!(character, '/' | '?' | '#' | '%') || is_hidden(character) {
                push_escaped(character.encode_utf8(&mut [0; 4]).as_bytes(), path);
            } else {
                path.push(character);
            }
        }
        push_escaped(chunk.invalid(), path);
    }
    let mut back = String::with_capacity(segment.len());
    push_segment(&path[start..], &mut back);
    back == segment
}

fn push_escaped(bytes: &[u8], out: &mut String) {
    bytes.iter().for_each(|byte| out.push_str(percent_encode_byte(*byte)));
}

/// Appends the segment that a name shows, the reverse of [`push_name`].
fn push_segment(name: &str, address: &mut String) {
    for byte in name.bytes() {
        if byte.is_ascii() && !SHOWN.contains(&byte) {
            address.push(char::from(byte));
        } else {
            push_escaped(&[byte], address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(segment: &str) -> String {
        let mut path = String::new();
        push_name(segment, EMPTY, &mut path);
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
    fn bytes_that_are_no_text_stay_escaped() {
        for (segment, expected) in [
            ("%C3", "%C3"),
            ("%C3a", "%C3a"),
            ("%C3%C3%A9", "%C3é"),
            ("%E2%E2%82%AC%FF", "%E2€%FF"),
            ("%F0%9F%98%80%E2%82", "😀%E2%82"),
            ("%E2%80%8B%C2%85", "%E2%80%8B%C2%85"),
        ] {
            assert_eq!(name(segment), expected);
            let mut back = String::new();
            push_segment(expected, &mut back);
            assert_eq!(back, segment);
        }
    }

    #[test]
    fn every_ascii_escape_is_either_shown_or_kept() {
        for byte in 0..=0x7F_u8 {
            let escape = format!("%{byte:02X}");
            // A normalised URI never escapes these: letters, digits, `-`, `.`, `_` and `~`.
            let shown = !byte.is_ascii_control() && !b"/?#%".contains(&byte);
            let expected = if shown { char::from(byte).to_string() } else { escape.clone() };
            assert_eq!(name(&escape), expected);
        }
    }
}
