//! The state of a running synchronizer: plain values, for `resyncfs status` and the control socket.

use super::deletion_guard::HeldBack;
use super::deviations::SeenDeviations;
use super::state::{Position, SetPosition};
use super::{Outcome, SyncError, Synchronizer};
use crate::catalog::Committed;
use crate::document::Timestamp;
use crate::platform::error_chain::chain;
use crate::source::Missing;
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::Instant;

/// Failed refreshes remembered.
const FAILURES: usize = 20;

/// The state of a synchronizer as of its last step. Times are W3C datetimes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Number of the revision that is shown; `None` before the first.
    pub revision: Option<u64>,
    /// Its files.
    pub files: u64,
    /// The time that it speaks for, where the Source states one.
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
    /// It was downloaded: so many bytes, with all below it.
    Whole(u64),
    /// It is missing, cannot be reached or cannot be read.
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
    /// Since when changes may be missing that no published document has.
    pub gap_since: Option<String>,
    /// Undated deletions that are not applied: their resources have not answered yet whether they are gone, and are asked again.
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

/// The status, written by the synchronizer alone.
#[derive(Clone, Debug, Default)]
pub struct SharedStatus(watch::Sender<Status>);

impl SharedStatus {
    /// A copy of what there is now.
    pub fn read(&self) -> Status {
        self.0.borrow().clone()
    }

    /// What there is now and each later state.
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

impl From<&HeldBack> for HeldStatus {
    fn from(held: &HeldBack) -> HeldStatus {
        let since = Timestamp { seconds: held.since, nanos: 0 }.to_string();
        HeldStatus { files: held.files, since, why: held.why.clone() }
    }
}

/// Each rule that documents break, in the rules' order, then the paths that too many URIs share.
fn broken(seen: &SeenDeviations) -> Vec<DeviationStatus> {
    let rules = seen.rules().into_iter().map(|(rule, (count, location))| DeviationStatus {
        rule: rule.sentence().to_owned(),
        section: rule.section().to_owned(),
        count,
        location: location.to_string(),
    });
    let left_out = seen.left_out().into_iter().map(|(path, count)| DeviationStatus {
        rule: "Only a few URIs have the same path. Of more, only the first are shown.".to_owned(),
        section: String::new(),
        count,
        location: path,
    });
    rules.chain(left_out).collect()
}

impl Synchronizer {
    /// Writes down how a refresh went.
    pub(super) fn report(&self, outcome: &Result<Outcome, SyncError>, took: Duration) {
        let (now, real_now) = (Instant::now(), SystemTime::now());
        // Instants are no times of day: their distance from now is.
        let time = |instant: Instant| {
            let time = match instant.checked_duration_since(now) {
                Some(ahead) => real_now + ahead,
                None => real_now - (now - instant),
            };
            Timestamp::from(time).to_string()
        };
        let documents = self.schedule.documents().map(|(location, plan)| DocumentStatus {
            location: location.to_string(),
            interval: plan.interval.as_secs(),
            asked: plan.asked.map(time),
            due: Some(time(plan.due)),
            answer: plan.answer.clone(),
        });
        let documents: Vec<_> = documents.collect();
        let discovered = self.discovered.iter().flat_map(|(source, _)| &source.deviations);
        let of_source = discovered.clone().map(|it| it.location.clone());
        self.deviations.retain(self.position.iter().flat_map(Position::locations).chain(of_source));
        discovered.for_each(|it| self.deviations.note(&it.location, &it.deviations));
        let revision = self.catalog.revision().unwrap_or_default();
        let lacking = self.position.iter().flat_map(Position::lacking).map(MissingStatus::from).collect();
        let (sets, held) = match &self.position {
            Some(position) => {
                let mut guard = position.guard.clone();
                // The commit of this position may have settled some of those that were held back when it was written.
                match self.catalog.snapshot().and_then(|snapshot| snapshot.held_count()) {
                    Ok(count) => guard.recount(count, 0),
                    Err(cause) => tracing::warn!("deletions that are held back cannot be counted: {}", chain(&cause)),
                }
                (position.sets().map(SetStatus::from).collect(), guard.held().map(HeldStatus::from))
            }
            None => (Vec::new(), None),
        };
        self.status.write(|status| {
            status.revision = revision.map(|revision| revision.number);
            status.files = revision.map_or(0, |revision| revision.totals.files);
            status.at = revision.and_then(|revision| revision.at).map(|at| at.to_string());
            let ended = Timestamp::from(real_now).to_string();
            let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            status.ended(Refreshed { ended, milliseconds, outcome: outcome.into() });
            status.next_poll = self.schedule.next().map(time);
            status.documents = documents;
            status.sets = sets;
            status.missing = lacking;
            status.held = held;
            status.deviations = broken(&self.deviations);
        });
    }
}
