//! Facts: rows that state something about a path, one kind of row for lists, changes, packages, held deletions and what is shown.
//!
//! | tag | states | value |
//! |---|---|---|
//! | folder | the path is a folder | the newest time beneath it |
//! | superseded | what a set's list or the tree has of a URI does not count | digest of set and URI |
//! | shown | a commit of changes finds this resource in the tree | [`ShownValue`] |
//! | listed | an entry of a list | a resource record, a member of the list's set |
//! | changed | a change in force | [`ChangedValue`] |
//! | member | an entry of a manifest, where the set has a list too | a resource record with its package member |
//! | held | a deletion that is held back, or is to be | whether it was before, then the record of the sets that keep it |
//!
//! A key is depth, segments and tag: facts sort level by level, folder by folder, and those of one path in the order of the table.

use super::naming::names_of_path::path_by_rule;
use super::sort::{LARGE_SORT, Sorter, SpillFolder};
use super::store::codec::{pack, push_time};
use super::store::record::{ResourceRecord, push_resource};
use super::version::ChangeMark;
use super::{Catalog, CatalogError, Naming, SetId};
use crate::document::{Entry, PackageMember, Timestamp, Uri};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

/// A time later than all: a file without `lastmod` is as new as the moment that it is first seen.
const FIRST_SEEN: Timestamp = Timestamp { seconds: i64::MAX, nanos: 0 };

/// Kind of a fact, in the order in which facts of one path sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum FactTag {
    Folder,
    Superseded,
    Shown,
    Listed,
    Changed,
    Member,
    Held,
}

impl FactTag {
    const ALL: [FactTag; 7] = [
        FactTag::Folder,
        FactTag::Superseded,
        FactTag::Shown,
        FactTag::Listed,
        FactTag::Changed,
        FactTag::Member,
        FactTag::Held,
    ];
}

/// Value of [`FactTag::Shown`].
#[derive(Serialize, Deserialize)]
pub(super) struct ShownValue<'a> {
    /// The sets that have the resource, each with the time of its last statement about it.
    pub sets: Vec<(SetId, Option<Timestamp>)>,
    pub record: &'a [u8],
}

/// Value of [`FactTag::Changed`].
#[derive(Serialize, Deserialize)]
pub(super) struct ChangedValue<'a> {
    /// When, as `sync` has decided it.
    pub time: Timestamp,
    pub mark: ChangeMark,
    pub record: &'a [u8],
}

/// The key of the facts about `path`, without a tag.
pub(super) fn path_key(path: &str) -> Vec<u8> {
    let mut key = Vec::new();
    push_key(&mut key, path, FactTag::Folder);
    key.truncate(key.len() - 2);
    key
}

/// Writes the key of a fact about `path`.
fn push_key(key: &mut Vec<u8>, path: &str, tag: FactTag) {
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
pub(super) fn split_tag(key: &[u8]) -> Option<(&[u8], FactTag)> {
    let (path, [_, tag]) = key.split_last_chunk()?;
    Some((path, *FactTag::ALL.get(usize::from(*tag))?))
}

/// Depth and path of the folder of a key without its tag, and the name in it.
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

/// Digest of a set and a URI among the facts of one path.
pub(super) fn digest(set: SetId, https: bool, uri: Option<&str>) -> u128 {
    let mut bytes = set.0.to_be_bytes().to_vec();
    bytes.push(uri.map_or(u8::from(https), |_| 2));
    bytes.extend_from_slice(uri.unwrap_or_default().as_bytes());
    xxh3_128(&bytes)
}

/// Facts on their way into the sorter, with the folders that they imply.
pub(super) struct Facts {
    pub sorter: Sorter,
    folders: OpenFolders,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// Entries of a list that one of several threads adds to a commit.
pub struct Share<'b> {
    naming: &'b Naming,
    set: SetId,
    facts: Facts,
}

/// A part of what was added to a [`Share`].
pub struct SharePart(pub(super) Sorter);

impl Share<'_> {
    /// Adds an entry, as [`super::Commit::add`] does.
    ///
    /// # Errors
    /// Facts beyond the memory could not be spilled (the disk is full): the share is given up.
    pub fn add(&mut self, entry: &Entry) -> Result<(), CatalogError> {
        self.facts.add_entry(FactTag::Listed, self.naming, self.set, entry, None)
    }

    /// Everything that was added since the last part.
    ///
    /// # Errors
    /// The rest could not be spilled (the disk is full): the share is given up.
    pub fn part(&mut self) -> Result<SharePart, CatalogError> {
        self.facts.close()?;
        Ok(SharePart(self.facts.sorter.split_off()?))
    }
}

impl Catalog {
    /// A share for entries that another thread adds; they count as added at [`super::Commit::join`].
    pub fn share<'c>(&self, naming: &'c Naming, set: SetId) -> Share<'c> {
        // There are several at once.
        Share { naming, set, facts: Facts::new(&self.spill_folder, LARGE_SORT / 4 * 3) }
    }
}

impl Facts {
    pub(super) fn new(spill_folder: &SpillFolder, most: usize) -> Facts {
        let sorter = Sorter::new(spill_folder, most);
        Facts { sorter, folders: OpenFolders::default(), key: Vec::new(), value: Vec::new() }
    }

    /// Adds an entry of a list or a manifest.
    pub(super) fn add_entry(
        &mut self,
        tag: FactTag,
        naming: &Naming,
        set: SetId,
        entry: &Entry,
        member: Option<&PackageMember>,
    ) -> Result<(), CatalogError> {
        let (path, by_rule) = path_by_rule(naming, &entry.loc, entry.media_type.as_deref());
        push_key(&mut self.key, &path, tag);
        if tag == FactTag::Listed {
            self.folders.see(&self.key, entry.lastmod, &mut self.sorter)?;
        }
        self.value.clear();
        push_resource(&mut self.value, entry, !by_rule, [set], member);
        self.sorter.add(&self.key, &self.value)
    }

