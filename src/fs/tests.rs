//! The operations over a real catalog, a real cache and a small Source on loopback; no kernel.

use super::attributes::{Attributes, ShownInode};
use super::directory::Cookie;
use super::error::FsError;
use super::prefetch::Consumer;
use super::read::{ReadAnswer, ReadRequest};
use super::xattr::XattrReply;
use super::*;
use crate::catalog::{Catalog, Kind, Naming};
use crate::content::ContentConfig;
use crate::document::{Algorithm, Digest, Entry, Link, Timestamp, Uri};
use crate::platform::ino::Ino;
use crate::source::http::{Client, HttpConfig};
use crate::source::tests::server::{Reply, Server};
use fuser::Errno;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno as IoError, ReadWriteFlags, preadv2};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::IoSliceMut;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// md5 of `hello`.
const HELLO: [u8; 16] =
    [0x5d, 0x41, 0x40, 0x2a, 0xbc, 0x4b, 0x2a, 0x76, 0xb9, 0x71, 0x9d, 0x91, 0x10, 0x17, 0xc5, 0x92];

/// A Source, its catalog and its filesystem, all in one folder that goes with it.
struct Mounted {
    fs: Arc<Filesystem>,
    catalog: Arc<Catalog>,
    server: Server,
    runtime: Runtime,
    folder: TempDir,
}

/// A body that is not read whole when its object is opened.
static LARGE: LazyLock<String> = LazyLock::new(|| (0..400_000).map(|number| format!("{number:07}\n")).collect());

/// The answer of the Source on loopback.
fn answer(path: &str) -> Reply {
    match path {
        "/a/sized.txt" => Reply::full(b"hello"),
        "/a/unsized.txt" => Reply::full(b"8 bytes."),
        "/a/large" => Reply::full(LARGE.as_bytes()),
        "/a/secret" => Reply::status(403),
        _ if path.starts_with("/walk/") => Reply::full(b"hello"),
        _ => Reply::status(404),
    }
}

impl Mounted {
    fn new(xattr: bool) -> Mounted {
        Mounted::reading_ahead(xattr, 0)
    }

    fn reading_ahead(xattr: bool, bytes: u64) -> Mounted {
        let server = Server::start(|request| answer(&request.path));
        let authority = server.authority();
        let folder = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let catalog = Arc::new(Catalog::open(&folder.path().join("catalog"), "a test").unwrap());
        let client =
            Client::new(HttpConfig { own_authority: Some(authority.as_str().into()), ..HttpConfig::default() })
                .unwrap();
        let config = ContentConfig {
            folder: folder.path().join("cache"),
            metadata_folder: folder.path().join("observed"),
            source: "test".into(),
            quota: Some(1 << 30),
            stall: Duration::from_secs(5),
            size_deadline: Duration::from_secs(5),
            ..ContentConfig::default()
        };
        let (events, _) = tokio::sync::mpsc::unbounded_channel();
        let content = Content::open(config, client, runtime.handle().clone(), events).unwrap();
        let options = FsOptions {
            uid: 1000,
            gid: 100,
            xattr,
            labelled: true,
            source: format!("http://{authority}/"),
            ..FsOptions::default()
        };
        let fs = Filesystem::new(Arc::clone(&catalog), content, options, runtime.handle().clone(), bytes);
        Mounted { fs: Arc::new(fs), catalog, server, runtime, folder }
    }

    /// A Source with one file of each sort.
    fn with_one_of_each() -> Mounted {
        let mounted = Mounted::new(true);
        let mut sized = mounted.entry("a/sized.txt", Some(5));
        sized.hashes = vec![Digest::new(Algorithm::Md5, &HELLO).unwrap()];
        sized.media_type = Some("text/plain".into());
        sized.links = vec![mounted.link("describedby", "a/about.xml")];
        let others = ["a/unsized.txt", "a/missing", "a/secret"].map(|path| mounted.entry(path, None));
        mounted.publish(others.into_iter().chain([sized]));
        mounted
    }

