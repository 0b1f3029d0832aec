//! The journal: of each (set, URI) the last change that was applied, for as long as the set's list does not speak for a
//! later time. Of a set that is not listed, which may only be out of reach for now, it rests until the set is back.

use super::sort::{Sorted, Sorter};
use super::statement::Listing;
use super::store::codec::{Decoder, damaged, push_time};
use super::store::keys::statement_set;
use super::store::record::{ResourceRecord, push_resource};
use super::store::{Lookup, Store};
use super::{CatalogError, Statement};
use crate::document::{Change, Entry, Timestamp, Uri};
use heed::RoTxn;
use std::ops::Bound;

/// One change, as the table and the sorter hold it: what happened and whether `datetime` follows, the time, `datetime`, the
/// record with its URI (of a deletion with nothing else, unless its entry is of no deletion).
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub change: Change,
    /// The resource is gone from the catalog alone: the Source has it, and the record says what it is.
    pub is_left_out: bool,
    /// When, as `sync` has settled it.
    pub time: Timestamp,
    /// The entry's `datetime`, which stands in for a `lastmod`.
    pub shown: Option<Timestamp>,
    pub resource: &'a [u8],
}

impl<'a> Row<'a> {
    const LEFT_OUT: u8 = 3;
    const DATETIME: u8 = 4;

    /// Appends the row of `statement`.
    pub(super) fn encode(statement: &Statement<'_>, out: &mut Vec<u8>) {
        let is_left_out = is_left_out(statement);
        let code = match statement.change {
            Change::Created => 0,
            Change::Updated => 1,
            Change::Deleted if is_left_out => Self::LEFT_OUT,
            Change::Deleted => 2,
        };
        let shown = statement.entry.datetime;
        out.push(code | if shown.is_some() { Self::DATETIME } else { 0 });
        push_time(out, statement.time);
        if let Some(shown) = shown {
            push_time(out, shown);
        }
        if statement.change == Change::Deleted && !is_left_out {
            push_resource(out, &Entry::new(statement.entry.loc.clone()), true, &[statement.set], None);
        } else {
            push_resource(out, statement.entry, true, &[statement.set], statement.member);
        }
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Option<Row<'a>> {
        let mut bytes = Decoder(bytes);
        let flags = bytes.byte()?;
        let change = match flags & !Self::DATETIME {
            0 => Change::Created,
            1 => Change::Updated,
            2 | Self::LEFT_OUT => Change::Deleted,
            _ => return None,
        };
        let time = bytes.time()?;
        let shown = if flags & Self::DATETIME != 0 { Some(bytes.time()?) } else { None };
        let is_left_out = flags & !Self::DATETIME == Self::LEFT_OUT;
        Some(Row { change, is_left_out, time, shown, resource: bytes.0 })
    }

    /// The record of its resource, and the URI; `None` where they make no sense.
    pub(super) fn record(&self) -> Option<(ResourceRecord<'a>, Uri)> {
        let record = ResourceRecord::decode(self.resource)?;
        Some((record, Uri::parse(record.uri?).ok()?))
    }
}

/// Whether a deletion is made of an entry that is of none.
fn is_left_out(statement: &Statement<'_>) -> bool {
    statement.change == Change::Deleted && matches!(statement.entry.change, Some(Change::Created | Change::Updated))
}

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    InForce,
    /// A list supersedes it, or its set is forgotten.
    Goes,
    /// Its set is not listed: it is kept for when it is.
    Rests,
}

/// A row of the journal as a baseline leaves it.
pub(super) struct Settled {
    pub key: Vec<u8>,
    pub row: Vec<u8>,
    pub fate: Fate,
    /// Whether it is not in the table yet.
    pub is_new: bool,
}

/// The first byte of a sorted value.
const NEWS: u8 = 1;
const KNOWN: u8 = 0;

/// Adds a new change as a value of `changes`.
pub(super) fn add_news(changes: &mut Sorter, key: &[u8], statement: &Statement<'_>) -> Result<(), CatalogError> {
    let mut value = vec![NEWS];
    Row::encode(statement, &mut value);
    changes.add(key, &value)
}

/// Adds all that the journal in `store` holds.
pub(super) fn add_known(changes: &mut Sorter, store: &Store, old: &RoTxn<'_>) -> Result<(), CatalogError> {
    for row in store.rows(old, store.journal, (Bound::Unbounded, Bound::Unbounded))? {
        let (key, row) = row?;
        Row::decode(row).and_then(|row| row.record()).ok_or_else(|| damaged("sense", key))?;
        changes.add(key, &[&[KNOWN], row].concat())?;
    }
    Ok(())
}

/// The next row of the journal and the new changes together, ascending by key. Of several changes of one key the last by time counts, of
/// these the new one, of new ones the last added.
pub(super) fn next_settled(changes: &mut Sorted, listing: &Listing) -> Lookup<Settled> {
    let time =
        |key: &[u8], row: &[u8]| Ok::<_, CatalogError>(Row::decode(row).ok_or_else(|| damaged("sense", key))?.time);
    let Some((key, first)) = changes.next()? else { return Ok(None) };
    let key = key.to_vec();
    let (mut news, mut known) = (None::<Vec<u8>>, None::<Vec<u8>>);
    let mut value = Some(first.to_vec());
    while let Some(mut row) = value.take() {
        let is_news = row.remove(0) == NEWS;
        let latest = if is_news { &mut news } else { &mut known };
        if latest.as_ref().map_or(Ok(true), |latest| Ok::<_, CatalogError>(time(&key, &row)? >= time(&key, latest)?))? {
            *latest = Some(row);
        }
        if changes.peek()?.is_some_and(|(next, _)| next == key) {
            value = changes.next()?.map(|(_, value)| value.to_vec());
        }
    }
    let is_new = match (&news, &known) {
        (Some(news), Some(known)) => news != known && time(&key, news)? >= time(&key, known)?,
        (news, _) => news.is_some(),
    };
    let Some(row) = (if is_new { news } else { known }) else { return Ok(None) };
    let set = statement_set(&key).ok_or_else(|| damaged("sense", &key))?;
    let fate = match listing.is_in_force(set, time(&key, &row)?) {
        Some(true) => Fate::InForce,
        Some(false) => Fate::Goes,
        None => Fate::Rests,
    };
    Ok(Some(Settled { key, row, fate, is_new }))
}
