//! A small machine: 512 MB of memory in a control group, `ulimit -v 2000000`, one processor, a cache of 64 MB on a slow disk. What is
//! shown and read there is right, and the process itself takes 150 MB at most, also with a crowd of readers.

mod common;

use common::generated::{GeneratedSource, check, read_whole};
use common::memory::{MOST, most_memory_during};
use common::mounted::Mounted;
use common::random::Random;
use common::small_machine::SmallMachine;
use common::source::{Fault, Resource, Source};
use common::{eventually_within, tree};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const OPTIONS: &str = "poll=1h,cache-size=64M,cache-reserve=64M";
/// All is slower there.
const PATIENCE: Duration = Duration::from_secs(240);

fn mounted(machine: &Arc<SmallMachine>, source: &str) -> Mounted {
    let mounted = Mounted::prepared(source, OPTIONS).on(machine);
    start(&mounted);
    mounted
}

fn start(mounted: &Mounted) {
    mounted.try_start_within(PATIENCE).unwrap_or_else(|said| panic!("not mounted: {said}"));
}

fn published(source: &Source) -> BTreeMap<PathBuf, Vec<u8>> {
    source.published().into_iter().map(|(path, bytes)| (PathBuf::from(path), bytes)).collect()
}

fn names(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| if entry.file_type().unwrap().is_dir() { names(&entry.path()) } else { 1 }).sum()
}

/// The threads of a process; one that has nothing to do ends after ten seconds.
fn threads(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/task")).unwrap().count()
}

#[test]
fn a_large_tree_is_made_changed_and_mounted_again() {
    const FILES: usize = 100_000;
    let machine = Arc::new(SmallMachine::new());
    let source = GeneratedSource::start((0..FILES).map(|number| (format!("{}/{number}", number / 500), 100)));
    let begun = Instant::now();

    let mounted = mounted(&machine, &source.list_url());

    println!("mounted after {:?}", begun.elapsed());
    let most = most_memory_during(mounted.pid(), || {
        assert_eq!(names(&mounted.path()), FILES);
        mounted.try_refresh().unwrap();
    });
    mounted.unmount();
    start(&mounted);
    println!("{} MiB at most", most >> 20);
    assert_eq!(names(&mounted.path()), FILES);
    assert!(most <= MOST, "{most} bytes of anonymous memory");
}

#[test]
fn many_readers_of_more_than_the_cache_holds_get_their_bytes() {
    const LARGE: u64 = 24 * MIB;
    const HUGE: u64 = 4096 * MIB;
    let machine = Arc::new(SmallMachine::new());
    let large = (0..10).map(|number| (format!("large-{number}"), LARGE + number));
    let small = (0..2000).map(|number| (format!("small-{number}"), 3000 + number));
    let files: Vec<(String, u64)> = large.chain(small).chain([("huge".to_owned(), HUGE)]).collect();
    let source = GeneratedSource::start(files.clone());
    let mounted = mounted(&machine, &source.list_url());
    let (folder, begun) = (mounted.path(), Instant::now());

    let most = most_memory_during(mounted.pid(), || {
        std::thread::scope(|scope| {
            for share in files[..10].chunks(1).chain(files[10..2010].chunks(50)) {
                let folder = &folder;
                scope.spawn(move || share.iter().for_each(|(name, length)| read_whole(folder, name, *length)));
            }
            for seed in 0..2 {
                let folder = &folder;
                scope.spawn(move || {
                    let (file, mut random) = (File::open(folder.join("huge")).unwrap(), Random::new(seed + 1));
                    (0..40).for_each(|_| check(&file, "huge", random.below(HUGE - 4096), 4096));
                });
            }
        });
    });

    let threads = threads(mounted.pid());
    println!("read after {:?}, {} MiB at most, {threads} threads", begun.elapsed(), most >> 20);
    assert!(most <= MOST, "{most} bytes of anonymous memory");
    // Each reserves 2 MiB of the address space, and some ten are there from the start.
    assert!(threads <= 122 + 30, "{threads} threads");
}

#[test]
fn changes_and_crashes_leave_the_tree_as_published() {
    let machine = Arc::new(SmallMachine::new());
    let source = Source::start();
    for number in 0..600 {
        source.put(&format!("d{}/f{number}", number % 20), Resource::new(format!("first {number}")));
    }
    let mounted = mounted(&machine, &source.list_url());

    let most = most_memory_during(mounted.pid(), || {
        assert_eq!(tree(&mounted.path()), published(&source));
        for number in (0..600).step_by(3) {
            source.put(&format!("d{}/f{number}", number % 20), Resource::new(format!("second {number}")));
        }
        source.put("new/large", Resource::new(Random::new(1).bytes(8 << 20)));
        mounted.try_refresh().unwrap();
        assert_eq!(tree(&mounted.path()), published(&source));
    });
    println!("{} MiB at most", most >> 20);
    assert!(most <= MOST, "{most} bytes of anonymous memory");

    mounted.kill();
    start(&mounted);
    assert_eq!(tree(&mounted.path()), published(&source));
    source.fault("resourcelist.xml", Fault::Status(503, String::new()), u64::MAX);
    mounted.remount();
    assert_eq!(tree(&mounted.path()), published(&source), "without the Source");
    source.mend();
    source.put("more", Resource::new("more"));
    mounted.refresh();
    eventually_within(PATIENCE, "the change is seen", || mounted.join("more").exists());
}
