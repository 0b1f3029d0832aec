//! Quota, reserve, and what goes for what is written.

use super::*;
use std::time::Instant;

/// Promise 5: the cache keeps to its quota, and across restarts the least recently used go first.
#[test]
fn the_least_recently_used_go_first_across_a_restart() {
    let folder = folder();
    let disk = open_with_room(&folder, 10 * MIB + MIB / 2);
    for number in 0..9 {
        put(&disk, &key(number), &bytes(number, MIB - 8192));
    }
    drop(disk);
    let disk = open_with_room(&folder, 10 * MIB + MIB / 2);
    for number in [0, 1] {
        disk.get(&key(number)).unwrap();
    }
    assert!(disk.has(&key(2)) && disk.peek(&key(2)).is_some(), "a look is no use");
    drop(disk);

    let disk = open_with_room(&folder, 10 * MIB + MIB / 2);
    for number in 9..12 {
        put(&disk, &key(number), &bytes(number, MIB - 8192));
        let usage = recorded(&disk);
        assert!(usage.bytes <= usage.quota, "{usage:?}");
    }

    let here: Vec<u64> = (0..12).filter(|number| disk.get(&key(*number)).is_some()).collect();
    assert!(here.starts_with(&[0, 1]) && here.ends_with(&[9, 10, 11]), "{here:?}");
    assert!(!here.contains(&2), "{here:?}");
    assert_eq!(recorded(&disk).objects, here.len() as u64);
}

#[test]
fn what_is_larger_than_the_quota_is_full_and_evicts_nothing() {
    let folder = folder();
    let disk = open_with_room(&folder, 2 * MIB);
    put(&disk, &key(1), &bytes(1, MIB / 2));
    assert!(matches!(disk.begin(&key(2), Some(PLENTY), ANY), Err(StoreError::Full { .. })));
    assert!(disk.get(&key(1)).is_some());

    // The length is not known: it fills the cache, gets the error, and frees everything.
    let partial = disk.begin(&key(2), None, ANY).unwrap();
    let piece = bytes(2, BLOCK);
    let full = (0..64).find_map(|_| partial.append(&piece, ANY).err());
    assert!(matches!(full, Some(StoreError::Full { .. })));
    let usage = recorded(&disk);
    assert!(usage.bytes <= usage.quota, "{usage:?}");
    assert_eq!(partial.read_at(0, piece.len()).unwrap().unwrap(), piece);
    drop(partial);
    assert_eq!(recorded(&disk).bytes, disk.cache.index.own_bytes());
}

/// Where it cannot fit although everything else went, nothing goes for it.
#[test]
fn an_object_that_cannot_fit_is_full_and_evicts_nothing() {
    let (folder, counted) = (folder(), folder());
    let free = Arc::new(AtomicU64::new(PLENTY));
    let asked = Arc::clone(&free);
    let ask: FreeSpace = Box::new(move || Ok(asked.load(Ordering::Relaxed)));
    let disk = Store::open_on(folder.path(), Some(100 * MIB), 10 * MIB, ask, PATIENCE).unwrap();
    put(&disk, &key(1), &bytes(1, 4 * MIB));
    let holds = |bytes: u64| disk.could_hold(Some(bytes)).is_ok();
    assert!(disk.could_hold(None).is_ok() && holds(90 * MIB) && !holds(100 * MIB));

    std::fs::write(counted.path().join("catalog"), bytes(9, 40 * MIB)).unwrap();
    disk.count_folder(counted.path());
    assert!(disk.measure());
    assert!(holds(50 * MIB) && !holds(70 * MIB), "a catalog cannot be evicted");
    free.store(30 * MIB, Ordering::Relaxed);
    assert!(holds(20 * MIB) && !holds(26 * MIB), "30 MiB are free and 4 are its own, of which 10 stay free");

    assert!(matches!(disk.begin(&key(2), Some(70 * MIB), ANY), Err(StoreError::Full { .. })));
    assert!(disk.get(&key(1)).is_some());
}

