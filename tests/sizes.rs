//! Sizes that are not published: what they cost, that they are true, and what is done where they cannot be learnt.

mod common;

use common::deadline::{FAST, errno, read};
use common::eventually;
use common::mounted::{Mounted, PROGRAM};
use common::source::{Fault, Resource, Source, URLSET};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const ALWAYS: u64 = u64::MAX;

/// Published with the digest of these bytes and this `length`, if any.
fn hashed(bytes: &[u8], length: Option<u64>) -> Resource {
    let resource = Resource::new(bytes);
    let hash = resource.md.split(" length").next().unwrap().to_owned();
    Resource { md: length.map_or(hash.clone(), |length| format!("{hash} length=\"{length}\"")), ..resource }
}

/// Published by its name and time alone.
fn dated(bytes: impl Into<Vec<u8>>, etag: Option<&str>) -> Resource {
    Resource { lastmod: Some("2024-05-01T10:00:00Z".into()), etag: etag.map(String::from), ..Resource::bare(bytes) }
}

fn unsized_file(text: String) -> Resource {
    dated(text, None)
}

fn xattr(path: &Path, name: &std::ffi::CStr) -> std::io::Result<String> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut value = vec![0; 4096];
    // SAFETY: both names end with NUL, and the buffer has the length that is passed.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let length = usize::try_from(length).map_err(|_| std::io::Error::last_os_error())?;
    Ok(String::from_utf8_lossy(&value[..length]).into_owned())
}

/// Never an empty file that is not empty: not for a moment, and not after it.
#[test]
fn an_empty_answer_beside_a_digest_is_no_empty_file() {
    for fixity in ["stream", "strict"] {
        let source = Source::start();
        source.put("f", hashed(b"the real contents", None));
        source.fault("f", Fault::Body(Vec::new()), ALWAYS);
        let mounted = Mounted::new(&source.url(), &format!("{FAST},fixity={fixity}"));

        assert_eq!(errno(read(&mounted.join("f"))), Some(libc::EIO));
        assert!(fs::metadata(mounted.join("f")).is_err());

        source.mend();
        mounted.refresh();
        eventually("it is read", || read(&mounted.join("f")).is_ok_and(|bytes| bytes == b"the real contents"));
    }
}

#[test]
fn a_published_length_of_0_is_no_size_beside_another_digest() {
    let source = Source::start();
    source.put("other", hashed(b"the real contents", Some(0)));
    source.put("empty", hashed(b"", Some(0)));
    let mounted = Mounted::new(&source.url(), FAST);
    source.take_log();

    assert_eq!(read(&mounted.join("other")).unwrap(), b"the real contents");
    assert_eq!(fs::metadata(mounted.join("empty")).unwrap().len(), 0);
    assert!(source.requests_of("empty").is_empty(), "its digest says so");
}

/// Publishers write 0 for a length that they do not know. The file is empty where its body is.
#[test]
fn a_published_length_of_0_alone_is_no_size() {
    let source = Source::start();
    let zero = |bytes: &str| Resource { md: "length=\"0\"".into(), ..Resource::new(bytes) };
    source.put("bytes", zero("the real contents"));
    source.put("empty", zero(""));
    let mounted = Mounted::new(&source.url(), FAST);
    let copied = tempfile::tempdir().unwrap();

    let ended = Command::new("cp").arg(mounted.join("bytes")).arg(copied.path()).status().unwrap();

    assert!(ended.success());
    assert_eq!(fs::read(copied.path().join("bytes")).unwrap(), b"the real contents");
    assert_eq!(fs::metadata(mounted.join("bytes")).unwrap().len(), 17);
    assert_eq!(read(&mounted.join("empty")).unwrap(), b"");
    assert!(source.take_log().iter().any(|logged| logged.path == "/empty" && logged.method == "GET"), "its body came");
}

/// Size 0 by a server's word alone is not kept: each mount asks again.
#[test]
fn an_empty_file_without_digest_is_requested_by_the_next_mount() {
    let source = Source::start();
    source.put("f", dated("", Some("\"e\"")));
    let mounted = Mounted::new(&source.url(), FAST);
    assert_eq!(read(&mounted.join("f")).unwrap(), b"");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(fs::metadata(mounted.join("f")).unwrap().len(), 0);

    mounted.unmount();
    source.put("f", dated("not empty", Some("\"f\"")));
    mounted.start();

    assert_eq!(read(&mounted.join("f")).unwrap(), b"not empty");
}

