use super::*;
use crate::document::DocumentError;
use flate2::{Compression, write::GzEncoder};
use std::sync::atomic::{AtomicU64, Ordering};

fn location(text: &str) -> DocumentLocation {
    DocumentLocation::Uri(Uri::parse(text).unwrap())
}

fn store(cache: &DocumentCache, location: &DocumentLocation, bytes: &[u8]) -> CachedDocument {
    let mut written = cache.receive(location).unwrap();
    bytes.chunks(3).for_each(|piece| written.write(piece).unwrap());
    let validators = Validators { etag: Some("\"1\"".into()), last_modified: None };
    written.commit(Some(Uri::parse("http://a/final").unwrap()), None, validators).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn content(cache: &DocumentCache, document: &CachedDocument) -> Vec<u8> {
    let mut bytes = Vec::new();
    unpacked(cache.content(document).unwrap(), u64::MAX).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_document_is_found_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let at = location("http://a/list.xml");
    let document = store(&DocumentCache::open(folder.path()).unwrap(), &at, b"<urlset/>");
    let cache = DocumentCache::open(folder.path()).unwrap();
    assert_eq!(cache.known(&at).as_ref(), Some(&document));
    assert_eq!(document.validators.etag.as_deref(), Some("\"1\""));
    assert_eq!(document.size, 9);
    assert_eq!(content(&cache, &document), b"<urlset/>");
    assert_eq!(cache.known(&location("http://a/other.xml")), None);
    assert_eq!(cache.known(&DocumentLocation::File("http://a/list.xml".into())), None);
}

#[test]
fn documents_that_are_not_kept_are_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DocumentCache::open(folder.path()).unwrap();
    let (kept, dropped) = (location("http://a/1"), location("http://a/2"));
    let document = store(&cache, &kept, b"kept");
    store(&cache, &dropped, b"other");
    for _ in 0..2 {
        cache.keep(std::slice::from_ref(&kept)).unwrap();
        assert_eq!((cache.known(&kept).as_ref(), cache.known(&dropped)), (Some(&document), None));
        assert_eq!(cache.files().unwrap().len(), 2);
        assert_eq!(content(&cache, &document), b"kept");
    }
}

#[test]
fn the_same_bytes_again_stay_and_other_bytes_replace() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DocumentCache::open(folder.path()).unwrap();
    let at = location("http://a/1");
    let first = store(&cache, &at, b"first");
    assert_eq!(store(&cache, &at, b"first"), first);
    let other = store(&cache, &at, b"other");
    assert_eq!(cache.files().unwrap().len(), 2, "the replaced content is gone");
    assert!(cache.content(&first).is_err(), "a replaced document is not read as if it were the old one");
    assert_eq!(content(&cache, &other), b"other");
}

#[test]
fn half_written_documents_of_a_killed_process_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DocumentCache::open(folder.path()).unwrap();
    let (whole, cut, empty) = (location("http://a/1"), location("http://a/2"), location("http://a/3"));
    store(&cache, &whole, b"whole");
    store(&cache, &cut, b"to be cut");
    store(&cache, &empty, b"");
    let files = |ending: &str| folder.path().join(format!("{}{ending}", key(&cut)));
    fs::write(folder.path().join("new-7.tmp"), b"half a docu").unwrap();
    fs::write(folder.path().join("not ours.tmp"), b"").unwrap();
    fs::create_dir(folder.path().join("not.ours")).unwrap();
    fs::write(folder.path().join(format!("{}.00ff", key(&whole))), b"content without record").unwrap();
    let name = cache.record(&key(&cut)).unwrap().content;
    fs::write(folder.path().join(name), b"to be").unwrap();
    let cache = DocumentCache::open(folder.path()).unwrap();
    assert_eq!(cache.known(&cut), None);
    assert!(!files(".json").exists());
    assert!(cache.known(&whole).is_some() && cache.known(&empty).is_some());
    assert_eq!(cache.files().unwrap().len(), 4);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4 + 2);
    fs::write(folder.path().join(format!("{}.json", key(&whole))), b"{\"location\":\"http").unwrap();
    assert_eq!(DocumentCache::open(folder.path()).unwrap().known(&whole), None);
}

/// Names the folder to the process that is to be killed.
const VICTIM: &str = "RESYNCFS_TEST_DOCUMENTS_VICTIM";

/// Documents of four locations, replaced and dropped without end; the bytes of each depend on its length.
fn write_without_end(folder: &Path) -> ! {
    let cache = DocumentCache::open(folder).unwrap();
    for number in 0_usize.. {
        let bytes = vec![b'a' + (number % 7) as u8; 50_000 + number % 7];
        let document = store(&cache, &location(&format!("http://a/{}", number % 4)), &bytes);
        if number % 3 == 0 {
            cache.keep(&[document.location]).unwrap();
        }
        println!("written {number}");
    }
    unreachable!()
}

