//! How long a name waits while everything else is busy.

use crate::common::eventually;
use crate::common::mounted::Mounted;
use crate::common::source::{Fault, Resource, Source};
use crate::measure::{Row, percentile};
use std::fs;
use std::time::{Duration, Instant};

const FILES: usize = 100_000;
const STUCK: usize = 64;

/// LOOKUPs of names that the kernel does not know, during a refresh that changes everything, beside 64 reads that get no answer.
pub fn lookups_during_a_refresh() -> Vec<Row> {
    let source = Source::start();
    for number in 0..FILES {
        source.put(&format!("f{:03}/file-{number:06}", number / 1000), Resource::new(format!("first {number}")));
    }
    for number in 0..STUCK {
        let path = format!("stuck/{number}");
        source.put(&path, Resource::new(format!("never {number}")));
        source.fault(&path, Fault::StallHead(Duration::from_secs(300)), u64::MAX);
    }
    let mounted = Mounted::new(&source.list_url(), "poll=1h,connections=128,timeout=120s");
    let readers: Vec<_> = (0..STUCK)
        .map(|number| {
            let path = mounted.join(&format!("stuck/{number}"));
            std::thread::spawn(move || fs::read(path).is_err())
        })
        .collect();
    eventually("all are stuck", || {
        source.log().iter().filter(|logged| logged.path.starts_with("/stuck/")).count() >= STUCK
    });
    for number in 0..FILES {
        source
            .put(&format!("f{:03}/file-{number:06}", number / 1000), Resource::new(format!("second edition {number}")));
    }

    let revision = || xattr(&mounted);
    let before = revision();
    mounted.refresh();
    let mut times = Vec::new();
    let mut number = 0u64;
    let began = Instant::now();
    while revision() == before && began.elapsed() < Duration::from_secs(60) {
        for _ in 0..200 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let path = mounted.join(&format!("f{:03}/absent-{number:x}", number % 100));
            let asked = Instant::now();
            let _ = fs::symlink_metadata(path);
            times.push(asked.elapsed());
        }
    }
    let took = began.elapsed();
    let changed = revision() != before;
    let (median, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    let stuck = readers.iter().filter(|reader| !reader.is_finished()).count();
    let work = format!("LOOKUP during a whole refresh ({FILES} changes), {stuck} reads stuck");
    let measured = format!(
        "p99 {} us, median {} us, slowest {} us, of {} in {:.1} s",
        p99.as_micros(),
        median.as_micros(),
        times[times.len() - 1].as_micros(),
        times.len(),
        took.as_secs_f64()
    );
    let holds = changed && stuck == STUCK && p99 <= Duration::from_millis(1);
    vec![Row::bound(&work, measured, "p99 <= 1 ms", holds)]
}

/// The number of the revision that is shown.
fn xattr(mounted: &Mounted) -> String {
    let output = std::process::Command::new("getfattr")
        .args(["--absolute-names", "--only-values", "-n", "user.resyncfs.revision"])
        .arg(mounted.path())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
