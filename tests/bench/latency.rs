//! How long a name waits while everything else is busy.

use crate::common::eventually;
use crate::common::hub::{Hub, post, signature};
use crate::common::mounted::Mounted;
use crate::common::source::{Fault, Resource, Source, URLSET};
use crate::measure::{Row, percentile};
use std::fs;
use std::time::{Duration, Instant};

const FILES: usize = 100_000;
const STUCK: usize = 64;
/// Of these the Source is asked for at least; the others wait for their turn at a host that answers nothing.
const ASKED: usize = 16;
/// Resources of the Source that announces changes, and how many it announces.
const QUIET: usize = 10_000;
const ANNOUNCED: usize = 100;

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
        source.log().iter().filter(|logged| logged.path.starts_with("/stuck/")).count() >= ASKED
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

/// From the arrival of a notification of a Change List to the new bytes read through the mount.
pub fn announced_changes() -> Vec<Row> {
    let (source, hub) = (Source::start(), Hub::start());
    for number in 0..QUIET {
        source.put(&format!("f{:02}/file-{number:05}", number / 1000), Resource::new(format!("first {number}")));
    }
    let base = source.url();
    let (topic, changes) = (format!("{base}framework/"), format!("{base}changelist.xml"));
    source.document(
        "capabilitylist.xml",
        format!(
            "{URLSET}<rs:md capability=\"capabilitylist\"/><url><loc>{base}resourcelist.xml</loc><rs:md capability=\"resourcelist\"/></url>\
             <url><loc>{changes}</loc><rs:md capability=\"changelist\"/></url><url><loc>{topic}</loc>\
             <rs:ln rel=\"hub\" href=\"{}\"/><rs:md capability=\"framework-notification\"/></url></urlset>",
            hub.url()
        ),
    );
    let mut entries = String::new();
    let publish = |entries: &str| {
        let head = "<rs:md capability=\"changelist\" from=\"2024-01-01T00:00:00Z\"/>";
        source.document("changelist.xml", format!("{URLSET}{head}{entries}</urlset>"));
    };
    publish(&entries);
    let mounted =
        Mounted::new(&format!("{base}capabilitylist.xml"), "poll=1h,allow-host=127.0.0.1,websub-listen=127.0.0.1:0");
    let callback = hub.wait_for_subscriber(&topic);
    source.wait_for_quiet();
    let notification = format!(
        "{URLSET}<rs:md capability=\"framework-notification\"/><url><loc>{changes}</loc><rs:md change=\"updated\" capability=\"changelist\"/></url></urlset>"
    );
    let signed = signature(&hub.last_secret().unwrap_or_default(), notification.as_bytes());
    let link = format!("<{topic}>; rel=\"self\"");

    let mut times = Vec::new();
    for number in 0..ANNOUNCED {
        let path = format!("f00/file-{number:05}");
        let (file, bytes) = (mounted.join(&path), format!("second {number}"));
        assert_eq!(fs::read(&file).unwrap(), format!("first {number}").as_bytes());
        let resource = Resource::new(bytes.as_str());
        let (minute, second) = (number / 60, number % 60);
        entries += &format!(
            "<url><loc>{base}{path}</loc><rs:md change=\"updated\" datetime=\"2025-01-01T00:{minute:02}:{second:02}Z\" {}/></url>",
            resource.md
        );
        source.put(&path, resource);
        publish(&entries);

        let arrived = Instant::now();
        post(&callback, &[("Link", &link), ("X-Hub-Signature", &signed)], notification.as_bytes());
        while fs::read(&file).is_ok_and(|read| read != bytes.as_bytes()) && arrived.elapsed() < Duration::from_secs(20)
        {
            std::thread::sleep(Duration::from_micros(200));
        }
        times.push(arrived.elapsed());
    }
    let (median, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    let measured = format!("p99 {} ms, median {} ms, of {ANNOUNCED}", p99.as_millis(), median.as_millis());
    let work = format!("From a notification to the new bytes read, one change among {QUIET} resources");
    vec![Row::bound(&work, measured, "p99 <= 50 ms", p99 <= Duration::from_millis(50))]
}
