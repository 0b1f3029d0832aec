//! `resyncfs audit`: is what is shown what the Source has?

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::pty::Pty;
use common::source::{Fault, Resource, Source, URLSET};
use common::{eventually, tree};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const IN_SYNC: i32 = 0;
const DIFFERENCES: i32 = 9;
const CANNOT_TELL: i32 = 11;

fn audit(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).arg("audit").args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success() || output.status.code() == Some(DIFFERENCES), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The differences of a JSON report as (difference, path), sorted, and its summary.
fn report(output: &Output) -> (Vec<(String, String)>, Value) {
    let mut report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|cause| panic!("{cause}: {}", String::from_utf8_lossy(&output.stdout)));
    let text = |value: &Value, field: &str| value[field].as_str().unwrap().to_owned();
    let differences = report["differences"].as_array().unwrap();
    let mut found: Vec<_> = differences.iter().map(|it| (text(it, "difference"), text(it, "path"))).collect();
    found.sort();
    (found, report["summary"].take())
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(difference, path)| ((*difference).to_owned(), (*path).to_owned())).collect()
}

/// A Source of which every kind of file is in sync.
fn source() -> Source {
    let source = Source::start();
    source.put("a/one", Resource::new("first"));
    source.put("a/two", Resource::new("second"));
    source.put("b%5Cc", Resource::new("a backslash in its name"));
    source.put("bare", Resource::bare("nothing is published of it"));
    source
}

#[test]
fn a_source_that_is_not_mounted_is_checked() {
    let source = source();
    assert_eq!(audit(&[&source.url()]).status.code(), Some(IN_SYNC));
    assert!(source.requests_of("a/one").is_empty(), "without --fetch no resource is asked for");
    source.fault("a/one", Fault::Body(b"other".to_vec()), 10);
    source.fault("a/two", Fault::Status(404, String::new()), 10);

    let output = audit(&["--json", "--fetch", &source.url()]);

    let (found, summary) = report(&output);
    assert_eq!(output.status.code(), Some(DIFFERENCES));
    assert_eq!(found, pairs(&[("changed", "a/one"), ("gone", "a/two")]));
    assert_eq!((&summary["files"], &summary["in_sync"], &summary["requested"]), (&4.into(), &2.into(), &4.into()));
    assert_eq!(summary["unverifiable"], 1, "of `bare` nothing is published");
}

#[test]
fn the_part_that_a_mount_would_show_is_audited() {
    let source = source();

    let output = audit(&["-o", "include=a/", "--json", &source.url()]);

    assert_eq!(report(&output).1["files"], 2);
}

#[test]
fn a_manifest_names_files_without_a_digest() {
    let source = source();

    let output = audit(&["--manifest=sha256sum", &source.url()]);

    let text = text(&output);
    assert_eq!(text.lines().count(), 3);
    assert!(text.lines().any(|line| line.starts_with('\\') && line.ends_with("  b\\\\c")), "{text}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no sha-256: bare") && said.contains("1 file has no published sha-256"), "{said}");
    let lines = audit(&["--manifest=jsonl", &source.url()]);
    let lines: Vec<Value> =
        String::from_utf8(lines.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().any(|line| line["path"] == "bare" && line["hashes"].as_array().unwrap().is_empty()));
}

#[test]
fn a_mount_in_step_is_in_sync_and_asks_for_nothing_but_lists() {
    let source = source();
    let mounted = Mounted::new(&source.url(), "");
    let directory = mounted.path();
    source.take_log();

    let output = audit(&[directory.to_str().unwrap()]);

    assert_eq!(output.status.code(), Some(IN_SYNC), "{output:?}");
    let said = text(&output);
    let compared = "names, sizes and times of 4 files agree with the Source's lists of 2024-05-01 ";
    assert!(said.starts_with(compared) && said.ends_with("; no file was read\n"), "{said}");
    let resources = ["a/one", "a/two", "b%5Cc", "bare"];
    assert!(resources.iter().all(|resource| source.requests_of(resource).is_empty()), "{:?}", source.log());
    let audits: Vec<_> = fs::read_dir(mounted.cache().join("mounts")).unwrap().collect();
    let left = fs::read_dir(audits[0].as_ref().unwrap().path().join("audits")).unwrap().count();
    assert_eq!(left, 0, "its catalog is gone");
}

