//! What lists, changes, packages and held deletions state, path by path: a sorted stream, and everything of one path brought together.

use super::journal::{Speaking, list_at};
use super::sort::Sorted;
use super::sort_key::{push_above, slashed, tag};
use super::store::codec::{Octets, damaged, push_time};
use super::store::record::{ResourceRecord, Sets};
use super::store::symbols::Symbols;
use super::superseded::{CandidateFolders, Superseding, digest};
use super::version;
use super::{CatalogError, Naming, SetId};
use crate::document::Timestamp;
use std::borrow::Cow;
use std::collections::HashSet;

/// URIs of one path that are shown, the first by their order. URIs share a path where they differ by scheme or by which of their
/// reserved characters are escaped: of honest ones there are a few.
pub(super) const MOST_URIS: usize = 100;

/// Bytes of the package members of one path.
const MEMBER_BYTES: usize = 8 << 20;

/// What is stated beside the paths.
#[derive(Clone, Copy)]
pub(super) struct Listing<'a> {
    pub naming: &'a Naming,
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
            if path.folder.is_some()
                && let Some(candidates) = &mut self.candidates
                && candidates.is_empty(&path.key)?
            {
                path.folder = None;
            }
            if path.folder.is_some() || path.files > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read_path(&mut self, path: &mut PathStatement, listing: Listing<'_>) -> Result<bool, CatalogError> {
        let Some((key, value)) = self.rows.next()? else { return Ok(false) };
        path.begin(key);
        path.take(value, listing)?;
        while let Some((key, value)) = self.rows.peek()?
            && key == path.key
        {
            path.take(value, listing)?;
            self.rows.next()?;
        }
        Ok(true)
    }

    /// Reads everything, to learn which candidates hold something.
    fn find_empty_folders(&mut self, listing: Listing<'_>) -> Result<(), CatalogError> {
        let Some(mut candidates) = self.candidates.take() else { return Ok(()) };
        candidates.begin()?;
        let (mut path, mut above) = (PathStatement::default(), Vec::new());
        while self.read_path(&mut path, listing)? {
            // A folder that holds something stands for itself in the one above.
            let is_there = path.files > 0 || (path.folder.is_some() && !candidates.contains(&path.key)?);
            if is_there && push_above(&path.key, &mut above) {
                candidates.keep(&above)?;
            }
        }
        candidates.finish()?;
        self.candidates = Some(candidates);
        Ok(())
    }
}

/// Appends what stands before the record of a change: whether it is news, and the time of the change.
pub(super) fn push_change(value: &mut Vec<u8>, news: bool, time: Timestamp, shown: Option<Timestamp>) {
    value.push(tag::CHANGE);
    value.push(u8::from(news) | u8::from(shown.is_some()) << 1);
    push_time(value, time);
    if let Some(shown) = shown {
        push_time(value, shown);
    }
}

/// Everything that is stated of one path.
#[derive(Default)]
pub(super) struct PathStatement {
    /// Depth, then the segments separated by NUL.
    pub key: Vec<u8>,
    /// Where it is a folder: the newest time beneath.
    pub folder: Option<Timestamp>,
    /// Where it is a file: a resource for each of its URIs. Only the first `files` count; the others keep their memory
    /// for later paths.
    resources: Vec<Resource>,
    files: usize,
    /// Digests of the list entries that do not count, because changes supersede them.
    superseded: HashSet<u128>,
    /// Records of resources that a package holds, each with its member.
    members: Vec<Vec<u8>>,
    member_bytes: usize,
    /// The first URI that is left out. All that are shown are before it.
    first_left_out: Option<Box<str>>,
    /// How many entries are left out.
    left_out: u64,
}

/// What is stated of one URI.
#[derive(Default)]
pub(super) struct Resource {
    pub bytes: Vec<u8>,
    /// The change that says so: its time, what its entry gives as `datetime`, and whether it is not in the journal yet.
    pub change: Option<(Timestamp, Option<Timestamp>, bool)>,
    /// When it was said, where that had to be found out.
    stamp: Option<Option<Timestamp>>,
    /// The sets that are said to have it no more, but whose deletion is held back; whether that was known before.
    pub kept: Vec<(SetId, bool)>,
    /// Nothing but held deletions states it.
    only_kept: bool,
}