/// `revalidate=` counts for it, although its list tells of changes.
#[test]
fn an_empty_file_without_digest_is_revalidated() {
    let source = Source::start();
    source.put("f", dated("not empty", None));
    source.fault("f", Fault::Body(Vec::new()), 3);
    let mounted = Mounted::new(&source.url(), &format!("{FAST},revalidate=1s"));
    assert_eq!(read(&mounted.join("f")).unwrap(), b"");

    eventually("the bytes are shown", || read(&mounted.join("f")).is_ok_and(|bytes| bytes == b"not empty"));
}

#[test]
fn ls_l_takes_sizes_from_heads_whatever_their_validator() {
    let source = Source::start();
    for (name, etag) in [("strong", Some("\"s\"")), ("weak", Some("W/\"w\"")), ("none", None)] {
        source.put(name, dated(vec![7; 100_000], etag));
    }
    let mounted = Mounted::new(&source.url(), FAST);
    source.take_log();

    for name in ["strong", "weak", "none"] {
        assert_eq!(fs::metadata(mounted.join(name)).unwrap().len(), 100_000);
    }

    let asked: Vec<_> = source.take_log().into_iter().map(|logged| logged.method).collect();
    assert_eq!(asked, ["HEAD"; 3]);
    assert_eq!(read(&mounted.join("weak")).unwrap(), vec![7; 100_000]);
}

