//! The same work with no network between: each beside `rclone mount` of the same files, by the pages of their folders. Cold, and
//! on this machine alone, so that what is compared is what the programs themselves cost.

use crate::common::mounted::Mounted;
use crate::common::nginx::Nginx;
use crate::common::random::Random;
use crate::many::publish_unsized;
use crate::measure::{Row, files, forget, keep, percentile, settle, time};
use crate::wire::{Rclone, grep, grep_all, make_files, make_some, publish_one_package, published, run, with_programs};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub const HERE: &str = "127.0.0.1";

/// How often each is timed; of ours the median counts, of the peer's the fastest.
const TIMES: usize = 3;

/// How often what takes some milliseconds alone is timed.
const OFTEN: usize = 10 * TIMES;

/// How rclone keeps what it reads. The faster counts.
const CACHES: [&str; 2] = ["full", "off"];

/// `work` through fresh mounts of `document` beside the same through fresh mounts of rclone.
pub fn beside_rclone(name: &str, nginx: &Nginx, document: &str, work: impl Fn(&Path) -> Duration) -> Vec<Row> {
    let name = format!("{name}, RTT 0");
    with_programs(&name, &["rclone"], || vec![in_turns(&name, nginx, document, work)])
}

fn in_turns(name: &str, nginx: &Nginx, document: &str, work: impl Fn(&Path) -> Duration) -> Row {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..TIMES {
        settle();
        let mounted = Mounted::new(&format!("{}documents/{document}", nginx.url()), "poll=1h");
        ours.push(work(&mounted.path()));
        mounted.unmount();
        forget(mounted.cache());
        keep(mounted);
        let Some(cache) = CACHES.get(round) else { continue };
        settle();
        let kept = tempfile::tempdir().unwrap();
        let rclone = Rclone::mount(nginx, &["--vfs-cache-mode", cache, "--cache-dir", kept.path().to_str().unwrap()]);
        theirs.push((work(rclone.folder.path()), *cache));
        drop(rclone);
        forget(kept.path());
        keep(kept);
    }
    let ours = percentile(&mut ours, 50).as_secs_f64();
    let (theirs, cache) = theirs.into_iter().min().expect("rclone was timed");
    let ratio = ours / theirs.as_secs_f64();
    Row {
        work: name.into(),
        measured: format!("{ours:.3} s"),
        peer: format!("rclone mount {:.3} s (--vfs-cache-mode {cache}, the faster of two)", theirs.as_secs_f64()),
        ratio: format!("{ratio:.2}"),
        bar: "<= 1".into(),
        holds: ratio <= 1.0,
    }
}

/// The same for what takes some milliseconds: often, and of both the median counts.
pub fn beside_rclone_often(name: &str, nginx: &Nginx, document: &str, work: impl Fn(&Path) -> Duration) -> Vec<Row> {
    let name = format!("{name}, RTT 0");
    with_programs(&name, &["rclone"], || vec![often_in_turns(&name, nginx, document, work)])
}

fn often_in_turns(name: &str, nginx: &Nginx, document: &str, work: impl Fn(&Path) -> Duration) -> Row {
    let (mut ours, mut theirs) = (Vec::new(), CACHES.map(|cache| (Vec::new(), cache)));
    for round in 0..OFTEN {
        let mounted = Mounted::new(&format!("{}documents/{document}", nginx.url()), "poll=1h");
        ours.push(work(&mounted.path()));
        mounted.unmount();
        let (times, cache) = &mut theirs[round % CACHES.len()];
        let kept = tempfile::tempdir().unwrap();
        let rclone = Rclone::mount(nginx, &["--vfs-cache-mode", cache, "--cache-dir", kept.path().to_str().unwrap()]);
        times.push(work(rclone.folder.path()));
    }
    let milliseconds = |times: &mut [Duration], percent| percentile(times, percent).as_secs_f64() * 1e3;
    let spelt = |times: &mut [Duration]| {
        let [first, median, last] = [25, 50, 75].map(|percent| milliseconds(times, percent));
        format!("{median:.1} ms (half of them {first:.1} to {last:.1})")
    };
    let (times, cache) =
        theirs.iter_mut().min_by_key(|(times, _)| percentile(&mut times.clone(), 50)).expect("rclone was timed");
    let ratio = milliseconds(&mut ours, 50) / milliseconds(times, 50);
    Row {
        work: format!("{name}, {OFTEN} fresh mounts"),
        measured: spelt(&mut ours),
        peer: format!("rclone mount {} (--vfs-cache-mode {cache}, the faster of two)", spelt(times)),
        ratio: format!("{ratio:.2}"),
        bar: "<= 1".into(),
        holds: ratio <= 1.0,
    }
}