#[test]
fn the_free_space_reserve_evicts_and_then_is_full() {
    let folder = folder();
    let free = Arc::new(AtomicU64::new(100 * MIB));
    let asked = Arc::clone(&free);
    let ask: FreeSpace = Box::new(move || Ok(asked.load(Ordering::Relaxed)));
    let disk = Store::open_on(folder.path(), Some(PLENTY), 10 * MIB, ask, PATIENCE).unwrap();
    put(&disk, &key(1), &bytes(1, MIB));
    free.store(9 * MIB, Ordering::Relaxed);

    let partial = disk.begin(&key(2), Some(MIB), ANY).unwrap();
    assert!(matches!(partial.append(&bytes(2, MIB), ANY), Err(StoreError::Full { .. })));

    assert!(disk.get(&key(1)).is_none(), "evicted for the reserve");
    free.store(100 * MIB, Ordering::Relaxed);
    partial.append(&bytes(2, MIB), ANY).unwrap();
    partial.commit(&key(2), MIB, ANY).unwrap();
}

/// A store of 20 objects of a MiB, on a disk that has as much free space now as is reserved.
fn short_of_space() -> (tempfile::TempDir, Arc<AtomicU64>, Arc<Store>) {
    let folder = folder();
    let free = Arc::new(AtomicU64::new(PLENTY));
    let asked = Arc::clone(&free);
    let ask: FreeSpace = Box::new(move || Ok(asked.load(Ordering::Relaxed)));
    let disk = Store::open_on(folder.path(), Some(PLENTY), 10 * MIB, ask, PATIENCE).unwrap();
    for number in 0..20 {
        put(&disk, &key(number), &bytes(number, MIB));
    }
    free.store(10 * MIB, Ordering::Relaxed);
    (folder, free, disk)
}

#[test]
fn a_shortage_that_ends_late_evicts_only_what_is_short() {
    let (_folder, _free, disk) = short_of_space();
    disk.cache.make_room(MIB, ANY).unwrap();
    disk.cache.make_room(MIB, ANY).unwrap();
    let left = recorded(&disk).objects;
    assert!((16..20).contains(&left), "{left}");
}

/// Promise 5: the reserve stays free. Bytes that are free some time after their eviction are not counted a second time.
#[test]
fn bytes_that_are_free_late_count_once() {
    let (_folder, free, disk) = short_of_space();
    disk.cache.make_room(MIB, ANY).unwrap();
    let gone = 20 - recorded(&disk).objects;
    assert!(gone > 0);

    free.store(10 * MIB + gone * MIB, Ordering::Relaxed);
    disk.cache.make_room(gone * MIB, ANY).unwrap();
    assert_eq!(20 - recorded(&disk).objects, gone, "all that was evicted is free");
    disk.cache.make_room((gone + 1) * MIB, ANY).unwrap();
    assert!(20 - recorded(&disk).objects > gone, "no more is");
}

#[test]
fn a_full_file_system_evicts_and_the_write_is_repeated() {
    let folder = folder();
    let disk = open(&folder);
    put(&disk, &key(1), &bytes(1, MIB));
    let path = object_path(&disk, &key(1));
    let full_while_there = || match path.exists() {
        true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        false => Ok(()),
    };
    disk.cache.retry_when_full(ANY, &path, full_while_there).unwrap();

    let always_full = || io::Result::<()>::Err(io::Error::from_raw_os_error(libc::EDQUOT));
    assert!(matches!(disk.cache.retry_when_full(ANY, &path, always_full), Err(StoreError::Full { .. })));
}

#[test]
fn the_default_quota_is_a_tenth_of_the_free_space_or_10_gib() {
    for (free, quota) in [(50 << 30, 5 << 30), (500 << 30, 10 << 30)] {
        let folder = folder();
        let disk = Store::open_on(folder.path(), None, 0, Box::new(move || Ok(free)), PATIENCE).unwrap();
        assert_eq!(recorded(&disk).quota, quota);
    }
}

