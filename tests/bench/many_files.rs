//! Walks, stats and small reads, compared with ext4 (or the file system of the temporary folder).

use crate::common::mounted::Mounted;
use crate::common::source::{Resource, Source};
use crate::measure::{ROUNDS, Row, files, in_turns, percentile, time, walk};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `count` files in folders of a thousand, at a Source and in a plain folder.
fn collection(count: usize) -> (Source, tempfile::TempDir) {
    let source = Source::start();
    let plain = tempfile::tempdir().unwrap();
    for number in 0..count {
        let path = format!("f{:03}/file-{number:06}.txt", number / 1000);
        let bytes = format!("file {number}\n");
        let file = plain.path().join(&path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, &bytes).unwrap();
        source.put(&path, Resource::new(bytes));
    }
    (source, plain)
}

fn stat_all(paths: &[PathBuf]) {
    for path in paths {
        fs::symlink_metadata(path).unwrap();
    }
}

fn read_all(paths: &[PathBuf]) {
    let mut buffer = Vec::new();
    for path in paths {
        buffer.clear();
        fs::File::open(path).unwrap().read_to_end(&mut buffer).unwrap();
    }
}

/// 100,000 files with lengths.
pub fn hundred_thousand() -> Vec<Row> {
    const COUNT: f64 = 100_000.0;
    let (source, plain) = collection(COUNT as usize);
    let mounted = Mounted::new(&source.list_url(), "poll=1h");

    let (mut cold, mut requests) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        // The kernel knows nothing of a new mount.
        mounted.remount();
        source.wait_for_quiet();
        source.take_log();
        let mut find = Command::new("find");
        let (took, output) = time(|| find.arg(mounted.path()).args(["-size", "+100k"]).output().unwrap());
        assert!(output.status.success());
        cold.push(took);
        requests += source.take_log().len();
    }
    let speed = COUNT / percentile(&mut cold, 50).as_secs_f64();

    let whole = |folder: &Path| assert_eq!(walk(folder) as f64, COUNT);
    whole(&mounted.path());
    whole(plain.path());
    let (ours, theirs) = in_turns(|| whole(&mounted.path()), || whole(plain.path()));

    let (our_paths, their_paths) = (files(&mounted.path()), files(plain.path()));
    let (our_storm, their_storm) = in_turns(|| stat_all(&our_paths), || stat_all(&their_paths));

    vec![
        Row::bound(
            "`find -size` over 100,000 files, cold",
            format!("{speed:.0} entries/s, {requests} requests"),
            ">= 150,000/s, 0 requests",
            speed >= 150_000.0 && requests == 0,
        ),
        Row::speeds("warm walk of 100,000 files", "entries", COUNT / ours, "ext4", COUNT / theirs, 0.9),
        Row::speeds("stat storm over 100,000 files", "stats", COUNT / our_storm, "ext4", COUNT / their_storm, 0.7),
    ]
}

/// open, read, close of 10,000 small files that are cached, second pass.
pub fn small_cached_files() -> Vec<Row> {
    const COUNT: f64 = 10_000.0;
    let (source, plain) = collection(COUNT as usize);
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    let (our_paths, their_paths) = (files(&mounted.path()), files(plain.path()));
    read_all(&our_paths);
    read_all(&their_paths);
    let (ours, theirs) = in_turns(|| read_all(&our_paths), || read_all(&their_paths));
    vec![Row::speeds(
        "open+read+close of 10,000 small cached files",
        "files",
        COUNT / ours,
        "ext4",
        COUNT / theirs,
        0.55,
    )]
}

/// `grep -r` over 100,000 small files that are cached, beside the same on ext4.
pub fn warm_grep() -> Vec<Row> {
    const COUNT: usize = 100_000;
    let (source, plain) = collection(COUNT);
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    let grep = |folder: &Path| {
        let output = Command::new("grep").args(["-rc", "--no-messages", "file 99999$"]).arg(folder).output().unwrap();
        let files = output.stdout.iter().filter(|octet| **octet == b'\n').count();
        assert_eq!(files, COUNT, "{}", String::from_utf8_lossy(&output.stderr));
    };
    // All of it into the cache, then all of it into the kernel.
    read_all(&files(&mounted.path()));
    grep(&mounted.path());
    grep(plain.path());
    source.take_log();
    let (ours, theirs) = in_turns(|| grep(&mounted.path()), || grep(plain.path()));
    let requests = source.take_log().len();

    // The cache's own bytes, of which the kernel knows nothing.
    mounted.remount();
    let (first, ()) = time(|| grep(&mounted.path()));
    vec![
        Row {
            work: "warm `grep -r` over 100,000 small cached files".into(),
            measured: format!("{ours:.2} s, {requests} requests"),
            peer: format!("ext4 {theirs:.2} s"),
            ratio: format!("{:.2}", ours / theirs),
            bar: "<= 1.4".into(),
            holds: ours <= 1.4 * theirs && requests == 0,
        },
        Row::bound(
            "the same, the first after a restart",
            format!("{:.2} s, {:.0} files/s", first.as_secs_f64(), COUNT as f64 / first.as_secs_f64()),
            "",
            true,
        ),
    ]
}
