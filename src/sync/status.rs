//! What a running synchronizer tells of itself: plain values, for `resyncfs status` and for whoever asks the control socket.

use super::guard::Held;
use super::position::SetPosition;
use super::{Outcome, SyncError};
use crate::catalog::Committed;
use crate::causes::chain;
use crate::document::Timestamp;
use crate::source::Missing;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Failed refreshes remembered.
const FAILURES: usize = 20;

/// The state of a synchronizer as of its last step. Times are W3C datetimes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Number of the revision that is shown; `None` before the first.
    pub revision: Option<u64>,
    /// Its files.
    pub files: u64,
    /// The time that it speaks for, where the Source tells one.
    pub at: Option<String>,
    /// Since when a refresh is under way.
    #[serde(default)]
    pub looking_since: Option<String>,
    /// The last refresh that has ended.
    pub last_refresh: Option<Refreshed>,
    /// Refreshes that have failed since the last that did not.
    pub failures: u32,
    /// Refreshes that have ended since the mount began.
    #[serde(default)]
    pub refreshes: u64,
    /// Those of them that have failed.
    #[serde(default)]
    pub failed_refreshes: u64,
    /// The latest failed ones, the newest first.
    #[serde(default)]
    pub recent_failures: Vec<FailedRefresh>,
    /// When something is due next.
    pub next_poll: Option<String>,
    /// Whether every set has a notification channel that is alive, so that polling is rarer.
    pub channels_live: bool,
    /// The documents that are followed.
    pub documents: Vec<DocumentStatus>,
    /// The sets that are followed.
    pub sets: Vec<SetStatus>,
    /// What the tree lacks.
    #[serde(default)]
    pub missing: Vec<MissingStatus>,
    /// Deletions that are held back.
    pub held: Option<HeldStatus>,
    /// Deletions of what was never here, since the mount began.
    pub unknown_deletions: u64,
    /// Rules of the standard that documents read since the mount began break, each with how often and where the first was seen.
    pub deviations: Vec<DeviationStatus>,
}

/// A refresh that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refreshed {
    /// When it ended.
    pub ended: String,
    /// How long it took, in milliseconds.
    pub milliseconds: u64,
    /// What it did.
    pub outcome: RefreshOutcome,
}

/// A refresh that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedRefresh {
    /// When it ended.
    pub ended: String,
    /// Why it failed.
    pub why: String,
}

impl Status {
    /// A refresh has ended.
    pub(super) fn ended(&mut self, refreshed: Refreshed) {
        self.refreshes = self.refreshes.saturating_add(1);
        self.failures = match &refreshed.outcome {
            RefreshOutcome::Failed(why) => {
                self.failed_refreshes = self.failed_refreshes.saturating_add(1);
                self.recent_failures.truncate(FAILURES - 1);
                self.recent_failures.insert(0, FailedRefresh { ended: refreshed.ended.clone(), why: why.clone() });
                self.failures.saturating_add(1)
            }
            _ => 0,
        };
        self.last_refresh = Some(refreshed);
        self.looking_since = None;
    }
}

/// What a refresh did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RefreshOutcome {
    /// The Source says what the revision shows.
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

impl RefreshOutcome {
    /// The same after a commit of its own in which so many names went.
    pub fn after_deleting(self, before: u64) -> RefreshOutcome {
        match self {
            RefreshOutcome::Unchanged if before > 0 => {
                RefreshOutcome::Committed { created: 0, updated: 0, touched: 0, deleted: before }
            }
            RefreshOutcome::Committed { created, updated, touched, deleted } => {
                RefreshOutcome::Committed { created, updated, touched, deleted: deleted + before }
            }
            outcome => outcome,
        }
    }
}

/// A document that is followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentStatus {
    /// Where it lies.
    pub location: String,
    /// How often it is asked for, in seconds.
    pub interval: u64,
    /// When it was asked for last.
    pub asked: Option<String>,
    /// When it is due.
    pub due: Option<String>,
    /// What it answered.
    pub answer: Answer,
}

/// How a document answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Not asked yet.
    None,
    /// The same as before.
    Unchanged,
    /// It came whole: so many octets.
    Whole(u64),
    /// It cannot be had or read.
    Failed(String),
}

/// A set that is followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetStatus {
    /// Its number in the catalog.
    pub id: u32,
    /// Its Capability List; for a list that stands alone, the list.
    pub name: String,
    /// The time that its Resource Lists speak for.
    pub at: Option<String>,
    /// Changes are known up to this time.
    pub changes_until: Option<String>,
    /// Since when changes may be missing that nothing published tells of.
    pub gap_since: Option<String>,
    /// Deletions that nothing dates and that are not applied: their resources have not told yet whether they are gone, and
    /// are asked again.
    #[serde(default)]
    pub doubts: usize,
}

/// A part of the Source that the tree lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingStatus {
    /// The document or package.
    pub location: String,
    /// How many of its entries cannot be understood; 0 where all of it is missing.
    pub entries: u64,
    /// The answer, for a person.
    pub why: String,
}

/// Deletions that are held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldStatus {
    /// How many files.
    pub files: u64,
    /// Since when.
    pub since: String,
    /// Why.
    pub why: String,
}

/// A rule that the documents break.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviationStatus {
    /// The rule in a sentence.
    pub rule: String,
    /// The section of the standard; empty where the rule is a bound of this program.
    pub section: String,
    /// How often.
    pub count: u64,
    /// The document where it was seen first, or the path.
    pub location: String,
}

impl From<&Result<Outcome, SyncError>> for RefreshOutcome {
    fn from(outcome: &Result<Outcome, SyncError>) -> RefreshOutcome {
        match outcome {
            Ok(Outcome::Unchanged) => RefreshOutcome::Unchanged,
            Ok(Outcome::Committed(Committed { created, updated, touched, deleted, .. })) => {
                RefreshOutcome::Committed { created: *created, updated: *updated, touched: *touched, deleted: *deleted }
            }
            Err(cause) => RefreshOutcome::Failed(chain(cause)),
        }
    }
}

/// The status as it is shared: written by the synchronizer, read by whoever serves it.
#[derive(Clone, Debug, Default)]
pub struct SharedStatus(watch::Sender<Status>);

impl SharedStatus {
    /// A copy of what there is now.
    pub fn read(&self) -> Status {
        self.0.borrow().clone()
    }

    /// What there is now and whatever it becomes.
    pub fn changes(&self) -> watch::Receiver<Status> {
        self.0.subscribe()
    }

    /// A refresh begins.
    pub(super) fn begun(&self) {
        self.write(|status| status.looking_since = Some(Timestamp::now().to_string()));
    }

    /// Changes something.
    pub(super) fn write(&self, change: impl FnOnce(&mut Status)) {
        self.0.send_modify(change);
    }
}

impl From<&SetPosition> for SetStatus {
    fn from(set: &SetPosition) -> SetStatus {
        SetStatus {
            id: set.id().0,
            name: set.name().to_owned(),
            at: set.at().map(|at| at.to_string()),
            changes_until: set.changes_until().map(|until| until.to_string()),
            gap_since: set.gap_since().map(|since| since.to_string()),
            doubts: set.doubts(),
        }
    }
}

impl From<Missing> for MissingStatus {
    fn from(missing: Missing) -> MissingStatus {
        MissingStatus { location: missing.location.to_string(), entries: missing.entries, why: missing.why }
    }
}

impl From<&Held> for HeldStatus {
    fn from(held: &Held) -> HeldStatus {
        let since = Timestamp { seconds: held.since, nanos: 0 }.to_string();
        HeldStatus { files: held.files, since, why: held.why.clone() }
    }
}
