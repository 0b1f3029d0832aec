//! Finding mounts and showing their state: `status`, `status --watch`, `list` and the metrics.

mod common;

use common::mounted::{Mounted, PROGRAM, run, stderr};
use common::pty::Pty;
use common::source::{Fault, Resource, Source};
use common::{eventually, eventually_within};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The entry of the mount at `directory` in `list --json`.
fn listed(directory: &Path) -> Option<serde_json::Value> {
    let all: Vec<serde_json::Value> = serde_json::from_str(&stdout(&run(&["list", "--json"]))).unwrap();
    all.into_iter().find(|mount| mount["directory"] == directory.to_str().unwrap())
}

fn is_in_state(directory: &Path, state: &str) -> bool {
    listed(directory).is_some_and(|mount| mount["state"] == state)
}

/// A process of this test; ended with it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn one_file(options: &str) -> (Source, Mounted) {
    let source = Source::start();
    source.put("a", Resource::new(vec![3; 100_000]));
    let mounted = Mounted::new(&source.url(), options);
    (source, mounted)
}

/// Runs the program where no other mount of ours is seen than the one at `seen`, as user `user`.
fn run_alone(seen: Option<&Mounted>, user: Option<u32>, arguments: &[&str]) -> Output {
    let scratch = tempfile::tempdir().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = scratch.path().join("resyncfs");
    fs::copy(PROGRAM, &program).unwrap();
    let seen = seen.map(|mounted| mounted.path().display().to_string()).unwrap_or_default();
    let become_user =
        user.map(|user| format!("setpriv --reuid={user} --regid={user} --clear-groups")).unwrap_or_default();
    // What other tests start meanwhile is written down, too.
    let hide = if seen.is_empty() { "mount -t tmpfs tmpfs /run" } else { "true" };
    let script = format!(
        "mount --make-rprivate / && {hide} && \
         awk '$0 ~ / fuse.resyncfs / {{ print $5 }}' /proc/self/mountinfo | while read -r found; do \
         [ \"$found\" = '{seen}' ] || umount -l \"$found\"; done; \
         exec {become_user} {} \"$@\"",
        program.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).args(arguments);
    command.output().unwrap()
}

#[test]
fn without_a_folder_every_mount_is_told() {
    let (_first_source, first) = one_file("poll=1h");
    let (_second_source, second) = one_file("poll=1h");

    let screens = stdout(&run(&["status"]));
    let all: Vec<serde_json::Value> = serde_json::from_str(&stdout(&run(&["status", "--json"]))).unwrap();

    for mounted in [&first, &second] {
        let directory = mounted.path().to_str().unwrap().to_owned();
        assert!(screens.contains(&directory), "{screens}");
        assert!(all.iter().any(|status| status["directory"] == directory && status["process"] == mounted.pid()));
    }
}

#[test]
fn a_mount_is_listed_alive_silent_and_dead_and_no_look_hangs() {
    let (source, mounted) = one_file("poll=1h");
    let directory = mounted.path();

    let alive = listed(&directory).unwrap();
    assert_eq!((&alive["state"], &alive["process"]), (&"alive".into(), &mounted.pid().into()));
    assert_eq!((&alive["source"], &alive["user"], &alive["uid"]), (&source.url().into(), &"root".into(), &0.into()));
    let table = stdout(&run(&["list"]));
    let line = table.lines().find(|line| line.contains(directory.to_str().unwrap())).unwrap();
    assert!(line.contains(&source.url()) && line.contains("root") && line.ends_with("alive"), "{line}");

    mounted.signal(libc::SIGSTOP);
    eventually("it is listed as silent", || is_in_state(&directory, "silent"));
    let hanging = run(&["status", directory.to_str().unwrap()]);
    assert!(stderr(&hanging).contains("does not answer"), "{}", stderr(&hanging));
    let (shown, file) = (directory.to_str().unwrap(), directory.join("a").display().to_string());
    let uri = format!("{}a", source.url());
    let orders: [&[&str]; 6] = [
        &["refresh", shown],
        &["prefetch", &file],
        &["evict", &file],
        &["uri", &file],
        &["path", "--in", shown, &uri],
        &["audit", shown],
    ];
    std::thread::scope(|scope| {
        for order in orders {
            scope.spawn(move || {
                let hanging = run(order);
                assert!(stderr(&hanging).contains("does not answer"), "{order:?}: {}", stderr(&hanging));
            });
        }
    });
    mounted.signal(libc::SIGCONT);
    eventually("it is listed as alive again", || is_in_state(&directory, "alive"));

    mounted.signal(libc::SIGKILL);
    eventually("it is listed as dead", || is_in_state(&directory, "dead"));
    let dead = run(&["status", directory.to_str().unwrap()]);
    assert_eq!(dead.status.code(), Some(5));
    assert!(stderr(&dead).contains("has died") && stderr(&dead).contains("resyncfs unmount"), "{}", stderr(&dead));

    mounted.kill();
    assert_eq!(listed(&directory), None);
}