    fn uri(&self, path: &str) -> Uri {
        self.server.uri(&format!("/{path}"))
    }

    fn entry(&self, path: &str, length: Option<u64>) -> Entry {
        Entry { length, lastmod: Timestamp::parse("2020-01-01T00:00:00Z"), ..Entry::new(self.uri(path)) }
    }

    fn link(&self, rel: &str, path: &str) -> Link {
        Link::new(rel, self.uri(path))
    }

    /// A new revision of exactly these entries.
    fn publish(&self, entries: impl IntoIterator<Item = Entry>) {
        let naming = Naming { own_authority: self.server.authority().into(), ..Naming::default() };
        let mut baseline = self.catalog.commit_of_lists(naming).unwrap();
        entries.into_iter().for_each(|entry| baseline.add(&entry).unwrap());
        baseline.commit(None, b"").unwrap();
    }

    /// What `path` stands for, looked up name by name.
    fn find(&self, path: &str) -> ShownInode {
        let mut folder = Ino::ROOT;
        let mut found = None;
        for name in path.split('/') {
            let shown = self.fs.lookup(folder, name.as_bytes()).unwrap().unwrap();
            folder = shown.ino();
            found = Some(shown);
        }
        found.unwrap()
    }

    fn ino(&self, path: &str) -> Ino {
        self.find(path).ino()
    }

    /// GETATTR, waiting where it must.
    fn getattr(&self, ino: Ino) -> Result<ShownInode, FsError> {
        match self.fs.attributes(ino, 0)? {
            Attributes::Known(shown) => Ok(shown),
            Attributes::Unsized(file) => self.runtime.block_on(self.fs.sized(&file)),
        }
    }

    fn read(&self, ino: Ino, offset: u64, length: u32) -> Result<bytes::Bytes, FsError> {
        self.read_by(0, ino, offset, length)
    }

    /// READ by `thread`.
    fn read_by(&self, thread: u32, ino: Ino, offset: u64, length: u32) -> Result<bytes::Bytes, FsError> {
        match self.fs.read(ReadRequest { ino, offset, length, thread, is_direct: false })? {
            ReadAnswer::Bytes(bytes) => Ok(bytes),
            ReadAnswer::Later(later) => self.runtime.block_on(later),
        }
    }

