//! What a listing takes from the allocator does not grow with its folder.

use resyncfs::catalog::{Catalog, Decision, EntryId, Kind, Naming};
use resyncfs::document::{Entry, Uri};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's, which counts what it is asked for, thread by thread.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes on to the system's allocator as it came; the count takes no memory, and has no destructor.
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

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, octets: usize) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller's word is passed on.
        unsafe { System.realloc(memory, layout, octets) }
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
    let (mut names, mut octets) = (0, 0);
    snapshot
        .children(folder.ino, EntryId(0), &mut |_, name, node| {
            names += 1;
            octets += name.len() as u64 + node.size.unwrap_or(0);
            true
        })
        .unwrap();
    assert!(octets > 0);
    (ASKED.get() - before, names)
}

#[test]
fn no_entry_of_a_folder_takes_memory_when_it_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(folder.path(), "a test").unwrap();
    let mut baseline = catalog.baseline(Naming::new("h", [], false).unwrap()).unwrap();
    for (folder, files) in [("small", 100), ("large", 20_000)] {
        for number in 0..files {
            let mut entry = Entry::new(Uri::parse(&format!("http://h/{folder}/file-{number:05}.xml")).unwrap());
            entry.length = Some(number);
            baseline.add(&entry).unwrap();
        }
    }
    baseline.commit_guarded(None, &mut |_| (Decision::Apply, Vec::new())).unwrap();
    // The first look opens what later ones use again.
    listed(&catalog, "small");

    let (of_small, small) = listed(&catalog, "small");
    let (of_large, large) = listed(&catalog, "large");

    assert_eq!((small, large), (100, 20_000));
    assert_eq!(of_small, of_large, "the allocator was asked so often");
}
