//! What lists, changes, packages and held deletions state, path by path: a sorted stream, and everything of one path brought together.

use super::journal::{Speaking, list_at};
use super::naming::resolve::uri;
use super::sort::Sorted;
use super::sort_key::{push_above, slashed, tag};
use super::store::codec::{Decoder, damaged, push_time};
use super::store::record::ResourceRecord;
use super::store::symbols::Symbols;
use super::superseded::{CandidateFolders, Superseding, digest};
use super::version;
use super::{CatalogError, Naming, SetId};
use crate::document::{Timestamp, Uri};
use std::collections::{BTreeMap, HashSet};

/// URIs of one path that are shown, the first by their order. URIs share a path where they differ by scheme or by which of their
/// reserved characters are escaped: of honest ones there are a few.
pub(super) const MOST_URIS: usize = 100;

/// Bytes of the package members of one path.
const MEMBER_BYTES: usize = 8 << 20;

/// What is stated of all paths together.
#[derive(Clone, Copy)]
pub(super) struct Listing<'a> {
    pub naming: &'a Naming,
    pub symbols: &'a Symbols,
    pub at: Option<Timestamp>,
    pub speaking: Speaking<'a>,
}

/// A statement, sorted by path.
pub(super) struct SortedStatement {
    rows: Sorted,
    candidates: Option<CandidateFolders>,
    /// The newest `lastmod` of all.
    pub newest: Option<Timestamp>,
}

impl SortedStatement {
    /// Of the rows, without the list entries that changes supersede.
    pub(super) fn new(
        rows: Sorted,
        newest: Option<Timestamp>,
        superseding: Option<Superseding>,
        listing: Listing<'_>,
    ) -> Result<SortedStatement, CatalogError> {
        let Some(superseding) = superseding else { return Ok(SortedStatement { rows, candidates: None, newest }) };
        let (entries, candidates) = superseding.finish()?;
        // What supersedes the entries of a path comes before them.
        let rows = entries.again_with(Some(rows))?;
        SortedStatement { rows, candidates, newest }.again_with(None, listing)
    }

    /// The same from the first path, `kept` with it.
    pub(super) fn again_with(
        mut self,
        kept: Option<Sorted>,
        listing: Listing<'_>,
    ) -> Result<SortedStatement, CatalogError> {
        self.rows = self.rows.again_with(kept)?;
        if self.candidates.is_some() {
            self.find_empty_folders(listing)?;
            self.rows.rewind()?;
        }
        Ok(self)
    }

    /// The same; what has been read is not read again, and leaves the disk.
    pub(super) fn read_once(self) -> SortedStatement {
        SortedStatement { rows: self.rows.read_once(), ..self }
    }