#[test]
fn a_mount_that_makes_its_first_tree_is_listed_as_starting() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    source.fault("resourcelist.xml", Fault::StallHead(Duration::from_secs(60)), 1);
    let mounted = Mounted::prepared(&source.list_url(), "poll=1h");
    let starting = Running(mounted.command("--foreground").stderr(Stdio::null()).spawn().unwrap());

    eventually("it is listed as starting", || is_in_state(&mounted.path(), "starting"));

    assert_eq!(listed(&mounted.path()).unwrap()["process"], starting.0.id());
    drop(starting);
    assert_eq!(listed(&mounted.path()), None, "what was never mounted leaves nothing behind");
}

#[test]
fn a_starting_mount_shows_how_far_it_is() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    source.fault("resourcelist.xml", Fault::StallHead(Duration::from_secs(60)), 1);
    let mounted = Mounted::prepared(&source.list_url(), "poll=1h");
    let _starting = Running(mounted.command("--foreground").stderr(Stdio::null()).spawn().unwrap());
    let directory = mounted.path().to_str().unwrap().to_owned();
    let status = |flags: &[&str]| run(&[&["status"], flags, &[&*directory]].concat());

    eventually("its status is there", || status(&["--json"]).status.success());

    let text = stdout(&status(&[]));
    assert!(text.contains(&format!("Starting at  {directory} since ")) && text.contains("First tree   "), "{text}");
    assert!(!text.contains("Revision"), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&status(&["--json"]).stdout).unwrap();
    assert!(!json["starting"].is_null(), "{json}");
    let check = status(&["--check"]);
    assert_eq!(check.status.code(), Some(1), "{}", String::from_utf8_lossy(&check.stdout));
    let refresh = run(&["refresh", &directory]);
    assert_eq!(refresh.status.code(), Some(5));
    assert!(stderr(&refresh).contains(&format!("resyncfs status {directory} shows how far")), "{}", stderr(&refresh));
}

#[test]
fn a_download_under_way_is_shown_with_its_part() {
    let source = Source::start();
    source.put("film", Resource::new(vec![7; 40 << 20]));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    source.fault("film", Fault::Held(4 << 20), 1);
    File::open(mounted.join("film")).unwrap().read_exact(&mut [0; 4096]).unwrap();

    eventually("its bytes are counted", || mounted.status()["downloads"][0]["bytes"].as_u64() >= Some(1 << 20));
    let (json, text) = (mounted.status(), stdout(&run(&["status", mounted.path().to_str().unwrap()])));
    source.mend();

    let download = &json["downloads"][0];
    assert_eq!(
        (&download["uri"], &download["of_bytes"]),
        (&format!("{}film", source.url()).into(), &(40 << 20).into())
    );
    assert!(text.contains(&format!("Under way    {}film: ", source.url())) && text.contains(" of 41.9 MB ("), "{text}");
}

#[test]
fn mounts_with_one_cache_folder_show_the_same_use_of_it() {
    let (source, first) = one_file("poll=1h");
    let second = Mounted::with_cache(&source.url(), "poll=1h,include=a", first.cache());
    fs::read(first.join("a")).unwrap();

    let used = |mounted: &Mounted| mounted.status()["cache"]["bytes"].as_u64().unwrap();

    eventually("both show the same", || used(&first) == used(&second) && used(&first) > 100_000);
}

