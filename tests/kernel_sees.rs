//! What running processes see of the changes of a Change List: each its own view, none a mixture.

mod common;

use common::changing::{ChangingSource, Style};
use common::eventually;
use common::mounted::Mounted;
use common::slices::{shortest_slice, slices_of};
use common::source::Resource;
use std::ffi::{CString, c_void};
use std::fs;
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

/// A Source of these resources and its mount.
fn mounted(resources: &[(&str, &str)]) -> (ChangingSource, Mounted) {
    let resources = resources.iter().map(|(path, text)| ((*path).to_owned(), Resource::new(*text)));
    let source = ChangingSource::start(Style::Rolling(1000), resources);
    let mounted = Mounted::new(&source.source().url(), "poll=1h,max-delete=100");
    (source, mounted)
}

/// Publishes the changes and refreshes. Only the change document may be read: no list has them.
fn publish(source: &mut ChangingSource, mounted: &Mounted) {
    source.publish();
    mounted.try_refresh().unwrap();
}

fn names(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_open_file_keeps_its_bytes_and_a_new_open_has_the_new_ones() {
    let (mut source, mounted) = mounted(&[("a", "old bytes")]);
    let mut open = fs::File::open(mounted.join("a")).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();

    source.pass(60);
    source.put("a", Resource::new("new, and longer"));
    publish(&mut source, &mounted);

    open.seek(SeekFrom::Start(0)).unwrap();
    let mut again = String::new();
    open.read_to_string(&mut again).unwrap();
    assert_eq!((text.as_str(), again.as_str()), ("old bytes", "old bytes"));
    assert_eq!(open.metadata().unwrap().len(), 9);
    assert_eq!(fs::read_to_string(mounted.join("a")).unwrap(), "new, and longer");
    assert_eq!(fs::metadata(mounted.join("a")).unwrap().len(), 15);
}

/// The log warns of no request that common programs make.
#[test]
fn requests_of_common_programs_all_have_handlers() {
    let (_source, mounted) = mounted(&[("d/a", "bytes")]);
    assert_eq!(names(&mounted.join("d")), ["a"]);
    let file = fs::File::open(mounted.join("d/a")).unwrap();

    // As Python does at each open.
    assert!(!file.is_terminal());
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENOTTY));
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)).unwrap();
    drop(file);

    assert!(!mounted.said().contains("Not Implemented"), "{}", mounted.said());
}

#[test]
fn fuse_threads_and_the_invalidator_have_short_slices() {
    let (_source, mounted) = mounted(&[("a", "bytes")]);

    for name in ["fuser-0", "fuser-1", "invalidator"] {
        eventually(name, || slices_of(mounted.pid(), name) == [shortest_slice()]);
    }
}

/// A file that is open and was never read: its old bytes do not exist any more.
#[test]
fn an_open_file_without_its_bytes_is_stale() {
    let (mut source, mounted) = mounted(&[("a", "old bytes")]);
    let mut open = fs::File::open(mounted.join("a")).unwrap();

    source.pass(60);
    source.put("a", Resource::new("new bytes"));
    publish(&mut source, &mounted);

    let stale = open.read_to_string(&mut String::new()).unwrap_err();
    assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
    assert_eq!(fs::read_to_string(mounted.join("a")).unwrap(), "new bytes");
}

/// A page of a file mapped into memory.
struct Mapped {
    address: *mut c_void,
    length: usize,
}

impl Mapped {
    fn of(file: &fs::File) -> Mapped {
        let length = file.metadata().unwrap().len() as usize;
        // SAFETY: the kernel chooses the address; the descriptor is open and `length` is the file's.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Mapped { address, length }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `length` bytes long, readable, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.length) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the mapping, which nothing uses any more.
        unsafe { libc::munmap(self.address, self.length) };
    }
}

