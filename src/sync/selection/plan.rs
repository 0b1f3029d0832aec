//! Choosing from whole lists: the records that choose other resources are collected first, then every entry is judged.

use super::{DESCRIBED_BY, DESCRIBES, Selection, Through, targets};
use crate::catalog::{Naming, SetId};
use crate::document::{Change, Entry, Uri};
use crate::sync::changes::resource_digest as digest;
use std::collections::HashSet;

/// Digests of URIs that a plan holds at most, but for those of one entry: some 150 MB.
pub const MOST: usize = 7 << 20;

/// The first reading of the lists. Memory: some 20 bytes a record, a resource that it names, and a change; of [`MOST`] of them.
pub struct ChoicePlan {
    most: usize,
    changed: ChangedResources,
    chooser: Chooser,
}

/// Judges the entries of the lists and the changes that a [`ChoicePlan`] has read.
#[derive(Debug)]
pub struct Chooser {
    selection: Selection,
    naming: Naming,
    format: Described,
    chosen: Described,
}

/// Records of one kind, and the resources that they name as described: digests of URIs.
#[derive(Debug, Default)]
struct Described {
    records: HashSet<u64>,
    resources: HashSet<u64>,
}

/// Resources that changes are about: digests of URIs.
#[derive(Debug, Default)]
struct ChangedResources {
    /// Created or updated: the lists' entries of it do not count.
    stated: HashSet<u64>,
    /// Deleted from a set: the entry of that set's list does not count.
    dropped: HashSet<(SetId, u64)>,
}

impl ChoicePlan {
    /// A plan for `selection` under `naming`.
    pub fn new(selection: &Selection, naming: &Naming) -> ChoicePlan {
        ChoicePlan::within(selection, naming, MOST)
    }

    fn within(selection: &Selection, naming: &Naming, most: usize) -> ChoicePlan {
        let (format, chosen) = (Described::default(), Described::default());
        let chooser = Chooser { selection: selection.clone(), naming: naming.clone(), format, chosen };
        ChoicePlan { most, changed: ChangedResources::default(), chooser }
    }

    /// True if more is named than there is memory for: the rest was not noted, and this plan cannot choose.
    pub fn is_full(&self) -> bool {
        let described = [&self.chooser.format, &self.chooser.chosen].map(|it| it.records.len() + it.resources.len());
        described.iter().sum::<usize>() + self.changed.stated.len() + self.changed.dropped.len() > self.most
    }

    /// True if the lists must be read before they are chosen from. If not, the plan may be finished at once.
    pub fn reads_lists(&self) -> bool {
        self.chooser.selection.follows_links()
    }

    /// Takes the last change of a resource in a set that was made after its list. Call it before [`ChoicePlan::applied`].
    pub fn change(&mut self, set: SetId, change: Change, entry: &Entry) {
        if !self.is_full() {
            self.changed.add(set, change, &entry.loc);
            self.see(change, entry);
        }
    }

    /// Takes a change that the tree holds already. It counts unless one of its resource was taken before. Call it before
    /// [`ChoicePlan::list`].
    pub fn applied(&mut self, set: SetId, change: Change, entry: &Entry) {
        if !self.changed.supersedes(set, &entry.loc) {
            self.change(set, change, entry);
        }
    }

    /// Takes an entry of a set's list.
    pub fn list(&mut self, set: SetId, entry: &Entry) {
        if !self.is_full() && !self.changed.supersedes(set, &entry.loc) {
            self.see(Change::Created, entry);
        }
    }

    fn see(&mut self, change: Change, entry: &Entry) {
        if change == Change::Deleted {
            return;
        }
        let Chooser { selection, naming, format, chosen } = &mut self.chooser;
        let gives = selection.gives(entry, &path(selection, naming, entry));
        for (given, described) in [(gives.format, format), (gives.chosen, chosen)] {
            if given {
                described.records.insert(digest(&entry.loc));
                described.resources.extend(targets(&entry.links, DESCRIBES).map(digest));
            }
        }
    }

    /// The chooser, once all lists were read.
    pub fn finish(self) -> Chooser {
        self.chooser
    }
}

impl Chooser {
    /// True if `entry` is chosen. The entry of a deletion has nothing to choose by: do not ask about it.
    pub fn chooses(&self, entry: &Entry) -> bool {
        self.selection.chooses_through(entry, &path(&self.selection, &self.naming, entry), || Through {
            format: self.format.describes(entry),
            chosen: self.chosen.describes(entry),
        })
    }
}

impl Described {
    fn describes(&self, entry: &Entry) -> bool {
        self.resources.contains(&digest(&entry.loc))
            || targets(&entry.links, DESCRIBED_BY).any(|record| self.records.contains(&digest(record)))
    }
}

impl ChangedResources {
    fn add(&mut self, set: SetId, change: Change, uri: &Uri) {
        match change {
            Change::Deleted => self.dropped.insert((set, digest(uri))),
            Change::Created | Change::Updated => self.stated.insert(digest(uri)),
        };
    }

    /// True if the entry of a resource in the list of `set` does not count: a later change does.
    fn supersedes(&self, set: SetId, uri: &Uri) -> bool {
        let uri = digest(uri);
        self.stated.contains(&uri) || self.dropped.contains(&(set, uri))
    }
}

/// The path of `entry` in the tree, if paths count.
pub fn path(selection: &Selection, naming: &Naming, entry: &Entry) -> Box<str> {
    if selection.judges_paths() { naming.path(&entry.loc, entry.media_type.as_deref()).0.into() } else { "".into() }
}

#[cfg(test)]
mod tests {
    use super::super::Globs;
    use super::*;
    use crate::document::{Href, Link};