/// As logind removes the folder of a user with the last session.
#[test]
fn a_mount_is_found_again_after_its_record_was_removed() {
    let (_source, mounted) = one_file("poll=1h");
    let device = fs::metadata(mounted.path()).unwrap().dev();
    let record = format!("/run/resyncfs/{}:{}.json", libc::major(device), libc::minor(device));

    fs::remove_file(&record).unwrap();

    eventually_within(Duration::from_secs(30), "the record is written again", || Path::new(&record).exists());
    assert!(run(&["status", mounted.path().to_str().unwrap()]).status.success());
    assert!(is_in_state(&mounted.path(), "alive"));
}

/// As Nagios and its like read it: a state, a line, and the exit code.
#[test]
fn a_check_is_one_line_and_an_exit_code() {
    let (source, mounted) = one_file("poll=1h");
    let directory = mounted.path();
    let directory = directory.to_str().unwrap();
    let check = || {
        let output = run(&["status", "--check", directory]);
        assert_eq!(stderr(&output), "");
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        (output.status.code(), text)
    };
    let says = |(code, text): (Option<i32>, String), expected: i32, begins: &str, has: &str| {
        let is_it =
            code == Some(expected) && text.starts_with(begins) && text.contains(directory) && text.contains(has);
        assert!(is_it, "{code:?}: {text}");
    };

    says(check(), 0, "RESYNCFS OK - ", "in step, 1 file");
    let figures = check().1;
    assert!(figures.contains(" | files=1 cache=") && figures.contains(" refresh_failures=0\n"), "{figures}");

    source.remove("a");
    mounted.try_refresh().unwrap();
    says(check(), 1, "RESYNCFS WARNING - ", "1 unconfirmed deletion");

    source.fault("resourcelist.xml", Fault::Status(404, String::new()), u64::MAX);
    mounted.try_refresh().unwrap_err();
    says(check(), 2, "RESYNCFS CRITICAL - ", "404");

    mounted.unmount();
    says(check(), 2, "RESYNCFS CRITICAL - ", "no resyncfs mount there");
}

/// Refreshes are due much later, and all that is shown is in step still.
#[test]
fn a_check_warns_of_a_host_that_does_not_answer() {
    let source = Source::start();
    let names = ["a", "b", "c", "d"];
    names.iter().for_each(|name| source.put(name, Resource::new(*name)));
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    names.iter().for_each(|name| source.fault(name, Fault::StallHead(Duration::ZERO), u64::MAX));
    names.iter().for_each(|name| drop(fs::read(mounted.join(name)).unwrap_err()));

    let output = run(&["status", "--check", mounted.path().to_str().unwrap()]);

    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("RESYNCFS WARNING - ") && text.contains(" does not answer"), "{text}");
}

#[test]
fn a_mount_without_xattrs_is_found_all_the_same() {
    let (_source, mounted) = one_file("poll=1h,noxattr");

    assert_eq!(mounted.status()["revision"]["files"], 1);
}

