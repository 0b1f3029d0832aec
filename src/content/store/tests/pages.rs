//! What the store leaves in the page cache, and what it writes to the disk.

use super::*;
use memmap2::{Mmap, MmapOptions};
use std::time::Instant;

const PAGE: usize = 4096;

fn map(path: &Path) -> Mmap {
    // SAFETY: the file is this test's own, and nothing cuts it while it is mapped.
    unsafe { MmapOptions::new().map(&File::open(path).unwrap()) }.unwrap()
}

/// Pages of a file in the page cache.
fn cached_pages(path: &Path) -> usize {
    let mapped = map(path);
    let mut seen = vec![0_u8; mapped.len().div_ceil(PAGE)];
    // SAFETY: `seen` has a byte for each page of the mapping, which lives through the call (mincore(2)).
    let asked = unsafe { libc::mincore(mapped.as_ptr().cast_mut().cast(), mapped.len(), seen.as_mut_ptr()) };
    assert_eq!(asked, 0);
    seen.iter().filter(|page| **page & 1 != 0).count()
}

fn wait_for_pages(path: &Path, most: usize) {
    let begun = Instant::now();
    while cached_pages(path) > most {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} pages stay", cached_pages(path));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// On tmpfs the page cache is the file.
fn is_in_memory(folder: &Path) -> bool {
    const TMPFS: i128 = 0x0102_1994;
    rustix::fs::statfs(folder).is_ok_and(|found| i128::from(found.f_type) == TMPFS)
}

#[test]
fn a_large_object_is_not_left_in_the_page_cache() {
    const LENGTH: u64 = 96 * MIB;
    let folder = folder();
    if is_in_memory(folder.path()) {
        return;
    }
    let disk = open(&folder);
    let written = bytes(1, LENGTH);
    for length in [Some(LENGTH), None] {
        let partial = disk.begin(&key(1), length, ANY).unwrap();
        for (number, piece) in (0..).zip(written.chunks(MIB as usize)) {
            partial.append(piece, ANY).unwrap();
            assert_eq!(partial.read_at(number * MIB, MIB as usize).unwrap().unwrap(), piece);
        }

        let object = partial.commit(&key(1), LENGTH, ANY).unwrap();
        object.sync();
        wait_for_pages(&object_path(&disk, &key(1)), 64);
        assert_eq!(object.read(LENGTH / 2, 1000).unwrap(), written[(LENGTH / 2) as usize..][..1000]);
    }
}

/// Kilobytes of a mapping that are not on the disk yet.
fn dirty(mapped: &Mmap) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let start = format!("{:x}-", mapped.as_ptr() as usize);
    let of_mapping = smaps.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
    let fields = of_mapping.take_while(|line| !line.starts_with("VmFlags"));
    let dirty = fields.filter(|line| line.contains("_Dirty:") && !line.starts_with("Pss"));
    dirty.map(|line| line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn syncing_objects_does_not_sync_the_file_system() {
    let folder = folder();
    let disk = open(&folder);
    // The kernel may write the other file out by itself meanwhile.
    let stays_dirty = |round: u64| {
        let other = folder.path().join(format!("other-{round}"));
        std::fs::write(&other, bytes(round, MIB)).unwrap();
        let mapped = map(&other);
        std::hint::black_box(mapped.iter().step_by(PAGE).map(|byte| u64::from(*byte)).sum::<u64>());
        assert!(round > 0 || dirty(&mapped) > 0, "nothing is seen of it");
        for number in 0..100 {
            put(&disk, &key(100 * round + number), &bytes(number, 3 * PAGE as u64));
        }
        disk.cache.sync();
        dirty(&mapped) > 0
    };
    assert!((0..5).any(stays_dirty));
}
