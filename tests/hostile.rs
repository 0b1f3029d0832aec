//! Sources that mean harm, and people in a hurry.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::source::{Resource, Source, URLSET};
use common::{eventually, tree};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::Command;

/// A list of these entries (each `<loc>` and what follows, as written) at the Source's Resource List.
fn publish(source: &Source, entries: &[String]) {
    let md = "<rs:md capability=\"resourcelist\" at=\"2024-06-01T00:00:00Z\"/>";
    let entries: String = entries.iter().map(|entry| format!("<url>{entry}</url>")).collect();
    source.document("resourcelist.xml", format!("{URLSET}{md}{entries}</urlset>"));
}

/// With a length, so that nobody need ask for it.
fn loc(uri: &str) -> String {
    format!("<loc>{}</loc><rs:md length=\"5\"/>", uri.replace('&', "&amp;"))
}

fn gzip(parts: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut coder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    parts.for_each(|part| coder.write_all(&part).unwrap());
    coder.finish().unwrap()
}

fn origin(path: &std::path::Path) -> String {
    let asked = ["--absolute-names", "--only-values", "-n", "user.xdg.origin.url"];
    let output = Command::new("getfattr").args(asked).arg(path).output().unwrap();
    assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Every address gets a name of its own that is safe to print and tells its address.
#[test]
fn no_name_leaves_the_mount_or_commands_the_terminal() {
    let source = Source::start();
    let paths = [
        "a%0Ab",
        "a%1B[31mred",
        "a%07bell",
        "a%7Fdel",
        "x/%2E%2E/%2E%2E/%2E%2E/etc/passwd",
        "..%2F..%2Fetc%2Fpasswd",
        "nul%00x",
        "bidi%E2%80%AEtxt.exe",
        "%C2%9B31m",
        "%FF%FE",
        "%host/evil/x",
        "%25host/evil/y",
        "a%2Fb",
        "a/b",
        "a//b",
        "a///b",
        "/",
        "dup",
        "?q",
        "p?x=a/b",
        "p?x=a%252Fb",
        "p%3Fx=a/b",
        "p",
        "d/%25index",
        "d/",
        "~tilde",
        "NFC%C3%A9",
        "NFDe%CC%81",
        "%F0%9F%98%80%F0%9F%98%80",
        "trail.",
        "trail%20",
        "A",
        "a%25file",
        "-rf",
        "*",
    ]
    .map(str::to_owned);
    let long = ["f".repeat(300) + ".pdf", "f".repeat(300) + "g.pdf", "%F0%9F%98%80".repeat(100) + ".txt"];
    let published: Vec<String> = paths.iter().chain(&long).map(|path| format!("{}n/{path}", source.url())).collect();
    publish(&source, &published.iter().map(|uri| loc(uri)).collect::<Vec<_>>());
    let mounted = Mounted::new(&source.url(), "");

    let mut origins = BTreeSet::new();
    let mut folders = vec![mounted.path()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let hidden = |c: char| c.is_control() || ('\u{200b}'..='\u{200f}').contains(&c) || c == '\u{202e}';
            assert!(!name.chars().any(hidden) && name.len() <= 255 && name != "..", "{name:?}");
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                assert!(origins.insert(origin(&entry.path())), "two names of one address: {name:?}");
            }
        }
    }
    assert_eq!(origins.len(), published.len(), "{origins:#?}");
    let outside = origins.iter().filter(|uri| !uri.starts_with(&source.url())).count();
    assert_eq!(outside, 0);
}

#[test]
fn http_and_https_of_one_path_are_two_files() {
    let source = Source::start();
    source.put("f/a", Resource::new("plain"));
    let other = source.url().replace("http://", "https://");
    publish(
        &source,
        &[loc(&format!("{}f/a", source.url())), loc(&format!("{other}f/a")), loc(&format!("{}f/a", source.url()))],
    );
    let mounted = Mounted::new(&source.url(), "");

    let names: BTreeSet<_> = fs::read_dir(mounted.join("f")).unwrap().map(|entry| entry.unwrap().path()).collect();

    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(fs::read(mounted.join("f/a")).unwrap(), b"plain");
    let origins: BTreeSet<_> = names.iter().map(|path| origin(path)).collect();
    assert_eq!(origins, BTreeSet::from([format!("{}f/a", source.url()), format!("{other}f/a")]));
}

#[test]
fn endless_depth_and_length_cost_their_own_entry_alone() {
    let source = Source::start();
    source.put("ok", Resource::new("bytes"));
    let base = source.url();
    let deep = format!("{base}deep/{}f", "d/".repeat(10_000));
    let long = format!("{base}long/{}", "x".repeat(1_000_000));
    publish(&source, &[loc(&deep), loc(&long), loc(&format!("{base}ok"))]);
    let mounted = Mounted::new(&source.url(), "");

    assert_eq!(fs::read(mounted.join("ok")).unwrap(), b"bytes");
    let found = Command::new("find").arg(mounted.path()).args(["-printf", "%y %p\n"]).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let longest = found.stdout.split(|octet| *octet == b'\n').map(<[u8]>::len).max();
    assert!(longest < Some(libc::PATH_MAX as usize), "every path can be given to open(2): {longest:?}");
}

