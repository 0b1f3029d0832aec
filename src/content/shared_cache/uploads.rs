//! Uploads of verified objects, behind the readers: whole, once, with the lowest priority.

use super::super::store::{Object, ObjectKey, Store, encode_footer};
use super::connector::{CALL, Call};
use super::health::SharedError;
use super::name::Name;
use super::remote::Remote;
use crate::platform::memory_budget::{Budget, Reservation};
use crate::source::http::Priority;
use bytes::Bytes;
use futures_util::stream::{StreamExt, poll_fn};
use object_store::path::Path;
use object_store::{GetOptions, PutMode, PutMultipartOptions, PutOptions};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Uploads at a time. Readers have the host's other permits.
const AT_A_TIME: usize = 2;

/// Bytes of one request. A larger object is uploaded in so many pieces at most, which are larger where it is larger still.
const PIECE: u64 = 8 << 20;
const PIECES: u64 = 10_000;

/// Bytes of a piece at most: half of the memory for content. An object that needs larger ones is not uploaded.
const LARGEST_PIECE: u64 = 32 << 20;

/// Between two looks for memory.
const LOOK: Duration = Duration::from_millis(500);

/// The store must have taken a piece within this time. A folder may take as long as it likes: on a dead server each call holds its thread
/// until the server is back, and another would hold another.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nothing is uploaded into a folder whose file system has less than one part in so many free. Where the folder of a server is not mounted,
/// that is a disk of this machine.
const PARTS: u64 = 20;

/// A verified object to upload.
pub(super) struct Upload {
    pub(super) name: Name,
    pub(super) object: ObjectKey,
    /// True if the store has wrong bytes there.
    pub(super) replaces: bool,
    /// True if it was on this machine before, so the store may well have it.
    pub(super) was_here: bool,
}

/// Uploads one object after the other.
pub(super) struct Uploader {
    remote: Arc<Remote>,
    disk: Arc<Store>,
    memory: Budget,
    /// The folder, where the store is one.
    folder: Option<PathBuf>,
    patience: Duration,
}

impl Uploader {
    pub(super) fn new(remote: Arc<Remote>, disk: Arc<Store>, memory: Budget, folder: Option<PathBuf>) -> Uploader {
        let patience = if folder.is_some() { Duration::MAX } else { PATIENCE };
        Uploader { remote, disk, memory, folder, patience }
    }

    /// Until the queue ends.
    pub(super) async fn run(self, mut waiting: mpsc::Receiver<Option<Upload>>) {
        let call = Call { priority: Priority::background(), within: PATIENCE };
        let uploads = poll_fn(|context| waiting.poll_recv(context).map(Option::flatten));
        CALL.scope(call, uploads.for_each_concurrent(AT_A_TIME, |upload| self.upload(upload))).await;
    }

    async fn upload(&self, upload: Upload) {
        let health = &self.remote.health;
        let (disk, key) = (Arc::clone(&self.disk), upload.object.clone());
        let opened = tokio::task::spawn_blocking(move || disk.peek(&key)).await.ok().flatten();
        let fits = |object: &Arc<Object>| piece_of(object.length()) <= LARGEST_PIECE;
        let Some(object) = opened.filter(|object| !health.is_closed() && fits(object)) else {
            return health.dropped();
        };
        match self.put(&upload, &object).await {
            Ok(()) => health.uploaded(upload.name.key(), object.length()),
            Err(SharedError::Store(error)) if is_there(&error) => {}
            Err(error) => health.upload_failed(&error),
        }
    }

