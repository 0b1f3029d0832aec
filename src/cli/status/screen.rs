//! The status of one mount as a person reads it.

use crate::cli::progress::Activity;
use crate::cli::refresh::{held_sentence, sentence};
use crate::cli::render::{Clock, Screen, count, duration, size, some, thousands};
use crate::content::SharedCacheStatus;
use crate::fs::readers::ProgramReads;
use crate::mount::status::{
    DownloadStatus, ErrorStatus, NotificationsStatus, RevisionStatus, Status, SubscriptionStatus,
};
use crate::source::http::{DownloadLimit, HostTraffic};
use crate::sync::status::{
    DeviationStatus, DocumentStatus, PagesStatus, PollAnswer, RefreshOutcome, Refreshed, SetStatus,
};
use std::time::Duration;

/// The requests of hubs that are as they should be.
const EXPECTED: [&str; 2] = ["delivered", "verified"];

/// The status as a person reads it, with rates where an earlier status is at hand.
pub fn screen(status: &Status, clock: &Clock, earlier: Option<Earlier<'_>>) -> String {
    let mut screen = Screen::new(clock);
    identity(&mut screen, status, clock);
    if status.starting.is_none() {
        refreshes(&mut screen, status, clock);
    }
    status.sync.sets.iter().for_each(|set| set_lines(&mut screen, set, clock));
    let failure = failure(status);
    screen.list("Documents", status.sync.documents.iter().map(|document| document_line(document, failure, clock)));
    if let Some(notifications) = &status.notifications {
        channels(&mut screen, notifications, clock);
    }
    differences(&mut screen, status, clock);
    reads(&mut screen, status, clock);
    screen.list("Now", earlier.map(|earlier| earlier.totals(status)));
    activity(&mut screen, status, clock, earlier);
    // Those of refreshes that have failed up to now are the last refresh's.
    let mut told = status.sync.failures;
    let is_other = |error: &&ErrorStatus| {
        let is_told = error.uri.is_none() && told > 0;
        told -= u32::from(is_told);
        !is_told
    };
    let errors = status.errors.iter().filter(is_other).map(|error| error_line(error, clock));
    screen.list("Errors", errors.collect::<Vec<_>>());
    let stream = || format!("standard error; of a service: journalctl _PID={}", status.process);
    screen.line("Log", status.log.clone().unwrap_or_else(stream));
    screen.list("Metrics", status.metrics.as_ref().map(|address| format!("http://{address}/metrics")));
    screen.text
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

fn identity(screen: &mut Screen<'_>, status: &Status, clock: &Clock) {
    screen.line("Source", &status.source);
    let Status { directory, process, version, .. } = status;
    let (mounted, title) = (clock.when(status.mounted), if status.starting.is_some() { "Starting" } else { "Mounted" });
    screen
        .line(&format!("{title} at"), format!("{directory} since {mounted} by process {process} (resyncfs {version})"));
    if let Some(stage) = &status.starting {
        screen.line("First tree", Activity::of_stage(stage).line(Duration::ZERO));
        return screen.list("", unanswered(status));
    }
    let Some(revision) = &status.revision else {
        return screen.line("Revision", "unknown: the catalog cannot be read");
    };
    screen.line("Revision", format!("{}, made {}", revision.number, clock.when(revision.committed)));
    screen.list("", revision.at.map(|at| format!("shows the Source as of {}", clock.when(at))));
    screen.more(contents(revision));
}

fn unanswered(status: &Status) -> Option<String> {
    status.unanswered.as_ref().map(|why| format!("{why}; trying again"))
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

fn refreshes(screen: &mut Screen<'_>, status: &Status, clock: &Clock) {
    let sync = &status.sync;
    let last = |last: &Refreshed| {
        let (ended, took) = (clock.when(last.ended), duration(Duration::from_millis(last.milliseconds)));
        format!("{ended}, took {took}: {}", sentence(&last.outcome, clock))
    };
    screen.line("Last refresh", sync.last_refresh.as_ref().map_or("none since the mount began".to_owned(), last));
    let failures = thousands(sync.failures.into());
    screen.list("", (sync.failures > 1).then(|| format!("{failures} refreshes in a row have failed")));
    if let Some(since) = sync.refreshing_since {
        screen.more(format!("a refresh has been under way since {}", clock.when(since)));
        screen.list("", unanswered(status));
    }
    let rarely = if sync.channels_live { ", rarely because notifications arrive" } else { "" };
    screen.list("Next refresh", sync.next_poll.map(|next| format!("{}{rarely}", clock.when(next))));
}

fn set_lines(screen: &mut Screen<'_>, set: &SetStatus, clock: &Clock) {
    screen.line("Set", &set.name);
    screen.list("", set.changes_until.map(|until| format!("changes are known up to {}", clock.when(until))));
    let gap = set.gap_since.map(|since| format!("GAP: changes since {} may be missing", clock.when(since)));
    screen.list("", gap.map(|gap| format!("{gap} until a newer Resource List is published")));
    let undated = some(set.undated_deletions as u64, "undated deletion");
    let asked = "not applied yet: each refresh asks the Source again whether the files are gone";
    screen.list("", undated.map(|deletions| format!("{deletions} {asked}")));
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
        PollAnswer::Failed(why) => format!("FAILED: {why}"),
    };
    let due = document.due.map(|due| format!(", next check {}", clock.when(due))).unwrap_or_default();
    format!("{}: {answer}{due}", document.location)
}

fn channels(screen: &mut Screen<'_>, notifications: &NotificationsStatus, clock: &Clock) {
    screen.list("Channels", notifications.channels.iter().map(|channel| channel_line(channel, clock)));
    let unexpected = notifications.seen.iter().filter(|(kind, _)| !EXPECTED.contains(&kind.as_str()));
    let unexpected: Vec<_> = unexpected.map(|(kind, count)| format!("{} {kind}", thousands(*count))).collect();
    if !unexpected.is_empty() {
        screen.line("Ignored", format!("requests to {}: {}", notifications.callback, unexpected.join(", ")));
    }
}

fn channel_line(channel: &SubscriptionStatus, clock: &Clock) -> String {
    let SubscriptionStatus { topic, standing, .. } = channel;
    let lease = channel.lease_ends.map(|end| format!(" until {}", clock.when(end))).unwrap_or_default();
    let last = channel.last_delivery.map(|last| format!(", the last {}", clock.when(last))).unwrap_or_default();
    format!("{topic}: {standing}{lease}, {}{last}", count(channel.deliveries, "notification"))
}

/// How the tree differs from what the Source lists, and how the Source differs from the standard.
fn differences(screen: &mut Screen<'_>, status: &Status, clock: &Clock) {
    let sync = &status.sync;
    screen.list("Missing", sync.missing.iter().map(|missing| format!("{}: {}", missing.location, missing.why)));
    let held = sync.held.as_ref().map(|held| held_sentence(held, status.directory.as_ref(), clock));
    screen.list("Deletions", held.iter().flat_map(|held| held.lines()).collect::<Vec<_>>());
    let unknown = some(sync.unknown_deletions, "deletion");
    screen.list("Unknown", unknown.map(|deletions| format!("{deletions} of resources that were never listed")));
    if let Some(PagesStatus { read, all, failed }) = sync.pages {
        let failing = if failed > 0 { format!(", {} failing", thousands(failed)) } else { String::new() };
        screen.line("Pages", format!("{} of {} read{failing}", thousands(read), thousands(all)));
    }
    let kept = some(sync.journaled, "change");
    screen.list("Journal", kept.map(|changes| format!("{changes} kept until a newer Resource List covers them")));
    let newer = some(status.unannounced, "time").map(|times| format!("files newer than the list were found {times}"));
    screen.list("Unannounced", newer.map(|newer| format!("{newer}; -o unannounced=show shows them")));
    if !sync.deviations.is_empty() {
        screen.line("Deviations", "from the standard, in documents read since the mount began:");
        screen.list("", sync.deviations.iter().map(deviation_line));
    }
}

fn deviation_line(deviation: &DeviationStatus) -> String {
    let DeviationStatus { rule, section, location, .. } = deviation;
    let section = if section.is_empty() { String::new() } else { format!(" [section {section}]") };
    format!("{rule}: {}{section}, first in {location}", thousands(deviation.count))
}

fn shared_cache(screen: &mut Screen<'_>, shared: &SharedCacheStatus) {
    let (had, sent) = (count(shared.hits, "file"), count(shared.uploads, "file"));
    let (read, written) = (size(shared.bytes_read), size(shared.bytes_written));
    let (misses, failures) = (thousands(shared.misses), thousands(shared.failures));
    screen.line("Shared cache", format!("{}: {}", shared.url, shared.state));
    let had = format!("{had} ({read}) came from it, {misses} not there");
    screen.more(format!("{had}; {sent} ({written}) uploaded, {failures} failed"));
}

fn reads(screen: &mut Screen<'_>, status: &Status, clock: &Clock) {
    let (cache, folder) = (&status.cache, &status.cache_folder);
    let (used, quota, files) = (size(cache.bytes), size(cache.quota), count(cache.objects, "file"));
    screen.line("Cache", format!("{used} of {quota} used, {files}, by all mounts with the cache folder {folder}"));
    if let Some(ErrorStatus { time, why, .. }) = &status.cache_failure {
        let since = clock.when(*time);
        screen.more(format!("WARNING: it has not been writable since {since}, so files are read past it: {why}"));
    }
    let part = |reads, from, bytes| format!("{} from {from} ({}), ", thousands(reads), size(bytes));
    let mut reads = part(cache.hits, "this machine", cache.hit_bytes);
    if status.shared_cache.is_some() {
        reads += &part(cache.shared_hits, "the shared cache", cache.shared_bytes);
    }
    reads += &part(cache.misses, "the Source", cache.miss_bytes);
    let hits = cache.hit_rate().map(|rate| format!("; {:.1} % from this machine", rate * 100.0)).unwrap_or_default();
    screen.line("Reads", format!("{reads}{} failed{hits}", thousands(cache.failed_reads)));
    let (begun, failed) = (thousands(cache.fetches), thousands(cache.failed_fetches));
    let downloads = format!("{begun} begun, {} of complete files, {failed} failed", size(cache.fetched_bytes));
    let sizes = format!("{} requested, {} failed", count(cache.sizes, "size"), thousands(cache.failed_sizes));
    screen.line("Downloads", format!("{downloads}; {sizes}"));
    screen.list("", status.max_download.as_ref().map(limit_line));
    screen.list("Under way", status.downloads.iter().map(download_line));
    if let Some(shared) = &status.shared_cache {
        shared_cache(screen, shared);
    }
}

fn limit_line(limit: &DownloadLimit) -> String {
    let (used, may) = (size(limit.used), size(limit.limit));
    match limit.left() {
        0 => format!("LIMIT REACHED: max-download= allows {may}; files that are not here fail until the next mount"),
        _ => format!("{used} of the {may} that max-download= allows until the next mount"),
    }
}

fn download_line(download: &DownloadStatus) -> String {
    let of = download.of_bytes.map(|of| format!(" of {}", size(of))).unwrap_or_default();
    let part = download.of_bytes.filter(|of| *of > 0).map(|of| format!(" ({} %)", download.bytes * 100 / of));
    format!("{}: {}{of}{}", download.uri, size(download.bytes), part.unwrap_or_default())
}

fn activity(screen: &mut Screen<'_>, status: &Status, clock: &Clock, earlier: Option<Earlier<'_>>) {
    screen.list("Hosts", status.hosts.iter().map(|host| host_line(host, earlier)));
    screen.list("Paced", status.hosts.iter().filter_map(|host| pace_line(host, clock)).collect::<Vec<_>>());
    screen.list("Programs", status.programs.iter().map(|program| program_line(program, earlier)));
    if !status.programs.is_empty() {
        screen.more("(reads from the kernel's page cache are not counted)");
    }
    if !status.denied.is_empty() {
        screen.line("Denied", format!("nothing is downloaded for {}", status.denied.join(", ")));
    }
}

fn host_line(host: &HostTraffic, earlier: Option<Earlier<'_>>) -> String {
    let name = host.host.as_deref().unwrap_or("all others");
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
    Some(format!("by {name}{allowed}, {readers} {waits}, next at {next}"))
}

fn program_line(program: &ProgramReads, earlier: Option<Earlier<'_>>) -> String {
    let mut parts = vec![format!("{} in {}", size(program.bytes), count(program.reads, "read"))];
    parts.extend(earlier.and_then(|earlier| earlier.of_program(program)));
    if program.denied > 0 {
        parts.push(format!("{} denied", thousands(program.denied)));
    }
    format!("{}: {}", program.program, parts.join(", "))
}

fn error_line(error: &ErrorStatus, clock: &Clock) -> String {
    // Most errors name their resource.
    let uri = error.uri.as_deref().filter(|uri| !error.why.contains(uri));
    let uri = uri.map(|uri| format!("{uri}: ")).unwrap_or_default();
    format!("{}: {uri}{}", clock.when(error.time), error.why)
}

#[cfg(test)]
mod tests;
