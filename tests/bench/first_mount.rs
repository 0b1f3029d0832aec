//! The first mount of huge lists, and the next one.

use crate::common::mounted::Mounted;
use crate::common::source::{Source, URLSET};
use crate::measure::{MemoryWatch, Row, megabytes, rss_anon, time, walk};
use std::fmt::Write as _;
use std::process::Command;

/// As many as one real national repository lists in one document.
const FLAT_ENTRIES: u64 = 654_832;

/// A list of `entries` pages in one folder: `lastmod` and nothing else, about 134 octets an entry.
fn flat_document(base: &str, entries: u64) -> String {
    let mut list = format!("{URLSET}<rs:md capability=\"resourcelist\" at=\"2026-01-02T03:04:05Z\"/>\n");
    for number in 0..entries {
        let _ = writeln!(
            list,
            "<url>\n  <loc>{base}record/thesis-{:08}-{number}</loc>\n  <lastmod>20{:02}-{:02}-{:02}T{:02}:{:02}:00Z</lastmod>\n</url>",
            number.wrapping_mul(2_654_435_761) % 100_000_000,
            10 + number % 16,
            1 + number % 12,
            1 + number % 28,
            number % 24,
            number % 60
        );
    }
    list.push_str("</urlset>\n");
    list
}

/// A bare read of `document` with quick-xml: the limit of what any program must do.
fn bare_read(document: &[u8]) -> u64 {
    let mut reader = quick_xml::Reader::from_reader(document);
    let (mut buffer, mut events) = (Vec::new(), 0);
    loop {
        match reader.read_event_into(&mut buffer).unwrap() {
            quick_xml::events::Event::Eof => return events,
            _ => events += 1,
        }
        buffer.clear();
    }
}

/// One flat list of 654,832 entries without lengths.
pub fn flat_list() -> Vec<Row> {
    let source = Source::start();
    let document = flat_document(&source.url(), FLAT_ENTRIES);
    let (bare, _) = time(|| bare_read(document.as_bytes()));
    let octets = document.len() as u64;
    source.document("resourcelist.xml", document);

    let mounted = Mounted::prepared(&source.list_url(), "poll=1h");
    let watch = MemoryWatch::of_process_with(&mounted.path());
    let (first, ()) = time(|| mounted.start());
    let peak = watch.peak();
    source.take_log();
    let folder = mounted.join("record");
    let run = |command: &str| {
        let status = Command::new("bash").args(["-c", command]).arg("bash").arg(&folder).output().unwrap();
        (status.stdout.iter().filter(|octet| **octet == b'\n').count() as u64, source.take_log().len())
    };
    let mut rows = vec![
        Row {
            work: format!("first mount of {FLAT_ENTRIES} entries in one list ({})", megabytes(octets)),
            measured: format!("{:.2} s", first.as_secs_f64()),
            peer: format!("bare quick-xml {:.2} s", bare.as_secs_f64()),
            ratio: format!("{:.1}", first.as_secs_f64() / bare.as_secs_f64()),
            bar: "<= 8".into(),
            holds: first.as_secs_f64() <= 8.0 * bare.as_secs_f64(),
        },
        Row::bound("peak RssAnon of it", megabytes(peak), "<= 100 MB", peak <= 100_000_000),
    ];
    for command in ["ls -U \"$1\"", "find \"$1\" -name '*'", "find \"$1\" -type f"] {
        let (took, (lines, requests)) = time(|| run(command));
        let holds = lines >= FLAT_ENTRIES && requests == 0;
        rows.push(Row::bound(
            &format!("`{command}` of it"),
            format!("{:.2} s, {requests} requests", took.as_secs_f64()),
            "0 requests",
            holds,
        ));
    }
    mounted.unmount();
    let (restart, ()) = time(|| mounted.start());
    rows.push(Row::bound(
        "restart of that mount",
        format!("{:.3} s", restart.as_secs_f64()),
        "<= 0.2 s",
        restart.as_secs_f64() <= 0.2,
    ));
    source.take_log();
    let before = modified(&mounted);
    mounted.refresh();
    crate::common::eventually("the poll is over", || source.take_log().iter().any(|logged| logged.status == 304));
    std::thread::sleep(std::time::Duration::from_millis(300));
    rows.push(Row::bound(
        "an unchanged poll",
        "304, catalog untouched".into(),
        "no write",
        before == modified(&mounted),
    ));
    rows
}

/// When the catalog's files were written last.
fn modified(mounted: &Mounted) -> Vec<std::time::SystemTime> {
    crate::measure::files(mounted.cache())
        .iter()
        .filter(|path| path.to_string_lossy().contains("/catalog/") && path.ends_with("data.mdb"))
        .map(|path| path.metadata().unwrap().modified().unwrap())
        .collect()
}

/// A million resources in 20,000 folders, with lengths.
pub fn million() -> Vec<Row> {
    let source = Source::start();
    let base = source.url();
    let mut list = format!("{URLSET}<rs:md capability=\"resourcelist\" at=\"2026-01-02T03:04:05Z\"/>\n");
    for number in 0..1_000_000u64 {
        let _ = writeln!(
            list,
            "<url><loc>{base}{:03}/{:02}/item-{number}.xml</loc><lastmod>2025-01-02T03:04:05Z</lastmod><rs:md length=\"{}\"/></url>",
            number % 1000,
            number / 1000 % 20,
            number % 10_000
        );
    }
    list.push_str("</urlset>\n");
    source.document("resourcelist.xml", list);
    let mounted = Mounted::new(&source.list_url(), "poll=1h");

    let (took, files) = time(|| walk(&mounted.path()));
    let memory = rss_anon(mounted.pid()).unwrap_or(0);

    let measured = format!("{} ({files} files walked in {:.1} s)", megabytes(memory), took.as_secs_f64());
    vec![Row::bound("RssAnon with 1 M resources after a full walk", measured, "<= 150 MB", memory <= 150_000_000)]
}
