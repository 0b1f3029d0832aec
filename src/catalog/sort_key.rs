//! The order of a statement: by depth, then by segments; and the first byte of a value.

use super::CatalogError;
use crate::document::Timestamp;

/// Writes the sort key of `path`: its depth, and its segments separated by NUL.
pub(super) fn push_key(key: &mut Vec<u8>, path: &str) {
    key.clear();
    key.push(0);
    key.extend_from_slice(path.as_bytes());
    let mut depth = 1;
    for byte in &mut key[1..] {
        if *byte == b'/' {
            *byte = 0;
            depth += 1;
        }
    }
    key[0] = depth;
}

/// Depth and path of the folder that a sort key lies in, and its name.
pub(super) fn split(key: &[u8]) -> ((u8, &[u8]), &[u8]) {
    let (depth, segments) = key.split_first().map_or((0, &[][..]), |(depth, segments)| (*depth, segments));
    match segments.iter().rposition(|byte| *byte == 0) {
        Some(at) => ((depth, &segments[..at]), &segments[at + 1..]),
        None => ((depth, &[]), segments),
    }
}

/// The path of a sort key's bytes, segments joined by `/` instead of NUL.
pub(super) fn slashed(segments: &[u8]) -> Option<String> {
    let mut path = segments.to_vec();
    path.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'/');
    String::from_utf8(path).ok()
}

/// Calls `each` with the sort key of every folder above `path`, itself one, but the root.
pub(super) fn for_folders_above(
    path: &[u8],
    key: &mut Vec<u8>,
    mut each: impl FnMut(&[u8]) -> Result<(), CatalogError>,
) -> Result<(), CatalogError> {
    let segments = path.get(1..).unwrap_or_default();
    let ends = segments.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(end, _)| end);
    for (depth, end) in ends.enumerate() {
        key.clear();
        key.push(depth as u8 + 1);
        key.extend_from_slice(&segments[..end]);
        each(key)?;
    }
    Ok(())
}

/// Writes the sort key of the folder that `path` lies in; `false` where that is the root.
pub(super) fn push_above(path: &[u8], above: &mut Vec<u8>) -> bool {
    let ((depth, folder), _) = split(path);
    above.clear();
    above.push(depth.saturating_sub(1));
    above.extend_from_slice(folder);
    !folder.is_empty()
}

/// A time later than all: a file without `lastmod` is as new as the moment that it is first seen.
pub(super) const FIRST_SEEN: Timestamp = Timestamp { seconds: i64::MAX, nanos: 0 };

/// First byte of a sorted value: what the key's path is.
pub(super) mod tag {
    /// A folder; the newest `lastmod` beneath follows.
    pub const FOLDER: u8 = 0;
    /// A file of a list; its resource follows, a member of the list's set alone.
    pub const FILE: u8 = 1;
    /// A file of a change; see `statement::push_change`.
    pub const CHANGE: u8 = 2;
    /// What a package holds; the manifest's resource follows, with its member.
    pub const MEMBER: u8 = 3;
    /// A file whose deletion is held back; whether that is known, and its resource follow, a member of the sets that have
    /// it no more.
    pub const KEPT: u8 = 4;
    /// The digest follows of an entry of a list that a change supersedes.
    pub const SUPERSEDED: u8 = 5;
}
