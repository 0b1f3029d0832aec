//! The position: what the current revision was made of, committed together with it.

use super::changes::ChangeState;
use super::deletion_guard::{DeletionGuard, ListLoss};
use super::followed_set::{FollowedSet, followed};
use super::read_set::ReadSet;
use crate::catalog::{Naming, SetId};
use crate::document::{Timestamp, Uri};
use crate::source::crawl::Crawled;
use crate::source::documents::CachedDocument;
use crate::source::{DocumentLocation, Missing, Source};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};

/// The version of the stored form. Another reads as no state at all: that costs a merge of all lists, reading the change documents from
/// the lists' time on, and what the guard held. Sets are numbered again, in the order in which they are offered: the catalog's format
/// changes too, or its journal would count for other sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Format(u32);

impl Default for Format {
    fn default() -> Format {
        Format(7)
    }
}

/// The position of a revision: its documents with their digests, the naming they were read under, and how far changes are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The version of the form in which it is stored.
    format: Format,
    naming: String,
    /// The number that the next new set gets: none is given twice.
    next_set: u32,
    /// Every set that was ever seen, so that one that comes back is the same one.
    sets: Vec<SetPosition>,
    /// The parts that the Source offered and that were not found.
    missing: Vec<LackingPart>,
    /// The state of the guard.
    pub guard: DeletionGuard,
    /// The earlier time that the tree shows.
    pub as_of: Option<AsOf>,
}

/// An earlier time of the Source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsOf {
    /// The time.
    pub time: Timestamp,
    /// True if all that will ever be published of it is known.
    pub is_final: bool,
}

/// The position of one set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetPosition {
    /// Its number in the catalog.
    pub id: SetId,
    /// Its Capability List; of a list that stands alone the list.
    pub name: String,
    /// The documents that its part of the last baseline was made of.
    documents: Vec<KnownDocument>,
    /// The time that this part speaks for.
    pub at: Option<Timestamp>,
    /// True if its lists state that time.
    is_stated: bool,
    /// When its lists were last written, by their server's account.
    written: Option<Timestamp>,
    /// The documents of its dumps, where it has lists too. The first has the number of resources that only manifests state; the digest
    /// is 0 where some manifests are still to be read.
    dumps: Vec<KnownDocument>,
    /// The packages that its Resource Dumps listed then.
    packages: Vec<Uri>,
    /// The fingerprints of the manifests of those that could be read.
    manifests: Vec<u64>,
    /// The state of its change documents, each by its root.
    changes: Vec<(DocumentLocation, ChangeState)>,
}

/// A part of the Source that the tree lacks, and its set, where that is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LackingPart {
    #[serde(flatten)]
    missing: Missing,
    set: Option<SetId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownDocument {
    location: DocumentLocation,
    /// XXH3 of the document's bytes.
    digest: u64,
    /// The resources that it lists; 0 for an index.
    entries: u64,
}

impl SetPosition {
    /// The time up to which its changes are known, by the document that is furthest.
    pub fn changes_until(&self) -> Option<Timestamp> {
        self.changes.iter().filter_map(|(_, known)| known.until).max()
    }

    /// The time since when changes may be missing that nothing published contains.
    pub fn gap_since(&self) -> Option<Timestamp> {
        self.changes.iter().filter_map(|(_, known)| known.missing_since()).min()
    }

    /// Undated deletions whose resources have not answered yet whether they are gone.
    pub fn doubts(&self) -> usize {
        self.changes.iter().map(|(_, known)| known.doubts()).sum()
    }

    /// The time that its part of the tree speaks for: its lists', and in the tree of an earlier time what they were brought forward to, up
    /// to the first gap.
    fn speaks_for(&self, as_of: Option<AsOf>) -> Option<Timestamp> {
        let reached = as_of.filter(|_| !self.changes.is_empty()).map(|AsOf { time, is_final }| {
            let reached = if is_final { None } else { self.changes_until() };
            [reached, self.gap_since()].into_iter().flatten().fold(time, Timestamp::min)
        });
        reached.max(self.at)
    }

