//! The verdict on large files: no reader has all bytes of one without it, and no open file has bytes of two versions.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::random::Random;
use common::source::{Fault, Resource, Source};
use common::{eventually, rounds};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const BLOCK: usize = 128 << 10;

/// A quiet mount: nothing is fetched but what is read.
const QUIET: &str = "poll=1h,revalidate=never,readahead=0,timeout=6s,cache-reserve=0";

/// Has no room for any large file.
const NO_ROOM: &str = "cache-size=15M";

/// `served` where `published` is published, by its digest and its length.
fn lie(published: &[u8], served: &[u8], etag: Option<&str>) -> Resource {
    Resource { bytes: served.to_vec().into(), etag: etag.map(str::to_owned), ..Resource::new(published) }
}

/// Nothing is published but the length; each byte is the version.
fn version(version: u8, size: usize, etag: Option<String>) -> Resource {
    Resource { md: format!("length=\"{size}\""), etag, ..Resource::bare(vec![version; size]) }
}

fn evict(path: &Path) {
    // What is being fetched stays; whether anything was here does not matter either.
    let _ = Command::new(PROGRAM).arg("evict").arg(path).output().unwrap();
}

/// Has the kernel drop the pages of `range`.
fn drop_pages(file: &File, range: std::ops::Range<usize>) {
    let (from, size) = (range.start as i64, (range.end - range.start) as i64);
    // SAFETY: posix_fadvise(2) takes no memory, and the descriptor is open.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), from, size, libc::POSIX_FADV_DONTNEED) };
}

fn read_at(file: &File, offset: usize, size: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, offset as u64).map(|()| bytes)
}

/// The whole through a memory map; what cannot be read is EFAULT to the write that meets it, and kills nothing.
fn read_by_mmap(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let size = file.metadata()?.size() as usize;
    // SAFETY: a new private mapping, whose address the kernel chooses.
    let map =
        unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    assert_ne!(map, libc::MAP_FAILED);
    let mut copy = tempfile::tempfile()?;
    let mut at = 0;
    let copied = loop {
        if at == size {
            break Ok(());
        }
        // SAFETY: the rest of the mapping, which write(2) reads by itself: a page that cannot be read is an error to it.
        match unsafe { libc::write(copy.as_raw_fd(), map.byte_add(at), (size - at).min(MIB)) } {
            ..=0 => break Err(std::io::Error::last_os_error()),
            written => at += written as usize,
        }
    };
    // SAFETY: exactly the mapping made above, which nothing refers to any more.
    unsafe { libc::munmap(map, size) };
    copied?;
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut copy)?;
    copy.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Promise: never a wrong byte. The Source has replaced the file without a word.
#[test]
fn wrong_end_seen_before_is_not_copied() {
    let source = Source::start();
    let published = Random::new(1).bytes(20 * MIB);
    let served = Random::new(2).bytes(20 * MIB);
    for name in ["cat", "tail"] {
        source.put(name, lie(&published, &served, Some("\"v2\"")));
    }
    let mounted = Mounted::new(&source.list_url(), &format!("{QUIET},{NO_ROOM}"));
    for name in ["cat", "tail"] {
        let file = File::open(mounted.join(name)).unwrap();
        for size in [100, 66_000, 300_000] {
            let _ = read_at(&file, published.len() - size, size);
        }
    }

    assert!(fs::read(mounted.join("cat")).is_err());
    let end = Command::new("tail").args(["-c", "300000"]).arg(mounted.join("tail")).output().unwrap();
    let copied = Command::new("cp").arg(mounted.join("tail")).arg(mounted.cache().join("copy")).output().unwrap();
    assert!(!copied.status.success(), "after {:?} of {} bytes", end.status, end.stdout.len());
}

/// Promise: never a wrong byte, in whichever order a reader takes all of them.
#[test]
fn random_reads_alone_never_give_all_of_a_wrong_file() {
    let source = Source::start();
    let published = Random::new(3).bytes(17 * MIB + 7);
    let served = Random::new(4).bytes(17 * MIB + 7);
    for (name, options) in [("past", NO_ROOM), ("kept", "cache-size=1G")] {
        source.put(name, lie(&published, &served, Some("\"same\"")));
        let mounted = Mounted::new(&source.list_url(), &format!("{QUIET},{options}"));
        let mut blocks: Vec<usize> = (0..published.len().div_ceil(BLOCK)).collect();
        let mut random = Random::new(5);
        for at in (1..blocks.len()).rev() {
            blocks.swap(at, random.below(at as u64 + 1) as usize);
        }
        let file = File::open(mounted.join(name)).unwrap();

        let read = |block: &usize| {
            let size = BLOCK.min(published.len() - block * BLOCK);
            read_at(&file, block * BLOCK, size).is_ok_and(|bytes| bytes != published[block * BLOCK..][..size])
        };
        let wrong = blocks.iter().filter(|block| read(block)).count();

        assert!(wrong < blocks.len(), "{name}: {wrong} of {} blocks are wrong and none failed", blocks.len());
    }
}

