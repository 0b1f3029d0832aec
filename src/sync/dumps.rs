//! Packages of dumps by their manifests: what exists where there is no Resource List, what has changed where there is no
//! Change List, and beside lists where the bytes of a resource lie too (sections 11 and 13).

use super::command::Scope;
use super::deviations::{NotUnderstood, SeenDeviations};
use super::followed::FollowedSet;
use super::incremental::{Absent, Asked, ChangeDocument, Known, Room, Seen};
use super::read_changes::{Origin, ReadChanges};
use super::{Progressing, SyncError, Synchronizer};
use crate::catalog::{Baseline, SetId};
use crate::document::{Capability, Change, Deviations, Entry, Header, Limits, Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::source::crawl::{Asking, Child, Crawled, EVERYTHING, Leaf};
use crate::source::documents::DocumentCache;
use crate::source::zip::{Listed, Manifest, PackageError, Packages};
use crate::source::{DocumentLocation, Missing};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Packages asked at once for what they hold.
const ASKED_AT_ONCE: usize = 8;

/// What the packages of a Resource Dump say.
#[derive(Default)]
pub struct ReadDump {
    /// All that it lists.
    pub packages: Vec<Uri>,
    /// Of those that can be read.
    pub manifests: Vec<Manifest>,
    /// Those that cannot.
    pub missing: Vec<Missing>,
    /// Some of these may be readable at the next look.
    pub is_behind: bool,
}

impl Synchronizer {
    /// From now on dumps are read too, through `packages`; without it a Source is its lists.
    pub fn read_packages(&mut self, packages: Packages) {
        self.packages = Some(packages);
    }

    /// Whether packages say other things than what was taken over of them.
    pub(super) fn is_contradicted(&self) -> bool {
        self.packages.as_ref().is_some_and(|packages| !packages.contradicted().is_empty())
    }

    /// What a refresh of `scope` looks at, and the packages whose own manifests it takes over: everything where there are any.
    pub(super) fn widened(&self, scope: Scope) -> (Scope, HashSet<Uri>) {
        let contradicted = self.packages.as_ref().map(Packages::contradicted).unwrap_or_default();
        (if contradicted.is_empty() { scope } else { Scope::Everything }, contradicted)
    }

    /// What these packages say themselves has been taken over.
    pub(super) fn corrected(&self, contradicted: &HashSet<Uri>) {
        self.packages.iter().for_each(|packages| packages.corrected(contradicted));
    }

    /// See [`read_dump`].
    pub(super) async fn manifests(&self, walked: &Crawled, bears_failure: bool) -> Result<ReadDump, SyncError> {
        let Some(packages) = &self.packages else { return Ok(ReadDump::default()) };
        read_dump(packages, (&self.spool, self.config.limits), walked, bears_failure).await
    }

    /// The manifests of the dumps beside the lists of `set`. Whatever is wrong with them, the lists do without; `None` for
    /// the packages where a dump does not tell them for now.
    pub(super) async fn manifests_beside(
        &mut self,
        set: &FollowedSet,
        progress: &Progressing,
    ) -> (Vec<Manifest>, Option<Vec<Uri>>) {
        let (mut manifests, mut packages) = (Vec::new(), Some(Vec::new()));
        if self.packages.is_none() || set.lists.is_empty() {
            return (manifests, packages);
        }
        for dump in &set.dumps {
            let choice = |_: &Header, _: &Entry| Child::Ask;
            let asking = Asking { choice: &choice, is_patient: false, ..EVERYTHING };
            let read = match self.walk(dump, asking, progress).await {
                Ok(walked) => self.manifests(&walked, true).await,
                Err(cause) => Err(cause.into()),
            };
            match read {
                Ok(found) => {
                    self.lacks_packages |= found.is_behind;
                    manifests.extend(found.manifests);
                    packages.iter_mut().for_each(|packages| packages.extend(found.packages.iter().cloned()));
                }
                Err(cause) => {
                    tracing::warn!("the dump {dump} is left for now: {}", chain(&cause));
                    self.lacks_packages = true;
                    packages = None;
                }
            }
        }
        (manifests, packages)
    }

    /// What the Change Dump at `root` holds that is not known: each package is a list of changes. One that cannot be had for
    /// now keeps no other back that is known to be newer or older, and is asked for again.
    pub(super) async fn read_change_dump(
        &mut self,
        set: SetId,
        root: &DocumentLocation,
        known: &Known,
        scope: &Scope,
        progress: &Progressing,
    ) -> Result<ReadChanges, SyncError> {
        let mut read = ReadChanges::new(set, root);
        let Some(packages) = self.packages.clone() else { return Ok(read) };
        // An archive lists whole dumps, and no packages by themselves.
        let is_archive = |header: &Header| header.capability == Some(Capability::ChangeDumpArchive);
        let unknown = known.wanted();
        let asked = Mutex::new(Vec::new());
        let choice = |header: &Header, entry: &Entry| {
            if is_archive(header) && !unknown.contains(entry) {
                return Child::Leave;
            }
            asked.lock().unwrap_or_else(PoisonError::into_inner).push(Asked::from(entry));
            Child::Ask
        };
        let asking = Asking {
            choice: &choice,
            tolerates_failure: !known.is_of_the_past(),
            past_caches: scope.is_past_caches(),
            is_patient: false,
            ..EVERYTHING
        };
        let failures = self.schedule.failures(root);
        let walked = self.walk(root, asking, progress).await?;
        read.is_torn = known.is_of_the_past() && !walked.missing.is_empty();
        let mut failed = walked.failed.first().map(|it| it.why.clone());
        let locations = |missing: &[Missing]| missing.iter().map(|it| it.location.to_string()).collect();
        let mut absent = Absent { gone: locations(&walked.missing), failed: locations(&walked.failed) };
        let mut asked = std::mem::take(&mut *asked.lock().unwrap_or_else(PoisonError::into_inner));
        let headers = walked.index_headers.iter().chain(walked.leaves.iter().map(|leaf| &leaf.header));
        read.archives = headers.filter_map(|it| it.link("archives")).cloned().map(DocumentLocation::Uri).collect();
        let mut listed = walked.packages;
        let mut is_unchanged = true;
        for leaf in walked.leaves.into_iter().filter(|leaf| lists_packages(leaf, &Capability::ChangeDump)) {
            read.is_beyond |= known.is_beyond(leaf.header.from);
            let document = (leaf.document.location.clone(), leaf.document.digest);
            is_unchanged &= self.applied.get(&document.0) == Some(&document.1);
            read.digests.push(document);
            listed.extend(packages_of(&self.spool, leaf, self.config.limits).await?);
        }
        let (seen, shared) = (known.seen(), Arc::new(known.clone()));
        let mut wanted = Vec::new();
        for entry in listed {
            let location = entry.loc.as_str().to_owned();
            if known.is_beyond(entry.from) {
                read.is_beyond = true;
                continue;
            }
            let is_known = unknown.knows(&location) && is_unchanged || !unknown.contains(&entry);
            if is_known && !packages.is_contradicted(&entry.loc) {
                read.unread.push(location);
                continue;
            }
            wanted.push(entry);
        }
        asked.extend(wanted.iter().map(Asked::from));
        let listed = wanted.iter().map(|entry| Listed::of(entry, Capability::ChangeDumpManifest)).collect();
        let mut answers = stated(&packages, listed);
        // Asked for together, they come in the order in which they are listed.
        let mut wanted = wanted.into_iter();
        while let Some(entry) = wanted.next() {
            let Some((manifest, _)) = answers.next().await else { break };
            let manifest = match manifest {
                Ok(manifest) => manifest,
                // The tree of an earlier time is whole or not at all.
                Err(cause) if cause.is_retryable() && known.is_of_the_past() => {
                    return Err(SyncError::Package(cause));
                }
                Err(cause) if cause.is_retryable() => {
                    failed.get_or_insert_with(|| chain(&cause));
                    // Without an interval only its place tells which of the others are newer: those behind it wait for it.
                    let behind: Vec<Entry> = if entry.until.is_none() { wanted.by_ref().collect() } else { Vec::new() };
                    for left in std::iter::once(entry).chain(behind) {
                        let location = left.loc.as_str().to_owned();
                        if unknown.has_read(&location) {
                            // What is known of it stays known.
                            read.unread.push(location.clone());
                        }
                        absent.failed.insert(location);
                    }
                    continue;
                }
                Err(cause) => {
                    tracing::warn!("a package of changes is left: {}", chain(&cause));
                    read.is_torn |= known.is_of_the_past();
                    absent.gone.insert(entry.loc.as_str().to_owned());
                    continue;
                }
            };
            read.origins.insert(manifest.package().as_str().to_owned(), Origin::Package(manifest.clone()));
            let (known, seen, room) = (shared.clone(), seen.clone(), self.room.clone());
            let read_on = move || read_manifest(&manifest, entry, &known, (&seen, &room));
            let document = tokio::task::spawn_blocking(read_on).await??;
            read.documents.push(if is_unchanged { document.unchanged() } else { document });
        }
        read.lost = known.lost_beside(&root.to_string(), &asked, &absent, Timestamp::now());
        if failed.is_some() {
            // Only what was read whole may be passed over where it is the same at the next look.
            read.digests.clear();
            self.lacks_packages = true;
        }
        self.note_failed(root, failed, failures);
        Ok(read)
    }
}

/// The manifests of the packages that a walk over a Resource Dump has reached, and what cannot be read of them: packages
/// that are no ZIP or have no manifest are named and left. So are, where `bears_failure`, those that may be readable at
/// the next look; else one of them fails the whole.
pub async fn read_dump(
    packages: &Packages,
    (spool, limits): (&Arc<DocumentCache>, Limits),
    walked: &Crawled,
    bears_failure: bool,
) -> Result<ReadDump, SyncError> {
    let mut dump = ReadDump::default();
    let mut entries = walked.packages.clone();
    for leaf in walked.leaves.iter().filter(|leaf| lists_packages(leaf, &Capability::ResourceDump)) {
        entries.extend(packages_of(spool, leaf.clone(), limits).await?);
    }
    let listed: Vec<Listed> = entries.iter().map(|entry| Listed::of(entry, Capability::ResourceDumpManifest)).collect();
    dump.packages.extend(listed.iter().map(|listed| listed.package.clone()));
    let mut asked = stated(packages, listed);
    while let Some((manifest, Listed { package, .. })) = asked.next().await {
        match manifest {
            Ok(manifest) => dump.manifests.push(manifest),
            Err(cause) if cause.is_retryable() && !bears_failure => return Err(SyncError::Package(cause)),
            Err(cause) => {
                dump.is_behind |= cause.is_retryable();
                let why = chain(&cause);
                tracing::warn!("a package is left: {why}");
                dump.missing.push(Missing { location: DocumentLocation::Uri(package), entries: 0, why });
            }
        }
    }
    drop(asked);
    Ok(dump)
}

/// The packages that a dump lists.
async fn packages_of(spool: &Arc<DocumentCache>, leaf: Leaf, limits: Limits) -> Result<Vec<Entry>, SyncError> {
    let spool = spool.clone();
    tokio::task::spawn_blocking(move || read_packages(&spool, &leaf, limits)).await?
}

/// What packages hold, several asked at a time, told in their order.
fn stated<'p>(
    packages: &'p Packages,
    listed: Vec<Listed>,
) -> impl Stream<Item = (Result<Manifest, PackageError>, Listed)> + Unpin + Send + 'p {
    let ask = |listed: Listed| async move { (packages.stated(&listed).await, listed) }.boxed();
    stream::iter(listed.into_iter().map(ask).collect::<Vec<_>>()).buffered(ASKED_AT_ONCE)
}

