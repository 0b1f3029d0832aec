//! The status as metrics for Prometheus. Labels are hosts (65 at most), programs (128 at most) and words of this program.

use super::types::{RevisionStatus, Status};
use crate::content::SharedCacheStatus;
use crate::fs::readers::ProgramReads;
use crate::source::http::{HostTraffic, LATENCIES};
use crate::sync::status::{PagesStatus, Refreshed};
use Value::{Latency, Number, Seconds};
use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge, Histogram};
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, HashMap};
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

/// Kind, name and help of each metric, a line each. Its full name begins with `resyncfs_`, a counter's ends in `_total`.
const METRICS: &str = include_str!("metrics.txt");

/// The samples of each metric by its name.
fn samples(status: &Status) -> HashMap<&'static str, Samples> {
    let Status { sync, cache, revision, notifications, max_download, .. } = status;
    let last = sync.last_refresh.as_ref();
    let took = |last: &Refreshed| seconds(Some(Duration::from_millis(last.milliseconds)));
    let refreshes =
        [("succeeded", sync.refreshes.saturating_sub(sync.failed_refreshes)), ("failed", sync.failed_refreshes)];
    let unread = |pages: PagesStatus| pages.all.saturating_sub(pages.read + pages.failed);
    let pages = sync.pages.map(|it| [("read", it.read), ("unread", unread(it)), ("failing", it.failed)]);
    let reads =
        [("hit", cache.hits), ("shared", cache.shared_hits), ("miss", cache.misses), ("failed", cache.failed_reads)];
    let read_bytes = [("hit", cache.hit_bytes), ("shared", cache.shared_bytes), ("miss", cache.miss_bytes)];
    let mut channels = BTreeMap::<&str, u64>::new();
    let subscribed = notifications.iter().flat_map(|it| &it.channels);
    subscribed.for_each(|channel| *channels.entry(&channel.standing).or_default() += 1);
    let requests = notifications.iter().flat_map(|it| &it.seen).map(|(kind, count)| (kind.as_str(), *count));
    let shown = |number: fn(&RevisionStatus) -> u64| one(revision.as_ref().map(number));
    let shared = |number: fn(&SharedCacheStatus) -> u64| one(status.shared_cache.as_ref().map(number));
    let name = |host: &HostTraffic| vec![("host", host.host.as_deref().unwrap_or("others").to_owned())];
    let hosts = |value: fn(&HostTraffic) -> Value| status.hosts.iter().map(|it| (name(it), value(it))).collect();
    let programs = |number: fn(&ProgramReads) -> u64| {
        by("program", status.programs.iter().map(|program| (&*program.program, number(program))))
    };
    HashMap::from([
        ("info", info(status)),
        ("mounted_timestamp_seconds", time(Some(status.mounted))),
        ("revision", shown(|it| it.number)),
        ("revision_committed_timestamp_seconds", time(revision.as_ref().map(|it| it.committed))),
        ("revision_at_timestamp_seconds", time(revision.as_ref().and_then(|it| it.at))),
        ("files", shown(|it| it.files)),
        ("folders", shown(|it| it.folders)),
        ("published_bytes", shown(|it| it.bytes)),
        ("unsized_files", shown(|it| it.unsized_files)),
        ("refreshes", by("outcome", refreshes)),
        ("refresh_failures", one(Some(sync.failures.into()))),
        ("last_refresh_timestamp_seconds", time(last.map(|last| last.ended))),
        ("last_refresh_duration_seconds", last.map(|last| (Labels::new(), took(last))).into_iter().collect()),
        ("next_poll_timestamp_seconds", time(sync.next_poll)),
        ("held_deletions", one(Some(sync.held.as_ref().map_or(0, |held| held.files)))),
        ("sets_with_gap", one(Some(sync.sets.iter().filter(|set| set.gap_since.is_some()).count() as u64))),
        ("unknown_deletions", one(Some(sync.unknown_deletions))),
        ("journaled_changes", one(Some(sync.journaled))),
        ("landing_pages", by("state", pages.into_iter().flatten())),
        ("unannounced", one(Some(status.unannounced))),
        ("deviations", one(Some(sync.deviations.iter().map(|deviation| deviation.count).sum()))),
        ("reads", by("result", reads)),
        ("read_bytes", by("result", read_bytes)),
        ("fetches", one(Some(cache.fetches))),
        ("fetch_failures", one(Some(cache.failed_fetches))),
        ("fetched_bytes", one(Some(cache.fetched_bytes))),
        ("size_questions", one(Some(cache.sizes))),
        ("size_failures", one(Some(cache.failed_sizes))),
        ("max_download_bytes", one(max_download.as_ref().map(|it| it.limit))),
        ("max_download_used_bytes", one(max_download.as_ref().map(|it| it.used))),
        ("cache_objects", one(Some(cache.objects))),
        ("cache_bytes", one(Some(cache.bytes))),
        ("cache_quota_bytes", one(Some(cache.quota))),
        ("shared_cache_hits", shared(|it| it.hits)),
        ("shared_cache_misses", shared(|it| it.misses)),
        ("shared_cache_failures", shared(|it| it.failures)),
        ("shared_cache_uploads", shared(|it| it.uploads)),
        ("shared_cache_dropped", shared(|it| it.dropped)),
        ("shared_cache_read_bytes", shared(|it| it.bytes_read)),
        ("shared_cache_written_bytes", shared(|it| it.bytes_written)),
        ("http_requests", hosts(|it| Number(it.requests))),
        ("http_failures", hosts(|it| Number(it.failures))),
        ("http_refusals", hosts(|it| Number(it.refusals))),
        ("http_received_bytes", hosts(|it| Number(it.bytes))),
        ("http_latency_seconds", hosts(|it| Latency(it.latencies, it.answers, it.waited.as_secs_f64()))),
        ("http_breaker_open", hosts(|it| Number(it.opens_in.is_some().into()))),
        ("http_paused_seconds", hosts(|it| seconds(it.paused_for))),
        ("http_paced_seconds", hosts(|it| seconds(it.paced_for))),
        ("http_cooling_seconds", hosts(|it| seconds(it.cools_for))),
        ("program_reads", programs(|it| it.reads)),
        ("program_read_bytes", programs(|it| it.bytes)),
        ("program_denied", programs(|it| it.denied)),
        ("channels", by("standing", channels)),
        ("websub_requests", by("kind", requests)),
    ])
}

