//! Which documents of the Source are followed, and for which set of resources.

use crate::catalog::SetId;
use crate::document::Capability;
use crate::source::{DocumentLocation, Set, Source};

/// The documents of one set, by what they are followed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedSet {
    /// Its number in the catalog, given for good.
    pub id: SetId,
    /// Its Capability List; of a list that stands alone the list.
    pub name: String,
    /// Resource Lists and their indexes.
    pub lists: Vec<DocumentLocation>,
    /// Resource Dumps and their indexes.
    pub dumps: Vec<DocumentLocation>,
    /// Change Lists and their indexes; where there is none, the Change List Archives.
    pub changes: Vec<DocumentLocation>,
    /// Change Dumps and their indexes; where there is none, the Change Dump Archives.
    pub change_dumps: Vec<DocumentLocation>,
    /// What was published earlier.
    pub archives: Archives,
}

/// The archives of one set, by what they list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Archives {
    /// Of Resource Lists.
    pub lists: Vec<DocumentLocation>,
    /// Of Resource Dumps.
    pub dumps: Vec<DocumentLocation>,
    /// Of Change Lists.
    pub changes: Vec<DocumentLocation>,
    /// Of Change Dumps.
    pub change_dumps: Vec<DocumentLocation>,
}

/// Why a document is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It says what exists.
    List,
    /// It holds what exists, packed.
    Dump,
    /// It says what has changed.
    Changes,
    /// It holds what has changed, packed.
    ChangeDump,
}

impl FollowedSet {
    /// Where the statements of what exists come from: the lists, and only where there are none the dumps.
    pub fn baseline(&self) -> (Purpose, &[DocumentLocation]) {
        if self.lists.is_empty() { (Purpose::Dump, &self.dumps) } else { (Purpose::List, &self.lists) }
    }

    /// Where the statements of what has changed come from: the lists, and only where there are none the dumps.
    pub fn incremental(&self) -> (Purpose, &[DocumentLocation]) {
        if self.changes.is_empty() {
            (Purpose::ChangeDump, &self.change_dumps)
        } else {
            (Purpose::Changes, &self.changes)
        }
    }

    /// Whether anything in it says what exists, or what once existed.
    pub fn offers_what_exists(&self) -> bool {
        [&self.lists, &self.dumps, &self.archives.lists, &self.archives.dumps].iter().any(|it| !it.is_empty())
    }

    /// The archives of what [`FollowedSet::incremental`] names that are not followed themselves.
    pub fn earlier_changes(&self) -> impl Iterator<Item = &DocumentLocation> {
        let (purpose, roots) = self.incremental();
        let archives = match purpose {
            Purpose::ChangeDump => &self.archives.change_dumps,
            _ => &self.archives.changes,
        };
        archives.iter().filter(|archive| !roots.contains(archive))
    }

    /// Everything that is asked for regularly.
    pub fn documents(&self) -> impl Iterator<Item = &DocumentLocation> {
        self.baseline().1.iter().chain(self.incremental().1)
    }
}

/// The sets of `source`, each with the number that `number` gives to its name. A document that several sets name is followed
/// for the first: its content is the same for all.
pub fn followed(source: &Source, number: &mut dyn FnMut(&str) -> SetId) -> Vec<FollowedSet> {
    let mut taken: Vec<&DocumentLocation> = Vec::new();
    let mut sets = Vec::with_capacity(source.sets.len());
    for set in &source.sets {
        let Some(name) = name(set) else { continue };
        let id = number(&name);
        let mut of = |wanted: Capability| -> Vec<DocumentLocation> {
            let mut found = Vec::new();
            for (_, location) in set.documents.iter().filter(|(capability, _)| *capability == wanted) {
                if !taken.contains(&location) {
                    taken.push(location);
                    found.push(location.clone());
                }
            }
            found
        };
        let lists = of(Capability::ResourceList);
        let dumps = of(Capability::ResourceDump);
        let archives = Archives {
            lists: of(Capability::ResourceListArchive),
            dumps: of(Capability::ResourceDumpArchive),
            changes: of(Capability::ChangeListArchive),
            change_dumps: of(Capability::ChangeDumpArchive),
        };
        let or_archive = |current: Vec<_>, archive: &Vec<_>| if current.is_empty() { archive.clone() } else { current };
        let changes = or_archive(of(Capability::ChangeList), &archives.changes);
        let change_dumps = or_archive(of(Capability::ChangeDump), &archives.change_dumps);
        sets.push(FollowedSet { id, name, lists, dumps, changes, change_dumps, archives });
    }
    sets
}

/// What distinguishes a set from the others, today and tomorrow.
fn name(set: &Set) -> Option<String> {
    match &set.capability_list {
        Some(list) => Some(list.as_str().to_owned()),
        None => set.documents.first().map(|(_, location)| location.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Uri;

    fn at(path: &str) -> DocumentLocation {
        DocumentLocation::Uri(Uri::parse(&format!("http://example.org/{path}")).unwrap())
    }

    fn set(name: &str, documents: &[(Capability, &str)]) -> Set {
        Set {
            capability_list: Some(Uri::parse(&format!("http://example.org/{name}")).unwrap()),
            described_by: None,
            documents: documents.iter().map(|(capability, path)| (capability.clone(), at(path))).collect(),
            channels: Vec::new(),
        }
    }

    fn source(sets: Vec<Set>) -> Source {
        Source {
            entry: None,
            own_authority: None,
            moved_to: None,
            description: None,
            sets,
            missing: Vec::new(),
            deviations: Vec::new(),
        }
    }

    #[test]
    fn an_archive_is_followed_only_where_there_is_no_current_document() {
        use Capability::*;
        let both = set("a", &[(ChangeListArchive, "old"), (ChangeList, "new"), (ChangeDumpArchive, "dumps")]);

        let sets = followed(&source(vec![both]), &mut |_| SetId(0));

        assert_eq!(sets[0].changes, [at("new")]);
        assert_eq!(sets[0].incremental(), (Purpose::Changes, &[at("new")][..]));
        assert_eq!(sets[0].change_dumps, [at("dumps")]);
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
