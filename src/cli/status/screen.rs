//! The status of one mount as a person reads it.

use super::activity;
use super::watch::Earlier;
use crate::cli::refresh::{held_sentence, sentence};
use crate::cli::render::printable_value;
use crate::cli::render::{count, duration, size, thousands};
use crate::document::Timestamp;
use crate::mount::status::{Status, SubscriptionStatus};
use crate::sync::status::{Answer, DocumentStatus, MissingStatus};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

/// Documents and deviations shown of each kind; `--json` has all.
const MOST_SHOWN: usize = 20;
/// Of what hubs do, what is as it should be.
const HEARD: [&str; 2] = ["delivered", "verified"];

/// The status as a person reads it at `now`, with rates over what has happened since `earlier`.
pub fn screen(status: &Status, now: SystemTime, earlier: Option<&Earlier>) -> String {
    let mut text = String::new();
    let Status { source, directory, process, version, mounted, revision, unannounced, sync, notifications, .. } =
        status;
    let _ = writeln!(text, "Source       {}", printable_value(source));
    let _ = writeln!(
        text,
        "Mounted at   {} {} by process {process} (resyncfs {})",
        printable_value(directory),
        when(mounted, now),
        printable_value(version)
    );
    match revision {
        Some(revision) => {
            let _ = writeln!(text, "Revision     {}, made {}", revision.number, when(&revision.committed, now));
            if let Some(at) = &revision.at {
                let _ = writeln!(text, "             the Source as of {at}");
            }
            let _ = writeln!(
                text,
                "             {} in {}, {} and {} of unknown length",
                count(revision.files, "file"),
                count(revision.folders, "folder"),
                size(revision.octets),
                count(revision.unsized_files, "file")
            );
        }
        None => text.push_str("Revision     none can be read\n"),
    }
    match &sync.last_refresh {
        Some(last) => {
            let took = if last.milliseconds < 1000 {
                format!("{} ms", last.milliseconds)
            } else {
                duration(Duration::from_millis(last.milliseconds))
            };
            let _ = writeln!(text, "Last look    {}, {took}: {}", when(&last.ended, now), sentence(&last.outcome));
        }
        None => text.push_str("Last look    none has ended yet\n"),
    }
    if sync.failures > 1 {
        let _ = writeln!(text, "             {} looks in a row have failed", sync.failures);
    }
    if let Some(since) = &sync.looking_since {
        let _ = writeln!(text, "             one is under way since {}", when(since, now));
    }
    if let Some(next) = &sync.next_poll {
        let rarely = if sync.channels_live { ", rarely because notifications arrive" } else { "" };
        let _ = writeln!(text, "Next look    {}{rarely}", when(next, now));
    }
    for set in &sync.sets {
        let _ = writeln!(text, "Set {:<8} {}", set.id, printable_value(&set.name));
        if let Some(until) = &set.changes_until {
            let _ = writeln!(text, "             changes are known up to {until}");
        }
        if let Some(since) = &set.gap_since {
            let _ = writeln!(
                text,
                "             GAP: changes since {since} may be missing until there is a newer Resource List"
            );
        }
        if set.doubts > 0 {
            let deletions = count(set.doubts as u64, "undated deletion");
            let _ = writeln!(
                text,
                "             {deletions} not applied: the resources are asked again whether they are gone"
            );
        }
    }
    list(&mut text, "Documents", sync.documents.iter().map(|document| document_line(document, now)));
    if let Some(notifications) = notifications {
        list(&mut text, "Channels", notifications.channels.iter().map(|channel| channel_line(channel, now)));
        let ignored =
            |(name, count): (&String, &u64)| (!HEARD.contains(&name.as_str())).then(|| format!("{name} {count}"));
        let ignored: Vec<String> = notifications.seen.iter().filter_map(ignored).collect();
        if !ignored.is_empty() {
            let _ = writeln!(text, "Ignored      what came to {}: {}", notifications.callback, ignored.join(", "));
        }
    }
    list(&mut text, "Missing", sync.missing.iter().map(missing_line));
    if let Some(held) = &sync.held {
        let _ =
            writeln!(text, "Held back    {}", held_sentence(held, directory.as_ref()).replace('\n', "\n             "));
    }
    if sync.unknown_deletions > 0 {
        let _ = writeln!(text, "Unknown      {} of what was never here", count(sync.unknown_deletions, "deletion"));
    }
    if *unannounced > 0 {
        let _ = writeln!(
            text,
            "Unannounced  bytes newer than the list were met {} times; -o unannounced=show shows them",
            thousands(*unannounced)
        );
    }
    let deviations = sync.deviations.iter().map(|deviation| {
        let section = match &*deviation.section {
            "" => String::new(),
            section => format!(" [section {}]", printable_value(section)),
        };
        format!(
            "{:>9}  {}{section}: {}",
            thousands(deviation.count),
            printable_value(&deviation.rule),
            printable_value(&deviation.location)
        )
    });
    list(&mut text, "Deviations", deviations);
    if !sync.deviations.is_empty() {
        text.push_str("             (of documents read since the mount began)\n");
    }
    activity::lines(&mut text, status, now, earlier);
    text
}

