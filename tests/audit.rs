//! `resyncfs audit`: is what is shown what the Source has?

mod common;

use common::mounted::PROGRAM;
use common::source::{Fault, Resource, Source};
use serde_json::Value;
use std::process::{Command, Output};

const IN_SYNC: i32 = 0;
const DIFFERENCES: i32 = 9;

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
fn a_source_that_is_not_mounted_is_held_to_what_it_publishes() {
    let source = source();
    assert_eq!(audit(&[&source.url()]).status.code(), Some(IN_SYNC));
    assert!(source.requests_of("a/one").is_empty(), "without --fetch no resource is asked for");
    source.fault("a/one", Fault::Body(b"other".to_vec()), 10);
    source.fault("a/two", Fault::Status(404, String::new()), 10);

    let output = audit(&["--json", "--fetch", &source.url()]);

    let (found, summary) = report(&output);
    assert_eq!(output.status.code(), Some(DIFFERENCES));
    assert_eq!(found, pairs(&[("changed", "a/one"), ("gone", "a/two")]));
    assert_eq!((&summary["files"], &summary["in_sync"], &summary["asked"]), (&4.into(), &2.into(), &4.into()));
    assert_eq!(summary["unvouched"], 1, "of `bare` nothing is published");
}

#[test]
fn the_part_that_a_mount_would_show_is_audited() {
    let source = source();

    let output = audit(&["-o", "include=a/", "--json", &source.url()]);

    assert_eq!(report(&output).1["files"], 2);
}

#[test]
fn a_manifest_names_what_has_a_digest_and_says_what_has_none() {
    let source = source();

    let output = audit(&["--manifest=sha256sum", &source.url()]);

    let text = text(&output);
    assert_eq!(text.lines().count(), 3);
    assert!(text.lines().any(|line| line.starts_with('\\') && line.ends_with("  b\\\\c")), "{text}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no sha-256: bare") && said.contains("1 files have no published sha-256"), "{said}");
    let lines = audit(&["--manifest=jsonl", &source.url()]);
    let lines: Vec<Value> =
        String::from_utf8(lines.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().any(|line| line["path"] == "bare" && line["hashes"].as_array().unwrap().is_empty()));
}