/// Promise: never two versions in one open file; and what was verified is never followed by what is not.
#[test]
fn verified_file_never_gives_other_bytes_after_eviction() {
    let source = Source::start();
    let size = 17 * MIB + 5;
    let (published, other) = (vec![b'A'; size], vec![b'Z'; size]);
    let kinds = [Some("\"v2\""), Some("\"v1\""), Some("W/\"v1\""), None];
    let name = |kind: usize| format!("file-{kind}");
    for (kind, etag) in kinds.iter().enumerate() {
        source.put(&name(kind), lie(&published, &published, etag.map(|_| "\"v1\"")));
    }
    let mounted = Mounted::new(&source.list_url(), &format!("{QUIET},cache-size=1G"));

    for (kind, etag) in kinds.iter().enumerate() {
        let path = mounted.join(&name(kind));
        let file = File::open(&path).unwrap();
        assert!(fs::read(&path).unwrap() == published);
        source.put(&name(kind), lie(&published, &other, *etag));
        evict(&path);
        drop_pages(&file, MIB..size);

        let middle = read_at(&file, 8 * MIB, 4096);
        assert!(middle.as_ref().map_or(true, |bytes| bytes[..] == published[..4096]), "{etag:?}: of another version");
        assert!(fs::read(&path).is_err(), "{etag:?}: the rest is nowhere");
        source.put(&name(kind), lie(&published, &published, *etag));
        mounted.try_refresh().unwrap();
        assert!(fs::read(&path).unwrap() == published, "{etag:?}: it is served again");
    }
}

/// Promise: never a wrong byte. What came coded proves nothing of what comes plain, and keeps none of it out that is right.
#[test]
fn file_that_came_coded_is_right_when_it_comes_plain() {
    let source = Source::start();
    let line = b"a line of a text that takes little room coded\n";
    let published: Vec<u8> = line.iter().copied().cycle().take(20 * MIB).collect();
    let other = Random::new(9).bytes(20 * MIB);
    for name in ["right", "other"] {
        source.put(name, lie(&published, &published, Some("\"v1\"")));
        source.fault(name, Fault::Gzip, 1);
    }
    let mounted = Mounted::new(&source.list_url(), &format!("{QUIET},cache-size=1G"));

    for name in ["right", "other"] {
        let path = mounted.join(name);
        let file = File::open(&path).unwrap();
        assert!(fs::read(&path).unwrap() == published, "{name}");
        let served = if name == "right" { &published } else { &other };
        source.put(name, lie(&published, served, Some("\"v1\"")));
        evict(&path);
        drop_pages(&file, 0..20 * MIB);

        let middle = read_at(&file, 10 * MIB, 4096);
        let is_right = middle.as_ref().map_or(name == "other", |bytes| bytes[..] == published[10 * MIB..][..4096]);
        assert!(is_right, "{name}: {:?}", middle.map(|bytes| bytes[..8].to_vec()));
    }
    assert!(fs::read(mounted.join("right")).unwrap() == published);
}

/// Promise: never two versions in one open file, also where nothing is published that differs.
#[test]
fn open_file_without_digest_gives_one_version_after_eviction() {
    let source = Source::start();
    let size = 17 * MIB + 5;
    type Etag = fn(u8) -> Option<String>;
    let kinds: [Etag; 3] = [|v| Some(format!("\"v{v}\"")), |v| Some(format!("W/\"v{v}\"")), |_| None];
    for (kind, etag) in kinds.iter().enumerate() {
        source.put(&kind.to_string(), version(1, size, etag(1)));
    }
    let mounted = Mounted::new(&source.list_url(), &format!("{QUIET},cache-size=1G"));

    for (kind, etag) in kinds.iter().enumerate() {
        let path = mounted.join(&kind.to_string());
        let file = File::open(&path).unwrap();
        assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 1));
        source.put(&kind.to_string(), version(2, size, etag(2)));
        evict(&path);
        drop_pages(&file, 5 * MIB..size);

        for offset in [6 * MIB, 12 * MIB, 0, size - 10] {
            let read = read_at(&file, offset, 10);
            assert!(read.as_ref().map_or(true, |bytes| *bytes == [1; 10]), "kind {kind}: {read:?} at {offset}");
        }
        eventually("the name has the new version", || {
            fs::read(&path).is_ok_and(|bytes| bytes.len() == size && bytes.iter().all(|byte| *byte == 2))
        });
    }
}

