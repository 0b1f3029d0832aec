//! Everything that lists, changes, packages and held deletions say of one path, brought together.

use super::journal::{Lists, list_at};
use super::sort_key::slashed;
use super::sort_key::tag;
use super::store::codec::{Octets, damaged, push_time};
use super::store::record::{ResourceRecord, Sets};
use super::store::symbols::Symbols;
use super::superseded::Overtaken;
use super::version;
use super::{CatalogError, Naming, SetId};
use crate::document::Timestamp;
use std::borrow::Cow;

/// URIs of one path that are shown, the first by their order. URIs share a path where they differ by scheme or by which of their
/// reserved characters are escaped: of honest ones there are a few.
pub(super) const MOST_URIS: usize = 100;

/// Octets of the package members of one path.
const MEMBER_OCTETS: usize = 8 << 20;

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
pub(super) struct Path {
    /// Depth, then the segments separated by NUL.
    pub key: Vec<u8>,
    /// Where it is a folder: the newest time beneath.
    pub folder: Option<Timestamp>,
    /// Where it is a file: a resource for each of its URIs. Only the first `files` count; the others keep their memory
    /// for later paths.
    resources: Vec<Resource>,
    files: usize,
    /// Records of resources that a package holds, each with its member.
    members: Vec<Vec<u8>>,
    member_octets: usize,
    /// The first URI that is left out. All that are shown are before it.
    first_left_out: Option<Box<str>>,
    /// How many entries are left out.
    left_out: u64,
}

/// What is stated of one URI.
#[derive(Default)]
pub(super) struct Resource {
    pub octets: Vec<u8>,
    /// The change that says so: its time, what its entry gives as `datetime`, and whether it is not in the journal yet.
    pub change: Option<(Timestamp, Option<Timestamp>, bool)>,
    /// When it was said, where that had to be found out.
    stamp: Option<Option<Timestamp>>,
    /// The sets that are said to have it no more, but whose deletion is held back; whether that was known before.
    pub kept: Vec<(SetId, bool)>,
    /// Nothing but held deletions states it.
    only_kept: bool,
}

