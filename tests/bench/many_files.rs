//! Walks, stats and small reads, beside ext4 (or whatever the temporary folder lies on).

use crate::common::mounted::Mounted;
use crate::common::source::{Resource, Source};
use crate::measure::{Row, files, time, walk};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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

/// The best of three.
fn best(mut work: impl FnMut() -> Duration) -> f64 {
    (0..3).map(|_| work().as_secs_f64()).fold(f64::INFINITY, f64::min)
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
    source.take_log();

    let find = |folder: &Path| Command::new("find").arg(folder).args(["-size", "+100k"]).output().unwrap();
    let (cold, output) = time(|| find(&mounted.path()));
    assert!(output.status.success());
    let requests = source.take_log().len();
    let speed = COUNT / cold.as_secs_f64();

    let warm = |folder: &Path| {
        walk(folder);
        best(|| time(|| walk(folder)).0)
    };
    let (ours, theirs) = (warm(&mounted.path()), warm(plain.path()));
    let storm = |folder: &Path| {
        let paths = files(folder);
        stat_all(&paths);
        best(|| time(|| stat_all(&paths)).0)
    };
    let (our_storm, their_storm) = (storm(&mounted.path()), storm(plain.path()));

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
    let pass = |folder: &Path| {
        let paths = files(folder);
        read_all(&paths);
        best(|| time(|| read_all(&paths)).0)
    };
    let (ours, theirs) = (pass(&mounted.path()), pass(plain.path()));
    vec![Row::speeds(
        "open+read+close of 10,000 small cached files",
        "files",
        COUNT / ours,
        "ext4",
        COUNT / theirs,
        0.55,
    )]
}
