//! Figures of the mount, each beside its peer or limit, measured in this one run. `scripts/bench` builds and runs it;
//! arguments pick rows by a part of their name. It ends with 1 where a bar is missed or a row broke off.

mod big_file;
#[path = "../common/mod.rs"]
mod common;
mod delay;
mod first_mount;
mod incremental;
mod kernel;
mod large;
mod latency;
mod many;
mod many_files;
mod measure;
mod near;
#[path = "../common/s3.rs"]
mod s3;
mod scale;
mod shared;
mod wire;

use measure::{Row, caught};
use std::process::ExitCode;

/// A benchmark: its name and what measures its rows.
type Benchmark = (&'static str, fn() -> Vec<Row>);

const BENCHMARKS: &[Benchmark] = &[
    ("first-mount", first_mount::flat_list),
    ("many-lists", first_mount::lists_of_an_index),
    ("unsized-folder", first_mount::unsized_folder),
    ("many-files", many_files::hundred_thousand),
    ("small-files", many_files::small_cached_files),
    ("warm-grep", many_files::warm_grep),
    ("big-file", big_file::cached),
    ("latency", latency::lookups_during_a_refresh),
    ("announced", latency::announced_changes),
    ("notifications", kernel::ten_thousand_changes),
    ("changes", incremental::changes_of_a_million),
    ("long-change-list", incremental::long_change_list),
    ("million", first_mount::million),
    ("scale", scale::ten_million),
    ("flat-folder", scale::flat_folder),
    ("thousand-readers", scale::thousand_readers),
    ("million-objects", scale::million_objects),
    ("wire-grep", wire::grep_through_files),
    ("wire-grep-http2", wire::grep_over_http2),
    ("wire-dump", wire::grep_through_a_dump),
    ("wire-many", many::ten_thousand_files),
    ("wire-shared", shared::second_machine),
    ("wire-shared-broken", shared::broken_stores),
    ("wire-mixed", many::mixed_work),
    ("near-hundreds", near::hundreds),
    ("near-thousands", near::thousands),
    ("near-warm", near::warm_grep),
    ("wire-large", large::large_file),
    ("wire-large-gigabit", large::large_file_over_a_gigabit),
    ("wire-large-past", large::large_file_past_the_cache),
    ("wire-large-http2", large::large_file_over_http2),
    ("large-nearby", large::large_file_nearby),
    ("wire-everything", large::everything_at_once),
    ("wire-unzip", large::archive_directory),
    ("near-unzip", large::archive_directory_nearby),
];

/// Whether `part` names a benchmark: it alone, where that is a whole name, else all that have it in theirs.
fn is_named(name: &str, part: &str) -> bool {
    let is_whole = BENCHMARKS.iter().any(|(whole, _)| *whole == part);
    if is_whole { name == part } else { name.contains(part) }
}

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let (mut missed, mut missing, mut rows) = (Vec::new(), Vec::new(), 0);
    println!("| work | measured | peer or limit | ratio | bar | |\n|---|---|---|---|---|---|");
    for (name, run) in BENCHMARKS {
        if !wanted.is_empty() && !wanted.iter().any(|part| is_named(name, part)) {
            continue;
        }
        eprintln!("{name}: {}", measure::machine());
        for row in caught(name, run) {
            rows += 1;
            missed.extend(row.missed());
            missing.extend(row.missing().map(|why| format!("not measured: {}: {why}", row.work)));
            println!("{row}");
        }
    }
    measure::let_go();
    println!("\n{rows} rows: {} bars missed or broken off, {} not measured", missed.len(), missing.len());
    missed.iter().chain(&missing).for_each(|line| println!("{line}"));
    // No row at all is a row whose name was mistyped.
    if missed.is_empty() && rows > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
