//! From a new revision to what every process sees.

use crate::common::mounted::Mounted;
use crate::common::source::{Resource, Source};
use crate::measure::{Row, percentile};
use std::fs;
use std::time::{Duration, Instant};

const CHANGES: usize = 10_000;

/// 10,000 changes of names that the kernel holds: how far the last to be seen lies behind the first.
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
    let mut times = Vec::with_capacity(CHANGES);
    let mut first = None;
    for number in 0..CHANGES {
        let file = mounted.join(&path(number));
        while fs::symlink_metadata(&file).unwrap().len() < 10 {
            std::thread::yield_now();
        }
        let now = Instant::now();
        let previous = *first.get_or_insert(now);
        times.push(now - previous);
        first = Some(now);
    }
    let p99 = percentile(&mut times, 99);
    let work = format!("kernel told of {CHANGES} changes: time from one to the next");
    vec![Row::bound(&work, format!("p99 {} us", p99.as_micros()), "p99 <= 10 ms", p99 <= Duration::from_millis(10))]
}
