//! A revision that is written whole, append-only, into a store that takes the place of the one there was: the first, and one that shares
//! little with the one before. Nothing of what it writes is read, but for folders that turn out to be empty: they are removed in place.

use super::super::base::Base;
use super::super::edit::Comparison;
use super::super::group::{FactScope, Group, HeldState, NewFile, SortedFacts};
use super::super::join::{FolderRef, Visitor, beneath, join};
use super::super::known_folders::KnownFolders;
use super::super::store::codec::{NUMBER_LIMIT, damaged, unseal};
use super::super::store::keys::{ino_key, resource_key};
use super::super::store::record::{NamedNode, NodeRecord, RevisionRecord};
use super::super::store::{ROOT, ROOT_ENTRY, TableId, TreeStore};
use super::super::version;
use super::super::{Catalog, CatalogError, Committed, Decide, Held, Invalidation, Kind, Losses, SetId};
use super::in_place::{InPlace, PutRows, write_groups};
use super::rows::Rows;
use super::transaction::in_transaction;
use super::tree::{CommittedWith, TreeWriter, orphan_row};
use super::{RowState, Sink};
use crate::document::{Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::platform::ino::Ino;
use std::collections::BTreeMap;

/// All rows of a tree, for an empty store.
struct Whole<'s> {
    rows: Rows,
    known_folders: &'s KnownFolders,
}

impl Sink for Whole<'_> {
    fn put(&mut self, _: RowState, table: TableId, key: &[u8], row: &[u8]) -> Result<(), CatalogError> {
        self.rows.put(table, key, row)
    }

    fn put_name(&mut self, _: RowState, parent: u64, hash: u32, entry: u64) -> Result<(), CatalogError> {
        self.rows.put_name(parent, hash, entry)
    }

    /// A row for each inode of a great tree would take as much time and disk as the tree.
    fn keeps_orphans_of(&self, folder: u64) -> bool {
        self.known_folders.contains(folder)
    }

    fn commit(&mut self) -> Result<(), CatalogError> {
        self.rows.commit()
    }
}

