//! The persistent index: which names exist, what inode and attributes each has, and which resource it stands for.
//!
//! Readers see one revision at a time through a [`Snapshot`]; the only writer is that of [`Baseline`], [`Changes`] and [`Catalog::renew`], driven by `sync`.
//!
//! - A path is a function of the set of URIs that the Source lists ([`naming`]).
//! - An inode is a path with one content version: other content is another inode, no number is ever given twice. What
//!   makes a version is decided in `version`.
//! - An entry id belongs to a path for as long as the path exists, and is its directory cookie.
//! - An inode that loses its name is an orphan until the kernel has forgotten it, or the catalog is opened again. One in a folder
//!   of which the kernel has seen no name is none (`seen`).
//! - A revision is the whole tree with the position of `sync`: it is shown whole or not at all.
//! - A resource is a member of one or more sets, and goes when the last drops it. It is shown as the last statement has it.
//! - A change that was applied stays in the journal until its set's list speaks for a later time: an older list neither
//!   undoes it nor brings back what it deleted.
//! - Of the URIs that share a path the first 100 are shown, by the order of the URIs. Where one of these goes, the next baseline shows
//!   another in its place.
//! - A deletion that is held back leaves its resource in the tree, until it is accepted or its set has the resource again.
//!
//! On disk it is one LMDB environment (`store`), filled in key order from an external sort (`sort`).
//!
//! A [`Baseline`] sorts what it is given by depth and path (`sort_key`): the files, a row for each folder, and what changes supersede
//! (`ingest`). Then it walks the sorted statement and the current revision together, folder by folder (`walk`), with everything that is
//! stated of each path (`statement`). That gives what differs, resource by resource (`diff`), and what would leave (`departing`), for
//! the decision what of it is held back. [`Changes`] finds the same for single statements.
//!
//! One writer takes it from there (`writer`), in one of two ways. Few changes are written in place (`apply`). Many, and a first revision,
//! are one more walk that writes everything into another store (`rebuild`), which takes the place of the one there was.

mod base;
mod commit;
mod edit;
mod error;
mod fact;
mod group;
mod index;
mod join;
mod journal;
mod known_folders;
mod lock;
mod losses;
pub mod naming;
mod renew;
mod sink;
pub mod snapshot;
mod sort;
mod store;
mod types;
mod version;

pub use commit::Commit;
pub use error::CatalogError;
pub use fact::{Share, Shared};
pub use index::Catalog;
pub use lock::FolderLock;
pub use naming::Naming;
pub use snapshot::Snapshot;
pub use types::*;

#[cfg(test)]
mod tests;