#[test]
fn known_documents_are_whole_whenever_kill_9_comes() {
    if let Some(folder) = std::env::var_os(VICTIM) {
        write_without_end(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let rounds = std::env::var("ROUNDS").map_or(5, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "source::documents::tests::known_documents_are_whole_whenever_kill_9_comes",
            ])
            .env(VICTIM, folder.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert_eq!(said.filter(|line| line.contains("written")).take(3 + round % 11).count(), 3 + round % 11);
        victim.kill().unwrap();
        victim.wait().unwrap();
        let cache = DocumentCache::open(folder.path()).unwrap();
        let known: Vec<_> = (0..4).filter_map(|n| cache.known(&location(&format!("http://a/{n}")))).collect();
        assert!(!known.is_empty());
        assert_eq!(cache.files().unwrap().len(), 2 * known.len());
        for document in known {
            let bytes = content(&cache, &document);
            assert_eq!(bytes, vec![bytes[0]; 50_000 + usize::from(bytes[0] - b'a')]);
        }
    }
}

#[test]
fn a_document_that_breaks_off_leaves_the_one_of_before() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DocumentCache::open(folder.path()).unwrap();
    let at = location("http://a/1");
    let before = store(&cache, &at, b"before");
    let mut written = cache.receive(&location("http://a/1")).unwrap();
    written.write(b"aft").unwrap();
    drop(written);
    assert_eq!(cache.known(&at), Some(before));
    assert_eq!(cache.files().unwrap().len(), 2);
}

/// RFC 9111, section 4.3.4.
#[test]
fn a_confirmed_document_has_the_time_that_its_server_says() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DocumentCache::open(folder.path()).unwrap();
    let at = location("http://a/1");
    let before = store(&cache, &at, b"the same");
    let base = before.base.clone().unwrap();
    let later = Timestamp { seconds: 1000, nanos: 0 };

    let after = cache.confirm(before.clone(), &base, Some((later, Some("later".into())))).unwrap();

    assert_eq!((after.modified, after.validators.last_modified.as_deref()), (Some(later), Some("later")));
    assert_eq!((&after.digest, &after.validators.etag), (&before.digest, &before.validators.etag));
    assert_eq!(cache.known(&at), Some(after.clone()));
    assert_eq!(cache.confirm(after.clone(), &base, None).unwrap(), after, "one that does not say leaves it");
}

#[test]
fn a_forgotten_document_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DocumentCache::open(folder.path()).unwrap();
    let at = location("http://a/1");
    store(&cache, &at, b"broken");
    cache.forget(&at).unwrap();
    cache.forget(&at).unwrap();
    assert_eq!(cache.known(&at), None);
    assert_eq!(cache.files().unwrap(), Vec::<String>::new());
}

#[test]
fn several_compressions_are_undone() {
    let mut bytes = b"<urlset/>".to_vec();
    for layers in 0..=COMPRESSIONS {
        let mut plain = Vec::new();
        unpacked(&*bytes, u64::MAX).unwrap().read_to_end(&mut plain).unwrap();
        assert_eq!(plain, b"<urlset/>", "{layers} layers");
        bytes = gzip(&bytes);
    }
    assert!(unpacked(&b""[..], u64::MAX).unwrap().fill_buf().unwrap().is_empty());
    assert!(unpacked(&b"\x1f\x8bnot"[..], u64::MAX).is_err());
}

/// Bytes that cannot be unpacked are a fault of the document, and none of the cache.
#[test]
fn a_damaged_compression_is_a_fault_of_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DocumentCache::open(folder.path()).unwrap();
    for bytes in [b"\x1f\x8bnot".to_vec(), gzip(b"\x1f\x8bnot")] {
        let document = store(&cache, &location("http://a/list.xml.gz"), &bytes);
        let error = cache.reader(&document, Limits::default()).err().unwrap();
        assert!(matches!(error, SourceError::Document { .. }) && !error.is_no_list(), "{error:?}");
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = DocumentCache::open(&file).unwrap_err();
    assert!(matches!(&error, SourceError::DocumentCache { path, .. } if *path == file), "{error}");
}

/// 20 bytes each, which unpack to nothing: a megabyte of compressed ones would keep a processor for minutes.
#[test]
fn gzip_members_that_hold_nothing_come_to_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DocumentCache::open(folder.path()).unwrap();
    let list = b"<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\"></urlset>";
    let after = |members: usize| [gzip(b"").repeat(members), gzip(list)].concat();
    let read = |bytes: &[u8]| {
        let document = store(&cache, &location("http://a/list.xml"), bytes);
        let mut reader = cache.reader(&document, Limits::default())?;
        reader.next_entry().map_err(|cause| SourceError::Document { location: document.location.clone(), cause })
    };
    for members in [after(1_000), gzip(&after(1_000))] {
        assert!(read(&members).unwrap().is_none());
    }
    for members in [after(150_000), gzip(&after(150_000)), gzip(&gzip(&after(150_000)))] {
        let error = read(&members).unwrap_err();
        assert!(crate::platform::error_chain::chain(&error).contains("gzip members"), "{error:?}");
    }
}

