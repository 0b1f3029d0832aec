//! What a day's changes cost a big mount.

use crate::common::mounted::{Mounted, PROGRAM};
use crate::common::source::{Resource, Source, URLSET, hex};
use crate::measure::{MemoryWatch, ROUNDS, Row, megabytes, percentile, rss_anon, time};
use resyncfs::document::{Limits, Reader};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

const RESOURCES: u64 = 1_000_000;
/// As many as one big aggregator's Source has on a usual day.
const CHANGES: u64 = 1600;

fn path(number: u64) -> String {
    format!("{:03}/{:02}/item-{number}.xml", number % 1000, number / 1000 % 20)
}

fn resource_list(base: &str) -> Vec<u8> {
    let mut list = format!("{URLSET}<rs:md capability=\"resourcelist\" at=\"2026-01-01T00:00:00Z\"/>\n");
    for number in 0..RESOURCES {
        let _ = writeln!(
            list,
            "<url><loc>{base}{}</loc><lastmod>2025-01-02T03:04:05Z</lastmod><rs:md length=\"{}\"/></url>",
            path(number),
            number % 10_000
        );
    }
    (list + "</urlset>\n").into_bytes()
}

/// The changes of so many days, each day's at other resources: two updates on one creation and one deletion.
fn change_list(base: &str, days: u64) -> String {
    let mut list = format!("{URLSET}<rs:md capability=\"changelist\" from=\"2026-01-01T00:00:00Z\"/>\n");
    for number in 0..days * CHANGES {
        let (hour, minute, second) = (number / 3600, number / 60 % 60, number % 60);
        let time = format!("2026-01-02T{hour:02}:{minute:02}:{second:02}Z");
        let (path, change) = match number % 4 {
            0 => (path(RESOURCES + number), "created"),
            1 => (path(number * 97), "deleted"),
            _ => (path(number * 97), "updated"),
        };
        let _ = writeln!(
            list,
            "<url><loc>{base}{path}</loc><lastmod>{time}</lastmod><rs:md change=\"{change}\" datetime=\"{time}\" length=\"{}\"/></url>",
            number % 999
        );
    }
    list + "</urlset>\n"
}

/// 1,600 changes, announced by a Change List, of a mount of a million resources.
pub fn changes_of_a_million() -> Vec<Row> {
    let source = Source::start();
    let base = source.url();
    source.document(
        "capabilitylist.xml",
        format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{base}.well-known/resourcesync\"/><rs:md capability=\"capabilitylist\"/>\
             <url><loc>{base}resourcelist.xml</loc><rs:md capability=\"resourcelist\"/></url>\
             <url><loc>{base}changelist.xml</loc><rs:md capability=\"changelist\"/></url></urlset>"
        ),
    );
    let list = resource_list(&base);
    let etag = format!("\"d{}\"", hex(&Sha256::digest(&list)[..8]));
    source.document("resourcelist.xml", list);
    source.document("changelist.xml", change_list(&base, 0));
    let mounted = Mounted::new(&base, "poll=1d");
    // Asked for again it is the same, and the server need not carry it about.
    source.page("resourcelist.xml", Resource { etag: Some(etag), ..Resource::bare("") });
    mounted.try_refresh().unwrap();

    let mut times = Vec::new();
    for day in 1..=ROUNDS as u64 {
        source.document("changelist.xml", change_list(&base, day));
        mounted.try_refresh().unwrap();
        let (took, changed) = last_refresh(&mounted);
        assert_eq!(changed, CHANGES, "all of them are applied");
        times.push(took);
    }
    let (median, memory) = (percentile(&mut times, 50), rss_anon(mounted.pid()).unwrap_or(0));
    vec![Row::bound(
        &format!("{CHANGES} changes of a Change List, with {RESOURCES} resources, loopback included"),
        format!("{:.3} s, RssAnon {}", median.as_secs_f64(), megabytes(memory)),
        "<= 0.2 s",
        median <= Duration::from_millis(200),
    )]
}