/// Many shells make `ls --color` of `ls`.
#[test]
fn ls_in_colour_asks_for_no_size() {
    let source = Source::start();
    for number in 0..20 {
        source.put(&format!("{number}"), dated(vec![7; 1000], None));
    }
    let mounted = Mounted::new(&source.list_url(), FAST);
    source.take_log();
    let ls = |options: &str| {
        let output = Command::new("ls").args([options, "--color=always"]).arg(mounted.path()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };

    assert_eq!((ls("-F").lines().count(), ls("-i").lines().count()), (20, 20));
    assert!(source.take_log().is_empty());
    assert_eq!(ls("-l").lines().filter(|line| line.contains(" 1000 ")).count(), 20);
}

#[test]
fn the_beginning_of_a_large_file_is_read_as_it_comes() {
    let source = Source::start();
    source.put("film", dated(vec![7; 24 << 20], None));
    source.fault("film", Fault::Held(4 << 20), ALWAYS);
    let mounted = Mounted::new(&source.url(), FAST);
    let mut beginning = [0; 100];

    fs::File::open(mounted.join("film")).unwrap().read_exact(&mut beginning).unwrap();

    assert_eq!(beginning, [7; 100]);
    source.mend();
}

/// After one contradiction the whole body is the version.
#[test]
fn a_head_that_the_body_contradicts_costs_one_read() {
    for (etag, is_hashed) in [(Some("\"one\""), false), (Some("W/\"w\""), false), (None, false), (None, true)] {
        for announced in [1, 69_999, 70_001, 170_000] {
            let source = Source::start();
            let body: Vec<u8> = (0..70_000_u32).map(|number| (number % 251) as u8).collect();
            let resource = if is_hashed { hashed(&body, None) } else { dated(body.clone(), etag) };
            source.put("f", resource);
            source.fault("f", Fault::HeadLength(announced), ALWAYS);
            let mounted = Mounted::new(&source.url(), FAST);
            let before = fs::metadata(mounted.join("f")).unwrap();
            assert_eq!(before.len(), announced as u64);

            assert!(read(&mounted.join("f")).is_err(), "{etag:?} {announced}");

            let path = mounted.join("f");
            eventually("the name has another inode", || fs::metadata(&path).is_ok_and(|now| now.ino() != before.ino()));
            assert_eq!(fs::metadata(&path).unwrap().len(), 70_000);
            assert!(read(&path).unwrap() == body, "{etag:?} {announced}");
        }
    }
}

#[test]
fn a_coding_that_was_not_asked_for_is_undone() {
    let source = Source::start();
    source.put("f.txt", dated("plain text\n".repeat(1000), None));
    source.fault("f.txt", Fault::Gzip, ALWAYS);
    let mounted = Mounted::new(&source.url(), FAST);

    assert_eq!(fs::metadata(mounted.join("f.txt")).unwrap().len(), 11_000);
    assert_eq!(read(&mounted.join("f.txt")).unwrap(), "plain text\n".repeat(1000).as_bytes());
}

/// They are asked for together once the first has been waited for, and what failed is remembered.
#[test]
fn files_of_which_no_size_comes_cost_one_wait_together() {
    let source = Source::start();
    let names: Vec<_> = (0..8).map(|number| format!("f{number}")).collect();
    for name in &names {
        source.put(name, dated("x", None));
        source.fault(name, Fault::StallHead(Duration::from_secs(20)), ALWAYS);
    }
    let mounted = Mounted::new(&source.url(), FAST);
    let wait = |name: &str| {
        let began = Instant::now();
        assert!(fs::metadata(mounted.join(name)).is_err());
        began.elapsed()
    };

    let first = wait("f0");
    let others: Duration = names[1..].iter().map(|name| wait(name)).sum();

    assert!(others < 2 * first, "{others:?} after {first:?}");
}

/// A folder of 60 files, of which this part is dead, and the paths of all in the order of `ls`.
fn with_dead_links(percent: usize, make: fn(String) -> Resource, fault: &Fault) -> (Source, Vec<String>) {
    let source = Source::start();
    let paths: Vec<String> = (0..60).map(|number| format!("f/{number:03}")).collect();
    for (number, path) in paths.iter().enumerate() {
        source.put(path, make(format!("the bytes of {path}")));
        if number * percent / 100 != (number + 1) * percent / 100 {
            source.fault(path, fault.clone(), ALWAYS);
        }
    }
    (source, paths)
}

/// Requests of files since the last call.
fn requests(source: &Source) -> usize {
    source.take_log().iter().filter(|logged| logged.path.starts_with("/f/")).count()
}

/// How many of `paths` have no size, as `ls -l` asks for them.
fn without_size(mounted: &Mounted, paths: &[String]) -> usize {
    paths.iter().filter(|path| fs::metadata(mounted.join(path)).is_err()).count()
}

/// Each is asked for once by each method that could have an answer, and then not while that is remembered.
#[test]
fn ls_l_asks_a_dead_link_once_and_then_not_at_all() {
    for (status, percent, each) in [(404, 10, 1), (410, 50, 1), (404, 100, 1), (403, 50, 2), (403, 100, 2)] {
        let (source, paths) = with_dead_links(percent, unsized_file, &Fault::Status(status, String::new()));
        let mounted = Mounted::new(&source.list_url(), FAST);
        source.pause(Duration::from_millis(10));
        let dead = paths.len() * percent / 100;
        requests(&source);

        assert_eq!(without_size(&mounted, &paths), dead);
        source.wait_for_quiet();
        let asked = requests(&source);
        assert_eq!(without_size(&mounted, &paths), dead);
        source.wait_for_quiet();

        // A question ahead may cross that of a reader.
        assert!(asked <= paths.len() + (each - 1) * dead + 2, "{asked} requests, {status} for {percent} %");
        assert_eq!(requests(&source), 0, "{status} for {percent} %");
    }
}

#[test]
fn reading_ahead_asks_a_dead_link_once() {
    for percent in [50, 100] {
        let (source, paths) = with_dead_links(percent, Resource::new, &Fault::Status(404, String::new()));
        let mounted = Mounted::new(&source.list_url(), FAST);
        source.pause(Duration::from_millis(10));
        let unread = || paths.iter().filter(|path| fs::read(mounted.join(path)).is_err()).count();
        let dead = paths.len() * percent / 100;
        requests(&source);

        assert_eq!(unread(), dead);
        source.wait_for_quiet();
        let asked = requests(&source);
        assert_eq!(unread(), dead);
        source.wait_for_quiet();

        assert!(asked <= paths.len() + dead, "{asked} requests: one ahead of a reader, and its own");
        assert_eq!(requests(&source), 0);
    }
}

/// The time of `ls -l` of files that do not answer.
fn time_of_silence(percent: usize) -> Duration {
    let silence = Fault::StallHead(Duration::from_secs(60));
    let (source, paths) = with_dead_links(percent, unsized_file, &silence);
    let mounted = Mounted::new(&source.list_url(), "timeout=4s,connect-timeout=1s,poll=1h");
    let began = Instant::now();

    assert_eq!(without_size(&mounted, &paths), paths.len() * percent / 100);
    let first = began.elapsed();
    requests(&source);
    assert_eq!(without_size(&mounted, &paths), paths.len() * percent / 100);

    assert_eq!(requests(&source), 0, "{percent} %");
    first
}

/// Promise: a folder of files of which no size comes takes one `timeout=`.
#[test]
fn a_folder_of_silent_files_takes_one_timeout() {
    let times = [10, 50, 100].map(|percent| std::thread::spawn(move || time_of_silence(percent)));
    let times = times.map(|time| time.join().unwrap());

    // Two would be 8 s.
    assert!(times.iter().all(|time| *time < Duration::from_secs(7)), "{times:?}");
}

/// What needs no bytes waits for none.
#[test]
fn attributes_of_a_file_that_cannot_be_sized_are_answered() {
    let source = Source::start();
    source.put("gone", dated("x", None));
    source.put("mute", hashed(b"x", None));
    source.fault("gone", Fault::Status(404, String::new()), ALWAYS);
    source.fault("mute", Fault::StallHead(Duration::from_secs(20)), ALWAYS);
    let mounted = Mounted::new(&source.url(), FAST);

    for name in ["gone", "mute"] {
        let path = mounted.join(name);
        let began = Instant::now();
        assert_eq!(xattr(&path, c"user.xdg.origin.url").unwrap(), format!("{}{name}", source.url()));
        assert!(xattr(&path, c"user.resyncfs.entry").unwrap().contains("2024-05-01"));
        assert!(began.elapsed() < Duration::from_millis(1900), "{:?}", began.elapsed());
        assert_eq!(errno(read(&path)), Some(libc::EIO), "and no reader takes it for empty");
        assert!(fs::metadata(&path).is_err());
    }
    let digest = xattr(&mounted.join("mute"), c"user.resyncfs.hash.sha-256").unwrap();
    assert_eq!(digest.len(), 64);
}

/// `user.resyncfs.entry` holds everything published.
#[test]
fn the_entry_tells_of_the_change_and_its_time() {
    let source = Source::start();
    source.put("f", Resource::new("x"));
    let (base, listed) = (source.url(), |name: &str| format!("<rs:md capability=\"{name}\"/></url>"));
    source.document(
        "capabilitylist.xml",
        format!(
            "{URLSET}<rs:md capability=\"capabilitylist\"/><url><loc>{base}resourcelist.xml</loc>{}\
             <url><loc>{base}changelist.xml</loc>{}</urlset>",
            listed("resourcelist"),
            listed("changelist")
        ),
    );
    source.document(
        "changelist.xml",
        format!(
            "{URLSET}<rs:md capability=\"changelist\" from=\"2024-05-01T00:00:00Z\"/><url><loc>{base}f</loc>\
             <lastmod>2024-06-02T10:00:00Z</lastmod>\
             <rs:md change=\"updated\" datetime=\"2024-06-02T11:00:00Z\" length=\"1\"/></url></urlset>"
        ),
    );
    let mounted = Mounted::new(&source.url(), FAST);

    eventually("the change is announced", || {
        let entry = xattr(&mounted.join("f"), c"user.resyncfs.entry").unwrap();
        let tells = |what: &str| entry.contains(what);
        tells("\"change\":\"updated\"") && tells("\"datetime\":\"2024-06-02T11:00:00Z\"")
    });
}

#[test]
fn explore_says_what_ls_l_would_download() {
    let source = Source::start();
    for (name, etag) in [("a", None), ("b", Some("\"b\""))] {
        source.put(name, dated("some bytes", etag));
    }
    source.fault("a", Fault::NoLength, ALWAYS);

    let explored = Command::new(PROGRAM).args(["explore", &source.url()]).output().unwrap();

    let text = String::from_utf8_lossy(&explored.stdout).into_owned();
    assert!(text.contains("without a known size (1 of 2 sample files)"), "{text}");
    assert!(text.contains("1 of 2 have a strong ETag"), "{text}");
}
