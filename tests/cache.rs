//! The commands of the cache: prefetch, evict, list, verify, clear; also when the Source, the disk or the mount fails.

mod common;

use common::mounted::{Mounted, PROGRAM, stderr, stdout};
use common::random::Random;
use common::small_disk::SmallDisk;
use common::source::{Fault, Resource, Source};
use common::{eventually, tree};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str], paths: &[PathBuf]) -> Output {
    Command::new(PROGRAM).args(arguments).args(paths).output().unwrap()
}

fn cache(command: &[&str], folder: &Path) -> Output {
    let (name, rest) = command.split_first().unwrap();
    let option = format!("cache={}", folder.display());
    Command::new(PROGRAM).args(["cache", name, "-o", &option]).args(rest).output().unwrap()
}

fn listing(folder: &Path) -> serde_json::Value {
    let output = cache(&["list", "--json"], folder);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every object's file in a cache folder.
fn objects(folder: &Path) -> Vec<PathBuf> {
    let below = folder.join("content/objects");
    if !below.exists() { Vec::new() } else { tree(&below).into_keys().map(|path| below.join(path)).collect() }
}

/// `count` resources of 100,000 bytes below `folder`.
fn put(source: &Source, folder: &str, count: u64) {
    for number in 0..count {
        let seed = folder.len() as u64 * 1000 + number;
        source.put(&format!("{folder}/{number}"), Resource::new(Random::new(seed).bytes(100_000)));
    }
}

#[test]
fn what_was_prefetched_is_read_when_the_source_is_gone() {
    let source = Source::start();
    put(&source, "a", 12);
    put(&source, "other", 3);
    source.put("a/deep/er/b%20c", Resource::bare("of no known length"));
    let mounted = Mounted::new(&source.url(), "poll=1h");

    let first = run(&["prefetch"], &[mounted.join("a"), mounted.join("a/3")]);
    let again = run(&["prefetch"], &[mounted.join("a")]);

    assert_eq!(stdout(&first), "13 files downloaded (1.2 MB), 0 in the cache before, 0 failed\n", "{}", stderr(&first));
    assert_eq!(stdout(&again), "0 files downloaded (0 bytes), 13 in the cache before, 0 failed\n");
    assert!(first.status.success() && again.status.success());
    assert!(source.requests_of("other/0").is_empty());
    for path in ["a/0", "a/11", "a/deep/er/b%20c"] {
        source.fault(path, Fault::Status(503, String::new()), u64::MAX);
    }
    let published = source.published();
    for (path, name) in [("a/0", "a/0"), ("a/11", "a/11"), ("a/deep/er/b%20c", "a/deep/er/b c")] {
        let bytes = published.get(path).or(published.get(name)).unwrap();
        assert_eq!(fs::read(mounted.join(name)).unwrap(), *bytes, "{path}");
    }
}

#[test]
fn a_dry_run_counts_files_and_bytes_and_downloads_nothing() {
    let source = Source::start();
    put(&source, "a", 4);
    put(&source, "other", 1);
    source.put("a/deep/unsized", Resource::bare("of no known length"));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    assert!(run(&["prefetch"], &[mounted.join("a/0")]).status.success());
    source.take_log();

    let some = run(&["prefetch", "--dry-run"], &[mounted.join("a"), mounted.join("absent")]);
    let all = run(&["prefetch", "--dry-run"], &[mounted.join("other")]);

    let expected = "4 files to download (300.0 kB, and 1 file of unknown size), 1 in the cache already (100.0 kB)\n";
    assert_eq!((stdout(&some).as_str(), some.status.code()), (expected, Some(1)), "{}", stderr(&some));
    assert!(stderr(&some).contains("absent: is not in the mount"), "{}", stderr(&some));
    assert_eq!(stdout(&all), "1 file to download (100.0 kB), 0 in the cache already (0 bytes)\n");
    assert!(all.status.success(), "{}", stderr(&all));
    let log = source.log();
    assert!(log.iter().all(|logged| !logged.path.contains("/a/") && !logged.path.contains("/other/")), "{log:?}");
}

/// Of a file that is here in part only the rest is to be downloaded.
#[test]
fn a_dry_run_counts_a_partial_file_by_what_is_missing() {
    let source = Source::start();
    source.put("large", Resource::new(Random::new(1).bytes(40 << 20)));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    source.fault("large", Fault::Held(4 << 20), 1);
    fs::File::open(mounted.join("large")).unwrap().read_exact(&mut [0; 4096]).unwrap();
    let counted = || {
        let output = run(&["prefetch", "--dry-run", "--json"], &[mounted.path()]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["counted"].take()
    };

    eventually("a part of it is here", || counted()["cached_bytes"].as_u64().unwrap() >= 1 << 20);
    let under_way = counted();
    mounted.kill();
    mounted.start();
    let at_rest = counted();

    source.mend();
    for counted in [under_way, at_rest] {
        assert_eq!((&counted["files"], &counted["cached_files"]), (&1.into(), &0.into()), "{counted}");
        assert!((1 << 20..8 << 20).contains(&counted["cached_bytes"].as_u64().unwrap()), "{counted}");
    }
}

#[test]
fn results_are_printed_as_json_lines() {
    let source = Source::start();
    put(&source, "a", 2);
    source.put("a/bad", Resource::new("right"));
    source.fault("a/bad", Fault::Body(b"wrong".to_vec()), u64::MAX);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    let lines = |arguments: &[&str]| -> Vec<serde_json::Value> {
        let output = run(arguments, &[mounted.path()]);
        assert_eq!(stderr(&output), "", "{arguments:?}");
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };

    let prefetched = lines(&["prefetch", "--json"]);
    let evicted = lines(&["evict", "--json"]);
    let refreshed = lines(&["refresh", "--json"]);

    assert_eq!((&prefetched[0]["failed"]["path"], &prefetched[1]["done"]["bytes"]), (&"a/bad".into(), &200_000.into()));
    assert_eq!(
        (&prefetched[1]["done"]["fetched"], &prefetched[1]["mount"]),
        (&2.into(), &mounted.path().to_str().into())
    );
    assert_eq!((&evicted[0]["done"]["files"], &refreshed[0]["refreshed"]["outcome"]), (&2.into(), &"unchanged".into()));
}

#[test]
fn a_prefetch_of_more_than_one_batch_goes_on_to_its_end() {
    let source = Source::start();
    for number in 0..600 {
        source.put(&format!("a/{number:04}"), Resource::new(format!("file {number}")));
    }
    let mounted = Mounted::new(&source.url(), "poll=1h");
    let absent: Vec<_> = (0..300).map(|number| mounted.join(&format!("absent/{number}"))).collect();

    let all = run(&["prefetch"], &[&absent[..], &[mounted.join("a")]].concat());

    assert!(stdout(&all).starts_with("600 files downloaded"), "{}", stdout(&all));
    assert!(stdout(&all).ends_with("0 in the cache before, 300 failed\n"), "{}", stdout(&all));
    assert_eq!(all.status.code(), Some(1));
}

#[test]
fn a_failed_file_is_named_and_downloaded_the_next_time() {
    let source = Source::start();
    put(&source, "a", 6);
    let mounted = Mounted::new(&source.url(), "poll=1h,timeout=3s");
    source.fault("a/2", Fault::Status(404, String::new()), u64::MAX);
    source.fault("a/4", Fault::Body(b"others".to_vec()), u64::MAX);

    let some = run(&["prefetch"], &[mounted.join("a"), mounted.join("absent")]);

    assert_eq!(some.status.code(), Some(1), "{}", stderr(&some));
    assert_eq!(stdout(&some), "4 files downloaded (400.0 kB), 0 in the cache before, 3 failed\n");
    let lines = stderr(&some);
    let line = |path: &Path| lines.lines().find(|line| line.contains(&format!("{}: ", path.display()))).unwrap_or("");
    assert!(line(&mounted.join("a/2")).contains("404"), "{lines}");
    assert!(!line(&mounted.join("a/4")).is_empty(), "{lines}");
    assert!(line(&mounted.join("absent")).contains("is not in the mount"), "{lines}");

    source.mend();
    mounted.try_refresh().unwrap();
    let rest = run(&["prefetch"], &[mounted.join("a")]);
    assert_eq!(stdout(&rest), "2 files downloaded (200.0 kB), 4 in the cache before, 0 failed\n", "{}", stderr(&rest));
}

/// Promise: a prefetch ends at the quota and never drops what it brought itself.
#[test]
fn a_prefetch_stops_at_a_full_cache_and_keeps_its_files() {
    let source = Source::start();
    put(&source, "old", 20);
    put(&source, "new", 120);
    // The catalogs take a part of it.
    let mounted = Mounted::new(&source.url(), "poll=1h,cache-size=9M");
    let old = run(&["prefetch"], &[mounted.join("old")]);
    assert!(old.status.success(), "{}", stderr(&old));

    let full = run(&["prefetch"], &[mounted.join("new")]);

    assert_eq!(full.status.code(), Some(10), "{}{}", stdout(&full), stderr(&full));
    assert!(stderr(&full).contains("cache-size=SIZE"), "{}", stderr(&full));
    let fetched: usize = stdout(&full).split(' ').next().unwrap().parse().unwrap();
    assert!((10..120).contains(&fetched), "{fetched}");
    source.take_log();
    let here = (0..120).filter(|number| {
        let path = format!("new/{number}");
        fs::read(mounted.join(&path)).unwrap();
        source.requests_of(&path).is_empty()
    });
    // Reading the first that is not there may drop others; before that all that came is there.
    assert!(here.take(fetched).count() >= fetched.min(10));
}

#[test]
fn a_prefetch_onto_a_full_disk_says_so_and_reads_go_on() {
    let disk = SmallDisk::of(24 << 20);
    let source = Source::start();
    put(&source, "a", 300);
    let mounted = Mounted::with_cache(&source.url(), "poll=1h,cache-size=1G,cache-reserve=0", disk.path());

    let full = run(&["prefetch"], &[mounted.path()]);

    assert_eq!(full.status.code(), Some(10), "{}{}", stdout(&full), stderr(&full));
    assert_eq!(fs::read(mounted.join("a/299")).unwrap(), source.published()["a/299"]);
}

#[test]
fn ctrl_c_ends_a_prefetch_on_the_side_of_the_mount_too() {
    let source = Source::start();
    put(&source, "a", 40);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    source.put("unused", Resource::new("x"));
    for number in 0..40 {
        source.fault(&format!("a/{number}"), Fault::Held(50_000), u64::MAX);
    }
    let mut prefetch =
        Command::new(PROGRAM).arg("prefetch").arg(mounted.path()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("something is asked for", || source.log().iter().any(|logged| logged.path.contains("/a/")));

    // SAFETY: kill(2) has no memory preconditions; the process is this test's own child, not yet waited for.
    unsafe { libc::kill(prefetch.id() as i32, libc::SIGINT) };

    assert_eq!(prefetch.wait().unwrap().code(), Some(130));
    let mut messages = String::new();
    prefetch.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    assert!(messages.contains("interrupted"), "{messages}");
    source.mend();
    source.wait_for_quiet();
    let asked: Vec<_> = (0..40).filter(|number| !source.requests_of(&format!("a/{number}")).is_empty()).collect();
    assert!(asked.len() < 40, "what was not begun is not asked for any more");
    let rest = run(&["prefetch"], &[mounted.path()]);
    assert!(rest.status.success(), "{}", String::from_utf8_lossy(&rest.stderr));
    assert_eq!(tree(&mounted.path()).len(), 40);
}

#[test]
fn a_prefetch_leaves_connections_to_readers() {
    let source = Source::start();
    put(&source, "a", 40);
    source.put("now", Resource::new("wanted at once"));
    let mounted = Mounted::new(&source.url(), "poll=1h,connections=4");
    for number in 0..40 {
        source.fault(&format!("a/{number}"), Fault::Held(50_000), u64::MAX);
    }
    let mut prefetch = Command::new(PROGRAM).arg("prefetch").arg(mounted.join("a")).spawn().unwrap();
    eventually("two are under way", || source.log().iter().filter(|logged| logged.path.contains("/a/")).count() == 2);

    assert_eq!(fs::read(mounted.join("now")).unwrap(), b"wanted at once");

    source.mend();
    assert!(prefetch.wait().unwrap().success());
}

#[test]
fn a_prefetch_of_a_killed_mount_fails_and_the_next_goes_on() {
    let source = Source::start();
    put(&source, "a", 20);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    // Fewer than the requests that one host gets at a time: the others come in any order.
    for number in 10..13 {
        source.fault(&format!("a/{number}"), Fault::Held(50_000), u64::MAX);
    }
    let prefetch = Command::new(PROGRAM).arg("prefetch").arg(mounted.path()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("some have come", || objects(mounted.cache()).len() >= 2);

    mounted.kill();

    let ended = prefetch.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", stderr(&ended));
    assert!(stderr(&ended).contains("the mount"), "{}", stderr(&ended));
    let dead = run(&["prefetch"], &[mounted.path()]);
    assert_eq!(dead.status.code(), Some(5), "{}", stderr(&dead));
    source.mend();
    mounted.start();
    let rest = run(&["prefetch"], &[mounted.path()]);
    assert!(rest.status.success(), "{}", stderr(&rest));
    let before: u64 = stdout(&rest).split("), ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(before > 0, "{}", stdout(&rest));
}

#[test]
fn a_source_that_is_down_ends_a_prefetch() {
    let source = Source::start();
    put(&source, "a", 300);
    let mounted = Mounted::new(&source.url(), "poll=1h,timeout=1s");
    for number in 0..300 {
        source.fault(&format!("a/{number}"), Fault::Status(503, String::new()), u64::MAX);
    }

    let silent = run(&["prefetch"], &[mounted.path()]);

    assert_eq!(silent.status.code(), Some(3), "{}{}", stdout(&silent), stderr(&silent));
    assert!(stderr(&silent).contains("the Source does not answer"), "{}", stderr(&silent));
}

#[test]
fn evicted_files_are_fetched_again_and_open_versions_stay() {
    let source = Source::start();
    put(&source, "a", 5);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    assert!(run(&["prefetch"], &[mounted.path()]).status.success());
    assert_eq!(objects(mounted.cache()).len(), 5);

    let some = run(&["evict"], &[mounted.join("a/0"), mounted.join("a/1"), mounted.join("absent")]);

    assert_eq!(some.status.code(), Some(1));
    assert!(stdout(&some).starts_with("2 files removed from the cache ("), "{}", stdout(&some));
    assert!(stderr(&some).contains("is not in the mount"), "{}", stderr(&some));
    assert_eq!(objects(mounted.cache()).len(), 3);
    source.take_log();
    assert_eq!(fs::read(mounted.join("a/0")).unwrap(), source.published()["a/0"]);
    assert_eq!(source.requests_of("a/0").len(), 1);

    // The same bytes under another name are pinned as those of a version that is open.
    let open = fs::File::open(mounted.join("a/2")).unwrap();
    let bytes = source.published()["a/2"].clone();
    source.put("copy", Resource::new(bytes.clone()));
    source.put("a/2", Resource::new(Random::new(77).bytes(100_000)));
    mounted.try_refresh().unwrap();
    eventually("the earlier version is pinned", || !tree(&mounted.cache().join("content/pins")).is_empty());
    let all = run(&["evict"], &[mounted.path()]);

    assert!(all.status.success(), "{}", stderr(&all));
    assert!(stderr(&all).contains("copy: stays"), "{}{}", stdout(&all), stderr(&all));
    assert_eq!(objects(mounted.cache()).len(), 1);
    let mut read = Vec::new();
    (&open).read_to_end(&mut read).unwrap();
    assert_eq!(read, bytes);
}

#[test]
fn the_list_tells_what_is_mounted_and_what_each_takes() {
    let source = Source::start();
    put(&source, "a", 4);
    let one = Mounted::new(&source.url(), "poll=1h");
    let other = Mounted::with_cache(&source.url(), "poll=1h,include=a/1", one.cache());
    assert!(run(&["prefetch"], &[one.path(), other.path()]).status.success());
    other.unmount();
    eventually("what was read is written down", || {
        listing(one.cache())["trees"].as_array().unwrap().iter().all(|tree| tree["objects"] != 0)
    });

    let listed = listing(one.cache());

    let trees = listed["trees"].as_array().unwrap();
    assert_eq!((trees.len(), listed["objects"].as_u64()), (2, Some(4)));
    let of = |is: bool| trees.iter().find(|tree| tree["mounted"].is_string() == is).unwrap();
    assert_eq!((of(true)["objects"].as_u64(), of(false)["objects"].as_u64()), (Some(4), Some(1)));
    assert_eq!((&of(true)["mounted"], &of(true)["process"]), (&one.path().to_str().into(), &one.pid().into()));
    assert_eq!(of(false)["options"][0], "include=a/1");
    assert_eq!(of(false)["source"], source.url());
    assert!(of(false)["catalog_bytes"].as_u64().unwrap() > 0);
    let text = stdout(&cache(&["list"], one.cache()));
    assert!(text.contains("2 trees; 4 cached files"), "{text}");
}

/// Damage on the disk is found while a mount runs, and no read returns it.
#[test]
fn a_damaged_object_is_found_removed_and_fetched_again() {
    let source = Source::start();
    put(&source, "a", 4);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    assert!(run(&["prefetch"], &[mounted.path()]).status.success());
    assert_eq!(cache(&["verify"], mounted.cache()).status.code(), Some(0));
    let stored = objects(mounted.cache());
    let (flipped, cut) = (stored[0].clone(), stored[1].clone());
    let mut file = fs::File::options().write(true).open(&flipped).unwrap();
    file.seek(SeekFrom::Start(50_000)).unwrap();
    file.write_all(b"damage").unwrap();
    fs::File::options().write(true).open(&cut).unwrap().set_len(60_000).unwrap();

    let damaged = cache(&["verify"], mounted.cache());

    assert_eq!(damaged.status.code(), Some(9), "{}", stderr(&damaged));
    assert!(stdout(&damaged).contains("2 cached files intact"), "{}", stdout(&damaged));
    assert!(stdout(&damaged).contains("2 damaged and removed"), "{}", stdout(&damaged));
    for path in [&flipped, &cut] {
        assert!(stderr(&damaged).contains(path.file_name().unwrap().to_str().unwrap()), "{}", stderr(&damaged));
        assert!(!path.exists());
    }
    assert_eq!(cache(&["verify"], mounted.cache()).status.code(), Some(0));
    let shown = tree(&mounted.path());
    for (path, bytes) in source.published() {
        assert_eq!(shown[Path::new(&path)], bytes, "{path}");
    }
}

/// A file that cannot be read, over another one, until it is dropped.
struct Unreadable<'a>(&'a Path);

impl Unreadable<'_> {
    fn over<'a>(path: &'a Path, file: &Path) -> Unreadable<'a> {
        assert!(Command::new("mount").arg("--bind").args([file, path]).status().unwrap().success());
        Unreadable(path)
    }
}

impl Drop for Unreadable<'_> {
    fn drop(&mut self) {
        assert!(Command::new("umount").arg(self.0).status().unwrap().success());
    }
}

