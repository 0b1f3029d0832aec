//! Quota, reserve, and what goes for what is written.

use super::*;

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
    assert!(disk.has(&key(2)) && disk.peek(&key(2)).is_some(), "who only looks does not use it");
    drop(disk);

    let disk = open_with_room(&folder, 10 * MIB + MIB / 2);
    for number in 9..12 {
        put(&disk, &key(number), &bytes(number, MIB - 8192));
        let usage = disk.usage();
        assert!(usage.bytes <= usage.quota, "{usage:?}");
    }

    let here: Vec<u64> = (0..12).filter(|number| disk.get(&key(*number)).is_some()).collect();
    assert!(here.starts_with(&[0, 1]) && here.ends_with(&[9, 10, 11]), "{here:?}");
    assert!(!here.contains(&2), "{here:?}");
    assert_eq!(disk.usage().objects, here.len() as u64);
}

#[test]
fn what_is_larger_than_the_quota_is_full_and_evicts_nothing() {
    let folder = folder();
    let disk = open_with_room(&folder, 2 * MIB);
    put(&disk, &key(1), &bytes(1, MIB / 2));
    assert!(matches!(disk.begin(&key(2), Some(PLENTY)), Err(StoreError::Full { .. })));
    assert!(disk.get(&key(1)).is_some());

    // The length is not known: it fills the cache, is told so, and gives everything back.
    let partial = disk.begin(&key(2), None).unwrap();
    let piece = bytes(2, BLOCK);
    let full = (0..64).find_map(|number| partial.write_at(number * BLOCK, &piece).err());
    assert!(matches!(full, Some(StoreError::Full { .. })));
    let usage = disk.usage();
    assert!(usage.bytes <= usage.quota, "{usage:?}");
    assert_eq!(partial.read_at(0, piece.len()).unwrap().unwrap(), piece);
    drop(partial);
    assert_eq!(disk.usage().bytes, disk.cache.recency.own_bytes());
}

/// Where it cannot fit although everything else went, nothing goes for it.
#[test]
fn what_can_have_no_room_beside_what_stays_is_full_and_evicts_nothing() {
    let (folder, beside) = (folder(), folder());
    let free = Arc::new(AtomicU64::new(PLENTY));
    let asked = Arc::clone(&free);
    let ask: FreeSpace = Box::new(move || Ok(asked.load(Ordering::Relaxed)));
    let disk = Store::open_on(folder.path(), Some(100 * MIB), 10 * MIB, ask).unwrap();
    put(&disk, &key(1), &bytes(1, 4 * MIB));
    let holds = |bytes: u64| disk.could_hold(Some(bytes)).is_ok();
    assert!(disk.could_hold(None).is_ok() && holds(90 * MIB) && !holds(100 * MIB));

    std::fs::write(beside.path().join("catalog"), bytes(9, 40 * MIB)).unwrap();
    disk.count_beside(beside.path());
    disk.cache.beside.refresh();
    assert!(holds(50 * MIB) && !holds(70 * MIB), "a catalog cannot be evicted");
    free.store(30 * MIB, Ordering::Relaxed);
    assert!(holds(20 * MIB) && !holds(26 * MIB), "30 MiB are free and 4 are its own, of which 10 stay free");

    assert!(matches!(disk.begin(&key(2), Some(70 * MIB)), Err(StoreError::Full { .. })));
    assert!(disk.get(&key(1)).is_some());
}

#[test]
fn the_free_space_reserve_evicts_and_then_is_full() {
    let folder = folder();
    let free = Arc::new(AtomicU64::new(100 * MIB));
    let asked = Arc::clone(&free);
    let ask: FreeSpace = Box::new(move || Ok(asked.load(Ordering::Relaxed)));
    let disk = Store::open_on(folder.path(), Some(PLENTY), 10 * MIB, ask).unwrap();
    put(&disk, &key(1), &bytes(1, MIB));
    free.store(9 * MIB, Ordering::Relaxed);

    let partial = disk.begin(&key(2), Some(MIB)).unwrap();
    assert!(matches!(partial.write_at(0, &bytes(2, MIB)), Err(StoreError::Full { .. })));

    assert!(disk.get(&key(1)).is_none(), "evicted for the reserve");
    free.store(100 * MIB, Ordering::Relaxed);
    partial.write_at(0, &bytes(2, MIB)).unwrap();
    partial.commit(&key(2), MIB).unwrap();
}

#[test]
fn a_shortage_evicts_what_is_short_although_the_file_system_shows_it_late() {
    let folder = folder();
    let free = Arc::new(AtomicU64::new(PLENTY));
    let asked = Arc::clone(&free);
    let ask: FreeSpace = Box::new(move || Ok(asked.load(Ordering::Relaxed)));
    let disk = Store::open_on(folder.path(), Some(PLENTY), 10 * MIB, ask).unwrap();
    for number in 0..20 {
        put(&disk, &key(number), &bytes(number, MIB));
    }
    free.store(10 * MIB, Ordering::Relaxed);
    disk.cache.make_room(MIB, &Victims::any()).unwrap();
    disk.cache.make_room(MIB, &Victims::any()).unwrap();
    let left = disk.usage().objects;
    assert!((16..20).contains(&left), "{left}");
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
    disk.cache.retry_when_full(&Victims::any(), full_while_there).unwrap();

    let always_full = || Err(io::Error::from_raw_os_error(libc::EDQUOT));
    assert!(is_full(&disk.cache.retry_when_full(&Victims::any(), always_full).unwrap_err()));
}

#[test]
fn the_quota_where_none_is_given_is_a_tenth_of_the_free_space_or_10_gib() {
    for (free, quota) in [(50 << 30, 5 << 30), (500 << 30, 10 << 30)] {
        let folder = folder();
        let disk = Store::open_on(folder.path(), None, 0, Box::new(move || Ok(free))).unwrap();
        assert_eq!(disk.usage().quota, quota);
    }
}

#[test]
fn what_lies_beside_counts_in_the_quota_but_leaves_room_for_objects() {
    let (cache, beside) = (folder(), folder());
    std::fs::write(beside.path().join("catalog"), bytes(9, 3 * MIB)).unwrap();
    let disk = open_with_room(&cache, 8 * MIB);
    for number in 0..6 {
        put(&disk, &key(number), &bytes(number, MIB));
    }
    let before = disk.usage().objects;

    disk.count_beside(beside.path());
    disk.cache.beside.refresh();
    disk.cache.make_room(0, &Victims::any()).unwrap();

    let usage = disk.usage();
    assert!(usage.bytes <= usage.quota, "{usage:?}");
    assert!(0 < usage.objects && usage.objects < before, "{usage:?}");
    std::fs::write(beside.path().join("catalog"), bytes(9, 20 * MIB)).unwrap();
    disk.count_beside(beside.path());
    disk.cache.beside.refresh();
    put(&disk, &key(9), &bytes(9, MIB));
    assert!(disk.get(&key(9)).is_some());
}
