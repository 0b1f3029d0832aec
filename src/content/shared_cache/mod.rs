//! One cache for many machines: an object store that is asked before the Source, and gets what was verified here.
//!
//! [`name`] says under which name the store has a version, [`location`] opens the store, whose requests [`connector`] sends through the
//! one HTTP client. [`remote`] asks it, [`body`] is what arrives, [`rival`] leaves it where the Source is faster, [`uploads`] is the queue behind the readers, and [`health`] counts, and
//! decides when a store that fails is left alone.
//!
//! Bytes of the store are verified as those of the Source are. A published digest vouches for them, whichever machine wrote them. Without
//! one, and of a large object before its verdict, its CRC object protects from damage; the machines that may write to the store are
//! trusted then.

mod body;
mod connector;
mod health;
mod location;
mod name;
mod remote;
mod rival;
mod uploads;

pub(super) use body::{SharedBody, SharedCopy};
pub use health::SharedCacheStatus;
pub use location::{SharedCacheConfig, shared_cache_url};
pub(super) use name::Name;
pub(super) use remote::Remote;

use super::store::{ObjectKey, Store};
use crate::platform::memory_budget::Budget;
use crate::source::http::Client;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use uploads::{Upload, Uploader};

/// Uploads that wait, at most.
const WAITING: usize = 16_384;

/// At the end of a mount uploads go on for so long.
const CLOSING: Duration = Duration::from_secs(5);

/// The shared cache of a mount.
pub(super) struct SharedCache {
    pub(super) remote: Arc<Remote>,
    /// `None` where it is only read. A message without an upload ends it.
    queue: Option<mpsc::Sender<Option<Upload>>>,
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
        let remote = Arc::new(Remote::new(store, prefix, client, config));
        let queue = config.is_written().then(|| {
            let (queue, waiting) = mpsc::channel(WAITING);
            let folder = config.url.to_file_path().ok().filter(|_| config.url.scheme() == "file");
            let uploader = Uploader::new(Arc::clone(&remote), Arc::clone(disk), memory.clone(), folder);
            runtime.spawn(uploader.run(waiting));
            queue
        });
        Ok(SharedCache { remote, queue })
    }

    /// The verified object `object` is to be uploaded as `name`. `was_here`: it was on this machine before.
    pub(super) fn offer(&self, name: Name, object: ObjectKey, was_here: bool) {
        let Some(queue) = &self.queue else { return };
        let replaces = self.remote.health.is_wrong(name.key());
        if queue.try_send(Some(Upload { name, object, replaces, was_here })).is_err() {
            self.remote.health.dropped();
        }
    }

    pub(super) fn status(&self) -> SharedCacheStatus {
        self.remote.health.status()
    }

    /// Ends the uploads. Those that wait are given a few seconds.
    pub(super) async fn close(&self) {
        let Some(queue) = &self.queue else { return };
        let ending = async {
            let _ = queue.send(None).await;
            queue.closed().await;
        };
        if tokio::time::timeout(CLOSING, ending).await.is_err() {
            tracing::info!("the mount ends before all files were uploaded to the shared cache");
        }
    }
}
