//! `-o map=URI_PREFIX=PATH`: resources below a URI get a path of the person's choice.
//!
//! An address is a URI without its scheme. A prefix ends where a segment ends: `http://h/a` is the resource `a`, with
//! any query, and all below it, `http://h/a/` only what is below. A prefix with a query is one resource. Mapped onto
//! the root itself (an empty path), a prefix is always taken as a folder.

use super::limit::NAME_MAX;
use super::{segment, without_scheme};
use crate::document::{Uri, UriError};
use std::cmp::Reverse;

/// Why a `-o map=` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The prefix is not an absolute http or https URI.
    #[error("map={prefix}: not the beginning of a resource's URI")]
    Prefix {
        /// The prefix as it was given.
        prefix: String,
        /// The fault of the prefix.
        #[source]
        cause: UriError,
    },
    /// A path with an empty name, `.`, `..`, a control character, a name over 255 bytes, or a `%` that two hex digits
    /// do not follow.
    #[error("map={prefix}={path}: not a path below the mount, or it has a name that resyncfs reserves")]
    Path {
        /// The prefix as it was given.
        prefix: String,
        /// The path as it was given.
        path: String,
    },
    /// Two paths for one prefix.
    #[error("map={prefix} is given twice, with different paths")]
    Twice {
        /// Without its scheme, which does not count.
        prefix: String,
    },
}

/// Prefix and path.
type Map = (Box<str>, Box<str>);

/// The rest of an address behind the prefix of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest<'a> {
    /// Segments and query below the prefix, without the first `/`.
    Below(&'a str),
    /// The resource at the prefix itself, with the query that follows the prefix.
    Itself(Option<&'a str>),
}

impl Rest<'_> {
    /// Appends the path of what is mapped to `target`; answers whether [`addresses`] leads back.
    pub(super) fn push_path(self, target: &str, extension: Option<&str>, path: &mut String) -> bool {
        path.push_str(target);
        match self {
            Rest::Below(below) => {
                if !target.is_empty() {
                    path.push('/');
                }
                segment::push_path(below, extension, path)
            }
            Rest::Itself(query) => {
                let start = path.rfind('/').map_or(0, |slash| slash + 1);
                segment::finish(query, extension, start, path)
            }
        }
    }
}

/// The pairs of `maps` in the form that [`super::Naming::maps`] describes.
pub(super) fn sorted<'a>(maps: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Vec<Map>, MapError> {
    let mut sorted: Vec<Map> = Vec::new();
    for (prefix, path) in maps {
        let uri = Uri::parse(prefix).map_err(|cause| MapError::Prefix { prefix: prefix.to_owned(), cause })?;
        let target = path.trim_matches('/');
        if !target.is_empty() && !target.split('/').all(is_name) {
            return Err(MapError::Path { prefix: prefix.to_owned(), path: path.to_owned() });
        }
        sorted.push((without_scheme(uri.as_str()).into(), target.into()));
    }
    sorted.sort_by(|one, other| other.0.len().cmp(&one.0.len()).then_with(|| one.cmp(other)));
    sorted.dedup();
    match sorted.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(MapError::Twice { prefix: pair[0].0.to_string() }),
        None => Ok(sorted),
    }
}

/// The path of the first map whose prefix `address` has, and what is left of it.
pub(super) fn of_address<'a>(maps: &'a [Map], address: &'a str) -> Option<(&'a str, Rest<'a>)> {
    maps.iter().find_map(|(prefix, target)| {
        let prefix = without_scheme(prefix);
        let rest = address.strip_prefix(prefix)?;
        let rest = if prefix.contains('?') {
            rest.is_empty().then_some(Rest::Itself(None))?
        } else if prefix.ends_with('/') {
            Rest::Below(rest)
        } else if let Some(below) = rest.strip_prefix('/') {
            Rest::Below(below)
        } else if let Some(query) = rest.strip_prefix('?') {
            Rest::Itself(Some(query))
        } else {
            rest.is_empty().then_some(Rest::Itself(None))?
        };
        let is_root = target.is_empty() && matches!(rest, Rest::Itself(_));
        (!is_root).then_some((&**target, rest))
    })
}