/// A disk that fails for a time says nothing of what is on it.
#[test]
fn verify_keeps_an_object_that_cannot_be_read_now() {
    let (source, failing) = (Source::start(), Source::start());
    put(&source, "a", 2);
    failing.put("gone", Resource::new(Random::new(7).bytes(100_000)));
    failing.fault("gone", Fault::Status(404, String::new()), u64::MAX);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    assert!(run(&["prefetch"], &[mounted.path()]).status.success());
    let broken = Mounted::new(&failing.url(), "poll=1h,timeout=1s");
    let stored = objects(mounted.cache());

    let unreadable = Unreadable::over(&stored[0], &broken.join("gone"));
    let verified = cache(&["verify"], mounted.cache());
    let printed: serde_json::Value =
        serde_json::from_slice(&cache(&["verify", "--json"], mounted.cache()).stdout).unwrap();
    drop(unreadable);

    let said = stderr(&verified);
    assert_eq!(verified.status.code(), Some(7), "{said}");
    assert!(said.contains("cannot be read now: Input/output error") && !said.contains("damaged"), "{said}");
    assert!(stdout(&verified).contains("0 damaged and removed, 1 could not be read"), "{}", stdout(&verified));
    assert_eq!(printed["objects"][0]["became"], "kept", "{printed}");
    let verified = cache(&["verify"], mounted.cache());
    assert!(verified.status.success() && stdout(&verified).contains("2 cached files intact"), "{}", stdout(&verified));
}