impl PathStatement {
    pub(super) fn begin(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.folder = None;
        self.files = 0;
        self.superseded.clear();
        self.members.clear();
        self.member_bytes = 0;
        (self.first_left_out, self.left_out) = (None, 0);
    }

    /// The resources, one for each URI.
    pub(super) fn resources(&self) -> &[Resource] {
        &self.resources[..self.files]
    }

    /// How many entries are left out of what was taken.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Takes one sorted value of this path.
    pub(super) fn take(&mut self, value: &[u8], listing: Listing<'_>) -> Result<(), CatalogError> {
        let sense = || damaged("resource", &self.key);
        match value.split_first() {
            Some((&tag::SUPERSEDED, digest)) => {
                self.superseded.insert(u128::from_be_bytes(digest.try_into().map_err(|_| sense())?));
                Ok(())
            }
            Some((&tag::FILE, resource)) => {
                if !self.superseded.is_empty() {
                    let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
                    let set = record.sets.iter().next().unwrap_or_default();
                    if self.superseded.contains(&digest(set, record.https, record.uri)) {
                        return Ok(());
                    }
                }
                self.take_resource(resource, None, listing)
            }
            Some((&tag::FOLDER, time)) => {
                let time = Octets(time).time().ok_or_else(|| damaged("time", &self.key))?;
                self.folder = self.folder.max(Some(time));
                Ok(())
            }
            Some((&tag::CHANGE, change)) => {
                let mut bytes = Octets(change);
                let flags = bytes.octet().ok_or_else(sense)?;
                let time = bytes.time().ok_or_else(sense)?;
                let shown = if flags & 2 != 0 { Some(bytes.time().ok_or_else(sense)?) } else { None };
                self.take_resource(bytes.0, Some((time, shown, flags & 1 != 0)), listing)
            }
            Some((&tag::MEMBER, record)) => {
                // Without it the resource comes by its own URI.
                if self.member_bytes + record.len() <= MEMBER_BYTES {
                    self.member_bytes += record.len();
                    self.members.push(record.to_vec());
                }
                Ok(())
            }
            Some((&tag::KEPT, kept)) => {
                let (held, record) = kept.split_first().ok_or_else(sense)?;
                self.take_kept(*held != 0, record, listing.naming)
            }
            _ => Err(damaged("kind", &self.key)),
        }
    }

    /// The place of the resource of the same URI as `new`, else behind all.
    fn place_of(&self, new: &ResourceRecord<'_>) -> Result<usize, CatalogError> {
        for (index, known) in self.resources().iter().enumerate() {
            let known = ResourceRecord::decode(&known.bytes).ok_or_else(|| damaged("resource", &self.key))?;
            if (known.https, known.uri) == (new.https, new.uri) {
                return Ok(index);
            }
        }
        Ok(self.files)
    }

    /// Adds a resource of a new URI; `None` where it is left out. Once there are too many, the last by their URIs is.
    fn add_resource(&mut self, bytes: &[u8], naming: &Naming) -> Result<Option<&mut Resource>, CatalogError> {
        if let Some(first) = &self.first_left_out {
            let record = ResourceRecord::decode(bytes).ok_or_else(|| damaged("resource", &self.key))?;
            if *uri_text(&record, &self.key, naming)? >= **first {
                self.left_out += 1;
                return Ok(None);
            }
        }
        self.new_resource().bytes.extend_from_slice(bytes);
        if self.files <= MOST_URIS {
            return Ok(self.resources[..self.files].last_mut());
        }
        let mut last: Option<(Box<str>, usize)> = None;
        for (place, resource) in self.resources().iter().enumerate() {
            let record = ResourceRecord::decode(&resource.bytes).ok_or_else(|| damaged("resource", &self.key))?;
            let uri = uri_text(&record, &self.key, naming)?;
            if last.as_ref().is_none_or(|(last, _)| *uri > **last) {
                last = Some(((*uri).into(), place));
            }
        }
        let Some((uri, place)) = last else { return Ok(None) };
        self.files -= 1;
        self.resources.swap(place, self.files);
        (self.first_left_out, self.left_out) = (Some(uri), self.left_out + 1);
        Ok(if place == self.files { None } else { self.resources.get_mut(place) })
    }

