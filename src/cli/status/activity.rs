//! What a mount is asked and asks, as a person reads it: cache, reads, hosts, programs, errors.

use super::screen::{list, when};
use super::watch::Earlier;
use crate::cli::render::printable_value;
use crate::cli::render::{count, duration, size, thousands};
use crate::mount::status::{ErrorStatus, HostStatus, ProgramStatus, Status};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

/// The lines of `status`; rates over what has happened since `earlier`.
pub fn lines(text: &mut String, status: &Status, now: SystemTime, earlier: Option<&Earlier>) {
    reads(text, status, earlier);
    let before = |host: &HostStatus| {
        let earlier = earlier?;
        Some((earlier.status.hosts.iter().find(|before| before.host == host.host)?, earlier.ago))
    };
    list(text, "Hosts", status.hosts.iter().map(|host| host_line(host, before(host))));
    let before = |program: &ProgramStatus| {
        let earlier = earlier?;
        Some((earlier.status.programs.iter().find(|before| before.program == program.program)?, earlier.ago))
    };
    list(text, "Programs", status.programs.iter().map(|program| program_line(program, before(program))));
    if !status.programs.is_empty() {
        text.push_str("             (what the kernel has in its page cache is read without asking, and not count)\n");
    }
    if !status.denied.is_empty() {
        let denied: Vec<_> = status.denied.iter().map(|name| printable_value(name)).collect();
        let _ = writeln!(text, "Denied       nothing is fetched for {}", denied.join(", "));
    }
    list(text, "Errors", status.errors.iter().map(|error| error_line(error, now)));
    if let Some(address) = &status.metrics {
        let _ = writeln!(text, "Metrics      http://{}/metrics", printable_value(address));
    }
}

fn reads(text: &mut String, status: &Status, earlier: Option<&Earlier>) {
    let cache = &status.cache;
    let _ = writeln!(
        text,
        "Cache        {} of {} in {}, all mounts of the folder count",
        size(cache.octets),
        size(cache.quota),
        count(cache.objects, "file")
    );
    let rate = cache.hit_rate().map(|rate| format!(": {:.1} % hits", rate * 100.0)).unwrap_or_default();
    let _ = writeln!(
        text,
        "Reads        {} answered here ({}), {} after asking the Source ({}), {} failed{rate}",
        thousands(cache.hits),
        size(cache.hit_octets),
        thousands(cache.misses),
        size(cache.miss_octets),
        thousands(cache.failed_reads)
    );
    let _ = writeln!(
        text,
        "Fetches      {} begun, {} came whole, {} failed; {} asked for, {} in vain",
        thousands(cache.fetches),
        size(cache.fetched_octets),
        thousands(cache.failed_fetches),
        count(cache.sizes, "size"),
        thousands(cache.failed_sizes)
    );
    if let Some(Earlier { status: before, ago }) = earlier {
        let octets = |status: &Status| status.cache.hit_octets + status.cache.miss_octets;
        let fetched = |status: &Status| status.hosts.iter().map(|host| host.octets).sum();
        let requests = |status: &Status| status.hosts.iter().map(|host| host.requests).sum();
        let _ = writeln!(
            text,
            "Now          read {}, received {}, {:.1} requests/s",
            megabytes_a_second(octets(before), octets(status), *ago),
            megabytes_a_second(fetched(before), fetched(status), *ago),
            a_second(requests(before), requests(status), *ago)
        );
    }
}

/// How much more a second.
fn a_second(before: u64, now: u64, ago: Duration) -> f64 {
    now.saturating_sub(before) as f64 / ago.as_secs_f64().max(0.001)
}

fn megabytes_a_second(before: u64, now: u64, ago: Duration) -> String {
    format!("{:.1} MB/s", a_second(before, now, ago) / 1e6)
}

fn host_line(host: &HostStatus, before: Option<(&HostStatus, Duration)>) -> String {
    let mut line = format!(
        "{}: {}, {}, {} failed, {} refused, {} ms",
        host.host.as_deref().map_or_else(|| "all others".to_owned(), printable_value),
        count(host.requests, "request"),
        size(host.octets),
        thousands(host.failures),
        thousands(host.refusals),
        thousands(host.latency)
    );
    if let Some((before, ago)) = before.filter(|(before, _)| before.requests < host.requests) {
        let requests = a_second(before.requests, host.requests, ago);
        let _ = write!(line, ", {requests:.1}/s, {}", megabytes_a_second(before.octets, host.octets, ago));
    }
    if host.is_slow() {
        line.push_str(", SLOW");
    }
    if host.is_failing() {
        let _ = write!(line, ", FAILING {} times in a row", thousands(u64::from(host.failures_in_a_row)));
    }
    let spans = [
        ("not asked for", host.opens_in),
        ("wants a pause of", host.paused_for.map(|left| left.div_ceil(1000) * 1000)),
        ("as a mirror asked last for", host.cools_for),
    ];
    for (what, span) in spans {
        if let Some(milliseconds) = span {
            let _ = write!(line, ", {what} {}", duration(Duration::from_millis(milliseconds)));
        }
    }
    line
}

fn program_line(program: &ProgramStatus, before: Option<(&ProgramStatus, Duration)>) -> String {
    let mut line =
        format!("{}: {} in {}", printable_value(&program.program), size(program.octets), count(program.reads, "read"));
    if let Some((before, ago)) = before.filter(|(before, _)| before.octets < program.octets) {
        let _ = write!(line, ", {}", megabytes_a_second(before.octets, program.octets, ago));
    }
    if program.denied > 0 {
        let _ = write!(line, ", {} denied", thousands(program.denied));
    }
    line
}

fn error_line(error: &ErrorStatus, now: SystemTime) -> String {
    // The text of an error names the resource, as a rule.
    let uri = error.uri.as_deref().filter(|uri| !error.why.contains(uri));
    let uri = uri.map(|uri| format!("{}: ", printable_value(uri))).unwrap_or_default();
    format!("{}: {uri}{}", when(&error.time, now), printable_value(&error.why))
}
