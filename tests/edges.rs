//! What is printed, named and kept of hostile or careless input, and what a stalled client costs.

mod common;

use common::eventually;
use common::mounted::{Mounted, PROGRAM, run};
use common::source::{Source, URLSET};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn all_said(output: &Output) -> String {
    [&*output.stdout, &*output.stderr].map(|said| String::from_utf8_lossy(said).into_owned()).concat()
}

/// A Resource List of these entries, as written, at the Source's own.
fn publish(source: &Source, entries: &str) {
    let md = "<rs:md capability=\"resourcelist\" at=\"2024-06-01T00:00:00Z\"/>";
    source.document("resourcelist.xml", format!("{URLSET}{md}{entries}</urlset>"));
}

fn entry(loc: &str) -> String {
    format!("<url><loc>{loc}</loc><rs:md length=\"5\"/></url>")
}

/// What a person cannot see in a name stays escaped, and the name leads back to its address.
#[test]
fn invisible_characters_stay_escaped_in_names() {
    let source = Source::start();
    let hidden = [
        "%C2%AD",
        "%D8%9C",
        "%E1%A0%8E",
        "%E2%80%A8",
        "%E2%80%A9",
        "%E2%81%A0",
        "%E2%81%AA",
        "%E3%85%A4",
        "%EF%B8%8F",
        "%EF%BF%B9",
        "%EF%BF%BB",
        "%F0%9D%85%B3",
        "%F3%A0%80%81",
        "%F3%A0%81%81",
        "%F3%A0%81%BF",
        "%F3%A0%84%80",
    ];
    let shown = [("%C2%A0", "\u{a0}"), ("%C3%A9", "é"), ("%F0%9F%98%80", "\u{1f600}")];
    let entries = hidden.iter().copied().chain(shown.map(|(escape, _)| escape));
    publish(&source, &entries.map(|it| entry(&format!("{}a{it}b", source.url()))).collect::<String>());

    let mounted = Mounted::new(&source.list_url(), "");

    let names: BTreeSet<String> =
        fs::read_dir(mounted.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let expected: BTreeSet<String> =
        hidden.iter().copied().chain(shown.map(|(_, it)| it)).map(|it| format!("a{it}b")).collect();
    assert_eq!(names, expected);
    for escape in hidden {
        let uri = format!("{}a{escape}b", source.url());
        let path = mounted.join(&format!("a{escape}b"));
        let output = run(&["uri", path.to_str().unwrap()]);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), uri, "{}", all_said(&output));
    }
}

