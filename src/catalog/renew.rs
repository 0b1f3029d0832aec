//! Diff and merge: a new statement of what exists becomes one commit and the invalidations it means.
//!
//! A [`Baseline`](super::Baseline) sorts what it is given by (depth, path), each folder as a marker beside the files (`folders`). Only then does
//! it walk the sorted stream and the current revision together, folder by folder (`merge`), bringing together what lists,
//! changes, packages and held deletions say of each path (`stated`), no more of one than is shown, but for what lists say in vain (`overtaken`). [`Changes`](super::Changes) finds the few names that
//! single statements concern. Both place names (`place`) and write what differs (`write`);
//! a first revision does so on a thread of its own (`first`, `beside`), and one that shares little with the one before is written
//! whole (`rewrite`), both into a store of their own. What makes a new content version,
//! and its times, is decided in `version`.

use super::apply::write::{Namings, Numbers, Writer};
use super::naming::disambiguated;
use super::sort::RunLimits;
use super::store::codec::{Octets, damaged};
use super::store::keys::ino_key;
use super::store::previous::Past;
use super::store::record::ResourceRecord;
use super::store::{ROOT, TableId};
use super::{Catalog, CatalogError, Invalidation, Kind, Naming, Totals};
use crate::document::{Timestamp, Uri};
use crate::inodes::InodeSet;
use fuser::INodeNo;
use heed::RoTxn;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::PoisonError;

/// The longest chain of folders and file. A path with more segments is cut to this many and its last one
/// disambiguated: the kernel's own limit on paths leaves little more than names of one octet at such depths.
pub(super) const DEEPEST: usize = 255;

/// More invalidations of names and attributes than this become one [`Invalidation::Everything`], with all folders. More of folders alone
/// become one [`Invalidation::Folders`].
pub(super) const MOST_INVALIDATIONS: usize = 20_000;

/// Orphans of the store before that one transaction takes over.
pub(super) const TAKEN_OVER_AT_ONCE: usize = 100_000;

/// What is sorted beside a list that takes most of the memory.
pub(super) const BESIDE_A_LIST: RunLimits = match cfg!(test) {
    true => RunLimits { octets: 1 << 12, pairs: 1 << 6, resident: 1 << 9 },
    false => RunLimits { octets: 2 << 20, pairs: 1 << 15, resident: 1 << 18 },
};

/// A time later than all: a file without `lastmod` is as new as the moment that it is first seen.
pub(super) const FIRST_SEEN: Timestamp = Timestamp { seconds: i64::MAX, nanos: 0 };

/// First octet of a sorted value: what the key's path is.
pub(super) mod tag {
    /// A folder; the newest `lastmod` beneath follows.
    pub const FOLDER: u8 = 0;
    /// A file of a list; its resource follows, a member of the list's set alone.
    pub const FILE: u8 = 1;
    /// A file of a change; see `stated::push_change`.
    pub const CHANGE: u8 = 2;
    /// What a package holds; the manifest's resource follows, with its member.
    pub const MEMBER: u8 = 3;
    /// A file whose deletion is held back; whether that is known, and its resource follow, a member of the sets that have
    /// it no more.
    pub const KEPT: u8 = 4;
}

/// What a commit did.
#[derive(Debug)]
pub struct Committed {
    /// Number of the new revision; the old one's where the tree did not change.
    pub revision: u64,
    /// Files that did not exist before.
    pub created: u64,
    /// Names with new content (a new inode).
    pub updated: u64,
    /// Same content, other metadata.
    pub touched: u64,
    /// Files gone.
    pub deleted: u64,
    /// What the kernel must be told, after the commit.
    pub invalidations: Vec<Invalidation>,
    /// How many entries are not shown, by path: too many URIs share it.
    pub left_out: BTreeMap<String, u64>,
}

