//! The state of a running synchronizer: plain values, for `resyncfs status` and the control socket.

use super::deviations::SeenDeviations;
use super::error::FailureKind;
use super::position::{Position, SetPosition};
use super::{RefreshResult, SyncError, Synchronizer};
use crate::catalog::Committed;
use crate::document;
use crate::platform::error_chain::chain;
use crate::source::Missing;
use crate::source::http::silent_host;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::time::Duration;
use tokio::time::Instant;

/// Failed refreshes remembered.
const FAILURES: usize = 20;

/// The state of a synchronizer after its last step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SyncStatus {
    /// The beginning of the refresh that is under way.
    pub refreshing_since: Option<Timestamp>,
    /// The last refresh that has ended.
    pub last_refresh: Option<Refreshed>,
    /// Refreshes that have failed since the last success.
    pub failures: u32,
    /// Refreshes that have ended since the mount began.
    pub refreshes: u64,
    /// The failed ones of them.
    pub failed_refreshes: u64,
    /// Ends and causes of the latest failed ones, the newest first.
    #[serde(skip)]
    pub recent_failures: Vec<(Timestamp, String)>,
    /// The time of the next refresh.
    pub next_poll: Option<Timestamp>,
    /// True if every set has a notification channel that is alive: polling is rarer.
    pub channels_live: bool,
    /// The documents that are polled.
    pub documents: Vec<DocumentStatus>,
    /// The sets of the Source.
    pub sets: Vec<SetStatus>,
    /// Parts of the Source that the tree lacks.
    pub missing: Vec<MissingStatus>,
    /// Deletions that are held back.
    pub held: Option<HeldStatus>,
    /// Deletions of resources that were never listed, since the mount began.
    pub unknown_deletions: u64,
    /// Changes that the journal keeps until a list speaks for a later time.
    pub journaled: u64,
    /// Rules of the standard that documents break, since the mount began.
    pub deviations: Vec<DeviationStatus>,
    /// Landing pages, where these are followed.
    pub pages: Option<PagesStatus>,
}

/// Landing pages whose items are followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagesStatus {
    /// Pages that were read.
    pub read: u64,
    /// All pages that are known.
    pub all: u64,
    /// Pages that fail for now.
    pub failed: u64,
}

/// A refresh that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refreshed {
    /// Its end.
    pub ended: Timestamp,
    /// Its duration in milliseconds.
    pub milliseconds: u64,
    /// Its outcome.
    pub outcome: RefreshOutcome,
    /// Documents that failed meanwhile.
    #[serde(default)]
    pub failed: Vec<FailedDocument>,
}

impl Refreshed {
    /// The causes of all documents that failed, that of a host which does not answer once; `None` where none did.
    pub fn why(&self) -> Option<String> {
        let mut hosts = HashSet::new();
        let all = self.failed.iter().map(|failed| failed.why.as_str());
        let all: Vec<&str> = all.filter(|why| silent_host(why).is_none_or(|host| hosts.insert(host))).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// A document that failed while the others were read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedDocument {
    /// The cause, for a person; it names the document.
    pub why: String,
    /// The meaning of the cause.
    pub kind: FailureKind,
}

impl FailedDocument {
    /// A document that fails by `cause`.
    pub(super) fn of(cause: &SyncError) -> FailedDocument {
        FailedDocument { why: chain(cause.of_refresh()), kind: cause.kind() }
    }
}

impl SyncStatus {
    /// Counts a refresh that has ended.
    pub(super) fn ended(&mut self, refreshed: Refreshed) {
        self.refreshes = self.refreshes.saturating_add(1);
        self.failures = match &refreshed.outcome {
            RefreshOutcome::Failed(why) => {
                self.failed_refreshes = self.failed_refreshes.saturating_add(1);
                self.recent_failures.truncate(FAILURES - 1);
                self.recent_failures.insert(0, (refreshed.ended, why.clone()));
                self.failures.saturating_add(1)
            }
            _ => 0,
        };
        self.last_refresh = Some(refreshed);
        self.refreshing_since = None;
    }
}

/// The outcome of a refresh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefreshOutcome {
    /// The tree shows what the Source lists.
    Unchanged,
    /// A new revision, or the same tree with a new position.
    Committed {
        /// Names that did not exist before.
        created: u64,
        /// Names with new content.
        updated: u64,
        /// Same content, other metadata.
        touched: u64,
        /// Names gone.
        deleted: u64,
    },
    /// Nothing has changed because of this.
    Failed(String),
}

/// A document that is polled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentStatus {
    /// Its address.
    pub location: String,
    /// The interval of its polls, in seconds.
    #[serde(rename = "interval_s")]
    pub interval: u64,
    /// The time of its last poll.
    pub asked: Option<Timestamp>,
    /// The time of its next poll.
    pub due: Option<Timestamp>,
    /// Its answer.
    pub answer: PollAnswer,
}

/// The answer of a document at its last poll.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PollAnswer {
    /// None: the document was not polled.
    None,
    /// An unchanged document.
    Unchanged,
    /// A download of so many bytes, the documents below it included.
    Downloaded(u64),
    /// A failure: the document is missing, cannot be reached or cannot be read.
    Failed(String),
}

/// A set of the Source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetStatus {
    /// Its number in the catalog.
    pub id: u32,
    /// The Capability List; for a list that stands alone, the list.
    pub name: String,
    /// The time that its Resource Lists speak for.
    pub at: Option<Timestamp>,
    /// Changes are known up to this time.
    pub changes_until: Option<Timestamp>,
    /// The time since when changes may be missing that no published document has.
    pub gap_since: Option<Timestamp>,
    /// Undated deletions that are not applied until a request for the resource answers that it is gone.
    #[serde(default)]
    pub undated_deletions: usize,
}

