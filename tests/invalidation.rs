//! What the kernel drops after changes and after verdicts, on kernels with an epoch and without one (before Linux 6.16).

mod common;

use common::changing::{ChangingSource, Style};
use common::eventually_within;
use common::mounted::{Mounted, PROGRAM};
use common::random::Random;
use common::source::{Fault, Resource, Source};
use std::fs::Permissions;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// More than are listed one by one.
const MANY: usize = 20_100;

/// Just so long that it is read before the verdict.
const LARGE: usize = (16 << 20) + 100_000;

/// A process in a folder, until dropped.
struct Sitting(Child);

impl Drop for Sitting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_missing(path: &std::path::Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Promise: a change that the Source has announced is visible, and an open file keeps its bytes.
fn a_great_change(change: impl FnOnce(&mut ChangingSource, &dyn Fn(usize) -> (String, Resource))) {
    let small = [
        "gone/below/file",
        "gone.txt",
        "kept/gone/below/file",
        "kept/gone.txt",
        "kept/open",
        "kept/removed",
        "kept/gone/sitting/file",
    ];
    let many = |edition: &'static str| {
        move |number: usize| (format!("many/{number}"), Resource::new(format!("{edition}{number}")))
    };
    let small = small.map(|path| (path.to_owned(), Resource::new("old")));
    let mut source = ChangingSource::start(Style::Rolling(2 * MANY), small.into_iter().chain((0..MANY).map(many(""))));
    let mounted = Mounted::prepared(&source.source().url(), "poll=1h,max-delete=100");
    mounted.try_start_within(Duration::from_secs(120)).unwrap();
    let path = |below: &str| mounted.join(below);
    let mut open = File::open(path("kept/open")).unwrap();
    let removed = File::open(path("kept/removed")).unwrap();
    let read = |file: &mut File| {
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).map(|_| text)
    };
    assert_eq!(read(&mut open).unwrap(), "old");
    let sleep = Command::new("sleep").arg("600").current_dir(path("kept/gone/sitting")).spawn().unwrap();
    let _sitting = Sitting(sleep);
    let gone =
        ["gone/below/file", "gone/below", "gone", "gone.txt", "kept/gone/below/file", "kept/gone", "kept/gone.txt"];
    gone.iter().for_each(|gone| assert!(!is_missing(&path(gone))));
    assert!(is_missing(&path("new")) && is_missing(&path("kept/new")));
    assert_eq!(fs::metadata(path("many/7")).unwrap().len(), 1);

    source.pass(60);
    change(&mut source, &many("changed "));
    mounted.try_refresh().unwrap();

    gone.iter()
        .chain(&["kept/removed", "kept/gone/sitting"])
        .for_each(|gone| assert!(is_missing(&path(gone)), "{gone}"));
    assert_eq!(fs::read_to_string(path("kept/open")).unwrap(), "new");
    assert_eq!(read(&mut open).unwrap(), "old");
    assert_eq!(removed.metadata().unwrap().len(), 3);
    assert_eq!(fs::metadata(path("many/7")).unwrap().len(), 9);
    assert_eq!(fs::read_to_string(path("new")).unwrap() + &fs::read_to_string(path("kept/new")).unwrap(), "newnew");
    let mut names: Vec<_> = fs::read_dir(mounted.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["kept", "many", "new"]);
}

fn change_all(source: &mut ChangingSource, many: &dyn Fn(usize) -> (String, Resource)) {
    for gone in ["gone/below/file", "gone.txt", "kept/gone/below/file", "kept/gone.txt", "kept/removed"] {
        source.delete(gone);
    }
    source.delete("kept/gone/sitting/file");
    for path in ["kept/open", "new", "kept/new"] {
        source.put(path, Resource::new("new"));
    }
    for (path, resource) in (0..MANY).map(many) {
        source.put(&path, resource);
    }
}

#[test]
fn a_great_change_by_a_change_list_leaves_no_old_name() {
    a_great_change(|source, many| {
        change_all(source, many);
        source.publish();
    });
}

#[test]
fn a_great_change_by_a_list_leaves_no_old_name() {
    a_great_change(|source, many| {
        change_all(source, many);
        source.list();
    });
}

/// Reads the first bytes: the body is asked for, and no more of it than is near.
fn read_begin(mounted: &Mounted, path: &str) {
    File::open(mounted.join(path)).unwrap().read_exact_at(&mut [0; 10], 0).unwrap();
}

/// Reads the last 100 bytes.
fn read_end(mounted: &Mounted, path: &str) -> io::Result<Vec<u8>> {
    let mut end = vec![0; 100];
    File::open(mounted.join(path))?.read_exact_at(&mut end, LARGE as u64 - 100)?;
    Ok(end)
}

/// A READ of the end waits for the verdict; to drop its page takes as long. Promise: a change is visible at once.
#[test]
fn names_do_not_wait_for_pages_that_are_being_read() {
    let bytes = Random::new(1).bytes(LARGE);
    let resources = [("large", Resource::new(bytes.clone())), ("small", Resource::new("old"))];
    let mut source =
        ChangingSource::start(Style::Rolling(10), resources.map(|(path, resource)| (path.to_owned(), resource)));
    // The body takes about 10 s. A first reader of the end gets a range, the second waits for the verdict.
    source.source().fault("large", Fault::Slow(Duration::from_millis(10)), 1);
    let mounted = Mounted::new(&source.source().url(), "poll=1h,readahead=0");
    assert_eq!(fs::read(mounted.join("small")).unwrap(), b"old");
    read_begin(&mounted, "large");
    assert_eq!(read_end(&mounted, "large").unwrap(), bytes[LARGE - 100..]);
    let path = mounted.join("large");
    let sequential = std::thread::spawn(move || fs::read(path));
    source.source().fault("large", Fault::Status(404, String::new()), 1000);
    let path = mounted.join("large");
    let waiting = std::thread::spawn(move || {
        File::open(path).and_then(|file| file.read_exact_at(&mut [0; 10], LARGE as u64 - 150_000))
    });
    // Past the middle, where a drop of all that is withheld would wait for the second.
    std::thread::sleep(Duration::from_secs(6));

    source.pass(60);
    source.put("small", Resource::new("new"));
    source.publish();
    mounted.try_refresh().unwrap();

    assert_eq!(fs::read(mounted.join("small")).unwrap(), b"new");
    assert!(!sequential.is_finished(), "the refresh waited for the verdict");
    assert!(sequential.join().unwrap().unwrap() == bytes);
    waiting.join().unwrap().unwrap();
}

