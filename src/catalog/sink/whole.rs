//! A revision that is written whole, append-only, into a store that takes the place of the one there was: the first, and one that shares
//! little with the one before. Nothing of what it writes is read, but for folders that turn out to be empty: they are removed in place.

use super::super::base::Before;
use super::super::departing::Departed;
use super::super::edit::Comparison;
use super::super::group::{HeldState, Listing, PathStatement, SortedStatement};
use super::super::join::{File, Folder, Visitor, beneath, walk};
use super::super::naming::resolve::uri;
use super::super::sort_key::slashed;
use super::super::store::codec::{damaged, unseal};
use super::super::store::keys::{ino_key, statement_key};
use super::super::store::record::{Named, NodeRecord, RevisionRecord, held_row};
use super::super::store::{ROOT, ROOT_ENTRY, Store, TableId};
use super::super::version::{self, Coming};
use super::super::{Catalog, CatalogError, Committed, Kind, Losses, SetId};
use super::in_place::{PutRows, settle};
use super::rows::Rows;
use super::transaction::in_transaction;
use super::tree::{CommittedWith, Sink, TreeWriter, orphan_row};
use crate::document::{Timestamp, Uri};
use std::collections::BTreeMap;

/// A tree on its way into an empty store.
pub struct Rebuild<'t> {
    catalog: &'t Catalog,
    listing: &'t Listing,
    target: &'t Store,
    comparison: Comparison<'t>,
    tree: TreeWriter<'t, 't>,
    left_out: BTreeMap<String, u64>,
    /// The folder whose names are written, and whether it has none so far.
    folder: Folder,
    is_empty: bool,
    /// Folders in which nothing is, as all that lists have of them is superseded.
    emptied: Vec<u64>,
}

impl<'t> Rebuild<'t> {
    /// Writes the tree of `statement`, from its beginning, into the empty store `target`. Its numbers follow those of `last`. It is not
    /// shown before that store takes the place of the other.
    pub fn begin(
        catalog: &'t Catalog,
        before: &'t Before<'t>,
        listing: &'t Listing,
        statement: &mut SortedStatement,
        (target, last): (&'t Store, RevisionRecord),
    ) -> Result<Rebuild<'t>, CatalogError> {
        let is_first = before.revision.is_none();
        catalog.seen.lately();
        let sink = Sink::Whole(Rows::begin(target, &catalog.spill_folder, is_first)?, &catalog.seen);
        let mut rebuild = Rebuild {
            catalog,
            listing,
            target,
            comparison: Comparison::new(catalog, before, listing),
            tree: TreeWriter::new(&catalog.spill_folder, before, &listing.naming, last, sink),
            left_out: BTreeMap::new(),
            folder: Folder { ino: ROOT, is_new: is_first },
            is_empty: false,
            emptied: Vec::new(),
        };
        let mut root = PathStatement::default();
        statement.next(&mut root, listing)?;
        rebuild.put_root(root.folder)?;
        rebuild.left_out = walk(before, listing, statement, &mut rebuild)?;
        rebuild.enter(Folder { ino: ROOT, is_new: false })?;
        Ok(rebuild)
    }

    /// What the tree before has, and this one has not.
    pub fn losses(&mut self) -> Result<(Losses, Departed), CatalogError> {
        self.comparison.losses()
    }

    /// Commits the tree, with the `rows` of the journal.
    pub fn finish(self, state: &[u8], rows: &mut PutRows<'_>) -> Result<Committed, CatalogError> {
        let Rebuild { catalog, listing, target, mut tree, left_out, emptied, .. } = self;
        let sets = self.comparison.tally.table(&listing.lists);
        let with = CommittedWith { at: listing.at, state, sets: &sets };
        rows(&mut tree)?;
        let (mut revision, mut effects) = tree.finish(&with)?;
        // What a change in place holds in memory is bounded.
        let most = usize::try_from(catalog.most_in_place().max(1)).unwrap_or(usize::MAX);
        for emptied in emptied.chunks(most) {
            let old = target.env.read_txn()?;
            let mut before = Before::read(target, &old)?;
            revision.number -= 1;
            before.revision = Some(revision);
            let paths = emptied.iter().filter_map(|ino| target.path_of(&old, *ino).transpose());
            let paths = paths.collect::<Result<_, _>>()?;
            (revision, effects) = in_transaction(catalog, target, |transaction| {
                let sink = Sink::InPlace(transaction);
                let mut tree = TreeWriter::new(&catalog.spill_folder, &before, &listing.naming, revision, sink);
                tree.effects = effects;
                settle(&mut tree, BTreeMap::new(), paths)?;
                tree.finish(&with)
            })?;
        }
        Ok(effects.committed(revision.number, left_out))
    }