/// A part of the Source that the tree lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingStatus {
    /// The document or package.
    pub location: String,
    /// The number of its entries that cannot be understood; 0 where all of it is missing.
    pub entries: u64,
    /// The answer, for a person.
    pub why: String,
}

/// Deletions that are held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStatus {
    /// The number of files.
    pub files: u64,
    /// The time since when they are held.
    pub since: Timestamp,
    /// The reason.
    pub why: String,
}

/// A rule that the documents break.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviationStatus {
    /// The deviation.
    pub rule: String,
    /// The section of the standard; empty where the rule is a bound of this program.
    pub section: String,
    /// The number of breaches.
    pub count: u64,
    /// The first of the documents that break it, or the path.
    pub location: String,
}

impl From<&Result<RefreshResult, SyncError>> for RefreshOutcome {
    fn from(outcome: &Result<RefreshResult, SyncError>) -> RefreshOutcome {
        match outcome {
            Ok(RefreshResult::Unchanged) => RefreshOutcome::Unchanged,
            Ok(RefreshResult::Committed(Committed { created, updated, touched, deleted, .. })) => {
                RefreshOutcome::Committed { created: *created, updated: *updated, touched: *touched, deleted: *deleted }
            }
            Err(cause) => RefreshOutcome::Failed(chain(cause.of_refresh())),
        }
    }
}

impl From<&SetPosition> for SetStatus {
    fn from(set: &SetPosition) -> SetStatus {
        SetStatus {
            id: set.id.0,
            name: set.name.clone(),
            at: set.at.map(Timestamp::from),
            changes_until: set.changes_until().map(Timestamp::from),
            gap_since: set.gap_since().map(Timestamp::from),
            undated_deletions: set.doubts(),
        }
    }
}

impl From<Missing> for MissingStatus {
    fn from(missing: Missing) -> MissingStatus {
        MissingStatus { location: missing.location.to_string(), entries: missing.entries, why: missing.why }
    }
}

/// Each rule that documents break, in the rules' order, then the paths that too many URIs share.
fn broken(seen: &SeenDeviations) -> Vec<DeviationStatus> {
    let row = |rule: &str, section: &str, count, location| {
        let (rule, section) = (rule.to_owned(), section.to_owned());
        DeviationStatus { rule, section, count, location }
    };
    let rules = seen.rules().into_iter();
    let rules = rules.map(|(rule, (count, document))| row(rule.name(), rule.section(), count, document.to_string()));
    let shared = "entries that are not shown, because too many URIs have the same path";
    let left_out = seen.left_out().into_iter().map(|(path, count)| row(shared, "", count, path));
    rules.chain(left_out).collect()
}

impl Synchronizer {
    /// Notes the outcome of a refresh and the state after it.
    pub(super) fn report(&self, outcome: &Result<RefreshResult, SyncError>, took: Duration) {
        let (now, ended) = (Instant::now(), Timestamp::now());
        // An instant has no time of day, only a distance from now.
        let time = |instant: Instant| match instant.checked_duration_since(now) {
            Some(ahead) => ended.saturating_add(ahead).unwrap_or(Timestamp::MAX),
            None => ended.saturating_sub(now - instant).unwrap_or(Timestamp::MIN),
        };
        let due = |instant: Instant| Some(time(instant)).filter(|_| !self.is_idle());
        let documents = self.fetch.schedule.documents().map(|(location, plan)| DocumentStatus {
            location: location.to_string(),
            interval: plan.interval.as_secs(),
            asked: plan.asked.map(time),
            due: due(plan.due),
            answer: plan.answer.clone(),
        });
        let discovered = self.discovery.found.iter().flat_map(|(source, _)| &source.deviations);
        let of_source = discovered.clone().map(|it| it.location.clone());
        self.fetch.spool.deviations.retain(self.writer.position.iter().flat_map(Position::locations).chain(of_source));
        discovered.for_each(|it| self.fetch.spool.deviations.note(&it.location, &it.deviations, None));
        let (held, journaled) = self.held();
        self.status.send_modify(|status| {
            status.ended(self.refreshed(outcome.into(), took));
            status.journaled = journaled;
            status.next_poll = self.fetch.schedule.next().and_then(due);
            status.documents = documents.collect();
            status.sets = self.writer.position.iter().flat_map(Position::sets).map(SetStatus::from).collect();
            status.missing =
                self.writer.position.iter().flat_map(Position::lacking).cloned().map(MissingStatus::from).collect();
            status.held = held;
            status.deviations = broken(&self.fetch.spool.deviations);
        });
    }

    /// A refresh that has ended now.
    pub(super) fn refreshed(&self, outcome: RefreshOutcome, took: Duration) -> Refreshed {
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        Refreshed { ended: Timestamp::now(), milliseconds, outcome, failed: self.current.failed.clone() }
    }

    /// The deletions that are held back, and the number of changes that the journal keeps.
    pub(super) fn held(&self) -> (Option<HeldStatus>, u64) {
        let counted = self.catalog.snapshot().and_then(|it| Ok((it.held_count()?, it.journal_count()?)));
        let counted = counted.inspect_err(|cause| {
            tracing::warn!("the unconfirmed deletions and the journal cannot be counted: {}", chain(cause));
        });
        let (files, journaled) = counted.unwrap_or_default();
        let held = self.writer.position.iter().filter(|_| files > 0).find_map(|position| {
            let held = position.guard.held()?;
            let since = document::Timestamp { seconds: held.since, nanos: 0 }.into();
            Some(HeldStatus { files, since, why: held.why.clone() })
        });
        (held, journaled)
    }
}
