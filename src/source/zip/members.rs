//! Members read one after another, neighbours out of one request.

use super::decoder::Decoder;
use super::directory::{Directory, Found};
use super::package_bytes::{PackageBytes, Place};
use super::{PackageError, Packages};
use crate::document::Uri;
use crate::source::http::Priority;
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// PackageBytes between two wanted members that are rather let pass than skipped by another request, at least and at most: in
/// between what comes in the time of a round trip.
const GAP: Range<u64> = 64 << 10..1 << 20;

/// How often reading begins anew because the package changed.
const ANEW: u32 = 2;

/// Where the bytes of a member lie in the package as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The package.
    pub package: Uri,
    /// Its strong ETag.
    pub etag: Box<str>,
    /// PackageBytes of the package.
    pub total: u64,
    /// Offset of the member's first byte.
    pub first: u64,
}

/// One member of a package, as it is unpacked.
#[derive(Debug)]
pub struct Member {
    members: Members,
    length: u64,
}

/// Several members of a package, in the order in which they lie in it. [`Members::next`] goes to the next one,
/// [`Members::chunk`] reads on in it; what was not read of it is passed over.
#[derive(Debug)]
pub struct Members {
    packages: Packages,
    directory: Arc<Directory>,
    /// What is still to come: (number of the path, path), in the order in which they lie.
    waiting: VecDeque<(usize, Box<str>)>,
    /// Paths that lead to no member, told first.
    missing: VecDeque<(usize, PackageError)>,
    /// How the members to come are asked for.
    runs: VecDeque<Run>,
    /// Whether they are one of many that are asked for one by one.
    is_single: bool,
    /// Who waits for them.
    awaited: Priority,
    bytes: Option<PackageBytes>,
    decoder: Option<Decoder>,
    changes: u32,
}

/// Members that one request brings.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    /// PackageBytes of the package.
    range: Range<u64>,
    /// How many members.
    count: usize,
}

impl Packages {
    /// One member: `path` is that of the manifest's entry. The first bytes are asked for here, so that a package that has
    /// changed is noticed, and read anew, before any are handed out.
    ///
    /// # Errors
    /// Any [`PackageError`].
    pub async fn member(&self, package: &Uri, path: &str) -> Result<Member, PackageError> {
        self.member_for(package, path, Priority::default()).await
    }

    /// The same; until `awaited` says who waits, requests for its bytes give way to others'.
    ///
    /// # Errors
    /// Any [`PackageError`].
    pub async fn member_for(&self, package: &Uri, path: &str, awaited: Priority) -> Result<Member, PackageError> {
        let mut members = self.members(package, &[path.into()]).await?;
        (members.is_single, members.awaited) = (true, awaited);
        match members.next().await {
            Some((_, Ok(length))) => Ok(Member { members, length }),
            Some((_, Err(error))) => Err(error),
            None => Err(PackageError::NoMember { package: package.clone(), path: path.into() }),
        }
    }

    /// Several members, neighbours by one request.
    ///
    /// # Errors
    /// Any [`PackageError`] of the package; what is wrong with one member is told when it comes up.
    pub async fn members(&self, package: &Uri, paths: &[Box<str>]) -> Result<Members, PackageError> {
        let directory = self.directory(package).await?;
        let mut members = Members {
            packages: self.clone(),
            directory,
            waiting: paths.iter().cloned().enumerate().collect(),
            missing: VecDeque::new(),
            runs: VecDeque::new(),
            is_single: false,
            awaited: Priority::default(),
            bytes: None,
            decoder: None,
            changes: 0,
        };
        members.plan().await;
        Ok(members)
    }
}

impl Member {
    /// PackageBytes in all, as the directory says; no more ever come.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Where its bytes lie at the server, where they are not packed: some of them can be had by a range of this version. To
    /// be asked before the first are taken.
    pub fn stored(&self) -> Option<Stored> {
        let (directory, bytes) = (&self.members.directory, self.members.bytes.as_ref()?);
        let is_stored = self.members.decoder.as_ref()?.is_untouched_and_stored();
        let etag = directory.version.etag.clone().filter(|_| is_stored && matches!(directory.place, Place::Server))?;
        let (package, total) = (directory.package().clone(), directory.length());
        Some(Stored { package, etag, total, first: bytes.position() })
    }

    /// The next bytes; `None` at the end. The last ones come only when length and CRC-32 of all are right.
    ///
    /// # Errors
    /// Any [`PackageError`]; nothing comes after one.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, PackageError> {
        self.members.chunk().await
    }
}