fn info(status: &Status) -> Samples {
    let labels = [("version", &status.version), ("source", &status.source), ("directory", &status.directory)];
    vec![(labels.map(|(name, value)| (name, value.clone())).into(), Number(1))]
}

fn one(number: Option<u64>) -> Samples {
    number.map(|number| (Labels::new(), Number(number))).into_iter().collect()
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

#[derive(Debug)]
struct Exported(Status);

impl Collector for Exported {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut samples = samples(&self.0);
        for line in METRICS.lines() {
            let mut words = line.splitn(3, ' ');
            let (Some(kind), Some(name), Some(help)) = (words.next(), words.next(), words.next()) else { continue };
            // A metric without samples is left out.
            let Some(samples) = samples.remove(name).filter(|samples| !samples.is_empty()) else { continue };
            let kind = match kind {
                "counter" => Counter,
                "histogram" => Histogram,
                _ => Gauge,
            };
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, value) in samples {
                value.encode(kind, family.encode_family(&labels)?)?;
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
    use std::collections::HashSet;

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
    fn each_metric_has_its_line() {
        let names: HashSet<_> = METRICS.lines().filter_map(|line| line.split(' ').nth(1)).collect();

        assert_eq!(names, samples(&status()).into_keys().collect());
    }

    #[test]
    fn a_metric_without_a_known_value_is_left_out() {
        let text = text(status());

        for name in ["resyncfs_files", "resyncfs_last_refresh", "resyncfs_next_poll", "resyncfs_program_reads"] {
            assert!(!text.contains(name), "{name} in:\n{text}");
        }
    }
}
