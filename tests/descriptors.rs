//! A mount that another process makes: it opens /dev/fuse, mounts it, and hands over the descriptor as `/dev/fd/N`. So does the driver
//! of a cluster's node for a container without rights, and fusermount3 for a program.

mod common;

use common::mounted::PROGRAM;
use common::source::{Resource, Source};
use common::{eventually, tree};
use serde_json::Value;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// What a driver asks the kernel for; `fd` and the users are added.
const OPTIONS: &str = "rootmode=40000,default_permissions,allow_other";

/// A folder with something in it, which a mount hides, and a cache folder.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let scratch = tempfile::Builder::new().prefix("resyncfs-given-").tempdir().unwrap();
        fs::create_dir(scratch.path().join("mnt")).unwrap();
        fs::write(scratch.path().join("mnt/beneath"), "").unwrap();
        Place(scratch)
    }

    fn mnt(&self) -> PathBuf {
        self.0.path().join("mnt")
    }

    /// Opens the device and mounts it, as type `kind` and with further options.
    fn mounted(&self, kind: &str, further: &str) -> File {
        let device = open();
        mount(&device, &self.mnt(), kind, further);
        device
    }

    fn unmount(&self, flags: i32) -> bool {
        let target = CString::new(self.mnt().as_os_str().as_bytes()).unwrap();
        // SAFETY: the string ends with NUL and outlives the call.
        unsafe { libc::umount2(target.as_ptr(), flags) == 0 }
    }

    /// The program, which inherits `given` as `number`.
    fn program(&self, source: &str, given: &File, number: RawFd, foreground: bool) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("mount").args(foreground.then_some("--foreground"));
        command.args(["--cache".as_ref(), self.0.path().join("cache").as_os_str()]).args(["--poll", "1h"]);
        command.arg(source).arg(format!("/dev/fd/{number}")).stdin(Stdio::null()).stdout(Stdio::null());
        let given = given.as_raw_fd();
        // SAFETY: between fork and exec nothing is done but system calls with numbers.
        unsafe {
            command.pre_exec(move || {
                match if given == number { libc::fcntl(given, libc::F_SETFD, 0) } else { libc::dup2(given, number) } {
                    -1 => Err(std::io::Error::last_os_error()),
                    _ => Ok(()),
                }
            });
        }
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while self.unmount(libc::MNT_DETACH) {}
    }
}

fn open() -> File {
    File::options().read(true).write(true).open("/dev/fuse").unwrap()
}

fn mount(device: &File, folder: &Path, kind: &str, further: &str) {
    let text = |text: &str| CString::new(text).unwrap();
    let options = text(&format!("fd={},user_id=0,group_id=0,{OPTIONS}{further}", device.as_raw_fd()));
    let (source, kind) = (text("a-driver"), text(kind));
    let target = CString::new(folder.as_os_str().as_bytes()).unwrap();
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: all strings end with NUL and outlive the call.
    let mounted =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) };
    assert_eq!(mounted, 0, "{}", std::io::Error::last_os_error());
}

fn source() -> Source {
    let source = Source::start();
    source.put("a.txt", Resource::new("first"));
    source.put("folder/b.txt", Resource::new("second"));
    // Its size is asked for when it is opened.
    source.put("bare.txt", Resource::bare("third"));
    source
}

fn published(source: &Source) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    source.published().into_iter().map(|(path, bytes)| (PathBuf::from(path), bytes)).collect()
}

fn ends(program: &mut Child) -> i32 {
    let mut code = None;
    eventually("the program ends", || {
        code = program.try_wait().unwrap();
        code.is_some()
    });
    code.unwrap().code().unwrap_or(-1)
}

