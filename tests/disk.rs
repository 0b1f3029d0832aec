//! The cache's disk full, or shared: reads go on right or fail clearly, nothing that was shown is lost, and all is well again when
//! there is room.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::random::Random;
use common::server::{Act, Received, Reply, Server};
use common::small_disk::{ReadOnly, SmallDisk};
use common::source::{Resource, Source, URLSET};
use common::{eventually, rounds, tree};
use flate2::{Compression, write::GzEncoder};
use resyncfs::content::store::free_space;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Neither quota nor reserve: the disk itself is what says no.
const UNBOUNDED: &str = "timeout=5s,poll=1h,cache-size=1G,cache-reserve=0";

fn published(source: &Source) -> BTreeMap<PathBuf, Vec<u8>> {
    source.published().into_iter().map(|(path, bytes)| (PathBuf::from(path), bytes)).collect()
}

/// Serves a Resource List that has no end; after `blocks` of 64 KiB, if any, nothing more comes.
fn list_without_end(blocks: Option<usize>) -> (Server, String) {
    let server = Server::start(move |_: &Received| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nConnection: close\r\n\r\n{URLSET}");
        let block = vec![b'a'; 1 << 16];
        let rest = match blocks {
            Some(blocks) => Act::Body(block.repeat(blocks).into()),
            None => Act::Repeat(block.into()),
        };
        vec![Act::Send((head + "<url><loc>http://h/").into_bytes()), rest, Act::Hang]
    });
    let url = format!("http://{}/list.xml", server.authority());
    (server, url)
}

#[test]
fn a_list_without_end_leaves_half_of_the_disk_free() {
    let disk = SmallDisk::of(64 << 20);
    let (_server, url) = list_without_end(None);
    let explore = |url: &str| {
        let mut explore = Command::new(PROGRAM);
        explore.args(["explore", url]).env("TMPDIR", disk.path()).stdout(Stdio::null()).stderr(Stdio::piped());
        explore
    };
    let folders = || fs::read_dir(disk.path()).unwrap().flatten().map(|it| it.path()).collect::<Vec<_>>();

    let ended = explore(&url).output().unwrap();
    let message = String::from_utf8(ended.stderr).unwrap();
    assert_eq!((ended.status.code(), folders().len()), (Some(1), 0), "{message}");
    for part in [&*url, "cache-reserve=", "max-document=", "TMPDIR", &disk.path().display().to_string()] {
        assert!(message.contains(part), "{part}: {message}");
    }

    let (_server, url) = list_without_end(Some(16));
    for (signal, left) in [(libc::SIGTERM, 0), (libc::SIGKILL, 1), (libc::SIGINT, 0)] {
        let dead = folders();
        let mut running = explore(&url).spawn().unwrap();
        let is_spooling = |folder: &PathBuf| {
            !dead.contains(folder) && fs::read_dir(folder).is_ok_and(|mut files| files.any(|file| file.is_ok()))
        };
        eventually("it spools", || folders().iter().any(is_spooling));
        // SAFETY: the child is ours and not waited for yet.
        unsafe { libc::kill(running.id() as i32, signal) };
        running.wait().unwrap();
        assert_eq!(folders().len(), left, "after signal {signal}");
    }
    // As soon as there is a folder, and before there is anything in it.
    for _ in 0..4 * rounds() {
        let mut running = explore(&url).spawn().unwrap();
        while folders().is_empty() {
            assert!(running.try_wait().unwrap().is_none(), "it ends by itself");
        }
        // SAFETY: as above.
        unsafe { libc::kill(running.id() as i32, libc::SIGTERM) };
        running.wait().unwrap();
        assert!(folders().is_empty(), "after a signal at the very beginning");
    }
}