    /// READ that this machine's memory answers; `None` where it does not.
    fn read_at_once(&self, ino: Ino, offset: u64, length: u32) -> Option<bytes::Bytes> {
        match self.fs.read(ReadRequest { ino, offset, length, thread: 0, is_direct: false }) {
            Ok(ReadAnswer::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// A listing in pieces of `piece` entries; before each but the first, `between` is called.
    fn list(&self, folder: Ino, piece: usize, mut between: impl FnMut()) -> Vec<String> {
        let mut names = Vec::new();
        let mut next = Cookie::START;
        loop {
            let from = next;
            let mut got = 0;
            let mut visit = |entry: directory::DirEntry<'_>| {
                if got == piece {
                    return false;
                }
                got += 1;
                next = entry.cookie;
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                true
            };
            self.fs.read_folder(folder, from, &mut visit).unwrap();
            if got == 0 {
                return names;
            }
            between();
        }
    }

    fn xattr(&self, ino: Ino, name: &str) -> Result<String, FsError> {
        match self.fs.xattr(ino, name.as_bytes(), 65_536)? {
            XattrReply::Value(value) => Ok(String::from_utf8(value).unwrap()),
            XattrReply::Size(_) => panic!("a buffer was given"),
        }
    }
}

fn errno<T>(result: Result<T, FsError>) -> Errno {
    match result {
        Ok(_) => panic!("an error was expected"),
        Err(error) => error.errno(),
    }
}

#[test]
fn a_name_is_its_inode_and_no_name_is_none() {
    let mounted = Mounted::with_one_of_each();
    let shown = mounted.find("a/sized.txt");
    assert_eq!((shown.attributes.size, shown.attributes.uid), (5, 1000));
    assert_eq!(shown.attributes_ttl, Duration::from_secs(3600));
    assert_eq!(mounted.getattr(shown.ino()).unwrap(), shown);
    assert_eq!(mounted.fs.lookup(Ino::ROOT, b"nothing").unwrap(), None);
    assert_eq!(errno(mounted.fs.lookup(Ino::ROOT, &[b'x'; 256])), Errno::ENAMETOOLONG);
    assert_eq!(errno(mounted.fs.attributes(Ino(1 << 40), 0)), Errno::ESTALE);
}

/// A size that is shown is true: an unknown one is never kept by the kernel, and GETATTR waits for it.
#[test]
fn an_unknown_size_has_no_time_to_live_until_getattr_asked() {
    let mounted = Mounted::with_one_of_each();
    let shown = mounted.find("a/unsized.txt");
    assert_eq!((shown.attributes.size, shown.attributes_ttl), (0, Duration::ZERO));
    assert_eq!(shown.entry_ttl, Duration::from_secs(3600));
    assert_eq!(shown.common_ttl(), Duration::ZERO);
    let sized = mounted.getattr(shown.ino()).unwrap();
    assert_eq!((sized.attributes.size, sized.attributes_ttl), (8, Duration::from_secs(3600)));
    assert_eq!(mounted.find("a/unsized.txt"), sized);
}

/// Promise: a listed name never answers ENOENT.
#[test]
fn what_the_source_does_not_give_is_eio_or_eacces_never_enoent() {
    let mounted = Mounted::with_one_of_each();
    for (path, expected) in [("a/missing", Errno::EIO), ("a/secret", Errno::EACCES)] {
        let ino = mounted.ino(path);
        assert_eq!(errno(mounted.getattr(ino)), expected, "{path}");
        assert_eq!(errno(mounted.read(ino, 0, 10)), expected, "{path}");
    }
}

#[test]
fn a_file_is_read_to_its_end_and_a_folder_is_not() {
    let mounted = Mounted::with_one_of_each();
    let ino = mounted.ino("a/sized.txt");
    assert_eq!(&mounted.read(ino, 0, 4096).unwrap()[..], b"hello");
    assert_eq!(&mounted.read(ino, 3, 4096).unwrap()[..], b"lo");
    assert_eq!(errno(mounted.read(mounted.ino("a"), 0, 1)), Errno::EISDIR);
}

/// The files below `folder`.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Promise: names are answered while the cache disk is slow. No FUSE thread reads what is not in the page cache, be it small, large or not open.
#[test]
fn bytes_outside_the_page_cache_are_read_by_another_thread() {
    for (path, body) in [("a/large", LARGE.as_str()), ("a/sized.txt", "hello")] {
        for is_open in [true, false] {
            let mounted = Mounted::new(true);
            let others = (0..300).map(|number| mounted.entry(&format!("walk/{number}"), Some(5)));
            mounted.publish([mounted.entry(path, Some(body.len() as u64))].into_iter().chain(others));
            let ino = mounted.ino(path);
            let middle = body.len() as u64 / 2;
            mounted.read(ino, middle, 4096).unwrap();
            let objects = files_below(&mounted.folder.path().join("cache/objects"));
            let file = File::open(&objects[0]).unwrap();
            if !is_open {
                // Its descriptor is closed for those of others.
                (0..300).for_each(|number| drop(mounted.read(mounted.ino(&format!("walk/{number}")), 0, 5).unwrap()));
            }
            file.sync_all().unwrap();
            let probe = || preadv2(&file, &mut [IoSliceMut::new(&mut [0; 16])], middle, ReadWriteFlags::NOWAIT);
            // A probe makes the kernel read the page, which it may not drop at once.
            let drop_and_probe = || {
                fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                probe()
            };
            // overlayfs does not say what is in the page cache.
            let is_absent = (0..20).any(|_| drop_and_probe() == Err(IoError::AGAIN));
            let dropped_and_read = || {
                while is_absent && probe() == Err(IoError::AGAIN) {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                fadvise(&file, 0, None, Advice::DontNeed).unwrap();
                mounted.read_at_once(ino, middle, 4096)
            };

            let is_left_to_another = (0..20).any(|_| dropped_and_read().is_none());
            assert_eq!(is_left_to_another, is_absent, "{path} {is_open}");
            let bytes = mounted.read(ino, middle, 4096).unwrap();
            assert_eq!(bytes[..], body.as_bytes()[middle as usize..][..bytes.len()]);
            assert_eq!(mounted.read_at_once(ino, middle, 4096), Some(bytes));
        }
    }
}

#[test]
fn a_listing_has_the_dots_first_and_each_name_once() {
    let mounted = Mounted::new(true);
    mounted.publish((0..100).map(|n| mounted.entry(&format!("d/{n:03}"), Some(n))));
    let whole = mounted.list(mounted.ino("d"), usize::MAX, || {});
    assert_eq!(&whole[..2], [".", ".."]);
    assert_eq!(whole.iter().collect::<BTreeSet<_>>().len(), 102);
    for piece in [1, 2, 3, 7] {
        assert_eq!(mounted.list(mounted.ino("d"), piece, || {}), whole);
    }
    assert_eq!(errno(mounted.fs.read_folder(mounted.ino("d/000"), Cookie::START, &mut |_| true)), Errno::ENOTDIR);
}

#[test]
fn a_listing_goes_on_after_a_change_without_repeat_or_gap() {
    let mounted = Mounted::new(true);
    let files = |numbers: &mut dyn Iterator<Item = u64>, length: u64| -> Vec<Entry> {
        numbers.map(|n| mounted.entry(&format!("d/{n:03}"), Some(length))).collect()
    };
    mounted.publish(files(&mut (0..100), 1));
    let mut revision = 1;
    let names = mounted.list(mounted.ino("d"), 9, || {
        // Every second file stays but is replaced by a new version; of the others some go and new ones come.
        revision += 1;
        let kept = (0..100).step_by(2);
        let passing = (0..20).map(|n| 101 + (n * revision) % 200);
        mounted.publish(files(&mut kept.chain(passing), revision));
    });
    for stayed in (0..100).step_by(2) {
        let name = format!("{stayed:03}");
        assert_eq!(names.iter().filter(|listed| **listed == name).count(), 1, "{name}");
    }
}

#[test]
fn the_parent_of_a_folder_is_listed_with_its_own_inode() {
    let mounted = Mounted::new(true);
    mounted.publish([mounted.entry("a/b/c", Some(1))]);
    let mut seen = Vec::new();
    mounted
        .fs
        .read_folder(mounted.ino("a/b"), Cookie::START, &mut |entry| {
            seen.push((entry.name.to_vec(), entry.node.ino, entry.node.kind));
            true
        })
        .unwrap();
    assert_eq!(seen[0], (b".".to_vec(), mounted.ino("a/b"), Kind::Folder));
    assert_eq!(seen[1], (b"..".to_vec(), mounted.ino("a"), Kind::Folder));
    assert_eq!(seen[2], (b"c".to_vec(), mounted.ino("a/b/c"), Kind::File));
}

#[test]
fn xattrs_of_files_and_of_the_root() {
    let mounted = Mounted::with_one_of_each();
    let ino = mounted.ino("a/sized.txt");
    assert_eq!(mounted.xattr(ino, "user.xdg.origin.url").unwrap(), mounted.uri("a/sized.txt").as_str());
    assert_eq!(mounted.xattr(ino, "user.mime_type").unwrap(), "text/plain");
    assert_eq!(mounted.xattr(ino, "user.resyncfs.describedby").unwrap(), mounted.uri("a/about.xml").as_str());
    assert_eq!(mounted.xattr(ino, "user.resyncfs.state").unwrap(), "remote");
    mounted.read(ino, 0, 5).unwrap();
    assert_eq!(mounted.xattr(ino, "user.resyncfs.verified").unwrap(), "md5");
    let object = mounted.xattr(ino, "user.resyncfs.object").unwrap();
    assert!(object.starts_with("md5-"), "{object}");
    assert_eq!(mounted.xattr(Ino::ROOT, "user.resyncfs.files").unwrap(), "4");
    assert_eq!(errno(mounted.xattr(ino, "security.capability")), Errno::EOPNOTSUPP);
    assert_eq!(errno(mounted.xattr(mounted.ino("a"), "user.mime_type")), Errno::ENODATA);
    let XattrReply::Value(names) = mounted.fs.xattr_names(ino, 65_536).unwrap() else { panic!("a buffer was given") };
    let listed = String::from_utf8(names).unwrap();
    assert!(listed.split('\0').all(|name| !["state", "verified", "entry"].iter().any(|own| name.ends_with(own))));
    for ino in [ino, mounted.ino("a"), Ino::ROOT] {
        let XattrReply::Value(names) = mounted.fs.xattr_names(ino, 65_536).unwrap() else {
            panic!("a buffer was given")
        };
        assert!(names.starts_with(b"security.selinux\0"), "{ino:?}");
    }
}

#[test]
fn without_xattrs_even_the_question_is_refused() {
    let mounted = Mounted::new(false);
    mounted.publish([mounted.entry("a", Some(1))]);
    assert_eq!(errno(mounted.xattr(mounted.ino("a"), "security.capability")), Errno::ENOSYS);
    assert_eq!(errno(mounted.fs.xattr_names(Ino::ROOT, 0)), Errno::ENOSYS);
}

/// Promise: an open file keeps its bytes or gets ESTALE, never others.
#[test]
fn a_replaced_inode_is_still_answered_and_its_name_is_new() {
    let mounted = Mounted::with_one_of_each();
    let old = mounted.find("a/sized.txt");
    let mut changed = mounted.entry("a/sized.txt", Some(6));
    changed.hashes = vec![Digest::new(Algorithm::Md5, &[1; 16]).unwrap()];
    mounted.publish([changed]);
    let new = mounted.find("a/sized.txt");
    assert_ne!(new.ino(), old.ino());
    assert_eq!(new.attributes.size, 6);
    assert_eq!(mounted.getattr(old.ino()).unwrap().attributes.size, 5);
    assert_eq!(mounted.xattr(old.ino(), "user.xdg.origin.url").unwrap(), mounted.uri("a/sized.txt").as_str());
}

#[test]
fn statistics_are_the_sums_of_the_revision() {
    let mounted = Mounted::new(true);
    assert_eq!(mounted.fs.statistics().unwrap(), (0, 0));
    mounted.publish([mounted.entry("a/b", Some(4097)), mounted.entry("c", None)]);
    assert_eq!(mounted.fs.statistics().unwrap(), (2, 4));
}

#[test]
fn attributes_hold_as_long_as_bytes_are_known_to_be_current() {
    use crate::document::ChangeFrequency::{Always, Never};
    let mounted = Mounted::new(true);
    let entry = |path: &str, changefreq| Entry { changefreq: Some(changefreq), ..mounted.entry(path, Some(5)) };
    let undated = |path: &str, changefreq| Entry { lastmod: None, ..entry(path, changefreq) };
    mounted.publish([entry("dated", Always), undated("always", Always), undated("never", Never)]);
    let seconds = |shown: ShownInode| (shown.attributes_ttl.as_secs(), shown.entry_ttl.as_secs());

    assert_eq!(seconds(mounted.find("dated")), (3600, 3600), "lists announce its changes");
    assert_eq!(seconds(mounted.find("never")), (3600, 3600));
    assert_eq!(seconds(mounted.find("always")), (300, 3600));
    let ino = mounted.ino("always");
    assert_eq!(seconds(mounted.getattr(ino).unwrap()), (300, 3600));
}

/// As `rsync` reads: the files of a folder before its folders.
#[test]
fn a_files_first_walk_enters_a_folder_behind_many_files() {
    let mounted = Mounted::reading_ahead(true, 1 << 20);
    let many = |prefix: &'static str, count: usize| (0..count).map(move |number| format!("walk/{prefix}{number:03}"));
    let read: Vec<String> = many("a", 1).chain(many("c", 300)).chain(many("b/y", 8)).collect();
    let files = read.iter().cloned().chain(many("m/x", 8));
    mounted.publish(files.map(|path| mounted.entry(&path, Some(5))).collect::<Vec<_>>());

    for path in &read {
        mounted.read_by(7, mounted.ino(path), 0, 5).unwrap();
    }

    assert!(mounted.fs.prefetch.expects(mounted.ino("walk/m/x000")));
}

/// Promise: readers of what is here do not wait for each other, nor for those for whom something is fetched.
#[test]
fn a_warm_reader_takes_no_lock_of_downloads_and_sizes() {
    let mounted = Mounted::reading_ahead(true, 1 << 20);
    let walk = |number: u64| format!("walk/{number:03}");
    let of_walk = (0..100).map(|number| mounted.entry(&walk(number), None));
    let files = ["a/sized.txt", "a/unsized.txt"];
    let others = files.map(|path| mounted.entry(path, path.ends_with("/sized.txt").then_some(5)));
    mounted.publish(of_walk.chain(others).collect::<Vec<_>>());
    for path in files {
        mounted.getattr(mounted.ino(path)).unwrap();
        mounted.read(mounted.ino(path), 0, 5).unwrap();
    }
    let inodes = files.map(|path| mounted.ino(path));
    // A walk that is ahead of its reader, sizes among it.
    for number in 0..5 {
        mounted.getattr(mounted.ino(&walk(number))).unwrap();
    }
    for number in 0..5 {
        mounted.read_by(7, mounted.ino(&walk(number)), 0, 5).unwrap();
    }
    assert!(mounted.fs.prefetch.expects(mounted.ino(&walk(6))));
    let held = mounted.fs.content.locked(&inodes);

    let (done, is_done) = std::sync::mpsc::channel();
    let fs = Arc::clone(&mounted.fs);
    std::thread::spawn(move || {
        let mut seen = 0;
        for thread in 50..82 {
            let folder = fs.lookup(Ino::ROOT, b"a").unwrap().unwrap().ino();
            fs.begins_to_list(folder, thread);
            fs.read_folder(folder, Cookie::START, &mut |_| true).unwrap();
            for (ino, size) in inodes.into_iter().zip([5, 8]) {
                let Attributes::Known(shown) = fs.attributes(ino, thread).unwrap() else { panic!("it was read") };
                seen += shown.attributes.size;
                let read = ReadRequest { ino, offset: 0, length: 100, thread, is_direct: false };
                let Ok(ReadAnswer::Bytes(bytes)) = fs.read(read) else { panic!("it was read") };
                assert_eq!(bytes.len() as u64, size);
                fs.note_local_hit(Consumer::Bytes, ino, thread);
            }
        }
        done.send(seen).unwrap();
    });

    assert_eq!(is_done.recv_timeout(Duration::from_secs(20)), Ok(32 * 13));
    drop(held);
}

/// A rebuild keeps orphans of the folders alone that the kernel has looked into: one may come while a LOOKUP is answered.
#[test]
fn a_lookup_marks_its_folder_before_it_looks() {
    let mounted = Mounted::with_one_of_each();
    let folder = mounted.fs.lookup(Ino::ROOT, b"a").unwrap().unwrap().ino();
    assert!(mounted.fs.lookup(folder, b"absent").unwrap().is_none());
    mounted.catalog.write_in_place(0);

    mounted.publish([mounted.entry("b", Some(1))]);

    let orphans = mounted.catalog.snapshot().unwrap().orphans(Ino(0), 10).unwrap();
    assert!(orphans.len() >= 4, "{orphans:?}");
}
