//! The command line: messages, exit codes, and the files that a command leaves.

mod common;

use common::mounted::{Mounted, PROGRAM, run, stderr, stdout};
use common::source::{Fault, Resource, Source};
use common::{eventually, source::URLSET};
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// An extended attribute, as getfattr prints it.
fn attribute(path: &Path, name: &str) -> String {
    let arguments = ["--absolute-names", "--only-values", "-n", name];
    let output = Command::new("getfattr").args(arguments).arg(path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn mount_returns_with_the_tree_and_unmount_ends_the_process() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.url(), "");

    // Standard output is a pipe here: a daemon that kept it would make this wait for ever.
    let output = mounted.command("-v").stdout(Stdio::piped()).output().unwrap();

    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(mounted.path().to_str().unwrap())).unwrap();
    assert!(line.starts_with(&format!("{} ", source.url())), "{line}");
    assert!(line.contains(" fuse.resyncfs ro,nosuid,nodev,noexec"), "{line}");

    let output = run(&["unmount", mounted.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let marker = mounted.path().to_str().unwrap().to_owned();
    let found = Command::new("pgrep").args(["-f", &marker]).output().unwrap();
    assert!(found.stdout.is_empty(), "the daemon has ended when the command returns");
}

#[test]
fn a_wrong_command_line_is_named_and_exits_with_2() {
    for (arguments, message) in [
        (&["mount"][..], "SOURCE"),
        (&["mount", "-o", "cachesize=1G", "http://h/", "/tmp"], "did you mean cache-size?"),
        (&["mount", "--cachesize", "1G", "http://h/", "/tmp"], "--cache-size"),
        (&["mount", "--poll", "soon", "http://h/", "/tmp"], "30s, 5m or 1h"),
        (&["mount", "-o", "poll", "http://h/", "/tmp"], "needs a value: poll=TIME"),
        (&["mount", "-o", "fixity=maybe", "http://h/", "/tmp"], "strict, stream, off"),
        (&["mount", "-o", "rw", "http://h/", "/tmp"], "read-only"),
        (&["mount", "-o", "type=pdf", "http://h/", "/tmp"], "not a media type such as application/pdf"),
        (&["mount", "-o", "host=", "http://h/", "/tmp"], "not a HOST or HOST:PORT"),
        (&["mount", "-o", "allow-host=http://h/", "http://h/", "/tmp"], "not a HOST or HOST:PORT"),
        (&["mount", "ftp://h/", "/tmp"], "ftp"),
        (&["mount", "https://ann:secret@h/", "/tmp"], "-o netrc=FILE"),
        (&["explore", "ann:secret@h.example.org"], "-o netrc=FILE"),
        (&["mount", "-o", "netrc=/no/such/file", "http://h/", "/tmp"], "/no/such/file"),
        (&["frobnicate"], "frobnicate"),
    ] {
        let output = run(arguments);

        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("secret"), "a password is not repeated: {}", stderr(&output));
    }
}

#[test]
fn an_unusable_mount_point_exits_with_5_and_a_remedy() {
    for (place, remedy) in [("/no/such/folder", "mkdir -p"), (PROGRAM, "name an empty folder")] {
        let output = run(&["mount", "http://127.0.0.1:1/", place]);

        assert_eq!(output.status.code(), Some(5));
        assert!(stderr(&output).contains(remedy), "{}", stderr(&output));
    }

    let output = run(&["unmount", "/"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(stderr(&output).contains("no resyncfs mount there"), "{}", stderr(&output));
}

#[test]
fn a_busy_mount_says_so_and_lazy_detaches_it() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");
    let directory = mounted.path().to_str().unwrap().to_owned();
    let open = fs::File::open(mounted.join("a")).unwrap();

    let refused = run(&["unmount", &directory]);
    assert_eq!(refused.status.code(), Some(5));
    assert!(stderr(&refused).contains("--lazy"), "{}", stderr(&refused));
    let detached = run(&["unmount", "--lazy", &directory]);

    assert!(detached.status.success(), "{}", stderr(&detached));
    assert!(!mounted.is_mounted());
    drop(open);
}

#[test]
fn umount_is_another_name_of_unmount() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");

    let output = run(&["umount", mounted.path().to_str().unwrap()]);

    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!mounted.is_mounted());
}

