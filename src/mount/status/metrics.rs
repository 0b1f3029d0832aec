//! The status as metrics for Prometheus. Labels are hosts (65 at most), programs (128 at most) and words of this program.

use super::types::{RevisionStatus, Status};
use crate::content::SharedCacheStatus;
use crate::fs::readers::ProgramReads;
use crate::source::http::{HostTraffic, LATENCIES};
use Value::{Latency, Number, Seconds};
use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge, Histogram};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The metrics of a mount in the text format of Prometheus.
pub fn text(status: Status) -> String {
    let mut registry = Registry::with_prefix("resyncfs");
    registry.register_collector(Box::new(Exported(status)));
    let mut text = String::new();
    if let Err(cause) = prometheus_text::encode(&mut text, &registry) {
        tracing::warn!(%cause, "the metrics cannot be written");
    }
    text
}

type Labels = Vec<(&'static str, String)>;
type Samples = Vec<(Labels, Value)>;

/// The value of a sample.
enum Value {
    Number(u64),
    Seconds(f64),
    /// Answers by [`LATENCIES`], the number of all, and their seconds together.
    Latency([u64; LATENCIES.len()], u64, f64),
}

/// A metric: its kind, name, help and samples. Its full name begins with `resyncfs_`, a counter's ends in `_total`. Without
/// samples it is left out.
type Metric = (MetricType, &'static str, &'static str, fn(&Status) -> Samples);

const METRICS: &[Metric] = &[
    (Gauge, "info", "The Source, the mount point and the version of resyncfs; always 1.", info),
    (Gauge, "mounted_timestamp_seconds", "When the mount began.", |it| time(Some(it.mounted))),
    (Gauge, "revision", "Number of the revision that is shown.", |it| revision(it, |it| it.number)),
    (Gauge, "revision_committed_timestamp_seconds", "When the revision was made here.", |it| {
        time(it.revision.as_ref().map(|revision| revision.committed))
    }),
    (Gauge, "revision_at_timestamp_seconds", "The time of the Source that the revision speaks for.", |it| {
        time(it.revision.as_ref().and_then(|revision| revision.at))
    }),
    (Gauge, "files", "Files that are shown.", |it| revision(it, |it| it.files)),
    (Gauge, "folders", "Folders that are shown.", |it| revision(it, |it| it.folders)),
    (Gauge, "published_bytes", "Sum of the published sizes.", |it| revision(it, |it| it.bytes)),
    (Gauge, "unsized_files", "Files without a published size.", |it| revision(it, |it| it.unsized_files)),
    (Counter, "refreshes", "Refreshes that have ended, by outcome.", |it| {
        let succeeded = it.sync.refreshes.saturating_sub(it.sync.failed_refreshes);
        by("outcome", [("succeeded", succeeded), ("failed", it.sync.failed_refreshes)])
    }),
    (Gauge, "refresh_failures", "Refreshes that have failed since the last success.", |it| {
        one(it.sync.failures.into())
    }),
    (Gauge, "last_refresh_timestamp_seconds", "When the last refresh ended.", |it| {
        time(it.sync.last_refresh.as_ref().map(|last| last.ended))
    }),
    (Gauge, "last_refresh_duration_seconds", "How long the last refresh took.", |it| {
        it.sync
            .last_refresh
            .iter()
            .map(|last| (Labels::new(), seconds(Some(Duration::from_millis(last.milliseconds)))))
            .collect()
    }),
    (Gauge, "next_poll_timestamp_seconds", "When the next refresh is due.", |it| time(it.sync.next_poll)),
    (Gauge, "held_deletions", "Deletions that wait for confirmation.", |it| {
        one(it.sync.held.as_ref().map_or(0, |held| held.files))
    }),
    (Gauge, "sets_with_gap", "Sets of which changes may be missing.", |it| {
        one(it.sync.sets.iter().filter(|set| set.gap_since.is_some()).count() as u64)
    }),
    (Counter, "unknown_deletions", "Deletions of resources that were never listed.", |it| {
        one(it.sync.unknown_deletions)
    }),
    (Gauge, "journaled_changes", "Changes that are kept until a newer Resource List covers them.", |it| {
        one(it.sync.journaled)
    }),
    (Gauge, "landing_pages", "Landing pages whose items are followed, by state.", |it| match it.sync.pages {
        Some(pages) => {
            let unread = pages.all.saturating_sub(pages.read + pages.failed);
            by("state", [("read", pages.read), ("unread", unread), ("failing", pages.failed)])
        }
        None => Vec::new(),
    }),
    (Counter, "unannounced", "Files found that were newer than the list and differed from it.", |it| {
        one(it.unannounced)
    }),
    (Gauge, "deviations", "Deviations from the standard in documents read since the mount began.", |it| {
        one(it.sync.deviations.iter().map(|deviation| deviation.count).sum())
    }),
    (Counter, "reads", "READs of the kernel, by result; reads from the page cache are not counted.", |it| {
        let answered = [("hit", it.cache.hits), ("shared", it.cache.shared_hits), ("miss", it.cache.misses)];
        by("result", answered.into_iter().chain([("failed", it.cache.failed_reads)]))
    }),
    (Counter, "read_bytes", "Bytes of the answered READs.", |it| {
        by("result", [("hit", it.cache.hit_bytes), ("shared", it.cache.shared_bytes), ("miss", it.cache.miss_bytes)])
    }),
    (Counter, "fetches", "Downloads of files that have begun.", |it| one(it.cache.fetches)),
    (Counter, "fetch_failures", "Downloads of files that have failed.", |it| one(it.cache.failed_fetches)),
    (Counter, "fetched_bytes", "Bytes of the files that were downloaded whole.", |it| one(it.cache.fetched_bytes)),
    (Counter, "size_questions", "Requests for sizes that are not published.", |it| one(it.cache.sizes)),
    (Counter, "size_failures", "Requests for sizes that have failed.", |it| one(it.cache.failed_sizes)),
    (Gauge, "max_download_bytes", "Bytes of files that may be downloaded in this run, where they are bounded.", |it| {
        it.max_download.iter().map(|it| (Labels::new(), Number(it.limit))).collect()
    }),
    (Counter, "max_download_used_bytes", "Bytes that count against max-download=.", |it| {
        it.max_download.iter().map(|it| (Labels::new(), Number(it.used))).collect()
    }),
    (Gauge, "cache_objects", "Whole files in the cache folder, for all its mounts.", |it| one(it.cache.objects)),
    (Gauge, "cache_bytes", "Bytes that the cache folder takes.", |it| one(it.cache.bytes)),
    (Gauge, "cache_quota_bytes", "Bytes that the cache folder may take.", |it| one(it.cache.quota)),
    (Counter, "shared_cache_hits", "Files that came from the shared cache.", |it| shared(it, |it| it.hits)),
    (Counter, "shared_cache_misses", "Files that the shared cache did not have.", |it| shared(it, |it| it.misses)),
    (Counter, "shared_cache_failures", "Requests to the shared cache that failed, and wrong files.", |it| {
        shared(it, |it| it.failures)
    }),
    (Counter, "shared_cache_uploads", "Files that were uploaded to the shared cache.", |it| {
        shared(it, |it| it.uploads)
    }),
    (Counter, "shared_cache_dropped", "Files that were not uploaded: too many waited, or the store failed.", |it| {
        shared(it, |it| it.dropped)
    }),
    (Counter, "shared_cache_read_bytes", "Bytes that the shared cache sent.", |it| shared(it, |it| it.bytes_read)),
    (Counter, "shared_cache_written_bytes", "Bytes that were uploaded to the shared cache.", |it| {
        shared(it, |it| it.bytes_written)
    }),
    (Counter, "http_requests", "Requests sent to a host.", |it| hosts(it, |it| Number(it.requests))),
    (Counter, "http_failures", "Unanswered requests.", |it| hosts(it, |it| Number(it.failures))),
    (
        Counter,
        "http_refusals",
        "Answers with a status of 400 or more, except where a list was only looked for.",
        |it| hosts(it, |it| Number(it.refusals)),
    ),
    (Counter, "http_received_bytes", "Bytes of the bodies that arrived.", |it| hosts(it, |it| Number(it.bytes))),
    (Histogram, "http_latency_seconds", "Time from a request to the head of its answer.", |it| {
        hosts(it, |it| Latency(it.latencies, it.answers, it.waited.as_secs_f64()))
    }),
    (Gauge, "http_breaker_open", "1 while nothing is sent to a host that does not answer.", |it| {
        hosts(it, |it| Number(it.opens_in.is_some().into()))
    }),
    (Gauge, "http_paused_seconds", "How long a host has asked for a pause.", |it| {
        hosts(it, |it| seconds(it.paused_for))
    }),
    (Gauge, "http_paced_seconds", "How long the limit of a host holds the next request back.", |it| {
        hosts(it, |it| seconds(it.paced_for))
    }),
    (Gauge, "http_cooling_seconds", "How long other mirrors come before a mirror that has failed.", |it| {
        hosts(it, |it| seconds(it.cools_for))
    }),
    (Counter, "program_reads", "READs of a program; reads from the page cache are not counted.", |it| {
        programs(it, |it| it.reads)
    }),
    (Counter, "program_read_bytes", "Bytes of these READs.", |it| programs(it, |it| it.bytes)),
    (Counter, "program_denied", "Reads and size requests denied by deny=.", |it| programs(it, |it| it.denied)),
    (Gauge, "channels", "Subscriptions at hubs, by state.", |it| {
        let mut states = BTreeMap::<&str, u64>::new();
        let channels = it.notifications.iter().flat_map(|it| &it.channels);
        channels.for_each(|channel| *states.entry(&channel.standing).or_default() += 1);
        by("standing", states)
    }),
    (Counter, "websub_requests", "Requests that the listener for notifications received, by kind.", |it| {
        by("kind", it.notifications.iter().flat_map(|it| &it.seen).map(|(kind, count)| (kind.as_str(), *count)))
    }),
];

fn info(status: &Status) -> Samples {
    let labels = [("version", &status.version), ("source", &status.source), ("directory", &status.directory)];
    vec![(labels.map(|(name, value)| (name, value.clone())).into(), Number(1))]
}

fn one(number: u64) -> Samples {
    vec![(Labels::new(), Number(number))]
}

/// In seconds since the epoch.
fn time(time: Option<Timestamp>) -> Samples {
    let value = |time: Timestamp| Seconds(time.as_nanosecond() as f64 / 1e9);
    time.into_iter().map(|time| (Labels::new(), value(time))).collect()
}

fn seconds(time: Option<Duration>) -> Value {
    Seconds(time.unwrap_or_default().as_secs_f64())
}

fn by<'a>(label: &'static str, numbers: impl IntoIterator<Item = (&'a str, u64)>) -> Samples {
    numbers.into_iter().map(|(value, number)| (vec![(label, value.to_owned())], Number(number))).collect()
}

fn revision(status: &Status, number: fn(&RevisionStatus) -> u64) -> Samples {
    status.revision.as_ref().map_or_else(Vec::new, |revision| one(number(revision)))
}

fn shared(status: &Status, number: fn(&SharedCacheStatus) -> u64) -> Samples {
    status.shared_cache.as_ref().map_or_else(Vec::new, |shared| one(number(shared)))
}

fn hosts(status: &Status, value: fn(&HostTraffic) -> Value) -> Samples {
    let name = |host: &HostTraffic| host.host.as_deref().unwrap_or("others").to_owned();
    status.hosts.iter().map(|host| (vec![("host", name(host))], value(host))).collect()
}

fn programs(status: &Status, number: fn(&ProgramReads) -> u64) -> Samples {
    by("program", status.programs.iter().map(|program| (&*program.program, number(program))))
}

#[derive(Debug)]
struct Exported(Status);

impl Collector for Exported {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (kind, name, help, samples) in METRICS {
            let samples = samples(&self.0);
            if samples.is_empty() {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, *kind)?;
            for (labels, value) in samples {
                value.encode(*kind, family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(self, kind: MetricType, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match (self, kind) {
            (Number(number), Counter) => encoder.encode_counter::<NoLabelSet, _, u64>(&number, None),
            (Number(number), _) => encoder.encode_gauge(&number),
            (Seconds(seconds), _) => encoder.encode_gauge(&seconds),
            (Latency(counted, answers, seconds), _) => {
                let bounds = LATENCIES.iter().map(|bound| *bound as f64 / 1e3);
                let mut buckets: Vec<_> = bounds.zip(counted.iter().copied()).collect();
                // What remains is slower than all bounds; the encoder adds up the others.
                buckets.push((f64::INFINITY, answers.saturating_sub(counted.iter().sum())));
                encoder.encode_histogram::<NoLabelSet>(seconds, answers, &buckets, None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let host = |host: Option<&str>| HostTraffic {
            host: host.map(Box::from),
            requests: 2,
            answers: 1,
            waited: Duration::from_millis(1500),
            latencies: [0, 0, 0, 0, 0, 0, 0, 0, 1, 0],
            ..HostTraffic::default()
        };
        Status {
            source: "http://h/".to_owned(),
            directory: "/mnt/a\"\n\\".to_owned(),
            process: 1,
            version: "1.0".to_owned(),
            cache_folder: String::new(),
            log: None,
            starting: None,
            minutes: Vec::new(),
            downloads: Vec::new(),
            mounted: "2026-01-02T03:04:05.5Z".parse().unwrap(),
            revision: None,
            unannounced: 0,
            sync: crate::sync::status::SyncStatus::default(),
            notifications: None,
            cache: crate::content::Metrics::default(),
            max_download: None,
            cache_failure: None,
            shared_cache: None,
            hosts: vec![host(Some("h")), host(None)],
            unanswered: None,
            errors: Vec::new(),
            programs: Vec::new(),
            denied: Vec::new(),
            metrics: None,
        }
    }

    #[test]
    fn a_text_of_the_source_stays_within_its_label() {
        let text = text(status());

        for line in [
            "resyncfs_info{version=\"1.0\",source=\"http://h/\",directory=\"/mnt/a\\\"\\n\\\\\"} 1",
            "resyncfs_mounted_timestamp_seconds 1767323045.5",
            "# TYPE resyncfs_http_requests_total counter",
            "resyncfs_http_requests_total{host=\"h\"} 2",
            "resyncfs_http_requests_total{host=\"others\"} 2",
            "# TYPE resyncfs_http_latency_seconds histogram",
            "resyncfs_http_latency_seconds_sum{host=\"h\"} 1.5",
            "resyncfs_http_latency_seconds_bucket{host=\"h\",le=\"1\"} 0",
            "resyncfs_http_latency_seconds_bucket{host=\"h\",le=\"2.5\"} 1",
            "resyncfs_http_latency_seconds_bucket{host=\"h\",le=\"+Inf\"} 1",
            "resyncfs_http_latency_seconds_count{host=\"h\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_metric_without_a_known_value_is_left_out() {
        let text = text(status());

        for name in ["resyncfs_files", "resyncfs_last_refresh", "resyncfs_next_poll", "resyncfs_program_reads"] {
            assert!(!text.contains(name), "{name} in:\n{text}");
        }
    }
}
