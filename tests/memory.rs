//! Memory of the mount's process stays bounded: by neither readers, nor files, nor the length of a file does it grow.

mod common;

use common::generated::{GeneratedSource, check, read_whole};
use common::memory::{MOST, most_memory_during};
use common::mounted::Mounted;
use common::random::Random;
use std::fs::File;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// Promise: all memory of content together stays within one budget.
#[test]
fn a_crowd_with_a_small_cache_stays_within_150_mb() {
    const LARGE: u64 = 24 * MIB;
    const SMALL: u64 = 3000;
    const HUGE: u64 = 4096 * MIB;
    let large = (0..40).map(|number| (format!("large-{number:02}"), LARGE + number));
    let small = (0..1000).map(|number| (format!("small-{number:04}"), SMALL + number));
    let files: Vec<(String, u64)> = large.chain(small).chain([("huge".to_owned(), HUGE)]).collect();
    let source = GeneratedSource::start(files.clone());
    let mounted = Mounted::new(&source.list_url(), "poll=1h,cache-size=200M,cache-reserve=0");
    let folder = mounted.path();

    let most = most_memory_during(mounted.pid(), || {
        std::thread::scope(|scope| {
            let mut readers = Vec::new();
            for (name, length) in &files[..40] {
                readers.push(scope.spawn(|| read_whole(&folder, name, *length)));
            }
            for share in files[40..1040].chunks(125) {
                let folder = &folder;
                readers.push(
                    scope.spawn(move || share.iter().for_each(|(name, length)| read_whole(folder, name, *length))),
                );
            }
            for seed in 0..4 {
                let folder = &folder;
                readers.push(scope.spawn(move || {
                    let (file, mut random) = (File::open(folder.join("huge")).unwrap(), Random::new(seed + 1));
                    (0..60).for_each(|_| check(&file, "huge", random.below(HUGE - 4096), 4096));
                }));
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
    });

    println!("{} MiB at most", most >> 20);
    assert!(most <= MOST, "{most} bytes of anonymous memory");
}

/// Promise: more readers of files that the cache has no room for than memory has wide windows all go on, each in its turn.
#[test]
fn readers_past_the_cache_share_the_memory() {
    const READERS: usize = 10;
    const LENGTH: u64 = 64 * MIB;
    let source = GeneratedSource::start((0..READERS).map(|number| (format!("large-{number}"), LENGTH)));
    let mounted = Mounted::new(&source.list_url(), "poll=1h,cache-size=32M,cache-reserve=0");
    let names: Vec<String> = (0..READERS).map(|number| format!("large-{number}")).collect();
    let files: Vec<File> = names.iter().map(|name| File::open(mounted.join(name)).unwrap()).collect();
    let mut longest = Duration::ZERO;

    let most = most_memory_during(mounted.pid(), || {
        for at in (0..LENGTH).step_by(MIB as usize) {
            for (name, file) in names.iter().zip(&files) {
                let begun = std::time::Instant::now();
                check(file, name, at, MIB as usize);
                longest = longest.max(begun.elapsed());
            }
        }
    });

    println!("{} MiB at most, {longest:?} for a read at most", most >> 20);
    assert!(most <= MOST, "{most} bytes of anonymous memory");
    // A download that no reader follows gives its memory up after ten seconds.
    assert!(longest < Duration::from_secs(8), "a reader waited {longest:?} for the memory of another");
}

/// Promise: a file costs no memory by its length.
#[test]
fn a_file_of_one_tebibyte_costs_no_memory_by_its_length() {
    const LENGTH: u64 = 1 << 40;
    let source = GeneratedSource::start([("tebibyte".to_owned(), LENGTH)]);
    let mounted = Mounted::new(&source.list_url(), "poll=1h,cache-size=200M,cache-reserve=0");
    let file = File::open(mounted.join("tebibyte")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), LENGTH);

    let most = most_memory_during(mounted.pid(), || {
        (0..64).for_each(|mib| check(&file, "tebibyte", mib * MIB, MIB as usize));
        check(&file, "tebibyte", LENGTH - MIB, MIB as usize);
        let mut random = Random::new(1);
        (0..200).for_each(|_| check(&file, "tebibyte", random.below(LENGTH - 2 * MIB), 128 << 10));
        check(&file, "tebibyte", 0, MIB as usize);
    });

    println!("{} MiB at most", most >> 20);
    assert!(most <= MOST, "{most} bytes of anonymous memory");
}
