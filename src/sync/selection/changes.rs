//! Choosing among changes of single resources, without the lists: each is judged with the others of its batch and with
//! the tree.
//!
//! Where these are not enough, the lists must be chosen from again ([`Verdict::NeedsBaseline`]), by a [`super::plan::Plan`]
//! that knows the changes. That costs no transfer where the lists have not changed. There are three such cases: a record begins
//! to be chosen and describes a resource that is neither in the batch nor in the tree; a record ceases to be chosen and
//! what it had brought stays; a resource loses the link that brought it. A record that names resources that it
//! describes is taken to name them all.

use super::plan::path;
use super::{DESCRIBED_BY, DESCRIBES, Selection, Through, targets};
use crate::catalog::{CatalogError, Naming, Resource};
use crate::document::{Change, Entry, Uri};
use std::collections::{HashMap, HashSet};

/// What is to be done about a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Apply it.
    Applies,
    /// The resource is not chosen (any more): apply it as a deletion, which does nothing where it is not in the tree.
    Ceases,
    /// The lists must be chosen from again.
    NeedsBaseline,
}

/// Finds the resource of a URI in the tree.
pub type Tree<'a> = &'a dyn Fn(&Uri) -> Result<Option<Resource>, CatalogError>;

/// Judges the changes of one batch, of each resource the last.
pub struct Judge<'a> {
    selection: &'a Selection,
    naming: &'a Naming,
    tree: Tree<'a>,
    /// What each changed resource is after the batch; `None` where it is deleted.
    after: HashMap<Uri, Option<Entry>>,
    /// What the batch's records do for the resources that they describe.
    given: HashMap<Uri, Through>,
}

