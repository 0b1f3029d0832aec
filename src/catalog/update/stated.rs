//! Everything that lists, changes, packages and held deletions say of one path, brought together.

use super::super::octets::{Octets, damaged, push_time};
use super::super::record::{ResourceRecord, Sets};
use super::super::symbols::Symbols;
use super::super::{CatalogError, Naming, SetId};
use super::crowd::{Crowd, Fitting, MOST_OCTETS, MOST_URIS};
use super::overtaken::Overtaken;
use super::place::slashed;
use super::{marker_time, tag, version};
use crate::document::Timestamp;
use std::borrow::Cow;
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_128;

/// So many URIs of one path are told apart by a look at each; more are found by a digest.
const FEW: usize = 8;

/// Octets of records of one path, those that are not shown in the end among them, that may come before the last by their URIs are left
/// out.
const OCTETS_AT_ONCE: usize = MOST_OCTETS / 4 * 5;

/// Octets of the package members of one path.
const MEMBER_OCTETS: usize = MOST_OCTETS / 4;

/// The time that the list of each set speaks for, ascending by set.
pub(super) type Lists = [(SetId, Option<Timestamp>)];

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
    /// Where there are more than [`FEW`]: the places of all by digests of scheme and URI.
    places: HashMap<u128, usize>,
    /// Records of resources that a package holds, each with its member.
    members: Vec<Vec<u8>>,
    member_octets: usize,
    /// Octets of the records of resources.
    octets: usize,
    /// So many may come before the last by their URIs are left out (again).
    most_octets: usize,
    /// What is left out so far.
    crowd: Option<Crowd>,
    /// How many records were looked at to find one.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
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
        self.places.clear();
        self.members.clear();
        (self.member_octets, self.octets, self.most_octets) = (0, 0, OCTETS_AT_ONCE);
        self.crowd = None;
    }

    /// The resources, one for each URI.
    pub(super) fn resources(&self) -> &[Resource] {
        &self.resources[..self.files]
    }

    /// Takes one sorted value of this path.
    pub(super) fn take(
        &mut self,
        value: &[u8],
        naming: &Naming,
        lists: &Lists,
        overtaken: Option<&mut Overtaken>,
    ) -> Result<(), CatalogError> {
        self.take_value(value, naming, lists, overtaken)?;
        // Twice as many, so that they are seldom put in order.
        if self.files > 2 * MOST_URIS || self.octets > self.most_octets {
            self.leave_out_last(naming)?;
            self.most_octets = OCTETS_AT_ONCE.max(self.octets + MOST_OCTETS / 4);
        }
        Ok(())
    }

    fn take_value(
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
                let time = marker_time(Octets(time)).ok_or_else(|| damaged("time", &self.key))?;
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
        if self.files > FEW {
            let place = self.places.get(&digest(new)).copied();
            return Ok(place.unwrap_or(self.files));
        }
        for (index, known) in self.resources().iter().enumerate() {
            #[cfg(test)]
            self.looks.set(self.looks.get() + 1);
            let known = ResourceRecord::decode(&known.octets).ok_or_else(|| damaged("resource", &self.key))?;
            if (known.https, known.uri) == (new.https, new.uri) {
                return Ok(index);
            }
        }
        Ok(self.files)
    }

    /// Fills a resource of a new URI.
    fn add_resource(&mut self, octets: &[u8]) -> Result<&mut Resource, CatalogError> {
        let place = self.files;
        self.octets += octets.len();
        self.new_resource().octets.extend_from_slice(octets);
        // From the first that is too many on all are entered.
        let entered = if self.files == FEW + 1 { 0 } else { place };
        if self.files > FEW {
            self.enter_places(entered)?;
        }
        Ok(&mut self.resources[place])
    }

    /// Enters the resources from number `first` on.
    fn enter_places(&mut self, first: usize) -> Result<(), CatalogError> {
        for place in first..self.files {
            let octets = &self.resources[place].octets;
            let record = ResourceRecord::decode(octets).ok_or_else(|| damaged("resource", &self.key))?;
            self.places.insert(digest(&record), place);
        }
        Ok(())
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
            self.add_resource(octets)?.change = change;
            return Ok(());
        }
        let sense = || damaged("resource", octets);
        let new = ResourceRecord::decode(octets).ok_or_else(sense)?;
        let place = self.place_of(&new)?;
        if place == self.files {
            if !self.is_left_out(&new, naming)? {
                self.add_resource(octets)?.change = change;
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
        self.octets = (self.octets + merged.len()).saturating_sub(resource.octets.len());
        resource.octets = merged;
        resource.only_kept = false;
        Ok(())
    }

    fn take_kept(&mut self, held: bool, octets: &[u8], naming: &Naming) -> Result<(), CatalogError> {
        let sense = || damaged("resource", octets);
        let new = ResourceRecord::decode(octets).ok_or_else(sense)?;
        let place = self.place_of(&new)?;
        if place == self.files {
            if self.is_left_out(&new, naming)? {
                return Ok(());
            }
            self.add_resource(octets)?.only_kept = true;
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

    /// Whether a URI that is new here comes behind one that is left out: then it is left out too, and counted.
    fn is_left_out(&mut self, record: &ResourceRecord<'_>, naming: &Naming) -> Result<bool, CatalogError> {
        let Some(mut crowd) = self.crowd.take() else { return Ok(false) };
        let uri = uri_text(record, &self.key, naming);
        let is_left_out = uri.as_ref().is_ok_and(|uri| **uri >= *crowd.first);
        crowd.entries += u64::from(is_left_out);
        self.crowd = Some(crowd);
        uri.map(|_| is_left_out)
    }

    /// Everything of this path is taken: leaves out what is not shown, and says what that is.
    pub(super) fn leave_out(&mut self, naming: &Naming) -> Result<Option<Crowd>, CatalogError> {
        // The URI of two at most is in no record, and so not in the octets: a few may count for more than they say here.
        if self.crowd.is_some() || self.files > MOST_URIS || self.octets > MOST_OCTETS / 2 {
            self.leave_out_last(naming)?;
        }
        Ok(self.crowd.clone())
    }

    /// Leaves out what does not fit, in the order of the URIs. What is left out then is never shown, whatever else comes.
    fn leave_out_last(&mut self, naming: &Naming) -> Result<(), CatalogError> {
        let mut ordered = Vec::with_capacity(self.files);
        for (place, resource) in self.resources().iter().enumerate() {
            let record = ResourceRecord::decode(&resource.octets).ok_or_else(|| damaged("resource", &self.key))?;
            ordered.push((uri_text(&record, &self.key, naming)?, place, record));
        }
        ordered.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut fitting = Fitting::default();
        let fits = ordered.iter().take_while(|(uri, _, record)| fitting.takes(uri, record)).count();
        let Some((first, ..)) = ordered.get(fits) else { return Ok(()) };
        let before = self.crowd.as_ref().map_or(0, |crowd| crowd.entries);
        let crowd = Crowd { first: (**first).into(), entries: before + (ordered.len() - fits) as u64 };
        let mut stays = vec![false; self.files];
        ordered[..fits].iter().for_each(|(_, place, _)| stays[*place] = true);
        let mut kept = 0;
        for (place, _) in stays.into_iter().enumerate().filter(|(_, stays)| *stays) {
            self.resources.swap(kept, place);
            kept += 1;
        }
        self.resources.truncate(kept);
        self.files = kept;
        self.crowd = Some(crowd);
        self.octets = self.resources.iter().map(|resource| resource.octets.len()).sum();
        self.places.clear();
        if kept > FEW { self.enter_places(0) } else { Ok(()) }
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

/// What tells the URIs of one path apart.
fn digest(record: &ResourceRecord<'_>) -> u128 {
    let mut octets = vec![u8::from(record.https)];
    octets.extend_from_slice(record.uri.unwrap_or_default().as_bytes());
    octets.push(u8::from(record.uri.is_some()));
    xxh3_128(&octets)
}

/// The time that the list of a set speaks for.
pub(super) fn list_at(lists: &Lists, set: Option<SetId>) -> Option<Timestamp> {
    lists.iter().find(|(listed, _)| Some(*listed) == set).and_then(|(_, at)| *at)
}

impl Resource {
    /// Splits into what [`super::place::File`] needs: the record, the time that stands in for `lastmod`, whether it is news.
    pub(super) fn placed(&self) -> (&[u8], Option<Timestamp>, bool) {
        let (changed, updated) = self.change.map_or((None, false), |(_, shown, news)| (shown, news));
        (&self.octets, changed, updated)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::record::push_resource;
    use super::super::super::tests::naming;
    use super::*;
    use crate::document::{Algorithm, Digest, Entry, PackageMember, Uri};

    /// URIs that differ in which of their reserved characters are escaped have one path.
    #[test]
    fn of_very_many_uris_of_one_path_each_is_found_without_a_look_at_the_others() {
        const URIS: u32 = 1 << 12;
        let symbols = Symbols::decode(&[]).unwrap();
        let escaped =
            |number: u32| -> String { (0..12).map(|bit| if number >> bit & 1 == 1 { "%2C" } else { "," }).collect() };
        let package = Uri::parse("http://h/package").unwrap();
        let value = |number: u32, first: u8, content: u8| {
            let hashes = vec![Digest::new(Algorithm::Md5, &[content; 16]).unwrap()];
            let entry = Entry { hashes, ..Entry::new(Uri::parse(&format!("http://h/{}", escaped(number))).unwrap()) };
            let member = PackageMember { package: package.clone(), path: "x".into() };
            let mut value = vec![first];
            push_resource(&mut value, &entry, true, &[SetId(0)], (first == tag::MEMBER).then_some(&member), &symbols);
            value
        };
        let mut path = Path::default();
        path.begin(b"\x01,,,,,,,,,,,,");

        for (first, content) in [(tag::FILE, 1), (tag::FILE, 2), (tag::MEMBER, 2)] {
            for number in 0..URIS {
                path.take(&value(number, first, content), &naming(), &[], None).unwrap();
            }
        }
        path.settle(&symbols, |_, _, _| Ok(())).unwrap();

        assert_eq!(path.resources().len(), URIS as usize);
        for resource in path.resources() {
            let record = ResourceRecord::decode(&resource.octets).unwrap();
            assert_eq!(record.digests().unwrap()[0].octets(), [2; 16], "what was said last counts");
            assert!(!record.member.is_empty());
        }
        assert!(path.looks.get() <= 100, "{} looks", path.looks.get());
    }

    #[test]
    fn no_more_of_one_path_is_held_than_the_bounds_say() {
        const MANY: u32 = 12_000;
        let symbols = Symbols::decode(&[]).unwrap();
        let value = |number: u32, length: usize, kind: u8| {
            let escaped: String = (0..20).map(|bit| if number >> bit & 1 == 1 { "%2C" } else { "," }).collect();
            let uri = format!("http://h/{escaped}?{}", "x".repeat(length));
            let entry = Entry::new(Uri::parse(&uri).unwrap());
            let member = PackageMember { package: Uri::parse("http://h/package").unwrap(), path: "x".into() };
            let mut value = vec![kind];
            push_resource(&mut value, &entry, true, &[SetId(0)], (kind == tag::MEMBER).then_some(&member), &symbols);
            value
        };
        let shown = |length: usize, numbers: &mut dyn Iterator<Item = u32>| {
            let mut path = Path::default();
            path.begin(b"\x01a\0b");
            for number in numbers {
                path.take(&value(number, length, tag::FILE), &naming(), &[], None).unwrap();
                if number % 100 > 0 {
                    continue;
                }
                let held: usize = path.resources().iter().map(|resource| resource.octets.len()).sum();
                assert!(path.files <= 2 * MOST_URIS && held <= OCTETS_AT_ONCE, "{held} octets of {}", path.files);
            }
            let crowd = path.leave_out(&naming()).unwrap().unwrap();
            let records = path.resources().iter().map(|resource| ResourceRecord::decode(&resource.octets).unwrap());
            let mut uris: Vec<String> = records.map(|record| record.uri.unwrap().to_owned()).collect();
            uris.sort_unstable();
            assert!(uris.last().unwrap().as_str() < &*crowd.first);
            assert_eq!(uris.len() as u64 + crowd.entries, u64::from(MANY));
            (uris, crowd)
        };
        for length in [1, 20_000] {
            let (uris, crowd) = shown(length, &mut (0..MANY));
            let octets: usize = uris.iter().map(String::len).sum();
            assert!(uris.len() == MOST_URIS || octets > MOST_OCTETS - 25_000, "{octets} octets of {}", uris.len());
            assert!(shown(length, &mut (0..MANY).rev()) == (uris, crowd), "whatever comes first");
        }

        let mut path = Path::default();
        path.begin(b"\x01a");
        for _ in 0..2000 {
            path.take(&value(0, 20_000, tag::FILE), &naming(), &[], None).unwrap();
            path.take(&value(0, 20_000, tag::MEMBER), &naming(), &[], None).unwrap();
        }
        assert!(
            path.members.iter().map(Vec::len).sum::<usize>() <= MEMBER_OCTETS,
            "what is said again takes no more room"
        );
        assert_eq!(path.leave_out(&naming()).unwrap(), None);
        path.settle(&symbols, |_, _, _| Ok(())).unwrap();
    }
}
