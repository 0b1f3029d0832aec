use super::*;
use crate::content::Metrics;
use crate::sync::status::{self, HeldStatus, RefreshOutcome};
use jiff::Timestamp;

/// A time of 2026-01-02 in UTC.
fn at(time: &str) -> Timestamp {
    format!("2026-01-02T{time}Z").parse().unwrap()
}

fn clock() -> Clock {
    Clock::at(std::time::UNIX_EPOCH + Duration::from_secs(at("04:00:00").as_second() as u64))
}

fn sync() -> status::SyncStatus {
    status::SyncStatus {
        refreshing_since: Some(at("03:59:50")),
        last_refresh: Some(Refreshed {
            ended: at("03:59:00"),
            milliseconds: 90,
            outcome: RefreshOutcome::Committed { created: 1, updated: 2, touched: 0, deleted: 3 },
            failed: Vec::new(),
        }),
        next_poll: Some(at("04:05:00")),
        documents: vec![DocumentStatus {
            location: "https://repo.example.org/changes.xml".into(),
            interval: 300,
            asked: None,
            due: Some(at("04:05:00")),
            answer: PollAnswer::Downloaded(20_000),
        }],
        sets: vec![SetStatus {
            id: 0,
            name: "https://repo.example.org/capabilitylist.xml".into(),
            at: None,
            changes_until: Some(at("03:58:00")),
            gap_since: Some(at("00:00:00")),
            undated_deletions: 3,
        }],
        held: Some(HeldStatus { files: 9000, since: at("03:59:00"), why: "more than half of the tree".into() }),
        ..status::SyncStatus::default()
    }
}

fn notifications() -> NotificationsStatus {
    NotificationsStatus {
        callback: "http://me.example.net/".into(),
        channels: vec![SubscriptionStatus {
            set: None,
            topic: "https://repo.example.org/framework/".into(),
            hub: "https://hub.example.org/".into(),
            standing: "active".into(),
            lease_ends: Some(at("05:00:00")),
            deliveries: 3,
            last_delivery: Some(at("03:59:00")),
        }],
        seen: [("delivered", 3), ("forged", 2), ("unknown", 4000)].map(|(name, n)| (name.to_owned(), n)).into(),
    }
}

fn status() -> Status {
    Status {
        source: "https://repo.example.org/".into(),
        directory: "/mnt/repo".into(),
        process: 42,
        version: "0.1.0".into(),
        cache_folder: "/var/cache/resyncfs".into(),
        log: Some("/var/log/repo.log".into()),
        mounted: at("03:00:00"),
        revision: Some(RevisionStatus {
            number: 7,
            committed: at("03:50:00"),
            at: Some(at("03:45:00.123456789")),
            files: 12_345,
            folders: 67,
            bytes: 1_500_000,
            unsized_files: 1,
        }),
        unannounced: 2,
        sync: sync(),
        notifications: Some(notifications()),
        cache: Metrics {
            objects: 3,
            bytes: 2_500_000,
            quota: 10_000_000_000,
            hits: 3,
            hit_bytes: 1_500_000,
            misses: 1,
            miss_bytes: 500_000,
            failed_reads: 2,
            fetches: 3,
            failed_fetches: 2,
            fetched_bytes: 600_000,
            sizes: 1,
            ..Metrics::default()
        },
        downloads: vec![DownloadStatus {
            uri: "https://repo.example.org/film".into(),
            bytes: 6_000_000,
            of_bytes: Some(60_000_000),
        }],
        unanswered: Some("http://h/changes.xml answered 500".into()),
        hosts: vec![
            HostTraffic {
                host: Some("repo.example.org".into()),
                requests: 1200,
                bytes: 4_000_000,
                latency: Some(Duration::from_millis(1500)),
                refusals: 1,
                ..HostTraffic::default()
            },
            HostTraffic {
                host: Some("mirror.example.org".into()),
                requests: 5,
                failures: 5,
                failures_in_a_row: 5,
                opens_in: Some(Duration::from_secs(4)),
                cools_for: Some(Duration::from_secs(30)),
                ..HostTraffic::default()
            },
        ],
        errors: vec![ErrorStatus {
            time: at("03:59:00"),
            uri: Some("https://repo.example.org/a".into()),
            why: "no progress in time".into(),
        }],
        programs: vec![ProgramReads { program: "grep".into(), reads: 4, bytes: 2_000_000, denied: 1 }],
        denied: vec!["tumblerd".into()],
        metrics: Some("127.0.0.1:9464".into()),
        ..Status::default()
    }
}

fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|shown| shown == *line), "{line:?} is missing in:\n{text}");
    }
}

#[test]
fn the_screen_shows_tree_refreshes_and_deletions() {
    let text = screen(&status(), &clock(), None);

    assert_lines(
        &text,
        &[
            "Source       https://repo.example.org/",
            "Mounted at   /mnt/repo since 2026-01-02 03:00:00 UTC (60 min ago) by process 42 (resyncfs 0.1.0)",
            "Revision     7, made 2026-01-02 03:50:00 UTC (10 min ago)",
            "             shows the Source as of 2026-01-02 03:45:00 UTC (14 min ago)",
            "             12,345 files in 67 folders, 1.5 MB; the size of 1 file is unknown",
            "Last refresh 2026-01-02 03:59:00 UTC (60 s ago), took 90 ms: 1 file new, 2 changed, 0 with new metadata only, 3 deleted",
            "             a refresh has been under way since 2026-01-02 03:59:50 UTC (10 s ago)",
            "             http://h/changes.xml answered 500; trying again",
            "Next refresh 2026-01-02 04:05:00 UTC (in 5 min)",
            "Set          https://repo.example.org/capabilitylist.xml",
            "             changes are known up to 2026-01-02 03:58:00 UTC (2 min ago)",
            "             GAP: changes since 2026-01-02 00:00:00 UTC (4 h ago) may be missing until a newer Resource List is published",
            "             3 undated deletions not applied yet: each refresh asks the Source again whether the files are gone",
            "Documents    https://repo.example.org/changes.xml: downloaded (20.0 kB), next check 2026-01-02 04:05:00 UTC (in 5 min)",
            "Deletions    9,000 unconfirmed deletions since 2026-01-02 03:59:00 UTC: more than half of the tree.",
            "               resyncfs refresh --accept-deletions /mnt/repo",
            "Unannounced  files newer than the list were found 2 times; -o unannounced=show shows them",
        ],
    );
}

#[test]
fn the_screen_shows_cache_hosts_programs_and_errors() {
    let text = screen(&status(), &clock(), None);

    assert_lines(
        &text,
        &[
            "Channels     https://repo.example.org/framework/: active until 2026-01-02 05:00:00 UTC (in 60 min), 3 notifications, the last 2026-01-02 03:59:00 UTC (60 s ago)",
            "Ignored      requests to http://me.example.net/: 2 forged, 4,000 unknown",
            "Cache        2.5 MB of 10.0 GB used, 3 files, by all mounts with the cache folder /var/cache/resyncfs",
            "Reads        3 from this machine (1.5 MB), 1 from the Source (500.0 kB), 2 failed; 75.0 % from this machine",
            "Downloads    3 begun, 600.0 kB of complete files, 2 failed; 1 size requested, 0 failed",
            "Hosts        repo.example.org: 1,200 requests, 4.0 MB, 0 unanswered, 1 error response, 1,500 ms per answer, SLOW",
            "             mirror.example.org: 5 requests, 0 bytes, 5 unanswered, 0 error responses, answer time unknown, FAILING 5 times in a row, no requests for 4 s, other mirrors first for 30 s",
            "Under way    https://repo.example.org/film: 6.0 MB of 60.0 MB (10 %)",
            "Programs     grep: 2.0 MB in 4 reads, 1 denied",
            "             (reads from the kernel's page cache are not counted)",
            "Denied       nothing is downloaded for tumblerd",
            "Errors       2026-01-02 03:59:00 UTC (60 s ago): https://repo.example.org/a: no progress in time",
            "Log          /var/log/repo.log",
            "Metrics      http://127.0.0.1:9464/metrics",
        ],
    );
}

