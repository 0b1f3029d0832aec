//! The status of one mount as a person reads it.

use crate::cli::progress::Activity;
use crate::cli::refresh::{held_sentence, sentence};
use crate::cli::render::{Clock, Screen, count, duration, printable_value, size, thousands};
use crate::content::SharedCacheStatus;
use crate::fs::readers::ProgramReads;
use crate::mount::status::{
    DownloadStatus, ErrorStatus, NotificationsStatus, RevisionStatus, Status, SubscriptionStatus,
};
use crate::source::http::HostTraffic;
use crate::sync::status::{
    DeviationStatus, DocumentStatus, MissingStatus, PagesStatus, PollAnswer, RefreshOutcome, Refreshed, SetStatus,
};
use std::time::Duration;

/// The requests of hubs that are as they should be.
const EXPECTED: [&str; 2] = ["delivered", "verified"];

/// The status as a person reads it, with rates where an earlier status is at hand.
pub fn screen(status: &Status, clock: &Clock, earlier: Option<Earlier<'_>>) -> String {
    let mut screen = Screen::default();
    identity(&mut screen, status, clock);
    if status.starting.is_none() {
        refreshes(&mut screen, status, clock);
    }
    status.sync.sets.iter().for_each(|set| set_lines(&mut screen, set, clock));
    screen.list(
        "Documents",
        status.sync.documents.iter().map(|document| document_line(document, failure(status), clock)),
    );
    if let Some(notifications) = &status.notifications {
        channels(&mut screen, notifications, clock);
    }
    differences(&mut screen, status, clock);
    reads(&mut screen, status, clock);
    if let Some(shared) = &status.shared_cache {
        shared_cache(&mut screen, shared);
    }
    if let Some(earlier) = earlier {
        screen.line("Now", earlier.totals(status));
    }
    activity(&mut screen, status, clock, earlier);
    // Those of refreshes that have failed up to now are the last refresh's.
    let mut told = status.sync.failures;
    let is_other = |error: &&ErrorStatus| {
        let is_told = error.uri.is_none() && told > 0;
        told -= u32::from(is_told);
        !is_told
    };
    let errors: Vec<_> = status.errors.iter().filter(is_other).map(|error| error_line(error, clock)).collect();
    screen.list("Errors", errors.into_iter());
    screen.line(
        "Log",
        match &status.log {
            Some(file) => printable_value(file),
            None => format!("standard error; of a service: journalctl _PID={}", status.process),
        },
    );
    if let Some(address) = &status.metrics {
        screen.line("Metrics", format!("http://{}/metrics", printable_value(address)));
    }
    screen.0
}

/// An earlier status of the same mount.
#[derive(Clone, Copy, Debug)]
pub struct Earlier<'a> {
    /// The status.
    pub status: &'a Status,
    /// How long ago it was.
    pub ago: Duration,
}

impl Earlier<'_> {
    /// The rates of all reads, downloads and requests together.
    pub fn totals(&self, now: &Status) -> String {
        let read = |status: &Status| status.cache.hit_bytes + status.cache.shared_bytes + status.cache.miss_bytes;
        let received = |status: &Status| status.hosts.iter().map(|host| host.bytes).sum();
        let requests = |status: &Status| status.hosts.iter().map(|host| host.requests).sum();
        format!(
            "read {}, received {}, {:.1} requests/s",
            self.bytes(read(self.status), read(now)),
            self.bytes(received(self.status), received(now)),
            self.rate(requests(self.status), requests(now))
        )
    }

    /// The rates of a host that was asked since.
    pub fn of_host(&self, now: &HostTraffic) -> Option<String> {
        let before = self.status.hosts.iter().find(|before| before.host == now.host)?;
        let requests = self.rate(before.requests, now.requests);
        (requests > 0.0).then(|| format!("{requests:.1}/s, {}", self.bytes(before.bytes, now.bytes)))
    }

    /// The rate of a program that has read since.
    pub fn of_program(&self, now: &ProgramReads) -> Option<String> {
        let before = self.status.programs.iter().find(|before| before.program == now.program)?;
        (before.bytes < now.bytes).then(|| self.bytes(before.bytes, now.bytes))
    }

    fn bytes(&self, before: u64, now: u64) -> String {
        format!("{}/s", size(self.rate(before, now) as u64))
    }

    /// The growth a second.
    fn rate(&self, before: u64, now: u64) -> f64 {
        now.saturating_sub(before) as f64 / self.ago.as_secs_f64().max(0.001)
    }
}

