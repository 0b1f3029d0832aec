//! The changes that the journal of a revision holds, the deletions that are held back, and the landing pages that were read.

use super::super::journal::ChangeRow;
use super::super::store::TableId;
use super::super::store::codec::{damaged, unpack};
use super::super::store::keys::{digest, resource_key, set_of_key};
use super::super::{CatalogError, ITEMS, Journaled, ReadPage, Resource, SetId, Snapshot, StatedChange};
use crate::document::{Change, Entry, PackageMember, Timestamp, Uri};

impl Snapshot<'_> {
    /// The last change of a resource in a set, unless the set's list speaks for a later time.
    pub fn journaled(&self, set: SetId, uri: &Uri) -> Result<Option<Journaled>, CatalogError> {
        self.read(|| {
            let row = self.store.decoded(self.txn(), TableId::Journal, &resource_key(set, uri), ChangeRow::decode)?;
            Ok(row.map(|row| Journaled { change: row.change, time: row.time, datetime: row.datetime }))
        })
    }

    /// The order of the last change that the journal holds of a resource and that of `entry` at `time`: later, this very one, earlier. `None`
    /// where there is none, or another one of the same time. Without `time` that of the journal counts for both.
    pub fn compare_journal(
        &self,
        set: SetId,
        time: Option<Timestamp>,
        (entry, member): (&Entry, Option<&PackageMember>),
    ) -> Result<Option<std::cmp::Ordering>, CatalogError> {
        self.read(|| {
            let key = resource_key(set, &entry.loc);
            let Some(held) = self.store.get(self.txn(), TableId::Journal, &key)? else {
                return Ok(None);
            };
            let row = ChangeRow::decode(held).ok_or_else(|| damaged("content", &key))?;
            if let Some(time) = time.filter(|time| *time != row.time) {
                return Ok(Some(row.time.cmp(&time)));
            }
            let (change, is_left_out) = (entry.change.unwrap_or(Change::Updated), row.is_left_out);
            let same = ChangeRow::of(&StatedChange { set, change, time: row.time, is_left_out, entry, member });
            Ok((held == same).then_some(std::cmp::Ordering::Equal))
        })
    }

    /// Calls `visit` for every change that the journal holds, set by set, with what it says of the resource (of a deletion the
    /// URI alone). A resource that is there and was left out by choice is not a deletion here.
    pub fn journal(
        &self,
        visit: &mut dyn FnMut(SetId, Journaled, Resource) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        let decode = |key: &[u8], row: &[u8]| {
            let row = ChangeRow::decode(row)?;
            let (record, uri) = row.record()?;
            let change = if row.is_left_out { Change::Updated } else { row.change };
            let last = Journaled { change, time: row.time, datetime: row.datetime };
            Some((set_of_key(key)?, last, record.resource(uri)?))
        };
        self.scan(TableId::Journal, decode, &mut |(set, last, resource)| visit(set, last, resource))
    }

    /// The landing page of this address, if its links were read.
    pub fn page(&self, uri: &Uri) -> Result<Option<ReadPage>, CatalogError> {
        self.read(|| self.store.decoded(self.txn(), TableId::Pages, &digest(uri.as_str()), unpack))
    }

    /// Calls `visit` for each landing page whose links were read.
    pub fn pages(&self, visit: &mut dyn FnMut(ReadPage) -> Result<(), CatalogError>) -> Result<(), CatalogError> {
        self.scan(TableId::Pages, |_, row| unpack(row), visit)
    }

    /// The number of landing pages whose links were read.
    pub fn page_count(&self) -> Result<u64, CatalogError> {
        self.read(|| Ok(self.store.table(TableId::Pages).len(self.txn())?))
    }

    /// Calls `visit` for each row of a table, decoded.
    fn scan<T>(
        &self,
        table: TableId,
        decode: impl Fn(&[u8], &[u8]) -> Option<T>,
        visit: &mut dyn FnMut(T) -> Result<(), CatalogError>,
    ) -> Result<(), CatalogError> {
        self.read(|| {
            for row in self.store.all(self.txn(), table)? {
                let (key, record) = row?;
                visit(decode(key, record).ok_or_else(|| damaged("content", key))?)?;
            }
            Ok(())
        })
    }

    /// The number of changes that the journal holds, those of items that are shown not counted.
    pub fn journal_count(&self) -> Result<u64, CatalogError> {
        self.read(|| {
            let items = self.store.sets(self.txn())?.get(&ITEMS).map_or(0, |set| set.files);
            Ok(self.store.table(TableId::Journal).len(self.txn())?.saturating_sub(items))
        })
    }

    /// The number of deletions that are held back.
    pub fn held_count(&self) -> Result<u64, CatalogError> {
        self.read(|| Ok(self.store.table(TableId::Held).len(self.txn())?))
    }

    /// The number of deletions of this set that are held back.
    pub fn held_of(&self, set: SetId) -> Result<u64, CatalogError> {
        self.read(|| {
            let mut rows = self.store.table(TableId::Held).prefix_iter(self.txn(), &set.0.to_be_bytes())?;
            Ok(rows.try_fold(0, |count, row| row.map(|_| count + 1))?)
        })
    }
}
