use super::*;
use crate::platform::free_space::SpaceGuard;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// What a sorter with so many bytes of memory returns.
fn sort(pairs: &[(Vec<u8>, Vec<u8>)], most: usize) -> Pairs {
    let folder = tempfile::tempdir().unwrap();
    let mut sorter = Sorter::new(&SpillFolder::new(folder.path()), most);
    for (key, value) in pairs {
        sorter.add(key, value).unwrap();
    }
    let sorted = sorter.finish().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "runs have no names");
    read(sorted).0
}

fn read(mut sorted: Sorted) -> (Pairs, Sorted) {
    let mut all = Vec::new();
    while let Some((key, value)) = sorted.next().unwrap() {
        all.push((key.to_vec(), value.to_vec()));
    }
    (all, sorted)
}

#[test]
fn pairs_are_read_again_with_others_among_them() {
    let folder = tempfile::tempdir().unwrap();
    let sorted = |values: &[u8], most| {
        let mut sorter = Sorter::new(&SpillFolder::new(folder.path()), most);
        values.iter().for_each(|value| sorter.add(&[*value / 10], &[*value]).unwrap());
        sorter.finish().unwrap()
    };
    let small = 64;
    for most in [small, LARGE_SORT] {
        let mut ours = sorted(&[30, 10, 11, 20, 12], most);
        ours.next().unwrap();
        ours.add(sorted(&[13, 5, 40], small));
        ours.rewind().unwrap();
        let (all, mut ours) = read(ours);
        let values: Vec<_> = all.iter().map(|(_, value)| value[0]).collect();
        assert_eq!(values, [5, 10, 11, 12, 13, 20, 30, 40]);
        ours.add(sorted(&[], small));
        ours.rewind().unwrap();
        assert_eq!(read(ours).0, all);
    }
}

#[test]
fn runs_and_memory_agree_with_a_stable_sort() {
    let mut seed = 7u64;
    let pairs: Vec<_> = (0..5000u32)
        .map(|index| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = format!("shared/prefix/{}", (seed >> 33) % 900).repeat((seed >> 60) as usize % 3 + 1);
            (key.into_bytes(), index.to_le_bytes().to_vec())
        })
        .collect();
    let mut expected = pairs.clone();
    expected.sort_by(|a, b| a.0.cmp(&b.0));

    for most in [LARGE_SORT, 4096, 640] {
        assert_eq!(sort(&pairs, most), expected, "{most}");
    }
    assert_eq!(sort(&[], LARGE_SORT), []);
}

#[test]
fn input_in_order_or_nearly_is_in_order() {
    let pair = |key: &str| (key.as_bytes().to_vec(), Vec::new());
    // Files, each behind the folder that was left for its own, as a list in order has them.
    let files = (0..3000u32)
        .flat_map(|number| [pair(&format!("2folder{number:05}/file")), pair(&format!("1folder{number:05}"))]);
    let interleaved: Vec<_> = files.collect();
    let mut ordered = interleaved.clone();
    ordered.sort();
    let mut last_first = ordered.clone();
    last_first.rotate_right(1);
    let mut swapped = interleaved.clone();
    swapped.swap(5000, 5002);

    for pairs in [&interleaved, &ordered, &last_first, &swapped] {
        assert!(sort(pairs, LARGE_SORT) == ordered);
    }
}

#[test]
fn more_runs_than_may_be_open_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let mut sorter = Sorter::new(&SpillFolder::new(folder.path()), 40);
    let pairs: Vec<_> = (0..3 * MOST_RUNS as u32).map(|number| (number.wrapping_mul(7919) % 100, number)).collect();

    for (key, value) in &pairs {
        sorter.add(&key.to_be_bytes(), &value.to_be_bytes()).unwrap();
        assert!(sorter.runs.len() <= MOST_RUNS);
    }

    let mut expected = pairs;
    expected.sort_by_key(|(key, _)| *key);
    let expected: Vec<_> =
        expected.iter().map(|(key, value)| (key.to_be_bytes().to_vec(), value.to_be_bytes().to_vec())).collect();
    assert!(read(sorter.finish().unwrap()).0 == expected, "equal keys in the order in which they were added");
}

#[test]
fn joined_sorters_keep_order_and_small_ones_make_no_runs() {
    let folder = tempfile::tempdir().unwrap();
    let most = 1 << 12;
    let mut all = Sorter::new(&SpillFolder::new(folder.path()), most);
    let mut part = Sorter::new(&SpillFolder::new(folder.path()), most);
    let mut pairs = Vec::new();
    for set in 0..3000u32 {
        for _ in 0..if set % 100 == 0 { 250 } else { 3 } {
            let number = pairs.len() as u32;
            let key = number.wrapping_mul(7919) % 700;
            part.add(&key.to_be_bytes(), &number.to_be_bytes()).unwrap();
            pairs.push((key, number));
        }
        all.join(part.split_off().unwrap()).unwrap();
    }
    // Thirty large ones, each with what was in memory before it, and what a full arena made of the small ones.
    assert!(all.runs.len() < 400, "{} runs", all.runs.len());

    let (sorted, _) = read(all.finish().unwrap());

    pairs.sort_by_key(|(key, _)| *key);
    let expected: Vec<_> =
        pairs.iter().map(|(key, value)| (key.to_be_bytes().to_vec(), value.to_be_bytes().to_vec())).collect();
    assert!(sorted == expected, "equal keys in the order in which they were added");
}