#[test]
fn each_layer_of_compression_keeps_to_the_limit_of_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let cache = DocumentCache::open(folder.path()).unwrap();
    let list = b"<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\"></urlset>";
    // It is longer than what it holds: each flush adds an empty block.
    let mut loose = GzEncoder::new(Vec::new(), Compression::fast());
    loose.write_all(list).unwrap();
    (0..500_000).for_each(|_| loose.flush().unwrap());
    let twice = gzip(&loose.finish().unwrap());
    let document = store(&cache, &location("http://a/list.xml"), &twice);
    let limits = Limits { document: 2_000, ..Limits::default() };
    let read = cache.reader(&document, limits).and_then(|mut reader| {
        reader.next_entry().map_err(|cause| SourceError::Document { location: document.location.clone(), cause })
    });
    assert!(read.is_err(), "{read:?}");
    assert!(cache.reader(&document, Limits::default()).unwrap().next_entry().unwrap().is_none());
}

/// Counts the bytes that are taken of a file.
struct Counted<'c>(std::io::Cursor<Vec<u8>>, &'c AtomicU64);

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(out)?;
        self.1.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// 4 GiB that come as some megabytes, and as some kilobytes where they are compressed once more.
#[test]
fn unpacked_bytes_are_counted_while_they_are_unpacked() {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    let list = b"<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">";
    let entries = gzip("<url><loc>http://a/x</loc></url>".repeat(1 << 15).as_bytes());
    let bomb = [gzip(list), entries.repeat(4096)].concat();
    let limits = Limits { document: 3 << 20, ..Limits::default() };
    for bytes in [bomb.clone(), gzip(&bomb), gzip(&gzip(&bomb))] {
        let length = bytes.len() as u64;
        TAKEN.store(0, Ordering::Relaxed);
        let bytes = unpacked(Counted(std::io::Cursor::new(bytes), &TAKEN), limits.document);
        let read = || -> Result<(), DocumentError> {
            let mut reader = Reader::new(bytes?, None, limits)?;
            while reader.next_entry()?.is_some() {}
            Ok(())
        };
        let error = read().unwrap_err();

        let message = crate::platform::error_chain::chain(&error);
        assert!(message.contains(&limits.document.to_string()), "the limit is named: {message}");
        let taken = TAKEN.load(Ordering::Relaxed);
        assert!(taken <= 8 * BLOCK as u64, "{taken} bytes of {length} are taken");
    }
}

/// Bytes of a disk that holds nothing but the cache.
const DISK: u64 = 48 << 20;

fn left_of_the_disk(folder: &Path) -> io::Result<u64> {
    let mut used = 0;
    for entry in fs::read_dir(folder)? {
        used += entry?.metadata()?.len();
    }
    Ok(DISK.saturating_sub(used))
}

/// Bytes of an endless document that are written, and the message of its end.
fn taken_without_end(cache: &DocumentCache, location: &DocumentLocation) -> (u64, String) {
    let mut written = cache.receive(location).unwrap();
    let block = [b'a'; 1 << 16];
    let mut taken = 0;
    while taken < 2 * DISK {
        match written.write(&block) {
            Ok(()) => taken += block.len() as u64,
            Err(error) => return (taken, error.to_string()),
        }
    }
    (taken, "no end".to_owned())
}

#[test]
fn a_document_without_end_leaves_the_reserve_free_and_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let at = location("http://a/endless.xml");
    let reserve = 16 << 20;
    let cache =
        DocumentCache::open(folder.path()).unwrap().leaving(Arc::new(SpaceGuard::new(reserve, left_of_the_disk)));

    let (taken, message) = taken_without_end(&cache, &at);

    assert!(taken <= DISK - reserve + (4 << 20), "{taken}: {message}");
    for what in ["http://a/endless.xml", "cache-reserve=", "max-document=", &folder.path().display().to_string()] {
        assert!(message.contains(what), "{message}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    store(&cache, &location("http://a/other.xml"), b"<urlset/>");
}

#[test]
fn of_less_than_twice_the_reserve_the_half_stays_free() {
    let folder = tempfile::tempdir().unwrap();
    let cache =
        DocumentCache::open(folder.path()).unwrap().leaving(Arc::new(SpaceGuard::new(1 << 30, left_of_the_disk)));
    let mut came = 0;
    let message = loop {
        let mut written = cache.receive(&location(&format!("http://a/{came}"))).unwrap();
        // Differs by its number: the same bytes would take room all the same.
        let bytes = vec![came as u8; 1 << 20];
        if let Err(error) = written.write(&bytes) {
            break error.to_string();
        }
        written.commit(None, None, Validators::default()).unwrap();
        came += 1;
        assert!(came < 48, "the disk is full");
    };
    assert!((20..=32).contains(&came), "{came}: {message}");
}
