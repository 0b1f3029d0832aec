//! The status as metrics for Prometheus. Labels are hosts (65 at most), programs (128 at most) and words of this program.

use super::types::{HostStatus, NotificationsStatus, Status};
use crate::content;
use crate::fs::programs::Reading;
use crate::sync;
use jiff::Timestamp;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};
use std::collections::BTreeMap;
use std::fmt;

/// The host label of all hosts past the first 64.
const OTHER_HOSTS: &str = "others";

/// The metrics of a mount in the text format of Prometheus.
pub fn text(status: &Status) -> String {
    let mut registry = Registry::default();
    mount(&mut registry, status);
    refreshes(&mut registry, &status.sync);
    reads(&mut registry, &status.cache);
    hosts(&mut registry, &status.hosts);
    programs(&mut registry, &status.programs);
    if let Some(notifications) = &status.notifications {
        channels(&mut registry, notifications);
    }
    let mut text = String::new();
    if let Err(cause) = prometheus_text::encode(&mut text, &registry) {
        tracing::warn!(%cause, "the metrics cannot be written");
    }
    text
}

/// The samples of one family, each with the value of their label.
#[derive(Debug)]
struct Family<M> {
    label: &'static str,
    samples: Vec<(String, M)>,
}

impl<M: Metric> Family<M> {
    fn of<'a, T>(label: &'static str, all: impl IntoIterator<Item = (&'a str, T)>, metric: fn(T) -> M) -> Family<M> {
        Family { label, samples: all.into_iter().map(|(value, it)| (value.to_owned(), metric(it))).collect() }
    }
}

impl<M: EncodeMetric> EncodeMetric for Family<M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (value, metric) in &self.samples {
            metric.encode(encoder.encode_family(&[(self.label, value.as_str())])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        self.samples.first().map_or(MetricType::Unknown, |(_, metric)| metric.metric_type())
    }

    fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }
}

/// A histogram of one bucket: how many answers, and the seconds of all together.
#[derive(Debug)]
struct Latency {
    answers: u64,
    seconds: f64,
}