fn identity(screen: &mut Screen, status: &Status, clock: &Clock) {
    screen.line("Source", printable_value(&status.source));
    let (directory, version) = (printable_value(&status.directory), printable_value(&status.version));
    let (mounted, process) = (clock.when(status.mounted), status.process);
    let title = if status.starting.is_some() { "Starting at" } else { "Mounted at" };
    screen.line(title, format!("{directory} since {mounted} by process {process} (resyncfs {version})"));
    if let Some(stage) = &status.starting {
        screen.line("First tree", Activity::of_stage(stage).line(Duration::ZERO));
        let unanswered = status.unanswered.iter();
        unanswered.for_each(|why| screen.more(format!("{}; trying again", printable_value(&clock.localized(why)))));
        return;
    }
    let Some(revision) = &status.revision else {
        return screen.line("Revision", "unknown: the catalog cannot be read");
    };
    screen.line("Revision", format!("{}, made {}", revision.number, clock.when(revision.committed)));
    if let Some(at) = revision.at {
        screen.more(format!("shows the Source as of {}", clock.when(at)));
    }
    screen.more(contents(revision));
}

/// Files, folders and their size as published.
pub fn contents(revision: &RevisionStatus) -> String {
    let unsized_files = count(revision.unsized_files, "file");
    let size = match revision.unsized_files {
        0 => size(revision.bytes),
        all if all == revision.files => "size unknown".to_owned(),
        _ => format!("{}; the size of {unsized_files} is unknown", size(revision.bytes)),
    };
    format!("{} in {}, {size}", count(revision.files, "file"), count(revision.folders, "folder"))
}

fn refreshes(screen: &mut Screen, status: &Status, clock: &Clock) {
    let sync = &status.sync;
    match &sync.last_refresh {
        Some(Refreshed { ended, milliseconds, outcome, .. }) => {
            let took = duration(Duration::from_millis(*milliseconds));
            let ended = clock.when(*ended);
            screen.line("Last refresh", format!("{ended}, took {took}: {}", sentence(outcome, clock)));
        }
        None => screen.line("Last refresh", "none since the mount began"),
    }
    if sync.failures > 1 {
        screen.more(format!("{} refreshes in a row have failed", thousands(sync.failures.into())));
    }
    if let Some(since) = sync.refreshing_since {
        screen.more(format!("a refresh has been under way since {}", clock.when(since)));
        if let Some(why) = &status.unanswered {
            screen.more(format!("{}; trying again", printable_value(&clock.localized(why))));
        }
    }
    if let Some(next) = sync.next_poll {
        let rarely = if sync.channels_live { ", rarely because notifications arrive" } else { "" };
        screen.line("Next refresh", format!("{}{rarely}", clock.when(next)));
    }
}

fn set_lines(screen: &mut Screen, set: &SetStatus, clock: &Clock) {
    screen.line("Set", printable_value(&set.name));
    if let Some(until) = set.changes_until {
        screen.more(format!("changes are known up to {}", clock.when(until)));
    }
    if let Some(since) = set.gap_since {
        let since = clock.when(since);
        screen.more(format!("GAP: changes since {since} may be missing until a newer Resource List is published"));
    }
    if set.undated_deletions > 0 {
        let deletions = count(set.undated_deletions as u64, "undated deletion");
        screen.more(format!(
            "{deletions} not applied yet: each refresh asks the Source again whether the files are gone"
        ));
    }
}

/// Why the last refresh failed.
fn failure(status: &Status) -> Option<&str> {
    match &status.sync.last_refresh.as_ref()?.outcome {
        RefreshOutcome::Failed(why) => Some(why),
        _ => None,
    }
}

/// A document, without the cause of a failure that the last refresh has told.
fn document_line(document: &DocumentStatus, told: Option<&str>, clock: &Clock) -> String {
    let answer = match &document.answer {
        PollAnswer::None => "not downloaded since the mount began".to_owned(),
        PollAnswer::Unchanged => "unchanged".to_owned(),
        PollAnswer::Downloaded(bytes) => format!("downloaded ({})", size(*bytes)),
        PollAnswer::Failed(why) if told.is_some_and(|told| told.contains(&**why)) => "FAILED".to_owned(),
        PollAnswer::Failed(why) => format!("FAILED: {}", printable_value(&clock.localized(why))),
    };
    let due = document.due.map(|due| format!(", next check {}", clock.when(due))).unwrap_or_default();
    format!("{}: {answer}{due}", printable_value(&document.location))
}

fn channels(screen: &mut Screen, notifications: &NotificationsStatus, clock: &Clock) {
    screen.list("Channels", notifications.channels.iter().map(|channel| channel_line(channel, clock)));
    let unexpected = notifications.seen.iter().filter(|(kind, _)| !EXPECTED.contains(&kind.as_str()));
    let unexpected: Vec<_> =
        unexpected.map(|(kind, count)| format!("{} {}", thousands(*count), printable_value(kind))).collect();
    if !unexpected.is_empty() {
        let callback = printable_value(&notifications.callback);
        screen.line("Ignored", format!("requests to {callback}: {}", unexpected.join(", ")));
    }
}

