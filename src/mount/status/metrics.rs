//! The status in numbers, for Prometheus. Labels are hosts (65 at most), programs (128 at most) and words of this program.

use super::Status;
use crate::control::{Exposition, Kind};
use crate::document::Timestamp;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// What hosts past the first are called together.
const OTHER_HOSTS: &str = "others";

/// Seconds since the epoch.
fn seconds(time: &str) -> Option<f64> {
    let time = SystemTime::from(Timestamp::parse(time)?);
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs_f64())
}

/// The exposition of a mount as it is now.
pub fn exposition(status: &Status) -> String {
    let mut text = Exposition::default();
    mount(&mut text, status);
    sync(&mut text, status);
    reads(&mut text, status);
    hosts(&mut text, status);
    programs(&mut text, status);
    notifications(&mut text, status);
    text.into_text()
}

fn optional(text: &mut Exposition, name: &str, help: &str, value: Option<f64>) {
    if let Some(value) = value {
        text.single(name, Kind::Gauge, help, value);
    }
}

fn mount(text: &mut Exposition, status: &Status) {
    let labels = [("version", &*status.version), ("source", &*status.source), ("directory", &*status.directory)];
    text.family("resyncfs_info", Kind::Gauge, "What is mounted where, by which resyncfs; always 1.")
        .sample("", &labels, 1.0);
    optional(text, "resyncfs_mounted_timestamp_seconds", "When the mount began.", seconds(&status.mounted));
    let Some(revision) = &status.revision else { return };
    text.single("resyncfs_revision", Kind::Gauge, "Number of the revision that is shown.", revision.number as f64);
    optional(
        text,
        "resyncfs_revision_committed_timestamp_seconds",
        "When it was made here.",
        seconds(&revision.committed),
    );
    let at = revision.at.as_deref().and_then(seconds);
    optional(text, "resyncfs_revision_at_timestamp_seconds", "The time of the Source that it speaks for.", at);
    text.single("resyncfs_files", Kind::Gauge, "Files that are shown.", revision.files as f64);
    text.single("resyncfs_folders", Kind::Gauge, "Folders that are shown.", revision.folders as f64);
    text.single("resyncfs_published_bytes", Kind::Gauge, "Sum of the published lengths.", revision.octets as f64);
    text.single(
        "resyncfs_unsized_files",
        Kind::Gauge,
        "Files without a published length.",
        revision.unsized_files as f64,
    );
}

fn sync(text: &mut Exposition, status: &Status) {
    let sync = &status.sync;
    let mut family = text.family(
        "resyncfs_refreshes_total",
        Kind::Counter,
        "Looks at the Source that have ended, by their outcome.",
    );
    family.sample("", &[("outcome", "succeeded")], sync.refreshes.saturating_sub(sync.failed_refreshes) as f64);
    family.sample("", &[("outcome", "failed")], sync.failed_refreshes as f64);
    text.single(
        "resyncfs_refresh_failures",
        Kind::Gauge,
        "Looks that have failed since the last that did not.",
        f64::from(sync.failures),
    );
    if let Some(last) = &sync.last_refresh {
        optional(text, "resyncfs_last_refresh_timestamp_seconds", "When the last look ended.", seconds(&last.ended));
        text.single(
            "resyncfs_last_refresh_duration_seconds",
            Kind::Gauge,
            "How long it took.",
            last.milliseconds as f64 / 1e3,
        );
    }
    let next = sync.next_poll.as_deref().and_then(seconds);
    optional(text, "resyncfs_next_poll_timestamp_seconds", "When something is due next.", next);
    let held = sync.held.as_ref().map_or(0, |held| held.files);
    text.single("resyncfs_held_deletions", Kind::Gauge, "Deletions that are held back.", held as f64);
    let gaps = sync.sets.iter().filter(|set| set.gap_since.is_some()).count();
    text.single("resyncfs_sets_with_gap", Kind::Gauge, "Sets of which changes may be missing.", gaps as f64);
    text.single(
        "resyncfs_unknown_deletions_total",
        Kind::Counter,
        "Deletions of what was never here.",
        sync.unknown_deletions as f64,
    );
    text.single(
        "resyncfs_unannounced_total",
        Kind::Counter,
        "Bytes met that are newer than the list and others than it says.",
        status.unannounced as f64,
    );
    let deviations: u64 = sync.deviations.iter().map(|deviation| deviation.count).sum();
    text.single(
        "resyncfs_deviations",
        Kind::Gauge,
        "Deviations from the standard in documents read since the mount began.",
        deviations as f64,
    );
}