/// Promise: never a wrong byte. The page of an end that went out before its verdict is not there for a sequential reader.
#[test]
fn an_end_before_its_verdict_leaves_the_page_cache() {
    let bytes = Random::new(2).bytes(LARGE);
    let mut lie = bytes.clone();
    lie[LARGE - 50..].fill(b'!');
    let source = Source::start();
    source.put("large", Resource::new(bytes.clone()));
    source.fault("large", Fault::Held(4 << 20), 1);
    source.fault("large", Fault::Body(lie.clone()), 1);
    let mounted = Mounted::new(&source.url(), "poll=1h,readahead=0");
    read_begin(&mounted, "large");

    assert_eq!(read_end(&mounted, "large").unwrap(), lie[LARGE - 100..]);
    let file = File::open(mounted.join("large")).unwrap();
    eventually_within(Duration::from_secs(2), "the page is dropped", || !last_page_is_cached(&file));

    source.mend();
    assert!(fs::read(mounted.join("large")).is_err(), "the range and the body are not one version");
}

/// Whether the kernel holds the last page of the file.
fn last_page_is_cached(file: &File) -> bool {
    let (page, mut state) = (4096, 0_u8);
    let last = (LARGE - 1) / page * page;
    // SAFETY: a mapping of one page of an open file, which nothing else uses and which is unmapped here.
    unsafe {
        let (reads, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        let mapped = libc::mmap(std::ptr::null_mut(), page, reads, shared, file.as_raw_fd(), last as libc::off_t);
        assert_ne!(mapped, libc::MAP_FAILED);
        assert_eq!(libc::mincore(mapped, page, &raw mut state), 0);
        libc::munmap(mapped, page);
    }
    state & 1 == 1
}

/// A user without rights has a mount of their own in namespaces of their own, without a program that is set-uid.
#[test]
fn a_user_mounts_in_namespaces_of_their_own() {
    let source = Source::start();
    source.put("folder/file", Resource::new("bytes"));
    let home = tempfile::Builder::new().prefix("resyncfs-own-").tempdir().unwrap();
    fs::set_permissions(home.path(), Permissions::from_mode(0o777)).unwrap();
    fs::copy(PROGRAM, home.path().join("resyncfs")).unwrap();
    fs::create_dir(home.path().join("mnt")).unwrap();
    chown(home.path().join("mnt"), Some(65_534), Some(65_534)).unwrap();
    let device = fs::metadata("/dev/fuse").unwrap().permissions();
    fs::set_permissions("/dev/fuse", Permissions::from_mode(0o666)).unwrap();

    let line = format!(
        "./resyncfs mount -o cache=cache {} mnt && cat mnt/folder/file && ./resyncfs unmount mnt",
        source.url()
    );
    let own = ["--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Urm", "sh", "-c", &line];
    let output = Command::new("setpriv").args(own).current_dir(home.path()).env("HOME", home.path()).output();

    fs::set_permissions("/dev/fuse", device).unwrap();
    let output = output.unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"bytes"), "{output:?}");
}

/// Programs that have the kernel read far ahead of a silent host hold up nobody who reads a cached file.
#[test]
fn reading_ahead_of_a_silent_host_leaves_room_for_others() {
    let source = Source::start();
    let length = 4_u64 << 30;
    for number in 0..4 {
        let silent = Resource { md: format!("length=\"{length}\""), ..Resource::new("") };
        source.put(&format!("silent/{number}"), silent);
        source.fault(&format!("silent/{number}"), Fault::StallHead(Duration::from_secs(60)), 1000);
    }
    let bytes = Random::new(3).bytes(300_000);
    source.put("cached", Resource::new(bytes.clone()));
    let mounted = Mounted::new(&source.url(), "poll=1h,timeout=10s,readahead=0");
    assert!(fs::read(mounted.join("cached")).unwrap() == bytes);
    let cached = File::open(mounted.join("cached")).unwrap();
    advise(&cached, 0, 0, libc::POSIX_FADV_DONTNEED);
    let silent: Vec<_> = (0..4).map(|number| File::open(mounted.join(&format!("silent/{number}"))).unwrap()).collect();
    std::thread::scope(|scope| {
        for file in &silent {
            let ahead = (0..length).step_by(4 << 20);
            scope.spawn(move || ahead.for_each(|at| advise(file, at, 4 << 20, libc::POSIX_FADV_WILLNEED)));
        }
        std::thread::sleep(Duration::from_secs(2));

        let begin = Instant::now();
        assert!(fs::read(mounted.join("cached")).unwrap() == bytes);

        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    });
}

fn advise(file: &File, offset: u64, length: u64, advice: i32) {
    // SAFETY: only an open descriptor and numbers are passed.
    let failed = unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as i64, length as i64, advice) };
    assert_eq!(failed, 0);
}
