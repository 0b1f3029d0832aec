//! Rows of the tables, checked and decoded.

use super::super::naming::names_of_path::{DEEPEST, uri};
use super::codec::{Decoder, damaged, number, unpack, unseal};
use super::keys::{entry_key, ino_key, name_key};
use super::record::{NamedNode, NodeRecord, RevisionRecord, SetTable, orphan};
use super::{CatalogError, ROOT, TableId, TreeStore, meta};
use crate::catalog::Naming;
use crate::document::Uri;
use heed::RoTxn;
use std::ops::Bound;

/// The value at a key, where there is one.
pub type Lookup<T> = Result<Option<T>, CatalogError>;

/// Key and checked record.
pub type TableRow<'t> = Result<(&'t [u8], &'t [u8]), CatalogError>;

impl TreeStore {
    /// The record at `key` of `table`, checked.
    pub fn get<'t>(&self, txn: &'t RoTxn<'_>, table: TableId, key: &[u8]) -> Lookup<&'t [u8]> {
        self.table(table).get(txn, key)?.map(|sealed| unseal(key, sealed)).transpose()
    }

    /// The rows of `table` within `range`, ascending: keys and checked records.
    ///
    /// The row that ends the range is checked too: a damaged key would otherwise hide the rows behind it.
    pub fn rows<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        table: TableId,
        (start, end): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<impl Iterator<Item = TableRow<'t>> + use<'t>, CatalogError> {
        let end = end.map(<[u8]>::to_vec);
        let rows = self.table(table).range(txn, &(start, Bound::Unbounded))?.map(|pair| {
            let (key, sealed) = pair?;
            Ok((key, unseal(key, sealed)?))
        });
        Ok(rows.take_while(move |row: &TableRow<'_>| match (row, &end) {
            (Ok((key, _)), Bound::Included(end)) => *key <= &end[..],
            (Ok((key, _)), Bound::Excluded(end)) => *key < &end[..],
            (Ok(_), Bound::Unbounded) | (Err(_), _) => true,
        }))
    }

    /// All rows of `table`, ascending.
    pub fn all<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        table: TableId,
    ) -> Result<impl Iterator<Item = TableRow<'t>> + use<'t>, CatalogError> {
        self.rows(txn, table, (Bound::Unbounded, Bound::Unbounded))
    }

    /// The record at `key` of `table`, decoded.
    pub fn decoded<'t, T>(
        &self,
        txn: &'t RoTxn<'_>,
        table: TableId,
        key: &[u8],
        decode: impl FnOnce(&'t [u8]) -> Option<T>,
    ) -> Lookup<T> {
        self.get(txn, table, key)?.map(|record| decode(record).ok_or_else(|| damaged("content", key))).transpose()
    }

    pub fn meta<'t>(&self, txn: &'t RoTxn<'_>, key: &[u8]) -> Lookup<&'t [u8]> {
        self.get(txn, TableId::Meta, key)
    }

    pub fn revision(&self, txn: &RoTxn<'_>) -> Lookup<RevisionRecord> {
        self.decoded(txn, TableId::Meta, meta::REVISION, unpack)
    }

    /// Distinguishes this store from every other: see [`crate::catalog::Catalog::instance`].
    pub fn instance(&self, txn: &RoTxn<'_>) -> Result<u64, CatalogError> {
        let instance = self.decoded(txn, TableId::Meta, meta::INSTANCE, unpack)?;
        instance.ok_or_else(|| damaged("absence", meta::INSTANCE))
    }

    /// The sets of the revision; none before the first.
    pub fn sets(&self, txn: &RoTxn<'_>) -> Result<SetTable, CatalogError> {
        Ok(self.decoded(txn, TableId::Meta, meta::SETS, unpack)?.unwrap_or_default())
    }

    /// The naming that the revision was made with.
    pub fn naming(&self, txn: &RoTxn<'_>) -> Result<Naming, CatalogError> {
        let naming = self.decoded(txn, TableId::Meta, meta::NAMING, unpack)?;
        naming.ok_or_else(|| damaged("absence", meta::NAMING))
    }

    /// The node of an inode that lost its name.
    pub fn orphan<'t>(&self, txn: &'t RoTxn<'_>, ino: u64) -> Lookup<NamedNode<'t>> {
        self.decoded(txn, TableId::Orphans, &ino_key(ino), orphan)
    }

    /// The name of an inode; `None` where it has none.
    pub fn by_ino<'t>(&self, txn: &'t RoTxn<'_>, ino: u64) -> Lookup<NamedNode<'t>> {
        let key = ino_key(ino);
        let pair = |pair: &[u8]| Some((number(pair.get(..5)?)?, number(pair.get(5..)?)?));
        let Some((parent, entry)) = self.decoded(txn, TableId::Inodes, &key, pair)? else { return Ok(None) };
        match self.decoded(txn, TableId::Entries, &entry_key(parent, entry), NodeRecord::decode)? {
            Some(node) if node.ino == ino => Ok(Some(NamedNode { parent, entry, node })),
            _ => Err(damaged("entry", &key)),
        }
    }

    /// The path of an inode's name; `None` where it has none.
    pub fn path_of(&self, txn: &RoTxn<'_>, ino: u64) -> Lookup<String> {
        let (mut names, mut above) = (Vec::new(), ino);
        while above != ROOT {
            match self.by_ino(txn, above)? {
                // A chain of folders that is longer than any path is a cycle.
                Some(named) if names.len() <= DEEPEST => {
                    names.push(std::str::from_utf8(named.node.name).map_err(|_| damaged("name", &ino_key(above)))?);
                    above = named.parent;
                }
                None if names.is_empty() => return Ok(None),
                _ => return Err(damaged("parent", &ino_key(above))),
            }
        }
        names.reverse();
        Ok(Some(names.join("/")))
    }

    /// The URI of a file that has a name, in a revision made under `naming`.
    pub fn uri_of(&self, txn: &RoTxn<'_>, node: &NodeRecord<'_>, naming: &Naming) -> Result<Uri, CatalogError> {
        let corrupt = || damaged("resource", &ino_key(node.ino));
        let record = node.resource.ok_or_else(corrupt)?;
        let path = if record.uri.is_none() { self.path_of(txn, node.ino)? } else { None };
        uri(&record, &path.unwrap_or_default(), naming).ok_or_else(corrupt)
    }

    /// The order of `names` within a folder.
    pub fn name_hash(&self, name: &[u8]) -> u32 {
        (xxhash_rust::xxh3::xxh3_64(name) >> (u64::BITS - self.hash_bits)) as u32
    }

    /// The node of `name` in `parent`.
    pub fn named<'t>(&self, txn: &'t RoTxn<'_>, parent: u64, name: &[u8]) -> Lookup<NamedNode<'t>> {
        let key = name_key(parent, self.name_hash(name));
        let mut ids = Decoder(self.get(txn, TableId::Names, &key)?.unwrap_or_default());
        while let Some(entry) = ids.number() {
            let node = self.decoded(txn, TableId::Entries, &entry_key(parent, entry), NodeRecord::decode)?;
            let node = node.ok_or_else(|| damaged("entry", &key))?;
            if node.name == name {
                return Ok(Some(NamedNode { parent, entry, node }));
            }
        }
        Ok(None)
    }

    /// The children of `parent` behind entry `after`, in the order of their entry ids.
    pub fn children<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        parent: u64,
        after: u64,
    ) -> Result<impl Iterator<Item = Result<NamedNode<'t>, CatalogError>> + use<'t>, CatalogError> {
        let (first, end) = (entry_key(parent, after), entry_key(parent + 1, 0));
        let range = (Bound::Excluded(&first[..]), Bound::Excluded(&end[..]));
        Ok(self.rows(txn, TableId::Entries, range)?.map(move |row| {
            let (key, record) = row?;
            let node = NodeRecord::decode(record).ok_or_else(|| damaged("content", key))?;
            let entry = key.get(5..).and_then(number).ok_or_else(|| damaged("key", key))?;
            Ok(NamedNode { parent, entry, node })
        }))
    }
}
