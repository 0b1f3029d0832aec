//! A cache that is damaged, emptied, or has little room never stops a mount.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::random::Random;
use common::source::{Resource, Source};
use common::{eventually, tree};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is done to the bytes of a file.
type Harm = fn(&mut Vec<u8>);

/// Bytes of a page of LMDB.
const PAGE: usize = 4096;

/// A Source of `count` small files in some folders.
fn published(count: usize) -> Source {
    let source = Source::start();
    for number in 0..count {
        let resource = if number % 3 == 0 { Resource::bare } else { Resource::new };
        source.put(&format!("d{}/f{number}", number % 7), resource(format!("file {number}").repeat(20)));
    }
    source
}

/// Every file below `folder`, sockets included.
fn files(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() { folders.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files
}

/// The one environment of that name in a cache folder.
fn environment(cache: &Path, name: &str) -> PathBuf {
    let is_it = |path: &&PathBuf| path.ends_with("data.mdb") && path.iter().any(|part| part == name);
    files(cache).iter().find(is_it).unwrap_or_else(|| panic!("there is no {name}")).clone()
}

fn refreshed(mounted: &Mounted) -> String {
    let output = Command::new(PROGRAM).arg("refresh").arg(mounted.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Remounts after each harm to an environment: the first mount after it shows everything.
fn survives(name: &str, harms: &[Harm]) {
    let source = published(150);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    for harm in harms {
        assert_eq!(tree(&mounted.path()), source_tree(&source));
        mounted.unmount();
        let file = environment(mounted.cache(), name);
        let mut bytes = fs::read(&file).unwrap();
        harm(&mut bytes);
        fs::write(&file, bytes).unwrap();

        mounted.start();

        assert_eq!(tree(&mounted.path()), source_tree(&source));
    }
}

fn source_tree(source: &Source) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    source.published().into_iter().map(|(path, bytes)| (path.into(), bytes)).collect()
}

fn halve(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() / 2 / PAGE * PAGE);
}

fn cut_a_page(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() - PAGE);
}

fn cut_in_a_page(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len() - PAGE / 2);
}

/// In the header of every page but the meta pages: what LMDB trusts most.
fn flip_headers(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(PAGE).skip(2) {
        page[10] ^= 4;
        page[13] ^= 1;
    }
}

/// The number of the last page, in both meta pages.
fn flip_last_page(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(PAGE).take(2) {
        page[16 + 24 + 96 + 3] ^= 0x10;
    }
}

/// One bit of a key in the middle of each page of records: a search or a range stops there.
fn flip_keys(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(PAGE).skip(2).filter(|page| page[10] == 2) {
        let number = |at: usize| usize::from(u16::from_ne_bytes([page[at], page[at + 1]]));
        let records = (number(12) - 16) / 2;
        let record = number(16 + records / 2 * 2);
        page[record + 8] ^= if records > 20 { 0x80 } else { 0 };
    }
}

const HARMS: [Harm; 6] = [
    halve,
    cut_a_page,
    cut_in_a_page,
    |bytes| flip_headers(bytes),
    |bytes| flip_last_page(bytes),
    |bytes| flip_keys(bytes),
];

#[test]
fn a_damaged_catalog_is_built_again_at_the_next_mount() {
    survives("catalog", &HARMS);
}

#[test]
fn damaged_observations_are_made_again_at_the_next_mount() {
    survives("observed", &HARMS);
}

#[test]
fn a_damaged_order_of_eviction_is_made_again_at_next_mount() {
    survives("recency", &HARMS);
}

/// What replaces a damaged catalog takes its room too: nothing of it stays.
#[test]
fn a_damaged_catalog_leaves_nothing_in_the_cache() {
    let source = published(150);
    let mounted = Mounted::new(&source.url(), "poll=1h");
    mounted.unmount();
    let file = environment(mounted.cache(), "catalog");
    let mut bytes = fs::read(&file).unwrap();
    halve(&mut bytes);
    fs::write(&file, bytes).unwrap();

    mounted.start();

    let left = files(mounted.cache()).into_iter().filter(|path| path.to_string_lossy().contains("damaged"));
    assert_eq!(left.count(), 0);
}

#[test]
fn a_mount_lives_with_an_address_space_of_2_gb() {
    let source = published(500);
    let mounted = Mounted::prepared(&source.url(), "poll=1h").with_address_space(2_000_000 << 10);

    mounted.start();

    assert_eq!(tree(&mounted.path()), source_tree(&source));
    source.put("more", Resource::new("more"));
    assert_eq!(refreshed(&mounted), "1 file new, 0 changed, 0 with new metadata only, 0 deleted\n");
    mounted.remount();
    assert_eq!(tree(&mounted.path()), source_tree(&source));
}

