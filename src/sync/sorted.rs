//! Changes that are too many to be held: their documents are read once more, each change with its settled time, and sorted on
//! the disk by what they speak of.

use super::SyncError;
use super::dumps;
use super::incremental::{Known, NewChange, SettledDocument, is_change};
use super::read_changes::{KnownRoots, Origin, ReadChanges};
use super::selection::uri_set::UriSet;
use crate::catalog::{Catalog, LastStatements, SetId, Standing, Statement, Statements};
use crate::document::{Change, Entry, Limits, PackageMember, Timestamp, Uri};
use crate::source::documents::DocumentCache;
use std::sync::Arc;

/// Resources that are asked whether they are gone before the next are looked for.
const ASKED_TOGETHER: usize = 1024;

/// Of each resource of each set the last change, to be gone through any number of times.
pub struct SortedChanges {
    /// What was said.
    pub last: LastStatements,
    /// The resources of doubtful deletions that are gone by their own word.
    pub gone: UriSet,
}

impl std::fmt::Debug for SortedChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SortedChanges").finish_non_exhaustive()
    }
}

impl SortedChanges {
    /// The next resources whose deletion is doubtful; none at the end, where it begins again.
    pub fn doubtful(&mut self) -> Result<Vec<Uri>, SyncError> {
        let mut doubtful = Vec::new();
        while let Some(said) = self.last.next()? {
            if said.is_doubtful {
                doubtful.push(said.entry.loc);
                if doubtful.len() == ASKED_TOGETHER {
                    return Ok(doubtful);
                }
            }
        }
        Ok(doubtful)
    }

    /// Calls `visit` for each change, but for deletions that are not so.
    pub fn each(&mut self, visit: &mut dyn FnMut(SetId, &NewChange) -> Result<(), SyncError>) -> Result<(), SyncError> {
        self.last.rewind()?;
        while let Some(said) = self.last.next()? {
            let entry = said.entry;
            if said.is_doubtful && !self.gone.contains(entry.loc.as_str()).map_err(SyncError::Scratch)? {
                continue;
            }
            let (change, time, member) = (said.change, said.time, said.member);
            visit(said.set, &NewChange { change, time, is_doubtful: false, entry, member })?;
        }
        Ok(())
    }
}

/// What is new in `read`, each with what is known of its root; and what is known of each root then.
pub fn sort(
    read: Vec<(Known, ReadChanges)>,
    catalog: &Arc<Catalog>,
    spool: &DocumentCache,
    limits: Limits,
    now: Timestamp,
) -> Result<(SortedChanges, KnownRoots), SyncError> {
    let mut known_after = KnownRoots::new();
    let mut sorting = Sorting { statements: catalog.statements(), documents: 0 };
    for (known, ReadChanges { set, root, documents, unread, origins, lost, .. }) in read {
        let known = known.settle(documents, &unread, now, &mut |_, document| {
            let Some(origin) = origins.get(&document.location) else { return Ok(()) };
            sorting.document(set, &document, origin, spool, limits)
        })?;
        known_after.push((set, root, known.lacking(lost)));
    }
    Ok((SortedChanges { last: sorting.statements.finish()?, gone: UriSet::default() }, known_after))
}

struct Sorting {
    statements: Statements,
    /// Documents so far: what a later one says at the same time counts.
    documents: u64,
}

impl Sorting {
    /// Adds what a document says, which is read once more.
    fn document(
        &mut self,
        set: SetId,
        document: &SettledDocument,
        origin: &Origin,
        spool: &DocumentCache,
        limits: Limits,
    ) -> Result<(), SyncError> {
        let mut place = 0;
        let mut add = |mut entry: Entry, member: Option<PackageMember>| {
            if !is_change(&entry) {
                return Ok(());
            }
            let settled = document.at(place);
            place += 1;
            let Some(settled) = settled else { return Ok(()) };
            let change = *entry.change.get_or_insert(Change::Updated);
            let standing = Standing {
                order: self.documents << 32 | settled.place as u64,
                is_new: settled.is_new,
                is_doubtful: settled.is_doubtful && change == Change::Deleted,
            };
            let statement = Statement { set, change, time: settled.time, entry: &entry, member: member.as_ref() };
            Ok::<_, SyncError>(self.statements.add(&statement, standing)?)
        };
        match origin {
            Origin::List(list) => {
                let broken = |cause| SyncError::Document { location: list.location.clone(), cause };
                let mut reader = spool.reader(list, limits)?;
                while let Some(entry) = reader.next_entry().map_err(broken)? {
                    add(entry, None)?;
                }
            }
            Origin::Package(manifest) => {
                dumps::for_each_entry(manifest, &mut |entry| {
                    let member = manifest.member(&entry);
                    add(entry, member)
                })?;
            }
        }
        self.documents += 1;
        Ok(())
    }
}