fn reads(text: &mut Exposition, status: &Status) {
    let cache = &status.cache;
    let mut family = text.family(
        "resyncfs_reads_total",
        Kind::Counter,
        "READs of the kernel: answered at once, after the Source was asked, failed. What the page cache has is not asked for.",
    );
    for (result, count) in [("hit", cache.hits), ("miss", cache.misses), ("failed", cache.failed_reads)] {
        family.sample("", &[("result", result)], count as f64);
    }
    let mut family = text.family("resyncfs_read_bytes_total", Kind::Counter, "Bytes that these READs were given.");
    for (result, count) in [("hit", cache.hit_octets), ("miss", cache.miss_octets)] {
        family.sample("", &[("result", result)], count as f64);
    }
    for (name, help, count) in [
        ("resyncfs_fetches_total", "Files whose fetch was begun.", cache.fetches),
        ("resyncfs_fetch_failures_total", "Fetches that failed.", cache.failed_fetches),
        ("resyncfs_fetched_bytes_total", "Bytes of the files that were fetched whole.", cache.fetched_octets),
        ("resyncfs_size_questions_total", "Sizes asked for that were never published.", cache.sizes),
        ("resyncfs_size_failures_total", "Sizes that could not be had.", cache.failed_sizes),
    ] {
        text.single(name, Kind::Counter, help, count as f64);
    }
    for (name, help, count) in [
        ("resyncfs_cache_objects", "Whole files in the cache folder, all its mounts counted.", cache.objects),
        ("resyncfs_cache_bytes", "What the cache folder takes.", cache.octets),
        ("resyncfs_cache_quota_bytes", "What it may take.", cache.quota),
    ] {
        text.single(name, Kind::Gauge, help, count as f64);
    }
}

fn hosts(text: &mut Exposition, status: &Status) {
    type Number = fn(&super::HostStatus) -> f64;
    let counters: [(&str, &str, Number); 4] = [
        ("resyncfs_http_requests_total", "Requests sent to a host.", |host| host.requests as f64),
        ("resyncfs_http_failures_total", "Requests without an answer.", |host| host.failures as f64),
        ("resyncfs_http_refusals_total", "Answers with a status of 400 or more.", |host| host.refusals as f64),
        ("resyncfs_http_received_bytes_total", "Bytes of bodies that came.", |host| host.octets as f64),
    ];
    for (name, help, number) in counters {
        let mut family = text.family(name, Kind::Counter, help);
        for host in &status.hosts {
            family.sample("", &[("host", name_of(host))], number(host));
        }
    }
    let mut family =
        text.family("resyncfs_http_latency_seconds", Kind::Summary, "Time from a request to the head of its answer.");
    for host in &status.hosts {
        family.sample("_sum", &[("host", name_of(host))], host.waited as f64 / 1e3);
        family.sample("_count", &[("host", name_of(host))], host.answers as f64);
    }
    let gauges: [(&str, &str, Number); 3] = [
        ("resyncfs_http_breaker_open", "Whether nothing is sent to a host because it does not answer.", |host| {
            f64::from(u8::from(host.opens_in.is_some()))
        }),
        ("resyncfs_http_paused_seconds", "How long a host has asked not to be asked.", |host| {
            host.paused_for.unwrap_or(0) as f64 / 1e3
        }),
        ("resyncfs_http_cooling_seconds", "How long others are asked before a mirror that failed.", |host| {
            host.cools_for.unwrap_or(0) as f64 / 1e3
        }),
    ];
    for (name, help, number) in gauges {
        let mut family = text.family(name, Kind::Gauge, help);
        for host in &status.hosts {
            family.sample("", &[("host", name_of(host))], number(host));
        }
    }
}

fn name_of(host: &super::HostStatus) -> &str {
    host.host.as_deref().unwrap_or(OTHER_HOSTS)
}

fn programs(text: &mut Exposition, status: &Status) {
    type Number = fn(&super::ProgramStatus) -> u64;
    let counters: [(&str, &str, Number); 3] = [
        ("resyncfs_program_reads_total", "READs of a program; what the page cache has is not asked for.", |it| {
            it.reads
        }),
        ("resyncfs_program_read_bytes_total", "Bytes that these READs were given.", |it| it.octets),
        ("resyncfs_program_denied_total", "READs and size questions refused because of deny=.", |it| it.denied),
    ];
    for (name, help, number) in counters {
        let mut family = text.family(name, Kind::Counter, help);
        for program in &status.programs {
            family.sample("", &[("program", &program.program)], number(program) as f64);
        }
    }
}

fn notifications(text: &mut Exposition, status: &Status) {
    let Some(notifications) = &status.notifications else { return };
    let mut standings: BTreeMap<&str, u64> = BTreeMap::new();
    for channel in &notifications.channels {
        *standings.entry(&channel.standing).or_default() += 1;
    }
    let mut family = text.family("resyncfs_channels", Kind::Gauge, "Subscriptions at hubs, by how they stand.");
    for (standing, count) in standings {
        family.sample("", &[("standing", standing)], count as f64);
    }
    let mut family =
        text.family("resyncfs_websub_requests_total", Kind::Counter, "What came to the listener for notifications.");
    for (kind, count) in &notifications.seen {
        family.sample("", &[("kind", kind)], *count as f64);
    }
}