    /// Adds a fact about a resource that no list states; `time` is its newest, and `value` makes the fact's value of its record.
    pub(super) fn add_record(
        &mut self,
        tag: FactTag,
        naming: &Naming,
        (uri, record): (&Uri, &ResourceRecord<'_>),
        sets: impl IntoIterator<Item = SetId>,
        time: Option<Timestamp>,
        value: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Result<(), CatalogError> {
        let (path, by_rule) = path_by_rule(naming, uri, record.media_type);
        push_key(&mut self.key, &path, tag);
        self.folders.see(&self.key, time, &mut self.sorter)?;
        let record = record.belonging((!by_rule).then_some(uri.as_str()), sets, record.member);
        self.sorter.add(&self.key, &value(&record))
    }

    /// Adds a deletion from `sets` that is held back, and was before where `is_known`.
    pub(super) fn add_held(
        &mut self,
        naming: &Naming,
        (uri, record): (&Uri, &ResourceRecord<'_>),
        sets: impl IntoIterator<Item = SetId>,
        is_known: bool,
    ) -> Result<(), CatalogError> {
        self.add_record(FactTag::Held, naming, (uri, record), sets, record.lastmod, |record| {
            [&[u8::from(is_known)], record].concat()
        })
    }

    /// Adds a resource of the tree, with the sets that have it and the times of their last statements.
    pub(super) fn add_shown(
        &mut self,
        naming: &Naming,
        (uri, record): (&Uri, &ResourceRecord<'_>),
        sets: &[(SetId, Option<Timestamp>)],
    ) -> Result<(), CatalogError> {
        let members = sets.iter().map(|(set, _)| *set);
        self.add_record(FactTag::Shown, naming, (uri, record), members, record.lastmod, |record| {
            pack(&ShownValue { sets: sets.to_vec(), record })
        })
    }

    /// States that an earlier statement of `set` about `uri` does not count, because of a later change. The statement is found at the path
    /// of one of `types`, or at that without a type.
    pub(super) fn supersede<'m>(
        &mut self,
        naming: &Naming,
        set: SetId,
        uri: &Uri,
        types: impl Iterator<Item = &'m str>,
    ) -> Result<(), CatalogError> {
        let Facts { sorter, key, .. } = self;
        let mut add = |path: &str, by_rule: bool| {
            push_key(key, path, FactTag::Superseded);
            let digest = digest(set, uri.scheme() == "https", (!by_rule).then_some(uri.as_str()));
            sorter.add(key, &digest.to_be_bytes())
        };
        let (plain, by_rule) = path_by_rule(naming, uri, None);
        add(&plain, by_rule)?;
        let typed = types.take_while(|_| naming.extension_by_type).map(|it| path_by_rule(naming, uri, Some(it)).0);
        typed.take_while(|typed| *typed != plain).try_for_each(|typed| add(&typed, false))
    }

    /// Leaves all folders.
    pub(super) fn close(&mut self) -> Result<(), CatalogError> {
        while !self.folders.stack.is_empty() {
            self.folders.leave(&mut self.sorter)?;
        }
        Ok(())
    }
}

/// The folders above the entry added last. A folder's row is written when the entries leave it, so that it carries the newest time of
/// what came by.
#[derive(Default)]
struct OpenFolders {
    /// The path of the innermost one, segments separated by NUL.
    path: Vec<u8>,
    /// For each, outermost first: the end of its path, and the newest time beneath. The first is the root, whose path is empty.
    stack: Vec<(usize, Timestamp)>,
    key: Vec<u8>,
}

impl OpenFolders {
    /// Takes an entry of this key and time: leaves the folders that are not above it, and enters those that are.
    fn see(&mut self, key: &[u8], time: Option<Timestamp>, sorter: &mut Sorter) -> Result<(), CatalogError> {
        let ((_, path), _) = split(&key[..key.len() - 2]);
        let time = time.unwrap_or(FIRST_SEEN);
        if self.stack.is_empty() {
            self.stack.push((0, time));
        }
        if path != self.path {
            while !self.innermost_holds(path) {
                self.leave(sorter)?;
            }
            let entered = self.path.len();
            self.path.extend_from_slice(&path[entered..]);
            let ends = (entered + 1..=path.len()).filter(|at| *at == path.len() || path[*at] == 0);
            self.stack.extend(ends.map(|at| (at, time)));
        }
        if let Some((_, newest)) = self.stack.last_mut() {
            *newest = time.max(*newest);
        }
        Ok(())
    }

    fn innermost_holds(&self, path: &[u8]) -> bool {
        let end = self.path.len();
        path.starts_with(&self.path) && (end == 0 || path.len() == end || path[end] == 0)
    }

    fn leave(&mut self, sorter: &mut Sorter) -> Result<(), CatalogError> {
        let Some((_, newest)) = self.stack.pop() else { return Ok(()) };
        self.key.clear();
        self.key.push(self.stack.len() as u8);
        self.key.extend_from_slice(&self.path);
        self.key.extend_from_slice(&[0, FactTag::Folder as u8]);
        let mut value = Vec::new();
        push_time(&mut value, newest);
        sorter.add(&self.key, &value)?;
        if let Some((end, above)) = self.stack.last_mut() {
            *above = newest.max(*above);
            self.path.truncate(*end);
        }
        Ok(())
    }
}
