//! What lists, changes, packages and held deletions state, path by path: a sorted stream, and everything of one path brought together.

use super::fact::digest;
use super::naming::resolve::uri;
use super::sort::Sorted;
use super::sort_key::{Tag, slashed, split_tag};
use super::store::codec::{Decoder, damaged, unpack};
use super::store::record::ResourceRecord;
use super::version;
use super::{CatalogError, Naming, SetId};
use crate::document::{Timestamp, Uri};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// URIs of one path that are shown, the first by their order. URIs share a path where they differ by scheme or by which of their
/// reserved characters are escaped: of honest ones there are a few.
pub(super) const MOST_URIS: usize = 100;

/// What is stated of all paths together.
#[derive(Debug)]
pub(super) struct Listing {
    pub naming: Naming,
    /// What the revision speaks for.
    pub at: Option<Timestamp>,
    /// The sets and what their lists speak for.
    pub lists: BTreeMap<SetId, Option<Timestamp>>,
    /// Sets whose part of the journal goes.
    pub forgotten: BTreeSet<SetId>,
    /// Deletions that were held back and are decided again, by set: all that the set had.
    pub released: BTreeMap<SetId, u64>,
}

impl Listing {
    /// The time that the list of a set speaks for.
    pub(super) fn list_at(&self, set: SetId) -> Option<Timestamp> {
        self.lists.get(&set).copied().flatten()
    }

    /// What becomes of a change of `set` at `time`.
    pub(super) fn fate(&self, set: SetId, time: Timestamp) -> Fate {
        match self.lists.get(&set) {
            _ if self.forgotten.contains(&set) => Fate::Goes,
            Some(Some(at)) if time < *at => Fate::Goes,
            Some(_) => Fate::InForce,
            None => Fate::Rests,
        }
    }
}

/// What becomes of a change in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    InForce,
    /// The list of its set speaks for a later time, or its set is forgotten.
    Goes,
    /// Its set is not listed: it is kept for when it is.
    Rests,
}

/// A statement, sorted by path.
pub(super) struct SortedStatement {
    pub rows: Sorted,
}

impl SortedStatement {
    /// Of each set that has most of what was held back of it again, how many deletions that was: a list that was cut off for a moment
    /// says nothing of the rest either. Reads everything once.
    pub(super) fn released(&mut self, listing: &Listing) -> Result<BTreeMap<SetId, u64>, CatalogError> {
        let (mut path, mut held) = (PathStatement::default(), BTreeMap::<SetId, (u64, u64)>::new());
        while self.next(&mut path, listing)? {
            for (set, _, state) in &path.held {
                let (all, listed) = held.entry(*set).or_default();
                *all += 1;
                *listed += u64::from(*state == HeldState::Listed);
            }
        }
        self.rows.rewind()?;
        Ok(held.into_iter().filter(|(_, (all, listed))| 2 * listed > *all).map(|(set, (all, _))| (set, all)).collect())
    }

    /// Reads the next path at which anything is stated, if only in vain; `false` at the end. The first is the root.
    pub(super) fn next(&mut self, path: &mut PathStatement, listing: &Listing) -> Result<bool, CatalogError> {
        let corrupt = || CatalogError::Damaged("a sorted row".into());
        loop {
            let Some((key, value)) = self.rows.next()? else { return Ok(false) };
            let (begin, tag) = split_tag(key).ok_or_else(corrupt)?;
            path.begin(begin);
            path.take(tag, value, listing)?;
            while let Some((key, value)) = self.rows.peek()? {
                let (next, tag) = split_tag(key).ok_or_else(corrupt)?;
                if next != path.key {
                    break;
                }
                path.take(tag, value, listing)?;
                self.rows.next()?;
            }
            if path.resources.len() > 1 {
                path.sort(&listing.naming)?;
            }
            if path.is_stated {
                return Ok(true);
            }
        }
    }
}

/// What a change states.
#[derive(Serialize, Deserialize)]
pub(super) struct StatedChange<'a> {
    pub time: Timestamp,
    pub shown: Option<Timestamp>,
    pub is_news: bool,
    pub record: &'a [u8],
}

/// Everything that is stated of one path.
#[derive(Default)]
pub(super) struct PathStatement {
    /// Depth, then the segments separated by NUL.
    pub key: Vec<u8>,
    /// Where it is a folder: the newest time beneath.
    pub folder: Option<Timestamp>,
    /// Where it is a file: a resource for each of its URIs, by their order.
    pub resources: Vec<Resource>,
    /// Deletions that are, or were, held back.
    pub held: Vec<(SetId, Uri, HeldState)>,
    /// How many resources are left out.
    pub left_out: u64,
    /// Whether it has a row for which the folders above have one.
    is_stated: bool,
    /// Digests of the list entries that do not count, because changes supersede them.
    superseded: HashSet<u128>,
}

/// What is stated of one URI.
pub(super) struct Resource {
    pub record: Vec<u8>,
    /// The `datetime` of the change that states it, which stands in for a `lastmod`.
    pub shown: Option<Timestamp>,
    /// Whether a change states it that is not in the journal yet.
    pub is_news: bool,
    /// What the list or the change that states it speaks for.
    stamp: Option<Timestamp>,
}

/// What becomes of a deletion that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldState {
    /// It is held back from now on.
    New,
    /// It is held back as before.
    Still,
    /// The set has the resource again.
    Listed,
}

impl PathStatement {
    fn begin(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        (self.folder, self.left_out, self.is_stated) = (None, 0, false);
        self.resources.clear();
        self.held.clear();
        self.superseded.clear();
    }

    fn corrupt(&self) -> CatalogError {
        damaged("statement", &self.key)
    }

