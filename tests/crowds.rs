//! Very many of one thing, scaled down: readers at once, names in a folder, objects in a cache. The figures at full size:
//! `tests/bench/scale`.

mod common;

use common::mounted::Mounted;
use common::random::Random;
use common::source::{Resource, Source, URLSET};
use resyncfs::content::store::{EvictionPolicy, ObjectKey, Store};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::Duration;

const READERS: u64 = 1000;

/// How many threads and descriptors a process has.
fn taken(pid: u32) -> (usize, usize) {
    let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    (count("task"), count("fd"))
}

/// Soft and hard limit of open files of a process.
fn open_files(pid: u32) -> (u64, u64) {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let mut numbers = line.split_whitespace().map(|number| number.parse().unwrap_or(u64::MAX));
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn a_mount_may_have_as_many_files_open_as_the_hard_limit_allows() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.list_url(), "poll=1h").with_open_files(256, 2048);

    mounted.start();

    assert_eq!(open_files(mounted.pid()), (2048, 2048));
}

#[test]
fn few_descriptors_fail_no_reader() {
    let source = Source::start();
    let bytes = |seed: u64| Random::new(seed).bytes(2000);
    for number in 0..240 {
        source.put(&number.to_string(), Resource::new(bytes(number)));
    }
    let large: Vec<Vec<u8>> = (0..4).map(|seed| Random::new(1000 + seed).bytes(36 << 20)).collect();
    for (number, bytes) in large.iter().enumerate() {
        source.put(&format!("large-{number}"), Resource::new(bytes.clone()));
    }
    let options = "poll=1h,connections=64";
    let mounted = Mounted::prepared(&source.list_url(), options).with_open_files(96, 96);
    mounted.start();

    std::thread::scope(|scope| {
        for reader in 0..24 {
            let mounted = &mounted;
            scope.spawn(move || {
                for number in (reader..240).step_by(24) {
                    let got = fs::read(mounted.join(&number.to_string()));
                    assert!(got.as_ref().is_ok_and(|got| *got == bytes(number)), "{number}: {:?}", got.err());
                }
            });
        }
        for (number, bytes) in large.iter().enumerate() {
            let mounted = &mounted;
            scope.spawn(move || assert!(fs::read(mounted.join(&format!("large-{number}"))).unwrap() == *bytes));
        }
    });
    let held: Vec<fs::File> = (0..200).map(|it| fs::File::open(mounted.join(&it.to_string())).unwrap()).collect();

    let mut byte = [0];
    held.iter().for_each(|file| file.read_exact_at(&mut byte, 1000).unwrap());
    assert!(!mounted.said().contains("cannot be written"), "{}", mounted.said());
}

#[test]
fn too_few_descriptors_are_refused_in_words() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.list_url(), "poll=1h").with_open_files(64, 64);

    let refused = mounted.command("--foreground").stderr(std::process::Stdio::piped()).output().unwrap();

    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(
        ["64 files", "at least 96", "ulimit -n", "LimitNOFILE="].iter().all(|part| message.contains(part)),
        "{message}"
    );
    assert_eq!(source.log(), []);
}

fn rss_anon(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Promises: never a wrong byte, and never a stuck process.
#[test]
fn a_thousand_readers_at_once_take_bounded_resources() {
    let source = Source::start();
    let bytes = |seed: u64| Random::new(seed).bytes(3000);
    for number in 0..READERS {
        source.put(&format!("own/{:02}/{number}", number % 20), Resource::new(bytes(number)));
    }
    for number in 0..10 {
        source.put(&format!("shared/{number}"), Resource::new(bytes(10_000 + number)));
    }
    source.pause(Duration::from_millis(5));
    let mounted = Mounted::new(&source.list_url(), "poll=1h,connections=32");
    let (start, (finished, ended)) = (Barrier::new(READERS as usize), mpsc::channel());
    let (threads, files) = (AtomicUsize::new(0), AtomicUsize::new(0));

    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (start, finished, mounted) = (&start, finished.clone(), &mounted);
            let read = move || {
                start.wait();
                let wanted = [
                    (format!("shared/{}", reader % 10), 10_000 + reader % 10),
                    (format!("own/{:02}/{reader}", reader % 20), reader),
                ];
                for (path, seed) in wanted {
                    let got = fs::read(mounted.join(&path));
                    assert!(
                        got.as_ref().is_ok_and(|got| *got == bytes(seed)),
                        "{path}: {:?}",
                        got.map(|got| got.len())
                    );
                }
                finished.send(()).unwrap();
            };
            std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, read).unwrap();
        }
        for _ in 0..READERS {
            ended.recv_timeout(Duration::from_secs(60)).expect("nobody waits for ever");
            let (now_threads, now_files) = taken(mounted.pid());
            threads.fetch_max(now_threads, Ordering::Relaxed);
            files.fetch_max(now_files, Ordering::Relaxed);
        }
    });

    let (threads, files) = (threads.into_inner(), files.into_inner());
    // The runtime has 512 threads at most for work that waits for the disk.
    assert!(threads <= 600 && files <= 1000, "{threads} threads, {files} descriptors");
    assert!(rss_anon(mounted.pid()) <= 256 << 20, "{} bytes", rss_anon(mounted.pid()));
    let resources = source.log().into_iter().filter(|logged| logged.method == "GET" && !logged.path.ends_with(".xml"));
    let paths: Vec<String> = resources.map(|logged| logged.path).collect();
    let once: BTreeSet<&String> = paths.iter().collect();
    assert_eq!(paths.len(), once.len(), "each file is fetched once, however many wait for it");
}

