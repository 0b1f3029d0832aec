//! A Source that sends wrong bytes or breaks off: right bytes or a clear error, and nothing lost. A Source without answers: `silence`.

mod common;

use common::deadline::{FAST, PATIENCE, errno, read};
use common::mounted::Mounted;
use common::random::Random;
use common::source::{Fault, Resource, Source, URLSET};
use common::{eventually, tree};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Faults that a second try repairs: the bytes are right.
#[test]
fn a_fault_that_happens_once_is_repaired() {
    let source = Source::start();
    let bytes = Random::new(1).bytes(100_000);
    let mut faults = vec![
        Fault::Body(b"something else".to_vec()),
        Fault::Body(Random::new(2).bytes(100_000)),
        Fault::Body(Vec::new()),
        Fault::Length(99_999),
        Fault::Length(100_001),
        Fault::Status(500, String::new()),
        Fault::Status(503, "Retry-After: 1\r\n".into()),
        Fault::Status(429, "Retry-After: 1\r\n".into()),
        Fault::Status(429, String::new()),
        Fault::Gzip,
        Fault::MediaType("text/html".into()),
        Fault::NoLength,
        Fault::StallBody(50_000, Duration::from_secs(5)),
    ];
    faults.extend((0..10).map(|tenth| Fault::Cut(tenth * 10_000)));
    for (number, fault) in faults.iter().enumerate() {
        let path = format!("file{number}");
        source.put(&path, Resource::new(bytes.clone()));
        source.fault(&path, fault.clone(), 1);
    }
    let mounted = Mounted::new(&source.url(), FAST);

    for (number, fault) in faults.iter().enumerate() {
        let got = read(&mounted.join(&format!("file{number}")));

        assert!(got.as_ref().is_ok_and(|got| *got == bytes), "{fault:?}: {:?}", got.map(|got| got.len()));
    }
}

/// Promise: never a wrong byte. Faults that stay are errors.
#[test]
fn what_stays_wrong_is_an_error_and_never_a_wrong_byte() {
    let source = Source::start();
    let bytes = Random::new(1).bytes(100_000);
    let faults = [
        Fault::Body(b"something else".to_vec()),
        Fault::Body(Random::new(2).bytes(100_000)),
        Fault::Body(Vec::new()),
        Fault::Length(99_999),
        Fault::Length(100_001),
        Fault::Status(404, String::new()),
        Fault::Status(410, String::new()),
        Fault::Status(500, String::new()),
        Fault::Status(503, String::new()),
        Fault::StallHead(Duration::from_secs(60)),
        Fault::StallBody(50_000, Duration::from_secs(60)),
    ];
    for (number, fault) in faults.iter().enumerate() {
        let path = format!("file{number}");
        source.put(&path, Resource::new(bytes.clone()));
        source.fault(&path, fault.clone(), u64::MAX);
    }
    let mounted = Mounted::new(&source.url(), FAST);

    for (number, fault) in faults.iter().enumerate() {
        let got = read(&mounted.join(&format!("file{number}")));

        assert_eq!(errno(got), Some(libc::EIO), "{fault:?}");
    }

    source.mend();
    mounted.refresh();
    eventually("the bytes come once the Source is mended", || {
        (0..faults.len()).all(|number| fs::read(mounted.join(&format!("file{number}"))).is_ok_and(|got| got == bytes))
    });
}

#[test]
fn who_may_not_read_is_told_so() {
    let source = Source::start();
    for (path, status) in [("unauthorized", 401), ("forbidden", 403)] {
        source.put(path, Resource::new("secret"));
        source.fault(path, Fault::Status(status, String::new()), u64::MAX);
    }
    let mounted = Mounted::new(&source.url(), FAST);

    assert_eq!(errno(read(&mounted.join("unauthorized"))), Some(libc::EACCES));
    assert_eq!(errno(read(&mounted.join("forbidden"))), Some(libc::EACCES));
}