/// Damage on the disk costs a download and never an error, however many read the file meanwhile.
#[test]
fn readers_of_a_damaged_object_get_its_bytes_again() {
    let source = Source::start();
    let bytes = Random::new(5).bytes(24 << 20);
    source.put("big", Resource::new(bytes.clone()));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    assert!(fs::read(mounted.join("big")).unwrap() == bytes);
    source.take_log();

    for at in [1 << 20, 12 << 20, (24 << 20) - 5] {
        // A reader has the last byte when it is verified, which may be before the object has its place.
        eventually("one object is there", || objects(mounted.cache()).len() == 1);
        let [object] = &objects(mounted.cache())[..] else { panic!("one object") };
        let file = fs::File::options().write(true).open(object).unwrap();
        file.write_all_at(&[!bytes[at]], at as u64).unwrap();
        // The kernel's own pages are right.
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        std::thread::scope(|scope| {
            for reader in 0..6 {
                let (mounted, bytes) = (&mounted, &bytes);
                scope.spawn(move || {
                    let file = fs::File::open(mounted.join("big")).unwrap();
                    let mut piece = vec![0; 300_000];
                    for step in 0..8 {
                        let from = (at + reader * 70_000 + step * (3 << 20)) % (bytes.len() - piece.len());
                        file.read_exact_at(&mut piece, from as u64).unwrap();
                        assert!(piece == bytes[from..][..piece.len()], "from {from}");
                    }
                });
            }
        });
        assert!(fs::read(mounted.join("big")).unwrap() == bytes);
        assert!(!source.take_log().is_empty(), "it is downloaded again");
    }
}