#[test]
fn entities_are_never_expanded_and_nothing_is_loaded() {
    let source = Source::start();
    source.put("ok", Resource::new("bytes"));
    let mut declared = "<!ENTITY a \"aaaaaaaaaa\"><!ENTITY x SYSTEM \"file:///etc/passwd\">".to_owned();
    for (name, part) in ('b'..='k').zip('a'..) {
        declared += &format!("<!ENTITY {name} \"{}\">", format!("&{part};").repeat(10));
    }
    let root = URLSET.split_once('\n').unwrap().1;
    let list = format!(
        "<?xml version=\"1.0\"?><!DOCTYPE l [{declared}]>{root}<rs:md capability=\"resourcelist\"/>\
         <url><loc>{0}&k;</loc></url><url><loc>{0}&x;</loc></url><url><loc>{0}ok</loc></url></urlset>",
        source.url()
    );
    source.document("resourcelist.xml", list);
    let mounted = Mounted::new(&source.url(), "");

    assert_eq!(tree(&mounted.path()).into_keys().collect::<Vec<_>>(), [std::path::Path::new("ok")]);
}

#[test]
fn lists_that_never_end_and_bombs_are_refused_at_the_limit() {
    let source = Source::start();
    let entry = format!("<url>{}</url>", loc(&format!("{}x", source.url())));
    let start = format!("{URLSET}<rs:md capability=\"resourcelist\"/>");
    let entries = std::iter::repeat_n(entry.repeat(10_000).into_bytes(), 50);
    let blanks = std::iter::repeat_n(vec![b' '; 1 << 20], 200);
    for (name, bytes) in [
        ("entries.xml.gz", gzip(std::iter::once(start.clone().into_bytes()).chain(entries))),
        ("blanks.xml.gz", gzip(std::iter::once(start.clone().into_bytes()).chain(blanks))),
        ("twice.xml.gz", gzip(std::iter::once(gzip(std::iter::repeat_n(vec![b' '; 1 << 20], 200))))),
        ("attribute.xml", format!("{start}<url><loc x=\"{}\"/></url></urlset>", "y".repeat(20 << 20)).into_bytes()),
    ] {
        source.document(name, bytes);
        let refused = Mounted::prepared(&format!("{}{name}", source.url()), "max-document=8M").try_start();

        let message = refused.expect_err("nothing is mounted");
        assert!(message.contains("limit") || message.contains("longer than"), "{name}: {message}");
    }
}

#[test]
fn a_resource_that_inflates_without_end_is_refused() {
    let source = Source::start();
    let bomb = gzip(std::iter::repeat_n(vec![0; 1 << 20], 300));
    let length = bomb.len();
    let headers = "Content-Encoding: gzip\r\n".to_owned();
    let md = format!("encoding=\"gzip\" length=\"{length}\"");
    source.put("bomb", Resource { md, headers, ..Resource::new(bomb) });
    source.put("ok", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "cache-size=64M");

    let read = fs::read(mounted.join("bomb"));

    assert!(read.is_err(), "{} bytes", read.unwrap().len());
    assert_eq!(fs::read(mounted.join("ok")).unwrap(), b"bytes");
    let taken = Command::new("du").args(["-sm", mounted.cache().to_str().unwrap()]).output().unwrap();
    let taken: u64 = String::from_utf8_lossy(&taken.stdout).split('\t').next().unwrap().parse().unwrap();
    assert!(taken < 100, "{taken} MiB");
}

#[test]
fn no_redirect_leads_into_this_machine_or_its_network() {
    let source = Source::start();
    let targets = [
        "http://169.254.169.254/latest/meta-data/",
        "http://[fe80::1]/",
        "http://[::1]:22/",
        "http://[::ffff:127.0.0.1]:22/",
        "http://[::]:22/",
        "http://[64:ff9b::7f00:1]:22/",
        "http://2130706433:22/",
        "http://0x7f.1:22/",
        "http://0.0.0.0:22/",
        "http://localhost:22/",
        "http://10.0.0.1/",
        "http://[fd00::1]/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
    ];
    for (number, target) in targets.iter().enumerate() {
        let path = format!("r/{number}");
        source.put(&path, Resource::bare("x"));
        source.fault(&path, common::source::Fault::Status(302, format!("Location: {target}\r\n")), u64::MAX);
    }
    let mounted = Mounted::new(&source.url(), "");

    for (number, target) in targets.iter().enumerate() {
        assert!(fs::read(mounted.join(&format!("r/{number}"))).is_err(), "{target}");
    }
    let said = mounted.said();
    let refusals = said.matches(" are not allowed: ").count() + said.matches("only http and https").count();
    assert!(refusals >= targets.len(), "each is refused before it is asked: {said}");
}

