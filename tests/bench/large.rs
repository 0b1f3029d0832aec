//! Cold work on large files: from their first octet to their last, or only where a program looks.

use crate::common::mounted::Mounted;
use crate::common::nginx::Nginx;
use crate::common::random::Random;
use crate::delay::FAR;
use crate::measure::{MemoryWatch, Row, caught, keep, megabytes, time};
use crate::near::{HERE, beside_rclone_often};
use crate::wire::{
    Asked, ROUND_TRIP, Rclone, curl_from, far, far_away, far_away_at, grep_all, in_turns, in_turns_with, make_some,
    options, run, wait_for_the_last_connection, with_programs,
};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const OCTETS: u64 = 512 << 20;

fn make_one(root: &Path) {
    fs::create_dir_all(root).unwrap();
    fs::write(root.join("large.bin"), Random::new(512).bytes(OCTETS as usize)).unwrap();
}

/// How long `cat` takes from the first octet to the last.
fn cat(file: &Path) -> Duration {
    assert_eq!(fs::metadata(file).unwrap().len(), OCTETS);
    run(Command::new("cat").arg(file).stdout(Stdio::null())).0
}

fn megabytes_a_second(seconds: f64) -> f64 {
    OCTETS as f64 / 1e6 / seconds
}

/// Ranges of it that curl gets at once.
const RANGES: u64 = 8;

/// The arguments of curl for one of them.
fn range(number: u64) -> String {
    let part = OCTETS / RANGES;
    format!("{}-{}", number * part, (number + 1) * part - 1)
}

/// How long curl takes with each range by a connection of its own.
fn by_connections(nginx: &Nginx) -> Duration {
    let (took, ()) = time(|| {
        let curls: Vec<_> = (0..RANGES)
            .map(|number| {
                let mut curl = curl_from(nginx);
                curl.args(["-o", "/dev/null", "-r", &range(number)]).arg(nginx.url() + "large.bin").spawn().unwrap()
            })
            .collect();
        curls.into_iter().for_each(|mut curl| assert!(curl.wait().unwrap().success()));
    });
    took
}

/// How long one curl takes, which has all of them in one connection where the protocol knows streams.
fn by_streams(nginx: &Nginx) -> Duration {
    let mut curl = curl_from(nginx);
    curl.args(["-Z", "--parallel-max", &RANGES.to_string()]);
    for number in 0..RANGES {
        if number > 0 {
            // What follows is of another transfer; what was said of TLS is not.
            curl.args(["--next", "-sSf", "--http2", "--cacert"]).arg(nginx.ca());
        }
        curl.args(["-o", "/dev/null", "-r", &range(number)]).arg(nginx.url() + "large.bin");
    }
    run(&mut curl).0
}

/// `cat` beside curl.
fn cat_beside(nginx: &Nginx, network: &str, peer: &str, ranges: impl Fn() -> Duration) -> Row {
    cat_with(&options(nginx), nginx, network, peer, ranges)
}

/// The same through a mount with these options.
fn cat_with(options: &str, nginx: &Nginx, network: &str, peer: &str, ranges: impl Fn() -> Duration) -> Row {
    let work = |mounted: &Mounted| cat(&mounted.join("large.bin"));
    let (ours, theirs, asked) = in_turns_with(options, nginx, "resourcelist.xml", "/large", work, ranges);
    let work = format!("`cat` of a file of 512 MiB, cold, {network}, {} sent", megabytes(asked.bytes));
    Row::speeds(&work, "MB", megabytes_a_second(ours), peer, megabytes_a_second(theirs), 0.9)
}

/// One file of half a gigabyte, a round trip away.
pub fn large_file() -> Vec<Row> {
    far_away("`cat` of a file of 512 MiB, cold, RTT 40 ms", &["curl"], || {
        let nginx = far(Nginx::serving_at(FAR, make_one));
        vec![cat_beside(&nginx, "RTT 40 ms", "curl with 8 ranges at once", || by_connections(&nginx))]
    })
}