impl Members {
    /// Goes to the next member: which of the paths it is, and its length or why it cannot be read. `None` after the last.
    /// After an error of the whole package ([`PackageError::is_of_one_member`] says no) the others meet it too.
    pub async fn next(&mut self) -> Option<(usize, Result<u64, PackageError>)> {
        self.decoder = None;
        if let Some((number, error)) = self.missing.pop_front() {
            return Some((number, Err(error)));
        }
        loop {
            let (number, path) = self.waiting.front()?.clone();
            match self.begin(&path).await {
                Err(PackageError::Changed { .. }) if self.changes < ANEW => {
                    self.changes += 1;
                    self.packages.forget(&self.directory);
                    match self.packages.directory(self.directory.package()).await {
                        Ok(directory) => self.directory = directory,
                        Err(error) => {
                            self.waiting.pop_front();
                            return Some((number, Err(error)));
                        }
                    }
                    self.plan().await;
                    if let Some((number, error)) = self.missing.pop_front() {
                        return Some((number, Err(error)));
                    }
                }
                begun => {
                    self.waiting.pop_front();
                    self.pass();
                    if begun.is_err() {
                        // Where the bytes stand is not known any more.
                        self.bytes = None;
                    }
                    return Some((number, begun));
                }
            }
        }
    }

    /// The next bytes of the member that [`Members::next`] went to; `None` at its end.
    ///
    /// # Errors
    /// Any [`PackageError`]; nothing more of this member comes after one.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, PackageError> {
        let (Some(decoder), Some(bytes)) = (&mut self.decoder, &mut self.bytes) else { return Ok(None) };
        let chunk = decoder.chunk(&self.directory, bytes).await;
        if chunk.is_err() {
            (self.decoder, self.bytes) = (None, None);
        }
        chunk
    }

    /// Reads the local header of the next member.
    async fn begin(&mut self, path: &str) -> Result<u64, PackageError> {
        let number = self.found(path)?;
        let Some(record) = self.directory.record(number).copied() else { return Err(self.no_member(path)) };
        let extent = self.directory.extent(number);
        let bytes = match &mut self.bytes {
            Some(bytes) if bytes.position() <= record.header && record.header < bytes.until() => bytes,
            bytes => {
                let until = self.runs.front().map_or(extent.end, |run| run.range.end.max(extent.end));
                let (packages, directory) = (&self.packages, &self.directory);
                let place = match self.is_single {
                    true => packages.place(directory, number, self.awaited.clone()).await?,
                    false => directory.place.clone(),
                };
                let (package, version) = (directory.package(), &directory.version);
                let fresh = PackageBytes::new(&packages.shared.client, package, version, place, record.header, until);
                bytes.insert(fresh.awaited(self.awaited.clone()))
            }
        };
        self.decoder = Some(Decoder::begin(&self.directory, record, path, bytes).await?);
        Ok(record.length)
    }

    /// One member of the run has come up.
    fn pass(&mut self) {
        if let Some(run) = self.runs.front_mut() {
            run.count = run.count.saturating_sub(1);
            if run.count == 0 {
                self.runs.pop_front();
            }
        }
    }

    /// Finds all members that are still waited for, and joins neighbours.
    async fn plan(&mut self) {
        (self.bytes, self.decoder) = (None, None);
        let mut found = Vec::with_capacity(self.waiting.len());
        for (number, path) in self.waiting.drain(..).collect::<Vec<_>>() {
            if self.directory.find(&path) == Found::Nothing {
                self.packages.learn_excess(&self.directory).await;
            }
            match self.found(&path) {
                Ok(member) => found.push((member, number, path)),
                Err(error) => self.missing.push_back((number, error)),
            }
        }
        found.sort_unstable();
        let line = self.packages.shared.client.line(self.directory.package());
        let gap = line.bytes_in_round_trip().clamp(GAP.start, GAP.end);
        self.runs = runs(found.iter().map(|(member, ..)| self.directory.extent(*member)), gap);
        self.waiting = found.into_iter().map(|(_, number, path)| (number, path)).collect();
    }

    fn found(&self, path: &str) -> Result<u32, PackageError> {
        match self.directory.find(path) {
            Found::Member(number) => Ok(number),
            Found::Nothing => Err(self.no_member(path)),
            Found::Several => {
                Err(PackageError::Ambiguous { package: self.directory.package().clone(), path: path.into() })
            }
        }
    }

    fn no_member(&self, path: &str) -> PackageError {
        PackageError::NoMember { package: self.directory.package().clone(), path: path.into() }
    }
}

/// Joins extents, which are in order, over gaps that cost less than a request.
fn runs(extents: impl Iterator<Item = Range<u64>>, gap: u64) -> VecDeque<Run> {
    let mut runs: VecDeque<Run> = VecDeque::new();
    for extent in extents {
        match runs.back_mut() {
            Some(run) if extent.start <= run.range.end.saturating_add(gap) => {
                run.range.end = run.range.end.max(extent.end);
                run.count += 1;
            }
            _ => runs.push_back(Run { range: extent, count: 1 }),
        }
    }
    runs
}
