//! Audit (section 5.2 of the standard): is what is shown what the Source has?
//!
//! What the Source has is what a new mount would show: its lists, asked for anew, brought forward by its changes, chosen from
//! and named as the mount does, in a catalog of the audit's own that is dropped behind it. That one and the mount's are walked together
//! ([`compare`]). Whatever takes long, telling of what differs to somebody who reads slowly, reading every cached object
//! (`content`) or asking for every resource (`fetch`), comes after that: what was found, and the list of what is still to be
//! looked at, lie in files, so that no revision is held meanwhile.

pub mod compare;
mod findings;
mod pending;
#[cfg(test)]
mod tests;

use super::position::Position;
use super::status::MissingStatus;
use super::{Stage, SyncConfig, SyncError, Synchronizer, Unheard};
use crate::catalog::{Catalog, CatalogError, Snapshot};
use crate::causes::chain;
use crate::content::store::free_space;
use crate::content::verify::{self, Asked, Checked};
use crate::content::{Content, FetchSpec};
use crate::document::Timestamp;
use crate::room::Room;
use crate::source::DocumentLocation;
use crate::source::documents::DocumentCache;
use crate::source::http::Client;
use crate::source::zip::{PackageConfig, Packages};
use compare::{Compared, Said};
use findings::Findings;
use fuser::INodeNo;
use futures_util::{StreamExt, stream};
use pending::{Pending, Version};
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::mpsc;
use tracing::Instrument;

/// Resources that are asked for at once; the client bounds what one host is asked.
const ASKED_AT_ONCE: usize = 16;

/// Files between two reports of progress.
const PROGRESS_STEP: u64 = 1000;

/// What is audited beside the lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Depth {
    /// Every cached object against its digest.
    pub content: bool,
    /// Every resource at the Source.
    pub fetch: bool,
}

/// How a file is not what the Source has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Difference {
    /// It is listed and not in the tree.
    Missing,
    /// It is in the tree and not listed.
    Extra,
    /// It is listed, or served, as other content.
    Changed,
    /// The bytes kept here are not those that are published.
    Corrupt,
    /// It is listed, and the Source says that it is not there.
    Gone,
    /// The Source did not serve it: nobody can tell.
    Failed,
}

/// One file that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// In which way.
    pub difference: Difference,
    /// Its path in the tree, or where it would be.
    pub path: String,
    /// Its resource.
    pub uri: String,
    /// What differs, for a person.
    pub what: String,
}

/// A file as its tree shows it, for fixity runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Its path in the tree.
    pub path: String,
    /// Its resource.
    pub uri: String,
    /// Octets, where that is published or learnt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
    /// `lastmod`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lastmod: Option<String>,
    /// `type`
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    /// The published digests of what a read returns, as `ALGORITHM:HEX`, strongest first.
    pub hashes: Vec<String>,
}

/// What an audit came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Files looked at, those that are missing included.
    pub files: u64,
    /// Files of which nothing is said.
    pub in_sync: u64,
    /// See [`Difference`].
    pub missing: u64,
    /// See [`Difference`].
    pub extra: u64,
    /// See [`Difference`].
    pub changed: u64,
    /// See [`Difference`].
    pub corrupt: u64,
    /// See [`Difference`].
    pub gone: u64,
    /// See [`Difference`].
    pub failed: u64,
    /// Objects that were here and read.
    pub objects_read: u64,
    /// Resources that were asked for.
    pub asked: u64,
    /// Of these, served, and neither digest nor length is published that they could be held to.
    pub unvouched: u64,
    /// The time that the Source's lists speak for.
    pub at: Option<String>,
    /// What keeps absence from the lists from speaking: parts of the Source that are missing, and where something is extra the
    /// lists with entries that cannot be understood.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<MissingStatus>,
}

/// What an audit tells while it runs; the last is a summary, a failure, or that nothing can be told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// Something is not as it should be.
    Finding(Finding),
    /// A file of the tree, where these were asked for.
    File(Shown),
    /// How far it is, for a person.
    Progress(String),
    /// All was looked at.
    Summary(Summary),
    /// What the Source says does not suffice to tell what differs: why.
    Unjudged(String),
    /// It could not go on: why.
    Failure(String),
}

