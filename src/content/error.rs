//! Why bytes or a size cannot be returned.

use crate::document::{Timestamp, Uri};
use crate::source::http::HttpError;
use crate::source::zip::PackageError;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Why bytes or a size cannot be returned. `fs::error` maps each to an errno.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ContentError {
    /// Every place failed; the last failure.
    #[error("{uri} cannot be downloaded")]
    Fetch {
        /// The resource.
        uri: Uri,
        /// The last failure.
        #[source]
        cause: Arc<HttpError>,
    },
    /// The bytes are not those the Source published.
    #[error("{uri}: {what}")]
    Mismatch {
        /// The resource.
        uri: Uri,
        /// Which digest or length, published and seen.
        what: String,
    },
    /// The bytes are not those the Source published, and newer than its list: it has not announced the change yet.
    #[error("{uri} changed at {modified}, and the Source has not announced it: {what}")]
    Unannounced {
        /// The resource.
        uri: Uri,
        /// Its Last-Modified.
        modified: Timestamp,
        /// Which digest or length, published and seen.
        what: String,
        /// True if the name gets a version that can be read ([`Unannounced::Show`]).
        shown: bool,
    },
    /// The Source serves another version now and the old bytes are not here.
    #[error("{uri} has changed at the Source")]
    Changed {
        /// The resource.
        uri: Uri,
    },
    /// The mount shows the Source as it was, and nothing has the bytes of then.
    #[error("no archive of the Source has {uri} as it was at {at}")]
    Unarchived {
        /// The resource.
        uri: Uri,
        /// The time that is shown.
        at: Timestamp,
    },
    /// Its member of a package cannot be read.
    #[error("{uri} cannot be read from its package")]
    Package {
        /// The resource.
        uri: Uri,
        /// The fault of the package or of the member.
        #[source]
        cause: Arc<PackageError>,
    },
    /// No progress in time.
    #[error("{uri}: the download has stalled")]
    Stalled {
        /// The resource.
        uri: Uri,
    },
    /// Its length is not known, and more came than is fetched of such a body.
    #[error("{uri} has no known length, and more than {bytes} bytes came")]
    Endless {
        /// The resource.
        uri: Uri,
        /// Bytes that are fetched at most.
        bytes: u64,
    },
    /// The cache failed and streaming past it failed too.
    #[error("the cache at {path} failed", path = .path.display())]
    Cache {
        /// File or folder.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: Arc<std::io::Error>,
    },
}

impl ContentError {
    /// Returns whether the same may be requested again later: a host did not answer, or the request was not sent.
    pub fn is_retryable(&self) -> bool {
        match self {
            ContentError::Fetch { cause, .. } => cause.is_retryable(),
            ContentError::Stalled { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the request ended in our own queue, which says nothing of its host or of the resource.
    pub fn is_unsent(&self) -> bool {
        match self {
            ContentError::Fetch { cause, .. } => cause.is_unsent(),
            ContentError::Package { cause, .. } => cause.is_unsent(),
            _ => false,
        }
    }

    /// How long its host is known to allow no requests.
    pub fn paused_for(&self) -> Option<Duration> {
        match self {
            ContentError::Fetch { cause, .. } => cause.paused_for(),
            _ => None,
        }
    }

    /// Returns whether the cache folder has no room.
    pub fn is_full(&self) -> bool {
        matches!(self, ContentError::Cache { cause, .. } if cause.kind() == io::ErrorKind::StorageFull)
    }

    /// Returns whether the cache folder could not keep the bytes.
    pub fn is_of_cache(&self) -> bool {
        matches!(self, ContentError::Cache { .. })
    }

    /// Returns whether nothing more may be downloaded.
    pub fn is_spent(&self) -> bool {
        match self {
            ContentError::Fetch { cause, .. } => cause.is_spent(),
            ContentError::Package { cause, .. } => cause.is_spent(),
            _ => false,
        }
    }

    /// The resource, where it is one that fails.
    pub fn uri(&self) -> Option<&Uri> {
        match self {
            ContentError::Fetch { uri, .. }
            | ContentError::Mismatch { uri, .. }
            | ContentError::Unannounced { uri, .. }
            | ContentError::Changed { uri }
            | ContentError::Unarchived { uri, .. }
            | ContentError::Package { uri, .. }
            | ContentError::Endless { uri, .. }
            | ContentError::Stalled { uri } => Some(uri),
            ContentError::Cache { .. } => None,
        }
    }
}
