//! Why the catalog cannot answer.

use heed::MdbError;
use std::path::{Path, PathBuf};

/// Why the catalog cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Another mount has it open.
    #[error("{folder} is in use by {holder}", folder = .folder.display())]
    Busy {
        /// The catalog's folder.
        folder: PathBuf,
        /// Process and mount point of the other, where known.
        holder: String,
    },
    /// The operating system refused.
    #[error("{path}", path = .path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Its answer.
        #[source]
        cause: std::io::Error,
    },
    /// The store failed.
    #[error("the catalog cannot be read or written")]
    Store(#[from] heed::Error),
    /// A record does not match its checksum or makes no sense: the next baseline must rebuild the store
    /// ([`super::Catalog::distrust`]).
    #[error("the catalog is damaged: {0}")]
    Damaged(String),
    /// The decision on deletions is not made yet; or the store is damaged and is to be built again, but deletions are to be held back,
    /// whose resources cannot be read in it.
    #[error(
        "the catalog is damaged, and to rebuild it would delete many files that the Source no longer lists. To confirm \
         that: resyncfs refresh --accept-deletions DIR"
    )]
    Undecided,
    /// Changes need a baseline before them.
    #[error("the catalog is empty")]
    NoRevision,
}

impl CatalogError {
    /// Answers whether a store with this error can only be rebuilt.
    pub fn is_damage(&self) -> bool {
        match self {
            CatalogError::Damaged(_) => true,
            CatalogError::Store(heed::Error::Mdb(error)) => matches!(
                error,
                MdbError::PageNotFound
                    | MdbError::Corrupted
                    | MdbError::Panic
                    | MdbError::VersionMismatch
                    | MdbError::Invalid
                    | MdbError::MapResized
                    | MdbError::DbsFull
                    | MdbError::Incompatible
            ),
            _ => false,
        }
    }
}

pub(super) fn io_error(path: &Path) -> impl Fn(std::io::Error) -> CatalogError + '_ {
    move |cause| CatalogError::Io { path: path.to_path_buf(), cause }
}