/// Each command says what to do when there is no mount, or none that one may ask.
#[test]
fn without_a_mount_each_command_says_what_to_do() {
    let none = run_alone(None, None, &["status"]);
    assert_eq!(none.status.code(), Some(5), "{}", stderr(&none));
    assert!(stderr(&none).contains("mount a Source with: resyncfs mount SOURCE DIR"), "{}", stderr(&none));

    for command in ["status", "refresh", "unmount"] {
        let nowhere = run_alone(None, None, &[command, "/"]);
        assert_eq!(nowhere.status.code(), Some(5), "{command}: {}", stderr(&nowhere));
        assert!(stderr(&nowhere).contains("resyncfs mount SOURCE DIR"), "{command}: {}", stderr(&nowhere));
    }
    let empty = run_alone(None, None, &["list"]);
    assert_eq!(stdout(&empty), "");
    assert!(stderr(&empty).contains("resyncfs mount SOURCE DIR"), "{}", stderr(&empty));

    let (_source, mounted) = one_file("poll=1h");
    let around = mounted.path().parent().unwrap().to_owned();
    fs::set_permissions(&around, fs::Permissions::from_mode(0o755)).unwrap();
    let stranger = run_alone(Some(&mounted), Some(65534), &["status", mounted.path().to_str().unwrap()]);
    assert_eq!(stranger.status.code(), Some(8), "{}", stderr(&stranger));
    assert!(stderr(&stranger).contains("only that user and root can query it"), "{}", stderr(&stranger));
    assert_eq!(stranger.stdout, b"");
    // The mounts of others are no failure of one's own.
    for arguments in [&["status"][..], &["status", "--watch"]] {
        let stranger = run_alone(Some(&mounted), Some(65534), arguments);
        assert_eq!((stranger.status.code(), stdout(&stranger)), (Some(0), String::new()), "{}", stderr(&stranger));
        assert!(stderr(&stranger).contains("you have no mounts"), "{}", stderr(&stranger));
    }
    let unmount = run_alone(Some(&mounted), Some(65534), &["unmount", mounted.path().to_str().unwrap()]);
    assert_eq!(unmount.status.code(), Some(8), "{}", stderr(&unmount));
    assert!(stderr(&unmount).contains("only root and the user who mounted it may unmount it"), "{}", stderr(&unmount));
    let listing = run_alone(Some(&mounted), Some(65534), &["list"]);
    assert!(stdout(&listing).contains(mounted.path().to_str().unwrap()), "{}", stdout(&listing));
}

#[test]
fn reads_hosts_and_errors_are_counted() {
    let source = Source::start();
    source.put("a", Resource::new(vec![3; 100_000]));
    source.put("b", Resource::new("right"));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    source.fault("b", Fault::Body(b"wrong".to_vec()), u64::MAX);

    fs::read(mounted.join("a")).unwrap();
    fs::read(mounted.join("b")).unwrap_err();

    let before = mounted.status();
    let cache = &before["cache"];
    assert!(cache["misses"].as_u64().unwrap() >= 1 && cache["miss_bytes"] == 100_000, "{before}");
    assert!(cache["failed_reads"].as_u64().unwrap() >= 1 && cache["failed_fetches"].as_u64().unwrap() >= 1, "{before}");
    assert_eq!((&cache["fetched_bytes"], &cache["hits"]), (&100_000.into(), &0.into()), "{before}");
    assert!(cache["bytes"].as_u64().unwrap() >= 100_000 && cache["quota"].as_u64().unwrap() > 0, "{before}");
    let host = &before["hosts"][0];
    assert_eq!(format!("http://{}/", host["host"].as_str().unwrap()), source.url());
    assert!(host["requests"].as_u64().unwrap() >= 3 && host["bytes"].as_u64().unwrap() >= 100_000, "{before}");
    assert_eq!(before["errors"][0]["uri"], format!("{}b", source.url()));
    assert!(before["errors"][0]["why"].as_str().unwrap().contains("sha-256"), "{before}");

    // Without the kernel's pages, from the cache.
    mounted.remount();
    fs::read(mounted.join("a")).unwrap();
    let after = mounted.status();
    assert_eq!((&after["cache"]["hit_bytes"], &after["cache"]["misses"]), (&100_000.into(), &0.into()), "{after}");
}

#[test]
fn a_failed_refresh_and_its_host_are_shown() {
    let (source, mounted) = one_file("poll=1h");
    source.fault("resourcelist.xml", Fault::Status(404, String::new()), u64::MAX);
    mounted.try_refresh().unwrap_err();

    let status = mounted.status();

    assert!(status["hosts"][0]["refusals"].as_u64().unwrap() >= 1, "{status}");
    assert_eq!(status["sync"]["failed_refreshes"], 1);
    let error = status["errors"].as_array().unwrap().iter().find(|error| error["uri"].is_null()).unwrap();
    assert!(error["why"].as_str().unwrap().contains("404"), "{status}");
}