/// A process that is being started holds the open files of its parent for a moment.
#[test]
fn a_mount_that_is_in_use_for_a_moment_is_unmounted() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");
    let open = fs::File::open(mounted.join("a")).unwrap();
    let closes = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(open);
    });

    let output = run(&["unmount", mounted.path().to_str().unwrap()]);

    assert!(output.status.success(), "{}", stderr(&output));
    closes.join().unwrap();
}

#[test]
fn a_source_that_is_down_or_none_has_its_own_exit_code() {
    let source = Source::start();
    for document in [".well-known/resourcesync", "capabilitylist.xml", "resourcelist.xml"] {
        source.fault(document, Fault::Status(404, String::new()), u64::MAX);
    }
    let directory = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let options = format!("cache={},timeout=2s,connect-timeout=1s", cache.path().display());
    let mount = |source: &str| run(&["mount", "-o", &options, source, directory.path().to_str().unwrap()]);

    let none = mount(&source.url());
    assert_eq!(none.status.code(), Some(4), "{}", stderr(&none));
    assert!(stderr(&none).contains("robots.txt"), "every place looked at is named: {}", stderr(&none));

    let down = mount("http://127.0.0.1:1/");
    assert_eq!(down.status.code(), Some(3), "{}", stderr(&down));
}

/// A server that speaks no TLS, and a port where nothing listens.
/// Mounts in the background; what the program says, and how it ends.
fn in_background(mounted: &Mounted) -> (Option<i32>, String) {
    let output = mounted.command("-v").env_remove("RESYNCFS_LOG").output().unwrap();
    (output.status.code(), stderr(&output))
}

/// The last known tree is shown at once, and the message says that it is only that.
#[test]
fn an_old_tree_is_announced_where_its_source_is_down() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.url(), "poll=1h");
    assert_eq!(in_background(&mounted), (Some(0), String::new()));
    assert!(run(&["unmount", mounted.path().to_str().unwrap()]).status.success());
    assert_eq!(in_background(&mounted), (Some(0), String::new()), "its Source answers");
    assert!(run(&["unmount", mounted.path().to_str().unwrap()]).status.success());
    source.fault("", Fault::StallHead(Duration::from_secs(20)), 100);
    source.fault("resourcelist.xml", Fault::StallHead(Duration::from_secs(20)), 100);
    source.fault(".well-known/resourcesync", Fault::StallHead(Duration::from_secs(20)), 100);

    let begun = Instant::now();
    let (code, said) = in_background(&mounted);

    assert_eq!((code, mounted.join("a").exists()), (Some(0), true), "{said}");
    assert!(said.contains("does not answer; until it answers the files are those of 20"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(run(&["unmount", mounted.path().to_str().unwrap()]).status.success());
}

#[test]
fn files_below_a_mount_point_are_announced() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.url(), "poll=1h");
    fs::write(mounted.join("own"), "hidden").unwrap();

    let (code, said) = in_background(&mounted);
    let status = mounted.status();

    assert!(run(&["unmount", mounted.path().to_str().unwrap()]).status.success());
    let hidden = "is not empty: its own files are hidden until it is unmounted";
    assert_eq!(said.matches(hidden).count(), 1, "{code:?}: {said}");
    let log = fs::read_to_string(status["log"].as_str().unwrap()).unwrap();
    assert!(log.contains(hidden) && status["cache_folder"] == mounted.cache().to_str().unwrap(), "{status}");
}