/// The path, cut to [`DEEPEST`] segments, and whether it was left whole.
pub(super) fn within_depth<'p>(path: &'p str, uri: &Uri) -> (Cow<'p, str>, bool) {
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

/// Writes the sort key of `path`: its depth, and its segments separated by NUL.
pub(super) fn push_key(key: &mut Vec<u8>, path: &str) {
    key.clear();
    key.push(0);
    key.extend_from_slice(path.as_bytes());
    let mut depth = 1;
    for octet in &mut key[1..] {
        if *octet == b'/' {
            *octet = 0;
            depth += 1;
        }
    }
    key[0] = depth;
}

/// The newest time that a folder's marker carries.
pub(super) fn marker_time(mut octets: Octets<'_>) -> Option<Timestamp> {
    octets.time()
}

/// Drops the records of the orphans that the kernel has forgotten. The caller holds `catalog.writer`.
pub(super) fn drop_forgotten(catalog: &Catalog) -> Result<(), CatalogError> {
    let store = catalog.store();
    let mut writer = Writer::new(catalog, &store, Numbers::FIRST, true, super::version::now());
    writer.drop_forgotten()?;
    writer.commit_bare()
}

/// Enters among the orphans of the present store those that are `known`. The caller holds `catalog.writer`.
pub(super) fn take_over(catalog: &Catalog, past: &Past, known: &InodeSet) -> Result<(), CatalogError> {
    let store = catalog.store();
    let mut known = known.iter().peekable();
    let mut row = Vec::new();
    while known.peek().is_some() {
        let mut writer = Writer::new(catalog, &store, Numbers::FIRST, true, super::version::now());
        let old = store.env.read_txn()?;
        for INodeNo(ino) in known.by_ref().take(TAKEN_OVER_AT_ONCE) {
            row.clear();
            if store.inode(&old, ino)?.is_none()
                && store.orphan(&old, ino)?.is_none()
                && past.push_orphan(ino, &mut row)?
            {
                writer.put_row(TableId::Orphans, &ino_key(ino), &row)?;
            }
        }
        writer.commit_bare()?;
    }
    Ok(())
}

/// What a renewed inode keeps of its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Renewal {
    /// All of it.
    AsPublished,
    /// All but length and digests, which the bytes that the Source serves now do not have. The next commit compares the entry with what
    /// is listed then, and gives another inode again where these are back.
    Unpublished,
}

/// See [`Catalog::renew`].
pub(super) fn renew(catalog: &Catalog, mut inodes: Vec<(INodeNo, Renewal)>) -> Result<Vec<Invalidation>, CatalogError> {
    // Of one inode the later kind, which says more.
    inodes.sort_unstable_by(|a, b| b.cmp(a));
    inodes.dedup_by_key(|(ino, _)| *ino);
    let _writer = catalog.writer.lock().unwrap_or_else(PoisonError::into_inner);
    let store = catalog.store();
    let old = store.env.read_txn()?;
    let Some(revision) = store.revision(&old)? else { return Ok(Vec::new()) };
    let naming = store.naming(&old)?;
    let mut writer = Writer::new(catalog, &store, Numbers::from(&revision), true, super::version::now());
    let mut totals = revision.totals;
    for (ino, renewal) in inodes {
        renew_one(&mut writer, &old, &naming, ino, renewal, &mut totals)?;
    }
    if !writer.changed() {
        return Ok(Vec::new());
    }
    writer.settle_folders(&old)?;
    let record = writer.next_revision(revision.at, totals);
    writer.put_revision(&record)?;
    Ok(writer.commit()?.invalidations)
}

fn renew_one(
    writer: &mut Writer<'_>,
    old: &RoTxn<'_>,
    naming: &Naming,
    ino: INodeNo,
    renewal: Renewal,
    totals: &mut Totals,
) -> Result<(), CatalogError> {
    let store = writer.store;
    let Some((place, node)) = store.inode_entry(old, ino.0)? else { return Ok(()) };
    if node.kind == Kind::Folder || ino.0 == ROOT {
        return Ok(());
    }
    let mtime = super::version::later_than(node.mtime, writer.now);
    let mut renewed = super::version::renewed(&node, mtime);
    let mut stripped = Vec::new();
    let resource = match renewal {
        Renewal::AsPublished => place.resource,
        Renewal::Unpublished => {
            let sense = || damaged("resource", &ino_key(ino.0));
            let record = ResourceRecord::decode(place.resource).ok_or_else(sense)?;
            record.push_unpublished(&mut stripped).ok_or_else(sense)?;
            renewed.freshness = ResourceRecord::decode(&stripped).ok_or_else(sense)?.freshness();
            if let Some(size) = renewed.size.take() {
                totals.octets = totals.octets.saturating_sub(size);
                totals.unsized_files += 1;
            }
            &stripped
        }
    };
    let namings = Namings { old: naming, new: naming };
    writer.replace(old, namings, (place.parent, place.entry), &node, renewed, resource)?;
    Ok(())
}
