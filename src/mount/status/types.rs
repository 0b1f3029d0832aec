//! The status of a mount: the one structure behind `status`, its JSON and the metrics.

use crate::catalog::Revision;
use crate::content::{Metrics, ReadFailure, SharedCacheStatus};
use crate::fs::readers::ProgramReads;
use crate::source::http::{DownloadLimit, HostTraffic};
use crate::source::websub::{Member, Subscriber};
use crate::sync::Stage;
use crate::sync::status::{HeldStatus, Refreshed};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::time::SystemTime;

/// A mount as it is now. The mount may have another version than the command that asks, and lack some fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The Source, without credentials.
    pub source: String,
    /// The mount point.
    pub directory: String,
    /// The process that serves it.
    pub process: u32,
    /// The version of resyncfs that serves it.
    pub version: String,
    /// The cache folder.
    pub cache_folder: String,
    /// The file of the log; `None`: standard error, of a service the journal.
    pub log: Option<String>,
    /// The time when the mount began.
    pub mounted: Timestamp,
    /// How far the first tree is, before the mount is there.
    pub starting: Option<Stage>,
    /// The revision that is shown; `None` where the catalog cannot be read.
    pub revision: Option<RevisionStatus>,
    /// How often since the mount began bytes arrived that are newer than the list and differ from it.
    pub unannounced: u64,
    /// How it is kept in step with its Source.
    pub sync: crate::sync::status::SyncStatus,
    /// Notifications from hubs, where hubs may deliver.
    pub notifications: Option<NotificationsStatus>,
    /// Reads and downloads since the mount began, and the cache.
    pub cache: Metrics,
    /// The bytes that may be downloaded in this run, where they are bounded (`max-download=`).
    pub max_download: Option<DownloadLimit>,
    /// The reason why the cache folder cannot be written, and since when; meanwhile files are read past it.
    pub cache_failure: Option<ErrorStatus>,
    /// The shared cache, where there is one.
    pub shared_cache: Option<SharedCacheStatus>,
    /// The hosts that were asked since the mount began, the most requests first.
    pub hosts: Vec<HostTraffic>,
    /// The reason why a host does not answer, or why a document is requested again now.
    pub unanswered: Option<String>,
    /// The counters of each minute of the last hours, the oldest first; the last one is of now.
    pub minutes: Vec<MinuteStatus>,
    /// The downloads under way, those that have come furthest first.
    pub downloads: Vec<DownloadStatus>,
    /// The latest failures, the newest first.
    pub errors: Vec<ErrorStatus>,
    /// The programs that have read, the most bytes first.
    pub programs: Vec<ProgramReads>,
    /// Programs for which nothing is downloaded (`deny=`).
    pub denied: Vec<String>,
    /// The address of the metrics (`metrics-listen=`).
    pub metrics: Option<String>,
}

/// Counters at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MinuteStatus {
    /// The time.
    pub time: Timestamp,
    /// Bytes that hosts had sent since the mount began.
    pub received_bytes: u64,
    /// Bytes that the cache folder took.
    pub cache_bytes: u64,
}

/// The revision that is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionStatus {
    /// Counts commits from 1.
    pub number: u64,
    /// The time when it was committed here.
    pub committed: Timestamp,
    /// The time that it speaks for.
    pub at: Option<Timestamp>,
    /// Files.
    pub files: u64,
    /// Folders, the root included.
    pub folders: u64,
    /// Sum of the published sizes.
    pub bytes: u64,
    /// Files without a published size.
    pub unsized_files: u64,
}

impl From<Revision> for RevisionStatus {
    fn from(revision: Revision) -> RevisionStatus {
        RevisionStatus {
            number: revision.number,
            committed: revision.committed.into(),
            at: revision.at.map(Timestamp::from),
            files: revision.totals.files,
            folders: revision.totals.folders,
            bytes: revision.totals.bytes,
            unsized_files: revision.totals.unsized_files,
        }
    }
}

/// The subscriptions at hubs, and the requests of hubs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationsStatus {
    /// The URL below which hubs deliver; the paths below it are known to the hubs alone.
    pub callback: String,
    /// The subscriptions.
    pub channels: Vec<SubscriptionStatus>,
    /// The requests that the listener received since the mount began, by kind.
    pub seen: BTreeMap<String, u64>,
}