    fn made_of(&self, walks: &[Crawled]) -> bool {
        are_of(&self.documents, walks)
    }
}

/// True if these are the documents of `walks`, with the same bytes.
fn are_of(documents: &[KnownDocument], walks: &[Crawled]) -> bool {
    let now = walks.iter().flat_map(Crawled::documents).map(|document| (&document.location, document.digest));
    documents.iter().map(|document| (&document.location, document.digest)).eq(now)
}

impl Position {
    /// The sets of `source`, each with the number that it has had here before; the others get one now.
    pub fn follow(&mut self, source: &Source) -> Vec<FollowedSet> {
        followed(source, &mut |name| {
            if let Some(known) = self.set_named(name) {
                return known.id;
            }
            let id = SetId(self.next_set);
            self.next_set += 1;
            self.sets.push(SetPosition { id, name: name.to_owned(), ..SetPosition::default() });
            id
        })
    }

    /// True if nothing further is published of what the tree shows.
    pub fn is_final(&self) -> bool {
        self.as_of.is_some_and(|it| it.is_final)
    }

    /// True if a restart that knows `stored` goes on with the changes as this does.
    pub fn goes_on_from(&self, stored: &Position) -> bool {
        let goes_on =
            |set: SetId, (root, known): &(DocumentLocation, ChangeState)| known.goes_on_from(&stored.known(set, root));
        self.sets.iter().all(|set| set.changes.iter().all(|it| goes_on(set.id, it)))
    }

    /// The sets that the last baseline was made of.
    pub fn sets(&self) -> impl Iterator<Item = &SetPosition> {
        self.sets.iter().filter(|set| !set.documents.is_empty())
    }

    /// The set of this number.
    pub fn set(&self, id: SetId) -> Option<&SetPosition> {
        self.sets.iter().find(|set| set.id == id)
    }

    /// The set of this name.
    fn set_named(&self, name: &str) -> Option<&SetPosition> {
        self.sets.iter().find(|set| set.name == name)
    }

    /// The changes of `root` that are applied. Of a root that is new nothing is known but the lists of its set, and
    /// that it may go on where the set's other change documents are.
    pub fn known(&self, set: SetId, root: &DocumentLocation) -> ChangeState {
        let Some(set) = self.set(set) else { return ChangeState::default() };
        match set.changes.iter().find(|(known, _)| known == root) {
            Some((_, known)) => known.clone(),
            None => ChangeState::since(set.at).known_until(set.changes_until()),
        }
    }

    /// Notes the changes of `root` that are applied.
    pub fn note(&mut self, set: SetId, root: &DocumentLocation, known: ChangeState) {
        let Some(set) = self.sets.iter_mut().find(|it| it.id == set) else { return };
        match set.changes.iter_mut().find(|(known, _)| known == root) {
            Some((_, state)) => *state = known,
            None => set.changes.push((root.clone(), known)),
        }
    }

    /// The part of this set is to be made of lists that speak for `at`, an earlier time than what is shown: nothing is known of
    /// its changes but these.
    pub fn go_back(&mut self, set: SetId, at: Timestamp) {
        for set in self.sets.iter_mut().filter(|it| it.id == set) {
            set.at = Some(at);
            set.changes.clear();
        }
    }

    /// Forgets the change documents that are not followed any more.
    pub fn retain(&mut self, sets: &[FollowedSet]) {
        for set in &mut self.sets {
            if let Some(followed) = sets.iter().find(|followed| followed.id == set.id) {
                set.changes.retain(|(root, _)| followed.changes.contains(root));
            }
        }
    }

    /// Sets of which nothing was there for this revision, nor is in `read`.
    pub fn absent(&self, read: &[ReadSet]) -> impl Iterator<Item = SetId> {
        let is_absent = |set: &&SetPosition| set.documents.is_empty() && !read.iter().any(|it| it.id == set.id);
        self.sets.iter().filter(is_absent).map(|set| set.id)
    }