impl EncodeMetric for Latency {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_histogram::<NoLabelSet>(self.seconds, self.answers, &[], None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Seconds since the epoch.
fn time(registry: &mut Registry, name: &str, help: &str, time: Option<Timestamp>) {
    if let Some(time) = time {
        registry.register(name, help, ConstGauge::new(time.as_nanosecond() as f64 / 1e9));
    }
}

fn mount(registry: &mut Registry, status: &Status) {
    let labels = [("version", &status.version), ("source", &status.source), ("directory", &status.directory)];
    let labels = labels.map(|(name, value)| (name, value.clone()));
    registry.register(
        "resyncfs",
        "The Source, the mount point and the version of resyncfs; always 1",
        Info::new(labels),
    );
    time(registry, "resyncfs_mounted_timestamp_seconds", "When the mount began", Some(status.mounted));
    let help = "Reads whose bytes were newer than the list and differed from it";
    registry.register("resyncfs_unannounced", help, ConstCounter::new(status.unannounced));
    let Some(revision) = &status.revision else { return };
    let committed = Some(revision.committed);
    time(registry, "resyncfs_revision_committed_timestamp_seconds", "When the revision was made here", committed);
    let help = "The time of the Source that the revision speaks for";
    time(registry, "resyncfs_revision_at_timestamp_seconds", help, revision.at);
    for (name, help, number) in [
        ("resyncfs_revision", "Number of the revision that is shown", revision.number),
        ("resyncfs_files", "Files that are shown", revision.files),
        ("resyncfs_folders", "Folders that are shown", revision.folders),
        ("resyncfs_published_bytes", "Sum of the published sizes", revision.bytes),
        ("resyncfs_unsized_files", "Files without a published size", revision.unsized_files),
    ] {
        registry.register(name, help, ConstGauge::new(number));
    }
}

fn refreshes(registry: &mut Registry, sync: &sync::status::Status) {
    let succeeded = sync.refreshes.saturating_sub(sync.failed_refreshes);
    let outcomes = [("succeeded", succeeded), ("failed", sync.failed_refreshes)];
    let outcomes = Family::of("outcome", outcomes, ConstCounter::new);
    registry.register("resyncfs_refreshes", "Refreshes that have ended, by outcome", outcomes);
    if let Some(last) = &sync.last_refresh {
        let ended = Some(last.ended);
        time(registry, "resyncfs_last_refresh_timestamp_seconds", "When the last refresh ended", ended);
        let seconds = ConstGauge::new(last.milliseconds as f64 / 1e3);
        registry.register("resyncfs_last_refresh_duration_seconds", "How long the last refresh took", seconds);
    }
    time(registry, "resyncfs_next_poll_timestamp_seconds", "When the next refresh is due", sync.next_poll);
    let help = "Deletions of resources that were never listed";
    registry.register("resyncfs_unknown_deletions", help, ConstCounter::new(sync.unknown_deletions));
    let held = sync.held.as_ref().map_or(0, |held| held.files);
    let gaps = sync.sets.iter().filter(|set| set.gap_since.is_some()).count() as u64;
    let deviations = sync.deviations.iter().map(|deviation| deviation.count).sum();
    for (name, help, number) in [
        ("resyncfs_refresh_failures", "Refreshes that have failed since the last success", u64::from(sync.failures)),
        ("resyncfs_held_deletions", "Deletions that are held back", held),
        ("resyncfs_sets_with_gap", "Sets of which changes may be missing", gaps),
        ("resyncfs_deviations", "Deviations from the standard in documents read since the mount began", deviations),
    ] {
        registry.register(name, help, ConstGauge::new(number));
    }
}

fn reads(registry: &mut Registry, cache: &content::Metrics) {
    let reads = [("hit", cache.hits), ("miss", cache.misses), ("failed", cache.failed_reads)];
    let help = "READs of the kernel: answered from this machine, answered after a request to the Source, or failed. \
                Reads from the page cache are not counted";
    registry.register("resyncfs_reads", help, Family::of("result", reads, ConstCounter::new));
    let bytes = [("hit", cache.hit_bytes), ("miss", cache.miss_bytes)];
    let bytes = Family::of("result", bytes, ConstCounter::new);
    registry.register("resyncfs_read_bytes", "Bytes of the answered READs", bytes);
    for (name, help, number) in [
        ("resyncfs_fetches", "Downloads of files that have begun", cache.fetches),
        ("resyncfs_fetch_failures", "Downloads of files that have failed", cache.failed_fetches),
        ("resyncfs_fetched_bytes", "Bytes of the files that were downloaded whole", cache.fetched_bytes),
        ("resyncfs_size_questions", "Requests for sizes that are not published", cache.sizes),
        ("resyncfs_size_failures", "Requests for sizes that have failed", cache.failed_sizes),
    ] {
        registry.register(name, help, ConstCounter::new(number));
    }
    for (name, help, number) in [
        ("resyncfs_cache_objects", "Whole files in the cache folder, for all its mounts", cache.objects),
        ("resyncfs_cache_bytes", "Bytes that the cache folder takes", cache.bytes),
        ("resyncfs_cache_quota_bytes", "Bytes that the cache folder may take", cache.quota),
    ] {
        registry.register(name, help, ConstGauge::new(number));
    }
}

fn hosts(registry: &mut Registry, hosts: &[HostStatus]) {
    let named = || hosts.iter().map(|host| (host.host.as_deref().unwrap_or(OTHER_HOSTS), host));
    type Counter = fn(&HostStatus) -> ConstCounter<u64>;
    let counters: [(&str, &str, Counter); 4] = [
        ("resyncfs_http_requests", "Requests sent to a host", |host| ConstCounter::new(host.requests)),
        ("resyncfs_http_failures", "Requests without an answer", |host| ConstCounter::new(host.failures)),
        ("resyncfs_http_refusals", "Answers with a status of 400 or more", |host| ConstCounter::new(host.refusals)),
        ("resyncfs_http_received_bytes", "Bytes of the bodies that arrived", |host| ConstCounter::new(host.bytes)),
    ];
    for (name, help, counter) in counters {
        registry.register(name, help, Family::of("host", named(), counter));
    }
    let latency = |host: &HostStatus| Latency { answers: host.answers, seconds: host.waited as f64 / 1e3 };
    let latency = Family::of("host", named(), latency);
    registry.register("resyncfs_http_latency_seconds", "Time from a request to the head of its answer", latency);
    let seconds = |milliseconds: Option<u64>| ConstGauge::new(milliseconds.unwrap_or(0) as f64 / 1e3);
    let open = Family::of("host", named(), |host| ConstGauge::new(u32::from(host.opens_in.is_some())));
    registry.register("resyncfs_http_breaker_open", "1 while nothing is sent to a host that does not answer", open);
    let paused = Family::of("host", named().map(|(name, host)| (name, host.paused_for)), seconds);
    registry.register("resyncfs_http_paused_seconds", "How long a host has asked for a pause", paused);
    let cooling = Family::of("host", named().map(|(name, host)| (name, host.cools_for)), seconds);
    let help = "How long other mirrors come before a mirror that has failed";
    registry.register("resyncfs_http_cooling_seconds", help, cooling);
}

fn programs(registry: &mut Registry, programs: &[Reading]) {
    let named = || programs.iter().map(|reading| (&*reading.program, reading));
    let reads = Family::of("program", named(), |it| ConstCounter::new(it.reads));
    let help = "READs of a program. Reads from the page cache are not counted";
    registry.register("resyncfs_program_reads", help, reads);
    let bytes = Family::of("program", named(), |it| ConstCounter::new(it.bytes));
    registry.register("resyncfs_program_read_bytes", "Bytes of these READs", bytes);
    let denied = Family::of("program", named(), |it| ConstCounter::new(it.denied));
    registry.register("resyncfs_program_denied", "Reads and size requests denied by deny=", denied);
}

fn channels(registry: &mut Registry, notifications: &NotificationsStatus) {
    let mut standings: BTreeMap<&str, u64> = BTreeMap::new();
    for channel in &notifications.channels {
        *standings.entry(&channel.standing).or_default() += 1;
    }
    let standings = Family::of("standing", standings, ConstGauge::new);
    registry.register("resyncfs_channels", "Subscriptions at hubs, by state", standings);
    let seen = notifications.seen.iter().map(|(kind, count)| (kind.as_str(), *count));
    let help = "Requests that the listener for notifications received, by kind";
    registry.register("resyncfs_websub_requests", help, Family::of("kind", seen, ConstCounter::new));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_the_source_stays_within_its_label() {
        let host = HostStatus {
            host: Some("h\"\n\\".to_owned()),
            requests: 2,
            answers: 1,
            waited: 1500,
            ..Default::default()
        };
        let mut registry = Registry::default();
        hosts(&mut registry, &[host]);
        let mut text = String::new();
        prometheus_text::encode(&mut text, &registry).unwrap();

        for line in [
            "# TYPE resyncfs_http_requests_total counter",
            "resyncfs_http_requests_total{host=\"h\\\"\\n\\\\\"} 2",
            "# TYPE resyncfs_http_latency_seconds histogram",
            "resyncfs_http_latency_seconds_sum{host=\"h\\\"\\n\\\\\"} 1.5",
            "resyncfs_http_latency_seconds_count{host=\"h\\\"\\n\\\\\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_family_without_samples_is_left_out() {
        let mut registry = Registry::default();
        hosts(&mut registry, &[]);
        let mut text = String::new();
        prometheus_text::encode(&mut text, &registry).unwrap();

        assert_eq!(text, "");
    }
}