#[test]
fn what_a_source_publishes_of_types_and_times_stays_text() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let escape = "\u{1b}[31m\u{7}\u{9b}\u{202e}";
    let md = format!("<rs:md type=\"text/{escape}\" hash=\"x{escape}:1\"/>");
    let link = format!("<rs:ln rel=\"collection\" href=\"http://h/{escape}\"/>");
    publish(
        &source,
        &[format!("{}<lastmod>{escape}\nDeviations   none</lastmod>{md}{link}", loc(&format!("{}a", source.url())))],
    );

    let mounted = Mounted::new(&source.url(), "");
    let explored = Command::new(PROGRAM).args(["explore", &source.url()]).output().unwrap();

    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes", "whatever its type is said to be");
    assert!(explored.status.success());
    for text in [String::from_utf8(explored.stdout).unwrap(), mounted.said()] {
        assert!(!text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("Deviations   none")), "{text}");
    }
}

/// Every request of the list gets another list, and a hundred people ask for a refresh at once.
#[test]
fn a_list_that_is_never_the_same_twice_is_shown_whole_each_time() {
    let source = Source::start();
    source.put("always", Resource::new("bytes"));
    source.put("0/a", Resource::new("zero"));
    // Each edition that is met takes away one of two files: the guard would hold that back.
    let mounted = Mounted::new(&source.url(), "max-delete=100");

    for edition in 1..=10 {
        source.remove(&format!("{}/a", edition - 1));
        source.put(&format!("{edition}/a"), Resource::new(format!("edition {edition}")));
        (0..100).for_each(|_| mounted.refresh());
        assert_eq!(fs::read(mounted.join("always")).unwrap(), b"bytes");
    }

    eventually("the last edition is shown", || mounted.join("10/a").is_file());
    eventually("the one before is gone", || !mounted.join("9").exists());
    assert_eq!(tree(&mounted.path()).len(), 2);
    let lists = source.requests_of("resourcelist.xml").len();
    assert!(lists < 500, "refreshes that wait for the same list are one: {lists} requests");
}

#[test]
fn mounting_right_after_unmounting_always_works() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.url(), "");

    for round in 0..4 * common::rounds() {
        let output = mounted.command("-v").output().unwrap();
        assert!(output.status.success(), "round {round}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
        let ended = Command::new(PROGRAM).arg("unmount").arg(mounted.path()).output().unwrap();
        assert!(ended.status.success(), "round {round}: {}", String::from_utf8_lossy(&ended.stderr));
    }
}

/// However a mount point is written, it is the same one.
#[test]
fn a_mount_point_may_be_relative_a_link_or_not_empty() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.url(), "");
    let parent = mounted.path().parent().unwrap().to_owned();
    std::os::unix::fs::symlink("mnt", parent.join("link")).unwrap();
    fs::write(mounted.join("beneath"), "covered").unwrap();
    let options = format!("cache={}", mounted.cache().display());

    for written in ["mnt", "./mnt/", "link", "link/", "mnt/../mnt"] {
        let run = |arguments: &[&str]| Command::new(PROGRAM).args(arguments).current_dir(&parent).output().unwrap();
        let output = run(&["mount", "-o", &options, &source.url(), written]);
        assert!(output.status.success(), "{written}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(tree(&mounted.path()).len(), 1, "{written}");

        let ended = run(&["unmount", written]);
        assert!(ended.status.success(), "{written}: {}", String::from_utf8_lossy(&ended.stderr));
        assert_eq!(fs::read(mounted.join("beneath")).unwrap(), b"covered");
    }
}

#[test]
fn a_mount_within_a_mount_keeps_the_outer_one_busy() {
    let (outer, inner) = (Source::start(), Source::start());
    outer.put("f/a", Resource::new("outer"));
    inner.put("b", Resource::new("inner"));
    let outside = Mounted::new(&outer.url(), "");
    let point = outside.join("f");
    let cache = format!("cache={}", outside.cache().display());
    let output = Command::new(PROGRAM).args(["mount", "-o", &cache, &inner.url()]).arg(&point).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    assert_eq!(fs::read(point.join("b")).unwrap(), b"inner");
    let unmount = |point: &std::path::Path| Command::new(PROGRAM).arg("unmount").arg(point).output().unwrap();
    assert_eq!(unmount(&outside.path()).status.code(), Some(5));
    assert!(unmount(&point).status.success());
    assert_eq!(fs::read(point.join("a")).unwrap(), b"outer");
}