/// Writes the whole tree into a store that takes the place of the one of `base`. The held deletions may be `decided`; else
/// `decide` is asked, and where it holds anything the tree is written once more, with that.
///
/// A store that is `damaged` cannot be read: over the empty `base` every inode and entry id is new, and nothing can be held back.
pub fn write(
    catalog: &Catalog,
    base: &Base<'_>,
    scope: &FactScope,
    mut facts: SortedFacts,
    rows: &mut PutRows<'_>,
    (mut decided, decide): (Option<Vec<u8>>, Decide<'_>),
    damaged: Option<&TreeStore>,
) -> Result<Committed, CatalogError> {
    let damaged =
        damaged.map(|store| store.env.read_txn().map_err(CatalogError::from).and_then(|txn| store.revision(&txn)));
    let instance = if damaged.is_some() { None } else { Some(base.store.instance(base.txn)?) };
    let last = match &damaged {
        None => base.revision.unwrap_or(RevisionRecord::NONE),
        // Numbers that it may have given: those of its revision, else half of all.
        Some(Ok(last)) => {
            RevisionRecord { totals: RevisionRecord::NONE.totals, ..last.unwrap_or(RevisionRecord::NONE) }
        }
        Some(Err(_)) => {
            RevisionRecord { next_ino: NUMBER_LIMIT / 2, next_entry: NUMBER_LIMIT / 2, ..RevisionRecord::NONE }
        }
    };
    loop {
        // Over nothing, nothing can be held back.
        if base.revision.is_none() || decided.is_some() {
            facts.rows.read_once();
        }
        let successor = base.store.empty(&catalog.spill_folder, instance)?;
        let mut rebuild = Rebuild::begin(catalog, base, scope, &mut facts, (&successor.store, last))?;
        let position = match decided.take() {
            Some(position) => position,
            None => {
                let (mut losses, mut departures) = rebuild.comparison.losses()?;
                if let Some(Ok(Some(damaged))) = &damaged {
                    // All of the tree comes: it is compared with the sums of the one that cannot be read any more.
                    losses = Losses::of_totals(damaged.totals.files, losses.coming);
                }
                let (held, position) = decide(&losses);
                if held == Held::Undecided || damaged.is_some() && held != Held::Nothing {
                    return Err(CatalogError::Undecided);
                }
                if base.revision.is_some() && held != Held::Nothing {
                    let kept = departures.kept(&held, &scope.naming, &catalog.spill_folder)?;
                    facts.add(kept)?;
                    decided = Some(position);
                    continue;
                }
                position
            }
        };
        // Rows that are written from here on have the room of the facts.
        drop(facts);
        let mut committed = rebuild.finish(&position, rows)?;
        if damaged.is_some() {
            committed.invalidations = vec![Invalidation::Everything([Ino(ROOT)].into_iter().collect())];
        }
        let keep_late = |store: &TreeStore| {
            // The new tree does not wait for room for the old one.
            if let Err(error) = add_late_orphans(catalog, base, store) {
                tracing::warn!("files that were opened just now may not be readable to their end: {}", chain(&error));
            }
        };
        keep_late(&successor.store);
        let orphan = |it: &Invalidation| if let Invalidation::Name { orphan, .. } = it { *orphan } else { None };
        let orphans: Vec<Ino> = committed.invalidations.iter().filter_map(orphan).collect();
        catalog.keeping(&orphans, || catalog.replace_store(successor))?;
        // Orphans of replies that were made in between.
        keep_late(&catalog.store());
        return Ok(committed);
    }
}

/// A tree on its way into an empty store.
struct Rebuild<'t> {
    catalog: &'t Catalog,
    scope: &'t FactScope,
    target: &'t TreeStore,
    comparison: Comparison<'t>,
    tree: TreeWriter<'t>,
    left_out: BTreeMap<String, u64>,
    /// The folder whose names are written, and whether it has none so far.
    folder: FolderRef,
    is_empty: bool,
    /// Folders that are empty, as everything that lists have in them is superseded.
    emptied: Vec<u64>,
}

impl<'t> Rebuild<'t> {
    /// Writes the tree of `facts`, from its beginning, into the empty store `target`. Its numbers follow those of `last`. It is not
    /// shown before that store takes the place of the other.
    fn begin(
        catalog: &'t Catalog,
        base: &'t Base<'t>,
        scope: &'t FactScope,
        facts: &mut SortedFacts,
        (target, last): (&'t TreeStore, RevisionRecord),
    ) -> Result<Rebuild<'t>, CatalogError> {
        let is_first = base.revision.is_none();
        catalog.known_folders.take_lately();
        let rows = Rows::begin(target, &catalog.spill_folder, is_first)?;
        let sink = Whole { rows, known_folders: &catalog.known_folders };
        let mut rebuild = Rebuild {
            catalog,
            scope,
            target,
            comparison: Comparison::new(catalog, base, scope),
            tree: TreeWriter::new(&catalog.spill_folder, base, &scope.naming, last, sink),
            left_out: BTreeMap::new(),
            folder: FolderRef { ino: ROOT, is_new: is_first },
            is_empty: false,
            emptied: Vec::new(),
        };
        let mut root = Group::default();
        facts.next(&mut root, scope)?;
        rebuild.put_root(root.folder)?;
        rebuild.left_out = join(base, scope, facts, &mut rebuild)?;
        rebuild.enter(FolderRef { ino: ROOT, is_new: false })?;
        Ok(rebuild)
    }

