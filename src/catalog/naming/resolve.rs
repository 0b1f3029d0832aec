//! The path of one URI, and its name among others of the same path.

use super::super::store::record::ResourceRecord;
use super::{Naming, beside_folder, disambiguated};
use crate::document::Uri;
use std::borrow::Cow;

/// The longest chain of folders and file. A path with more segments is cut to this many and its last one
/// disambiguated: the kernel's own limit on paths leaves little more than names of one byte at such depths.
pub const DEEPEST: usize = 255;

/// The path, cut to [`DEEPEST`] segments, and whether it was left whole.
pub fn within_depth<'p>(path: &'p str, uri: &Uri) -> (Cow<'p, str>, bool) {
    // No segment is empty.
    if path.len() < 2 * DEEPEST - 2 {
        return (path.into(), true);
    }
    match path.match_indices('/').nth(DEEPEST - 2) {
        Some((at, _)) if path[at + 1..].contains('/') => {
            let last = path.rsplit('/').next().unwrap_or_default();
            (format!("{}/{}", &path[..at], disambiguated(last, uri)).into(), false)
        }
        _ => (path.into(), true),
    }
}

/// The path by rule of `uri`, before conflicts with others are resolved, and whether it leads back to the URI.
pub fn path_by_rule(naming: &Naming, uri: &Uri, media_type: Option<&str>) -> (String, bool) {
    let mut path = String::new();
    let by_rule = naming.path_into(uri, media_type, &mut path);
    let (path, whole) = within_depth(&path, uri);
    (path.into_owned(), by_rule && whole)
}

/// The folder of a path, and the name in it.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The name of the resource that is number `index` by URI among those of one path: the first has the plain name, unless that
/// is a folder.
pub fn resolved_name<'n>(name: &'n str, index: usize, is_folder: bool, uri: &Uri) -> Cow<'n, str> {
    match index {
        0 if !is_folder => name.into(),
        0 => beside_folder(name).into(),
        _ => disambiguated(name, uri).into(),
    }
}

/// The URI of a record at a path.
pub fn uri(record: &ResourceRecord<'_>, path: &str, naming: &Naming) -> Option<Uri> {
    match record.uri {
        Some(uri) => Uri::parse(uri).ok(),
        None => naming.uri(path, record.https),
    }
}
