//! One cache for many machines: a second machine asks the Source for no content, and a faulty cache costs time alone.

mod common;
#[path = "common/s3.rs"]
mod s3;

use common::deadline::read;
use common::eventually;
use common::mounted::{Mounted, PROGRAM};
use common::nginx::{Nginx, free_port};
use common::random::Random;
use common::small_disk::SmallDisk;
use common::source::{Resource, Source, hex};
use md5::{Digest, Md5};
use s3::{ACCESS_KEY, Fault, S3, SECRET_KEY, environment_of};
use sha2::Sha256;
use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Files of most collections here, each in a folder of its own: no file is read ahead of its reader.
const FILES: usize = 12;

/// What a mount of these tests waits for.
const PATIENT: &str = "timeout=20s,poll=1h";

/// A machine, which has its own cache folder, with this shared cache and its environment.
fn machine(source: &Source, cache: &str, environment: &[(&str, String)], options: &str) -> Mounted {
    let options = format!("{PATIENT},shared-cache={cache},{options}");
    let mounted = Mounted::prepared(&source.list_url(), options.trim_end_matches(','));
    environment.iter().fold(mounted, |mounted, (name, value)| mounted.with_environment(name, value))
}

/// The same, mounted, with an S3 store.
fn machine_with(source: &Source, s3: &S3, options: &str) -> Mounted {
    let mounted = machine(source, &s3.url(), &s3.environment(), options);
    mounted.start();
    mounted
}

/// A machine that has done `work`, and to which the store answered in time. Where this computer is busy two seconds pass now and
/// then, and the store is left alone; then another machine does it. Requests from before `work` are not in the logs.
fn second_machine(source: &Source, s3: &S3, work: impl Fn(&Mounted)) -> Mounted {
    let mut said = String::new();
    for _ in 0..5 {
        let mounted = machine_with(source, s3, "");
        source.take_log();
        s3.take_log();
        work(&mounted);
        said = mounted.said();
        if !said.contains("the shared cache is not used for a while") {
            return mounted;
        }
    }
    panic!("the store failed for five machines: {said}");
}

/// Files of some kilobytes with a published SHA-256.
fn collection(seed: u64) -> Source {
    let source = Source::start();
    let mut random = Random::new(seed);
    for number in 0..FILES {
        let length = 1 + random.below(20_000) as usize;
        source.put(&format!("folder{number}/file{number}"), Resource::new(random.bytes(length)));
    }
    source
}

/// Reads every file that is published, compares it, and says how long that took.
fn read_all(mounted: &Mounted, source: &Source) -> Duration {
    let began = Instant::now();
    for (path, bytes) in source.published() {
        let got = read(&mounted.join(&path));
        assert!(got.as_ref().is_ok_and(|got| *got == bytes), "{path}: {:?}", got.map(|got| got.len()));
    }
    began.elapsed()
}

/// The requests for resources since the last `take_log`, as `METHOD PATH`.
fn asked_of(source: &Source) -> Vec<String> {
    let published = source.published();
    let is_resource = |path: &str| published.contains_key(path.trim_start_matches('/'));
    let log = source.take_log().into_iter().filter(|logged| is_resource(&logged.path));
    log.map(|logged| format!("{} {}", logged.method, logged.path)).collect()
}

/// A store that a first machine has filled.
fn filled(source: &Source) -> S3 {
    let s3 = S3::start();
    let first = machine_with(source, &s3, "");
    read_all(&first, source);
    eventually("everything is uploaded", || s3.contents().len() == source.published().len());
    s3.wait_for_quiet();
    first.unmount();
    source.take_log();
    s3.take_log();
    s3
}

/// `length` bytes of `path` from `offset` on.
fn read_at(path: &Path, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    File::open(path).unwrap().read_exact_at(&mut bytes, offset as u64).unwrap();
    bytes
}

fn run(arguments: &[&str], folder: &Path) -> Output {
    Command::new(PROGRAM).args(arguments).arg(folder).output().unwrap()
}

fn status(mounted: &Mounted) -> serde_json::Value {
    mounted.status()["shared_cache"].clone()
}

