//! The cache against what a disk, a kill and other processes do to it.

mod room;

use super::*;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

const PLENTY: u64 = 1 << 40;
const MIB: u64 = 1 << 20;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn open(folder: &TempDir) -> Arc<Store> {
    Store::open(folder.path(), Some(PLENTY), 0).unwrap()
}

/// A cache that holds `bytes` beside its own records.
fn open_with_room(folder: &TempDir, bytes: u64) -> Arc<Store> {
    let own = {
        let disk = open(folder);
        disk.cache.recency.own_bytes()
    };
    Store::open(folder.path(), Some(own + bytes), 0).unwrap()
}

fn key(number: u64) -> ObjectKey {
    ObjectKey::inode("https://source.example/", number)
}

/// Bytes that differ from block to block and from seed to seed.
fn bytes(seed: u64, length: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(&mut next).take(length.div_ceil(8) as usize).flatten().collect();
    bytes.truncate(length as usize);
    bytes
}

fn put(disk: &Store, key: &ObjectKey, bytes: &[u8]) -> Arc<Object> {
    let partial = disk.begin(key, Some(bytes.len() as u64)).unwrap();
    partial.write_at(0, bytes).unwrap();
    partial.commit(key, bytes.len() as u64).unwrap()
}

fn object_path(disk: &Store, key: &ObjectKey) -> PathBuf {
    disk.cache.path(&object_name(key))
}

/// Leaves a partial as a kill does: the file and, if it was noted, the sidecar, but no lock and nothing of the destructor.
fn kill(partial: Partial, noted: bool) {
    if noted {
        partial.note_now();
    }
    partial.abandon();
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x04], at).unwrap();
}

#[test]
fn what_is_committed_is_read_back_at_every_offset() {
    let folder = folder();
    let tail = (64 << 10) - 40; // The longest that is read with its footer.
    for length in [0, 1, tail - 1, tail, tail + 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77, 4 * MIB + 5] {
        let written = bytes(length, length);
        let disk = open(&folder);
        put(&disk, &key(length), &written);
        drop(disk);

        let disk = open(&folder);
        let object = disk.get(&key(length)).unwrap();
        assert_eq!(object.length(), length);
        for offset in [0, 1, BLOCK - 1, BLOCK, length / 2, length.saturating_sub(1), length, length + 9, u64::MAX] {
            for count in [0, 1, 4096, BLOCK as usize, 3 * MIB as usize] {
                let from = offset.min(length) as usize;
                let to = (from + count).min(length as usize);
                assert_eq!(object.read(offset, count).unwrap(), written[from..to], "{length} {offset} {count}");
            }
        }
    }
    assert_eq!(open(&folder).usage().objects, 10);
}

/// Promise 1, never a wrong byte: any single changed byte of the file is a miss or an error, for every block and the footer.
#[test]
fn a_changed_byte_is_never_handed_out() {
    // The second is read with its footer when it is opened.
    for (length, at) in [2 * BLOCK + 1000, 1000].into_iter().flat_map(|length| {
        let in_blocks = [0, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK, length - 1];
        let footer = length..length + length.div_ceil(BLOCK) * 4 + 36;
        in_blocks.into_iter().filter(move |at| *at < length).chain(footer).map(move |at| (length, at))
    }) {
        let folder = folder();
        let disk = open(&folder);
        put(&disk, &key(1), &bytes(1, length));
        drop(disk);
        let disk = open(&folder);
        flip(&object_path(&disk, &key(1)), at);

        match disk.get(&key(1)) {
            None => assert!(at >= length, "byte {at}: only the footer is checked when opened"),
            Some(object) => {
                let damaged = object.read(0, length as usize).unwrap_err();
                assert_eq!(damaged.offset, at / BLOCK * BLOCK);
            }
        }
        assert!(disk.get(&key(1)).is_none(), "byte {at}: damaged once, a miss from then on");
        assert!(!object_path(&disk, &key(1)).exists(), "byte {at}");
        assert_eq!(disk.usage().objects, 0, "byte {at}");
    }
}

