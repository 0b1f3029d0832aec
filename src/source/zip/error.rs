//! Why a package, or a member of one, cannot be read.

use crate::document::{DocumentError, Uri};
use crate::source::http::HttpError;
use std::{io, path::PathBuf, sync::Arc};
use zip::result::ZipError;

/// Why a package, or a member of one, cannot be read: names what, where, and what to do.
///
/// All requests that waited for the same bytes get the same error, so it can be cloned.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PackageError {
    /// A request failed for good.
    #[error("{package} cannot be downloaded")]
    Http {
        /// The package.
        package: Uri,
        /// Cause.
        #[source]
        cause: Arc<HttpError>,
    },
    /// A package of another kind, or no package at all.
    #[error("{package} is not a ZIP file, it is {seen}")]
    NotZip {
        /// The package.
        package: Uri,
        /// Kind of content that it seems to be.
        seen: String,
    },
    /// A ZIP that breaks its own rules.
    #[error("{package} is a damaged ZIP file: {what}")]
    Damaged {
        /// The package.
        package: Uri,
        /// Fault.
        what: String,
        /// The parser's answer, where it is the parser's.
        #[source]
        cause: Option<Arc<ZipError>>,
    },
    /// The server has another version than the one whose directory was read.
    #[error("{package} has changed while it was read; the next read downloads it again")]
    Changed {
        /// The package.
        package: Uri,
    },
    /// None of the bytes that were waited for came in time.
    #[error("{package}: the download has stalled")]
    Stalled {
        /// The package.
        package: Uri,
    },
    /// There is no `manifest.xml` in it.
    #[error("{package} has no manifest.xml, so its resources are unknown")]
    NoManifest {
        /// The package.
        package: Uri,
    },
    /// Nothing says what it holds: a published copy of its manifest cannot be used, or there is none, and nothing less than the whole
    /// package has another.
    #[error("the resources of {package} are unknown: {why}")]
    Unknown {
        /// The package.
        package: Uri,
        /// Why, for a person.
        why: String,
    },
    /// Its `manifest.xml` is not a ResourceSync document.
    #[error("the manifest.xml of {package} cannot be read")]
    Manifest {
        /// The package.
        package: Uri,
        /// Fault.
        #[source]
        cause: Arc<DocumentError>,
    },
    /// The manifest names a member that the package does not have.
    #[error("{package} has no member {path:?}, although its manifest lists it")]
    NoMember {
        /// The package.
        package: Uri,
        /// The `path` of the manifest's entry.
        path: Box<str>,
    },
    /// Several members of different bytes could be meant.
    #[error("{package} has several members that match {path:?}")]
    Ambiguous {
        /// The package.
        package: Uri,
        /// The `path` of the manifest's entry.
        path: Box<str>,
    },
    /// A member that cannot be read, or whose bytes are not what the package says.
    #[error("{path:?} in {package} {what}")]
    Member {
        /// The package.
        package: Uri,
        /// Name of the member.
        path: Box<str>,
        /// Fault.
        what: String,
    },
    /// More than the limits allow.
    #[error("{package}: {what} exceeds the limit of {limit} bytes")]
    TooLarge {
        /// The package.
        package: Uri,
        /// Part that is too large.
        what: &'static str,
        /// Bytes.
        limit: u64,
    },
    /// The folder for packages cannot be read or written.
    #[error("the folder for packages failed at {path}", path = .path.display())]
    Folder {
        /// File or folder.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: Arc<io::Error>,
    },
}

impl PackageError {
    /// Returns whether the same may succeed later, although nothing changes at the Source.
    pub fn is_retryable(&self) -> bool {
        match self {
            PackageError::Http { cause, .. } => cause.is_retryable(),
            PackageError::Changed { .. } | PackageError::Stalled { .. } | PackageError::Folder { .. } => true,
            PackageError::NotZip { .. }
            | PackageError::Damaged { .. }
            | PackageError::NoManifest { .. }
            | PackageError::Unknown { .. }
            | PackageError::Manifest { .. }
            | PackageError::NoMember { .. }
            | PackageError::Ambiguous { .. }
            | PackageError::Member { .. }
            | PackageError::TooLarge { .. } => false,
        }
    }

    /// Returns whether the request ended in our own queue, which says nothing of the package.
    pub fn is_unsent(&self) -> bool {
        matches!(self, PackageError::Http { cause, .. } if cause.is_unsent())
    }

    /// Returns whether nothing more may be downloaded.
    pub fn is_spent(&self) -> bool {
        matches!(self, PackageError::Http { cause, .. } if cause.is_spent())
    }

    /// Returns whether it is about one member alone: others of the same package may be sound.
    pub fn is_of_one_member(&self) -> bool {
        matches!(self, PackageError::NoMember { .. } | PackageError::Ambiguous { .. } | PackageError::Member { .. })
    }

    pub(super) fn too_large(package: &Uri, what: &'static str, limit: u64) -> PackageError {
        PackageError::TooLarge { package: package.clone(), what, limit }
    }

    pub(super) fn no_directory(package: &Uri) -> PackageError {
        PackageError::NotZip { package: package.clone(), seen: "a file without a ZIP's directory at its end".into() }
    }

    pub(super) fn damaged(package: &Uri, what: impl Into<String>) -> PackageError {
        PackageError::Damaged { package: package.clone(), what: what.into(), cause: None }
    }
}