fn counted(mounted: &Mounted, name: &str) -> u64 {
    let status = status(mounted);
    status[name].as_u64().unwrap_or_else(|| panic!("no number {name}: {status}"))
}

/// Has the mount and the kernel forget the bytes of every file.
fn evict(mounted: &Mounted, source: &Source) {
    let output = run(&["evict"], &mounted.path());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for path in source.published().keys() {
        let file = File::open(mounted.join(path)).unwrap();
        // SAFETY: it takes numbers (posix_fadvise(2)).
        assert_eq!(unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
    }
}

fn key_of(bytes: &[u8]) -> String {
    format!("objects/sha-256/{}", hex(&Sha256::digest(bytes)))
}

/// A file that only its owner can read.
fn secret(folder: &Path, text: &str) -> PathBuf {
    let file = folder.join("secret");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    file
}

#[test]
fn a_second_machine_asks_the_source_for_no_content() {
    let source = collection(1);
    let mut random = Random::new(2);
    for number in 0..FILES {
        let bytes = random.bytes(3000);
        // The digests of most repositories are older than SHA-256, and many publish none.
        let md5 = format!("hash=\"md5:{}\" length=\"3000\"", hex(&Md5::digest(&bytes)));
        source.put(&format!("md5/{number}/file"), Resource { md: md5, ..Resource::new(bytes.clone()) });
        source.put(&format!("dated/{number}/file"), Resource { md: "length=\"3000\"".into(), ..Resource::new(bytes) });
    }
    let s3 = filled(&source);
    let digests: Vec<String> = source.published().values().map(|bytes| key_of(bytes)).collect();
    let keys: Vec<String> = s3.contents().into_keys().collect();

    let _second = second_machine(&source, &s3, |second| {
        read_all(second, &source);
    });

    assert_eq!(asked_of(&source), [""; 0]);
    let by_digest = keys.iter().filter(|key| digests.contains(key)).count();
    let by_version = keys.iter().filter(|key| key.starts_with("versions/")).count();
    assert_eq!((by_digest, by_version), (FILES, 2 * FILES), "{keys:?}");
    s3.wait_for_quiet();
    assert_eq!(s3.count("PUT"), 0, "what is there is not uploaded again: {:?}", s3.log());
}

#[test]
fn a_version_that_nothing_identifies_is_not_shared() {
    let source = Source::start();
    for number in 0..FILES {
        let bare = Resource::bare(format!("text {number}"));
        source.put(&format!("{number}/file"), Resource { etag: None, ..bare });
    }
    let s3 = S3::start();
    let (first, second) = (machine_with(&source, &s3, ""), machine_with(&source, &s3, ""));
    read_all(&first, &source);
    s3.wait_for_quiet();
    source.take_log();

    read_all(&second, &source);

    assert_eq!(asked_of(&source).iter().filter(|asked| asked.starts_with("GET")).count(), FILES);
    assert!(s3.log().is_empty() && s3.objects().is_empty(), "{:?}", s3.log());
}

#[test]
fn a_new_version_is_never_an_older_one_of_the_store() {
    let source = Source::start();
    let old = |day: u64| Resource {
        md: "length=\"9\"".into(),
        lastmod: Some(format!("2024-05-{day:02}T10:00:00Z")),
        ..Resource::new(format!("version {day}"))
    };
    source.put("dated", old(1));
    source.put("hashed", Resource::new("hashed, the first"));
    let s3 = filled(&source);
    let second = machine_with(&source, &s3, "");
    read_all(&second, &source);

    source.put("dated", old(2));
    source.put("hashed", Resource::new("hashed, the other"));
    second.try_refresh().unwrap();
    read_all(&second, &source);
    eventually("both versions of both are stored", || s3.contents().len() == 4);
    let _third = second_machine(&source, &s3, |third| {
        read_all(third, &source);
    });

    assert_eq!(asked_of(&source), [""; 0]);
}

#[test]
fn a_prefetch_on_one_machine_fills_the_cache_for_all() {
    let source = collection(3);
    source.put("large", Resource::new(Random::new(4).bytes(20 * MIB + 5)));
    let s3 = S3::start();
    let first = machine_with(&source, &s3, "");
    let prefetched = run(&["prefetch"], &first.path());
    assert!(prefetched.status.success(), "{}", String::from_utf8_lossy(&prefetched.stderr));
    eventually("everything is uploaded", || s3.contents().len() == FILES + 1);
    s3.wait_for_quiet();
    first.unmount();

    for _ in 0..2 {
        let other = second_machine(&source, &s3, |other| {
            read_all(other, &source);
        });

        assert_eq!(asked_of(&source), [""; 0]);
        assert_eq!(counted(&other, "hits"), FILES as u64 + 1);
    }
}

#[test]
fn what_was_evicted_comes_from_the_shared_cache() {
    let source = collection(5);
    let s3 = filled(&source);

    let _mounted = second_machine(&source, &s3, |mounted| {
        read_all(mounted, &source);
        evict(mounted, &source);
        s3.take_log();
        read_all(mounted, &source);
    });

    assert_eq!(asked_of(&source), [""; 0]);
    assert!(s3.count("GET") >= FILES, "{:?}", s3.log());
}

/// Promise: never a wrong byte, and never a stuck process.
#[test]
fn every_fault_costs_time_and_never_a_byte() {
    let source = collection(6);
    let s3 = filled(&source);
    // Seconds that all files together may take.
    for (fault, most) in [
        (Fault::Cut(0), 10),
        (Fault::Cut(1), 10),
        (Fault::Stalled(1, Duration::from_secs(600)), 40),
        (Fault::Lies, 10),
        (Fault::Half, 10),
        (Fault::Status(400), 10),
        (Fault::Status(403), 10),
        (Fault::Status(404), 10),
        (Fault::Status(429), 15),
        (Fault::Status(500), 15),
        (Fault::Status(503), 15),
        (Fault::Full(507), 10),
        (Fault::Full(503), 10),
        (Fault::Slow(Duration::from_secs(10)), 20),
        (Fault::SlowWrites(Duration::from_secs(600)), 10),
        (Fault::Missing(Duration::from_secs(1)), 20),
        (Fault::Missing(Duration::from_secs(600)), 20),
        (Fault::Silent, 15),
    ] {
        s3.fault(Some(fault.clone()));
        let mounted = machine_with(&source, &s3, "");

        let took = read_all(&mounted, &source);

        assert!(took <= Duration::from_secs(most), "{fault:?}: {took:?}");
        let is_read = matches!(fault, Fault::Full(_) | Fault::SlowWrites(_));
        let asked = asked_of(&source).iter().filter(|asked| asked.starts_with("GET")).count();
        assert!(if is_read { asked < FILES } else { asked == FILES }, "{fault:?}: {asked}");
        let is_miss = matches!(fault, Fault::Missing(pause) if pause < Duration::from_secs(2));
        if !is_read && !is_miss && fault != Fault::Status(404) {
            assert!(counted(&mounted, "failures") > 0, "{fault:?}: {}", status(&mounted));
        }
        mounted.unmount();
        s3.fault(None);
    }
    let left: Vec<_> = s3.contents().into_iter().filter(|(key, bytes)| *key != key_of(bytes)).collect();
    assert!(left.is_empty(), "what is stored is whole: {left:?}");
}

#[test]
fn no_reader_waits_for_a_store_that_takes_no_writes() {
    let source = collection(7);
    for fault in [Fault::Full(507), Fault::Full(503), Fault::Status(403), Fault::SlowWrites(Duration::from_secs(600))] {
        let s3 = S3::start();
        s3.fault(Some(fault.clone()));
        let mounted = machine_with(&source, &s3, "");

        let took = read_all(&mounted, &source);

        assert!(took < Duration::from_secs(10), "{fault:?}: {took:?}");
        // One that gets no answer is not in the log, and all reads have been answered.
        eventually("writes are tried", || s3.count("PUT") > 0 || s3.under_way() > 0);
        assert_eq!(counted(&mounted, "uploads"), 0, "{fault:?}");
        let began = Instant::now();
        mounted.unmount();
        assert!(began.elapsed() < Duration::from_secs(10), "{fault:?}: the end waits for the store");
    }
}

#[test]
fn a_store_that_cannot_be_reached_is_used_once_it_is_there() {
    let source = collection(8);
    let port = free_port();
    let host = format!("127.0.0.1:{port}");
    let environment = environment_of(&host, SECRET_KEY);
    let mounted = machine(&source, "s3://institute/sources", &environment, "");
    mounted.start();
    let took = read_all(&mounted, &source);
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert!(counted(&mounted, "failures") > 0);

    let s3 = S3::on(TcpListener::bind(("127.0.0.1", port)).unwrap(), "127.0.0.1");
    let mut number = 0;
    common::eventually_within(Duration::from_secs(60), "what is read later is uploaded", || {
        number += 1;
        let bytes = format!("text {number}");
        source.put(&format!("later/{number}/file"), Resource::new(bytes.as_str()));
        mounted.try_refresh().unwrap();
        assert_eq!(read(&mounted.join(&format!("later/{number}/file"))).unwrap(), bytes.as_bytes());
        std::thread::sleep(Duration::from_millis(500));
        !s3.contents().is_empty()
    });
}

#[test]
fn a_store_that_was_silent_is_asked_again() {
    let source = collection(9);
    let s3 = filled(&source);
    s3.fault(Some(Fault::Slow(Duration::from_secs(600))));
    let mounted = machine_with(&source, &s3, "");
    read_all(&mounted, &source);
    assert_eq!(counted(&mounted, "hits"), 0);

    s3.fault(None);

    common::eventually_within(Duration::from_secs(60), "the store is read again", || {
        evict(&mounted, &source);
        read_all(&mounted, &source);
        counted(&mounted, "hits") > 0
    });
}

/// Damages an object of the store.
type Damage = fn(&mut Vec<u8>);

/// Damage to what is stored, of small files and of one that is handed out while it is verified.
#[test]
fn damage_in_the_store_costs_time_and_never_a_byte() {
    let source = collection(10);
    let large = Random::new(11).bytes(20 * MIB + 777);
    source.put("large", Resource::new(large.clone()));
    let s3 = filled(&source);
    let whole = s3.objects();
    let damages: [(&str, Damage); 6] = [
        ("one bit in the middle", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }),
        ("the last bit", |bytes| *bytes.last_mut().unwrap() ^= 1),
        ("half of it", |bytes| bytes.truncate(bytes.len() / 2)),
        ("nothing", Vec::clear),
        ("more than it", |bytes| bytes.extend_from_slice(b"more")),
        ("something else of its length", |bytes| bytes.fill(b'x')),
    ];
    for (name, damage) in damages {
        for of_blocks in [false, true] {
            for key in whole.keys().filter(|key| key.ends_with(".crc") == of_blocks) {
                s3.damage(key, damage);
            }
            let mounted = machine_with(&source, &s3, "");

            // The end first: it waits for a verdict, or comes from the Source.
            let end = large.len() - 200_000;
            assert!(read_at(&mounted.join("large"), end, 200_000) == large[end..], "{name}");
            read_all(&mounted, &source);

            mounted.unmount();
            for (key, bytes) in &whole {
                s3.damage(key, |damaged| damaged.clone_from(bytes));
            }
        }
    }
}