    /// A resource of a new URI, to be filled.
    fn new_resource(&mut self) -> &mut Resource {
        if self.files == self.resources.len() {
            self.resources.push(Resource::default());
        }
        self.files += 1;
        let resource = &mut self.resources[self.files - 1];
        resource.bytes.clear();
        resource.kept.clear();
        resource.change = None;
        resource.stamp = None;
        resource.only_kept = false;
        resource
    }

    /// Of one URI what was said last counts: by the time of a change or of a list; of two that are no older than each other
    /// the later `lastmod`, else what was added last. Its sets are all that have it.
    fn take_resource(
        &mut self,
        bytes: &[u8],
        change: Option<(Timestamp, Option<Timestamp>, bool)>,
        listing: Listing<'_>,
    ) -> Result<(), CatalogError> {
        if self.files == 0 {
            self.new_resource().bytes.extend_from_slice(bytes);
            self.resources[0].change = change;
            return Ok(());
        }
        let sense = || damaged("resource", bytes);
        let new = ResourceRecord::decode(bytes).ok_or_else(sense)?;
        let place = self.place_of(&new)?;
        if place == self.files {
            if let Some(resource) = self.add_resource(bytes, listing.naming)? {
                resource.change = change;
            }
            return Ok(());
        }
        let resource = &mut self.resources[place];
        let known = ResourceRecord::decode(&resource.bytes).ok_or_else(sense)?;
        let stamp = |change: Option<(Timestamp, Option<Timestamp>, bool)>, sets: Sets<'_>| match change {
            Some((time, _, _)) => Some(time),
            None => list_at(listing.speaking.lists, sets.iter().next()),
        };
        let known_stamp = resource.stamp.unwrap_or_else(|| stamp(resource.change, known.sets));
        let new_stamp = stamp(change, new.sets);
        let stays = !resource.only_kept && (known_stamp, known.lastmod) > (new_stamp, new.lastmod);
        let mut sets: Vec<SetId> = known.sets.iter().collect();
        if resource.only_kept {
            sets.clear();
        }
        sets.extend(new.sets.iter());
        sets.sort_unstable();
        sets.dedup();
        let mut merged = Vec::with_capacity(bytes.len() + 8);
        let counts = if stays { known } else { new };
        counts.push_belonging(counts.uri, &sets, counts.member, &mut merged);
        if !stays {
            resource.change = change;
        }
        resource.stamp = Some(if stays { known_stamp } else { new_stamp });
        resource.bytes = merged;
        resource.only_kept = false;
        Ok(())
    }

    fn take_kept(&mut self, held: bool, bytes: &[u8], naming: &Naming) -> Result<(), CatalogError> {
        let sense = || damaged("resource", bytes);
        let new = ResourceRecord::decode(bytes).ok_or_else(sense)?;
        let place = self.place_of(&new)?;
        if place == self.files {
            let Some(resource) = self.add_resource(bytes, naming)? else { return Ok(()) };
            resource.only_kept = true;
        }
        let resource = &mut self.resources[place];
        for set in new.sets.iter() {
            match resource.kept.iter_mut().find(|(kept, _)| *kept == set) {
                Some((_, known)) => *known |= held,
                None => resource.kept.push((set, held)),
            }
        }
        Ok(())
    }

    /// Whether the resources are as they were taken, with nothing to be brought into them.
    pub(super) fn is_settled(&self) -> bool {
        self.members.is_empty() && self.resources().iter().all(|resource| resource.kept.is_empty())
    }

    /// All is taken: brings sets and package members into the records. Each deletion that is, or was, held back is reported.
    pub(super) fn settle(
        &mut self,
        symbols: &Symbols,
        mut report: impl FnMut(&ResourceRecord<'_>, SetId, HeldState) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        for member in std::mem::take(&mut self.members) {
            let sense = || damaged("resource", &member);
            let packed = ResourceRecord::decode(&member).ok_or_else(sense)?;
            let place = self.place_of(&packed)?;
            let Some(resource) = self.resources[..self.files].get_mut(place) else { continue };
            let known = ResourceRecord::decode(&resource.bytes).ok_or_else(sense)?;
            if version::provably_same(&known, &packed, symbols).ok_or_else(sense)? {
                let sets: Vec<_> = known.sets.iter().collect();
                let mut with_member = Vec::with_capacity(resource.bytes.len() + packed.member.len());
                known.push_belonging(known.uri, &sets, packed.member, &mut with_member);
                resource.bytes = with_member;
            }
        }
        for resource in &mut self.resources[..self.files] {
            if resource.kept.is_empty() {
                continue;
            }
            let sense = || damaged("resource", &resource.bytes);
            let record = ResourceRecord::decode(&resource.bytes).ok_or_else(sense)?;
            let mut sets: Vec<_> = if resource.only_kept { Vec::new() } else { record.sets.iter().collect() };
            for (set, held) in &resource.kept {
                match (sets.contains(set), held) {
                    (true, true) => report(&record, *set, HeldState::Listed)?,
                    (true, false) => {}
                    (false, held) => {
                        sets.push(*set);
                        report(&record, *set, if *held { HeldState::Still } else { HeldState::New })?;
                    }
                }
            }
            sets.sort_unstable();
            let mut merged = Vec::with_capacity(resource.bytes.len() + 8);
            record.push_belonging(record.uri, &sets, record.member, &mut merged);
            resource.bytes = merged;
        }
        Ok(())
    }
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