    /// Writes the root, and what has lost its name before and stays readable.
    fn put_root(&mut self, newest: Option<Timestamp>) -> Result<(), CatalogError> {
        let (now, Before { store, old, .. }) = (self.tree.now, self.tree.before);
        if self.folder.is_new {
            let mtime = newest.unwrap_or(now).min(now);
            let node = NodeRecord { ino: ROOT, mtime, ctime: now, name: b"", resource: None };
            return self.tree.put(&Named { parent: 0, entry: ROOT_ENTRY, node });
        }
        self.tree.put(&store.by_ino(old, ROOT)?.ok_or_else(|| damaged("absence", &ino_key(ROOT)))?)?;
        for pair in store.orphans.iter(old)? {
            let (key, sealed) = pair?;
            self.tree.row(TableId::Orphans, key, Some(unseal(key, sealed)?))?;
        }
        Ok(())
    }

    fn remove_beneath(&mut self, before: &Named<'_>) -> Result<(), CatalogError> {
        if before.node.kind() == Kind::File {
            return Ok(());
        }
        let Before { store, old, .. } = self.tree.before;
        beneath(store, old, before.node.ino, &mut |named| self.tree.remove(&named, None))
    }
}

/// Enters among the orphans of `target` what lies in folders of the revision `before` that the kernel first saw since this was done last, or
/// `target` began to be written. Not until there are none: a program that walks the tree sees more of them as long as it walks.
pub fn add_late_orphans(catalog: &Catalog, before: &Before<'_>, target: &Store) -> Result<(), CatalogError> {
    // What a change in place holds in memory is bounded.
    let most = usize::try_from(catalog.most_in_place().max(1)).unwrap_or(usize::MAX);
    let add = |late: &mut Vec<Named<'_>>| {
        in_transaction(catalog, target, |transaction| {
            for old in late.drain(..) {
                let key = ino_key(old.node.ino);
                if transaction.row(TableId::Inodes, &key)?.or(transaction.row(TableId::Orphans, &key)?).is_none() {
                    let row = orphan_row(before, &old, None, version::now())?;
                    transaction.put(TableId::Orphans, &key, |out| out.extend_from_slice(&row))?;
                }
            }
            Ok(())
        })
    };
    let mut late = Vec::new();
    for folder in catalog.seen.lately().iter() {
        for child in before.store.children(before.old, folder.0, 0)? {
            late.push(child?);
            if late.len() >= most {
                add(&mut late)?;
            }
        }
    }
    add(&mut late)
}