/// Entries of a Change List that grows for years.
const LONG: u64 = 2_000_000;

/// A Change List of new entries, which then gains one line.
pub fn long_change_list() -> Vec<Row> {
    let source = Source::start();
    let base = source.url();
    let named = ["resourcelist", "changelist"]
        .map(|list| format!("<url><loc>{base}{list}.xml</loc><rs:md capability=\"{list}\"/></url>"));
    let head =
        format!("<rs:ln rel=\"up\" href=\"{base}.well-known/resourcesync\"/><rs:md capability=\"capabilitylist\"/>");
    source.document("capabilitylist.xml", format!("{URLSET}{head}{}</urlset>", named.concat()));
    source.put("one", Resource::new("one"));
    source.document("resourcelist.xml", source.resource_list_at("2026-01-01T00:00:00Z"));
    let mut list = format!("{URLSET}<rs:md capability=\"changelist\" from=\"2026-01-01T00:00:00Z\"/>\n");
    let empty = format!("{list}</urlset>\n");
    for number in 0..LONG {
        let (day, hour, minute, second) = (2 + number / 86_400, number / 3600 % 24, number / 60 % 60, number % 60);
        let _ = writeln!(
            list,
            "<url><loc>{base}{}</loc><rs:md change=\"updated\" datetime=\"2026-01-{day:02}T{hour:02}:{minute:02}:{second:02}Z\" \
             length=\"{}\"/></url>",
            path(number),
            number % 999
        );
    }
    source.document("changelist.xml", empty);
    let mounted = Mounted::new(&base, "poll=1d");
    mounted.try_refresh().unwrap();
    source.document("changelist.xml", format!("{list}</urlset>\n"));
    let watch = MemoryWatch::of_process_with(&mounted.path());
    mounted.try_refresh().unwrap();
    let (new_peak, (new_took, _)) = (watch.peak(), last_refresh(&mounted));
    let _ = writeln!(
        list,
        "<url><loc>{base}one</loc><rs:md change=\"updated\" datetime=\"2026-01-30T00:00:00Z\" length=\"3\"/></url>\n</urlset>"
    );
    let (bare, entries) = time(|| {
        let mut reader = Reader::new(list.as_bytes(), None, Limits::default()).unwrap();
        std::iter::from_fn(|| reader.next_entry().unwrap()).count() as u64
    });
    assert_eq!(entries, LONG + 1);
    source.document("changelist.xml", list);
    let watch = MemoryWatch::of_process_with(&mounted.path());
    mounted.try_refresh().unwrap();
    let peak = watch.peak();
    let (took, changed) = last_refresh(&mounted);
    assert_eq!(changed, 1, "one line is new");
    let work = format!("a Change List of {LONG} entries that gains one line");
    let ratio = took.as_secs_f64() / bare.as_secs_f64();
    vec![
        Row::bound(
            &format!("peak RssAnon of a Change List of {LONG} new entries"),
            format!("{}, {:.1} s", megabytes(new_peak), new_took.as_secs_f64()),
            "<= 256 MB",
            new_peak <= 256_000_000,
        ),
        Row::bound(&format!("peak RssAnon of {work}"), megabytes(peak), "<= 256 MB", peak <= 256_000_000),
        Row {
            work,
            measured: format!("{:.1} s", took.as_secs_f64()),
            peer: format!("its entries read from memory {:.1} s", bare.as_secs_f64()),
            ratio: format!("{ratio:.2}"),
            bar: "<= 2".into(),
            holds: ratio <= 2.0,
        },
    ]
}

/// How long the last refresh took, and how many files it changed.
fn last_refresh(mounted: &Mounted) -> (Duration, u64) {
    let output = Command::new(PROGRAM).args(["status", "--json"]).arg(mounted.path()).output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let last = &status["sync"]["last_refresh"];
    let count = |what: &str| last["outcome"]["committed"][what].as_u64().unwrap_or(0);
    (
        Duration::from_millis(last["milliseconds"].as_u64().unwrap()),
        count("created") + count("updated") + count("deleted"),
    )
}
