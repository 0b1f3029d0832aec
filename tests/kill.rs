//! kill -9 at any moment: the next mount shows a whole tree with the right bytes, and loses nothing that was announced.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::random::Random;
use common::source::{Fault, Resource, Source, URLSET};
use common::{eventually, eventually_within, rounds, tree};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn published(source: &Source) -> BTreeMap<PathBuf, Vec<u8>> {
    source.published().into_iter().map(|(path, bytes)| (PathBuf::from(path), bytes)).collect()
}

/// A Source of `files` small files and one big one, whose edition is part of every byte.
fn publish(source: &Source, files: u64, edition: u64) {
    for number in 0..files {
        if (number + edition) % 3 == 0 {
            let bytes = format!("file {number} in edition {edition}").into_bytes().repeat(1 + number as usize % 50);
            source.put(&format!("f{}/{number}", number % 13), Resource::new(bytes));
        }
    }
    source.put("big", Resource::new(Random::new(edition).bytes(18 << 20)));
}

/// Starts the mount without waiting for it and kills it after `pause`.
fn killed_while_starting(mounted: &Mounted, pause: Duration) {
    let mut child = mounted.command("--foreground").stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(pause);
    child.kill().unwrap();
    child.wait().unwrap();
    mounted.kill();
}

#[test]
fn during_the_first_baseline() {
    let source = Source::start();
    publish(&source, 3000, 0);
    let mut random = Random::new(11);
    for _ in 0..rounds() {
        let mounted = Mounted::prepared(&source.url(), "poll=1h");
        killed_while_starting(&mounted, Duration::from_millis(random.below(300)));

        mounted.start();

        assert_eq!(tree(&mounted.path()), published(&source));
    }
}

#[test]
fn during_a_refresh() {
    let source = Source::start();
    publish(&source, 1500, 0);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    let mut random = Random::new(12);
    for round in 0..rounds() {
        let before = published(&source);
        publish(&source, 1500, round + 1);
        mounted.refresh();
        // Before, while and after it is committed.
        std::thread::sleep(Duration::from_millis(random.below(500)));
        mounted.kill();

        // With its documents out of reach the tree is the last that was committed: the old one or the new one, whole.
        for document in [".well-known/resourcesync", "capabilitylist.xml", "resourcelist.xml"] {
            source.fault(document, Fault::Status(503, String::new()), u64::MAX);
        }
        mounted.start();
        let shown: Vec<_> = names(&mounted);
        let (old, new): (Vec<_>, Vec<_>) = (before.into_keys().collect(), published(&source).into_keys().collect());
        assert!(shown == old || shown == new, "neither the old tree nor the new one");

        source.mend();
        mounted.refresh();
        // Each look reads all of it.
        let patience = Duration::from_secs(120);
        eventually_within(patience, "the new edition is shown", || tree_if_whole(&mounted) == Some(published(&source)));
    }
}

fn names(mounted: &Mounted) -> Vec<PathBuf> {
    let output = std::process::Command::new("find")
        .args([".", "-type", "f", "-printf", "%P\\n"])
        .current_dir(mounted.path())
        .output()
        .unwrap();
    let mut names: Vec<_> = String::from_utf8(output.stdout).unwrap().lines().map(PathBuf::from).collect();
    names.sort();
    names
}

/// The tree, unless it changes while it is read.
fn tree_if_whole(mounted: &Mounted) -> Option<BTreeMap<PathBuf, Vec<u8>>> {
    let path = mounted.path();
    std::panic::catch_unwind(|| tree(&path)).ok()
}

/// A Source whose Resource List stays as it was, and whose changes stand in a Change List alone.
struct Followed {
    source: Source,
    changes: String,
    published: u64,
}

impl Followed {
    fn start(files: u64) -> Followed {
        let source = Source::start();
        let base = source.url();
        let mut listed = String::new();
        for number in 0..files {
            let resource = Resource::new(format!("file {number}"));
            listed.push_str(&format!("<url><loc>{base}{number}</loc><rs:md {}/></url>", resource.md));
            source.put(&number.to_string(), resource);
        }
        let document = |capability: &str, entries: &str| format!("{URLSET}<rs:md {capability}/>{entries}</urlset>");
        let offered = |capability: &str, path: &str| {
            format!("<url><loc>{base}{path}</loc><rs:md capability=\"{capability}\"/></url>")
        };
        let offers = offered("resourcelist", "resourcelist.xml") + &offered("changelist", "changelist.xml");
        source.document("capabilitylist.xml", document("capability=\"capabilitylist\"", &offers));
        let at = "capability=\"resourcelist\" at=\"2024-05-01T00:00:00Z\"";
        source.document("resourcelist.xml", document(at, &listed));
        let followed = Followed { source, changes: String::new(), published: 0 };
        followed.publish();
        followed
    }

    /// Changes the resource at `path`, or takes it away where there are no `bytes`.
    fn change(&mut self, path: &str, bytes: Option<Vec<u8>>) {
        self.published += 1;
        let (change, md) = match bytes {
            Some(bytes) => {
                let resource = Resource::new(bytes);
                let md = resource.md.clone();
                self.source.put(path, resource);
                ("updated", md)
            }
            None => {
                self.source.remove(path);
                ("deleted", String::new())
            }
        };
        let (hour, minute, second) = (self.published / 3600, self.published / 60 % 60, self.published % 60);
        self.changes.push_str(&format!(
            "<url><loc>{}{path}</loc><rs:md change=\"{change}\" \
             datetime=\"2024-05-01T{hour:02}:{minute:02}:{second:02}Z\" {md}/></url>",
            self.source.url()
        ));
    }