    /// Forgets a set that has left the Source; its number stays where something of it is lacking or held back.
    pub fn forget(&mut self, set: SetId) {
        let is_lacking =
            self.missing.iter().any(|part| part.set == Some(set)) || self.guard.unreadable_sets().contains(&set);
        self.sets.retain(|it| it.id != set || is_lacking);
        self.sets.iter_mut().filter(|it| it.id == set).for_each(|it| it.changes.clear());
    }

    /// True if the dumps of this set are asked for with its lists: they state resources, or manifests are still to be read.
    pub fn follows_dumps(&self, id: SetId) -> bool {
        self.set(id).is_some_and(|set| set.dumps.iter().any(|dump| dump.entries > 0 || dump.digest == 0))
    }

    /// True if the dumps of this set are those of the last baseline.
    pub fn has_same_dumps(&self, id: SetId, walks: &[Crawled]) -> bool {
        are_of(self.set(id).map_or(&[], |set| &set.dumps), walks)
    }

    /// The packages of this set, and those next to lists that cannot be read.
    pub fn packages_of(&self, id: SetId) -> (Vec<Uri>, Vec<Missing>) {
        let packages = self.set(id).map(|set| set.packages.clone()).unwrap_or_default();
        let known: HashSet<&Uri> = packages.iter().collect();
        let is_one = |part: &&LackingPart| {
            part.set.is_none() && part.missing.location.uri().is_some_and(|uri| known.contains(uri))
        };
        let missing = self.missing.iter().filter(is_one).map(|part| part.missing.clone()).collect();
        (packages, missing)
    }

    /// True if this set's part of the baseline was made of exactly what was read.
    pub fn is_made_of(&self, read: &ReadSet) -> bool {
        self.set(read.id).is_some_and(|set| set.made_of(&read.walks))
    }

    /// The time of what was read, and the later one of this set's part of the baseline, by the same kind of time. The changes between the
    /// two are not in the journal any more: merged, it would undo them.
    pub fn is_newer_than(&self, read: &ReadSet) -> Option<(Timestamp, Timestamp)> {
        let set = self.set(read.id)?;
        let times = (read.at()?, set.at?);
        if set.is_stated != read.stated_at().is_some() || self.is_made_of(read) {
            return None;
        }
        // Lists that state no time may have lost their newest entry.
        let written = read.written().zip(set.written).filter(|_| !set.is_stated && times.0 == times.1);
        let is_earlier = |(now, shown): &(Timestamp, Timestamp)| now < shown;
        Some(times).filter(is_earlier).or(written.filter(is_earlier))
    }

    /// The time that lists without a time speak for, the newest of which is `newest`: written later than those that are shown,
    /// they speak for no earlier time, even if they list less.
    pub fn newest_of(&self, read: &ReadSet, newest: Option<Timestamp>) -> Option<Timestamp> {
        let shown = self.set(read.id).filter(|set| !set.is_stated && set.written.is_some());
        let shown = shown.filter(|set| set.written < read.written()).and_then(|set| set.at);
        newest.max(shown.filter(|_| newest.is_some()))
    }

    /// The earliest time that a set's part of the tree speaks for.
    pub fn at(&self) -> Option<Timestamp> {
        self.sets().filter_map(|set| set.speaks_for(self.as_of)).min()
    }

    /// True if the baseline of this revision was made of exactly these documents of exactly these sets, lacking what is
    /// `missing`, under `naming`.
    pub fn is_of(&self, read: &[ReadSet], missing: &[Missing], naming: &Naming) -> bool {
        let walks = |set: &SetPosition| read.iter().find(|it| it.id == set.id).map_or(&[][..], |it| &it.walks);
        let has_packages =
            |set: &SetPosition, it: &ReadSet| it.packages.is_none() || set.manifests == it.fingerprints();
        self.naming == naming.identity()
            && self.sets.iter().all(|set| set.made_of(walks(set)))
            && read.iter().all(|it| self.set(it.id).is_some_and(|set| has_packages(set, it)))
            && self.same_is_missing(read, missing)
    }

