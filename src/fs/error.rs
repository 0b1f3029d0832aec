//! The one map from an error to an errno.
//!
//! The `match` names each variant, so that a new error does not compile before its errno is decided. What a caller can do about the
//! error decides the errno:
//!
//! | errno | meaning |
//! |---|---|
//! | `EACCES` | the Source refuses our credentials (401, 403), or nothing is fetched for this program (`deny=`): the administrator can change that |
//! | `ESTALE` | the inode does not exist any more, or its version is no longer served: look the name up again |
//! | `EINTR` | the program that asked has ended; no program sees it |
//! | `EAGAIN` | the kernel reads too far ahead; it asks again for what a program needs |
//! | `EDQUOT` | the run has downloaded as much as `max-download=` allows: files that are here can still be read |
//! | `EIO` | everything else that failed on the way to the right bytes: 404, 410, timeouts, wrong bytes, the cache |

use crate::catalog::CatalogError;
use crate::content::ContentError;
use crate::document::Uri;
use crate::platform::ino::Ino;
use fuser::Errno;
use std::sync::Arc;
use tracing::Level;

/// Why an operation of the filesystem fails.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The catalog could not answer.
    #[error("the catalog failed")]
    Catalog(#[from] CatalogError),
    /// The bytes or the size of a file are missing.
    #[error("the content failed")]
    Content(#[from] ContentError),
    /// The inode is neither current nor an orphan.
    #[error("inode {0} does not exist any more")]
    Gone(Ino),
    /// The bytes or the size must be fetched, and nothing is fetched for this program (`deny=`).
    #[error("nothing is fetched for {0}, because of deny=")]
    Denied(Arc<str>),
    /// The kernel reads so far ahead in this file that other files would have to wait; no program sees this.
    #[error("the kernel reads too far ahead in inode {0}")]
    TooFarAhead(Ino),
    /// The program that reads has ended: nothing waits for its bytes any more.
    #[error("the program that reads inode {0} has ended")]
    Left(Ino),
    /// A folder was needed.
    #[error("inode {0} is not a folder")]
    NotAFolder(Ino),
    /// A file was needed.
    #[error("inode {0} is a folder")]
    IsAFolder(Ino),
    /// A name longer than [`super::NAME_MAX`] bytes.
    #[error("a name of {0} bytes is too long")]
    NameTooLong(usize),
    /// Content answered fewer bytes than the file has there; the kernel would take the file to end early, for all readers.
    #[error("inode {ino}: {got} bytes at {offset} instead of {wanted}")]
    Short {
        /// The file.
        ino: Ino,
        /// First byte of the read.
        offset: u64,
        /// Bytes that the file has there.
        wanted: u64,
        /// Bytes that arrived.
        got: u64,
    },
    /// No xattr of this name.
    #[error("no such attribute")]
    NoAttribute,
    /// There are no xattrs of this kind.
    #[error("no attributes of this kind")]
    NoSuchNamespace,
    /// The caller's buffer is too small for an xattr of so many bytes.
    #[error("{0} bytes do not fit into the caller's buffer")]
    Range(usize),
    /// An xattr of more bytes than Linux can carry.
    #[error("an attribute of {0} bytes is too long for Linux")]
    AttributeTooLong(usize),
    /// The operation is not offered; the kernel stops asking or does it alone.
    #[error("not offered")]
    NotOffered,
    /// A handler panicked: a bug of this program that costs one reply, not the mount.
    #[error("the handler panicked: {0}")]
    Panic(String),
}

impl FsError {
    /// The resource whose bytes are missing.
    pub fn uri(&self) -> Option<&Uri> {
        match self {
            FsError::Content(cause) => cause.uri(),
            _ => None,
        }
    }

    /// Error number that the process gets.
    pub fn errno(&self) -> Errno {
        self.outcome().0
    }

    /// How loudly it is logged: faults of this program and machine are errors, those of the Source warnings, and
    /// what happens in every healthy tree (an attribute that is not there) is debug.
    pub fn level(&self) -> Level {
        self.outcome().1
    }

    fn outcome(&self) -> (Errno, Level) {
        match self {
            FsError::Catalog(_) | FsError::Short { .. } | FsError::Panic(_) => (Errno::EIO, Level::ERROR),
            FsError::Content(cause) => content_outcome(cause),
            FsError::Denied(_) => (Errno::EACCES, Level::DEBUG),
            FsError::Gone(_) => (Errno::ESTALE, Level::DEBUG),
            FsError::TooFarAhead(_) => (Errno::EAGAIN, Level::DEBUG),
            FsError::Left(_) => (Errno::EINTR, Level::DEBUG),
            FsError::NotAFolder(_) => (Errno::ENOTDIR, Level::DEBUG),
            FsError::IsAFolder(_) => (Errno::EISDIR, Level::DEBUG),
            FsError::NameTooLong(_) => (Errno::ENAMETOOLONG, Level::DEBUG),
            FsError::NoAttribute => (Errno::NO_XATTR, Level::DEBUG),
            FsError::NoSuchNamespace => (Errno::EOPNOTSUPP, Level::DEBUG),
            FsError::Range(_) => (Errno::ERANGE, Level::DEBUG),
            FsError::AttributeTooLong(_) => (Errno::E2BIG, Level::DEBUG),
            FsError::NotOffered => (Errno::ENOSYS, Level::DEBUG),
        }
    }
}

fn content_outcome(error: &ContentError) -> (Errno, Level) {
    match error {
        // Reported once, where it begins.
        spent if spent.is_spent() => (Errno::EDQUOT, Level::DEBUG),
        ContentError::Cache { .. } => (Errno::EIO, Level::ERROR),
        ContentError::Fetch { cause, .. } => match cause.status() {
            Some(401 | 403) => (Errno::EACCES, Level::WARN),
            // 404 and 410 too: the name is listed, so ENOENT would make a copy believe in a deletion.
            Some(_) | None => (Errno::EIO, Level::WARN),
        },
        // The name, opened again, has the new bytes.
        ContentError::Changed { .. } | ContentError::Unannounced { shown: true, .. } => (Errno::ESTALE, Level::WARN),
        ContentError::Mismatch { .. }
        | ContentError::Unarchived { .. }
        | ContentError::Package { .. }
        | ContentError::Endless { .. }
        | ContentError::Stalled { .. }
        | ContentError::Unannounced { shown: false, .. } => (Errno::EIO, Level::WARN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::http::HttpError;
    use crate::source::zip::PackageError;
    use std::path::PathBuf;

    fn uri() -> Uri {
        Uri::parse("https://example.org/a").unwrap()
    }

    fn fetch(cause: HttpError) -> FsError {
        FsError::Content(ContentError::Fetch { uri: uri(), cause: Arc::new(cause) })
    }

    fn status(status: u16) -> FsError {
        fetch(HttpError::Status { uri: uri(), status, retry_after: None })
    }

    fn package_spent() -> FsError {
        let cause = PackageError::Http { package: uri(), cause: Arc::new(HttpError::Spent { uri: uri(), limit: 1 }) };
        FsError::Content(ContentError::Package { uri: uri(), cause: Arc::new(cause) })
    }

    fn unannounced(shown: bool) -> FsError {
        let modified = crate::document::Timestamp { seconds: 0, nanos: 0 };
        FsError::Content(ContentError::Unannounced { uri: uri(), modified, what: "sha-256".into(), shown })
    }

    fn io() -> std::io::Error {
        std::io::Error::other("disk")
    }

    /// Every error, its errno and its log level.
    #[test]
    fn every_error_has_its_errno_and_level() {
        let ino = Ino(7);
        let at = crate::document::Timestamp { seconds: 0, nanos: 0 };
        let table = [
            (
                CatalogError::Busy { folder: PathBuf::from("/c"), holder: "pid 1".into() }.into(),
                Errno::EIO,
                Level::ERROR,
            ),
            (CatalogError::Io { path: PathBuf::from("/c"), cause: io() }.into(), Errno::EIO, Level::ERROR),
            (CatalogError::Store(heed::Error::Io(io())).into(), Errno::EIO, Level::ERROR),
            (CatalogError::Damaged("crc".into()).into(), Errno::EIO, Level::ERROR),
            (CatalogError::NoRevision.into(), Errno::EIO, Level::ERROR),
            (status(401), Errno::EACCES, Level::WARN),
            (status(403), Errno::EACCES, Level::WARN),
            (status(404), Errno::EIO, Level::WARN),
            (status(410), Errno::EIO, Level::WARN),
            (status(429), Errno::EIO, Level::WARN),
            (status(500), Errno::EIO, Level::WARN),
            (fetch(HttpError::Deadline { uri: uri(), last: None }), Errno::EIO, Level::WARN),
            (fetch(HttpError::Spent { uri: uri(), limit: 1 }), Errno::EDQUOT, Level::DEBUG),
            (package_spent(), Errno::EDQUOT, Level::DEBUG),
            (ContentError::Mismatch { uri: uri(), what: "sha-256".into() }.into(), Errno::EIO, Level::WARN),
            (unannounced(false), Errno::EIO, Level::WARN),
            (unannounced(true), Errno::ESTALE, Level::WARN),
            (ContentError::Changed { uri: uri() }.into(), Errno::ESTALE, Level::WARN),
            (ContentError::Unarchived { uri: uri(), at }.into(), Errno::EIO, Level::WARN),
            (ContentError::Stalled { uri: uri() }.into(), Errno::EIO, Level::WARN),
            (ContentError::Endless { uri: uri(), bytes: 5 }.into(), Errno::EIO, Level::WARN),
            (FsError::Left(ino), Errno::EINTR, Level::DEBUG),
            (ContentError::Cache { path: PathBuf::from("/o"), cause: Arc::new(io()) }.into(), Errno::EIO, Level::ERROR),
            (FsError::Denied("tumblerd".into()), Errno::EACCES, Level::DEBUG),
            (FsError::Gone(ino), Errno::ESTALE, Level::DEBUG),
            (FsError::NotAFolder(ino), Errno::ENOTDIR, Level::DEBUG),
            (FsError::IsAFolder(ino), Errno::EISDIR, Level::DEBUG),
            (FsError::NameTooLong(300), Errno::ENAMETOOLONG, Level::DEBUG),
            (FsError::TooFarAhead(ino), Errno::EAGAIN, Level::DEBUG),
            (FsError::Short { ino, offset: 0, wanted: 2, got: 1 }, Errno::EIO, Level::ERROR),
            (FsError::NoAttribute, Errno::ENODATA, Level::DEBUG),
            (FsError::NoSuchNamespace, Errno::EOPNOTSUPP, Level::DEBUG),
            (FsError::Range(3), Errno::ERANGE, Level::DEBUG),
            (FsError::AttributeTooLong(70_000), Errno::E2BIG, Level::DEBUG),
            (FsError::NotOffered, Errno::ENOSYS, Level::DEBUG),
            (FsError::Panic("index".into()), Errno::EIO, Level::ERROR),
        ];
        for (error, errno, level) in table {
            assert_eq!(error.errno(), errno, "{error:?}");
            assert_eq!(error.level(), level, "{error:?}");
        }
    }
}
