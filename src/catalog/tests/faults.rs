//! What is killed, full, locked or damaged.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn a_second_opener_learns_who_holds_the_catalog() {
    let folder = tempfile::tempdir().unwrap();
    let first = Catalog::open(folder.path(), "/mnt/first").unwrap();

    match Catalog::open(folder.path(), "/mnt/second") {
        Err(CatalogError::Busy { holder, .. }) => {
            assert_eq!(holder, format!("process {}, /mnt/first", std::process::id()));
        }
        other => panic!("{:?}", other.err()),
    }
    drop(first);
    Catalog::open(folder.path(), "/mnt/second").unwrap();
}

#[test]
fn a_baseline_dropped_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    commit(&catalog, &[entry("http://h/a"), entry("http://h/b")]);
    let before = (tree(&catalog), catalog.revision().unwrap());

    let mut baseline = Commit::with_memory(&catalog, naming(), 256);
    (0..100).for_each(|index| baseline.add(&entry(&format!("http://h/{index}"))).unwrap());
    drop(baseline);

    assert_eq!((tree(&catalog), catalog.revision().unwrap()), before);
    assert_eq!(std::fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_spill_folder_that_fails_is_an_error_and_the_old_tree_stays() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    commit(&catalog, &[entry("http://h/a")]);
    let before = tree(&catalog);
    std::fs::remove_dir(folder.path().join("tmp")).unwrap();
    std::fs::write(folder.path().join("tmp"), "").unwrap();

    let mut baseline = Commit::with_memory(&catalog, naming(), 256);
    let result = (0..100).try_for_each(|index| baseline.add(&entry(&format!("http://h/{index}"))));

    assert!(matches!(result, Err(CatalogError::Io { .. })), "{result:?}");
    assert_eq!(tree(&catalog), before);
}

/// Promise: never a surprise on the disk. What would leave less free than is to stay free changes nothing, and leaves nothing.
#[test]
fn a_commit_without_room_is_an_error_and_leaves_nothing() {
    static FREE: AtomicU64 = AtomicU64::new(0);
    let few: Vec<_> = (0..50).map(|index| entry(&format!("http://h/few/{index}"))).collect();
    let name = "n".repeat(200);
    let many = |content: u8| -> Vec<_> {
        let entry = |index| Entry {
            hashes: vec![digest(Algorithm::Sha256, content)],
            ..entry(&format!("http://h/{index}/{name}"))
        };
        (0..3000).map(entry).collect()
    };
    // A first revision, one written whole, and one written over the one before.
    for (before, after, in_place) in [(None, many(0), 0), (Some(few), many(0), 0), (Some(many(0)), many(1), u64::MAX)] {
        let folder = tempfile::tempdir().unwrap();
        FREE.store(1 << 30, Ordering::Relaxed);
        let room = SpaceGuard::new(100 << 20, |_| Ok(FREE.load(Ordering::Relaxed))).with_step(256 << 10);
        let catalog = open(folder.path()).leaving(room);
        catalog.write_in_place(in_place);
        before.iter().for_each(|before| drop(commit(&catalog, before)));
        let shown = tree(&catalog);
        let taken = || -> u64 { lengths(folder.path()) };
        let (store, bytes) = (catalog.store(), taken());

        catalog.room().check(folder.path(), 0).unwrap();
        FREE.store((100 << 20) + 100, Ordering::Relaxed);
        let mut baseline = catalog.commit_of_lists(naming()).unwrap();
        let failed = after.iter().try_for_each(|entry| baseline.add(entry));
        let failed = failed.and_then(|()| baseline.commit(None, b"").map(drop)).unwrap_err();

        let CatalogError::Io { cause, .. } = &failed else { panic!("{failed}") };
        assert_eq!(cause.kind(), std::io::ErrorKind::StorageFull, "{cause}");
        assert!(Arc::ptr_eq(&store, &catalog.store()));
        assert_eq!(tree(&catalog), shown);
        assert_eq!(taken(), bytes);
        FREE.store(1 << 30, Ordering::Relaxed);
        commit(&catalog, &after);
        assert_eq!(tree(&catalog).len(), 2 * after.len());
    }
}