fn document_line(document: &DocumentStatus, now: SystemTime) -> String {
    let answer = match &document.answer {
        Answer::None => "not asked yet".to_owned(),
        Answer::Unchanged => "unchanged".to_owned(),
        Answer::Whole(octets) => format!("came whole ({})", size(*octets)),
        Answer::Failed(why) => format!("FAILED: {}", printable_value(why)),
    };
    let due = document.due.as_deref().map(|due| format!(", due {}", when(due, now))).unwrap_or_default();
    format!("{}: {answer}{due}", printable_value(&document.location))
}

fn missing_line(missing: &MissingStatus) -> String {
    format!("{}: {}", printable_value(&missing.location), printable_value(&missing.why))
}

fn channel_line(channel: &SubscriptionStatus, now: SystemTime) -> String {
    let lease = channel.lease_ends.as_deref().map(|end| format!(" until {}", when(end, now))).unwrap_or_default();
    let last =
        channel.last_delivery.as_deref().map(|last| format!(", the last {}", when(last, now))).unwrap_or_default();
    format!(
        "{}: {}{lease}, {}{last}",
        printable_value(&channel.topic),
        printable_value(&channel.standing),
        count(channel.deliveries, "notification")
    )
}

pub(super) fn list(text: &mut String, title: &str, lines: impl ExactSizeIterator<Item = String>) {
    let more = lines.len().saturating_sub(MOST_SHOWN);
    for (index, line) in lines.take(MOST_SHOWN).enumerate() {
        let _ = writeln!(text, "{:<12} {line}", if index == 0 { title } else { "" });
    }
    if more > 0 {
        let _ = writeln!(text, "             and {more} more (--json tells all)");
    }
}