    fn publish(&self) {
        let md = "<rs:md capability=\"changelist\" from=\"2024-05-01T00:00:00Z\"/>";
        self.source.document("changelist.xml", format!("{URLSET}{md}{}</urlset>", self.changes));
    }
}

#[test]
fn during_incremental_commits_nothing_is_repeated_or_skipped() {
    let mut followed = Followed::start(200);
    let mounted = Mounted::new(&followed.source.url(), "poll=1h,max-delete=100");
    let mut random = Random::new(15);
    for round in 0..rounds() {
        for _ in 0..1 + random.below(40) {
            let path = random.below(300).to_string();
            let bytes = (random.below(3) > 0).then(|| format!("{path} in round {round}").into_bytes());
            followed.change(&path, bytes);
        }
        followed.publish();
        mounted.refresh();
        // Before, while and after it is committed.
        std::thread::sleep(Duration::from_millis(random.below(60)));
        mounted.kill();

        mounted.start();
        eventually("all changes are shown", || tree_if_whole(&mounted) == Some(published(&followed.source)));
    }
}

#[test]
fn during_a_fetch_and_its_commit() {
    let source = Source::start();
    publish(&source, 300, 0);
    source.fault("big", Fault::Slow(Duration::from_micros(300)), u64::MAX);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    let mut random = Random::new(13);
    for _ in 0..rounds() {
        let path = mounted.path();
        let reader = std::thread::spawn(move || std::panic::catch_unwind(|| tree(&path)).is_ok());
        std::thread::sleep(Duration::from_millis(random.below(400)));
        mounted.kill();
        let _ = reader.join();

        mounted.start();
        assert_eq!(tree(&mounted.path()), published(&source));

        mounted.unmount();
        std::fs::remove_dir_all(mounted.cache().join("content")).unwrap();
        mounted.start();
    }
}

#[test]
fn during_eviction() {
    let source = Source::start();
    for number in 0..60 {
        source.put(&format!("{number}"), Resource::new(Random::new(number).bytes(400_000)));
    }
    let mounted = Mounted::new(&source.url(), "poll=1h,cache-size=6M");
    let mut random = Random::new(14);
    for _ in 0..rounds() {
        let path = mounted.path();
        let reader = std::thread::spawn(move || std::panic::catch_unwind(|| tree(&path)).is_ok());
        std::thread::sleep(Duration::from_millis(random.below(300)));
        mounted.kill();
        let _ = reader.join();

        mounted.start();
        assert_eq!(tree(&mounted.path()), published(&source));
    }
    mounted.unmount();
    let usage = std::process::Command::new("du")
        .args(["-s", "--block-size=1"])
        .arg(mounted.cache().join("content"))
        .output()
        .unwrap();
    let bytes: u64 = String::from_utf8_lossy(&usage.stdout).split_ascii_whitespace().next().unwrap().parse().unwrap();
    assert!(bytes < 9_000_000, "the cache of 6 MB takes {bytes} bytes");
}

/// The folder with all FUSE connections of the machine, mounted for one test.
struct Connections(tempfile::TempDir);

impl Connections {
    fn new() -> Connections {
        let folder = tempfile::tempdir().unwrap();
        assert!(Command::new("mount").args(["-t", "fusectl", "none"]).arg(folder.path()).status().unwrap().success());
        Connections(folder)
    }

    /// Ends the connection of the mount at `path`, as an administrator does, and the kernel for a request without an end.
    fn abort(&self, path: &Path) {
        let device = std::fs::metadata(path).unwrap().dev();
        std::fs::write(self.0.path().join(format!("{}/abort", libc::minor(device))), "1").unwrap();
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Promise: never a stuck process. What the kernel ends is seen to be dead, and a manager starts it again.
#[test]
fn an_aborted_connection_is_a_failure_and_mounts_again() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.url(), "poll=1h");
    let mut serving = mounted.command("--foreground").stderr(Stdio::piped()).spawn().unwrap();
    eventually("it is mounted", || mounted.is_mounted());
    assert_eq!(std::fs::read(mounted.join("a")).unwrap(), b"bytes");

    Connections::new().abort(&mounted.path());

    eventually("the program ends", || serving.try_wait().unwrap().is_some());
    let ended = serving.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{message}");
    let is_logged = message.lines().any(|line| line.contains("ERROR") && line.contains("aborted the connection"));
    assert!(is_logged && message.contains("max_request_timeout"), "{message}");
    let listed = Command::new(PROGRAM).args(["list", "--json"]).output().unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let is_it = |mount: &&serde_json::Value| mount["directory"] == mounted.path().display().to_string();
    assert_eq!(listed.as_array().unwrap().iter().find(is_it).unwrap()["state"], "dead", "{listed}");
    mounted.start();
    eventually("it is mounted again", || mounted.said().contains("mounted source="));
    assert_eq!(std::fs::read(mounted.join("a")).unwrap(), b"bytes");
    mounted.unmount();
    assert!(!mounted.is_mounted(), "the dead one is gone too");
}