#[test]
fn orphans_stay_forgotten_until_a_commit_has_dropped_them() {
    static FREE: AtomicU64 = AtomicU64::new(1 << 30);
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path())
        .leaving(SpaceGuard::new(100 << 20, |_| Ok(FREE.load(Ordering::Relaxed))).with_step(256 << 10));
    // So many that the room is asked about them.
    let files: Vec<_> = (0..1000).map(|index| entry(&format!("http://h/{index}"))).collect();
    commit(&catalog, files.iter().chain([&entry("http://h/b")]));
    let mut orphans = tree(&catalog);
    orphans.remove("b");
    commit(&catalog, &[entry("http://h/b")]);
    let has_orphans = || {
        let store = catalog.store();
        !store.table(TableId::Orphans).is_empty(&store.env.read_txn().unwrap()).unwrap()
    };
    assert!(has_orphans());

    catalog.room().check(folder.path(), 0).unwrap();
    FREE.store((100 << 20) + 100, Ordering::Relaxed);
    let others: Vec<Ino> = (10_000..40_000).map(Ino).collect();
    catalog.drop_orphans(&others).expect("what has no row takes no room");
    let forgotten: Vec<Ino> = orphans.into_values().map(|name| name.node.ino).collect();
    assert!(catalog.drop_orphans(&forgotten).is_err(), "there is no room");
    FREE.store(1 << 30, Ordering::Relaxed);
    commit(&catalog, &[entry("http://h/b"), entry("http://h/c")]);

    assert!(!has_orphans());
}

#[test]
fn a_small_store_needs_no_more_room_than_it_takes() {
    static FREE: AtomicU64 = AtomicU64::new(1 << 30);
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path())
        .leaving(SpaceGuard::new(100 << 20, |_| Ok(FREE.load(Ordering::Relaxed))).with_step(256 << 10));
    let files = |length| -> Vec<_> {
        (0..1000).map(|index| Entry { length: Some(length), ..entry(&format!("http://h/{index}")) }).collect()
    };
    commit(&catalog, &files(1));
    let store = catalog.store();

    catalog.room().check(folder.path(), 0).unwrap();
    FREE.store((100 << 20) + 2 * lengths(folder.path()), Ordering::Relaxed);
    let committed = commit(&catalog, &files(2));

    assert_eq!((committed.updated, is_rebuilt(&catalog, &store)), (1000, false));
}

/// Bytes of all files below.
fn lengths(folder: &Path) -> u64 {
    let below = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    below
        .map(|entry| if entry.path().is_dir() { lengths(&entry.path()) } else { entry.metadata().unwrap().len() })
        .sum()
}

/// Flips one bit of each record of a table in turn and asks `read` for it.
fn flip(catalog: &Catalog, table: super::store::Table, read: impl Fn() -> Result<(), CatalogError>) {
    let store = catalog.store();
    let records: Vec<_> = {
        let txn = store.env.read_txn().unwrap();
        table.iter(&txn).unwrap().map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap()).collect()
    };
    assert!(!records.is_empty());
    for (key, record) in records {
        let mut damaged = record.clone();
        damaged[record.len() / 2] ^= 4;
        let put = |record: &[u8]| {
            let mut txn = store.env.write_txn().unwrap();
            table.put(&mut txn, &key, record).unwrap();
            txn.commit().unwrap();
        };
        put(&damaged);
        let result = read();
        assert!(matches!(result, Err(CatalogError::Damaged(_))), "{}: {result:?}", key.escape_ascii());
        put(&record);
        read().unwrap();
    }
}

impl Catalog {
    /// What `sync` committed last makes no sense any more.
    pub(crate) fn spoil_position(&self) {
        let store = self.store();
        let mut txn = store.env.write_txn().unwrap();
        store.table(TableId::Meta).put(&mut txn, super::store::meta::POSITION, b"nonsense").unwrap();
        txn.commit().unwrap();
    }