/// The same over a line of a gigabit a second: there the line is the limit, and not what the processors of one machine move through
/// server, network, program and reader at once.
pub fn large_file_over_a_gigabit() -> Vec<Row> {
    const RATE: u64 = 125_000_000;
    let network = "RTT 40 ms, 1 Gbit/s";
    far_away_at(RATE, &format!("`cat` of a file of 512 MiB, cold, {network}"), &["curl"], move || {
        let nginx = far(Nginx::serving_at(FAR, make_one));
        vec![cat_beside(&nginx, network, "curl with 8 ranges at once", || by_connections(&nginx))]
    })
}

/// The same file where the cache has no room for it: it goes past.
pub fn large_file_past_the_cache() -> Vec<Row> {
    let network = "RTT 40 ms, a cache of 64 MB";
    far_away(&format!("`cat` of a file of 512 MiB, cold, {network}"), &["curl"], move || {
        let nginx = far(Nginx::serving_at(FAR, make_one));
        let options = options(&nginx) + ",cache-size=64M";
        vec![cat_with(&options, &nginx, network, "curl with 8 ranges at once", || by_connections(&nginx))]
    })
}

/// The same over TLS, where streams of one connection stand beside connections.
pub fn large_file_over_http2() -> Vec<Row> {
    let work = "`cat` of a file of 512 MiB, cold, RTT 40 ms, TLS and HTTP/2";
    far_away(work, &["curl", "openssl"], move || {
        let nginx = far(Nginx::serving_tls_at(FAR, make_one));
        let network = "RTT 40 ms, TLS and HTTP/2";
        let in_one = "curl with 8 ranges at once in one connection";
        let mut rows = vec![cat_beside(&nginx, network, "curl with 8 ranges at once", || by_connections(&nginx))];
        rows.extend(caught(work, || vec![cat_beside(&nginx, network, in_one, || by_streams(&nginx))]));
        rows
    })
}

/// The same file without the delay.
pub fn large_file_nearby() -> Vec<Row> {
    let work = "`cat` of a file of 512 MiB, cold, RTT 0";
    far_away(work, &["rclone"], move || {
        let nginx = Nginx::serving_at(HERE, make_one);
        let rclone = || cat(&Rclone::mount(&nginx, &[]).folder.path().join("large.bin"));
        let mount = |mounted: &Mounted| cat(&mounted.join("large.bin"));
        let (ours, theirs, _) = in_turns(&nginx, "resourcelist.xml", "/large", mount, rclone);
        vec![Row::speeds(work, "MB", megabytes_a_second(ours), "rclone mount", megabytes_a_second(theirs), 1.0)]
    })
}

/// Bytes of each file of [`everything_at_once`], its files that are read from end to end, and those that are looked into.
const LONG: u64 = 128 << 20;
const FOLLOWED: usize = 6;
const LOOKED_INTO: usize = 2;

/// Several large files from their first octet to their last, of which the cache has room for one, others where their readers jump, and
/// a walk through hundreds of small ones, all at the same time: everything that holds bytes in memory holds them.
pub fn everything_at_once() -> Vec<Row> {
    let work =
        "six files of 128 MiB, two at places of chance, `grep -r` of 726, all at once, RTT 40 ms, a cache of 200 MB";
    far_away(work, &["grep"], move || {
        let nginx = far(Nginx::serving_at(FAR, |root| {
            make_some(&root.join("some"));
            for number in 0..FOLLOWED + LOOKED_INTO {
                fs::write(root.join(format!("{number}.bin")), Random::new(number as u64).bytes(LONG as usize)).unwrap();
            }
        }));
        let mounted = Mounted::new(
            &format!("{}documents/resourcelist.xml", nginx.url()),
            &(options(&nginx) + ",cache-size=200M"),
        );
        let watch = MemoryWatch::of_process_with(&mounted.path());
        let (took, ()) = time(|| {
            std::thread::scope(|scope| {
                let (mounted, nginx) = (&mounted, &nginx);
                let mut readers: Vec<_> =
                    (0..FOLLOWED).map(|number| scope.spawn(move || is_the_same(mounted, nginx, number))).collect();
                readers.extend(
                    (FOLLOWED..FOLLOWED + LOOKED_INTO)
                        .map(|number| scope.spawn(move || is_the_same_at_places(mounted, nginx, number))),
                );
                readers.push(scope.spawn(|| {
                    grep_all(&mounted.join("some"));
                }));
                for reader in readers {
                    reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                }
            });
        });
        let peak = watch.peak();
        mounted.unmount();
        let measured = format!("{:.1} s, peak RssAnon {}", took.as_secs_f64(), megabytes(peak));
        vec![Row::bound(work, measured, "every octet as published, <= 256 MB", peak > 0 && peak <= 256_000_000)]
    })
}