fn command(words: &[&str]) -> Output {
    Command::new(PROGRAM).args(words).output().unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What `resyncfs list` says of the mount of a process.
fn listed(process: u32) -> Option<Value> {
    let all: Value = serde_json::from_slice(&command(&["list", "--json"]).stdout).unwrap();
    all.as_array().unwrap().iter().find(|it| it["process"] == process).cloned()
}

#[test]
fn a_mount_of_another_process_is_served_and_left_to_it() {
    let (source, place) = (source(), Place::new());
    let device = place.mounted("fuse.resyncfs", "");
    let mut program = place.program(&source.list_url(), &device, 77, true).spawn().unwrap();
    // Older kernels do not show which mount a descriptor has.
    let shown = match fs::read_to_string(format!("/proc/self/fdinfo/{}", device.as_raw_fd())).unwrap() {
        its if its.contains("fuse_connection:") => place.mnt().display().to_string(),
        _ => format!("/proc/{}/fd/77", program.id()),
    };
    drop(device);

    assert_eq!(tree(&place.mnt()), published(&source));
    eventually("it is listed", || listed(program.id()).is_some_and(|it| it["state"] == "alive"));
    let listed = listed(program.id()).unwrap();
    assert_eq!(listed["directory"], shown, "{listed}");
    source.put("new.txt", Resource::new("new"));
    let refreshed = command(&["refresh", &shown]);
    assert!(refreshed.status.success(), "{}", errors(&refreshed));
    assert_eq!(tree(&place.mnt()), published(&source));
    let status = command(&["status", &shown]);
    assert!(String::from_utf8_lossy(&status.stdout).contains(&source.list_url()), "{}", errors(&status));

    assert!(place.unmount(0));

    assert_eq!(ends(&mut program), 0);
    assert!(place.mnt().join("beneath").exists(), "only what was mounted is gone");
}

/// As where the driver mounts on the node and the container sees nothing of it.
#[test]
fn a_mount_that_is_not_seen_is_found_by_its_descriptor() {
    let (source, place) = (source(), Place::new());
    let device = open();
    let number = device.as_raw_fd();
    let script = format!(
        "import ctypes, time; c = ctypes.CDLL(None); \
         print(c.mount(b'a-driver', b'{}', b'fuse', 7, b'fd={number},user_id=0,group_id=0,{OPTIONS}'), flush=True); time.sleep(600)",
        place.mnt().display(),
    );
    let mut node = Command::new("unshare");
    node.args(["--mount", "python3", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped());
    // SAFETY: between fork and exec nothing is done but a system call with numbers.
    unsafe {
        node.pre_exec(move || {
            libc::fcntl(number, libc::F_SETFD, 0);
            Ok(())
        })
    };
    let mut node = node.spawn().unwrap();
    let mut answer = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(node.stdout.take().unwrap()), &mut answer).unwrap();
    assert_eq!(answer, "0\n");
    let mut program = place.program(&source.list_url(), &device, number, true).spawn().unwrap();
    drop(device);

    let seen = PathBuf::from(format!("/proc/{}/root{}", node.id(), place.mnt().display()));
    assert_eq!(tree(&seen), published(&source));
    assert!(place.mnt().join("beneath").exists());
    let name = format!("/proc/{}/fd/{number}", program.id());
    eventually("it is listed", || listed(program.id()).is_some_and(|it| it["state"] == "alive"));
    assert_eq!(listed(program.id()).unwrap()["directory"], name);
    source.put("new.txt", Resource::new("new"));
    let refreshed = command(&["refresh", &name]);
    assert!(refreshed.status.success(), "{}", errors(&refreshed));
    assert_eq!(tree(&seen), published(&source));
    let status: Value = serde_json::from_slice(&command(&["status", "--json", &name]).stdout).unwrap();
    assert_eq!(status["directory"], name, "{status}");
    assert!(errors(&command(&["unmount", &name])).contains("no resyncfs mount there"));

    // The node's namespace ends with its only process, and the mount with it. It holds the device too.
    node.kill().unwrap();
    node.wait().unwrap();
    assert_eq!(ends(&mut program), 0);
    assert_eq!(listed(program.id()), None);
}

#[test]
fn a_manager_is_notified_and_a_signal_ends_a_given_mount() {
    let (source, place) = (source(), Place::new());
    let socket = place.0.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let device = place.mounted("fuse.resyncfs", "");
    let mut program = place.program(&source.list_url(), &device, 5, true);
    let mut program = program.env("NOTIFY_SOCKET", &socket).spawn().unwrap();
    drop(device);
    let mut message = [0; 4096];
    let mut is_ready = || {
        let length = manager.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).contains("READY=1")
    };
    while !is_ready() {}
    assert_eq!(fs::read(place.mnt().join("a.txt")).unwrap(), b"first");

    // SAFETY: kill(2) has no memory preconditions; the process is this test's own child, not yet waited for.
    unsafe { libc::kill(program.id() as i32, libc::SIGTERM) };

    assert_eq!(ends(&mut program), 0);
    assert_eq!(fs::read(place.mnt().join("folder/b.txt")).unwrap_err().kind(), ErrorKind::NotConnected);
    assert!(place.unmount(0), "the process that mounted it unmounts it");
}

