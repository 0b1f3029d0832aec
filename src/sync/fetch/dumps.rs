//! The manifests of packages in dumps (sections 11 and 13). They state what exists where there is no Resource List, what has changed
//! where there is no Change List, and next to lists where the bytes of a resource lie too.

use super::change_docs::Chosen;
use super::new_changes::Origin;
use super::spool::Spool;
use crate::catalog::Commit;
use crate::document::{Capability, Change, Entry, Uri};
use crate::platform::error_chain::chain;
use crate::source::crawl::{Asking, Crawled, EVERYTHING};
use crate::source::zip::{Listed, Manifest, PackageError, Packages};
use crate::source::{DocumentLocation, Missing};
use crate::sync::changes::DocumentHead;
use crate::sync::deviations::NotUnderstood;
use crate::sync::followed_set::FollowedSet;
use crate::sync::read_set::ReadSet;
use crate::sync::selection::plan::Chooser;
use crate::sync::{SyncError, Synchronizer};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use std::ops::ControlFlow;

/// Packages whose manifests are requested at once.
const REQUESTED_AT_ONCE: usize = 8;

/// The statements of the packages of a Resource Dump.
#[derive(Default)]
pub struct ReadDump {
    /// All packages that it lists.
    pub packages: Vec<Uri>,
    /// The manifests of those that can be read.
    pub manifests: Vec<Manifest>,
    /// The packages that cannot be read.
    pub missing: Vec<Missing>,
    /// True if some of these may be readable later.
    pub has_failed: bool,
}

impl Synchronizer {
    /// Reads the manifests of the dumps of all sets: of a set that has lists only if `is_new` says that they may have changed.
    /// There a dump that cannot be read is no failure. In place of lists it is: a tree is shown whole or not at all.
    pub(in crate::sync) async fn read_dumps(
        &mut self,
        sets: &[FollowedSet],
        read: &mut [ReadSet],
        is_new: bool,
    ) -> Result<(), SyncError> {
        let packages = self.fetch.packages.clone();
        for it in read {
            let Some(set) = sets.iter().find(|set| set.id == it.id) else { continue };
            let has_lists = !set.lists.is_empty();
            if has_lists && !is_new {
                continue;
            }
            it.packages = (has_lists || !set.dumps.is_empty()).then(Vec::new);
            for (number, root) in set.dumps.iter().enumerate() {
                let dump = match it.walks.get(number).filter(|_| !has_lists) {
                    Some(walked) => read_dump(&packages, &self.fetch.spool, walked, false).await,
                    None => match self.walk(root, Asking { is_patient: false, ..EVERYTHING }).await {
                        Ok(walked) => read_dump(&packages, &self.fetch.spool, &walked, true).await,
                        Err(cause) => Err(cause.into()),
                    },
                };
                match dump {
                    Ok(dump) => {
                        self.current.lacks_packages |= dump.has_failed;
                        it.packages.iter_mut().for_each(|packages| packages.extend(dump.packages.iter().cloned()));
                        it.manifests.extend(dump.manifests);
                        if has_lists && !dump.missing.is_empty() {
                            tracing::info!(dump = %root, "resources of other packages are downloaded from their own addresses");
                        }
                        // The lists say what exists, where there are any.
                        it.missing.extend(dump.missing.into_iter().filter(|_| !has_lists));
                    }
                    Err(cause) if has_lists => {
                        tracing::warn!("the dump {root} cannot be read now: {}", chain(&cause));
                        self.current.lacks_packages = true;
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

    /// The packages of the `walked` Change Dumps that may hold something new, each a list of changes; and why the first fails of those
    /// that fail for now. These are requested again. They hold back no package whose interval says that it is older or newer.
    pub(super) async fn change_packages(
        &self,
        walked: &Crawled,
        chosen: &mut Chosen<'_>,
    ) -> Result<(Vec<(DocumentHead, Origin)>, Option<String>), SyncError> {
        let dumps = || walked.leaves.iter().filter(|leaf| leaf.capability == Some(Capability::ChangeDump));
        let digest = dumps().fold(0, |digest, leaf| digest ^ leaf.document.digest);
        chosen.is_beyond |= dumps().any(|leaf| chosen.known.is_beyond(leaf.header.from));
        let mut wanted = Vec::new();
        for entry in listed_packages(&self.fetch.spool, walked, Capability::ChangeDump).await? {
            let is_contradicted = self.fetch.packages.is_contradicted(&entry.loc);
            if chosen.children.is_settled(entry.loc.as_str(), digest) && !is_contradicted {
                chosen.unread.push(entry.loc.as_str().to_owned());
            } else if chosen.asks(&entry, is_contradicted) {
                wanted.push(entry);
            }
        }
        let listed = wanted.iter().map(|entry| Listed::of(entry, Capability::ChangeDumpManifest)).collect();
        let mut manifests = request_manifests(&self.fetch.packages, listed);
        let (mut read, mut failed, mut wanted) = (Vec::new(), None, wanted.into_iter());
        while let Some(entry) = wanted.next() {
            let Some((manifest, _)) = manifests.next().await else { break };
            let location = entry.loc.as_str().to_owned();
            let manifest = match manifest {
                Ok(manifest) => manifest,
                // The tree of an earlier time is shown whole or not at all.
                Err(cause) if cause.is_retryable() && chosen.known.is_of_the_past() => {
                    return Err(SyncError::Package(cause));
                }
                Err(cause) if cause.is_retryable() => {
                    failed.get_or_insert_with(|| chain(&cause));
                    // Without an interval only its place says which others are newer: those behind it wait for it.
                    let behind = if entry.until.is_none() { wanted.by_ref().collect() } else { Vec::new() };
                    for left in std::iter::once(entry).chain(behind) {
                        let location = left.loc.as_str().to_owned();
                        if chosen.children.has_read(&location) {
                            chosen.unread.push(location.clone());
                        }
                        chosen.asked.failed.insert(location);
                    }
                    continue;
                }
                Err(cause) => {
                    tracing::warn!("a package of changes cannot be read: {}", chain(&cause));
                    chosen.asked.gone.insert(location);
                    continue;
                }
            };
            let head = DocumentHead { location, digest, listed: Some(Box::new(entry)), modified: None };
            read.push((head, Origin::Package(manifest)));
        }
        Ok((read, failed))
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
    baseline: &mut Commit<'_>,
    manifest: &Manifest,
    has_lists: bool,
    chooser: &Chooser,
    spool: &Spool,
) -> Result<(), SyncError> {
    let reader = Origin::Package(manifest.clone()).visit(spool, &mut |_, entry, member| {
        if entry.change != Some(Change::Deleted) && chooser.chooses(&entry) {
            match (member, has_lists) {
                (Some(member), true) => baseline.add_member(&entry, &member)?,
                (Some(member), false) => baseline.add_with_member(&entry, &member)?,
                (None, true) => {}
                (None, false) => baseline.add(&entry)?,
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let location = DocumentLocation::Uri(manifest.package().clone());
    // Absence from it proves nothing where there are lists.
    let entries = NotUnderstood { entries: reader.entries(), skipped: reader.skipped() };
    spool.deviations.note(&location, reader.deviations(), Some(entries).filter(|_| !has_lists));
    Ok(())
}