/// A few hundred files, by themselves and out of one package.
pub fn hundreds() -> Vec<Row> {
    with_programs("`grep -r`, 726 files, by themselves and of a Resource Dump, RTT 0", &[], of_hundreds)
}

fn of_hundreds() -> Vec<Row> {
    let nginx = Nginx::serving_at(HERE, make_some);
    let mut rows = beside_rclone("`grep -r`, 726 files, cold", &nginx, "resourcelist.xml", grep_all);
    publish_one_package(&nginx);
    let work = "`grep -r`, 726 files of a Resource Dump, cold";
    rows.extend(beside_rclone(work, &nginx, "capabilitylist.xml", grep_all));
    keep(nginx);
    rows
}

/// Files of the walk that is done again.
const AGAIN: u64 = 10_000;

/// A second walk by `grep`, all of it in both caches.
pub fn warm_grep() -> Vec<Row> {
    with_programs("warm `grep -r` over 10000 small cached files, RTT 0", &[], second_grep_rows)
}

fn second_grep_rows() -> Vec<Row> {
    let nginx = Nginx::serving_at(HERE, |root| make_files(root, AGAIN, 100, 1000));
    let work = |folder: &Path| {
        let of_all = || {
            let (took, found) = grep(folder);
            assert_eq!(found as u64, AGAIN, "every file is read");
            took
        };
        of_all();
        of_all()
    };
    let rows = beside_rclone("warm `grep -r` over 10000 small cached files", &nginx, "resourcelist.xml", work);
    keep(nginx);
    rows
}

/// Ten thousand files: copied, listed, read here and there.
pub fn thousands() -> Vec<Row> {
    with_programs("10000 files, cold, copied, listed and read here and there, RTT 0", &[], of_thousands)
}

fn of_thousands() -> Vec<Row> {
    let nginx = Nginx::serving_at(HERE, |root| {
        make_files(&root.join("deep"), 10_000, 100, 13_000);
        make_files(&root.join("flat"), 10_000, 10_000, 100);
    });
    publish_unsized(&nginx, &published(&nginx, "flat").1);
    let copy = |folder: &Path| {
        let copy = tempfile::tempdir().unwrap();
        let took = run(Command::new("rsync").arg("-a").arg(folder.join("deep/")).arg(copy.path())).0;
        assert_eq!(files(copy.path()).len(), 10_000);
        keep(copy);
        took
    };
    let list = |folder: &Path| {
        let (took, lines) = run(Command::new("ls").arg("-l").arg(folder.join("flat/d000")));
        assert_eq!(lines.lines().count(), 10_001);
        took
    };
    let read = |folder: &Path| {
        let mut random = Random::new(100);
        let path = |number: u64| folder.join(format!("deep/d{:03}/file-{number:05}.txt", number / 100));
        time(|| (0..100).for_each(|_| drop(fs::read(path(random.below(10_000))).unwrap()))).0
    };
    let copied = "`rsync -a`, 10000 files, cold";
    let rows = [
        with_programs(copied, &["rsync"], || beside_rclone(copied, &nginx, "resourcelist.xml", copy)),
        beside_rclone("`ls -l` of 10000 names without lengths, cold", &nginx, "unsized.xml", list),
        beside_rclone("100 random files of 10000, cold", &nginx, "resourcelist.xml", read),
    ];
    keep(nginx);
    rows.concat()
}
