//! The journal: of each (set, URI) the last change that was applied, for as long as the set's list does not speak for a
//! later time. Of a set that is not listed, which may only be out of reach for now, it rests until the set is back.

use super::base::Before;
use super::group::{Fate, Listing};
use super::sort::{Sorted, Sorter};
use super::store::codec::{damaged, pack, unpack};
use super::store::keys::statement_set;
use super::store::record::{ResourceRecord, push_resource};
use super::store::{Lookup, Store};
use super::{CatalogError, Statement};
use crate::document::{Change, Entry, Timestamp, Uri};
use heed::RoTxn;
use serde::{Deserialize, Serialize};
use std::ops::Bound;

/// One change, as the table and the statement hold it.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Row<'a> {
    /// What happened.
    pub change: Change,
    /// Whether the resource is gone from the catalog alone: the Source has it, and the record says what it is.
    pub is_left_out: bool,
    /// When, as `sync` has settled it.
    pub time: Timestamp,
    /// The entry's `datetime`, which stands in for a `lastmod`.
    pub shown: Option<Timestamp>,
    /// The record with its URI; of a deletion with nothing else, unless its entry is of no deletion.
    pub resource: &'a [u8],
}

impl<'a> Row<'a> {
    /// The row of `statement`.
    pub(super) fn of(statement: &Statement<'_>) -> Vec<u8> {
        let Statement { set, change, time, entry, member } = *statement;
        let (is_deletion, mut resource) = (change == Change::Deleted, Vec::new());
        let is_left_out = is_deletion && matches!(entry.change, Some(Change::Created | Change::Updated));
        if is_deletion && !is_left_out {
            push_resource(&mut resource, &Entry::new(entry.loc.clone()), true, &[set], None);
        } else {
            push_resource(&mut resource, entry, true, &[set], member);
        }
        pack(&Row { change, is_left_out, time, shown: entry.datetime, resource: &resource })
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Option<Row<'a>> {
        unpack(bytes)
    }

    /// The record of its resource, and the URI; `None` where they make no sense.
    pub(super) fn record(&self) -> Option<(ResourceRecord<'a>, Uri)> {
        let record = ResourceRecord::decode(self.resource)?;
        Some((record, Uri::parse(record.uri?).ok()?))
    }
}

/// A row of the journal as a baseline leaves it.
pub(super) struct Settled {
    pub key: Vec<u8>,
    pub row: Vec<u8>,
    pub fate: Fate,
    /// Whether it is not in the table yet.
    pub is_new: bool,
}

/// Adds all that the journal in `store` holds, in front of the new changes.
pub(super) fn add_known(changes: &mut Sorter, store: &Store, old: &RoTxn<'_>) -> Result<(), CatalogError> {
    for row in store.rows(old, store.journal, (Bound::Unbounded, Bound::Unbounded))? {
        let (key, row) = row?;
        Row::decode(row).and_then(|row| row.record()).ok_or_else(|| damaged("sense", key))?;
        changes.add(key, row)?;
    }
    Ok(())
}

/// The next row of the journal and the new changes together, ascending by key. Of several changes of one key the last by time counts, of
/// these the last added.
pub(super) fn next_settled(changes: &mut Sorted, listing: &Listing, before: &Before<'_>) -> Lookup<Settled> {
    let time =
        |key: &[u8], row: &[u8]| Ok::<_, CatalogError>(Row::decode(row).ok_or_else(|| damaged("sense", key))?.time);
    let Some((key, row)) = changes.next()? else { return Ok(None) };
    let (key, mut row) = (key.to_vec(), row.to_vec());
    while let Some((_, other)) = changes.peek()?.filter(|(next, _)| *next == key) {
        if time(&key, other)? >= time(&key, &row)? {
            row = other.to_vec();
        }
        changes.next()?;
    }
    let set = statement_set(&key).ok_or_else(|| damaged("sense", &key))?;
    let fate = listing.fate(set, time(&key, &row)?);
    let is_new = before.store.get(before.old, before.store.journal, &key)? != Some(&row);
    Ok(Some(Settled { key, row, fate, is_new }))
}
