//! Gets objects from the shared cache and puts them there.

use super::super::fixity::BLOCK;
use super::super::store::decode_footer;
use super::body::{SharedBody, SharedCopy};
use super::connector::{CALL, Call};
use super::health::{Health, SharedError};
use super::location::SharedCacheConfig;
use super::name::Name;
use super::rival::Race;
use crate::document::Uri;
use crate::platform::address_space::blocking_threads;
use crate::source::http::{Client, Priority};
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, unfold};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

/// The first byte of an object must be here within this time.
const FIRST_BYTE: Duration = Duration::from_secs(2);

/// Concurrent lookups: this many for readers, as many for prefetches. One that waits too long goes to the Source. A
/// folder on a dead server holds their threads for good: a quarter of all threads at most.
const LOOKS: usize = 64;

/// Bytes of the CRCs of an object whose length is not known: enough for half a terabyte.
const MOST_CHECKS: u64 = 16 << 20;

/// Bytes of CRCs that are taken beyond those of an object of the length that is shown: the store may have a longer one.
const MORE_CHECKS: u64 = 64 << 10;

/// The store that holds the shared cache.
pub(in crate::content) struct Remote {
    pub(super) store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// Asks the Source where the store is slow.
    client: Client,
    pub(in crate::content) health: Arc<Health>,
    /// Lookups of readers, and those ahead of them.
    looks: [Arc<Semaphore>; 2],
    /// Bodies of a folder at a time: each may hold a thread for good, as a look may. Where there are more, the Source is asked.
    bodies: Option<Arc<Semaphore>>,
}

impl Remote {
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        prefix: Path,
        client: &Client,
        config: &SharedCacheConfig,
    ) -> Remote {
        let most = LOOKS.min(blocking_threads() / 8).max(1);
        let looks = [most; 2].map(|most| Arc::new(Semaphore::new(most)));
        let bodies = (config.url.scheme() == "file").then(|| Arc::new(Semaphore::new(most)));
        let health = Arc::new(Health::new(config.url.to_string()));
        Remote { store, prefix, client: client.clone(), health, looks, bodies }
    }

    /// Returns the paths of the object and of the CRCs of its blocks.
    pub(super) fn paths(&self, name: &Name) -> (Path, Path) {
        let below = |path: &str| Path::from_iter(self.prefix.parts().chain(Path::from(path).parts()));
        (below(name.path()), below(&format!("{}.crc", name.path())))
    }

    /// An object, of `length` bytes where that is known, and its bytes `range`, or all; `None` where it is not there, or does not come at
    /// once. `source` is where else this version is.
    pub(in crate::content) async fn get(
        &self,
        name: &Name,
        source: Option<&Uri>,
        length: Option<u64>,
        range: Option<Range<u64>>,
        priority: Priority,
    ) -> Option<SharedBody> {
        let (path, checks_path) = self.paths(name);
        let needs_checks = name.needs_checks(length);
        // What is longer is not those of this object, and is not read into memory.
        let most = length.map_or(MOST_CHECKS, |length| length.div_ceil(BLOCK) * 4 + MORE_CHECKS);
        // A small object that a digest vouches for has none.
        let may_lack = length.is_none() && !name.needs_checks(Some(0));
        let store = Arc::clone(&self.store);
        let found = self.look(name, priority.clone(), async move {
            let checks = match needs_checks {
                true => match store.get_opts(&checks_path, GetOptions::default()).await {
                    Err(object_store::Error::NotFound { .. }) if may_lack => None,
                    found => {
                        let found = found?;
                        Some(if found.meta.size > most { Bytes::new() } else { found.bytes().await? })
                    }
                },
                false => None,
            };
            Ok((checks, store.get_opts(&path, options(range)).await?))
        });
        let (checks, found) = found.await?;
        let size = found.meta.size;
        if checks.is_none() && may_lack && name.needs_checks(Some(size)) {
            self.health.miss();
            return None;
        }
        let decoded = checks.as_ref().and_then(|bytes| decode_footer(name.key(), size, bytes));
        if checks.is_some() != decoded.is_some() {
            self.health.wrong(name.key());
            return None;
        }
        let copy = SharedCopy { name: name.clone(), source: source.cloned(), length: size, checks: decoded };
        self.body(Arc::new(copy), found, priority)
    }

    /// The bytes `range` of an object that was found before.
    pub(in crate::content) async fn more(
        &self,
        copy: &Arc<SharedCopy>,
        range: Range<u64>,
        priority: Priority,
    ) -> Option<SharedBody> {
        let ((path, _), store, asked) = (self.paths(&copy.name), Arc::clone(&self.store), range.clone());
        let found =
            self.look(&copy.name, priority.clone(), async move { store.get_opts(&path, options(Some(asked))).await });
        let found = found.await?;
        if found.meta.size != copy.length || found.range != range {
            self.health.wrong(copy.name.key());
            return None;
        }
        self.body(Arc::clone(copy), found, priority)
    }

    fn body(&self, copy: Arc<SharedCopy>, found: GetResult, priority: Priority) -> Option<SharedBody> {
        let range = found.range.clone();
        let pieces = match &self.bodies {
            None => found.into_stream(),
            Some(bodies) => held(found.into_stream(), Arc::clone(bodies).try_acquire_owned().ok()?),
        };
        // What follows to the end is of a download, which the Source would have to begin again.
        let whole = if range.end == copy.length { copy.length } else { range.end - range.start };
        let race = Race::new(&self.client, priority, copy.source.as_ref(), copy.length, whole);
        Some(SharedBody::new(pieces, copy, range, Arc::clone(&self.health), race))
    }

    /// The answer of the store, where there is one in time.
    async fn look<T: Send + 'static>(
        &self,
        name: &Name,
        priority: Priority,
        asked: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Option<T> {
        if self.health.is_shunned(name.key()) {
            return None;
        }
        let [readers, ahead] = &self.looks;
        let looks = if priority.reader().is_some() { readers } else { ahead };
        let look = timeout(FIRST_BYTE, Arc::clone(looks).acquire_owned()).await;
        // What it waited for may have failed.
        if self.health.is_shunned(name.key()) {
            return None;
        }
        let Ok(look) = look else {
            // Where the looks before this one never end, the next reader does not wait for them as well.
            self.health.failed(&SharedError::Slow);
            return None;
        };
        let look = look.ok()?;
        let call = Call { priority, within: FIRST_BYTE };
        // A separate task: where the store does not answer it keeps its permit, and the reader goes to the Source.
        let looking = tokio::spawn(CALL.scope(call, async move {
            let _look = look;
            asked.await
        }));
        let error = match timeout(FIRST_BYTE, looking).await {
            Ok(Ok(Ok(found))) => return Some(found),
            Ok(Ok(Err(object_store::Error::NotFound { .. }))) => {
                self.health.miss();
                return None;
            }
            Ok(Ok(Err(error))) => SharedError::Store(error),
            Ok(Err(_)) | Err(_) => SharedError::Slow,
        };
        self.health.failed(&error);
        None
    }
}