fn channel_line(channel: &SubscriptionStatus, clock: &Clock) -> String {
    let lease = channel.lease_ends.map(|end| format!(" until {}", clock.when(end))).unwrap_or_default();
    let last = channel.last_delivery.map(|last| format!(", the last {}", clock.when(last))).unwrap_or_default();
    let (topic, standing) = (printable_value(&channel.topic), printable_value(&channel.standing));
    format!("{topic}: {standing}{lease}, {}{last}", count(channel.deliveries, "notification"))
}

/// How the tree differs from what the Source lists, and how the Source differs from the standard.
fn differences(screen: &mut Screen, status: &Status, clock: &Clock) {
    let sync = &status.sync;
    screen.list("Missing", sync.missing.iter().map(missing_line));
    if let Some(held) = &sync.held {
        for (index, line) in held_sentence(held, status.directory.as_ref(), clock).lines().enumerate() {
            screen.line(if index == 0 { "Deletions" } else { "" }, line);
        }
    }
    if sync.unknown_deletions > 0 {
        let deletions = count(sync.unknown_deletions, "deletion");
        screen.line("Unknown", format!("{deletions} of resources that were never listed"));
    }
    if let Some(PagesStatus { read, all, failed }) = sync.pages {
        let failing = if failed > 0 { format!(", {} failing", thousands(failed)) } else { String::new() };
        screen.line("Pages", format!("{} of {} read{failing}", thousands(read), thousands(all)));
    }
    if sync.journaled > 0 {
        let changes = count(sync.journaled, "change");
        screen.line("Journal", format!("{changes} kept until a newer Resource List covers them"));
    }
    if status.unannounced > 0 {
        let times = count(status.unannounced, "time");
        screen.line(
            "Unannounced",
            format!("files newer than the list were found {times}; -o unannounced=show shows them"),
        );
    }
    if !sync.deviations.is_empty() {
        screen.line("Deviations", "from the standard, in documents read since the mount began:");
        screen.list("", sync.deviations.iter().map(deviation_line));
    }
}

fn missing_line(missing: &MissingStatus) -> String {
    format!("{}: {}", printable_value(&missing.location), printable_value(&missing.why))
}

fn deviation_line(deviation: &DeviationStatus) -> String {
    let section = match &*deviation.section {
        "" => String::new(),
        section => format!(" [section {}]", printable_value(section)),
    };
    let (rule, location) = (printable_value(&deviation.rule), printable_value(&deviation.location));
    format!("{rule}: {}{section}, first in {location}", thousands(deviation.count))
}

fn shared_cache(screen: &mut Screen, shared: &SharedCacheStatus) {
    let files = |number| count(number, "file");
    let had = format!(
        "{} ({}) came from it, {} not there",
        files(shared.hits),
        size(shared.bytes_read),
        thousands(shared.misses)
    );
    let sent = format!(
        "{} ({}) uploaded, {} failed",
        files(shared.uploads),
        size(shared.bytes_written),
        thousands(shared.failures)
    );
    screen.line("Shared cache", format!("{}: {}", shared.url, printable_value(&shared.state)));
    screen.more(format!("{had}; {sent}"));
}

fn reads(screen: &mut Screen, status: &Status, clock: &Clock) {
    let (cache, folder) = (&status.cache, printable_value(&status.cache_folder));
    let (used, quota, files) = (size(cache.bytes), size(cache.quota), count(cache.objects, "file"));
    screen.line("Cache", format!("{used} of {quota} used, {files}, by all mounts with the cache folder {folder}"));
    if let Some(ErrorStatus { time, why, .. }) = &status.cache_failure {
        let (since, why) = (clock.when(*time), printable_value(&clock.localized(why)));
        screen.more(format!("WARNING: it has not been writable since {since}, so files are read past it: {why}"));
    }
    let here = format!("{} from this machine ({})", thousands(cache.hits), size(cache.hit_bytes));
    let asked = format!("{} from the Source ({})", thousands(cache.misses), size(cache.miss_bytes));
    let shared = match status.shared_cache.is_some() {
        true => format!("{} from the shared cache ({}), ", thousands(cache.shared_hits), size(cache.shared_bytes)),
        false => String::new(),
    };
    let hits = cache.hit_rate().map(|rate| format!("; {:.1} % from this machine", rate * 100.0)).unwrap_or_default();
    screen.line("Reads", format!("{here}, {shared}{asked}, {} failed{hits}", thousands(cache.failed_reads)));
    let (begun, failed) = (thousands(cache.fetches), thousands(cache.failed_fetches));
    let downloads = format!("{begun} begun, {} of complete files, {failed} failed", size(cache.fetched_bytes));
    let sizes = format!("{} requested, {} failed", count(cache.sizes, "size"), thousands(cache.failed_sizes));
    screen.line("Downloads", format!("{downloads}; {sizes}"));
    if let Some(limit) = &status.max_download {
        let (used, may) = (size(limit.used), size(limit.limit));
        screen.more(match limit.left() == 0 {
            true => {
                format!("LIMIT REACHED: max-download= allows {may}; files that are not here fail until the next mount")
            }
            false => format!("{used} of the {may} that max-download= allows until the next mount"),
        });
    }
    screen.list("Under way", status.downloads.iter().map(download_line));
}