#[test]
fn a_large_file_is_read_in_parts_without_the_source() {
    let source = Source::start();
    let bytes = Random::new(12).bytes(64 * MIB + 12_345);
    source.put("large", Resource::new(bytes.clone()));
    let s3 = filled(&source);

    let _second = second_machine(&source, &s3, |second| {
        let large = second.join("large");
        for at in [40 * MIB, bytes.len() - 70_000, 3 * MIB + 17] {
            assert!(read_at(&large, at, 65_536) == bytes[at..at + 65_536], "the part at {at}");
        }
        assert!(counted(second, "bytes_read") < 48 * MIB as u64, "not the whole was read: {}", status(second));
        read_all(second, &source);
        let reads = second.status()["cache"].clone();
        assert!(reads["misses"] == 0 && reads["shared_hits"].as_u64() > Some(3), "{reads}");
    });

    assert_eq!(asked_of(&source), [""; 0]);
    assert!(s3.log().iter().any(|logged| logged.range.is_some()), "{:?}", s3.log());
}

#[test]
fn a_large_file_goes_on_where_the_store_broke_off() {
    let source = Source::start();
    let bytes = Random::new(13).bytes(40 * MIB + 1);
    source.put("large", Resource::new(bytes.clone()));
    let s3 = filled(&source);
    for cut in [11 * MIB, 17 * MIB + 1, 40 * MIB - 70_001] {
        s3.fault(Some(Fault::Cut(cut)));
        let second = second_machine(&source, &s3, |second| {
            assert!(read(&second.join("large")).is_ok_and(|got| got == bytes), "{cut}");
        });

        assert_eq!(asked_of(&source), [""; 0], "{cut}: {}", status(&second));
        assert!(counted(&second, "bytes_read") < 100 * MIB as u64, "{cut}: {}", status(&second));
        second.unmount();
    }
}

