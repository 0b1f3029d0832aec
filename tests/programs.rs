//! Programs by name: those for which nothing is fetched (`deny=`), and which read how much.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::source::{Resource, Source};
use common::{eventually, rounds};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Longer than the 15 bytes that the kernel keeps of it.
const THUMBNAILER: &str = "thumbnail-maker-of-some-desktop";

/// `cat` under another name, in a folder of its own.
struct Program {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Program {
    fn named(name: &str) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::copy("/bin/cat", &path).unwrap();
        Program { _folder: folder, path }
    }

    fn reads(&self, file: &Path) -> Output {
        Command::new(&self.path).arg(file).output().unwrap()
    }

    fn is_refused(&self, file: &Path) {
        let output = self.reads(file);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains("Permission denied"), "{}: {error}", file.display());
        assert_eq!(output.stdout, b"");
    }

    fn is_given(&self, file: &Path, bytes: &[u8]) {
        let output = self.reads(file);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, bytes);
    }
}

/// Runs `look` in a thread of that name.
fn in_thread<T: Send>(name: &str, look: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        std::thread::Builder::new().name(name.into()).spawn_scoped(scope, look).unwrap().join().unwrap()
    })
}

#[test]
fn a_denied_program_reads_cached_files_only() {
    let source = Source::start();
    let bytes = vec![7; 300_000];
    source.put("sized", Resource::new(bytes.clone()));
    source.put("bare", Resource::bare("of unknown length"));
    let mounted = Mounted::new(&source.url(), &format!("poll=1h,deny={THUMBNAILER},deny=other"));
    let thumbnailer = Program::named(THUMBNAILER);
    source.wait_for_quiet();
    source.take_log();

    thumbnailer.is_refused(&mounted.join("sized"));
    // open(2) asks for its size already.
    thumbnailer.is_refused(&mounted.join("bare"));
    assert_eq!(source.log(), [], "nothing was asked for");

    // Others are not refused.
    assert_eq!(fs::read(mounted.join("sized")).unwrap(), bytes);
    assert_eq!(fs::read(mounted.join("bare")).unwrap(), b"of unknown length");

    thumbnailer.is_given(&mounted.join("sized"), &bytes);
    // Without the kernel's pages.
    mounted.remount();
    thumbnailer.is_given(&mounted.join("sized"), &bytes);
    thumbnailer.is_given(&mounted.join("bare"), b"of unknown length");
}

#[test]
fn a_denied_program_has_no_sizes_asked_for() {
    let source = Source::start();
    for number in 0..20 {
        source.put(&format!("f{number:02}"), Resource::bare(format!("bytes {number}")));
    }
    let mounted = Mounted::new(&source.url(), "poll=1h,deny=thumbnailer");
    let thumbnailer = Program::named("thumbnailer");
    source.wait_for_quiet();
    source.take_log();

    for number in 0..6 {
        thumbnailer.is_refused(&mounted.join(&format!("f{number:02}")));
    }

    source.wait_for_quiet();
    assert_eq!(source.log(), []);
}

#[test]
fn a_thread_is_denied_by_its_own_name_too() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "poll=1h,deny=thumb-worker");
    let file = mounted.join("a");

    let refused = in_thread("thumb-worker", || fs::read(&file));
    let given = in_thread("other-worker", || fs::read(&file));

    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(given.unwrap(), b"bytes");
}

/// Readers of the same pages at the same time: a refusal fails pages that the others wait for, and they get them all the same.
#[test]
fn a_refusal_disturbs_no_other_reader_of_the_file() {
    let source = Source::start();
    let mounted = Mounted::new(&source.url(), "poll=1h,deny=thumb-worker");
    for round in 0..rounds() {
        let name = format!("file-{round}");
        let bytes: Vec<u8> = (0..1_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        source.put(&name, Resource::new(bytes.clone()));
        mounted.try_refresh().unwrap();
        let file = mounted.join(&name);
        std::thread::scope(|scope| {
            for number in 0..8 {
                let is_denied = number % 2 == 0;
                let thread = if is_denied { "thumb-worker" } else { "reader" };
                let (file, bytes) = (&file, &bytes);
                let read = move || match fs::read(file) {
                    Ok(read) => assert!(read == *bytes, "wrong bytes"),
                    Err(cause) => {
                        assert!(is_denied, "an allowed reader fails: {cause}");
                        assert_eq!(cause.kind(), io::ErrorKind::PermissionDenied);
                    }
                };
                std::thread::Builder::new().name(thread.into()).spawn_scoped(scope, read).unwrap();
            }
        });
    }
}

#[test]
fn status_shows_which_programs_read_how_much() {
    let source = Source::start();
    source.put("a", Resource::new(vec![1; 200_000]));
    source.put("b", Resource::new("b"));
    let mounted = Mounted::new(&source.url(), "poll=1h,deny=curious");
    let (reader, curious) = (Program::named("some-reader"), Program::named("curious"));

    reader.is_given(&mounted.join("a"), &[1; 200_000]);
    curious.is_refused(&mounted.join("b"));

    let status = mounted.status();
    let of = |name: &str| {
        let programs = status["programs"].as_array().unwrap();
        programs.iter().find(|program| program["program"] == name).unwrap_or_else(|| panic!("{name}: {status}")).clone()
    };
    assert!(of("some-reader")["bytes"].as_u64().unwrap() >= 200_000, "{status}");
    assert!(of("curious")["denied"].as_u64().unwrap() >= 1, "{status}");
    assert_eq!(of("curious")["bytes"], 0);
    assert_eq!(status["denied"], serde_json::json!(["curious"]));
    eventually("the screen shows it too", || {
        let output = Command::new(PROGRAM).arg("status").arg(mounted.path()).output().unwrap();
        let screen = String::from_utf8_lossy(&output.stdout).into_owned();
        ["some-reader: 200.0 kB", "page cache are not counted", "nothing is downloaded for curious"]
            .iter()
            .all(|part| screen.contains(part))
    });
}