    /// Reads the next path at which anything is; `false` at the end.
    pub(super) fn next(&mut self, path: &mut PathStatement, listing: Listing<'_>) -> Result<bool, CatalogError> {
        while self.read_path(path, listing)? {
            if path.folder.is_some() {
                if let Some(candidates) = &mut self.candidates {
                    if candidates.is_empty(&path.key)? {
                        path.folder = None;
                    }
                }
            }
            if path.folder.is_some() || !path.resources.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read_path(&mut self, path: &mut PathStatement, listing: Listing<'_>) -> Result<bool, CatalogError> {
        let Some((key, value)) = self.rows.next()? else { return Ok(false) };
        path.begin(key);
        path.take(value, listing)?;
        while let Some((key, value)) = self.rows.peek()? {
            if key != path.key {
                break;
            }
            path.take(value, listing)?;
            self.rows.next()?;
        }
        path.finish(listing)?;
        Ok(true)
    }

    /// Reads everything, to learn which candidates hold something.
    fn find_empty_folders(&mut self, listing: Listing<'_>) -> Result<(), CatalogError> {
        let Some(mut candidates) = self.candidates.take() else { return Ok(()) };
        candidates.begin()?;
        let (mut path, mut above) = (PathStatement::default(), Vec::new());
        while self.read_path(&mut path, listing)? {
            // A folder that holds something stands for itself in the one above.
            let is_there = !path.resources.is_empty() || (path.folder.is_some() && !candidates.contains(&path.key)?);
            if is_there && push_above(&path.key, &mut above) {
                candidates.keep(&above)?;
            }
        }
        candidates.finish()?;
        self.candidates = Some(candidates);
        Ok(())
    }
}

/// Appends what stands before the record of a change.
pub(super) fn push_change(value: &mut Vec<u8>, change: ChangeOf) {
    value.push(tag::CHANGE);
    value.push(u8::from(change.is_news) | u8::from(change.shown.is_some()) << 1);
    push_time(value, change.time);
    if let Some(shown) = change.shown {
        push_time(value, shown);
    }
}

/// The change that states a resource.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChangeOf {
    pub time: Timestamp,
    /// The `datetime` of its entry, which stands in for a `lastmod`.
    pub shown: Option<Timestamp>,
    /// Whether it is not in the journal yet.
    pub is_news: bool,
}

impl ChangeOf {
    fn read(bytes: &mut Decoder<'_>) -> Option<ChangeOf> {
        let flags = bytes.byte()?;
        let time = bytes.time()?;
        let shown = if flags & 2 != 0 { Some(bytes.time()?) } else { None };
        Some(ChangeOf { time, shown, is_news: flags & 1 != 0 })
    }
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
    /// Digests of the list entries that do not count, because changes supersede them.
    superseded: HashSet<u128>,
    /// Records of resources that a package holds, each with its member.
    members: Vec<Vec<u8>>,
    member_bytes: usize,
}

/// What is stated of one URI.
pub(super) struct Resource {
    pub record: Vec<u8>,
    pub change: Option<ChangeOf>,
    /// What the list or the change that states it speaks for.
    stamp: Option<Timestamp>,
    /// The sets that no longer have it, but whose deletion is held back; whether it was before.
    kept: Vec<(SetId, bool)>,
    /// Whether nothing but held deletions states it.
    is_only_kept: bool,
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
        (self.folder, self.left_out, self.member_bytes) = (None, 0, 0);
        self.resources.clear();
        self.held.clear();
        self.superseded.clear();
        self.members.clear();
    }

    fn corrupt(&self) -> CatalogError {
        damaged("statement", &self.key)
    }

    /// Takes one sorted value of this path.
    fn take(&mut self, value: &[u8], listing: Listing<'_>) -> Result<(), CatalogError> {
        let (&kind, value) = value.split_first().ok_or_else(|| self.corrupt())?;
        match kind {
            tag::FOLDER => {
                let time = Decoder(value).time().ok_or_else(|| self.corrupt())?;
                self.folder = self.folder.max(Some(time));
            }
            tag::SUPERSEDED => {
                let digest = value.try_into().map_err(|_| self.corrupt())?;
                self.superseded.insert(u128::from_be_bytes(digest));
            }
            tag::FILE => self.take_resource(value, None, listing)?,
            tag::CHANGE => {
                let mut bytes = Decoder(value);
                let change = ChangeOf::read(&mut bytes).ok_or_else(|| self.corrupt())?;
                self.take_resource(bytes.0, Some(change), listing)?;
            }
            // Without it the resource comes by its own URI.
            tag::MEMBER if self.member_bytes + value.len() > MEMBER_BYTES => {}
            tag::MEMBER => {
                self.member_bytes += value.len();
                self.members.push(value.to_vec());
            }
            tag::KEPT => {
                let (is_held, record) = value.split_first().ok_or_else(|| self.corrupt())?;
                self.take_kept(*is_held != 0, record, listing.naming)?;
            }
            _ => return Err(self.corrupt()),
        }
        Ok(())
    }