/// The list has changed and the mount has not looked yet: the audit reports it, and leaves the mount as it is.
#[test]
fn what_the_source_lists_now_is_compared_with_what_is_shown() {
    let source = source();
    let mounted = Mounted::new(&source.url(), "");
    source.put("a/one", Resource::new("changed"));
    source.put("a/touched", Resource::new("second"));
    source.remove("a/two");
    source.put("new/deep/file", Resource::new("new"));

    let output = audit(&["--json", mounted.path().to_str().unwrap()]);

    let (found, summary) = report(&output);
    assert_eq!(output.status.code(), Some(DIFFERENCES));
    let expected = [("changed", "a/one"), ("extra", "a/two"), ("missing", "a/touched"), ("missing", "new/deep/file")];
    assert_eq!(found, pairs(&expected));
    assert_eq!((&summary["files"], &summary["in_sync"]), (&6.into(), &2.into()));
    assert!(mounted.join("a/two").exists() && !mounted.join("new").exists(), "the mount is as it was");
}

/// A Resource List of May, and a Change List, which is not there yet.
fn offer_an_old_list_and_changes(source: &Source) {
    let base = source.url();
    let offer = |name: &str, capability: &str| {
        format!("<url><loc>{base}{name}</loc><rs:md capability=\"{capability}\"/></url>")
    };
    let offers = offer("resourcelist.xml", "resourcelist") + &offer("changelist.xml", "changelist");
    source.document("capabilitylist.xml", format!("{URLSET}<rs:md capability=\"capabilitylist\"/>{offers}</urlset>"));
    source.document("resourcelist.xml", source.resource_list_at("2024-05-20T00:00:00Z"));
}

/// The Resource List is older than the Change List: what it lists is brought forward.
#[test]
fn the_lists_are_brought_forward_by_the_changes_since_them() {
    let source = source();
    let base = source.url();
    offer_an_old_list_and_changes(&source);
    let announce = |changes: &[(&str, &str)]| {
        let entry = |(change, path): &(&str, &str)| {
            let time = "2024-06-01T00:00:00Z";
            format!("<url><loc>{base}{path}</loc><lastmod>{time}</lastmod><rs:md change=\"{change}\"/></url>")
        };
        let entries: String = changes.iter().map(entry).collect();
        let header = "<rs:md capability=\"changelist\" from=\"2024-05-01T00:00:00Z\"/>";
        source.document("changelist.xml", format!("{URLSET}{header}{entries}</urlset>"));
    };
    announce(&[("deleted", "a/one")]);
    let mounted = Mounted::new(&source.url(), "");
    let directory = mounted.path();
    let directory = directory.to_str().unwrap();
    assert!(!mounted.join("a/one").exists());
    assert_eq!(audit(&[directory]).status.code(), Some(IN_SYNC));

    source.put("later", Resource::new("later"));
    announce(&[("deleted", "a/one"), ("deleted", "bare"), ("created", "later")]);
    let (found, _) = report(&audit(&["--json", directory]));
    mounted.refresh();
    eventually("the mount has looked", || mounted.join("later").exists());

    assert_eq!(found, pairs(&[("extra", "bare"), ("missing", "later")]));
    assert_eq!(audit(&[directory]).status.code(), Some(IN_SYNC));
}