#[test]
fn a_cut_or_foreign_file_is_a_miss() {
    let folder = folder();
    let disk = open(&folder);
    let written = bytes(1, 2 * BLOCK);
    let cut_to = [0, 1, 35, 36, BLOCK, 2 * BLOCK, 2 * BLOCK + 8 + 35, 2 * BLOCK + 8 + 37];
    for (number, length) in (0..).zip(cut_to) {
        put(&disk, &key(number), &written);
        let path = object_path(&disk, &key(number));
        OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
    }
    put(&disk, &key(100), &written);
    std::fs::create_dir_all(object_path(&disk, &key(101)).parent().unwrap()).unwrap();
    std::fs::copy(object_path(&disk, &key(100)), object_path(&disk, &key(101))).unwrap();
    std::fs::create_dir_all(object_path(&disk, &key(102))).unwrap();
    drop(disk);

    let disk = open(&folder);
    for number in (0..cut_to.len() as u64).chain([101, 102]) {
        assert!(disk.get(&key(number)).is_none(), "{number}");
    }
    assert!(disk.get(&key(100)).is_some());
}

#[test]
fn a_file_cut_while_open_is_an_error_and_then_a_miss() {
    let folder = folder();
    let disk = open(&folder);
    let object = put(&disk, &key(1), &bytes(1, 2 * BLOCK));
    OpenOptions::new().write(true).open(object_path(&disk, &key(1))).unwrap().set_len(BLOCK + 5).unwrap();
    assert_eq!(object.read(0, 10).unwrap().len(), 10);
    assert!(object.read(BLOCK, 10).unwrap_err().cause.is_some());
    assert!(disk.get(&key(1)).is_none());
}