/// Whether the entries of a leaf are packages.
fn lists_packages(leaf: &Leaf, wanted: &Capability) -> bool {
    leaf.capability.as_ref() == Some(wanted)
}

fn read_packages(spool: &DocumentCache, leaf: &Leaf, limits: Limits) -> Result<Vec<Entry>, SyncError> {
    let location = &leaf.document.location;
    let mut reader = spool.reader(&leaf.document, limits)?;
    let mut packages = Vec::new();
    loop {
        match reader.next_entry() {
            Ok(Some(entry)) => packages.push(entry),
            Ok(None) => return Ok(packages),
            Err(cause) => {
                // Kept, the broken document would be confirmed by a 304 at every later poll.
                spool.forget(location)?;
                return Err(SyncError::Document { location: location.clone(), cause });
            }
        }
    }
}

fn read_manifest(
    manifest: &Manifest,
    listed: Entry,
    known: &Known,
    (seen, room): (&Arc<Seen>, &Room),
) -> Result<ChangeDocument, SyncError> {
    let location = manifest.package().as_str().to_owned();
    let (header, now) = (manifest.header().clone(), Timestamp::now());
    let reading = known.reading(seen, location, header, Some(Box::new(listed)), None, now);
    let mut reading = reading.within(room);
    for_each_entry(manifest, &mut |entry| {
        let member = manifest.member(&entry);
        reading.see(entry, member);
        Ok(())
    })?;
    Ok(reading.end(manifest.header().clone()))
}