/// A file that only a change announced is neither extra nor missing while the change cannot be read.
#[test]
fn unread_changes_allow_no_verdict() {
    let source = source();
    let base = source.url();
    offer_an_old_list_and_changes(&source);
    let announce = |from: &str, entries: &str| {
        let header = format!("<rs:md capability=\"changelist\" from=\"{from}\"/>");
        source.document("changelist.xml", format!("{URLSET}{header}{entries}</urlset>"));
    };
    let deleted = "<lastmod>2024-06-01T00:00:00Z</lastmod><rs:md change=\"deleted\"/>";
    announce("2024-05-01T00:00:00Z", &format!("<url><loc>{base}a/one</loc>{deleted}</url>"));
    let mounted = Mounted::new(&source.url(), "");
    let directory = mounted.path();
    let directory = directory.to_str().unwrap();
    let unjudged = |why: &str| {
        let output = audit(&["--json", directory]);
        assert_eq!(output.status.code(), Some(CANNOT_TELL), "{why}: {output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["differences"].as_array().map(Vec::len), Some(0), "{report}");
        assert!(report["error"].as_str().unwrap().contains(why), "{why}: {report}");
    };
    assert_eq!(audit(&[directory]).status.code(), Some(IN_SYNC));

    for fault in
        [Fault::Status(403, String::new()), Fault::Status(404, String::new()), Fault::Body(b"<urlset".to_vec())]
    {
        source.fault("changelist.xml", fault, 100);
        unjudged("changelist.xml");
        source.mend();
    }
    assert_eq!(audit(&[directory]).status.code(), Some(IN_SYNC));
    announce("2024-07-01T00:00:00Z", "");
    unjudged("2024-");
}

/// Files of a list that cannot be read are not extra.
#[test]
fn incomplete_lists_allow_no_verdict() {
    let source = source();
    let base = source.url();
    let list = |name: &str| format!("<url><loc>{base}{name}</loc><rs:md capability=\"resourcelist\"/></url>");
    source.document(
        "capabilitylist.xml",
        format!("{URLSET}<rs:md capability=\"capabilitylist\"/>{}{}</urlset>", list("resourcelist.xml"), list("b.xml")),
    );
    source.document(
        "b.xml",
        format!("{URLSET}<rs:md capability=\"resourcelist\"/><url><loc>{base}elsewhere</loc></url></urlset>"),
    );
    let mounted = Mounted::new(&source.url(), "");
    assert_eq!(audit(&[mounted.path().to_str().unwrap()]).status.code(), Some(IN_SYNC));

    source.fault("b.xml", Fault::Status(404, String::new()), 100);
    let output = audit(&[mounted.path().to_str().unwrap()]);

    assert_eq!(output.status.code(), Some(CANNOT_TELL), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("b.xml"), "{output:?}");
}

#[test]
fn what_the_source_serves_is_compared_with_what_it_lists() {
    let source = source();
    let mounted = Mounted::new(&source.url(), "");
    fs::read(mounted.join("bare")).unwrap();
    source.fault("a/one", Fault::Body(b"fir5t".to_vec()), 100);
    source.fault("a/two", Fault::Status(410, String::new()), 100);
    source.fault("b%5Cc", Fault::Status(403, String::new()), 100);
    source.fault("bare", Fault::Body(b"something else".to_vec()), 100);
    let directory = mounted.path();
    let directory = directory.to_str().unwrap();
    assert_eq!(audit(&[directory]).status.code(), Some(IN_SYNC), "the lists are as they were");

    let (found, summary) = report(&audit(&["--fetch", "--json", directory]));

    let expected = [("changed", "a/one"), ("changed", "bare"), ("failed", "b\\c"), ("gone", "a/two")];
    assert_eq!(found, pairs(&expected));
    assert_eq!(summary["requested"], 4);
}

/// A file that the mount knows to fail does not agree, even if the lists do.
#[test]
fn a_file_that_cannot_be_read_is_named_until_it_can() {
    let source = source();
    let mounted = Mounted::new(&source.url(), "");
    source.fault("a/one", Fault::Body(b"wrong".to_vec()), u64::MAX);
    fs::read(mounted.join("a/one")).unwrap_err();
    let directory = mounted.path();
    let directory = directory.to_str().unwrap();

    let output = audit(&["--json", directory]);

    assert_eq!((output.status.code(), report(&output).0), (Some(DIFFERENCES), pairs(&[("failed", "a/one")])));
    source.mend();
    mounted.try_refresh().unwrap();
    eventually("the file can be read", || fs::read(mounted.join("a/one")).is_ok());
    assert_eq!(audit(&[directory]).status.code(), Some(IN_SYNC));
}

/// A date stands for all of its day: a file changed on that day is the listed one.
#[test]
fn a_time_within_the_day_of_a_lastmod_is_no_change() {
    let source = Source::start();
    for (name, day) in [("same", "Wed, 01 May 2024 17:00:00 GMT"), ("later", "Fri, 03 May 2024 17:00:00 GMT")] {
        let resource = Resource { lastmod: Some("2024-05-01".into()), ..Resource::bare("bytes") };
        source.put(name, Resource { headers: format!("Last-Modified: {day}\r\n"), ..resource });
    }

    let (found, _) = report(&audit(&["--fetch", "--json", &source.url()]));

    assert_eq!(found, pairs(&[("changed", "later")]));
}

#[test]
fn the_download_of_all_files_shows_how_far_it_is() {
    let source = Source::start();
    let bytes = vec![7; 4 << 20];
    source.put("large", Resource::new(bytes.clone()));
    source.put("small", Resource::new("small"));
    source.fault("large", Fault::Held(1 << 20), 1);
    let pty = Pty::new(24);
    let mut auditing = pty.run(&["audit", "--fetch", &source.url()]);

    eventually("it shows files and bytes", || {
        pty.seen().contains("downloading: 1 of 2 files, ") && pty.seen().contains(" of 4.2 MB")
    });

    source.mend();
    eventually("it has ended", || auditing.try_wait().unwrap().is_some_and(|ended| ended.success()));
}

/// Damages one byte in the middle of every object of the cache.
fn damage_objects(cache: &Path) -> usize {
    let objects: Vec<_> = tree(&cache.join("content/objects")).into_iter().collect();
    for (path, mut bytes) in objects.clone() {
        bytes[2] ^= 1;
        fs::write(cache.join("content/objects").join(path), bytes).unwrap();
    }
    objects.len()
}

#[test]
fn a_damaged_object_of_the_cache_is_found_and_comes_again() {
    let source = source();
    let mounted = Mounted::new(&source.url(), "");
    let directory = mounted.path();
    let directory = directory.to_str().unwrap();
    fs::read(mounted.join("a/one")).unwrap();
    mounted.remount();
    let (found, summary) = report(&audit(&["--content", "--json", directory]));
    assert_eq!((found, &summary["objects_read"]), (pairs(&[]), &1.into()));
    assert_eq!(damage_objects(mounted.cache()), 1);

    let output = audit(&["--content", "--json", directory]);

    assert_eq!(output.status.code(), Some(DIFFERENCES));
    assert_eq!(report(&output).0, pairs(&[("corrupt", "a/one")]));
    assert_eq!(fs::read(mounted.join("a/one")).unwrap(), b"first");
    assert_eq!(audit(&["--content", directory]).status.code(), Some(IN_SYNC));
}

#[test]
fn sha256sum_accepts_the_manifest_within_the_mount() {
    let source = source();
    source.put("d/index%20with%20%C3%A9%20and%20%22quotes%22%5C", Resource::new("awkward"));
    source.put("-dash", Resource::new("dash"));
    let mounted = Mounted::new(&source.url(), "");
    let manifest = audit(&["--manifest=sha256sum", mounted.path().to_str().unwrap()]);
    let list = mounted.cache().join("list");
    fs::write(&list, text(&manifest)).unwrap();
    let check = || {
        let output = Command::new("sha256sum").arg("-c").arg(&list).current_dir(mounted.path()).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };

    let (accepted, said) = check();

    assert!(accepted, "{said}");
    assert_eq!(said.lines().filter(|line| line.ends_with(": OK")).count(), 5, "{said}");
}

#[test]
fn a_folder_that_is_no_mount_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = source();

    let nothing_there = audit(&[folder.path().to_str().unwrap()]);
    let nothing_kept = audit(&["--content", &source.url()]);

    assert_eq!(nothing_there.status.code(), Some(5), "{nothing_there:?}");
    assert_eq!(nothing_kept.status.code(), Some(2), "{nothing_kept:?}");
}

#[test]
fn an_interrupted_audit_leaves_nothing_behind() {
    let source = source();
    let mounted = Mounted::new(&source.url(), "");
    let mounts: Vec<_> = fs::read_dir(mounted.cache().join("mounts")).unwrap().collect();
    let audits = mounts[0].as_ref().unwrap().path().join("audits");
    let under_way = || fs::read_dir(&audits).map_or(0, Iterator::count);
    source.fault("resourcelist.xml", Fault::Held(10), 1);
    let mut audit = Command::new(PROGRAM).arg("audit").arg(mounted.path()).spawn().unwrap();
    eventually("the audit is under way", || under_way() == 1);

    audit.kill().unwrap();
    audit.wait().unwrap();

    eventually("its files are gone", || under_way() == 0);
    source.mend();
    assert_eq!(fs::read(mounted.join("a/one")).unwrap(), b"first");
}