    /// True if the same parts were missing before. Gaps inside a list of `read` are covered by its digest.
    fn same_is_missing(&self, read: &[ReadSet], missing: &[Missing]) -> bool {
        fn key(part: &Missing) -> (&DocumentLocation, u64) {
            (&part.location, part.entries)
        }
        let own: HashSet<DocumentLocation> = read.iter().flat_map(ReadSet::sources).collect();
        self.lacking().filter(|part| !own.contains(&part.location)).map(key).eq(missing.iter().map(key))
    }

    /// The position after a baseline of `read`, which lacks what is `missing`.
    pub fn after(&self, read: &[ReadSet], missing: Vec<Missing>, naming: &Naming) -> Position {
        // A Capability List that is missing has the name of its set.
        let set_of = |location: &DocumentLocation| {
            let reads = || read.iter().find(|it| it.leads_to(location)).map(|it| it.id);
            self.set_named(&location.to_string()).map(|set| set.id).or_else(reads)
        };
        let lacking = missing.into_iter().map(|missing| LackingPart { set: set_of(&missing.location), missing });
        let mut next = Position { naming: naming.identity(), missing: lacking.collect(), ..self.clone() };
        for set in &mut next.sets {
            let now = read.iter().find(|it| it.id == set.id);
            set.at = now.and_then(ReadSet::at);
            set.is_stated = now.is_some_and(|read| read.stated_at().is_some());
            set.written = now.and_then(ReadSet::written);
            let documents = now.into_iter().flat_map(ReadSet::documents);
            let document = |(document, entries): (&CachedDocument, u64)| KnownDocument {
                location: document.location.clone(),
                digest: document.digest,
                entries,
            };
            set.documents = documents.map(document).collect();
            // Packages that cannot be read for now are those of before.
            if now.is_none_or(|read| read.packages.is_some()) {
                set.dumps = now.map(dumps).unwrap_or_default();
                set.packages = now.and_then(|read| read.packages.clone()).unwrap_or_default();
                set.manifests = now.map(ReadSet::fingerprints).unwrap_or_default();
            }
            for (_, known) in &mut set.changes {
                *known = std::mem::take(known).rebased(set.at);
            }
        }
        next
    }

    /// The sets of which nothing, or not all, could be had for this position, which was made of `read`.
    pub fn unreadable_sets(&self, read: &[ReadSet]) -> BTreeSet<SetId> {
        let unread = self.sets.iter().map(|set| set.id).filter(|set| !read.iter().any(|it| it.id == *set));
        self.missing.iter().filter_map(|part| part.set).chain(unread).collect()
    }

    /// The losses among the lists of `next`, for the guard to know: lists that have become empty or are gone, and what is not readable
    /// any more.
    pub fn losses(&self, next: &Position) -> Vec<ListLoss> {
        let now: HashSet<&DocumentLocation> = next.lists().map(|(_, list)| &list.location).collect();
        // Which entries of a list cannot be understood is not known: they may be other ones each time.
        // A list of which nothing can be understood may show any of them again.
        let lists = |set: &SetPosition, Missing { location, entries, .. }: &Missing| {
            let is_package = location.uri().is_some_and(|uri| set.packages.contains(uri));
            *entries > 0 && is_package || set.documents.iter().any(|document| document.location == *location)
        };
        let is_list = |part: &Missing| next.sets.iter().any(|set| lists(set, part));
        let hidden = next.missing.iter().filter(|part| !self.lacked(&part.missing) || is_list(&part.missing));
        let hidden =
            hidden.map(|LackingPart { missing, set }| (&missing.location, missing.entries, false, *set, &*missing.why));
        let emptied = self.lists().filter(|(_, list)| !now.contains(&list.location));
        let emptied = emptied.map(|(set, list)| (&list.location, list.entries, true, Some(set), ""));
        let all = hidden.chain(emptied);
        let loss = |(location, entries, speaks, set, why): (&DocumentLocation, u64, bool, Option<SetId>, &str)| {
            ListLoss { location: location.clone(), entries, speaks, set, why: why.to_owned() }
        };
        all.map(loss).collect()
    }