/// Samples by name and labels, as strictly read as Prometheus does (exposition format 0.0.4): each family has HELP and TYPE,
/// once, before its samples, which stand together.
fn exposition(text: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    let mut families = BTreeSet::new();
    let mut family: Option<(String, String)> = None;
    let mut helped: Option<String> = None;
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("no help: {line}"));
            assert!(!help.is_empty() && families.insert(name.to_owned()), "twice: {line}");
            helped = Some(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(helped.take().as_deref(), Some(name), "{line}");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            family = Some((name.to_owned(), kind.to_owned()));
        } else {
            let (family, kind) = family.as_ref().unwrap_or_else(|| panic!("no family: {line}"));
            let (series, value) = line.rsplit_once(' ').unwrap();
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
            assert!(value.is_finite() && (kind == "gauge" || value >= 0.0), "{line}");
            let name = series.split('{').next().unwrap();
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|suffix| name == format!("{family}{suffix}")), "{line} in {family}");
            assert!(
                name.starts_with("resyncfs_") && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
                "{line}"
            );
            if let Some(labels) = series.strip_prefix(name).filter(|labels| !labels.is_empty()) {
                check_labels(labels);
            }
            assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    assert_eq!(helped, None);
    samples
}

/// `{name="value",…}` with `\\`, `\"` and `\n` as the only escapes.
fn check_labels(labels: &str) {
    let mut rest = labels.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap();
    loop {
        let (name, quoted) = rest.split_once("=\"").unwrap_or_else(|| panic!("{labels}"));
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{labels}");
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next().unwrap_or_else(|| panic!("never closed: {labels}")) {
                (at, '"') => break at,
                (_, '\\') => assert!(matches!(characters.next(), Some((_, '\\' | '"' | 'n'))), "{labels}"),
                _ => {}
            }
        };
        rest = &quoted[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return assert_eq!(rest, "", "{labels}"),
        }
    }
}

fn curl(arguments: &[&str]) -> String {
    stdout(&Command::new("curl").args(["-sS", "--fail-with-body"]).args(arguments).output().unwrap())
}

