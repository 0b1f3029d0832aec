//! Large files through the real mount: many at once, and after a kill in the middle of one.

mod common;

use common::eventually;
use common::mounted::Mounted;
use common::random::Random;
use common::source::{Fault, Resource, Source};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// So late each answer comes that a large file is fetched in several ranges at once.
const FAR: Duration = Duration::from_millis(5);

fn rss_anon(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// `bytes` of `base` that no other number has.
fn numbered(base: &[u8], number: usize, bytes: usize) -> Vec<u8> {
    let mut bytes = base[..bytes].to_vec();
    bytes.iter_mut().step_by(100_000).for_each(|octet| *octet = number as u8);
    bytes
}

/// Promises: never a wrong byte, and a bound on every use of memory.
#[test]
fn large_files_read_at_once_take_bounded_memory() {
    // What all of them together may take, however many are read: 72 MiB of ranges under way, 32 MiB of what came last, 16 MiB of idle
    // buffers. And each of them: 2 MiB between network and disk, 4 MiB of reads that the kernel has sent at once.
    const MOST: u64 = ((72 + 32 + 16) + 32 * (2 + 4) + 24) * MIB as u64;
    let base = Random::new(1).bytes(36 * MIB);
    let source = Source::start();
    source.pause(FAR);
    // Whole in one body, and in ranges.
    let bytes = |number: usize| if number % 5 == 4 { 33 * MIB + number } else { 17 * MIB + number };
    for number in 0..32 {
        source.put(&number.to_string(), Resource::new(numbered(&base, number, bytes(number))));
    }
    let mounted = Mounted::new(&source.list_url(), "poll=1h,cache-size=4G,cache-reserve=0");
    let (is_over, most) = (AtomicBool::new(false), AtomicU64::new(0));

    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(rss_anon(mounted.pid()), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let readers = (0..32).map(|number| {
            let (base, path) = (&base, mounted.join(&number.to_string()));
            scope.spawn(move || fs::read(path).is_ok_and(|read| read == numbered(base, number, bytes(number))))
        });
        let readers: Vec<_> = readers.collect();
        let right = readers.into_iter().filter_map(|reader| reader.join().ok()).filter(|is_right| *is_right).count();
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(right, 32);
    });

    let most = most.into_inner();
    println!("{} MiB of {} at most", most >> 20, MOST >> 20);
    assert!(most <= MOST, "{most} bytes of memory");
    let ranges = source.log().into_iter().filter(|asked| asked.range.is_some()).count();
    assert!(ranges > 6, "{ranges} ranges: none of them came in several");
}

/// What is written down of a fetch under way is what a kill leaves: after each 64 MiB.
#[test]
fn a_kill_amid_a_ranged_fetch_costs_the_unsaved_part() {
    const OCTETS: usize = 160 * MIB;
    const READ: usize = 96 * MIB;
    let bytes = Random::new(2).bytes(OCTETS);
    let source = Source::start();
    source.pause(FAR);
    source.put("large", Resource::new(bytes.clone()));
    // One connection brings some 40 MB/s.
    source.fault("large", Fault::Slow(Duration::from_micros(300)), u64::MAX);
    let mounted = Mounted::new(&source.list_url(), "poll=1h,cache-size=4G,cache-reserve=0");
    let mut read = vec![0; READ];
    File::open(mounted.join("large")).unwrap().read_exact(&mut read).unwrap();
    assert!(read == bytes[..READ]);
    let asked: Vec<_> = source.requests_of("large").into_iter().map(|asked| asked.range).collect();
    assert!(asked.iter().flatten().count() > 4, "it does not come in several ranges at once: {asked:?}");

    mounted.kill();
    source.wait_for_quiet();
    source.mend();
    source.take_log();
    mounted.start();
    let mut piece = vec![0; MIB];
    File::open(mounted.join("large")).unwrap().read_exact_at(&mut piece, 50 * MIB as u64).unwrap();

    assert!(piece == bytes[50 * MIB..51 * MIB]);
    assert!(fs::read(mounted.join("large")).unwrap() == bytes);
    let gets: Vec<_> = source.requests_of("large").into_iter().filter(|asked| asked.method == "GET").collect();
    assert!(!gets.is_empty(), "all of it had come before the kill");
    for asked in gets {
        let range = asked.range.expect("it goes on");
        let first: usize = range.trim_start_matches("bytes=").split('-').next().unwrap().parse().unwrap();
        assert!(first >= 60 * MIB, "{range} is asked for again");
    }
}

/// Without ranges a reader of the end waits for all that is before it. When it is killed nothing more is downloaded for it.
#[test]
fn a_reader_that_is_killed_ends_its_download() {
    let source = Source::start();
    source.put("large", Resource { etag: None, ..Resource::new(Random::new(3).bytes(160 * MIB)) });
    source.fault("large", Fault::Slow(Duration::from_millis(1)), u64::MAX);
    let mounted = Mounted::new(&source.list_url(), "poll=1h,timeout=2s,cache-size=256M,cache-reserve=0");
    let path = mounted.join("large");
    let state = || {
        let shown = Command::new("getfattr").args(["--only-values", "-n", "user.resyncfs.state"]).arg(&path).output();
        String::from_utf8(shown.unwrap().stdout).unwrap()
    };
    let mut tail = Command::new("tail").args(["-c", "10"]).arg(&path).spawn().unwrap();
    eventually("it downloads", || state().starts_with("partial"));

    tail.kill().unwrap();
    tail.wait().unwrap();

    eventually("the download stops", || {
        let before = state();
        std::thread::sleep(Duration::from_millis(1500));
        before == state()
    });
    let here = state().strip_prefix("partial ").map(|bytes| bytes.parse::<usize>().unwrap());
    assert!(here.is_none_or(|bytes| bytes < 110 * MIB), "{here:?}");
}