/// A folder in the place of an object is moved, not removed; the log names it, and the file is downloaded again.
#[test]
fn a_folder_in_place_of_an_object_is_moved_away() {
    let source = Source::start();
    put(&source, "a", 4);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    assert!(run(&["prefetch"], &[mounted.path()]).status.success());
    let stored = objects(mounted.cache());
    let replace = |path: &PathBuf| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
        fs::write(path.join("thesis"), "not saved elsewhere").unwrap();
    };
    let aside = mounted.cache().join("content/aside");
    mounted.unmount();
    stored.iter().for_each(replace);
    mounted.start();

    let shown = tree(&mounted.path());

    for (path, bytes) in source.published() {
        assert_eq!(shown[Path::new(&path)], bytes, "{path}");
    }
    let kept = || tree(&aside).values().filter(|bytes| *bytes == b"not saved elsewhere").count();
    assert_eq!(kept(), 4);
    let log = mounted.said();
    assert!(log.contains(aside.to_str().unwrap()) && !log.contains("removed from the cache"), "{log}");
    assert_eq!(cache(&["verify"], mounted.cache()).status.code(), Some(0));

    replace(&stored[0]);
    fs::remove_file(&stored[1]).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &stored[1]).unwrap();
    let verified = cache(&["verify"], mounted.cache());
    assert_eq!(verified.status.code(), Some(9), "{}", stderr(&verified));
    assert!(stdout(&verified).contains("2 damaged and removed, 0 could not be read"), "{}", stdout(&verified));
    assert!(stderr(&verified).contains(aside.to_str().unwrap()), "{}", stderr(&verified));
    assert_eq!(kept(), 5);
    assert_eq!(cache(&["verify"], mounted.cache()).status.code(), Some(0));
}

