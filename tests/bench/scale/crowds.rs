//! Very many of one thing: names in a folder, readers at once, objects in a cache.

use super::source::scattered;
use super::{PATIENCE, memory};
use crate::common::mounted::{Mounted, PROGRAM};
use crate::common::random::Random;
use crate::common::source::{Resource, Source, URLSET};
use crate::measure::{MemoryWatch, ROUNDS, Row, caught, megabytes, percentile, rss_anon, time};
use resyncfs::content::store::{EvictionPolicy, ObjectKey, Store};
use resyncfs::document::{Algorithm, Digest};
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const NAMES: u64 = 1_000_000;

/// A million names of one folder: long and short, near each other and not, with lengths.
pub fn flat_folder() -> Vec<Row> {
    let source = Source::start();
    let base = source.url();
    let mut list = format!("{URLSET}<rs:md capability=\"resourcelist\" at=\"2026-01-02T03:04:05Z\"/>\n");
    let name = |number: u64| match number % 4 {
        0 => format!("{number:x}"),
        1 => format!("record-{number:012}.xml"),
        2 => format!("Record-{number:012}.xml"),
        _ => format!("{:016x}-{}.pdf", scattered(number), "long".repeat(20)),
    };
    for number in 0..NAMES {
        let _ = writeln!(
            list,
            "<url><loc>{base}flat/{}</loc><lastmod>2025-01-02T03:04:05Z</lastmod><rs:md length=\"{}\"/></url>",
            name(number),
            number % 10_000
        );
    }
    list.push_str("</urlset>\n");
    source.document("resourcelist.xml", list);
    let mounted = Mounted::prepared(&source.list_url(), "poll=1d");
    let watch = MemoryWatch::of_process_with(&mounted.path());
    if let Err(said) = mounted.try_start_within(PATIENCE) {
        panic!("not mounted; the program said: {said}");
    }
    let mut rows = vec![memory("peak RssAnon of the first mount of a flat folder of 1 M names", watch.peak())];
    drop(watch);
    source.wait_for_quiet();
    source.take_log();
    let folder = mounted.join("flat");
    let watch = MemoryWatch::of_process_with(&mounted.path());
    let of_seven = (0..NAMES).filter(|number| name(*number).ends_with("7.xml")).count() as u64;
    // `.` and `..`; a line that tells a total.
    for (command, expected) in [
        ("ls -f \"$1\"", NAMES + 2),
        ("ls \"$1\"", NAMES),
        ("find \"$1\" -name '*7.xml'", of_seven),
        ("ls -l \"$1\"", NAMES + 1),
    ] {
        // The kernel knows nothing of a new mount.
        mounted.unmount();
        mounted.start();
        let (took, output) = time(|| Command::new("bash").args(["-c", command, "bash"]).arg(&folder).output().unwrap());
        let lines = output.stdout.iter().filter(|octet| **octet == b'\n').count() as u64;
        let requests = source.requests_of("flat").len();
        rows.push(Row::bound(
            &format!("`{}` of a flat folder of 1 M names, cold", command.replace("\"$1\"", "flat")),
            format!("{lines} lines in {:.2} s, {requests} requests", took.as_secs_f64()),
            &format!("{expected} lines, 0 requests"),
            requests == 0 && lines == expected,
        ));
    }
    rows.push(memory("peak RssAnon of these", watch.peak()));
    let (took, seeks) = time(|| seek_about(&folder));
    rows.push(Row::bound(
        "readdir of that folder with seeks",
        format!(
            "{seeks} seeks, {:.0} us each, every name behind them the same",
            took.as_secs_f64() * 1e6 / seeks as f64
        ),
        "<= 10 ms each",
        took.as_secs_f64() / seeks as f64 <= 0.01,
    ));
    let mut random = Random::new(5);
    let mut times: Vec<_> = (0..100_000)
        .map(|_| {
            let number = random.below(NAMES);
            let path = folder.join(name(number));
            let (took, metadata) = time(|| fs::symlink_metadata(path).unwrap());
            assert_eq!(metadata.len(), number % 10_000);
            took
        })
        .collect();
    let (median, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    rows.push(Row::bound(
        "`stat` of names of that folder at random",
        format!("median {} us, p99 {} us", median.as_micros(), p99.as_micros()),
        "p99 <= 1 ms",
        p99 <= Duration::from_millis(1),
    ));
    rows
}

/// Reads the folder, and again from some places in it; how many. Each time the same names follow.
fn seek_about(folder: &Path) -> usize {
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is a C string; the stream is closed below and used by this thread alone.
    let stream = unsafe { libc::opendir(path.as_ptr()) };
    assert!(!stream.is_null());
    let next = || {
        // SAFETY: the stream is open; what readdir answers is valid until it is called again.
        unsafe {
            let entry = libc::readdir(stream);
            (!entry.is_null()).then(|| std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes().to_vec())
        }
    };
    let mut places = Vec::new();
    for number in 0u64.. {
        // SAFETY: the stream is open.
        let place = unsafe { libc::telldir(stream) };
        let Some(name) = next() else { break };
        if number % 9973 == 0 {
            places.push((place, name));
        }
    }
    let mut random = Random::new(6);
    let seeks = 200;
    for _ in 0..seeks {
        let (place, name) = &places[random.below(places.len() as u64) as usize];
        // SAFETY: the stream is open and the place one that it gave.
        unsafe { libc::seekdir(stream, *place) };
        assert_eq!(next().as_ref(), Some(name));
    }
    // SAFETY: it was opened above and is not used again.
    unsafe { libc::closedir(stream) };
    seeks
}

const READERS: u64 = 1000;

/// A thousand readers, each of files of its own and of some that all read, cold, from a Source that takes its time.
pub fn thousand_readers() -> Vec<Row> {
    let source = Source::start();
    let bytes = |seed: u64| Random::new(seed).bytes(40_000);
    for number in 0..2 * READERS {
        source.put(&format!("own/{:02}/{number}", number % 50), Resource::new(bytes(number)));
    }
    for number in 0..10 {
        source.put(&format!("shared/{number}"), Resource::new(bytes(10_000 + number)));
    }
    source.pause(Duration::from_millis(20));
    let mounted = Mounted::new(&source.list_url(), "poll=1d,connections=64");
    let watch = MemoryWatch::of_process_with(&mounted.path());
    let (threads, files) = (AtomicU64::new(0), AtomicU64::new(0));
    let start = Barrier::new(READERS as usize);
    let done = AtomicU64::new(0);
    let (took, ()) = time(|| {
        std::thread::scope(|scope| {
            for reader in 0..READERS {
                let (start, done, mounted) = (&start, &done, &mounted);
                scope.spawn(move || {
                    start.wait();
                    let mut wanted = vec![(format!("shared/{}", reader % 10), 10_000 + reader % 10)];
                    wanted.extend([reader, reader + READERS].map(|n| (format!("own/{:02}/{n}", n % 50), n)));
                    for (path, seed) in wanted {
                        assert!(fs::read(mounted.join(&path)).unwrap() == bytes(seed), "{path}");
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            let counted = |what: &str| fs::read_dir(format!("/proc/{}/{what}", mounted.pid())).unwrap().count() as u64;
            while done.load(Ordering::Relaxed) < READERS {
                threads.fetch_max(counted("task"), Ordering::Relaxed);
                files.fetch_max(counted("fd"), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
    });
    let (threads, files) = (threads.into_inner(), files.into_inner());
    let requests =
        source.log().iter().filter(|logged| logged.path.contains("/own/") || logged.path.contains("/shared/")).count();
    vec![
        Row::bound(
            &format!("{READERS} readers at once of 3 cold files each, 20 ms an answer, 64 connections"),
            format!(
                "{:.1} s, {requests} requests, at most {threads} threads and {files} descriptors",
                took.as_secs_f64()
            ),
            "each file once, <= 600 threads, <= 1000 descriptors",
            requests as u64 <= 2 * READERS + 10 && threads <= 600 && files <= 1000,
        ),
        memory("peak RssAnon of it", watch.peak()),
    ]
}

const OBJECTS: u64 = 1_000_000;

/// Bytes of each object.
const SIZE: u64 = 100;

fn object(number: u64) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().repeat(13);
    bytes.truncate(SIZE as usize);
    bytes
}

fn key(number: u64) -> ObjectKey {
    let digest = Digest::new(Algorithm::Sha256, &Sha256::digest(object(number))).unwrap();
    ObjectKey::digest("https://repo.example.org/", &digest)
}

/// Keeps those that are not there; how many.
fn fill(disk: &Store, numbers: impl Iterator<Item = u64>) -> u64 {
    let mut filled = 0;
    for number in numbers {
        let key = key(number);
        if disk.has(&key) {
            continue;
        }
        let partial = disk.begin(&key, Some(SIZE), EvictionPolicy::Any).unwrap();
        partial.append(&object(number), EvictionPolicy::Any).unwrap();
        partial.commit(&key, SIZE, EvictionPolicy::Any).unwrap();
        filled += 1;
    }
    filled
}

/// A cache of a million objects, kept in `SCALE_FOLDER` where there is one.
pub fn million_objects() -> Vec<Row> {
    let scratch = tempfile::Builder::new().prefix("resyncfs-objects-").tempdir().unwrap();
    let objects = std::env::var("SCALE_OBJECTS").ok().and_then(|number| number.parse().ok()).unwrap_or(OBJECTS);
    let cache = match std::env::var_os("SCALE_FOLDER") {
        Some(folder) => Path::new(&folder).join(format!("objects-{objects}")),
        None => scratch.path().join("cache"),
    };
    let content = cache.join("content");
    fs::create_dir_all(&cache).unwrap();
    let mut rows = Vec::new();
    let disk = Store::open(&content, Some(1 << 40), 0).unwrap();
    let before = rss_anon(std::process::id()).unwrap_or(0);
    let (took, filled) = time(|| fill(&disk, 0..objects));
    if filled > 0 {
        rows.push(Row::bound(
            &format!("{filled} objects of {SIZE} bytes kept"),
            format!("{:.0} us each", took.as_secs_f64() * 1e6 / filled as f64),
            "<= 1 ms each",
            took.as_secs_f64() / filled as f64 <= 0.001,
        ));
    }
    let usage = disk.usage();
    // With all that it holds of them.
    let grown = rss_anon(std::process::id()).unwrap_or(0).saturating_sub(before);
    disk.close();
    drop(disk);
    let index: u64 =
        crate::measure::files(&content.join("recency")).iter().map(|file| file.metadata().unwrap().len()).sum();
    let shards = fs::read_dir(content.join("objects")).unwrap().count();
    rows.push(Row::bound(
        &format!("the index of {} objects", usage.objects),
        format!(
            "{:.0} bytes each on disk, {} of memory in all, {shards} folders of {} objects",
            index as f64 / usage.objects as f64,
            megabytes(grown),
            usage.objects / shards.max(1) as u64
        ),
        "<= 600 bytes each on disk, <= 32 MB of memory",
        index <= 600 * usage.objects && grown <= 32 << 20,
    ));

    let source = Source::start();
    source.put("a", Resource::new("a"));
    let mounted = Mounted::with_cache(&source.list_url(), "poll=1d,cache-size=1T", &cache);
    mounted.unmount();
    let watch = MemoryWatch::of_process_with(&mounted.path());
    let mut times: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let took = time(|| {
                mounted.start();
                assert!(fs::read_dir(mounted.path()).unwrap().next().is_some());
            });
            mounted.unmount();
            took.0
        })
        .collect();
    let (median, worst) = (percentile(&mut times, 50), percentile(&mut times, 100));
    rows.push(Row::bound(
        "restart with that cache to the first name read",
        format!("{:.3} s, slowest {:.3} s", median.as_secs_f64(), worst.as_secs_f64()),
        "<= 0.1 s, the slowest too",
        worst <= Duration::from_millis(100),
    ));
    rows.push(memory("peak RssAnon of the mount that restarts with that cache", watch.peak()));
    drop(watch);
    rows.extend(caught("eviction", || vec![evicted(&content, objects)]));
    rows.extend(caught("`resyncfs cache list`", || vec![listed(&cache)]));
    rows.extend(caught("`resyncfs cache verify`", || vec![verified(&cache)]));
    rows
}

/// `resyncfs cache SUBCOMMAND`: seconds, peak RssAnon, and what it printed.
fn measured_command(cache: &Path, subcommand: &str) -> (f64, u64, String) {
    let mut command = Command::new(PROGRAM);
    command.args(["cache", subcommand, "-o", &format!("cache={}", cache.display())]);
    let mut printed = tempfile::tempfile().unwrap();
    command.stdout(printed.try_clone().unwrap()).stderr(Stdio::null());
    let began = Instant::now();
    let mut child = command.spawn().unwrap();
    let mut peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        peak = peak.max(rss_anon(child.id()).unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    };
    let took = began.elapsed().as_secs_f64();
    assert!(status.success(), "cache {subcommand} ended with {status}");
    let mut text = String::new();
    printed.rewind().unwrap();
    printed.read_to_string(&mut text).unwrap();
    (took, peak, text)
}

fn listed(cache: &Path) -> Row {
    let (took, peak, _) = measured_command(cache, "list");
    let measured = format!("{took:.1} s, peak RssAnon {}", megabytes(peak));
    Row::bound("`resyncfs cache list` of it", measured, "<= 100 MB", peak <= 100_000_000)
}

/// Every object is read, and gives the digest that it is called by.
fn verified(cache: &Path) -> Row {
    let (took, peak, said) = measured_command(cache, "verify");
    let held = {
        let disk = Store::open(&cache.join("content"), Some(1 << 40), 0).unwrap();
        disk.usage().objects
    };
    let said = said.trim();
    Row::bound(
        "`resyncfs cache verify` of it",
        format!("{took:.1} s, peak RssAnon {}; {said}", megabytes(peak)),
        &format!("<= 100 MB, {held} intact, 0 damaged"),
        peak <= 100_000_000
            && said.replace(',', "").starts_with(&format!("{held} cached files intact"))
            && said.contains(" 0 damaged"),
    )
}

/// A tenth of what is there must go for what comes: those used least recently, and at the same cost each as the first.
fn evicted(content: &Path, objects: u64) -> Row {
    let disk = Store::open(content, Some(1 << 40), 0).unwrap();
    let usage = disk.usage();
    // Used just now, and so spared.
    let spared: HashSet<u64> = (0..1000).map(|number| number * objects / 1000).collect();
    let spared: Vec<u64> = spared.into_iter().filter(|number| disk.get(&key(*number)).is_some()).collect();
    disk.close();
    drop(disk);
    let quota = usage.bytes / 10 * 9;
    let disk = Store::open(content, Some(quota), 0).unwrap();
    let (took, came) = time(|| fill(&disk, objects..objects + 1000));
    let after = disk.usage();
    let gone = (usage.objects + came).saturating_sub(after.objects);
    let lost = spared.iter().filter(|number| disk.get(&key(**number)).is_none()).count();
    Row::bound(
        "eviction of a tenth of them for 1000 new ones",
        format!(
            "{gone} gone, {:.0} us each; {lost} of {} used just now among them",
            took.as_secs_f64() * 1e6 / gone.max(1) as f64,
            spared.len()
        ),
        "<= 200 us each, none of those used last",
        gone >= usage.objects / 10
            && came == 1000
            && lost == 0
            && took.as_secs_f64() / gone as f64 <= 0.0002
            && after.bytes <= quota,
    )
}
