//! The first mount of huge lists, and the next one.

use crate::common::eventually;
use crate::common::mounted::Mounted;
use crate::common::source::{Resource, Source, URLSET};
use crate::measure::{MemoryWatch, ROUNDS, Row, megabytes, percentile, rss_anon, time, walk};
use std::fmt::Write as _;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

/// As many as one real national repository lists in one document.
const FLAT_ENTRIES: u64 = 654_832;

/// A list of `entries` pages in one folder: `lastmod` and nothing else, 134 bytes an entry.
fn flat_document(base: &str, entries: u64) -> String {
    let mut list = format!("{URLSET}<rs:md capability=\"resourcelist\" at=\"2026-01-02T03:04:05Z\"/>\n");
    for number in 0..entries {
        let _ = writeln!(
            list,
            "<url>\n  <loc>{base}record/doctoral-thesis-{:08}-{number:010}</loc>\n  <lastmod>20{:02}-{:02}-{:02}T{:02}:{:02}:00Z</lastmod>\n</url>",
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

/// Lists of one index, and entries of each.
const LISTS: u64 = 20;
const ENTRIES_OF_A_LIST: u64 = 50_000;

/// List number `list` of an index: resources in folders by day, with digest, length and type, 280 bytes an entry.
fn list_of_an_index(base: &str, list: u64) -> String {
    let mut document = format!("{URLSET}<rs:md capability=\"resourcelist\" at=\"2026-01-02T03:04:05Z\"/>\n");
    for number in list * ENTRIES_OF_A_LIST..(list + 1) * ENTRIES_OF_A_LIST {
        let (month, day) = (1 + number / 4_000 % 12, 1 + number / 200 % 28);
        let digest = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let _ = writeln!(
            document,
            "<url><loc>{base}dataset/20{:02}/{month:02}/{month:02}{day:02}/item-{}/file-{number}.xml</loc>\
             <lastmod>20{:02}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z</lastmod>\
             <rs:md hash=\"md5:{digest:032x}\" length=\"{}\" type=\"application/xml\"/></url>",
            list % 20,
            number / 2,
            list % 20,
            number % 24,
            number % 60,
            number % 59,
            number % 100_000,
        );
    }
    document.push_str("</urlset>\n");
    document
}

/// A million resources in 20 lists of one index.
pub fn lists_of_an_index() -> Vec<Row> {
    let source = Source::start();
    let base = source.url();
    let mut index = URLSET.replace("urlset", "sitemapindex");
    index.push_str("<rs:md capability=\"resourcelist\" at=\"2026-01-02T03:04:05Z\"/>\n");
    let mut documents = Vec::new();
    for list in 0..LISTS {
        let _ = writeln!(index, "<sitemap><loc>{base}list-{list}.xml</loc></sitemap>");
        let document = list_of_an_index(&base, list);
        source.document(&format!("list-{list}.xml"), document.as_str());
        documents.push(document);
    }
    index.push_str("</sitemapindex>\n");
    source.document("resourcelist.xml", index);
    let bytes = documents.iter().map(|document| document.len() as u64).sum();

    let (mut bare, mut first, mut peak) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        bare.push(time(|| documents.iter().map(|document| bare_read(document.as_bytes())).sum::<u64>()).0);
        let fresh = Mounted::prepared(&source.list_url(), "poll=1h");
        let watch = MemoryWatch::of_process_with(&fresh.path());
        first.push(time(|| fresh.start()).0);
        peak = peak.max(watch.peak());
    }
    let (bare, first) = (percentile(&mut bare, 50).as_secs_f64(), percentile(&mut first, 50).as_secs_f64());
    vec![
        Row {
            work: format!(
                "first mount of {} entries in {LISTS} lists ({})",
                LISTS * ENTRIES_OF_A_LIST,
                megabytes(bytes)
            ),
            measured: format!("{first:.2} s"),
            peer: format!("bare quick-xml {bare:.3} s"),
            ratio: format!("{:.1}", first / bare),
            bar: "<= 4".into(),
            holds: first <= 4.0 * bare,
        },
        Row::bound("peak RssAnon of it", megabytes(peak), "<= 100 MB", peak > 0 && peak <= 100_000_000),
    ]
}

/// One flat list of 654,832 entries without lengths.
pub fn flat_list() -> Vec<Row> {
    let source = Source::start();
    let document = flat_document(&source.url(), FLAT_ENTRIES);
    let bytes = document.len() as u64;
    source.document("resourcelist.xml", document.as_str());

    let (mut bare, mut first, mut peak) = (Vec::new(), Vec::new(), 0);
    let mut mounted = None;
    for _ in 0..ROUNDS {
        drop(mounted.take());
        bare.push(time(|| bare_read(document.as_bytes())).0);
        let fresh = Mounted::prepared(&source.list_url(), "poll=1h");
        let watch = MemoryWatch::of_process_with(&fresh.path());
        first.push(time(|| fresh.start()).0);
        peak = peak.max(watch.peak());
        mounted = Some(fresh);
    }
    let mounted = mounted.unwrap();
    let (bare, first) = (percentile(&mut bare, 50).as_secs_f64(), percentile(&mut first, 50).as_secs_f64());
    let mut rows = vec![
        Row {
            work: format!("first mount of {FLAT_ENTRIES} entries in one list ({})", megabytes(bytes)),
            measured: format!("{first:.2} s"),
            peer: format!("bare quick-xml {bare:.3} s"),
            ratio: format!("{:.1}", first / bare),
            bar: "<= 8".into(),
            holds: first <= 8.0 * bare,
        },
        Row::bound("peak RssAnon of it", megabytes(peak), "<= 100 MB", peak > 0 && peak <= 100_000_000),
    ];

    source.take_log();
    let folder = mounted.join("record");
    let of_nine = (0..FLAT_ENTRIES).filter(|number| number % 10 == 9).count() as u64;
    let commands =
        [("ls \"$1\"", FLAT_ENTRIES), ("find \"$1\" -name '*9'", of_nine), ("find \"$1\" -type f", FLAT_ENTRIES)];
    for (command, expected) in commands {
        let (took, output) = time(|| Command::new("bash").args(["-c", command, "bash"]).arg(&folder).output().unwrap());
        let lines = output.stdout.iter().filter(|octet| **octet == b'\n').count() as u64;
        let requests = source.take_log().len();
        rows.push(Row::bound(
            &format!("`{}` of that folder", command.replace("\"$1\"", "record")),
            format!("{lines} lines in {:.2} s, {requests} requests", took.as_secs_f64()),
            &format!("{expected} lines, 0 requests"),
            requests == 0 && lines == expected,
        ));
    }

    let mut restart = Vec::new();
    for _ in 0..ROUNDS {
        mounted.unmount();
        restart.push(time(|| {
            mounted.start();
            assert!(fs::read_dir(&folder).unwrap().next().is_some());
        }));
    }
    let mut restart: Vec<_> = restart.into_iter().map(|(took, ())| took).collect();
    let (median, worst) = (percentile(&mut restart, 50), percentile(&mut restart, 100));
    rows.push(Row::bound(
        "restart of that mount to its first name read",
        format!("{:.3} s, slowest {:.3} s", median.as_secs_f64(), worst.as_secs_f64()),
        "<= 0.2 s, the slowest too",
        worst <= Duration::from_millis(200),
    ));
    rows.push(unchanged_poll(&source));
    rows
}

/// A poll by the timer while nothing has changed: what is asked and what is written.
fn unchanged_poll(source: &Source) -> Row {
    let mounted = Mounted::new(&source.list_url(), "poll=4s");
    let poll = || {
        source.wait_for_quiet();
        source.take_log();
        eventually("the next poll begins", || !source.log().is_empty());
        source.wait_for_quiet();
    };
    // The one behind a commit asks the entry point again.
    poll();
    let before = catalog_writes(&mounted);
    assert!(!before.is_empty(), "there is a catalog");

    poll();

    let answers: Vec<String> =
        source.take_log().iter().map(|logged| format!("{} {}", logged.method, logged.status)).collect();
    let written = before != catalog_writes(&mounted);
    let what = if written { "the catalog was written" } else { "catalog not written" };
    Row::bound(
        "an unchanged poll of one document",
        format!("{}; {what}", answers.join(", ")),
        "one 304, no write",
        answers == ["GET 304"] && !written,
    )
}

/// When the files of the catalog were written last, and how long they are.
fn catalog_writes(mounted: &Mounted) -> Vec<(SystemTime, u64)> {
    crate::measure::files(&mounted.cache().join("mounts"))
        .iter()
        .filter(|path| path.to_string_lossy().contains("/catalog/") && path.ends_with("data.mdb"))
        .map(|path| path.metadata().map(|metadata| (metadata.modified().unwrap(), metadata.len())).unwrap())
        .collect()
}

/// What must ask for sizes, in a folder of unsized files: how many at a time, what else, and how fast where a rate is set.
pub fn unsized_folder() -> Vec<Row> {
    const FILES: usize = 2000;
    const PAUSE: Duration = Duration::from_millis(50);
    const RATE: usize = 400;
    let source = Source::start();
    for number in 0..FILES {
        source.put(&format!("record/thesis-{number:06}"), Resource::bare(format!("thesis {number}")));
    }
    source.pause(PAUSE);
    let mut rows = Vec::new();
    for (command, options) in [
        ("ls --color=always \"$1\"", "poll=1h".to_owned()),
        ("ls -l \"$1\"", "poll=1h".to_owned()),
        ("ls -l \"$1\"", format!("poll=1h,rate={RATE}")),
    ] {
        let mounted = Mounted::new(&source.list_url(), &options);
        source.wait_for_quiet();
        source.take_log();
        source.take_most_at_once();
        let (took, status) = time(|| {
            let mut run = Command::new("bash");
            run.args(["-c", command, "bash"]).arg(mounted.join("record")).stdout(Stdio::null());
            run.status().unwrap()
        });
        assert!(status.success());
        let at_once = source.take_most_at_once();
        let log = source.take_log();
        let bodies = log.iter().filter(|logged| logged.method != "HEAD").count();
        let limited = options.contains("rate=");
        let pace = log.len() as f64 / took.as_secs_f64();
        // A rate allows a burst of one second's worth before.
        let within_rate = !limited || log.len() <= RATE + (took.as_secs_f64() * RATE as f64) as usize + 1;
        rows.push(Row {
            work: format!(
                "`{}` of {FILES} unsized files{}",
                command.replace("\"$1\"", "record"),
                if limited { format!(", rate={RATE}") } else { String::new() }
            ),
            measured: format!(
                "{:.2} s, {} sizes asked for, {bodies} bodies, {pace:.0}/s, at most {at_once} at a time",
                took.as_secs_f64(),
                log.len()
            ),
            peer: format!("one after the other {:.0} s", (PAUSE * FILES as u32).as_secs_f64()),
            ratio: format!("{:.3}", took.as_secs_f64() / (PAUSE * FILES as u32).as_secs_f64()),
            bar: "sizes only, at most 64 at a time, within the rate".into(),
            holds: bodies == 0 && log.len() <= FILES && at_once <= 64 && within_rate,
        });
    }
    rows
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
    let holds = (1..=150_000_000).contains(&memory) && files == 1_000_000;
    vec![Row::bound("RssAnon with 1 M resources after a full walk", measured, "<= 150 MB, every file", holds)]
}