/// Wraps pieces in a task that has the `permit` until the piece that it waits for is here, also where its reader is gone.
fn held(
    mut pieces: BoxStream<'static, object_store::Result<Bytes>>,
    permit: OwnedSemaphorePermit,
) -> BoxStream<'static, object_store::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _permit = permit;
        while let Some(piece) = pieces.next().await {
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    });
    unfold(receiver, |mut receiver| async move { receiver.recv().await.map(|piece| (piece, receiver)) }).boxed()
}

fn options(range: Option<Range<u64>>) -> GetOptions {
    GetOptions { range: range.map(GetRange::Bounded), ..GetOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::FetchSpec;
    use crate::document::{Algorithm, Digest};
    use crate::platform::ino::Ino;
    use crate::source::http::HttpConfig;
    use async_trait::async_trait;
    use object_store::{
        CopyOptions, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutOptions,
        PutPayload, PutResult, Result,
    };
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A folder on a server that answers looks and is dead for reads: each holds a thread.
    #[derive(Debug, Default)]
    struct DeadFolder {
        held: Arc<AtomicUsize>,
    }

    impl std::fmt::Display for DeadFolder {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a dead folder")
        }
    }

    #[async_trait]
    impl ObjectStore for DeadFolder {
        async fn get_opts(&self, location: &Path, _: GetOptions) -> Result<GetResult> {
            let held = Arc::clone(&self.held);
            let read = async move {
                // As the thread that hangs.
                tokio::spawn(async move {
                    held.fetch_add(1, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                })
                .await
                .map_err(object_store::Error::from)
                .map(|()| Bytes::new())
            };
            let meta = ObjectMeta {
                location: location.clone(),
                last_modified: std::time::SystemTime::UNIX_EPOCH.into(),
                size: 100,
                e_tag: None,
                version: None,
            };
            let payload = GetResultPayload::Stream(futures_util::stream::once(read).boxed());
            let (attributes, extensions) = Default::default();
            Ok(GetResult { payload, meta, range: 0..100, attributes, extensions })
        }

        async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
            unreachable!("it is only read")
        }

        async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
            unreachable!("it is only read")
        }

        fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
            unreachable!("it is only read")
        }

        fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
            unreachable!("it is only read")
        }

        async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
            unreachable!("it is only read")
        }

        async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
            unreachable!("it is only read")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_of_a_dead_folder_hold_few_threads() {
        let folder = Arc::new(DeadFolder::default());
        let url = url::Url::parse("file:///nowhere").unwrap();
        let config = SharedCacheConfig { url, write: false, settings: Vec::new() };
        let client = Client::new(HttpConfig::default()).unwrap();
        let remote = Remote::new(Arc::clone(&folder) as Arc<dyn ObjectStore>, Path::default(), &client, &config);
        let spec = |number: u8| {
            let hashes = vec![Digest::new(Algorithm::Sha256, &[number; 32]).unwrap()];
            FetchSpec { hashes, ..FetchSpec::new(Ino(2), Uri::parse("http://h/a").unwrap()) }
        };
        let most = remote.looks[0].available_permits();
        let mut bodies = Vec::new();
        for number in 0..200 {
            let name = Name::of(&spec(number), None).unwrap();
            bodies.extend(remote.get(&name, None, Some(100), None, Priority::default()).await);
        }
        assert_eq!(bodies.len(), most);

        let reads = bodies.iter_mut().map(SharedBody::chunk);
        let failed = futures_util::future::join_all(reads).await;
        assert!(failed.iter().all(|read| matches!(read, Err(SharedError::Slow))));
        drop(bodies);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let name = Name::of(&spec(0), None).unwrap();

        assert!(remote.get(&name, None, Some(100), None, Priority::default()).await.is_none(), "they hold theirs");
        assert_eq!(folder.held.load(Ordering::SeqCst), most);
    }
}