    /// The lists that list anything, each with its set.
    fn lists(&self) -> impl Iterator<Item = (SetId, &KnownDocument)> {
        let all = self.sets.iter().flat_map(|set| {
            let documents = set.documents.iter().chain(&set.dumps);
            documents.map(|document| (set.id, document))
        });
        all.filter(|(_, document)| document.entries > 0)
    }

    /// True if this part, or more of the same document, was missing already. The resources that it hides are then not in the
    /// tree, or held back.
    fn lacked(&self, part: &Missing) -> bool {
        self.lacking().any(|it| {
            // A document that was missing as a whole has shown nothing that its single entries could now hide.
            it.location == part.location && (it.entries == 0 || 0 < part.entries && part.entries <= it.entries)
        })
    }

    /// The parts that the tree lacks: those of the Source that are missing, and lists with entries that cannot be understood.
    pub fn lacking(&self) -> impl Iterator<Item = &Missing> {
        self.missing.iter().map(|part| &part.missing)
    }

    /// The form that is stored with the revision: JSON.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what [`Position::encode`] wrote; `None` for anything else.
    pub fn decode(stored: &[u8]) -> Option<Position> {
        serde_json::from_slice(stored).ok().filter(|position: &Position| position.format == Format::default())
    }

    /// Forgets what was read of the change documents: they are read as at a first look.
    pub fn forget_documents(&mut self) {
        let changes = self.sets.iter_mut().flat_map(|set| &mut set.changes);
        changes.for_each(|(_, state)| state.forget_documents());
    }

    /// The first document of which this position lacks something that `base` did not: missing entries may only be hidden.
    pub fn lacks_beyond(&self, base: &Position) -> Option<&DocumentLocation> {
        self.lacking().find(|part| !base.lacked(part)).map(|part| &part.location)
    }

    fn changes(&self) -> impl Iterator<Item = &(DocumentLocation, ChangeState)> {
        self.sets.iter().flat_map(|set| &set.changes)
    }

    /// True if something was read of the changes that `root` offers.
    pub fn has_read(&self, root: &DocumentLocation) -> bool {
        self.changes().any(|(location, known)| location == root && known.locations().next().is_some())
    }

    /// The time since when changes of some set may be missing.
    pub fn missing_since(&self) -> Option<Timestamp> {
        self.sets.iter().filter_map(SetPosition::gap_since).min()
    }

    /// The addresses of the change documents that were read, and of the packages among them.
    fn change_locations(&self) -> impl Iterator<Item = Uri> {
        self.changes().flat_map(|(_, known)| known.locations()).filter_map(|location| Uri::parse(location).ok())
    }

    /// The packages of the dumps in force; Change Lists stand among them, where no package is.
    pub fn packages(&self) -> HashSet<Uri> {
        self.sets.iter().flat_map(|set| &set.packages).cloned().chain(self.change_locations()).collect()
    }

    /// The addresses of the documents.
    pub fn locations(&self) -> Vec<DocumentLocation> {
        let lists = self.sets.iter().flat_map(|set| set.documents.iter().chain(&set.dumps)).map(|it| &it.location);
        let roots = self.changes().map(|(root, _)| root);
        lists.chain(roots).cloned().chain(self.change_locations().map(DocumentLocation::Uri)).collect()
    }
}

