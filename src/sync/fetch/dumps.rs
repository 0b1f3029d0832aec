//! The manifests of packages in dumps (sections 11 and 13). They state what exists where there is no Resource List, what has changed
//! where there is no Change List, and next to lists where the bytes of a resource lie too.

use super::change_docs::locations;
use super::new_changes::{Origin, ReadChanges};
use super::spool::Spool;
use crate::catalog::{Baseline, SetId};
use crate::document::{Capability, Change, Entry, Header, Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::source::crawl::{Asking, Child, Crawled, EVERYTHING};
use crate::source::zip::{Listed, Manifest, PackageError, Packages};
use crate::source::{DocumentLocation, Missing};
use crate::sync::changes::{Asked, ChangeState, DocumentHead};
use crate::sync::command::Scope;
use crate::sync::deviations::NotUnderstood;
use crate::sync::documents::FollowedSet;
use crate::sync::read_set::ReadSet;
use crate::sync::selection::plan::Chooser;
use crate::sync::{SyncError, Synchronizer};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

/// Packages whose manifests are requested at once.
const REQUESTED_AT_ONCE: usize = 8;

/// What the packages of a Resource Dump state.
#[derive(Default)]
pub struct ReadDump {
    /// All packages that it lists.
    pub packages: Vec<Uri>,
    /// The manifests of those that can be read.
    pub manifests: Vec<Manifest>,
    /// Those that cannot be read.
    pub missing: Vec<Missing>,
    /// Whether some of these may be readable later.
    pub has_failed: bool,
}

impl Synchronizer {
    /// From now on dumps are read too, through `packages`. Without this a Source is its lists.
    pub fn read_packages(&mut self, packages: Packages) {
        self.packages = Some(packages);
    }

    /// Packages whose own manifests differ from the published copies that the tree was made of.
    pub(in crate::sync) fn contradicted(&self) -> HashSet<Uri> {
        self.packages.as_ref().map(Packages::contradicted).unwrap_or_default()
    }

    /// Reads the manifests of the dumps of all sets: of a set that has lists only if `is_new` says that they may have changed.
    /// There a dump that cannot be read is no failure. In place of lists it is: a tree is shown whole or not at all.
    pub(in crate::sync) async fn read_dumps(
        &mut self,
        sets: &[FollowedSet],
        read: &mut [ReadSet],
        is_new: bool,
    ) -> Result<(), SyncError> {
        let Some(packages) = self.packages.clone() else { return Ok(()) };
        for it in read {
            let Some(set) = sets.iter().find(|set| set.id == it.id) else { continue };
            let has_lists = !set.lists.is_empty();
            if has_lists && !is_new {
                continue;
            }
            it.packages = (has_lists || !set.dumps.is_empty()).then(Vec::new);
            for (number, root) in set.dumps.iter().enumerate() {
                let dump = match it.walks.get(number).filter(|_| !has_lists) {
                    Some(walked) => read_dump(&packages, &self.spool, walked, false).await,
                    None => match self.walk(root, Asking { is_patient: false, ..EVERYTHING }).await {
                        Ok(walked) => read_dump(&packages, &self.spool, &walked, true).await,
                        Err(cause) => Err(cause.into()),
                    },
                };
                match dump {
                    Ok(dump) => {
                        self.lacks_packages |= dump.has_failed;
                        it.packages.iter_mut().for_each(|packages| packages.extend(dump.packages.iter().cloned()));
                        it.manifests.extend(dump.manifests);
                        // The lists say what exists, where there are any.
                        it.missing.extend(dump.missing.into_iter().filter(|_| !has_lists));
                    }
                    Err(cause) if has_lists => {
                        tracing::warn!("the dump {root} cannot be read now: {}", chain(&cause));
                        self.lacks_packages = true;
                        it.packages = None;
                    }
                    Err(SyncError::Package(cause)) => {
                        return Err(SyncError::PackageOf { named_by: root.clone(), cause });
                    }
                    Err(cause) => return Err(cause),
                }
            }
        }
        Ok(())
    }

    /// Reads what is new in the Change Dump at `root`: each package is a list of changes. A package that fails for now does not
    /// hold back others whose interval says that they are older or newer, and is requested again.
    pub(super) async fn read_change_dump(
        &mut self,
        set: SetId,
        root: &DocumentLocation,
        known: &ChangeState,
        scope: &Scope,
    ) -> Result<ReadChanges, SyncError> {
        let mut read = ReadChanges::new(set, root);
        let Some(packages) = self.packages.clone() else { return Ok(read) };
        let (children, entries) = (known.children(), Mutex::new(Vec::new()));
        let choice = |header: &Header, entry: &Entry| {
            // An archive lists whole dumps, and no packages by themselves.
            if header.capability == Some(Capability::ChangeDumpArchive) && !children.wants(entry) {
                return Child::Leave;
            }
            entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry.clone());
            Child::Ask
        };
        let needs_all = known.is_of_the_past();
        let past_caches = scope.is_past_caches();
        let asking =
            Asking { choice: &choice, tolerates_failure: !needs_all, past_caches, is_patient: false, ..EVERYTHING };
        let walked = self.walk(root, asking).await?;
        let mut asked = Asked {
            entries: entries.into_inner().unwrap_or_else(PoisonError::into_inner),
            gone: locations(&walked.missing),
            failed: locations(&walked.failed),
        };
        let mut failed = walked.failed.first().map(|it| it.why.clone());
        let headers = walked.index_headers.iter().chain(walked.leaves.iter().map(|leaf| &leaf.header));
        read.archives = headers.filter_map(|it| it.link("archives")).cloned().map(DocumentLocation::Uri).collect();
        let mut digest = 0;
        for leaf in walked.leaves.iter().filter(|leaf| leaf.capability == Some(Capability::ChangeDump)) {
            read.is_beyond |= known.is_beyond(leaf.header.from);
            digest ^= leaf.document.digest;
        }
        let mut wanted = Vec::new();
        for entry in listed_packages(&self.spool, &walked, Capability::ChangeDump).await? {
            let location = entry.loc.as_str();
            let is_known = children.is_settled(location, digest) || !children.wants(&entry);
            if known.is_beyond(entry.from) {
                read.is_beyond = true;
            } else if is_known && !packages.is_contradicted(&entry.loc) {
                read.unread.push(location.to_owned());
            } else {
                wanted.push(entry);
            }
        }
        asked.entries.extend(wanted.iter().cloned());
        let listed = wanted.iter().map(|entry| Listed::of(entry, Capability::ChangeDumpManifest)).collect();
        let mut manifests = request_manifests(&packages, listed);
        let (state, mut wanted) = (Arc::new(known.clone()), wanted.into_iter());
        while let Some(entry) = wanted.next() {
            let Some((manifest, _)) = manifests.next().await else { break };
            let manifest = match manifest {
                Ok(manifest) => manifest,
                // The tree of an earlier time is shown whole or not at all.
                Err(cause) if cause.is_retryable() && needs_all => return Err(SyncError::Package(cause)),
                Err(cause) if cause.is_retryable() => {
                    failed.get_or_insert_with(|| chain(&cause));
                    // Without an interval only its place says which others are newer: those behind it wait for it.
                    let behind = if entry.until.is_none() { wanted.by_ref().collect() } else { Vec::new() };
                    for left in std::iter::once(entry).chain(behind) {
                        let location = left.loc.as_str().to_owned();
                        if children.has_read(&location) {
                            read.unread.push(location.clone());
                        }
                        asked.failed.insert(location);
                    }
                    continue;
                }
                Err(cause) => {
                    tracing::warn!("a package of changes cannot be read: {}", chain(&cause));
                    asked.gone.insert(entry.loc.as_str().to_owned());
                    continue;
                }
            };
            let head = DocumentHead {
                location: manifest.package().as_str().to_owned(),
                digest,
                header: manifest.header().clone(),
                listed: Some(Box::new(entry)),
                modified: None,
            };
            self.read_document(set, &state, head, Origin::Package(manifest), &mut read).await?;
        }
        read.is_torn = needs_all && !asked.gone.is_empty();
        read.lost = known.lost_beside(&root.to_string(), &asked, Timestamp::now());
        self.lacks_packages |= failed.is_some();
        self.note_failed(root, failed);
        Ok(read)
    }
}

