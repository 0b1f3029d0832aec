//! A running mount answers requests for its status and for a refresh: from its own commands and from curl.

mod common;

use common::eventually;
use common::mounted::{Mounted, PROGRAM, stderr};
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

fn socket(mounted: &Mounted) -> PathBuf {
    let value = Command::new("getfattr")
        .args(["--absolute-names", "--only-values", "-n", "user.resyncfs.control"])
        .arg(mounted.path())
        .output()
        .unwrap();
    PathBuf::from(String::from_utf8(value.stdout).unwrap())
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

/// The Source is down: each address and each cause is said once.
#[test]
fn a_refresh_and_a_prefetch_of_a_source_that_is_down_are_brief() {
    let source = Source::start();
    (0..9).for_each(|number| source.put(&format!("a/{number}"), Resource::new(format!("file {number}"))));
    let mounted = Mounted::new(&source.url(), "poll=1h,timeout=2s,connect-timeout=1s");
    drop(source);

    let (fetched, refreshed) = (run(&["prefetch"], &mounted.path()), run(&["refresh"], &mounted.path()));

    let last = stderr(&refreshed).lines().last().unwrap_or_default().to_owned();
    assert!(last.matches("cannot connect").count() == 1 && last.len() < 250, "{last}");
    assert!(!last.contains("whole Source or nothing"), "{last}");
    let lines = stderr(&fetched);
    assert!(lines.contains("8 more files failed for the same reason"), "{lines}");
    assert_eq!(lines.matches("cannot connect").count(), 1, "{lines}");
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
    let json = mounted.status();

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
    assert_eq!(mounted.status()["process"], mounted.pid());

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

    assert_eq!(mounted.status()["revision"]["files"], 1);
}

/// Each command says what to do when there is no such mount, a dead one, or one of another user.
#[test]
fn a_request_that_cannot_be_made_says_what_to_do() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");

    let none = run(&["status"], Path::new("/"));
    assert_eq!(none.status.code(), Some(5));
    assert!(stderr(&none).contains("no resyncfs mount there; current mounts: "), "{}", stderr(&none));

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
    assert!(stderr(&stranger).contains("only that user and root can query it"), "{}", stderr(&stranger));

    mounted.signal(libc::SIGKILL);
    let mut dead = run(&["refresh"], &mounted.path());
    eventually("the process has died", || {
        dead = run(&["refresh"], &mounted.path());
        stderr(&dead).contains("has died")
    });
    assert_eq!(dead.status.code(), Some(5));
    assert!(stderr(&dead).contains("resyncfs unmount"), "{}", stderr(&dead));
}

/// A program that waits in a read; ended with the test.
struct Reading(Child);

impl Drop for Reading {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Source of so many files, each of whose answers announces a limit.
fn announcing(files: usize, limit: &str, remaining: &str) -> Source {
    let source = Source::start();
    for number in 0..files {
        let headers =
            format!("X-RateLimit-Limit: {limit}\r\nX-RateLimit-Remaining: {remaining}\r\nX-RateLimit-Reset: 30\r\n");
        source.put(&format!("d/{number}"), Resource { headers, ..Resource::new(format!("file {number}")) });
    }
    source
}

/// What a request over the control socket answers within two seconds.
fn asked(mounted: &Mounted, path: &str, body: &str) -> String {
    let mut curl = Command::new("curl");
    curl.args(["-sSN", "--max-time", "2", "--unix-socket"]).arg(socket(mounted));
    curl.args(["-H", "Content-Type: application/json"]);
    if !body.is_empty() {
        curl.args(["-d", body]);
    }
    String::from_utf8(curl.arg(format!("http://localhost/{path}")).output().unwrap().stdout).unwrap()
}

#[test]
fn a_limit_that_holds_readers_back_is_shown() {
    let source = announcing(40, "20", "0");
    let mounted = Mounted::new(&source.url(), "poll=1h,readahead=0");
    assert_eq!(fs::read(mounted.join("d/0")).unwrap(), b"file 0");
    let read = |number: usize| {
        Reading(Command::new("cat").arg(mounted.join(&format!("d/{number}"))).stdout(Stdio::null()).spawn().unwrap())
    };
    let _reading = [1, 2, 3].map(read);

    eventually("three readers wait", || mounted.status()["hosts"][0]["waiting_readers"] == 3);

    let host = &mounted.status()["hosts"][0];
    assert_eq!((&host["limit_requests"], &host["remaining_requests"]), (&20.into(), &0.into()), "{host}");
    assert!(host["limit_window_ms"].as_u64().is_some_and(|it| (20_000..=31_000).contains(&it)), "{host}");
    assert!(host["paced_for_ms"].as_u64().is_some_and(|it| it > 0), "{host}");
    let text = stdout(&run(&["status"], &mounted.path()));
    let name = host["host"].as_str().unwrap();
    let line = text.lines().find(|line| line.starts_with("Paced")).unwrap_or_else(|| panic!("{text}"));
    let (before, time) = line.rsplit_once(" next at ").unwrap();
    assert!(before.starts_with(&format!("Paced        by {name}: ")) && before.contains(" a minute, 3 readers wait,"));
    assert!(time.len() == 8 && time.as_bytes()[2] == b':', "{line}");
    let metrics = asked(&mounted, "metrics", "");
    let paced = metrics.lines().find(|line| line.starts_with("resyncfs_http_paced_seconds")).unwrap();
    assert!(paced.contains(name) && !paced.ends_with(" 0"), "{paced}");
    let prefetch = asked(&mounted, "prefetch", r#"{"paths":[""]}"#);
    let mut pace = prefetch.lines().filter_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(line["progress"]["pace"].clone()).filter(|pace| !pace.is_null())
    });
    let pace = pace.next_back().unwrap_or_else(|| panic!("{prefetch}"));
    assert_eq!(pace["host"], name);
    assert!(pace["least_s"].as_u64().is_some_and(|it| it > 30), "{pace}");
    // Its readers end with it.
    mounted.kill();
}

#[test]
fn an_audit_and_explore_count_the_limit_of_the_host() {
    let source = announcing(120, "60", "59");
    source.pause(Duration::from_millis(100));
    let mounted = Mounted::new(&source.url(), "poll=1h");

    let audit = asked(&mounted, "audit", r#"{"fetch":true}"#);

    let is_paced = |line: &str| line.contains("\"requests_per_minute\":120,") && line.contains("\"least_s\":");
    assert!(audit.lines().any(is_paced), "{audit}");
    let explored = Command::new(PROGRAM).args(["explore", &source.url()]).output().unwrap();
    let text = stdout(&explored);
    assert!(
        text.contains("limit      this host allows 120 requests a minute; grep -r of all takes about 59 s"),
        "{text}"
    );
    assert!(text.contains("grep -r    about 59 s"), "{text}");
    let json = stdout(&Command::new(PROGRAM).args(["explore", "--json", &source.url()]).output().unwrap());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["pace"]["limit_requests"], &json["pace"]["limit_window_s"]), (&60.into(), &30.into()), "{json}");
    assert_eq!(json["pace"]["reading_s"], 59, "{json}");
}