#[test]
fn a_large_file_comes_from_the_source_where_the_store_fails() {
    let source = Source::start();
    let bytes = Random::new(13).bytes(40 * MIB + 1);
    source.put("large", Resource::new(bytes.clone()));
    let s3 = filled(&source);
    let silent = Fault::Stalled(5 * MIB, Duration::from_secs(600));
    for fault in [Fault::Cut(1000), Fault::Cut(3 * MIB), silent, Fault::Lies, Fault::Half] {
        s3.fault(Some(fault.clone()));
        let mounted = machine_with(&source, &s3, "");

        let began = Instant::now();
        assert!(read(&mounted.join("large")).is_ok_and(|got| got == bytes), "{fault:?}");

        assert!(began.elapsed() < Duration::from_secs(25), "{fault:?}: {:?}", began.elapsed());
        mounted.unmount();
    }
}

#[test]
fn who_may_only_read_writes_nothing() {
    let source = collection(14);
    let s3 = filled(&source);
    let before = s3.objects();
    source.put("new/file", Resource::new("a new file"));
    let mounted = machine_with(&source, &s3, "shared-cache-write=no");

    read_all(&mounted, &source);
    s3.wait_for_quiet();

    assert_eq!(asked_of(&source), ["GET /new/file"]);
    assert!(s3.log().iter().all(|logged| logged.method == "GET" || logged.method == "HEAD"), "{:?}", s3.log());
    assert_eq!(s3.objects(), before);
    assert_eq!(counted(&mounted, "uploads"), 0);
}