/// The URI of a record of the path with this sort key.
fn uri_text<'r>(record: &ResourceRecord<'r>, key: &[u8], naming: &Naming) -> Result<Cow<'r, str>, CatalogError> {
    let sense = || damaged("resource", key);
    match record.uri {
        Some(uri) => Ok(uri.into()),
        None => {
            let path = slashed(&key[1..]).ok_or_else(sense)?;
            Ok(naming.uri(&path, record.https).ok_or_else(sense)?.as_str().to_owned().into())
        }
    }
}

impl Resource {
    /// The record, the time that stands in for `lastmod`, whether it is news.
    pub(super) fn placed(&self) -> (&[u8], Option<Timestamp>, bool) {
        let (changed, updated) = self.change.map_or((None, false), |(_, shown, news)| (shown, news));
        (&self.bytes, changed, updated)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sort::{BESIDE_A_LIST, Sorter, SpillFolder};
    use super::super::sort_key::push_key;
    use super::super::store::record::push_resource;
    use super::super::tests::naming;
    use super::*;
    use crate::document::{Algorithm, Digest, Entry, PackageMember, Uri};
    use std::collections::BTreeSet;

    /// A listing of no sets under this naming.
    fn listing(naming: &Naming) -> Listing<'_> {
        static FORGOTTEN: BTreeSet<SetId> = BTreeSet::new();
        Listing { naming, at: None, speaking: Speaking { lists: &[], forgotten: &FORGOTTEN } }
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
                    path.take(&value(uri, kind, content, &symbols), listing(&naming())).unwrap();
                }
            }
            path.settle(&symbols, |_, _, _| Ok(())).unwrap();

            let mut shown = Vec::new();
            for resource in path.resources() {
                let record = ResourceRecord::decode(&resource.bytes).unwrap();
                assert_eq!(record.digests().unwrap()[0].octets(), [2; 16], "the last statement counts");
                assert!(!record.member.is_empty());
                shown.push(uri_text(&record, &path.key, &naming()).unwrap().into_owned());
            }
            shown.sort_unstable();
            assert_eq!(shown, sorted[..MOST_URIS]);
            assert_eq!(path.left_out(), 2 * 900, "each statement counts");
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
        let mut sorter = Sorter::new(&spill_folder, BESIDE_A_LIST);
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
                let path = key(&format!("deep/{number}/a"));
                superseding.add(SetId(3), &path, false, None).unwrap();
                superseding.add_removal(&path).unwrap();
            }
        }
        let naming = naming();
        let listing = listing(&naming);
        let statement = SortedStatement::new(sorter.finish().unwrap(), None, Some(superseding), listing).unwrap();

        // Read twice.
        let mut statement = statement.again_with(None, listing).unwrap();
        let (mut path, mut folders, mut files, mut most) = (PathStatement::default(), 0, 0, 0);
        while statement.next(&mut path, listing).unwrap() {
            folders += usize::from(path.folder.is_some());
            files += path.resources().len();
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
            path.take(&value(&uri, tag::FILE, 1, &symbols), listing(&naming())).unwrap();
            path.take(&value(&uri, tag::MEMBER, 1, &symbols), listing(&naming())).unwrap();
        }

        assert!(path.members.iter().map(Vec::len).sum::<usize>() <= MEMBER_BYTES);
        assert_eq!(path.left_out(), 0);
        path.settle(&symbols, |_, _, _| Ok(())).unwrap();
    }
}
