//! The store: one LMDB environment.
//!
//! | table | key | record |
//! |---|---|---|
//! | entries | parent inode, entry id | [`record::NodeRecord`]: name, inode, times, resource |
//! | names | parent inode, hash of the name | the entry ids of the names with this hash, almost always one; see [`TreeStore::named`] |
//! | inodes | inode | parent inode, entry id |
//! | orphans | inode | the folder of its former name, [`record::NodeRecord`] |
//! | displaced | path by rule, URI (digests) | the URI of a resource that lost that path's plain name to another |
//! | journal | set, URI (digest) | what was changed there last (`journal`) |
//! | held | set, URI (digest) | a deletion held back: the URI |
//! | pages | URI (digest) | a landing page whose links were read ([`super::ReadPage`]) |
//! | meta | a word | format, instance, revision, position, naming, sets |
//!
//! The root is entry 1 of inode 0, which does not exist. A first baseline, level by level, appends to every table.
//!
//! `environment` opens and commits, `tables` reads rows, `compaction` makes a store that replaces another.

pub(super) mod codec;
mod compaction;
mod environment;
pub(super) mod keys;
mod parts;
pub(super) mod record;
mod tables;
mod words;

pub(super) use compaction::Successor;
pub(super) use environment::{make_folder, remove_folder};
pub(super) use tables::Lookup;

use super::CatalogError;
use crate::platform::lmdb::Readers;
use heed::types::Bytes;
use heed::{Database, Env, WithoutTls};
use std::path::PathBuf;
use std::sync::Arc;

/// The root's inode.
pub(super) const ROOT: u64 = 1;

/// The root's entry id, in the folder that does not exist.
pub(super) const ROOT_ENTRY: u64 = 1;

/// The folder of a store that was found damaged when it was opened.
pub(super) const DAMAGED: &str = "store.damaged";

/// A store is compacted where it takes more than so many times what is in it, and more than so many bytes.
pub(super) const WASTE_FACTOR: u64 = 2;
pub(super) const WASTE_LEAST: u64 = 64 << 20;

/// A table; keys and records are plain bytes, see [`record`].
pub(super) type Table = Database<'static, Bytes, Bytes>;

/// Which table of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableId {
    Entries,
    Names,
    Inodes,
    Orphans,
    Displaced,
    Journal,
    Held,
    Pages,
    Meta,
}

/// In the order of [`TableId`].
const TABLES: [&str; 9] = ["entries", "names", "inodes", "orphans", "displaced", "journal", "held", "pages", "meta"];

/// Keys of `meta`.
pub(super) mod meta {
    pub const FORMAT: &[u8] = b"format";
    pub const INSTANCE: &[u8] = b"instance";
    pub const REVISION: &[u8] = b"revision";
    pub const POSITION: &[u8] = b"position";
    pub const NAMING: &[u8] = b"naming";
    pub const SETS: &[u8] = b"sets";
}

/// The open environment, in the folder `store-N` of the catalog. One that replaces it is `store-N+1`; the greatest number counts.
#[derive(Clone)]
pub(super) struct TreeStore {
    folder: PathBuf,
    /// Bits of a name's hash in the keys of `names`.
    hash_bits: u32,
    pub env: Env<WithoutTls>,
    pub readers: Arc<Readers>,
    /// In the order of [`TableId`].
    pub tables: [Table; 9],
}

impl TreeStore {
    pub(super) fn table(&self, id: TableId) -> Table {
        self.tables[id as usize]
    }
}