#[test]
fn two_first_machines_store_each_object_once() {
    let source = collection(15);
    let s3 = S3::start();
    let machines = [machine_with(&source, &s3, ""), machine_with(&source, &s3, "")];

    std::thread::scope(|scope| {
        machines.iter().for_each(|mounted| drop(scope.spawn(|| read_all(mounted, &source))));
    });
    eventually("everything is uploaded", || s3.contents().len() == FILES);
    s3.wait_for_quiet();

    let mut written: BTreeMap<String, usize> = BTreeMap::new();
    for logged in s3.log().into_iter().filter(|logged| logged.method == "PUT") {
        assert_eq!(logged.field("if-none-match"), Some("*"), "{logged:?}");
        assert!([200, 409, 412].contains(&logged.status), "{logged:?}");
        *written.entry(logged.path).or_default() += usize::from(logged.status == 200);
    }
    assert!(written.values().all(|times| *times == 1), "{written:?}");
    for mounted in &machines {
        assert_eq!(counted(mounted, "failures"), 0, "{}", status(mounted));
    }
}

#[test]
fn a_file_may_hold_the_credentials() {
    let source = collection(16);
    let s3 = filled(&source);
    let scratch = tempfile::tempdir().unwrap();
    let lines: String = s3.environment().iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let file = secret(scratch.path(), &format!("# of the institute\n\n{lines}"));
    let option = format!("shared-cache-credentials={}", file.display());

    let mounted = machine(&source, &s3.url(), &[], &option);
    mounted.start();
    read_all(&mounted, &source);

    assert_eq!(asked_of(&source), [""; 0]);
    let shown = run(&["status"], &mounted.path()).stdout;
    let all = [fs::read(format!("/proc/{}/cmdline", mounted.pid())).unwrap(), shown, mounted.said().into_bytes()];
    for text in all {
        assert!(!String::from_utf8_lossy(&text).contains(SECRET_KEY));
    }
    mounted.unmount();

    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    let refused = machine(&source, &s3.url(), &[], &option).try_start().unwrap_err();
    assert!(refused.contains("chmod 600"), "{refused}");
}

