//! Cold work on large files: from their first octet to their last, or only where a program looks.

use crate::common::mounted::Mounted;
use crate::common::nginx::Nginx;
use crate::common::random::Random;
use crate::delay::FAR;
use crate::measure::{Row, keep, megabytes, time};
use crate::near::{HERE, beside_rclone};
use crate::wire::{Asked, Rclone, far_away, in_turns, is_installed, run, wait_for_the_last_connection};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const OCTETS: u64 = 512 << 20;

fn serve_one_at(address: &str) -> Nginx {
    Nginx::serving_at(address, |root| {
        fs::create_dir_all(root).unwrap();
        fs::write(root.join("large.bin"), Random::new(512).bytes(OCTETS as usize)).unwrap();
    })
}

/// How long `cat` takes from the first octet to the last.
fn cat(file: &Path) -> Duration {
    assert_eq!(fs::metadata(file).unwrap().len(), OCTETS);
    run(Command::new("cat").arg(file).stdout(Stdio::null())).0
}

fn megabytes_a_second(seconds: f64) -> f64 {
    OCTETS as f64 / 1e6 / seconds
}

/// One file of half a gigabyte, a round trip away.
pub fn large_file() -> Vec<Row> {
    const RANGES: u64 = 8;
    far_away("a large file", || {
        let nginx = serve_one_at(FAR);
        let uri = format!("{}large.bin", nginx.url());
        let ranges = || {
            let part = OCTETS / RANGES;
            let (took, ()) = time(|| {
                let curls: Vec<_> = (0..RANGES)
                    .map(|range| {
                        let range = format!("{}-{}", range * part, (range + 1) * part - 1);
                        Command::new("curl").args(["-sSf", "-o", "/dev/null", "-r", &range, &uri]).spawn().unwrap()
                    })
                    .collect();
                curls.into_iter().for_each(|mut curl| assert!(curl.wait().unwrap().success()));
            });
            took
        };
        let work = |mounted: &Mounted| cat(&mounted.join("large.bin"));
        let (ours, theirs, asked) = in_turns(&nginx, "resourcelist.xml", "/large", work, ranges);
        let work = format!("`cat` of a file of 512 MiB, cold, {} sent", megabytes(asked.octets));
        let (ours, theirs) = (megabytes_a_second(ours), megabytes_a_second(theirs));
        vec![Row::speeds(&work, "MB", ours, "curl with 8 ranges at once", theirs, 0.9)]
    })
}

/// The same file without the delay.
pub fn large_file_nearby() -> Vec<Row> {
    let work = "`cat` of a file of 512 MiB, cold, over loopback";
    far_away(work, move || {
        let nginx = serve_one_at("127.0.0.1");
        if let Err(why) = Rclone::mount(&nginx, &[]) {
            return vec![Row::not_measured(work, &why)];
        }
        let rclone = || cat(&Rclone::mount(&nginx, &[]).unwrap().folder.path().join("large.bin"));
        let mount = |mounted: &Mounted| cat(&mounted.join("large.bin"));
        let (ours, theirs, _) = in_turns(&nginx, "resourcelist.xml", "/large", mount, rclone);
        vec![Row::speeds(work, "MB", megabytes_a_second(ours), "rclone mount", megabytes_a_second(theirs), 1.0)]
    })
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
    if !is_installed("unzip") {
        return vec![Row::not_measured(work, "unzip is not installed")];
    }
    far_away(work, move || {
        let nginx = serve_an_archive_at(FAR);
        let mounted = Mounted::new(&format!("{}documents/resourcelist.xml", nginx.url()), "poll=1h");
        let took = list_members(&mounted.path());
        mounted.unmount();
        wait_for_the_last_connection();
        let asked = Asked::so_far(&nginx, "/large");
        vec![Row::bound(
            work,
            format!("{} requests, {}, {:.2} s", asked.requests, megabytes(asked.octets), took.as_secs_f64()),
            "<= 6 requests, <= 4 MB",
            asked.requests <= 6 && asked.octets <= 4_000_000,
        )]
    })
}

/// The same without the delay.
pub fn archive_directory_nearby() -> Vec<Row> {
    let work = "`unzip -l` of a ZIP of 200 MB that is one resource";
    if !is_installed("unzip") {
        return vec![Row::not_measured(work, "unzip is not installed")];
    }
    let nginx = serve_an_archive_at(HERE);
    let row = beside_rclone(work, &nginx, "resourcelist.xml", list_members);
    keep(nginx);
    vec![row]
}