/// What a typing mistake leaves behind is not listed for ever.
#[test]
fn an_address_that_fails_leaves_no_tree() {
    let source = Source::start();
    source.page("page", Resource { media_type: "text/html".into(), ..Resource::bare("<html>") });
    source.fault(".well-known/resourcesync", Fault::Status(404, String::new()), u64::MAX);
    let trees = |mounted: &Mounted| {
        let output = run(&["cache", "list", "--json", "-o", &format!("cache={}", mounted.cache().display())]);
        let listing: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (listing["trees"].as_array().unwrap().len(), fs::read_dir(mounted.cache().join("mounts")).unwrap().count())
    };
    for address in ["page", "nothing"] {
        let mounted = Mounted::prepared(&format!("{}{address}", source.url()), "");

        assert_eq!(in_background(&mounted).0, Some(4), "{address}");

        assert_eq!(trees(&mounted), (0, 0), "{address}");
    }
    // A list that breaks off is gone on with.
    source.put("a", Resource::new("bytes"));
    source.put("b", Resource::new("bytes"));
    let index =
        ["resourcelist.xml", "second.xml"].map(|list| format!("<sitemap><loc>{}{list}</loc></sitemap>", source.url()));
    let head = "<sitemapindex xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">";
    source.document("index.xml", format!("{head}{}</sitemapindex>", index.concat()));
    source.fault("second.xml", Fault::Status(401, String::new()), 100);
    let mounted = Mounted::prepared(&format!("{}index.xml", source.url()), "");
    assert_ne!(in_background(&mounted).0, Some(0));
    assert_eq!(trees(&mounted).0, 1, "what was downloaded of it stays");
}

#[test]
fn a_failure_without_a_scheme_names_the_assumed_https() {
    let source = Source::start();
    let directory = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let options = format!("cache={},timeout=2s,connect-timeout=1s", cache.path().display());
    let authority = source.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    for (address, write) in
        [(authority.clone(), format!("http://{authority}/")), ("127.0.0.1:1".into(), "http://127.0.0.1:1/".into())]
    {
        let mounting = run(&["mount", "-o", &options, &address, directory.path().to_str().unwrap()]);
        assert_eq!(mounting.status.code(), Some(3), "{}", stderr(&mounting));
        assert!(stderr(&mounting).contains("https was assumed"), "{}", stderr(&mounting));
        assert!(stderr(&mounting).trim_end().ends_with(&format!("for http write {write}")), "{}", stderr(&mounting));
    }
    let exploring = run(&["explore", "-o", "timeout=2s,connect-timeout=1s", &authority]);
    assert!(stderr(&exploring).contains("https was assumed"), "{}", stderr(&exploring));
    let refused = run(&["mount", "-o", &options, &format!("https://{authority}/"), directory.path().to_str().unwrap()]);
    assert!(!stderr(&refused).contains("assumed"), "{}", stderr(&refused));
}

#[test]
fn credentials_that_others_can_read_are_refused_and_never_shown() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let scratch = tempfile::tempdir().unwrap();
    let token = scratch.path().join("token");
    fs::write(&token, "s3cr3t-token\n").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    let option = format!("bearer-file={}", token.display());

    let refused = Mounted::prepared(&source.url(), &option).try_start().unwrap_err();
    assert!(refused.contains("chmod 600"), "{refused}");

    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let mounted = Mounted::new(&source.url(), &option);
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
    let arguments = fs::read(format!("/proc/{}/cmdline", mounted.pid())).unwrap();
    assert!(!String::from_utf8_lossy(&arguments).contains("s3cr3t"));
    assert!(!mounted.said().contains("s3cr3t"));
}

