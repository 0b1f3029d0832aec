//! From a new revision to what every process sees.

use crate::common::mounted::Mounted;
use crate::common::source::{Resource, Source};
use crate::measure::{Row, percentile};
use std::fs;
use std::time::{Duration, Instant};

const CHANGES: usize = 10_000;

/// 10,000 changes of names that the kernel holds.
pub fn ten_thousand_changes() -> Vec<Row> {
    let source = Source::start();
    let path = |number: usize| format!("f{:02}/file-{number:05}", number / 1000);
    for number in 0..CHANGES {
        source.put(&path(number), Resource::new(format!("{number}")));
    }
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    crate::measure::walk(&mounted.path());
    for number in 0..CHANGES {
        source.put(&path(number), Resource::new(format!("second edition of {number}")));
    }

    mounted.refresh();
    // The kernel is notified folder by folder, in the order of the names.
    let mut seen = Vec::with_capacity(CHANGES);
    for number in 0..CHANGES {
        let file = mounted.join(&path(number));
        while fs::symlink_metadata(&file).unwrap().len() < 10 {
            std::thread::yield_now();
        }
        seen.push(Instant::now());
    }
    let mut gaps: Vec<Duration> = seen.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (median, p99) = (percentile(&mut gaps, 50), percentile(&mut gaps, 99));
    let all = seen[CHANGES - 1] - seen[0];
    let measured = format!(
        "p99 {} us, median {} us, slowest {} us, all in {:.2} s",
        p99.as_micros(),
        median.as_micros(),
        gaps[gaps.len() - 1].as_micros(),
        all.as_secs_f64()
    );
    let work = format!("kernel notified of {CHANGES} changes, as a process sees one after the other");
    vec![Row::bound(&work, measured, "p99 <= 10 ms", p99 <= Duration::from_millis(10))]
}
