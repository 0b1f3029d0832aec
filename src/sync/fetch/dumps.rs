//! The manifests of packages in dumps (sections 11 and 13). They state what exists where there is no Resource List, what has
//! changed where there is no Change List, and next to lists where else the bytes of a resource are.
//!
//! Some Sources list pages, and their packages hold the files of the pages. Where no manifest names a resource that the lists have, the
//! two speak of different things, and the manifests state what exists too. Else the lists do alone, unless the dump is of a later time.

use super::DocumentFetch;
use super::change_docs::Chosen;
use super::new_changes::Origin;
use super::spool::Spool;
use crate::catalog::Commit;
use crate::document::{Capability, Change, Entry, Uri};
use crate::platform::error_chain::chain;
use crate::source::crawl::{Asking, Crawled, EVERYTHING};
use crate::source::documents::CachedDocument;
use crate::source::zip::{Listed, Manifest, Packages, Reading};
use crate::source::{DocumentLocation, Missing};
use crate::sync::changes::DocumentHead;
use crate::sync::deviations::NotUnderstood;
use crate::sync::followed_set::FollowedSet;
use crate::sync::position::Position;
use crate::sync::read_set::ReadSet;
use crate::sync::selection::plan::Chooser;
use crate::sync::{SyncError, Synchronizer};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// Packages whose manifests are requested at once.
const REQUESTED_AT_ONCE: usize = 8;

/// Names of manifests that are looked for in lists, the first: 32 MB.
const MOST_NAMES: usize = 4_000_000;

/// The time after which the manifests that were read in the background so far are shown; then each time when it has doubled.
const FIRST_SHOWN: Duration = Duration::from_secs(60);

/// A Resource Dump that was read.
#[derive(Default)]
pub struct ReadDump {
    /// All packages that it lists.
    pub packages: Vec<Uri>,
    /// The manifests of those that can be read.
    pub manifests: Vec<Manifest>,
    /// The packages that cannot be read.
    pub missing: Vec<Missing>,
}