#[test]
fn what_is_mounted_is_never_cleared_and_what_it_shares_stays() {
    let source = Source::start();
    put(&source, "a", 4);
    let one = Mounted::new(&source.url(), "poll=1h,include=a/1,include=a/2");
    let other = Mounted::with_cache(&source.url(), "poll=1h", one.cache());
    assert!(run(&["prefetch"], &[one.path(), other.path()]).status.success());
    eventually("what was read is written down", || {
        listing(one.cache())["trees"].as_array().unwrap().iter().all(|tree| tree["objects"] != 0)
    });

    let busy = cache(&["clear", &source.url()], one.cache());
    assert_eq!(busy.status.code(), Some(6), "{}", stderr(&busy));
    assert!(stderr(&busy).contains("resyncfs unmount"), "{}", stderr(&busy));
    assert_eq!(objects(one.cache()).len(), 4);
    other.unmount();
    let unknown = cache(&["clear", "http://127.0.0.1:1/"], one.cache());
    assert_eq!(unknown.status.code(), Some(1));

    let unused = cache(&["clear", "--unused"], one.cache());

    assert_eq!(unused.status.code(), Some(0), "{}", stderr(&unused));
    assert!(stdout(&unused).starts_with("1 tree and 2 cached files removed"), "{}", stdout(&unused));
    assert_eq!(objects(one.cache()).len(), 2);
    assert_eq!(listing(one.cache())["trees"].as_array().unwrap().len(), 1);
    source.take_log();
    assert_eq!(fs::read(one.join("a/1")).unwrap(), source.published()["a/1"]);
    assert!(source.requests_of("a/1").is_empty());
    other.start();
    assert_eq!(tree(&other.path()).len(), 4);

    one.unmount();
    other.kill();
    let all = cache(&["clear", "--all"], one.cache());
    assert_eq!(all.status.code(), Some(0), "{}", stderr(&all));
    assert!(objects(one.cache()).is_empty());
    assert!(fs::read_dir(one.cache().join("mounts")).unwrap().next().is_none());
    one.start();
    assert_eq!(tree(&one.path()).len(), 2);
}