/// Reads the manifests of the packages of a Resource Dump. Packages that are no ZIP or have no manifest count as missing. With
/// `tolerates_failure`, so do those that fail for now; else one of them is an error.
pub async fn read_dump(
    packages: &Packages,
    spool: &Spool,
    walked: &Crawled,
    tolerates_failure: bool,
) -> Result<ReadDump, SyncError> {
    let mut dump = ReadDump::default();
    let listed = listed_packages(spool, walked, Capability::ResourceDump).await?;
    let listed: Vec<_> = listed.iter().map(|entry| Listed::of(entry, Capability::ResourceDumpManifest)).collect();
    dump.packages.extend(listed.iter().map(|listed| listed.package.clone()));
    let mut manifests = request_manifests(packages, listed);
    while let Some((manifest, Listed { package, .. })) = manifests.next().await {
        match manifest {
            Ok(manifest) => dump.manifests.push(manifest),
            Err(cause) if cause.is_retryable() && !tolerates_failure => return Err(SyncError::Package(cause)),
            Err(cause) => {
                dump.has_failed |= cause.is_retryable();
                let why = chain(&cause);
                tracing::warn!("a package cannot be read: {why}");
                dump.missing.push(Missing { location: DocumentLocation::Uri(package), entries: 0, why });
            }
        }
    }
    Ok(dump)
}

