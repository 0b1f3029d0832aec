//! Errors that keep the tree from being brought in step.

use super::items::page::PageError;
use crate::catalog::naming::MapError;
use crate::catalog::{CatalogError, Departure};
use crate::document::{DocumentError, Timestamp};
use crate::source::zip::PackageError;
use crate::source::{DocumentLocation, SourceError};
use serde::{Deserialize, Serialize};

/// The cause of a refresh that changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// All that could be read holds nothing new. The rest is asked for again when it is due.
    #[error(transparent)]
    Behind(Box<SyncError>),
    /// The Source's documents cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A list broke off or is not a list.
    #[error("{location} cannot be read completely")]
    Document {
        /// The list.
        location: DocumentLocation,
        /// The fault in it.
        #[source]
        cause: DocumentError,
    },
    /// There is nothing to show, or to compare with: no list, none that can be understood, or none as old as is wanted. Why, for a person.
    #[error("{0}")]
    NothingToShow(String),
    /// The lists served are older than what is shown.
    #[error(
        "{location} dates from {at} and is older than the list shown ({shown}): a cache in between may be outdated, and a later \
         refresh tries again"
    )]
    OlderList {
        /// The list.
        location: DocumentLocation,
        /// The time that it speaks for.
        at: Timestamp,
        /// The time that the shown lists speak for.
        shown: Timestamp,
    },
    /// The changes up to the time of `at=` cannot be read for now: the lists alone are of an earlier one.
    #[error("the Source as of {at} cannot be shown, because its changes in {location} cannot be read")]
    ChangesOfThen {
        /// The time of `at=`.
        at: Timestamp,
        /// The change document, or the index of change documents.
        location: DocumentLocation,
        /// Why it, or what it leads to, cannot be read.
        #[source]
        cause: Box<SyncError>,
    },
    /// The catalog failed.
    #[error("the catalog failed")]
    Catalog(#[from] CatalogError),
    /// Lists of several parts do not list these any more, and were read only once so far.
    #[error("the lists do not list some resources any more, and were read only once")]
    Unproved(Vec<Departure>),
    /// A package of a dump cannot be read for now.
    #[error("a package cannot be read")]
    Package(#[source] PackageError),
    /// A package of a dump in place of lists cannot be read for now.
    #[error(
        "a package that {named_by} lists cannot be read now, and a mount shows the whole Source or nothing; try again later"
    )]
    PackageOf {
        /// The dump.
        named_by: DocumentLocation,
        /// The fault.
        #[source]
        cause: PackageError,
    },
    /// The landing page that is mounted cannot be read for now.
    #[error("the landing page cannot be read")]
    Page(#[from] PageError),
    /// A `map=` that cannot be.
    #[error("the paths of map= cannot be used")]
    Naming(#[from] MapError),
    /// A thread of this program died.
    #[error("a thread of resyncfs failed")]
    Worker(#[from] tokio::task::JoinError),
}

/// The meaning of a failure to a person who asks for a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// The Source does not answer.
    Unreachable,
    /// The Source answers, but not with what is needed.
    Unusable,
    /// The cache folder cannot be used.
    Cache,
    /// An option cannot be followed.
    Options,
    /// Anything else on this machine.
    Other,
}

impl From<&SourceError> for FailureKind {
    fn from(cause: &SourceError) -> FailureKind {
        match cause {
            SourceError::Http { cause, .. } if cause.status().is_some_and(answered_for_good) => FailureKind::Unusable,
            SourceError::Http { .. } => FailureKind::Unreachable,
            SourceError::Part { cause, .. } => FailureKind::from(&**cause),
            SourceError::DocumentCache { .. } | SourceError::NoRoom { .. } => FailureKind::Cache,
            _ => FailureKind::Unusable,
        }
    }
}

fn answered_for_good(status: u16) -> bool {
    matches!(status, 400..=499) && status != 408 && status != 429
}

impl SyncError {
    /// The meaning to a person.
    pub fn kind(&self) -> FailureKind {
        match self {
            SyncError::Source(cause) => FailureKind::from(cause),
            SyncError::Behind(cause) | SyncError::ChangesOfThen { cause, .. } => cause.kind(),
            SyncError::Package(PackageError::Folder { .. })
            | SyncError::PackageOf { cause: PackageError::Folder { .. }, .. }
            | SyncError::Catalog(_) => FailureKind::Cache,
            SyncError::NothingToShow(_)
            | SyncError::OlderList { .. }
            | SyncError::Unproved(_)
            | SyncError::Document { .. }
            | SyncError::Package(_) => FailureKind::Unusable,
            SyncError::PackageOf { .. } | SyncError::Page(_) => FailureKind::Unreachable,
            SyncError::Naming(_) => FailureKind::Options,
            SyncError::Worker(_) => FailureKind::Other,
        }
    }

    /// True if the Source is the cause; else something fails on this machine.
    pub(super) fn is_of_source(&self) -> bool {
        matches!(self.kind(), FailureKind::Unreachable | FailureKind::Unusable)
    }

    /// The failure as a mount that runs reports it: what a first mount would lack by it is there.
    pub(super) fn of_refresh(&self) -> &(dyn std::error::Error + 'static) {
        match self {
            SyncError::Behind(cause) => cause.of_refresh(),
            SyncError::Source(SourceError::Part { cause, .. }) => &**cause,
            other => other,
        }
    }

    /// True if a list or a package breaks off, or nothing of it can be used. The changes do not rest on it.
    pub(super) fn is_of_a_list(&self) -> bool {
        match self {
            SyncError::Document { .. } | SyncError::NothingToShow(_) => true,
            SyncError::Package(_) | SyncError::PackageOf { .. } => self.is_of_source(),
            _ => false,
        }
    }

    /// True if a document is not there, by its server's word: 404 or 410.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self, SyncError::Source(cause) if cause.is_gone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_mount_says_nothing_of_a_first_one() {
        let at = |path: &str| crate::source::DocumentLocation::File(path.into());
        let cause = Box::new(SourceError::DocumentCache { path: "/x".into(), cause: std::io::Error::other("why") });
        let part = SourceError::Part { location: at("/a"), named_by: at("/b"), instead: String::new(), cause };
        let failed = SyncError::Behind(Box::new(SyncError::Source(part)));

        let text = crate::platform::error_chain::chain(failed.of_refresh());

        assert!(text.ends_with("why") && !text.contains("whole Source or nothing"), "{text}");
    }

    #[test]
    fn what_fails_on_this_machine_is_not_said_of_the_source() {
        let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
        let spool = || SyncError::Source(SourceError::DocumentCache { path: "/spool".into(), cause: full() });
        let nothing = SourceError::NothingFound { entry: "http://h/".into(), tried: "all".into() };

        assert!(SyncError::Behind(Box::new(SyncError::Source(nothing))).is_of_source());
        assert!(!spool().is_of_source() && !SyncError::Behind(Box::new(spool())).is_of_source());
    }
}
