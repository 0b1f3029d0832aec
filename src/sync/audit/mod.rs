//! Audit (section 5.2 of the standard): does the tree show what the Source lists?
//!
//! The Source's lists and changes are read again, by the rules of the mount, into another catalog. Both catalogs are walked in
//! batches ([`AuditWalk`]). Differences of a batch are sent, and its other files are checked as deep as requested, before the
//! next batch is read. No revision is held between two batches, however slowly the events are read.

mod compare;
mod event;
#[cfg(test)]
mod tests;

pub use compare::Versions;
pub use event::{AuditEvent, AuditFinding, Difference, Progress, ShownFile, Summary};

use super::position::Position;
use super::status::{MissingStatus, PollAnswer};
use super::{Stage, SyncConfig, SyncError, Synchronizer};
use crate::catalog::Catalog;
use crate::content::store::free_space;
use crate::content::verify::{self, Asked, Checked};
use crate::content::{Content, FetchSpec};
use crate::platform::error_chain::chain;
use crate::platform::free_space::SpaceGuard;
use crate::source::DocumentLocation;
use crate::source::documents::DocumentCache;
use crate::source::http::Client;
use crate::source::zip::{PackageConfig, Packages};
use compare::{AuditWalk, Compared};
use futures_util::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tracing::Instrument;

/// Files that are checked at once; the client bounds the requests to one host.
const CHECKED_AT_ONCE: usize = 16;

/// Time between two reports of progress.
const PROGRESS_STEP: Duration = Duration::from_millis(500);

/// The checks in addition to the lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Depth {
    /// Every cached object against its digest.
    pub content: bool,
    /// Every resource at the Source.
    pub fetch: bool,
}

/// The number of files, and of the bytes of them that are requested, where it is known.
type Amount = (u64, Option<u64>);

/// Takes the events. An audit ends when the receiver is dropped.
pub type Events = mpsc::Sender<AuditEvent>;

/// The present state of the Source.
pub struct ListedSource {
    /// The tree that a mount would show.
    pub catalog: Arc<Catalog>,
    /// The packages that its dumps were read from.
    pub packages: Packages,
    /// The documents that it was made of.
    position: Option<Position>,
    /// Documents that could not be read whole, each with the cause.
    failed: Vec<(DocumentLocation, String)>,
}

/// One tree to be audited.
#[derive(Clone)]
pub struct Audit {
    /// The Source of the tree; `None` for a tree that was made for this audit and has nothing to be compared with.
    pub config: Option<SyncConfig>,
    /// Requests from the Source, as the mount does.
    pub client: Client,
    /// The tree.
    pub catalog: Arc<Catalog>,
    /// The cache of its bytes; `None` for a tree without one.
    pub content: Option<Arc<Content>>,
    /// The packages that a tree without a cache was made of.
    pub packages: Option<Packages>,
    /// The tree's versions.
    pub versions: Versions,
    /// A folder for the audit's own files, with room for another catalog.
    pub scratch: PathBuf,
}

/// Reads the present lists and changes of the Source into another catalog, in `folder`.
pub async fn listed(
    config: &SyncConfig,
    client: &Client,
    folder: &Path,
    progress: Arc<dyn Fn(Stage) + Send + Sync>,
) -> Result<ListedSource, SyncError> {
    let catalog = Catalog::open(&folder.join("catalog"), "an audit")?;
    let catalog = Arc::new(catalog.leaving(SpaceGuard::new(config.reserve, free_space)));
    let spool = DocumentCache::open(&folder.join("spool"))?;
    let usual = PackageConfig::new(folder.join("packages"));
    let packages = PackageConfig { reserve: config.reserve, free_space, documents: config.limits, ..usual };
    let packages = Packages::open(client.clone(), packages).map_err(SyncError::Package)?;
    let mut synchronizer = Synchronizer::new(config.clone(), client.clone(), catalog.clone(), spool, packages.clone());
    synchronizer.tuning.packages = (usize::MAX, Duration::MAX);
    // Its log lines are not about the tree that is shown.
    synchronizer.refresh(progress).instrument(tracing::info_span!("audit")).await?;
    let failed = synchronizer.fetch.schedule.documents().filter_map(|(location, plan)| match &plan.answer {
        PollAnswer::Failed(why) => Some((location.clone(), why.clone())),
        _ => None,
    });
    let failed = failed.collect();
    Ok(ListedSource { catalog, packages, position: synchronizer.position()?, failed })
}

impl Audit {
    /// Makes the audit: sends differences as they are found, then the summary or the failure.
    pub async fn run(&self, depth: Depth, events: Events) {
        send_to_the_end(self.audit(depth, &events), &events).await;
    }

    /// Sends every file of the tree, without a request; then an empty summary, or the failure.
    pub async fn list(&self, events: Events) {
        send_to_the_end(self.list_files(&events), &events).await;
    }

