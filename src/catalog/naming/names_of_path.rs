//! The path of one URI, and its name among others of the same path.

use super::super::store::record::ResourceRecord;
use super::{Naming, beside_folder, disambiguated};
use crate::document::Uri;
use std::borrow::Cow;

/// The longest chain of folders and file. A path with more segments is cut to this many and its last one
/// disambiguated: the kernel's own limit on paths leaves little more than names of one byte at such depths.
pub const DEEPEST: usize = 255;

/// The path by rule of `uri`, before conflicts with others are resolved, cut to [`DEEPEST`] segments, and whether it leads back to the
/// URI.
pub fn path_by_rule(naming: &Naming, uri: &Uri, media_type: Option<&str>) -> (String, bool) {
    let (path, by_rule) = naming.path(uri, media_type);
    // No segment is empty.
    let end = if path.len() < 2 * DEEPEST - 2 { None } else { path.match_indices('/').nth(DEEPEST - 2) };
    match end {
        Some((at, _)) if path[at + 1..].contains('/') => {
            let last = path.rsplit('/').next().unwrap_or_default();
            (format!("{}/{}", &path[..at], disambiguated(last, uri)), false)
        }
        _ => (path, by_rule),
    }
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
        Some(uri) => Uri::parse_item(uri).ok(),
        None => naming.uri(path, record.https),
    }
}
