//! Names keep to 255 bytes: a longer one is cut and marked by a digest.
//!
//! The digested text distinguishes the marked names: a name as it would have been ([`fit`]), such a name with its
//! `%file` ([`beside_folder`]), or a URI, which unlike a name holds a `/` ([`disambiguated`]).

use super::{FILE_SUFFIX, extension};
use crate::document::Uri;
use sha2::{Digest, Sha256};

/// The longest name that the kernel takes, in bytes.
pub const NAME_MAX: usize = 255;

/// Stands before the digest. No name from a URI alone has a `%` before a `~`.
const MARK: &str = "%~";

/// Hex digits of the digest that a name carries: 128 bits.
const DIGITS: usize = 32;

/// `NAME%file`, cut to 255 bytes where it must be. An invertible path stays so if its new name ends in [`FILE_SUFFIX`]; a
/// cut one does not, and the pair of path and URI must be stored.
pub fn beside_folder(name: &str) -> String {
    let suffixed = format!("{name}{FILE_SUFFIX}");
    if suffixed.len() <= NAME_MAX { suffixed } else { marked(name, &suffixed) }
}

/// The name of a resource that lost the plain `name` to another: `NAME%~DIGEST`, cut where it must be, its extension kept.
/// The digest is that of `uri`, so the name depends on nothing else that the Source lists. It is never invertible.
pub fn disambiguated(name: &str, uri: &Uri) -> String {
    marked(name, uri.as_str())
}

/// Cuts the name that begins at `start` of `path` to [`NAME_MAX`]; answers whether it was short enough already.
pub(super) fn fit(path: &mut String, start: usize) -> bool {
    if path.len() - start <= NAME_MAX {
        return true;
    }
    let name = path.split_off(start);
    path.push_str(&marked(&name, &name));
    false
}

/// `name` with the digest of `digested` before its extension, cut before both to [`NAME_MAX`] bytes.
fn marked(name: &str, digested: &str) -> String {
    let extension = extension::of_name(name);
    let stem = &name[..name.len() - extension.len()];
    let stem = cut(stem, NAME_MAX - MARK.len() - DIGITS - extension.len());
    let mut marked = String::with_capacity(NAME_MAX);
    marked.push_str(stem);
    marked.push_str(MARK);
    for byte in &Sha256::digest(digested.as_bytes())[..DIGITS / 2] {
        marked.push_str(&format!("{byte:02x}"));
    }
    marked.push_str(extension);
    marked
}

/// The front of `stem`, at most `room` bytes, that ends inside neither a character nor an escape.
fn cut(stem: &str, room: usize) -> &str {
    if stem.len() <= room {
        return stem;
    }
    let mut end = room;
    while !stem.is_char_boundary(end) {
        end -= 1;
    }
    let escape = stem.as_bytes()[..end].iter().rposition(|byte| *byte == b'%').filter(|start| end - start < 3);
    &stem[..escape.unwrap_or(end)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(raw: &str) -> Uri {
        Uri::parse(raw).unwrap()
    }

    #[test]
    fn a_cut_ends_between_characters_and_between_escapes() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("aéb", 2), "a");
        assert_eq!(cut("a%2Fb", 2), "a");
        assert_eq!(cut("a%2Fb", 3), "a");
        assert_eq!(cut("a%2Fb", 4), "a%2F");
        assert_eq!(cut("%2F", 2), "");
    }

    #[test]
    fn a_resource_that_is_also_a_prefix_lies_next_to_its_folder() {
        assert_eq!(beside_folder("a"), "a%file");
        assert_eq!(beside_folder("a.pdf"), "a.pdf%file");
        let longest = beside_folder(&"n".repeat(250));
        assert_eq!((longest.len(), longest.ends_with(FILE_SUFFIX)), (255, true), "{longest}");
        assert!(!beside_folder(&"n".repeat(251)).ends_with(FILE_SUFFIX));
        let name = "n".repeat(251) + ".pdf";
        let beside = beside_folder(&name);
        assert_eq!((beside.len(), beside.ends_with(".pdf")), (255, true), "{beside}");
    }

    #[test]
    fn a_name_of_255_bytes_stays_and_one_more_is_cut() {
        for (bytes, stays) in [(254, true), (255, true), (256, false)] {
            let plain = "n".repeat(bytes);
            let mut path = format!("folder/{plain}");
            assert_eq!(fit(&mut path, "folder/".len()), stays, "{bytes}");
            assert_eq!((path.ends_with(&plain), path.len() - "folder/".len()), (stays, bytes.min(255)));
        }
    }

    #[test]
    fn the_loser_of_the_plain_name_keeps_its_extension() {
        let lost = disambiguated("a.pdf", &uri("https://h/a.pdf"));
        // The first half of the SHA-256 of `https://h/a.pdf`, as sha256sum prints it.
        assert_eq!(lost, "a%~84629b9ba764f29dfba47ba647f47ffe.pdf");
        assert_ne!(lost, disambiguated("a.pdf", &uri("http://h/a.pdf")));
        assert_eq!(disambiguated(".pdf", &uri("http://h/.pdf")).find(MARK), Some(4));
    }

    #[test]
    fn a_name_cut_once_can_be_cut_again() {
        let mut name = "é".repeat(200) + ".tar";
        fit(&mut name, 0);
        let again = [beside_folder(&name), disambiguated(&name, &uri("http://h/"))];
        for name in again.iter().chain([&name]) {
            assert!(name.len() <= NAME_MAX && name.len() > NAME_MAX - 4, "{name}");
            assert!(name.ends_with(".tar"), "{name}");
        }
        assert!(again[0] != again[1] && !again.contains(&name));
    }
}