#[test]
fn a_mapped_file_keeps_its_bytes() {
    let (mut source, mounted) = mounted(&[("a", "old bytes"), ("b", "b")]);
    let mapped = Mapped::of(&fs::File::open(mounted.join("a")).unwrap());
    assert_eq!(mapped.bytes(), b"old bytes");

    source.pass(60);
    source.put("a", Resource::new("new bytes"));
    publish(&mut source, &mounted);

    assert_eq!(mapped.bytes(), b"old bytes");
    let again = Mapped::of(&fs::File::open(mounted.join("a")).unwrap());
    assert_eq!(again.bytes(), b"new bytes");
    source.pass(60);
    source.delete("a");
    publish(&mut source, &mounted);
    assert_eq!((mapped.bytes(), again.bytes()), (&b"old bytes"[..], &b"new bytes"[..]));
}

#[test]
fn a_deleted_name_is_gone_and_who_has_the_file_open_reads_on() {
    let (mut source, mounted) = mounted(&[("f/a", "a"), ("f/b", "b"), ("g/c", "c")]);
    let mut open = fs::File::open(mounted.join("f/a")).unwrap();
    assert_eq!(fs::read(mounted.join("f/a")).unwrap(), b"a");

    source.pass(60);
    source.delete("f/a");
    source.delete("g/c");
    publish(&mut source, &mounted);

    assert_eq!(names(&mounted.join("f")), ["b"]);
    assert_eq!(fs::metadata(mounted.join("f/a")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(names(&mounted.path()), ["f"], "a folder goes with its last file");
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "a");
}

#[test]
fn a_new_name_is_visible_although_it_was_looked_for_before() {
    let (mut source, mounted) = mounted(&[("f/a", "a")]);
    for path in ["f/b", "h/c", "d"] {
        assert!(fs::metadata(mounted.join(path)).is_err(), "the kernel now knows that there is no {path}");
    }
    assert_eq!(names(&mounted.path()), ["f"]);

    source.pass(60);
    for path in ["f/b", "h/c", "d"] {
        source.put(path, Resource::new(path));
    }
    publish(&mut source, &mounted);

    for path in ["f/b", "h/c", "d"] {
        assert_eq!(fs::read_to_string(mounted.join(path)).unwrap(), path);
    }
    assert_eq!(names(&mounted.path()), ["d", "f", "h"]);
}

#[test]
fn a_process_in_a_folder_sees_it_change() {
    let (mut source, mounted) = mounted(&[("f/a", "a")]);
    let mut shell = Command::new("bash")
        .current_dir(mounted.join("f"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let open = fs::File::open(mounted.join("f")).unwrap();

    source.pass(60);
    source.put("f/b", Resource::new("b"));
    source.delete("f/a");
    publish(&mut source, &mounted);

    shell.stdin.take().unwrap().write_all(b"ls; cat b; exit\n").unwrap();
    let output = shell.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "b\nb");
    assert_eq!(names(std::path::Path::new(&format!("/proc/self/fd/{}", open.as_raw_fd()))), ["b"]);
}

#[test]
fn tail_of_a_name_follows_it_to_the_new_file() {
    let (mut source, mounted) = mounted(&[("log", "first\n")]);
    let seen = tempfile::NamedTempFile::new().unwrap();
    let mut tail = Command::new("tail")
        .args(["--follow=name", "--retry", "--sleep-interval=0.05", "---disable-inotify"])
        .arg(mounted.join("log"))
        .stdout(seen.reopen().unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let text = || fs::read_to_string(seen.path()).unwrap();
    eventually("tail has read the first version", || text() == "first\n");

    source.pass(60);
    source.put("log", Resource::new("first\nsecond\n"));
    publish(&mut source, &mounted);

    // To tail the new version is a file that has replaced the old one: it is shown from its beginning.
    eventually("tail shows the new file", || text() == "first\nfirst\nsecond\n");
    tail.kill().unwrap();
    tail.wait().unwrap();
}

#[test]
fn a_folder_becomes_a_file_and_a_folder_again() {
    let (mut source, mounted) = mounted(&[("x/a", "a"), ("x/b", "b"), ("y", "y")]);
    let mut open = fs::File::open(mounted.join("x/a")).unwrap();
    assert_eq!(fs::read(mounted.join("x/a")).unwrap(), b"a");
    assert_eq!(names(&mounted.join("x")), ["a", "b"]);

    source.pass(60);
    source.delete("x/a");
    source.delete("x/b");
    source.put("x", Resource::new("a file"));
    publish(&mut source, &mounted);

    assert_eq!(fs::read_to_string(mounted.join("x")).unwrap(), "a file");
    assert_eq!(fs::metadata(mounted.join("x/a")).unwrap_err().raw_os_error(), Some(libc::ENOTDIR));
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "a");

    source.pass(60);
    source.delete("x");
    source.put("x/a", Resource::new("a again"));
    publish(&mut source, &mounted);

    assert_eq!(names(&mounted.join("x")), ["a"]);
    assert_eq!(fs::read_to_string(mounted.join("x/a")).unwrap(), "a again");
}

/// A resource that is also a prefix of others: the name of what was there already changes, and its inode does not.
#[test]
fn a_file_that_becomes_a_prefix_of_others_is_renamed_and_back() {
    let (mut source, mounted) = mounted(&[("x", "the file")]);
    let mut open = fs::File::open(mounted.join("x")).unwrap();

    source.pass(60);
    source.put("x/a", Resource::new("below"));
    publish(&mut source, &mounted);

    assert_eq!(names(&mounted.path()), ["x", "x%file"]);
    assert_eq!(fs::read_to_string(mounted.join("x/a")).unwrap(), "below");
    assert_eq!(fs::read_to_string(mounted.join("x%file")).unwrap(), "the file");
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "the file");

    source.pass(60);
    source.delete("x/a");
    publish(&mut source, &mounted);

    assert_eq!(names(&mounted.path()), ["x"]);
    assert_eq!(fs::read_to_string(mounted.join("x")).unwrap(), "the file");
}

/// `ls -l` asks for a label and an ACL of each name. If there are none of their kind, it asks once, and not twice for each of
/// a million names.
#[test]
fn labels_and_acls_are_not_merely_absent() {
    const FILES: usize = 20;
    /// What is asked of one name: a label and two ACLs, each by the kernel twice at most.
    const MOST_ASKED: usize = 6;
    let names: Vec<_> = (0..FILES).map(|number| format!("f{number}")).collect();
    let resources = names.iter().map(|name| (name.clone(), Resource::new("bytes")));
    let source =
        ChangingSource::start(Style::Rolling(1000), resources.chain([("a".to_owned(), Resource::new("bytes"))]));
    // The log has each refused attribute.
    let mounted = Mounted::prepared(&source.source().url(), "poll=1h")
        .with_environment("RESYNCFS_LOG", "info,resyncfs::fs=debug");
    mounted.start();
    let refused = || mounted.said().lines().filter(|line| line.contains("getxattr: ")).count();
    let path = CString::new(mounted.join("a").as_os_str().as_bytes()).unwrap();
    for (name, errno) in [
        ("security.selinux", libc::EOPNOTSUPP),
        ("security.capability", libc::EOPNOTSUPP),
        ("system.posix_acl_access", libc::EOPNOTSUPP),
        ("user.none", libc::ENODATA),
    ] {
        let attribute = CString::new(name).unwrap();
        // SAFETY: both are C strings, and there is no buffer to be written.
        let answered = unsafe { libc::getxattr(path.as_ptr(), attribute.as_ptr(), std::ptr::null_mut(), 0) };
        assert_eq!((answered, io::Error::last_os_error().raw_os_error()), (-1, Some(errno)), "{name}");
    }
    let before = refused();
    assert!(before >= 4, "{}", mounted.said());

    let listed = Command::new("ls").arg("-l").arg(mounted.path()).output().unwrap();

    assert!(listed.status.success() && listed.stderr.is_empty(), "{listed:?}");
    let asked = refused() - before;
    assert!((1..=MOST_ASKED).contains(&asked), "{asked} attributes of {FILES} names: {}", mounted.said());
}