/// Promise: a size that is shown is true, or the file cannot be read to its end.
#[test]
fn file_shown_too_short_is_never_read_to_its_end() {
    let source = Source::start();
    let bytes = Random::new(6).bytes(20 * MIB);
    let digest = common::source::hex(&Sha256::digest(&bytes));
    for short in [bytes.len() - 1, bytes.len() / 2] {
        let name = short.to_string();
        let md = format!("hash=\"sha-256:{digest}\"");
        source.put(&name, Resource { md, ..Resource::new(bytes.clone()) });
        source.fault(&name, Fault::Length(short), 1);
        let mounted = Mounted::new(&source.list_url(), &format!("{QUIET},cache-size=1G"));

        let first = fs::read(mounted.join(&name));

        assert_eq!(source.requests_of(&name)[0].method, "HEAD");
        assert!(first.is_err(), "{} bytes of {}", first.unwrap().len(), bytes.len());
        eventually("the name has its true size", || fs::read(mounted.join(&name)).is_ok_and(|read| read == bytes));
    }
}

/// What is here of a large file is read at once after a restart, whatever its host does.
#[test]
fn kept_bytes_are_read_while_the_host_is_silent() {
    let source = Source::start();
    let bytes = Random::new(7).bytes(48 * MIB);
    source.put("a", Resource::new(bytes.clone()));
    let mounted = Mounted::new(&source.list_url(), &format!("{QUIET},cache-size=1G"));
    let file = File::open(mounted.join("a")).unwrap();
    assert!(read_at(&file, 0, 8 * MIB).unwrap() == bytes[..8 * MIB]);
    drop(file);
    mounted.unmount();
    source.fault("a", Fault::StallHead(Duration::from_secs(30)), 20);
    mounted.start();

    let file = File::open(mounted.join("a")).unwrap();
    let began = Instant::now();
    let first = read_at(&file, 0, MIB);

    assert!(first.unwrap() == bytes[..MIB]);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// How a Source of [`no_sequential_reading_is_wrong_and_ends_well`] answers from now on.
fn turn_coat(source: &Source, random: &mut Random, name: &str, published: &[u8]) {
    source.mend();
    let mut wrong = published.to_vec();
    let place = random.below(published.len() as u64) as usize;
    wrong[place] ^= 1;
    let etag = ["\"right\"", "\"other\"", "W/\"weak\""][random.below(3) as usize];
    let resource = match random.below(6) {
        0 => lie(published, &wrong, Some(etag)),
        1 => lie(published, &wrong, None),
        2 => lie(published, published, Some(etag)),
        _ => lie(published, published, Some("\"right\"")),
    };
    source.put(name, resource);
    let times = 1 + random.below(3);
    match random.below(8) {
        0 => source.fault(name, Fault::Body(wrong), times),
        1 => source.fault(name, Fault::Cut(place), times),
        2 => source.fault(name, Fault::NoRanges, times),
        3 => source.fault(name, Fault::Etag("\"now and then\"".into()), times),
        4 => source.fault(name, Fault::Length(place), times),
        _ => {}
    }
}

/// Promise: no reading from the first byte to the last that ends without an error has other bytes than published, whatever was read
/// before, whatever the cache lost meanwhile, and whatever the server answers now and then.
#[test]
fn no_sequential_reading_is_wrong_and_ends_well() {
    for round in 0..rounds() {
        let mut random = Random::new(100 + round);
        let source = Source::start();
        let files: Vec<(String, Vec<u8>)> = [17 * MIB + 7, 33 * MIB + 100_000]
            .into_iter()
            .enumerate()
            .map(|(number, size)| (number.to_string(), Random::new(round * 10 + number as u64).bytes(size)))
            .collect();
        for (name, published) in &files {
            source.put(name, lie(published, published, Some("\"right\"")));
        }
        let room = [NO_ROOM, "cache-size=40M", "cache-size=1G"][(round % 3) as usize];
        let options = format!("{QUIET},{room}").replace("timeout=6s", "timeout=2s");
        let mounted = Mounted::new(&source.list_url(), &options);

        for step in 0..16 {
            let (name, published) = &files[random.below(files.len() as u64) as usize];
            let path = mounted.join(name);
            let context = format!("round {round}, step {step}, {room}");
            let is_right = |read: std::io::Result<Vec<u8>>| {
                if let Ok(bytes) = read {
                    assert!(bytes == *published, "{context}: {} bytes", bytes.len());
                }
            };
            let seed = random.number();
            match random.below(9) {
                0 | 1 => turn_coat(&source, &mut random, name, published),
                2 | 3 => is_right(fs::read(&path)),
                4 => is_right(read_by_mmap(&path)),
                5 => look_about(&path, published.len(), seed),
                6 => std::thread::scope(|scope| {
                    let (path, is_right) = (&path, &is_right);
                    for reader in 0..2 {
                        scope.spawn(move || look_about(path, published.len(), seed.wrapping_add(reader)));
                        scope.spawn(move || is_right(fs::read(path)));
                    }
                }),
                7 => {
                    evict(&path);
                    if let Ok(file) = File::open(&path) {
                        let from = random.below(published.len() as u64) as usize;
                        drop_pages(&file, from..(from + 3 * MIB).min(published.len()));
                    }
                }
                _ if step % 3 == 0 => mounted.remount(),
                _ => mounted.try_refresh().unwrap(),
            }
        }

        source.mend();
        for (name, published) in &files {
            source.put(name, lie(published, published, Some("\"right\"")));
        }
        for (name, published) in &files {
            eventually("a Source that serves the published bytes is read", || {
                mounted.try_refresh().unwrap();
                fs::read(mounted.join(name)).is_ok_and(|bytes| bytes == *published)
            });
        }
    }
}

/// Reads of a few bytes: from the end backwards, at odd offsets, here and there.
fn look_about(path: &Path, size: usize, seed: u64) {
    let mut random = Random::new(seed);
    let Ok(file) = File::open(path) else { return };
    for _ in 0..1 + random.below(12) {
        let length = [1, 3, 4097, BLOCK + 1, 300_001][random.below(5) as usize];
        let back = size - length;
        let offset = match random.below(3) {
            0 => back - random.below(2 * BLOCK as u64) as usize,
            1 => random.below(BLOCK as u64) as usize,
            _ => random.below(back as u64) as usize,
        };
        let _ = read_at(&file, offset, length);
    }
}

/// Promise: never two versions in one open file, whenever the Source changes it and the cache loses it.
#[test]
fn open_file_is_of_one_version_whatever_changes() {
    for round in 0..rounds() {
        let mut random = Random::new(200 + round);
        let source = Source::start();
        let size = 17 * MIB + 5;
        let etags: [fn(u8) -> Option<String>; 3] =
            [|v| Some(format!("\"v{v}\"")), |v| Some(format!("W/\"v{v}\"")), |_| None];
        let etag = etags[(round % 3) as usize];
        let mut current = 1;
        source.put("a", version(current, size, etag(current)));
        let room = ["cache-size=1G", NO_ROOM][(round / 3 % 2) as usize];
        let mounted = Mounted::new(&source.list_url(), &format!("{QUIET},{room}"));
        let path = mounted.join("a");
        let mut open: Vec<(File, Option<u8>)> = Vec::new();

        for step in 0..40 {
            let at = random.below(size as u64 - 5000) as usize;
            match random.below(8) {
                0 => {
                    current += 1;
                    source.put("a", version(current, size, etag(current)));
                }
                1 => evict(&path),
                2 if open.len() < 3 => open.extend(File::open(&path).ok().map(|file| (file, None))),
                3 => open.iter().for_each(|(file, _)| drop_pages(file, at..size)),
                4 => drop(fs::read(&path)),
                5 => source.fault("a", Fault::Cut(at), 1),
                _ => {
                    let length = [10, 5000, size - at][random.below(3) as usize];
                    for (file, seen) in &mut open {
                        let Ok(bytes) = read_at(file, at, length) else { continue };
                        let first = *seen.get_or_insert(bytes[0]);
                        let one = bytes.iter().all(|byte| *byte == first);
                        assert!(one, "round {round}, step {step}, {room}: {first} and others, {current} is current");
                    }
                }
            }
            if random.below(6) == 0 {
                mounted.try_refresh().unwrap();
            }
        }
    }
}
