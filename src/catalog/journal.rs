//! The journal: of each (set, URI) the last change that was applied, for as long as the set's list does not speak for a
//! later time. Of a set that is not listed, which may only be out of reach for now, it rests until the set is back.

use super::Statement;
use super::sort::Sorted;
use super::store::codec::{Decoder, damaged, push_time};
use super::store::keys::statement_set;
use super::store::record::{ResourceRecord, push_resource};
use super::store::symbols::Symbols;
use super::store::{Lookup, Store};
use super::{CatalogError, SetId};
use crate::document::{Change, Entry, Timestamp, Uri};
use heed::RoTxn;
use std::cmp::Ordering;
use std::collections::BTreeSet;
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
    pub(super) fn encode(statement: &Statement<'_>, symbols: &Symbols, out: &mut Vec<u8>) {
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
            push_resource(out, &Entry::new(statement.entry.loc.clone()), true, &[statement.set], None, symbols);
        } else {
            push_resource(out, statement.entry, true, &[statement.set], statement.member, symbols);
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
    /// It is in force, and in the table already.
    Stays,
    /// It is in force, and new.
    New,
    /// A list supersedes it, or its set is forgotten; it was in the table.
    Goes,
    /// Its set is not listed: it is to be kept for when it is.
    Rests {
        /// Whether it is not in the table yet.
        is_new: bool,
    },
}

/// The time that the list of each set speaks for, ascending by set.
pub(super) type Lists = [(SetId, Option<Timestamp>)];

/// The time that the list of a set speaks for.
pub(super) fn list_at(lists: &Lists, set: Option<SetId>) -> Option<Timestamp> {
    lists.binary_search_by_key(&set?, |(listed, _)| *listed).ok().and_then(|place| lists[place].1)
}

/// What is listed, and what never will be again.
#[derive(Clone, Copy)]
pub(super) struct Speaking<'l> {
    /// Ascending.
    pub lists: &'l Lists,
    /// Sets that are gone for good.
    pub forgotten: &'l BTreeSet<SetId>,
}

impl Speaking<'_> {
    /// Whether a change of `set` at `time` is in force: its set is listed, and the list does not speak for a
    /// later time. `None` where it rests.
    fn is_in_force(&self, set: SetId, time: Timestamp) -> Option<bool> {
        match self.lists.binary_search_by_key(&set, |(listed, _)| *listed).map(|place| self.lists[place].1) {
            Ok(at) => Some(at.is_none_or(|at| time >= at)),
            Err(_) => self.forgotten.contains(&set).then_some(false),
        }
    }
}

/// Is shown a key, its row and what becomes of that.
pub(super) type Visit<'v> = dyn FnMut(&[u8], &[u8], Fate) -> Result<(), CatalogError> + 'v;

/// Brings the journal in `store` and the changes in `news` together, ascending by key, and shows what becomes of each
/// row. Of several new changes of one key the last by time, then by order, counts.
pub(super) fn brought_forward(
    store: &Store,
    old: &RoTxn<'_>,
    news: &mut Sorted,
    speaking: Speaking<'_>,
    visit: &mut Visit<'_>,
) -> Result<(), CatalogError> {
    let mut rows = store.rows(old, store.journal, (Bound::Unbounded, Bound::Unbounded))?;
    let mut known = rows.next().transpose()?;
    let mut new = next_news(news)?;
    loop {
        let order = match (&known, &new) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((key, _)), Some((new, _))) => (*key).cmp(&new[..]),
        };
        let before = known.filter(|_| order.is_le());
        let after = new.as_ref().filter(|_| order.is_ge()).map(|(key, row)| (&key[..], &row[..]));
        let is_new = match (before, after) {
            // Of the same time the new one counts.
            (Some((key, before)), Some((_, after))) => before != after && time(key, after)? >= time(key, before)?,
            (before, _) => before.is_none(),
        };
        let Some((key, row)) = (if is_new { after } else { before }) else { return Ok(()) };
        let set = statement_set(key).ok_or_else(|| damaged("sense", key))?;
        match (speaking.is_in_force(set, time(key, row)?), before) {
            (Some(true), _) => visit(key, row, if is_new { Fate::New } else { Fate::Stays })?,
            (Some(false), Some((key, before))) => visit(key, before, Fate::Goes)?,
            (Some(false), None) => {}
            (None, _) => visit(key, row, Fate::Rests { is_new })?,
        }
        if order.is_le() {
            known = rows.next().transpose()?;
        }
        if order.is_ge() {
            new = next_news(news)?;
        }
    }
}

fn time(key: &[u8], row: &[u8]) -> Result<Timestamp, CatalogError> {
    Ok(Row::decode(row).ok_or_else(|| damaged("sense", key))?.time)
}

/// The next key with the latest of its changes.
fn next_news(news: &mut Sorted) -> Lookup<(Vec<u8>, Vec<u8>)> {
    let Some((key, row)) = news.next()? else { return Ok(None) };
    let (key, mut latest) = (key.to_vec(), row.to_vec());
    while let Some((_, row)) = news.peek()?.filter(|(next, _)| *next == key) {
        if time(&key, row)? >= time(&key, &latest)? {
            latest = row.to_vec();
        }
        news.next()?;
    }
    Ok(Some((key, latest)))
}