/// JSON keeps its meaning; its text shows no control and nothing invisible.
#[test]
fn json_output_escapes_controls_and_invisible_characters() {
    let source = Source::start();
    let odd = "\u{9b}31m\u{85}\u{ad}\u{2028}\u{202e}\u{e0041}";
    publish(&source, &(entry(&format!("{}a", source.url())) + &entry(&format!("{}b{odd}", source.url()))));

    let mounted = Mounted::new(&source.list_url(), "");
    let directory = mounted.path().display().to_string();
    let list = source.list_url();

    for arguments in [
        &["explore", "--json", &list][..],
        &["status", "--json", &directory],
        &["list", "--json"],
        &["audit", "--json", &directory],
        &["audit", "--manifest=jsonl", &directory],
    ] {
        let output = run(arguments);
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(
            !text.is_empty() && text.is_ascii() | !odd.chars().any(|c| text.contains(c)),
            "{arguments:?}: {text:?}"
        );
        for line in text.lines().filter(|_| !arguments.contains(&"audit")) {
            serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
    }
    let explored = String::from_utf8(run(&["explore", "--json", &list]).stdout).unwrap();
    assert!(explored.contains("\\u009b31m\\u0085\\u00ad\\u2028\\u202e\\udb40\\udc41"), "{explored}");
}

/// A user name and password are never repeated, even from a text that is not an address.
#[test]
fn no_output_repeats_user_and_password() {
    let source = Source::start();
    let addresses = [
        "http://user:secretpw@127.0.0.1:1/x",
        "http:/user:secretpw@h/",
        "http:user:secretpw@h/",
        "user:secretpw@h/x",
        "http://user:sec/retpw@h/x",
        "http://user:secret pw@h/x",
        "ftp://user:secretpw@h/",
        "//user:secretpw@h/",
        "http://user:secretpw@h:99999/",
        "http://user:secretpw@/x",
        "http://user:secretpw@[::1",
        "http:\\\\user:secretpw@h\\x",
        "file://user:secretpw@h/x",
    ];
    // The others are references to paths of the Source's own host, or names.
    let published = || addresses.into_iter().filter(|address| address.contains("//"));
    let links: String = published().map(|it| format!("<rs:ln rel=\"collection\" href=\"{it}\"/>")).collect();
    let entries: String = published().chain(["user:secretpw@h/x"]).map(entry).collect();
    publish(&source, &format!("{}<url><loc>{}a</loc>{links}</url>{entries}", entry("b"), source.url()));
    let list = source.list_url();
    let mounted = Mounted::new(&list, "");
    let directory = mounted.path().display().to_string();

    let mut runs: Vec<Vec<String>> = Vec::new();
    for address in addresses {
        for option in ["set", "map", "collection", "rewrite", "allow-host", "host", "websub-callback", "nonsense"] {
            runs.push(["explore", "-o", &format!("{option}={address}"), &list].map(str::to_owned).into());
        }
        for command in ["explore", "path", "mount", "audit", "status", "refresh", "uri", "unmount", "list", "evict"] {
            runs.push([command, address].map(str::to_owned).into());
        }
        runs.push(["path", "--json", "--in", &directory, address].map(str::to_owned).into());
    }
    for arguments in
        [&["explore", &list][..], &["explore", "--json", &list], &["status", &directory], &["status", "--json"]]
    {
        runs.push(arguments.iter().map(|&it| it.to_owned()).collect());
    }

    for arguments in runs {
        let said = all_said(&run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
        assert!(!said.contains("secret") && !said.contains("retpw"), "{arguments:?}: {said}");
    }
    assert!(!mounted.said().contains("secretpw"), "{}", mounted.said());
}

/// Commands and `curl` may leave their answers unread: each costs something, so there is a bound, and the mount still answers.
#[test]
fn stalled_clients_of_the_control_socket_are_bounded() {
    let source = Source::start();
    let long = "x".repeat(200);
    publish(&source, &(0..5000).map(|it| entry(&format!("{}{long}{it}", source.url()))).collect::<String>());
    let mounted = Mounted::new(&source.list_url(), "");
    let directory = mounted.path().display().to_string();
    let socket = xattr_value(&mounted.path(), "user.resyncfs.control");
    let threads = || {
        let status = fs::read_to_string(format!("/proc/{}/status", mounted.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap().trim().to_owned();
        line.parse::<usize>().unwrap()
    };
    let before = threads();

    let mut clients: Vec<UnixStream> = (0..200).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    for client in &mut clients {
        client.write_all(b"GET /files HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    }
    let mut statuses = Vec::new();
    for client in &mut clients {
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut head = [0; 12];
        client.read_exact(&mut head).unwrap();
        statuses.push(String::from_utf8_lossy(&head[9..]).into_owned());
    }

    assert_eq!(statuses.iter().filter(|status| *status == "200").count(), 32, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| *status == "503").count(), 168, "{statuses:?}");
    assert!(threads() <= before + 32 + 8, "{} threads, {before} before", threads());
    assert!(run(&["status", &directory]).status.success());
    let refused = all_said(&run(&["audit", &directory]));
    assert!(refused.contains("run already; try again"), "{refused}");

    drop(clients);
    eventually("there is room again", || run(&["audit", "--manifest=jsonl", &directory]).status.success());
}

fn xattr_value(path: &std::path::Path, name: &str) -> String {
    let asked = ["--absolute-names", "--only-values", "-n", name];
    let output = Command::new("getfattr").args(asked).arg(path).output().unwrap();
    assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A command ends with a message where a file that an option names is a pipe without a writer or a device without an end.
#[test]
fn pipes_and_devices_named_by_options_stop_no_command() {
    let scratch = tempfile::tempdir().unwrap();
    let pipe = scratch.path().join("pipe");
    let made = std::ffi::CString::new(pipe.as_os_str().as_bytes()).unwrap();
    // SAFETY: `made` is a C string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(made.as_ptr(), 0o600) }, 0);
    let pipe = pipe.to_str().unwrap();
    let list = scratch.path().join("list.xml");
    fs::write(&list, "<urlset/>").unwrap();
    let mount = scratch.path().join("mnt");
    fs::create_dir(&mount).unwrap();

    let began = Instant::now();
    for (option, says) in [
        (format!("bearer-file={pipe}"), "pipe"),
        (format!("header-file={pipe}"), "pipe"),
        (format!("netrc={pipe}"), "pipe"),
        (format!("cert={pipe}"), "pipe"),
        (format!("ca={pipe}"), "pipe"),
        ("ca=/dev/zero".to_owned(), "larger than 16 MiB"),
        (format!("log={pipe}"), "cannot be written"),
    ] {
        let cache = format!("cache={},{option}", scratch.path().join("cache").display());
        let output = run(&["mount", "-o", &cache, list.to_str().unwrap(), mount.to_str().unwrap()]);
        assert!(!output.status.success() && all_said(&output).contains(says), "{option}: {}", all_said(&output));
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// A command substitution is a pipe too, and is read to its end.
#[test]
fn a_token_comes_from_a_command_substitution() {
    let source = Source::start();
    publish(&source, &entry(&format!("{}a", source.url())));
    let script = format!("{PROGRAM} explore -o bearer-file=<(printf tok; sleep 0.3; echo en) {}", source.list_url());

    let output = Command::new("bash").args(["-c", &script]).output().unwrap();

    assert!(output.status.success(), "{}", all_said(&output));
    let is_token = |asked: &common::source::Logged| asked.field("authorization") == Some("Bearer token");
    assert!(source.log().iter().any(is_token), "{:?}", source.log());
}

/// `rsync -X` and `cp -a` copy every listed attribute: none is longer than Linux carries.
#[test]
fn every_listed_attribute_can_be_copied() {
    let source = Source::start();
    let target = |number: usize| format!("http://example.org/{number}/{}", "x".repeat(2000));
    let links: String = (0..60).map(|it| format!("<rs:ln rel=\"describedby\" href=\"{}\"/>", target(it))).collect();
    publish(&source, &format!("<url><loc>{}a</loc><rs:md length=\"5\"/>{links}</url>", source.url()));
    let mounted = Mounted::new(&source.list_url(), "");

    let value = xattr_value(&mounted.join("a"), "user.resyncfs.describedby");
    let lines: Vec<&str> = value.lines().collect();

    assert!((32..60).contains(&lines.len()), "{} of 60 lines", lines.len());
    assert!(lines.iter().enumerate().all(|(number, line)| *line == target(number)), "every line is whole");
    let all = Command::new("getfattr").args(["-d", "--absolute-names"]).arg(mounted.join("a")).output().unwrap();
    assert!(all.status.success() && all.stderr.is_empty(), "{}", all_said(&all));
}

/// A record of another user never makes the table unreadable.
#[test]
fn a_long_source_of_another_user_does_not_break_list() {
    let runtime = std::path::PathBuf::from("/run/user/54321");
    let _ = fs::remove_dir_all(&runtime);
    let folder = runtime.join("resyncfs");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("starting-1.json");
    let file = fs::File::create(&path).unwrap();
    let source = "http://example.org/".to_owned() + &"long/".repeat(12_000);
    let record = serde_json::json!({ "source": source, "directory": "/mnt/long", "process": 1, "socket": "/none" });
    fs::write(&path, record.to_string()).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    for path in [folder, path] {
        std::os::unix::fs::chown(path, Some(54321), Some(54321)).unwrap();
    }
    // SAFETY: the descriptor is open. As a mount holds its own while it lives.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);

    let listed = Command::new(PROGRAM).arg("list").stdin(Stdio::null()).output().unwrap();
    let _ = fs::remove_dir_all(&runtime);

    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.status.success() && text.contains("http://example.org/long/long/"), "{}", all_said(&listed));
    assert!(text.lines().all(|line| line.chars().count() < 600), "a line of {} characters", text.len());
}
