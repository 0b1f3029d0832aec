//! The keys of a sorted statement: by depth, then by segments, then by what is stated.

use crate::document::Timestamp;

/// What a row of the statement says of its path; the rows of one path come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// It is a folder; the newest `lastmod` beneath follows.
    Folder,
    /// The digest follows of an entry of a list that a change supersedes.
    Superseded,
    /// It is a file of a list; its resource follows, a member of the list's set alone.
    File,
    /// It is a file of a change; see `statement::push_change`.
    Change,
    /// A package holds it; the manifest's resource follows, with its member.
    Member,
    /// It is a file whose deletion is held back; whether that is known, and its resource follow, a member of the sets that have
    /// it no more.
    Kept,
}

impl Tag {
    const ALL: [Tag; 6] = [Tag::Folder, Tag::Superseded, Tag::File, Tag::Change, Tag::Member, Tag::Kept];
}

/// Writes the key of a row for `path`: its depth, its segments separated by NUL, and the tag.
pub(super) fn push_key(key: &mut Vec<u8>, path: &str, tag: Tag) {
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
    key.extend_from_slice(&[0, tag as u8]);
}

/// The key without its tag, and the tag.
pub(super) fn split_tag(key: &[u8]) -> Option<(&[u8], Tag)> {
    let (path, [_, tag]) = key.split_last_chunk()?;
    Some((path, *Tag::ALL.get(usize::from(*tag))?))
}

/// Of a key without its tag: depth and path of the folder that it lies in, and its name.
pub(super) fn split(key: &[u8]) -> ((u8, &[u8]), &[u8]) {
    let (depth, segments) = key.split_first().map_or((0, &[][..]), |(depth, segments)| (*depth, segments));
    match segments.iter().rposition(|byte| *byte == 0) {
        Some(at) => ((depth, &segments[..at]), &segments[at + 1..]),
        None => ((depth, &[]), segments),
    }
}

/// The path of a key's segments, joined by `/` instead of NUL.
pub(super) fn slashed(segments: &[u8]) -> Option<String> {
    let mut path = segments.to_vec();
    path.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'/');
    String::from_utf8(path).ok()
}

/// A time later than all: a file without `lastmod` is as new as the moment that it is first seen.
pub(super) const FIRST_SEEN: Timestamp = Timestamp { seconds: i64::MAX, nanos: 0 };