/// One subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionStatus {
    /// The Capability List of the set.
    pub set: Option<String>,
    /// The topic.
    pub topic: String,
    /// The hub.
    pub hub: String,
    /// `kept`, `asked`, `active`, `failing`, `denied` or `left`.
    pub standing: String,
    /// The time when the hub stops delivering.
    pub lease_ends: Option<Timestamp>,
    /// Notifications since the mount began.
    pub deliveries: u64,
    /// The time when the last notification arrived.
    pub last_delivery: Option<Timestamp>,
}

impl From<&Subscriber> for NotificationsStatus {
    fn from(subscriber: &Subscriber) -> NotificationsStatus {
        NotificationsStatus {
            callback: subscriber.callback().to_string(),
            channels: subscriber.channels().into_iter().map(SubscriptionStatus::from).collect(),
            seen: subscriber.counts().into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
        }
    }
}

impl From<Member> for SubscriptionStatus {
    fn from(member: Member) -> SubscriptionStatus {
        let time = |time: SystemTime| Timestamp::try_from(time).ok();
        SubscriptionStatus {
            set: member.subject.set.map(|set| set.to_string()),
            topic: member.subject.topic.to_string(),
            hub: member.subject.hub.to_string(),
            standing: member.subscription.standing(SystemTime::now()).as_str().to_owned(),
            lease_ends: member.subscription.lease_ends().and_then(time),
            deliveries: member.deliveries,
            last_delivery: member.last_delivery.and_then(time),
        }
    }
}

/// A download under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownloadStatus {
    /// The resource.
    pub uri: String,
    /// Bytes that are here, without a gap.
    pub bytes: u64,
    /// The number of all, if it is known.
    pub of_bytes: Option<u64>,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorStatus {
    /// The time.
    pub time: Timestamp,
    /// The resource; `None`: a refresh, or the cache folder.
    pub uri: Option<String>,
    /// Why.
    pub why: String,
}

impl ErrorStatus {
    /// The latest failures, the newest first. What fails for one file again and again by one cause is one of them.
    pub(super) fn all(reads: &[ReadFailure], refreshes: &[(Timestamp, String)]) -> Vec<ErrorStatus> {
        let read = |failure: &ReadFailure| ErrorStatus {
            time: failure.time.into(),
            uri: Some(failure.uri.to_string()),
            why: failure.why.clone(),
        };
        let refresh = |(time, why): &(Timestamp, String)| ErrorStatus { time: *time, uri: None, why: why.clone() };
        let mut all: Vec<_> = reads.iter().map(read).chain(refreshes.iter().map(refresh)).collect();
        all.sort_by_key(|error| Reverse(error.time));
        let mut seen = HashSet::new();
        all.retain(|error| error.uri.is_none() || seen.insert((error.uri.clone(), error.why.clone())));
        all
    }
}

/// The answer to `POST /refresh`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshAnswer {
    /// The result of the refresh.
    pub refreshed: Refreshed,
    /// Deletions that are held back now.
    pub held: Option<HeldStatus>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_repeated_failure_of_one_file_is_listed_once() {
        let failure = |seconds, path: &str, why: &str| ReadFailure {
            time: (UNIX_EPOCH + Duration::from_secs(seconds)).into(),
            ino: crate::platform::ino::Ino(2),
            uri: crate::document::Uri::parse(&format!("http://h/{path}")).unwrap(),
            why: why.to_owned(),
        };
        let reads = [failure(1, "a", "x"), failure(2, "a", "x"), failure(2, "a", "y"), failure(2, "b", "x")];

        let listed =
            ErrorStatus::all(&reads, &[(Timestamp::UNIX_EPOCH, "x".into()), (Timestamp::UNIX_EPOCH, "x".into())]);

        assert_eq!(listed.iter().filter(|error| error.uri.is_some()).count(), 3);
        assert_eq!(listed.iter().filter(|error| error.uri.is_none()).count(), 2, "each refresh is one");
        assert!(listed.iter().all(|error| error.uri.is_none() || error.time.as_second() == 2), "the newest stays");
    }
}