/// Promise: however many large files are read, memory stays bounded: what is on its way from the network to the disk and to readers, whole
/// files, ranges and what is asked for aside, all together.
#[test]
fn readers_of_many_large_files_at_once_take_bounded_memory() {
    const MIDDLING: u64 = 72;
    const LARGE: u64 = 5;
    let source = Source::start();
    let bytes = |seed: u64, mib: usize| Random::new(seed).bytes(mib << 20);
    let middling = (0..MIDDLING).map(|number| (format!("middling/{number}"), Resource::new(bytes(number, 4))));
    let large = (0..LARGE).map(|number| (format!("large/{number}"), Resource::new(bytes(1000 + number, 40))));
    let published: Vec<(String, Resource)> = middling.chain(large).collect();
    published.iter().for_each(|(path, resource)| source.put(path, resource.clone()));
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    let (is_over, most) = (AtomicBool::new(false), AtomicU64::new(0));

    std::thread::scope(|scope| {
        let (mounted, most, is_over) = (&mounted, &most, &is_over);
        let mut readers = Vec::new();
        for (path, resource) in &published {
            readers.push(scope.spawn(move || {
                let (mut file, mut piece) = (fs::File::open(mounted.join(path)).unwrap(), vec![0; 1 << 20]);
                for expected in resource.bytes.chunks(piece.len()) {
                    file.read_exact(&mut piece).unwrap();
                    assert!(piece == expected, "{path}");
                }
                assert_eq!(file.read(&mut piece).unwrap(), 0, "{path}");
            }));
        }
        for number in 0..8 * LARGE {
            readers.push(scope.spawn(move || {
                let (path, mut random) = (format!("large/{}", number % LARGE), Random::new(number));
                let file = fs::File::open(mounted.join(&path)).unwrap();
                for _ in 0..8 {
                    file.read_at(&mut [0; 4096], random.below(40 << 20)).unwrap();
                }
            }));
        }
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(rss_anon(mounted.pid()), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.into_iter().all(|ended| ended.is_ok()));
    });

    let most = most.into_inner() >> 20;
    assert!(most <= 256, "{most} MiB");
}

/// Promise: processes share what the Source takes at a time, however many threads one of them reads with.
#[test]
fn a_process_with_one_reader_has_its_share_beside_one_with_many() {
    const THREADS: usize = 96;
    const READ_ALONE: usize = 30;
    let source = Source::start();
    for thread in 0..THREADS {
        for number in 0..100 {
            source.put(&format!("many/{thread}/{number}"), Resource::new(format!("{number} of {thread}\n")));
        }
    }
    for number in 0..READ_ALONE {
        source.put(&format!("lone/{number}"), Resource::new(format!("{number}\n")));
    }
    let mounted = Mounted::new(&source.list_url(), "poll=1h,connections=4,readahead=0");
    source.pause(Duration::from_millis(10));
    let (start, has_ended) = (Barrier::new(THREADS + 1), AtomicBool::new(false));

    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (start, has_ended, mounted) = (&start, &has_ended, &mounted);
            scope.spawn(move || {
                start.wait();
                for number in (0..100).take_while(|_| !has_ended.load(Ordering::Relaxed)) {
                    let read = fs::read_to_string(mounted.join(&format!("many/{thread}/{number}")));
                    assert_eq!(read.unwrap(), format!("{number} of {thread}\n"));
                }
            });
        }
        start.wait();
        let paths = (0..READ_ALONE).map(|number| mounted.join(&format!("lone/{number}")));
        let read = Command::new("cat").args(paths).output();
        has_ended.store(true, Ordering::Relaxed);
        let expected: String = (0..READ_ALONE).map(|number| format!("{number}\n")).collect();
        assert_eq!(String::from_utf8(read.unwrap().stdout).unwrap(), expected);
    });

    let paths: Vec<String> = source.log().into_iter().map(|logged| logged.path).collect();
    let is_lone = |path: &String| path.starts_with("/lone/");
    let (first, last) = (paths.iter().position(is_lone).unwrap(), paths.iter().rposition(is_lone).unwrap());
    let many = paths[first..last].iter().filter(|path| !is_lone(path)).count();
    assert!(many > READ_ALONE, "the many read meanwhile: {many}");
    // In one queue for all there would be 90 a file.
    assert!(many < 40 * READ_ALONE, "{many} requests of the many during {READ_ALONE} of the one");
}