impl<'t> Visitor<'t> for Rebuild<'t> {
    fn enter(&mut self, folder: Folder) -> Result<(), CatalogError> {
        if self.is_empty && self.folder.ino != ROOT {
            self.emptied.push(self.folder.ino);
        }
        (self.folder, self.is_empty) = (folder, true);
        Ok(())
    }

    fn folder(&mut self, name: &[u8], newest: Timestamp, before: Option<Named<'t>>) -> Result<Folder, CatalogError> {
        self.is_empty = false;
        self.comparison.folder(name, newest, before)?;
        match before {
            Some(known) if known.node.kind() == Kind::Folder => {
                self.tree.keep(&known)?;
                Ok(Folder { ino: known.node.ino, is_new: false })
            }
            file => {
                let ino = self.tree.put_folder(self.folder, name, file.as_ref().map(|file| (file, None)), newest)?;
                Ok(Folder { ino, is_new: true })
            }
        }
    }

    fn file(&mut self, file: File<'_>, before: Option<Named<'t>>) -> Result<(), CatalogError> {
        let File { name, path, resource, time, is_news, .. } = file;
        self.is_empty = false;
        let same_uri = self.comparison.compare(&file, before)?;
        let mut known_uri = None;
        if let Some(known) = &before {
            self.remove_beneath(known)?;
            if same_uri && self.tree.keeps_orphans_of(known.parent) {
                // Its URI need not be found by its place.
                known_uri = slashed(path).and_then(|path| uri(&resource, &path, &self.listing.naming));
            }
        }
        let coming = Coming { resource, same_uri, time, is_news };
        self.tree.put_file(self.folder, name, before.as_ref().map(|before| (before, known_uri.as_ref())), coming)
    }

    fn removed(&mut self, before: Named<'t>) -> Result<(), CatalogError> {
        self.comparison.removed(before)?;
        self.remove_beneath(&before)?;
        self.tree.remove(&before, None)
    }

    fn held(&mut self, set: SetId, uri: &Uri, held: HeldState) -> Result<(), CatalogError> {
        let key = statement_key(set, uri);
        let Before { store, old, .. } = self.tree.before;
        match held {
            HeldState::Listed => {
                *self.comparison.tally.released.entry(set).or_default() += 1;
                Ok(())
            }
            HeldState::Still => {
                let known = store.get(old, store.held, &key)?.ok_or_else(|| damaged("absence", &key))?;
                self.tree.row(TableId::Held, &key, Some(known))
            }
            HeldState::New => {
                let time = self.listing.list_at(set).unwrap_or(self.tree.now);
                self.tree.row(TableId::Held, &key, Some(&held_row(time, uri)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{commit, entry, is_rebuilt, open};
    use super::*;
    use fuser::INodeNo;

    /// Commits `d/a`, `e/b` and `c`, then `c` alone by a rebuild; `sees` is called between, with the inode of `d`.
    fn rebuilt(sees: impl FnOnce(&Catalog, INodeNo), then: impl FnOnce(&Catalog, &Before<'_>, [INodeNo; 2])) {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        commit(&catalog, &["http://h/d/a", "http://h/e/b", "http://h/c"].map(entry));
        let [folder, file] = ["d", "d/a"].map(|path| catalog.snapshot().unwrap().find(path).unwrap().unwrap().ino);
        let store = catalog.store();
        let old = store.env.read_txn().unwrap();
        let before = Before::read(&store, &old).unwrap();
        sees(&catalog, folder);
        catalog.write_in_place(0);
        commit(&catalog, &[entry("http://h/c")]);
        assert!(is_rebuilt(&catalog, &store));
        then(&catalog, &before, [folder, file]);
    }

    fn orphans(catalog: &Catalog) -> Vec<INodeNo> {
        catalog.snapshot().unwrap().orphans(INodeNo(0), 10).unwrap()
    }

    #[test]
    fn orphans_are_kept_where_the_kernel_has_seen_them() {
        rebuilt(Catalog::kernel_looks_into, |catalog, _, [_, file]| assert_eq!(orphans(catalog), [file]));
        rebuilt(|_, _| {}, |catalog, _, _| assert_eq!(orphans(catalog), []));
    }

    #[test]
    fn orphans_are_kept_that_are_seen_while_a_rebuild_runs() {
        rebuilt(
            |_, _| {},
            |catalog, before, [folder, file]| {
                catalog.kernel_looks_into(folder);

                add_late_orphans(catalog, before, &catalog.store()).unwrap();

                assert_eq!(orphans(catalog), [file]);
                let resource = catalog.snapshot().unwrap().resource(file).unwrap().unwrap();
                assert_eq!(resource.uri.as_str(), "http://h/d/a");
                catalog.kernel_looks_into(INodeNo(ROOT));
                add_late_orphans(catalog, before, &catalog.store()).unwrap();
                assert_eq!(orphans(catalog).len(), 3, "`d` and `e` too, and `c` has its name");
            },
        );
    }
}
