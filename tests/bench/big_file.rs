//! Sequential reads of one big file in the cache.

use crate::common::mounted::Mounted;
use crate::common::random::Random;
use crate::common::source::{Resource, Source};
use crate::measure::{ROUNDS, Row, files, time};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

const SIZE: usize = 2 << 30;

/// Reads a file to its end in pieces of 1 MiB; gigabytes a second.
fn speed(path: &Path) -> f64 {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let (took, bytes) = time(|| {
        let mut bytes = 0;
        loop {
            match file.read(&mut buffer).unwrap() {
                0 => return bytes,
                read => bytes += read,
            }
        }
    });
    assert_eq!(bytes, SIZE);
    bytes as f64 / 1e9 / took.as_secs_f64()
}

/// Writes a file so that the page cache holds each page of it by itself.
fn write_page_by_page(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    bytes.chunks(4096).for_each(|page| file.write_all(page).unwrap());
}

fn median(mut speeds: Vec<f64>) -> f64 {
    speeds.sort_by(f64::total_cmp);
    speeds[speeds.len() / 2]
}

fn drop_pages(path: &Path) {
    use std::os::fd::AsRawFd;
    let file = File::open(path).unwrap();
    // SAFETY: the descriptor is open during the call; posix_fadvise touches no memory of this process.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// The object in the page cache, the mount's own pages not; then both.
pub fn cached() -> Vec<Row> {
    let source = Source::start();
    let bytes = Random::new(1).bytes(SIZE);
    let plain = tempfile::tempdir().unwrap();
    let (large, small) = (plain.path().join("large-folios"), plain.path().join("small-folios"));
    std::fs::write(&large, &bytes).unwrap();
    write_page_by_page(&small, &bytes);
    // What is measured is not to wait until the disk has all that.
    [&large, &small].into_iter().for_each(|file| File::open(file).unwrap().sync_all().unwrap());
    source.put("big", Resource::new(bytes));
    let mounted = Mounted::new(&source.list_url(), "poll=1h,cache-size=8G");
    let path = mounted.join("big");

    let fetched = speed(&path);
    // The object is there a moment after its last byte was read.
    source.wait_for_quiet();
    let object = files(mounted.cache()).into_iter().find(|file| file.metadata().unwrap().len() >= SIZE as u64);
    let object = object.expect("the object is in the cache");

    let (mut first, mut second, mut of_large, mut of_small) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    speed(&large);
    speed(&small);
    for _ in 0..ROUNDS {
        // The object's pages are dropped as they are handed out, so that nothing is kept twice.
        std::io::copy(&mut File::open(&object).unwrap(), &mut std::io::sink()).unwrap();
        drop_pages(&path);
        first.push(speed(&path));
        second.push(speed(&path));
        of_large.push(speed(&large));
        of_small.push(speed(&small));
    }
    let (first, second) = (median(first), median(second));
    let (of_large, of_small) = (median(of_large), median(of_small));

    vec![
        Row::bound(
            "2 GiB over loopback, fetched and verified while read",
            format!("{fetched:.2} GB/s"),
            "(none)",
            true,
        ),
        Row::bound(
            "2 GiB from the cache, checked against its CRCs",
            format!("{first:.2} GB/s"),
            ">= 1.5 GB/s",
            first >= 1.5,
        ),
        Row::speeds("the same again, from the page cache", "MB", second * 1e3, "ext4", of_large * 1e3, 0.85),
        Row::speeds(
            "the same beside a file in folios of 4 KiB, which are all that Linux 6.18 gives to FUSE",
            "MB",
            second * 1e3,
            "ext4",
            of_small * 1e3,
            0.85,
        ),
    ]
}