#[test]
fn in_the_background_the_command_returns_once_the_tree_is_there() {
    let (source, place) = (source(), Place::new());
    let device = place.mounted("fuse.resyncfs", "");

    let output = place.program(&source.list_url(), &device, 9, false).stderr(Stdio::piped()).output().unwrap();

    assert!(output.status.success(), "{}", errors(&output));
    drop(device);
    assert_eq!(tree(&place.mnt()), published(&source));
    assert!(place.unmount(0));
    eventually("nothing serves it any more", || {
        let all: Value = serde_json::from_slice(&command(&["list", "--json"]).stdout).unwrap();
        all.as_array().unwrap().iter().all(|it| it["directory"] != place.mnt().display().to_string())
    });
}

#[test]
fn a_descriptor_that_cannot_be_served_is_refused() {
    let (source, place) = (source(), Place::new());
    let refused = |given: &File, number: RawFd, word: &str| {
        let mut program = place.program(&source.list_url(), given, number, true);
        if !word.is_empty() {
            program = Command::new(PROGRAM);
            program.args(["mount", "--foreground", &source.list_url(), word]);
        }
        let output = program.stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{}", errors(&output));
        assert_eq!(errors(&output).trim_end().lines().count(), 1, "{}", errors(&output));
        errors(&output)
    };

    let unmounted = refused(&open(), 8, "");
    assert!(unmounted.contains("/dev/fd/8: is a FUSE device without a mount"), "{unmounted}");
    let standard = refused(&open(), 0, "");
    assert!(standard.contains("/dev/fd/0: is standard input"), "{standard}");
    let other = refused(&File::open("/dev/null").unwrap(), 8, "");
    assert!(other.contains("/dev/fd/8: is not an open /dev/fuse"), "{other}");
    let folder = refused(&File::open("/").unwrap(), 8, "");
    assert!(folder.contains("/dev/fd/8: is not an open /dev/fuse"), "{folder}");
    let closed = refused(&File::open("/").unwrap(), 8, "/dev/fd/4711");
    assert!(closed.contains("/dev/fd/4711: is not open"), "{closed}");
    for word in ["/dev/fd/", "/dev/fd", "/dev/fd/x", "/dev/fd/70000", "/dev/fd/3/below"] {
        let numberless = refused(&File::open("/").unwrap(), 8, word);
        assert!(numberless.contains(&format!("{word}: is not a descriptor")), "{numberless}");
    }
    assert_eq!(source.log(), []);
}

#[test]
fn a_first_tree_that_fails_ends_the_connection() {
    let (source, place) = (source(), Place::new());
    source.fault("resourcelist.xml", common::source::Fault::Status(404, String::new()), u64::MAX);
    let device = place.mounted("fuse.resyncfs", "");
    let mut program = place.program(&source.list_url(), &device, 6, true).stderr(Stdio::null()).spawn().unwrap();
    drop(device);

    assert_ne!(ends(&mut program), 0);
    assert_eq!(fs::metadata(place.mnt().join("a.txt")).unwrap_err().kind(), ErrorKind::NotConnected);
}

/// The descriptor comes through a socket, as each program gets it that uses fusermount3.
#[test]
fn a_descriptor_of_fusermount3_is_served() {
    let (source, place) = (source(), Place::new());
    let script = r#"
import array, os, socket, subprocess, sys
folder, *program = sys.argv[1:]
ours, theirs = socket.socketpair()
options = "ro,nosuid,nodev,subtype=resyncfs,fsname=a-driver,default_permissions"
subprocess.run(["fusermount3", "-o", options, "--", folder], check=True, pass_fds=[theirs.fileno()],
               env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())})
_, fds, _, _ = socket.recv_fds(ours, 1, 1)
os.set_inheritable(fds[0], True)
os.execv(program[0], [*program, f"/dev/fd/{fds[0]}"])
"#;
    let mut program = Command::new("python3");
    program.args(["-c", script]).arg(place.mnt()).args([PROGRAM, "mount", "--foreground", "--cache"]);
    program.arg(place.0.path().join("cache")).arg(source.list_url());
    let mut program = program.spawn().unwrap();

    eventually("it is mounted", || fs::read_to_string("/proc/mounts").unwrap().contains(place.mnt().to_str().unwrap()));
    assert_eq!(tree(&place.mnt()), published(&source));
    let shown = place.mnt().display().to_string();
    eventually("it is listed", || listed(program.id()).is_some_and(|it| it["state"] == "alive"));
    let unmounted = command(&["unmount", &shown]);
    assert!(unmounted.status.success(), "{}", errors(&unmounted));
    assert_eq!(ends(&mut program), 0);
}