/// A tree does not record its partial downloads: another tree's name must not remove them.
#[test]
fn clearing_one_tree_leaves_the_partial_downloads_of_others() {
    let source = Source::start();
    put(&source, "a", 1);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    mounted.unmount();
    let partial = mounted.cache().join(format!("content/tmp/sha-256-{}", "ab".repeat(32)));
    fs::create_dir_all(partial.parent().unwrap()).unwrap();
    fs::write(&partial, [1; 8192]).unwrap();

    assert!(cache(&["clear", &source.url()], mounted.cache()).status.success());
    assert!(partial.exists());

    assert!(cache(&["clear", "--all"], mounted.cache()).status.success());
    assert!(!partial.exists());
}

#[test]
fn a_clearing_that_was_killed_is_finished_by_the_next() {
    let source = Source::start();
    put(&source, "a", 1);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    mounted.unmount();
    let left = mounted.cache().join("mounts/.cleared-0123-1");
    fs::create_dir_all(left.join("catalog")).unwrap();
    assert_eq!(listing(mounted.cache())["trees"].as_array().unwrap().len(), 1);

    let name = listing(mounted.cache())["trees"][0]["name"].as_str().unwrap()[..8].to_owned();
    let cleared = cache(&["clear", &name], mounted.cache());

    assert!(cleared.status.success(), "{}", stderr(&cleared));
    assert!(!left.exists());
    assert_eq!(cache(&["list"], Path::new("/nonexistent/cache")).status.code(), Some(0));
}