const NAMES: usize = 20_000;

/// Names and places of a folder as the C library reads it.
struct Listing(*mut libc::DIR);

impl Listing {
    fn of(folder: &Path) -> Listing {
        let path = CString::new(folder.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a C string.
        let stream = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!stream.is_null());
        Listing(stream)
    }

    fn next(&self) -> Option<Vec<u8>> {
        // SAFETY: the stream is open; what readdir answers is copied before it is called again.
        unsafe {
            let entry = libc::readdir(self.0);
            (!entry.is_null()).then(|| CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes().to_vec())
        }
    }

    fn place(&self) -> libc::c_long {
        // SAFETY: the stream is open.
        unsafe { libc::telldir(self.0) }
    }

    fn seek(&self, place: libc::c_long) {
        // SAFETY: the stream is open, and `place` is on the stack.
        unsafe { libc::seekdir(self.0, place) }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        // SAFETY: it was opened and is used no more.
        unsafe { libc::closedir(self.0) };
    }
}

#[test]
fn a_flat_folder_is_listed_whole_and_goes_on_from_every_place() {
    let source = Source::start();
    let base = source.url();
    let mut list = format!("{URLSET}<rs:md capability=\"resourcelist\" at=\"2026-01-02T03:04:05Z\"/>");
    let name = |number: usize| match number % 3 {
        0 => format!("{number:x}"),
        1 => format!("Record-{number}"),
        _ => format!("record-{number}-{}", "long".repeat(40)),
    };
    for number in 0..NAMES {
        let (name, length) = (name(number), number + 1);
        let _ = write!(list, "<url><loc>{base}flat/{name}</loc><rs:md length=\"{length}\"/></url>");
    }
    source.document("resourcelist.xml", list + "</urlset>");
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    source.take_log();

    let listing = Listing::of(&mounted.join("flat"));
    let mut listed = Vec::new();
    loop {
        let place = listing.place();
        let Some(name) = listing.next() else { break };
        listed.push((place, name));
    }

    let names: BTreeSet<Vec<u8>> = listed.iter().map(|(_, name)| name.clone()).collect();
    assert_eq!((listed.len(), names.len()), (NAMES + 2, NAMES + 2), "each name once, and the dots");
    assert!((0..NAMES).all(|number| names.contains(name(number).as_bytes())));
    let mut random = Random::new(8);
    for _ in 0..200 {
        let (place, name) = &listed[random.below(listed.len() as u64) as usize];
        listing.seek(*place);
        assert_eq!(listing.next().as_ref(), Some(name));
    }
    for number in (0..NAMES).step_by(97) {
        let known = fs::symlink_metadata(mounted.join(&format!("flat/{}", name(number)))).unwrap();
        assert_eq!(known.len(), number as u64 + 1);
    }
    assert!(source.take_log().iter().all(|logged| !logged.path.contains("flat")), "nothing is asked for");
}

const OBJECTS: u64 = 3000;
const SIZE: usize = 100;

fn key(number: u64) -> ObjectKey {
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ObjectKey::parse(&format!("sha-256-{scattered:016x}{:032x}{number:016x}", 0)).unwrap()
}

fn put(disk: &Store, number: u64) {
    let partial = disk.begin(&key(number), Some(SIZE as u64), EvictionPolicy::Any).unwrap();
    partial.append(&[number as u8; SIZE], EvictionPolicy::Any).unwrap();
    partial.commit(&key(number), SIZE as u64, EvictionPolicy::Any).unwrap();
}

fn files_below(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| if entry.file_type().unwrap().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

/// Promise: the cache keeps to its quota.
#[test]
fn thousands_of_objects_are_evicted_by_last_use() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Store::open(folder.path(), Some(1 << 40), 0).unwrap();
    (0..OBJECTS).for_each(|number| put(&disk, number));
    // The oldest are used again, which counts after the restart.
    let used: Vec<u64> = (0..OBJECTS / 10).collect();
    assert!(used.iter().all(|number| disk.get(&key(*number)).is_some()));
    let full = disk.usage();
    assert_eq!(full.objects, OBJECTS);
    disk.close();
    drop(disk);

    let quota = full.bytes / 2;
    let disk = Store::open(folder.path(), Some(quota), 0).unwrap();
    (OBJECTS..OBJECTS + 100).for_each(|number| put(&disk, number));

    let left = disk.usage();
    assert!(left.bytes <= quota, "{} bytes of {quota}", left.bytes);
    assert!(left.objects >= OBJECTS / 4, "no more went than had to: {} are left", left.objects);
    assert!(used.iter().all(|number| disk.get(&key(*number)).is_some()), "what was used last stays");
    assert!((OBJECTS..OBJECTS + 100).all(|number| disk.get(&key(number)).is_some()), "and so does what came last");
    let objects = folder.path().join("objects");
    assert_eq!(files_below(&objects) as u64, left.objects, "what is counted is what is there");
    assert!(fs::read_dir(&objects).unwrap().count() > 200, "256 folders share them");
}
