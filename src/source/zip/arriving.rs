//! A range of one version of a package on its way here, which members are read from while it comes: a window in memory, or a
//! local copy in a file.
//!
//! A range that breaks off ends where it stands: what is here of it stays readable, the rest is read from the server.

use super::PackageError;
use super::folder::{self, Local};
use super::remote::{Counter, PackageVersion};
use crate::platform::memory_budget::Reservation;
use crate::source::http::{Priority, Requester};
use bytes::Bytes;
use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::watch;

/// One range on its way. Its [`Feed`] fills it.
#[derive(Debug)]
pub(super) struct Arriving {
    pub version: PackageVersion,
    pub range: Range<u64>,
    sink: ArrivalSink,
    progress: watch::Receiver<ArrivalProgress>,
    /// Counter of the request that brings it.
    pub received: Counter,
    /// The first requester that waits for any of it: until then its request gives way to those of readers.
    requester: watch::Sender<Option<Requester>>,
}

#[derive(Debug)]
enum ArrivalSink {
    /// Pieces in order, each with its offset.
    Memory(Mutex<Vec<(u64, Bytes)>>),
    /// Set before the first bytes are announced.
    File(OnceLock<Local>),
}

#[derive(Clone, Debug)]
struct ArrivalProgress {
    /// Behind the last byte that is here.
    here: u64,
    /// Why no more come.
    error: Option<PackageError>,
}

/// The end at which bytes are put in. Where it is dropped no more come.
pub(super) struct Feed {
    arriving: Arc<Arriving>,
    progress: watch::Sender<ArrivalProgress>,
    /// Memory of a window for the bytes that are still to come.
    memory: Option<Reservation>,
}

impl Arriving {
    /// A window: `memory` is reserved for the whole range.
    pub fn window(
        version: &PackageVersion,
        range: Range<u64>,
        memory: Reservation,
        received: &Counter,
    ) -> (Arc<Arriving>, Feed) {
        Arriving::new(version, range, ArrivalSink::Memory(Mutex::default()), Some(memory), received)
    }

    /// A whole package that comes into a file.
    pub fn local_copy(version: &PackageVersion, received: &Counter) -> (Arc<Arriving>, Feed) {
        Arriving::new(version, 0..version.length, ArrivalSink::File(OnceLock::new()), None, received)
    }

    fn new(
        version: &PackageVersion,
        range: Range<u64>,
        sink: ArrivalSink,
        memory: Option<Reservation>,
        received: &Counter,
    ) -> (Arc<Arriving>, Feed) {
        let (sender, progress) = watch::channel(ArrivalProgress { here: range.start, error: None });
        let (version, received, requester) = (version.clone(), Arc::clone(received), watch::channel(None).0);
        let arriving = Arc::new(Arriving { version, range, sink, progress, received, requester });
        (Arc::clone(&arriving), Feed { arriving, progress: sender, memory })
    }

    /// The priority of its own request: raised by the first requester that waits.
    pub fn priority(&self) -> Priority {
        Priority::Prefetch(Requester::default(), self.requester.subscribe())
    }

    /// Behind the last byte that is here.
    pub fn here(&self) -> u64 {
        self.progress.borrow().here
    }

    /// Behind the last byte that is here or is to come.
    pub fn end(&self) -> u64 {
        if self.progress.has_changed().is_err() { self.here() } else { self.range.end }
    }

    /// At least one byte from `position` on and at most `most`, once they are here. `None`: they do not come. There is no
    /// deadline but that of the request that brings them: its end ends the wait.
    pub async fn read(&self, position: u64, most: u64, priority: &Priority) -> Result<Option<Bytes>, PackageError> {
        if !self.range.contains(&position) {
            return Ok(None);
        }
        let mut progress = self.progress.clone();
        let mut arrived = pin!(async move {
            let arrived = progress.wait_for(|now| now.here > position || now.error.is_some()).await;
            arrived.map_or_else(|_| self.progress.borrow().clone(), |now| now.clone())
        });
        let now = tokio::select! {
            biased;
            now = &mut arrived => now,
            requester = priority.clone().raised() => {
                self.requester.send_if_modified(|first| first.replace(first.unwrap_or(requester)).is_none());
                arrived.await
            }
        };
        match now.error {
            _ if now.here > position => self.sink.read(position, most.min(now.here - position)).await.map(Some),
            // What broke off is read on at the server.
            Some(error) if !error.is_retryable() || matches!(error, PackageError::Changed { .. }) => Err(error),
            _ => Ok(None),
        }
    }
}

impl ArrivalSink {
    async fn read(&self, position: u64, most: u64) -> Result<Bytes, PackageError> {
        match self {
            ArrivalSink::Memory(pieces) => {
                let pieces = pieces.lock().unwrap_or_else(PoisonError::into_inner);
                let number = pieces.partition_point(|(first, _)| *first <= position).saturating_sub(1);
                let (first, piece) = pieces.get(number).cloned().unwrap_or_default();
                let from = (position.saturating_sub(first) as usize).min(piece.len());
                Ok(piece.slice(from..piece.len().min(from.saturating_add(most as usize))))
            }
            ArrivalSink::File(local) => match local.get() {
                Some(local) => folder::read_at(local, position, most).await,
                None => Ok(Bytes::new()),
            },
        }
    }
}

impl Feed {
    /// Returns whether a member is read from it still, or may be.
    pub fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.arriving) > 1
    }

    /// The file into which the bytes come.
    pub fn begin_in(&self, local: Local) {
        if let ArrivalSink::File(file) = &self.arriving.sink {
            // No other file has been set: there is one feed.
            let _ = file.set(local);
        }
    }

    /// The next bytes of a window.
    pub fn add(&mut self, piece: Bytes) {
        let (ArrivalSink::Memory(pieces), Some(memory)) = (&self.arriving.sink, &mut self.memory) else { return };
        let here = self.arriving.here();
        let behind = here + piece.len() as u64;
        // An empty frame of a body would hide the piece that begins where it does.
        if behind > here {
            let piece = memory.split(piece.len()).attach(piece);
            pieces.lock().unwrap_or_else(PoisonError::into_inner).push((here, piece));
            self.reached(behind);
        }
    }

    /// The bytes of the file are there up to `here`.
    pub fn reached(&self, here: u64) {
        self.progress.send_modify(|progress| progress.here = here);
    }

    /// No more bytes come.
    pub fn fail(self, error: PackageError) {
        self.progress.send_modify(|progress| progress.error = Some(error));
    }
}