#[test]
fn sizes_come_from_whatever_the_server_can_do() {
    let source = Source::start();
    source.put("plain", Resource::bare("twelve bytes"));
    source.put("no-ranges", Resource::bare("twelve bytes"));
    source.fault("no-ranges", Fault::NoRanges, u64::MAX);
    source.put("no-head", Resource::bare("twelve bytes"));
    source.fault("no-head", Fault::Status(405, String::new()), 1);
    source.put("no-length", Resource { etag: None, ..Resource::bare("twelve bytes") });
    source.fault("no-length", Fault::NoLength, u64::MAX);
    source.put("gone", Resource::bare("twelve bytes"));
    source.fault("gone", Fault::Status(404, String::new()), u64::MAX);
    let mounted = Mounted::new(&source.url(), FAST);

    for path in ["plain", "no-ranges", "no-head", "no-length"] {
        assert_eq!(fs::metadata(mounted.join(path)).map(|known| known.len()).ok(), Some(12), "{path}");
        assert_eq!(read(&mounted.join(path)).ok().as_deref(), Some(&b"twelve bytes"[..]), "{path}");
    }
    assert_eq!(fs::metadata(mounted.join("gone")).err().and_then(|cause| cause.raw_os_error()), Some(libc::EIO));
    let listed: Vec<_> = fs::read_dir(mounted.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(listed.iter().any(|name| name == "gone"), "a listed name never answers that it does not exist");
}

/// Above the bound of what is verified whole: cut, without ranges, with an ETag that changes, and in random order.
#[test]
fn a_big_file_survives_what_can_be_survived() {
    let source = Source::start();
    let bytes = Random::new(3).bytes((20 << 20) + 777);
    source.put("cut", Resource::new(bytes.clone()));
    source.fault("cut", Fault::Cut(5 << 20), 1);
    source.fault("cut", Fault::Cut(3 << 20), 1);
    source.put("no-ranges", Resource::new(bytes.clone()));
    source.fault("no-ranges", Fault::Cut(5 << 20), 1);
    source.fault("no-ranges", Fault::NoRanges, u64::MAX);
    source.put("wrong-range", Resource::new(bytes.clone()));
    source.fault("wrong-range", Fault::Cut(5 << 20), 1);
    source.fault("wrong-range", Fault::WrongRange, 1);
    source.put("other-etag", Resource::new(bytes.clone()));
    source.fault("other-etag", Fault::Cut(5 << 20), 1);
    source.fault("other-etag", Fault::Etag("\"other\"".into()), 1);
    source.put("jumped", Resource::new(bytes.clone()));
    // Nothing hangs here, and a busy machine needs its time.
    let mounted = Mounted::new(&source.url(), "timeout=20s,poll=1h");

    for path in ["cut", "no-ranges", "wrong-range", "other-etag"] {
        let got = read(&mounted.join(path));

        assert!(got.as_ref().is_ok_and(|got| *got == bytes), "{path}: {:?}", got.map(|got| got.len()));
    }
    let mut file = fs::File::open(mounted.join("jumped")).unwrap();
    let mut random = Random::new(4);
    for _ in 0..50 {
        let offset = random.below(bytes.len() as u64 - 5000);
        let mut piece = vec![0; 5000];
        file.seek(SeekFrom::Start(offset)).unwrap();
        file.read_exact(&mut piece).unwrap();
        assert_eq!(piece, bytes[offset as usize..offset as usize + 5000], "at {offset}");
    }
}

/// Promise: verified before a sequential read can reach the end; then EIO to every reader, also for what was handed out.
#[test]
fn a_wrong_last_block_is_an_error_to_every_reader() {
    const SHOWN: usize = 200 << 20;
    let source = Source::start();
    let mut resource = Resource::new(Random::new(5).bytes(SHOWN + (1 << 20) + 5));
    let mut wrong = resource.bytes.to_vec();
    *wrong.last_mut().unwrap() ^= 1;
    resource.bytes = wrong.into();
    source.put("big", resource);
    source.fault("big", Fault::Held(SHOWN + (1 << 20)), u64::MAX);
    let mounted = Mounted::new(&source.url(), "timeout=20s,poll=1h");
    let path = mounted.join("big");
    let early = fs::File::open(&path).unwrap();

    let readers: Vec<_> = (0..3)
        .map(|_| {
            let mut file = fs::File::open(&path).unwrap();
            let (sender, shown) = std::sync::mpsc::channel();
            let reader = std::thread::spawn(move || {
                let (mut piece, mut got) = (vec![0; 1 << 20], 0);
                loop {
                    match file.read(&mut piece) {
                        Ok(0) => panic!("the end was reached"),
                        Ok(bytes) => got += bytes,
                        Err(cause) => return cause.raw_os_error(),
                    }
                    if got == SHOWN {
                        sender.send(()).unwrap();
                    }
                }
            });
            (shown, reader)
        })
        .collect();
    readers.iter().for_each(|(shown, _)| shown.recv_timeout(PATIENCE).expect("so much is shown before the verdict"));
    source.mend();

    for (_, reader) in readers {
        assert_eq!(reader.join().unwrap(), Some(libc::EIO));
    }
    eventually("the kernel's pages are dropped", || early.read_at(&mut [0; 10], 0).is_err());
    assert_eq!(errno(read(&path)), Some(libc::EIO));
    let head = std::process::Command::new("head").args(["-c", "10"]).arg(&path).output().unwrap();
    assert!(!head.status.success() && head.stdout.is_empty(), "{head:?}");
}

/// A cut body is resumed where it was, but only for the same version.
#[test]
fn a_cut_body_is_resumed_where_it_was_cut() {
    let source = Source::start();
    let bytes = Random::new(9).bytes(30 << 20);
    source.put("big", Resource::new(bytes.clone()));
    source.fault("big", Fault::Cut(20 << 20), 1);
    let mounted = Mounted::new(&source.url(), FAST);

    assert!(read(&mounted.join("big")).unwrap() == bytes);

    // Readers that the kernel sends ahead ask for ranges with both ends.
    let requests = source.requests_of("big");
    let from = |range: &str| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<u64>().ok();
    let resumed = requests.iter().find(|request| request.range.as_deref().and_then(from).is_some());
    let resumed = resumed.unwrap_or_else(|| panic!("nothing was resumed: {requests:?}"));
    assert_eq!((resumed.status, resumed.if_range.is_some()), (206, true), "{requests:?}");
    assert!(resumed.range.as_deref().and_then(from).is_some_and(|from| from > 0), "{requests:?}");
    assert_eq!(requests.iter().filter(|request| request.status == 200).count(), 1, "{requests:?}");
}

/// Mirrors are asked by their priority, and the resource's own place last.
#[test]
fn a_mirror_that_fails_is_followed_by_the_next() {
    let (source, mirror) = (Source::start(), Source::start());
    // Equal bytes would be one object, fetched once.
    let bytes = |number: usize| Random::new(20 + number as u64).bytes(300_000);
    let faults = [
        Fault::Status(500, String::new()),
        Fault::Status(404, String::new()),
        Fault::Body(Random::new(11).bytes(300_000)),
        Fault::StallHead(Duration::from_secs(60)),
        Fault::Cut(1000),
    ];
    for (number, fault) in faults.iter().enumerate() {
        let link = |place: &str, priority: u64| {
            format!("<rs:ln rel=\"duplicate\" pri=\"{priority}\" href=\"{}{place}/{number}\"/>", mirror.url())
        };
        let links = format!("{}{}", link("second", 2), link("first", 1));
        source.put(&number.to_string(), Resource { links, ..Resource::new(bytes(number)) });
        mirror.put(&format!("first/{number}"), Resource::new(bytes(number)));
        mirror.put(&format!("second/{number}"), Resource::new(bytes(number)));
        mirror.fault(&format!("first/{number}"), fault.clone(), u64::MAX);
    }
    // Its mirrors are all gone.
    source.put(
        "own",
        Resource {
            links: format!("<rs:ln rel=\"duplicate\" pri=\"1\" href=\"{}gone\"/>", mirror.url()),
            ..Resource::new(bytes(9))
        },
    );
    let address = mirror.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mounted = Mounted::new(&source.url(), &format!("{FAST},allow-host={address}"));

    for (number, fault) in faults.iter().enumerate() {
        let got = read(&mounted.join(&number.to_string()));

        assert!(got.as_ref().is_ok_and(|got| *got == bytes(number)), "{fault:?}: {:?}", got.map(|got| got.len()));
        assert!(!mirror.requests_of(&format!("first/{number}")).is_empty(), "{fault:?}: the first was not asked");
        assert!(source.requests_of(&number.to_string()).is_empty(), "{fault:?}: the Source was asked");
    }
    assert!(read(&mounted.join("own")).unwrap() == bytes(9));
}

/// Promise: never a wrong byte.
#[test]
fn bytes_read_without_hashes_never_count_as_verified() {
    let source = Source::start();
    let wrong = Resource { bytes: "tampered".into(), etag: None, ..Resource::new("original") };
    source.put("a", wrong);
    let trusting = Mounted::new(&source.url(), "fixity=off");
    assert_eq!(fs::read(trusting.join("a")).unwrap(), b"tampered");
    trusting.unmount();

    let careful = Mounted::with_cache(&source.url(), FAST, trusting.cache());

    assert_eq!(errno(read(&careful.join("a"))), Some(libc::EIO));
}

/// Promise: never an accidental emptiness.
#[test]
fn a_broken_list_changes_nothing_of_what_is_shown() {
    let source = Source::start();
    for number in 0..30 {
        source.put(&format!("f/{number}"), Resource::new(format!("file {number}")));
    }
    let mounted = Mounted::new(&source.url(), FAST);
    let before = tree(&mounted.path());
    let whole = format!(
        "{URLSET}<rs:md capability=\"resourcelist\" at=\"2024-06-01T00:00:00Z\"/><url><loc>{}new</loc></url></urlset>",
        source.url()
    );

    let refused = || mounted.said().matches("the tree stays as it is").count();

    for broken in
        [&whole[..whole.len() - 4], &whole[..whole.len() / 2], "", "<html><body>login</body></html>", "not XML at all"]
    {
        source.document("resourcelist.xml", broken);
        let refused_before = refused();
        mounted.refresh();
        eventually("the list is refused", || refused() > refused_before);

        assert_eq!(tree(&mounted.path()), before, "after {broken:?}");
    }
    for status in [404, 410] {
        source.fault("resourcelist.xml", Fault::Status(status, String::new()), u64::MAX);
        let refused_before = refused();
        mounted.refresh();
        eventually("the refresh has failed", || refused() > refused_before);

        assert_eq!(tree(&mounted.path()), before, "after {status}");
        source.mend();
    }
    source.fault("resourcelist.xml", Fault::Status(500, String::new()), u64::MAX);
    source.take_log();
    mounted.refresh();
    eventually("the list is asked for again", || source.requests_of("resourcelist.xml").len() > 1);
    assert_eq!(tree(&mounted.path()), before, "while it cannot be had");
}

#[test]
fn an_index_with_one_list_missing_is_not_half_a_tree() {
    let source = Source::start();
    let base = source.url();
    source.put("a", Resource::new("a"));
    source.put("b", Resource::new("b"));
    let list = |path: &str| {
        format!(
            "{URLSET}<rs:md capability=\"resourcelist\" at=\"2024-06-01T00:00:00Z\"/><url><loc>{base}{path}</loc></url></urlset>"
        )
    };
    source.document("one.xml", list("a"));
    source.document("two.xml", list("b"));
    source.document(
        "resourcelist.xml",
        format!(
            "<sitemapindex xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" xmlns:rs=\"http://www.openarchives.org/rs/terms/\">\
             <rs:md capability=\"resourcelist\" at=\"2024-06-01T00:00:00Z\"/><sitemap><loc>{base}one.xml</loc></sitemap>\
             <sitemap><loc>{base}two.xml</loc></sitemap></sitemapindex>"
        ),
    );
    source.fault("two.xml", Fault::Status(403, String::new()), 100);
    let mounted = Mounted::prepared(&source.url(), FAST);

    let said = mounted.try_start().unwrap_err();

    assert!(said.contains("two.xml") && said.contains("403"), "{said}");
    source.mend();
    mounted.start();
    assert_eq!(tree(&mounted.path()).len(), 2);
}

/// Promise: never stale longer than announced, and never an accidental emptiness.
#[test]
fn a_missing_set_stops_no_change_and_takes_nothing_away() {
    let source = Source::start();
    let base = source.url();
    source.put("a", Resource::new("a"));
    let description = |lists: &[&str]| {
        let entries: String = lists
            .iter()
            .map(|list| format!("<url><loc>{base}{list}</loc><rs:md capability=\"capabilitylist\"/></url>"))
            .collect();
        format!("{URLSET}<rs:md capability=\"description\"/>{entries}</urlset>")
    };
    source.document(".well-known/resourcesync", description(&["capabilitylist.xml", "dead.xml"]));
    let mounted = Mounted::new(&source.url(), FAST);

    source.put("b", Resource::new("b"));
    mounted.refresh();
    eventually("a change of the set that is there is shown", || mounted.join("b").exists());

    source.document(".well-known/resourcesync", description(&["dead.xml", "dead2.xml", "capabilitylist.xml"]));
    source.remove("a");
    mounted.refresh();
    eventually("the refresh is over", || mounted.said().contains("dead2.xml"));
    assert!(mounted.join("a").exists(), "what dead2.xml lists is not known: {}", mounted.said());
}

#[test]
fn a_redirect_to_a_private_address_is_not_followed() {
    let (source, other) = (Source::start(), Source::start());
    other.put("secret", Resource::new("of the house"));
    source.put("a", Resource::new("of the house"));
    source.fault("a", Fault::Status(302, format!("Location: {}secret\r\n", other.url())), u64::MAX);
    source.put("loop", Resource::new("x"));
    source.fault("loop", Fault::Status(302, format!("Location: {}loop\r\n", source.url())), u64::MAX);
    let mounted = Mounted::new(&source.url(), FAST);

    assert_eq!(errno(read(&mounted.join("a"))), Some(libc::EIO));
    assert!(other.take_log().is_empty(), "the private address was asked");
    assert!(mounted.said().contains("allow-host"), "{}", mounted.said());
    assert_eq!(errno(read(&mounted.join("loop"))), Some(libc::EIO));
}

#[test]
fn damaged_objects_are_fetched_again() {
    let source = Source::start();
    let bytes = Random::new(6).bytes(300_000);
    source.put("a", Resource::new(bytes.clone()));
    let mounted = Mounted::new(&source.url(), FAST);
    for damage in [100, 150_000, 299_999] {
        assert_eq!(read(&mounted.join("a")).unwrap(), bytes);
        mounted.unmount();
        let objects = objects(&mounted);
        assert!(!objects.is_empty(), "no object lies in the cache");
        for object in objects {
            let mut bytes = fs::read(&object).unwrap();
            bytes[damage] ^= 0x10;
            fs::write(&object, bytes).unwrap();
        }
        mounted.start();

        assert_eq!(read(&mounted.join("a")).unwrap(), bytes, "damaged at {damage}");
    }
    mounted.unmount();
    for object in objects(&mounted) {
        fs::File::options().write(true).open(object).unwrap().set_len(1000).unwrap();
    }
    mounted.start();
    assert_eq!(read(&mounted.join("a")).unwrap(), bytes, "cut");
}

fn objects(mounted: &Mounted) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![mounted.cache().join("content/objects")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}
