//! What the attempts of one download share: the task's state, what ends an attempt, and what came of it.

use super::in_flight::Download;
use super::incoming::Batch;
use super::object::CachedObject;
use super::outcome::Ended;
use super::plan::{Failure, Plan};
use super::promise::Promise;
use super::writer::{Stage, WriteError};
use crate::content::shared_cache::SharedCopy;
use crate::content::store::ObjectKey;
use crate::content::trust::VersionId;
use crate::content::{Content, ContentError, FetchSpec, Verified};
use crate::document::{Digest, Timestamp};
use crate::platform::memory_budget::Reservation;
use std::sync::Arc;

/// A whole object, and what is known of it.
pub(super) struct Completed {
    pub(super) object: CachedObject,
    pub(super) verified: Verified,
    /// Digest of what a read returns.
    pub(super) digest: Digest,
    /// The key of the object on disk.
    pub(super) key: ObjectKey,
    /// True if it had no coding: what was handed out of the download is of these bytes.
    pub(super) is_plain: bool,
    /// The response that brought it.
    pub(super) origin: Provenance,
    /// True if it came from the shared cache: no response of the Source.
    pub(super) is_shared: bool,
}

/// Facts about the bytes in the head of a response.
#[derive(Clone, Debug, Default)]
pub(super) struct Provenance {
    /// `ETag`, as written.
    pub(super) etag: Option<Box<str>>,
    /// `Last-Modified`, as written.
    pub(super) last_modified: Option<Box<str>>,
    /// Content-Type without parameters.
    pub(super) media_type: Option<Box<str>>,
}

/// Reason why an attempt ends.
pub(super) enum Stop {
    /// The plan says what follows.
    Failure(Failure),
    /// Nothing can follow.
    End(Ended),
    /// The cache has no room or fails: the object is fetched again, into another sink.
    Full(WriteError),
    /// The object is fetched again: what is kept is damaged, or a reader asks for bytes that have left the window.
    Again,
    /// The body is closed until a reader wants what comes next: none does, or all that do are far from it.
    Rest,
}

/// Knowledge of the version whose bytes arrive. [`DownloadTask::begin_again`] forgets all of it.
#[derive(Default)]
pub(super) struct VersionUnderWay {
    /// The strong validator of what was received, with its place.
    pub(super) validator: Option<VersionId>,
    /// A digest is published of the transferred bytes: the rest may come under any validator, for the verdict tells a mix.
    pub(super) is_joinable: bool,
    /// The bytes came under several validators, or under none that proves them to be of one version.
    pub(super) is_mixed: bool,
    /// Bytes of the whole, as its first response announced.
    pub(super) length: Option<u64>,
    /// The promise of the latest head.
    pub(super) promise: Option<Promise>,
    pub(super) provenance: Provenance,
    /// Last-Modified of the response under way, where it comes from `loc` and is later than the list. When a
    /// mirror was last modified says nothing of the resource.
    pub(super) newer_than_list: Option<Timestamp>,
    /// The copy in the shared cache, while its bytes arrive.
    pub(super) shared_copy: Option<Arc<SharedCopy>>,
}

/// Bytes of this version that have arrived, on their way to the block map. [`DownloadTask::begin_again`] drops all of them.
#[derive(Default)]
pub(super) struct Intake {
    pub(super) stage: Stage,
    /// Bytes received from the first on.
    pub(super) received: u64,
    /// The last of them, not yet with the writer.
    pub(super) batch: Batch,
}

/// The task of a download; [`DownloadTask::run`] drives it.
pub(super) struct DownloadTask {
    pub(super) content: Arc<Content>,
    pub(super) spec: FetchSpec,
    pub(super) download: Arc<Download>,
    pub(super) plan: Plan,
    /// The strongest published digest, where fixity counts it.
    pub(super) published: Option<Digest>,
    /// The digest of an earlier complete download of this inode.
    pub(super) earlier: Option<Digest>,
    /// The strong ETag under which this version was served earlier.
    pub(super) etag: Option<Box<str>>,
    /// The size that was shown before and may be known to the kernel.
    pub(super) shown: Option<u64>,
    pub(super) version: VersionUnderWay,
    pub(super) intake: Intake,
    /// The error of a copy in the shared cache of which bytes were handed out.
    pub(super) wrong_copy: Option<ContentError>,
    /// True once what was kept turned out damaged.
    pub(super) was_damaged: bool,
    /// True once what an earlier download left was looked for: the Source is asked from now on.
    pub(super) has_adopted: bool,
    /// Memory for what the sink holds.
    pub(super) memory: Option<Reservation>,
}
