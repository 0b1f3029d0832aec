//! What a listing takes from the allocator does not grow with its folder.

use resyncfs::catalog::{Catalog, EntryId, Held, Kind, Naming};
use resyncfs::content::metadata::LearntMetadata;
use resyncfs::content::store::ObjectKey;
use resyncfs::content::{Content, ContentConfig};
use resyncfs::document::{Algorithm, Digest, Entry, Timestamp, Uri};
use resyncfs::fs::directory::Cookie;
use resyncfs::fs::{Filesystem, FsOptions};
use resyncfs::platform::ino::Ino;
use resyncfs::source::http::{Client, HttpConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The system's, which counts what it is asked for, thread by thread.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator unchanged; the count takes no memory, and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's word is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's word is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's word is passed on.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often the allocator is asked while `folder` is listed to its end, and how many names there are.
fn listed(catalog: &Catalog, folder: &str) -> (u64, u64) {
    let snapshot = catalog.snapshot().unwrap();
    let folder = snapshot.find(folder).unwrap().unwrap();
    assert_eq!(folder.kind, Kind::Folder);
    let before = ASKED.get();
    let (mut names, mut bytes) = (0, 0);
    snapshot
        .children(folder.ino, EntryId(0), &mut |_, name, node| {
            names += 1;
            bytes += name.len() as u64 + node.size.unwrap_or(0);
            true
        })
        .unwrap();
    assert!(bytes > 0);
    (ASKED.get() - before, names)
}

/// A catalog in `place` of two folders, `small` of 100 files and `large` of 20,000.
fn two_folders(place: &Path) -> Catalog {
    let catalog = Catalog::open(place, "a test").unwrap();
    let mut baseline = catalog.commit_of_lists(Naming::new("h", [], false).unwrap()).unwrap();
    for (folder, files) in [("small", 100), ("large", 20_000)] {
        for number in 0..files {
            let mut entry = Entry::new(Uri::parse(&format!("http://h/{folder}/file-{number:05}.xml")).unwrap());
            entry.length = Some(number);
            baseline.add(&entry).unwrap();
        }
    }
    baseline.finish(None, &mut |_| (Held::Nothing, Vec::new())).unwrap();
    catalog
}

#[test]
fn no_entry_of_a_folder_takes_memory_when_it_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = two_folders(folder.path());
    // The first look opens what later ones use again.
    listed(&catalog, "small");

    let (of_small, small) = listed(&catalog, "small");
    let (of_large, large) = listed(&catalog, "large");

    assert_eq!((small, large), (100, 20_000));
    assert_eq!(of_small, of_large, "the allocator was asked so often");
}

/// Much is known of each file of a folder: they were read, and are current for a while.
fn observe(observed: &LearntMetadata, catalog: &Catalog, folder: &str) -> Ino {
    let snapshot = catalog.snapshot().unwrap();
    let folder = snapshot.find(folder).unwrap().unwrap().ino;
    let mut files = Vec::new();
    let mut note = |node: resyncfs::catalog::Node| files.push(node.ino);
    snapshot.children(folder, EntryId(0), &mut |_, _, node| (note(node), true).1).unwrap();
    let digest = Digest::new(Algorithm::Md5, &[7; 16]).unwrap();
    for ino in files {
        observed.update(ino, |known| {
            known.size = Some(5);
            known.etag = Some("\"an etag\"".into());
            known.last_modified = Some("Thu, 03 Jan 2013 09:00:00 GMT".into());
            known.media_type = Some("application/xml".into());
            known.digests = vec![digest];
            known.object = Some(ObjectKey::digest("a source", &digest));
            known.validated_at = Some(Timestamp::now());
        });
    }
    folder
}

#[test]
fn listing_an_entry_with_many_attributes_takes_no_memory() {
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name);
    let catalog = Arc::new(two_folders(&path("catalog")));
    let observed = LearntMetadata::open(&path("observed"), false).unwrap();
    let folders = ["small", "large"].map(|folder| observe(&observed, &catalog, folder));
    drop(observed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let config = ContentConfig {
        folder: path("content"),
        metadata_folder: path("observed"),
        source: "a source".into(),
        quota: Some(1 << 20),
        ..ContentConfig::default()
    };
    let client = Client::new(HttpConfig::default()).unwrap();
    let (events, _) = tokio::sync::mpsc::unbounded_channel();
    let content = Content::open(config, client, runtime.handle().clone(), events).unwrap();
    let filesystem = Filesystem::new(catalog, content, FsOptions::default(), runtime.handle().clone(), 0);
    let asked = |folder: Ino| {
        let before = ASKED.get();
        let mut current = 0;
        filesystem
            .read_folder(folder, Cookie::START, &mut |entry| {
                // Shorter than that of the names, as its bytes are current for an hour less what has passed.
                let shown = filesystem.shown(&entry.node);
                current += u64::from(entry.node.kind == Kind::File && shown.attributes_ttl > Duration::from_secs(3000));
                true
            })
            .unwrap();
        (ASKED.get() - before, current)
    };
    // The first look opens what later ones use again.
    asked(folders[0]);

    let [(of_small, small), (of_large, large)] = folders.map(asked);

    assert_eq!((small, large), (100, 20_000));
    assert_eq!(of_small, of_large, "the allocator was asked so often");
}