    /// The CRCs are there before the bytes, so that bytes that are found can be checked.
    async fn put(&self, upload: &Upload, object: &Arc<Object>) -> Result<(), SharedError> {
        self.look_for_room().await?;
        let (path, checks_path) = self.remote.paths(&upload.name);
        let length = object.length();
        if upload.name.needs_checks(Some(length)) {
            let footer = encode_footer(upload.name.key(), length, object.checks());
            match self.put_whole(&checks_path, footer.into(), upload.replaces).await {
                Err(SharedError::Store(error)) if is_there(&error) => {}
                put => put?,
            }
        }
        // Pieces are put together without a condition, so what another machine has uploaded is looked for first.
        if !upload.replaces && (upload.was_here || length > PIECE) {
            let head = GetOptions { head: true, ..GetOptions::default() };
            let there = self.within(self.remote.store.get_opts(&path, head)).await;
            if there.is_ok_and(|there| there.meta.size == length) {
                let (path, source) = (path.to_string(), "another machine has uploaded it".into());
                return Err(object_store::Error::AlreadyExists { path, source }.into());
            }
        }
        if length <= PIECE {
            let (bytes, _memory) = self.piece(object, 0, length).await?;
            return self.put_whole(&path, bytes, upload.replaces).await;
        }
        let begun = self.remote.store.put_multipart_opts(&path, PutMultipartOptions::default());
        let mut parts = self.within(begun).await?;
        let sent = async {
            let piece = piece_of(length);
            for first in (0..length).step_by(usize::try_from(piece).unwrap_or(usize::MAX)) {
                let (bytes, _memory) = self.piece(object, first, piece.min(length - first)).await?;
                self.within(parts.put_part(bytes.into())).await?;
            }
            self.within(parts.complete()).await.map(drop)
        };
        let sent = sent.await;
        if sent.is_err() {
            // The store's lifecycle rules remove what stays of it.
            drop(self.within(parts.abort()).await);
        }
        sent
    }

    /// The library would make a folder that is missing.
    async fn look_for_room(&self) -> Result<(), SharedError> {
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let asked = tokio::task::spawn_blocking(move || rustix::fs::statvfs(&folder)).await;
        match asked {
            Ok(Ok(disk)) if disk.f_bavail >= disk.f_blocks / PARTS => Ok(()),
            _ => Err(SharedError::NoRoom),
        }
    }

    async fn put_whole(&self, path: &Path, bytes: Bytes, replaces: bool) -> Result<(), SharedError> {
        let mode = if replaces { PutMode::Overwrite } else { PutMode::Create };
        let options = PutOptions { mode, ..PutOptions::default() };
        self.within(self.remote.store.put_opts(path, bytes.into(), options)).await.map(drop)
    }

    /// Bytes of an object, checked, and the memory that they take.
    async fn piece(
        &self,
        object: &Arc<Object>,
        first: u64,
        length: u64,
    ) -> Result<(Bytes, impl Sized + use<>), SharedError> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let memory = memory_behind_readers(&self.memory, length.max(1)).await;
        let object = Arc::clone(object);
        let read = tokio::task::spawn_blocking(move || object.read(first, length)).await;
        let read = read.map_err(io::Error::other).and_then(|read| read.map_err(io::Error::other));
        Ok((read.map_err(SharedError::Unreadable)?, memory))
    }

    async fn within<T>(&self, call: impl Future<Output = object_store::Result<T>>) -> Result<T, SharedError> {
        timeout(self.patience, call).await.map_err(|_| SharedError::Slow)?.map_err(SharedError::from)
    }
}

/// Bytes of one request of an object of `length` bytes.
fn piece_of(length: u64) -> u64 {
    PIECE.max(length.div_ceil(PIECES))
}

/// Memory when nothing waits for it. A reservation that waits would stand before those of readers.
async fn memory_behind_readers(memory: &Budget, bytes: usize) -> Reservation {
    loop {
        match memory.try_reserve(bytes) {
            Some(reservation) => return reservation,
            None => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Returns whether another machine has uploaded it before.
fn is_there(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test(start_paused = true)]
    async fn an_upload_takes_no_memory_before_a_reader() {
        let memory = Budget::new(100);
        let first = memory.try_reserve(60);
        let mut upload = Box::pin(memory_behind_readers(&memory, 80));
        assert!((&mut upload).now_or_never().is_none());

        let reader = memory.try_reserve(30);
        assert!(reader.is_some(), "it does not wait behind an upload");

        drop((first, reader));
        assert_eq!(upload.await.bytes(), 80);
    }

    #[test]
    fn pieces_are_no_larger_than_the_memory_for_them() {
        assert_eq!((piece_of(1), piece_of(70 << 30)), (PIECE, PIECE));
        assert!((LARGEST_PIECE..LARGEST_PIECE + PIECES).contains(&piece_of(PIECES * LARGEST_PIECE)));
        assert!(piece_of(640 << 30) > LARGEST_PIECE, "it is not uploaded");
    }
}