    /// The journal is broken from its first row on.
    pub(crate) fn spoil_journal(&self) {
        let store = self.store();
        let mut txn = store.env.write_txn().unwrap();
        store.table(TableId::Journal).put(&mut txn, &[0; 4], b"nonsense").unwrap();
        txn.commit().unwrap();
    }
}

#[test]
fn what_lmdb_itself_finds_broken_is_damage_too() {
    let broken = |error| CatalogError::Store(heed::Error::Mdb(error));

    assert!(broken(heed::MdbError::Corrupted).is_damage() && broken(heed::MdbError::PageNotFound).is_damage());
    assert!(!broken(heed::MdbError::MapFull).is_damage() && !CatalogError::NoRevision.is_damage());
}

#[test]
fn a_flipped_bit_is_damage_never_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    let more = ["c", "d", "e"].map(|name| entry(&format!("http://h/{name}")));
    commit(
        &catalog,
        [&entry("http://h/a"), &entry("http://h/folder/b"), &entry("https://h/a")].into_iter().chain(&more),
    );
    let read_all = || {
        let snapshot = catalog.snapshot()?;
        let mut folders = vec![Ino(1)];
        while let Some(folder) = folders.pop() {
            snapshot.attributes(folder)?;
            let mut children = Vec::new();
            snapshot.children(folder, EntryId(0), &mut |_, name, node| {
                children.push((name.to_vec(), node));
                true
            })?;
            for (name, node) in children {
                snapshot.lookup(folder, &name)?;
                snapshot.resource(node.ino)?;
                if node.kind == Kind::Folder {
                    folders.push(node.ino);
                }
            }
        }
        Ok(())
    };

    flip(&catalog, catalog.store().table(TableId::Entries), read_all);
    flip(&catalog, catalog.store().table(TableId::Names), read_all);
    flip(&catalog, catalog.store().table(TableId::Inodes), read_all);
}

#[tokio::test]
async fn damage_is_reported_once_and_mended_by_the_next_baseline() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    let entries = [entry("http://h/a/b"), entry("http://h/c")];
    commit(&catalog, &entries);
    let store = catalog.store();
    let mut txn = store.env.write_txn().unwrap();
    store.table(TableId::Inodes).put(&mut txn, &super::store::keys::ino_key(1), b"nonsense").unwrap();
    txn.commit().unwrap();
    let stale = catalog.snapshot().unwrap();
    assert!(!catalog.is_distrusted());

    assert!(matches!(catalog.snapshot().unwrap().attributes(Ino(1)), Err(CatalogError::Damaged(_))));
    assert!(catalog.is_distrusted());
    catalog.damage_found().await;

    commit(&catalog, &entries);
    assert!(catalog.snapshot().unwrap().attributes(Ino(1)).unwrap().is_some());
    assert!(stale.attributes(Ino(1)).is_err());
    assert!(!catalog.is_distrusted(), "the store that was damaged is no more");
}

#[test]
fn the_baseline_after_damage_rebuilds_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    let entries = [entry("http://h/a/b"), entry("http://h/c"), entry("https://h/c")];
    commit(&catalog, &entries);
    let before = tree(&catalog);
    let (store, c) = (catalog.store(), &before["c"]);
    let mut txn = store.env.write_txn().unwrap();
    store
        .table(TableId::Entries)
        .put(&mut txn, &super::store::keys::entry_key(c.parent.0, c.id.0), b"nonsense")
        .unwrap();
    txn.commit().unwrap();

    let again = || {
        let mut baseline = catalog.commit_of_lists(naming()).unwrap();
        entries.iter().for_each(|entry| baseline.add(entry).unwrap());
        baseline.commit(None, b"position")
    };
    let (first, second) = (again(), again().unwrap());

    assert!(matches!(first, Err(CatalogError::Damaged(_))), "{first:?}");
    assert_eq!(second.revision, 2);
    assert!(is_durable(&catalog));
    assert_eq!(second.invalidations, [Invalidation::Everything([Ino(1)].into_iter().collect())]);
    let after = tree(&catalog);
    assert!(after.keys().eq(before.keys()));
    let greatest = before
        .values()
        .map(|name| (name.node.ino, name.id))
        .fold((Ino(1), EntryId(1)), |a, b| (Ino(a.0.0.max(b.0.0)), a.1.max(b.1)));
    assert!(
        after.values().all(|name| name.node.ino.0 > greatest.0.0 && name.id > greatest.1),
        "nothing is given twice"
    );
    assert_eq!(again().unwrap().revision, 2, "and all is well");
    drop((catalog, store));
    assert_eq!(tree(&open(folder.path())), after);
}