#[test]
fn secrets_of_the_source_do_not_reach_the_store() {
    let source = collection(26);
    let s3 = filled(&source);
    let scratch = tempfile::tempdir().unwrap();
    let token = secret(scratch.path(), "s3cr3t-of-the-source");
    let mounted = machine_with(&source, &s3, &format!("bearer-file={}", token.display()));
    source.put("new/file", Resource::new("a new file"));
    mounted.try_refresh().unwrap();

    read_all(&mounted, &source);
    eventually("the new file is uploaded", || counted(&mounted, "uploads") == 1);

    assert_eq!(counted(&mounted, "hits"), FILES as u64);
    assert!(s3.log().iter().all(|logged| !logged.head.contains("s3cr3t")), "{:?}", s3.log());
    let asked = source.take_log();
    assert!(asked.iter().any(|logged| logged.path == "/new/file" && logged.head.contains("s3cr3t")), "{asked:?}");
    assert!(asked.iter().all(|logged| !logged.head.contains(ACCESS_KEY)), "{asked:?}");
}

#[test]
fn equal_files_of_two_sources_are_one_object() {
    let (source, other) = (collection(27), collection(27));
    let s3 = filled(&source);

    let _mounted = second_machine(&other, &s3, |mounted| {
        read_all(mounted, &other);
    });

    assert_eq!(asked_of(&other), [""; 0]);
    assert_eq!(s3.contents().len(), FILES);
}

#[test]
fn an_audit_of_the_source_asks_the_source() {
    let source = collection(28);
    let s3 = filled(&source);
    let mounted = machine_with(&source, &s3, "");
    source.take_log();

    let audit = run(&["audit", "--fetch"], &mounted.path());

    assert!(audit.status.success(), "{}", String::from_utf8_lossy(&audit.stderr));
    assert_eq!(asked_of(&source).iter().filter(|asked| asked.starts_with("GET")).count(), FILES);
    assert!(s3.log().is_empty(), "{:?}", s3.log());
}

#[test]
fn a_secret_in_the_address_is_refused_and_not_repeated() {
    let source = collection(17);
    for scheme in ["s3", "gs", "https"] {
        let url = format!("{scheme}://{ACCESS_KEY}:{SECRET_KEY}@institute/sources");

        let refused = machine(&source, &url, &[], "").try_start().unwrap_err();

        assert!(refused.contains("shared-cache-credentials=FILE"), "{scheme}: {refused}");
        assert!(!refused.contains(SECRET_KEY), "{scheme}: {refused}");
    }
}

#[test]
fn what_cannot_be_a_shared_cache_is_refused() {
    let source = collection(18);
    for (url, named) in [("ftp://institute/sources", "ftp"), ("institute", "s3://"), ("file://relative", "file:///")] {
        let refused = machine(&source, url, &[], "").try_start().unwrap_err();

        assert!(refused.contains("shared-cache") && refused.contains(named), "{url}: {refused}");
    }
    let unchecked = machine(&source, "file:///srv/store", &[], "fixity=off").try_start().unwrap_err();
    assert!(unchecked.contains("shared-cache") && unchecked.contains("fixity=off"), "{unchecked}");
}