#[test]
fn long_and_short_shared_beginnings_are_sorted_through() {
    let mut seed = 11u64;
    let mut below = |limit: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % limit
    };
    for alphabet in [&b"\0"[..], b"\0a", b"ab\xff"] {
        let pairs: Vec<_> = (0..3000u32)
            .map(|index| {
                let (shared, own) = (below(4) * 9, below(12));
                let mut key = vec![alphabet[0]; shared as usize];
                key.extend((0..own).map(|_| alphabet[below(alphabet.len() as u64) as usize]));
                (key, index.to_le_bytes().to_vec())
            })
            .collect();
        let mut expected = pairs.clone();
        expected.sort_by(|a, b| a.0.cmp(&b.0));

        assert_eq!(sort(&pairs, LARGE_SORT), expected, "{alphabet:?}");
    }
}

#[test]
fn empty_keys_and_keys_with_trailing_nuls_stay_apart() {
    let pairs = [(b"a\0".to_vec(), vec![1]), (b"a".to_vec(), vec![2]), (vec![], vec![]), (b"a\0\0".to_vec(), vec![3])];

    let sorted = sort(&pairs, LARGE_SORT);

    let keys: Vec<_> = sorted.iter().map(|(key, _)| &key[..]).collect();
    assert_eq!(keys, [&b""[..], b"a", b"a\0", b"a\0\0"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let in_the_way = folder.path().join("file");
    std::fs::write(&in_the_way, "").unwrap();
    let mut sorter = Sorter::new(&SpillFolder::new(&in_the_way), 64);
    let result = (0..10).try_for_each(|_| sorter.add(b"key", b"value"));

    assert!(matches!(result, Err(CatalogError::Io { .. })), "{result:?}");
}

#[test]
fn a_run_keeps_the_reserve_of_the_disk() {
    static FREE: AtomicU64 = AtomicU64::new(150 << 20);
    let folder = tempfile::tempdir().unwrap();
    let room = Arc::new(SpaceGuard::new(50 << 20, |_| Ok(FREE.load(Ordering::Relaxed))));
    let mut sorter = Sorter::new(&SpillFolder { path: folder.path().to_owned(), room }, 1 << 20);
    let mut fill = || (0u32..6000).try_for_each(|number| sorter.add(&number.to_be_bytes(), &[7; 1000]));
    fill().unwrap();

    FREE.store((50 << 20) - 1, Ordering::Relaxed);
    let failed = fill().unwrap_err();

    let CatalogError::Io { path, cause } = failed else { panic!("{failed}") };
    assert_eq!((&*path, cause.kind()), (folder.path(), std::io::ErrorKind::StorageFull));
    assert!(cause.to_string().contains("cache-reserve="), "{cause}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_is_read_once_is_freed_on_the_disk_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let mut sorter = Sorter::new(&SpillFolder::new(folder.path()), 8 << 20);
    let pairs: Vec<_> = (0..200_000_u32).rev().map(|number| (number.to_be_bytes().to_vec(), vec![7; 100])).collect();
    pairs.iter().for_each(|(key, value)| sorter.add(key, value).unwrap());
    let mut sorted = sorter.finish().unwrap();
    let blocks = |sorted: &Sorted| -> u64 {
        let runs = sorted.runs.iter();
        runs.map(|run| if let RunBytes::File(file) = &run.source { file.get_ref().blocks() } else { 0 }).sum()
    };
    sorted.peek().unwrap();
    let whole = blocks(&sorted);

    sorted.read_once();
    let mut read = Vec::new();
    while let Some((key, value)) = sorted.next().unwrap() {
        read.push((key.to_vec(), value.to_vec()));
        if read.len() == pairs.len() / 2 {
            let left = blocks(&sorted);
            assert!(left > 0 && left < whole * 2 / 3, "{left} of {whole} blocks");
        }
    }

    assert!(read.iter().rev().eq(&pairs));
    assert!(blocks(&sorted) < whole / 5, "{} of {whole} blocks", blocks(&sorted));
    assert!(sorted.rewind().is_err(), "what is freed is not read as if it were there");
}

impl spill::RunFile {
    /// Blocks of 512 bytes that it takes on the disk.
    fn blocks(&self) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&self.file.metadata().unwrap())
    }
}
