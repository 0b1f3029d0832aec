//! A running mount answers requests for its status and for a refresh: from its own commands and from curl.

mod common;

use common::eventually;
use common::mounted::{Mounted, PROGRAM};
use common::source::{Fault, Resource, Source, URLSET};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

fn run(arguments: &[&str], directory: &Path) -> Output {
    Command::new(PROGRAM).args(arguments).arg(directory).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn socket(mounted: &Mounted) -> PathBuf {
    let value = Command::new("getfattr")
        .args(["--absolute-names", "--only-values", "-n", "user.resyncfs.control"])
        .arg(mounted.path())
        .output()
        .unwrap();
    PathBuf::from(String::from_utf8(value.stdout).unwrap())
}

fn status(mounted: &Mounted) -> serde_json::Value {
    serde_json::from_str(&stdout(&run(&["status", "--json"], &mounted.path()))).unwrap()
}

#[test]
fn a_refresh_answers_when_the_change_can_be_seen() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    source.put("b", Resource::new("more"));

    let refreshed = stdout(&run(&["refresh"], &mounted.path()));

    assert_eq!(refreshed, "1 file new, 0 changed, 0 with new metadata only, 0 deleted\n");
    assert_eq!(fs::read(mounted.join("b")).unwrap(), b"more");
    assert_eq!(stdout(&run(&["refresh"], &mounted.path())), "nothing has changed\n");
}

/// Promise: never a stuck process. Who waits for what a mount was asked learns that it hangs.
#[test]
fn a_mount_that_stops_during_a_request_is_reported() {
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

        assert_eq!(output.status.code(), Some(1), "{command}: {}", stderr(&output));
        assert!(stderr(&output).contains("does not answer"), "{command}: {}", stderr(&output));
        source.mend();
        assert!(run(&["refresh"], &mounted.path()).status.success());
    }
}

#[test]
fn a_refresh_requests_its_list_once() {
    for entry in ["sitemap.xml", "resourcelist.xml", ""] {
        let source = Source::start();
        source.put("a", Resource::new("one"));
        source.put("b", Resource::new("two"));
        let sitemap = |paths: &[&str]| {
            let url = |path: &&str| format!("<url><loc>{}{path}</loc></url>", source.url());
            format!("{URLSET}{}</urlset>", paths.iter().map(url).collect::<String>())
        };
        source.document("sitemap.xml", sitemap(&["a"]));
        if entry.is_empty() {
            source.fault(".well-known/resourcesync", Fault::Status(404, String::new()), u64::MAX);
            let robots = format!("Sitemap: {}sitemap.xml\n", source.url());
            source.page("robots.txt", Resource { media_type: "text/plain".into(), ..Resource::bare(robots) });
        }
        let mounted = Mounted::new(&format!("{}{entry}", source.url()), "poll=1h");
        let list = if entry.is_empty() { "sitemap.xml" } else { entry };
        let requests = || {
            source.take_log();
            stdout(&run(&["refresh"], &mounted.path()));
            source.requests_of(list).into_iter().map(|logged| logged.status).collect::<Vec<_>>()
        };

        assert_eq!(requests(), [304], "{entry:?}");
        source.document("sitemap.xml", sitemap(&["a", "b"]));
        source.put("c", Resource::new("three"));

        assert_eq!(requests(), [200], "{entry:?}");
        eventually("what is new is listed", || {
            mounted.join(if entry == "resourcelist.xml" { "c" } else { "b" }).exists()
        });
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
    assert!(stderr(&output).contains("resourcelist.xml") && stderr(&output).contains("404"), "{}", stderr(&output));
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
}

/// What `command` has printed on standard error after at most `patience`; it runs on.
fn printed_within(patience: Duration, what: &str, command: &mut Command) -> (Child, Receiver<String>) {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (sender, lines) = mpsc::channel();
    let output = BufReader::new(child.stderr.take().unwrap());
    std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let first = lines.recv_timeout(patience).unwrap_or_default();
    assert!(first.contains(what), "{what:?} is not in {first:?}");
    (child, lines)
}

/// A person who waits for a refresh learns within 5 s why it takes long.
#[test]
fn a_refresh_that_waits_for_its_source_says_why() {
    for (fault, what) in
        [(Fault::Status(500, String::new()), "answered 500"), (Fault::Status(503, String::new()), "answered 503")]
    {
        let source = Source::start();
        source.put("a", Resource::new("bytes"));
        let mounted = Mounted::new(&source.list_url(), "poll=1h");
        source.fault("resourcelist.xml", fault, u64::MAX);

        let mut refresh = Command::new(PROGRAM);
        let (mut child, lines) =
            printed_within(Duration::from_secs(5), what, refresh.arg("refresh").arg(mounted.path()));
        let screen = stdout(&run(&["status"], &mounted.path()));
        source.mend();

        assert!(screen.contains("trying again") && screen.contains("resourcelist.xml"), "{screen}");
        assert!(child.wait().unwrap().success());
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), Vec::<String>::new(), "one message for one reason");
    }
}

/// Messages of the library have times too: they are shown as all others are, in the zone of the person or in UTC.
#[test]
fn times_in_messages_are_local_or_utc() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.list_url(), "at=2020-05-01T10:00:00.25Z");

    for (option, zone, expected) in [
        ("--verbose", "Asia/Tokyo", "has no list as old as 2020-05-01 19:00:00:"),
        ("--utc", "Asia/Tokyo", "has no list as old as 2020-05-01 10:00:00 UTC:"),
    ] {
        let refused = mounted.command("-f").arg(option).env("TZ", zone).output().unwrap();

        assert_eq!(refused.status.code(), Some(4), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(expected), "{expected:?} in {}", stderr(&refused));
    }
}

#[test]
fn the_status_shows_the_tree_and_the_last_refresh() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    source.put("b", Resource::new("more"));
    stdout(&run(&["refresh"], &mounted.path()));

    let screen = stdout(&run(&["status"], &mounted.path()));
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
fn the_socket_is_private_and_goes_with_the_mount() {
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
fn a_cache_folder_deeper_than_a_socket_address_works() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let scratch = tempfile::tempdir().unwrap();
    let cache = scratch.path().join("d".repeat(120));

    let mounted = Mounted::with_cache(&source.url(), "", &cache);

    assert_eq!(status(&mounted)["revision"]["files"], 1);
}

/// Each command says what to do when there is no such mount, a dead one, or one of another user.
#[test]
fn a_request_that_cannot_be_made_says_what_to_do() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");

    let none = run(&["status"], Path::new("/"));
    assert_eq!(none.status.code(), Some(5));
    assert!(stderr(&none).contains("nothing of resyncfs is mounted there; mounted are: "), "{}", stderr(&none));

    // The folder around the mount is private to this test: let another user reach the mount.
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
    assert_eq!(stranger.status.code(), Some(8), "{}", stderr(&stranger));
    assert!(stderr(&stranger).contains("only root and the user who mounted it may ask"), "{}", stderr(&stranger));

    mounted.signal(libc::SIGKILL);
    let mut dead = run(&["refresh"], &mounted.path());
    eventually("the process has died", || {
        dead = run(&["refresh"], &mounted.path());
        stderr(&dead).contains("has died")
    });
    assert_eq!(dead.status.code(), Some(5));
    assert!(stderr(&dead).contains("resyncfs unmount"), "{}", stderr(&dead));
}