    /// The resource of the same URI as `new`.
    fn find(&self, new: &ResourceRecord<'_>) -> Result<Option<usize>, CatalogError> {
        for (index, known) in self.resources.iter().enumerate() {
            let known = ResourceRecord::decode(&known.record).ok_or_else(|| self.corrupt())?;
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
            let record = ResourceRecord::decode(&resource.record).ok_or_else(|| self.corrupt())?;
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
        change: Option<ChangeOf>,
        listing: Listing<'_>,
    ) -> Result<(), CatalogError> {
        let new = ResourceRecord::decode(record).ok_or_else(|| self.corrupt())?;
        let set = new.sets.iter().next().unwrap_or_default();
        if change.is_none() && !self.superseded.is_empty() && self.superseded.contains(&digest(set, new.https, new.uri))
        {
            return Ok(());
        }
        let stamp = change.map_or_else(|| list_at(listing.speaking.lists, Some(set)), |change| Some(change.time));
        let Some(index) = self.find(&new)? else {
            let (record, kept) = (record.to_vec(), Vec::new());
            return self.add(Resource { record, change, stamp, kept, is_only_kept: false }, listing.naming);
        };
        let mut resource = self.resources.swap_remove(index);
        let known = ResourceRecord::decode(&resource.record).ok_or_else(|| self.corrupt())?;
        let mut sets: Vec<SetId> = new.sets.iter().collect();
        let mut counts = new;
        if !resource.is_only_kept {
            sets.extend(known.sets.iter());
            sets.sort_unstable();
            sets.dedup();
        }
        if !resource.is_only_kept && (resource.stamp, known.lastmod) > (stamp, new.lastmod) {
            counts = known;
        } else {
            (resource.change, resource.stamp) = (change, stamp);
        }
        resource.record = belonging(&counts, &sets, counts.member);
        resource.is_only_kept = false;
        self.resources.push(resource);
        Ok(())
    }

    fn take_kept(&mut self, is_held: bool, record: &[u8], naming: &Naming) -> Result<(), CatalogError> {
        let new = ResourceRecord::decode(record).ok_or_else(|| self.corrupt())?;
        let kept = new.sets.iter().map(|set| (set, is_held));
        match self.find(&new)? {
            Some(index) => self.resources[index].kept.extend(kept),
            None => {
                let (record, kept) = (record.to_vec(), kept.collect());
                self.add(Resource { record, change: None, stamp: None, kept, is_only_kept: true }, naming)?;
            }
        }
        Ok(())
    }

    /// All is taken: brings package members and what is held back into the records.
    fn finish(&mut self, listing: Listing<'_>) -> Result<(), CatalogError> {
        for member in std::mem::take(&mut self.members) {
            let packed = ResourceRecord::decode(&member).ok_or_else(|| self.corrupt())?;
            let Some(index) = self.find(&packed)? else { continue };
            let known = ResourceRecord::decode(&self.resources[index].record).ok_or_else(|| self.corrupt())?;
            if version::provably_same(&known, &packed, listing.symbols).ok_or_else(|| self.corrupt())? {
                let sets: Vec<SetId> = known.sets.iter().collect();
                self.resources[index].record = belonging(&known, &sets, packed.member);
            }
        }
        if self.resources.len() > 1 {
            self.sort(listing.naming)?;
        }
        for index in 0..self.resources.len() {
            let resource = &self.resources[index];
            if resource.kept.is_empty() {
                continue;
            }
            let record = ResourceRecord::decode(&resource.record).ok_or_else(|| self.corrupt())?;
            let uri = self.uri(&record, listing.naming)?;
            let mut sets: Vec<SetId> = if resource.is_only_kept { Vec::new() } else { record.sets.iter().collect() };
            let mut kept = BTreeMap::new();
            resource.kept.iter().for_each(|(set, is_held)| *kept.entry(*set).or_default() |= *is_held);
            for (set, is_held) in kept {
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
            self.resources[index].record = belonging(&record, &sets, record.member);
        }
        Ok(())
    }
}

/// A record as a member of these sets, and of this package.
fn belonging(record: &ResourceRecord<'_>, sets: &[SetId], member: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.push_belonging(record.uri, sets, member, &mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::sort::{SMALL_SORT, Sorter, SpillFolder};
    use super::super::sort_key::push_key;
    use super::super::store::record::push_resource;
    use super::super::tests::naming;
    use super::*;
    use crate::document::{Algorithm, Change, Digest, Entry, PackageMember, Uri};
    use std::collections::BTreeSet;

    /// A listing of no sets under this naming.
    fn listing<'l>(naming: &'l Naming, symbols: &'l Symbols) -> Listing<'l> {
        static FORGOTTEN: BTreeSet<SetId> = BTreeSet::new();
        Listing { naming, symbols, at: None, speaking: Speaking { lists: &[], forgotten: &FORGOTTEN } }
    }

    fn value(uri: &str, kind: u8, content: u8, symbols: &Symbols) -> Vec<u8> {
        let hashes = vec![Digest::new(Algorithm::Md5, &[content; 16]).unwrap()];
        let entry = Entry { hashes, ..Entry::new(Uri::parse(uri).unwrap()) };
        let member = PackageMember { package: Uri::parse("http://h/package").unwrap(), path: "x".into() };
        let mut value = vec![kind];
        push_resource(&mut value, &entry, true, &[SetId(0)], (kind == tag::MEMBER).then_some(&member), symbols);
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
        let symbols = Symbols::decode(&[]).unwrap();
        let mut sorted = uris(1000);
        sorted.sort_unstable();
        let reversed: Vec<String> = sorted.iter().rev().cloned().collect();
        for order in [sorted.clone(), reversed, uris(1000)] {
            let mut path = PathStatement::default();
            path.begin(b"\x01,,,,,,,,,,");
            for (kind, content) in [(tag::FILE, 1), (tag::FILE, 2), (tag::MEMBER, 2)] {
                for uri in &order {
                    path.take(&value(uri, kind, content, &symbols), listing(&naming(), &symbols)).unwrap();
                }
            }
            path.finish(listing(&naming(), &symbols)).unwrap();

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

    fn key(path: &str) -> Vec<u8> {
        let mut key = Vec::new();
        push_key(&mut key, path);
        key
    }

    /// Folder and file of each number: in every third folder the one file is removed, in every sixth there is another.
    #[test]
    fn superseded_entries_and_empty_folders_are_passed_over() {
        const FOLDERS: usize = 3000;
        let folder = tempfile::tempdir().unwrap();
        let spill_folder = SpillFolder::new(folder.path());
        let symbols = Symbols::decode(&[]).unwrap();
        let mut superseding = Superseding::new(&spill_folder);
        let mut sorter = Sorter::new(&spill_folder, SMALL_SORT);
        let mut file = vec![tag::FILE];
        push_resource(&mut file, &Entry::new(Uri::parse("http://h/x").unwrap()), false, &[SetId(3)], None, &symbols);
        let mut folder = vec![tag::FOLDER];
        push_time(&mut folder, Timestamp { seconds: 7, nanos: 0 });
        sorter.add(&key("deep"), &folder).unwrap();
        for number in 0..FOLDERS {
            sorter.add(&key(&format!("deep/{number}")), &folder).unwrap();
            sorter.add(&key(&format!("deep/{number}/a")), &file).unwrap();
            if number % 6 == 0 {
                sorter.add(&key(&format!("deep/{number}/b")), &file).unwrap();
            }
            if number % 3 == 0 {
                let uri = Uri::parse(&format!("http://h/deep/{number}/a")).unwrap();
                superseding.add_change(SetId(3), &uri, Change::Deleted, &naming()).unwrap();
            }
        }
        let naming = naming();
        let listing = listing(&naming, &symbols);
        let statement = SortedStatement::new(sorter.finish().unwrap(), None, Some(superseding), listing).unwrap();

        // Read twice.
        let mut statement = statement.again_with(None, listing).unwrap();
        let (mut path, mut folders, mut files, mut most) = (PathStatement::default(), 0, 0, 0);
        while statement.next(&mut path, listing).unwrap() {
            folders += usize::from(path.folder.is_some());
            files += path.resources.len();
            most = most.max(path.superseded.len());
        }

        assert_eq!(folders, 1 + FOLDERS - FOLDERS / 6);
        assert_eq!(files, FOLDERS - FOLDERS / 3 + FOLDERS / 6);
        assert!(most <= 1, "in memory is what supersedes entries of one path");
    }

    #[test]
    fn members_of_one_path_take_bounded_memory() {
        let symbols = Symbols::decode(&[]).unwrap();
        let uri = format!("http://h/a?{}", "x".repeat(20_000));
        let mut path = PathStatement::default();
        path.begin(b"\x01a");
        for _ in 0..2000 {
            path.take(&value(&uri, tag::FILE, 1, &symbols), listing(&naming(), &symbols)).unwrap();
            path.take(&value(&uri, tag::MEMBER, 1, &symbols), listing(&naming(), &symbols)).unwrap();
        }

        assert!(path.members.iter().map(Vec::len).sum::<usize>() <= MEMBER_BYTES);
        assert_eq!(path.left_out, 0);
        path.finish(listing(&naming(), &symbols)).unwrap();
    }
}