    /// Commits the tree, with the `rows` of the journal.
    fn finish(self, position: &[u8], rows: &mut PutRows<'_>) -> Result<Committed, CatalogError> {
        let Rebuild { catalog, scope, target, mut tree, left_out, emptied, .. } = self;
        let sets = self.comparison.sets();
        let with = CommittedWith { at: scope.at, position, sets: &sets };
        rows(&mut tree)?;
        let (mut revision, mut effects) = tree.finish(&with)?;
        // A change in place holds no more than this in memory.
        let most = usize::try_from(catalog.most_in_place().max(1)).unwrap_or(usize::MAX);
        for emptied in emptied.chunks(most) {
            let txn = target.env.read_txn()?;
            let mut base = Base::read(target, &txn)?;
            revision.number -= 1;
            base.revision = Some(revision);
            let paths = emptied.iter().filter_map(|ino| target.path_of(&txn, *ino).transpose());
            let paths = paths.collect::<Result<_, _>>()?;
            (revision, effects) = in_transaction(catalog, target, |transaction| {
                let sink = InPlace(transaction);
                let mut tree = TreeWriter::new(&catalog.spill_folder, &base, &scope.naming, revision, sink);
                tree.effects = effects;
                write_groups(&mut tree, BTreeMap::new(), paths)?;
                tree.finish(&with)
            })?;
        }
        Ok(effects.committed(revision.number, left_out))
    }

    /// Writes the root, and what has lost its name before and stays readable.
    fn put_root(&mut self, newest: Option<Timestamp>) -> Result<(), CatalogError> {
        let (now, Base { store, txn, .. }) = (self.tree.now, self.tree.base);
        if self.folder.is_new {
            let mtime = newest.unwrap_or(now).min(now);
            let node = NodeRecord { ino: ROOT, mtime, ctime: now, name: b"", resource: None };
            return self.tree.put_root(&NamedNode { parent: 0, entry: ROOT_ENTRY, node });
        }
        self.tree.put_root(&store.by_ino(txn, ROOT)?.ok_or_else(|| damaged("absence", &ino_key(ROOT)))?)?;
        for pair in store.table(TableId::Orphans).iter(txn)? {
            let (key, sealed) = pair?;
            self.tree.row(TableId::Orphans, key, Some(unseal(key, sealed)?))?;
        }
        Ok(())
    }

    fn remove_beneath(&mut self, base: &NamedNode<'_>) -> Result<(), CatalogError> {
        if base.node.kind() == Kind::File {
            return Ok(());
        }
        let Base { store, txn, .. } = self.tree.base;
        beneath(store, txn, base.node.ino, &mut |named| self.tree.remove(&named, None))
    }
}

/// Adds to the orphans of `target` the children of folders of `base` that the kernel first saw since the last call, or since
/// `target` began to be written. It is not repeated until there are none: a program that walks the tree sees more of them as long
/// as it walks.
fn add_late_orphans(catalog: &Catalog, base: &Base<'_>, target: &TreeStore) -> Result<(), CatalogError> {
    // What a change in place holds in memory is bounded.
    let most = usize::try_from(catalog.most_in_place().max(1)).unwrap_or(usize::MAX);
    let add = |late: &mut Vec<NamedNode<'_>>| {
        in_transaction(catalog, target, |transaction| {
            for old in late.drain(..) {
                let key = ino_key(old.node.ino);
                if transaction.row(TableId::Inodes, &key)?.or(transaction.row(TableId::Orphans, &key)?).is_none() {
                    let row = orphan_row(base, &old, None, version::now())?;
                    transaction.put(TableId::Orphans, &key, &row)?;
                }
            }
            Ok(())
        })
    };
    let mut late = Vec::new();
    for folder in catalog.known_folders.take_lately().iter() {
        for child in base.store.children(base.txn, folder.0, 0)? {
            late.push(child?);
            if late.len() >= most {
                add(&mut late)?;
            }
        }
    }
    add(&mut late)
}