/// The addresses that maps give the path `path`, longest target first: candidates, for the caller to check.
pub(super) fn addresses(maps: &[Map], path: &str) -> impl Iterator<Item = String> {
    let mut covering: Vec<(&str, &str, Rest<'_>)> = maps
        .iter()
        .filter_map(|(prefix, target)| Some((without_scheme(prefix), &**target, rest_of_path(target, path)?)))
        .collect();
    covering.sort_by_key(|(_, target, _)| Reverse(target.len()));
    covering.into_iter().map(|(prefix, _, rest)| address(prefix, rest))
}

fn address(prefix: &str, rest: Rest<'_>) -> String {
    let mut address = prefix.to_owned();
    match rest {
        Rest::Below(below) => {
            if !address.ends_with('/') {
                address.push('/');
            }
            segment::push_address(below, &mut address);
        }
        Rest::Itself(None) => {}
        Rest::Itself(Some(query)) => segment::push_query(query, &mut address),
    }
    address
}

/// The rest of `path` behind `target`.
fn rest_of_path<'a>(target: &str, path: &'a str) -> Option<Rest<'a>> {
    if target.is_empty() {
        return Some(Rest::Below(path));
    }
    let rest = path.strip_prefix(target)?;
    match rest.strip_prefix('/') {
        Some(below) => Some(Rest::Below(below)),
        None if rest.is_empty() => Some(Rest::Itself(None)),
        None => rest.strip_prefix('?').map(|query| Rest::Itself(Some(query))),
    }
}

/// True if a person may choose `name`: it is legal, and without the mark of our own names.
fn is_name(name: &str) -> bool {
    let is_escape = |behind: &str| {
        let digits = behind.as_bytes();
        digits.len() >= 2 && digits[..2].iter().all(u8::is_ascii_hexdigit)
    };
    !matches!(name, "" | "." | "..")
        && name.len() <= NAME_MAX
        && !name.contains(char::is_control)
        && name.split('%').skip(1).all(is_escape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maps(pairs: &[(&str, &str)]) -> Vec<Map> {
        sorted(pairs.iter().copied()).unwrap()
    }

    #[test]
    fn the_longest_prefix_comes_first_and_order_does_not_matter() {
        let pairs = [("http://h", "all"), ("http://h/a/b", "/deep/"), ("HTTPS://H:443/a/", "a")];
        let expected: Vec<Map> =
            vec![("h/a/b".into(), "deep".into()), ("h/a/".into(), "a".into()), ("h/".into(), "all".into())];
        assert_eq!(maps(&pairs), expected);
        let reversed: Vec<_> = pairs.into_iter().rev().collect();
        assert_eq!(maps(&reversed), expected);
    }

    #[test]
    fn a_prefix_ends_where_a_segment_ends() {
        let resource = maps(&[("http://h/a", "x")]);
        assert_eq!(of_address(&resource, "h/a"), Some(("x", Rest::Itself(None))));
        assert_eq!(of_address(&resource, "h/a?q"), Some(("x", Rest::Itself(Some("q")))));
        assert_eq!(of_address(&resource, "h/a/b?q"), Some(("x", Rest::Below("b?q"))));
        assert_eq!(of_address(&resource, "h/ab"), None);
        let folder = maps(&[("http://h/a/", "x")]);
        assert_eq!(of_address(&folder, "h/a"), None);
        assert_eq!(of_address(&folder, "h/a/"), Some(("x", Rest::Below(""))));
        let one = maps(&[("http://h/a?id=5", "x")]);
        assert_eq!(of_address(&one, "h/a?id=5"), Some(("x", Rest::Itself(None))));
        assert_eq!(of_address(&one, "h/a?id=5/6"), None);
    }

    #[test]
    fn what_cannot_be_mapped_is_refused() {
        assert!(matches!(sorted([("h/a", "x")]), Err(MapError::Prefix { .. })));
        let long = "n".repeat(256);
        for path in ["a/../b", ".", "a//b", "%file", "a%", "a/%index", "x%~1", "a\nb", &long] {
            assert!(matches!(sorted([("http://h/a", path)]), Err(MapError::Path { .. })), "{path}");
        }
        for path in ["", "/", "a%2Fb", "a b/ü"] {
            assert!(sorted([("http://h/a", path)]).is_ok(), "{path}");
        }
        assert_eq!(
            sorted([("http://h/a", "x"), ("https://h/a", "y")]),
            Err(MapError::Twice { prefix: "h/a".to_owned() })
        );
        assert_eq!(maps(&[("http://h/a", "x"), ("https://h/a", "x")]).len(), 1);
    }
}