    const DC: &str = "http://purl.org/dc/terms/";
    const MODS: &str = "http://www.loc.gov/mods/v3";

    fn entry(name: &str, media_type: &str, links: &[(&str, &str)]) -> Entry {
        let absolute = |to: &str| if to.contains(':') { to.to_owned() } else { format!("http://h/{to}") };
        Entry {
            media_type: Some(media_type.into()),
            links: links.iter().map(|(rel, to)| Link::new(rel, Href::parse(&absolute(to)).unwrap())).collect(),
            ..Entry::new(Uri::parse(&format!("http://h/{name}")).unwrap())
        }
    }

    /// An item of two formats; `b1` links back, `b2` is described by its record's word alone, `b3` says by whom itself.
    fn lists() -> Vec<Entry> {
        vec![
            entry("b1.pdf", "application/pdf", &[("describedby", "dc"), ("describedby", "mods")]),
            entry("b2.txt", "text/plain", &[]),
            entry("b3.pdf", "application/pdf", &[("describedby", "dc")]),
            entry("b4.pdf", "application/pdf", &[("describedby", "mods")]),
            entry("lone", "text/plain", &[]),
            entry("dc", "application/xml", &[("describes", "b1.pdf"), ("describes", "b2.txt"), ("profile", DC)]),
            entry("mods", "application/xml", &[("describes", "b1.pdf"), ("describedby", MODS)]),
        ]
    }

    fn chosen(selection: &Selection, changes: &[(Change, Entry)]) -> Vec<String> {
        let naming = Naming::new("h", [], false).unwrap();
        let mut plan = ChoicePlan::new(selection, &naming);
        for (change, entry) in changes {
            plan.change(SetId(0), *change, entry);
        }
        for entry in lists() {
            plan.list(SetId(0), &entry);
        }
        let chooser = plan.finish();
        let changed = |entry: &Entry| changes.iter().any(|(_, changed)| changed.loc == entry.loc);
        let last = changes.iter().filter(|(change, _)| *change != Change::Deleted).map(|(_, entry)| entry.clone());
        let mut names: Vec<_> = lists()
            .into_iter()
            .filter(|entry| !changed(entry))
            .chain(last)
            .filter(|entry| chooser.chooses(entry))
            .map(|entry| entry.loc.path()[1..].to_owned())
            .collect();
        names.sort();
        names
    }

    fn conforms(format: &str) -> Selection {
        Selection { formats: vec![Href::parse(format).unwrap()], ..Selection::default() }
    }

    #[test]
    fn a_format_selects_records_and_described_by_either_link() {
        assert_eq!(chosen(&conforms(DC), &[]), ["b1.pdf", "b2.txt", "b3.pdf", "dc"]);
        assert_eq!(chosen(&conforms(MODS), &[]), ["b1.pdf", "b4.pdf", "mods"]);
        assert!(chosen(&conforms("urn:other"), &[]).is_empty());
    }

    #[test]
    fn other_kinds_must_agree_with_what_a_format_brings() {
        let types = |kind: &str| Selection { types: vec![kind.into()], ..conforms(DC) };

        assert_eq!(chosen(&types("application/pdf"), &[]), ["b1.pdf", "b3.pdf"]);
        assert_eq!(chosen(&types("application/xml"), &[]), ["dc"]);
    }

    #[test]
    fn with_describes_adds_what_the_chosen_records_describe() {
        let mut excluded = Globs::default();
        excluded.add("*.txt").unwrap();
        let records = Selection { types: vec!["application/xml".into()], with_described: true, ..Selection::default() };

        assert_eq!(chosen(&records, &[]), ["b1.pdf", "b2.txt", "b3.pdf", "b4.pdf", "dc", "mods"]);
        let of_format = Selection { formats: conforms(MODS).formats, ..records.clone() };
        assert_eq!(chosen(&of_format, &[]), ["b1.pdf", "b4.pdf", "mods"]);
        let without_texts = Selection { excluded, ..records };
        assert_eq!(chosen(&without_texts, &[]), ["b1.pdf", "b3.pdf", "b4.pdf", "dc", "mods"]);
    }

    #[test]
    fn a_plan_notes_no_more_than_there_is_memory_for() {
        let mut plan = ChoicePlan::within(&conforms(DC), &Naming::new("h", [], false).unwrap(), 3);
        for number in 0..99 {
            assert_eq!(plan.is_full(), number >= 3, "{number}");
            plan.list(SetId(0), &entry(&number.to_string(), "text/xml", &[("describes", "a"), ("profile", DC)]));
        }

        assert_eq!(plan.finish().format.records.len(), 3);
    }

    #[test]
    fn with_describes_alone_leaves_out_nothing() {
        let all = Selection { with_described: true, ..Selection::default() };

        assert!(!all.follows_links());
        assert_eq!(chosen(&all, &[]).len(), lists().len());
    }

    #[test]
    fn a_change_made_after_the_lists_counts_in_their_place() {
        let gone = (Change::Deleted, Entry::new(Uri::parse("http://h/dc").unwrap()));
        let became = (Change::Updated, entry("dc", "application/xml", &[("describes", "b1.pdf"), ("profile", MODS)]));
        let lone = (Change::Created, entry("new", "text/xml", &[("describes", "lone"), ("profile", DC)]));

        assert!(chosen(&conforms(DC), &[gone]).is_empty());
        assert_eq!(chosen(&conforms(MODS), &[became]), ["b1.pdf", "b3.pdf", "b4.pdf", "dc", "mods"]);
        assert_eq!(chosen(&conforms(DC), &[lone]), ["b1.pdf", "b2.txt", "b3.pdf", "dc", "lone", "new"]);
    }
}