/// The file in the mount, and the one that nginx serves.
fn both(mounted: &Mounted, nginx: &Nginx, number: usize) -> [File; 2] {
    let name = format!("{number}.bin");
    [mounted.join(&name), nginx.files().join(&name)].map(|path| File::open(path).unwrap())
}

fn is_the_same(mounted: &Mounted, nginx: &Nginx, number: usize) {
    let [mut ours, mut served] = both(mounted, nginx, number);
    let (mut found, mut published) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for _ in 0..LONG >> 20 {
        ours.read_exact(&mut found).unwrap();
        served.read_exact(&mut published).unwrap();
        assert!(found == published, "{number}.bin");
    }
    assert_eq!(ours.read(&mut found).unwrap(), 0);
}

fn is_the_same_at_places(mounted: &Mounted, nginx: &Nginx, number: usize) {
    let [ours, served] = both(mounted, nginx, number);
    let (mut found, mut published) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut random = Random::new(1000 + number as u64);
    for _ in 0..100 {
        let place = random.below(LONG - (64 << 10));
        ours.read_exact_at(&mut found, place).unwrap();
        served.read_exact_at(&mut published, place).unwrap();
        assert!(found == published, "{number}.bin at {place}");
    }
}

/// Members of the archive, of a megabyte each.
const MEMBERS: usize = 200;

fn serve_an_archive_at(address: &str) -> Nginx {
    Nginx::serving_at(address, |root| {
        fs::create_dir_all(root).unwrap();
        let script = "import os, sys, zipfile\nwith zipfile.ZipFile(sys.argv[1], 'w') as archive:\n\
                      \x20 for number in range(int(sys.argv[2])): archive.writestr(f'member-{number}', os.urandom(1000000))";
        run(Command::new("python3").args(["-c", script]).arg(root.join("large.zip")).arg(MEMBERS.to_string()));
    })
}

/// How long it takes to list the archive in `folder`.
fn list_members(folder: &Path) -> Duration {
    let (took, listed) = run(Command::new("unzip").arg("-l").arg(folder.join("large.zip")));
    assert_eq!(listed.lines().filter(|line| line.contains("member-")).count(), MEMBERS);
    took
}

/// The directory at the end of an archive that is one resource.
pub fn archive_directory() -> Vec<Row> {
    let work = "`unzip -l` of a ZIP of 200 MB that is one resource, cold, RTT 40 ms";
    far_away(work, &["unzip", "python3"], move || {
        let nginx = far(serve_an_archive_at(FAR));
        let mounted = Mounted::new(&format!("{}documents/resourcelist.xml", nginx.url()), &options(&nginx));
        let took = list_members(&mounted.path());
        mounted.unmount();
        wait_for_the_last_connection();
        let asked = Asked::so_far(&nginx, "/large");
        let round_trips = took.as_secs_f64() / ROUND_TRIP.as_secs_f64();
        vec![Row::bound(
            work,
            format!(
                "{:.2} s, {round_trips:.1} round trips, {} requests, {}",
                took.as_secs_f64(),
                asked.requests,
                megabytes(asked.bytes)
            ),
            "<= 6 round trips (and what the programs themselves take, <= 1), <= 4 MB",
            asked.requests <= 6 && round_trips <= 7.0 && asked.bytes <= 4_000_000,
        )]
    })
}

/// The same without the delay.
pub fn archive_directory_nearby() -> Vec<Row> {
    let work = "`unzip -l` of a ZIP of 200 MB that is one resource, cold";
    with_programs(work, &["unzip", "rclone", "python3"], || {
        let nginx = serve_an_archive_at(HERE);
        let rows = beside_rclone_often(work, &nginx, "resourcelist.xml", list_members);
        keep(nginx);
        rows
    })
}