    /// Takes one sorted value of this path.
    fn take(&mut self, tag: Tag, value: &[u8], listing: &Listing) -> Result<(), CatalogError> {
        self.is_stated |= !matches!(tag, Tag::Superseded | Tag::Member);
        match tag {
            Tag::Folder => {
                let time = Decoder(value).time().ok_or_else(|| self.corrupt())?;
                self.folder = self.folder.max(Some(time));
            }
            Tag::Superseded => {
                let digest = value.try_into().map_err(|_| self.corrupt())?;
                self.superseded.insert(u128::from_be_bytes(digest));
            }
            Tag::File => self.take_resource(value, None, listing)?,
            Tag::Change => {
                let change = unpack::<StatedChange<'_>>(value).ok_or_else(|| self.corrupt())?;
                self.take_resource(change.record, Some(&change), listing)?;
            }
            // What states the resource came before.
            Tag::Member => {
                let packed = self.decode(value)?;
                let Some(index) = self.find(&packed)? else { return Ok(()) };
                let known = self.decode(&self.resources[index].record)?;
                if version::provably_same(&known, &packed).ok_or_else(|| self.corrupt())? {
                    let sets: Vec<SetId> = known.sets.iter().collect();
                    self.resources[index].record = known.belonging(known.uri, &sets, packed.member);
                }
            }
            Tag::Kept => {
                let (is_held, record) = value.split_first().ok_or_else(|| self.corrupt())?;
                self.take_kept(*is_held != 0, record, listing)?;
            }
        }
        Ok(())
    }

    fn decode<'r>(&self, record: &'r [u8]) -> Result<ResourceRecord<'r>, CatalogError> {
        ResourceRecord::decode(record).ok_or_else(|| self.corrupt())
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
    fn add(&mut self, resource: Resource, naming: &Naming) -> Result<(), CatalogError> {
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
        let path = slashed(&self.key[1..]).ok_or_else(|| self.corrupt())?;
        uri(record, &path, naming).ok_or_else(|| self.corrupt())
    }

    /// Of one URI what was stated last counts: by the time of a change or of a list; of two that are no older than each other
    /// the later `lastmod`, else what was added last. Its sets are all that have it.
    fn take_resource(
        &mut self,
        record: &[u8],
        change: Option<&StatedChange<'_>>,
        listing: &Listing,
    ) -> Result<(), CatalogError> {
        let new = self.decode(record)?;
        let set = new.sets.iter().next().unwrap_or_default();
        let is_superseded = || self.superseded.contains(&digest(set, new.https, new.uri));
        if change.is_none() && !self.superseded.is_empty() && is_superseded() {
            return Ok(());
        }
        let stamp = change.map_or_else(|| listing.list_at(set), |change| Some(change.time));
        let (shown, is_news) = change.map_or((None, false), |change| (change.shown, change.is_news));
        let stated = Resource { record: record.to_vec(), shown, is_news, stamp };
        let Some(index) = self.find(&new)? else { return self.add(stated, &listing.naming) };
        let known = self.decode(&self.resources[index].record)?;
        let mut sets: Vec<SetId> = new.sets.iter().chain(known.sets.iter()).collect();
        sets.sort_unstable();
        sets.dedup();
        if (self.resources[index].stamp, known.lastmod) > (stamp, new.lastmod) {
            self.resources[index].record = known.belonging(known.uri, &sets, known.member);
        } else {
            self.resources[index] = Resource { record: new.belonging(new.uri, &sets, new.member), ..stated };
        }
        Ok(())
    }

    /// A deletion that is held back; `is_held`: it was before.
    fn take_kept(&mut self, is_held: bool, record: &[u8], listing: &Listing) -> Result<(), CatalogError> {
        let new = self.decode(record)?;
        let is_released = |set: SetId| is_held && listing.released.contains_key(&set);
        if new.sets.iter().all(is_released) {
            return Ok(());
        }
        let (uri, index) = (self.uri(&new, &listing.naming)?, self.find(&new)?);
        let known = match index {
            Some(index) => self.decode(&self.resources[index].record)?,
            None => new,
        };
        let mut sets: Vec<SetId> = if index.is_some() { known.sets.iter().collect() } else { Vec::new() };
        for set in new.sets.iter() {
            let state = match (sets.contains(&set), is_held) {
                (true, true) => HeldState::Listed,
                (true, false) => continue,
                (false, true) => HeldState::Still,
                (false, false) => HeldState::New,
            };
            if state != HeldState::Listed {
                sets.push(set);
            }
            self.held.push((set, uri.clone(), state));
        }
        sets.sort_unstable();
        let record = known.belonging(known.uri, &sets, known.member);
        match index {
            Some(index) => self.resources[index].record = record,
            None => self.add(Resource { record, shown: None, is_news: false, stamp: None }, &listing.naming)?,
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
    fn listing() -> Listing {
        let (lists, forgotten, released) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Listing { naming: naming(), at: None, lists, forgotten, released }
    }

    fn value(uri: &str, tag: Tag, content: u8) -> Vec<u8> {
        let hashes = vec![Digest::new(Algorithm::Md5, &[content; 16]).unwrap()];
        let entry = Entry { hashes, ..Entry::new(Uri::parse(uri).unwrap()) };
        let member = PackageMember { package: Uri::parse("http://h/package").unwrap(), path: "x".into() };
        let mut value = Vec::new();
        push_resource(&mut value, &entry, true, &[SetId(0)], (tag == Tag::Member).then_some(&member));
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
            let mut path = PathStatement::default();
            path.begin(b"\x01,,,,,,,,,,");
            for (kind, content) in [(Tag::File, 1), (Tag::File, 2), (Tag::Member, 2)] {
                for uri in &order {
                    path.take(kind, &value(uri, kind, content), &listing()).unwrap();
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