/// The documents of the dumps next to the lists of a set.
fn dumps(read: &ReadSet) -> Vec<KnownDocument> {
    let documents = read.dumps.iter().flat_map(Crawled::documents).enumerate();
    let document = |(number, document): (usize, &CachedDocument)| KnownDocument {
        location: document.location.clone(),
        digest: if read.dumps_are_read { document.digest } else { 0 },
        entries: if number == 0 { read.stated } else { 0 },
    };
    documents.map(document).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Set;

    fn uri(path: &str) -> Uri {
        Uri::parse(&format!("http://example.org/{path}")).unwrap()
    }

    fn location(path: &str) -> DocumentLocation {
        DocumentLocation::Uri(uri(path))
    }

    fn missing(path: &str, entries: u64) -> Missing {
        Missing { location: location(path), entries, why: String::new() }
    }

    fn lacking(path: &str, entries: u64) -> LackingPart {
        LackingPart { missing: missing(path, entries), set: None }
    }

    /// A position of one set that was made of these lists, as (location, entries).
    fn position(lists: &[(&str, u64)]) -> Position {
        let document = |(path, entries): &(&str, u64)| KnownDocument {
            location: location(path),
            digest: u64::MAX,
            entries: *entries,
        };
        let documents = lists.iter().map(document).collect();
        Position {
            format: Format::default(),
            naming: "own=example.org".into(),
            next_set: 5,
            sets: vec![SetPosition {
                id: SetId(4),
                name: "a set".into(),
                documents,
                at: Some(Timestamp { seconds: 1, nanos: 2 }),
                ..SetPosition::default()
            }],
            missing: vec![LackingPart {
                missing: Missing { location: DocumentLocation::File("/lists/gone.xml".into()), ..missing("", 0) },
                set: None,
            }],
            guard: DeletionGuard::default(),
            as_of: None,
        }
    }

    #[test]
    fn a_position_survives_being_stored() {
        let position = position(&[("a", 1)]);

        let stored = position.encode();

        assert_eq!(Position::decode(&stored), Some(position));
    }

    #[test]
    fn a_set_keeps_its_number_whatever_becomes_of_the_others() {
        let source = |names: &[&str]| Source {
            sets: names.iter().map(|name| Set { capability_list: Some(uri(name)), ..Set::default() }).collect(),
            ..Source::default()
        };
        let numbers = |position: &mut Position, names: &[&str]| -> Vec<u32> {
            position.follow(&source(names)).iter().map(|set| set.id.0).collect()
        };
        let mut position = position(&[]);
        position.sets[0].name = uri("a").to_string();

        assert_eq!(numbers(&mut position, &["c", "a", "d"]), [5, 4, 6]);
        assert_eq!(numbers(&mut position, &["d", "e"]), [6, 7]);
        assert_eq!(numbers(&mut Position::default(), &["c", "a"]), [0, 1]);
    }

    #[test]
    fn only_what_was_missing_before_is_known_to_have_been() {
        let position = Position { missing: vec![lacking("dead.xml", 0), lacking("index.xml", 3)], ..position(&[]) };

        assert!(position.lacked(&missing("dead.xml", 0)) && position.lacked(&missing("dead.xml", 5)));
        assert!(position.lacked(&missing("index.xml", 3)) && position.lacked(&missing("index.xml", 1)));
        assert!(!position.lacked(&missing("index.xml", 4)), "an entry that was understood may be hidden now");
        assert!(!position.lacked(&missing("index.xml", 0)), "what the index listed is gone with it");
        assert!(!position.lacked(&missing("other.xml", 0)));
    }

    #[test]
    fn lists_that_are_empty_or_gone_are_losses() {
        let before = position(&[("a", 20), ("b", 30), ("c", 40), ("d", 0), ("dead", 50)]);
        let mut after = position(&[("a", 1), ("b", 0), ("d", 0)]);
        after.missing = vec![lacking("dead", 0)];

        let losses = before.losses(&after);

        let losses: Vec<_> = losses.iter().map(|loss| (loss.location.to_string(), loss.entries, loss.speaks)).collect();
        let at = |path: &str| format!("http://example.org/{path}");
        assert_eq!(losses, [(at("dead"), 0, false), (at("b"), 30, true), (at("c"), 40, true), (at("dead"), 50, true)]);
        assert!(after.losses(&after).is_empty());
        after.missing = vec![lacking("a", 0)];
        assert_eq!(after.losses(&after).len(), 1, "what of it is understood next may be another part");
    }

    #[test]
    fn a_position_of_another_format_is_none() {
        let other = br#"{"format":99,"naming":"","documents":[]}"#;

        assert_eq!(Position::decode(other), None);
        assert_eq!(Position::decode(b"not a position"), None);
    }
}