#[test]
fn a_list_without_end_does_not_fill_the_disk_of_the_cache() {
    let disk = SmallDisk::of(64 << 20);
    let directory = tempfile::tempdir().unwrap();
    let (_server, url) = list_without_end(None);
    let options = format!("cache={},cache-size=8M,cache-reserve=24M,timeout=5s", disk.path().display());

    let mut mount = Command::new(PROGRAM);
    mount.args(["mount", "-o", &options, &url]).arg(directory.path()).stderr(Stdio::piped());
    let mut mounting = mount.spawn().unwrap();
    let mut least = disk.free_space();
    while mounting.try_wait().unwrap().is_none() {
        least = least.min(disk.free_space());
        thread::sleep(Duration::from_millis(1));
    }
    let ended = mounting.wait_with_output().unwrap();

    println!("{} KiB free at least", least >> 10);
    // Room is looked for once for each 4 MiB that are written.
    assert!(least >= (24 - 4) << 20, "{least} bytes were free");
    let message = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(7), "{message}");
    for part in [&*url, "cache-reserve=", &format!("{} are reserved", 24 << 20)] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let left: Vec<_> =
        tree(disk.path()).into_keys().filter(|path| path.extension().is_some_and(|it| it == "tmp")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A Resource List of so many resources: little when it is compressed, much when it is a tree.
fn compressed_list(resources: usize) -> Vec<u8> {
    let name = "n".repeat(230);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    write!(encoder, "{URLSET}").unwrap();
    for number in 0..resources {
        write!(encoder, "<url><loc>http://h/{}/{number}-{name}</loc></url>", number / 100).unwrap();
    }
    write!(encoder, "</urlset>").unwrap();
    encoder.finish().unwrap()
}

/// Promise: never a surprise on the disk. A catalog leaves the reserve too, the first and each one after it.
#[test]
fn a_catalog_without_room_names_it_and_leaves_nothing() {
    let (reserve, disk) = (20 << 20, SmallDisk::of(48 << 20));
    let few = compressed_list(100);
    let list = Arc::new(Mutex::new(compressed_list(120_000)));
    let served = list.clone();
    let server = Server::start(move |_: &Received| Reply::full(&served.lock().unwrap()));
    let url = format!("http://{}/list.xml.gz", server.authority());
    let options = format!("timeout=20s,poll=1h,cache-size=1G,cache-reserve={reserve}");
    let free = || free_space(disk.path()).unwrap();
    let is_reported = |said: &str| {
        let of_disk = said.contains(&disk.path().display().to_string());
        of_disk && ["no space for it", "cache-reserve=", "bytes are free"].iter().all(|part| said.contains(part))
    };
    let mounted = Mounted::prepared_with_cache(&url, &options, disk.path());

    let said = mounted.try_start().unwrap_err();
    assert!(is_reported(&said), "{said}");
    assert!(free() > 44 << 20, "{} bytes are free after a first mount", free());

    *list.lock().unwrap() = few;
    mounted.start();
    let names = || {
        let names =
            |folder: &str| fs::read_dir(mounted.join(folder)).unwrap().map(|name| name.unwrap().file_name()).collect();
        ["%host/h", "%host/h/0"].map(names).map(BTreeSet::from_iter as fn(Vec<_>) -> BTreeSet<_>)
    };
    let (before, free_before) = (names(), free());
    assert_eq!(before.each_ref().map(BTreeSet::len), [1, 100]);
    *list.lock().unwrap() = compressed_list(120_000);
    mounted.refresh();
    eventually("the refresh fails", || is_reported(&mounted.said()));
    assert!(names() == before);
    assert!(free() + (4 << 20) > free_before, "{} of {free_before} bytes are free after a refresh", free());
    mounted.kill();
    mounted.start();
    assert!(names() == before);
}

#[test]
fn a_full_disk_costs_speed_and_never_a_byte() {
    let disk = SmallDisk::of(32 << 20);
    let source = Source::start();
    for number in 0..40 {
        source.put(&format!("small/{number}"), Resource::new(Random::new(number).bytes(500_000)));
    }
    // More than is held in memory: it goes past the cache.
    source.put("big", Resource::new(Random::new(99).bytes(20 << 20)));
    let mounted = Mounted::with_cache(&source.url(), UNBOUNDED, disk.path());
    let all = published(&source);
    for number in 0..20 {
        fs::read(mounted.join(&format!("small/{number}"))).unwrap();
    }

    for left in [0, 100_000, 3_000_000] {
        disk.fill(left);
        for (path, bytes) in &all {
            let got = fs::read(mounted.path().join(path));
            assert!(got.is_ok_and(|got| got == *bytes), "{} with {left} bytes left", path.display());
        }
        disk.free();
    }

    mounted.refresh();
    eventually("everything can be read once there is room", || {
        all.iter().all(|(path, bytes)| fs::read(mounted.path().join(path)).is_ok_and(|got| got == *bytes))
    });
    mounted.remount();
    assert_eq!(tree(&mounted.path()), all);
}

/// A file larger than the cache may be is read past it: from its start, from elsewhere, and by two at once.
#[test]
fn a_file_larger_than_the_cache_is_read_all_the_same() {
    let source = Source::start();
    let bytes = Random::new(7).bytes(40 << 20);
    source.put("big", Resource::new(bytes.clone()));
    let without_ranges = Resource { etag: None, ..Resource::new(Random::new(8).bytes(40 << 20)) };
    source.put("plain", without_ranges.clone());
    let mounted = Mounted::new(&source.url(), "timeout=5s,poll=1h,cache-size=20M,cache-reserve=0");

    for (name, bytes) in [("big", bytes), ("plain", without_ranges.bytes.to_vec())] {
        let path = mounted.join(name);
        let mut piece = vec![0; 100_000];
        File::open(&path).unwrap().read_exact_at(&mut piece, 33 << 20).unwrap();
        assert!(piece == bytes[33 << 20..][..100_000], "{name}: a place in the middle");
        let readers = [0, 1].map(|_| {
            let path = path.clone();
            std::thread::spawn(move || fs::read(path))
        });
        for reader in readers {
            assert!(reader.join().unwrap().unwrap() == bytes, "{name}: from the start");
        }
    }
}

/// Sizes that are learnt while nothing can be written are kept in memory, and the disk is tried again without haste.
#[test]
fn a_full_disk_costs_no_processor() {
    let disk = SmallDisk::of(16 << 20);
    let source = Source::start();
    let lastmod = Some("2024-05-01T10:00:00Z".to_owned());
    for number in 0..1300 {
        let resource = Resource { lastmod: lastmod.clone(), ..Resource::bare("some bytes") };
        source.put(&format!("f/{number}"), resource);
    }
    let mounted = Mounted::with_cache(&source.url(), UNBOUNDED, disk.path());
    disk.fill(0);
    for number in 0..1300 {
        assert_eq!(fs::metadata(mounted.join(&format!("f/{number}"))).unwrap().len(), 10);
    }
    let spent = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", mounted.pid())).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };

    let before = spent();
    thread::sleep(Duration::from_secs(2));

    // Hundredths of a second.
    assert!(spent() - before < 50, "{}", spent() - before);
    let warnings = mounted.said().matches("learnt metadata cannot be written").count();
    assert!((1..8).contains(&warnings), "{warnings}");
    disk.free();
}

#[test]
fn a_mount_starts_on_a_full_disk_and_shows_what_it_knew() {
    let disk = SmallDisk::of(32 << 20);
    let source = Source::start();
    for number in 0..300 {
        source.put(&format!("f/{number}"), Resource::new(format!("file {number}").repeat(50)));
    }
    let mounted = Mounted::with_cache(&source.url(), UNBOUNDED, disk.path());
    mounted.kill();
    disk.fill(0);

    mounted.start();

    assert_eq!(tree(&mounted.path()), published(&source));
    mounted.kill();
    disk.free();
    mounted.start();
    assert_eq!(tree(&mounted.path()), published(&source));
}

#[test]
fn a_first_mount_on_a_full_disk_says_so() {
    first_mounts(1, &[0, 20_000, 50_000, 100_000, 200_000, 400_000]);
    first_mounts(2000, &[300_000, 400_000, 450_000, 500_000, 550_000, 600_000, 700_000, 1_000_000, 1_700_000]);
}

/// Mounts a Source of so many files with so many bytes left: all are shown, or an error says that there is no room.
fn first_mounts(files: usize, left: &[u64]) {
    let disk = SmallDisk::of(4 << 20);
    let source = Source::start();
    (1..files).for_each(|number| source.put(&format!("other/{number}"), Resource::new("b")));
    source.put("a", Resource::new("a"));
    for left in left.iter().copied() {
        disk.fill(left);
        let mounted = Mounted::prepared_with_cache(&source.url(), UNBOUNDED, disk.path());
        match mounted.try_start() {
            Ok(()) => assert_eq!(fs::read(mounted.join("a")).unwrap(), b"a", "with {left} bytes left"),
            Err(said) => assert!(said.contains("space"), "with {left} bytes left: {said}"),
        }
        drop(mounted);
        disk.free();
    }
}

/// Promise: never an accidental emptiness. Whatever of a refresh finds no room (the spool, a sort, the commit), the old tree stays.
#[test]
fn a_refresh_without_room_changes_nothing_of_what_is_shown() {
    let disk = SmallDisk::of(48 << 20);
    let source = Source::start();
    for number in 0..300 {
        source.put(&format!("f/{number}"), Resource::new(format!("file {number}")));
    }
    let mounted = Mounted::with_cache(&source.url(), UNBOUNDED, disk.path());
    let before = tree(&mounted.path());
    for number in 300..8000 {
        source
            .put(&format!("new {}/{number}", number % 90).replace(' ', "%20"), Resource::new(format!("file {number}")));
    }

    for left in [0, 4096, 65_536, 500_000, 1_200_000, 2_000_000] {
        disk.fill(left);
        let failures = || mounted.said().matches("the tree stays as it is").count();
        let earlier = failures();
        mounted.refresh();
        eventually("the refresh fails", || failures() > earlier);

        assert!(tree(&mounted.path()) == before, "another tree with {left} bytes left");
        disk.free();
    }
    mounted.kill();
    mounted.start();

    eventually("the new tree is shown once there is room", || {
        mounted.refresh();
        fs::read_dir(mounted.path()).unwrap().count() == 91
    });
}

#[test]
fn two_mounts_share_a_cache_folder_that_is_too_small_for_either() {
    let cache = tempfile::tempdir().unwrap();
    let (one, other) = (Source::start(), Source::start());
    for number in 0..40 {
        let bytes = Random::new(number).bytes(200_000 + number as usize);
        // Half of it is equal, and one object then.
        one.put(&format!("{number}"), Resource::new(bytes.clone()));
        let bytes = if number % 2 == 0 { bytes } else { Random::new(1000 + number).bytes(200_000) };
        other.put(&format!("{number}"), Resource::new(bytes));
    }
    let options = "poll=1h,cache-size=4M,cache-reserve=0";
    let mounts = [&one, &other].map(|source| Mounted::with_cache(&source.url(), options, cache.path()));
    let all = [published(&one), published(&other)];

    std::thread::scope(|scope| {
        for reader in 0..6 {
            let (mounted, all) = (&mounts[reader % 2], &all[reader % 2]);
            scope.spawn(move || {
                let mut random = Random::new(reader as u64);
                for _ in 0..rounds() * 30 {
                    let path = random.below(40).to_string();
                    let got = fs::read(mounted.join(&path)).unwrap();
                    assert!(got == all[&PathBuf::from(&path)], "{path} is wrong for reader {reader}");
                }
            });
        }
        // The kernel's own cache would hide what is evicted.
        scope.spawn(|| {
            for _ in 0..rounds() * 4 {
                fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        });
    });

    mounts.iter().for_each(Mounted::remount);
    for (mounted, all) in mounts.iter().zip(&all) {
        assert_eq!(&tree(&mounted.path()), all);
    }
}

/// Promise: never stale longer than announced. What the cache holds can be fetched again: it gives way to the tree.
#[test]
fn a_refresh_without_room_evicts_from_the_cache() {
    let (reserve, disk) = (20 << 20, SmallDisk::of(80 << 20));
    let source = Source::start();
    for number in 0..70 {
        source.put(&format!("old/{number}"), Resource::new(Random::new(number).bytes(1 << 20)));
    }
    let options = format!("timeout=20s,poll=1h,cache-size=1G,cache-reserve={reserve}");
    let mounted = Mounted::with_cache(&source.url(), &options, disk.path());
    for number in 0..70 {
        assert_eq!(fs::read(mounted.join(&format!("old/{number}"))).unwrap(), Random::new(number).bytes(1 << 20));
    }
    let free = free_space(disk.path()).unwrap();
    assert!(free < (26 << 20), "the cache has left {free} bytes");
    let name = "n".repeat(230);
    for number in 0..20_000 {
        source.put(&format!("new/{number}-{name}"), Resource::new("new"));
    }

    mounted.refresh();

    eventually("the new tree is shown", || {
        let message = mounted.said();
        assert!(!message.contains("no space for it"), "{message}");
        fs::read_dir(mounted.join("new")).is_ok_and(|names| names.count() == 20_000)
    });
    assert_eq!(fs::read(mounted.join("old/0")).unwrap(), Random::new(0).bytes(1 << 20));
}

fn status(mounted: &Mounted, flag: &[&str]) -> String {
    let output = Command::new(PROGRAM).arg("status").args(flag).arg(mounted.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Promise: never a wrong byte. A disk that refuses to be written costs the cache, and no read.
#[test]
fn a_cache_that_cannot_be_written_is_read_past() {
    let source = Source::start();
    for number in 0..60 {
        source.put(&format!("small/{number}"), Resource::new(format!("file {number}").repeat(99)));
    }
    source.put("large", Resource::new(Random::new(1).bytes(20 << 20)));
    source.put("unsized", Resource::bare("without a size"));
    let mounted = Mounted::new(&source.url(), "timeout=10s,poll=1h");
    let all = published(&source);
    for number in 0..20 {
        fs::read(mounted.join(&format!("small/{number}"))).unwrap();
    }
    assert!(!status(&mounted, &[]).contains("cannot be written"));
    source.take_log();

    let _read_only = ReadOnly::instead_of(&mounted.cache().join("content/tmp"));

    for (path, bytes) in &all {
        let got = fs::read(mounted.path().join(path));
        assert!(got.as_ref().is_ok_and(|got| got == bytes), "{}: {:?}", path.display(), got.err());
    }
    let shown = status(&mounted, &[]);
    let warnings: Vec<_> = shown.lines().filter(|line| line.contains("it has not been writable since")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("Read-only file system"), "{shown}");
    assert!(!shown.contains("Errors"), "{shown}");
    let check = status(&mounted, &["--check"]);
    assert!(check.starts_with("RESYNCFS WARNING") && check.contains("the cache cannot be written"), "{check}");
    let json: serde_json::Value = serde_json::from_str(&status(&mounted, &["--json"])).unwrap();
    assert!(json["cache_failure"]["why"].as_str().is_some_and(|why| why.contains("Read-only")), "{json}");
    assert_eq!(mounted.said().matches("the cache cannot be written").count(), 1, "{}", mounted.said());
    // The first files find out; the others are asked for once.
    let asked = source.log().iter().filter(|logged| logged.path.contains("small/")).count();
    assert!(asked <= 40 + 16, "{asked} requests for 40 files");
    let prefetched = Command::new(PROGRAM).arg("prefetch").arg(mounted.path()).output().unwrap();
    let message = String::from_utf8_lossy(&prefetched.stderr);
    assert!(!prefetched.status.success() && message.contains("the cache folder cannot be written"), "{message}");
}

/// A damaged file that stays where it is must not hide the Source's.
#[test]
fn a_damaged_file_that_cannot_be_removed_is_read_past() {
    let source = Source::start();
    for number in 0..5 {
        source.put(&number.to_string(), Resource::new(Random::new(number).bytes(300_000)));
    }
    let mounted = Mounted::new(&source.url(), "timeout=10s,poll=1h");
    let all = published(&source);
    assert_eq!(tree(&mounted.path()), all);
    mounted.unmount();
    let objects = mounted.cache().join("content/objects");
    for path in tree(&objects).into_keys() {
        File::options().write(true).open(objects.join(path)).unwrap().write_all_at(b"other bytes", 150_000).unwrap();
    }
    let _read_only = ReadOnly::of(&objects);

    mounted.start();

    assert_eq!(tree(&mounted.path()), all);
    assert_eq!(tree(&mounted.path()), all, "a second time");
}