#[test]
fn a_rebuilt_catalog_leaves_no_damaged_store_behind() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    commit(&catalog, &[entry("http://h/a")]);
    std::fs::create_dir(folder.path().join("store.damaged")).unwrap();
    catalog.distrust();

    commit(&catalog, &[entry("http://h/a")]);

    assert!(!catalog.is_distrusted());
    assert!(!folder.path().join("store.damaged").exists());
}

/// Opens again after `harm` was done to the closed store: empty, usable, the harmed one moved away.
fn is_replaced_after(harm: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    let entries: Vec<_> = (0..500).map(|index| entry(&format!("http://h/{index}"))).collect();
    commit(&catalog, &entries);
    let instance = catalog.instance().unwrap();
    drop(catalog);
    harm(&store_folder(folder.path()));

    let catalog = open(folder.path());

    assert_eq!(catalog.revision().unwrap(), None);
    assert_ne!(catalog.instance().unwrap(), instance, "its inodes are other files");
    assert!(folder.path().join("store.damaged").is_dir());
    assert_eq!(commit(&catalog, &entries).created, 500);
    assert_eq!(tree(&catalog).len(), 500);
}

#[test]
fn damaged_stores_and_foreign_formats_are_moved_away() {
    is_replaced_after(|store| std::fs::write(store.join("data.mdb"), vec![7; 16_384]).unwrap());
    is_replaced_after(|store| {
        let file = std::fs::File::options().write(true).open(store.join("data.mdb")).unwrap();
        file.set_len(12_288).unwrap();
    });
    is_replaced_after(|store| {
        // SAFETY: only this test has its folder open.
        let env = unsafe { heed::EnvOpenOptions::new().max_dbs(8).open(store).unwrap() };
        let meta: heed::Database<heed::types::Bytes, heed::types::Bytes> = env
            .create_databases_and_commit(env.write_txn().unwrap(), |opener, txn| {
                let table = opener.create_database(txn, Some("meta"))?;
                Ok::<_, heed::Error>(heed::CommitOrAbort::<_, ()>::Commit(table))
            })
            .unwrap()
            .commit()
            .unwrap();
        let mut txn = env.write_txn().unwrap();
        meta.put(&mut txn, b"format", b"another").unwrap();
        txn.commit().unwrap();
    });
}

/// Pages that a commit takes at the end of the file and gives back are never written: the file is short, and whole.
#[test]
fn a_store_whose_last_pages_are_free_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = open(folder.path());
    commit(&catalog, &[entry("http://h/a"), entry("http://h/b/c")]);
    let before = (tree(&catalog), catalog.revision().unwrap());
    let store = catalog.store();
    // Straight into the environment, as if the process was killed behind each commit. The first ones leave free pages.
    for bytes in [100_000, 10, 10, 10, 1 << 20] {
        let mut txn = store.env.write_txn().unwrap();
        store.table(TableId::Orphans).put(&mut txn, b"taken", &vec![7; bytes]).unwrap();
        if bytes == 1 << 20 {
            store.table(TableId::Orphans).delete(&mut txn, b"taken").unwrap();
        }
        txn.commit().unwrap();
        store.readers.let_go();
    }
    let page = u64::from(store.table(TableId::Meta).stat(&store.env.read_txn().unwrap()).unwrap().page_size);
    assert!(store.env.real_disk_size().unwrap() < store.env.info().last_page_number as u64 * page, "it is not short");
    drop((catalog, store));

    let catalog = open(folder.path());

    assert_eq!((tree(&catalog), catalog.revision().unwrap()), before);
    assert!(!folder.path().join("store.damaged").exists());
}

#[test]
fn the_folder_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("new/catalog");

    let _catalog = open(&folder);

    assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
}