/// Each command says what to do when there is no such mount, or it is another user's.
#[test]
fn commands_on_paths_say_what_to_do_where_nothing_is_mounted() {
    let source = Source::start();
    put(&source, "a", 1);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    for command in ["prefetch", "evict", "uri"] {
        let none = run(&[command], &[PathBuf::from("/tmp")]);
        assert_eq!(none.status.code(), Some(5), "{command}: {}", stderr(&none));
        assert!(stderr(&none).contains("no resyncfs mount there; current mounts: "), "{}", stderr(&none));
    }
    // The folder around the mount is private to this test: let another user reach the mount.
    let around = mounted.path().parent().unwrap().to_owned();
    fs::set_permissions(&around, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = around.join("resyncfs");
    fs::copy(PROGRAM, &program).unwrap();
    let stranger = |arguments: &[&str], path: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program).args(arguments).arg(path);
        command.output().unwrap()
    };
    for command in ["prefetch", "evict", "uri"] {
        let refused = stranger(&[command], &mounted.join("a/0"));
        assert_eq!(refused.status.code(), Some(8), "{command}: {}", stderr(&refused));
    }
    let foreign = stranger(&["cache", "verify", "-o"], Path::new(&format!("cache={}", mounted.cache().display())));
    assert_eq!(foreign.status.code(), Some(7), "{}", stderr(&foreign));
}

/// System calls of a process and all its threads while `work` runs, by name (strace(1)).
fn system_calls(pid: u32, work: impl FnOnce()) -> BTreeMap<String, u64> {
    let mut tracer = Command::new("strace")
        .args(["-f", "-c", "-U", "calls,name", "-p", &pid.to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let traced = || {
        fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|thread| {
            let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap_or_default();
            !status.contains("TracerPid:\t0\n")
        })
    };
    // A program that keeps its memory to itself may be watched by who has CAP_SYS_PTRACE.
    eventually("strace watches every thread", || {
        assert!(tracer.try_wait().unwrap().is_none(), "strace cannot watch");
        traced()
    });
    work();
    // SAFETY: the tracer is a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(tracer.id() as i32, libc::SIGINT) }, 0);
    let mut table = String::new();
    tracer.stderr.take().unwrap().read_to_string(&mut table).unwrap();
    tracer.wait().unwrap();
    let row = |line: &str| {
        let (calls, name) = line.trim().split_once(char::is_whitespace)?;
        Some((name.trim().to_owned(), calls.parse().ok()?))
    };
    let mut calls: BTreeMap<String, u64> = table.lines().filter_map(row).collect();
    calls.remove("total");
    assert!(!calls.is_empty(), "{table}");
    calls
}

#[test]
fn a_cached_read_costs_three_system_calls() {
    const FILES: u64 = 200;
    let source = Source::start();
    for number in 0..FILES {
        source.put(&format!("a/{number}"), Resource::new(Random::new(number).bytes(3000)));
    }
    let mounted = Mounted::new(&source.url(), "poll=1h");
    let read = |number: u64| {
        let file = fs::File::open(mounted.join(&format!("a/{number}"))).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 3000);
        assert_eq!(file.read_at(&mut [0; 4096], 0).unwrap(), 3000);
        // Without its pages the kernel reads again.
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
    };
    let read_all = || (0..FILES).for_each(read);
    // Downloads the files, and leaves them open in the mount.
    read_all();
    read_all();

    // A call that has begun before the tracer, or has not ended before it, is not counted.
    let calls = system_calls(mounted.pid(), || [0..1, 0..FILES, 0..1].into_iter().flatten().for_each(read));

    let of = |name: &str| calls.get(name).copied().unwrap_or_default();
    // What is in the page cache is read by a call that does not wait for the disk, where the file system has one.
    let taken = of("pread64") + of("preadv2");
    assert!(of("read") >= FILES && taken >= FILES && of("writev") >= FILES, "{calls:?}");
    // The mount keeps some of them open. To open another takes two more calls.
    let opened = of("openat") + of("openat2");
    assert!(opened < FILES / 2, "{calls:?}");
    // A debug build of the standard library checks what it closes.
    let all = calls.values().sum::<u64>() - of("fcntl");
    // Each thread restarts its wait when a tracer attaches, and its heap grows once.
    let threads = fs::read_dir(format!("/proc/{}/task", mounted.pid())).unwrap().count() as u64;
    assert!(all < 3 * FILES + 3 * opened + FILES / 2 + 2 * threads, "{calls:?}");
}