/// A time as told, and how far it is from `now`.
pub(super) fn when(time: &str, now: SystemTime) -> String {
    let Some(parsed) = Timestamp::parse(time) else { return printable_value(time) };
    let instant = SystemTime::from(parsed);
    match now.duration_since(instant) {
        Ok(past) => format!("{time} ({} ago)", duration(past)),
        Err(ahead) => format!("{time} (in {})", duration(ahead.duration())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::status::{
        CacheStatus, ErrorStatus, HostStatus, NotificationsStatus, ProgramStatus, RevisionStatus,
    };
    use crate::sync::status::{self, HeldStatus, RefreshOutcome, Refreshed, SetStatus};

    fn status() -> Status {
        Status {
            source: "https://repo.example.org/".into(),
            directory: "/mnt/repo".into(),
            process: 42,
            version: "0.1.0".into(),
            mounted: "2026-01-02T03:00:00Z".into(),
            revision: Some(RevisionStatus {
                number: 7,
                committed: "2026-01-02T03:50:00Z".into(),
                at: Some("2026-01-02T03:45:00Z".into()),
                files: 12_345,
                folders: 67,
                octets: 1_500_000,
                unsized_files: 1,
            }),
            unannounced: 2,
            sync: status::Status {
                last_refresh: Some(Refreshed {
                    ended: "2026-01-02T03:59:00Z".into(),
                    milliseconds: 90,
                    outcome: RefreshOutcome::Committed { created: 1, updated: 2, touched: 0, deleted: 3 },
                }),
                next_poll: Some("2026-01-02T04:05:00Z".into()),
                documents: vec![DocumentStatus {
                    location: "https://repo.example.org/changes.xml".into(),
                    interval: 300,
                    asked: None,
                    due: Some("2026-01-02T04:05:00Z".into()),
                    answer: Answer::Unchanged,
                }],
                looking_since: Some("2026-01-02T03:59:50Z".into()),
                sets: vec![SetStatus {
                    id: 0,
                    name: "https://repo.example.org/capabilitylist.xml".into(),
                    at: None,
                    changes_until: Some("2026-01-02T03:58:00Z".into()),
                    gap_since: Some("2026-01-01T00:00:00Z".into()),
                    doubts: 3,
                }],
                held: Some(HeldStatus {
                    files: 9000,
                    since: "2026-01-02T03:59:00Z".into(),
                    why: "more than half of the tree".into(),
                }),
                ..status::Status::default()
            },
            notifications: Some(NotificationsStatus {
                callback: "http://me.example.net/".into(),
                channels: vec![SubscriptionStatus {
                    set: None,
                    topic: "https://repo.example.org/framework/".into(),
                    hub: "https://hub.example.org/".into(),
                    standing: "active".into(),
                    lease_ends: Some("2026-01-02T05:00:00Z".into()),
                    deliveries: 3,
                    last_delivery: Some("2026-01-02T03:59:00Z".into()),
                }],
                seen: [("delivered", 3), ("forged", 2), ("unknown", 40)].map(|(name, n)| (name.to_owned(), n)).into(),
            }),
            cache: CacheStatus {
                objects: 3,
                octets: 2_500_000,
                quota: 10_000_000_000,
                hits: 3,
                hit_octets: 1_500_000,
                misses: 1,
                miss_octets: 500_000,
                failed_reads: 2,
                fetches: 3,
                failed_fetches: 2,
                fetched_octets: 600_000,
                sizes: 1,
                failed_sizes: 0,
            },
            hosts: vec![
                HostStatus {
                    host: Some("repo.example.org".into()),
                    requests: 1200,
                    octets: 4_000_000,
                    latency: 1500,
                    refusals: 1,
                    ..HostStatus::default()
                },
                HostStatus {
                    host: Some("mirror.example.org".into()),
                    requests: 5,
                    failures: 5,
                    failures_in_a_row: 5,
                    opens_in: Some(4000),
                    cools_for: Some(30_000),
                    ..HostStatus::default()
                },
            ],
            errors: vec![ErrorStatus {
                time: "2026-01-02T03:59:00Z".into(),
                uri: Some("https://repo.example.org/a".into()),
                why: "no progress in time".into(),
            }],
            programs: vec![ProgramStatus { program: "grep".into(), reads: 4, octets: 2_000_000, denied: 1 }],
            denied: vec!["tumblerd".into()],
            metrics: Some("127.0.0.1:9464".into()),
        }
    }

    #[test]
    fn a_person_reads_what_is_shown_how_old_it_is_and_what_to_do() {
        let now = Timestamp::parse("2026-01-02T04:00:00Z").map(SystemTime::from).unwrap();

        let text = screen(&status(), now, None);

        for line in [
            "Source       https://repo.example.org/",
            "Mounted at   /mnt/repo 2026-01-02T03:00:00Z (60 min ago) by process 42 (resyncfs 0.1.0)",
            "Revision     7, made 2026-01-02T03:50:00Z (10 min ago)",
            "             the Source as of 2026-01-02T03:45:00Z",
            "             12,345 files in 67 folders, 1.5 MB and 1 file of unknown length",
            "Last look    2026-01-02T03:59:00Z (60 s ago), 90 ms: 1 file new, 2 changed, 0 with other metadata, 3 gone",
            "             one is under way since 2026-01-02T03:59:50Z (10 s ago)",
            "Next look    2026-01-02T04:05:00Z (in 5 min)",
            "Set 0        https://repo.example.org/capabilitylist.xml",
            "             changes are known up to 2026-01-02T03:58:00Z",
            "             GAP: changes since 2026-01-01T00:00:00Z may be missing until there is a newer Resource List",
            "             3 undated deletions not applied: the resources are asked again whether they are gone",
            "Documents    https://repo.example.org/changes.xml: unchanged, due 2026-01-02T04:05:00Z (in 5 min)",
            "Channels     https://repo.example.org/framework/: active until 2026-01-02T05:00:00Z (in 60 min), 3 notifications, the last 2026-01-02T03:59:00Z (60 s ago)",
            "Ignored      what came to http://me.example.net/: forged 2, unknown 40",
            "Held back    9,000 deletions held back since 2026-01-02T03:59:00Z: more than half of the tree.",
            "               resyncfs refresh --accept-deletions /mnt/repo",
            "Unannounced  bytes newer than the list were met 2 times; -o unannounced=show shows them",
            "Cache        2.5 MB of 10000.0 MB in 3 files, all mounts of the folder count",
            "Reads        3 answered here (1.5 MB), 1 after asking the Source (0.5 MB), 2 failed: 75.0 % hits",
            "Fetches      3 begun, 0.6 MB came whole, 2 failed; 1 size asked for, 0 in vain",
            "Hosts        repo.example.org: 1,200 requests, 4.0 MB, 0 failed, 1 refused, 1,500 ms, SLOW",
            "             mirror.example.org: 5 requests, 0.0 MB, 5 failed, 0 refused, 0 ms, FAILING 5 times in a row, not asked for 4 s, as a mirror asked last for 30 s",
            "Programs     grep: 2.0 MB in 4 reads, 1 denied",
            "             (what the kernel has in its page cache is read without asking, and not count)",
            "Denied       nothing is fetched for tumblerd",
            "Errors       2026-01-02T03:59:00Z (60 s ago): https://repo.example.org/a: no progress in time",
            "Metrics      http://127.0.0.1:9464/metrics",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn rates_are_of_what_has_happened_since() {
        let before = status();
        let mut after = status();
        after.cache.hit_octets += 3_000_000;
        after.hosts[0].octets += 1_000_000;
        after.hosts[0].requests += 5;
        after.programs[0].octets += 2_000_000;

        let earlier = Earlier { status: before, ago: Duration::from_secs(2) };
        let text = screen(&after, SystemTime::UNIX_EPOCH, Some(&earlier));

        for part in [
            "Now          read 1.5 MB/s, received 0.5 MB/s, 2.5 requests/s",
            "1,205 requests, 5.0 MB, 0 failed, 1 refused, 1,500 ms, 2.5/s, 0.5 MB/s, SLOW",
            "grep: 4.0 MB in 4 reads, 1.0 MB/s, 1 denied",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn what_the_source_says_cannot_pretend_to_be_the_screen() {
        let mut status = status();
        let lie = "x\x1b[2J\u{202e}\nHeld back    nothing";
        status.sync.documents[0].answer = Answer::Failed(lie.into());
        status.hosts[0].host = Some(lie.into());
        status.errors[0].why = lie.into();
        status.errors[0].uri = Some(lie.into());
        status.programs[0].program = lie.into();
        status.directory = lie.into();

        let text = screen(&status, SystemTime::UNIX_EPOCH, None);

        assert!(!text.contains("\nHeld back    nothing"), "{text}");
        assert!(!text.contains(['\x1b', '\u{202e}']), "{text:?}");
    }
}
