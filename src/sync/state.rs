//! What the current revision was made of, committed together with it.

use super::changes::ChangeState;
use super::deletion_guard::{DeletionGuard, ListLoss};
use super::documents::FollowedSet;
use super::read_set::ReadSet;
use crate::catalog::{CatalogError, Naming, SetId};
use crate::document::{Timestamp, Uri};
use crate::source::crawl::Crawled;
use crate::source::documents::CachedDocument;
use crate::source::{DocumentLocation, Missing};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

/// Version of the written form. Any but the one before reads as no state at all. That costs a merge of all lists, reading the
/// change documents from the lists' time on, and what the guard held; and sets are numbered again, in the order in which they
/// are offered. Where that order has changed, what the catalog's journal holds of one set counts for another until its list
/// speaks for a later time: a change of the form keeps reading the numbers of the one before.
const FORMAT: u32 = 4;

/// The form before: it is read but for the entries of change documents, which it knew otherwise. They are read again, and the
/// journal knows which are applied.
const FORMAT_BEFORE: u32 = 3;

/// The documents of a revision with their digests, the naming they were read under, and how far changes are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    format: u32,
    naming: String,
    /// The number that the next new set gets: none is given twice.
    next_set: u32,
    /// Every set that was ever seen, so that one that comes back is the same one.
    sets: Vec<SetPosition>,
    /// What the Source offered and was not found.
    missing: Vec<Gap>,
    /// The state of the guard.
    pub guard: DeletionGuard,
    /// Whether this is the state of an earlier time, and all that will ever be published of it is known.
    #[serde(default)]
    pub is_final: bool,
}

/// How far one set is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetPosition {
    id: u32,
    name: String,
    /// What its part of the last baseline was made of.
    documents: Vec<Document>,
    /// The time that this part speaks for: seconds and nanoseconds since the epoch.
    at: Option<(i64, u32)>,
    /// The packages that its Resource Dumps listed then.
    #[serde(default)]
    packages: Vec<String>,
    /// What those said that could be read, by the fingerprints of their manifests.
    #[serde(default)]
    manifests: Vec<u64>,
    /// How far its change documents are known, each by its root.
    changes: Vec<(Location, ChangeState)>,
}

