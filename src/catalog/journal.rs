//! The journal: the last change of each (set, URI) that was applied, for as long as the set's list does not speak for a later time. The
//! rows of a set that is not listed rest until the set is back: it may only be out of reach for now.

use super::base::Base;
use super::group::FactScope;
use super::sort::{Sorted, Sorter};
use super::store::codec::{damaged, pack, unpack};
use super::store::keys::set_of_key;
use super::store::record::{ResourceRecord, push_resource};
use super::store::{Lookup, TableId, TreeStore};
use super::{CatalogError, SetId, StatedChange};
use crate::document::{Change, Entry, Timestamp, Uri};
use heed::RoTxn;
use serde::{Deserialize, Serialize};

/// A change, as the table and a sorter hold it.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct ChangeRow<'a> {
    pub change: Change,
    /// True if the Source has the resource, and it was left out by choice: the record says what it is.
    pub is_left_out: bool,
    /// When, as `sync` has decided it.
    pub time: Timestamp,
    /// The entry's `datetime`, which stands in for a `lastmod`.
    pub datetime: Option<Timestamp>,
    /// The record with its URI; of a deletion with nothing else, unless the entry was not itself a deletion.
    pub resource: &'a [u8],
}

impl<'a> ChangeRow<'a> {
    /// The row of a change.
    pub(super) fn of(stated: &StatedChange<'_>) -> Vec<u8> {
        let StatedChange { set, change, time, is_left_out, entry, member } = *stated;
        let mut resource = Vec::new();
        let change = if is_left_out { Change::Deleted } else { change };
        if change == Change::Deleted && !is_left_out {
            push_resource(&mut resource, &Entry::new(entry.loc.clone()), true, [set], None);
        } else {
            push_resource(&mut resource, entry, true, [set], member);
        }
        pack(&ChangeRow { change, is_left_out, time, datetime: entry.datetime, resource: &resource })
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Option<ChangeRow<'a>> {
        unpack(bytes)
    }

    /// The record of its resource, and the URI; `None` where they make no sense.
    pub(super) fn record(&self) -> Option<(ResourceRecord<'a>, Uri)> {
        let record = ResourceRecord::decode(self.resource)?;
        Some((record, Uri::parse_item(record.uri?).ok()?))
    }
}

/// A row of the journal as a commit leaves it.
pub(super) struct JournalRow {
    pub key: Vec<u8>,
    pub row: Vec<u8>,
    pub set: SetId,
    pub fate: Fate,
    /// True where the table does not have it yet.
    pub is_new: bool,
}

impl JournalRow {
    /// The change, the record of its resource, and the URI.
    pub(super) fn change(&self) -> Result<(ChangeRow<'_>, ResourceRecord<'_>, Uri), CatalogError> {
        let corrupt = || damaged("content", &self.key);
        let row = ChangeRow::decode(&self.row).ok_or_else(corrupt)?;
        let (record, uri) = row.record().ok_or_else(corrupt)?;
        Ok((row, record, uri))
    }
}

/// Fate of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    InForce,
    /// The list of its set speaks for a later time, or its set is forgotten.
    Superseded,
    /// Its set is not listed: it is kept for when it is.
    Kept,
}

/// The fate of a change of `set` at `time`.
fn fate(scope: &FactScope, set: SetId, time: Timestamp) -> Fate {
    match scope.lists.get(&set) {
        _ if scope.forgotten.contains(&set) => Fate::Superseded,
        Some(Some(at)) if !time.may_reach(*at) => Fate::Superseded,
        Some(_) => Fate::InForce,
        None if scope.is_partial => Fate::InForce,
        None => Fate::Kept,
    }
}

/// Adds all rows of the journal in `store`, in front of the new changes.
pub(super) fn add_known(changes: &mut Sorter, store: &TreeStore, txn: &RoTxn<'_>) -> Result<(), CatalogError> {
    for row in store.all(txn, TableId::Journal)? {
        let (key, row) = row?;
        ChangeRow::decode(row).and_then(|row| row.record()).ok_or_else(|| damaged("content", key))?;
        changes.add(key, row)?;
    }
    Ok(())
}

/// The next row of the journal and the new changes together, ascending by key. The last change of a key counts by time, then
/// by the order of calls. A commit of changes has only the rows of its keys.
pub(super) fn next_row(changes: &mut Sorted, scope: &FactScope, base: &Base<'_>) -> Lookup<JournalRow> {
    let time = |key: &[u8], row: &[u8]| {
        Ok::<_, CatalogError>(ChangeRow::decode(row).ok_or_else(|| damaged("content", key))?.time)
    };
    let Some((key, _)) = changes.peek()? else { return Ok(None) };
    let key = key.to_vec();
    let known = base.store.get(base.txn, TableId::Journal, &key)?;
    let mut row = known.filter(|_| scope.is_partial).map(<[u8]>::to_vec);
    while let Some((_, other)) = changes.peek()?.filter(|(next, _)| *next == key) {
        let is_later = match &row {
            Some(row) => time(&key, other)? >= time(&key, row)?,
            None => true,
        };
        if is_later {
            row = Some(other.to_vec());
        }
        changes.next()?;
    }
    let row = row.unwrap_or_default();
    let set = set_of_key(&key).ok_or_else(|| damaged("content", &key))?;
    let (fate, is_new) = (fate(scope, set, time(&key, &row)?), known != Some(&row[..]));
    Ok(Some(JournalRow { key, row, set, fate, is_new }))
}