impl<'t> Visitor<'t> for Rebuild<'t> {
    fn enter(&mut self, folder: FolderRef) -> Result<(), CatalogError> {
        if self.is_empty && self.folder.ino != ROOT {
            self.emptied.push(self.folder.ino);
        }
        (self.folder, self.is_empty) = (folder, true);
        Ok(())
    }

    fn folder(
        &mut self,
        name: &[u8],
        newest: Timestamp,
        base: Option<NamedNode<'t>>,
    ) -> Result<FolderRef, CatalogError> {
        self.is_empty = false;
        self.comparison.folder(name, newest, base)?;
        match base {
            Some(known) if known.node.kind() == Kind::Folder => {
                self.tree.keep(&known)?;
                Ok(FolderRef { ino: known.node.ino, is_new: false })
            }
            file => {
                let ino = self.tree.put_folder(self.folder, name, file.as_ref().map(|file| (file, None)), newest)?;
                Ok(FolderRef { ino, is_new: true })
            }
        }
    }

    fn file(&mut self, file: NewFile<'_>, base: Option<NamedNode<'t>>) -> Result<(), CatalogError> {
        self.is_empty = false;
        let same_uri = self.comparison.compare(&file, base)?;
        let mut known_uri = None;
        if let Some(known) = &base {
            self.remove_beneath(known)?;
            if same_uri && self.tree.sink.keeps_orphans_of(known.parent) {
                // Its URI need not follow from its path.
                known_uri = Some(file.uri(&self.scope.naming)?);
            }
        }
        self.tree.put_file(self.folder, &file, base.as_ref().map(|base| (base, known_uri.as_ref())), same_uri)
    }

    fn removed(&mut self, base: NamedNode<'t>) -> Result<(), CatalogError> {
        self.comparison.removed(base)?;
        self.remove_beneath(&base)?;
        self.tree.remove(&base, None)
    }

    fn held(&mut self, set: SetId, uri: &Uri, held: HeldState) -> Result<(), CatalogError> {
        if held == HeldState::Listed {
            self.comparison.release(set);
            return Ok(());
        }
        self.tree.row(TableId::Held, &resource_key(set, uri), Some(uri.as_str().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::{commit, entry, is_rebuilt, open};
    use super::*;
    use crate::platform::ino::Ino;

    /// Commits `d/a`, `e/b` and `c`, then `c` alone by a rebuild; `sees` is called between, with the inode of `d`.
    fn rebuilt(sees: impl FnOnce(&Catalog, Ino), then: impl FnOnce(&Catalog, &Base<'_>, [Ino; 2])) {
        let folder = tempfile::tempdir().unwrap();
        let catalog = open(folder.path());
        commit(&catalog, &["http://h/d/a", "http://h/e/b", "http://h/c"].map(entry));
        let [folder, file] = ["d", "d/a"].map(|path| catalog.snapshot().unwrap().find(path).unwrap().unwrap().ino);
        let store = catalog.store();
        let txn = store.env.read_txn().unwrap();
        let base = Base::read(&store, &txn).unwrap();
        sees(&catalog, folder);
        catalog.write_in_place(0);
        commit(&catalog, &[entry("http://h/c")]);
        assert!(is_rebuilt(&catalog, &store));
        then(&catalog, &base, [folder, file]);
    }

    fn orphans(catalog: &Catalog) -> Vec<Ino> {
        catalog.snapshot().unwrap().orphans(Ino(0), 10).unwrap()
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
            |catalog, base, [folder, file]| {
                catalog.kernel_looks_into(folder);

                add_late_orphans(catalog, base, &catalog.store()).unwrap();

                assert_eq!(orphans(catalog), [file]);
                let resource = catalog.snapshot().unwrap().resource(file).unwrap().unwrap();
                assert_eq!(resource.uri.as_str(), "http://h/d/a");
                catalog.kernel_looks_into(Ino(ROOT));
                add_late_orphans(catalog, base, &catalog.store()).unwrap();
                assert_eq!(orphans(catalog).len(), 3, "`d` and `e` too, and `c` has its name");
            },
        );
    }
}