#[test]
fn explore_prints_the_offer_and_the_deviations() {
    let source = Source::start();
    source.put("a.pdf", Resource { md: Resource::new("x").md + " type=\"application/pdf\"", ..Resource::new("x") });
    source.put("b", Resource::bare("y"));
    source.put("c", Resource { lastmod: Some("yesterday".into()), ..Resource::bare("z") });

    let text = run(&["explore", &source.url()]);
    let json = run(&["explore", "--json", &source.url()]);

    assert!(text.status.success(), "{}", stderr(&text));
    let text = String::from_utf8(text.stdout).unwrap();
    for part in [
        "Resources    3 in 1 list",
        "length     33 %",
        "sha-256 1",
        "type=application/pdf",
        "resourcelist.xml",
        "Speed",
        "yesterday",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["resources"], &json["with_hash"]), (&3.into(), &1.into()));
    assert_eq!(json["types"]["application/pdf"], 1);
}

/// `resyncfs explore … | head -1`, and a terminal that was closed.
#[test]
fn a_closed_pipe_is_no_failure() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.url(), "");
    let closed = || {
        let (reading, writing) = std::io::pipe().unwrap();
        drop(reading);
        Stdio::from(writing)
    };

    let explored = Command::new(PROGRAM).args(["explore", &source.url()]).stdout(closed()).output().unwrap();
    assert_eq!((explored.status.code(), stderr(&explored)), (Some(0), String::new()));

    let refused = Command::new(PROGRAM).args(["mount", "ftp://h/", "/tmp"]).stderr(closed()).status().unwrap();
    assert_eq!(refused.code(), Some(2));

    let mounting = mounted.command("-v").stdout(closed()).stderr(closed()).status().unwrap();
    assert!(mounting.success());
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
    assert!(run(&["unmount", mounted.path().to_str().unwrap()]).status.success());
}

#[test]
fn a_list_on_disk_is_mounted_with_its_resources_over_http() {
    let source = Source::start();
    source.put("f/a", Resource::new("bytes"));
    let scratch = tempfile::tempdir().unwrap();
    let list = scratch.path().join("list.xml");
    fs::write(&list, format!("{URLSET}<url><loc>{}f/a</loc></url></urlset>", source.url())).unwrap();
    let host = source.url().trim_start_matches("http://").trim_end_matches('/').to_owned();

    let mounted = Mounted::new(list.to_str().unwrap(), &format!("allow-host={host}"));

    assert_eq!(fs::read(mounted.join("f/a")).unwrap(), b"bytes");
}

#[test]
fn rewrite_corrects_a_source_published_as_localhost() {
    let source = Source::start();
    source.put("f/a", Resource::new("bytes"));
    let wrong = "http://localhost:8080/";
    source.document("resourcelist.xml", format!("{URLSET}<rs:md capability=\"resourcelist\" at=\"2024-06-01T00:00:00Z\"/><url><loc>{wrong}f/a</loc></url></urlset>"));

    let mounted = Mounted::new(&source.url(), &format!("rewrite={wrong}={},host=localhost:8080", source.url()));

    assert_eq!(fs::read(mounted.join("f/a")).unwrap(), b"bytes");
    let origin = attribute(&mounted.join("f/a"), "user.xdg.origin.url");
    assert_eq!(origin, "http://localhost:8080/f/a", "the published URI stays the identity");
}