fn download_line(download: &DownloadStatus) -> String {
    let of = download.of_bytes.map(|of| format!(" of {}", size(of))).unwrap_or_default();
    let part = download.of_bytes.filter(|of| *of > 0).map(|of| format!(" ({} %)", download.bytes * 100 / of));
    format!("{}: {}{of}{}", printable_value(&download.uri), size(download.bytes), part.unwrap_or_default())
}

fn activity(screen: &mut Screen, status: &Status, clock: &Clock, earlier: Option<Earlier<'_>>) {
    screen.list("Hosts", status.hosts.iter().map(|host| host_line(host, earlier)));
    let paced: Vec<String> = status.hosts.iter().filter_map(|host| pace_line(host, clock)).collect();
    screen.list("Paced", paced.into_iter());
    screen.list("Programs", status.programs.iter().map(|program| program_line(program, earlier)));
    if !status.programs.is_empty() {
        screen.more("(reads from the kernel's page cache are not counted)");
    }
    if !status.denied.is_empty() {
        let denied: Vec<_> = status.denied.iter().map(|name| printable_value(name)).collect();
        screen.line("Denied", format!("nothing is downloaded for {}", denied.join(", ")));
    }
}

fn host_line(host: &HostTraffic, earlier: Option<Earlier<'_>>) -> String {
    let name = host.host.as_deref().map_or_else(|| "all others".to_owned(), printable_value);
    let latency = match host.latency {
        None => "answer time unknown".to_owned(),
        Some(time) if time.as_millis() == 0 => "under 1 ms per answer".to_owned(),
        Some(time) => format!("{} ms per answer", thousands(time.as_millis() as u64)),
    };
    let mut parts = vec![
        count(host.requests, "request"),
        size(host.bytes),
        format!("{} unanswered", thousands(host.failures)),
        count(host.refusals, "error response"),
        latency,
    ];
    parts.extend(earlier.and_then(|earlier| earlier.of_host(host)));
    parts.extend(host.is_slow().then(|| "SLOW".to_owned()));
    if host.is_failing() {
        parts.push(format!("FAILING {} in a row", count(host.failures_in_a_row.into(), "time")));
    }
    let whole_seconds = |left: Duration| Duration::from_secs(left.as_millis().div_ceil(1000) as u64);
    for (what, time) in [
        ("no requests for", host.opens_in),
        ("asked for a pause of", host.paused_for.map(whole_seconds)),
        ("other mirrors first for", host.cools_for),
    ] {
        parts.extend(time.map(|time| format!("{what} {}", duration(time))));
    }
    format!("{name}: {}", parts.join(", "))
}

/// The limit of a host, while it holds requests back.
fn pace_line(host: &HostTraffic, clock: &Clock) -> Option<String> {
    let (name, next) = (host.host.as_deref()?, clock.after(host.paced_for?));
    let allowed = host.per_minute().map(|requests| format!(": {} a minute", thousands(requests))).unwrap_or_default();
    let readers = count(host.waiting_readers, "reader");
    let waits = if host.waiting_readers == 1 { "waits" } else { "wait" };
    Some(format!("by {}{allowed}, {readers} {waits}, next at {next}", printable_value(name)))
}

fn program_line(program: &ProgramReads, earlier: Option<Earlier<'_>>) -> String {
    let mut parts = vec![format!("{} in {}", size(program.bytes), count(program.reads, "read"))];
    parts.extend(earlier.and_then(|earlier| earlier.of_program(program)));
    if program.denied > 0 {
        parts.push(format!("{} denied", thousands(program.denied)));
    }
    format!("{}: {}", printable_value(&program.program), parts.join(", "))
}

fn error_line(error: &ErrorStatus, clock: &Clock) -> String {
    // Most errors name their resource.
    let uri = error.uri.as_deref().filter(|uri| !error.why.contains(uri));
    let uri = uri.map(|uri| format!("{}: ", printable_value(uri))).unwrap_or_default();
    format!("{}: {uri}{}", clock.when(error.time), printable_value(&clock.localized(&error.why)))
}

#[cfg(test)]
mod tests;