/// Where events go. Whoever drops the other end ends the audit.
pub type Events = mpsc::Sender<Event>;

/// Why an audit cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The Source's lists cannot be had.
    #[error("the Source's lists cannot be read anew")]
    Source(#[from] SyncError),
    /// Part of what the Source lists cannot be had, and was not missing when the tree was made: what is extra cannot be told.
    #[error("the Source's lists are incomplete now, since {location} cannot be read: what is gone cannot be told")]
    Incomplete {
        /// Which part.
        location: DocumentLocation,
    },
    /// Changes cannot be had that the tree was brought forward by.
    #[error(
        "the Source's changes cannot be read now, and the tree holds some that its lists do not: what differs cannot be told: {why}"
    )]
    Unheard {
        /// Which, and why.
        why: String,
    },
    /// Changes are not published any more that the tree was brought forward by.
    #[error(
        "the Source tells no more what changed since {since}, which the tree was told: what differs cannot be told before it has a newer list"
    )]
    Forgotten {
        /// Since when they may be missing.
        since: Timestamp,
    },
    /// A catalog does not answer.
    #[error("the catalog does not answer")]
    Catalog(#[from] CatalogError),
    /// A file of the audit's own cannot be written or read.
    #[error("{path}", path = .path.display())]
    Scratch {
        /// Which.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: io::Error,
    },
    /// A thread of this program died.
    #[error("a worker ended early")]
    Worker(#[from] tokio::task::JoinError),
    /// Nobody wants to know any more.
    #[error("the audit was left before its end")]
    Left,
}

impl AuditError {
    /// Whether it is by what the Source says, or does not, that nothing can be told.
    pub fn is_of_source(&self) -> bool {
        match self {
            AuditError::Source(cause) => cause.is_of_source(),
            AuditError::Incomplete { .. } | AuditError::Unheard { .. } | AuditError::Forgotten { .. } => true,
            AuditError::Catalog(_) | AuditError::Scratch { .. } | AuditError::Worker(_) | AuditError::Left => false,
        }
    }
}

/// What the Source has now.
pub struct Listed {
    /// As a mount would show it.
    pub catalog: Arc<Catalog>,
    /// Through which its dumps were read.
    pub packages: Option<Packages>,
    /// Changes that could not be had.
    unheard: Vec<Unheard>,
}

/// Finds the version behind an inode as the tree shows it; `None` where there is no such file any more.
pub type Versions = Arc<dyn Fn(&Snapshot<'_>, INodeNo) -> Result<Option<FetchSpec>, CatalogError> + Send + Sync>;

/// One tree to be audited.
#[derive(Clone)]
pub struct Audit {
    /// What the tree was made of; `None` for one that was made for this audit, so that there is nothing to compare it with.
    pub config: Option<SyncConfig>,
    /// Asks the Source, as the tree does.
    pub client: Client,
    /// The tree.
    pub catalog: Arc<Catalog>,
    /// What is kept of its bytes; `None` for a tree of which nothing is.
    pub content: Option<Arc<Content>>,
    /// The packages that such a tree was made of.
    pub packages: Option<Packages>,
    /// The tree's versions.
    pub versions: Versions,
    /// A folder for the audit's own files, with room for another catalog.
    pub scratch: PathBuf,
}

/// What the Source has now, as a catalog of its own in `folder`.
pub async fn listed(
    config: &SyncConfig,
    client: &Client,
    folder: &Path,
    progress: Arc<dyn Fn(Stage) + Send + Sync>,
) -> Result<Listed, AuditError> {
    let catalog = Catalog::open(&folder.join("catalog"), "an audit")?;
    let catalog = Arc::new(catalog.leaving(Room::new(config.reserve, free_space)));
    let spool = DocumentCache::open(&folder.join("spool")).map_err(SyncError::from)?;
    let mut synchronizer = Synchronizer::new(config.clone(), client.clone(), catalog.clone(), spool);
    let usual = PackageConfig::new(folder.join("packages"));
    let packages = PackageConfig { reserve: config.reserve, free_space, documents: config.limits, ..usual };
    synchronizer.read_packages(Packages::open(client.clone(), packages).map_err(SyncError::Package)?);
    // What it logs is not of the tree that is shown.
    synchronizer.refresh(progress).instrument(tracing::info_span!("audit")).await?;
    Ok(Listed { catalog, packages: synchronizer.packages, unheard: synchronizer.unheard })
}

impl Audit {
    /// Makes the audit and tells of it: differences as they are found, then the summary or the failure.
    pub async fn run(&self, depth: Depth, events: Events) {
        let audited = tokio::select! {
            audited = self.audit(depth, &events) => audited,
            () = events.closed() => return,
        };
        let last = match audited {
            Ok(summary) => Event::Summary(summary),
            Err(AuditError::Left) => return,
            Err(cause) if cause.is_of_source() => Event::Unjudged(chain(&cause)),
            Err(cause) => Event::Failure(chain(&cause)),
        };
        // Who left before the end does not want to know.
        let _ = events.send(last).await;
    }

    /// Tells of every file of the tree, asking nobody; then an empty summary, or the failure.
    pub async fn list(&self, events: Events) {
        let last = match self.list_files(&events).await {
            Ok(()) => Event::Summary(Summary::default()),
            Err(AuditError::Left) => return,
            Err(cause) => Event::Failure(chain(&cause)),
        };
        let _ = events.send(last).await;
    }

    async fn list_files(&self, events: &Events) -> Result<(), AuditError> {
        let (audit, telling) = (self.clone(), events.clone());
        let listing = tokio::task::spawn_blocking(move || {
            let mut pending = Pending::new(&audit.scratch)?;
            let mut failed = None;
            compare::each(&audit.catalog, &mut |compared| {
                let Some(ino) = compared.shown else { return ControlFlow::Continue(()) };
                match pending.push(ino) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(cause) => {
                        failed = Some(cause);
                        ControlFlow::Break(())
                    }
                }
            })?;
            failed.map_or(Ok(()), Err)?;
            let mut rest = pending.finish()?;
            while let Some(batch) = rest.next(&audit.catalog, &audit.versions)? {
                for Version { path, wanted } in batch {
                    let shown = audit.shown(path, &wanted);
                    telling.blocking_send(Event::File(shown)).map_err(|_| AuditError::Left)?;
                }
            }
            Ok(())
        });
        listing.await?
    }

    fn shown(&self, path: String, wanted: &FetchSpec) -> Shown {
        let learnt = self.content.as_ref().and_then(|content| content.known_size(wanted.ino));
        Shown {
            path,
            uri: wanted.uri.to_string(),
            length: learnt.or(wanted.length.filter(|_| wanted.encoding.is_none())),
            lastmod: wanted.lastmod.map(|lastmod| lastmod.to_string()),
            media_type: wanted.media_type.as_deref().map(str::to_owned),
            hashes: verify::digests_shown(wanted).iter().map(|digest| digest.to_string()).collect(),
        }
    }

    async fn audit(&self, depth: Depth, events: &Events) -> Result<Summary, AuditError> {
        let listed = match &self.config {
            Some(config) => {
                tell(events, "reading the Source's lists".to_owned());
                Some(listed(config, &self.client, &self.scratch, Arc::new(|_| ())).await?)
            }
            None => None,
        };
        let (audit, telling) = (self.clone(), events.clone());
        let compared = tokio::task::spawn_blocking(move || audit.compare(depth, listed.as_ref(), &telling));
        let Found { mut summary, findings, pending } = compared.await??;
        let telling = events.clone();
        tokio::task::spawn_blocking(move || findings.tell(&telling)).await??;
        if let Some(pending) = pending {
            self.look_deeper(depth, pending, &mut summary, events).await?;
        }
        summary.in_sync = summary.files.saturating_sub(summary.differences());
        Ok(summary)
    }

    /// Compares the tree with what is `listed`, waiting for nobody.
    fn compare(&self, depth: Depth, listed: Option<&Listed>, events: &Events) -> Result<Found, AuditError> {
        let mut findings = Findings::new(&self.scratch)?;
        let mut pending = if depth.content || depth.fetch { Some(Pending::new(&self.scratch)?) } else { None };
        let mut summary = Summary::default();
        let mut failed = None;
        let mut visit = |compared: Compared<'_>| {
            summary.files += 1;
            if summary.files % PROGRESS_STEP == 0 {
                if events.is_closed() {
                    failed = Some(AuditError::Left);
                    return ControlFlow::Break(());
                }
                tell(events, format!("comparing the tree with the lists: {} files", summary.files));
            }
            let visited = match (finding(&compared), compared.shown, &mut pending) {
                (Some(finding), _, _) => {
                    summary.count(finding.difference);
                    findings.push(&finding)
                }
                (None, Some(ino), Some(pending)) => pending.push(ino),
                _ => Ok(()),
            };
            match visited {
                Ok(()) => ControlFlow::Continue(()),
                Err(cause) => {
                    failed = Some(cause);
                    ControlFlow::Break(())
                }
            }
        };
        let shown = self.catalog.snapshot()?;
        let (at, lacking) = match listed {
            Some(listed) => {
                let unheard = &listed.unheard;
                let listed = listed.catalog.snapshot()?;
                is_comparable(&shown, &listed, unheard)?;
                drop(shown);
                compare::compare(&self.catalog, &listed, &mut visit)?;
                (listed.at()?, lacking(&listed)?)
            }
            None => {
                let of_shown = (shown.at()?, lacking(&shown)?);
                drop(shown);
                compare::each(&self.catalog, &mut visit)?;
                of_shown
            }
        };
        summary.at = at.map(|at| at.to_string());
        summary.lacking = lacking.into_iter().filter(|it| it.entries == 0 || summary.extra > 0).collect();
        failed.map_or(Ok(Found { summary, findings, pending }), Err)
    }

    async fn look_deeper(
        &self,
        depth: Depth,
        pending: Pending,
        summary: &mut Summary,
        events: &Events,
    ) -> Result<(), AuditError> {
        let mut pending = pending.finish()?;
        let mut looked = 0;
        loop {
            let audit = self.clone();
            let batch = tokio::task::spawn_blocking(move || {
                let batch = pending.next(&audit.catalog, &audit.versions)?;
                Ok::<_, AuditError>((pending, batch))
            });
            let (rest, Some(batch)) = batch.await?? else { return Ok(()) };
            pending = rest;
            let mut looks =
                stream::iter(batch).map(|version| self.look(depth, version)).buffer_unordered(ASKED_AT_ONCE);
            while let Some(look) = looks.next().await {
                summary.objects_read += u64::from(look.read);
                summary.asked += u64::from(look.asked);
                summary.unvouched += u64::from(look.unvouched);
                if let Some(finding) = look.finding {
                    summary.count(finding.difference);
                    events.send(Event::Finding(finding)).await.map_err(|_| AuditError::Left)?;
                }
                looked += 1;
                if looked % PROGRESS_STEP == 0 {
                    tell(events, format!("looking at files: {looked}"));
                }
            }
        }
    }

    /// Looks at what is kept of one file, and at what the Source serves of it.
    async fn look(&self, depth: Depth, version: Version) -> Look {
        let mut look = Look::default();
        let Version { path, wanted } = version;
        let uri = wanted.uri.to_string();
        let found = |difference, what| Some(Finding { difference, path, uri, what });
        if let (true, Some(content)) = (depth.content, self.content.clone()) {
            let version = wanted.clone();
            match tokio::task::spawn_blocking(move || content.check(&version)).await {
                Ok(Checked::Absent) => {}
                Ok(Checked::Intact(_)) => look.read = true,
                Ok(Checked::Corrupt(what)) => {
                    return Look { read: true, finding: found(Difference::Corrupt, what), ..look };
                }
                Ok(Checked::Failed(what)) => return Look { finding: found(Difference::Failed, what), ..look },
                Err(cause) => return Look { finding: found(Difference::Failed, cause.to_string()), ..look },
            }
        }
        // What is served today says nothing of a version of earlier.
        if !depth.fetch || wanted.is_past() {
            return look;
        }
        look.asked = true;
        let patience = self.client.patience();
        let asked = match &self.content {
            Some(content) => content.ask(&wanted, patience).await,
            None => {
                let source = (&self.client, self.packages.as_ref());
                verify::ask(source, &wanted, &verify::published(&wanted), patience).await
            }
        };
        match asked {
            Asked::Same => {}
            Asked::There => look.unvouched = true,
            Asked::Changed(what) => look.finding = found(Difference::Changed, what),
            Asked::Gone(what) => look.finding = found(Difference::Gone, what),
            Asked::Failed(what) => look.finding = found(Difference::Failed, what),
        }
        look
    }
}