impl Synchronizer {
    /// Reads the manifests of the dumps of all sets that were not read yet: of a set that has lists only if `is_new` says that
    /// they may have changed, or its dumps are followed. A dump next to lists that cannot be read is not a failure. In place
    /// of lists it is: a tree is shown whole or not at all.
    pub(in crate::sync) async fn read_dumps(
        &mut self,
        (sets, before): (&[FollowedSet], &Position),
        read: &mut [ReadSet],
        is_new: bool,
    ) -> Result<(), SyncError> {
        for it in read.iter_mut().filter(|it| it.packages.is_none()) {
            let Some(set) = sets.iter().find(|set| set.id == it.id) else { continue };
            if !set.lists.is_empty() {
                self.read_dumps_next_to_lists(set, before, it, is_new).await?;
                continue;
            }
            it.packages = (!set.dumps.is_empty()).then(Vec::new);
            for (root, walked) in set.dumps.iter().zip(&it.walks) {
                match read_dump(&self.fetch.packages, &self.fetch.spool, walked, false).await {
                    Ok(dump) => {
                        it.packages.iter_mut().for_each(|packages| packages.extend(dump.packages.iter().cloned()));
                        it.manifests.extend(dump.manifests);
                        it.missing.extend(dump.missing);
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

    /// Reads the dumps of a set that has lists. A manifest is requested where its package has another entry than before: of a
    /// few packages at once, of many in the background. A package that cannot be read for now counts as it was read before.
    async fn read_dumps_next_to_lists(
        &mut self,
        set: &FollowedSet,
        before: &Position,
        it: &mut ReadSet,
        is_new: bool,
    ) -> Result<(), SyncError> {
        let (mut packages, missing) = before.packages_of(set.id);
        (it.manifests, it.dumps, it.missing) = (Vec::new(), Vec::new(), missing);
        if !is_new && !before.follows_dumps(set.id) {
            return Ok(());
        }
        let (mut listed, mut is_read) = (Vec::new(), true);
        for root in &set.dumps {
            let began = Instant::now();
            match self.fetch.walk(&self.current.progress, root, Asking { is_patient: false, ..EVERYTHING }).await {
                Ok(walked) => {
                    set.lists.iter().for_each(|list| self.fetch.schedule.answered_with(list, began.elapsed()));
                    listed.extend(listed_packages(&self.fetch.spool, &walked, Capability::ResourceDump).await?);
                    it.dumps.push(walked);
                }
                Err(cause) => {
                    tracing::warn!("the dump {root} cannot be read now: {}", chain(&cause));
                    (self.current.lacks_packages, is_read) = (true, false);
                }
            }
        }
        if is_read && !is_new && before.has_same_dumps(set.id, &it.dumps) {
            return Ok(());
        }
        let manifest = Capability::ResourceDumpManifest;
        let listed: Vec<Listed> = match is_read {
            true => listed.iter().map(|entry| Listed::of(entry, manifest.clone())).collect(),
            false => packages.drain(..).map(|package| Listed::unlisted(package, manifest.clone())).collect(),
        };
        let all = self.fetch.readings(listed, is_read, self.tuning.packages).await?;
        it.packages = is_read.then(|| all.iter().map(|(listed, _)| listed.package.clone()).collect());
        let failed = |(listed, reading): &(Listed, Reading)| {
            let (location, why) = (DocumentLocation::Uri(listed.package.clone()), reading.failed.clone()?);
            reading.is_current.then_some(Missing { location, entries: 0, why })
        };
        let failed: Vec<Missing> = all.iter().filter_map(failed).collect();
        let are_current = all.iter().all(|(_, reading)| reading.is_current);
        it.manifests.extend(all.into_iter().filter_map(|(_, reading)| reading.manifest));
        let (spool, lists, manifests) = (self.fetch.spool.clone(), it.list_documents(), it.manifests.clone());
        let is_later = it.has_later_dumps();
        let compare = move || shared_names(&spool, &lists, &manifests, is_later);
        it.shared_names = tokio::task::spawn_blocking(compare).await??;
        self.current.lacks_packages |= !are_current;
        // Failed packages are asked for again, unless the lists have all of them.
        it.dumps_are_read = are_current && (failed.is_empty() || it.shared_names.is_none());
        if is_read {
            // Resources that the lists name come from their addresses.
            it.missing = failed.into_iter().filter(|_| it.shared_names.is_some()).collect();
        }
        Ok(())
    }
}

impl DocumentFetch {
    /// The known reading of each of these packages. Manifests that are not known are requested where the dumps are `readable`.
    async fn readings(
        &mut self,
        listed: Vec<Listed>,
        are_readable: bool,
        (most, due): (usize, Duration),
    ) -> Result<Vec<(Listed, Reading)>, SyncError> {
        let packages = self.packages.clone();
        let known = move || {
            let readings = listed.into_iter().map(|listed| (packages.last_reading(&listed), listed));
            readings.map(|(reading, listed)| (listed, reading)).collect::<Vec<_>>()
        };
        let mut all = tokio::task::spawn_blocking(known).await?;
        let is_unread = |(_, reading): &&mut (Listed, Reading)| are_readable && !reading.is_current;
        let mut unread: Vec<_> = all.iter_mut().filter(is_unread).collect();
        let mut wanted: Vec<Listed> = unread.iter().map(|(listed, _)| listed.clone()).collect();
        if wanted.len() <= most {
            let (began, mut done) = (Instant::now(), 0);
            let mut read = request_readings(&self.packages, wanted.clone());
            for known in &mut unread {
                let next = tokio::time::timeout(due.saturating_sub(began.elapsed()), read.next());
                let Ok(Some((reading, listed))) = next.await else { break };
                if let Some(why) = &reading.failed {
                    tracing::warn!(package = %listed.package, "a package cannot be read: {why}");
                }
                (known.1, done) = (reading, done + 1);
            }
            wanted.drain(..done);
        }
        while self.reading.try_join_next().is_some() {}
        if !wanted.is_empty() && self.reading.is_empty() {
            tracing::info!(packages = wanted.len(), "manifests of packages are read in the background");
            self.reading.spawn(read_all(self.packages.clone(), wanted));
        }
        Ok(all)
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
        dumps().for_each(|leaf| _ = chosen.leaves_out(leaf.header.from));
        let mut wanted = Vec::new();
        for entry in listed_packages(&self.spool, walked, Capability::ChangeDump).await? {
            let is_contradicted = self.packages.is_contradicted(&entry.loc);
            if chosen.children.is_done_with(entry.loc.as_str(), digest) && !is_contradicted {
                chosen.unread.push(entry.loc.as_str().to_owned());
            } else if chosen.asks(&entry, is_contradicted) {
                wanted.push(entry);
            }
        }
        let listed = wanted.iter().map(|entry| Listed::of(entry, Capability::ChangeDumpManifest)).collect();
        let mut manifests = requested(&self.packages, listed, |packages, listed| packages.stated(listed).boxed());
        let (mut read, mut failed, mut wanted) = (Vec::new(), None, wanted.into_iter());
        while let Some(entry) = wanted.next() {
            let Some((manifest, _)) = manifests.next().await else { break };
            let location = entry.loc.as_str().to_owned();
            let manifest = match manifest {
                Ok(manifest) => manifest,
                Err(cause) if cause.is_retryable() && chosen.ends.is_some() => return Err(SyncError::Package(cause)),
                Err(cause) if cause.is_retryable() => {
                    failed.get_or_insert_with(|| chain(&cause));
                    // Without an interval only its position says which others are newer: those behind it wait for it.
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

/// Reads the manifests of many packages. They are reported now and then, and at the end.
async fn read_all(packages: Packages, listed: Vec<Listed>) {
    let (began, mut due, mut has_news) = (Instant::now(), FIRST_SHOWN, false);
    let mut readings = request_readings(&packages, listed);
    let mut failed = 0_u64;
    while let Some((reading, listed)) = readings.next().await {
        if let Some(why) = &reading.failed {
            failed += 1;
            tracing::debug!(package = %listed.package, "a package cannot be read: {why}");
        }
        has_news |= reading.is_current;
        if has_news && began.elapsed() >= due {
            (due, has_news) = (began.elapsed() * 2, false);
            packages.report_news();
        }
    }
    tracing::info!(failed, "the manifests of packages have been read");
    if has_news {
        packages.report_news();
    }
}

/// Readings of `listed`, several requested at a time, in their order.
pub fn request_readings(
    packages: &Packages,
    listed: Vec<Listed>,
) -> impl Stream<Item = (Reading, Listed)> + Unpin + Send {
    requested(packages, listed, |packages, listed| packages.read_listed(listed).boxed())
}

/// Results of `request` for each of `listed`, several requested at a time, in their order.
fn requested<T: Send + 'static>(
    packages: &Packages,
    listed: Vec<Listed>,
    request: for<'r> fn(&'r Packages, &'r Listed) -> BoxFuture<'r, T>,
) -> impl Stream<Item = (T, Listed)> + Unpin + Send + use<T> {
    let request = |listed: Listed| {
        let packages = packages.clone();
        async move { (request(&packages, &listed).await, listed) }.boxed()
    };
    stream::iter(listed.into_iter().map(request).collect::<Vec<_>>()).buffered(REQUESTED_AT_ONCE)
}

/// The name of a resource among those of lists and manifests: the scheme does not count.
fn name(uri: &Uri) -> u64 {
    xxh3_64(uri.as_str().split_once(':').map_or("", |(_, rest)| rest).as_bytes())
}

/// The names that manifests share with the lists, where the manifests state what exists next to them: they share none, or the dump
/// `is_later`. `None` where they do not.
fn shared_names(
    spool: &Spool,
    lists: &[CachedDocument],
    manifests: &[Manifest],
    is_later: bool,
) -> Result<Option<HashSet<u64>>, SyncError> {
    let (mut names, mut shared) = (Vec::new(), HashSet::new());
    for manifest in manifests {
        Origin::Package(manifest.clone()).visit(spool, &mut |_, entry, _| {
            names.push(name(&entry.loc));
            Ok(if names.len() < MOST_NAMES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
    }
    let is_later = is_later && names.len() < MOST_NAMES;
    names.sort_unstable();
    for list in lists.iter().filter(|_| !names.is_empty()) {
        spool.read(list, &mut |entry| {
            let name = name(&entry.loc);
            let is_shared = names.binary_search(&name).is_ok();
            if is_shared {
                shared.insert(name);
            }
            Ok(if is_shared && !is_later { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        if !shared.is_empty() && !is_later {
            return Ok(None);
        }
    }
    Ok((!names.is_empty()).then_some(shared))
}

/// Reads the manifests of the packages of a Resource Dump. Packages that are not a ZIP or have no manifest count as missing.
/// With `tolerates_failure`, so do those that fail for now; else one of them is an error.
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
    let mut manifests = requested(packages, listed, |packages, listed| packages.stated(listed).boxed());
    while let Some((manifest, Listed { package, .. })) = manifests.next().await {
        match manifest {
            Ok(manifest) => dump.manifests.push(manifest),
            Err(cause) if cause.is_retryable() && !tolerates_failure => return Err(SyncError::Package(cause)),
            Err(cause) => {
                let why = chain(&cause);
                tracing::warn!("a package cannot be read: {why}");
                dump.missing.push(Missing { location: DocumentLocation::Uri(package), entries: 0, why });
            }
        }
    }
    Ok(dump)
}

/// The packages that the indexes and the dumps of this `capability` list.
pub async fn listed_packages(spool: &Spool, walked: &Crawled, capability: Capability) -> Result<Vec<Entry>, SyncError> {
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

/// Enters the resources of a manifest that `chooser` accepts: as resources that exist, or for a set that has lists as packages
/// that hold their bytes too, unless the manifests state all that the lists do not `share`. Returns the number of resources
/// that exist by it alone.
pub fn enter(
    commit: &mut Commit<'_>,
    manifest: &Manifest,
    (has_lists, shared): (bool, Option<&HashSet<u64>>),
    chooser: &Chooser,
    spool: &Spool,
) -> Result<u64, SyncError> {
    let mut stated = 0;
    let reader = Origin::Package(manifest.clone()).visit(spool, &mut |_, entry, member| {
        if entry.change != Some(Change::Deleted) && chooser.chooses(&entry) {
            let is_stated = !has_lists || shared.is_some_and(|shared| !shared.contains(&name(&entry.loc)));
            stated += u64::from(is_stated);
            match (member, is_stated) {
                (Some(member), false) => commit.add_member(&entry, &member)?,
                (Some(member), true) => commit.add_with_member(&entry, &member)?,
                (None, false) => {}
                (None, true) => commit.add(&entry)?,
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let location = DocumentLocation::Uri(manifest.package().clone());
    // Absence from it proves nothing where there are lists.
    let entries = NotUnderstood { entries: reader.entries(), skipped: reader.skipped() };
    spool.deviations.note(&location, reader.deviations(), Some(entries).filter(|_| !has_lists));
    Ok(stated)
}
