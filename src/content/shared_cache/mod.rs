//! One cache for many machines: an object store that is asked before the Source, and gets what was verified here.
//!
//! [`name`] says under which name the store has a version, [`location`] opens the store, whose requests [`connector`] sends through the
//! one HTTP client. [`remote`] gets and puts, [`body`] is what arrives of it, [`uploads`] is the queue behind the readers, and [`health`]
//! counts, and decides when a store that fails is left alone.
//!
//! Bytes of the store are verified as those of the Source are. A published digest vouches for them whoever wrote them. Without one, and of
//! a large object before its verdict, the CRCs beside it protect from damage; those who may write to the store are trusted then.

mod body;
mod connector;
mod health;
mod location;
mod name;
mod remote;
mod uploads;

pub(super) use body::{SharedBody, SharedCopy};
pub use health::SharedCacheStatus;
pub use location::{SharedCacheConfig, shared_cache_url};
pub(super) use name::Name;

use super::store::{ObjectKey, Store};
use crate::platform::memory_budget::Budget;
use crate::source::http::{Client, Priority};
use health::Health;
use remote::Remote;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uploads::{Upload, Uploader};

/// Uploads that wait, at most.
const WAITING: usize = 16_384;

/// At the end of a mount uploads go on for so long.
const CLOSING: Duration = Duration::from_secs(5);

/// The shared cache of a mount.
pub(super) struct SharedCache {
    remote: Arc<Remote>,
    /// `None` where it is only read, and at the end of the mount.
    queue: Mutex<Option<mpsc::Sender<Upload>>>,
    uploading: Mutex<Option<JoinHandle<()>>>,
}

impl SharedCache {
    /// Opens it; nothing is asked yet. What `disk` has is uploaded on `runtime`. An error names what is wrong with the options.
    pub(super) fn open(
        config: &SharedCacheConfig,
        client: &Client,
        disk: &Arc<Store>,
        memory: &Budget,
        runtime: &Handle,
    ) -> Result<SharedCache, object_store::Error> {
        let (store, prefix) = location::open(config, client)?;
        let remote = Arc::new(Remote::new(store, prefix, Health::new(config.shown())));
        let (queue, uploading) = config
            .is_written()
            .then(|| {
                let (queue, waiting) = mpsc::channel(WAITING);
                let uploader = Uploader::new(Arc::clone(&remote), Arc::clone(disk), memory.clone());
                (queue, runtime.spawn(uploader.run(waiting)))
            })
            .unzip();
        Ok(SharedCache { remote, queue: Mutex::new(queue), uploading: Mutex::new(uploading) })
    }

    /// Ends the uploads. Those that wait are given a few seconds.
    pub(super) async fn close(&self) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let uploading = self.uploading.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut uploading) = uploading else { return };
        if timeout(CLOSING, &mut uploading).await.is_err() {
            tracing::info!("the mount ends before all files were uploaded to the shared cache");
            uploading.abort();
        }
    }

    /// The object `name`, of `length` bytes where that is known, and its bytes `range`, or all; `None`: they come from the Source.
    pub(super) async fn get(
        &self,
        name: &Name,
        length: Option<u64>,
        range: Option<Range<u64>>,
        priority: Priority,
    ) -> Option<SharedBody> {
        self.remote.get(name, length, range, priority).await
    }

    /// The bytes `range` of an object that was found before.
    pub(super) async fn more(
        &self,
        copy: &Arc<SharedCopy>,
        range: Range<u64>,
        priority: Priority,
    ) -> Option<SharedBody> {
        self.remote.more(copy, range, priority).await
    }

    /// The bytes of `name` were right.
    pub(super) fn served(&self) {
        self.remote.health().hit();
    }

    /// The bytes of `name` were not what they must be.
    pub(super) fn was_wrong(&self, name: &Name) {
        self.remote.health().wrong(name.key());
    }

    /// The verified object `object` is to be uploaded as `name`.
    pub(super) fn offer(&self, name: Name, object: ObjectKey) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(queue) = queue else { return };
        let replaces = self.remote.health().is_wrong(name.key());
        if queue.try_send(Upload { name, object, replaces }).is_err() {
            self.remote.health().dropped();
        }
    }

    pub(super) fn status(&self) -> SharedCacheStatus {
        self.remote.health().status()
    }
}