    /// One thread walks and sends, and waits there for a slow receiver: a task for each batch could start a thread each.
    async fn list_files(&self, events: &Events) -> Result<Summary, SyncError> {
        let (audit, events) = (self.clone(), events.clone());
        let listing = spawn_blocking(move || {
            let mut walk = AuditWalk::new(audit.catalog.clone(), None, Some(audit.versions.clone()))?;
            while let Some(batch) = walk.next()? {
                let files = batch.into_iter().filter_map(|it| it.version.map(|version| audit.shown(it.path, &version)));
                for file in files {
                    if events.blocking_send(AuditEvent::File(file)).is_err() {
                        return Ok(());
                    }
                }
            }
            Ok::<(), SyncError>(())
        });
        listing.await??;
        Ok(Summary::default())
    }

    fn shown(&self, path: String, wanted: &FetchSpec) -> ShownFile {
        let learnt = self.content.as_ref().and_then(|content| content.known_size(wanted.ino));
        ShownFile {
            path,
            uri: wanted.uri.to_string(),
            length: learnt.or(wanted.length.filter(|_| wanted.encoding.is_none())),
            lastmod: wanted.lastmod.map(|lastmod| lastmod.to_string()),
            media_type: wanted.media_type.as_deref().map(str::to_owned),
            hashes: verify::digests_shown(wanted).iter().map(|digest| digest.to_string()).collect(),
        }
    }

    async fn audit(&self, depth: Depth, events: &Events) -> Result<Summary, SyncError> {
        let listed = match &self.config {
            Some(config) => {
                let sender = events.clone();
                let stages = move |stage| progress(&sender, Progress::Lists(stage));
                Some(listed(config, &self.client, &self.scratch, Arc::new(stages)).await?)
            }
            None => None,
        };
        self.compare(depth, listed, events).await
    }

    /// Compares the tree with what is `listed`, batch by batch.
    async fn compare(&self, depth: Depth, listed: Option<ListedSource>, events: &Events) -> Result<Summary, SyncError> {
        let audit = self.clone();
        let (mut walk, mut summary, (of, of_bytes)) = spawn_blocking(move || audit.begin(depth, listed)).await??;
        let received = AtomicU64::new(0);
        let mut steps = tokio::time::interval_at(tokio::time::Instant::now() + PROGRESS_STEP, PROGRESS_STEP);
        while let Some((rest, batch)) = next(walk).await? {
            walk = rest;
            let mut checks =
                stream::iter(batch).map(|it| self.check(depth, it, &received)).buffer_unordered(CHECKED_AT_ONCE);
            loop {
                let check = tokio::select! {
                    check = checks.next() => check,
                    _ = steps.tick() => {
                        let bytes = received.load(Ordering::Relaxed);
                        let compared = summary.files;
                        let pace = depth.fetch.then(|| self.client.pace(of.saturating_sub(compared), false)).flatten();
                        progress(events, Progress::Files { compared, of, bytes, of_bytes, pace });
                        continue;
                    }
                };
                let Some(check) = check else { break };
                summary.files += 1;
                summary.objects_read += u64::from(check.read);
                summary.requested += u64::from(check.requested);
                summary.unverifiable += u64::from(check.unverifiable);
                if let Some(finding) = check.finding {
                    summary.count(finding.difference);
                    send(events, AuditEvent::Finding(finding)).await;
                }
            }
        }
        summary.in_sync = summary.files - summary.differences();
        Ok(summary)
    }

    /// The walk, the summary of no file, how many files there are, and how many bytes are requested.
    fn begin(&self, depth: Depth, listed: Option<ListedSource>) -> Result<(AuditWalk, Summary, Amount), SyncError> {
        let (mut summary, mut files) = (Summary::default(), 0);
        let bytes = {
            let shown = self.catalog.snapshot()?;
            let of_lists = listed.as_ref().map(|listed| listed.catalog.snapshot()).transpose()?;
            let mut newest = shown.position()?.as_deref().and_then(Position::decode);
            let mut gaps = vec![newest.as_ref().and_then(Position::missing_since)];
            if let Some(ListedSource { position: Some(listed), failed, .. }) = &listed {
                newest.iter().try_for_each(|shown| is_comparable(shown, listed, failed))?;
                newest = Some(listed.clone());
                gaps.push(listed.missing_since());
            }
            summary.gap_since = gaps.into_iter().flatten().min().map(|since| since.to_string());
            summary.at = of_lists.as_ref().unwrap_or(&shown).at()?.map(|at| at.to_string());
            summary.unread = newest.iter().flat_map(Position::lacking).cloned().map(MissingStatus::from).collect();
            let totals = shown.revision()?.map(|revision| revision.totals).unwrap_or_default();
            for tree in [Some(&shown), of_lists.as_ref()].into_iter().flatten() {
                files = files.max(tree.revision()?.map_or(0, |revision| revision.totals.files));
            }
            (depth.fetch && totals.unsized_files == 0).then_some(totals.bytes)
        };
        let has_failures = self.content.as_ref().is_some_and(|content| !content.metrics().failures.is_empty());
        let versions = (depth.content || depth.fetch || has_failures).then(|| self.versions.clone());
        Ok((
            AuditWalk::new(self.catalog.clone(), listed.map(|listed| listed.catalog), versions)?,
            summary,
            (files, bytes),
        ))
    }

