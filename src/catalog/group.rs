//! Groups: all facts about one path, and the names that follow from them.
//!
//! URIs share a path where they differ by scheme, or by which of their reserved characters are escaped. The names of a group depend on
//! its URIs and on whether the path is a folder, and on nothing else: every machine gives the same names, in any order of facts and
//! after any history.

use super::fact::{ChangedValue, FactTag, ShownValue, digest, path_key, slashed, split, split_tag};
use super::naming::names_of_path::{path_by_rule, resolved_name, uri};
use super::sort::Sorted;
use super::store::codec::{Decoder, damaged, unpack};
use super::store::record::ResourceRecord;
use super::version::{self, ChangeMark};
use super::{CatalogError, Naming, SetId};
use crate::document::{Timestamp, Uri};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// URIs of one path that are shown: the first by their order. Honest Sources have a few.
const MOST_URIS: usize = 100;

/// The sets that the facts of a commit speak for, and how names follow from URIs.
#[derive(Debug, Default)]
pub(super) struct FactScope {
    pub naming: Naming,
    /// The time that the revision speaks for.
    pub at: Option<Timestamp>,
    /// The sets, each with the time that its list speaks for.
    pub lists: BTreeMap<SetId, Option<Timestamp>>,
    /// Sets whose part of the journal goes.
    pub forgotten: BTreeSet<SetId>,
    /// Deletions that were held back and are decided again, by set: all that the set had.
    pub released: BTreeMap<SetId, u64>,
    /// The facts speak for the paths that they name alone: those of a commit of changes.
    pub is_partial: bool,
}

impl FactScope {
    /// The time that the list of a set speaks for.
    pub(super) fn list_at(&self, set: SetId) -> Option<Timestamp> {
        self.lists.get(&set).copied().flatten()
    }
}

/// The facts of a commit, sorted by path.
pub(super) struct SortedFacts {
    pub rows: Sorted,
}

impl SortedFacts {
    /// Adds `others`, and begins again.
    pub(super) fn add(&mut self, others: Sorted) -> Result<(), CatalogError> {
        self.rows.add(others);
        self.rows.rewind()
    }

    /// The sets of which what was held back is decided again, with the number of those deletions: by `redecided`, else where the set has most
    /// of it again. A list that was cut off for a moment says nothing of the rest either. Reads all facts once.
    pub(super) fn released(
        &mut self,
        scope: &FactScope,
        redecided: &BTreeMap<SetId, bool>,
    ) -> Result<BTreeMap<SetId, u64>, CatalogError> {
        let (mut group, mut held) = (Group::default(), BTreeMap::<SetId, (u64, u64)>::new());
        while self.next(&mut group, scope)? {
            for (set, _, state) in &group.held {
                let (all, listed) = held.entry(*set).or_default();
                *all += 1;
                *listed += u64::from(*state == HeldState::Listed);
            }
        }
        self.rows.rewind()?;
        let is_redecided =
            |(set, (all, listed)): &(SetId, (u64, u64))| redecided.get(set).copied().unwrap_or(2 * listed > *all);
        Ok(held.into_iter().filter(is_redecided).map(|(set, (all, _))| (set, all)).collect())
    }

    /// Reads the next group; `false` at the end. The first is the root.
    pub(super) fn next(&mut self, group: &mut Group, scope: &FactScope) -> Result<bool, CatalogError> {
        let corrupt = || CatalogError::Damaged("a sorted fact".into());
        loop {
            let Some((key, value)) = self.rows.next()? else { return Ok(false) };
            let (path, tag) = split_tag(key).ok_or_else(corrupt)?;
            group.begin(path);
            group.take(tag, value, scope)?;
            while let Some((key, value)) = self.rows.peek()? {
                let (path, tag) = split_tag(key).ok_or_else(corrupt)?;
                if path != group.key {
                    break;
                }
                group.take(tag, value, scope)?;
                self.rows.next()?;
            }
            if group.resources.len() > 1 {
                group.sort(&scope.naming)?;
            }
            if group.is_named || group.folder.is_some() {
                return Ok(true);
            }
        }
    }
}

