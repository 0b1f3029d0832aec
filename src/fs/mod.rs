//! The filesystem's operations as plain functions over one catalog and one content store; no kernel needed.
//!
//! | file | what it answers |
//! |---|---|
//! | [`attributes`] | LOOKUP, GETATTR |
//! | [`directory`] | READDIR, READDIRPLUS |
//! | [`read`] | READ |
//! | [`xattr`] | GETXATTR, LISTXATTR |
//! | [`statistics`] | STATFS |
//! | `ahead` | which sizes to ask for before somebody waits for them |
//! | `reading_ahead` | which files to fetch before somebody reads them; `following`: in which order programs read |
//! | `links` | which bytes are shown, and where else they may be had |
//! | [`programs`] | who reads, and who may not have anything fetched |
//! | [`fuse`] | the adapter to fuser: decode, delegate, reply |
//! | [`session`] | with which options the kernel mounts it |
//! | [`invalidator`] | what the kernel is told of changes |
//! | [`error`] | the errno of every failure |
//!
//! Each operation takes one snapshot of the catalog and uses it to the end. Only the `async` ones wait on the network.

mod ahead;
pub mod attributes;
pub mod directory;
pub mod error;
mod following;
pub mod fuse;
pub mod heartbeat;
pub mod invalidator;
mod links;
mod listed;
mod places;
pub mod programs;
pub mod read;
mod reading_ahead;
pub mod session;
pub mod statistics;
#[cfg(test)]
mod tests;
mod waiting;
pub mod xattr;

pub use links::wanted;

use crate::catalog::{Catalog, SetId};
use crate::content::Content;
use crate::content::prefetch::Ledger;
use crate::document::Timestamp;
use crate::source::http::Turns;
use ahead::{AHEAD, Sizing};
use error::FsError;
use programs::Programs;
use reading_ahead::ReadingAhead;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Octets in one name: the catalog makes none longer, and Linux's own filesystems have none longer.
pub const NAME_MAX: usize = 255;

/// How the tree is shown.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// Owner of everything.
    pub uid: u32,
    /// Group of everything.
    pub gid: u32,
    /// Bits taken from 0444 and 0555.
    pub umask: u16,
    /// Whether xattrs are shown.
    pub xattr: bool,
    /// How long the kernel may keep a name (push invalidation makes it shorter).
    pub entry_ttl: Duration,
    /// How long the kernel may keep that a name does not exist.
    pub negative_ttl: Duration,
    /// The Source, as shown in the root's xattrs (no credentials).
    pub source: String,
    /// The tree is the Source's as it was then (`at=`).
    pub as_of: Option<Timestamp>,
    /// `alternate=`: a resource with an alternate of this media type is shown with that one's bytes.
    pub alternate: Option<Box<str>>,
}

/// The sets of the Source that are followed, by number, with the URIs of their Capability Lists.
type SetNames = dyn Fn() -> Vec<(SetId, String)> + Send + Sync;

/// The operations.
pub struct Filesystem {
    catalog: Arc<Catalog>,
    content: Arc<Content>,
    options: FsOptions,
    /// What the root's `user.resyncfs.control` tells.
    control_socket: Option<PathBuf>,
    /// What the root's `user.resyncfs.sets` tells.
    set_names: Option<Box<SetNames>>,
    runtime: tokio::runtime::Handle,
    programs: Arc<Programs>,
    sizing: Sizing,
    /// Sizes being asked for ahead of one host: with the one that is waited for meanwhile, [`AHEAD`].
    sizing_turns: Arc<Turns>,
    reading: Arc<ReadingAhead>,
}

impl Filesystem {
    /// A filesystem over `catalog` and `content`; what waits runs on `runtime`.
    pub fn new(
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        options: FsOptions,
        runtime: tokio::runtime::Handle,
    ) -> Filesystem {
        let reading =
            ReadingAhead::new(Arc::clone(&catalog), Arc::clone(&content), options.clone(), runtime.clone(), 0, 0);
        Filesystem {
            reading: Arc::new(reading),
            catalog,
            content,
            options,
            control_socket: None,
            set_names: None,
            runtime,
            programs: Arc::new(Programs::new([])),
            sizing: Sizing::default(),
            sizing_turns: Arc::new(Turns::new(AHEAD - 1)),
        }
    }

    /// The same, telling on its root where the mount's control socket lies.
    pub fn with_control_socket(self, path: PathBuf) -> Filesystem {
        Filesystem { control_socket: Some(path), ..self }
    }

    /// The same, telling on its root what the numbers of the Source's sets stand for.
    pub fn with_set_names(self, names: impl Fn() -> Vec<(SetId, String)> + Send + Sync + 'static) -> Filesystem {
        Filesystem { set_names: Some(Box::new(names)), ..self }
    }

    /// The same, counting what is read by `programs`, of which some may not have anything fetched.
    pub fn with_programs(self, programs: Arc<Programs>) -> Filesystem {
        Filesystem { programs, ..self }
    }

    /// Who reads.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Why nothing may be fetched for this thread (`deny=`); `None`: it may.
    pub fn denial(&self, thread: u32) -> Option<FsError> {
        self.programs.denied(thread).map(FsError::Denied)
    }

    /// The same, fetching files ahead of whoever reads one after the other: `at_once` at a time, up to `limit` octets that
    /// were not read yet; nothing where either is 0.
    pub fn with_reading_ahead(self, at_once: usize, limit: u64) -> Filesystem {
        let reading = ReadingAhead::new(
            Arc::clone(&self.catalog),
            Arc::clone(&self.content),
            self.options.clone(),
            self.runtime.clone(),
            at_once,
            limit,
        );
        Filesystem { reading: Arc::new(reading), ..self }
    }

    /// What reading ahead has brought since the start.
    pub fn read_ahead(&self) -> Ledger {
        self.reading.ledger()
    }

    /// How the tree is shown.
    pub fn options(&self) -> &FsOptions {
        &self.options
    }

    /// Where what waits runs.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }
}