#[test]
fn wrong_credentials_cost_no_byte_and_are_shown() {
    let source = collection(19);
    let s3 = filled(&source);
    for environment in [environment_of(s3.host(), "another secret"), vec![]] {
        let mut environment = environment;
        if environment.is_empty() {
            environment = environment_of(s3.host(), "");
            environment.retain(|(name, _)| !name.contains("KEY"));
            // Else the crate looks for a machine of Amazon's, whose service would know who this is.
            environment.push(("AWS_SKIP_SIGNATURE", "true".to_owned()));
        }
        let mounted = machine(&source, &s3.url(), &environment, "");
        mounted.start();

        let took = read_all(&mounted, &source);

        assert!(took < Duration::from_secs(10), "{took:?}");
        assert_eq!((counted(&mounted, "hits"), counted(&mounted, "failures") > 0), (0, true), "{}", status(&mounted));
        assert!(status(&mounted)["state"].as_str().is_some_and(|state| state.contains("403")), "{}", status(&mounted));
    }
}

#[test]
fn status_and_metrics_count_hits_misses_and_bytes() {
    let source = collection(20);
    let s3 = filled(&source);
    let bytes: u64 = source.published().values().map(|bytes| bytes.len() as u64).sum();
    source.put("new/file", Resource::new("a new file"));
    let without = Mounted::new(&source.list_url(), PATIENT);
    assert!(status(&without).is_null());
    let mounted = machine_with(&source, &s3, "readahead=0");

    read_all(&mounted, &source);
    eventually("the new file is uploaded", || counted(&mounted, "uploads") == 1);

    let shown = status(&mounted);
    assert_eq!(shown["url"], s3.url(), "{shown}");
    let numbers = ["hits", "misses", "uploads", "failures"].map(|name| counted(&mounted, name));
    assert_eq!(numbers, [FILES as u64, 1, 1, 0], "{shown}");
    assert!(counted(&mounted, "bytes_read") >= bytes && counted(&mounted, "bytes_written") >= 10, "{shown}");
    let screen = String::from_utf8_lossy(&run(&["status"], &mounted.path()).stdout).into_owned();
    assert!(screen.lines().any(|line| line.contains(&s3.url())), "{screen}");
    let reads = screen.lines().find(|line| line.starts_with("Reads")).unwrap_or_default();
    assert!(reads.contains(" from the shared cache (") && reads.contains(" 1 from the Source ("), "{screen}");

    let socket = Command::new("getfattr")
        .args(["--absolute-names", "--only-values", "-n", "user.resyncfs.control"])
        .arg(mounted.path())
        .output()
        .unwrap();
    let socket = String::from_utf8(socket.stdout).unwrap();
    let metrics =
        Command::new("curl").args(["-sS", "--unix-socket", &socket, "http://localhost/metrics"]).output().unwrap();
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    for (name, value) in [("hits_total", FILES), ("misses_total", 1), ("uploads_total", 1), ("failures_total", 0)] {
        let line = format!("resyncfs_shared_cache_{name} {value}");
        assert!(metrics.lines().any(|it| it == line), "{line}: {metrics}");
    }
    let answered = |name, result| {
        let sample = format!("resyncfs_{name}_total{{result=\"{result}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&sample)?.parse::<u64>().ok()).unwrap_or_default()
    };
    assert!(answered("reads", "shared") >= FILES as u64, "{metrics}");
    let [shared, from_source] = ["shared", "miss"].map(|result| answered("read_bytes", result));
    assert_eq!((answered("reads", "miss"), from_source, shared), (1, 10, bytes), "{metrics}");
    for name in ["resyncfs_shared_cache_read_bytes_total", "resyncfs_shared_cache_written_bytes_total"] {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        assert!(value.trim().parse::<u64>().is_ok_and(|value| value > 0), "{name}: {metrics}");
    }
}

/// Whole objects in the store that is a folder; each is written as NAME#N first, and renamed.
fn objects_in(store: &Path) -> usize {
    let below = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|found| found.path());
    let is_object = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !name.contains('#') && !name.ends_with(".crc")
    };
    below(store.join("objects")).flat_map(below).filter(is_object).count()
}