/// One path, with all that is stated about it.
#[derive(Default)]
pub(super) struct Group {
    /// Depth, then the segments separated by NUL.
    pub key: Vec<u8>,
    /// The newest time beneath it, where it is a folder.
    pub folder: Option<Timestamp>,
    /// A resource for each of its URIs, by their order.
    pub resources: Vec<StatedResource>,
    /// Deletions that are, or were, held back.
    pub held: Vec<(SetId, Uri, HeldState)>,
    /// Number of resources that are left out.
    pub left_out: u64,
    /// True where a fact may make a name. The folders above such a path have facts too.
    pub is_named: bool,
    /// Digests of the earlier statements that changes supersede.
    superseded: HashSet<u128>,
}

/// A resource that a group has.
pub(super) struct StatedResource {
    /// The record, with the URI where the path does not give it.
    pub record: Vec<u8>,
    pub mark: ChangeMark,
    /// The time of the latest statement about it.
    time: Option<Timestamp>,
}

impl StatedResource {
    /// A resource whose time no longer matters: its statements are united.
    pub(super) fn of(record: Vec<u8>, mark: ChangeMark) -> StatedResource {
        StatedResource { record, mark, time: None }
    }
}

/// A file of the new tree.
#[derive(Clone, Copy)]
pub(super) struct NewFile<'a> {
    pub name: &'a [u8],
    /// Its path by rule, segments separated by NUL.
    pub path: &'a [u8],
    /// True where `name` is the last segment of `path`.
    pub is_plain: bool,
    /// The record, with the URI where name and path do not give it.
    pub resource: ResourceRecord<'a>,
    pub mark: ChangeMark,
}

impl NewFile<'_> {
    /// Its path by rule, segments joined by `/`.
    pub(super) fn path(&self) -> Result<String, CatalogError> {
        slashed(self.path).ok_or_else(|| damaged("path", self.path))
    }

    pub(super) fn uri(&self, naming: &Naming) -> Result<Uri, CatalogError> {
        uri(&self.resource, &self.path()?, naming).ok_or_else(|| damaged("resource", self.path))
    }

    /// Its resource as part of a group.
    pub(super) fn stated(&self) -> StatedResource {
        StatedResource::of(self.resource.bytes.to_vec(), self.mark)
    }
}

/// Fate of a deletion that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldState {
    /// Held back from now on.
    New,
    /// Held back as before.
    Still,
    /// The set has the resource again.
    Listed,
}

impl Group {
    fn begin(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        (self.folder, self.left_out, self.is_named) = (None, 0, false);
        self.resources.clear();
        self.held.clear();
        self.superseded.clear();
    }

    pub(super) fn corrupt(&self) -> CatalogError {
        damaged("facts", &self.key)
    }

    /// The path, segments joined by `/`.
    pub(super) fn path(&self) -> Result<String, CatalogError> {
        slashed(&self.key[1..]).ok_or_else(|| self.corrupt())
    }

    /// A group of these resources, which are sorted by URI. `folder`: the path is a folder too, with this newest time beneath it.
    pub(super) fn of(path: &str, folder: Option<Timestamp>, resources: Vec<StatedResource>) -> Group {
        Group { key: path_key(path), folder, resources, is_named: true, ..Group::default() }
    }

