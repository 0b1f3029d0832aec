//! Mounts: from a checked configuration to a process that serves a folder.
//!
//! [`lifecycle`] starts and stops everything in order, `attach` asks the kernel for the mount. `parts` opens what outlives a
//! process (catalog, cached content), `tasks` makes the first revision and passes messages on, `serving` runs until the mount
//! ends. [`registry`] records which mounts run, [`preparation`] checks the folder that is to be mounted on.

mod attach;
pub mod cache_inventory;
pub mod daemonize;
mod descriptor;
mod handlers;
pub mod identity;
pub mod labels;
pub mod lifecycle;
mod limits;
pub mod mountpoint;
mod notifications;
mod parts;
pub mod preparation;
pub mod registry;
mod serving;
pub mod status;
pub mod systemd;
mod tasks;
pub mod units;

pub use attach::apparmor_profile;
pub use lifecycle::run;
pub use limits::LEAST_OPEN_FILES;
pub use serving::LONGEST_END;
pub use tasks::report_failures;

use crate::catalog::CatalogError;
use crate::content::{ContentConfig, ContentError};
use crate::fs::FsOptions;
use crate::fs::session::SessionOptions;
use crate::source::SourceError;
use crate::source::http::{HttpConfig, HttpError};
use crate::source::websub::{WebsubConfig, WebsubError};
use crate::sync::{SyncConfig, SyncError};
use std::path::{Path, PathBuf};

/// The configuration of a mount, checked.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// The mount point, or `/dev/fd/N`: a FUSE descriptor that another process mounted.
    pub directory: PathBuf,
    /// The folder of catalog and objects.
    pub cache: PathBuf,
    /// How the tree is kept in step with its Source.
    pub sync: SyncConfig,
    /// The HTTP client.
    pub http: HttpConfig,
    /// Bytes that may be downloaded ahead of readers and not read yet; 0: none. By default a part of the cache's quota.
    pub readahead: Option<u64>,
    /// The settings of content; its folders are filled in from `cache`.
    pub content: ContentConfig,
    /// The address where hubs deliver notifications.
    pub websub: Option<WebsubConfig>,
    /// How the tree is shown.
    pub fs: FsOptions,
    /// Options of the kernel's mount.
    pub session: SessionOptions,
    /// Programs for which nothing is downloaded (`deny=`).
    pub denied: Vec<Box<str>>,
    /// The file of the log; `None`: standard error.
    pub log: Option<PathBuf>,
    /// The address that serves metrics, as the control socket does (`metrics-listen=`).
    pub metrics: Option<std::net::SocketAddr>,
}

/// The failure of a mount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is missing, not a folder, or in use.
    #[error("{directory}: {what}", directory = .directory.display())]
    Directory {
        /// The mount point.
        directory: PathBuf,
        /// The fault and its remedy.
        what: String,
    },
    /// The process may not open enough files at once.
    #[error(
        "only {limit} files may be open at once, and a mount needs at least {least}: raise the limit (ulimit -n, LimitNOFILE= of \
         systemd, --ulimit nofile= of a container)"
    )]
    OpenFiles {
        /// The limit.
        limit: u64,
        /// The number that a mount needs.
        least: u64,
    },
    /// The kernel has ended the connection although the mount is still there.
    #[error(
        "{directory}: the kernel has aborted the connection of this mount, by /sys/fs/fuse/connections or for a request that took longer \
         than fs.fuse.max_request_timeout; mount it again",
        directory = .directory.display()
    )]
    Aborted {
        /// The mount point.
        directory: PathBuf,
    },
    /// A folder of the cache cannot be used.
    #[error("the cache folder {folder} cannot be used; name another with -o cache=DIR", folder = .folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// The catalog cannot be opened.
    #[error("the catalog cannot be opened")]
    Catalog(#[from] CatalogError),
    /// The content cache cannot be opened.
    #[error("the content cache cannot be opened")]
    Content(#[from] ContentError),
    /// The HTTP client cannot be made of these options.
    #[error("the HTTP client cannot be set up")]
    Http(#[from] HttpError),
    /// The document cache cannot be opened.
    #[error("the folder of downloaded lists cannot be opened")]
    DocumentCache(#[from] SourceError),
    /// Notifications cannot be received as configured.
    #[error("notifications cannot be received")]
    Websub(#[from] WebsubError),
    /// The first tree failed and there is no earlier revision.
    #[error("the Source cannot be mounted")]
    FirstBaseline(#[from] SyncError),
    /// Metrics cannot be served as configured.
    #[error("nothing can listen on {address} for metrics; name another with -o metrics-listen=HOST:PORT")]
    Metrics {
        /// The address as configured.
        address: std::net::SocketAddr,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// The kernel refused the mount.
    #[error("mounting at {directory} failed{hint}", directory = .directory.display())]
    Kernel {
        /// The mount point.
        directory: PathBuf,
        /// The remedy.
        hint: String,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// The operating system refused threads, signals or the like.
    #[error("{what}")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// A signal ended the process before the mount.
    #[error("interrupted before the tree was complete")]
    Interrupted,
}

impl MountError {
    /// Makes an error of the operating system one of a folder of the cache.
    fn cache(folder: &Path) -> impl Fn(std::io::Error) -> MountError + use<> {
        let folder = folder.to_owned();
        move |cause| MountError::Cache { folder: folder.clone(), cause }
    }
}
