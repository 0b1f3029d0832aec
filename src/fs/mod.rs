//! The filesystem's operations as plain functions over one catalog and one content store; no kernel needed.
//!
//! | file | what it answers |
//! |---|---|
//! | [`attributes`] | LOOKUP, GETATTR |
//! | [`directory`] | READDIRPLUS |
//! | [`read`] | READ |
//! | [`xattr`] | GETXATTR, LISTXATTR |
//! | [`statistics`] | STATFS |
//! | `prefetch` | which files and sizes to fetch before they are asked for |
//! | `fetch_spec` | which bytes are shown, and from which other places they can be fetched |
//! | [`readers`] | which programs read, and those for which nothing is fetched |
//! | [`fuse`] | the adapter to fuser: decode, delegate, reply |
//! | [`session`] | the mount options |
//! | [`heartbeat`], `read_limit` | how long the FUSE threads are busy, how many READs wait |
//! | [`invalidator`] | which changes the kernel is notified of |
//! | [`error`] | the errno of every failure |
//!
//! Each operation takes one snapshot of the catalog and uses it to the end. Only the `async` ones wait on the network.

pub mod attributes;
pub mod directory;
pub mod error;
mod fetch_spec;
pub mod fuse;
pub mod heartbeat;
pub mod invalidator;
mod prefetch;
pub mod read;
mod read_limit;
pub mod readers;
pub mod session;
pub mod statistics;
#[cfg(test)]
mod tests;
pub mod xattr;

pub use fetch_spec::fetch_spec;

use crate::catalog::{Catalog, SetId};
use crate::content::Content;
use crate::document::Timestamp;
use crate::platform::ino::Ino;
use error::FsError;
use prefetch::Prefetch;
use read_limit::ReadLimit;
use readers::Programs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Bytes in one name: the longest of the catalog and of Linux's own filesystems.
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
    /// True if xattrs are shown.
    pub xattr: bool,
    /// True if SELinux runs: the kernel gives each file a label, and programs such as `ls -Z` look for its name in the list of xattrs.
    pub labelled: bool,
    /// How long the kernel may keep a name (push invalidation makes it shorter).
    pub entry_ttl: Duration,
    /// How long the kernel may remember that a name does not exist.
    pub negative_ttl: Duration,
    /// The Source, as shown in the root's xattrs (no credentials).
    pub source: String,
    /// The tree shows the Source as it was at this time (`at=`).
    pub as_of: Option<Timestamp>,
    /// `alternate=`: a resource with an alternate of this media type is shown by the bytes of the alternate.
    pub alternate: Option<Box<str>>,
}

impl Default for FsOptions {
    fn default() -> FsOptions {
        FsOptions {
            uid: 0,
            gid: 0,
            umask: 0,
            xattr: true,
            labelled: false,
            entry_ttl: Duration::from_secs(3600),
            negative_ttl: Duration::from_secs(60),
            source: String::new(),
            as_of: None,
            alternate: None,
        }
    }
}

/// The sets of the Source that are followed, by number, with the URIs of their Capability Lists.
pub type SetNames = dyn Fn() -> Vec<(SetId, String)> + Send + Sync;

/// The operations.
pub struct Filesystem {
    catalog: Arc<Catalog>,
    content: Arc<Content>,
    options: FsOptions,
    /// The path of the mount's control socket, for the root's `user.resyncfs.control`.
    pub control_socket: Option<PathBuf>,
    /// The names of the Source's sets, for the root's `user.resyncfs.sets`.
    pub set_names: Option<Box<SetNames>>,
    runtime: tokio::runtime::Handle,
    /// The programs whose reads are counted, for some of which nothing is fetched.
    pub programs: Arc<Programs>,
    prefetch: Arc<Prefetch>,
    read_limit: Arc<ReadLimit>,
    /// Receives files that are read and folders that are listed, where landing pages are followed.
    pub opened: Option<mpsc::Sender<Ino>>,
}

impl Filesystem {
    /// A filesystem over `catalog` and `content`; operations that wait run on `runtime`. Up to `readahead` unread bytes are fetched ahead of
    /// readers; for 0 sizes alone.
    pub fn new(
        catalog: Arc<Catalog>,
        content: Arc<Content>,
        options: FsOptions,
        runtime: tokio::runtime::Handle,
        readahead: u64,
    ) -> Filesystem {
        let prefetch = Prefetch::new(catalog.clone(), content.clone(), options.clone(), runtime.clone(), readahead);
        Filesystem {
            prefetch: Arc::new(prefetch),
            catalog,
            content,
            options,
            control_socket: None,
            set_names: None,
            runtime,
            programs: Arc::new(Programs::new([])),
            read_limit: Arc::default(),
            opened: None,
        }
    }

    /// Hands on that a file is read, or a folder listed. Where too many wait, the next time will do.
    pub fn opened(&self, ino: Ino) {
        if let Some(opened) = &self.opened {
            let _ = opened.try_send(ino);
        }
    }

    /// Why nothing may be fetched for this thread (`deny=`); `None`: fetching is allowed.
    pub fn denial(&self, thread: u32) -> Option<FsError> {
        self.programs.denied(thread).map(FsError::Denied)
    }
}
