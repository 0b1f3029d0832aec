//! The persistent index: which names exist, which inode and attributes each has, and which resource it stands for.
//!
//! Readers see one revision at a time through a [`Snapshot`]. Only a [`Commit`] and [`Catalog::renew`], both driven by
//! `sync`, change the tree.
//!
//! - A path is a function of the set of URIs that the Source lists ([`naming`]).
//! - An inode is a path with one content version: other content is another inode, no number is ever given twice. `version` decides
//!   what makes a version.
//! - An entry id belongs to a path for as long as the path exists, and is its directory cookie.
//! - An inode that loses its name is an orphan until the kernel has forgotten it, or the catalog is opened again. Where the tree is
//!   written whole and the kernel has seen no name of its folder, it is dropped at once (`known_folders`).
//! - A revision is the whole tree with the position of `sync`: it is shown whole or not at all.
//! - A resource is a member of one or more sets, and goes when the last drops it. It is shown as the latest statement has it.
//! - A change that was applied stays in the journal until its set's list speaks for a later time: an older list neither
//!   undoes it nor brings back what it deleted.
//! - Of the URIs that share a path the first 100 are shown, by the order of the URIs. Where one of these goes, the next baseline shows
//!   another in its place.
//! - A deletion that is held back leaves its resource in the tree, until it is accepted or its set has the resource again.
//!
//! One road leads to the tree, for an entry of a list as for a change:
//!
//! 1. `commit` takes statements. Each becomes a fact (`fact`) about a path; `sort` sorts them on disk, `journal` says which changes count.
//! 2. `group` brings the facts of one path together, and gives its resources their names.
//! 3. `join` shows each group next to the revision that is shown (`base`): all paths for lists, those that changes name for changes.
//! 4. `edit` keeps what differs and what would leave; `losses` counts it, and the caller decides what of it is held back.
//! 5. A sink writes it (`sink`): few edits in place, many and a first tree whole. `store` is one LMDB environment.

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
pub mod news;
mod pages;
mod renew;
mod sink;
pub mod snapshot;
mod sort;
mod store;
mod types;
mod version;

pub use commit::Commit;
pub use error::CatalogError;
pub use fact::{Share, SharePart};
pub use index::{Catalog, KeepOrphans};
pub use lock::FolderLock;
pub use losses::{Decide, Departure, Held, Losses, SetCounts};
pub use naming::Naming;
pub use news::NewChange;
pub use pages::{ITEMS, ReadPage};
pub use snapshot::Snapshot;
pub use types::*;

#[cfg(test)]
mod tests;