#[test]
fn the_demo_publishes_mounts_and_shows_a_change_and_a_page() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("office");
    let mut demo = Command::new(PROGRAM)
        .arg("demo")
        .arg(&directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("the demo is mounted", || directory.join("letters").is_dir());
    let source = attribute(&directory, "user.resyncfs.source");

    let published = Command::new("curl").args(["-sS", "-X", "POST"]).arg(format!("{source}publish")).status();
    assert!(published.unwrap().success());
    eventually("the new letter is there", || directory.join("letters/new-1.txt").is_file());

    let (page, survey) = (format!("{source}records/1"), scratch.path().join("survey"));
    fs::create_dir(&survey).unwrap();
    let cache = format!("cache={}", scratch.path().join("cache").display());
    let mounting = run(&["mount", "-o", &cache, &page, survey.to_str().unwrap()]);
    assert!(mounting.status.success(), "{}", String::from_utf8_lossy(&mounting.stderr));
    assert!(fs::read_to_string(survey.join("soundings/1851-05.csv")).unwrap().starts_with("fathoms"));
    assert!(fs::read_to_string(survey.join("log of the boat.txt")).unwrap().contains("Zeemeeuw"));
    assert_eq!(attribute(&survey.join("soundings/1851-05.csv"), "user.resyncfs.verified"), "md5");

    assert!(run(&["unmount", survey.to_str().unwrap()]).status.success());
    assert!(run(&["unmount", directory.to_str().unwrap()]).status.success());
    eventually("the demo has ended", || demo.try_wait().unwrap().is_some());
    let mut log = String::new();
    demo.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(!log.contains("INFO"), "{log}");
}

#[test]
fn others_change_no_file_of_a_mount_under_any_umask() {
    use std::os::unix::process::CommandExt;
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let scratch = tempfile::tempdir().unwrap();
    let log = scratch.path().join("log");
    let mounted = Mounted::prepared(&source.url(), &format!("log={}", log.display()));
    let mut command = mounted.command("-v");
    // SAFETY: umask is async-signal-safe and touches no memory.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0);
            Ok(())
        });
    }

    let output = command.output().unwrap();

    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
    let mut folders = vec![mounted.cache().to_owned()];
    let mut files = vec![log];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let found = if entry.file_type().unwrap().is_dir() { &mut folders } else { &mut files };
            found.push(entry.path());
        }
    }
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        let mode = fs::symlink_metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o022, 0, "{}: {mode:o}", file.display());
    }
}

#[test]
fn a_log_that_cannot_be_written_is_named() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));

    let mounted = Mounted::prepared(&source.url(), "log=/no/such/folder/log");

    let refused = mounted.command("-v").output().unwrap();

    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("the log /no/such/folder/log cannot be written"), "{}", stderr(&refused));
}

/// The doctor with a cache folder of the test.
fn doctor(before: &str, arguments: &str) -> Output {
    let cache = tempfile::tempdir().unwrap();
    let line = format!("{before} exec {PROGRAM} doctor -o cache={} {arguments}", cache.path().display());
    Command::new("sh").args(["-c", &line]).output().unwrap()
}

#[test]
fn the_doctor_checks_this_machine() {
    let output = doctor("", "");

    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    for line in ["ok    /dev/fuse: can be opened\n", "ok    right to mount: ", "ok    proxies: ", "ok    clock: "] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.lines().all(|line| ["ok    ", "warn  "].contains(&&line[..6])), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&doctor("", "--json").stdout).unwrap();
    let device = &json["checks"][0];
    assert_eq!((&device["check"], &device["result"]), (&"/dev/fuse".into(), &"ok".into()), "{json}");
}