#[test]
fn a_folder_of_the_network_is_a_shared_cache() {
    let source = collection(21);
    source.put("large", Resource::new(Random::new(22).bytes(20 * MIB + 5)));
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().display());
    let stored = || objects_in(folder.path());
    let first = machine(&source, &url, &[], "");
    first.start();
    read_all(&first, &source);
    eventually("everything is in the folder", || stored() == FILES + 1);
    source.take_log();

    let second = machine(&source, &url, &[], "");
    second.start();
    let large = source.published().remove("large").unwrap();
    assert!(read_at(&second.join("large"), 9_000_000, 65_536) == large[9_000_000..9_065_536]);
    read_all(&second, &source);

    assert_eq!(asked_of(&source), [""; 0]);
    // The folder loses all of it below a running mount.
    fs::remove_dir_all(folder.path().join("objects")).unwrap();
    evict(&second, &source);
    read_all(&second, &source);
}

#[test]
fn a_prefetch_uploads_what_was_here_before() {
    let source = collection(23);
    let folder = tempfile::tempdir().unwrap();
    let stored = || objects_in(folder.path());
    let mounted = machine(&source, &format!("file://{}", folder.path().display()), &[], "");
    mounted.start();
    read_all(&mounted, &source);
    eventually("everything is in the folder", || stored() == FILES);
    fs::remove_dir_all(folder.path().join("objects")).unwrap();
    source.take_log();

    for _ in 0..2 {
        let prefetched = run(&["prefetch"], &mounted.path());

        assert!(prefetched.status.success(), "{}", String::from_utf8_lossy(&prefetched.stderr));
        eventually("everything is in the folder again", || stored() == FILES);
        assert_eq!(asked_of(&source), [""; 0]);
        assert_eq!(counted(&mounted, "uploads"), 2 * FILES as u64, "what the store has is not uploaded");
    }
}

#[test]
fn a_full_folder_keeps_no_half_object() {
    let disk = SmallDisk::of(1 << 20);
    let source = collection(23);
    for number in 0..4 {
        source.put(&format!("big/{number}"), Resource::new(Random::new(number).bytes(600_000)));
    }
    let mounted = machine(&source, &format!("file://{}", disk.path().display()), &[], "");
    mounted.start();

    read_all(&mounted, &source);
    eventually("a write has failed", || counted(&mounted, "failures") > 0);
    std::thread::sleep(Duration::from_secs(1));

    for (path, bytes) in common::tree(disk.path()) {
        let name = path.to_str().unwrap();
        assert!(name.ends_with(".crc") || name == key_of(&bytes), "{name} is no whole object");
    }
    source.take_log();
    let second = machine(&source, &format!("file://{}", disk.path().display()), &[], "");
    second.start();
    read_all(&second, &source);
    let asked = asked_of(&source).len();
    assert!((1..FILES + 4).contains(&asked), "what had room is read from there: {asked}");
}

/// The same store by WebDAV, which takes writes and gets none.
#[test]
fn a_web_server_is_a_shared_cache_that_is_only_read() {
    let source = collection(24);
    source.put("large", Resource::new(Random::new(25).bytes(20 * MIB + 5)));
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let first = machine(&source, &format!("file://{}", folder.path().display()), &[], "");
    first.start();
    read_all(&first, &source);
    eventually("everything is in the folder", || counted(&first, "uploads") > FILES as u64);
    first.unmount();
    source.put("new/file", Resource::new("a new file"));
    source.take_log();
    let nginx = Nginx::serving_webdav(folder.path());

    let second = machine(&source, nginx.url().trim_end_matches('/'), &[], "");
    second.start();
    read_all(&second, &source);
    std::thread::sleep(Duration::from_secs(1));

    assert_eq!(asked_of(&source), ["GET /new/file"]);
    let log = nginx.access_log();
    assert!(log.iter().any(|line| line.contains("\"GET /objects/sha-256/")), "{log:?}");
    assert!(log.iter().all(|line| line.contains("\"GET ") || line.contains("\"HEAD ")), "{log:?}");
    assert_eq!(counted(&second, "uploads"), 0);
}