impl<'a> Judge<'a> {
    /// A judge of changes to `tree`, with the paths of `naming`.
    pub fn new(selection: &'a Selection, naming: &'a Naming, tree: Tree<'a>) -> Judge<'a> {
        Judge { selection, naming, tree, after: HashMap::new(), given: HashMap::new() }
    }

    /// Takes a change, the last of its resource. Take all before you judge the first.
    pub fn change(&mut self, change: Change, entry: &Entry) {
        if !self.selection.follows_links() {
            return;
        }
        let after = (change != Change::Deleted).then(|| entry.clone());
        if after.is_some() {
            let gives = self.gives(entry);
            for described in targets(&entry.links, DESCRIBES) {
                let given = self.given.entry(described.clone()).or_default();
                *given = given.or(gives);
            }
        }
        self.after.insert(entry.loc.clone(), after);
    }

    /// What is to be done about a change that was taken.
    ///
    /// # Errors
    /// Those of the tree.
    pub fn judge(&self, change: Change, entry: &Entry) -> Result<Verdict, CatalogError> {
        if !self.selection.follows_links() {
            let chosen =
                change == Change::Deleted || self.selection.chooses(entry, &path(self.selection, self.naming, entry));
            return Ok(if chosen { Verdict::Applies } else { Verdict::Ceases });
        }
        let before = (self.tree)(&entry.loc)?.map(entry_of);
        let after = (change != Change::Deleted).then_some(entry);
        if self.unsettles(change, before.as_ref(), after)? {
            return Ok(Verdict::NeedsBaseline);
        }
        match after {
            Some(after) => self.stays(before.as_ref(), after),
            None => Ok(Verdict::Applies),
        }
    }

    /// Whether a resource that is there after the batch is chosen.
    fn stays(&self, before: Option<&Entry>, after: &Entry) -> Result<Verdict, CatalogError> {
        let mut unknown = false;
        let chosen = self.chooses(after, |record| match self.after.get(record) {
            Some(changed) => Ok(changed.clone()),
            None => {
                let listed = (self.tree)(record)?.map(entry_of);
                // A record of the format that is not chosen itself is not in the tree.
                unknown |= listed.is_none() && self.selection.is_narrow();
                Ok(listed)
            }
        })?;
        if chosen {
            return Ok(Verdict::Applies);
        }
        let every_way = Through { format: true, chosen: true };
        let never = !self.selection.chooses_through(after, &self.path(after), || Ok::<_, CatalogError>(every_way))?;
        match before {
            _ if never => Ok(Verdict::Ceases),
            None if unknown => Ok(Verdict::NeedsBaseline),
            None => Ok(Verdict::Ceases),
            Some(before) if self.selection.chooses(before, &self.path(before)) => Ok(Verdict::Ceases),
            // Links alone had brought it, and none of them was taken back.
            Some(before) if !self.chooses(before, |record| Ok((self.tree)(record)?.map(entry_of)))? => {
                Ok(Verdict::Applies)
            }
            Some(_) => Ok(Verdict::NeedsBaseline),
        }
    }

    /// Whether `entry` is chosen by its own links and those of the batch's records; `record` finds a record that describes it.
    fn chooses(
        &self,
        entry: &Entry,
        mut record: impl FnMut(&Uri) -> Result<Option<Entry>, CatalogError>,
    ) -> Result<bool, CatalogError> {
        self.selection.chooses_through(entry, &self.path(entry), || {
            let mut through = self.given.get(&entry.loc).copied().unwrap_or_default();
            for uri in targets(&entry.links, DESCRIBED_BY) {
                through = through.or(record(uri)?.map(|record| self.gives(&record)).unwrap_or_default());
            }
            Ok(through)
        })
    }

    /// Whether a record's change may bring or remove resources that are not in the batch.
    fn unsettles<'e>(
        &self,
        change: Change,
        before: Option<&'e Entry>,
        after: Option<&'e Entry>,
    ) -> Result<bool, CatalogError> {
        let described = |record: &Entry| -> HashSet<Uri> { targets(&record.links, DESCRIBES).cloned().collect() };
        let giving = |record: Option<&'e Entry>| record.filter(|record| self.gives(record) != Through::default());
        let (before, after) = (giving(before), giving(after));
        // Where a record names nothing, only the resources' links state that it describes them.
        let silent = |record: Option<&Entry>| {
            record.is_some_and(|record| self.gives(record).format && described(record).is_empty())
        };
        if before.is_none() && silent(after) && change == Change::Updated || after.is_none() && silent(before) {
            return Ok(true);
        }
        let brought = before.map(described).unwrap_or_default();
        let brings = after.map(described).unwrap_or_default();
        for begun in brings.difference(&brought) {
            if !self.after.contains_key(begun) && (self.tree)(begun)?.is_none() {
                return Ok(true);
            }
        }
        for left in brought.difference(&brings) {
            let stays = match self.after.get(left) {
                Some(after) => after.is_some(),
                None => (self.tree)(left)?.is_some(),
            };
            if stays {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn gives(&self, record: &Entry) -> Through {
        self.selection.gives(record, &self.path(record))
    }

    fn path(&self, entry: &Entry) -> Box<str> {
        path(self.selection, self.naming, entry)
    }
}

/// The entry that a resource in the tree is judged by.
pub fn entry_of(resource: Resource) -> Entry {
    Entry { media_type: resource.media_type, links: resource.links, ..Entry::new(resource.uri) }
}

#[cfg(test)]
mod tests {
    use super::super::Globs;
    use super::*;
    use crate::document::{Href, Link};
    use Change::*;
    use Verdict::*;

    const DC: &str = "urn:dc";
    const MODS: &str = "urn:mods";

    fn uri(name: &str) -> Uri {
        Uri::parse(&format!("http://h/{name}")).unwrap()
    }

    fn entry(name: &str, links: &[(&str, &str)]) -> Entry {
        let absolute = |to: &str| if to.contains(':') { to.to_owned() } else { uri(to).to_string() };
        let media_type = name.split_once('.').map(|(_, ending)| format!("application/{ending}").into());
        let links = links.iter().map(|(rel, to)| Link::new(rel, Href::parse(&absolute(to)).unwrap())).collect();
        Entry { media_type, links, ..Entry::new(uri(name)) }
    }

    /// The verdicts on `changes` to a tree of `listed`, in their order.
    fn verdicts(selection: &Selection, listed: &[Entry], changes: &[(Change, Entry)]) -> Vec<Verdict> {
        let naming = Naming::new("h", [], false).unwrap();
        let tree = |wanted: &Uri| {
            Ok(listed.iter().find(|entry| entry.loc == *wanted).map(|entry| Resource {
                uri: entry.loc.clone(),
                lastmod: None,
                changefreq: None,
                length: None,
                hashes: Vec::new(),
                media_type: entry.media_type.clone(),
                encoding: None,
                links: entry.links.clone(),
                sets: Vec::new(),
                member: None,
            }))
        };
        let mut judge = Judge::new(selection, &naming, &tree);
        for (change, entry) in changes {
            judge.change(*change, entry);
        }
        changes.iter().map(|(change, entry)| judge.judge(*change, entry).unwrap()).collect()
    }

    fn conforms(format: &str) -> Selection {
        Selection { formats: vec![Href::parse(format).unwrap()], ..Selection::default() }
    }

    /// A record `dc` of two resources, one of which links back.
    fn item() -> [Entry; 3] {
        [
            entry("dc", &[("describes", "a.pdf"), ("describes", "b.txt"), ("profile", DC)]),
            entry("a.pdf", &[("describedby", "dc")]),
            entry("b.txt", &[]),
        ]
    }

    #[test]
    fn without_links_each_change_is_judged_alone() {
        let mut included = Globs::default();
        included.add("*.pdf").unwrap();
        let selection = Selection { included, ..Selection::default() };
        let changes = [(Created, entry("a.pdf", &[])), (Updated, entry("b.txt", &[])), (Deleted, entry("b.txt", &[]))];

        assert_eq!(verdicts(&selection, &[], &changes), [Applies, Ceases, Applies]);
    }

    #[test]
    fn an_update_may_cease_or_begin_to_match() {
        let selection = Selection { collections: vec![Href::parse("urn:c").unwrap()], ..Selection::default() };
        let listed = [entry("a", &[("collection", "urn:c")])];
        let changes = [(Updated, entry("a", &[])), (Updated, entry("b", &[("collection", "urn:c")]))];

        assert_eq!(verdicts(&selection, &listed, &changes), [Ceases, Applies]);
    }

    #[test]
    fn an_item_that_comes_and_goes_as_a_whole_needs_no_list() {
        let created = item().map(|entry| (Created, entry));
        let deleted = item().map(|entry| (Deleted, Entry::new(entry.loc)));
        let other = [(Created, entry("mods", &[("describes", "c"), ("profile", MODS)])), (Created, entry("c", &[]))];

        assert_eq!(verdicts(&conforms(DC), &[], &created), [Applies; 3]);
        assert_eq!(verdicts(&conforms(DC), &item(), &deleted), [Applies; 3]);
        assert_eq!(verdicts(&conforms(DC), &item(), &other), [Ceases; 2]);
    }

    #[test]
    fn what_is_in_the_tree_is_updated_whichever_link_brought_it() {
        for index in 0..3 {
            let change = [(Updated, item()[index].clone())];

            assert_eq!(verdicts(&conforms(DC), &item(), &change), [Applies], "{index}");
        }
    }

    #[test]
    fn a_resource_added_to_an_item_is_found_by_its_own_link() {
        let added = [(Created, entry("c.pdf", &[("describedby", "dc")]))];
        let elsewhere = [(Created, entry("c.pdf", &[("describedby", "mods")]))];

        assert_eq!(verdicts(&conforms(DC), &item(), &added), [Applies]);
        assert_eq!(verdicts(&conforms(DC), &item(), &elsewhere), [Ceases]);
    }

    #[test]
    fn a_record_that_begins_to_match_needs_what_it_describes() {
        let begins = (Updated, entry("mods", &[("describes", "x"), ("profile", DC)]));
        let silent = (Updated, entry("mods", &[("profile", DC)]));
        let described = (Updated, entry("x", &[]));

        assert_eq!(verdicts(&conforms(DC), &item(), std::slice::from_ref(&begins)), [NeedsBaseline]);
        assert_eq!(verdicts(&conforms(DC), &item(), &[silent]), [NeedsBaseline]);
        assert_eq!(verdicts(&conforms(DC), &item(), &[begins, described]), [Applies, Applies]);
    }

    #[test]
    fn a_record_that_ceases_to_match_may_need_the_lists() {
        let became = [(Updated, entry("dc", &[("describes", "a.pdf"), ("profile", MODS)]))];
        let gone = [(Deleted, entry("dc", &[]))];
        let without_b = [(Updated, entry("dc", &[("describes", "a.pdf"), ("profile", DC)]))];

        for change in [became, gone, without_b] {
            assert_eq!(verdicts(&conforms(DC), &item(), &change), [NeedsBaseline], "{change:?}");
        }
    }

    #[test]
    fn a_resource_that_loses_its_link_needs_the_lists() {
        let listed = [entry("dc", &[("profile", DC)]), entry("a.pdf", &[("describedby", "dc")])];

        assert_eq!(verdicts(&conforms(DC), &listed, &[(Updated, entry("a.pdf", &[]))]), [NeedsBaseline]);
    }

    #[test]
    fn an_unknown_record_may_be_of_the_format() {
        let selection = Selection { types: vec!["application/pdf".into()], ..conforms(DC) };
        let added = entry("c.pdf", &[("describedby", "dc")]);
        let record = entry("dc", &[("describes", "c.pdf"), ("profile", DC)]);

        assert_eq!(verdicts(&selection, &[], &[(Created, added.clone())]), [NeedsBaseline]);
        assert_eq!(verdicts(&selection, &[], &[(Created, record), (Created, added)]), [Ceases, Applies]);
        let text = entry("c.txt", &[("describedby", "dc")]);
        assert_eq!(verdicts(&selection, &[], &[(Created, text)]), [Ceases]);
    }

    #[test]
    fn with_describes_needs_lists_only_for_what_records_describe() {
        let selection =
            Selection { types: vec!["application/xml".into()], with_described: true, ..Selection::default() };
        let record = entry("m.xml", &[("describes", "a.pdf")]);
        let listed = [record.clone(), entry("a.pdf", &[]), entry("n.xml", &[])];

        let created = [(Created, record), (Created, entry("a.pdf", &[])), (Created, entry("b.pdf", &[]))];
        assert_eq!(verdicts(&selection, &[], &created), [Applies, Applies, Ceases]);
        assert_eq!(verdicts(&selection, &listed, &[(Deleted, entry("n.xml", &[]))]), [Applies]);
        assert_eq!(verdicts(&selection, &listed, &[(Deleted, entry("m.xml", &[]))]), [NeedsBaseline]);
        let added = [(Updated, entry("m.xml", &[("describes", "a.pdf"), ("describes", "new.pdf")]))];
        assert_eq!(verdicts(&selection, &listed, &added), [NeedsBaseline]);
    }
}
