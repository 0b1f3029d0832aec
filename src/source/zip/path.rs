//! From the `path` of a manifest's entry to the name of a member (sections 11.1.1 and 13.1.1), as publishers write both.
//!
//! The standard wants a path relative to the package's root with a leading slash. Seen are paths without it, percent-encoded
//! ones, backslashes, and paths of the publisher's own disk. Names are compared, never opened: `..` is a segment like any other.

use percent_encoding::percent_decode_str;

/// One spelling for what differs in slashes, escapes, `.` and empty segments alone.
pub(super) fn plain(path: &str) -> String {
    let decoded = percent_decode_str(path).decode_utf8().unwrap_or(path.into());
    let mut plain = String::with_capacity(decoded.len());
    for segment in decoded.split(['/', '\\']).filter(|segment| !matches!(*segment, "" | ".")) {
        if !plain.is_empty() {
            plain.push('/');
        }
        plain.push_str(segment);
    }
    plain
}

/// Segments of a path that are looked through: no publisher's disk is deeper.
const DEEPEST: usize = 64;

/// The folder on the publisher's own disk that a path begins with: the shortest behind which it names a member. Empty where
/// the whole path does; `None` where no end of it does.
pub(super) fn folder_before_member(plain: &str, is_member: impl Fn(&str) -> bool) -> Option<&str> {
    let starts = plain.match_indices('/').map(|(slash, _)| slash + 1);
    let mut splits = std::iter::once(0).chain(starts).take(DEEPEST).map(|start| plain.split_at(start));
    splits.find(|(_, rest)| is_member(rest)).map(|(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_for_slashes_escapes_and_dots() {
        for path in ["/a/b c", "a/b c", "a/b%20c", "//a/./b%20c", "./a/b c", "a\\b c", "%2Fa/b c"] {
            assert_eq!(plain(path), "a/b c", "{path}");
        }
        assert_eq!(plain("../../etc/passwd"), "../../etc/passwd", "compared, never followed");
        assert_eq!(plain("100%"), "100%");
        assert_eq!(plain("%FF"), "%FF", "not UTF-8: left as it is");
        assert_eq!(plain("/"), "");
    }

    #[test]
    fn a_path_of_very_many_segments_is_soon_given_up() {
        let tried = std::cell::Cell::new(0);
        let is_member = |_: &str| {
            tried.set(tried.get() + 1);
            false
        };
        assert_eq!(folder_before_member(&"a/".repeat(30_000), is_member), None);
        assert!(tried.get() < 100, "{}", tried.get());
    }

    #[test]
    fn the_shortest_folder_before_a_member_is_taken() {
        let is_member = |name: &str| ["a/x", "b/x", "x", "y"].contains(&name);
        assert_eq!(folder_before_member("home/pub/a/x", is_member), Some("home/pub/"), "a/x rather than x");
        assert_eq!(folder_before_member("y", is_member), Some(""));
        assert_eq!(folder_before_member("home/pub/gone", is_member), None);
    }
}
