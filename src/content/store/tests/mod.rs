//! The cache against what a disk, a kill and other processes do to it.

mod pages;
mod room;

use super::*;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

const PLENTY: u64 = 1 << 40;
const MIB: u64 = 1 << 20;
const ANY: EvictionPolicy = EvictionPolicy::Any;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn open(folder: &TempDir) -> Arc<Store> {
    Store::open(folder.path(), Some(PLENTY), 0).unwrap()
}

/// A cache that holds `bytes` and its own index.
fn open_with_room(folder: &TempDir, bytes: u64) -> Arc<Store> {
    let own = {
        let disk = open(folder);
        disk.cache.index.own_bytes()
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
    let partial = disk.begin(key, Some(bytes.len() as u64), ANY).unwrap();
    partial.append(bytes, ANY).unwrap();
    partial.commit(key, bytes.len() as u64, ANY).unwrap()
}

/// What is there once this process has recorded what is pending.
fn recorded(disk: &Store) -> Usage {
    disk.cache.write_down();
    disk.usage()
}

fn object_path(disk: &Store, key: &ObjectKey) -> PathBuf {
    disk.cache.path(&key.object_name())
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
    assert_eq!(recorded(&open(&folder)).objects, 10);
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
        assert_eq!(recorded(&disk).objects, 0, "byte {at}");
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

/// A descriptor that is open to write alone stands for a disk that fails for a time.
#[test]
fn what_cannot_be_read_now_is_no_damage_to_a_check() {
    let folder = folder();
    let disk = open(&folder);
    let whole = put(&disk, &key(1), &bytes(1, 2 * BLOCK));
    let path = object_path(&disk, &key(1));
    let unreadable = || OpenOptions::new().write(true).open(&path).unwrap();
    let object = Object::new(
        key(1),
        whole.length(),
        whole.checks().into(),
        Arc::new(unreadable()),
        Some(disk.cache.on_damage()),
    );

    let found = object.check(BLOCK, 10).unwrap_err();

    assert_eq!(found.unread().and_then(std::io::Error::raw_os_error), Some(libc::EBADF));
    assert!(!object.is_damaged() && path.exists());
    assert!(Object::open(&key(1), unreadable(), None).is_err(), "nothing is known of it");
    unreadable().set_len(BLOCK + 5).unwrap();
    assert!(whole.check(BLOCK, 10).unwrap_err().unread().is_none(), "it is cut off");
    assert!(whole.is_damaged() && !path.exists());
}

/// Appends in pieces of `step` bytes.
fn append_in_steps(partial: &Partial, bytes: &[u8], step: usize) {
    bytes.chunks(step).for_each(|piece| partial.append(piece, ANY).unwrap());
}

fn partials(folder: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path().join("tmp")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn part(written: &[u8], blocks: std::ops::Range<u64>) -> &[u8] {
    &written[(blocks.start * BLOCK) as usize..(blocks.end * BLOCK) as usize]
}

#[test]
fn a_partial_is_read_while_it_is_appended_to() {
    let folder = folder();
    let disk = open(&folder);
    let length = 19 * BLOCK + 123;
    let written = bytes(3, length);
    for (number, step) in (0..).zip([1000, 50_000, BLOCK as usize, BLOCK as usize + 1, 3 * BLOCK as usize, 1 << 30]) {
        let partial = disk.begin(&key(number), None, ANY).unwrap();
        // Of what is kept for a resume nothing is in the way, if the length was wrong neither.
        partial.keep(Some("v"), Some(if number % 2 == 0 { length } else { 17 * BLOCK + 9 }));
        for piece in written.chunks(step) {
            let start = partial.frontier();
            assert_eq!(partial.read_at(start, 1).unwrap(), None);
            append_in_steps(&partial, piece, step / 2 + 1);
            for from in [0, start.saturating_sub(70_000), start] {
                let read = partial.read_at(from, (partial.frontier() - from) as usize).unwrap().unwrap();
                assert_eq!(read, written[from as usize..partial.frontier() as usize], "{step} {from}");
            }
        }
        for wrong in [0, 1, length - 1, length + 1] {
            assert!(matches!(partial.commit(&key(100), wrong, ANY), Err(StoreError::Incomplete { .. })), "{wrong}");
        }

        partial.commit(&key(100 + number), length, ANY).unwrap();

        assert_eq!(partial.read_at(0, length as usize).unwrap().unwrap(), written);
        assert!(matches!(partial.append(b"x", ANY), Err(StoreError::Finished { .. })));
        drop(partial);
        assert!(disk.get(&key(number)).is_none(), "it is committed under the key that its bytes gave");
        drop(disk.get(&key(100 + number)));
    }
    drop(disk);
    let disk = open(&folder);
    for number in 100..106 {
        assert_eq!(disk.get(&key(number)).unwrap().read(0, length as usize).unwrap(), written, "{number}");
    }
}

/// A kill at every stage: what follows is a miss or the whole object, and nothing is left over.
#[test]
fn a_kill_leaves_no_garbage_and_a_noted_partial_resumes() {
    let folder = folder();
    let written = bytes(4, 6 * BLOCK + 9);
    let disk = open(&folder);
    let unknown = disk.begin(&key(1), None, ANY).unwrap();
    unknown.append(part(&written, 0..2), ANY).unwrap();
    unknown.kill(false);
    let noted = disk.begin(&key(2), None, ANY).unwrap();
    noted.keep(Some("\"v1\""), Some(written.len() as u64));
    noted.append(&written[..3 * BLOCK as usize + 9], ANY).unwrap();
    noted.kill(true);
    let complete = disk.begin(&key(3), None, ANY).unwrap();
    complete.keep(Some("\"v1\""), Some(written.len() as u64));
    complete.append(&written, ANY).unwrap();
    complete.kill(true);
    for garbage in [format!("{}~1-1", key(4)), format!("{}.present", key(2)), key(5).to_string()] {
        std::fs::write(folder.path().join("tmp").join(garbage), vec![7; 2 * BLOCK as usize]).unwrap();
    }
    drop(disk);

    let disk = open(&folder);
    let mut left = partials(&folder);
    left.sort();
    assert_eq!(left, [key(2).to_string(), key(3).to_string()]);
    assert!(disk.resume(&key(1), |_, _| Some(())).is_none());
    for (number, blocks) in [(2, 3), (3, 6)] {
        let same = |validator: &str, length| Some((validator.to_owned(), length));
        let (partial, known) = disk.resume(&key(number), same).unwrap();
        assert_eq!(known, ("\"v1\"".to_owned(), written.len() as u64));
        assert_eq!(partial.frontier(), blocks * BLOCK, "whole blocks only");
        assert_eq!(partial.read_at(0, (blocks * BLOCK) as usize).unwrap().unwrap(), part(&written, 0..blocks));
        partial.append(&written[(blocks * BLOCK) as usize..], ANY).unwrap();
        let object = partial.commit(&key(number), written.len() as u64, ANY).unwrap();
        assert_eq!(object.read(0, written.len()).unwrap(), written);
    }
    assert_eq!(partials(&folder).len(), 0);
    drop(disk);
    let disk = open(&folder);
    for number in [2, 3] {
        assert_eq!(disk.get(&key(number)).unwrap().read(0, written.len()).unwrap(), written);
    }
}

#[test]
fn a_large_partial_resumes_after_each_of_many_kills() {
    let folder = folder();
    let written = bytes(4, 50 * BLOCK + 1);
    let begin = |disk: &Arc<Store>| {
        let partial = disk.begin(&key(1), Some(written.len() as u64), ANY).unwrap();
        partial.keep(Some("v"), Some(written.len() as u64));
        partial
    };
    let disk = open(&folder);
    let mut partial = begin(&disk);
    let mut resumed_at = 0;
    drop(disk);
    loop {
        let start = partial.frontier() as usize;
        partial.append(&written[start..(start + 700_000).min(written.len())], ANY).unwrap();
        let end = (start + 1_500_000).min(written.len());
        partial.append(&written[partial.frontier() as usize..end], ANY).unwrap();
        if end == written.len() {
            break;
        }
        // Nothing is noted that was not noted by itself.
        partial.kill(false);
        let disk = open(&folder);
        partial = disk.resume(&key(1), |_, _| Some(())).unwrap().0;
        assert!(partial.frontier() > resumed_at && partial.frontier() + MIB >= end as u64, "{}", partial.frontier());
        resumed_at = partial.frontier();
    }
    partial.commit(&key(1), written.len() as u64, ANY).unwrap();
    assert_eq!(open(&folder).get(&key(1)).unwrap().read(0, written.len()).unwrap(), written);
}

/// After a power loss any block may be other bytes than its CRC says, or the file shorter.
#[test]
fn a_partial_resumes_at_its_last_good_block() {
    let written = bytes(5, 6 * BLOCK);
    let kept = |folder: &TempDir| {
        let disk = open(folder);
        let partial = disk.begin(&key(1), None, ANY).unwrap();
        partial.keep(Some("v"), Some(written.len() as u64));
        partial.append(part(&written, 0..5), ANY).unwrap();
        disk
    };
    let path = |folder: &TempDir| folder.path().join("tmp").join(key(1).as_str());
    for (damaged, good) in [(&[4][..], 4), (&[4, 3], 3), (&[4, 3, 2, 1], 1)] {
        let folder = folder();
        let disk = kept(&folder);
        damaged.iter().for_each(|block| flip(&path(&folder), block * BLOCK + 7));
        for round in 0..2 {
            let (partial, ()) = disk.resume(&key(1), |_, _| Some(())).unwrap();
            assert_eq!(partial.frontier(), good * BLOCK, "round {round}");
        }
        let (partial, ()) = disk.resume(&key(1), |_, _| Some(())).unwrap();
        partial.append(part(&written, good..6), ANY).unwrap();
        let object = partial.commit(&key(1), 6 * BLOCK, ANY).unwrap();
        assert_eq!(object.read(0, written.len()).unwrap(), written);
    }

    let all = folder();
    let disk = kept(&all);
    (0..5).for_each(|block| flip(&path(&all), block * BLOCK + 7));
    assert!(disk.resume(&key(1), |_, _| Some(())).is_none());

    // Only the last block is checked at once, and a reader meets the others.
    let middle = folder();
    let disk = kept(&middle);
    flip(&path(&middle), 2 * BLOCK + 7);
    let (partial, ()) = disk.resume(&key(1), |_, _| Some(())).unwrap();
    assert_eq!(partial.read_at(0, 2 * BLOCK as usize).unwrap().unwrap(), part(&written, 0..2));
    assert_eq!(partial.read_at(0, 3 * BLOCK as usize).unwrap_err().offset, 2 * BLOCK);
    drop(partial);
    assert!(disk.resume(&key(1), |_, _| Some(())).is_none(), "what is damaged is not kept");

    for cut in [0, 1, 36, 40, BLOCK, 5 * BLOCK, 6 * BLOCK + 24] {
        let cut_short = folder();
        let disk = kept(&cut_short);
        OpenOptions::new().write(true).open(path(&cut_short)).unwrap().set_len(cut).unwrap();
        assert!(disk.resume(&key(1), |_, _| Some(())).is_none(), "{cut}");
        put(&disk, &key(1), &written);
    }
}

#[test]
fn a_partial_that_no_resume_may_accept_is_not_kept() {
    let folder = folder();
    let disk = open(&folder);
    for (number, keep) in (1..).zip([(None, None), (Some("v"), None), (None, Some(4 * BLOCK))]) {
        let partial = disk.begin(&key(number), None, ANY).unwrap();
        partial.keep(keep.0, keep.1);
        partial.append(&bytes(1, 2 * BLOCK), ANY).unwrap();
    }
    let aborted = disk.begin(&key(4), None, ANY).unwrap();
    aborted.keep(Some("v"), Some(4 * BLOCK));
    aborted.append(&bytes(1, 2 * BLOCK), ANY).unwrap();
    aborted.abort();
    drop(aborted);
    let short = disk.begin(&key(5), None, ANY).unwrap();
    short.keep(Some("v"), Some(4 * BLOCK));
    short.append(&bytes(1, BLOCK - 1), ANY).unwrap();
    drop(short);
    let refused = disk.begin(&key(6), None, ANY).unwrap();
    refused.keep(Some("v"), Some(4 * BLOCK));
    refused.append(&bytes(1, 2 * BLOCK), ANY).unwrap();
    drop(refused);
    assert!(disk.resume(&key(6), |_, _| None::<()>).is_none());
    assert!((1..=6).all(|number| disk.resume(&key(number), |_, _| Some(())).is_none()));
    assert_eq!(partials(&folder).len(), 0);
    assert_eq!(recorded(&disk).bytes, disk.cache.index.own_bytes());
}

#[test]
fn a_pin_survives_the_eviction_of_another_mount() {
    let folder = folder();
    let pinning = open_with_room(&folder, 4 * MIB);
    let evicting = open_with_room(&folder, 4 * MIB);
    let written = bytes(1, MIB);
    put(&pinning, &key(1), &written);
    assert!(pinning.pin(&key(1)) && pinning.pin(&key(1)) && !pinning.pin(&key(99)));
    for number in 2..12 {
        put(&evicting, &key(number), &bytes(number, MIB - 8192));
    }
    // The pin is read on although the object is unlinked.
    std::fs::remove_file(object_path(&pinning, &key(1))).unwrap();
    pinning.cache.stop();
    assert_eq!(pinning.get(&key(1)).unwrap().read(0, MIB as usize).unwrap(), written);
    pinning.unpin(&key(1));
    assert_eq!(std::fs::read_dir(&pinning.cache.pins.folder).unwrap().count(), 0);

    put(&evicting, &key(1), &written);
    assert!(pinning.pin(&key(1)));
    let path = pinning.cache.pins.folder.clone();
    drop(pinning);
    assert!(!path.exists());
}

#[test]
fn pins_of_a_dead_process_go_and_the_folder_is_scanned() {
    let folder = folder();
    let disk = open(&folder);
    put(&disk, &key(1), &bytes(1, MIB));
    drop(disk);
    // A process that died between rename and record, with a pin.
    let dead = folder.path().join("pins/4711");
    std::fs::create_dir(&dead).unwrap();
    let object = folder.path().join(key(1).object_name());
    std::fs::hard_link(&object, dead.join(key(1).as_str())).unwrap();
    std::fs::remove_dir_all(folder.path().join("recency")).unwrap();

    let disk = open(&folder);
    finish_rescan(&disk);

    assert!(!dead.exists());
    let usage = recorded(&disk);
    assert_eq!(usage.objects, 1);
    assert_eq!(usage.bytes, allocated(&object).unwrap() + disk.cache.index.own_bytes());
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
    recorded(&first);
    recorded(&second);
    put(&second, &key(5000), &bytes(5000, MIB / 2));
    let usage = recorded(&second);
    assert!(usage.bytes <= usage.quota + 2 * MIB, "{usage:?}");
    finish_rescan(&first);
    let files: u64 = walk(&folder.path().join("objects")).iter().filter_map(|path| allocated(path)).sum();
    assert_eq!(files, recorded(&first).bytes - first.cache.index.own_bytes(), "the records are the files'");
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
    let one = first.begin(&key(1), None, ANY).unwrap();
    one.append(&written[..100], ANY).unwrap();
    assert!(second.resume(&key(1), |_, _| Some(())).is_none(), "it is being written");
    put(&second, &key(1), &written);
    one.append(&written[100..], ANY).unwrap();
    one.commit(&key(1), 2 * BLOCK, ANY).unwrap();
    for disk in [&first, &second] {
        assert_eq!(disk.get(&key(1)).unwrap().read(0, written.len()).unwrap(), written);
        assert_eq!(recorded(disk).objects, 1);
    }
}

#[test]
fn one_object_has_a_bounded_number_of_writers() {
    let folder = folder();
    let disk = open(&folder);
    let begin = |_| disk.begin(&key(1), None, ANY);
    let writing: Vec<_> = (0..=MOST_WRITERS).map(begin).collect::<Result<_, _>>().unwrap();
    assert!(matches!(begin(0), Err(StoreError::Io { .. })));
    drop(writing);
    begin(0).unwrap();
}

#[test]
fn what_is_committed_after_the_close_is_counted() {
    let folder = folder();
    let disk = open(&folder);
    let partial = disk.begin(&key(1), None, ANY).unwrap();
    disk.close();
    partial.append(&bytes(1, BLOCK), ANY).unwrap();
    partial.commit(&key(1), BLOCK, ANY).unwrap();
    drop((partial, disk));
    assert_eq!(recorded(&open(&folder)).objects, 1);
}

#[test]
fn everything_is_the_owners_alone() {
    let folder = folder();
    let disk = open(&folder);
    put(&disk, &key(1), b"x");
    let _partial = disk.begin(&key(2), None, ANY).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for name in ["objects", "tmp", "pins", "recency"] {
        assert_eq!(mode(&folder.path().join(name)), 0o700, "{name}");
    }
    assert_eq!(mode(&disk.cache.pins.folder), 0o700);
    assert_eq!(mode(object_path(&disk, &key(1)).parent().unwrap()), 0o700);
    assert_eq!(mode(&object_path(&disk, &key(1))), 0o600);
    assert_eq!(mode(&disk.cache.path(&format!("tmp/{}", key(2)))), 0o600);
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
        // Killed in the midst of work: as soon as so many objects are there.
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
        assert_eq!(pins, std::slice::from_ref(&disk.cache.pins.folder));
        assert_eq!(std::fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0);
        let files: u64 = walk(&objects).iter().filter_map(|path| allocated(path)).sum();
        assert_eq!(recorded(&disk).bytes, files + disk.cache.index.own_bytes());
        assert_eq!(recorded(&disk).objects, whole);
    }
}