#[test]
fn a_partial_is_written_in_any_order_and_read_meanwhile() {
    let folder = folder();
    let disk = open(&folder);
    let length = 5 * BLOCK + 123;
    let written = bytes(3, length);
    let partial = disk.begin(&key(1), None).unwrap();
    let mut pieces: Vec<u64> = (0..length).step_by(50_000).collect();
    // A fixed order that leaves blocks begun at their start, middle and end.
    pieces.sort_by_key(|start| start.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for start in pieces {
        let end = (start + 50_000).min(length);
        assert_eq!(partial.read_at(start, 1).unwrap(), None);
        partial.write_at(start, &written[start as usize..end as usize]).unwrap();
        let read = partial.read_at(start, (end - start) as usize).unwrap().unwrap();
        assert_eq!(read, written[start as usize..end as usize]);
    }
    // What is present stays: other bytes at the same place change nothing.
    partial.write_at(0, &bytes(9, length)).unwrap();
    assert_eq!((partial.present(), partial.prefix(), partial.absent(0..length)), (length, length, None));

    partial.commit(&key(2), length).unwrap();

    assert_eq!(partial.read_at(0, length as usize).unwrap().unwrap(), written);
    assert!(matches!(partial.write_at(0, b"x"), Err(StoreError::Finished { .. })));
    drop(partial);
    assert!(disk.get(&key(1)).is_none(), "it is committed under the key that its bytes gave");
    assert_eq!(disk.get(&key(2)).unwrap().read(0, length as usize).unwrap(), written);
}

#[test]
fn nothing_is_committed_with_a_gap_or_another_length() {
    let folder = folder();
    let disk = open(&folder);
    let partial = disk.begin(&key(1), None).unwrap();
    partial.write_at(0, &bytes(1, 100)).unwrap();
    partial.write_at(200, &bytes(1, 100)).unwrap();
    for length in [0, 99, 100, 101, 200, 300, 301] {
        assert!(matches!(partial.commit(&key(1), length), Err(StoreError::Incomplete { .. })), "{length}");
    }
    partial.write_at(100, &bytes(1, 100)).unwrap();
    partial.commit(&key(1), 300).unwrap();
}

/// A kill at every stage: what follows is a miss or the whole object, and nothing is left over.
#[test]
fn a_kill_leaves_no_garbage_and_a_noted_partial_goes_on() {
    let folder = folder();
    let written = bytes(4, 6 * BLOCK + 9);
    let disk = open(&folder);
    let unnoted = disk.begin(&key(1), None).unwrap();
    unnoted.write_at(0, &written[..2 * BLOCK as usize]).unwrap();
    let noted = disk.begin(&key(2), Some(written.len() as u64)).unwrap();
    noted.set_validator(Some("\"v1\"".to_owned()));
    noted.write_at(2 * BLOCK, &written[2 * BLOCK as usize..5 * BLOCK as usize + 9]).unwrap();
    kill(unnoted, false);
    kill(noted, true);
    std::fs::write(folder.path().join("tmp/ino-00~1-1"), b"second writer").unwrap();
    std::fs::write(folder.path().join("tmp/ino-00.present~"), b"torn").unwrap();
    drop(disk);

    let disk = open(&folder);
    let mut left: Vec<_> =
        std::fs::read_dir(folder.path().join("tmp")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [format!("{}", key(2)), format!("{}.present", key(2))].map(std::ffi::OsString::from));
    assert!(disk.resume(&key(1)).is_none());
    let partial = disk.resume(&key(2)).unwrap();
    assert_eq!(partial.validator().as_deref(), Some("\"v1\""));
    assert_eq!(partial.length(), Some(written.len() as u64));
    assert_eq!(partial.present(), 3 * BLOCK, "whole blocks only");
    let mut from = 0;
    while let Some(gap) = partial.absent(from..written.len() as u64) {
        partial.write_at(gap.start, &written[gap.start as usize..gap.end as usize]).unwrap();
        from = gap.end;
    }
    let object = partial.commit(&key(2), written.len() as u64).unwrap();
    assert_eq!(object.read(0, written.len()).unwrap(), written);
    assert_eq!(std::fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn what_was_noted_bit_by_bit_goes_on_after_each_kill() {
    let folder = folder();
    let written = bytes(4, 7 * BLOCK);
    let part = |blocks: std::ops::Range<u64>| &written[(blocks.start * BLOCK) as usize..(blocks.end * BLOCK) as usize];
    let disk = open(&folder);
    let partial = disk.begin(&key(1), Some(7 * BLOCK)).unwrap();
    partial.set_validator(Some("\"v1\"".to_owned()));
    for blocks in [0..2, 4..5, 2..3] {
        partial.write_at(blocks.start * BLOCK, part(blocks)).unwrap();
        partial.note_now();
    }
    partial.write_at(3 * BLOCK, part(3..4)).unwrap();
    kill(partial, false);
    drop(disk);

    let disk = open(&folder);
    let partial = disk.resume(&key(1)).unwrap();
    assert_eq!((partial.prefix(), partial.present()), (3 * BLOCK, 4 * BLOCK), "but for what came behind the last note");
    partial.write_at(3 * BLOCK, part(3..4)).unwrap();
    kill(partial, true);
    drop(disk);

    let disk = open(&folder);
    let partial = disk.resume(&key(1)).unwrap();
    assert_eq!(partial.prefix(), 5 * BLOCK);
    assert_eq!(partial.read_at(0, 5 * BLOCK as usize).unwrap().unwrap(), part(0..5));
    partial.write_at(5 * BLOCK, part(5..7)).unwrap();
    assert_eq!(partial.commit(&key(1), 7 * BLOCK).unwrap().read(0, written.len()).unwrap(), written);
    assert_eq!(std::fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0);
}

#[test]
fn a_damaged_block_of_a_resumed_partial_is_absent_again() {
    let folder = folder();
    let written = bytes(5, 3 * BLOCK);
    let disk = open(&folder);
    let partial = disk.begin(&key(1), None).unwrap();
    partial.set_validator(Some("v".to_owned()));
    partial.write_at(0, &written).unwrap();
    drop(partial);
    flip(&folder.path().join("tmp").join(key(1).as_str()), BLOCK + 7);

    let partial = disk.resume(&key(1)).unwrap();
    assert_eq!(partial.read_at(0, BLOCK as usize).unwrap().unwrap(), written[..BLOCK as usize]);
    assert_eq!(partial.read_at(0, 3 * BLOCK as usize).unwrap_err().offset, BLOCK);
    assert_eq!(partial.absent(0..3 * BLOCK), Some(BLOCK..2 * BLOCK));
    partial.write_at(BLOCK, &written[BLOCK as usize..2 * BLOCK as usize]).unwrap();
    assert_eq!(partial.commit(&key(1), 3 * BLOCK).unwrap().read(0, written.len()).unwrap(), written);
}

#[test]
fn a_partial_without_validator_or_aborted_is_not_kept() {
    let folder = folder();
    let disk = open(&folder);
    let unvalidated = disk.begin(&key(1), None).unwrap();
    unvalidated.write_at(0, &bytes(1, 2 * BLOCK)).unwrap();
    drop(unvalidated);
    let aborted = disk.begin(&key(2), None).unwrap();
    aborted.set_validator(Some("v".to_owned()));
    aborted.write_at(0, &bytes(1, 2 * BLOCK)).unwrap();
    aborted.abort();
    drop(aborted);
    assert!(disk.resume(&key(1)).is_none() && disk.resume(&key(2)).is_none());
    assert_eq!(std::fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0);
    assert_eq!(disk.usage().bytes, disk.cache.recency.own_bytes());
}

#[test]
fn a_pinned_object_survives_the_eviction_of_another_mount_and_ends_with_its_process() {
    let folder = folder();
    let pinning = open_with_room(&folder, 4 * MIB);
    let evicting = open_with_room(&folder, 4 * MIB);
    let written = bytes(1, MIB);
    put(&pinning, &key(1), &written);
    assert!(pinning.pin(&key(1)) && pinning.pin(&key(1)) && !pinning.pin(&key(99)));
    for number in 2..12 {
        put(&evicting, &key(number), &bytes(number, MIB - 8192));
    }
    // Whoever unlinks it all the same: the pin reads on.
    std::fs::remove_file(object_path(&pinning, &key(1))).unwrap();
    pinning.cache.stop();
    assert_eq!(pinning.get(&key(1)).unwrap().read(0, MIB as usize).unwrap(), written);
    pinning.unpin(&key(1));
    assert_eq!(std::fs::read_dir(&pinning.pins.path).unwrap().count(), 0);

    put(&evicting, &key(1), &written);
    assert!(pinning.pin(&key(1)));
    let path = pinning.pins.path.clone();
    drop(pinning);
    assert!(!path.exists());
}

#[test]
fn pins_of_a_dead_process_are_removed_and_the_folder_is_scanned_again() {
    let folder = folder();
    let disk = open(&folder);
    put(&disk, &key(1), &bytes(1, MIB));
    drop(disk);
    // A process that died between rename and record, with a pin.
    let dead = folder.path().join("pins/4711");
    std::fs::create_dir(&dead).unwrap();
    let object = folder.path().join(object_name(&key(1)));
    std::fs::hard_link(&object, dead.join(key(1).as_str())).unwrap();
    std::fs::remove_dir_all(folder.path().join("recency")).unwrap();

    let disk = open(&folder);
    finish_rescan(&disk);

    assert!(!dead.exists());
    let usage = disk.usage();
    assert_eq!(usage.objects, 1);
    assert_eq!(usage.bytes, allocated(&object).unwrap() + disk.cache.recency.own_bytes());
}

fn finish_rescan(disk: &Store) {
    opening::rescan(&disk.cache);
}

#[test]
fn two_mounts_share_a_folder_and_keep_to_one_quota() {
    let folder = folder();
    let (first, second) = (open_with_room(&folder, 8 * MIB), open_with_room(&folder, 8 * MIB));
    std::thread::scope(|scope| {
        for (disk, base) in [(&first, 0), (&second, 1000)] {
            scope.spawn(move || {
                for number in base..base + 40 {
                    let written = bytes(number, MIB / 2 + number);
                    put(disk, &key(number), &written);
                    // Gone already, or right.
                    for other in [number, number / 2, 1000 + number % 1000] {
                        if let Some(object) = disk.get(&key(other)) {
                            let length = object.length() as usize;
                            assert_eq!(object.read(0, length).unwrap(), bytes(other, length as u64));
                        }
                    }
                }
            });
        }
    });
    // What each has written down the other knows of when it next needs room.
    first.usage();
    second.usage();
    put(&second, &key(5000), &bytes(5000, MIB / 2));
    let usage = second.usage();
    assert!(usage.bytes <= usage.quota + 2 * MIB, "{usage:?}");
    finish_rescan(&first);
    let files: u64 = walk(&folder.path().join("objects")).iter().filter_map(|path| allocated(path)).sum();
    assert_eq!(files, first.usage().bytes - first.cache.recency.own_bytes(), "the records are the files'");
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let shards = std::fs::read_dir(folder).unwrap();
    shards
        .flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect()
}

#[test]
fn the_same_object_may_be_written_twice_at_once() {
    let folder = folder();
    let (first, second) = (open(&folder), open(&folder));
    let written = bytes(1, 2 * BLOCK);
    let one = first.begin(&key(1), None).unwrap();
    one.write_at(0, &written[..100]).unwrap();
    assert!(second.resume(&key(1)).is_none(), "it is being written");
    put(&second, &key(1), &written);
    one.write_at(100, &written[100..]).unwrap();
    one.commit(&key(1), 2 * BLOCK).unwrap();
    for disk in [&first, &second] {
        assert_eq!(disk.get(&key(1)).unwrap().read(0, written.len()).unwrap(), written);
        assert_eq!(disk.usage().objects, 1);
    }
}

#[test]
fn what_is_committed_after_the_close_is_counted() {
    let folder = folder();
    let disk = open(&folder);
    let partial = disk.begin(&key(1), None).unwrap();
    disk.close();
    partial.write_at(0, &bytes(1, BLOCK)).unwrap();
    partial.commit(&key(1), BLOCK).unwrap();
    drop((partial, disk));
    assert_eq!(open(&folder).usage().objects, 1);
}

#[test]
fn everything_is_the_owners_alone() {
    let folder = folder();
    let disk = open(&folder);
    put(&disk, &key(1), b"x");
    let partial = disk.begin(&key(2), None).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for name in ["objects", "tmp", "pins", "recency"] {
        assert_eq!(mode(&folder.path().join(name)), 0o700, "{name}");
    }
    assert_eq!(mode(&disk.pins.path), 0o700);
    assert_eq!(mode(object_path(&disk, &key(1)).parent().unwrap()), 0o700);
    assert_eq!(mode(&object_path(&disk, &key(1))), 0o600);
    assert_eq!(mode(&disk.cache.path(&format!("tmp/{}", partial.key()))), 0o600);
}

/// Names the folder to fill, in the environment of the processes that the test below starts and kills.
const FILL: &str = "RESYNCFS_TEST_FILL_CACHE";

#[test]
fn fills_the_cache_where_a_test_asks_this_process_to() {
    let Some(path) = std::env::var_os(FILL) else { return };
    let disk = Store::open(Path::new(&path), Some(8 * MIB), 0).unwrap();
    for number in (1..).flat_map(|number| [number, number / 2]) {
        put(&disk, &key(number), &bytes(number, number * 7919 % MIB));
        disk.pin(&key(number / 3));
        disk.unpin(&key(number / 5));
        if number % 16 == 0 {
            disk.cache.flush();
        }
    }
}

/// Promise 5: survives kill -9, here of two processes at once that share the folder, and serves no wrong byte after it.
#[test]
fn killed_processes_leave_right_objects_and_right_records() {
    let folder = folder();
    for round in 1..=3 {
        let fill = || {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "content::store::tests::fills_the_cache_where_a_test_asks_this_process_to"]);
            command.env(FILL, folder.path()).stdout(std::process::Stdio::null()).spawn().unwrap()
        };
        let mut children = [fill(), fill()];
        // Killed in the midst of work: when so many objects are there, whatever else is going on.
        let objects = folder.path().join("objects");
        while !objects.exists() || walk(&objects).len() < 4 * round {
            std::thread::yield_now();
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }

        let disk = Store::open(folder.path(), Some(8 * MIB), 0).unwrap();
        finish_rescan(&disk);
        let mut whole = 0;
        for path in walk(&objects) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let number = u64::from_str_radix(name.rsplit('-').next().unwrap(), 16).unwrap();
            let object = disk.get(&key(number)).unwrap();
            let length = object.length();
            assert_eq!(object.read(0, length as usize).unwrap(), bytes(number, length));
            whole += 1;
        }
        assert!(whole > 0);
        let pins: Vec<_> = std::fs::read_dir(folder.path().join("pins")).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(pins, std::slice::from_ref(&disk.pins.path));
        assert_eq!(std::fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0);
        let files: u64 = walk(&objects).iter().filter_map(|path| allocated(path)).sum();
        assert_eq!(disk.usage().bytes, files + disk.cache.recency.own_bytes());
        assert_eq!(disk.usage().objects, whole);
    }
}
