//! The documents of the Source that are followed, set by set.

use crate::catalog::SetId;
use crate::document::{Capability, Uri};
use crate::source::{DocumentLocation, Source};
use std::collections::HashSet;

/// A followed set: its documents, by what they are followed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedSet {
    /// Its number in the catalog, given for good.
    pub id: SetId,
    /// Its Capability List; the list itself where that stands alone.
    pub name: String,
    /// Resource Lists and their indexes.
    pub lists: Vec<DocumentLocation>,
    /// Resource Dumps and their indexes.
    pub dumps: Vec<DocumentLocation>,
    /// Archives of Resource Lists.
    pub archived_lists: Vec<DocumentLocation>,
    /// Archives of Resource Dumps.
    pub archived_dumps: Vec<DocumentLocation>,
    /// The sources of changes: Change Lists and their indexes, and only where there are none Change
    /// Dumps; their archives where there is no current document.
    pub changes: Vec<DocumentLocation>,
    /// True if these are Change Dumps.
    pub are_packed: bool,
    /// The archives of their kind that are not among them.
    pub earlier_changes: Vec<DocumentLocation>,
}

impl FollowedSet {
    /// The sources of what exists: the lists, and only where there are none the dumps.
    pub fn list_roots(&self) -> &[DocumentLocation] {
        if self.lists.is_empty() { &self.dumps } else { &self.lists }
    }

    /// True if anything in it says what exists, or what once existed.
    pub fn offers_what_exists(&self) -> bool {
        [&self.lists, &self.dumps, &self.archived_lists, &self.archived_dumps].iter().any(|it| !it.is_empty())
    }

    /// Everything that is asked for regularly.
    pub fn documents(&self) -> impl Iterator<Item = &DocumentLocation> {
        self.list_roots().iter().chain(&self.changes)
    }
}

/// The sets of `source`, each with the number that `number` gives to its name. A document that several sets name is followed
/// for the first: its content is the same for all.
pub fn followed(source: &Source, number: &mut dyn FnMut(&str) -> SetId) -> Vec<FollowedSet> {
    let mut taken: HashSet<&DocumentLocation> = HashSet::new();
    let mut sets = Vec::with_capacity(source.sets.len());
    for set in &source.sets {
        // Its name distinguishes it from the others, today and tomorrow.
        let first = set.documents.first().map(|(_, location)| location.to_string());
        let Some(name) = set.capability_list.as_ref().map(Uri::to_string).or(first) else { continue };
        let mut of = |wanted: Capability| -> Vec<DocumentLocation> {
            let documents = set.documents.iter().filter(|(capability, _)| *capability == wanted);
            documents.filter(|(_, location)| taken.insert(location)).map(|(_, location)| location.clone()).collect()
        };
        let [lists, dumps] = [Capability::ResourceList, Capability::ResourceDump].map(&mut of);
        let [archived_lists, archived_dumps] =
            [Capability::ResourceListArchive, Capability::ResourceDumpArchive].map(&mut of);
        let mut current_or_archived = |current, archive| match (of(current), of(archive)) {
            (current, archives) if current.is_empty() => (archives, current),
            both => both,
        };
        let listed = current_or_archived(Capability::ChangeList, Capability::ChangeListArchive);
        let packed = current_or_archived(Capability::ChangeDump, Capability::ChangeDumpArchive);
        let are_packed = listed.0.is_empty();
        let (changes, earlier_changes) = if are_packed { packed } else { listed };
        let id = number(&name);
        sets.push(FollowedSet {
            id,
            name,
            lists,
            dumps,
            archived_lists,
            archived_dumps,
            changes,
            are_packed,
            earlier_changes,
        });
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Set;

    fn at(path: &str) -> DocumentLocation {
        DocumentLocation::Uri(Uri::parse(&format!("http://example.org/{path}")).unwrap())
    }

    fn set(name: &str, documents: &[(Capability, &str)]) -> Set {
        Set {
            capability_list: Some(Uri::parse(&format!("http://example.org/{name}")).unwrap()),
            documents: documents.iter().map(|(capability, path)| (capability.clone(), at(path))).collect(),
            ..Set::default()
        }
    }

    fn source(sets: Vec<Set>) -> Source {
        Source { sets, ..Source::default() }
    }

    #[test]
    fn an_archive_is_followed_only_without_a_current_document() {
        use Capability::*;
        let both = set("a", &[(ChangeListArchive, "old"), (ChangeList, "new"), (ChangeDumpArchive, "dumps")]);

        let sets = followed(&source(vec![both]), &mut |_| SetId(0));

        assert_eq!((&sets[0].changes, &sets[0].earlier_changes), (&vec![at("new")], &vec![at("old")]));
        let archived = set("a", &[(ChangeListArchive, "old"), (ChangeDumpArchive, "dumps")]);
        let sets = followed(&source(vec![archived]), &mut |_| SetId(0));
        assert_eq!((&sets[0].changes, &sets[0].earlier_changes), (&vec![at("old")], &vec![]));
        let packed = set("a", &[(ChangeDumpArchive, "dumps")]);
        let sets = followed(&source(vec![packed]), &mut |_| SetId(0));
        assert!(sets[0].are_packed && sets[0].changes == [at("dumps")]);
    }

    #[test]
    fn dumps_are_followed_only_where_there_are_no_lists() {
        use Capability::*;
        let packed = set("a", &[(ResourceDump, "dump"), (ChangeDump, "changes")]);
        let listed = set("b", &[(ResourceDump, "d"), (ResourceList, "list"), (ChangeDump, "c")]);

        let sets = followed(&source(vec![packed, listed]), &mut |_| SetId(0));

        assert_eq!(sets[0].documents().cloned().collect::<Vec<_>>(), [at("dump"), at("changes")]);
        assert_eq!(sets[1].documents().cloned().collect::<Vec<_>>(), [at("list"), at("c")]);
    }

    #[test]
    fn a_document_of_two_sets_is_followed_once() {
        let [a, b] = ["a", "b"].map(|name| set(name, &[(Capability::ResourceList, "list")]));

        let sets = followed(&source(vec![a, b]), &mut |_| SetId(0));

        assert_eq!((sets[0].lists.len(), sets[1].lists.len()), (1, 0));
    }
}