/// A run that downloads more than was meant ends in errors, and leaves what is here alone.
#[test]
fn a_run_downloads_no_more_than_it_may() {
    const FILES: usize = 40;
    let source = Source::start();
    let name = |number: usize| format!("d{}/{number}", number % 3);
    for number in 0..FILES {
        source.put(&name(number), Resource::new(vec![number as u8; 100_000]));
    }
    let mounted = Mounted::new(&source.url(), "poll=1h,max-download=1M");
    let read = || -> Vec<Option<i32>> {
        let read = |number| match fs::read(mounted.join(&name(number))) {
            Ok(bytes) => {
                assert!(bytes == vec![number as u8; 100_000], "{number}");
                None
            }
            Err(cause) => cause.raw_os_error(),
        };
        (0..FILES).map(read).collect()
    };
    let succeeded = |outcomes: &[Option<i32>]| outcomes.iter().filter(|outcome| outcome.is_none()).count();
    let prefetch = |flags: &[&str]| {
        let prefetch = Command::new(PROGRAM).arg("prefetch").args(flags).arg(mounted.path()).output().unwrap();
        (prefetch.status.success(), String::from_utf8_lossy(&prefetch.stderr).into_owned())
    };
    let dry = prefetch(&["--dry-run"]);
    assert!(dry.0 && dry.1.contains("will not fit") && dry.1.contains("max-download= leaves 1.0 MB"), "{}", dry.1);

    let outcomes = read();

    assert!((6..=10).contains(&succeeded(&outcomes)), "{outcomes:?}");
    assert!(outcomes.iter().flatten().all(|errno| *errno == libc::EDQUOT), "{outcomes:?}");
    assert!(succeeded(&read()) >= succeeded(&outcomes), "what is here goes on");
    assert_eq!(mounted.said().matches("max-download= is reached").count(), 1, "{}", mounted.said());
    assert_eq!(mounted.said().matches("WARN").count(), 1, "{}", mounted.said());
    let shown = |command: &str| {
        let output = Command::new(PROGRAM).arg(command).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let of_mount = text.lines().any(|line| line.contains(mounted.path().to_str().unwrap()));
        assert!(of_mount, "{text}");
        text
    };
    assert!(shown("status").contains("LIMIT REACHED: max-download= allows 1.0 MB"), "{}", shown("status"));
    let path = mounted.path().display().to_string();
    assert!(shown("list").lines().any(|line| line.contains(&path) && line.ends_with("alive, max-download= reached")));
    let check = Command::new(PROGRAM).args(["status", "--check"]).arg(mounted.path()).output().unwrap();
    let line = String::from_utf8_lossy(&check.stdout);
    assert!(check.status.code() == Some(1) && line.contains("max-download= is reached"), "{line}");
    let full = prefetch(&[]);
    assert!(
        !full.0 && full.1.contains("will not fit") && full.1.contains("as much as max-download= allows"),
        "{}",
        full.1
    );
    source.put("new", Resource::new("new"));
    mounted.try_refresh().unwrap();
    assert_eq!(fs::metadata(mounted.join("new")).unwrap().len(), 3, "names go on");

    mounted.remount();

    assert!(succeeded(&read()) > succeeded(&outcomes), "another run goes on");
}