/// What a comparison of the trees came to.
struct Found {
    summary: Summary,
    /// What differs, still to be told.
    findings: Findings,
    /// What agrees, where it is to be looked at more closely.
    pending: Option<Pending>,
}

/// What a look at one file came to.
#[derive(Debug, Default)]
struct Look {
    read: bool,
    asked: bool,
    unvouched: bool,
    finding: Option<Finding>,
}

impl Summary {
    /// Files that are not as they should be.
    pub fn differences(&self) -> u64 {
        self.missing + self.extra + self.changed + self.corrupt + self.gone + self.failed
    }

    /// Those of them that are so for sure: what is extra may be listed in a part that is missing.
    pub fn proven(&self) -> u64 {
        self.differences() - if self.lacking.is_empty() { 0 } else { self.extra }
    }

    fn count(&mut self, difference: Difference) {
        *match difference {
            Difference::Missing => &mut self.missing,
            Difference::Extra => &mut self.extra,
            Difference::Changed => &mut self.changed,
            Difference::Corrupt => &mut self.corrupt,
            Difference::Gone => &mut self.gone,
            Difference::Failed => &mut self.failed,
        } += 1;
    }
}

impl Difference {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Difference::Missing => "missing",
            Difference::Extra => "extra",
            Difference::Changed => "changed",
            Difference::Corrupt => "corrupt",
            Difference::Gone => "gone",
            Difference::Failed => "failed",
        }
    }
}