/// Enters the resources of a manifest that `chooses` wants: as what exists, or next to lists as where their bytes lie too.
pub fn enter(
    baseline: &mut Baseline<'_>,
    manifest: &Manifest,
    is_beside_lists: bool,
    chooses: &dyn Fn(&Entry) -> Result<bool, SyncError>,
    broken: &SeenDeviations,
) -> Result<(), SyncError> {
    let (deviations, read) = for_each_entry(manifest, &mut |entry| {
        if entry.change == Some(Change::Deleted) || !chooses(&entry)? {
            return Ok(());
        }
        match (manifest.member(&entry), is_beside_lists) {
            (Some(member), true) => baseline.add_member(&entry, &member)?,
            (Some(member), false) => baseline.add_with_member(&entry, &member)?,
            (None, true) => {}
            (None, false) => baseline.add(&entry)?,
        }
        Ok(())
    })?;
    let location = DocumentLocation::Uri(manifest.package().clone());
    broken.note(&location, &deviations);
    broken.note_entries(&location, read);
    Ok(())
}

/// Calls `visit` for every entry of a manifest, in its order. Which rules the manifest breaks, and how many of its entries cannot
/// be understood.
pub fn for_each_entry(
    manifest: &Manifest,
    visit: &mut dyn FnMut(Entry) -> Result<(), SyncError>,
) -> Result<(Deviations, NotUnderstood), SyncError> {
    let mut reader = manifest.reader().map_err(SyncError::Package)?;
    let broken = |cause| PackageError::Manifest { package: manifest.package().clone(), cause: Arc::new(cause) };
    while let Some(entry) = reader.next_entry().map_err(|cause| SyncError::Package(broken(cause)))? {
        visit(entry)?;
    }
    let entries = NotUnderstood { entries: reader.entries(), skipped: reader.skipped() };
    Ok((reader.deviations().clone(), entries))
}