#[test]
fn prometheus_reads_metrics_on_the_socket_and_a_loopback_port() {
    let (source, mounted) = one_file("poll=1h,metrics-listen=127.0.0.1:0");
    let of_mount = mounted.status();
    let url = format!("http://{}/metrics", of_mount["metrics"].as_str().unwrap());
    let socket = Command::new("getfattr")
        .args(["--absolute-names", "--only-values", "-n", "user.resyncfs.control"])
        .arg(mounted.path())
        .output()
        .unwrap();
    let socket = String::from_utf8(socket.stdout).unwrap();

    let before = exposition(&curl(&[&url]));
    fs::read(mounted.join("a")).unwrap();
    mounted.try_refresh().unwrap();
    let after = exposition(&curl(&["--unix-socket", &socket, "http://localhost/metrics"]));

    for (series, value) in before.iter().filter(|(series, _)| series.contains("_total")) {
        assert!(after[series] >= *value, "{series} went back");
    }
    let host = source.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    for (series, value) in [
        ("resyncfs_files".to_owned(), 1.0),
        ("resyncfs_published_bytes".to_owned(), 100_000.0),
        ("resyncfs_read_bytes_total{result=\"miss\"}".to_owned(), 100_000.0),
        ("resyncfs_fetches_total".to_owned(), 1.0),
        ("resyncfs_refreshes_total{outcome=\"failed\"}".to_owned(), 0.0),
        (format!("resyncfs_http_breaker_open{{host=\"{host}\"}}"), 0.0),
    ] {
        assert_eq!(after.get(&series), Some(&value), "{series}");
    }
    for series in [
        format!("resyncfs_http_requests_total{{host=\"{host}\"}}"),
        format!("resyncfs_http_latency_seconds_count{{host=\"{host}\"}}"),
        "resyncfs_refreshes_total{outcome=\"succeeded\"}".to_owned(),
        "resyncfs_mounted_timestamp_seconds".to_owned(),
        "resyncfs_cache_quota_bytes".to_owned(),
    ] {
        assert!(after.get(&series).is_some_and(|value| *value >= 1.0), "{series}: {after:?}");
    }
    for (method, path, status) in [("GET", "status", "404"), ("POST", "refresh", "404"), ("POST", "metrics", "405")] {
        let url = url.replace("metrics", path);
        let answered = Command::new("curl")
            .args(["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, &url])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&answered.stdout), status, "{method} {path}: the port answers nothing else");
    }
}

#[test]
fn metrics_are_served_at_a_written_address_alone() {
    let source = Source::start();
    let mounted = Mounted::prepared(&source.url(), "metrics-listen=9464");
    let refused = mounted.command("--foreground").stderr(Stdio::piped()).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("is not an address and a port"), "{}", stderr(&refused));

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mounted = Mounted::prepared(&source.url(), &format!("metrics-listen={}", taken.local_addr().unwrap()));
    let refused = mounted.command("--foreground").stderr(Stdio::piped()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("-o metrics-listen=HOST:PORT"), "{}", stderr(&refused));
}

const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

fn ended(running: &mut Running) -> i32 {
    let mut code = None;
    eventually("the program has ended", || {
        code = running.0.try_wait().unwrap();
        code.is_some()
    });
    code.unwrap().code().unwrap()
}

#[test]
fn a_watched_screen_follows_the_mount_and_restores_the_terminal() {
    let (_source, mounted) = one_file("poll=1h");
    let mut pty = Pty::new(60);
    let settings = pty.settings();
    let mut watch = Running(pty.run(&["status", "--watch", mounted.path().to_str().unwrap()]));

    eventually("it is drawn again", || pty.seen().matches("\x1b[H").count() >= 2);
    assert!(pty.seen().starts_with(ENTER), "{:?}", pty.seen());
    assert!(pty.seen().contains("Now          read "), "rates: {:?}", pty.seen());
    fs::read(mounted.join("a")).unwrap();
    // A line continues below its text.
    let joined = || pty.seen().replace('\r', "").replace("\x1b[K\n             ", " ");
    eventually("what was read is shown", || joined().contains("1 from the Source (100.0 kB)"));

    pty.resize(5);
    eventually("the smaller window is filled", || pty.seen().contains("more lines"));

    pty.outside.write_all(b"\x03").unwrap();
    assert_eq!(ended(&mut watch), 0);
    eventually("the terminal is left", || pty.seen().ends_with(LEAVE));
    assert_eq!(pty.settings(), settings);
}

#[test]
fn a_watched_screen_ends_with_its_mount() {
    let (_source, mounted) = one_file("poll=1h");
    let pty = Pty::new(60);
    let mut watch = Running(pty.run(&["status", "--watch", mounted.path().to_str().unwrap()]));
    eventually("it is drawn", || pty.seen().contains("Revision"));

    mounted.unmount();

    assert_eq!(ended(&mut watch), 5);
    eventually("the terminal is left before it says why", || {
        pty.seen().rsplit_once(LEAVE).is_some_and(|(_, after)| after.contains("the mount has ended"))
    });
}

#[test]
fn a_watched_screen_in_a_file_has_no_escapes() {
    let (_source, mounted) = one_file("poll=1h");
    let scratch = tempfile::tempdir().unwrap();
    let file: PathBuf = scratch.path().join("screens");
    let mut watch = Command::new(PROGRAM);
    watch.args(["status", "--watch"]).arg(mounted.path()).stdout(File::create(&file).unwrap());
    let mut watch = Running(watch.spawn().unwrap());

    eventually("two screens are written", || fs::read_to_string(&file).unwrap().matches("Source       ").count() >= 2);
    // SAFETY: kill(2) has no memory preconditions; the process is this test's own child, not yet waited for.
    unsafe { libc::kill(watch.0.id() as i32, libc::SIGTERM) };

    assert_eq!(ended(&mut watch), 0);
    assert!(!fs::read_to_string(&file).unwrap().contains('\x1b'));
}