    /// Calls `visit` for the file of each resource, under the name that is the only one that it can have in this group: the first has the
    /// plain name, unless that is a folder.
    pub(super) fn names(
        &self,
        naming: &Naming,
        visit: &mut dyn FnMut(NewFile<'_>) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        let (_, name) = split(&self.key);
        for (index, stated) in self.resources.iter().enumerate() {
            let (is_plain, resource) = (index == 0 && self.folder.is_none(), self.decode(&stated.record)?);
            let plain = NewFile { name, path: &self.key[1..], is_plain, resource, mark: stated.mark };
            if is_plain && resource.uri.is_none() {
                visit(plain)?;
                continue;
            }
            let uri = self.uri(&resource, naming)?;
            let name = std::str::from_utf8(name).map_err(|_| self.corrupt())?;
            let resolved = resolved_name(name, index, self.folder.is_some(), &uri);
            let is_given = is_plain && path_by_rule(naming, &uri, resource.media_type).1;
            let record = resource.with_uri((!is_given).then_some(uri.as_str()));
            visit(NewFile { name: resolved.as_bytes(), resource: self.decode(&record)?, ..plain })?;
        }
        Ok(())
    }

    /// Takes one fact about this path.
    fn take(&mut self, tag: FactTag, value: &[u8], scope: &FactScope) -> Result<(), CatalogError> {
        self.is_named |= !matches!(tag, FactTag::Folder | FactTag::Superseded | FactTag::Member);
        match tag {
            FactTag::Folder => {
                let time = Decoder(value).time().ok_or_else(|| self.corrupt())?;
                self.folder = self.folder.max(Some(time));
            }
            FactTag::Superseded => {
                let digest = value.try_into().map_err(|_| self.corrupt())?;
                self.superseded.insert(u128::from_be_bytes(digest));
            }
            FactTag::Shown => {
                let ShownValue { sets, record } = unpack(value).ok_or_else(|| self.corrupt())?;
                let known = self.decode(record)?;
                let stays = |(set, _): &&(SetId, _)| !self.is_superseded(*set, &known);
                let sets: Vec<_> = sets.iter().filter(stays).copied().collect();
                let time = sets.iter().filter_map(|(_, time)| *time).max();
                if !sets.is_empty() {
                    let record = known.belonging(known.uri, sets.into_iter().map(|(set, _)| set), known.member);
                    self.state(StatedResource { record, mark: ChangeMark::default(), time }, &scope.naming)?;
                }
            }
            FactTag::Listed => {
                let new = self.decode(value)?;
                let set = new.sets.iter().next().unwrap_or_default();
                if self.superseded.is_empty() || !self.is_superseded(set, &new) {
                    let (record, time) = (value.to_vec(), scope.list_at(set));
                    self.state(StatedResource { record, mark: ChangeMark::default(), time }, &scope.naming)?;
                }
            }
            FactTag::Changed => {
                let ChangedValue { time, mark, record } = unpack(value).ok_or_else(|| self.corrupt())?;
                self.state(StatedResource { record: record.to_vec(), mark, time: Some(time) }, &scope.naming)?;
            }
            // The facts that state the resource came before.
            FactTag::Member => {
                let packed = self.decode(value)?;
                let Some(index) = self.find(&packed)? else { return Ok(()) };
                let known = self.decode(&self.resources[index].record)?;
                if known.member.is_empty() && version::provably_same(&known, &packed).ok_or_else(|| self.corrupt())? {
                    self.resources[index].record = known.belonging(known.uri, known.sets.iter(), packed.member);
                }
            }
            FactTag::Held => {
                let (is_known, record) = value.split_first().ok_or_else(|| self.corrupt())?;
                self.hold(*is_known != 0, record, scope)?;
            }
        }
        Ok(())
    }

    fn decode<'r>(&self, record: &'r [u8]) -> Result<ResourceRecord<'r>, CatalogError> {
        ResourceRecord::decode(record).ok_or_else(|| self.corrupt())
    }

    fn is_superseded(&self, set: SetId, record: &ResourceRecord<'_>) -> bool {
        self.superseded.contains(&digest(set, record.https, record.uri))
    }

    /// The resource of the same URI as `new`.
    fn find(&self, new: &ResourceRecord<'_>) -> Result<Option<usize>, CatalogError> {
        for (index, known) in self.resources.iter().enumerate() {
            let known = self.decode(&known.record)?;
            if (known.https, known.uri) == (new.https, new.uri) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Adds a resource of another URI.
    fn add(&mut self, resource: StatedResource, naming: &Naming) -> Result<(), CatalogError> {
        self.resources.push(resource);
        if self.resources.len() < 2 * MOST_URIS { Ok(()) } else { self.sort(naming) }
    }

    /// Sorts the resources by their URIs, and leaves out those beyond the most.
    fn sort(&mut self, naming: &Naming) -> Result<(), CatalogError> {
        let mut sorted = BTreeMap::new();
        for resource in std::mem::take(&mut self.resources) {
            let record = self.decode(&resource.record)?;
            sorted.insert(self.uri(&record, naming)?, resource);
        }
        self.left_out += sorted.len().saturating_sub(MOST_URIS) as u64;
        self.resources.extend(sorted.into_values().take(MOST_URIS));
        Ok(())
    }

    /// The URI of a record of this path.
    pub(super) fn uri(&self, record: &ResourceRecord<'_>, naming: &Naming) -> Result<Uri, CatalogError> {
        uri(record, &self.path()?, naming).ok_or_else(|| self.corrupt())
    }

    /// Takes a statement about a resource. The latest statement about a URI wins: by time, then by `lastmod`, then by the order of facts.
    /// The sets of all statements are united.
    fn state(&mut self, stated: StatedResource, naming: &Naming) -> Result<(), CatalogError> {
        let new = self.decode(&stated.record)?;
        let Some(index) = self.find(&new)? else { return self.add(stated, naming) };
        let known = self.decode(&self.resources[index].record)?;
        let sets: BTreeSet<SetId> = new.sets.iter().chain(known.sets.iter()).collect();
        if (self.resources[index].time, known.lastmod) > (stated.time, new.lastmod) {
            self.resources[index].record = known.belonging(known.uri, sets, known.member);
        } else {
            let record = new.belonging(new.uri, sets, new.member);
            self.resources[index] = StatedResource { record, ..stated };
        }
        Ok(())
    }

    /// Keeps a resource whose deletion is held back, and was before where `is_known`.
    fn hold(&mut self, is_known: bool, record: &[u8], scope: &FactScope) -> Result<(), CatalogError> {
        let new = self.decode(record)?;
        let is_released = |set: SetId| is_known && scope.released.contains_key(&set);
        if new.sets.iter().all(is_released) {
            return Ok(());
        }
        let (uri, index) = (self.uri(&new, &scope.naming)?, self.find(&new)?);
        let known = match index {
            Some(index) => self.decode(&self.resources[index].record)?,
            None => new,
        };
        let mut sets: BTreeSet<SetId> = index.iter().flat_map(|_| known.sets.iter()).collect();
        for set in new.sets.iter() {
            let state = match (sets.contains(&set), is_known) {
                (true, true) => HeldState::Listed,
                (true, false) => continue,
                (false, true) => HeldState::Still,
                (false, false) => HeldState::New,
            };
            if state != HeldState::Listed {
                sets.insert(set);
            }
            self.held.push((set, uri.clone(), state));
        }
        let record = known.belonging(known.uri, sets, known.member);
        match index {
            Some(index) => self.resources[index].record = record,
            None => self.add(StatedResource::of(record, ChangeMark::default()), &scope.naming)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::record::push_resource;
    use super::super::tests::naming;
    use super::*;
    use crate::document::{Algorithm, Digest, Entry, PackageMember};

    /// A listing of no sets.
    fn scope() -> FactScope {
        FactScope { naming: naming(), ..FactScope::default() }
    }

    fn value(uri: &str, tag: FactTag, content: u8) -> Vec<u8> {
        let hashes = vec![Digest::new(Algorithm::Md5, &[content; 16]).unwrap()];
        let entry = Entry { hashes, ..Entry::new(Uri::parse(uri).unwrap()) };
        let member = PackageMember { package: Uri::parse("http://h/package").unwrap(), path: "x".into() };
        let mut value = Vec::new();
        push_resource(&mut value, &entry, true, [SetId(0)], (tag == FactTag::Member).then_some(&member));
        value
    }

    /// URIs that differ in which of their reserved characters are escaped have one path.
    fn uris(count: u32) -> Vec<String> {
        let escaped =
            |number: u32| -> String { (0..10).map(|bit| if number >> bit & 1 == 1 { "%2C" } else { "," }).collect() };
        (0..count).map(|number| format!("http://h/{}", escaped(number))).collect()
    }

    #[test]
    fn of_one_path_the_first_uris_are_shown_in_any_order() {
        let mut sorted = uris(1000);
        sorted.sort_unstable();
        let reversed: Vec<String> = sorted.iter().rev().cloned().collect();
        for order in [sorted.clone(), reversed, uris(1000)] {
            let mut path = Group::default();
            path.begin(b"\x01,,,,,,,,,,");
            for (kind, content) in [(FactTag::Listed, 1), (FactTag::Listed, 2), (FactTag::Member, 2)] {
                for uri in &order {
                    path.take(kind, &value(uri, kind, content), &scope()).unwrap();
                }
            }
            path.sort(&naming()).unwrap();

            let mut shown = Vec::new();
            for resource in &path.resources {
                let record = ResourceRecord::decode(&resource.record).unwrap();
                assert_eq!(record.digests().unwrap()[0].bytes(), [2; 16], "the last statement counts");
                assert!(!record.member.is_empty());
                shown.push(path.uri(&record, &naming()).unwrap().as_str().to_owned());
            }
            assert_eq!(shown, sorted[..MOST_URIS]);
            assert!(path.left_out >= 900, "{}", path.left_out);
        }
    }
}