/// The packages that the indexes and the dumps of this `capability` list.
async fn listed_packages(spool: &Spool, walked: &Crawled, capability: Capability) -> Result<Vec<Entry>, SyncError> {
    let dumps = walked.leaves.iter().filter(|leaf| leaf.capability.as_ref() == Some(&capability));
    let dumps: Vec<_> = dumps.map(|leaf| leaf.document.clone()).collect();
    let (spool, mut packages) = (spool.clone(), walked.packages.clone());
    let read = move || {
        for dump in dumps {
            spool.read(&dump, &mut |entry| {
                packages.push(entry);
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(packages)
    };
    tokio::task::spawn_blocking(read).await?
}

/// The manifests of `listed`, several requested at a time, in their order.
fn request_manifests(
    packages: &Packages,
    listed: Vec<Listed>,
) -> impl Stream<Item = (Result<Manifest, PackageError>, Listed)> + Unpin + Send {
    let request = |listed: Listed| async move { (packages.stated(&listed).await, listed) }.boxed();
    stream::iter(listed.into_iter().map(request).collect::<Vec<_>>()).buffered(REQUESTED_AT_ONCE)
}

/// Enters the resources of a manifest that `chooser` accepts: as resources that exist, or for a set that `has_lists` as places where
/// their bytes lie too.
pub fn enter(
    baseline: &mut Baseline<'_>,
    manifest: &Manifest,
    has_lists: bool,
    chooser: &Chooser,
    spool: &Spool,
) -> Result<(), SyncError> {
    let broken = |cause| {
        SyncError::Package(PackageError::Manifest { package: manifest.package().clone(), cause: Arc::new(cause) })
    };
    let mut reader = manifest.reader().map_err(SyncError::Package)?;
    while let Some(entry) = reader.next_entry().map_err(broken)? {
        if entry.change == Some(Change::Deleted) || !chooser.chooses(&entry) {
            continue;
        }
        match (manifest.member(&entry), has_lists) {
            (Some(member), true) => baseline.add_member(&entry, &member)?,
            (Some(member), false) => baseline.add_with_member(&entry, &member)?,
            (None, true) => {}
            (None, false) => baseline.add(&entry)?,
        }
    }
    let location = DocumentLocation::Uri(manifest.package().clone());
    spool.deviations.note(&location, reader.deviations());
    spool.deviations.note_entries(&location, NotUnderstood { entries: reader.entries(), skipped: reader.skipped() });
    Ok(())
}