impl Path {
    pub(super) fn begin(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.folder = None;
        self.files = 0;
        self.members.clear();
        self.member_octets = 0;
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
    pub(super) fn take(
        &mut self,
        value: &[u8],
        naming: &Naming,
        lists: &Lists,
        overtaken: Option<&mut Overtaken>,
    ) -> Result<(), CatalogError> {
        let sense = || damaged("resource", &self.key);
        match value.split_first() {
            Some((&tag::FILE, resource)) => {
                if let Some(overtaken) = overtaken {
                    let record = ResourceRecord::decode(resource).ok_or_else(sense)?;
                    if overtaken.contains(&self.key, &record)? {
                        return Ok(());
                    }
                }
                self.take_resource(resource, None, naming, lists)
            }
            Some((&tag::FOLDER, time)) => {
                let time = Octets(time).time().ok_or_else(|| damaged("time", &self.key))?;
                if let Some(overtaken) = overtaken
                    && overtaken.is_empty(&self.key)?
                {
                    return Ok(());
                }
                self.folder = self.folder.max(Some(time));
                Ok(())
            }
            Some((&tag::CHANGE, change)) => {
                let mut octets = Octets(change);
                let flags = octets.octet().ok_or_else(sense)?;
                let time = octets.time().ok_or_else(sense)?;
                let shown = if flags & 2 != 0 { Some(octets.time().ok_or_else(sense)?) } else { None };
                self.take_resource(octets.0, Some((time, shown, flags & 1 != 0)), naming, lists)
            }
            Some((&tag::MEMBER, record)) => {
                // Without it the resource comes by its own URI.
                if self.member_octets + record.len() <= MEMBER_OCTETS {
                    self.member_octets += record.len();
                    self.members.push(record.to_vec());
                }
                Ok(())
            }
            Some((&tag::KEPT, kept)) => {
                let (held, record) = kept.split_first().ok_or_else(sense)?;
                self.take_kept(*held != 0, record, naming)
            }
            _ => Err(damaged("kind", &self.key)),
        }
    }

    /// The place of the resource of the same URI as `new`, else behind all.
    fn place_of(&self, new: &ResourceRecord<'_>) -> Result<usize, CatalogError> {
        for (index, known) in self.resources().iter().enumerate() {
            let known = ResourceRecord::decode(&known.octets).ok_or_else(|| damaged("resource", &self.key))?;
            if (known.https, known.uri) == (new.https, new.uri) {
                return Ok(index);
            }
        }
        Ok(self.files)
    }

    /// Adds a resource of a new URI; `None` where it is left out. Once there are too many, the last by their URIs is.
    fn add_resource(&mut self, octets: &[u8], naming: &Naming) -> Result<Option<&mut Resource>, CatalogError> {
        if let Some(first) = &self.first_left_out {
            let record = ResourceRecord::decode(octets).ok_or_else(|| damaged("resource", &self.key))?;
            if *uri_text(&record, &self.key, naming)? >= **first {
                self.left_out += 1;
                return Ok(None);
            }
        }
        self.new_resource().octets.extend_from_slice(octets);
        if self.files <= MOST_URIS {
            return Ok(self.resources[..self.files].last_mut());
        }
        let mut last: Option<(Box<str>, usize)> = None;
        for (place, resource) in self.resources().iter().enumerate() {
            let record = ResourceRecord::decode(&resource.octets).ok_or_else(|| damaged("resource", &self.key))?;
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
        resource.octets.clear();
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
        octets: &[u8],
        change: Option<(Timestamp, Option<Timestamp>, bool)>,
        naming: &Naming,
        lists: &Lists,
    ) -> Result<(), CatalogError> {
        if self.files == 0 {
            self.new_resource().octets.extend_from_slice(octets);
            self.resources[0].change = change;
            return Ok(());
        }
        let sense = || damaged("resource", octets);
        let new = ResourceRecord::decode(octets).ok_or_else(sense)?;
        let place = self.place_of(&new)?;
        if place == self.files {
            if let Some(resource) = self.add_resource(octets, naming)? {
                resource.change = change;
            }
            return Ok(());
        }
        let resource = &mut self.resources[place];
        let known = ResourceRecord::decode(&resource.octets).ok_or_else(sense)?;
        let stamp = |change: Option<(Timestamp, Option<Timestamp>, bool)>, sets: Sets<'_>| match change {
            Some((time, _, _)) => Some(time),
            None => list_at(lists, sets.iter().next()),
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
        let mut merged = Vec::with_capacity(octets.len() + 8);
        let counts = if stays { known } else { new };
        counts.push_belonging(counts.uri, &sets, counts.member, &mut merged);
        if !stays {
            resource.change = change;
        }
        resource.stamp = Some(if stays { known_stamp } else { new_stamp });
        resource.octets = merged;
        resource.only_kept = false;
        Ok(())
    }

    fn take_kept(&mut self, held: bool, octets: &[u8], naming: &Naming) -> Result<(), CatalogError> {
        let sense = || damaged("resource", octets);
        let new = ResourceRecord::decode(octets).ok_or_else(sense)?;
        let place = self.place_of(&new)?;
        if place == self.files {
            let Some(resource) = self.add_resource(octets, naming)? else { return Ok(()) };
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

    /// All is taken: brings sets and package members into the records. Of each deletion held back that is overtaken, because
    /// its set has the resource again, the set is told to `listed` with the resource; of each that is new to `held`.
    pub(super) fn settle(
        &mut self,
        symbols: &Symbols,
        mut told: impl FnMut(&ResourceRecord<'_>, SetId, Held) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        for member in std::mem::take(&mut self.members) {
            let sense = || damaged("resource", &member);
            let packed = ResourceRecord::decode(&member).ok_or_else(sense)?;
            let place = self.place_of(&packed)?;
            let Some(resource) = self.resources[..self.files].get_mut(place) else { continue };
            let known = ResourceRecord::decode(&resource.octets).ok_or_else(sense)?;
            if version::provably_same(&known, &packed, symbols).ok_or_else(sense)? {
                let sets: Vec<_> = known.sets.iter().collect();
                let mut with_member = Vec::with_capacity(resource.octets.len() + packed.member.len());
                known.push_belonging(known.uri, &sets, packed.member, &mut with_member);
                resource.octets = with_member;
            }
        }
        for resource in &mut self.resources[..self.files] {
            if resource.kept.is_empty() {
                continue;
            }
            let sense = || damaged("resource", &resource.octets);
            let record = ResourceRecord::decode(&resource.octets).ok_or_else(sense)?;
            let mut sets: Vec<_> = if resource.only_kept { Vec::new() } else { record.sets.iter().collect() };
            for (set, held) in &resource.kept {
                match (sets.contains(set), held) {
                    (true, true) => told(&record, *set, Held::Listed)?,
                    (true, false) => {}
                    (false, held) => {
                        sets.push(*set);
                        if !held {
                            told(&record, *set, Held::New)?;
                        }
                    }
                }
            }
            sets.sort_unstable();
            let mut merged = Vec::with_capacity(resource.octets.len() + 8);
            record.push_belonging(record.uri, &sets, record.member, &mut merged);
            resource.octets = merged;
        }
        Ok(())
    }
}

/// What becomes of a deletion that is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// It is held back from now on.
    New,
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
    /// Splits into what `apply::place::File` needs: the record, the time that stands in for `lastmod`, whether it is news.
    pub(super) fn placed(&self) -> (&[u8], Option<Timestamp>, bool) {
        let (changed, updated) = self.change.map_or((None, false), |(_, shown, news)| (shown, news));
        (&self.octets, changed, updated)
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::record::push_resource;
    use super::super::tests::naming;
    use super::*;
    use crate::document::{Algorithm, Digest, Entry, PackageMember, Uri};

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
            let mut path = Path::default();
            path.begin(b"\x01,,,,,,,,,,");
            for (kind, content) in [(tag::FILE, 1), (tag::FILE, 2), (tag::MEMBER, 2)] {
                for uri in &order {
                    path.take(&value(uri, kind, content, &symbols), &naming(), &[], None).unwrap();
                }
            }
            path.settle(&symbols, |_, _, _| Ok(())).unwrap();

            let mut shown = Vec::new();
            for resource in path.resources() {
                let record = ResourceRecord::decode(&resource.octets).unwrap();
                assert_eq!(record.digests().unwrap()[0].octets(), [2; 16], "the last statement counts");
                assert!(!record.member.is_empty());
                shown.push(uri_text(&record, &path.key, &naming()).unwrap().into_owned());
            }
            shown.sort_unstable();
            assert_eq!(shown, sorted[..MOST_URIS]);
            assert_eq!(path.left_out(), 2 * 900, "each statement counts");
        }
    }

    #[test]
    fn members_of_one_path_take_bounded_memory() {
        let symbols = Symbols::decode(&[]).unwrap();
        let uri = format!("http://h/a?{}", "x".repeat(20_000));
        let mut path = Path::default();
        path.begin(b"\x01a");
        for _ in 0..2000 {
            path.take(&value(&uri, tag::FILE, 1, &symbols), &naming(), &[], None).unwrap();
            path.take(&value(&uri, tag::MEMBER, 1, &symbols), &naming(), &[], None).unwrap();
        }

        assert!(path.members.iter().map(Vec::len).sum::<usize>() <= MEMBER_OCTETS);
        assert_eq!(path.left_out(), 0);
        path.settle(&symbols, |_, _, _| Ok(())).unwrap();
    }
}