/// Where the address space has no room a mount comes about all the same, or the command says why not.
#[test]
fn a_mount_without_address_space_says_so() {
    let source = published(3);
    let mut mounts = 0;
    for megabytes in [60, 120, 180, 240, 400, 2000] {
        let mounted = Mounted::prepared(&source.url(), "poll=1h").with_address_space(megabytes << 20);
        let output = mounted.command("--verbose").stderr(Stdio::piped()).output().unwrap();

        if output.status.success() {
            mounts += 1;
            Command::new(PROGRAM).arg("unmount").arg(mounted.path()).status().unwrap();
        } else {
            let said = String::from_utf8_lossy(&output.stderr);
            // A thread that has no room for its stack is refused with EAGAIN.
            let reasons = ["ulimit -v", "ended by signal", "Resource temporarily unavailable"];
            let says_why = reasons.iter().any(|reason| said.contains(reason));
            assert!(says_why, "{megabytes} MB: {said}");
        }
    }
    assert!(mounts > 0, "2 GB are enough");
}

#[test]
fn a_cache_at_or_below_the_mount_point_is_refused() {
    let source = published(3);
    let scratch = tempfile::tempdir().unwrap();
    let point = scratch.path().join("mnt");
    let link = scratch.path().join("link");
    fs::create_dir(&point).unwrap();
    std::os::unix::fs::symlink(&point, &link).unwrap();
    for cache in [point.clone(), point.join("a/b"), link.join("cache"), scratch.path().join("x/../mnt/cache")] {
        fs::create_dir_all(scratch.path().join("x")).unwrap();
        let option = format!("cache={}", cache.display());
        let output = Command::new(PROGRAM).args(["mount", "-o", &option, &source.url()]).arg(&point).output().unwrap();

        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{option}");
        assert!(said.contains("at or below the mount point") && said.contains("cache=DIR"), "{said}");
        assert_eq!(fs::read_dir(&point).unwrap().count(), 0, "nothing was made there");
    }
}

#[test]
fn a_cache_emptied_below_a_mount_is_made_again() {
    let source = published(30);
    let large = Random::new(3).bytes(3 << 20);
    source.put("large", Resource::new(large.clone()));
    for removed in ["", "content", "content/objects", "content/tmp", "mounts"] {
        let mounted = Mounted::new(&source.url(), "poll=1h");
        fs::read(mounted.join("d1/f1")).unwrap();

        fs::remove_dir_all(mounted.cache().join(removed)).unwrap();

        assert_eq!(tree(&mounted.path()), source_tree(&source), "without {removed}");
        let new = format!("new-{}", removed.replace('/', "-"));
        source.put(&new, Resource::new("new"));
        mounted.refresh();
        eventually("the change is seen", || mounted.join(&new).exists());
        assert_eq!(tree(&mounted.path()), source_tree(&source), "without {removed}");
        mounted.unmount();
        assert!(!files(&mounted.cache().join("content/objects")).is_empty(), "it is kept again");
        mounted.start();
        assert_eq!(tree(&mounted.path()), source_tree(&source), "without {removed}");
    }
}

/// Promise: a change is one commit with all that was found at the same time, however many files it concerns.
#[test]
fn files_found_changed_are_committed_together() {
    let source = Source::start();
    for number in 0..200 {
        source.put(&format!("p{number}"), Resource::bare(format!("first {number}")));
    }
    let mounted = Mounted::new(&source.url(), "poll=1h,revalidate=2s");
    let revision = || mounted.status()["revision"]["number"].as_u64().unwrap();
    tree(&mounted.path());
    for number in 0..200 {
        let resource = Resource::bare(format!("second {number}"));
        source.put(&format!("p{number}"), resource);
    }
    std::thread::sleep(Duration::from_secs(3));
    let before = revision();

    let begun = Instant::now();
    let is_new =
        |number: &usize| fs::read(mounted.join(&format!("p{number}"))).is_ok_and(|it| it.starts_with(b"second"));
    eventually("every change is shown", || (0..200).filter(is_new).count() == 200);

    let (commits, took) = (revision() - before, begun.elapsed());
    assert!(commits <= 4 * took.as_secs() + 6, "{commits} commits in {took:?}");
}

#[test]
fn a_refresh_counts_files_and_no_folders() {
    let source = Source::start();
    source.put("a", Resource::new("a"));
    let mounted = Mounted::new(&source.url(), "poll=1h");

    source.put("d1/d2/d3/b", Resource::new("b"));
    assert_eq!(refreshed(&mounted), "1 file new, 0 changed, 0 with new metadata only, 0 deleted\n");

    source.remove("d1/d2/d3/b");
    source.put("c", Resource::new("c"));
    assert_eq!(refreshed(&mounted), "1 file new, 0 changed, 0 with new metadata only, 1 deleted\n");
}