/// See [`Missing`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Gap {
    location: Location,
    entries: u64,
    /// The set that lacks it, where that is known.
    #[serde(default)]
    set: Option<u32>,
    /// The answer, for a person.
    #[serde(default)]
    why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Document {
    location: Location,
    /// XXH3 of the document's bytes.
    digest: u64,
    /// The resources that it lists; 0 for an index.
    entries: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Location {
    Uri(String),
    File(PathBuf),
}

impl From<&DocumentLocation> for Location {
    fn from(location: &DocumentLocation) -> Location {
        match location {
            DocumentLocation::Uri(uri) => Location::Uri(uri.as_str().to_owned()),
            DocumentLocation::File(path) => Location::File(path.clone()),
        }
    }
}

impl Location {
    fn document(&self) -> Option<DocumentLocation> {
        match self {
            Location::Uri(uri) => Uri::parse(uri).ok().map(DocumentLocation::Uri),
            Location::File(path) => Some(DocumentLocation::File(path.clone())),
        }
    }
}

impl From<(&CachedDocument, u64)> for Document {
    fn from((document, entries): (&CachedDocument, u64)) -> Document {
        Document { location: (&document.location).into(), digest: document.digest, entries }
    }
}

impl SetPosition {
    /// The number of the set in the catalog.
    pub fn id(&self) -> SetId {
        SetId(self.id)
    }

    /// The time that its part of the last baseline speaks for.
    pub fn at(&self) -> Option<Timestamp> {
        self.at.map(|(seconds, nanos)| Timestamp { seconds, nanos })
    }

    /// Its Capability List; of a list that stands alone the list.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The time up to which its changes are known, by the document that is furthest.
    pub fn changes_until(&self) -> Option<Timestamp> {
        self.changes.iter().filter_map(|(_, known)| known.until()).max()
    }

    /// Since when changes may be missing that nothing published contains.
    pub fn gap_since(&self) -> Option<Timestamp> {
        self.changes.iter().filter_map(|(_, known)| known.missing_since()).min()
    }

    /// Undated deletions whose resources have not answered yet whether they are gone.
    pub fn doubts(&self) -> usize {
        self.changes.iter().map(|(_, known)| known.doubts()).sum()
    }

    /// The time that its part of the tree speaks for: its lists', and where the state of an earlier time is wanted what they
    /// were brought forward to, up to the first gap.
    fn speaks_for(&self, is_final: bool) -> Option<Timestamp> {
        let reached = self.changes.iter().filter_map(|(_, known)| known.brought_to(is_final));
        let is_torn = self.gap_since().is_some();
        let brought_to = if is_torn { reached.min() } else { reached.max() };
        brought_to.max(self.at())
    }

    fn made_of(&self, walks: &[Crawled]) -> bool {
        let (mut before, mut now) = (self.documents.iter(), walks.iter().flat_map(Crawled::documents));
        loop {
            match (before.next(), now.next()) {
                (None, None) => return true,
                (Some(before), Some(now))
                    if before.digest == now.digest && before.location == Location::from(&now.location) => {}
                _ => return false,
            }
        }
    }
}

impl Position {
    /// A position of these sets, of which nothing is known yet.
    pub fn of_sets(sets: &[FollowedSet]) -> Position {
        let mut position = Position {
            format: FORMAT,
            naming: String::new(),
            next_set: 0,
            sets: Vec::new(),
            missing: Vec::new(),
            guard: DeletionGuard::default(),
            is_final: false,
        };
        position.follow(sets);
        position
    }

    /// The numbers of sets by their names: those that they have in `position`, and new ones for the others.
    pub fn numbers(position: Option<&Position>) -> impl FnMut(&str) -> SetId {
        let mut next = position.map_or(0, |position| position.next_set);
        move |name| {
            position.and_then(|position| position.set_named(name)).map(SetPosition::id).unwrap_or_else(|| {
                next += 1;
                SetId(next - 1)
            })
        }
    }

    /// Makes room for the sets that are new.
    pub fn follow(&mut self, sets: &[FollowedSet]) {
        for set in sets {
            if self.set(set.id).is_none() {
                let id = set.id.0;
                self.sets.push(SetPosition { id, name: set.name.clone(), ..SetPosition::default() });
                self.next_set = self.next_set.max(id.saturating_add(1));
            }
        }
    }

    /// The sets that the last baseline was made of.
    pub fn sets(&self) -> impl Iterator<Item = &SetPosition> {
        self.sets.iter().filter(|set| !set.documents.is_empty())
    }

    /// The set of this number.
    pub fn set(&self, id: SetId) -> Option<&SetPosition> {
        self.sets.iter().find(|set| set.id == id.0)
    }

    /// Which changes of `root` are applied. Of a root that is new nothing is known but the lists of its set, and
    /// that it may go on where the set's other change documents are.
    pub fn known(&self, set: SetId, root: &DocumentLocation) -> ChangeState {
        let Some(set) = self.set(set) else { return ChangeState::default() };
        let location = Location::from(root);
        match set.changes.iter().find(|(known, _)| *known == location) {
            Some((_, known)) => known.clone(),
            None => ChangeState::since(set.at()).known_until(set.changes_until()),
        }
    }

    /// Notes which changes of `root` are applied.
    pub fn note(&mut self, set: SetId, root: &DocumentLocation, known: ChangeState) {
        let Some(set) = self.sets.iter_mut().find(|it| it.id == set.0) else { return };
        let location = Location::from(root);
        match set.changes.iter_mut().find(|(known, _)| *known == location) {
            Some((_, before)) => *before = known,
            None => set.changes.push((location, known)),
        }
    }

    /// The part of this set is to be made of lists that speak for `at`, an earlier time than what is shown: nothing is known of
    /// its changes but these.
    pub fn go_back(&mut self, set: SetId, at: Timestamp) {
        for set in self.sets.iter_mut().filter(|it| it.id == set.0) {
            set.at = Some((at.seconds, at.nanos));
            set.changes.clear();
        }
    }

    /// Forgets the change documents that are not followed any more.
    pub fn retain(&mut self, sets: &[FollowedSet]) {
        for set in &mut self.sets {
            let Some(followed) = sets.iter().find(|followed| followed.id.0 == set.id) else { continue };
            let roots: Vec<Location> = followed.incremental().1.iter().map(Location::from).collect();
            set.changes.retain(|(root, _)| roots.contains(root));
        }
    }

    /// Sets of which nothing was there for this revision, nor is in `read`, and whose changes are known all the same.
    pub fn absent(&self, read: &[ReadSet]) -> Vec<SetId> {
        let is_absent = |set: &&SetPosition| set.documents.is_empty() && !read.iter().any(|it| it.id.0 == set.id);
        self.sets.iter().filter(|set| !set.changes.is_empty()).filter(is_absent).map(SetPosition::id).collect()
    }

    /// Forgets what is known of the changes of `set`.
    pub fn forget(&mut self, set: SetId) {
        self.sets.iter_mut().filter(|it| it.id == set.0).for_each(|it| it.changes.clear());
    }

    /// Forgets the sets that have left the Source: neither in `before` nor in `read` is anything of them, nothing is known of their changes
    /// or lacking of them, and no deletion of theirs is held back.
    pub fn drop_gone(
        &mut self,
        before: &Position,
        read: &[ReadSet],
        holds: impl Fn(SetId) -> Result<bool, CatalogError>,
    ) -> Result<(), CatalogError> {
        for id in before.sets.iter().filter(|set| set.documents.is_empty()).map(SetPosition::id) {
            let is_unused = |set: &SetPosition| set.documents.is_empty() && set.changes.is_empty();
            let is_lacking =
                self.missing.iter().any(|gap| gap.set == Some(id.0)) || self.guard.unheard().any(|it| it == id);
            if self.set(id).is_some_and(is_unused) && !is_lacking && !read.iter().any(|it| it.id == id) && !holds(id)? {
                self.sets.retain(|set| set.id != id.0);
            }
        }
        Ok(())
    }

    /// The set of this name.
    fn set_named(&self, name: &str) -> Option<&SetPosition> {
        self.sets.iter().find(|set| set.name == name)
    }

    /// Whether this set's part of the baseline was made of exactly what was read.
    pub fn is_made_of(&self, read: &ReadSet) -> bool {
        self.set(read.id).is_some_and(|set| set.made_of(&read.walks))
    }

    /// The time that this set's part of the baseline was made for, where what was read says itself that it speaks for an
    /// earlier one. The changes between the two are not in the journal any more: merged, it would undo them.
    pub fn is_newer_than(&self, read: &ReadSet) -> Option<(Timestamp, Timestamp)> {
        let (shown, stated) = (self.set(read.id)?.at()?, read.stated_at()?);
        (stated < shown && !self.is_made_of(read)).then_some((stated, shown))
    }

    /// The earliest time that a set's part of the tree speaks for.
    pub fn at(&self) -> Option<Timestamp> {
        self.sets().filter_map(|set| set.speaks_for(self.is_final)).min()
    }

    /// Whether the baseline of this revision was made of exactly these documents of exactly these sets, lacking what is
    /// `missing`, under `naming`.
    pub fn is_of(&self, read: &[ReadSet], missing: &[Missing], naming: &Naming) -> bool {
        let walks = |set: &SetPosition| read.iter().find(|it| it.id.0 == set.id).map_or(&[][..], |it| &it.walks);
        self.naming == naming.identity()
            && self.sets.iter().all(|set| set.made_of(walks(set)))
            && read.iter().all(|it| {
                self.set(it.id).is_some_and(|set| it.packages.is_none() || set.manifests == it.fingerprints())
            })
            && self.same_is_missing(read, missing)
    }

    /// Whether so much was `missing` already. What the lists of `read` hide themselves goes by their own digests.
    fn same_is_missing(&self, read: &[ReadSet], missing: &[Missing]) -> bool {
        let own: HashSet<Location> = read.iter().flat_map(ReadSet::sources).map(|it| Location::from(&it)).collect();
        let mut before = self.missing.iter().filter(|gap| !own.contains(&gap.location));
        missing.iter().all(|now| before.next().is_some_and(|before| before.is(now))) && before.next().is_none()
    }

    /// The position after a baseline of `read`, which lacks what is `missing`.
    pub fn after(&self, read: &[ReadSet], missing: &[Missing], naming: &Naming) -> Position {
        let gap = |gap: &Missing| Gap {
            location: (&gap.location).into(),
            entries: gap.entries,
            set: self.set_of(&gap.location, read),
            why: gap.why.clone(),
        };
        let mut next =
            Position { naming: naming.identity(), missing: missing.iter().map(gap).collect(), ..self.clone() };
        for set in &mut next.sets {
            let now = read.iter().find(|it| it.id.0 == set.id);
            set.at = now.and_then(ReadSet::at).map(|at| (at.seconds, at.nanos));
            set.documents = now.into_iter().flat_map(ReadSet::documents).map(Document::from).collect();
            match now.map(|read| &read.packages) {
                Some(Some(packages)) => {
                    set.packages = packages.iter().map(|it| it.as_str().to_owned()).collect();
                    set.manifests = now.map(ReadSet::fingerprints).unwrap_or_default();
                }
                Some(None) => {}
                None => (set.packages, set.manifests) = (Vec::new(), Vec::new()),
            }
        }
        next
    }

    /// The set that lacks what is missing at `location`: its Capability List, or what its lists lead to.
    fn set_of(&self, location: &DocumentLocation, read: &[ReadSet]) -> Option<u32> {
        let reads = || read.iter().find(|it| it.leads_to(location)).map(|it| it.id.0);
        self.set_named(&location.to_string()).map(|set| set.id).or_else(reads)
    }

    /// The sets of which nothing, or not all, could be had for this position, which was made of `read`.
    pub fn unheard(&self, read: &[ReadSet]) -> BTreeSet<SetId> {
        let lacking = self.missing.iter().filter_map(|gap| gap.set);
        let unread = self.sets.iter().map(|set| set.id).filter(|set| !read.iter().any(|it| it.id.0 == *set));
        lacking.chain(unread).map(SetId).collect()
    }

    /// What the guard must know of the lists of `next` before it lets go what they do not list: which have become empty or
    /// are gone, and what is not readable any more.
    pub fn losses(&self, next: &Position) -> Vec<ListLoss> {
        fn listing(position: &Position) -> impl Iterator<Item = (u32, &Document)> {
            let all = position.sets.iter().flat_map(|set| set.documents.iter().map(|document| (set.id, document)));
            all.filter(|(_, document)| document.entries > 0)
        }
        let now: HashSet<&Location> = listing(next).map(|(_, list)| &list.location).collect();
        // Which entries of a list cannot be understood is not known: they may be other ones each time.
        // A list of which nothing can be understood may show any of them again.
        let lists = |set: &SetPosition, gap: &Gap| {
            let is_package = matches!(&gap.location, Location::Uri(uri) if set.packages.contains(uri));
            gap.entries > 0 && is_package || set.documents.iter().any(|document| document.location == gap.location)
        };
        let is_list = |gap: &Gap| next.sets.iter().any(|set| lists(set, gap));
        let hidden = next.missing.iter().filter(|gap| !self.lacked(gap) || is_list(gap));
        let hidden = hidden.map(|gap| (&gap.location, gap.entries, false, gap.set));
        let emptied = listing(self).filter(|(_, list)| !now.contains(&list.location));
        let emptied = emptied.map(|(set, list)| (&list.location, list.entries, true, Some(set)));
        let lost = hidden.chain(emptied);
        lost.filter_map(|(location, entries, speaks, set)| {
            Some(ListLoss { location: location.document()?, entries, speaks, set: set.map(SetId) })
        })
        .collect()
    }

    /// Whether `gap`, or a greater one at the same place, was there already when this revision was made: what it hides then
    /// is not in the tree, or is held back already.
    fn lacked(&self, gap: &Gap) -> bool {
        self.missing.iter().any(|lacked| {
            // A document that was missing as a whole has shown nothing that its single entries could now hide.
            lacked.location == gap.location && (lacked.entries == 0 || 0 < gap.entries && gap.entries <= lacked.entries)
        })
    }

    /// What the tree of this position lacks: parts of the Source that are missing, and lists with entries that cannot be
    /// understood.
    pub fn lacking(&self) -> impl Iterator<Item = Missing> {
        self.missing.iter().filter_map(|gap| {
            let (entries, why) = (gap.entries, gap.why.clone());
            Some(Missing { location: gap.location.document()?, entries, why })
        })
    }

    /// The form that is stored with the revision: JSON.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what [`Position::encode`] wrote; `None` for anything else.
    pub fn decode(stored: &[u8]) -> Option<Position> {
        let mut position: Position = serde_json::from_slice(stored).ok()?;
        if position.format == FORMAT_BEFORE {
            position.format = FORMAT;
            position.forget_documents();
        }
        (position.format == FORMAT).then_some(position)
    }

    /// Forgets what was read of the change documents: they are read as at a first look.
    pub fn forget_documents(&mut self) {
        let changes = self.sets.iter_mut().flat_map(|set| &mut set.changes);
        changes.for_each(|(_, state)| state.forget_documents());
    }

    /// The first place where this position lacks something that `before` did not: what is not listed may only be hidden.
    pub fn lacks_beyond(&self, before: &Position) -> Option<DocumentLocation> {
        self.missing.iter().find(|gap| !before.lacked(gap))?.location.document()
    }

    /// Whether something was read of the changes that `root` offers.
    pub fn has_heard(&self, root: &DocumentLocation) -> bool {
        let root = Location::from(root);
        let mut changes = self.sets.iter().flat_map(|set| &set.changes);
        changes.any(|(location, known)| *location == root && known.locations().next().is_some())
    }

    /// Since when changes of some set may be missing.
    pub fn missing_since(&self) -> Option<Timestamp> {
        self.sets.iter().flat_map(|set| &set.changes).filter_map(|(_, known)| known.missing_since()).min()
    }

    /// The packages of the dumps in force; Change Lists stand among them, where no package is.
    pub fn packages(&self) -> HashSet<Uri> {
        let of_dumps = self.sets.iter().flat_map(|set| &set.packages).map(String::as_str);
        let of_changes = self.sets.iter().flat_map(|set| &set.changes).flat_map(|(_, known)| known.locations());
        of_dumps.chain(of_changes).filter_map(|location| Uri::parse(location).ok()).collect()
    }

    /// Where the documents lie.
    pub fn locations(&self) -> Vec<DocumentLocation> {
        let lists = self.sets.iter().flat_map(|set| &set.documents).filter_map(|document| document.location.document());
        let roots = self.sets.iter().flat_map(|set| &set.changes);
        let changes = roots.flat_map(|(root, known)| {
            let below = known.locations().filter_map(|location| Uri::parse(location).ok()).map(DocumentLocation::Uri);
            root.document().into_iter().chain(below)
        });
        lists.chain(changes).collect()
    }
}

impl Gap {
    fn is(&self, missing: &Missing) -> bool {
        self.entries == missing.entries && self.location == Location::from(&missing.location)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(path: &str, entries: u64) -> Gap {
        Gap { location: Location::Uri(format!("http://example.org/{path}")), entries, set: None, why: String::new() }
    }

    /// A position of one set that was made of these lists, as (location, entries).
    fn position(lists: &[(&str, u64)]) -> Position {
        let document = |(path, entries): &(&str, u64)| Document {
            location: Location::Uri(format!("http://example.org/{path}")),
            digest: u64::MAX,
            entries: *entries,
        };
        let documents = lists.iter().map(document).collect();
        Position {
            format: FORMAT,
            naming: "own=example.org".into(),
            next_set: 5,
            sets: vec![SetPosition {
                id: 4,
                name: "a set".into(),
                documents,
                at: Some((1, 2)),
                ..SetPosition::default()
            }],
            missing: vec![Gap {
                location: Location::File("/lists/gone.xml".into()),
                entries: 0,
                set: None,
                why: String::new(),
            }],
            guard: DeletionGuard::default(),
            is_final: false,
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
        let position = position(&[]);
        let mut number = Position::numbers(Some(&position));

        assert_eq!(["c", "a set", "d"].map(|name| number(name).0), [5, 4, 6]);
        assert_eq!(["c", "a set"].map(|name| Position::numbers(None)(name).0), [0, 0]);
    }

    #[test]
    fn only_what_was_missing_before_is_known_to_have_been() {
        let position = Position { missing: vec![gap("dead.xml", 0), gap("index.xml", 3)], ..position(&[]) };

        assert!(position.lacked(&gap("dead.xml", 0)) && position.lacked(&gap("dead.xml", 5)));
        assert!(position.lacked(&gap("index.xml", 3)) && position.lacked(&gap("index.xml", 1)));
        assert!(!position.lacked(&gap("index.xml", 4)), "an entry that was understood may be hidden now");
        assert!(!position.lacked(&gap("index.xml", 0)), "what the index listed is gone with it");
        assert!(!position.lacked(&gap("other.xml", 0)));
    }

    #[test]
    fn lists_that_became_empty_or_are_gone_and_what_cannot_be_had_any_more_are_losses() {
        let before = position(&[("a", 20), ("b", 30), ("c", 40), ("d", 0), ("dead", 50)]);
        let mut after = position(&[("a", 1), ("b", 0), ("d", 0)]);
        after.missing = vec![gap("dead", 0)];

        let losses = before.losses(&after);

        let losses: Vec<_> = losses.iter().map(|loss| (loss.location.to_string(), loss.entries, loss.speaks)).collect();
        let at = |path: &str| format!("http://example.org/{path}");
        assert_eq!(losses, [(at("dead"), 0, false), (at("b"), 30, true), (at("c"), 40, true), (at("dead"), 50, true)]);
        assert!(after.losses(&after).is_empty());
        after.missing = vec![gap("a", 0)];
        assert_eq!(after.losses(&after).len(), 1, "what of it is understood next may be another part");
    }

    /// As the program before wrote it.
    #[test]
    fn a_position_of_the_format_before_keeps_all_but_the_entries_read() {
        let before = r#"{"format":3,"naming":"own=example.org","next_set":5,"sets":[{"id":4,"name":"a set",
            "documents":[{"location":{"uri":"http://example.org/a"},"digest":7,"entries":1}],"at":[10,2],"packages":[],
            "manifests":[],"changes":[[{"uri":"http://example.org/c"},{"at":[10,2],"until":[20,0],"by_place":[15,1],"ends":null,
            "documents":[{"location":"http://example.org/c","entries":"AQAAAAAAAAA","until":null,"listed":null,
            "read":[21,0],"doubts":""}],"lost":[],"gap_since":[11,0]}]]}],"missing":[],
            "guard":"@","is_final":false}"#;
        let guard = serde_json::to_string(&DeletionGuard::default()).unwrap();

        let position = Position::decode(before.replace("\"@\"", &guard).as_bytes()).unwrap();

        let set = position.set(SetId(4)).unwrap();
        assert_eq!((set.name(), set.changes_until().unwrap().seconds), ("a set", 20));
        assert_eq!((position.next_set, set.gap_since().unwrap().seconds), (5, 11));
        assert_eq!(set.changes[0].1.locations().count(), 0);
        assert_eq!(Position::decode(&position.encode()), Some(position));
    }

    #[test]
    fn a_position_of_another_format_is_none() {
        let other = br#"{"format":99,"naming":"","documents":[]}"#;

        assert_eq!(Position::decode(other), None);
        assert_eq!(Position::decode(b"not a position"), None);
    }
}
