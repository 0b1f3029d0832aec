//! A running mount is asked how it stands, and told to look: by its own commands and by curl.

mod common;

use common::eventually;
use common::mounted::{Mounted, PROGRAM};
use common::source::{Fault, Resource, Source};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str], directory: &Path) -> Output {
    Command::new(PROGRAM).args(arguments).arg(directory).output().unwrap()
}

fn told(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn socket(mounted: &Mounted) -> PathBuf {
    let told = Command::new("getfattr")
        .args(["--absolute-names", "--only-values", "-n", "user.resyncfs.control"])
        .arg(mounted.path())
        .output()
        .unwrap();
    PathBuf::from(String::from_utf8(told.stdout).unwrap())
}

fn status(mounted: &Mounted) -> serde_json::Value {
    serde_json::from_str(&told(&run(&["status", "--json"], &mounted.path()))).unwrap()
}

#[test]
fn a_refresh_answers_when_the_change_can_be_seen() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    source.put("b", Resource::new("more"));

    let refreshed = told(&run(&["refresh"], &mounted.path()));

    assert_eq!(refreshed, "1 file new, 0 changed, 0 with new metadata only, 0 deleted\n");
    assert_eq!(fs::read(mounted.join("b")).unwrap(), b"more");
    assert_eq!(told(&run(&["refresh"], &mounted.path())), "nothing has changed\n");
}

/// Promise: never a stuck process. Who waits for what a mount was asked learns that it hangs.
#[test]
fn a_mount_that_stops_in_the_middle_of_what_it_was_asked_is_told_of() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    for command in ["refresh", "audit"] {
        source.put(command, Resource::new("new"));
        source.fault("resourcelist.xml", Fault::Held(10), 1);
        source.take_log();
        let mut asking = Command::new(PROGRAM);
        let asking =
            asking.arg(command).arg(mounted.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("it is under way", || !source.requests_of("resourcelist.xml").is_empty());

        mounted.signal(libc::SIGSTOP);
        let output = asking.wait_with_output().unwrap();
        mounted.signal(libc::SIGCONT);

        assert_eq!(output.status.code(), Some(1), "{command}: {}", said(&output));
        assert!(said(&output).contains("does not answer"), "{command}: {}", said(&output));
        source.mend();
        assert!(run(&["refresh"], &mounted.path()).status.success());
    }
}

#[test]
fn a_refresh_that_fails_says_why_and_exits_with_1() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    source.fault("resourcelist.xml", Fault::Status(404, String::new()), u64::MAX);

    let output = run(&["refresh"], &mounted.path());

    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("resourcelist.xml") && said(&output).contains("404"), "{}", said(&output));
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
}

#[test]
fn the_status_tells_what_is_shown_and_what_came_of_the_last_look() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    source.put("b", Resource::new("more"));
    told(&run(&["refresh"], &mounted.path()));

    let screen = told(&run(&["status"], &mounted.path()));
    let json = status(&mounted);

    for part in [&format!("Source       {}", source.url()), "2 files", "1 file new", mounted.path().to_str().unwrap()] {
        assert!(screen.contains(part), "{part:?} is missing in:\n{screen}");
    }
    assert_eq!((&json["revision"]["files"], &json["process"]), (&2.into(), &mounted.pid().into()));
    assert_eq!(json["sync"]["last_refresh"]["outcome"]["committed"]["created"], 1);
}

#[test]
fn curl_can_ask_too() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl").args(["-sS", "--unix-socket"]).arg(socket(&mounted)).args(arguments).output();
        serde_json::from_slice::<serde_json::Value>(&output.unwrap().stdout).unwrap()
    };

    let status = curl(&["http://localhost/status"]);
    let refreshed = curl(&["-X", "POST", "http://localhost/refresh"]);
    let accepted = curl(&["-d", "{\"accept_deletions\":true}", "http://localhost/refresh"]);
    let wrong = curl(&["-d", "{\"accept_deletion\":true}", "http://localhost/refresh"]);

    assert_eq!(status["source"], source.url());
    assert_eq!(refreshed["refreshed"]["outcome"], "unchanged");
    assert_eq!(accepted["refreshed"]["outcome"], "unchanged");
    assert!(wrong["error"].as_str().unwrap().contains("accept_deletion"), "{wrong}");
}

#[test]
fn the_socket_is_its_owners_replaces_a_dead_one_and_goes_with_the_mount() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");
    let socket = socket(&mounted);

    let metadata = fs::metadata(&socket).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.mode() & 0o777, 0o600);

    mounted.kill();
    assert!(socket.exists(), "a process that was killed cannot tidy up");
    mounted.start();
    assert_eq!(status(&mounted)["process"], mounted.pid());

    mounted.unmount();
    assert!(!socket.exists());
}

#[test]
fn a_cache_folder_deeper_than_a_sockets_path_can_be_is_no_hindrance() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let scratch = tempfile::tempdir().unwrap();
    let cache = scratch.path().join("d".repeat(120));

    let mounted = Mounted::with_cache(&source.url(), "", &cache);

    assert_eq!(status(&mounted)["revision"]["files"], 1);
}

/// Each command says what to do when there is no such mount, a dead one, or one that belongs to somebody else.
#[test]
fn what_cannot_be_asked_says_what_to_do() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");

    let none = run(&["status"], Path::new("/"));
    assert_eq!(none.status.code(), Some(5));
    assert!(said(&none).contains("nothing of resyncfs is mounted there; mounted are: "), "{}", said(&none));

    // The folder around the mount is this test's own: somebody else must be able to come as far as the mount.
    let around = mounted.path().parent().unwrap().to_owned();
    fs::set_permissions(&around, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = around.join("resyncfs");
    fs::copy(PROGRAM, &program).unwrap();
    let stranger = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .arg("refresh")
        .arg(mounted.path())
        .output()
        .unwrap();
    assert_eq!(stranger.status.code(), Some(8), "{}", said(&stranger));
    assert!(said(&stranger).contains("only root and the user who mounted it may ask"), "{}", said(&stranger));

    mounted.signal(libc::SIGKILL);
    let mut dead = run(&["refresh"], &mounted.path());
    eventually("the process has died", || {
        dead = run(&["refresh"], &mounted.path());
        said(&dead).contains("has died")
    });
    assert_eq!(dead.status.code(), Some(5));
    assert!(said(&dead).contains("resyncfs unmount"), "{}", said(&dead));
}