    /// Checks the cached bytes of a file, and what the Source serves of it. One that is not requested must not be known to fail.
    async fn check(&self, depth: Depth, compared: Compared, received: &AtomicU64) -> Check {
        let Compared { path, version, finding } = compared;
        let mut check = Check { finding, ..Check::default() };
        let Some(version) = version else { return check };
        let found = |difference, what| Some(AuditFinding::new(difference, &path, &version.uri, what));
        if let (true, Some(content)) = (depth.content, self.content.clone()) {
            let wanted = version.clone();
            let checked = spawn_blocking(move || content.check(&wanted)).await;
            check.read = matches!(checked, Ok(Checked::Intact(_) | Checked::Corrupt(_)));
            check.finding = match checked {
                Ok(Checked::Absent | Checked::Intact(_)) => None,
                Ok(Checked::Corrupt(what)) => found(Difference::Corrupt, what),
                Ok(Checked::Failed(what)) => found(Difference::Failed, what),
                Err(cause) => found(Difference::Failed, cause.to_string()),
            };
        }
        if check.finding.is_some() {
            return check;
        }
        // The bytes that are served today prove nothing about a version of an earlier time.
        if !depth.fetch || version.is_past() {
            let failed = self.content.as_ref().and_then(|content| content.failure(version.ino));
            check.finding = failed.and_then(|why| found(Difference::Failed, why));
            return check;
        }
        check.requested = true;
        match self.ask(&version, received).await {
            Asked::Same => {}
            Asked::There => check.unverifiable = true,
            Asked::Changed(what) => check.finding = found(Difference::Changed, what),
            Asked::Gone(what) => check.finding = found(Difference::Gone, what),
            Asked::Failed(what) => check.finding = found(Difference::Failed, what),
        }
        check
    }

    async fn ask(&self, wanted: &FetchSpec, received: &AtomicU64) -> Asked {
        let patience = self.client.longest_silence();
        match &self.content {
            Some(content) => content.ask(wanted, patience, received).await,
            None => {
                let source = (&self.client, self.packages.as_ref());
                verify::ask(source, wanted, &verify::published(wanted), patience, received).await
            }
        }
    }
}

/// The result for one file.
#[derive(Debug, Default)]
struct Check {
    read: bool,
    requested: bool,
    unverifiable: bool,
    finding: Option<AuditFinding>,
}

/// The next batch of a walk, with the walk behind it; `None` at its end.
async fn next(mut walk: AuditWalk) -> Result<Option<(AuditWalk, Vec<Compared>)>, SyncError> {
    let batch = spawn_blocking(move || walk.next().map(|batch| batch.map(|batch| (walk, batch))));
    Ok(batch.await??)
}

/// Sends the result of `work` as the last event. Ends `work` when the receiver of the events is dropped.
async fn send_to_the_end(work: impl Future<Output = Result<Summary, SyncError>>, events: &Events) {
    let last = tokio::select! {
        () = events.closed() => return,
        outcome = work => match outcome {
            Ok(summary) => AuditEvent::Summary(summary),
            Err(cause) if cause.is_of_source() => AuditEvent::Undecided(chain(&cause)),
            Err(cause) => AuditEvent::Failure(chain(&cause)),
        },
    };
    send(events, last).await;
}

/// Sends an event. An error says that the receiver was dropped, and [`send_to_the_end`] notices that.
async fn send(events: &Events, event: AuditEvent) {
    let _ = events.send(event).await;
}

/// Sends the progress, unless there is no room for it now: a later event replaces it.
fn progress(events: &Events, progress: Progress) {
    let _ = events.try_send(AuditEvent::Progress(progress));
}

/// Fails unless `listed` holds all that `shown` was made of.
fn is_comparable(shown: &Position, listed: &Position, failed: &[(DocumentLocation, String)]) -> Result<(), SyncError> {
    if let Some(location) = listed.lacks_beyond(shown) {
        let why = format!("{location} cannot be read now: it is unknown whether the files that it lists are gone");
        return Err(SyncError::NothingToShow(why));
    }
    if let Some((_, why)) = failed.iter().find(|(root, _)| shown.has_read(root)) {
        let what = "the tree holds changes that its lists do not, and the Source's changes cannot be read now";
        return Err(SyncError::NothingToShow(format!("{what}: {why}")));
    }
    let (Some(since), None) = (listed.missing_since(), shown.missing_since()) else { return Ok(()) };
    Err(SyncError::NothingToShow(format!(
        "the Source no longer publishes the changes since {since}, and the tree holds them: \
         it can be compared when the Source has a newer list"
    )))
}
