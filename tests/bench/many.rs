//! Cold work on many small files: walks, sizes, and readers that jump.

use crate::common::mounted::Mounted;
use crate::common::nginx::Nginx;
use crate::common::random::Random;
use crate::common::source::URLSET;
use crate::delay::FAR;
use crate::measure::{Row, caught, files, keep, megabytes, time};
use crate::wire::{
    Asked, beside, curl, far, far_away, grep, in_turns, list_for_curl, make_files, published, run,
    wait_for_the_last_connection, with_programs,
};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Walks and readers over ten thousand files.
pub fn ten_thousand_files() -> Vec<Row> {
    far_away("ten thousand files, cold, RTT 40 ms", &[], || {
        let nginx = far(Nginx::serving_at(FAR, |root| {
            make_files(&root.join("deep"), 10_000, 100, 13_000);
            make_files(&root.join("flat"), 10_000, 10_000, 100);
        }));
        let rows = [
            with_programs("`rsync -a`, 10000 files, cold, RTT 40 ms", &["rsync", "curl"], || vec![copy(&nginx)]),
            with_programs("`ls -l` of 10000 names without lengths, cold, RTT 40 ms", &["curl"], || {
                vec![list_sizes(&nginx)]
            }),
            caught("a reader of 100 random files of 10000, RTT 40 ms", || vec![read_at_random(&nginx)]),
        ];
        keep(nginx);
        rows.concat()
    })
}

/// What a day brings: walks that are gone through and one that is given up, single files, and a copy.
pub fn mixed_work() -> Vec<Row> {
    let work = "mixed work (`grep`, a walk given up, random reads, `head`, `rsync`) on 10000 files, RTT 40 ms";
    far_away(work, &["rsync"], move || {
        let nginx = far(Nginx::serving_at(FAR, |root| make_files(root, 10_000, 100, 13_000)));
        let mounted = Mounted::new(&format!("{}documents/resourcelist.xml", nginx.url()), "poll=1h");
        let before = Asked::so_far(&nginx, "/d");
        let (took, read) = time(|| do_mixed_work(&mounted));
        mounted.unmount();
        wait_for_the_last_connection();
        let asked = Asked::so_far(&nginx, "/d").since(before);
        let used: u64 = read.iter().map(|path| nginx.files().join(path).metadata().unwrap().len()).sum();
        let wasted = asked.bytes.saturating_sub(used) as f64 / used as f64;
        vec![Row {
            work: work.into(),
            measured: format!(
                "{} fetched, {} requests, {:.1} s",
                megabytes(asked.bytes),
                asked.requests,
                took.as_secs_f64()
            ),
            peer: format!("{} read", megabytes(used)),
            ratio: format!("{:.1} % more", 100.0 * wasted),
            bar: "< 10 %".into(),
            holds: wasted < 0.1,
        }]
    })
}

/// The files that were read of it, by their paths.
fn do_mixed_work(mounted: &Mounted) -> BTreeSet<PathBuf> {
    let below = |path: &Path| path.strip_prefix(mounted.path()).unwrap().to_owned();
    let folder = |number: u32| mounted.join(&format!("d{number:03}"));
    let mut read = BTreeSet::new();
    for number in [3, 4, 5, 40] {
        grep(&folder(number));
        read.extend(files(&folder(number)).iter().map(|path| below(path)));
    }
    // Given up half-way: what was fetched ahead of it then is for nobody.
    let half = files(&folder(60)).into_iter().take(50).collect::<Vec<_>>();
    run(Command::new("md5sum").args(&half));
    read.extend(half.iter().map(|path| below(path)));
    let all = files(&mounted.path());
    let mut random = Random::new(7);
    for _ in 0..100 {
        let path = &all[random.below(all.len() as u64) as usize];
        fs::read(path).unwrap();
        read.insert(below(path));
    }
    // The first lines of the first file of each of some folders, as a previewer shows them.
    for number in 70..90 {
        let first = files(&folder(number)).swap_remove(0);
        run(Command::new("head").args(["-n", "2"]).arg(&first));
        read.insert(below(&first));
    }
    let copy = tempfile::tempdir().unwrap();
    for number in [10, 11, 12] {
        run(Command::new("rsync").arg("-a").arg(folder(number)).arg(copy.path()));
        read.extend(files(&folder(number)).iter().map(|path| below(path)));
    }
    read
}

fn copy(nginx: &Nginx) -> Row {
    let (bytes, uris) = published(nginx, "deep");
    let list = list_for_curl(&uris);
    let work = |mounted: &Mounted| {
        let copy = tempfile::tempdir().unwrap();
        let took = run(Command::new("rsync").arg("-a").arg(mounted.join("deep/")).arg(copy.path())).0;
        assert_eq!(files(copy.path()).len(), uris.len());
        keep(copy);
        took
    };
    let (ours, theirs, asked) = in_turns(nginx, "resourcelist.xml", "/deep/", work, || curl(nginx, list.path(), &[]));
    let work = format!("`rsync -a`, {} files, {}, cold, RTT 40 ms", uris.len(), megabytes(bytes));
    beside(&work, ours, asked, "curl with 64 GETs at once", theirs, 1.5)
}

/// A Resource List of these that tells no lengths, as `unsized.xml`.
pub fn publish_unsized(nginx: &Nginx, uris: &[String]) {
    let mut list = format!("{URLSET}<rs:md capability=\"resourcelist\" at=\"2026-01-02T03:04:05Z\"/>\n");
    for uri in uris {
        let _ = writeln!(list, "<url><loc>{uri}</loc><lastmod>2026-01-01T00:00:00Z</lastmod></url>");
    }
    fs::write(nginx.documents().join("unsized.xml"), list + "</urlset>\n").unwrap();
}

fn list_sizes(nginx: &Nginx) -> Row {
    let uris = published(nginx, "flat").1;
    let list = list_for_curl(&uris);
    publish_unsized(nginx, &uris);
    let work = |mounted: &Mounted| {
        let (took, lines) = run(Command::new("ls").arg("-l").arg(mounted.join("flat/d000")));
        assert_eq!(lines.lines().count(), uris.len() + 1);
        took
    };
    let (ours, theirs, asked) = in_turns(nginx, "unsized.xml", "/flat/", work, || curl(nginx, list.path(), &["-I"]));
    let work = format!("`ls -l` of {} names without lengths, cold, RTT 40 ms", uris.len());
    beside(&work, ours, asked, "curl with 64 HEADs at once", theirs, 1.5)
}

fn read_at_random(nginx: &Nginx) -> Row {
    const READ: usize = 100;
    let mounted = Mounted::new(&format!("{}documents/resourcelist.xml", nginx.url()), "poll=1h");
    let before = Asked::so_far(nginx, "/deep/");
    let paths = files(&mounted.join("deep"));
    let mut random = Random::new(100);
    let mut bytes = 0;
    for _ in 0..READ {
        bytes += fs::read(&paths[random.below(paths.len() as u64) as usize]).unwrap().len() as u64;
    }
    mounted.unmount();
    wait_for_the_last_connection();
    let asked = Asked::so_far(nginx, "/deep/").since(before);
    let ratio = asked.bytes as f64 / bytes as f64;
    Row {
        work: format!("a reader of {READ} random files of {}, RTT 40 ms", paths.len()),
        measured: format!("{} fetched, {} requests", megabytes(asked.bytes), asked.requests),
        peer: format!("{} read", megabytes(bytes)),
        ratio: format!("{ratio:.2}"),
        bar: "<= 1.1".into(),
        holds: ratio <= 1.1,
    }
}
