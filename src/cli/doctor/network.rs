//! The network: proxies, certificates, the clock, and the way to a Source.

use super::Diagnosis;
use crate::cli::args::Options;
use crate::cli::mount::http;
use crate::cli::render::{Clock, duration};
use crate::cli::{CliError, Exit};
use crate::platform::error_chain::chain;
use crate::source::EntryPoint;
use crate::source::http::{Client, HttpConfig, HttpError, Request, proxies_in_use, system_roots};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::time::{Duration, Instant};

/// Time for the answer of a Source.
const DEADLINE: Duration = Duration::from_secs(10);

/// A clock that is further off than this makes times of files and of certificates wrong.
const OFF: Duration = Duration::from_secs(300);

/// A clock that shows an earlier year was never set.
const YEAR: i16 = 2026;

/// The results of all checks of the network; `source` is an address or a path.
pub async fn findings(options: &Options, source: Option<&str>) -> Vec<Diagnosis> {
    let (proxies, has_ca) = (proxies_in_use(), options.credentials.ca.is_some());
    let mut findings = vec![certificates(has_ca)];
    match &proxies {
        Ok(hosts) if hosts.is_empty() => findings.push(Diagnosis::ok("proxies", "none")),
        Ok(hosts) => findings.push(Diagnosis::ok("proxies", format!("by way of {}", hosts.join(" and ")))),
        Err(cause) => findings.push(Diagnosis::fail("proxies", chain(cause), "")),
    }
    // Without a Source nothing is asked, but the files of the options are read.
    let entry = source.map_or(Ok(EntryPoint::File("/".into())), EntryPoint::parse);
    let entry = entry.map_err(|cause| CliError::of(Exit::Usage, &cause));
    let client = entry.and_then(|entry| {
        let config = HttpConfig { waits_for_hosts: false, ..http(options, &entry)? };
        let client = Client::new(config).map_err(|cause| CliError::of(Exit::Usage, &cause))?;
        Ok((client, entry))
    });
    let mut date = None;
    match client {
        Ok((client, EntryPoint::Uri(uri))) => {
            let began = Instant::now();
            let answer = client.send(Request { no_cache: true, ..Request::get(uri.clone(), DEADLINE) }).await;
            date = answer.as_ref().ok().and_then(|response| response.date).map(Timestamp::from);
            let answered = answer.map(drop);
            findings.push(source_answers(source.unwrap_or_default(), answered, began.elapsed()));
        }
        Ok((_, EntryPoint::File(path))) => match std::fs::File::open(&path) {
            Err(cause) => {
                findings.push(Diagnosis::fail("Source", format!("{}: {}", path.display(), chain(&cause)), ""))
            }
            Ok(_) if source.is_some() => findings.push(Diagnosis::ok("Source", "the list on disk can be read")),
            Ok(_) => {}
        },
        // The proxies have their own line.
        Err(_) if proxies.is_err() => {}
        Err(cause) => findings.push(Diagnosis::fail("options", cause.message, "")),
    }
    findings.push(clock(&Clock::now(), Timestamp::now(), date));
    findings
}

fn certificates(has_ca: bool) -> Diagnosis {
    const CHECK: &str = "certificates";
    let (roots, errors) = system_roots();
    let unreadable = errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
    match (roots.len(), has_ca) {
        (0, false) => Diagnosis::fail(
            CHECK,
            format!("this machine has no certificate authorities, so https fails{unreadable}"),
            "install the package ca-certificates, or name a file with -o ca=FILE",
        ),
        (number, _) => Diagnosis::ok(CHECK, format!("{number} authorities are trusted{unreadable}")),
    }
}

/// `answer` is that of the Source's host to one request, which took so long.
fn source_answers(source: &str, answer: Result<(), HttpError>, took: Duration) -> Diagnosis {
    const CHECK: &str = "Source";
    match answer {
        Ok(()) => Diagnosis::ok(CHECK, format!("{source} answers in {}", duration(took))),
        Err(cause @ HttpError::Status { .. }) => {
            let found = format!("its host answers in {}: {}", duration(took), chain(&cause));
            Diagnosis::warn(CHECK, found, format!("see what it offers: resyncfs explore {source}"))
        }
        Err(cause) => {
            let failure = CliError::of(Exit::Unreachable, &cause).assuming(source);
            Diagnosis::fail(CHECK, failure.message, "check the address, the network and the proxy")
        }
    }
}

/// `date` is the time that the Source's host gave a moment ago.
fn clock(shown: &Clock, now: Timestamp, date: Option<Timestamp>) -> Diagnosis {
    const CHECK: &str = "clock";
    const SET: &str = "set it, as with: timedatectl set-ntp true";
    let off = date.map(|date| now.duration_since(date).unsigned_abs());
    let (time, year) = (shown.time(now), now.to_zoned_datetime(TimeZone::UTC).year());
    match off {
        _ if year < YEAR => Diagnosis::fail(CHECK, format!("{time} is past, so certificates are refused"), SET),
        Some(off) if off > OFF => {
            Diagnosis::warn(CHECK, format!("{time} differs by {} from that of the Source's host", duration(off)), SET)
        }
        _ => Diagnosis::ok(CHECK, time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Uri;
    use std::time::SystemTime;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_clock_is_judged_by_its_year_and_the_source() {
        let shown = Clock::at(SystemTime::UNIX_EPOCH);
        let line = |now: &str, date: Option<&str>| clock(&shown, at(now), date.map(at)).to_string();
        let now = "2026-03-01T12:00:00Z";

        assert_eq!(line(now, None), "ok    clock: 2026-03-01 12:00:00 UTC");
        assert!(line(now, Some("2026-03-01T12:04:00Z")).starts_with("ok"));
        assert!(line(now, Some("2026-03-01T10:00:00Z")).contains("differs by 2 h"));
        assert!(line("1970-01-01T00:00:09Z", None).starts_with("FAIL  clock: 1970-01-01 00:00:09 UTC is past"));
    }

    #[test]
    fn a_silent_host_is_told_from_an_answering_one() {
        let uri = Uri::parse("http://h/").unwrap();
        let line = |answer| source_answers("h:81", answer, Duration::from_millis(35)).to_string();

        assert_eq!(line(Ok(())), "ok    Source: h:81 answers in 35 ms");
        let missing = HttpError::Status { uri: uri.clone(), status: 404, retry_after: None };
        assert!(line(Err(missing)).starts_with("warn  Source: its host answers in 35 ms: "));
        let silent = line(Err(HttpError::Deadline { uri, last: None }));
        assert!(silent.starts_with("FAIL  Source: ") && silent.contains("for http write http://h:81/"), "{silent}");
    }
}
