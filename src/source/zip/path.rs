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

/// Whether a manifest's `path` can be the name of a member that was packed on purpose.
pub(super) fn is_plausible(path: &str) -> bool {
    let decoded = percent_decode_str(path).decode_utf8().unwrap_or(path.into());
    let has_name = decoded.split(['/', '\\']).any(|segment| !matches!(segment, "" | "."));
    has_name && !decoded.contains(char::is_control) && !decoded.split(['/', '\\']).any(|segment| segment == "..")
}

/// What is left of a path of the publisher's own disk behind so many of its segments; `None` where nothing is.
pub(super) fn behind(plain: &str, segments: usize) -> Option<&str> {
    let mut rest = plain;
    for _ in 0..segments {
        rest = rest.split_once('/')?.1;
    }
    Some(rest)
}

/// Leading segments of a path that may be in excess: no publisher's disk is deeper.
const DEEPEST: usize = 64;

/// How many leading segments all paths of a manifest have in excess of the members' names, if one number explains them.
#[derive(Debug, Default)]
pub(super) struct Excess {
    /// Numbers that explain every path so far that can be explained at all; `None` before the first of those.
    candidates: Option<Vec<usize>>,
}

impl Excess {
    /// Takes one more path into account; `is_member`: whether there is a member of a plain name.
    pub fn add(&mut self, plain: &str, is_member: impl Fn(&str) -> bool) {
        let depth = plain.split('/').take(DEEPEST).count();
        let explains = |segments: &usize| behind(plain, *segments).is_some_and(&is_member);
        let explaining: Vec<usize> = (0..depth).filter(explains).collect();
        if explaining.is_empty() {
            // A member that is missing says nothing of the others.
            return;
        }
        match &mut self.candidates {
            None => self.candidates = Some(explaining),
            Some(candidates) => candidates.retain(|segments| explaining.contains(segments)),
        }
    }

    /// The smallest number of segments that explains all of them.
    pub fn segments(&self) -> Option<usize> {
        self.candidates.as_ref()?.first().copied()
    }
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
        Excess::default().add(&"a/".repeat(30_000), is_member);
        assert!(tried.get() < 100, "{}", tried.get());
    }

    #[test]
    fn a_path_of_the_publishers_disk_is_explained_by_what_all_have_in_excess() {
        let members = ["a/x", "b/x", "x", "y"];
        let is_member = |name: &str| members.contains(&name);
        let mut excess = Excess::default();
        excess.add("home/pub/a/x", is_member);
        assert_eq!(excess.segments(), Some(2), "a/x rather than x");
        excess.add("home/pub/b/x", is_member);
        excess.add("home/pub/gone", is_member);
        assert_eq!(excess.segments(), Some(2));
        excess.add("home/y", is_member);
        assert_eq!(excess.segments(), None, "no one number explains them all");
        assert_eq!(behind("home/pub/a/x", 2), Some("a/x"));
    }
}