/// Tells a person how far it is; what finds no room is overtaken by the next.
fn tell(events: &Events, progress: String) {
    let _ = events.try_send(Event::Progress(progress));
}

/// What a tree lacks of the Source.
fn lacking(tree: &Snapshot<'_>) -> Result<Vec<MissingStatus>, AuditError> {
    let position = tree.position()?.as_deref().and_then(Position::decode);
    Ok(position.iter().flat_map(Position::lacking).map(MissingStatus::from).collect())
}

/// Whether what is `listed` holds all that `shown` was made of, and can be compared with it.
fn is_comparable(shown: &Snapshot<'_>, listed: &Snapshot<'_>, unheard: &[Unheard]) -> Result<(), AuditError> {
    let position = |stored: Option<Box<[u8]>>| stored.as_deref().and_then(Position::decode);
    let (shown, listed) = (position(shown.position()?), position(listed.position()?));
    let (Some(shown), Some(listed)) = (shown, listed) else { return Ok(()) };
    if let Some(location) = listed.lacks_beyond(&shown) {
        return Err(AuditError::Incomplete { location });
    }
    if let Some(Unheard { why, .. }) = unheard.iter().find(|it| shown.has_heard(&it.root)) {
        return Err(AuditError::Unheard { why: why.clone() });
    }
    match (listed.missing_since(), shown.missing_since()) {
        (Some(since), None) => Err(AuditError::Forgotten { since }),
        _ => Ok(()),
    }
}

/// How a file of the two trees differs, if it does.
fn finding(compared: &Compared<'_>) -> Option<Finding> {
    let (difference, resource, what) = match &compared.said {
        Said::Same => return None,
        Said::Both(shown, listed) => (Difference::Changed, shown, compare::difference(shown, listed)?),
        Said::Shown(shown) => (Difference::Extra, shown, "is not listed".to_owned()),
        Said::Listed(listed) => (Difference::Missing, listed, "is not in the tree".to_owned()),
    };
    Some(Finding { difference, path: compared.path.to_owned(), uri: resource.uri.to_string(), what })
}
