//! The journal: of each (set, URI) the last change that was applied, for as long as the set's list does not speak for a
//! later time. Of a set that is not listed, which may only be out of reach for now, it rests until the set is back.

use super::Statement;
use super::sort::Sorted;
use super::store::Store;
use super::store::codec::{Octets, damaged, push_time, unseal};
use super::store::keys::statement_set;
use super::store::record::{ResourceRecord, push_resource};
use super::store::symbols::Symbols;
use super::{CatalogError, SetId};
use crate::document::{Change, Entry, Timestamp, Uri};

use heed::RoTxn;
use std::collections::BTreeSet;

/// One change, as the table and the sorter hold it: what happened and whether `datetime` follows, the time, `datetime`, the
/// record with its URI (of a deletion with nothing else, unless the entry itself tells of none).
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub change: Change,
    /// Whether it is only for the catalog that the resource is gone: it is there, and the record says what it is.
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

    /// Encodes what `statement` says.
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

    pub(super) fn decode(octets: &'a [u8]) -> Option<Row<'a>> {
        let mut octets = Octets(octets);
        let flags = octets.octet()?;
        let change = match flags & !Self::DATETIME {
            0 => Change::Created,
            1 => Change::Updated,
            2 | Self::LEFT_OUT => Change::Deleted,
            _ => return None,
        };
        let time = octets.time()?;
        let shown = if flags & Self::DATETIME != 0 { Some(octets.time()?) } else { None };
        let is_left_out = flags & !Self::DATETIME == Self::LEFT_OUT;
        Some(Row { change, is_left_out, time, shown, resource: octets.0 })
    }

    /// The record of its resource, and the URI; `None` where they make no sense.
    pub(super) fn record(&self) -> Option<(ResourceRecord<'a>, Uri)> {
        let record = ResourceRecord::decode(self.resource)?;
        Some((record, Uri::parse(record.uri?).ok()?))
    }
}

/// Whether a statement that its resource is gone is made of an entry that does not say so.
fn is_left_out(statement: &Statement<'_>) -> bool {
    statement.change == Change::Deleted && matches!(statement.entry.change, Some(Change::Created | Change::Updated))
}

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is in force, and in the table.
    Stays,
    /// It is in force, and new.
    New,
    /// A list has overtaken it, or its set is forgotten; it was in the table.
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

/// What is listed, and what is not to be listed any more.
#[derive(Clone, Copy)]
pub(super) struct Speaking<'l> {
    /// Ascending.
    pub lists: &'l Lists,
    /// Sets that are gone for good.
    pub forgotten: &'l BTreeSet<SetId>,
}

impl Speaking<'_> {
    /// Whether a change of `set` at `time` is in force beside the lists: its set is listed, and the list does not speak for a
    /// later time. `None` where it rests.
    fn is_in_force(&self, set: SetId, time: Timestamp) -> Option<bool> {
        match self.lists.binary_search_by_key(&set, |(listed, _)| *listed).map(|place| self.lists[place].1) {
            Ok(at) => Some(at.is_none_or(|at| time >= at)),
            Err(_) => self.forgotten.contains(&set).then_some(false),
        }
    }
}

/// Is told key, row and what becomes of it.
pub(super) type Tell<'t> = dyn FnMut(&[u8], &[u8], Fate) -> Result<(), CatalogError> + 't;

/// Brings the journal in `store` and the new changes in `statements` together, ascending by key, and tells what becomes of each
/// row. Of several changes of one key the last by time, then by order, counts.
pub(super) fn brought_forward(
    store: &Store,
    old: &RoTxn<'_>,
    statements: &mut Sorted,
    speaking: Speaking<'_>,
    tell: &mut Tell<'_>,
) -> Result<(), CatalogError> {
    let mut rows = store.journal.iter(old)?;
    let mut row = next_row(&mut rows)?;
    let mut latest = Latest::default();
    let mut more = latest.next(statements)?;
    loop {
        let order = match (&row, more) {
            (None, false) => return Ok(()),
            (Some(_), false) => std::cmp::Ordering::Less,
            (None, true) => std::cmp::Ordering::Greater,
            (Some((key, _)), true) => (*key).cmp(&latest.key[..]),
        };
        let (key, octets, fate) = match (&row, order) {
            (Some((key, known)), std::cmp::Ordering::Less) => (*key, *known, Fate::Stays),
            (Some((key, known)), std::cmp::Ordering::Equal) if !later(key, &latest.octets, known)? => {
                (*key, *known, Fate::Stays)
            }
            _ => (&latest.key[..], &latest.octets[..], Fate::New),
        };
        let sense = || damaged("sense", key);
        let time = Row::decode(octets).ok_or_else(sense)?.time;
        let set = statement_set(key).ok_or_else(sense)?;
        match (speaking.is_in_force(set, time), fate) {
            (Some(true), fate) => tell(key, octets, fate)?,
            (Some(false), _) => {
                if let Some((key, known)) = row.filter(|_| order.is_le()) {
                    tell(key, known, Fate::Goes)?;
                }
            }
            (None, fate) => tell(key, octets, Fate::Rests { is_new: fate == Fate::New })?,
        }
        if order.is_le() {
            row = next_row(&mut rows)?;
        }
        if order.is_ge() {
            more = latest.next(statements)?;
        }
    }
}

/// Whether the change `new` counts behind the row `known`; one that says the same does not.
fn later(key: &[u8], new: &[u8], known: &[u8]) -> Result<bool, CatalogError> {
    let sense = || damaged("sense", key);
    let (after, before) = (Row::decode(new).ok_or_else(sense)?, Row::decode(known).ok_or_else(sense)?);
    Ok(new != known && after.time >= before.time)
}

/// Key and row.
type Pair<'t> = (&'t [u8], &'t [u8]);

type SealedRows<'t> = heed::RoIter<'t, heed::types::Bytes, heed::types::Bytes>;

fn next_row<'t>(rows: &mut SealedRows<'t>) -> Result<Option<Pair<'t>>, CatalogError> {
    match rows.next().transpose()? {
        Some((key, sealed)) => Ok(Some((key, unseal(key, sealed)?))),
        None => Ok(None),
    }
}

/// The latest of the changes of one key that were added to a sorter.
#[derive(Default)]
struct Latest {
    key: Vec<u8>,
    octets: Vec<u8>,
    /// The first pair of the key behind.
    behind: Option<(Vec<u8>, Vec<u8>)>,
}

impl Latest {
    /// Goes to the next key; `false` at the end.
    fn next(&mut self, statements: &mut Sorted) -> Result<bool, CatalogError> {
        let first = match self.behind.take() {
            Some(first) => Some(first),
            None => statements.next()?.map(|(key, octets)| (key.to_vec(), octets.to_vec())),
        };
        let Some((key, octets)) = first else { return Ok(false) };
        (self.key, self.octets) = (key, octets);
        while let Some((key, octets)) = statements.next()? {
            if *key != self.key {
                self.behind = Some((key.to_vec(), octets.to_vec()));
                break;
            }
            let sense = || damaged("sense", key);
            let known = Row::decode(&self.octets).ok_or_else(sense)?;
            if Row::decode(octets).ok_or_else(sense)?.time >= known.time {
                self.octets.clear();
                self.octets.extend_from_slice(octets);
            }
        }
        Ok(true)
    }
}