#[test]
fn a_size_that_no_list_publishes_is_unknown_and_not_zero() {
    for (unsized_files, bytes, shown) in [
        (0, 0, "3 files in 1 folder, 0 bytes"),
        (0, 30, "3 files in 1 folder, 30 bytes"),
        (1, 20, "3 files in 1 folder, 20 bytes; the size of 1 file is unknown"),
        (3, 0, "3 files in 1 folder, size unknown"),
    ] {
        let revision = RevisionStatus {
            number: 1,
            committed: at("00:00:00"),
            at: None,
            files: 3,
            folders: 1,
            bytes,
            unsized_files,
        };

        assert_eq!(contents(&revision), shown);
    }
}

#[test]
fn rates_are_of_the_growth_since_the_earlier_status() {
    let mut now = status();
    now.cache.hit_bytes += 3_000_000;
    now.hosts[0].bytes += 1_000_000;
    now.hosts[0].requests += 5;
    now.programs[0].bytes += 2_000_000;

    let before = status();
    let earlier = Earlier { status: &before, ago: Duration::from_secs(2) };
    let text = screen(&now, &clock(), Some(earlier));

    for part in [
        "Now          read 1.5 MB/s, received 500.0 kB/s, 2.5 requests/s",
        "1,205 requests, 5.0 MB, 0 unanswered, 1 error response, 1,500 ms per answer, 2.5/s, 500.0 kB/s, SLOW",
        "grep: 4.0 MB in 4 reads, 1.0 MB/s, 1 denied",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn the_cause_of_a_failed_refresh_is_shown_once() {
    let mut status = status();
    let why = "http://h/list.xml: cannot connect to h: connection refused";
    let failed = |minute: u32| ErrorStatus { time: at(&format!("03:{minute}:00")), uri: None, why: why.into() };
    status.sync.last_refresh.as_mut().unwrap().outcome = RefreshOutcome::Failed(why.into());
    status.sync.failures = 2;
    status.sync.documents[0].answer = PollAnswer::Failed(why.into());
    status.errors = vec![failed(59), failed(58), ErrorStatus { why: "an earlier one".into(), ..failed(30) }];

    let text = screen(&status, &clock(), None);

    assert_eq!(text.matches("connection refused").count(), 1, "{text}");
    assert!(text.contains("changes.xml: FAILED, next check") && text.contains("an earlier one"), "{text}");
}

#[test]
fn a_text_of_the_source_cannot_imitate_the_screen() {
    let mut status = status();
    let lie = "x\x1b[2J\u{202e}\nHeld back    nothing";
    status.sync.documents[0].answer = PollAnswer::Failed(lie.into());
    status.sync.held.as_mut().unwrap().why = lie.into();
    status.hosts[0].host = Some(lie.into());
    status.errors[0].why = lie.into();
    status.errors[0].uri = Some(lie.into());
    status.programs[0].program = lie.into();
    status.directory = lie.into();

    let text = screen(&status, &clock(), None);

    assert!(!text.contains("\nHeld back    nothing"), "{text}");
    assert!(!text.contains(['\x1b', '\u{202e}']), "{text:?}");
}

#[test]
fn a_status_is_the_same_after_json() {
    let status = status();

    let json = serde_json::to_string(&status).unwrap();

    assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
    assert!(json.contains(r#""at":"2026-01-02T03:45:00.123456789Z""#), "{json}");
    assert!(!json.contains("octets"), "{json}");
}