#[test]
fn the_doctor_names_what_is_wrong_and_what_to_do() {
    let output = doctor("ulimit -n 256;", "");
    assert!(stdout(&output).contains("warn  open files: only 256 at once"), "{}", stdout(&output));
    assert!(stdout(&output).contains("; raise the limit (ulimit -n, "), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(0), "a warning is no failure");

    let limited = stdout(&doctor("ulimit -v 2000000;", ""));
    assert!(limited.contains("warn  address space: ") && limited.contains(" 500,000 files"), "{limited}");

    let open = tempfile::tempdir().unwrap();
    fs::set_permissions(open.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for (before, arguments, says) in [
        ("https_proxy=ftp://ann:s3cr3t@h:1", "", "FAIL  proxies: https_proxy=\"ftp://h:1\" in the environment"),
        ("", &format!("-o cache={}", open.path().display()), "FAIL  cache folder: "),
        ("", "-o ca=/no/such/file", "FAIL  options: "),
        ("ulimit -n 50;", "", "FAIL  open files: only 50 files may be open"),
        ("", "http://127.0.0.1:1/", "FAIL  Source: http://127.0.0.1:1/: cannot connect to"),
    ] {
        let output = doctor(before, arguments);

        assert!(stdout(&output).contains(says), "{says}: {}{}", stdout(&output), stderr(&output));
        assert_eq!(output.status.code(), Some(12), "{says}");
        assert!(!stdout(&output).contains("s3cr3t"), "{}", stdout(&output));
    }
}

#[test]
fn the_doctor_asks_a_source() {
    let source = Source::start();

    let output = doctor("", &source.list_url());
    let missing = doctor("", &format!("{}missing.xml", source.url()));

    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    assert!(
        stdout(&output).contains(&format!("ok    Source: {} answers in ", source.list_url())),
        "{}",
        stdout(&output)
    );
    let said = stdout(&missing);
    assert!(said.contains("warn  Source: its host answers in ") && said.contains("answered 404"), "{said}");
}

/// The list and the text of an archive.
fn unpacked(archive: &std::path::Path) -> (String, String) {
    let tar = |flags: &str| stdout(&Command::new("tar").arg(flags).arg(archive).output().unwrap());
    (tar("-tzf"), tar("-xzOf"))
}

#[test]
fn a_report_has_all_but_secrets() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let scratch = tempfile::tempdir().unwrap();
    let secret = |name: &str, text: &str| {
        let file = scratch.path().join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file.display().to_string()
    };
    let netrc = secret("netrc", "default login ann password s3cr3t\n");
    let fields = secret("fields", "X-Api-Key: t0ken\n");
    let mounted = Mounted::prepared(&source.list_url(), &format!("netrc={netrc},header-file={fields}"));
    assert!(mounted.command("-v").status().unwrap().success());
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
    let (folder, archive) = (mounted.path(), scratch.path().join("report.tar.gz"));

    let arguments = ["bugreport", folder.to_str().unwrap(), archive.to_str().unwrap()];
    let output = run(&arguments);

    assert!(output.status.success(), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.starts_with(archive.to_str().unwrap()) && said.contains("It names files and hosts."), "{said}");
    assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    let (list, text) = unpacked(&archive);
    let names: Vec<_> = list.lines().filter_map(|line| line.strip_prefix("resyncfs-report/")).collect();
    assert_eq!(
        names,
        ["version.txt", "options.txt", "status.json", "log.txt", "mounts.txt", "system.txt", "doctor.txt"]
    );
    assert!(names.iter().all(|name| said.contains(name)), "{said}");
    for part in [
        concat!("resyncfs ", env!("CARGO_PKG_VERSION")),
        &format!("netrc={netrc},header-file={fields} {}", source.list_url()),
        &format!("\"source\": \"{}\"", source.list_url()),
        "resyncfs::",
        "fuse.resyncfs",
        "Max open files",
        "PRETTY_NAME=",
        "ok    /dev/fuse",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("s3cr3t") && !text.contains("t0ken"), "{text}");

    let again = run(&arguments);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("name another file"), "{}", stderr(&again));
}

#[test]
fn a_report_is_written_of_a_mount_that_does_not_answer() {
    let source = Source::start();
    let mounted = Mounted::new(&source.list_url(), "");
    let scratch = tempfile::tempdir().unwrap();
    let archive = scratch.path().join("report.tar.gz");
    let folder = mounted.path();
    eventually("it answers", || run(&["status", folder.to_str().unwrap()]).status.success());
    mounted.signal(libc::SIGKILL);
    eventually("it has ended", || !run(&["status", folder.to_str().unwrap()]).status.success());

    let output = run(&["bugreport", folder.to_str().unwrap(), archive.to_str().unwrap()]);

    assert!(output.status.success(), "{}", stderr(&output));
    let (_, text) = unpacked(&archive);
    assert!(text.contains("the process that served this mount has died"), "{text}");
}