#[test]
fn a_counted_folder_leaves_half_of_the_quota_to_objects() {
    let (cache, counted) = (folder(), folder());
    std::fs::write(counted.path().join("catalog"), bytes(9, 3 * MIB)).unwrap();
    let disk = open_with_room(&cache, 8 * MIB);
    for number in 0..6 {
        put(&disk, &key(number), &bytes(number, MIB));
    }
    let before = recorded(&disk).objects;

    disk.count_folder(counted.path());
    assert!(disk.measure());
    disk.cache.make_room(0, ANY).unwrap();

    let usage = recorded(&disk);
    assert!(usage.bytes <= usage.quota, "{usage:?}");
    assert!(0 < usage.objects && usage.objects < before, "{usage:?}");
    std::fs::write(counted.path().join("catalog"), bytes(9, 20 * MIB)).unwrap();
    disk.count_folder(counted.path());
    assert!(disk.measure());
    put(&disk, &key(9), &bytes(9, MIB));
    assert!(disk.get(&key(9)).is_some());
}

/// Promise 5: the reserve stays free. Bytes that an eviction has freed are not counted a second time.
#[test]
fn the_reserve_stays_free_after_an_eviction() {
    const TOTAL: u64 = 60 * MIB;
    let folder = folder();
    let counted = folder.path().to_owned();
    let free = move || TOTAL - allocated_below(&counted.join("objects"));
    let ask = free.clone();
    let disk = Store::open_on(folder.path(), Some(PLENTY), 10 * MIB, Box::new(move || Ok(ask())), PATIENCE).unwrap();
    for number in 0..40 {
        put(&disk, &key(number), &bytes(number, MIB));
    }
    for needed in [12, 18, 24, 30].map(|needed| needed * MIB) {
        disk.cache.make_room(needed, ANY).unwrap();
        assert!(free() >= needed + 10 * MIB, "{} of {needed}", free());
    }
    assert!(recorded(&disk).objects > 0);
}

#[test]
fn a_failure_to_write_lasts_until_an_object_is_written() {
    let folder = folder();
    let disk = open_with_room(&folder, 10 * MIB);
    let cause = std::io::ErrorKind::ReadOnlyFilesystem.into();
    disk.failures.failed(&StoreError::Io { path: folder.path().to_owned(), cause });
    assert!(disk.failures.is_lasting(Instant::now()) && disk.failures.lasting().is_some());

    put(&disk, &key(1), &bytes(1, BLOCK));

    assert!(!disk.failures.is_lasting(Instant::now()) && disk.failures.lasting().is_none());
}

#[test]
fn a_partial_that_grows_is_charged_once() {
    let folder = folder();
    let disk = open(&folder);
    for length in [None, Some(20 * MIB)] {
        let partial = disk.begin(&key(1), length, ANY).unwrap();
        for step in 1..=10 {
            partial.append(&bytes(step, MIB), ANY).unwrap();
            // Before it is recorded.
            let charged = disk.cache.bytes() - disk.cache.index.own_bytes();
            assert!((step * MIB..=(step + 1) * MIB + 8192).contains(&charged), "{charged} after {step}");
        }
        partial.abort();
        assert_eq!(recorded(&disk).bytes, disk.cache.index.own_bytes());
    }
}

/// What is prefetched leaves a fiftieth of the quota free, and evicts nothing that was used since it began.
#[test]
fn a_prefetch_leaves_headroom() {
    let folder = folder();
    let disk = open_with_room(&folder, 100 * MIB);
    let ahead = EvictionPolicy::UnusedSince(Moment::ago(Duration::from_secs(3600)));
    let fill = |policy, first: u64| {
        let full = (first..first + 200).find_map(|number| {
            let partial = disk.begin(&key(number), Some(MIB - 8192), policy).ok()?;
            partial
                .append(&bytes(number, MIB - 8192), policy)
                .err()
                .or_else(|| partial.commit(&key(number), MIB - 8192, policy).err())
        });
        assert!(matches!(full, Some(StoreError::Full { .. })) || policy == ANY);
        recorded(&disk)
    };

    let usage = fill(ahead, 0);

    assert!((90..=98).contains(&usage.objects), "{usage:?}");
    assert!(usage.bytes + usage.quota / 50 <= usage.quota, "{usage:?}");
    assert!(fill(ANY, 1000).bytes <= usage.quota);
    assert!(disk.get(&key(0)).is_none(), "a reader's file evicts it");
}
